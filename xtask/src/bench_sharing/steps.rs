//! What each step of sharing costs at EL2, seen from a bare guest.

use super::{Found, Vm, image, lab::Lab, plot::write_bars, plot_of};
use crate::{
    bench::{self, figures, table::Figures},
    step::{Outcome, Step},
};
use std::path::{Path, PathBuf};
use tests_boot::assets;

/// Blocks that the guest `timing` wants on its disk: unlike ones, and empty ones.
const BLOCKS: (u64, u64) = (2048, 512);

/// The guest `timing`.
pub fn kernel() -> PathBuf {
    PathBuf::from(assets::guest("timing"))
}

/// Its disk.
pub fn disk() -> Outcome<PathBuf> {
    image("timing.img", BLOCKS.0, BLOCKS.1)
}

/// One run with sharing, which says the same as any other.
///
/// # Errors
/// The guest does not do its work.
pub fn once() -> Outcome<Figures> {
    measure("", &disk()?).map(|(figures, _)| figures)
}

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    let rows = bench::read_rows()?;
    let disk = disk()?;
    step.doing("with sharing");
    let (shared, first) = measure("", &disk)?;
    step.doing("with sharing, again");
    let (_, second) = measure("", &disk)?;
    step.doing("without");
    let (never, _) = measure("never = true", &disk)?;
    let mut found = Found {
        name: "steps",
        rows: vec![
            ["instructions per page", "never shared", "shared", "aim", ""]
                .map(str::to_owned)
                .to_vec(),
        ],
        notes: Vec::new(),
        wrong: Vec::new(),
        figures: None,
    };
    found.figures = Some(shared.clone());
    let mut bars = Vec::new();
    for row in &rows.sharing {
        let (Some(never), Some(shared)) = (never.get(&row.key), shared.get(&row.key)) else {
            found.wrong.push(format!("{} was not measured", row.key));
            continue;
        };
        let is_missed = row.aim.is_some_and(|aim| *shared > aim);
        let verdict = match row.aim {
            None => "",
            Some(_) if is_missed => "missed",
            Some(_) => "met",
        };
        if is_missed {
            found.wrong.push(format!("{} missed its aim", row.key));
        }
        let aim = row.aim.map_or_else(String::new, |aim| format!("<= {aim}"));
        found.rows.push(vec![
            row.what.clone(),
            format!("{never:.1}"),
            format!("{shared:.1}"),
            aim,
            verdict.to_owned(),
        ]);
        bars.push((row.key.clone(), *shared));
    }
    if first != second {
        found
            .wrong
            .push("a repeated run gave other figures".to_owned());
    }
    let title = "Instructions per page, with sharing";
    write_bars(&plot_of("steps")?, title, bars)?;
    Ok(found)
}

/// Figures of one run, and all that the guest said.
fn measure(sharing: &str, disk: &Path) -> Outcome<(Figures, String)> {
    let vm = Vm {
        name: "timing",
        kernel: &kernel(),
        initrd: None,
        args: "do=steps".to_owned(),
        memory: "'64MiB'",
        sharing,
        disk: Some(disk),
        limit: None,
    };
    let mut lab = Lab::start("steps", "1G", &[vm.text()])?;
    lab.await_all(&["timing"], "timing: done")?;
    let console = lab.console("timing").to_owned();
    Ok((figures("timing:", 1, &console)?, console))
}
