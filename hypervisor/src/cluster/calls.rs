//! This host's part of a VM that spans hosts, beside its pages. [`model_span`] decides; [`crate::cluster`] sends, and keeps
//! what comes for housekeeping.

use crate::cluster::span;
use crate::machine::{self, due};
use crate::vcpu::Vcpu;
use abi::bundle::VmRecord;
use abi::control::code;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use machine_locks::{Once, Rank, SpinLock};
use model_addr::VmId;
use model_control::Refusal;
use model_guest_image::HostShare;
use model_id_registers::GuestIdRegisters;
use model_span::{Layout, Session};
use model_vgic::{Distributor, VcpuSet};
use xxhash_rust::xxh64::xxh64;
use zerocopy::IntoBytes;

/// The longest that a peer's clock may be ahead.
pub const AHEAD_MAX_NS: u64 = 10_000_000_000;
/// `GICD_CTLR` with all groups let through.
const ALL_GROUPS: u64 = 3;

/// This host's part of a VM.
pub struct Span {
    /// What is under way.
    pub session: SpinLock<Session>,
    /// The life that the session is in, for messages about pages.
    pub life: AtomicU32,
    /// Who has what.
    pub layout: Layout,
    /// What it is shown of its CPUs, from its start on.
    pub ids: Once<GuestIdRegisters>,
    host: u8,
    /// This host's vCPUs, a bit each.
    own: AtomicU64,
    /// A vCPU is to leave this host.
    pub is_left: AtomicBool,
}

/// The VM that spans hosts: messages name none, so there is one at a time.
static CURRENT: SpinLock<Option<VmId>> = SpinLock::new(Rank::Vm, None);
/// The membership has grown since a VM last announced itself.
static GROWN: AtomicBool = AtomicBool::new(false);

/// Notes that the membership has grown.
pub fn grown() {
    GROWN.store(true, Ordering::Relaxed);
}

fn layout(record: &VmRecord) -> Result<Layout, Refusal> {
    let layout = Layout::new(record.hosts, record.vcpus as u8, record.memory);
    layout.map_err(|unfit| Refusal::new(code::IMPOSSIBLE, 0, format_args!("{unfit}")))
}

/// Returns the shares of hosts as the guest's tree has them; none of a VM that is this machine's alone.
pub fn shares(record: &VmRecord) -> heapless::Vec<HostShare, { model_span::HOSTS_MAX }> {
    let layout = layout(record).ok().filter(|_| record.hosts != 0);
    let shares = layout.iter().flat_map(|layout| {
        layout.hosts().map(|host| {
            let memory = layout.memory_of(host);
            HostShare {
                vcpus: layout.vcpus_of(host).len() as u16,
                memory: memory.end - memory.start,
            }
        })
    });
    shares.collect()
}

impl Span {
    /// Makes this host's part of a VM, if it spans hosts, and takes what its memory needs.
    ///
    /// # Errors
    /// Why the VM cannot span these hosts.
    pub fn of(record: &VmRecord) -> Result<Option<Box<Self>>, Refusal> {
        if record.hosts == 0 {
            return Ok(None);
        }
        let layout = layout(record)?;
        let host = span::reserve(&layout, record)?;
        let mut shape = xxh64(record.name.as_bytes(), record.memory);
        shape ^= u64::from(record.switched) << 48
            | u64::from(record.vcpus) << 16
            | u64::from(record.hosts);
        let session = Session::new(layout, host, shape, machine::counts(AHEAD_MAX_NS));
        Ok(Some(Box::new(Self {
            session: SpinLock::new(Rank::Device, session),
            life: AtomicU32::new(0),
            layout,
            ids: Once::new(),
            host,
            own: AtomicU64::new(layout.bits_of(host)),
            is_left: AtomicBool::new(false),
        })))
    }

    /// Returns whether this host has the devices.
    pub fn is_first(&self) -> bool {
        self.host == self.layout.first()
    }

    /// Returns whether another host has that vCPU.
    pub fn is_elsewhere(&self, vcpu: usize) -> bool {
        self.own.load(Ordering::SeqCst) >> vcpu & 1 == 0
    }

    /// This host has that vCPU, or has it no more.
    pub fn seat(&self, vcpu: u16, is_here: bool) {
        if is_here {
            self.own.fetch_or(1 << vcpu, Ordering::SeqCst);
        } else {
            self.own.fetch_and(!(1 << vcpu), Ordering::SeqCst);
        }
    }

    /// Lets SGIs and PPIs of all groups through, where the guest's word about that goes to another host; SPIs for vCPUs of
    /// other hosts go to vCPU 0.
    pub fn begin_interrupts(&self, distributor: &mut Distributor, vcpus: &[Vcpu]) {
        distributor.keep_at(VcpuSet(self.layout.bits_of(self.layout.first())));
        if !self.is_first() {
            let effects = distributor.write(0, 4, ALL_GROUPS);
            for (vcpu, groups) in vcpus.iter().zip(core::iter::repeat(effects.groups)) {
                groups.map(|groups| vcpu.redistributor.lock().set_groups(groups));
            }
        }
    }
}

/// A VM that spans hosts is about to run: it waits until all have it.
pub fn begin(vm: VmId) {
    *CURRENT.lock() = Some(vm);
    grown();
    due::request();
}

/// Returns the VM that spans hosts, which may have ended.
pub fn current() -> Option<VmId> {
    *CURRENT.lock()
}

/// Returns whether the membership has grown, or such a VM has begun, since this was asked.
pub fn has_grown() -> bool {
    GROWN.swap(false, Ordering::Relaxed)
}
