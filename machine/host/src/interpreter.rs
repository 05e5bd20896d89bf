//! A guest on the executing CPU: its instructions, one by one, through stage 2, until one of them leaves.

use crate::context::{GuestContext, Leave};
use crate::coroutine;
use crate::instruction::{Instruction, Operation};
use crate::machine::{self, Machine, Pause};
use crate::registers::number;
use crate::stage2::vmid;
use machine_fake::Fault;
use model_addr::{Ipa, Pa};

const ESR: usize = number("esr_el2");
const FAR: usize = number("far_el2");
const HPFAR: usize = number("hpfar_el2");
const HCR: usize = number("hcr_el2");
const VTTBR: usize = number("vttbr_el2");
const VTCR: usize = number("vtcr_el2");
/// Exception classes (Arm ARM, `ESR_EL2`).
const EC_WFX: u64 = 0x01;
const EC_HVC: u64 = 0x16;
const EC_SYSREG: u64 = 0x18;
const EC_FETCH: u64 = 0x20;
const EC_DATA: u64 = 0x24;
/// The instruction has 32 bits.
const IL: u64 = 1 << 25;
/// `HCR_EL2.TTLB`.
const TTLB: u64 = 1 << 25;
/// `PSTATE.I`.
const MASKS_INTERRUPTS: u64 = 1 << 7;

/// What follows an instruction.
enum After {
    /// The next one.
    Next,
    /// The one at that address.
    Jump(u64),
    /// The guest leaves; the program counter stays.
    Leave,
    /// The guest leaves behind the instruction.
    LeaveBehind,
}

/// How memory is used.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Fetch,
    Read,
    Write,
}

/// Runs the guest whose state the executing CPU has until it leaves.
pub(crate) fn run(context: &mut GuestContext) -> Leave {
    machine::with(|machine| machine.cpu().exclusive = None);
    loop {
        let (leave, is_over) = machine::with(|machine| {
            let is_over = machine.tick();
            (machine.go_on(context), is_over)
        });
        if let Some(leave) = leave {
            return leave;
        }
        if is_over {
            coroutine::leave(Pause::Goes);
        }
    }
}

impl Machine {
    /// Takes an interrupt, or executes one instruction.
    fn go_on(&mut self, context: &mut GuestContext) -> Option<Leave> {
        let cpu = self.current.unwrap_or(0);
        self.cpus[cpu].guest_pc = context.pc;
        if self.is_interrupted(cpu) {
            return Some(Leave::Interrupt);
        }
        if context.pstate & MASKS_INTERRUPTS == 0 && self.cpus[cpu].has_virtual_interrupt() {
            self.take_virtual_interrupt(context);
        }
        let word = match self.reach(Use::Fetch, Ipa(context.pc), 4) {
            Ok(at) => self.ram.read(at, 4).unwrap_or(0) as u32,
            Err(fault) => {
                self.abort(EC_FETCH, context.pc, fault_status(fault));
                return Some(Leave::Synchronous);
            }
        };
        let Some(instruction) = Instruction::decode(word) else {
            self.violate(&format!(
                "word {word:#010x} at {:#x} is no instruction",
                context.pc
            ));
            return Some(Leave::Synchronous);
        };
        let after = self.execute(context, instruction);
        match after {
            After::Next => context.pc += 4,
            After::Jump(to) => context.pc = to,
            After::Leave => return Some(Leave::Synchronous),
            After::LeaveBehind => {
                context.pc += 4;
                return Some(Leave::Synchronous);
            }
        }
        None
    }

    /// Notes what must not happen; the first such event stays.
    pub(crate) fn violate(&mut self, what: &str) {
        let at = format!("{what} (count {}, step {})", self.time, self.steps);
        self.violation.get_or_insert(at);
        self.is_off = true;
    }

    /// The machine address of a guest's, as far as stage 2 lets it.
    fn reach(&mut self, what: Use, ipa: Ipa, size: u64) -> Result<Pa, (Fault, bool)> {
        let own = self.current.unwrap_or(0);
        let cpu = &mut self.cpus[own];
        let tables = (cpu.registers[VTCR], cpu.registers[VTTBR]);
        let (pa, leaf) = cpu
            .tlb
            .translate(tables, &self.ram, ipa, &mut self.rng)
            .map_err(|fault| (fault, false))?;
        let may = match what {
            Use::Fetch => leaf.execute,
            Use::Read => leaf.read,
            Use::Write => leaf.write,
        };
        if !may {
            let level = 3 - (leaf.size.trailing_zeros() - 12) / 9;
            return Err((Fault::Translation(level), true));
        }
        let own_vmid = vmid(tables.1);
        if let Some(writer) = self.ram.unseen_writer(pa, own_vmid) {
            self.violate(&format!(
                "VMID {own_vmid} reads {ipa} in {}, which VMID {writer} wrote and nobody cleaned",
                pa.frame()
            ));
        }
        if !self.ram.contains(pa, size) {
            self.violate(&format!("{ipa} is translated to {pa}, which is no RAM"));
        }
        Ok(pa)
    }

    /// The registers of an abort.
    fn abort(&mut self, class: u64, address: u64, syndrome: u64) {
        let cpu = self.cpu();
        cpu.registers[ESR] = class << 26 | IL | syndrome;
        cpu.registers[FAR] = address;
        cpu.registers[HPFAR] = address >> 12 << 4;
    }

    fn leave(&mut self, class: u64, syndrome: u64) {
        self.cpu().registers[ESR] = class << 26 | IL | syndrome;
    }

    fn take_virtual_interrupt(&mut self, context: &mut GuestContext) {
        let cpu = self.cpu();
        cpu.registers[const { number("elr_el1") }] = context.pc;
        cpu.registers[const { number("spsr_el1") }] = context.pstate;
        context.pc = cpu.registers[const { number("vbar_el1") }] + 0x280;
        context.pstate = 0x3c5;
    }

    fn execute(&mut self, context: &mut GuestContext, instruction: Instruction) -> After {
        use Instruction as I;
        let jump = |pc: u64, by: i32| After::Jump(pc.wrapping_add_signed(i64::from(by) * 4));
        match instruction {
            I::Move {
                to,
                bits,
                shift,
                keep,
            } => {
                let before = if keep { context.register(to) } else { 0 };
                let kept = before & !(0xffff << shift);
                context.set_register(to, kept | u64::from(bits) << shift);
            }
            I::Calculate(operation, to, one, other) => {
                let value = calculate(operation, context.register(one), context.register(other));
                context.set_register(to, value);
            }
            I::CalculateWith(operation, to, one, other) => {
                let value = calculate(operation, context.register(one), other.into());
                context.set_register(to, value);
            }
            I::Load {
                size,
                to,
                base,
                offset,
            } => {
                let at = context.register(base).wrapping_add(offset.into());
                return self.load(context, (size, to), at);
            }
            I::Store {
                size,
                from,
                base,
                offset,
            } => {
                let at = context.register(base).wrapping_add(offset.into());
                return self.store(context, (size, from), at);
            }
            I::LoadExclusive(to, base) => return self.load_exclusive(context, to, base),
            I::StoreExclusive(result, from, base) => {
                return self.store_exclusive(context, result, (from, base));
            }
            I::Branch(by) => return jump(context.pc, by),
            I::BranchIf(nonzero, register, by) => {
                if (context.register(register) != 0) == nonzero {
                    return jump(context.pc, by);
                }
            }
            other => return self.execute_at_el1(context, other),
        }
        After::Next
    }

    /// As [`Self::execute`], of what only an operating system does.
    fn execute_at_el1(&mut self, context: &mut GuestContext, instruction: Instruction) -> After {
        use Instruction as I;
        match instruction {
            I::Hypercall(number) => {
                self.leave(EC_HVC, number.into());
                return After::LeaveBehind;
            }
            I::Ask(number) => {
                if let Some(mut observer) = self.observer.take() {
                    let mut look = |at| {
                        let pa = self.reach(Use::Read, at, 8).ok()?;
                        self.ram.read(pa, 8)
                    };
                    let answer = observer.called(context, number, &mut look);
                    self.observer = Some(observer);
                    if let Err(what) = answer {
                        self.violate(&what);
                    }
                }
            }
            I::Wait if !self.cpu().has_virtual_interrupt() => {
                self.leave(EC_WFX, 0);
                return After::Leave;
            }
            I::System(write, register, name) => return self.system(context, write, register, name),
            I::Barrier(word)
                if is_tlb_maintenance(word) && self.cpu().registers[HCR] & TTLB != 0 =>
            {
                let [op1, crn, crm, op2] = [16, 12, 8, 5].map(|at| u64::from(word) >> at & 0xf);
                let name = 1 << 20 | (op2 & 7) << 17 | (op1 & 7) << 14 | crn << 10 | crm << 1;
                self.leave(EC_SYSREG, name | u64::from(word & 0x1f) << 5);
                return After::Leave;
            }
            I::Return => {
                let cpu = self.cpu();
                context.pstate = cpu.registers[const { number("spsr_el1") }];
                return After::Jump(cpu.registers[const { number("elr_el1") }]);
            }
            _ => {}
        }
        After::Next
    }

    fn data_abort(
        &mut self,
        at: u64,
        (size, register): (u8, u8),
        write: bool,
        why: (Fault, bool),
    ) -> After {
        let has_syndrome = 1 << 24;
        let access = u64::from(size) << 22 | u64::from(register) << 16 | u64::from(size == 3) << 15;
        let direction = u64::from(write) << 6;
        self.abort(
            EC_DATA,
            at,
            has_syndrome | access | direction | fault_status(why),
        );
        After::Leave
    }

    fn load(&mut self, context: &mut GuestContext, what: (u8, u8), at: u64) -> After {
        let size = 1 << what.0;
        let pa = match self.reach(Use::Read, Ipa(at), size) {
            Ok(pa) => pa,
            Err(why) => return self.data_abort(at, what, false, why),
        };
        let value = self.ram.read(pa, size).unwrap_or(0);
        context.set_register(what.1, value);
        self.has_loaded(context, Ipa(at), size, value);
        After::Next
    }

    fn has_loaded(&mut self, context: &GuestContext, at: Ipa, size: u64, value: u64) {
        let verdict = match &mut self.observer {
            Some(observer) => observer.loaded(context, at, size, value),
            None => Ok(()),
        };
        if let Err(what) = verdict {
            self.violate(&what);
        }
    }

    fn store(&mut self, context: &GuestContext, what: (u8, u8), at: u64) -> After {
        let size = 1 << what.0;
        let pa = match self.reach(Use::Write, Ipa(at), size) {
            Ok(pa) => pa,
            Err(why) => return self.data_abort(at, what, true, why),
        };
        let value = context.register(what.1);
        let writer = vmid(self.cpu().registers[VTTBR]);
        self.ram.note_written(pa, writer);
        let _ = self.ram.write(pa, size, value);
        for cpu in &mut self.cpus {
            cpu.exclusive = cpu
                .exclusive
                .filter(|(watched, _)| watched.0 >> 4 != pa.0 >> 4);
        }
        if let Some(observer) = &mut self.observer {
            observer.stored(context, Ipa(at), size, value);
        }
        After::Next
    }

    fn load_exclusive(&mut self, context: &mut GuestContext, to: u8, base: u8) -> After {
        let at = context.register(base);
        match self.reach(Use::Read, Ipa(at), 8) {
            Ok(pa) => {
                let value = self.ram.read(pa, 8).unwrap_or(0);
                self.cpu().exclusive = Some((pa, value));
                context.set_register(to, value);
                self.has_loaded(context, Ipa(at), 8, value);
                After::Next
            }
            // Exclusive accesses have no syndrome of their own (Arm ARM: ISV).
            Err(why) => {
                self.abort(EC_DATA, at, fault_status(why));
                After::Leave
            }
        }
    }

    fn store_exclusive(
        &mut self,
        context: &mut GuestContext,
        result: u8,
        (from, base): (u8, u8),
    ) -> After {
        let at = context.register(base);
        match self.reach(Use::Write, Ipa(at), 8) {
            Ok(pa) => {
                let watched = self.cpu().exclusive.take();
                let holds = watched == self.ram.read(pa, 8).map(|now| (pa, now));
                context.set_register(result, u64::from(!holds));
                if holds {
                    return self.store(context, (3, from), at);
                }
                After::Next
            }
            Err(why) => {
                self.abort(EC_DATA, at, 1 << 6 | fault_status(why));
                After::Leave
            }
        }
    }

    /// `MRS` and `MSR`: what the guest has in the CPU, or a trap.
    fn system(
        &mut self,
        context: &mut GuestContext,
        write: bool,
        register: u8,
        name: [u8; 5],
    ) -> After {
        let own = self.current.unwrap_or(0);
        let value = context.register(register);
        let answer = match (name, write) {
            ([3, 0, 12, 12, 0], false) => Some(self.cpus[own].virtual_acknowledge().into()),
            ([3, 0, 12, 12, 1], true) => {
                self.virtual_end(own, value as u32);
                Some(0)
            }
            ([3, 0, 4, 6, 0], true) => Some(self.set_virtual_control(24, 0xff, value)),
            ([3, 0, 12, 12, 7], true) => Some(self.set_virtual_control(1, 1, value)),
            ([3, 3, 14, 0, 2], false) => Some(
                self.time
                    .wrapping_sub(self.cpus[own].registers[const { number("cntvoff_el2") }]),
            ),
            ([3, 0, 0, 0, 5], false) => {
                Some(self.cpus[own].registers[const { number("vmpidr_el2") }])
            }
            _ => direct(name).map(|number| {
                let place = &mut self.cpus[own].registers[number];
                if write {
                    *place = value;
                }
                *place
            }),
        };
        match answer {
            Some(value) if !write => {
                context.set_register(register, value);
                After::Next
            }
            Some(_) => After::Next,
            None => {
                let [op0, op1, crn, crm, op2] = name.map(u64::from);
                let place = op0 << 20 | op2 << 17 | op1 << 14 | crn << 10 | crm << 1;
                self.leave(
                    EC_SYSREG,
                    place | u64::from(register) << 5 | u64::from(!write),
                );
                After::Leave
            }
        }
    }

    fn set_virtual_control(&mut self, shift: u32, mask: u64, value: u64) -> u64 {
        let control = &mut self.cpu().registers[const { number("s3_4_c12_c11_7") }];
        *control = *control & !(mask << shift) | (value & mask) << shift;
        0
    }
}

/// Registers that a guest has in the CPU and that mean nothing but what they hold.
fn direct(name: [u8; 5]) -> Option<usize> {
    Some(match name {
        [3, 0, 12, 0, 0] => const { number("vbar_el1") },
        [3, 0, 13, 0, 4] => const { number("tpidr_el1") },
        [3, 3, 13, 0, 2] => const { number("tpidr_el0") },
        [3, 3, 14, 3, 1] => const { number("cntv_ctl_el0") },
        [3, 3, 14, 3, 2] => const { number("cntv_cval_el0") },
        [3, 0, 4, 0, 1] => const { number("elr_el1") },
        [3, 0, 4, 0, 0] => const { number("spsr_el1") },
        [3, 0, 2, 0, 0] => const { number("ttbr0_el1") },
        [3, 0, 6, 0, 0] => const { number("far_el1") },
        [3, 0, 13, 0, 1] => const { number("contextidr_el1") },
        [3, 3, 13, 0, 3] => const { number("tpidrro_el0") },
        [3, 0, 2, 0, 1] => const { number("ttbr1_el1") },
        [3, 0, 5, 2, 0] => const { number("esr_el1") },
        [3, 0, 5, 1, 0] => const { number("afsr0_el1") },
        [3, 0, 5, 1, 1] => const { number("afsr1_el1") },
        [3, 0, 10, 2, 0] => const { number("mair_el1") },
        [3, 0, 10, 3, 0] => const { number("amair_el1") },
        [3, 0, 7, 4, 0] => const { number("par_el1") },
        [3, 2, 0, 0, 0] => const { number("csselr_el1") },
        _ => return None,
    })
}

/// `SYS` of CRn 8, among what [`Instruction::Barrier`] stands for.
const fn is_tlb_maintenance(word: u32) -> bool {
    word & 0xffff_f000 == 0xd508_8000
}

const fn calculate(operation: Operation, one: u64, other: u64) -> u64 {
    match operation {
        Operation::Add => one.wrapping_add(other),
        Operation::Subtract => one.wrapping_sub(other),
        Operation::Xor => one ^ other,
        Operation::And => one & other,
        Operation::Or => one | other,
    }
}

/// `ISS.DFSC` or `IFSC`: translation, access flag or (`true`) permission, with the level.
fn fault_status((fault, is_permission): (Fault, bool)) -> u64 {
    match fault {
        Fault::Translation(level) if is_permission => 0b1100 | u64::from(level),
        Fault::Translation(level) => 0b0100 | u64::from(level),
        Fault::AccessFlag(level) => 0b1000 | u64::from(level),
    }
}
