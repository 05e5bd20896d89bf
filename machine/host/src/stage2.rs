//! Stage 2 by software: the walk that `machine/fake` has, over the tables in RAM, and a TLB for each CPU.

use crate::ram::Ram;
use crate::rng::Rng;
use machine_contract::TableMemory;
use machine_fake::{Fault, Leaf, Walker};
use model_addr::{FRAME_SIZE, Ipa, Mfn, Pa};
use std::collections::BTreeMap;

/// Entries of a TLB; a full one loses one that the seed names.
const ENTRIES: usize = 48;

/// What a CPU keeps of translations, by VMID and page. An entry stays until maintenance names it.
#[derive(Debug, Default)]
pub(crate) struct Tlb {
    entries: BTreeMap<(u16, u64), Leaf>,
}

/// Tables as they are in RAM.
struct Tables<'a>(&'a Ram);

impl TableMemory for Tables<'_> {
    fn allocate_table(&mut self) -> Option<Mfn> {
        None
    }
    fn free_table(&mut self, _: Mfn) {}
    fn read(&self, table: Mfn, index: usize) -> u64 {
        let at = Pa(table.address().0 + index as u64 * 8);
        self.0.read(at, 8).unwrap_or(0)
    }
    fn write(&mut self, _: Mfn, _: usize, _: u64) {}
}

/// The VMID that `VTTBR_EL2` names.
pub(crate) const fn vmid(vttbr: u64) -> u16 {
    (vttbr >> 48) as u16
}

impl Tlb {
    /// Translates as a CPU does: by an entry where there is one, else by a walk, of which it keeps the outcome.
    pub(crate) fn translate(
        &mut self,
        (vtcr, vttbr): (u64, u64),
        ram: &Ram,
        ipa: Ipa,
        rng: &mut Rng,
    ) -> Result<(Pa, Leaf), Fault> {
        let key = (vmid(vttbr), ipa.0 / FRAME_SIZE);
        if let Some(leaf) = self.entries.get(&key) {
            return Ok((leaf.translate(ipa).pa, *leaf));
        }
        let root = Pa(vttbr & 0xffff_ffff_fffe).frame();
        let found = Walker::new(vtcr, root).walk(&Tables(ram), ipa)?;
        if self.entries.len() >= ENTRIES {
            let victim = rng.below(ENTRIES as u64) as usize;
            let victim = self.entries.keys().nth(victim).copied();
            victim.and_then(|victim| self.entries.remove(&victim));
        }
        self.entries.insert(key, found.leaf);
        Ok((found.pa, found.leaf))
    }

    /// Drops all.
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Drops what belongs to `vmid`.
    pub(crate) fn drop_vmid(&mut self, vmid: u16) {
        self.entries.retain(|(own, _), _| *own != vmid);
    }

    /// Drops what translates `ipa` for `vmid`, of a block all.
    pub(crate) fn drop_page(&mut self, vmid: u16, ipa: Ipa) {
        self.entries
            .retain(|(own, _), leaf| *own != vmid || !leaf.covers(ipa));
    }
}
