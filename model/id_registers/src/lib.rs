//! Which CPU features a guest is shown, by table.
//!
//! A feature is shown only when Underpin saves, restores and confines it; a feature that makes
//! guests safe (CSV2, CSV3, SSBS, E0PD, ECBHB and their like) is passed through, since hiding it
//! makes them slow or vulnerable. [`registers`] is the table, with a reason for every field.
//!
//! The registers are those that HCR_EL2.TID3 traps: op0 = 3, op1 = 0, CRn = 0, CRm = 1 to 7
//! (Arm ARM DDI 0487, section D24.2). Names and values of fields are the Arm ARM's. What the
//! table does not name reads as zero, as the architecture wants of registers it has not yet
//! defined; so do those of AArch32 (CRm 1 to 3), which no guest is shown.
#![no_std]
#![forbid(unsafe_code)]

mod table;
pub mod traps;

pub use table::{Field, Limit, Order, Register, registers};

/// CRm 0 to 7, op2 0 to 7. The row of CRm = 0 stays zero: it makes the index three bits of each.
const COUNT: usize = 64;

/// Where the register of this CRm and op2 is; larger numbers are cut to three bits.
const fn index(crm: u8, op2: u8) -> usize {
    (crm as usize & 7) << 3 | op2 as usize & 7
}

/// What the machine's CPUs have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostIdRegisters([u64; COUNT]);

impl HostIdRegisters {
    /// The registers of one CPU, by `read(CRm, op2)`. What the table does not name is dropped.
    pub fn new(mut read: impl FnMut(u8, u8) -> u64) -> Self {
        let mut values = [0; COUNT];
        for register in registers() {
            let mask = register
                .fields
                .iter()
                .fold(0, |mask, field| mask | field.mask());
            let value = read(register.crm, register.op2) & mask;
            values[index(register.crm, register.op2)] = value;
        }
        Self(values)
    }

    /// What both have: of each field the value that promises less. Guests run on every CPU.
    #[must_use]
    pub fn minimum(self, other: Self) -> Self {
        self.map_fields(|field, host, index| field.order.lesser(host, field.get(other.0[index])))
    }

    /// The register of this CRm (1 to 7) and op2.
    pub const fn get(&self, crm: u8, op2: u8) -> u64 {
        self.0[index(crm, op2)]
    }

    /// Applies `change` to each field's value; it is also told the register's index.
    fn map_fields(&self, change: impl Fn(&Field, u8, usize) -> u8) -> Self {
        let mut values = [0; COUNT];
        for register in registers() {
            let index = index(register.crm, register.op2);
            for field in register.fields {
                values[index] |= field.put(change(field, field.get(self.0[index]), index));
            }
        }
        Self(values)
    }
}

/// What the owner of a VM, or the state of Underpin, lets a guest have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Bits of the guest-physical address space; at least 32.
    pub pa_bits: u8,
    /// Whether pointer authentication is switched on (HCR_EL2.API and APK) and its keys follow
    /// a vCPU.
    pub pointer_auth: bool,
    /// Whether the memory copy and set instructions are switched on (HCRX_EL2.MSCEn).
    pub mops: bool,
}

/// What a guest is shown: frozen when the VM is made, since kernels look once. By default nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestIdRegisters([u64; COUNT]);

impl Default for GuestIdRegisters {
    fn default() -> Self {
        Self([0; COUNT])
    }
}

impl GuestIdRegisters {
    /// What `host` has and the table and `shown` allow. No field promises more than the host's.
    pub fn new(host: &HostIdRegisters, shown: Shown) -> Self {
        let limited = host.map_fields(|field, value, _| match field.limit.value(shown) {
            Some(limit) => field.order.lesser(value, limit),
            None => value,
        });
        Self(limited.0)
    }

    /// What a guest is shown that runs on several hosts, which have `common` together. Without hardware updates of access and
    /// dirty flags, which would make each walk of the guest's tables a write of their pages.
    #[must_use]
    pub fn spanning(&self, common: HostIdRegisters) -> Self {
        let both = HostIdRegisters(self.0).minimum(common);
        let shown = both.map_fields(|field, value, _| match field.name {
            "HAFDBS" => 0,
            _ => value,
        });
        Self(shown.0)
    }

    /// What a trapped read of the register of this CRm (1 to 7) and op2 gives: one load.
    #[inline]
    pub const fn read(&self, crm: u8, op2: u8) -> u64 {
        self.0[index(crm, op2)]
    }
}
