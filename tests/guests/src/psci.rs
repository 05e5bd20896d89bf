//! PSCI, SMCCC and stolen time as the specifications have them (Arm DEN0022, DEN0028, DEN0057A).
//!
//! Command line: `plain` accepts what QEMU's own PSCI does otherwise; `no-random` wants no generator (Arm DEN0098).
#![no_std]
#![no_main]
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering};

use machine_bare::machine::Machine;
use machine_bare::psci::{self, Error, NOT_SUPPORTED};
use machine_bare::verdict::{Verdict, check, equal, fail};
use machine_bare::{cpu, image, println, probe, timer};

image!("psci", main);

const TRNG_VERSION: u32 = 0x8400_0050;
/// PV_TIME_ST.
const STOLEN_TIME: u32 = 0xc500_0021;

/// Microseconds that a CPU may take to come or go.
const PATIENCE: u64 = 10_000_000;
/// Fast calls of the standard services that nobody has defined, of OEMs, one that is not even
/// a fast call, and Underpin's own that only a bench may make.
const UNKNOWN: [u32; 7] = [
    0x8400_ffff,
    0xc400_ffff,
    0x8200_0000,
    0xc300_1234,
    0xffff_ffff,
    0x0000_0000,
    0xc600_0021,
];

static VISITS: AtomicU32 = AtomicU32::new(0);
static STAY: AtomicU32 = AtomicU32::new(0);

fn main(machine: &'static Machine) -> Verdict {
    versions()?;
    unknown_functions(machine)?;
    refusals(machine)?;
    if !machine.flag("plain") {
        stolen_time(machine)?;
        let version = psci::query(TRNG_VERSION);
        check(
            machine.flag("no-random") == (version < 0x1_0000),
            "the generator is there and should not be, or the other way round",
        )?;
    }
    for index in 1..machine.cpus().len() {
        on_and_off(machine, index)?;
    }
    Ok(())
}

fn versions() -> Verdict {
    let version = psci::query(psci::VERSION);
    println!("psci: version {}.{}", version >> 16, version & 0xffff);
    check(version >= 0x1_0000, "PSCI is older than 1.0")?;
    for function in [
        psci::CPU_ON,
        psci::CPU_OFF,
        psci::AFFINITY_INFO,
        psci::SYSTEM_OFF,
        psci::SYSTEM_RESET,
    ] {
        check(
            psci::features(function) >= 0,
            "a mandatory function is not in PSCI_FEATURES",
        )?;
    }
    let unknown = psci::features(0x8400_ffff);
    equal(
        "FEATURES of an unknown function",
        unknown as u64,
        NOT_SUPPORTED as u64,
    )?;
    if psci::features(psci::SYSTEM_SUSPEND) < 0 {
        let refused = psci::query(psci::SYSTEM_SUSPEND);
        equal(
            "SYSTEM_SUSPEND that is not a feature",
            refused as u64,
            NOT_SUPPORTED as u64,
        )?;
    }
    println!(
        "psci: SMCCC version {:#x} (feature {}), MIGRATE_INFO_TYPE {}",
        psci::query(psci::SMCCC_VERSION),
        psci::features(psci::SMCCC_VERSION),
        psci::query(psci::MIGRATE_INFO_TYPE)
    );
    Ok(())
}

fn unknown_functions(machine: &Machine) -> Verdict {
    for function in UNKNOWN {
        let result = psci::query(function);
        equal("an unknown HVC", result as u64, NOT_SUPPORTED as u64)?;
        match probe::catch(|| psci::query_by_smc(function)) {
            Ok(result) => equal("an unknown SMC", result as u64, NOT_SUPPORTED as u64)?,
            Err(fault) => {
                check(
                    fault.is_undefined(),
                    "SMC takes another exception than UNDEFINED",
                )?;
                check(machine.flag("plain"), "SMC is UNDEFINED")?;
            }
        }
    }
    Ok(())
}

fn refusals(machine: &Machine) -> Verdict {
    let own = machine.cpus()[0];
    let entry = cpu::secondary_entry();
    equal(
        "AFFINITY_INFO of this CPU",
        psci::affinity_info(own, 0) as u64,
        psci::ON as u64,
    )?;
    check(
        psci::affinity_info(0xfe_00fe_fefe, 0) == Error::INVALID_PARAMETERS.0,
        "AFFINITY_INFO of no CPU is not INVALID_PARAMETERS",
    )?;
    check(
        psci::cpu_on(own, entry, 0) == Err(Error::ALREADY_ON),
        "CPU_ON of this CPU is not ALREADY_ON",
    )?;
    check(
        psci::cpu_on(0xfe_00fe_fefe, entry, 0) == Err(Error::INVALID_PARAMETERS),
        "CPU_ON of no CPU is not INVALID_PARAMETERS",
    )?;
    // An entry outside memory is refused, or the CPU comes up and faults there: QEMU does that.
    if let (Some(&other), true) = (machine.cpus().get(1), !machine.flag("plain")) {
        check(
            psci::cpu_on(other, 0x3000_0000, 0) == Err(Error::INVALID_ADDRESS),
            "CPU_ON to no memory is not INVALID_ADDRESS",
        )?;
        equal(
            "AFFINITY_INFO after it",
            psci::affinity_info(other, 0) as u64,
            psci::OFF as u64,
        )?;
    }
    Ok(())
}

/// The structure is memory of the guest's own, and whole whenever it is asked for.
fn stolen_time(machine: &Machine) -> Verdict {
    let address = psci::query(STOLEN_TIME);
    let memory = machine.scratch();
    let offset = (address as u64).wrapping_sub(memory.base());
    check(
        address % 64 == 0 && offset < memory.size(),
        "PV_TIME_ST gives no aligned address in memory",
    )?;
    memory.write(offset, u64::MAX);
    memory.write(offset + 8, u64::MAX);
    let again = psci::query(STOLEN_TIME);
    equal("PV_TIME_ST once more", again as u64, address as u64)?;
    equal("revision and attributes", memory.read(offset), 0)?;
    let stolen = memory.read(offset + 8);
    println!("psci: {stolen} ns were stolen");
    check(stolen < 1000 * PATIENCE, "more was stolen than can be")
}

/// What a started CPU does: counts its visit and leaves when it may.
fn visit(_index: usize) {
    VISITS.fetch_add(1, Ordering::AcqRel);
    while STAY.load(Ordering::Acquire) != 0 {
        cpu::yield_now();
    }
}

fn on_and_off(machine: &Machine, index: usize) -> Verdict {
    let affinity = machine.cpus()[index];
    let is = |state| psci::affinity_info(affinity, 0) == state;
    for _ in 0..3 {
        check(is(psci::OFF), "a CPU that is off is not OFF")?;
        let before = VISITS.load(Ordering::Acquire);
        STAY.store(1, Ordering::Release);
        if cpu::start(index, visit).is_err() {
            return fail("CPU_ON is refused");
        }
        let again = || psci::cpu_on(affinity, cpu::secondary_entry(), index as u64);
        // QEMU accepts a second CPU_ON until the CPU has come, and starts it twice.
        if !machine.flag("plain") {
            check(
                matches!(again(), Err(Error::ALREADY_ON | Error::ON_PENDING)),
                "a second CPU_ON is neither ALREADY_ON nor ON_PENDING",
            )?;
        }
        let came = timer::wait_until(PATIENCE, || VISITS.load(Ordering::Acquire) == before + 1);
        check(came, "a started CPU does not come")?;
        check(is(psci::ON), "a CPU that runs is not ON")?;
        check(
            again() == Err(Error::ALREADY_ON),
            "CPU_ON of a CPU that runs is not ALREADY_ON",
        )?;
        STAY.store(0, Ordering::Release);
        check(
            timer::wait_until(PATIENCE, || is(psci::OFF)),
            "CPU_OFF does not end in OFF",
        )?;
        equal(
            "visits",
            VISITS.load(Ordering::Acquire).into(),
            u64::from(before) + 1,
        )?;
    }
    Ok(())
}
