//! What the hypervisor executes, by place: a plugin of QEMU's.
//!
//! It counts the instructions of an image by block of code, for all CPUs together and for each *visit* that was long: from
//! where a CPU comes to the image, or wakes in it, to where it leaves it for a guest or waits. The README beside the crates
//! has the options and the layout of the results.
//!
//! The number of a CPU that QEMU 10.0 gives to callbacks is that of the CPU for which the block was translated, where one
//! thread runs them all; so QEMU's own variable is asked ([`sim_qemu::private::Current`]).
//!
//! # Soundness
//! Unsafe code is here (QEMU calls). All state is in one static cell. It is used by callbacks only, and these come from one
//! thread: under `-icount`, which is asked for, QEMU has one thread for all CPUs. No callback calls anything of QEMU's that
//! would come back to a callback.

mod options;
mod profile;

use options::Options;
use profile::Profile;
use sim_qemu::{Loading, interface as qemu, kept::Kept};
use std::{
    ffi::{c_uint, c_void},
    ptr,
};

sim_qemu::plugin!(prepare);

static PROFILE: Kept<Profile> = Kept::nothing();

/// The profile, for the time of one callback.
#[inline]
fn profile() -> &'static mut Profile {
    // SAFETY: each callback asks once and lets go before it returns, and callbacks neither overlap
    // nor nest (see Soundness).
    unsafe { PROFILE.get() }
}

fn prepare(loading: &Loading) -> Result<(), String> {
    let options = Options::read(&loading.words)?;
    loading.qemu.must_count()?;
    // SAFETY: QEMU has no thread for CPUs yet, and nothing was registered to be called.
    unsafe { PROFILE.set(Profile::new(options)?) };
    // SAFETY: the number is the one that QEMU gave, and the function is as it must be.
    unsafe { qemu::qemu_plugin_register_vcpu_tb_trans_cb(loading.id, Some(on_translation)) };
    loading.at_exit(at_exit);
    Ok(())
}

/// # Safety
/// As QEMU promises: the block is one that is being translated.
unsafe extern "C" fn on_translation(_: qemu::qemu_plugin_id_t, block: *mut qemu::qemu_plugin_tb) {
    // SAFETY: QEMU gives the block that it translates, which has an instruction at least.
    let (place, count, last) = unsafe {
        let first = qemu::qemu_plugin_tb_get_insn(block, 0);
        let host = qemu::qemu_plugin_insn_haddr(first) as u64;
        let count = qemu::qemu_plugin_tb_n_insns(block);
        let last = qemu::qemu_plugin_tb_get_insn(block, count - 1);
        let mut bytes = [0_u8; 4];
        qemu::qemu_plugin_insn_data(last, bytes.as_mut_ptr().cast(), bytes.len());
        let place = (qemu::qemu_plugin_tb_vaddr(block), host);
        (place, count as u64, u32::from_le_bytes(bytes))
    };
    let number = profile().translated(place, count, last);
    // SAFETY: as above; the data is no address, and only given back.
    unsafe {
        qemu::qemu_plugin_register_vcpu_tb_exec_cb(
            block,
            Some(on_block),
            qemu::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS,
            ptr::without_provenance_mut(number),
        );
    }
}

extern "C" fn on_block(_: c_uint, number: *mut c_void) {
    profile().executes(number.addr());
}

extern "C" fn at_exit(_: qemu::qemu_plugin_id_t, _: *mut c_void) {
    profile().finish();
}
