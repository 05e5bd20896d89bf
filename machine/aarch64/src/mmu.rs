//! EL2's own translation: one to one, writable or executable but never both, and nothing mapped
//! that is not needed (VMSAv8-64, 4 KiB granule, 48 bits, one table tree for all CPUs).

use crate::boot::enable_mmu;
use crate::cpu::dsb_ishst;
use model_addr::{Pa, PaRange};

/// Words of a table.
const WORDS: usize = 512;
/// Tables kept in the image for the map that is built at boot, before there is any allocator.
const BOOT_TABLES: usize = 48;

const VALID: u64 = 1;
const TABLE: u64 = 2;
const PAGE: u64 = 2;
const ACCESSED: u64 = 1 << 10;
const INNER_SHAREABLE: u64 = 3 << 8;
const READ_ONLY: u64 = 1 << 7;
const EXECUTE_NEVER: u64 = 1 << 54;
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// Attribute index 1 of `MAIR_EL2` (boot.S): Device-nGnRE. Index 0 is Normal write-back.
const ATTR_DEVICE: u64 = 1 << 2;

/// What may be done with a run of EL2's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// EL2's instructions: read and execute.
    Code,
    /// Constants: read.
    Constant,
    /// Everything else in RAM: read and write.
    Data,
    /// Device registers: read and write, in order.
    Device,
}

impl Rights {
    const fn bits(self) -> u64 {
        match self {
            Self::Code => ACCESSED | INNER_SHAREABLE | READ_ONLY,
            Self::Constant => ACCESSED | INNER_SHAREABLE | READ_ONLY | EXECUTE_NEVER,
            Self::Data => ACCESSED | INNER_SHAREABLE | EXECUTE_NEVER,
            Self::Device => ACCESSED | EXECUTE_NEVER | ATTR_DEVICE,
        }
    }
}

/// Why a run could not be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The boot tables are used up: the machine's memory is too scattered.
    #[error("no table left to map {:#x} bytes at {}", .0.size, .0.start)]
    NoTable(PaRange),
    /// Part of the run is mapped already.
    #[error("{0:#x} is mapped twice")]
    Overlap(u64),
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Table([u64; WORDS]);

/// EL2's map. There is one; [`El2Map::take_boot_tables`] hands it out.
pub struct El2Map {
    tables: &'static mut [Table; BOOT_TABLES],
    used: usize,
}

static mut TABLES: [Table; BOOT_TABLES] = [Table([0; WORDS]); BOOT_TABLES];

/// A process's next machine begins without the map of the one before.
///
/// # Safety
///
/// No machine runs.
#[cfg(not(target_os = "none"))]
pub unsafe fn forget() {
    // SAFETY: the caller's promise.
    unsafe { (&raw mut TABLES).write_bytes(0, 1) }
}

impl El2Map {
    /// The empty map in the image's own tables.
    ///
    /// # Safety
    ///
    /// Called once, by the first CPU, with the MMU off.
    pub unsafe fn take_boot_tables() -> Self {
        let tables = &raw mut TABLES;
        // SAFETY: called once, so no other reference to the tables exists.
        let tables = unsafe { &mut *tables };
        Self { tables, used: 1 }
    }

    /// The root's address, for `TTBR0_EL2`.
    pub fn root(&self) -> Pa {
        Pa(self.tables.as_ptr() as u64)
    }

    /// Maps `size` bytes from `va` to `pa` (multiples of 4 KiB) with the largest blocks that fit.
    pub fn map(&mut self, va: u64, range: PaRange, rights: Rights) -> Result<(), MapError> {
        let (mut va, mut pa, end) = (va, range.start.0, range.end().0);
        while pa < end {
            let mut level = 1;
            loop {
                let size = 1u64 << (39 - 9 * level);
                if level == 3 || ((va | pa) & (size - 1) == 0 && end - pa >= size) {
                    break;
                }
                level += 1;
            }
            self.set_leaf(va, pa, level, rights, range)?;
            let size = 1u64 << (39 - 9 * level);
            va += size;
            pa += size;
        }
        dsb_ishst();
        Ok(())
    }

    fn set_leaf(
        &mut self,
        va: u64,
        pa: u64,
        leaf_level: u32,
        rights: Rights,
        range: PaRange,
    ) -> Result<(), MapError> {
        let mut table = 0;
        for level in 0..leaf_level {
            let index = (va >> (39 - 9 * level)) as usize & (WORDS - 1);
            let entry = self.tables[table].0[index];
            table = if entry & VALID == 0 {
                let fresh = self.used;
                if fresh == BOOT_TABLES {
                    return Err(MapError::NoTable(range));
                }
                self.used += 1;
                let address = &raw const self.tables[fresh] as u64;
                self.tables[table].0[index] = address | TABLE | VALID;
                fresh
            } else if entry & TABLE != 0 {
                ((entry & ADDRESS) - self.root().0) as usize / size_of::<Table>()
            } else {
                return Err(MapError::Overlap(va));
            };
        }
        let index = (va >> (39 - 9 * leaf_level)) as usize & (WORDS - 1);
        let entry = &mut self.tables[table].0[index];
        if *entry & VALID != 0 {
            return Err(MapError::Overlap(va));
        }
        let kind = if leaf_level == 3 { PAGE } else { 0 };
        *entry = pa | rights.bits() | kind | VALID;
        Ok(())
    }
}

/// Turns the executing CPU's EL2 translation and caches on, with the tree at `root`.
///
/// # Safety
///
/// The tree maps the code that runs, its stack and everything it uses, one to one.
pub unsafe fn enable(root: Pa) {
    // SAFETY: the caller's promise.
    unsafe { enable_mmu(root.0) }
}
