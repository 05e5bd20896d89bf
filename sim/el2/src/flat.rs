//! What guests must see: a flat memory for each VM, in which a load gives what was stored last.

use crate::bundle::{Backing, Vm};
use crate::driver::{ANSWERS, READ_BEGINS, READ_ENDS, RESET, WRITE_BEGINS, WRITE_ENDS};
use crate::network::{self, FRAME_BEGINS, FRAME_COMES, FRAME_GOES};
use crate::program::{BEGINS, COMPARE, ENDS, RAM, TREE, VCPU, VM};
use crate::wire::{Net, Wire};
use machine_host::machine::{Observer, Registers};
use model_addr::Ipa;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

const PAGE: usize = 4096;

/// One VM.
#[derive(Debug, Default)]
struct Flat {
    /// What the boot loader puts at the start of its memory; all else is zero.
    kernel: Vec<u8>,
    /// Pages into which something was stored, by a vCPU or a device.
    pages: Vec<Option<Box<[u8; PAGE]>>>,
    /// Bytes that a vCPU stored while a device could, too: either may be there.
    open: BTreeSet<u64>,
    /// Where a device is writing.
    in_flight: Range<u64>,
    /// What its disk holds, and sectors of which nobody can say.
    disk: Vec<u8>,
    unsure: BTreeSet<u64>,
    /// It keeps what is written, and sectors that are being written.
    lasts: bool,
    writes: Range<u64>,
    /// Requests of its disk may fail.
    may_fail: bool,
}

/// What guests say of a VM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Said {
    /// How often it began.
    pub begun: u32,
    /// Its first vCPU has come to the end of its program since.
    pub is_done: bool,
    /// How often it has.
    pub ends: u32,
    /// Somebody has ended it, or may have.
    pub is_ended: bool,
    /// It is certain that it stands still.
    pub stands_still: bool,
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
    /// Requests of disks that have ended, and those of them that failed.
    pub requests: u64,
    /// See [`Self::requests`].
    pub failed: u64,
    /// Frames that have arrived.
    pub arrived: u64,
    /// By VM.
    pub vms: Vec<Said>,
}

/// All VMs.
#[derive(Debug)]
pub struct Memories {
    vms: Vec<Flat>,
    base: Vec<u8>,
    sums: Rc<RefCell<Sums>>,
    wire: Rc<RefCell<Wire>>,
}

impl Said {
    /// A vCPU of that number has come to its end.
    const fn end(&mut self, vcpu: u64) {
        if vcpu == 0 {
            self.is_done = true;
            self.ends += 1;
        }
    }

    /// The number of its life, if it is certain that it runs.
    pub fn life(self) -> Option<u32> {
        (self.begun > 0 && !self.is_done && !self.is_ended).then_some(self.begun)
    }
}

impl Memories {
    /// Flat memories for these VMs, by number, whose disks begin as `base`, and what is counted.
    /// Requests of disks `may_fail`; else those only that an overlay has no room for.
    pub fn new(
        vms: &[Vm],
        base: &[u8],
        may_fail: bool,
    ) -> (Self, Rc<RefCell<Sums>>, Rc<RefCell<Wire>>) {
        let flat = |vm: &Vm| Flat {
            kernel: vm.kernel.clone(),
            lasts: vm.disk == Backing::Own,
            may_fail: may_fail || vm.overlay_max > 0,
            disk: vec![0; base.len()],
            ..Flat::default()
        };
        let nets: Vec<Option<Net>> = vms.iter().map(|vm| vm.net).collect();
        let vms: Vec<Flat> = vms.iter().map(flat).collect();
        let sums = Rc::new(RefCell::new(Sums {
            vms: vec![Said::default(); vms.len()],
            ..Sums::default()
        }));
        let all = Self {
            vms,
            base: base.to_vec(),
            sums: Rc::clone(&sums),
            wire: Rc::new(RefCell::new(Wire::new(nets))),
        };
        let wire = Rc::clone(&all.wire);
        (all, sums, wire)
    }

    /// A guest makes or sends a frame, or has got one.
    fn frame(
        &mut self,
        vcpu: &mut Registers,
        number: u16,
        look: &mut dyn FnMut(Ipa) -> Option<u64>,
    ) -> Result<(), String> {
        let (vm, at, bytes) = (
            vcpu.register(VM) as usize,
            vcpu.register(10),
            vcpu.register(12),
        );
        let mut wire = self.wire.borrow_mut();
        match number {
            FRAME_BEGINS => vcpu.set_register(14, wire.begin()),
            FRAME_GOES => {
                let flat = self.vms.get(vm).ok_or("no such VM sends")?;
                let frame = (at..at + bytes).map(|place| flat.byte(place)).collect();
                let sums = self.sums.borrow();
                wire.send(vm, frame, |other| sums.vms[other].life());
            }
            _ => {
                let bytes = bytes.saturating_sub(network::HEADER).min(2048);
                let words = (0..bytes.div_ceil(8)).map(|n| look(Ipa(at + network::HEADER + 8 * n)));
                // A page that is not there just now is not looked at.
                let Some(words) = words.collect::<Option<Vec<u64>>>() else {
                    return Ok(());
                };
                let mut frame: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
                frame.truncate(bytes as usize);
                let mut sums = self.sums.borrow_mut();
                wire.got_vm(vm, &frame, |other| sums.vms[other].life())?;
                sums.arrived += 1;
            }
        }
        Ok(())
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
    let is_of_network = network::ANSWERS.iter().any(|range| range.contains(&at));
    at < RAM || TREE.contains(&at) || ANSWERS.contains(&at) || is_of_network
}

impl Flat {
    /// Whether either of two bytes may be there.
    fn is_open(&self, at: u64) -> bool {
        self.in_flight.contains(&at) || self.open.contains(&at)
    }

    /// Its memory and disk are new.
    fn begin(&mut self, base: &[u8]) {
        self.pages.clear();
        self.open.clear();
        self.in_flight = 0..0;
        // What it wrote when it was ended may be there, and may not.
        let writes = std::mem::take(&mut self.writes);
        self.unsure.extend(writes);
        if !self.lasts {
            self.unsure.clear();
            self.disk = base.to_vec();
        }
    }

    /// A device has read into memory.
    fn has_read(&mut self, at: u64, sector: u64, bytes: u64) {
        for (n, place) in (0..bytes).zip(at..) {
            if self.unsure.contains(&(sector + n / 512)) {
                self.open.insert(place);
            }
            if !self.open.contains(&place) {
                self.set(place, self.disk[(sector * 512 + n) as usize]);
            }
        }
        self.in_flight = 0..0;
    }

    /// A device has read into memory, which is compared as far as it is there: how many words were, and what is wrong.
    fn has_read_all(
        &mut self,
        (at, sector, bytes): (u64, u64, u64),
        look: &mut dyn FnMut(Ipa) -> Option<u64>,
    ) -> (u64, Option<String>) {
        self.has_read(at, sector, bytes);
        let words = (at..at + bytes).step_by(8);
        let (mut sum, mut wrong) = (0, None);
        for (at, value) in words.filter_map(|at| Some((at, look(Ipa(at))?))) {
            sum += 1;
            wrong = wrong.or(self.compare(at, 8, value));
        }
        (sum, wrong)
    }

    /// A request has failed, be it halfway.
    fn has_failed(&mut self, is_write: bool, at: u64, sector: u64, bytes: u64) {
        if is_write {
            self.unsure.extend(sector..sector + bytes / 512);
            self.writes = 0..0;
        } else {
            self.open.extend(at..at + bytes);
        }
        self.in_flight = 0..0;
    }

    /// A device has written what is in memory.
    fn has_written(&mut self, at: u64, sector: u64, bytes: u64) {
        self.writes = 0..0;
        self.unsure
            .retain(|other| !(sector..sector + bytes / 512).contains(other));
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
        match self.pages.get((at - RAM) as usize / PAGE) {
            Some(Some(page)) => page[at as usize % PAGE],
            _ => self.initial(at),
        }
    }

    /// What the boot loader, or nobody, puts there.
    fn initial(&self, at: u64) -> u8 {
        let place = (at - RAM) as usize;
        self.kernel.get(place).copied().unwrap_or(0)
    }

    fn set(&mut self, at: u64, byte: u8) {
        let number = (at - RAM) as usize / PAGE;
        if self.pages.len() <= number {
            self.pages.resize_with(number + 1, || None);
        }
        let start = RAM + (number * PAGE) as u64;
        let kernel = &self.kernel;
        let page = self.pages[number].get_or_insert_with(|| {
            let initial = |n: usize| kernel.get((start - RAM) as usize + n).copied();
            Box::new(std::array::from_fn(|n| initial(n).unwrap_or(0)))
        });
        page[at as usize % PAGE] = byte;
    }
}

impl Observer for Memories {
    fn loaded(&mut self, vcpu: &Registers, at: Ipa, size: u64, value: u64) -> Result<(), String> {
        if is_foreign(at.0) {
            return Ok(());
        }
        let flat = self.of(vcpu)?;
        let mut wrong = flat.compare(at.0, size, value);
        if self.sums.borrow().vms[vcpu.register(VM) as usize].stands_still {
            wrong = Some(format!("it loads from {at}, and is paused"));
        }
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
            flat.set(place, (value >> (8 * n)) as u8);
        }
    }

    fn called(
        &mut self,
        vcpu: &mut Registers,
        number: u16,
        look: &mut dyn FnMut(Ipa) -> Option<u64>,
    ) -> Result<(), String> {
        let [at, sector, bytes, status] = [10, 11, 12, 13].map(|n| vcpu.register(n));
        let vm = vcpu.register(VM) as usize;
        if [FRAME_BEGINS, FRAME_GOES, FRAME_COMES].contains(&number) {
            return self.frame(vcpu, number, look);
        }
        if number == COMPARE {
            let [is, must] = [10, 11].map(|n| vcpu.register(n));
            let what = format!(
                "VM {vm}, vCPU {}, pc {:#x}: a register holds {is:#x}, and must hold {must:#x}",
                vcpu.register(VCPU),
                vcpu.pc
            );
            return (is == must).then_some(()).ok_or(what);
        }
        if number == BEGINS {
            let base = self.base.clone();
            self.of(vcpu)?.begin(&base);
            let said = &mut self.sums.borrow_mut().vms[vm];
            (said.begun, said.is_done) = (said.begun + 1, false);
            return Ok(());
        }
        if [READ_ENDS, WRITE_ENDS].contains(&number) {
            self.sums.borrow_mut().requests += 1;
        }
        let flat = self.of(vcpu)?;
        match number {
            READ_ENDS | WRITE_ENDS if status != 0 && flat.may_fail => {
                flat.has_failed(number == WRITE_ENDS, at, sector, bytes);
                self.sums.borrow_mut().failed += 1;
            }
            READ_ENDS | WRITE_ENDS if status != 0 => {
                return Err(format!(
                    "a request for {bytes} bytes from sector {sector} ends with status {status}"
                ));
            }
            WRITE_BEGINS => flat.writes = sector..sector + bytes / 512,
            // What it has read by then is there, and what not, not.
            RESET => {
                let read = std::mem::take(&mut flat.in_flight);
                flat.open.extend(read);
            }
            READ_BEGINS => {
                flat.in_flight = at..at + bytes;
                flat.open.retain(|place| !(at..at + bytes).contains(place));
            }
            READ_ENDS => {
                let (sum, wrong) = flat.has_read_all((at, sector, bytes), look);
                self.sums.borrow_mut().loads += sum;
                if let Some(what) = wrong {
                    return Err(format!(
                        "VM {vm} reads {bytes} bytes from sector {sector}: {what}"
                    ));
                }
            }
            WRITE_ENDS => flat.has_written(at, sector, bytes),
            ENDS => {
                let mut sums = self.sums.borrow_mut();
                sums.done += 1;
                sums.vms[vm].end(vcpu.register(VCPU));
            }
            other => return Err(format!("a guest asks {other}, which nobody knows")),
        }
        Ok(())
    }
}
