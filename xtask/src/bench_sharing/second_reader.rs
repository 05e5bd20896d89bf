//! How much faster a second VM reads what the first has read from a slow disk, and what whole 2 MiB
//! blocks of the translation would cost: the pages in them that nobody shares.

use super::{Found, Vm, image, lab::Lab, plot::write_bars, plot_of, unique::event};
use crate::{
    bench::{self, KERNEL, LINUX_ARGS, figures},
    step::{Outcome, Step},
};
use std::path::Path;
use tests_boot::assets;

/// MiB of the disk, and what it gives in a second.
const MIB: u64 = 32;
const LIMIT: &str = "5MB/s";
/// When the second VM begins to read, in its own seconds: the first is done for sure.
const WAIT: u32 = 30;
/// So many times as fast the second reader must be.
const AIM: f64 = 22.0;
/// MiB that both VMs have used before and given back: their page caches get that memory again, and it
/// is mapped by 2 MiB blocks by then.
const USED: u32 = 160;
/// What `blocks` says, and what was used before. The aim is for the first.
const CASES: [(&str, u32); 4] = [("share", 0), ("keep", 0), ("share", USED), ("keep", USED)];
const HEAD: [&str; 10] = [
    "blocks",
    "used before, MiB",
    "first reader, instructions per page",
    "second",
    "times as fast",
    "without I/O",
    "saved, MiB",
    "entries of the second: 2 MiB",
    "4 KiB",
    "",
];

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    let mut found = Found {
        name: "second-reader",
        rows: vec![HEAD.map(str::to_owned).to_vec()],
        notes: vec![format!(
            "{MIB} MiB of a disk with `limit = \"{LIMIT}\"`, page cache of both cold; the aim is {AIM} times"
        )],
        wrong: Vec::new(),
        figures: None,
    };
    let disk = image("second-reader.img", MIB << 8, 0)?;
    let mut bars = Vec::new();
    for (n, (blocks, used)) in CASES.into_iter().enumerate() {
        step.doing(&format!("blocks = {blocks}, {used} MiB used before"));
        let (row, costs) = measure(&mut found, (blocks, used), n == 0, &disk)?;
        step.say(&row.join(", "));
        found.rows.push(row);
        bars.extend(
            ["first", "second"]
                .into_iter()
                .zip(costs)
                .map(|(who, cost)| (format!("{blocks} {used}: {who}"), cost)),
        );
    }
    let title = "Instructions per page that Linux reads from a slow disk";
    write_bars(&plot_of("second-reader")?, title, bars)?;
    Ok(found)
}

/// A row, and what a page cost each of the two.
fn measure(
    found: &mut Found,
    (blocks, used): (&str, u32),
    has_aim: bool,
    disk: &Path,
) -> Outcome<(Vec<String>, [f64; 2])> {
    let (kernel, initrd) = (
        assets::cached(&format!("kernels/{KERNEL}/vmlinuz"))?,
        bench::initrd(),
    );
    let sharing = format!("blocks = '{blocks}'");
    let vm = |name, wait| {
        let vm = Vm {
            name,
            kernel: &kernel,
            initrd: Some(&initrd),
            args: format!("{LINUX_ARGS} -- read {wait} {used}"),
            memory: "'256MiB'",
            sharing: &sharing,
            disk: Some(disk),
            limit: Some(LIMIT),
        };
        vm.text()
    };
    let mut lab = Lab::start("second-reader", "1G", &[vm("one", 0), vm("two", WAIT)])?;
    lab.await_all(&["one", "two"], "bench: done")?;
    let mut costs = [0.0; 2];
    for (vm, cost) in ["one", "two"].into_iter().zip(&mut costs) {
        let figures = figures("bench:", 0, lab.console(vm))?;
        *cost = figures.get("read_page").ok_or("a guest did not read")? / 2.0;
    }
    let times = costs[0] / costs[1];
    let mem = lab.mem("two")?;
    let without = event(&mem, "shared-by-block") as f64 / (MIB << 8) as f64;
    let is_missed = has_aim && times < AIM;
    if is_missed {
        found
            .wrong
            .push(format!("the second reader is {times:.1} times as fast"));
    }
    let row = vec![
        blocks.to_owned(),
        used.to_string(),
        format!("{:.0}", costs[0]),
        format!("{:.0}", costs[1]),
        format!("{times:.1}"),
        format!("{:.1} %", 100.0 * without),
        format!("{:.1}", mem.entitlement as f64 * 2.0 / f64::from(1 << 20)),
        mem.blocks.to_string(),
        mem.pages.to_string(),
        match (has_aim, is_missed) {
            (false, _) => "",
            (true, true) => "missed (22)",
            (true, false) => "met (22)",
        }
        .to_owned(),
    ];
    Ok((row, costs))
}
