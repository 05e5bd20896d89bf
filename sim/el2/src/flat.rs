//! What guests must see: a flat memory for each VM, in which a load gives what was stored last.

use crate::program::{BEGINS, ENDS, RAM, TREE, VCPU, VM};
use machine_host::machine::{Observer, Registers};
use model_addr::Ipa;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// One VM.
#[derive(Debug, Default)]
struct Flat {
    /// What the boot loader puts at the start of its memory; all else is zero.
    kernel: Vec<u8>,
    /// Bytes that were stored.
    stored: BTreeMap<u64, u8>,
    /// How often it began, and how many of its vCPUs are done.
    begun: u64,
    done: u64,
}

/// What has happened, as far as guests say.
#[derive(Debug, Default)]
pub struct Sums {
    /// Loads that were compared.
    pub loads: u64,
    /// Stores.
    pub stores: u64,
    /// vCPUs that have come to the end of their program.
    pub done: u64,
}

/// All VMs.
#[derive(Debug)]
pub struct Memories {
    vms: Vec<Flat>,
    sums: Rc<RefCell<Sums>>,
}

impl Memories {
    /// Flat memories for VMs with these kernels, by number, and what is counted.
    pub fn new(kernels: &[Vec<u8>]) -> (Self, Rc<RefCell<Sums>>) {
        let sums = Rc::new(RefCell::new(Sums::default()));
        let flat = |kernel: &Vec<u8>| Flat {
            kernel: kernel.clone(),
            ..Flat::default()
        };
        let vms = kernels.iter().map(flat).collect();
        let all = Self {
            vms,
            sums: Rc::clone(&sums),
        };
        (all, sums)
    }

    fn of(&mut self, vcpu: &Registers) -> Result<&mut Flat, String> {
        let number = vcpu.register(VM);
        let place = self.vms.get_mut(number as usize);
        place.ok_or_else(|| {
            format!(
                "a vCPU at {:#x} says that it is of VM {number}, which there is not",
                vcpu.pc
            )
        })
    }
}

/// Whether the hypervisor writes there of its own accord, or a device is there.
fn is_foreign(at: u64) -> bool {
    at < RAM || TREE.contains(&at)
}

impl Flat {
    fn byte(&self, at: u64) -> u8 {
        let place = (at - RAM) as usize;
        let initial = self.kernel.get(place).copied().unwrap_or(0);
        self.stored.get(&at).copied().unwrap_or(initial)
    }
}

impl Observer for Memories {
    fn loaded(&mut self, vcpu: &Registers, at: Ipa, size: u64, value: u64) -> Result<(), String> {
        if is_foreign(at.0) {
            return Ok(());
        }
        let flat = self.of(vcpu)?;
        let bytes = (0..size).rev().map(|n| flat.byte(at.0 + n));
        let expected = bytes.fold(0, |word, byte| word << 8 | u64::from(byte));
        self.sums.borrow_mut().loads += 1;
        if expected == value {
            return Ok(());
        }
        Err(format!(
            "VM {}, vCPU {}, pc {:#x}: {size} bytes at {at} are {value:#x}, and must be {expected:#x}",
            vcpu.register(VM),
            vcpu.register(VCPU),
            vcpu.pc
        ))
    }

    fn stored(&mut self, vcpu: &Registers, at: Ipa, size: u64, value: u64) {
        self.sums.borrow_mut().stores += 1;
        let Ok(flat) = self.of(vcpu) else { return };
        for n in 0..size {
            flat.stored.insert(at.0 + n, (value >> (8 * n)) as u8);
        }
    }

    fn called(&mut self, vcpu: &mut Registers, number: u16) -> Result<(), String> {
        let flat = self.of(vcpu)?;
        match number {
            BEGINS => {
                flat.stored.clear();
                flat.begun += 1;
            }
            ENDS => {
                flat.done += 1;
                self.sums.borrow_mut().done += 1;
            }
            other => return Err(format!("a guest asks {other}, which nobody knows")),
        }
        Ok(())
    }
}
