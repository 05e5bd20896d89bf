//! What QEMU exports, but does not promise: symbols that only its own parts are meant to use.
//!
//! The plugin interface gives a wrong CPU number where one thread runs all CPUs and blocks of code
//! are shared among them (accel/tcg/plugin-gen.c, `gen_cpu_index`), cannot end a CPU's turn, and
//! does not tell the time. So the plugin asks QEMU itself, and checks first that it is the QEMU
//! whose insides it knows.

use libc::{RTLD_DEFAULT, c_char, c_int, c_void, dlsym};
use std::{ffi::CStr, mem::transmute, ptr};

/// QEMU's `CPUState`, of which only the address is used.
pub type CpuState = *mut c_void;

/// The byte array of glib, which QEMU fills with a register.
#[repr(C)]
pub struct ByteArray {
    pub data: *const u8,
    pub len: u32,
}

/// Where `qemu_icount_bias` is in QEMU 10.0's `TimersState`, in words of 64 bits.
const ICOUNT_BIAS: usize = 5;
/// `use_icount` when the guest's time is counted instructions (`ICOUNT_PRECISE`).
const ICOUNT_PRECISE: c_int = 1;

/// The symbols, all there.
pub struct Private {
    get_cpu: extern "C" fn(c_int) -> CpuState,
    exit_cpu: extern "C" fn(CpuState),
    new_array: extern "C" fn() -> *mut ByteArray,
    query_version: extern "C" fn(*mut c_void) -> *const VersionInfo,
    timers: *const i64,
    use_icount: *const c_int,
}

#[repr(C)]
struct VersionInfo {
    qemu: *const [i64; 3],
    package: *const c_char,
}

/// The address of a symbol of QEMU or its libraries.
fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name ends with 0, and a search in what is loaded has no other precondition.
    let address = unsafe { dlsym(RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() {
        return Err(format!(
            "this QEMU does not export '{}', which the plugin needs; use QEMU 10.0 with all symbols exported, as Debian's is",
            name.to_string_lossy()
        ));
    }
    Ok(address)
}

impl Private {
    /// Finds all symbols.
    ///
    /// # Errors
    /// The sentence that names the first that is missing.
    pub fn find() -> Result<Self, String> {
        let get_cpu = symbol(c"qemu_get_cpu")?;
        let exit_cpu = symbol(c"cpu_exit")?;
        let query_version = symbol(c"qmp_query_version")?;
        let new_array = symbol(c"g_byte_array_new")?;
        // Asked for once more on the thread that runs the CPUs, but missed here already.
        symbol(c"current_cpu")?;
        // SAFETY: these are functions of QEMU 10.0 (include/hw/core/cpu.h, qapi/qapi-commands-
        // control.h) and of glib, and have these signatures; that it is 10.0 is checked before any
        // but `qmp_query_version` is called, whose signature has been this one since QEMU 2. They
        // are called below only, with pointers that QEMU gave.
        let (get_cpu, exit_cpu, query_version, new_array) = unsafe {
            (
                transmute::<*mut c_void, extern "C" fn(c_int) -> CpuState>(get_cpu),
                transmute::<*mut c_void, extern "C" fn(CpuState)>(exit_cpu),
                transmute::<*mut c_void, extern "C" fn(*mut c_void) -> *const VersionInfo>(
                    query_version,
                ),
                transmute::<*mut c_void, extern "C" fn() -> *mut ByteArray>(new_array),
            )
        };
        Ok(Self {
            get_cpu,
            exit_cpu,
            new_array,
            query_version,
            timers: symbol(c"timers_state")?.cast(),
            use_icount: symbol(c"use_icount")?.cast(),
        })
    }

    /// QEMU's version: major, minor, micro.
    pub fn version(&self) -> [i64; 3] {
        // Where to put an error: nowhere.
        let info = (self.query_version)(ptr::null_mut());
        // SAFETY: what the command gives is a structure of a pointer to three numbers, which is
        // never freed.
        unsafe {
            if info.is_null() || (*info).qemu.is_null() {
                return [0; 3];
            }
            *(*info).qemu
        }
    }

    /// Whether the guest's time is counted instructions.
    pub fn counts_instructions(&self) -> bool {
        // SAFETY: a variable of QEMU's of this type (include/exec/icount.h), which is set before
        // any CPU exists.
        unsafe { self.use_icount.read() == ICOUNT_PRECISE }
    }

    /// How much the guest's time is ahead of counted instructions, in nanoseconds: the sum of all
    /// leaps over times in which no CPU had anything to do.
    #[inline]
    pub fn bias_ns(&self) -> i64 {
        // SAFETY: `timers_state` is longer than this in QEMU 10.0 (system/timers-state.h). It is
        // written by the thread that runs CPUs, which is the one that asks, or by the main thread
        // while that one waits for it.
        unsafe { self.timers.add(ICOUNT_BIAS).read_volatile() }
    }

    /// The CPU with a number; null where there is none.
    pub fn cpu(&self, number: usize) -> CpuState {
        (self.get_cpu)(number as c_int)
    }

    /// Ends the turn of a CPU, which came from [`Current::get`], after the block that it executes.
    pub fn end_turn(&self, cpu: CpuState) {
        (self.exit_cpu)(cpu);
    }

    /// An empty byte array, which lives as long as QEMU.
    pub fn byte_array(&self) -> *mut ByteArray {
        (self.new_array)()
    }
}

/// Which CPU the calling thread runs.
#[derive(Clone, Copy)]
pub struct Current(*const CpuState);

impl Current {
    /// Finds the variable of the calling thread.
    ///
    /// # Errors
    /// As for any symbol.
    pub fn of_this_thread() -> Result<Self, String> {
        symbol(c"current_cpu").map(|address| Self(address.cast()))
    }

    /// The CPU that runs.
    #[inline]
    pub fn get(self) -> CpuState {
        // SAFETY: a thread's variable lives as long as the thread, which is the one that asks: the
        // plugin checks at each translation that no other thread runs CPUs.
        unsafe { self.0.read_volatile() }
    }
}
