//! Reading and writing system registers by their architectural names.

/// Reads a system register of the executing CPU.
#[macro_export]
macro_rules! read_sysreg {
    ($name:literal) => {{
        let value: u64;
        // SAFETY: reading a system register that EL2 may read changes no memory; callers name
        // registers that exist on every CPU of the baseline or that they have probed.
        unsafe {
            core::arch::asm!(concat!("mrs {}, ", $name), out(reg) value, options(nomem, nostack));
        }
        value
    }};
}

/// Writes a system register of the executing CPU. Expands to an `unsafe` operation's body: the
/// caller's `unsafe` block argues why the new value is sound.
#[macro_export]
macro_rules! write_sysreg {
    ($name:literal, $value:expr) => {
        core::arch::asm!(concat!("msr ", $name, ", {}"), in(reg) $value as u64, options(nostack))
    };
}
