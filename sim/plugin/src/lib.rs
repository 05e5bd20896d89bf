//! The measuring machine, as a plugin of QEMU's.
//!
//! QEMU has the topology of a NUMA machine but none of its latencies. This plugin is called at each
//! block of code and each load and store, asks QEMU which CPU and which physical address it is, and
//! passes both to [`sim_model`], which knows what that costs. It needs `-icount`, under which one
//! thread runs all CPUs in turn, so that two runs give the same figures. The README beside the
//! crates has the options, the command line and the layout of the results.
//!
//! # Soundness
//! Unsafe code is here (QEMU calls) and in `machine` (calls of the plugin interface, the window's
//! mapping). All state is in one static cell. It is used by
//! callbacks only, and these come from one thread: under `-icount` QEMU has one thread for all CPUs,
//! which the self-test and each translation check. No callback calls anything of QEMU's that would
//! come back to a callback.

mod code;
mod machine;
mod options;
mod ram;

use code::{Run, Special};
use machine::Simulation;
use options::Options;
use sim_qemu::{Loading, interface as qemu, kept::Kept};
use std::{
    ffi::{c_uint, c_void},
    ptr,
};

sim_qemu::plugin!(prepare);

const PAGE_SHIFT: u32 = sim_model::PAGE_SHIFT;

static SIMULATION: Kept<Simulation> = Kept::nothing();

/// The simulation, for the time of one callback.
#[inline]
fn simulation() -> &'static mut Simulation {
    // SAFETY: each callback asks once and lets go before it returns, and callbacks neither overlap
    // nor nest (see Soundness).
    unsafe { SIMULATION.get() }
}

fn prepare(loading: &Loading) -> Result<(), String> {
    let options = Options::read(&loading.words, loading.cpus)?;
    let made = Simulation::new(loading.qemu, options)?;
    // SAFETY: QEMU has no thread for CPUs yet, and nothing was registered to be called.
    unsafe { SIMULATION.set(made) };
    // SAFETY: the number is the one that QEMU gave, and the function is as it must be.
    unsafe { qemu::qemu_plugin_register_vcpu_tb_trans_cb(loading.id, Some(on_translation)) };
    Ok(())
}

/// One instruction of a block that is being translated.
struct Instruction {
    handle: *mut qemu::qemu_plugin_insn,
    code: u32,
    address: u64,
    host: u64,
}

impl Instruction {
    /// # Safety
    /// The block is the one that is being translated, and has more than `index` instructions.
    unsafe fn of(block: *mut qemu::qemu_plugin_tb, index: usize) -> Self {
        let mut code = [0; 4];
        // SAFETY: as the caller promises; the handle is valid while the block is translated.
        unsafe {
            let handle = qemu::qemu_plugin_tb_get_insn(block, index);
            qemu::qemu_plugin_insn_data(handle, code.as_mut_ptr().cast(), code.len());
            Self {
                handle,
                code: u32::from_le_bytes(code),
                address: qemu::qemu_plugin_insn_vaddr(handle),
                host: qemu::qemu_plugin_insn_haddr(handle) as u64,
            }
        }
    }

    /// Has a function called before the instruction is executed.
    fn before(&self, call: Callback, flags: qemu::qemu_plugin_cb_flags, data: u64) {
        // SAFETY: the instruction's block is being translated; the data is no address, and only
        // given back.
        unsafe {
            qemu::qemu_plugin_register_vcpu_insn_exec_cb(
                self.handle,
                Some(call),
                flags,
                ptr::without_provenance_mut(data as usize),
            );
        }
    }
}

type Callback = extern "C" fn(c_uint, *mut c_void);

const NO_REGISTERS: qemu::qemu_plugin_cb_flags = qemu::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_NO_REGS;
const READ_REGISTERS: qemu::qemu_plugin_cb_flags =
    qemu::qemu_plugin_cb_flags::QEMU_PLUGIN_CB_R_REGS;

/// # Safety
/// As QEMU promises: the block is one that is being translated.
unsafe extern "C" fn on_translation(_: qemu::qemu_plugin_id_t, block: *mut qemu::qemu_plugin_tb) {
    // SAFETY: QEMU gives the block that it translates.
    let instructions: Vec<Instruction> = unsafe {
        let count = qemu::qemu_plugin_tb_n_insns(block);
        (0..count)
            .map(|index| Instruction::of(block, index))
            .collect()
    };
    let simulation = simulation();
    simulation.translates();
    let on_one_page =
        |a: &Instruction, b: &Instruction| a.address >> PAGE_SHIFT == b.address >> PAGE_SHIFT;
    for (page, run) in instructions.chunk_by(on_one_page).enumerate() {
        let call = if page == 0 { on_block } else { on_second_page };
        let bytes = 4 * run.len() as u64;
        let run_of = simulation.run(run[0].host, bytes, instructions.len() as u64);
        run[0].before(call, NO_REGISTERS, run_of.pack());
    }
    for instruction in &instructions {
        // SAFETY: as above.
        unsafe {
            qemu::qemu_plugin_register_vcpu_mem_cb(
                instruction.handle,
                Some(on_access),
                NO_REGISTERS,
                qemu::qemu_plugin_mem_rw::QEMU_PLUGIN_MEM_RW,
                ptr::null_mut(),
            );
        }
        match code::special(instruction.code) {
            Some(Special::Translation) => {
                instruction.before(on_translation_change, NO_REGISTERS, 0);
            }
            Some(Special::Wait) => instruction.before(on_wait, NO_REGISTERS, 0),
            Some(Special::Begin) => instruction.before(on_begin, READ_REGISTERS, 0),
            Some(Special::End) => instruction.before(on_end, READ_REGISTERS, 0),
            None => {}
        }
    }
}

extern "C" fn on_block(_: c_uint, run: *mut c_void) {
    simulation().block(Run::unpack(run.addr() as u64));
}

extern "C" fn on_second_page(_: c_uint, run: *mut c_void) {
    simulation().second_page(Run::unpack(run.addr() as u64));
}

extern "C" fn on_access(
    _: c_uint,
    info: qemu::qemu_plugin_meminfo_t,
    address: u64,
    _: *mut c_void,
) {
    simulation().access(info, address);
}

extern "C" fn on_translation_change(_: c_uint, _: *mut c_void) {
    simulation().special(Special::Translation);
}

extern "C" fn on_wait(_: c_uint, _: *mut c_void) {
    simulation().special(Special::Wait);
}

extern "C" fn on_begin(_: c_uint, _: *mut c_void) {
    simulation().special(Special::Begin);
}

extern "C" fn on_end(_: c_uint, _: *mut c_void) {
    simulation().special(Special::End);
}
