//! `underpin span`: what the hosts of a VM take from each other.

use super::{Context, list::hosts_of, trace::record};
use crate::{
    cli::{SpanMove, SpanVerb, SpanWhy},
    control::Client,
    failure::{Failure, Result, exit},
    hosts::{name_of, own},
    misses::{Miss, Page, Symbols, misses, pages},
    output::{
        Output,
        Side::{Left, Right},
        Table,
    },
    units,
};
use abi::control::{trace, vcpu_state};
use model_span::OWN_MAX;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};
use tools_abi::status::VcpuStatus;

/// What tells misses.
const CLASSES: u32 = 1 << trace::EXIT | 1 << trace::FAULT | 1 << trace::SWITCH;
/// Pages that people are shown.
const SHOWN: usize = 10;

/// Does what `underpin span` was asked for.
pub fn span(context: &Context, verb: &SpanVerb) -> Result<()> {
    match verb {
        SpanVerb::Why(options) => why(context, options),
        SpanVerb::Move(options) => move_vcpu(context, options),
    }
}

/// How long one waits between two looks at a vCPU that moves, and for all of it.
pub(super) const LOOK: Duration = Duration::from_millis(20);
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

fn move_vcpu(context: &Context, options: &SpanMove) -> Result<()> {
    let SpanMove { vm, vcpu, to } = options;
    let (from, mut client) = host_with(context, vm, *vcpu)?;
    let hosts = client.hosts()?;
    let Some(number) = hosts.iter().find(|host| host.name.as_str() == Some(to)) else {
        let message = format!("there is no host {to}");
        let names: Vec<String> = hosts.iter().map(|host| host.name.to_string()).collect();
        let help = format!("the cluster's hosts are {}", names.join(", "));
        return Err(Failure::new(exit::USAGE, message).help(help));
    };
    let began = Instant::now();
    while !goes_over(&mut client, (vm, *vcpu), number.number)? {
        if began.elapsed() > PATIENCE {
            let message = format!("vCPU {vcpu} of {vm} stays at {from}");
            let help = format!(
                "{to} has {OWN_MAX} vCPUs of {vm} already, another vCPU is on its way, or this one handles interrupts of devices: try again later"
            );
            return Err(Failure::new(exit::TIMEOUT, message).help(help));
        }
        sleep(LOOK);
    }
    let took = began.elapsed();
    context.output.result(
        || json!({ "vm": vm, "vcpu": vcpu, "from": from, "to": to }),
        |_| {
            format!(
                "vCPU {vcpu} of {vm} has moved from {from} to {to} ({} ms)\n",
                took.as_millis()
            )
        },
    )
}

/// Lets a vCPU go over; `false` where it stays, as a host refused it or it had something to do first.
pub(super) fn goes_over(client: &mut Client, (vm, vcpu): (&str, u32), to: u32) -> Result<bool> {
    client.span_move(vm, vcpu, to)?;
    loop {
        let now = look(client, vm, vcpu)?;
        if now.state != vcpu_state::LEAVES {
            return Ok((now.state, now.cpu) == (vcpu_state::ELSEWHERE, to));
        }
        sleep(LOOK);
    }
}

/// A vCPU of a VM that runs.
fn look(client: &mut Client, vm: &str, vcpu: u32) -> Result<VcpuStatus> {
    let (status, vcpus) = client.show(vm)?;
    if status.hosts == 0 {
        let message = format!(
            "{} spans no hosts: its vCPUs are this machine's",
            status.name
        );
        return Err(Failure::new(exit::USAGE, message));
    }
    vcpus.get(vcpu as usize).copied().ok_or_else(|| {
        let what = match vcpus.len() {
            0 => "does not run".to_owned(),
            count => format!("has no vCPU {vcpu}: it has {count}"),
        };
        Failure::new(exit::USAGE, format!("{} {what}", status.name))
    })
}

/// The host that has a vCPU, of those that the command reaches.
fn host_with(context: &Context, vm: &str, vcpu: u32) -> Result<(String, Client)> {
    let mut elsewhere = None;
    let found = context.search(|mut client| {
        let hosts = client.hosts()?;
        let now = look(&mut client, vm, vcpu)?;
        if now.state == vcpu_state::ELSEWHERE {
            elsewhere = Some(name_of(&hosts, now.cpu));
            return Ok(None);
        }
        let own = own(&hosts).map_or_else(|| "this host".to_owned(), |own| own.name.to_string());
        Ok(Some((own, client)))
    })?;
    let unreached = match found {
        Ok(found) => return Ok(found),
        Err(unreached) => unreached,
    };
    let Some(host) = elsewhere else {
        let message = format!("no host tells where vCPU {vcpu} of {vm} is");
        return Err(unreached.unwrap_or_else(|| Failure::new(exit::NO_MACHINE, message)));
    };
    let message = format!("{host} has vCPU {vcpu} of {vm}");
    let help = format!("ask there: underpin --host {host} span move {vm} {vcpu} HOST");
    Err(Failure::new(exit::USAGE, message).help(help))
}

/// What was seen of a VM.
struct Seen {
    hosts: Vec<String>,
    misses: Vec<Vec<Miss>>,
    pages: Vec<Page>,
    symbols: Symbols,
    lost: u64,
}

fn why(context: &Context, options: &SpanWhy) -> Result<()> {
    let symbols = options.map.as_deref().map(read_map).transpose()?;
    let (mut hosts, mut clients) = (Vec::new(), Vec::new());
    for host in context.hosts() {
        let mut client = host.connect()?;
        let (vm, _) = client.show(&options.vm)?;
        if hosts_of(&mut client, &vm)?.is_empty() {
            let message = format!("{} spans no hosts: its pages are this machine's", vm.name);
            let help = "`underpin mem why` and `underpin numa why` tell of the memory of such a VM";
            return Err(Failure::new(exit::USAGE, message).help(help));
        }
        hosts.push(host.output.host().unwrap_or("this host").to_owned());
        clients.push(client);
    }
    let recorded = record(&mut clients, CLASSES, options.time)?;
    let (mut all, mut lost) = (Vec::new(), 0);
    for (recorded, client) in recorded.into_iter().zip(&mut clients) {
        let trace = recorded.checked(client, Some(&options.vm))?;
        lost += trace.lost;
        all.push(misses(&trace));
    }
    let seen = Seen {
        hosts,
        pages: pages(&all),
        misses: all,
        symbols: symbols.unwrap_or_default(),
        lost,
    };
    let output = context.output;
    output.result(|| seen.to_json(), |output| seen.to_text(output))
}

fn read_map(path: &Path) -> Result<Symbols> {
    let text =
        fs::read_to_string(path).map_err(|error| Failure::file("cannot read", path, &error))?;
    Symbols::parse(&text).ok_or_else(|| {
        let message = format!("{} has no line of address, type and name", path.display());
        Failure::new(exit::FILE, message).help("give the guest kernel's System.map")
    })
}

/// Misses of a host: to read, to write, and how long they took together and at most.
struct Sum {
    reads: u64,
    writes: u64,
    waited_ns: u64,
    most_ns: u64,
}

impl Sum {
    fn of(misses: &[Miss]) -> Self {
        let waits = || misses.iter().map(|miss| miss.waited_ns);
        let writes = misses.iter().filter(|miss| miss.writes).count() as u64;
        Self {
            reads: misses.len() as u64 - writes,
            writes,
            waited_ns: waits().fold(0, u64::saturating_add),
            most_ns: waits().max().unwrap_or(0),
        }
    }
}

impl Seen {
    /// Where a program counter is: a function, if its name is known.
    fn place(&self, pc: u64) -> String {
        match self.symbols.of(pc) {
            Some((name, offset)) => format!("{name}+{offset:#x}"),
            None => format!("{pc:#x}"),
        }
    }

    fn to_json(&self) -> Value {
        let hosts = self.hosts.iter().zip(&self.misses).map(|(host, misses)| {
            let sum = Sum::of(misses);
            json!({
                "host": host, "reads": sum.reads, "writes": sum.writes, "waited_ns": sum.waited_ns,
                "longest_ns": sum.most_ns,
            })
        });
        let pages = self.pages.iter().map(|page| {
            let misses: BTreeMap<_, _> = self.hosts.iter().zip(page.misses()).collect();
            json!({
                "address": format!("{:#x}", page.address), "kind": page.kind().name(), "waited_ns": page.waited_ns,
                "misses": misses, "advice": page.kind().advice(),
                "pc": page.most().map(|(pc, _)| format!("{pc:#x}")),
                "place": page.most().map(|(pc, _)| self.place(pc)),
            })
        });
        json!({
            "hosts": hosts.collect::<Value>(), "pages": pages.collect::<Value>(), "lost": self.lost,
        })
    }

    fn to_text(&self, output: Output) -> String {
        let mut sums = Table::new(&[
            ("HOST", Left),
            ("READS", Right),
            ("WRITES", Right),
            ("WAITED", Right),
            ("LONGEST", Right),
        ]);
        for (host, misses) in self.hosts.iter().zip(&self.misses) {
            let sum = Sum::of(misses);
            sums.row([
                host.clone(),
                units::count(sum.reads),
                units::count(sum.writes),
                units::nanoseconds(sum.waited_ns),
                units::nanoseconds(sum.most_ns),
            ]);
        }
        let mut text = sums.render(output);
        if self.pages.is_empty() {
            text.push_str("\nno page was taken from another host\n");
            return text;
        }
        let mut table = Table::new(&[
            ("PAGE", Left),
            ("MISSES", Right),
            ("WAITED", Right),
            ("KIND", Left),
            ("MOST AT", Left),
        ]);
        for page in self.pages.iter().take(SHOWN) {
            let misses: Vec<_> = page.misses().map(units::count).collect();
            table.row([
                format!("{:#x}", page.address),
                misses.join(" + "),
                units::nanoseconds(page.waited_ns),
                page.kind().name().to_owned(),
                page.most()
                    .map_or_else(String::new, |(pc, _)| self.place(pc)),
            ]);
        }
        let _ = write!(text, "\n{}", table.render(output));
        if let Some(more) = self.pages.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(text, "and {more} pages that cost less: -o json has all");
        }
        text.push_str(&self.advice());
        if self.lost > 0 {
            let lost = units::count(self.lost);
            let _ = writeln!(
                text,
                "{lost} events came too fast and are not in these numbers"
            );
        }
        text
    }

    /// What can be done about the kinds of pages that are shown.
    fn advice(&self) -> String {
        let mut text = String::new();
        let shown = self.pages.iter().take(SHOWN);
        let kinds: BTreeMap<_, _> = shown
            .filter_map(|page| Some((page.kind().name(), page.kind().advice()?)))
            .collect();
        for (name, advice) in kinds {
            let _ = write!(text, "\n{name}: {advice}");
        }
        if !text.is_empty() {
            text.push('\n');
        }
        text
    }
}
