//! A chart of stacked areas, or of lines, over time, as SVG.

use super::page::escape;
use crate::units;
use std::fmt::Write as _;

/// The size of a chart, in its own units; the page stretches it.
pub const WIDTH: f64 = 480.0;
/// See [`WIDTH`].
pub const HEIGHT: f64 = 220.0;
/// Room around the plot: left, above, right, below.
const MARGIN: (f64, f64, f64, f64) = (64.0, 10.0, 12.0, 26.0);
/// Colours that people with any kind of sight can tell apart (Okabe and Ito), and grey.
pub const COLOURS: [&str; 8] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#56b4e9", "#cc79a7", "#b8a900", "#888888",
];

/// What the numbers of a chart are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Bytes a second.
    Rate,
    /// Any other.
    Plain,
    /// Percent.
    Percent,
}

/// A chart.
pub struct Chart {
    /// What stands above it.
    pub title: String,
    /// What its numbers are.
    pub unit: Unit,
    /// Its parts lie on each other; else each is a line of its own.
    pub stacked: bool,
    /// The parts' names.
    pub parts: Vec<String>,
    /// Seconds, and the value of each part.
    pub points: Vec<(f64, Vec<f64>)>,
}

impl Chart {
    /// The chart with its title and legend, as HTML.
    pub fn draw(&self, text: &mut String) {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "<figure><figcaption>{}</figcaption>",
            escape(&self.title)
        );
        let _ = writeln!(
            text,
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            escape(&self.title)
        );
        let sides = self.sides();
        let most = sides.iter().flatten().map(|(_, over)| *over);
        let (top, step) = scale(most.fold(0.0, f64::max), self.unit);
        self.marks(text, top, step);
        for (part, side) in sides.iter().enumerate() {
            self.part(text, part, side, top);
        }
        text.push_str("</svg>\n<p class=\"legend\">");
        for (part, name) in self.parts.iter().enumerate() {
            let colour = COLOURS[part % COLOURS.len()];
            let _ = write!(
                text,
                "<span><i style=\"background:{colour}\"></i>{}</span> ",
                escape(name)
            );
        }
        text.push_str("</p></figure>\n");
    }

    /// For each part and point, where its area begins and ends.
    fn sides(&self) -> Vec<Vec<(f64, f64)>> {
        let mut below = vec![0.0; self.points.len()];
        let one = |part: usize| {
            let point = |(below, (_, values)): (&mut f64, &(f64, Vec<f64>))| {
                let value = values.get(part).copied().unwrap_or(0.0);
                let from = if self.stacked { *below } else { 0.0 };
                *below = from + value;
                (from, from + value)
            };
            below.iter_mut().zip(&self.points).map(point).collect()
        };
        (0..self.parts.len()).map(one).collect()
    }

    fn x(&self, at: f64) -> f64 {
        let (first, last) = self.span();
        let part = (at - first) / (last - first);
        MARGIN.0 + part * (WIDTH - MARGIN.0 - MARGIN.2)
    }

    /// The times of the first and last point, some time apart.
    fn span(&self) -> (f64, f64) {
        let first = self.points.first().map_or(0.0, |(at, _)| *at);
        let last = self.points.last().map_or(1.0, |(at, _)| *at);
        (first, last.max(first + 1e-3))
    }

    fn marks(&self, text: &mut String, top: f64, step: f64) {
        for n in 0..=(top / step).round() as u32 {
            let value = f64::from(n) * step;
            let y = y(value, top);
            let _ = writeln!(
                text,
                "<line x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                MARGIN.0,
                WIDTH - MARGIN.2,
                MARGIN.0 - 6.0,
                y + 4.0,
                label(value, self.unit)
            );
        }
        let (first, last) = self.span();
        for (at, anchor) in [
            (first, "start"),
            (f64::midpoint(first, last), "middle"),
            (last, "end"),
        ] {
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{at:.1} s</text>",
                self.x(at),
                HEIGHT - 8.0
            );
        }
    }

    fn part(&self, text: &mut String, part: usize, side: &[(f64, f64)], top: f64) {
        let mut path = String::new();
        let mut to = |at: f64, value: f64| {
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", self.x(at), y(value, top));
        };
        let times = || self.points.iter().map(|(at, _)| *at);
        for (at, (_, over)) in times().zip(side) {
            to(at, *over);
        }
        if self.stacked {
            for (at, (under, _)) in times().zip(side).rev().collect::<Vec<_>>() {
                to(at, *under);
            }
            path.push('Z');
        }
        let colour = COLOURS[part % COLOURS.len()];
        let paint = if self.stacked {
            format!("fill=\"{colour}\" stroke=\"{colour}\" stroke-width=\"0.5\"")
        } else {
            format!("fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"")
        };
        if !side.is_empty() {
            let name = escape(&self.parts[part]);
            let _ = writeln!(
                text,
                "<path {paint} d=\"{path}\"><title>{name}</title></path>"
            );
        }
    }
}

fn y(value: f64, top: f64) -> f64 {
    let height = HEIGHT - MARGIN.1 - MARGIN.3;
    MARGIN.1 + height * (1.0 - value / top)
}

fn label(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => units::short(value as u64),
        Unit::Rate => format!("{}/s", units::short(value as u64)),
        Unit::Percent => format!("{value:.0} %"),
        Unit::Plain if value >= 10_000.0 => units::count(value as u64),
        Unit::Plain => format!("{}", (value * 100.0).round() / 100.0),
    }
}

/// The end of an axis that holds values up to `most`, and the distance of its marks: at most six.
/// Bytes have marks at round binary numbers.
fn scale(most: f64, unit: Unit) -> (f64, f64) {
    let base: f64 = match unit {
        Unit::Bytes | Unit::Rate => 1024.0,
        Unit::Plain | Unit::Percent => 1.0,
    };
    let least: f64 = if base > 1.0 { 4.0 * base } else { 1.0 };
    let most = most.max(least);
    // The greatest power of the base that a step can have; then 1, 2 or 5 tens of it.
    let power = base.powf(((most / 5.0).ln() / base.max(2.0).ln()).floor().max(0.0));
    let within = most / 5.0 / power;
    let tens = 10f64.powf(within.log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * tens * power);
    let step = factors.into_iter().find(|step| most / step <= 5.0);
    let step = step.unwrap_or(10.0 * tens * power);
    ((most / step).ceil() * step, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn axes_hold_their_values(most in 0.0..1e15f64, bytes in any::<bool>()) {
            let (top, step) = scale(most, if bytes { Unit::Bytes } else { Unit::Plain });
            prop_assert!(top >= most * 0.999_999, "{top} {step}");
            prop_assert!(most < 5000.0 || top <= most * 2.1, "{top} {step}");
            prop_assert!((0.99..=6.01).contains(&(top / step)), "{top} {step}");
        }
    }
}
