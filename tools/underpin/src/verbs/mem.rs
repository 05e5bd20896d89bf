//! `underpin mem`: who has what of the machine's memory, and what sharing saves.

use super::{Context, fit, show};
use crate::{
    cli::{Mem, MemShow, MemVerb},
    control::vm_name,
    failure::{Failure, Result, exit},
    order::natural_by,
    output::{
        Output,
        Side::{Left, Right},
        Table, Tone,
    },
    units,
};
use abi::control::{RegionStatus, code};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use tools_abi::MEM_EVENTS;
use tools_abi::status::{MachineMem, MemStatus};

mod analyze;
mod recount;
mod why;

/// Does what `underpin mem` was asked for; returns the exit status.
pub fn mem(context: &Context, options: Mem) -> Result<u8> {
    match options.verb.unwrap_or(MemVerb::Show(options.show)) {
        MemVerb::Show(MemShow { vm: None, wide }) => all(context, wide)?,
        MemVerb::Show(MemShow { vm: Some(vm), .. }) => one(context, &vm)?,
        MemVerb::Why(vm) => why::why(context, &vm.vm)?,
        MemVerb::Fit { file, count } => return fit::fit(context, &file, count),
        MemVerb::Reclaim { vm, size } => reclaim(context, &vm, size)?,
        MemVerb::Recount => return recount::recount(context),
        MemVerb::Analyze(options) => analyze::analyze(context, &options)?,
    }
    Ok(exit::OK)
}

fn all(context: &Context, wide: bool) -> Result<()> {
    let mut client = context.connect()?;
    let mut vms = client.mem()?;
    let machine = client.machine_mem()?;
    let regions = client.regions()?;
    natural_by(&mut vms, |vm| vm.name.to_string());
    context.output.result(
        || {
            let vms: Vec<Value> = vms.iter().map(vm_json).collect();
            let regions: Vec<Value> = regions.iter().map(region_json).collect();
            json!({ "vms": vms, "machine": machine_json(&machine), "regions": regions })
        },
        |output| {
            format!(
                "{}\n{}{}",
                vm_table(&vms, wide, output),
                totals(&machine, output),
                region_table(&regions, output)
            )
        },
    )
}

fn one(context: &Context, vm: &str) -> Result<()> {
    let name = vm_name(vm)?;
    let mut client = context.connect()?;
    let found = client.mem()?.into_iter().find(|known| known.name == name);
    let Some(found) = found else {
        // Refused here where no VM has that name.
        client.show(vm)?;
        let message = format!("{vm} is not running");
        return Err(Failure::new(code::WRONG_STATE as u8, message).help("underpin list"));
    };
    context
        .output
        .result(|| vm_json(&found), |output| vm_text(&found, output))
}

fn reclaim(context: &Context, vm: &str, bytes: u64) -> Result<()> {
    let asked = context.connect()?.reclaim(vm, bytes)?;
    context.output.result(
        || json!({ "name": vm, "asked": asked }),
        |_| {
            let size = units::size(asked);
            format!("{vm}: asked for {size}; `underpin mem {vm}` shows what its guest gives\n")
        },
    )
}

/// A VM's amounts in the order of the table's columns, with their names.
fn amounts(vm: &MemStatus) -> [(&'static str, u64); 13] {
    [
        ("base", vm.base),
        ("max", vm.max),
        ("limit", vm.limit),
        ("target", vm.target),
        ("resident", vm.resident),
        ("private", vm.private),
        ("shared", vm.shared),
        ("overlay", vm.overlay),
        ("tables", vm.tables),
        ("charge", vm.charge),
        ("entitlement", vm.entitlement),
        ("drawn", vm.drawn),
        ("owed", vm.owed),
    ]
}

fn events(vm: &MemStatus) -> impl Iterator<Item = (&'static str, u64)> {
    MEM_EVENTS.into_iter().zip(vm.events)
}

fn vm_json(vm: &MemStatus) -> Value {
    let mut object = json!({
        "name": vm.name.to_string(), "group": vm.group.to_string(), "balance": vm.balance,
        "entries_2m": vm.blocks, "entries_4k": vm.pages, "takeable_estimate": vm.takeable,
        "refault_p50_ns": vm.refault_ns[0], "refault_p99_ns": vm.refault_ns[1],
        "stalled_ns": vm.stalled_ns,
    });
    for (name, bytes) in amounts(vm) {
        object[name] = json!(bytes);
    }
    let events = events(vm).map(|(name, n)| (name.to_owned(), json!(n)));
    object["events"] = Value::Object(events.collect::<Map<_, _>>());
    object
}

/// The machine's amounts, with their names for programs and for people.
fn machine_amounts(machine: &MachineMem) -> [(&'static str, &'static str, u64); 10] {
    [
        ("managed", "managed", machine.managed),
        ("free", "free", machine.free),
        ("reserve", "reserve", machine.reserve),
        ("bases", "bases", machine.bases),
        ("pool", "pool", machine.pool),
        ("shared", "shared once", machine.shared),
        ("saved", "saved", machine.saved),
        ("cached", "cached only", machine.cached),
        ("images", "images", machine.images),
        ("records", "records", machine.records),
    ]
}

fn machine_json(machine: &MachineMem) -> Value {
    let amounts = machine_amounts(machine);
    let pairs = amounts.map(|(name, _, bytes)| (name.to_owned(), json!(bytes)));
    Value::Object(pairs.into_iter().collect::<Map<_, _>>())
}

/// The machine's totals, in lines of five.
fn totals(machine: &MachineMem, output: Output) -> String {
    let mut text = output.paint(Tone::Strong, "Machine");
    for (n, (_, title, bytes)) in machine_amounts(machine).into_iter().enumerate() {
        let gap = if n % 5 == 0 { "\n  " } else { ", " };
        let _ = write!(text, "{gap}{title} {}", units::size(bytes));
    }
    text.push('\n');
    text
}

fn region_json(region: &RegionStatus) -> Value {
    json!({
        "name": region.name.to_string(), "group": region.group.to_string(), "size": region.size,
        "touched": region.touched, "users": region.users,
    })
}

/// The regions, where there are some.
fn region_table(regions: &[RegionStatus], output: Output) -> String {
    if regions.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&[
        ("REGION", Left),
        ("GROUP", Left),
        ("SIZE", Right),
        ("TOUCHED", Right),
        ("VMS", Right),
    ]);
    for region in regions {
        table.row([
            region.name.to_string(),
            region.group.to_string(),
            units::short(region.size),
            units::short(region.touched),
            region.users.to_string(),
        ]);
    }
    format!("\n{}", table.render(output))
}

fn vm_table(vms: &[MemStatus], wide: bool, output: Output) -> String {
    let columns = [
        "BASE", "LIMIT", "TARGET", "RESIDENT", "PRIVATE", "SHARED", "OVERLAY", "TABLES", "CHARGE",
        "ENTITLED", "DRAWN", "BALANCE", "OWED", "2M", "4K",
    ];
    let mut titles = vec![("NAME", Left), ("GROUP", Left)];
    titles.extend(columns.map(|title| (title, Right)));
    let mut table = Table::new(&titles);
    for vm in vms {
        table.row([
            vm.name.to_string(),
            vm.group.to_string(),
            units::short(vm.base),
            units::short(vm.limit),
            units::short(vm.target),
            units::short(vm.resident),
            units::short(vm.private),
            units::short(vm.shared),
            units::short(vm.overlay),
            units::short(vm.tables),
            units::short(vm.charge),
            units::short(vm.entitlement),
            units::short(vm.drawn),
            balance(vm),
            units::short(vm.owed),
            vm.blocks.to_string(),
            vm.pages.to_string(),
        ]);
        if vm.balance < 0 {
            table.tone(13, Tone::Still);
        }
        if vm.owed > 0 {
            table.tone(14, Tone::Bad);
        }
    }
    if !wide {
        table.without(&silent(vms));
    }
    table.render(output)
}

fn balance(vm: &MemStatus) -> String {
    let sign = if vm.balance < 0 { "-" } else { "" };
    format!("{sign}{}", units::short(vm.balance.unsigned_abs()))
}

/// The columns that say nothing that the others do not say.
fn silent(vms: &[MemStatus]) -> Vec<&'static str> {
    let all = |is: fn(&MemStatus) -> bool| vms.iter().all(is);
    let one_group = vms.windows(2).all(|two| two[0].group == two[1].group);
    let undrawn = all(|vm| vm.drawn == 0 && u64::try_from(vm.balance) == Ok(vm.entitlement));
    let silent = [
        ("GROUP", one_group),
        ("LIMIT", all(|vm| vm.limit == vm.base)),
        ("TARGET", all(|vm| vm.target == vm.limit)),
        ("OVERLAY", true),
        ("TABLES", true),
        ("DRAWN", undrawn),
        ("BALANCE", undrawn),
        ("OWED", all(|vm| vm.owed == 0)),
    ];
    silent
        .into_iter()
        .filter_map(|(title, silent)| silent.then_some(title))
        .collect()
}

fn vm_text(vm: &MemStatus, output: Output) -> String {
    let name = output.paint(Tone::Strong, &vm.name.to_string());
    let mut text = format!("{name}  group {}\n", vm.group);
    let mut pairs = amounts(vm)
        .map(|(name, bytes)| (name, units::size(bytes)))
        .to_vec();
    pairs.insert(12, ("balance", balance(vm)));
    pairs.push(("2M entries", vm.blocks.to_string()));
    pairs.push(("4K entries", vm.pages.to_string()));
    let takeable = format!("{} (estimate)", units::size(vm.takeable));
    pairs.push(("takeable", takeable));
    show::lines(&mut text, &pairs);
    let seen: Vec<_> = events(vm).filter(|(_, n)| *n > 0).collect();
    if !seen.is_empty() {
        let _ = writeln!(text, "\n{}", output.paint(Tone::Strong, "Since it started"));
    }
    for (name, n) in seen {
        let _ = writeln!(text, "  {name:18} {n:>10}");
    }
    let times = [
        ("refault, p50", vm.refault_ns[0]),
        ("refault, p99", vm.refault_ns[1]),
        ("stalled", vm.stalled_ns),
    ];
    for (name, time) in times.into_iter().filter(|(_, time)| *time > 0) {
        let time = units::nanoseconds(time);
        let _ = writeln!(text, "  {name:18} {time:>10}");
    }
    text
}

#[cfg(test)]
mod tests;
