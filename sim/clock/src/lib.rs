//! The counted clock, put right: a plugin of QEMU's.
//!
//! QEMU's own leap over idle time ends too late at random; this plugin takes it over ([`sim_qemu::leap`]).
//!
//! It proves its work: nobody else may have moved the clock, and a timer of its own ([`probe`]), due at the end of each
//! leap, must fire at its nanosecond. Where that fails, QEMU ends with a sentence.
//!
//! # Soundness
//! Unsafe code is the entry for QEMU, which [`sim_qemu`] defines. What is kept here is set once, before there is a thread
//! for CPUs, or atomic.

mod options;
mod probe;

use options::Options;
use sim_qemu::{Loading, interface, leap, private::Qemu, refuse};
use std::{ffi::c_void, fs, sync::OnceLock};

sim_qemu::plugin!(prepare);

/// All that callbacks need.
struct Clock {
    options: Options,
    qemu: &'static Qemu,
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

impl leap::Leaper for Clock {
    fn falls_asleep(&self, now: i64) {
        // Lest it be what is leapt to. One that is due by now is yet to fire.
        self.probe.disarm_after(now);
    }

    fn leaps(&self, to: i64) {
        self.probe.arm(to);
    }
}

fn prepare(loading: &Loading) -> Result<(), String> {
    let options = Options::read(&loading.words)?;
    loading.qemu.must_count()?;
    let made = Clock {
        options,
        qemu: loading.qemu,
        probe: probe::Probe::new(),
    };
    if CLOCK.set(made).is_err() {
        return Err("the clock's plugin is loaded twice; name it once".into());
    }
    clock().probe.prepare();
    loading.qemu.when_machine_is_made(machine_is_made);
    loading.at_exit(at_exit);
    Ok(())
}

/// The machine is made, and no CPU runs yet.
extern "C" fn machine_is_made(_: *mut c_void, _: *mut c_void) {
    let clock = clock();
    if clock.options.is_cured
        && let Err(why) = leap::take_over(clock.qemu, clock)
    {
        refuse(why);
    }
    clock.probe.arm_next(clock.qemu.now());
}

extern "C" fn at_exit(_: interface::qemu_plugin_id_t, _: *mut c_void) {
    let clock = clock();
    let Some(path) = &clock.options.report else {
        return;
    };
    let text = format!("leaps={} {}\n", leap::count(), clock.probe.report());
    if let Err(error) = fs::write(path, text) {
        eprintln!("underpin sim: cannot write '{}': {error}", path.display());
    }
}
