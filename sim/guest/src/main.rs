//! A bare program without MMU, heap or stack, whose misses and time are known beforehand. It is
//! wholly in assembly, because each of its instructions counts.
#![no_std]
#![no_main]

core::arch::global_asm!(include_str!("work.S"));

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
