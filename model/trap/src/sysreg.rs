//! Names of system registers.

use core::fmt;

/// A system register, by the five numbers that encode it in MRS and MSR: 16 bits that order and
/// match like an integer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SysregId(pub u16);

impl SysregId {
    /// The register that MRS and MSR encode as `S<op0>_<op1>_C<crn>_C<crm>_<op2>`; numbers that
    /// are too large for their field are cut.
    pub const fn new(op0: u8, op1: u8, crn: u8, crm: u8, op2: u8) -> Self {
        Self(
            (op0 as u16 & 3) << 14
                | (op1 as u16 & 7) << 11
                | (crn as u16 & 15) << 7
                | (crm as u16 & 15) << 3
                | op2 as u16 & 7,
        )
    }

    /// Its op0, 0 to 3.
    pub const fn op0(self) -> u8 {
        (self.0 >> 14) as u8
    }

    /// Its op1, 0 to 7.
    pub const fn op1(self) -> u8 {
        (self.0 >> 11 & 7) as u8
    }

    /// Its CRn, 0 to 15.
    pub const fn crn(self) -> u8 {
        (self.0 >> 7 & 15) as u8
    }

    /// Its CRm, 0 to 15.
    pub const fn crm(self) -> u8 {
        (self.0 >> 3 & 15) as u8
    }

    /// Its op2, 0 to 7.
    pub const fn op2(self) -> u8 {
        (self.0 & 7) as u8
    }

    /// Whether it is in the space of ID registers that HCR_EL2.TID3 traps: op0 = 3, op1 = 0,
    /// CRn = 0, CRm = 1 to 7.
    pub const fn is_id(self) -> bool {
        self.0 >> 7 == Self::new(3, 0, 0, 0, 0).0 >> 7 && matches!(self.crm(), 1..=7)
    }
}

impl fmt::Debug for SysregId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As assemblers take it.
impl fmt::Display for SysregId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op0, op1, op2) = (self.op0(), self.op1(), self.op2());
        write!(f, "S{op0}_{op1}_C{}_C{}_{op2}", self.crn(), self.crm())
    }
}

/// A trapped MRS, MSR or system instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SysregAccess {
    /// Which register.
    pub register: SysregId,
    /// The general-purpose register it is read into or written from; 31 is the zero register.
    pub rt: u8,
    /// Whether it is read (MRS).
    pub is_read: bool,
}

impl SysregAccess {
    /// From the ISS of an exception of class 0x18 (Arm ARM: "ISS encoding for an exception from
    /// MSR, MRS, or System instruction execution").
    pub(crate) const fn from_iss(iss: u32) -> Self {
        let register = SysregId::new(
            (iss >> 20) as u8,
            (iss >> 14) as u8,
            (iss >> 10) as u8,
            (iss >> 1) as u8,
            (iss >> 17) as u8,
        );
        Self {
            register,
            rt: (iss >> 5 & 31) as u8,
            is_read: iss & 1 != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::string::ToString;

    #[test]
    fn numbers_come_back() {
        // ICC_SGI1R_EL1.
        let register = SysregId::new(3, 0, 12, 11, 5);
        assert_eq!(register.to_string(), "S3_0_C12_C11_5");
        assert!(!register.is_id());
        assert!(SysregId::new(3, 0, 0, 4, 0).is_id());
        assert!(!SysregId::new(3, 0, 0, 0, 0).is_id());
        assert!(!SysregId::new(3, 3, 0, 1, 0).is_id());
        assert!(!SysregId::new(3, 0, 1, 1, 0).is_id());
    }
}
