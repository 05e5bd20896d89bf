//! What QEMU exports, but does not promise: symbols that only its own parts are meant to use.
//!
//! # Soundness
//! All are of QEMU 10.0, and have the signatures below there (include/qemu/timer.h, include/system/cpus.h,
//! include/hw/core/cpu.h, include/system/runstate.h, include/system/system.h); [`crate::prepare`] lets nothing but
//! `qmp_query_version` be called where that is not QEMU's version. They are called with QEMU's big lock held: by a
//! callback of QEMU's that holds it, or before there is a second thread.

use libc::{RTLD_DEFAULT, c_char, c_int, c_void, dlsym};
use std::{
    cell::UnsafeCell,
    ffi::{CStr, CString},
    mem::transmute,
    ptr,
    sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst},
};

/// QEMU's `CPUState`, of which only the address is used.
pub type CpuState = *mut c_void;
/// What a timer calls.
pub type Callback = extern "C" fn(*mut c_void);
/// What QEMU asks about a halted CPU.
pub type IsIdle = extern "C" fn(CpuState) -> bool;
type Notify = extern "C" fn(*mut c_void, *mut c_void);

/// `QEMU_CLOCK_VIRTUAL`, and nanoseconds.
const VIRTUAL: c_int = 1;
const NS: c_int = 1;
/// All timers but those of what is outside the machine (`QEMU_TIMER_ATTR_EXTERNAL`).
const NOT_EXTERNAL: c_int = !1;
/// Where `qemu_icount_bias` is in `TimersState`, in words of 64 bits (system/timers-state.h).
const ICOUNT_BIAS: usize = 5;
/// `use_icount` when the guest's time is counted instructions (`ICOUNT_PRECISE`).
const ICOUNT_PRECISE: c_int = 1;
/// Where functions are in `AccelOpsClass`, in words (include/system/accel-ops.h). The first two are checked.
const START_VCPU_THREAD: usize = 0x78 / 8;
const KICK_VCPU_THREAD: usize = 0x80 / 8;
const CPU_THREAD_IS_IDLE: usize = 0x88 / 8;

/// A `QEMUTimer`, which has 48 bytes.
#[repr(C)]
pub struct Timer(UnsafeCell<[i64; 16]>);

// SAFETY: only QEMU looks into it, under locks of its own.
unsafe impl Sync for Timer {}

impl Timer {
    /// One that QEMU has yet to make.
    pub fn new() -> Self {
        Self(UnsafeCell::new([0; 16]))
    }
}

/// A `Notifier`: a function, and the links of a list.
#[repr(C)]
struct Notifier {
    notify: Notify,
    links: [*mut c_void; 2],
}

#[repr(C)]
struct VersionInfo {
    qemu: *const [i64; 3],
    package: *const c_char,
}

/// The address of a symbol.
#[derive(Clone, Copy)]
struct Address(*mut c_void);

// SAFETY: an address of QEMU's own functions and variables, which are there for every thread.
unsafe impl Sync for Address {}
// SAFETY: the same.
unsafe impl Send for Address {}

impl Address {
    fn of(name: &str) -> Result<Self, String> {
        let name = CString::new(name).map_err(|error| format!("'{name}': {error}"))?;
        symbol(&name).map(Self)
    }
}

/// A symbol of QEMU's.
fn symbol(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name ends with 0, and a search in what is loaded has no other precondition.
    let address = unsafe { dlsym(RTLD_DEFAULT, name.as_ptr()) };
    if address.is_null() {
        return Err(format!(
            "this QEMU does not export '{}', which the clock's plugin needs; use QEMU 10.0 with all symbols exported, as Debian's is",
            name.to_string_lossy()
        ));
    }
    Ok(address)
}

/// Declares [`Private`], and how its symbols are found.
macro_rules! symbols {
    ($($field:ident: $name:literal = fn($($argument:ty),*) $(-> $result:ty)?;)* [$($variable:ident)*]) => {
        /// The symbols, all there.
        pub struct Private {
            $($field: extern "C" fn($($argument),*) $(-> $result)?,)*
            $($variable: Address,)*
        }

        impl Private {
            /// Finds all symbols.
            ///
            /// # Errors
            /// The sentence that names the first that is missing.
            pub fn find() -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        let address = symbol($name)?;
                        // SAFETY: a function with this signature (see Soundness).
                        unsafe {
                            transmute::<*mut c_void, extern "C" fn($($argument),*) $(-> $result)?>(address)
                        }
                    },)*
                    $($variable: Address::of(stringify!($variable))?,)*
                })
            }
        }
    };
}

symbols! {
    add_notifier: c"qemu_add_machine_init_done_notifier" = fn(*mut Notifier);
    accelerator: c"cpus_get_accel" = fn() -> *mut *mut c_void;
    clock_ns: c"qemu_clock_get_ns" = fn(c_int) -> i64;
    deadline_ns: c"qemu_clock_deadline_ns_all" = fn(c_int, c_int) -> i64;
    get_cpu: c"qemu_get_cpu" = fn(c_int) -> CpuState;
    in_vcpu_thread: c"qemu_in_vcpu_thread" = fn() -> bool;
    query_version: c"qmp_query_version" = fn(*mut c_void) -> *const VersionInfo;
    reset_requested: c"qemu_reset_requested_get" = fn() -> c_int;
    shutdown_requested: c"qemu_shutdown_requested_get" = fn() -> c_int;
    timer_del: c"timer_del" = fn(*mut i64);
    timer_init: c"timer_init_full" = fn(*mut i64, *mut c_void, c_int, c_int, c_int, Callback, *mut c_void);
    timer_mod: c"timer_mod_ns" = fn(*mut i64, i64);
    [rr_start_vcpu_thread rr_kick_vcpu_thread timers_state use_icount qtest_allowed]
}

impl Private {
    /// QEMU's version: major, minor, micro.
    pub fn version(&self) -> [i64; 3] {
        // Where to put an error: nowhere.
        let info = (self.query_version)(ptr::null_mut());
        // SAFETY: what the command gives is a structure of a pointer to three numbers, which is never freed.
        unsafe {
            if info.is_null() || (*info).qemu.is_null() {
                return [0; 3];
            }
            *(*info).qemu
        }
    }

    /// Whether the guest's time is counted instructions.
    pub fn counts_instructions(&self) -> bool {
        // SAFETY: a variable of this type (include/exec/icount.h), which is set before any CPU exists.
        unsafe { self.use_icount.0.cast::<c_int>().read() == ICOUNT_PRECISE }
    }

    /// Has a function called once the machine is made.
    pub fn when_machine_is_made(&self, notify: Notify) {
        // QEMU keeps it in a list for ever.
        let notifier = Box::leak(Box::new(Notifier {
            notify,
            links: [ptr::null_mut(); 2],
        }));
        (self.add_notifier)(notifier);
    }

    /// Has QEMU ask `is_idle`, and its main thread never leap.
    ///
    /// # Errors
    /// QEMU's insides are not as they are known.
    pub fn take_over(&self, is_idle: IsIdle) -> Result<(), String> {
        let operations = (self.accelerator)();
        // SAFETY: `AccelOpsClass` has more words than these; no CPU runs yet, so nobody else uses it.
        let is_known = unsafe {
            operations.add(START_VCPU_THREAD).read() == self.rr_start_vcpu_thread.0
                && operations.add(KICK_VCPU_THREAD).read() == self.rr_kick_vcpu_thread.0
                && operations.add(CPU_THREAD_IS_IDLE).read().is_null()
        };
        if !is_known {
            return Err(
                "the functions of this QEMU's accelerator are not where the clock's plugin knows them; install QEMU 10.0, and add '-accel tcg,thread=single'"
                    .into(),
            );
        }
        // SAFETY: the place of a function of this type, which is still empty. The flag is a `bool`. A CPU that is
        // stopped for a reset counts as idle before QEMU asks, and then the main thread would leap all the same: not
        // while it believes that qtest moves the clock. Nothing else looks at the flag once the machine is made.
        unsafe {
            operations
                .add(CPU_THREAD_IS_IDLE)
                .write(is_idle as *mut c_void);
            AtomicBool::from_ptr(self.qtest_allowed.0.cast()).store(true, SeqCst);
        }
        Ok(())
    }

    /// Whether the calling thread is the one that runs CPUs.
    pub fn runs_cpus(&self) -> bool {
        (self.in_vcpu_thread)()
    }

    /// Whether the machine is to be reset or to end.
    pub fn is_to_stop(&self) -> bool {
        (self.reset_requested)() != 0 || (self.shutdown_requested)() != 0
    }

    /// The CPU with a number; null where there is none.
    pub fn cpu(&self, number: c_int) -> CpuState {
        (self.get_cpu)(number)
    }

    /// The counted clock, in nanoseconds.
    pub fn now(&self) -> i64 {
        (self.clock_ns)(VIRTUAL)
    }

    /// Nanoseconds until the machine's next timer; none where there is no timer.
    pub fn until_next_timer(&self) -> Option<i64> {
        let ahead = (self.deadline_ns)(VIRTUAL, NOT_EXTERNAL);
        (ahead >= 0).then_some(ahead)
    }

    /// How much the clock is ahead of counted instructions, in nanoseconds: the sum of all leaps.
    pub fn bias_ns(&self) -> i64 {
        self.bias().load(SeqCst)
    }

    /// Moves the clock.
    pub fn add_to_bias(&self, ns: i64) {
        self.bias().fetch_add(ns, SeqCst);
    }

    fn bias(&self) -> &AtomicI64 {
        let words = self.timers_state.0.cast::<i64>();
        // SAFETY: `timers_state` is longer than this, and QEMU, too, reads and writes this word atomically.
        unsafe { AtomicI64::from_ptr(words.add(ICOUNT_BIAS)) }
    }

    /// Makes a timer of the counted clock.
    pub fn make_timer(&self, timer: &'static Timer, fires: Callback) {
        let none = ptr::null_mut();
        (self.timer_init)(timer.0.get().cast(), none, VIRTUAL, NS, 0, fires, none);
    }

    /// Lets a timer fire at a moment.
    pub fn arm(&self, timer: &Timer, due: i64) {
        (self.timer_mod)(timer.0.get().cast(), due);
    }

    /// Lets a timer not fire.
    pub fn disarm(&self, timer: &Timer) {
        (self.timer_del)(timer.0.get().cast());
    }
}
