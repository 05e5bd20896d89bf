//! Draws a report: four charts of stacked bars, as SVG.

use super::{Durations, Found, LASTED, Report};
use std::fmt::Write as _;

/// The picture: two charts beside each other, twice.
const CHART: (f64, f64) = (560.0, 360.0);
/// Room around a chart's bars: left, above, right, below.
const MARGIN: (f64, f64, f64, f64) = (70.0, 60.0, 20.0, 40.0);
/// The name of the language, without which browsers draw nothing.
const SVG: &str = r#"xmlns="http://www.w3.org/2000/svg""#;
/// Colours that people with any kind of sight can tell apart (Okabe and Ito).
const COLOURS: [&str; 4] = ["#0072b2", "#e69f00", "#56b4e9", "#999999"];
/// The most labels below the bars.
const LABELS_MAX: usize = 10;

/// How long something lasted, in words, in the order of [`LASTED`].
pub const LASTED_NAMES: [&str; LASTED.len()] = [
    "one snapshot only",
    "1 to 3 intervals",
    "4 to 15 intervals",
    "16 intervals or more",
];

/// Bars of stacked parts.
struct Chart {
    title: &'static str,
    parts: Vec<&'static str>,
    /// What stands below each bar, and its parts from below.
    bars: Vec<(String, Vec<f64>)>,
}

/// The report as an SVG picture: what was shared and what could be (Satori, figure 8), by duration
/// over time (figure 4) and in all (figure 5), by rank (table 1).
pub fn svg(report: &Report) -> String {
    let charts = [
        savings(report),
        lasting(report),
        ranks(report),
        durations(report),
    ];
    let (width, height) = (2.0 * CHART.0, 2.0 * CHART.1);
    let mut text = format!(
        "<svg {SVG} viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (n, chart) in charts.iter().enumerate() {
        let (x, y) = ((n % 2) as f64 * CHART.0, (n / 2) as f64 * CHART.1);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "<g transform=\"translate({x} {y})\">");
        chart.draw(&mut text);
        text.push_str("</g>\n");
    }
    text.push_str("</svg>\n");
    text
}

fn mib(pages: u64) -> f64 {
    pages as f64 / 256.0
}

fn seconds(found: &Found) -> String {
    format!("{:.0} s", found.at.as_secs_f64())
}

fn savings(report: &Report) -> Chart {
    let bar = |found: &Found| {
        let all = found.all;
        let parts = [
            all.exploited,
            all.missed_alone,
            all.missed_private,
            all.apart,
        ];
        (seconds(found), parts.map(mib).to_vec())
    };
    Chart {
        title: "What sharing saves and could save, in MiB (no zeroes)",
        parts: vec!["saved", "alone", "private", "other group"],
        bars: report.found.iter().map(bar).collect(),
    }
}

fn lasting(report: &Report) -> Chart {
    let bars = report.found.iter().zip(&report.lasting);
    Chart {
        title: "Contents with two pages or more, by how long they lasted",
        parts: LASTED_NAMES.to_vec(),
        bars: bars
            .map(|(found, lasting)| (seconds(found), lasting.map(|n| n as f64).to_vec()))
            .collect(),
    }
}

fn ranks(report: &Report) -> Chart {
    let ranges = [(2, 2), (3, 3), (4, 4), (5, 8), (9, 16), (17, u64::MAX)];
    let sums = report.ranks();
    let all = sums.values().sum::<u64>().max(1) as f64;
    let bar = |(from, to): (u64, u64)| {
        let label = match to {
            _ if from == to => from.to_string(),
            u64::MAX => format!("{from} up"),
            _ => format!("{from} to {to}"),
        };
        let saved = sums.range(from..=to).map(|(_, n)| *n).sum::<u64>();
        (label, vec![saved as f64 * 100.0 / all])
    };
    Chart {
        title: "Possible savings by rank: pages with the same content, in %",
        parts: Vec::new(),
        bars: ranges.map(bar).to_vec(),
    }
}

fn durations(report: &Report) -> Chart {
    let bar = |label: &str, durations: &Durations| {
        let all = durations.count.iter().sum::<u64>().max(1) as f64;
        let parts = durations.count.map(|n| n as f64 * 100.0 / all);
        (label.to_owned(), parts.to_vec())
    };
    Chart {
        title: "Opportunities by how long they lasted, in %",
        parts: LASTED_NAMES.to_vec(),
        bars: vec![
            bar("contents", &report.contents),
            bar("pages of zeroes", &report.zero),
        ],
    }
}

impl Chart {
    fn draw(&self, text: &mut String) {
        let (left, above, right, below) = MARGIN;
        let (width, height) = (CHART.0 - left - right, CHART.1 - above - below);
        let sums = self.bars.iter().map(|(_, parts)| parts.iter().sum());
        let (top, step) = scale(sums.fold(0.0, f64::max));
        let _ = writeln!(
            text,
            "<text x=\"{left}\" y=\"20\" font-weight=\"bold\">{}</text>",
            self.title
        );
        for (n, part) in self.parts.iter().enumerate() {
            let (x, colour) = (left + n as f64 * 120.0, COLOURS[n % COLOURS.len()]);
            let _ = writeln!(
                text,
                "<rect x=\"{x}\" y=\"32\" width=\"10\" height=\"10\" fill=\"{colour}\"/>\
                 <text x=\"{}\" y=\"41\" font-size=\"10\">{part}</text>",
                x + 14.0
            );
        }
        let foot = above + height;
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        for n in 0..=(top / step).round() as u32 {
            let mark = f64::from(n) * step;
            let y = foot - height * mark / top;
            let _ = writeln!(
                text,
                "<line x1=\"{left}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark:.decimals$}</text>",
                left + width,
                left - 6.0,
                y + 4.0
            );
        }
        let slot = width / self.bars.len().max(1) as f64;
        let skip = self.bars.len().div_ceil(LABELS_MAX).max(1);
        for (n, (label, parts)) in self.bars.iter().enumerate() {
            let x = left + slot * n as f64;
            let mut y = foot;
            for (part, colour) in parts.iter().zip(COLOURS) {
                let tall = height * part / top;
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
                    "<text x=\"{x:.1}\" y=\"{y}\" text-anchor=\"middle\">{label}</text>"
                );
            }
        }
    }
}

/// The end of an axis that holds values up to `most`, and the distance of its marks: at most six.
fn scale(most: f64) -> (f64, f64) {
    if most <= 0.0 {
        return (1.0, 1.0);
    }
    let power = 10f64.powf((most / 5.0).log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = factors.into_iter().find(|step| most / step <= 5.0);
    let step = step.unwrap_or(10.0 * power);
    ((most / step).ceil() * step, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::{Analysis, VmPages};
    use abi::control::{PageStatus, page};
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn picture_has_a_bar_for_each_part() {
        let mut analysis = Analysis::default();
        for seconds in 0..3 {
            let vms = [0, 1].map(|vm| VmPages {
                vm,
                group: 0,
                pages: vec![PageStatus {
                    address: page::SHARED,
                    hash: 9,
                }],
                flags: None,
            });
            analysis.take(Duration::from_secs(seconds), &vms);
        }
        let svg = svg(&analysis.report());
        // Background, legends, and bars of the four charts.
        let rects = 1 + 3 * 4 + (3 * 4 + 3 * 4 + 6 + 2 * 4);
        assert_eq!(svg.matches("<rect").count(), rects);
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
        assert!(svg.contains(">2 s</text>") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(super::svg(&Report::default()).ends_with("</svg>\n"));
    }

    proptest! {
        #[test]
        fn axes_hold_their_values(most in 1e-3f64..1e12) {
            let (top, step) = scale(most);
            prop_assert!(top >= most * 0.999_999 && top <= most * 2.5, "{top} {step}");
            prop_assert!(top / step <= 5.5);
        }
    }
}
