//! The measuring machine, as a plugin of QEMU's.
//!
//! QEMU has the topology of a NUMA machine but none of its latencies. This plugin is called at each
//! block of code and each load and store, asks QEMU which CPU and which physical address it is, and
//! passes both to [`sim_model`], which knows what that costs. It needs `-icount`, under which one
//! thread runs all CPUs in turn, so that two runs give the same figures. The README beside the
//! crates has the options, the command line and the layout of the results.
//!
//! # Soundness
//! Unsafe code is here (QEMU calls), in `machine` (calls of the plugin interface, the window's
//! mapping) and in `private` (QEMU's own symbols). All state is in one static cell. It is used by
//! callbacks only, and these come from one thread: under `-icount` QEMU has one thread for all CPUs,
//! which the self-test and each translation check. No callback calls anything of QEMU's that would
//! come back to a callback.

mod code;
mod machine;
mod options;
mod private;
mod ram;

use code::{Run, Special};
use machine::{Simulation, refuse};
use options::Options;
use qemu_plugin_sys as qemu;
use std::{
    cell::UnsafeCell,
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    ptr,
};

/// The version of the plugin interface that the plugin is made for.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = INTERFACE;

const INTERFACE: c_int = qemu::QEMU_PLUGIN_VERSION as c_int;
const PAGE_SHIFT: u32 = sim_model::PAGE_SHIFT;

struct Cell(UnsafeCell<Option<Simulation>>);

// SAFETY: it is written once, before QEMU starts any thread for CPUs, and used by callbacks only,
// which come from one thread (see Soundness).
unsafe impl Sync for Cell {}

static SIMULATION: Cell = Cell(UnsafeCell::new(None));

/// The simulation, for the time of one callback.
#[inline]
fn simulation() -> &'static mut Simulation {
    // SAFETY: each callback asks once and lets go before it returns, and callbacks neither overlap
    // nor nest (see Soundness).
    match unsafe { &mut *SIMULATION.0.get() } {
        Some(simulation) => simulation,
        None => refuse("QEMU called the plugin before it was installed"),
    }
}

/// Called by QEMU when it has loaded the plugin.
///
/// # Safety
/// As QEMU promises: `info` is valid, and `argv` has `argc` strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: qemu::qemu_plugin_id_t,
    info: *const qemu::qemu_info_t,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: as the caller promises.
    let (info, words) = unsafe {
        let words = (0..argc.max(0) as usize).map(|index| CStr::from_ptr(*argv.add(index)));
        let words = words.map(|word| word.to_string_lossy().into_owned());
        (&*info, words.collect::<Vec<String>>())
    };
    match prepare(info, &words) {
        Ok(made) => {
            // SAFETY: QEMU has no thread for CPUs yet, and nothing was registered to be called.
            unsafe { *SIMULATION.0.get() = Some(made) };
            // SAFETY: the number is the one that QEMU gave, and the function is as it must be.
            unsafe { qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, Some(on_translation)) };
            0
        }
        Err(why) => {
            eprintln!("underpin sim: {why}");
            -1
        }
    }
}

fn prepare(info: &qemu::qemu_info_t, words: &[String]) -> Result<Simulation, String> {
    if !info.system_emulation || info.version.cur != INTERFACE {
        return Err(format!(
            "this QEMU has version {} of the plugin interface, but the plugin needs version {INTERFACE} and a whole machine; install QEMU 10.0",
            info.version.cur
        ));
    }
    // SAFETY: where a whole machine is emulated, this member of the union is the valid one.
    let cpus = unsafe { info.__bindgen_anon_1.system.smp_vcpus };
    Simulation::new(Options::read(words, cpus.max(0) as usize)?)
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
