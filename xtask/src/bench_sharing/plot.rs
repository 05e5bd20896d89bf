//! Small plots in SVG, by hand: bars of parts, beside each other.

use crate::step::Outcome;
use std::{fmt::Write as _, fs, path::Path};

/// The picture, and the room around its bars: left, above, right, below.
const SIZE: (f64, f64) = (720.0, 400.0);
const MARGIN: (f64, f64, f64, f64) = (70.0, 70.0, 20.0, 40.0);
/// The most labels below the bars.
const LABELS_MAX: usize = 16;
/// Colours that people with any kind of sight can tell apart (Okabe and Ito).
const COLOURS: [&str; 7] = [
    "#0072b2", "#e69f00", "#56b4e9", "#009e73", "#cc79a7", "#d55e00", "#999999",
];

/// Writes a picture of bars that have one part each.
///
/// # Errors
/// It cannot be written.
pub fn write_bars(path: &Path, title: &str, bars: Vec<(String, f64)>) -> Outcome {
    let bars = bars.into_iter().map(|(label, tall)| (label, vec![tall]));
    let plot = Plot {
        title,
        parts: &[],
        bars: bars.collect(),
    };
    plot.write(path)
}

/// Bars of stacked parts.
pub struct Plot<'a> {
    /// What it shows, and its unit.
    pub title: &'a str,
    /// What the parts are, from below.
    pub parts: &'a [&'a str],
    /// What stands below each bar, and its parts.
    pub bars: Vec<(String, Vec<f64>)>,
}

impl Plot<'_> {
    /// Writes the picture.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &Path) -> Outcome {
        fs::write(path, self.svg())
            .map_err(|error| format!("cannot write {}: {error}", path.display()))
    }

    fn svg(&self) -> String {
        let (width, height) = SIZE;
        let (left, title) = (MARGIN.0, self.title);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\" font-size=\"12\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
             <text x=\"{left}\" y=\"22\" font-weight=\"bold\">{title}</text>\n"
        );
        for (n, (part, colour)) in self.parts.iter().zip(COLOURS).enumerate() {
            let x = left + 125.0 * n as f64;
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "<rect x=\"{x}\" y=\"38\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"47\" font-size=\"11\">{part}</text>",
                x + 14.0
            );
        }
        let sums = self.bars.iter().map(|(_, parts)| parts.iter().sum::<f64>());
        let most = sums.fold(1e-9, f64::max);
        Self::draw_axis(&mut text, most);
        self.draw_bars(&mut text, most);
        text + "</svg>\n"
    }

    fn draw_axis(text: &mut String, most: f64) {
        let (left, above, right, below) = MARGIN;
        let height = SIZE.1 - above - below;
        for quarter in 0..=4 {
            let part = f64::from(quarter) / 4.0;
            let (mark, y) = (most * part, above + height * (1.0 - part));
            let _ = writeln!(
                text,
                "<line x1=\"{left}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark:.0}</text>",
                SIZE.0 - right,
                left - 6.0,
                y + 4.0
            );
        }
    }

    fn draw_bars(&self, text: &mut String, most: f64) {
        let (left, above, right, below) = MARGIN;
        let (width, height) = (SIZE.0 - left - right, SIZE.1 - above - below);
        let foot = above + height;
        let slot = width / self.bars.len().max(1) as f64;
        let skip = self.bars.len().div_ceil(LABELS_MAX);
        for (n, (label, parts)) in self.bars.iter().enumerate() {
            let x = left + slot * n as f64;
            let mut y = foot;
            for (part, colour) in parts.iter().zip(COLOURS.iter().cycle()) {
                let tall = height * part / most;
                y -= tall;
                let _ = writeln!(
                    text,
                    "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{tall:.1}\" fill=\"{colour}\"/>",
                    x + slot * 0.1,
                    slot * 0.8
                );
            }
            if n % skip == 0 {
                let (x, y) = (x + slot / 2.0, foot + 16.0);
                let _ = writeln!(
                    text,
                    "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\" font-size=\"9\">{label}</text>"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_its_place() {
        let bars = vec![
            ("one".to_owned(), vec![1.0, 2.0]),
            ("two".to_owned(), vec![0.0, 4.0]),
        ];
        let svg = Plot {
            title: "t",
            parts: &["a", "b"],
            bars,
        }
        .svg();
        // The ground, the legend, the parts.
        assert_eq!(svg.matches("<rect").count(), 1 + 2 + 4);
        assert!(svg.contains("height=\"290.0\"") && !svg.contains("NaN"));
        assert!(svg.ends_with("</svg>\n"));
    }
}
