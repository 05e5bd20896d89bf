//! What the registers say, and what they keep.

use machine_bare::gic::{self, Line};
use machine_bare::machine::Machine;
use machine_bare::verdict::{Verdict, check, equal};

use crate::SPI;

/// GICD_PIDR2.
const PIDR2: usize = 0xffe8;
/// Reserved, or RES0 with affinity routing in one security state: GICD_ITARGETSR8, IGRPMODR1,
/// NSACR2, SPENDSGIR0, reserved words.
const ZERO: [usize; 7] = [0x0c, 0x14, 0x820, 0xd04, 0xe08, 0xf20, 0x5ff0];

/// Identification, and registers that read as zero whatever is written.
pub fn identification(machine: &'static Machine) -> Verdict {
    let gicd = gic::distributor();
    let revision = gicd.read32(PIDR2) >> 4 & 0xf;
    check(
        matches!(revision, 3 | 4),
        "GICD_PIDR2 is not that of a GICv3 or v4",
    )?;
    let lines = 32 * ((gicd.read32(gic::GICD_TYPER) & 0x1f) + 1);
    check(lines > SPI + 8, "GICD_TYPER has too few lines")?;
    let control = gicd.read32(gic::GICD_CTLR);
    equal(
        "GICD_CTLR: ARE, DS and both groups",
        u64::from(control & 0x53),
        0x53,
    )?;
    for register in ZERO {
        gicd.write32(register, !0);
        equal("a register that is RES0", gicd.read32(register).into(), 0)?;
    }
    for (index, &affinity) in machine.cpus().iter().enumerate() {
        let Some(frame) = gic::redistributor_of(affinity) else {
            return check(false, "a CPU without redistributor");
        };
        let typer = frame.read64(8);
        equal(
            "GICR_TYPER processor number",
            typer >> 8 & 0xffff,
            index as u64,
        )?;
        let last = typer >> 4 & 1 != 0;
        check(
            last == (index + 1 == machine.cpus().len()),
            "GICR_TYPER.Last",
        )?;
        equal(
            "GICR_PIDR2 revision",
            u64::from(frame.read32(PIDR2) >> 4 & 0xf),
            revision.into(),
        )?;
    }
    Ok(())
}

/// Priority, trigger, group, enable, route: written and read back.
pub fn configuration(machine: &'static Machine) -> Verdict {
    let line = Line::new(SPI);
    line.set_up();
    check(line.is_enabled(), "an enabled SPI")?;
    line.disable();
    check(!line.is_enabled(), "a disabled SPI")?;
    for edge in [true, false, true] {
        line.set_edge(edge);
        check(
            line.is_edge() == edge,
            "GICD_ICFGR does not keep the trigger",
        )?;
    }
    for priority in [0x00, 0x40, 0x80, 0xf0] {
        line.set_priority(priority);
        equal(
            "a priority read back",
            u64::from(line.priority()) & 0xf0,
            priority.into(),
        )?;
    }
    for &affinity in machine.cpus() {
        line.route(affinity);
        equal("GICD_IROUTER read back", line.target(), affinity)?;
    }
    line.set_group1(true);
    check(line.is_group1(), "GICD_IGROUPR does not keep group 1")?;
    check(
        Line::new(5).is_enabled() || !Line::new(5).is_pending(),
        "an SGI pending from nothing",
    )
}
