//! The server's side of disks that OS-0 serves: what the shared page asks for that is not answered,
//! however many servers came before.

use abi::served::{DATA_BYTES, Record, SECTOR_BYTES, SECTORS_MAX, SLOTS, operation};
use zerocopy::FromBytes as _;

/// What a server is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The slot, which has the data.
    pub slot: usize,
    /// What is answered.
    pub ticket: u64,
    /// One of [`operation`].
    pub operation: u32,
    /// The number of the disk.
    pub disk: usize,
    /// Where on it the data begin, in bytes.
    pub at: u64,
    /// Bytes of data.
    pub bytes: u64,
}

/// The slots that the area's first page asks for and has no answer to. What they are asked for is read
/// after that ([`asked`]): in a copy of the page, other words may be older than a ticket.
pub fn unanswered(head: &[u8]) -> impl Iterator<Item = usize> + '_ {
    let records = head.chunks_exact(size_of::<Record>()).take(SLOTS);
    let is_asked =
        |bytes: &[u8]| Record::read_from_bytes(bytes).is_ok_and(|record| is_new(&record));
    let asked = records
        .enumerate()
        .filter(move |(_, bytes)| is_asked(bytes));
    asked.map(|(slot, _)| slot)
}

fn is_new(record: &Record) -> bool {
    record.ticket > 0 && record.answer >> 1 != record.ticket
}

/// What a slot's record asks for; `None` where it has its answer, or makes no sense, as none of EL2's.
pub fn asked(slot: usize, record: &[u8]) -> Option<Asked> {
    let record = Record::read_from_bytes(record).ok()?;
    let known = [operation::READ, operation::WRITE, operation::FLUSH];
    let is_whole = record.bytes <= DATA_BYTES && record.bytes.is_multiple_of(SECTOR_BYTES);
    let fits = record.sector <= SECTORS_MAX && known.contains(&record.operation);
    (is_new(&record) && is_whole && fits).then(|| Asked {
        slot,
        ticket: record.ticket,
        operation: record.operation,
        disk: record.disk as usize,
        at: record.sector * SECTOR_BYTES,
        bytes: record.bytes,
    })
}
