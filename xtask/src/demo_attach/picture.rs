//! The plot of the demo of attaching, as SVG: OS-0's throughput over time, and below it who was there.

use std::fmt::Write as _;
use tests_boot::timeline::Timeline;

/// The picture, and the room around the plot: left, above, right, below.
const SIZE: (f64, f64) = (960.0, 500.0);
const MARGIN: (f64, f64, f64, f64) = (80.0, 110.0, 20.0, 140.0);
/// The height of what tells who was there, and its distance from one to the next.
const BAND: (f64, f64) = (16.0, 24.0);
/// Seconds over which throughput is averaged.
const WINDOW: f64 = 0.2;
/// Colours that people with any kind of sight can tell apart (Okabe and Ito).
const LINUX: &str = "#0072b2";
/// Who is there, from which moment to which; and its colour.
const BANDS: [(&str, &str, &str, &str); 3] = [
    ("Underpin", "attached", "detached", "#e69f00"),
    ("VM one", "starts one", "ends one", "#009e73"),
    ("VM two", "starts two", "ends two", "#cc79a7"),
];
/// The moments that have a line of their own, and what it says.
const MARKS: [(&str, &str); 6] = [
    ("attached", "attach"),
    ("starts one", "run one"),
    ("starts two", "run two"),
    ("ends one", "one ends"),
    ("ends two", "two ends"),
    ("detached", "detach"),
];

/// Where things are on the picture.
struct Scale {
    last: f64,
    most: f64,
}

impl Scale {
    fn x(&self, at: f64) -> f64 {
        MARGIN.0 + (SIZE.0 - MARGIN.0 - MARGIN.2) * at / self.last
    }

    fn y(&self, rate: f64) -> f64 {
        let height = foot() - MARGIN.1;
        MARGIN.1 + height * (1.0 - rate / self.most)
    }
}

fn foot() -> f64 {
    SIZE.1 - MARGIN.3
}

/// The picture.
pub fn svg(timeline: &Timeline) -> String {
    let points = points(timeline);
    let last = timeline.forks.last().map_or(1.0, |(at, _)| at.max(1e-3));
    let most = points.iter().map(|(_, rate)| *rate).fold(1.0, f64::max);
    let scale = Scale {
        last,
        // A quarter of it is a round number.
        most: (most / 400.0).ceil() * 400.0,
    };
    let (width, height) = SIZE;
    let left = MARGIN.0;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"26\" font-size=\"16\" font-weight=\"bold\">Underpin beneath a running Linux, and away \
         again</text>\n\
         <text x=\"{left}\" y=\"46\" fill=\"#555555\">Forks and execs a second of a Debian kernel that owns 2 CPUs; \
         one instruction takes one nanosecond</text>\n"
    );
    axes(&mut text, &scale);
    curve(&mut text, &scale, &points);
    means(&mut text, &scale, timeline);
    marks(&mut text, &scale, timeline);
    bands(&mut text, &scale, timeline);
    text + "</svg>\n"
}

/// Throughput at each count but the first ones.
fn points(timeline: &Timeline) -> Vec<(f64, f64)> {
    let rate = |&(at, _): &(f64, u64)| Some((at, timeline.rate(at - WINDOW, at)?));
    timeline.forks.iter().filter_map(rate).collect()
}

fn axes(text: &mut String, scale: &Scale) {
    let (left, right) = (MARGIN.0, SIZE.0 - MARGIN.2);
    for quarter in 0..=4 {
        let mark = scale.most * f64::from(quarter) / 4.0;
        let y = scale.y(mark);
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{mark:.0}</text>",
            left - 6.0,
            y + 4.0
        );
    }
    for second in 0..=scale.last as u32 {
        let x = scale.x(f64::from(second));
        let _ = writeln!(
            text,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{second} s</text>",
            SIZE.1 - 12.0
        );
    }
}

fn curve(text: &mut String, scale: &Scale, points: &[(f64, f64)]) {
    let mut path = String::new();
    for (at, rate) in points {
        let command = if path.is_empty() { 'M' } else { 'L' };
        let _ = write!(path, "{command}{:.1} {:.1}", scale.x(*at), scale.y(*rate));
    }
    if let (Some(first), Some(last)) = (points.first(), points.last()) {
        let (from, to, foot) = (scale.x(first.0), scale.x(last.0), foot());
        let _ = writeln!(
            text,
            "<path d=\"{path}L{to:.1} {foot:.1}L{from:.1} {foot:.1}Z\" fill=\"{LINUX}\" fill-opacity=\"0.12\"/>\n\
             <path d=\"{path}\" fill=\"none\" stroke=\"{LINUX}\" stroke-width=\"1.8\"/>"
        );
    }
}

/// Each phase's mean.
fn means(text: &mut String, scale: &Scale, timeline: &Timeline) {
    for phase in timeline.phases() {
        let (from, to, y) = (scale.x(phase.from), scale.x(phase.to), scale.y(phase.rate));
        let _ = writeln!(
            text,
            "<line x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#333333\" \
             stroke-dasharray=\"4 3\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-weight=\"bold\">{:.0}</text>",
            f64::midpoint(from, to),
            y + 18.0,
            phase.rate
        );
    }
}

/// A line for each moment, with its words slanted, as moments may be close to each other.
fn marks(text: &mut String, scale: &Scale, timeline: &Timeline) {
    for (moment, words) in MARKS {
        let Some(at) = timeline.when(moment) else {
            continue;
        };
        let (x, above) = (scale.x(at), MARGIN.1);
        let _ = writeln!(
            text,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{above}\" y2=\"{:.1}\" stroke=\"#777777\"/>\
             <text transform=\"translate({:.1} {:.1}) rotate(-35)\" font-size=\"11\">{words}</text>",
            SIZE.1 - 30.0,
            x + 2.0,
            above - 4.0
        );
    }
}

/// Who is there when, below the plot.
fn bands(text: &mut String, scale: &Scale, timeline: &Timeline) {
    for (n, (who, from, to, colour)) in BANDS.iter().enumerate() {
        let y = foot() + 14.0 + BAND.1 * n as f64;
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{who}</text>",
            MARGIN.0 - 6.0,
            y + 12.0
        );
        if let (Some(from), Some(to)) = (timeline.when(from), timeline.when(to)) {
            let (x, wide) = (scale.x(from), scale.x(to) - scale.x(from));
            let tall = BAND.0;
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{wide:.1}\" height=\"{tall}\" rx=\"3\" fill=\"{colour}\"/>"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picture_has_a_line_for_each_moment_and_a_band_for_each_who_was_there() {
        let mut said = String::new();
        for tenth in 0..40 {
            let (seconds, part) = (100 + tenth / 10, tenth % 10);
            let _ = writeln!(said, "os0: at={seconds}.{part} forks={}", tenth * 100);
        }
        for (n, (moment, _)) in MARKS.iter().enumerate() {
            let _ = writeln!(said, "os0: at={} {moment}", 101.0 + n as f64 / 4.0);
        }
        let svg = svg(&Timeline::parse(&said));
        assert_eq!(svg.matches("<rect").count(), 1 + 3);
        assert_eq!(svg.matches("rotate(").count(), 6);
        assert!(svg.contains(">1200</text>") && svg.ends_with("</svg>\n"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(super::svg(&Timeline::default()).ends_with("</svg>\n"));
    }
}
