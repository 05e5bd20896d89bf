//! The counted clock, put right: a plugin of QEMU's.
//!
//! With `-icount shift=N,sleep=off` a guest's clock counts instructions, and leaps to the next timer when all CPUs sleep.
//! QEMU leaps in its main thread (`icount_start_warp_timer`), as soon as all CPUs are halted. A CPU is marked as halted
//! within its WFI, though, before the thread that runs CPUs has accounted the instructions up to it. A leap that is taken
//! in between ends too late by as many instructions, at random: runs of the same files differ now and then.
//!
//! This plugin takes over the leap ([`leap`]). QEMU asks its accelerator whether a halted CPU is idle, and the plugin
//! answers. To the main thread it says no, which therefore never leaps. The thread that runs CPUs asks when all
//! instructions are accounted: there the plugin leaps itself. No code of QEMU's is changed; what is used of its insides is
//! in [`private`], and what can be checked of that is checked before a CPU runs.
//!
//! It proves its work: nobody else may have moved the clock, and a timer of its own ([`probe`]), due at the end of each
//! leap, must fire at its nanosecond. Where that fails, QEMU ends with a sentence.
//!
//! # Soundness
//! Unsafe code is here (the plugin interface) and in `private`, whose documentation says why QEMU's functions may be
//! called. What is kept here is set once, before there is a thread for CPUs, or atomic.

mod leap;
mod options;
mod private;
mod probe;

use options::Options;
use private::Private;
use qemu_plugin_sys as qemu;
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    fmt, fs, process,
    sync::OnceLock,
};

/// The version of the plugin interface that the plugin is made for.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = INTERFACE;

const INTERFACE: c_int = qemu::QEMU_PLUGIN_VERSION as c_int;

/// All that callbacks need.
struct Clock {
    options: Options,
    private: Private,
    leaps: leap::Leaps,
    probe: probe::Probe,
}

static CLOCK: OnceLock<Clock> = OnceLock::new();

/// The clock, for callbacks: all are registered once it is there.
fn clock() -> &'static Clock {
    match CLOCK.get() {
        Some(clock) => clock,
        None => refuse("QEMU called the plugin before it was installed"),
    }
}

/// Ends QEMU with a sentence.
fn refuse(why: impl fmt::Display) -> ! {
    eprintln!("underpin sim: {why}");
    process::exit(1)
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
        Ok(()) => {
            // SAFETY: the number is the one that QEMU gave, and the function is as it must be.
            unsafe {
                qemu::qemu_plugin_register_atexit_cb(id, Some(at_exit), std::ptr::null_mut());
            };
            0
        }
        Err(why) => {
            eprintln!("underpin sim: {why}");
            -1
        }
    }
}

fn prepare(info: &qemu::qemu_info_t, words: &[String]) -> Result<(), String> {
    if !info.system_emulation || info.version.cur != INTERFACE {
        return Err(format!(
            "this QEMU has version {} of the plugin interface, but the clock's plugin needs version {INTERFACE} and a whole machine; install QEMU 10.0",
            info.version.cur
        ));
    }
    let options = Options::read(words)?;
    let private = Private::find()?;
    let [major, minor, micro] = private.version();
    if (major, minor) != (10, 0) {
        return Err(format!(
            "this is QEMU {major}.{minor}.{micro}, but the clock's plugin knows the insides of QEMU 10.0 only; install that"
        ));
    }
    if !private.counts_instructions() {
        return Err("QEMU must count instructions: add '-icount shift=0,sleep=off'".into());
    }
    let made = Clock {
        options,
        private,
        leaps: leap::Leaps::default(),
        probe: probe::Probe::new(),
    };
    if CLOCK.set(made).is_err() {
        return Err("the clock's plugin is loaded twice; name it once".into());
    }
    clock().probe.prepare();
    clock().private.when_machine_is_made(machine_is_made);
    Ok(())
}

/// The machine is made, and no CPU runs yet.
extern "C" fn machine_is_made(_: *mut c_void, _: *mut c_void) {
    let clock = clock();
    if clock.options.is_cured
        && let Err(why) = clock.private.take_over(leap::is_idle)
    {
        refuse(why);
    }
    clock.probe.arm_next(clock.private.now());
}

/// # Safety
/// None is needed: QEMU asks for a function of this type.
unsafe extern "C" fn at_exit(_: qemu::qemu_plugin_id_t, _: *mut c_void) {
    let clock = clock();
    let Some(path) = &clock.options.report else {
        return;
    };
    let text = format!("leaps={} {}\n", clock.leaps.count(), clock.probe.report());
    if let Err(error) = fs::write(path, text) {
        eprintln!("underpin sim: cannot write '{}': {error}", path.display());
    }
}
