//! What stands in a VM's map for a page that is on a disk.

/// What a partition holds pages for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// A base that VMs read and nobody writes: the page is there for ever.
    Base,
    /// What VMs wrote: the page's block is free once it is read back.
    Swap,
}

/// Where a page is that has no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// What the partition holds.
    pub store: Store,
    /// The partition's number on the machine, from 1 on.
    pub disk: u8,
    /// The block of 4 KiB on the partition, below 2^40.
    pub block: u64,
}

const BLOCK_BITS: u32 = 40;
const SWAP: u64 = 1 << 48;

impl Token {
    /// As a number below 2^49, which a map's entry has room for.
    pub const fn encode(self) -> u64 {
        let store = match self.store {
            Store::Base => 0,
            Store::Swap => SWAP,
        };
        store | (self.disk as u64) << BLOCK_BITS | self.block & ((1 << BLOCK_BITS) - 1)
    }

    /// What [`Self::encode`] made.
    pub const fn decode(number: u64) -> Self {
        Self {
            store: if number & SWAP == 0 {
                Store::Base
            } else {
                Store::Swap
            },
            disk: (number >> BLOCK_BITS) as u8,
            block: number & ((1 << BLOCK_BITS) - 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_their_number() {
        for store in [Store::Base, Store::Swap] {
            for disk in [0, 1, 255] {
                for block in [0, 1, (1 << BLOCK_BITS) - 1] {
                    let token = Token { store, disk, block };
                    assert!(token.encode() < 1 << 49);
                    assert_eq!(Token::decode(token.encode()), token);
                }
            }
        }
    }
}
