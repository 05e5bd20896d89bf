//! `underpin trace`: records events for a while, shows and saves them.

use super::Context;
use crate::{
    cli,
    control::Client,
    failure::{Failure, Result, exit, reason},
    output::{
        Output,
        Side::{Left, Right},
        Table,
    },
    trace::{Line, Trace, chrome, summary},
    units,
};
use abi::control::{TRACE_ALL, TRACE_CPUS, TraceEvent};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::{
    fs,
    io::Error,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tools_abi::TRACE_CLASSES;

/// How long a CPU is left to fill its ring.
const PAUSE: Duration = Duration::from_millis(20);
/// The most events that are kept: some 200 MB of them.
const EVENTS_MAX: usize = 3_000_000;

/// Records, and tells what was seen.
pub fn trace(context: &Context, options: &cli::Trace) -> Result<()> {
    let mut clients = [context.connect()?];
    let [client] = &mut clients;
    if options.stop {
        client.trace(0)?;
        return context.done(context.run.machine(), "traces nothing");
    }
    if let Some(vm) = &options.vm {
        client.show(vm)?; // there is one of that name
    }
    let recorded = record(&mut clients, classes(options), options.time)?;
    let [client] = &mut clients;
    let Some(recorded) = recorded.into_iter().next() else {
        return Ok(());
    };
    let trace = recorded.checked(client, options.vm.as_deref())?;
    if let Some(path) = &options.out {
        fs::write(path, chrome::json(&trace))
            .map_err(|error| Failure::file("cannot write", path, &error))?;
    }
    let lines = summary(&trace);
    context.output.result(
        || {
            json!({
                "events": trace.events.len(), "lost": trace.lost, "odd": trace.odd,
                "seen": lines.iter().map(line_json).collect::<Value>(),
            })
        },
        |output| to_text(&trace, &lines, output),
    )
}

fn classes(options: &cli::Trace) -> u32 {
    let bit = |name: &String| TRACE_CLASSES.iter().position(|class| class == name);
    match options
        .classes
        .iter()
        .filter_map(bit)
        .fold(0, |set, bit| set | 1 << bit)
    {
        0 => TRACE_ALL,
        some => some,
    }
}

/// Turns tracing on at all these machines, takes what comes until the time is over or a signal ends it, and turns it off
/// whatever happened meanwhile.
pub fn record(clients: &mut [Client], classes: u32, time: Duration) -> Result<Vec<Recorded>> {
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended))
            .map_err(|error| no_signals(&error))?;
    }
    let taken = follow(clients, classes, time, &ended);
    // All are told, also after one has failed.
    let off: Vec<_> = clients.iter_mut().map(|it| it.trace(0)).collect();
    let mut all = taken?;
    off.into_iter().collect::<Result<Vec<_>>>()?;
    for (recorded, client) in all.iter_mut().zip(clients) {
        recorded.take(client)?;
    }
    Ok(all)
}

fn follow(
    clients: &mut [Client],
    classes: u32,
    time: Duration,
    ended: &AtomicBool,
) -> Result<Vec<Recorded>> {
    let mut all = Vec::new();
    for client in &mut *clients {
        let hello = client.hello(Duration::from_secs(10))?;
        let status = client.trace(classes)?;
        let cpus = hello.cpus.min(TRACE_CPUS as u32);
        all.push(Recorded::new(&status.next, cpus));
    }
    let deadline = Instant::now() + time;
    loop {
        for (recorded, client) in all.iter_mut().zip(&mut *clients) {
            recorded.take(client)?;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let is_over = left.is_zero() || ended.load(Ordering::Relaxed);
        if is_over || all.iter().any(Recorded::is_full) {
            return Ok(all);
        }
        thread::sleep(left.min(PAUSE));
    }
}

fn no_signals(error: &Error) -> Failure {
    Failure::new(
        exit::FAILED,
        format!("cannot listen to signals: {}", reason(error)),
    )
}

/// What came, unchecked.
pub struct Recorded {
    /// For each pCPU, the number of the next event.
    next: Vec<u64>,
    parts: Vec<(u32, Vec<TraceEvent>)>,
    events: usize,
    lost: u64,
}

impl Recorded {
    fn new(next: &[u64], cpus: u32) -> Self {
        let next = next.iter().copied().take(cpus as usize).collect();
        Self {
            next,
            parts: Vec::new(),
            events: 0,
            lost: 0,
        }
    }

    fn is_full(&self) -> bool {
        self.events >= EVENTS_MAX
    }

    /// Takes what all pCPUs have noted. A busy one may note on for ever: a few answers of each.
    fn take(&mut self, client: &mut Client) -> Result<()> {
        const ANSWERS: usize = 16;
        for (cpu, next) in self.next.iter_mut().enumerate() {
            let cpu = cpu as u32;
            for _ in 0..ANSWERS {
                let (header, events) = client.events(cpu, *next)?;
                (*next, self.lost) = (header.next, self.lost.saturating_add(header.lost));
                self.events += events.len();
                if events.is_empty() {
                    break;
                }
                self.parts.push((cpu, events));
            }
        }
        Ok(())
    }

    /// What of it makes sense, of one VM or of all.
    pub fn checked(self, client: &mut Client, vm: Option<&str>) -> Result<Trace> {
        let vms = client.list()?;
        let vms: Vec<String> = vms.iter().map(|vm| vm.name.to_string()).collect();
        let only = vm.and_then(|vm| vms.iter().position(|name| name == vm));
        let lost = self.lost;
        let mut trace = Trace {
            vms,
            lost,
            ..Trace::default()
        };
        for (cpu, events) in self.parts {
            trace.add(cpu, &events);
        }
        trace.finish(only);
        Ok(trace)
    }
}

fn line_json(line: &Line) -> Value {
    let total = line.total_ns.and_then(|ns| u64::try_from(ns).ok());
    json!({
        "vm": line.vm, "class": line.class, "name": line.name, "count": line.count,
        "total_ns": total, "mean_ns": line.mean_ns(), "most_ns": line.most_ns,
    })
}

fn to_text(trace: &Trace, lines: &[Line], output: Output) -> String {
    let mut table = Table::new(&[
        ("VM", Left),
        ("CLASS", Left),
        ("WHAT", Left),
        ("COUNT", Right),
        ("TIME", Right),
        ("MEAN", Right),
        ("LONGEST", Right),
    ]);
    let time = |ns: Option<u64>| ns.map(units::nanoseconds).unwrap_or_default();
    for line in lines {
        let vm = line.vm.as_deref().unwrap_or("(machine)");
        let total = line.total_ns.and_then(|ns| u64::try_from(ns).ok());
        table.row([
            vm.replace(char::is_control, "?"),
            line.class.to_owned(),
            line.name.to_owned(),
            units::count(line.count),
            time(total),
            time(line.mean_ns()),
            time(line.most_ns),
        ]);
    }
    let text = table.render(output);
    let (seen, lost) = (
        units::count(trace.events.len() as u64),
        units::count(trace.lost),
    );
    let odd = match trace.odd {
        0 => String::new(),
        odd => format!("{} made no sense\n", units::count(odd)),
    };
    text + &format!("\n{seen} events, {lost} lost\n{odd}")
}
