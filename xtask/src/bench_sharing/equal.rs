//! What requests cost EL2 where all blocks are equal, beside what they cost where all differ: a bare guest reads 96 MiB
//! of a persistent partition three times, and another writes as much to an overlay in memory.

use super::{Found, Vm, image, lab, lab::Lab, plot::write_bars, plot_of, steps};
use crate::{
    bench::figures,
    step::{Outcome, Step},
};
use std::{
    fs::File,
    io::{BufWriter, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};
use tests_boot::{
    assets,
    disk_image::{LINUX, with_partitions},
};

/// MiB and blocks that are read or written, and how often they are read.
const MIB: u64 = 96;
const BLOCKS: u64 = MIB << 8;
const PASSES: u64 = 3;
/// So many times as much as different blocks equal ones may cost.
const AIM: f64 = 1.2;
/// The partitions, by what is in them.
const KINDS: [&str; 2] = ["different", "equal"];
const HEAD: [&str; 5] = [
    "instructions per 4 KiB",
    "all differ",
    "all are equal",
    "ratio",
    "",
];

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    step.doing("making disks");
    let (disk, base) = (partitions()?, image("equal-base.img", 0, BLOCKS)?);
    let mut found = Found {
        name: "equal",
        rows: vec![HEAD.map(str::to_owned).to_vec()],
        notes: vec![format!(
            "{MIB} MiB, read {PASSES} times in requests of 64 KiB, each time into other pages, or written once; of reads what EL2 \
             works for the VM, of writes the time of the requests"
        )],
        wrong: Vec::new(),
        figures: None,
    };
    let mut bars = Vec::new();
    for (what, measure) in [
        ("reads from a partition", reads as fn(&str, &Path) -> _),
        ("writes to an overlay", writes),
    ] {
        let of = if bars.is_empty() { &disk } else { &base };
        let mut costs = [0.0; 2];
        for (kind, cost) in KINDS.into_iter().zip(&mut costs) {
            step.doing(&format!("{what}, {kind} blocks"));
            *cost = measure(kind, of)?;
            bars.push((format!("{what}, {kind}"), *cost));
        }
        row(&mut found, what, costs);
    }
    let title = "Instructions for 4 KiB that a guest reads or writes";
    write_bars(&plot_of("equal")?, title, bars)?;
    Ok(found)
}

fn row(found: &mut Found, what: &str, [different, equal]: [f64; 2]) {
    let ratio = equal / different;
    let is_met = ratio <= AIM;
    if !is_met {
        let told = format!("{what}: equal blocks cost {ratio:.2} times as much");
        found.wrong.push(told);
    }
    found.rows.push(vec![
        what.to_owned(),
        format!("{different:.0}"),
        format!("{equal:.0}"),
        format!("{ratio:.2}"),
        format!("{} ({AIM})", if is_met { "met" } else { "missed" }),
    ]);
}

/// What EL2 works for each block that a VM reads.
fn reads(kind: &str, disk: &Path) -> Outcome<f64> {
    let disk_of_vm = format!("[[disk]]\npartition = '{kind}'\nmode = 'persistent'\n");
    let vm = guest("do=read-all".to_owned(), None) + &disk_of_vm;
    let mut lab = Lab::start_on(Some(disk), (&assets::image(), ""), "equal", "1G", &[vm])?;
    lab.await_all(&["timing"], "timing: done")?;
    let status = lab.vm("timing")?;
    Ok(status.hypervisor_ns as f64 / 2.0 / (PASSES * BLOCKS) as f64)
}

/// What a request takes for each block that it writes; what the guest itself does for it is little.
fn writes(kind: &str, base: &Path) -> Outcome<f64> {
    let vm = guest(format!("do=write-all kind={kind}"), Some(base));
    let mut lab = Lab::start("equal", "1G", &[vm])?;
    lab.await_all(&["timing"], "timing: done")?;
    let figures = figures("timing:", 1, lab.console("timing"))?;
    let cost = figures.get("write_all").copied();
    cost.ok_or_else(|| "the guest did not write".to_owned())
}

fn guest(args: String, disk: Option<&Path>) -> String {
    let vm = Vm {
        name: "timing",
        kernel: &steps::kernel(),
        initrd: None,
        args,
        memory: "'160MiB'",
        sharing: "",
        disk,
        limit: None,
    };
    vm.text()
}

/// A disk with a partition of unlike blocks and one of equal ones.
fn partitions() -> Outcome<PathBuf> {
    let path = lab::directory("images")?.join("equal.disk");
    let starts = with_partitions(&path, &KINDS.map(|kind| (kind, MIB << 20, LINUX)))?;
    let tried = |error| format!("cannot write {}: {error}", path.display());
    let file = File::options().write(true).open(&path).map_err(tried)?;
    let mut file = BufWriter::new(file);
    for (start, step) in starts.into_iter().zip([1, 0]) {
        file.seek(SeekFrom::Start(start)).map_err(tried)?;
        for block in 0..BLOCKS {
            let first = (1 + block * step) * 512;
            let words = (first..first + 512).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            file.write_all(&bytes).map_err(tried)?;
        }
    }
    file.flush().map_err(tried)?;
    Ok(path)
}
