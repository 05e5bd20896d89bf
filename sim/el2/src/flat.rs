//! What guests must see: a flat memory for each VM, in which a load gives what was stored last.

use crate::driver::{ANSWERS, READ_BEGINS, READ_ENDS, WRITE_ENDS};
use crate::program::{BEGINS, ENDS, RAM, TREE, VCPU, VM};
use machine_host::machine::{Observer, Registers};
use model_addr::Ipa;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

/// One VM.
#[derive(Debug, Default)]
struct Flat {
    /// What the boot loader puts at the start of its memory; all else is zero.
    kernel: Vec<u8>,
    /// Bytes that were stored, by a vCPU or a device.
    stored: BTreeMap<u64, u8>,
    /// Bytes that a vCPU stored while a device could, too: either may be there.
    open: BTreeSet<u64>,
    /// Where a device is writing.
    in_flight: Range<u64>,
    /// What its disk holds.
    disk: Vec<u8>,
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
    /// Flat memories for VMs with these kernels, by number, whose disks begin as `base`, and what is counted.
    pub fn new(kernels: &[Vec<u8>], base: &[u8]) -> (Self, Rc<RefCell<Sums>>) {
        let sums = Rc::new(RefCell::new(Sums::default()));
        let flat = |kernel: &Vec<u8>| Flat {
            kernel: kernel.clone(),
            disk: base.to_vec(),
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
    at < RAM || TREE.contains(&at) || ANSWERS.contains(&at)
}

impl Flat {
    /// Whether either of two bytes may be there.
    fn is_open(&self, at: u64) -> bool {
        self.in_flight.contains(&at) || self.open.contains(&at)
    }

    /// A device has read into memory.
    fn has_read(&mut self, at: u64, sector: u64, bytes: u64) {
        let disk = &self.disk[(sector * 512) as usize..][..bytes as usize];
        for (place, byte) in (at..).zip(disk) {
            if !self.open.contains(&place) {
                self.stored.insert(place, *byte);
            }
        }
        self.in_flight = 0..0;
    }

    /// A device has written what is in memory.
    fn has_written(&mut self, at: u64, sector: u64, bytes: u64) {
        let new: Vec<u8> = (at..at + bytes).map(|place| self.byte(place)).collect();
        self.disk[(sector * 512) as usize..][..bytes as usize].copy_from_slice(&new);
    }

    /// What is wrong with a load that gave `value`.
    fn compare(&self, at: u64, size: u64, value: u64) -> Option<String> {
        if (at..at + size).any(|place| self.is_open(place)) {
            return None;
        }
        let bytes = (at..at + size).rev().map(|place| self.byte(place));
        let expected = bytes.fold(0, |word, byte| word << 8 | u64::from(byte));
        let is_right = expected == value;
        (!is_right)
            .then(|| format!("{size} bytes at {at:#x} are {value:#x}, and must be {expected:#x}"))
    }

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
        let wrong = flat.compare(at.0, size, value);
        self.sums.borrow_mut().loads += 1;
        match wrong {
            None => Ok(()),
            Some(what) => Err(format!(
                "VM {}, vCPU {}, pc {:#x}: {what}",
                vcpu.register(VM),
                vcpu.register(VCPU),
                vcpu.pc
            )),
        }
    }

    fn stored(&mut self, vcpu: &Registers, at: Ipa, size: u64, value: u64) {
        self.sums.borrow_mut().stores += 1;
        let Ok(flat) = self.of(vcpu) else { return };
        for (place, n) in (at.0..).zip(0..size) {
            if flat.in_flight.contains(&place) {
                flat.open.insert(place);
            } else {
                flat.open.remove(&place);
            }
            flat.stored.insert(place, (value >> (8 * n)) as u8);
        }
    }

    fn called(
        &mut self,
        vcpu: &mut Registers,
        number: u16,
        look: &mut dyn FnMut(Ipa) -> Option<u64>,
    ) -> Result<(), String> {
        let [at, sector, bytes, status] = [10, 11, 12, 13].map(|n| vcpu.register(n));
        let flat = self.of(vcpu)?;
        match number {
            READ_ENDS | WRITE_ENDS if status != 0 => {
                return Err(format!(
                    "a request for {bytes} bytes from sector {sector} ends with status {status}"
                ));
            }
            READ_BEGINS => {
                flat.in_flight = at..at + bytes;
                flat.open.retain(|place| !(at..at + bytes).contains(place));
            }
            READ_ENDS => {
                flat.has_read(at, sector, bytes);
                let words = (at..at + bytes).step_by(8);
                let compared = words.filter_map(|at| Some((at, look(Ipa(at))?)));
                let (mut sum, mut wrong) = (0, None);
                for (at, value) in compared {
                    sum += 1;
                    wrong = wrong.or(flat.compare(at, 8, value));
                }
                self.sums.borrow_mut().loads += sum;
                if let Some(what) = wrong {
                    return Err(format!(
                        "VM {} reads {bytes} bytes from sector {sector}: {what}",
                        vcpu.register(VM)
                    ));
                }
            }
            WRITE_ENDS => flat.has_written(at, sector, bytes),
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
