//! The time of kinds of pages under other thresholds, in the model: why those in use are what they are.

use super::directory;
use crate::{
    bench_sharing::plot::Plot,
    project::cargo,
    step::{Outcome, Step},
};

const SWEEP: &str = "test -q -p model_placement --test sweep -- --nocapture --test-threads 1";

/// A use of pages, a threshold, and microseconds.
type Point = (String, u32, f64);

/// The table: a row for each threshold, and a column for each use of pages.
///
/// # Errors
/// The sweep fails, or prints something else.
pub fn measure(step: &mut Step<'_>) -> Outcome<Vec<Vec<String>>> {
    let printed = step.command(&mut cargo("host", SWEEP))?;
    let points: Vec<Point> = printed.lines().filter_map(point).collect();
    let mut uses: Vec<&str> = points.iter().map(|(name, ..)| &**name).collect();
    uses.dedup();
    let mut triggers: Vec<u32> = points.iter().map(|(_, trigger, _)| *trigger).collect();
    triggers.sort_unstable();
    triggers.dedup();
    if uses.is_empty() || points.len() != uses.len() * triggers.len() {
        return Err(format!("the sweep printed {} points", points.len()));
    }
    let head = ["misses"].into_iter().chain(uses.iter().copied());
    let mut rows = vec![head.chain(["all"]).map(str::to_owned).collect::<Vec<_>>()];
    let mut bars = Vec::new();
    for trigger in triggers {
        let name = match trigger {
            u32::MAX => "never".to_owned(),
            _ => trigger.to_string(),
        };
        let here = points.iter().filter(|(_, at, _)| *at == trigger);
        let times: Vec<f64> = here.map(|(.., us)| us / 1e3).collect();
        let all: f64 = times.iter().sum();
        let cells = times.iter().chain([&all]);
        let cells = cells.map(|ms| format!("{ms:.1}"));
        rows.push([name.clone()].into_iter().chain(cells).collect());
        bars.push((name, times));
    }
    let plot = Plot {
        title: "Milliseconds of five kinds of pages, by the misses that make a page hot",
        parts: &uses,
        bars,
    };
    plot.write(&directory()?.join("numa-thresholds.svg"))?;
    Ok(rows)
}

/// `USE,THRESHOLD,MICROSECONDS`, where a use's name may have commas of its own.
fn point(line: &str) -> Option<Point> {
    let mut cells = line.rsplitn(3, ',');
    let us = cells.next()?.parse().ok()?;
    let trigger = cells.next()?.parse().ok()?;
    Some((cells.next()?.to_owned(), trigger, us))
}
