//! A VM that runs, but for its devices: what they, its vCPUs and the economy of memory know of it.

pub mod layout;
pub mod paging;
pub mod ram;
pub mod sessions;
pub mod spanning;
pub mod tally;
pub mod terminal;

use crate::cluster::calls::Span;
use crate::machine::due;
use crate::memory::{AddressSpace, Dismantling, VMS_MAX, Vmid};
use crate::vcpu::{Vcpu, attention};
use abi::{Text, control::VM_COUNTS, state};
use alloc::boxed::Box;
use arch::timer;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{NodeId, VmId};
use model_entitlement::Debtor;
use model_vgic::{Distributor, VcpuSet};
pub use paging::{Coming, Paging};
pub use ram::DeviceView;
use tally::Tally;
use terminal::Terminal;

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

/// A running VM without its devices.
pub struct Guest {
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
    /// Its part on this host, where it spans several.
    pub span: Option<Box<Span>>,
    /// Its shared interrupts.
    pub distributor: SpinLock<Distributor>,
    /// vCPUs that published their list registers' state for others to read: bit n is vCPU n.
    fresh: AtomicU64,
    /// What it writes to its consoles.
    pub terminal: Terminal,
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
    /// Devices that have work that was put off: bit n, the one of window n.
    put_off: AtomicU32,
    paused: AtomicBool,
    ending: AtomicBool,
    end: SpinLock<Option<End>>,
}

/// VMs that have begun to end, for whoever takes them apart.
static ENDED: SpinLock<heapless::Vec<VmId, VMS_MAX>> =
    SpinLock::new(Rank::Vm, heapless::Vec::new());
/// Disks of paused VMs may have something to go on with.
static UNSETTLED: AtomicBool = AtomicBool::new(false);

/// A VM has begun to end.
fn leave(id: VmId) {
    // Each VM has one instance at a time, which ends once.
    let _ = ENDED.lock().push(id);
    due::request();
}

/// A VM that has begun to end since this was asked last.
pub fn take_ended() -> Option<VmId> {
    let mut ended = ENDED.lock();
    (!ended.is_empty()).then(|| ended.remove(0))
}

/// A disk of a paused VM may have something to go on with.
pub fn ask_to_settle() {
    UNSETTLED.store(true, Ordering::SeqCst);
    due::request();
}

/// Whether that was asked since [`take_unsettled`].
pub fn is_unsettled() -> bool {
    UNSETTLED.load(Ordering::Relaxed)
}

/// Whether disks of paused VMs may have something to go on with: who asks sees to it.
pub fn take_unsettled() -> bool {
    UNSETTLED.swap(false, Ordering::SeqCst)
}

impl Guest {
    /// A VM about to run, its time beginning now; `vmid` is what `space` was made with.
    pub fn new(
        (id, home, name): (VmId, NodeId, Text<32>),
        (space, vmid): (Box<AddressSpace>, Vmid),
        vcpus: Box<[Vcpu]>,
        paging: Paging,
        span: Option<Box<Span>>,
    ) -> Self {
        let mut distributor = Distributor::new(layout::SPIS, vcpus.len());
        if let Some(span) = &span {
            span.begin_interrupts(&mut distributor, &vcpus);
        }
        Self {
            id,
            home,
            name,
            space: *space,
            vmid,
            vcpus,
            span,
            distributor: SpinLock::new(Rank::Distributor, distributor),
            fresh: AtomicU64::new(0),
            terminal: Terminal::new(name),
            counts: [const { AtomicU64::new(0) }; VM_COUNTS],
            paging,
            numa: Tally::default(),
            time_offset: AtomicU64::new(timer::now()),
            paused_at: AtomicU64::new(0),
            has_untold: AtomicBool::new(false),
            put_off: AtomicU32::new(0),
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

    /// A device has more to do than one go allows: vCPU 0 comes back to it, or housekeeping while that stands still.
    pub fn put_off_device_work(&self) {
        self.put_off_work_of(u32::MAX);
    }

    /// The same, of the devices of these windows, by [`Self::take_put_off`]'s bits.
    pub fn put_off_work_of(&self, windows: u32) {
        self.put_off.fetch_or(windows, Ordering::SeqCst);
        self.call_vcpus(VcpuSet::only(0), attention::DEVICE);
        if self.is_paused() {
            ask_to_settle();
        }
    }

    /// The devices that have such work, which is somebody's now: bit n, the one of window n.
    pub fn take_put_off(&self) -> u32 {
        self.put_off.swap(0, Ordering::SeqCst)
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
        ask_to_settle();
    }

    /// When its time began, and when it was paused, in counts.
    pub fn times(&self) -> [u64; 2] {
        [&self.time_offset, &self.paused_at].map(|time| time.load(Ordering::Relaxed))
    }

    /// It was paused before this image came: its time and its debts are as a record says.
    pub fn stand_still_as(&self, record: &state::Vm) {
        self.time_offset
            .store(record.time_offset, Ordering::Relaxed);
        self.paused_at.store(record.paused_at, Ordering::Relaxed);
        if let [1, owed] = record.debt {
            *self.paging.debtor.lock() = Debtor::paused(owed);
        }
        let complaint = Some(record.complaint);
        *self.paging.complaint.lock() = complaint.filter(|complaint| !complaint.is_empty());
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
            leave(self.id);
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
