//! Sizes of workloads: `bench/workloads.toml`, and the words of a table about them.

use crate::step::Outcome;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The most that work may take with Underpin, of round robin's time and of uniform's.
const AIMS: (f64, f64) = (0.60, 1.20);

/// A workload, whose size was declared before it was measured.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Its name in tables.
    pub what: String,
    /// What its size counts.
    unit: String,
    /// The size of the headline.
    declared: u32,
    /// Sizes that are shown beside it.
    extra: Vec<u32>,
    /// Where the declared size is from.
    source: String,
    /// Why an aim is missed at the declared size, where that is known.
    miss: Option<String>,
    /// It is there to be compared, and not to be within [`AIMS`].
    #[serde(default)]
    has_no_aim: bool,
}

/// A size that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// In the workload's unit.
    pub count: u32,
    /// It is not the one that was declared.
    pub is_extra: bool,
}

impl Workload {
    /// The one of that name.
    ///
    /// # Errors
    /// The file has none, or is wrong.
    pub fn named(name: &str) -> Outcome<Self> {
        let said = |what: &str| format!("bench/workloads.toml: {what}");
        let mut all: BTreeMap<String, Self> =
            toml::from_str(include_str!("../../../bench/workloads.toml"))
                .map_err(|error| said(&error.to_string()))?;
        let found = all.remove(name).filter(|found| !found.source.is_empty());
        found.ok_or_else(|| said(&format!("no workload '{name}' with a source")))
    }

    /// The declared size, and then the others.
    pub fn sizes(&self) -> Vec<Size> {
        let size = |(count, is_extra)| Size { count, is_extra };
        let extra = self.extra.iter().map(|count| (*count, true));
        let all = std::iter::once((self.declared, false)).chain(extra);
        all.map(size).collect()
    }

    /// The first cell of its rows at a size.
    pub fn title(&self, size: Size) -> String {
        let extra = if size.is_extra { "extra: " } else { "" };
        format!("{extra}{}, {} {}", self.what, size.count, self.unit)
    }

    /// Whether work with Underpin is within the aims, where it has some at this size.
    pub fn verdict(&self, size: Size, against_round_robin: f64, against_uniform: f64) -> &str {
        let is_met = against_round_robin <= AIMS.0 && against_uniform <= AIMS.1;
        match self.miss {
            _ if self.has_no_aim => "",
            _ if is_met => "met",
            _ if size.is_extra => "missed (extra)",
            Some(_) => "missed (known)",
            None => "missed",
        }
    }
}

/// The median of figures, the least and the most.
pub fn spread(mut figures: Vec<f64>) -> (f64, f64, f64) {
    figures.sort_by(f64::total_cmp);
    let at = |n: usize| figures.get(n).copied().unwrap_or(f64::NAN);
    let last = figures.len().saturating_sub(1);
    (at(last / 2), at(0), at(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_has_a_size_and_its_source() {
        for name in [
            "scene", "own", "still", "tachyon", "minisat", "cc1", "figure8",
        ] {
            let workload = Workload::named(name).unwrap();
            let sizes = workload.sizes();
            assert!(!sizes[0].is_extra && sizes[0].count > 0, "{name}");
            assert!(sizes[1..].iter().all(|size| size.is_extra), "{name}");
        }
        assert!(Workload::named("else").is_err());
    }

    #[test]
    fn extra_sizes_are_told_apart() {
        let scene = Workload::named("scene").unwrap();
        let titles: Vec<_> = scene
            .sizes()
            .iter()
            .map(|size| scene.title(*size))
            .collect();
        assert_eq!(
            titles,
            [
                "read-shared scene, 80 passes",
                "extra: read-shared scene, 100 passes"
            ]
        );
    }

    #[test]
    fn a_miss_is_told_as_one() {
        let scene = Workload::named("scene").unwrap();
        let own = Workload::named("own").unwrap();
        let declared = scene.sizes()[0];
        assert_eq!(scene.verdict(declared, 0.60, 1.20), "met");
        assert_eq!(scene.verdict(declared, 0.60, 1.205), "missed (known)");
        assert_eq!(own.verdict(own.sizes()[0], 0.61, 1.0), "missed");
        assert_eq!(spread(vec![3.0, 1.0, 2.0, 9.0, 4.0]), (3.0, 1.0, 9.0));
    }
}
