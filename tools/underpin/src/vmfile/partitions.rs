//! What VMs use partitions of the machine's disks for.

use super::{Backing, Base, VmFile};
use crate::failure::{Failure, exit};

/// One use of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// Below an overlay: only read.
    Base,
    /// For what is written over a base.
    Overlay,
    /// A disk that stays.
    Persistent,
    /// For memory.
    Swap,
}

impl Use {
    /// Whether it leaves behind what nobody can use.
    fn is_scratch(self) -> bool {
        matches!(self, Self::Overlay | Self::Swap)
    }

    fn words(self) -> &'static str {
        match self {
            Self::Base => "the base of a disk",
            Self::Overlay => "where an overlay is",
            Self::Persistent => "a persistent disk",
            Self::Swap => "the swap",
        }
    }
}

/// Pairs of uses that cannot be meant: of one VM, a partition for something beside another thing; of
/// any two, as a base, and as what is overwritten.
pub fn conflicts(vms: &[VmFile]) -> Vec<Failure> {
    let all: Vec<_> = vms.iter().flat_map(uses).collect();
    let mut failures = Vec::new();
    for (n, (name, one, its)) in all.iter().enumerate() {
        for (_, other, others) in all.iter().skip(n + 1).filter(|(it, ..)| it == name) {
            let (uses, is_one) = ([*its, *others], one == other);
            let is_base = uses.contains(&Use::Base);
            let is_taken = is_one && uses != [Use::Base; 2];
            if !(is_taken || is_base && uses.iter().any(|it| it.is_scratch())) {
                continue;
            }
            let [first, second] = uses.map(Use::words);
            let message =
                format!("partition '{name}' is {first} of '{one}', and {second} of '{other}'");
            let help = "an overlay or a swap needs a partition of its own; this one has another use already";
            failures.push(Failure::new(exit::FILE, message).help(help));
        }
    }
    failures
}

/// What a VM uses partitions for.
fn uses(vm: &VmFile) -> impl Iterator<Item = (&str, &str, Use)> {
    let disks = vm.disks.iter().flat_map(|disk| match &disk.backing {
        Backing::CopyOnWrite(base, overlay) => {
            let base = match base {
                Base::Partition(name) => Some((name, Use::Base)),
                Base::Image(_) | Base::Directory(_) => None,
            };
            let on = overlay.on.as_ref().map(|name| (name, Use::Overlay));
            [base, on]
        }
        Backing::Partition(name) => [Some((name, Use::Persistent)), None],
        Backing::ReadOnly(_) | Backing::File(_) => [None, None],
    });
    let swap = vm.memory.swap.as_ref().map(|name| (name, Use::Swap));
    let all = disks.flatten().chain(swap);
    all.map(|(name, it)| (name.as_str(), vm.name.as_str(), it))
}
