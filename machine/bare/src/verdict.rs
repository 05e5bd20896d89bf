//! How a guest ends: one line that a host test looks for, then power off.

use core::fmt;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use core::{slice, str};

use crate::console;
use crate::psci;
use crate::{boot, cpu};

/// A check that failed.
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    what: &'static str,
    numbers: Option<(u64, u64)>,
}

/// The outcome of a guest, or of a part of it.
pub type Verdict = Result<(), Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.numbers {
            Some((seen, wanted)) => {
                write!(f, "{}: {seen:#x} instead of {wanted:#x}", self.what)
            }
            None => f.write_str(self.what),
        }
    }
}

/// A failure in words alone.
///
/// # Errors
/// Always.
pub fn fail(what: &'static str) -> Verdict {
    Err(Failure {
        what,
        numbers: None,
    })
}

/// Fails unless `holds`.
///
/// # Errors
/// With the sentence `what`.
pub fn check(holds: bool, what: &'static str) -> Verdict {
    if holds { Ok(()) } else { fail(what) }
}

/// Fails unless `seen` is `wanted`.
///
/// # Errors
/// With `what` and both numbers.
pub fn equal(what: &'static str, seen: u64, wanted: u64) -> Verdict {
    if seen == wanted {
        return Ok(());
    }
    Err(Failure {
        what,
        numbers: Some((seen, wanted)),
    })
}

static NAME: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static NAME_LENGTH: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_name(name: &'static str) {
    NAME.store(name.as_ptr().cast_mut(), Ordering::Relaxed);
    NAME_LENGTH.store(name.len(), Ordering::Relaxed);
}

fn name() -> &'static str {
    let name = NAME.load(Ordering::Relaxed);
    if name.is_null() {
        return "?";
    }
    // SAFETY: `set_name` took both from one `&'static str`.
    unsafe {
        str::from_utf8_unchecked(slice::from_raw_parts(
            name,
            NAME_LENGTH.load(Ordering::Relaxed),
        ))
    }
}

/// Prints `underpin-guest: <name>[/<case>] <outcome>`; the case is `do=` on the command line.
pub fn announce(outcome: fmt::Arguments) {
    let name = name();
    match boot::discovered().and_then(|machine| machine.option("do")) {
        Some(case) => {
            console::print_last(format_args!("\nunderpin-guest: {name}/{case} {outcome}"));
        }
        None => console::print_last(format_args!("\nunderpin-guest: {name} {outcome}")),
    }
}

/// Says how it went and turns the machine off.
pub fn finish(verdict: Verdict) -> ! {
    match verdict {
        Ok(()) => announce(format_args!("ok")),
        Err(failure) => announce(format_args!("FAILED {failure}")),
    }
    psci::system_off()
}

#[panic_handler]
fn panic(info: &PanicInfo) -> ! {
    announce(format_args!(
        "FAILED on cpu {}: {}",
        cpu::index(),
        info.message()
    ));
    psci::system_off()
}
