//! What all plugins of the measuring machine use of QEMU.
//!
//! | module | |
//! |---|---|
//! | this one | how QEMU loads a plugin, and how a plugin ends QEMU |
//! | [`private`] | functions and variables that QEMU exports and does not promise |
//! | [`kept`] | what a plugin keeps for its callbacks |
//! | [`leap`] | the leap over idle time of a counted clock, in the thread that runs CPUs |
//! | [`net`] | a network back end of the plugin's own |
//! | [`trial`] | programs, plugins and QEMU for the plugins' tests |
//!
//! A plugin is a shared object with a copy of this crate; copies of two plugins in one QEMU know nothing of each other.
//!
//! # Soundness
//! Unsafe code is here (the plugin interface), in `kept` (state for callbacks), in `net` (a frame's bytes) and in `private`, whose documentation says why
//! QEMU's functions may be called.

pub mod kept;
pub mod leap;
pub mod net;
pub mod private;
pub mod trial;

use private::Qemu;
pub use qemu_plugin_sys as interface;
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fmt,
};

/// The version of the plugin interface that plugins are made for: that of QEMU 10.0.
pub const INTERFACE: c_int = interface::QEMU_PLUGIN_VERSION as c_int;

/// A plugin that QEMU is loading.
pub struct Loading {
    /// QEMU's number for it, which registrations need.
    pub id: interface::qemu_plugin_id_t,
    /// CPUs of the machine.
    pub cpus: usize,
    /// QEMU's own functions.
    pub qemu: &'static Qemu,
    /// The plugin's options, as they were written.
    pub words: Vec<String>,
}

impl Loading {
    /// Has a function called when QEMU ends of its own accord.
    pub fn at_exit(&self, call: extern "C" fn(interface::qemu_plugin_id_t, *mut c_void)) {
        // SAFETY: the number is the one that QEMU gave, and the function is as it must be.
        unsafe {
            interface::qemu_plugin_register_atexit_cb(self.id, Some(call), std::ptr::null_mut());
        }
    }
}

/// Defines what QEMU looks for in a plugin. `$prepare` is a `fn(&Loading) -> Result<(), String>`.
#[macro_export]
macro_rules! plugin {
    ($prepare:path) => {
        /// The version of the plugin interface that the plugin is made for.
        #[unsafe(no_mangle)]
        #[allow(non_upper_case_globals)]
        pub static qemu_plugin_version: ::std::ffi::c_int = $crate::INTERFACE;

        /// Called by QEMU when it has loaded the plugin.
        ///
        /// # Safety
        /// As QEMU promises: `info` is valid, and `argv` has `argc` strings.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn qemu_plugin_install(
            id: $crate::interface::qemu_plugin_id_t,
            info: *const $crate::interface::qemu_info_t,
            argc: ::std::ffi::c_int,
            argv: *const *const ::std::ffi::c_char,
        ) -> ::std::ffi::c_int {
            // SAFETY: as the caller promises.
            unsafe { $crate::install(id, info, argc, argv, $prepare) }
        }
    };
}

/// Loads a plugin, or says why not; returns what QEMU wants.
///
/// # Safety
/// `info` is valid, and `argv` has `argc` strings.
pub unsafe fn install(
    id: interface::qemu_plugin_id_t,
    info: *const interface::qemu_info_t,
    argc: c_int,
    argv: *const *const c_char,
    prepare: fn(&Loading) -> Result<(), String>,
) -> c_int {
    // SAFETY: as the caller promises.
    let (info, words) = unsafe {
        let words = (0..argc.max(0) as usize).map(|index| CStr::from_ptr(*argv.add(index)));
        let words = words.map(|word| word.to_string_lossy().into_owned());
        (&*info, words.collect())
    };
    match load(id, info, words).and_then(|loading| prepare(&loading)) {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("underpin sim: {why}");
            -1
        }
    }
}

fn load(
    id: interface::qemu_plugin_id_t,
    info: &interface::qemu_info_t,
    words: Vec<String>,
) -> Result<Loading, String> {
    if !info.system_emulation || info.version.cur != INTERFACE {
        return Err(format!(
            "this QEMU has version {} of the plugin interface, but the plugin needs version {INTERFACE} and a whole machine; install QEMU 10.0",
            info.version.cur
        ));
    }
    // SAFETY: where a whole machine is emulated, this member of the union is the valid one.
    let cpus = unsafe { info.__bindgen_anon_1.system.smp_vcpus };
    Ok(Loading {
        id,
        cpus: cpus.max(0) as usize,
        qemu: Qemu::find()?,
        words,
    })
}

/// Says why and ends QEMU: figures that may be wrong are worth nothing.
pub fn refuse(why: impl fmt::Display) -> ! {
    eprintln!("underpin sim: {why}");
    end(1)
}

/// Ends QEMU at once, and well: no CPU executes one more instruction.
pub fn finish() -> ! {
    end(0)
}

fn end(status: c_int) -> ! {
    // SAFETY: nothing of QEMU's may run any more, least of all what it does at its exit, and this
    // call ends the process without it.
    unsafe { libc::_exit(status) }
}
