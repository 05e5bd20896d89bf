//! The columns of the table of VMs, on the screen and in lines.

use super::super::list::state_name;
use crate::{
    output::{
        Side::{self, Left, Right},
        Tone,
    },
    units,
    watch::{VmSample, rates::VmRates},
};

/// Steal from which on it stands out, in percent.
const MUCH_STEAL: f64 = 10.0;
/// What stands for something that is not known.
pub const NONE: &str = "-";

/// A column of the table of VMs.
pub struct Column {
    /// Its title.
    pub title: &'static str,
    /// Where its cells stand.
    pub side: Side,
    /// Its width in characters.
    pub width: u16,
    /// The greater it is, the sooner the column is left out of a narrow table; 0: never.
    pub rank: u8,
    /// A VM's cell.
    pub cell: fn(&VmSample, Option<&VmRates>) -> String,
    /// How the cell stands out.
    pub tone: fn(&VmSample, Option<&VmRates>) -> Tone,
}

/// All columns but the names.
pub const COLUMNS: [Column; 14] = [
    Column {
        side: Left,
        tone: |vm, _| state_name(vm.status.state).1,
        ..column("STATE", 7, 0, |vm, _| {
            state_name(vm.status.state).0.to_owned()
        })
    },
    column("CPU%", 5, 0, |_, rates| {
        some(rates, |r| percent(r.shares.run))
    }),
    Column {
        tone: |_, rates| match rates {
            Some(rates) if rates.shares.steal >= MUCH_STEAL => Tone::Still,
            _ => Tone::Plain,
        },
        ..column("ST%", 5, 2, |_, rates| {
            some(rates, |r| percent(r.shares.steal))
        })
    },
    column("HYP%", 5, 5, |_, rates| {
        some(rates, |r| percent(r.shares.hypervisor))
    }),
    column("EXIT/s", 6, 3, |_, rates| {
        some(rates, |r| rate(r.all_exits()))
    }),
    column("RES", 5, 1, |vm, _| {
        some(vm.memory.as_ref(), |m| units::short(m.resident))
    }),
    column("PRIV", 5, 8, |vm, _| {
        some(vm.memory.as_ref(), |m| units::short(m.private))
    }),
    column("SHR", 5, 4, |vm, _| {
        some(vm.memory.as_ref(), |m| units::short(m.shared))
    }),
    column("ENT", 5, 9, |vm, _| {
        some(vm.memory.as_ref(), |m| units::short(m.entitlement))
    }),
    Column {
        tone: |vm, _| match vm.memory {
            Some(memory) if memory.owed > 0 => Tone::Bad,
            _ => Tone::Plain,
        },
        ..column("OWED", 5, 7, |vm, _| {
            some(vm.memory.as_ref(), |m| units::short(m.owed))
        })
    },
    column("RD/s", 5, 6, |_, rates| {
        some(rates, |r| units::short(r.read as u64))
    }),
    column("WR/s", 5, 6, |_, rates| {
        some(rates, |r| units::short(r.written as u64))
    }),
    column("TX/s", 5, 10, |_, rates| {
        some(rates, |r| units::short(r.sent as u64))
    }),
    column("RX/s", 5, 10, |_, rates| {
        some(rates, |r| units::short(r.received as u64))
    }),
];

/// A column of numbers.
const fn column(
    title: &'static str,
    width: u16,
    rank: u8,
    cell: fn(&VmSample, Option<&VmRates>) -> String,
) -> Column {
    Column {
        title,
        side: Right,
        width,
        rank,
        cell,
        tone: |_, _| Tone::Plain,
    }
}

fn some<T>(known: Option<&T>, shown: impl Fn(&T) -> String) -> String {
    known.map_or_else(|| NONE.to_owned(), shown)
}

/// Percent, in at most five characters up to 99,999.
pub fn percent(percent: f64) -> String {
    if percent < 99.95 {
        format!("{percent:.1}")
    } else {
        format!("{percent:.0}")
    }
}

/// A rate in at most four characters up to 999 G.
pub fn rate(per_second: f64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    match units.into_iter().find(|(unit, _)| per_second >= *unit) {
        Some((unit, name)) if per_second < 9.95 * unit => {
            format!("{:.1}{name}", per_second / unit)
        }
        Some((unit, name)) => format!("{:.0}{name}", per_second / unit),
        None => format!("{per_second:.0}"),
    }
}
