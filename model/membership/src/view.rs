//! One membership: its id and its members.

/// A membership, or a proposal of one. Of two, the one with the higher id is later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct View<const HOSTS: usize> {
    /// Epoch, and in the lowest 8 bits the number of the leader that proposed it; 0 for a host that is alone.
    pub id: u64,
    /// Life of each member, by host; 0 for hosts that are not in.
    pub lives: [u64; HOSTS],
}

impl<const HOSTS: usize> View<HOSTS> {
    /// Returns the membership of one host.
    pub(crate) fn alone(host: u8, life: u64) -> Self {
        let mut lives = [0; HOSTS];
        lives[usize::from(host)] = life;
        Self { id: 0, lives }
    }

    /// Returns the number by which people tell memberships apart.
    pub const fn epoch(&self) -> u64 {
        self.id >> 8
    }

    /// Returns whether all members of `other` are in this one, in the same lives.
    pub(crate) fn has_all_of(&self, other: &Self) -> bool {
        let mut pairs = self.lives.iter().zip(&other.lives);
        pairs.all(|(own, other)| *other == 0 || own == other)
    }
}
