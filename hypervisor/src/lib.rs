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

/// What a program asks that runs the hypervisor in an ordinary process, while all CPUs sleep. No part of the image.
#[cfg(not(target_os = "none"))]
pub mod outside {
    use crate::devices::network;
    use crate::drivers::disk;
    use crate::life::{self, moving};
    use crate::memory::{frames, heap, sharing};
    use crate::{machine, vms};

    use abi::control::{RawVm, VmName, code};
    use abi::state::{ByteSink, ByteSource, ROOM};
    use alloc::{boxed::Box, string::String, vec, vec::Vec};
    use core::sync::atomic::{AtomicU64, Ordering};
    use machine_locks::{Rank, SpinLock};
    use model_addr::FRAME_SIZE;
    use model_control::Refusal;

    /// Frames that were free, kept for disks and switches, or the heap's, before any VM.
    static BEFORE: AtomicU64 = AtomicU64::new(0);

    fn free_or_known() -> u64 {
        let free = machine::get()
            .node_ids()
            .map(|node| frames::counts(node).free);
        let kept = disk::table_frames() + network::frames();
        free.sum::<u64>() + sharing::accounts().cached() + heap::usage().1 / FRAME_SIZE + kept
    }

    /// Notes the frames of a machine without VMs, at boot.
    pub(crate) fn note_frames() {
        BEFORE.store(free_or_known(), Ordering::Relaxed);
    }

    /// Whether the machine has booted, and VMs may run.
    pub fn has_booted() -> bool {
        BEFORE.load(Ordering::Relaxed) != 0
    }

    /// What is counted of all VMs.
    pub fn vms() -> Vec<RawVm> {
        vms::all()
            .iter()
            .map(|vm| crate::vms::report::read_vm(vm))
            .collect()
    }

    /// What is asked of a CPU about a VM that moves.
    #[derive(Debug)]
    pub enum Ask {
        /// To pause it and say all of it.
        Save(VmName),
        /// To let it go on here.
        GoOn(VmName),
        /// To make it of that, and let it go on.
        Restore(Vec<u8>),
    }

    static ASKED: SpinLock<Option<Ask>> = SpinLock::new(Rank::Vm, None);
    static ANSWER: SpinLock<Option<Result<Vec<u8>, String>>> = SpinLock::new(Rank::Vm, None);

    /// Asks a CPU, once one does what is nobody's in particular.
    pub fn ask(ask: Ask) {
        *ASKED.lock() = Some(ask);
    }

    /// Whoever does what is nobody's in particular is to look.
    pub(crate) fn request() {
        if ASKED.lock().is_some() {
            machine::due::request();
        }
    }

    /// What it has answered.
    pub fn answer() -> Option<Result<Vec<u8>, String>> {
        ANSWER.lock().take()
    }

    /// Does what was asked; a VM that was asked to pause is looked at again until it has.
    pub(crate) fn serve() {
        let Some(ask) = ASKED.lock().take() else {
            return;
        };
        let done = match &ask {
            Ask::Save(name) => save(*name),
            Ask::GoOn(name) => life::resume(*name, true).map(|()| Vec::new()),
            Ask::Restore(bytes) => restore(bytes),
        };
        match done {
            Err(refusal) if refusal.code == code::BUSY => self::ask(ask),
            done => *ANSWER.lock() = Some(done.map_err(|it| it.sentence.as_str().into())),
        }
    }

    fn room() -> Box<[u8; ROOM]> {
        let room = vec![0; ROOM].into_boxed_slice();
        room.try_into().unwrap_or_else(|_| unreachable!())
    }

    fn save(name: VmName) -> Result<Vec<u8>, Refusal> {
        life::pause(name)?;
        let (mut room, mut bytes) = (room(), Vec::new());
        let mut sink = ByteSink::new(&mut room, |part| {
            bytes.extend_from_slice(part);
            true
        });
        moving::save(name, &mut sink)?;
        let lost = || Refusal::new(code::IMPOSSIBLE, 0, format_args!("an item is too long"));
        sink.finish().ok_or_else(lost)?;
        Ok(bytes)
    }

    fn restore(bytes: &[u8]) -> Result<Vec<u8>, Refusal> {
        let (mut room, mut rest) = (room(), bytes);
        let input = |into: &mut [u8]| {
            let part = rest.split_off(..into.len());
            part.map(|part| into.copy_from_slice(part)).is_some()
        };
        let name = moving::restore(&mut ByteSource::new(&mut room, input)?)?;
        life::resume(name, true).map(|()| Vec::new())
    }

    /// Whether nothing is left to do.
    pub fn is_idle() -> bool {
        !machine::due::is_needed()
    }

    /// Frames that are neither free nor kept nor the heap's and were so before any VM: lost ones, once all VMs have ended. Negative
    /// where there are more than there were.
    pub fn frames_missing() -> i64 {
        BEFORE.load(Ordering::Relaxed).cast_signed() - free_or_known().cast_signed()
    }
}
