//! What it costs, and what it brings, that memory which a guest reports free stays bound for a while
//! before it is given away (`memory.hold`): Linux uses 64 MiB and gives them back, every four seconds.

use super::{Found, Vm, lab::Lab, plot::Plot, plot_of, unique::event};
use crate::{
    bench::{self, KERNEL, LINUX_ARGS, figures},
    step::{Outcome, Step},
};
use tests_boot::assets;

/// Times that reports are held, and the smallest blocks that Linux reports, by their order.
const CASES: [(&str, u32); 8] = [
    ("0s", 9),
    ("100ms", 9),
    ("1s", 9),
    ("5s", 9),
    ("20s", 9),
    ("0s", 0),
    ("100ms", 0),
    ("5s", 0),
];
/// Memory of the machine and of the VM.
const MACHINE: &str = "1G";
const MEMORY: u64 = 256;
const HEAD: [&str; 7] = [
    "held for",
    "blocks reported, from order",
    "bound on average, MiB",
    "at most, MiB",
    "frames reported",
    "instructions of the guest and EL2 per page touched",
    "of EL2 in all, millions",
];

/// What a run gave.
struct Run {
    /// MiB that the guest had when it was looked at.
    bound: Vec<f64>,
    reported: u64,
    /// Instructions per page touched.
    touch: f64,
    /// Instructions that EL2 worked for the VM.
    hypervisor: u64,
}

/// Measures.
pub fn run(step: &mut Step<'_>) -> Outcome<Found> {
    let mut found = Found {
        name: "reports",
        rows: vec![HEAD.map(str::to_owned).to_vec()],
        notes: vec![format!(
            "a VM of {MEMORY} MiB that uses 64 MiB and gives them back, nine times; looked at every second"
        )],
        wrong: Vec::new(),
        figures: None,
    };
    let mut bars = Vec::new();
    for (hold, order) in CASES {
        step.doing(&format!("held for {hold}, from order {order}"));
        let run = Run::of(hold, order)?;
        let bound = run.bound.iter().sum::<f64>() / run.bound.len().max(1) as f64;
        let most = run.bound.iter().copied().fold(0.0, f64::max);
        found.rows.push(vec![
            hold.to_owned(),
            order.to_string(),
            format!("{bound:.1}"),
            format!("{most:.1}"),
            run.reported.to_string(),
            format!("{:.0}", run.touch),
            format!("{:.1}", run.hypervisor as f64 / 1e6),
        ]);
        bars.push((
            format!("{hold} {order}"),
            vec![bound, run.hypervisor as f64 / 1e6],
        ));
        step.say(&found.rows[found.rows.len() - 1].join(", "));
    }
    let plot = Plot {
        title: "How long reports are held, and from which order: what is bound, and what it costs",
        parts: &["MiB bound", "10^6 instructions"],
        bars,
    };
    plot.write(&plot_of("reports")?)?;
    Ok(found)
}

impl Run {
    fn of(hold: &str, order: u32) -> Outcome<Self> {
        let memory = format!("{{ base = '{MEMORY}MiB', hold = '{hold}' }}");
        let vm = Vm {
            name: "reporter",
            kernel: &assets::cached(&format!("kernels/{KERNEL}/vmlinuz"))?,
            initrd: Some(&bench::initrd()),
            args: format!("{LINUX_ARGS} page_reporting.page_reporting_order={order} -- reports"),
            memory: &memory,
            sharing: "",
            disk: None,
            limit: None,
        };
        let mut lab = Lab::start("reports", MACHINE, &[vm.text()])?;
        let mut bound = Vec::new();
        let said = ("bench: look", "bench: done");
        lab.await_looks("reporter", said, |lab| {
            let mem = lab.mem("reporter")?;
            bound.push(mem.resident as f64 / f64::from(1 << 20));
            Ok(())
        })?;
        let (mem, status) = (lab.mem("reporter")?, lab.vm("reporter")?);
        let figures = figures("bench:", 0, lab.console("reporter"))?;
        let ns = figures
            .get("touch_page")
            .ok_or("the guest did not touch memory")?;
        Ok(Self {
            bound,
            reported: event(&mem, "reported"),
            touch: ns / 2.0,
            hypervisor: status.hypervisor_ns / 2,
        })
    }
}
