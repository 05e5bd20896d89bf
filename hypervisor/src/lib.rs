//! Underpin at EL2: the model wired to the metal.
//!
//! Read [`primary`] for what happens at boot, `run/entry.rs` for how a guest runs, `run/exit/` for
//! why it stops, and `vcpu/sched.rs` for who runs next. Where the boot loader brought an operating system
//! that is to own the machine, `beneath/` starts it instead.
//!
//! # Soundness
//!
//! Unsafe code is where Rust cannot know what the boot protocol, the device tree or the pools
//! promise: the first references to memory that the boot loader filled (`start/`), per-CPU
//! structures behind `TPIDR_EL2` (`machine/cpu.rs`), frames that the pools gave to nobody else (`memory/heap.rs`,
//! `memory/frames.rs`, `drivers/queue.rs`, `cluster/room.rs`), and entering a guest whose stage 2 maps its own frames alone
//! (`run/`). No reference to memory that a guest or a device may write is ever formed.
#![no_std]

extern crate alloc;
#[cfg(target_os = "none")]
extern crate machine_aarch64 as arch;
#[cfg(not(target_os = "none"))]
extern crate machine_host as arch;

mod beneath;
mod cluster;
mod control;
mod devices;
mod drivers;
mod economy;
mod guest;
mod life;
mod machine;
mod memory;
#[cfg(not(target_os = "none"))]
pub mod outside;
mod placement;
mod run;
mod start;
mod vcpu;
mod vms;

use control::tracing;
use machine::{cpu, entropy};
use memory::sharing;
use vcpu::sched;

/// Runs the first CPU, which arrives at EL2 with the MMU off and the address of the machine's device tree; or
/// from another image, whose place this one takes.
pub fn primary(device_tree: u64, mark: u64) -> ! {
    // Both return, so that what they had on the stack is gone.
    if mark == abi::upgrade::TAKE_OVER {
        beneath::take_over(device_tree);
    } else {
        start_up(device_tree);
    }
    if machine::os0::is_here() {
        beneath::arrive();
    }
    life::init();
    start::release_cpus();
    run::cpu_loop::run_forever(cpu::this())
}

/// Readies the first CPU, and a machine without OS-0 for VMs.
#[inline(never)]
fn start_up(device_tree: u64) {
    let (tree, blob) = start::read_device_tree(device_tree);
    let mut map = start::turn_mmu_on(&tree, blob);
    start::connect();
    start::open_console(&tree);
    entropy::init(&tree, blob);
    if tree.os0.is_some() {
        return beneath::start(tree, blob, map);
    }
    start::take_memory(tree, blob);
    start::first_cpu();
    start::other_cpus(&mut map);
    sched::init();
    start::devices();
    start::say_what_was_found();
    sharing::init();
    placement::init();
    tracing::init();
    #[cfg(not(target_os = "none"))]
    outside::note_frames();
    cluster::init();
}

/// Runs every other CPU, which arrives with the MMU on, its stack and its per-CPU word set.
pub fn secondary() -> ! {
    if machine::os0::is_here() {
        beneath::arrive();
    }
    start::this_cpu(cpu::this());
    start::wait_for_release();
    run::cpu_loop::run_forever(cpu::this())
}
