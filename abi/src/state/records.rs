//! The records.

use crate::Text;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident, $bytes:literal { $($(#[$of:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name {
            $($(#[$of])* pub $field: $type,)*
        }

        impl $name {
            /// All of it zero.
            pub const ZERO: Self = zerocopy::transmute!([0_u8; $bytes]);
        }

        impl Default for $name {
            fn default() -> Self {
                Self::ZERO
            }
        }
    )*};
}

records! {
    /// What all begins with.
    Header, 32 {
        /// [`super::MAGIC`].
        magic: [u8; 8],
        /// [`super::VERSION`] of whoever wrote it.
        version: u32,
        /// Zero.
        reserved: u32,
        /// Bytes in all, these included.
        bytes: u64,
        /// [`crate::upgrade::checksum`] of the bytes behind this, and their number, by exclusive or.
        checksum: u64,
    }
    /// What a VM's state begins with where it is bytes.
    Preamble, 16 {
        /// [`super::SAVED`].
        magic: [u8; 8],
        /// [`super::VERSION`] of whoever wrote it.
        version: u32,
        /// Zero.
        reserved: u32,
    }
    /// What each item begins with there.
    Section, 24 {
        /// [`crate::upgrade::checksum`] of what is behind this, the item included.
        checksum: u64,
        /// One of [`super::kind`].
        kind: u32,
        /// Bytes of the item.
        length: u32,
        /// How many are before it.
        number: u64,
    }
    /// The machine on which a VM was saved, and what the VM needs of any other.
    Origin, 40 {
        /// Counts per second.
        frequency: u64,
        /// The physical count.
        count: u64,
        /// [`crate::upgrade::checksum`] of the feature registers that guests read there.
        features: u64,
        /// [`crate::upgrade::checksum`] of its kernel, and of its initial RAM disk; zero: it has none.
        images: [u64; 2],
    }
    /// A run of memory: its first byte, and how many.
    Range, 16 {
        /// The first.
        start: u64,
        /// How many.
        bytes: u64,
    }
    /// What is made of lent memory.
    Machine, 64 {
        /// Where the bundle lies in it; no bytes: there is none.
        bundle: Range,
        /// Where the area of disks lies that OS-0 serves, and the interrupt that tells it; zero: none.
        served: [u64; 2],
        /// The same of its network device; and the slots that are next to it, and from it.
        uplink: [u64; 4],
    }
    /// A VM. Its description follows, and what it ended with or, where it is parked, all of it.
    Vm, 168 {
        /// One of [`super::life`].
        life: u32,
        /// How often it was started.
        starts: u32,
        /// The physical count at which its virtual one was zero (`CNTVOFF_EL2`).
        time_offset: u64,
        /// The physical count at which it was paused.
        paused_at: u64,
        /// Where its kernel, its device tree and its initial RAM disk lay at first; zero: none.
        sources: [u64; 3],
        /// `GICD_CTLR.EnableGrp0` and `EnableGrp1`.
        groups: u32,
        /// How many of its vCPUs follow.
        vcpus: u32,
        /// 1: it is paused for what it owes; and pages that it owes.
        debt: [u64; 2],
        /// Why it was paused, where the hypervisor did it.
        complaint: Text<96>,
    }
    /// Guest frames, or blocks of a disk, that follow each other, and so what is behind them.
    Run, 24 {
        /// The first guest frame, or block.
        gfn: u64,
        /// The frame behind it, or the block of a partition.
        frame: u64,
        /// How many.
        count: u32,
        /// One of [`super::run`].
        kind: u8,
        /// Why it is private (`model_pmap::Why`).
        why: u8,
        /// 1: never to be shared.
        never_share: u8,
        /// Of [`super::run::BASE`]: the disk of the VM whose base it is, from 0 on.
        disk: u8,
    }
    /// 32 interrupts, as a GIC has them when none is in a list register.
    Interrupts, 56 {
        /// `ISENABLER`.
        enabled: u32,
        /// `IGROUPR`.
        group1: u32,
        /// Edge triggered (`ICFGR`).
        edge: u32,
        /// The input lines.
        line: u32,
        /// Pending whatever the line says.
        latch: u32,
        /// `ISACTIVER`.
        active: u32,
        /// `IPRIORITYR`.
        priority: [u8; 32],
    }
    /// 32 shared interrupts.
    Spis, 216 {
        /// Their state.
        interrupts: Interrupts,
        /// `IROUTER`, as `Aff3.Aff2.Aff1.Aff0`.
        routes: [u32; 32],
        /// The vCPU on which each is active; 255: on none.
        holders: [u8; 32],
    }
    /// A vCPU's own interrupts.
    Private, 96 {
        /// SGIs and PPIs.
        interrupts: Interrupts,
        /// The rest.
        local: Local,
    }
    /// What a redistributor has beside its interrupts.
    Local, 40 {
        /// PPIs whose physical interrupt is active until the virtual one has ended.
        physical_active: u32,
        /// `GICR_WAKER.ProcessorSleep`.
        asleep: u32,
        /// The physical interrupt of each.
        physical: [u8; 32],
    }
    /// A vCPU.
    Vcpu, 1240 {
        /// x0 to x30, the program counter, PSTATE as in an SPSR.
        registers: [u64; 33],
        /// `SCTLR`, `CPACR`, `TTBR0`, `TTBR1`, `TCR`, `ESR`, `FAR`, `AFSR0`, `AFSR1`, `MAIR`, `AMAIR`, `VBAR`,
        /// `CONTEXTIDR` of EL1, `TPIDR_EL0`, `TPIDRRO_EL0`, `TPIDR_EL1`, `PAR_EL1`, `CNTKCTL_EL1`, `ELR_EL1`,
        /// `SPSR_EL1`, `SP_EL0`, `SP_EL1`, `MDSCR_EL1`, `CSSELR_EL1`, `VMPIDR_EL2`.
        el1: [u64; 25],
        /// v0 to v31, low half first; `FPSR` and `FPCR`.
        fp: [[u64; 2]; 33],
        /// `CNTV_CTL_EL0` and `CNTV_CVAL_EL0`.
        timer: [u64; 2],
        /// `CNTP_CTL_EL0` and `CNTP_CVAL_EL0`.
        physical_timer: [u64; 2],
        /// `ICH_VMCR_EL2`, `ICH_AP0R0_EL2` to `ICH_AP0R3_EL2` and `ICH_AP1R0_EL2` to `ICH_AP1R3_EL2`; 0 where the CPU has
        /// none.
        interface: [u64; 9],
        /// 1: it was shown stolen time; which; and how much was stolen, in counts.
        stolen: [u64; 3],
        /// One of [`super::power`], where it begins and its first x0.
        power: [u64; 3],
        /// Its SGIs and PPIs.
        private: Private,
    }
    /// A PL011's registers, and what is in its receive FIFO.
    Uart, 80 {
        /// `RIS`.
        raw: u32,
        /// `IMSC`.
        mask: u32,
        /// `LCR_H`.
        line_control: u32,
        /// `CR`.
        control: u32,
        /// `IFLS`.
        fifo_levels: u32,
        /// `IBRD`.
        integer_baud: u32,
        /// `FBRD`.
        fractional_baud: u32,
        /// `ILPR`.
        low_power: u32,
        /// `DMACR`.
        dma_control: u32,
        /// 1: a byte was lost, and the guest has not seen that.
        overrun: u32,
        /// Bytes in the FIFO.
        received: u32,
        /// 1: what is typed goes here, not to a virtio console.
        in_use: u32,
        /// The FIFO, oldest byte first.
        fifo: [u8; 32],
    }
    /// A power button on a PL061.
    Button, 16 {
        /// Inputs, outputs, `DIR`, `IS`, `IBE`, `IEV`, `IE`, edges seen, `AFSEL`.
        gpio: [u8; 9],
        /// 1: it is pressed.
        pressed: u8,
        /// Zero.
        reserved: [u8; 6],
    }
    /// A clock of the wall, a PL031.
    Clock, 8 {
        /// `RTCLR`: what its guest set last.
        load: u32,
        /// How far it is ahead of the machine's time since, in seconds modulo 2^32.
        ahead: u32,
    }
    /// A split virtqueue, all of whose chains that were taken were given back.
    Queue, 40 {
        /// Entries.
        size: u32,
        /// Bits of [`super::queue`].
        flags: u32,
        /// The descriptor table.
        descriptors: u64,
        /// The available ring.
        driver: u64,
        /// The used ring.
        device: u64,
        /// Next available entry to take.
        next_avail: u16,
        /// Next used entry to fill.
        next_used: u16,
        /// Where that was when the driver was last considered for an interrupt.
        signalled: u16,
        /// Zero.
        reserved: u16,
    }
    /// What a virtio device's registers hold, but for its queues.
    Registers, 32 {
        /// `Status`.
        status: u32,
        /// `InterruptStatus`.
        interrupt: u32,
        /// `DeviceFeaturesSel`.
        device_features_sel: u32,
        /// `DriverFeaturesSel`.
        driver_features_sel: u32,
        /// What the driver accepted.
        driver_features: u64,
        /// `QueueSel`.
        queue_sel: u32,
        /// `ConfigGeneration`.
        config_generation: u32,
    }
    /// A virtio device. What it had taken of its queues and not answered is in them again.
    Device, 416 {
        /// Its type (virtio 5).
        kind: u32,
        /// Zero.
        reserved: u32,
        /// Its registers.
        registers: Registers,
        /// What is its own. Of a network device: the offloads that its driver takes less of than it could; its status,
        /// and from bit 16 on the pairs of queues that its driver uses. Of a balloon: its configuration space. Of a
        /// console or port: bytes done of the buffer that is next; events to be told, and from bit 16 on whether a
        /// program has it open.
        own: [u64; 2],
        /// Its queues.
        queues: [Queue; 9],
    }
}

impl Run {
    /// Bytes that follow it in its item.
    pub const fn behind(&self) -> usize {
        let each = match self.kind {
            run::STORED | run::BASE => size_of::<u64>(),
            run::CONTENT => PAGE,
            _ => 0,
        };
        each.saturating_mul(self.count as usize)
    }

    /// Records come in ascending order, those that go on where others end as one: makes `last` longer by `next`, if
    /// that goes on there and `may_join`; otherwise `next` is the last, and the one before is given, which is whole.
    pub fn join(last: &mut Option<Self>, next: Self, may_join: bool) -> Option<Self> {
        match last {
            Some(last) if may_join && last.goes_on(&next) => {
                last.count += next.count;
                None
            }
            last => last.replace(next),
        }
    }

    /// Whether `next` goes on where this ends.
    fn goes_on(&self, next: &Self) -> bool {
        let count = u64::from(self.count);
        let has_place = !matches!(self.kind, run::EMPTY | run::UNTOUCHED);
        let what = |run: &Self| (run.kind, run.why, run.never_share, run.disk);
        what(self) == what(next)
            && self.gfn + count == next.gfn
            && (!has_place || self.frame + count == next.frame)
            && self.count.checked_add(next.count).is_some()
    }
}

/// Bytes of a page.
const PAGE: usize = 4096;

/// The runs of an item, each with what follows it: what blocks of partitions are to hold, one word for each, or contents.
///
/// A word is `XXH64` of the block, of seed 0, or 1 where it was not written; 0: that is not known.
#[derive(Clone, Debug)]
pub struct Runs<'a>(&'a [u8]);

impl<'a> Runs<'a> {
    /// Of an item's bytes; `None` where one is not whole.
    pub fn of(bytes: &'a [u8]) -> Option<Self> {
        let mut runs = Self(bytes);
        runs.by_ref().for_each(drop);
        runs.0.is_empty().then_some(Self(bytes))
    }

    /// Word `n` behind a run.
    pub fn word(behind: &[u8], n: u32) -> Option<u64> {
        let word = behind.as_chunks().0.get(n as usize)?;
        Some(u64::from_le_bytes(*word))
    }

    /// Page `n` behind a run.
    pub fn page(behind: &[u8], n: u32) -> Option<&[u8]> {
        behind.chunks_exact(PAGE).nth(n as usize)
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = (Run, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (run, rest) = Run::read_from_prefix(self.0).ok()?;
        let (behind, rest) = rest.split_at_checked(run.behind())?;
        self.0 = rest;
        Some((run, behind))
    }
}

/// Kinds of items.
pub mod kind {
    /// A [`super::Machine`].
    pub const MACHINE: u32 = 1;
    /// [`super::Range`]s that OS-0 lends.
    pub const LOANS: u32 = 2;
    /// Blocks of 2 MiB that the new image may write before it has answered, by their first frame.
    pub const ROOM: u32 = 3;
    /// Bytes that wait for OS-0 on the control port.
    pub const SAID: u32 = 4;
    /// A [`super::Vm`].
    pub const VM: u32 = 5;
    /// Its [`crate::bundle::VmRecord`].
    pub const DESCRIPTION: u32 = 6;
    /// What it ended with, a [`crate::control::RawVm`].
    pub const ENDED: u32 = 7;
    /// Its device tree, as bytes.
    pub const TREE: u32 = 8;
    /// [`super::Runs`] of its memory.
    pub const RUNS: u32 = 9;
    /// A [`super::Vcpu`].
    pub const VCPU: u32 = 10;
    /// [`super::Spis`].
    pub const SPIS: u32 = 11;
    /// A [`super::Uart`].
    pub const UART: u32 = 12;
    /// Bytes that were typed and not taken.
    pub const TYPED: u32 = 13;
    /// A [`super::Button`].
    pub const BUTTON: u32 = 14;
    /// [`super::Device`]s.
    pub const DEVICES: u32 = 15;
    /// Bytes that it wrote to its console and nobody has.
    pub const TEXT: u32 = 16;
    /// Nothing: all was read.
    pub const END: u32 = 17;
    /// [`super::Runs`] of what was written over the base of a disk; one item for each disk.
    pub const OVERLAY: u32 = 19;
    /// An [`super::Origin`].
    pub const ORIGIN: u32 = 20;
    /// A [`super::Clock`].
    pub const CLOCK: u32 = 21;
    /// Of a control port: bytes of a request that is not complete, or not served.
    pub const ASKED: u32 = 22;
    /// And bytes that wait for it.
    pub const ANSWERS: u32 = 23;
    /// A [`crate::control::RegionStatus`].
    pub const REGION: u32 = 24;
    /// Its frames, two words each time: the first of two, of zeroes and its information block, and zero; then of each
    /// 2 MiB the first, and bit n where chunk n of 64 KiB was zeroed, or written since.
    pub const REGION_RUNS: u32 = 25;
}

/// How a VM stands.
pub mod life {
    /// It never ran.
    pub const DEFINED: u32 = 0;
    /// It is parked.
    pub const PARKED: u32 = 1;
    /// It has ended.
    pub const ENDED: u32 = 2;
}

/// What is behind guest frames.
pub mod run {
    /// Frames of its own.
    pub const PRIVATE: u8 = 1;
    /// Frames of the bundle, which others may use too.
    pub const SHARED: u8 = 2;
    /// Nothing any more: they read as zeroes.
    pub const EMPTY: u8 = 3;
    /// What is there from the start; never to be shared.
    pub const UNTOUCHED: u8 = 4;
    /// Frames of no bundle, which others use too.
    pub const JOINED: u8 = 5;
    /// Blocks of the partition that the VM, or the disk, has for itself.
    pub const STORED: u8 = 6;
    /// Blocks of the partition that is a disk's base.
    pub const BASE: u8 = 7;
    /// What is behind the run in its item, for whoever has none of the frames.
    pub const CONTENT: u8 = 8;
}

/// Whether a vCPU is on.
pub mod power {
    /// Off.
    pub const OFF: u64 = 0;
    /// It was told to start.
    pub const ON_PENDING: u64 = 1;
    /// On.
    pub const ON: u64 = 2;
}

/// Bits of a queue.
pub mod queue {
    /// The driver has set it up.
    pub const READY: u32 = 1;
    /// With `VIRTIO_F_EVENT_IDX`.
    pub const EVENT_IDX: u32 = 2;
    /// With `VIRTIO_F_INDIRECT_DESC`.
    pub const INDIRECT: u32 = 4;
    /// The driver was told not to kick.
    pub const MUTED: u32 = 8;
    /// All of them.
    pub const FLAGS: u32 = READY | EVENT_IDX | INDIRECT | MUTED;
}
