//! What QEMU exports, but does not promise: symbols that only its own parts are meant to use.
//!
//! The plugin interface gives a wrong CPU number where one thread runs all CPUs and blocks of code are shared among them
//! (accel/tcg/plugin-gen.c, `gen_cpu_index`), cannot end a CPU's turn, and neither tells nor moves the time. So plugins ask
//! QEMU itself.
//!
//! # Soundness
//! All are of QEMU 10.0, and have the signatures below there (include/qemu/timer.h, include/system/cpus.h,
//! include/hw/core/cpu.h, include/net/net.h, include/system/runstate.h, include/system/system.h, qapi/qapi-commands-control.h); `find` calls
//! nothing but `qmp_query_version`, whose signature has been this one since QEMU 2, where that is not QEMU's version.
//! They are called with QEMU's big lock held: by a callback of QEMU's that holds it, or before there is a second thread.
//! Those of which that is not true say so.

use crate::net::Info;
use libc::{RTLD_DEFAULT, c_char, c_int, c_void, dlsym};
use std::{
    cell::UnsafeCell,
    ffi::{CStr, CString},
    mem::transmute,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicI64, Ordering::SeqCst},
    },
};

/// QEMU's `CPUState`, of which only the address is used.
pub type CpuState = *mut c_void;
/// What a timer calls.
pub type Callback = extern "C" fn(*mut c_void);
/// What QEMU asks about a halted CPU.
pub type IsIdle = extern "C" fn(CpuState) -> bool;
/// What is called once the machine is made.
pub type Notify = extern "C" fn(*mut c_void, *mut c_void);

/// `QEMU_CLOCK_VIRTUAL`, and nanoseconds.
const VIRTUAL: c_int = 1;
const NS: c_int = 1;
/// All timers (`QEMU_TIMER_ATTR_ALL`).
const ALL: c_int = !0;
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
    #[expect(
        clippy::new_without_default,
        reason = "none is of use before make_timer"
    )]
    pub const fn new() -> Self {
        Self(UnsafeCell::new([0; 16]))
    }
}

/// The byte array of glib, which QEMU fills with a register.
#[repr(C)]
pub struct ByteArray {
    /// The bytes.
    pub data: *const u8,
    /// How many there are.
    pub len: u32,
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
            "this QEMU does not export '{}', which the plugin needs; use QEMU 10.0 with all symbols exported, as Debian's is",
            name.to_string_lossy()
        ));
    }
    Ok(address)
}

/// Declares [`Qemu`], and how its symbols are found.
macro_rules! symbols {
    ($($field:ident: $name:literal = fn($($argument:ty),*) $(-> $result:ty)?;)* [$($variable:ident)*]) => {
        /// The symbols, all there.
        pub struct Qemu {
            $($field: extern "C" fn($($argument),*) $(-> $result)?,)*
            $($variable: Address,)*
        }

        impl Qemu {
            /// Finds all symbols; the sentence of a failure names the first that is missing.
            fn symbols() -> Result<Self, String> {
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
    all_idle: c"all_cpu_threads_idle" = fn() -> bool;
    accelerator: c"cpus_get_accel" = fn() -> *mut *mut c_void;
    clock_ns: c"qemu_clock_get_ns" = fn(c_int) -> i64;
    deadline_ns: c"qemu_clock_deadline_ns_all" = fn(c_int, c_int) -> i64;
    flush_packets: c"qemu_flush_queued_packets" = fn(*mut c_void);
    new_client: c"qemu_new_net_client" = fn(*const Info, *mut c_void, *const c_char, *const c_char) -> *mut c_void;
    run_timers: c"qemu_clock_run_timers" = fn(c_int) -> bool;
    send_packet: c"qemu_send_packet" = fn(*mut c_void, *const u8, c_int) -> isize;
    exit_cpu: c"cpu_exit" = fn(CpuState);
    get_cpu: c"qemu_get_cpu" = fn(c_int) -> CpuState;
    in_vcpu_thread: c"qemu_in_vcpu_thread" = fn() -> bool;
    new_array: c"g_byte_array_new" = fn() -> *mut ByteArray;
    query_version: c"qmp_query_version" = fn(*mut c_void) -> *const VersionInfo;
    reset_requested: c"qemu_reset_requested_get" = fn() -> c_int;
    shutdown_requested: c"qemu_shutdown_requested_get" = fn() -> c_int;
    timer_del: c"timer_del" = fn(*mut i64);
    timer_init: c"timer_init_full" = fn(*mut i64, *mut c_void, c_int, c_int, c_int, Callback, *mut c_void);
    timer_mod: c"timer_mod_ns" = fn(*mut i64, i64);
    [rr_start_vcpu_thread rr_kick_vcpu_thread timers_state use_icount qtest_allowed]
}

static QEMU: OnceLock<Qemu> = OnceLock::new();

impl Qemu {
    /// Finds all symbols.
    ///
    /// # Errors
    /// A symbol is missing, or this is another version of QEMU.
    pub fn find() -> Result<&'static Self, String> {
        let found = Self::symbols()?;
        // Asked for once more by the thread that runs CPUs, but missed here already.
        symbol(c"current_cpu")?;
        let [major, minor, micro] = found.version();
        if (major, minor) != (10, 0) {
            return Err(format!(
                "this is QEMU {major}.{minor}.{micro}, but the plugin knows the insides of QEMU 10.0 only; install that"
            ));
        }
        Ok(QEMU.get_or_init(|| found))
    }

    /// QEMU's version: major, minor, micro.
    fn version(&self) -> [i64; 3] {
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

    /// Fails where the guest's time is not counted instructions.
    ///
    /// # Errors
    /// The sentence for the user.
    pub fn must_count(&self) -> Result<(), String> {
        // SAFETY: a variable of this type (include/exec/icount.h), which is set before any CPU exists.
        let counts = unsafe { self.use_icount.0.cast::<c_int>().read() == ICOUNT_PRECISE };
        if counts {
            Ok(())
        } else {
            Err("QEMU must count instructions: add '-icount shift=0,sleep=off'".into())
        }
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
    pub(crate) fn take_over(&self, is_idle: IsIdle) -> Result<(), String> {
        let operations = (self.accelerator)();
        // SAFETY: `AccelOpsClass` has more words than these; no CPU runs yet, so nobody else uses it.
        let (is_known, is_empty) = unsafe {
            (
                operations.add(START_VCPU_THREAD).read() == self.rr_start_vcpu_thread.0
                    && operations.add(KICK_VCPU_THREAD).read() == self.rr_kick_vcpu_thread.0,
                operations.add(CPU_THREAD_IS_IDLE).read().is_null(),
            )
        };
        if !is_known {
            return Err(
                "the functions of this QEMU's accelerator are not where the plugin knows them; install QEMU 10.0, and add '-accel tcg,thread=single'"
                    .into(),
            );
        }
        if !is_empty {
            return Err("two plugins move the counted clock; load libsim_wire.so or libsim_clock.so, not both".into());
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
        (self.reset_requested)() != 0 || self.is_to_end()
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

    /// What QEMU says of its CPUs, where it asks the hook of [`Qemu::take_over`] about each that is halted.
    pub(crate) fn are_all_idle(&self) -> bool {
        (self.all_idle)()
    }

    /// The counted clock, in nanoseconds.
    pub fn now(&self) -> i64 {
        (self.clock_ns)(VIRTUAL)
    }

    /// Nanoseconds until the next timer of all; none where there is no timer.
    pub fn until_any_timer(&self) -> Option<i64> {
        let ahead = (self.deadline_ns)(VIRTUAL, ALL);
        (ahead >= 0).then_some(ahead)
    }

    /// Whether the machine is to end.
    pub fn is_to_end(&self) -> bool {
        (self.shutdown_requested)() != 0
    }

    /// Runs the timers that are due, in the thread that runs CPUs.
    pub fn run_timers(&self) {
        (self.run_timers)(VIRTUAL);
    }

    pub(crate) fn new_client(&self, info: &'static Info, name: &'static CStr) -> *mut c_void {
        (self.new_client)(info, ptr::null_mut(), name.as_ptr(), name.as_ptr())
    }

    pub(crate) fn send_packet(&self, client: *mut c_void, frame: &[u8]) -> isize {
        (self.send_packet)(client, frame.as_ptr(), frame.len() as c_int)
    }

    pub(crate) fn flush_packets(&self, client: *mut c_void) {
        (self.flush_packets)(client);
    }

    /// Nanoseconds until the machine's next timer; none where there is no timer.
    pub fn until_next_timer(&self) -> Option<i64> {
        let ahead = (self.deadline_ns)(VIRTUAL, NOT_EXTERNAL);
        (ahead >= 0).then_some(ahead)
    }

    /// How much the clock is ahead of counted instructions, in nanoseconds: the sum of all leaps. Any thread may ask.
    #[inline]
    pub fn bias_ns(&self) -> i64 {
        self.bias().load(SeqCst)
    }

    /// Moves the clock.
    pub(crate) fn add_to_bias(&self, ns: i64) {
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
        // SAFETY: a thread's variable lives as long as the thread. `Current` is neither `Send` nor `Sync`.
        unsafe { self.0.read_volatile() }
    }
}
