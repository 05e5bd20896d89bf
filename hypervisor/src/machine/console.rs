//! EL2's own voice: a levelled, rate-limited log on the machine's PL011; in a ring that OS-0 can read
//! once the PL011 is its.

use crate::machine;
use arch::{timer, uart::Uart};
use core::fmt::Write;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use log::{Level, LevelFilter, Log, Metadata, Record};
use machine_locks::{Once, Rank, SpinLock};
use model_log_ring::LogRing;

/// Lines a second that are printed; what comes beyond is counted. Warnings and errors have twice
/// as much. Who checks the life of a simulated machine goes by its lines, and needs them all.
const LINES_PER_SECOND: u64 = if cfg!(target_os = "none") {
    100
} else {
    u64::MAX / 2
};

/// Bytes of the log that are kept for OS-0.
const KEPT: usize = 8 << 10;

/// Leaves the UART to OS-0, which drives it from now on. What EL2 logs is kept for [`read_back`]; its
/// last words are still said.
pub fn hand_over() {
    CONSOLE.handed_over.store(true, Ordering::Release);
}

/// Copies what was logged from position `from` on since [`hand_over`]; gives the position behind it and
/// the number of bytes.
pub fn read_back(from: u64, into: &mut [u8]) -> (u64, usize) {
    CONSOLE.ring.lock().read(from, into)
}

struct Console {
    handed_over: AtomicBool,
    uart: Once<SpinLock<Uart>>,
    copy: Once<Uart>,
    ring: SpinLock<LogRing<KEPT>>,
    second: AtomicU64,
    lines: AtomicU64,
    dropped: AtomicU64,
}

static CONSOLE: Console = Console {
    handed_over: AtomicBool::new(false),
    uart: Once::new(),
    copy: Once::new(),
    ring: SpinLock::new(Rank::Console, LogRing::empty()),
    second: AtomicU64::new(0),
    lines: AtomicU64::new(0),
    dropped: AtomicU64::new(0),
};

/// Starts the log on `uart`. `level` is what EL2's command line says behind `log=`: error, warn, info,
/// debug or trace; info where it says nothing.
pub fn init(uart: Uart, level: Option<&str>) {
    let level = level
        .and_then(|level| level.parse().ok())
        .unwrap_or(LevelFilter::Info);
    let _ = CONSOLE.copy.set(uart);
    if CONSOLE.uart.set(SpinLock::new(Rank::Console, uart)).is_ok()
        && log::set_logger(&CONSOLE).is_ok()
    {
        log::set_max_level(level);
    }
}

/// Writes last words: without waiting for whoever holds the log, who may be this CPU.
pub fn last_words(words: core::fmt::Arguments<'_>) {
    let Some(uart) = CONSOLE.uart.get() else {
        return;
    };
    let mut copy = uart
        .try_lock()
        .map_or_else(|| CONSOLE.copy.get().copied(), |uart| Some(*uart));
    if let Some(uart) = &mut copy {
        let _ = uart.write_fmt(words);
    }
}

/// Says something where people see it, on the machine's console, though that be OS-0's; and logs it.
pub fn announce(words: core::fmt::Arguments<'_>) {
    log::warn!("{words}");
    last_words(format_args!("\r\nunderpin: {words}\r\n"));
}

impl Console {
    /// Whether one more line may be printed in this second.
    fn admit(&self, level: Level) -> bool {
        let second = timer::now() / timer::frequency().max(1);
        if self.second.swap(second, Ordering::Relaxed) != second {
            self.lines.store(0, Ordering::Relaxed);
        }
        let limit = if level <= Level::Warn {
            2 * LINES_PER_SECOND
        } else {
            LINES_PER_SECOND
        };
        self.lines.fetch_add(1, Ordering::Relaxed) < limit
    }
}

impl Console {
    fn write(&self, to: &mut impl Write, record: &Record<'_>) {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        let micros = machine::nanoseconds(timer::now()) / 1000;
        if dropped > 0 {
            let _ = writeln!(to, "underpin: {dropped} lines dropped");
        }
        let _ = writeln!(
            to,
            "underpin [{:4}.{:06}] {:5} {}",
            micros / 1_000_000,
            micros % 1_000_000,
            name(record.level()),
            record.args()
        );
    }
}

impl Log for Console {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let Some(uart) = self.uart.get() else { return };
        if !self.admit(record.level()) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        } else if self.handed_over.load(Ordering::Acquire) {
            self.write(&mut *self.ring.lock(), record);
        } else {
            self.write(&mut *uart.lock(), record);
        }
    }

    fn flush(&self) {}
}

const fn name(level: Level) -> &'static str {
    match level {
        Level::Error => "error",
        Level::Warn => "warn",
        Level::Info => "info",
        Level::Debug => "debug",
        Level::Trace => "trace",
    }
}
