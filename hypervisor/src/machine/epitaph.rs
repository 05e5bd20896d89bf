//! The end of the machine: a bug of EL2's own prints who, where and with which registers, and
//! stops everything. Nothing that a guest, a disk or a user does leads here.

use crate::machine::{console::last_words, cpu};
use abi::os0::Refusal;
use arch::cpu::{halt, local_word};
use arch::entry::{GuestContext, Syndrome};
use arch::{boot::image_parts, upgrade as metal_upgrade};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use model_addr::Pa;

/// What the image before this one left, as long as this one has not answered; zero otherwise.
static FROM: AtomicU64 = AtomicU64::new(0);
static DYING: AtomicBool = AtomicBool::new(false);

/// From now on this image, if it fails, goes back to the one that left that; to none, where it is zero.
pub fn go_back_to(from: u64) {
    FROM.store(from, Ordering::Release);
}

/// Goes back to the image that left that, which is told why.
pub fn refuse(from: u64, refusal: Refusal) -> ! {
    // SAFETY: the CPU that took over is the only one in this image before it has answered.
    unsafe { metal_upgrade::refuse(Pa(from), refusal.code()) }
}

/// Only the first CPU that dies speaks; the others fall silent. An image that has not yet taken the place
/// of another leaves it to that one.
fn first_or_halt() {
    let from = FROM.load(Ordering::Acquire);
    if from != 0 {
        refuse(from, Refusal::NewFailed);
    }
    if DYING.swap(true, Ordering::SeqCst) {
        halt();
    }
}

fn stop() -> ! {
    last_words(format_args!("underpin: the machine has stopped\n"));
    if let Some(machine) = crate::machine::try_get() {
        machine.power_off();
    }
    halt()
}

fn who() -> u16 {
    if local_word() == 0 {
        0
    } else {
        cpu::this().id.0
    }
}

/// The machine cannot run Underpin: says why, and stops it. No fault of EL2's own.
pub fn give_up(reason: core::fmt::Arguments<'_>) -> ! {
    first_or_halt();
    last_words(format_args!("\nunderpin: cannot start: {reason}\n"));
    stop()
}

/// Where EL2's vectors for its own faults end up (`entry.S`), which lays its registers on the stack as those of a guest are laid.
#[cfg_attr(target_os = "none", unsafe(no_mangle))]
#[cfg_attr(
    not(target_os = "none"),
    expect(
        dead_code,
        reason = "a process has no vectors, and may have two hypervisors"
    )
)]
extern "C" fn hypervisor_fault_report(vector: u64, frame: &GuestContext) -> ! {
    first_or_halt();
    let syndrome = Syndrome::read();
    let kind = [
        "synchronous exception",
        "interrupt",
        "fast interrupt",
        "system error",
    ];
    last_words(format_args!(
        "\nunderpin: EPITAPH: {} in EL2 on cpu {}\n  pc {:#018x} (image + {:#x})  esr {:#010x}  far {:#018x}  pstate {:#x}\n",
        kind[vector as usize & 3],
        who(),
        frame.pc,
        frame.pc.wrapping_sub(image_parts().whole.start.0),
        syndrome.esr,
        syndrome.far,
        frame.pstate,
    ));
    for (n, value) in frame.registers.iter().enumerate() {
        let end = if n % 4 == 3 || n == 30 { "\n" } else { "" };
        last_words(format_args!("  x{n:<2} {value:#018x}{end}"));
    }
    stop()
}

#[cfg(target_os = "none")]
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    first_or_halt();
    last_words(format_args!(
        "\nunderpin: EPITAPH: on cpu {}: {info}\n",
        who()
    ));
    stop()
}
