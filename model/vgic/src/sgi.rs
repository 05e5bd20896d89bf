//! Software generated interrupts: what a write to `ICC_SGI*R_EL1` asks for (Arm IHI 0069, 12.2).

use crate::{MAX_VCPUS, VcpuSet};

/// The register an SGI was sent through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SgiRegister {
    /// `ICC_SGI0R_EL1`: group 0 alone.
    Sgi0r,
    /// `ICC_SGI1R_EL1`: with one security state either group, as the receiver has it.
    Sgi1r,
    /// `ICC_ASGI1R_EL1`: with one security state, group 0 alone.
    Asgi1r,
}

/// A decoded SGI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sgi {
    /// The interrupt, 0..=15.
    pub intid: u32,
    /// Who is to get it.
    pub targets: VcpuSet,
    /// Whether it may be a group 1 interrupt at the receiver.
    pub group1_too: bool,
}

impl Sgi {
    /// Decodes `value`, as vCPU `sender` of a VM with `vcpus` vCPUs wrote it to `register`.
    /// Targets that do not exist are left out.
    pub const fn decode(register: SgiRegister, value: u64, sender: usize, vcpus: usize) -> Self {
        let all = VcpuSet::first(vcpus);
        let to_all_others = value & (1 << 40) != 0;
        let cluster = (value >> 16) as u32 & 0xff;
        // Aff3, Aff2 and the range selector of Aff0: zero for every vCPU there is.
        let elsewhere = value & ((0xff << 48) | (0xff << 32) | (0xf << 44)) != 0;
        let targets = if to_all_others {
            all.without(VcpuSet::only(sender))
        } else if elsewhere || cluster >= MAX_VCPUS as u32 / 16 {
            VcpuSet::NONE
        } else {
            VcpuSet((value & 0xffff) << (cluster * 16) & all.0)
        };
        let group1_too = matches!(register, SgiRegister::Sgi1r);
        Self {
            intid: (value >> 24) as u32 & 0xf,
            targets,
            group1_too,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity_of;

    /// Every single target, in VMs of every size, by every affinity near the ones that exist.
    #[test]
    fn each_target_is_the_vcpu_with_that_affinity() {
        for vcpus in 1..=MAX_VCPUS {
            for (cluster, bit) in (0..6u64).flat_map(|c| (0..16u64).map(move |b| (c, b))) {
                let value = cluster << 16 | 1 << bit | 7 << 24;
                let sgi = Sgi::decode(SgiRegister::Sgi1r, value, 0, vcpus);
                let meant = (0..vcpus).find(|&i| u64::from(affinity_of(i)) == cluster << 8 | bit);
                assert_eq!(sgi.targets, meant.map_or(VcpuSet::NONE, VcpuSet::only));
                assert_eq!(sgi.intid, 7);
            }
        }
    }

    #[test]
    fn all_others_leaves_the_sender_out() {
        for vcpus in 1..=MAX_VCPUS {
            for sender in 0..vcpus {
                let sgi = Sgi::decode(SgiRegister::Sgi1r, 1 << 40 | 0xffff, sender, vcpus);
                assert!(sgi.targets.iter().eq((0..vcpus).filter(|&i| i != sender)));
            }
        }
    }

    #[test]
    fn other_affinities_and_ranges_name_nobody() {
        for bit in (32..40).chain(44..48).chain(48..56) {
            let sgi = Sgi::decode(SgiRegister::Sgi1r, 1 << bit | 1, 0, 4);
            assert!(sgi.targets.is_empty(), "bit {bit}");
        }
        for bit in [41, 42, 43, 56, 63, 28, 31] {
            let sgi = Sgi::decode(SgiRegister::Sgi1r, 1 << bit | 1, 0, 4);
            assert_eq!(sgi.targets, VcpuSet(1), "bit {bit} is reserved");
        }
    }

    #[test]
    fn only_sgi1r_reaches_group_1() {
        let group1_too = |register| Sgi::decode(register, 1, 0, 1).group1_too;
        assert!(group1_too(SgiRegister::Sgi1r));
        assert!(!group1_too(SgiRegister::Sgi0r));
        assert!(!group1_too(SgiRegister::Asgi1r));
    }
}
