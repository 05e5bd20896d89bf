//! What the model asks of a machine, as traits.
//!
//! `machine/aarch64` and `hypervisor` keep these promises on metal; `machine/fake` keeps them on
//! the host, unlike the metal on purpose: odd bits, stale TLBs, failures on demand.
#![no_std]
#![forbid(unsafe_code)]

use model_addr::{Ipa, Mfn};

/// Memory that holds translation tables and other radix nodes: frames of 512 words of 64 bits.
///
/// One writer at a time (the caller holds the lock of whatever the tables belong to), while the
/// machine's table walkers read at any moment: a write is a single 64-bit store that is visible to
/// the walkers when the call returns.
pub trait TableMemory {
    /// A frame full of zeroes, or `None` where there is no memory left.
    fn allocate_table(&mut self) -> Option<Mfn>;
    /// Gives back a frame that [`Self::allocate_table`] returned. No walker may still reach it:
    /// the debt of taking it out has been paid.
    fn free_table(&mut self, table: Mfn);
    /// Word `index` (below 512) of `table`.
    fn read(&self, table: Mfn, index: usize) -> u64;
    /// The `N` words (a power of two) of `table` from `index` (a multiple of `N`) on, ORed.
    #[inline]
    fn read_together<const N: usize>(&self, table: Mfn, index: usize) -> u64 {
        (0..N).fold(0, |all, n| all | self.read(table, index + n))
    }
    /// Sets word `index` (below 512) of `table`.
    fn write(&mut self, table: Mfn, index: usize, value: u64);

    /// Sets the `N` words (a power of two) of `table` from `index` (a multiple of `N`) on: the first to
    /// `first`, each other one to `step` more than the one before it. It is [`Self::write`] for each.
    #[inline]
    fn write_series<const N: usize>(&mut self, table: Mfn, index: usize, first: u64, step: u64) {
        for n in 0..N {
            let value = first.wrapping_add(step.wrapping_mul(n as u64));
            self.write(table, index + n, value);
        }
    }
}

/// Frames that hold data, not tables: pages, disk blocks.
pub trait FrameSource {
    /// A frame with unspecified contents, or `None` where there is no memory left.
    fn allocate_frame(&mut self) -> Option<Mfn>;
    /// Gives back a frame that [`Self::allocate_frame`] returned. Nobody may still use it.
    fn free_frame(&mut self, frame: Mfn);
}

/// Why bytes of a guest could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestMemoryError {
    /// The address is not in the guest's memory: the guest's mistake.
    NotMemory(Ipa),
    /// The machine has no frame left to put behind the address.
    NoFrame(Ipa),
    /// What is there must be read from a disk first: the device is to try again.
    Away(Ipa),
}

/// Bytes of an entry that [`GuestMemory::read_entries`] reads.
pub const ENTRY_BYTES: usize = size_of::<u128>();

/// [`GuestMemory::read_entries`] by [`GuestMemory::read`].
///
/// # Errors
/// As that.
pub fn read_one_by_one(
    memory: &(impl GuestMemory + ?Sized),
    (table, count): (Ipa, u16),
    places: &[u16],
    into: &mut [u128],
) -> Result<(), GuestMemoryError> {
    for (place, entry) in places.iter().zip(into) {
        if *place >= count {
            return Err(GuestMemoryError::NotMemory(table));
        }
        let at = Ipa(table.0.wrapping_add(ENTRY_BYTES as u64 * u64::from(*place)));
        let mut bytes = [0; ENTRY_BYTES];
        memory.read(at, &mut bytes)?;
        *entry = u128::from_le_bytes(bytes);
    }
    Ok(())
}

/// A guest's memory as its devices reach it: by guest-physical address, checked at every access.
///
/// Runs may cross frames. A run that is partly outside fails as a whole or after a prefix was
/// transferred; callers treat either as the guest's mistake. Methods take `&self`: vCPUs of the
/// same guest run at the same time, so bytes may change between two reads, and a device reads what
/// it relies on once.
pub trait GuestMemory {
    /// Fills `into` from `ipa` on.
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError>;
    /// Stores `from` at `ipa` on.
    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError>;
    /// Whether all `len` bytes from `ipa` are memory of this guest (absent frames count: they
    /// are filled when touched).
    fn contains(&self, ipa: Ipa, len: u64) -> bool;

    /// Readies memory that a device is about to read, or to write all of: how many bytes from `ipa` on are. Where
    /// these are fewer than `len`, the rest takes time: the device is to try again when it is told to.
    fn ready(&self, ipa: Ipa, len: u64, write: bool) -> u64 {
        let _ = (ipa, write);
        len
    }

    /// As [`Self::ready`], with frames behind all of it; it may stop at once where it `may_stop`.
    fn touch(&self, ipa: Ipa, len: u64, write: bool, may_stop: bool) -> u64 {
        let _ = (ipa, write, may_stop);
        len
    }

    /// A little-endian 16-bit word. Aligned words are read in one access.
    fn read_u16(&self, ipa: Ipa) -> Result<u16, GuestMemoryError> {
        let mut bytes = [0; 2];
        self.read(ipa, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }

    /// Fills `into` with those entries of a `table` of so many that `places` name, each of [`ENTRY_BYTES`],
    /// little-endian. One behind the table is no memory.
    fn read_entries(
        &self,
        table: (Ipa, u16),
        places: &[u16],
        into: &mut [u128],
    ) -> Result<(), GuestMemoryError> {
        read_one_by_one(self, table, places, into)
    }

    /// Stores a little-endian 16-bit word. Aligned words are written in one access, after every
    /// earlier write of this CPU is visible to the guest (store-release).
    fn write_u16(&self, ipa: Ipa, value: u16) -> Result<(), GuestMemoryError> {
        self.write(ipa, &value.to_le_bytes())
    }
}

/// The list registers of the CPU that runs the vCPU (Arm GICv3, `ICH_LR<n>_EL2`).
///
/// Only the CPU that has the vCPU loaded may use them.
pub trait ListRegisters {
    /// How many there are, 1..=16 (`ICH_VTR_EL2.ListRegs` + 1).
    fn count(&self) -> usize;
    /// Bit n set: list register n holds no valid interrupt (`ICH_ELRSR_EL2`).
    fn empty(&self) -> u16;
    /// `ICH_LR<n>_EL2`; `n` below [`Self::count`].
    fn read(&self, n: usize) -> u64;
    /// Sets `ICH_LR<n>_EL2`; `n` below [`Self::count`].
    fn write(&mut self, n: usize, value: u64);
    /// Turns the underflow maintenance interrupt on or off (`ICH_HCR_EL2.UIE`): asked for when
    /// more is pending than fits.
    fn set_underflow_interrupt(&mut self, on: bool);
    /// Ends the physical interrupt `intid` that a list register with HW=1 held and that the
    /// guest will not end itself any more (`ICC_DIR_EL1`).
    fn deactivate_physical(&mut self, intid: u32);
}
