//! A VM that runs: from its start to its end or reset. A VM that is started again is a new one.

use crate::devices::balloon::Balloon;
use crate::devices::block::Block;
use crate::devices::clock::Clock;
use crate::devices::power_button::PowerButton;
use crate::devices::uart::Uart;
use crate::devices::virtio::{RegisterAccess, Slot};
use crate::economy::paging::{self, Paging};
use crate::machine::stretch::{self, Kind};
use crate::memory::address_space::{AddressSpace, Dismantling};
use crate::memory::vmids::Vmid;
use crate::placement::Tally;
use crate::vcpu::{Vcpu, attention};
use crate::vms::guest_memory::DeviceView;
use crate::vms::layout;
use abi::Text;
use abi::control::VM_COUNTS;
use alloc::boxed::Box;
use alloc::vec::Vec;
use arch::timer;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{NodeId, VmId};
use model_vgic::{Distributor, VcpuSet};

/// Why a VM stops running.
#[derive(Clone, Copy, Debug)]
pub enum End {
    /// It powered itself off.
    PowerOff,
    /// It asked for a reset, or somebody pressed the button.
    Reset,
    /// Somebody ended it.
    Killed,
    /// It did what no guest may do, or the machine could not go on with it.
    Failed(Text<96>),
}

/// A running VM.
pub struct Instance {
    /// Its slot and which start of it this is.
    pub id: VmId,
    /// The node where its memory begins.
    pub home: NodeId,
    name: Text<32>,
    /// Its memory.
    pub space: AddressSpace,
    /// What tags its entries in TLBs.
    vmid: Vmid,
    /// Its vCPUs.
    pub vcpus: Box<[Vcpu]>,
    /// Its shared interrupts.
    pub distributor: SpinLock<Distributor>,
    /// vCPUs that published their list registers' state for others to read: bit n is vCPU n.
    fresh: AtomicU64,
    /// Its PL011 and console.
    pub uart: Uart,
    /// Its power button.
    pub power_button: PowerButton,
    /// Its clock of the wall.
    pub clock: Clock,
    /// Its virtio devices, in the order of their windows.
    pub virtio: Vec<Slot>,
    /// What it and its devices did, by [`abi::control::count`].
    counts: [AtomicU64; VM_COUNTS],
    /// What it has on disks, and owes.
    pub paging: Paging,
    /// Where its pages went.
    pub numa: Tally,
    /// Virtual time = physical time - this, in counts.
    time_offset: AtomicU64,
    /// When it was paused.
    paused_at: AtomicU64,
    /// A device has not told its driver yet what it has done.
    pub has_untold: AtomicBool,
    /// The first of its devices that goes on with work that was put off.
    next_device: AtomicU8,
    paused: AtomicBool,
    ending: AtomicBool,
    end: SpinLock<Option<End>>,
}

/// What a new instance is made of.
pub struct Parts {
    /// Its slot and which start of it this is.
    pub id: VmId,
    /// The node where its memory begins.
    pub home: NodeId,
    /// Its name.
    pub name: Text<32>,
    /// Its memory.
    pub space: AddressSpace,
    /// The VMID that `space` was made with.
    pub vmid: Vmid,
    /// Its vCPUs.
    pub vcpus: Box<[Vcpu]>,
    /// Its virtio devices.
    pub virtio: Vec<Slot>,
    /// What it may have on disks.
    pub paging: Paging,
}

impl Instance {
    /// A VM about to run, its time beginning now.
    pub fn new(parts: Parts) -> Self {
        stretch::look(Kind::Control);
        let distributor = Distributor::new(layout::SPIS, parts.vcpus.len());
        Self {
            id: parts.id,
            home: parts.home,
            name: parts.name,
            space: parts.space,
            vmid: parts.vmid,
            vcpus: parts.vcpus,
            distributor: SpinLock::new(Rank::Distributor, distributor),
            fresh: AtomicU64::new(0),
            uart: Uart::new(parts.name),
            power_button: PowerButton::new(),
            clock: Clock::new(),
            virtio: parts.virtio,
            counts: [const { AtomicU64::new(0) }; VM_COUNTS],
            paging: parts.paging,
            numa: Tally::default(),
            time_offset: AtomicU64::new(timer::now()),
            paused_at: AtomicU64::new(0),
            has_untold: AtomicBool::new(false),
            next_device: AtomicU8::new(0),
            paused: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            end: SpinLock::new(Rank::Vm, None),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.name.as_str().unwrap_or("?")
    }

    /// Counts something ([`abi::control::count`]); how much of it there was so far.
    #[inline]
    pub fn count(&self, what: usize, amount: u64) -> u64 {
        let counter = self.counts.get(what);
        counter.map_or(0, |it| it.fetch_add(amount, Ordering::Relaxed) + amount)
    }

    /// What was counted so far.
    pub fn counts(&self) -> [u64; VM_COUNTS] {
        self.counts.each_ref().map(|it| it.load(Ordering::Relaxed))
    }

    /// `CNTVOFF_EL2`.
    #[inline]
    pub fn time_offset(&self) -> u64 {
        self.time_offset.load(Ordering::Relaxed)
    }

    /// Its memory, for devices.
    pub fn memory(&self) -> DeviceView<'_> {
        DeviceView {
            space: &self.space,
            node: self.home,
        }
    }

    /// Asks these vCPUs to do what `bits` of [`attention`] say.
    #[inline]
    pub fn call_vcpus(&self, vcpus: VcpuSet, bits: u32) {
        if vcpus.is_empty() {
            return;
        }
        for vcpu in vcpus.iter().filter_map(|index| self.vcpus.get(index)) {
            vcpu.call(bits);
        }
    }

    /// Sets the level of a shared interrupt line.
    pub fn set_line(&self, intid: u32, high: bool) {
        let vcpus = self.distributor.lock().set_level(intid, high);
        self.call_vcpus(vcpus, attention::DELIVER);
    }

    /// vCPU `index` has published what its list registers say.
    pub fn note_published(&self, index: u16) {
        self.fresh
            .fetch_or(VcpuSet::only(index.into()).0, Ordering::SeqCst);
    }

    /// Those of `vcpus` that have published since this was last asked, and those on no CPU, which
    /// did it when they left.
    pub fn take_fresh(&self, vcpus: VcpuSet) -> VcpuSet {
        let published = VcpuSet(self.fresh.fetch_and(!vcpus.0, Ordering::SeqCst));
        let off = |index: &usize| {
            self.vcpus
                .get(*index)
                .is_none_or(|vcpu| vcpu.running_on().is_none())
        };
        vcpus
            .iter()
            .filter(off)
            .fold(published, |set, index| set.or(VcpuSet::only(index)))
    }

    fn balloon(&self) -> Option<(usize, &Balloon)> {
        let mut slots = self.virtio.iter().enumerate();
        slots.find_map(|(n, slot)| match slot {
            Slot::Balloon(balloon) => Some((n, balloon)),
            _ => None,
        })
    }

    /// Whether its guest has a driver for its balloon.
    pub fn has_balloon_driver(&self) -> bool {
        self.balloon()
            .is_some_and(|(_, balloon)| balloon.has_driver())
    }

    /// How many of `max` guest frames its guest was asked to keep to; `None` where there is no driver
    /// to ask.
    pub fn target(&self, max: u64) -> Option<u64> {
        let (_, balloon) = self.balloon()?;
        balloon
            .has_driver()
            .then(|| max.saturating_sub(balloon.target().into()))
    }

    /// Asks the guest to keep to `frames` of `max` guest frames; `false` where there is nobody to ask.
    pub fn set_target(&self, frames: u64, max: u64) -> bool {
        let Some((n, balloon)) = self.balloon().filter(|(_, balloon)| balloon.has_driver()) else {
            return false;
        };
        balloon.set_target(self, n, max.saturating_sub(frames) as u32);
        true
    }

    /// What the guest reports free from now on stays bound for so many milliseconds.
    pub fn set_hold(&self, ms: u16) {
        if let Some((_, balloon)) = self.balloon() {
            balloon.set_hold(ms);
        }
    }

    /// Guest frames that the guest gave to its balloon, and that it reported free.
    pub fn given_back(&self) -> [u64; 2] {
        self.balloon().map_or([0; 2], |(_, balloon)| {
            let counts = balloon.counts();
            [counts.inflated, counts.reported]
        })
    }

    /// Its disks.
    pub fn disks(&self) -> impl Iterator<Item = &Block> {
        self.virtio.iter().filter_map(|slot| match slot {
            Slot::Block(block) => Some(block),
            _ => None,
        })
    }

    /// Puts off device work that waited for its time, where that has come.
    pub fn wake_devices(&self) {
        let is_due = |slot: &Slot| match slot {
            Slot::Block(block) => block.is_due(),
            Slot::Net(net) => net.is_due(),
            Slot::Balloon(balloon) => balloon.is_due(),
            Slot::Console(_) | Slot::Rng(_) | Slot::Control(_) => false,
        };
        if self.virtio.iter().any(is_due) {
            self.put_off_device_work();
        }
    }

    /// A vCPU waits or leaves its CPU: devices do what was left for then, and tell the drivers.
    #[inline]
    pub fn tell_drivers(&self) {
        if self.has_untold.load(Ordering::Relaxed) {
            self.tell();
        }
    }

    #[cold]
    fn tell(&self) {
        self.has_untold.store(false, Ordering::Relaxed);
        for (n, slot) in self.virtio.iter().enumerate() {
            if let Slot::Net(net) = slot {
                net.send(self, n);
            }
        }
    }

    /// Goes on with device work that was put off, from the device on that was left out the last time.
    pub fn continue_devices(&self) {
        let first = usize::from(self.next_device.load(Ordering::Relaxed));
        let (later, sooner) = self.virtio.split_at(first.min(self.virtio.len()));
        let in_turn = (first..).zip(sooner).chain((0..).zip(later));
        for (at, (n, slot)) in in_turn.enumerate() {
            if at > 0 && stretch::is_long() {
                self.next_device.store(n as u8, Ordering::Relaxed);
                self.put_off_device_work();
                break;
            }
            slot.proceed(self, n);
        }
        paging::bring_wanted(self);
    }

    /// A device has more to do than one go allows: vCPU 0 comes back to it, or housekeeping while that stands still.
    pub fn put_off_device_work(&self) {
        self.call_vcpus(VcpuSet::only(0), attention::DEVICE);
        if self.is_paused() {
            crate::vms::table::ask_to_settle();
        }
    }

    /// An access to the virtio windows at `offset`; `None` where there is no device.
    pub fn virtio_access(&self, offset: u64, size: usize, value: Option<u64>) -> Option<u64> {
        let window = model_guest_image::map::VIRTIO_SIZE;
        let n = (offset / window) as usize;
        let slot = self.virtio.get(n)?;
        if value.is_some() {
            stretch::begin_access();
        }
        let access = RegisterAccess {
            offset: offset % window,
            size,
            value,
        };
        let read = slot.access(self, n, access);
        paging::bring_wanted(self);
        Some(read)
    }

    /// Whether its vCPUs must not run now.
    #[inline]
    pub fn must_stand_still(&self) -> bool {
        self.paused.load(Ordering::SeqCst) || self.ending.load(Ordering::SeqCst)
    }

    /// Whether somebody paused it.
    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// Whether it is on its way out.
    pub fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Stops its vCPUs where they are.
    pub fn pause(&self) {
        if !self.is_paused() {
            self.paused_at.store(timer::now(), Ordering::Relaxed);
        }
        self.paused.store(true, Ordering::SeqCst);
        self.call_vcpus(VcpuSet::first(self.vcpus.len()), attention::STAND_STILL);
        crate::vms::table::ask_to_settle();
    }

    /// When its time began, and when it was paused, in counts.
    pub fn times(&self) -> [u64; 2] {
        [&self.time_offset, &self.paused_at].map(|time| time.load(Ordering::Relaxed))
    }

    /// It was paused before this image came: at that count, with its time as it was.
    pub fn stand_still_since(&self, time_offset: u64, paused_at: u64) {
        self.time_offset.store(time_offset, Ordering::Relaxed);
        self.paused_at.store(paused_at, Ordering::Relaxed);
        self.paused.store(true, Ordering::SeqCst);
    }

    /// Lets its vCPUs go on; its time has passed meanwhile, or it has not.
    pub fn resume(&self, time_stood_still: bool) {
        if time_stood_still {
            let passed = timer::now() - self.paused_at.load(Ordering::Relaxed);
            self.time_offset.fetch_add(passed, Ordering::Relaxed);
        }
        self.paging.forgive();
        self.paused.store(false, Ordering::SeqCst);
        for vcpu in &self.vcpus {
            crate::vcpu::sched::wake(vcpu.entity);
        }
        // A device may have waited for a page that could not be read.
        self.put_off_device_work();
    }

    /// Presses its power button; `false` where the guest does not listen to it.
    pub fn press_power_button(&self) -> bool {
        self.power_button.press(self)
    }

    /// Ends it because of something that went wrong.
    pub fn end(&self, reason: fmt::Arguments<'_>) {
        let mut text = heapless::String::<160>::new();
        let _ = fmt::Write::write_fmt(&mut text, reason);
        self.finish(End::Failed(Text::cut(&text)));
    }

    /// Ends it; the first reason counts.
    pub fn finish(&self, end: End) {
        self.end.lock().get_or_insert(end);
        if !self.ending.swap(true, Ordering::SeqCst) {
            crate::vms::reaper::begin(self.id);
        }
        self.call_vcpus(VcpuSet::first(self.vcpus.len()), attention::STAND_STILL);
    }

    /// Why it ended.
    pub fn reason(&self) -> Option<End> {
        *self.end.lock()
    }

    /// Takes it apart, once nothing runs or refers to it.
    pub fn dismantle(self) -> Dismantling {
        let space = self.space.dismantle();
        // No TLB has an entry of it any more.
        drop(self.vmid);
        space
    }
}
