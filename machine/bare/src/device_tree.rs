//! A reader for flattened device trees (Devicetree Specification 0.4, section 5).
//!
//! It walks the structure block once and shows each node with the few properties that
//! guests need. Everything is bounded by the blob's size and [`MAX_DEPTH`]; what is malformed
//! ends the walk.

const MAGIC: u32 = 0xd00d_feed;
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOP: u32 = 4;
const MAX_DEPTH: usize = 16;
/// The largest blob that is read, in bytes.
pub const MAX_SIZE: usize = 2 << 20;

/// A node as far as guests look at it; absent properties are empty.
#[derive(Clone, Copy, Default)]
pub struct Node<'a> {
    /// Name with unit address.
    pub name: &'a [u8],
    /// The strings of `compatible`, each ended by a zero byte.
    pub compatible: &'a [u8],
    /// `device_type`, ended by a zero byte.
    pub device_type: &'a [u8],
    /// `bootargs`, ended by a zero byte.
    pub bootargs: &'a [u8],
    reg: &'a [u8],
    address_cells: usize,
    size_cells: usize,
}

impl Node<'_> {
    /// Whether `compatible` lists `name`.
    pub fn is_compatible(&self, name: &str) -> bool {
        self.compatible
            .split(|&byte| byte == 0)
            .any(|listed| listed == name.as_bytes())
    }

    /// The (address, size) pair `index` of `reg`; a missing size cell gives size 0.
    pub fn reg(&self, index: usize) -> Option<(u64, u64)> {
        let width = 4 * (self.address_cells + self.size_cells);
        let pair = self.reg.get(index * width..(index + 1) * width)?;
        let (address, size) = pair.split_at(4 * self.address_cells);
        (!address.is_empty()).then_some((number(address), number(size)))
    }
}

/// Cells, most significant first; only the low 64 bits are kept.
fn number(cells: &[u8]) -> u64 {
    cells
        .iter()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, size: usize) -> Option<&'a [u8]> {
        let (taken, _) = self.rest.split_at_checked(size)?;
        let padded = size.next_multiple_of(4).min(self.rest.len());
        self.rest = &self.rest[padded..];
        Some(taken)
    }

    fn word(&mut self) -> Option<u32> {
        self.take(4).map(|bytes| number(bytes) as u32)
    }

    fn string(&mut self) -> Option<&'a [u8]> {
        let length = self.rest.iter().position(|&byte| byte == 0)?;
        self.take(length + 1).map(|bytes| &bytes[..length])
    }
}

/// The size in bytes that a blob's header states, if it is a header; from its first 8 bytes.
pub fn stated_size(header: &[u8]) -> Option<usize> {
    let mut header = Cursor { rest: header };
    let magic = header.word()?;
    let size = header.word()? as usize;
    (magic == MAGIC && size <= MAX_SIZE).then_some(size)
}

/// Calls `visit` for each node of `blob`, in order. Gives `None` if the blob is malformed.
pub fn walk<'a>(blob: &'a [u8], mut visit: impl FnMut(&Node<'a>)) -> Option<()> {
    stated_size(blob)?;
    let mut header = Cursor {
        rest: blob.get(8..)?,
    };
    let structure = blob.get(header.word()? as usize..)?;
    let strings = blob.get(header.word()? as usize..)?;

    let mut cursor = Cursor { rest: structure };
    let mut cells = [(2, 1); MAX_DEPTH];
    let mut depth = 0;
    let mut node = Node::default();
    let mut shown = true;
    loop {
        let token = cursor.word()?;
        if matches!(token, BEGIN_NODE | END_NODE) && !shown {
            visit(&node);
            shown = true;
        }
        match token {
            BEGIN_NODE => {
                let (address_cells, size_cells) = *cells.get(depth)?;
                depth += 1;
                *cells.get_mut(depth)? = (2, 1);
                shown = false;
                node = Node {
                    name: cursor.string()?,
                    address_cells,
                    size_cells,
                    ..Node::default()
                };
            }
            PROPERTY => {
                let length = cursor.word()? as usize;
                let name = Cursor {
                    rest: strings.get(cursor.word()? as usize..)?,
                }
                .string()?;
                let value = cursor.take(length)?;
                let own = cells.get_mut(depth)?;
                match name {
                    b"compatible" => node.compatible = value,
                    b"device_type" => node.device_type = value,
                    b"bootargs" => node.bootargs = value,
                    b"reg" => node.reg = value,
                    b"#address-cells" => own.0 = (number(value) as usize).min(4),
                    b"#size-cells" => own.1 = (number(value) as usize).min(4),
                    _ => {}
                }
            }
            END_NODE => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(());
                }
            }
            NOP => {}
            _ => return None,
        }
    }
}
