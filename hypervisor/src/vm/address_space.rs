//! A VM's memory, wired to the metal. What a fault does is decided in [`model_address_space`].

use crate::frames::{Metal, Tables};
use alloc::boxed::Box;
use machine_locks::{Rank, SpinGuard, SpinLock};
use model_addr::{FRAME_SIZE, Ipa, IpaRange, Mfn, NodeId, VmId};
use model_address_space::{GuestRam, Maps, SOURCES};

pub use model_address_space::{Filled, Source};

/// Bytes of the bundle, or made for the VM.
pub enum Bytes {
    /// They live as long as the machine.
    Static(&'static [u8]),
    /// They live as long as the VM.
    Owned(Box<[u8]>),
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Static(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// A VM's memory.
pub struct AddressSpace {
    ram: GuestRam<Bytes>,
    vttbr: u64,
    begin: (Ipa, Ipa),
    maps: SpinLock<Maps<Tables>>,
}

impl AddressSpace {
    /// The empty memory `range` of a VM, with `sources` in it, its tables near `node`; `begin` is
    /// its first instruction and its device tree.
    /// `None` where there is no memory for the first tables.
    pub fn new(
        vm: VmId,
        vmid: u16,
        range: IpaRange,
        sources: [Option<Source<Bytes>>; SOURCES],
        begin: (Ipa, Ipa),
        node: NodeId,
    ) -> Option<Self> {
        let maps = Maps::new(Tables::new(node, vmid), range)?;
        let vttbr = u64::from(vmid) << 48 | maps.root().address().0;
        let ram = GuestRam::new(vm, range, sources);
        Some(Self {
            ram,
            vttbr,
            begin,
            maps: SpinLock::new(Rank::VmMemory, maps),
        })
    }

    /// Where the guest begins: its first instruction, and its device tree.
    pub fn begin(&self) -> (Ipa, Ipa) {
        self.begin
    }

    /// `VTTBR_EL2`.
    pub fn vttbr(&self) -> u64 {
        self.vttbr
    }

    /// Whether the guest has memory at `ipa`.
    #[inline]
    pub fn contains(&self, ipa: Ipa) -> bool {
        self.ram.range.contains(ipa)
    }

    /// Whether all `len` bytes from `ipa` are memory.
    pub fn contains_run(&self, ipa: Ipa, len: u64) -> bool {
        self.ram.range.contains_run(ipa, len)
    }

    /// Bytes of frames behind the guest's memory, and of tables.
    pub fn usage(&self) -> (u64, u64) {
        let maps = self.maps.lock();
        (
            maps.present() * FRAME_SIZE,
            maps.tables().count() * FRAME_SIZE,
        )
    }

    /// Puts a frame behind `ipa` and lets the hardware see it, on behalf of a vCPU on `node`.
    pub fn fill(&self, ipa: Ipa, node: NodeId) -> Filled {
        self.ram.fill(ipa, node, &Metal, &self.lock())
    }

    /// The frame behind `ipa`, for a device or EL2 itself; filled where it was absent.
    pub fn frame_at(&self, ipa: Ipa, node: NodeId) -> Result<Mfn, Filled> {
        self.ram.frame_at(ipa, node, &Metal, &self.lock())
    }

    fn lock<'a>(&'a self) -> impl Fn() -> SpinGuard<'a, Maps<Tables>> {
        || self.maps.lock()
    }

    /// Begins the end: no vCPU of the VM runs or will run again.
    pub fn dismantle(self) -> Dismantling {
        Dismantling(self.maps.into_inner().dismantle(self.ram.vm))
    }
}

/// A VM's memory on its way back to the pools.
pub struct Dismantling(model_address_space::Dismantling<Tables>);

impl Dismantling {
    /// Gives back some more, looking at `budget` entries; `true` when all is back.
    pub fn step(&mut self, budget: usize) -> bool {
        self.0.step(&Metal, budget)
    }
}
