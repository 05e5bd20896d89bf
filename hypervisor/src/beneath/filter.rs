//! OS-0's accesses to the pages of the interrupt controller in which EL2 has bits of its own, while it
//! is beneath: the metal under `model_gic_filter`. They are the first page of the distributor and of
//! each redistributor's SGI frame; all others are OS-0's own.

use crate::beneath::{Os0, get};
use arch::entry::GuestContext;
use arch::gic::{self, Redistributor};
use model_addr::{FRAME_SIZE, Ipa, Pa, PaRange};
use model_gic_filter::{Filter, Page};
use model_machine_tree::{MAX_CPUS, Machine};
use model_trap::{DataAbort, skip_instruction};

/// The pages, in no order.
pub type Pages = heapless::Vec<PaRange, { MAX_CPUS + 1 }>;

/// The pages of a machine; those beyond what is supported are OS-0's without a filter.
pub fn pages(tree: &Machine) -> Pages {
    // SAFETY: the device tree says where redistributors are; they were mapped.
    let redistributors = unsafe { Redistributor::all(&tree.gic.redistributors) };
    let private = redistributors.map(Redistributor::private_page);
    let all = [tree.gic.distributor.start].into_iter().chain(private);
    let page = |start: Pa| PaRange::of(start, FRAME_SIZE);
    all.take(MAX_CPUS + 1).map(page).collect()
}

/// Makes the access that aborted, if it is to one of the pages; says whether it was.
pub fn access(context: &mut GuestContext, abort: &DataAbort) -> bool {
    let os0 = get();
    let (Some(ipa), Some(access)) = (abort.abort.ipa, abort.access) else {
        return false;
    };
    let at = Pa(ipa.0);
    let size = u64::from(access.size);
    if !at.0.is_multiple_of(size) || !is_page(os0, ipa) {
        return false;
    }
    let page = if os0.distributor.contains(at) {
        Page::Distributor
    } else {
        Page::Private
    };
    let offset = (at.0 % FRAME_SIZE) as u16;
    let rule = Filter::new(own(os0)).look(page, offset, access.size);
    // SAFETY: a register in a page of the interrupt controller, whose owner accesses it.
    unsafe {
        if access.write {
            let value = access.stored(context.register(access.rt));
            let current = if rule.needs_current() {
                gic::read_register(at, access.size)
            } else {
                0
            };
            gic::write_register(at, access.size, rule.write(value, current));
        } else {
            let value = rule.read(gic::read_register(at, access.size));
            context.set_register(access.rt, access.loaded(value));
        }
    }
    (context.pc, context.pstate) = skip_instruction(context.pc, context.pstate);
    true
}

/// The maintenance interrupt, EL2's alarm and its SGI.
pub fn own(os0: &Os0) -> u32 {
    let alarm = os0.tree.timer.hypervisor_timer.intid;
    [os0.maintenance, alarm, gic::SGI_KICK_BESIDE]
        .iter()
        .fold(0, |own, intid| own | 1 << (intid & 31))
}

fn is_page(os0: &Os0, ipa: Ipa) -> bool {
    os0.filtered.iter().any(|page| page.contains(Pa(ipa.0)))
}
