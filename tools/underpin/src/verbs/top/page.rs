//! The page of one VM: its vCPUs, its exits by class, its memory and what happened to it.

use super::{
    super::{list::state_name, show::vcpu_state_name},
    columns::{percent, rate},
    draw::Look,
    screen::Screen,
};
use crate::{
    output::Tone,
    units,
    watch::{
        VmSample,
        rates::{Exits, Shares, VcpuRates, VmRates},
    },
};
use abi::control::vcpu_state;
use ratatui::text::{Line, Span};
use tools_abi::status::{MemStatus, VcpuStatus};
use tools_abi::{EXIT_CLASSES, MEM_EVENTS};

/// The width that the page is made for.
const WIDTH: usize = 80;
/// Blanks between names and numbers that are abreast.
const GAP: usize = 3;

/// The page's lines; none where no page is open.
pub fn lines(screen: &Screen, look: &Look) -> Vec<Line<'static>> {
    let rows = screen.rows();
    let shown = rows
        .into_iter()
        .find(|(vm, _)| Some(&*vm.name) == screen.vm());
    let Some((vm, rates)) = shown else {
        return Vec::new();
    };
    let mut lines = head(vm, rates, look);
    if let Some(vcpus) = &vm.vcpus {
        let rates = rates.map_or(&[][..], |rates| &rates.vcpus);
        lines.extend(vcpu_lines(vcpus, rates, look));
    }
    if let Some(rates) = rates {
        let all = EXIT_CLASSES.into_iter().zip(rates.exits);
        let some = greatest_first(all.filter(|(_, n)| *n > 0.0).collect());
        let pairs = some.into_iter().map(|(class, n)| (class, rate(n)));
        lines.extend(section("Exits/s", 3, &pairs.collect::<Vec<_>>(), look));
    }
    if let Some(memory) = &vm.memory {
        let events = rates.map(|rates| rates.events).unwrap_or_default();
        lines.extend(memory_lines(memory, &events, look));
    }
    lines
}

fn head(vm: &VmSample, rates: Option<&VmRates>, look: &Look) -> Vec<Line<'static>> {
    let status = &vm.status;
    let (state, tone) = state_name(status.state);
    let first = vec![
        Span::styled(vm.name.clone(), look.style(Tone::Strong)),
        Span::raw("  "),
        Span::styled(state, look.style(tone)),
        Span::raw(format!("  {}", status.reason)),
    ];
    let about = format!(
        "kernel {}  vCPUs {}  weight {}  starts {}",
        status.kernel, status.vcpus, status.weight, status.starts
    );
    let mut lines = vec![first.into(), about.into()];
    if let Some(rates) = rates {
        let Shares {
            run,
            hypervisor,
            steal,
            idle,
        } = rates.shares;
        let [run, steal, hypervisor, idle] = [run, steal, hypervisor, idle].map(percent);
        lines.push(
            format!("CPU% {run}  steal {steal}  hypervisor {hypervisor}  idle {idle}").into(),
        );
        let [read, written] = [rates.read, rates.written].map(|n| units::size(n as u64));
        let [sent, received] = [rates.sent, rates.received].map(|n| units::size(n as u64));
        lines.push(
            format!(
                "disk {read}/s read  {written}/s written  net {sent}/s sent  {received}/s received"
            )
            .into(),
        );
    }
    lines
}

fn vcpu_lines(vcpus: &[VcpuStatus], rates: &[VcpuRates], look: &Look) -> Vec<Line<'static>> {
    let title = "VCPU STATE   CPU  CPU%   ST%  HYP% IDLE%  EXITS/s BY CLASS";
    let mut lines = heading(title, look);
    for (n, vcpu) in vcpus.iter().enumerate() {
        let state = vcpu_state_name(vcpu.state);
        let rates = rates.get(n);
        let [run, steal, hypervisor, idle] = match rates {
            Some(VcpuRates { shares: s, .. }) => {
                [s.run, s.steal, s.hypervisor, s.idle].map(percent)
            }
            None => ["-"; 4].map(str::to_owned),
        };
        let exits = rates
            .map(|rates| by_class(&rates.exits))
            .unwrap_or_default();
        let is_away = vcpu.state == vcpu_state::ELSEWHERE;
        let cpu = if is_away {
            "-".to_owned()
        } else {
            vcpu.cpu.to_string()
        };
        let line = format!(
            "{n:>4} {state:7} {cpu:>3} {run:>5} {steal:>5} {hypervisor:>5} {idle:>5}  {exits}"
        );
        lines.push(line.into());
    }
    lines
}

/// The classes that are not silent, the busiest first.
fn by_class(exits: &Exits) -> String {
    let all = EXIT_CLASSES.into_iter().zip(*exits);
    // Less than one in two seconds is written as none.
    let some = greatest_first(all.filter(|(_, n)| *n >= 0.5).collect());
    let texts = some
        .into_iter()
        .map(|(class, n)| format!("{class} {}", rate(n)));
    texts.collect::<Vec<_>>().join("  ")
}

fn greatest_first(mut pairs: Vec<(&str, f64)>) -> Vec<(&str, f64)> {
    pairs.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    pairs
}

fn memory_lines(memory: &MemStatus, rates: &[f64], look: &Look) -> Vec<Line<'static>> {
    let amounts = [
        ("resident", memory.resident),
        ("private", memory.private),
        ("shared", memory.shared),
        ("base", memory.base),
        ("limit", memory.limit),
        ("charge", memory.charge),
        ("entitled", memory.entitlement),
        ("drawn", memory.drawn),
        ("owed", memory.owed),
    ];
    let amounts = amounts.map(|(name, bytes)| (name, units::short(bytes)));
    let mut lines = section("Memory", 3, &amounts, look);
    let events = MEM_EVENTS.into_iter().zip(memory.events).zip(rates);
    let seen = events.filter(|((_, n), _)| *n > 0);
    let pairs = seen.map(|((name, n), per_second)| {
        let n = units::count(n).replace(' ', "");
        (name, format!("{n} {:>4}/s", rate(*per_second)))
    });
    lines.extend(section(
        "Memory events",
        2,
        &pairs.collect::<Vec<_>>(),
        look,
    ));
    lines
}

fn heading(title: &'static str, look: &Look) -> Vec<Line<'static>> {
    let title = Span::styled(title, look.style(Tone::Strong));
    vec![Line::default(), title.into()]
}

/// Names and values under a heading, so many abreast; nothing where there are none.
fn section(
    title: &'static str,
    abreast: usize,
    pairs: &[(&str, String)],
    look: &Look,
) -> Vec<Line<'static>> {
    if pairs.is_empty() {
        return Vec::new();
    }
    let width = WIDTH / abreast - GAP;
    let mut lines = heading(title, look);
    for some in pairs.chunks(abreast) {
        let cells = some.iter().map(|(name, value)| {
            let room = width.saturating_sub(name.len());
            format!("{name}{value:>room$}")
        });
        lines.push(cells.collect::<Vec<_>>().join(&" ".repeat(GAP)).into());
    }
    lines
}
