//! A bare program that sleeps 20,000 times, each time until a timer and after a few instructions, as many as chance has
//! it, and prints a sum of all times at which it woke.
#![no_std]
#![no_main]

core::arch::global_asm!(include_str!("sleeps.S"));

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
