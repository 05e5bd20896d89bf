//! How frames lie in the memory that hosts share, and for whom they are.
//!
//! A head of 32 bytes, little-endian, then the frame's bytes, padded to a multiple of 8. Another process has written them:
//! they are checked when they are read.

use crate::HOSTS_MAX;

const HEAD_BYTES: usize = 32;
/// The longest frame that QEMU lets a card send (`NET_BUFSIZE`, include/net/net.h).
pub const FRAME_BYTES_MAX: usize = 4_096 + 65_536;

/// What the sender says of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// When its first bit left.
    pub start_ns: i64,
    /// When it arrives, if nothing befalls it.
    pub arrival_ns: i64,
    /// The sender's number for it: 0, 1, 2 and so on.
    pub number: u64,
    /// A bit for each host that gets it.
    pub receivers: u32,
}

/// The address of a host's card: its number is the last byte.
pub fn card_address(host: usize) -> [u8; 6] {
    [0x52, 0x54, 0, 0, 0, host as u8]
}

/// Who gets a frame that `sender` sends, as bits: the host whose card's address it bears, else all others. The switch
/// learns no addresses; cards drop what is not for them.
pub fn receivers(frame: &[u8], sender: usize, hosts: usize) -> u32 {
    let all = (1u32 << hosts.min(HOSTS_MAX)) - 1;
    let to = match frame.split_first_chunk() {
        Some((address, _)) => (0..hosts).find(|host| card_address(*host) == *address),
        None => None,
    };
    to.map_or(all, |host| 1 << host) & !(1 << sender)
}

/// Appends a frame to `memory`, of which `used` bytes are; returns how many are then, or nothing where there is no room.
pub fn append(memory: &mut [u8], used: usize, head: &Head, frame: &[u8]) -> Option<usize> {
    let padded = frame.len().next_multiple_of(8);
    let place = memory.get_mut(used..used.checked_add(HEAD_BYTES + padded)?)?;
    let (words, bytes) = place.split_at_mut(HEAD_BYTES);
    let lengths = u64::from(head.receivers) << 32 | frame.len() as u64;
    let values = [
        head.start_ns as u64,
        head.arrival_ns as u64,
        head.number,
        lengths,
    ];
    for (word, value) in words.as_chunks_mut::<8>().0.iter_mut().zip(values) {
        *word = value.to_le_bytes();
    }
    bytes.get_mut(..frame.len())?.copy_from_slice(frame);
    Some(used + HEAD_BYTES + padded)
}

/// The frames of a piece of memory, in the order in which they were sent. One that is malformed ends it.
#[derive(Debug)]
pub struct Frames<'a>(&'a [u8]);

/// A piece of memory holds what no host writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

impl<'a> Frames<'a> {
    /// Reads frames.
    pub fn new(memory: &'a [u8]) -> Self {
        Self(memory)
    }

    fn first(&self) -> Option<(Head, &'a [u8], &'a [u8])> {
        let (words, rest) = self.0.split_first_chunk::<HEAD_BYTES>()?;
        let [start, arrival, number, lengths] = [0, 1, 2, 3].map(|n| {
            let word = words.as_chunks::<8>().0.get(n);
            u64::from_le_bytes(word.copied().unwrap_or_default())
        });
        let head = Head {
            start_ns: i64::try_from(start).ok()?,
            arrival_ns: i64::try_from(arrival).ok()?,
            number,
            receivers: (lengths >> 32) as u32,
        };
        let length = lengths as u32 as usize;
        let is_sane = length <= FRAME_BYTES_MAX
            && head.start_ns < head.arrival_ns
            && head.receivers >> HOSTS_MAX == 0;
        let (padded, rest) = rest.split_at_checked(length.next_multiple_of(8))?;
        is_sane.then_some((head, padded.get(..length)?, rest))
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<(Head, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let Some((head, frame, rest)) = self.first() else {
            self.0 = &[];
            return Some(Err(Malformed));
        };
        self.0 = rest;
        Some(Ok((head, frame)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head = Head {
        start_ns: 5,
        arrival_ns: 10_005,
        number: 7,
        receivers: 0b110,
    };

    #[test]
    fn frames_are_read_as_written() {
        let mut memory = [0; 256];
        let used = append(&mut memory, 0, &HEAD, b"one").unwrap();
        let second = Head { number: 8, ..HEAD };
        let used = append(&mut memory, used, &second, &[2; 64]).unwrap();
        assert_eq!(used, 32 + 8 + 32 + 64);
        let read: Vec<_> = Frames::new(&memory[..used]).map(Result::unwrap).collect();
        assert_eq!(read, [(HEAD, &b"one"[..]), (second, &[2; 64][..])]);
        assert_eq!(append(&mut memory, used, &HEAD, &[0; 89]), None);
        assert!(append(&mut memory, used, &HEAD, &[0; 88]).is_some());
    }

    #[test]
    fn malformed_memory_is_refused() {
        let mut memory = [0; 64];
        let used = append(&mut memory, 0, &HEAD, &[1; 20]).unwrap();
        assert!(Frames::new(&memory[..used - 8]).next().unwrap().is_err());
        for (at, byte) in [(7, 0x80), (15, 0x80), (26, 0x10), (29, 1), (4, 1)] {
            let mut bad = memory;
            bad[at] = byte;
            let mut frames = Frames::new(&bad[..used]);
            assert_eq!(frames.next(), Some(Err(Malformed)), "byte {at}");
            assert_eq!(frames.next(), None);
        }
    }

    #[test]
    fn frames_go_to_one_card_or_to_all() {
        let to = |address: [u8; 6]| receivers(&address, 1, 3);
        assert_eq!(to(card_address(2)), 0b100);
        assert_eq!(to(card_address(1)), 0, "its own");
        assert_eq!(to(card_address(3)), 0b101, "no such host");
        assert_eq!(to([0xff; 6]), 0b101);
        assert_eq!(to([2, 0, 0, 0, 0, 2]), 0b101, "a VM's");
        assert_eq!(receivers(&[1, 2], 0, 8), 0b1111_1110);
    }
}
