//! All system registers by their encodings: one VM writes ones, and others look what they find.
//!
//! Registers are printed by number, as assemblers take them: `s3_0_c13_c0_1 = 0x0`.

use machine_bare::machine::Machine;
use machine_bare::memory::Scratch;
use machine_bare::probe::{self, NEEDED, Register};
use machine_bare::verdict::{Verdict, check, equal};
use machine_bare::{println, timer};

/// `CPACR_EL1`, by which a guest keeps some registers from itself.
const CPACR: Register = Register(3, 0, 1, 0, 2);

/// Registers that differ at each look, and why.
const UNSTEADY: [(Register, &str); 9] = [
    (Register(3, 3, 14, 0, 1), "CNTPCT_EL0 counts"),
    (Register(3, 3, 14, 0, 2), "CNTVCT_EL0 counts"),
    (Register(3, 3, 14, 0, 5), "CNTPCTSS_EL0 counts"),
    (Register(3, 3, 14, 0, 6), "CNTVCTSS_EL0 counts"),
    (Register(3, 3, 14, 2, 0), "CNTP_TVAL_EL0 counts down"),
    (Register(3, 3, 14, 3, 0), "CNTV_TVAL_EL0 counts down"),
    (Register(3, 3, 2, 4, 0), "RNDR is random"),
    (Register(3, 3, 2, 4, 1), "RNDRRS is random"),
    (Register(3, 3, 4, 2, 0), "NZCV: flags of the code around"),
];

/// Turns of a loop that last some slices of a CPU.
const HOLD: u64 = 5_000_000;

/// Least number of registers that hold what is written: there are not fewer on any Armv8 CPU.
const HELD_MIN: u64 = 20;

/// Marks a number in a list.
const TOLD: u64 = 1 << 32;

fn all() -> impl Iterator<Item = Register> {
    (0..Register::COUNT).map(Register::nth)
}

fn is_among(register: Register, list: &[(Register, &str)]) -> bool {
    list.iter().any(|(listed, _)| *listed == register)
}

fn end(machine: &Machine) -> u64 {
    timer::now() + machine.number("seconds", 1).min(1 << 20) * timer::frequency()
}

/// Registers by number in scratch memory, and what they held.
struct List {
    memory: Scratch,
    length: u64,
}

impl List {
    fn push(&mut self, n: u32, value: u64) {
        self.memory.write(self.length * 16, n.into());
        self.memory.write(self.length * 16 + 8, value);
        self.length += 1;
    }

    fn is_told(&self, index: u64) -> bool {
        self.memory.read(index * 16) & TOLD != 0
    }

    fn set_told(&self, index: u64) {
        let n = self.memory.read(index * 16);
        self.memory.write(index * 16, n | TOLD);
    }

    fn get(&self, index: u64) -> (Register, u64) {
        let n = self.memory.read(index * 16) as u32;
        (Register::nth(n), self.memory.read(index * 16 + 8))
    }
}

/// Writes ones, and by turns zeroes, to whatever can be written, and leaves the ones where they are.
pub fn write(machine: &'static Machine) -> Verdict {
    let mut writable = List {
        memory: machine.scratch(),
        length: 0,
    };
    let (mut held, mut readable) = (0_u64, 0);
    let _ = probe::write_register(CPACR, !0);
    for n in 0..Register::COUNT {
        let register = Register::nth(n);
        let before = probe::read_register(register).ok();
        readable += u64::from(before.is_some());
        if is_among(register, &NEEDED) || probe::write_register(register, !0).is_err() {
            continue;
        }
        writable.push(n, 0);
        let after = probe::read_register(register).ok();
        if after != before {
            held += 1;
            println!("hostile: wrote {register} = {:#x}", after.unwrap_or(0));
        }
    }
    println!(
        "hostile: {readable} registers were read, {} written, {held} hold it",
        writable.length
    );
    let end = end(machine);
    let mut turns = 0;
    while timer::now() < end {
        for value in [0, !0] {
            for index in 0..writable.length {
                let _ = probe::write_register(writable.get(index).0, value);
            }
            // Not all bits of VBAR_EL1 can be set.
            let [_, thread] = probe::hold(value, HOLD);
            equal("TPIDR_EL1", thread, value)?;
        }
        turns += 1;
    }
    println!("hostile: wrote for {turns} turns");
    check(held >= HELD_MIN, "too few registers hold what is written")
}

/// Says what each register holds that is not zero, and for `seconds=` that all hold the same again and again;
/// says so each second.
pub fn read(machine: &'static Machine) -> Verdict {
    let mut list = List {
        memory: machine.scratch(),
        length: 0,
    };
    let _ = probe::write_register(CPACR, !0);
    // Twice, so that what the first time leaves in syndromes is the same.
    for _ in 0..2 {
        list.length = 0;
        for (n, register) in all().enumerate() {
            if !is_among(register, &UNSTEADY)
                && let Ok(value) = probe::read_register(register)
            {
                list.push(n as u32, value);
            }
        }
    }
    for index in 0..list.length {
        let (register, value) = list.get(index);
        if value != 0 {
            println!("hostile: {register} = {value:#x}");
        }
    }
    println!("hostile: {} registers were read", list.length);
    let end = end(machine);
    let mut differ = 0;
    while timer::now() < end {
        // Once it has found something it looks for a second longer, for more.
        let found = differ;
        let second = timer::now() + timer::frequency();
        while timer::now() < second {
            differ += look_again(&list);
        }
        check(found == 0, "another VM has written registers")?;
        if differ == 0 {
            println!("hostile: all registers are the same");
        }
    }
    Ok(())
}

/// How many registers differ from the list; each is told, and counted, once.
fn look_again(list: &List) -> u64 {
    let mut differ = 0;
    for index in 0..list.length {
        let (register, before) = list.get(index);
        let now = probe::read_register(register).unwrap_or(!before);
        if now != before && !list.is_told(index) {
            println!("hostile: {register} was {before:#x} and is {now:#x}");
            list.set_told(index);
            differ += 1;
        }
    }
    differ
}
