//! Reading and writing system registers by their architectural names.

/// Reads a system register of the executing CPU.
#[macro_export]
macro_rules! read_sysreg {
    ($name:literal) => {
        $crate::registers::read(const { $crate::registers::number($name) })
    };
}

/// Writes a system register of the executing CPU. Expands to an `unsafe` operation's body, as on AArch64.
#[macro_export]
macro_rules! write_sysreg {
    ($name:literal, $value:expr) => {
        $crate::registers::write(const { $crate::registers::number($name) }, $value as u64)
    };
}
