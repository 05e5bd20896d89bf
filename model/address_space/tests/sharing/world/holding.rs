//! Pages that must not be written, or not be seen, for reasons that no code of this crate knows.

use super::{Access, Gfn, Reasons, Vm, World};

/// Made-up reasons of all pages: one keeps them from being written, one from being seen.
pub const STANDING: [Reasons; 2] = [
    Reasons::from_bits_retain(1 << 11),
    Reasons::from_bits_retain(1 << 15),
];

/// A reason of single pages that does the same.
const fn of_a_page(standing: Reasons) -> Reasons {
    Reasons::from_bits_retain(standing.bits() >> 1)
}

impl Vm {
    /// Whether nothing holds what a page contains.
    pub fn may_change(&self, gfn: Gfn, standing: Reasons) -> bool {
        let entry = self.lock().entry(gfn);
        let reasons = if entry.frame().is_some() {
            entry.reasons
        } else {
            standing
        };
        !reasons.intersects(standing | of_a_page(standing))
    }
}

impl World {
    /// A page gets the made-up reason of single pages, in a world that has one.
    pub fn hold(&mut self, vm: usize, gfn: Gfn) {
        let guest = &mut self.vms[vm];
        if self.standing.is_empty() || guest.lock().entry(gfn).frame().is_none() {
            return;
        }
        guest.lock().restrict(&[gfn], of_a_page(self.standing));
        guest.held.insert(gfn);
        let writes = (0..2).any(|vcpu| guest.find(vcpu, gfn, true).is_some());
        assert!(!writes, "{gfn} is written all the same");
    }

    /// Whoever gave a page its reasons takes them, since somebody needs it.
    pub fn lift(&mut self, vm: usize, gfn: Gfn, access: Access, reasons: Reasons) {
        let made_up = self.standing | of_a_page(self.standing);
        let guest = &mut self.vms[vm];
        let entry = guest.lock().entry(gfn);
        assert_eq!(entry.reasons, reasons);
        assert!(entry.usable(access.writes()).is_none(), "nothing held it");
        assert!(
            reasons.intersects(made_up),
            "a fault ends these: {reasons:?}"
        );
        guest.lock().lift(gfn, made_up);
        guest.held.remove(&gfn);
        guest.lifted.borrow_mut().insert(gfn, entry.backing);
    }

    /// Pages have their made-up reasons unless somebody lifted them, and nobody has put another frame there since.
    pub fn check_held(&self, vm: &Vm) {
        let maps = vm.lock();
        let mut lifted = vm.lifted.borrow_mut();
        lifted.retain(|gfn, backing| {
            let entry = maps.entry(*gfn);
            entry.backing == *backing && !entry.reasons.contains(self.standing)
        });
        maps.visit(Gfn(0), 1 << 20, |gfn, entry| {
            let has_all = entry.reasons.contains(self.standing) || entry.frame().is_none();
            assert!(has_all || lifted.contains_key(&gfn), "{gfn}: {entry:?}");
        });
        for gfn in &vm.held {
            let entry = maps.entry(*gfn);
            assert!(
                entry.reasons.contains(of_a_page(self.standing)),
                "{gfn}: {entry:?}"
            );
        }
    }
}
