//! Writes the text format: families of series.

use std::fmt::{self, Write as _};

/// What a family's values do.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// They only grow, until what is counted begins anew.
    Counter,
    /// They go up and down.
    Gauge,
    /// How many were how large: see [`histogram`].
    Histogram,
}

/// A value.
#[derive(Clone, Copy, Debug)]
pub enum Value {
    /// A count, or bytes.
    Count(u64),
    /// What may be below zero.
    Signed(i64),
    /// Written as seconds, exactly.
    Nanoseconds(u64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(n) => n.fmt(f),
            Self::Signed(n) => n.fmt(f),
            Self::Nanoseconds(ns) => {
                write!(f, "{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
            }
        }
    }
}

/// One series of a family: its labels in braces, and its value.
pub struct Series(String);

/// A series with these labels. The names of labels are ours; their values may be any text.
pub fn series(labels: &[(&'static str, &str)], value: Value) -> Series {
    let mut text = String::new();
    for (n, (label, said)) in labels.iter().enumerate() {
        let before = if n == 0 { '{' } else { ',' };
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, "{before}{label}=\"{}\"", escaped(said));
    }
    if !labels.is_empty() {
        text.push('}');
    }
    let _ = write!(text, " {value}");
    Series(text)
}

/// A histogram of times: `counts` by buckets, of which the last has no bound; all of them together
/// took `sum` nanoseconds.
pub fn histogram(
    labels: &[(&'static str, &str)],
    counts: &[u64],
    bound_ns: fn(usize) -> Option<u64>,
    sum: u64,
) -> Vec<Series> {
    let of = |ending: &str, labels: &[(&'static str, &str)], value| {
        Series(format!("{ending}{}", series(labels, value).0))
    };
    let mut below = 0_u64;
    let bucket = |(n, count): (usize, &u64)| {
        below = below.saturating_add(*count);
        let bound = bound_ns(n).map_or("+Inf".to_owned(), |ns| Value::Nanoseconds(ns).to_string());
        let labels = [labels, &[("le", &bound)]].concat();
        of("_bucket", &labels, Value::Count(below))
    };
    let mut all: Vec<Series> = counts.iter().enumerate().map(bucket).collect();
    all.push(of("_sum", labels, Value::Nanoseconds(sum)));
    all.push(of("_count", labels, Value::Count(below)));
    all
}

/// A label's value as the format wants it.
fn escaped(text: &str) -> String {
    text.chars()
        .fold(String::with_capacity(text.len()), |mut text, c| {
            match c {
                '\\' => text.push_str("\\\\"),
                '"' => text.push_str("\\\""),
                '\n' => text.push_str("\\n"),
                _ => text.push(c),
            }
            text
        })
}

/// The text as it grows.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    /// The first label of every series, where the machine is a host of a cluster.
    host: Option<String>,
}

impl Exposition {
    /// One whose series name a host of a cluster, if there is one.
    pub fn of_host(host: Option<&str>) -> Self {
        Self {
            text: String::new(),
            host: host.map(|host| format!("host=\"{}\"", escaped(host))),
        }
    }

    /// A series with the host's label.
    fn labelled(&self, series: String) -> String {
        let Some(host) = &self.host else {
            return series;
        };
        // An ending of the name, then labels or the value.
        match series.find(['{', ' ']).map(|at| series.split_at(at)) {
            Some((ending, rest)) => match rest.strip_prefix('{') {
                Some(labels) => format!("{ending}{{{host},{labels}"),
                None => format!("{ending}{{{host}}}{rest}"),
            },
            None => series,
        }
    }

    /// Adds a family; nothing where it has no series. `help` is a sentence of ours, without
    /// backslashes and line breaks.
    pub fn family(
        &mut self,
        name: &str,
        kind: Kind,
        help: &str,
        all: impl IntoIterator<Item = Series>,
    ) {
        let mut all = all.into_iter().peekable();
        if all.peek().is_none() {
            return;
        }
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        for Series(series) in all {
            let series = self.labelled(series);
            let _ = writeln!(self.text, "{name}{series}");
        }
    }

    /// Adds a gauge of one series without labels.
    pub fn one(&mut self, name: &str, help: &str, value: Value) {
        self.family(name, Kind::Gauge, help, [series(&[], value)]);
    }

    /// The whole text.
    pub fn into_text(self) -> String {
        self.text
    }
}
