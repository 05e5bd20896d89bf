//! `underpin span`: what the hosts of a VM take from each other.

use super::{Context, list::host_names, trace::record};
use crate::{
    cli::{SpanVerb, SpanWhy},
    failure::{Failure, Result, exit},
    misses::{Miss, Page, Symbols, misses, pages},
    output::{
        Output,
        Side::{Left, Right},
        Table,
    },
    units,
};
use abi::control::trace;
use serde_json::{Value, json};
use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

/// What tells misses.
const CLASSES: u32 = 1 << trace::EXIT | 1 << trace::FAULT | 1 << trace::SWITCH;
/// Pages that people are shown.
const SHOWN: usize = 10;

/// Does what `underpin span` was asked for.
pub fn span(context: &Context, verb: &SpanVerb) -> Result<()> {
    match verb {
        SpanVerb::Why(options) => why(context, options),
    }
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
        if host_names(&mut client, &vm)?.is_empty() {
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
