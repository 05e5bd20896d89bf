//! Doing what may fault, and going on.

use core::arch::asm;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::cpu::{self, MAX_CPUS};
use crate::memory::Scratch;

/// A synchronous exception (Arm ARM D24, ESR_EL1).
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Syndrome.
    pub esr: u64,
    /// Faulting address, where the syndrome says that it is valid.
    pub far: u64,
    /// The instruction's address.
    pub elr: u64,
}

impl Fault {
    /// Exception class: ESR_EL1.EC.
    pub const fn class(&self) -> u64 {
        self.esr >> 26 & 0x3f
    }

    /// Fault status code of an abort: ESR_EL1.DFSC or IFSC.
    pub const fn status(&self) -> u64 {
        self.esr & 0x3f
    }

    /// A data abort from EL1 that is a synchronous external abort, not on a table walk.
    pub const fn is_external_data_abort(&self) -> bool {
        self.class() == 0x25 && self.status() == 0x10
    }

    /// An instruction abort from EL1.
    pub const fn is_instruction_abort(&self) -> bool {
        self.class() == 0x21
    }

    /// An undefined instruction, or a trapped system register (EC 0 and 0x18).
    pub const fn is_undefined(&self) -> bool {
        matches!(self.class(), 0 | 0x18)
    }
}

struct Catcher {
    armed: AtomicBool,
    count: AtomicU64,
    esr: AtomicU64,
    far: AtomicU64,
    elr: AtomicU64,
}

static CATCHERS: [Catcher; MAX_CPUS] = [const {
    Catcher {
        armed: AtomicBool::new(false),
        count: AtomicU64::new(0),
        esr: AtomicU64::new(0),
        far: AtomicU64::new(0),
        elr: AtomicU64::new(0),
    }
}; MAX_CPUS];

/// Runs `work`; an instruction in it that faults on this CPU is skipped (a faulting branch
/// returns), and the first such fault is the result. For single accesses by the functions of this
/// crate, which are asm and expect to be skipped.
///
/// # Errors
/// The first fault.
pub fn catch<R>(work: impl FnOnce() -> R) -> Result<R, Fault> {
    let catcher = &CATCHERS[cpu::index()];
    catcher.count.store(0, Ordering::Relaxed);
    catcher.armed.store(true, Ordering::SeqCst);
    let result = work();
    catcher.armed.store(false, Ordering::SeqCst);
    if catcher.count.load(Ordering::Relaxed) == 0 {
        return Ok(result);
    }
    Err(Fault {
        esr: catcher.esr.load(Ordering::Relaxed),
        far: catcher.far.load(Ordering::Relaxed),
        elr: catcher.elr.load(Ordering::Relaxed),
    })
}

/// Takes a fault if this CPU is in [`catch`].
pub(crate) fn record(fault: Fault) -> bool {
    let catcher = &CATCHERS[cpu::index()];
    if !catcher.armed.load(Ordering::SeqCst) {
        return false;
    }
    if catcher.count.fetch_add(1, Ordering::Relaxed) == 0 {
        catcher.esr.store(fault.esr, Ordering::Relaxed);
        catcher.far.store(fault.far, Ordering::Relaxed);
        catcher.elr.store(fault.elr, Ordering::Relaxed);
    }
    true
}

/// Loads the 64-bit word at any address.
///
/// # Errors
/// The fault that the load took.
pub fn load(address: u64) -> Result<u64, Fault> {
    catch(|| {
        let value: u64;
        // SAFETY: a load changes nothing of this program, and a fault is caught.
        unsafe { asm!("ldr {}, [{}]", inout(reg) !0u64 => value, in(reg) address) };
        value
    })
}

/// Branches to `address`, where nothing may be that can be executed.
///
/// # Errors
/// The fault that the branch took.
pub fn branch(address: u64) -> Result<(), Fault> {
    // SAFETY: the fault returns to the link register; code that is there after all keeps to the
    // procedure call standard or the test has lost anyway.
    catch(|| unsafe { asm!("blr {}", in(reg) address, clobber_abi("C")) })
}

/// Two instructions that are written while the program runs.
#[repr(align(64))]
struct Code([AtomicU64; MAX_CPUS]);

static CODE: Code = Code([const { AtomicU64::new(0) }; MAX_CPUS]);

/// `ret`.
const RETURN: u64 = 0xd65f_03c0;

/// Writes `instruction` and a return, makes them visible to instruction fetch, and calls them with `x0` and `x1`.
///
/// # Safety
/// The instruction changes no register but those that a function may, and no memory or system state that this
/// program relies on.
unsafe fn execute(instruction: u32, x0: u64, x1: u64) -> u64 {
    let code = &CODE.0[cpu::index()];
    code.store(RETURN << 32 | u64::from(instruction), Ordering::Relaxed);
    let value: u64;
    // SAFETY: the caller promises a harmless instruction; cache maintenance as in Arm ARM B2.4.4.
    unsafe {
        asm!("dc cvau, {code}", "dsb ish", "ic ivau, {code}", "dsb ish", "isb", "blr {code}",
            code = in(reg) code.as_ptr(), inout("x0") x0 => value, inout("x1") x1 => _,
            clobber_abi("C"));
    }
    value
}

/// A system register by its encoding, as in `S<op0>_<op1>_C<n>_C<m>_<op2>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u32, pub u32, pub u32, pub u32, pub u32);

impl Register {
    /// How many encodings MRS and MSR have.
    pub const COUNT: u32 = 1 << 15;

    /// The encoding of that number, below [`Self::COUNT`].
    #[must_use]
    pub const fn nth(n: u32) -> Self {
        Self(
            2 | n >> 14 & 1,
            n >> 11 & 7,
            n >> 7 & 15,
            n >> 3 & 15,
            n & 7,
        )
    }

    /// The instruction that moves it, to x0 by `0xd520_0000` and from it by `0xd500_0000`.
    const fn with(self, opcode: u32) -> u32 {
        let Self(op0, op1, n, m, op2) = self;
        opcode | (op0 & 3) << 19 | (op1 & 7) << 16 | (n & 15) << 12 | (m & 15) << 8 | (op2 & 7) << 5
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self(op0, op1, n, m, op2) = self;
        write!(f, "s{op0}_{op1}_c{n}_c{m}_{op2}")
    }
}

/// Reads a system register of any encoding, which need not exist.
///
/// # Errors
/// The exception that the read took.
pub fn read_register(register: Register) -> Result<u64, Fault> {
    // SAFETY: `mrs x0, <register>`: x0 alone changes, apart from read side effects of registers
    // that acknowledge interrupts.
    catch(|| unsafe { execute(register.with(0xd520_0000), 0, 0) })
}

/// Writes a system register of any encoding, which need not exist.
///
/// # Errors
/// The exception that the write took.
///
/// # Panics
/// This program needs the register ([`NEEDED`]).
pub fn write_register(register: Register, value: u64) -> Result<(), Fault> {
    let needed = NEEDED.iter().any(|(needed, _)| *needed == register);
    assert!(!needed, "a register that this program needs");
    // SAFETY: `msr <register>, x0`: nothing of this program depends on it while interrupts are masked.
    catch(|| unsafe { execute(register.with(0xd500_0000), value, 0) }).map(drop)
}

/// Registers that a program cannot lose and go on, and why.
pub const NEEDED: [(Register, &str); 9] = [
    (
        Register(3, 0, 1, 0, 0),
        "SCTLR_EL1: with all bits set no page that can be written can be executed",
    ),
    (Register(3, 0, 2, 0, 0), "TTBR0_EL1: where its tables are"),
    (Register(3, 0, 2, 0, 2), "TCR_EL1: how they are read"),
    (
        Register(3, 0, 10, 2, 0),
        "MAIR_EL1: devices and memory differ by it",
    ),
    (
        Register(3, 0, 12, 0, 0),
        "VBAR_EL1: every other access is an exception; but see `hold`",
    ),
    (
        Register(3, 0, 13, 0, 4),
        "TPIDR_EL1: the CPU's index; but see `hold`",
    ),
    (Register(3, 0, 4, 2, 0), "SPSel: which stack it has"),
    (Register(3, 3, 4, 2, 1), "DAIF: interrupts stay masked"),
    (Register(3, 0, 4, 2, 3), "PAN, which stays as it is"),
];

/// Sets `VBAR_EL1` and `TPIDR_EL1` to `value` for so many turns of a loop in which nothing may happen; gives
/// what they were found to be before they are as they were.
pub fn hold(value: u64, turns: u64) -> [u64; 2] {
    let (vectors, thread): (u64, u64);
    // SAFETY: interrupts are masked, no instruction in between takes an exception to EL1, and both are put back.
    unsafe {
        asm!("mrs {old0}, vbar_el1", "mrs {old1}, tpidr_el1", "msr vbar_el1, {value}", "msr tpidr_el1, {value}", "isb",
            "1: subs {turns}, {turns}, #1", "b.hi 1b",
            "mrs {value}, vbar_el1", "mrs {turns}, tpidr_el1", "msr vbar_el1, {old0}", "msr tpidr_el1, {old1}", "isb",
            old0 = out(reg) _, old1 = out(reg) _, value = inout(reg) value => vectors,
            turns = inout(reg) turns => thread, options(nostack));
    }
    [vectors, thread]
}

/// Executes a system instruction of any encoding (op0 is taken as 1) on the first address of `memory`: DC ZVA clears there.
///
/// # Errors
/// The exception that it took.
pub fn system_instruction(encoding: Register, memory: &Scratch) -> Result<(), Fault> {
    let Register(_, op1, n, m, op2) = encoding;
    let instruction = Register(1, op1, n, m, op2).with(0xd500_0000);
    // SAFETY: maintenance of caches, TLBs and predictors, and the like; what writes memory writes scratch memory.
    catch(|| unsafe { execute(instruction, memory.base(), 0) }).map(drop)
}

/// HVC with any immediate, or SMC, of a function that nobody has: what it gives.
///
/// # Errors
/// The exception that it took.
pub fn call_with(immediate: u16, is_smc: bool) -> Result<u64, Fault> {
    let instruction = 0xd400_0002 | u32::from(is_smc) | u32::from(immediate) << 5;
    // SAFETY: a call that does nothing, by SMCCC.
    catch(|| unsafe { execute(instruction, 0xc300_beef, 0) })
}

/// How many forms [`access`] has.
pub const FORMS: usize = FORM.len();
/// Loads and stores of x0's address, of every size and kind, with x1 as what is stored.
const FORM: [u32; 24] = [
    0x3940_0001, // ldrb w1, [x0]
    0x7940_0001, // ldrh w1, [x0]
    0xb940_0001, // ldr w1, [x0]
    0xf940_0001, // ldr x1, [x0]
    0x3980_0001, // ldrsb x1, [x0]
    0xb980_0001, // ldrsw x1, [x0]
    0xa940_0801, // ldp x1, x2, [x0]
    0xb840_4401, // ldr w1, [x0], #4
    0x88df_fc01, // ldar w1, [x0]
    0x885f_7c01, // ldxr w1, [x0]
    0xb8bf_c001, // ldapr w1, [x0]
    0x3dc0_0000, // ldr q0, [x0]
    0x3900_0001, // strb w1, [x0]
    0x7900_0001, // strh w1, [x0]
    0xb900_0001, // str w1, [x0]
    0xf900_0001, // str x1, [x0]
    0xa900_0801, // stp x1, x2, [x0]
    0xb800_4401, // str w1, [x0], #4
    0x889f_fc01, // stlr w1, [x0]
    0x8802_7c01, // stxr w2, w1, [x0]
    0xb821_8002, // swp w1, w2, [x0]
    0xd50b_7420, // dc zva, x0
    0xd50b_7e20, // dc civac, x0
    0xf980_0000, // prfm pldl1keep, [x0]
];

/// Loads from or stores to any address below 1 GiB, where devices are and no memory.
///
/// # Errors
/// The exception that it took.
///
/// # Panics
/// Memory may be at the address.
pub fn access(form: usize, address: u64, value: u64) -> Result<(), Fault> {
    assert!(address < (1 << 30) - 64, "not a device");
    // SAFETY: no Rust object is there, and none of the forms changes what a function may not.
    catch(|| unsafe { execute(FORM[form % FORMS], address, value) }).map(drop)
}

/// Makes this CPU execute `mov x0, #value`, written a moment ago.
pub fn execute_constant(value: u16) -> u64 {
    // SAFETY: `movz x0, #value` changes x0 alone.
    unsafe { execute(0xd280_0000 | u32::from(value) << 5, 0, 0) }
}
