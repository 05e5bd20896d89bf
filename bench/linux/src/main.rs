//! The first program of a Linux guest: measures what the kernel's services cost and powers off.
//!
//! Each line is `bench: KEY NS`, in nanoseconds of the guest's clock for one operation. They are
//! exact where a simulator makes that clock of instructions (QEMU, `-icount shift=1,sleep=off`).
//! A run that cannot go on says `bench: failed WHY`.
#![forbid(unsafe_code)]

mod clock;
mod console;
mod disk;
mod memory;
mod network;
mod process;
mod reading;
mod reports;
mod wake;

use rustix::{
    mount::{MountFlags, mount},
    rand::{GetRandomFlags, getrandom},
    system::{RebootCommand, init_module, reboot},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::{
    env, error::Error, fs, hint::black_box, process::Command, thread::sleep, time::Duration,
};

/// What a part of the run gives, or why it cannot go on.
type Outcome = Result<(), Box<dyn Error>>;

/// What the kernel puts off until after boot is done by then.
const SETTLE: Duration = Duration::from_secs(3);
/// The argument that asks for the use of a shared region; then come what the program for that takes.
const REGION: &str = "region";
/// Iterations of the CPU loop that are one operation.
const SPINS: u64 = 1000;

fn main() {
    let started = clock::since_start();
    // The benchmark runs itself again where it needs another process.
    match env::args().nth(1).as_deref() {
        Some(process::EXIT) => {}
        Some(process::ECHO) => process::echo(),
        Some(reading::READ) => {
            let number = |n| env::args().nth(n).and_then(|word| word.parse().ok());
            let [wait, touched] = [2, 3].map(|n| number(n).unwrap_or(0));
            let read = || reading::measure("/dev/vda", wait as u64, touched);
            end(start().and_then(|()| read()));
        }
        Some(network::NETWORK) => talk(),
        Some(REGION) => end(start().and_then(|()| use_region())),
        Some(reports::REPORTS) => end(start().map(|()| reports::measure())),
        _ => end(run(started)),
    }
}

/// Lets the program that uses shared regions do what the arguments say, and stays.
fn use_region() -> Outcome {
    fs::create_dir("/sys")?;
    mount("sysfs", "/sys", "sysfs", MountFlags::empty(), None)?;
    let status = Command::new("/region").args(env::args().skip(2)).status()?;
    if !status.success() {
        return Err(format!("region: {status}").into());
    }
    println!("bench: done");
    sleep(Duration::MAX);
    Ok(())
}

/// Plays a role on the network; the machine's first program brings it up, and stays.
fn talk() {
    let word = |n| env::args().nth(n).unwrap_or_default();
    let [role, own, server] = [2, 3, 4].map(word);
    let is_first = std::process::id() == 1;
    let up = || start().and_then(|()| network::bring_up(&own));
    let ready = if is_first { up() } else { Ok(()) };
    match ready.and_then(|()| network::play(&role, &own, &server)) {
        Ok(()) => println!("bench: done"),
        Err(why) => println!("bench: failed {why}"),
    }
    if is_first {
        sleep(Duration::MAX);
    }
}

/// Says what went wrong, and powers off.
fn end(outcome: Outcome) {
    if let Err(why) = outcome {
        println!("bench: failed {why}");
    }
    // A machine that cannot be powered off is ended by whoever watches it.
    let _ = reboot(RebootCommand::PowerOff);
}

/// Loads the drivers, and waits until the kernel has settled.
fn start() -> Outcome {
    mount("dev", "/dev", "devtmpfs", MountFlags::empty(), None)?;
    for module in fs::read_to_string("/modules.order")?.lines() {
        init_module(&fs::read(format!("/modules/{module}"))?, c"")?;
    }
    // Waits for the pool of random numbers: while it is empty, each system call pays for that.
    getrandom(&mut [0_u8; 8], GetRandomFlags::empty())?;
    sleep(SETTLE);
    Ok(())
}

fn run(started: f64) -> Outcome {
    start()?;
    let cpus = sched_getaffinity(None)?.count();
    pin(0)?;
    clock::report("boot_to_init", started);
    clock::measure("cpu_loop", 25_000, || {
        for i in 0..SPINS {
            black_box(i);
        }
    });
    clock::measure("null_syscall", 20_000, || {
        black_box(rustix::process::getppid());
    });
    process::measure()?;
    memory::measure();
    clock::overshoot("sleep_1ms", 200, Duration::from_millis(1));
    if cpus > 1 {
        wake::measure()?;
    }
    console::measure("console_pl011", "/dev/ttyAMA0")?;
    console::measure("console_virtio", "/dev/hvc0")?;
    disk::measure("/dev/vda")?;
    println!("bench: done");
    Ok(())
}

/// Keeps the calling thread, and what it starts, on one CPU.
fn pin(cpu: usize) -> rustix::io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}
