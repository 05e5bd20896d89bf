//! Accesses that go nowhere, and code that changes under the CPU.

use crate::virtio;
use machine_bare::device::Device;
use machine_bare::machine::Machine;
use machine_bare::probe::{self, Fault, Register};
use machine_bare::verdict::{self, Verdict, check, equal};
use machine_bare::{console, gic, println, psci, vectors};

/// Where `virt` has nothing, or PCIe windows: those answer on their own where a bridge is.
const NOWHERE: u64 = 0x0f00_0000;
const PCIE_WINDOW: u64 = 0x3000_0000;
/// Fault status: synchronous external abort, not on a table walk.
const EXTERNAL: u64 = 0x10;

/// Addresses without memory or device on this machine.
fn nowhere(machine: &Machine) -> impl Iterator<Item = u64> {
    let window = (!machine.has_pcie).then_some(PCIE_WINDOW);
    [NOWHERE, NOWHERE + 0xf_fff8].into_iter().chain(window)
}

/// Loads from nowhere: an external abort each, at the right address.
pub fn unmapped(machine: &'static Machine) -> Verdict {
    for address in nowhere(machine) {
        let Err(fault) = probe::load(address) else {
            println!("hostile: a load from {address:#x} succeeds");
            return verdict::fail("a load from nowhere succeeds");
        };
        check(fault.is_external_data_abort(), "not an external data abort")?;
        equal("FAR of the abort", fault.far, address)?;
    }
    Ok(())
}

/// So many of each kind of thing that is counted, and nothing else: the harness knows the numbers.
pub fn counted(machine: &'static Machine) -> Verdict {
    /// `PMCR_EL0` and `ACTLR_EL1`: UNDEFINED, and zero.
    const REGISTERS: [(Register, u32, bool); 2] = [
        (Register(3, 3, 9, 12, 0), 4, true),
        (Register(3, 0, 1, 0, 1), 3, false),
    ];
    const LOADS: u32 = 5;
    const QUEUES: u32 = 2;
    const CALLS: u32 = 3;
    for (register, times, is_undefined) in REGISTERS {
        for _ in 0..times {
            let fault = probe::read_register(register).err();
            let is_right = fault.is_some_and(|fault| fault.is_undefined()) == is_undefined;
            check(is_right, "a hidden register is not what it was")?;
        }
    }
    for _ in 0..LOADS {
        check(
            probe::load(NOWHERE).is_err(),
            "a load from nowhere succeeds",
        )?;
    }
    for _ in 0..QUEUES {
        virtio::break_disk(machine)?;
    }
    for _ in 0..CALLS {
        let is_refused = psci::query(0xc300_beef) == psci::NOT_SUPPORTED;
        check(is_refused, "an unknown call is answered")?;
    }
    Ok(())
}

/// Branches to nowhere: an external instruction abort. The first GiB, with its devices, is mapped
/// never to be executed, so the branch goes behind all memory.
pub fn unmapped_exec(machine: &'static Machine) -> Verdict {
    let address = machine.memory.end().next_multiple_of(4096);
    let Err(fault) = probe::branch(address) else {
        return verdict::fail("a branch to nowhere returns");
    };
    println!(
        "hostile: a branch to {address:#x} gives esr={:#x}",
        fault.esr
    );
    check(fault.is_instruction_abort(), "not an instruction abort")?;
    equal("its fault status", fault.status(), EXTERNAL)?;
    equal("FAR of the abort", fault.far, address)
}

/// Vectors outside memory, then a fault: the first fetch aborts, at its own vector, for ever.
pub fn own_vector_abort(machine: &'static Machine) -> Verdict {
    verdict::announce(format_args!("begins"));
    vectors::fault_with_vectors_at(machine.memory.end().next_multiple_of(4096))
}

/// A32 code at EL0: a WFI, again and again.
pub fn aarch32(machine: &'static Machine) -> Verdict {
    const WFI_THEN_BACK: u64 = 0xeaff_fffd_e320_f003;
    verdict::announce(format_args!("begins"));
    machine.scratch().write(0, WFI_THEN_BACK);
    vectors::go_to_aarch32(machine.scratch().base())
}

/// Vectors in zeroed memory, which is an undefined instruction: an exception at EL1 without end,
/// and without an exit.
pub fn exception_loop(machine: &'static Machine) -> Verdict {
    verdict::announce(format_args!("begins"));
    machine.scratch().write(0, 0);
    machine.scratch().write(0x200, 0);
    vectors::fault_with_vectors_at(machine.scratch().base())
}

/// Accesses to emulated devices that give the hypervisor no syndrome: right data, or an external
/// abort. A `plain` QEMU makes one access of 8 bytes out of a pair, so there data may be wrong.
pub fn mmio_without_syndrome(machine: &'static Machine) -> Verdict {
    let gicd = gic::distributor();
    let uart = console::uart();
    for (name, device, offset) in [
        ("GICD", &gicd, 0),
        ("UART", &uart, console::FLAGS),
        ("UART", &uart, 0xfe0),
    ] {
        let words = (device.read32(offset), device.read32(offset + 4));
        let pair = probe::catch(|| device.read_pair(offset));
        if machine.flag("plain") {
            println!("hostile: {name} by ldp: {pair:x?}");
        } else {
            outcome(name, "ldp", pair, words)?;
        }
        let post_index = probe::catch(|| device.read_post_index(offset));
        outcome(name, "ldr post-index", post_index, (words.0, 4))?;
    }
    let enable = 0x100 + 4 * 3;
    let written = probe::catch(|| write(&gicd, enable));
    outcome("GICD", "str post-index", written, (1 << 5, 4))?;
    gicd.write32(enable + 0x80, 1 << 5);
    Ok(())
}

/// Enables one SPI by a store with post-index; gives what is enabled then.
fn write(gicd: &Device, enable: usize) -> (u32, usize) {
    let moved = gicd.write_post_index(enable, 1 << 5);
    (gicd.read32(enable), moved)
}

fn outcome<T: PartialEq + Copy>(
    device: &str,
    how: &str,
    seen: Result<T, Fault>,
    wanted: T,
) -> Verdict {
    match seen {
        Ok(value) => {
            println!("hostile: {device} by {how}: done");
            check(
                value == wanted,
                "an access without syndrome is done wrongly",
            )
        }
        Err(fault) => {
            println!("hostile: {device} by {how}: esr={:#x}", fault.esr);
            check(
                fault.is_external_data_abort(),
                "an access without syndrome is no external abort",
            )
        }
    }
}

/// Code that is rewritten and executed, over and over.
pub fn self_modifying(_machine: &'static Machine) -> Verdict {
    for value in 0..20_000_u16 {
        let seen = probe::execute_constant(value);
        equal("stale code ran: it gave", seen, value.into())?;
    }
    Ok(())
}
