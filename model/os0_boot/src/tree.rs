//! The machine's device tree, made OS-0's in place.

use dtoolkit::error::{FdtMutError, FdtParseError};
use dtoolkit::fdt::FdtNode;
use dtoolkit::fdt_mut::{FdtMut, FdtNodeMut, SliceBuffer};
use dtoolkit::{Node, Property, ToPropertyValue};
use heapless::{String, Vec};
use model_addr::PaRange;

/// The most bytes of a `/memory` node's `reg`.
const MAX_REG: usize = 1024;
/// The most bytes of a node's name that is changed.
const MAX_NAME: usize = 64;
/// The most nodes of memory, and of boot modules.
const MAX_NODES: usize = 64;

type Name = String<MAX_NAME>;

/// What `/chosen` says to OS-0.
#[derive(Clone, Copy, Debug)]
pub struct Chosen<'a> {
    /// Its command line.
    pub bootargs: &'a str,
    /// Its initial ramdisk.
    pub initrd: Option<PaRange>,
}

/// Why the tree cannot be OS-0's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RewriteError {
    /// It is none.
    #[error("the machine's device tree: {0}")]
    Blob(FdtParseError),
    /// It has no room for a change.
    #[error("the machine's device tree: {0}")]
    Change(FdtMutError),
    /// `/chosen` is missing.
    #[error("the machine's device tree has no /chosen")]
    NoChosen,
    /// A run of memory is written in a way that is not understood, or there are too many.
    #[error("the machine's device tree: its memory is not understood")]
    Memory,
}

impl From<FdtMutError> for RewriteError {
    fn from(error: FdtMutError) -> Self {
        Self::Change(error)
    }
}

type Result<T> = core::result::Result<T, RewriteError>;
type Tree<'a> = FdtMut<SliceBuffer<'a>>;

/// Rewrites the tree in `blob`, which has room for no more than the tree itself: the boot modules'
/// nodes make it. What lies in `hidden` is no memory any more. Gives the tree's bytes.
///
/// # Errors
/// The blob is no device tree, or one that cannot be changed so; it may be changed in part.
pub fn rewrite(blob: &mut [u8], hidden: PaRange, chosen: Chosen<'_>) -> Result<usize> {
    let mut tree = Tree::from_slice(blob).map_err(RewriteError::Blob)?;
    remove_modules(&mut tree)?;
    tree.compact();
    hide(&mut tree, hidden)?;
    let mut node = tree
        .find_node_mut("/chosen")
        .ok_or(RewriteError::NoChosen)?;
    set(&mut node, "bootargs", chosen.bootargs)?;
    if let Some(initrd) = chosen.initrd {
        set(&mut node, "linux,initrd-start", initrd.start.0)?;
        set(&mut node, "linux,initrd-end", initrd.end().0)?;
    } else {
        node.remove_property("linux,initrd-start");
        node.remove_property("linux,initrd-end");
    }
    Ok(tree.as_read_only().data().len())
}

fn set<T: ToPropertyValue>(
    node: &mut FdtNodeMut<'_, SliceBuffer<'_>>,
    name: &str,
    value: T,
) -> Result<()> {
    if let Some(mut property) = node.property_mut(name) {
        property.set_value(value)?;
    } else {
        node.add_property(name, value)?;
    }
    Ok(())
}

/// How many bytes a device tree takes, without the room behind what it holds. `None` where it is none, or
/// only a part of one.
pub fn used(blob: &[u8]) -> Option<usize> {
    const MAGIC: u32 = 0xd00d_feed;
    let field = |n: usize| {
        let bytes = blob.get(n * 4..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    };
    // Offset and size of structure and of strings (devicetree specification, 5.2).
    let end = |offset: usize, size: usize| field(offset)?.checked_add(field(size)?);
    let used = end(2, 9)?.max(end(3, 8)?) as usize;
    let is_whole = field(0)? == MAGIC && used <= blob.len() && used <= field(1)? as usize;
    is_whole.then_some(used)
}

/// Boot modules are EL2's to read; Linux would keep them for nobody.
fn remove_modules(tree: &mut Tree<'_>) -> Result<()> {
    let modules = names(tree, "/chosen", |node| {
        node.name_without_address() == "module"
    })?;
    let mut chosen = tree
        .find_node_mut("/chosen")
        .ok_or(RewriteError::NoChosen)?;
    for module in &modules {
        chosen.remove_child(module);
    }
    Ok(())
}

/// The names of those children of `parent` that are `wanted`.
fn names(
    tree: &Tree<'_>,
    parent: &str,
    wanted: impl Fn(&FdtNode<'_>) -> bool,
) -> Result<Vec<Name, MAX_NODES>> {
    let tree = tree.as_read_only();
    let mut names = Vec::new();
    let children = tree.find_node(parent).ok_or(RewriteError::NoChosen)?;
    for child in children.children().filter(wanted) {
        let name = Name::try_from(child.name()).map_err(|_| RewriteError::Memory)?;
        names.push(name).map_err(|_| RewriteError::Memory)?;
    }
    Ok(names)
}

/// Cuts `hidden` out of the memory.
fn hide(tree: &mut Tree<'_>, hidden: PaRange) -> Result<()> {
    let is_memory = |node: &FdtNode<'_>| {
        let kind = node.property("device_type");
        kind.is_some_and(|kind| kind.value() == b"memory\0")
    };
    let cells = |name: &str, unset: usize| {
        let root = tree.as_read_only().root();
        let value = root.property(name).map(|cells| cells.value_as::<u32>());
        value
            .and_then(core::result::Result::ok)
            .map_or(unset, |cells| cells as usize)
    };
    let cells = (cells("#address-cells", 2), cells("#size-cells", 1));
    for name in names(tree, "/", is_memory)? {
        let mut path: String<{ MAX_NAME + 1 }> = String::new();
        let fits = path.push('/').and_then(|()| path.push_str(&name));
        fits.map_err(|_| RewriteError::Memory)?;
        let mut node = tree.find_node_mut(&path).ok_or(RewriteError::Memory)?;
        let mut reg = node.property_mut("reg").ok_or(RewriteError::Memory)?;
        let cut = cut(reg.as_read_only().value(), cells, hidden)?;
        if let Some(cut) = cut {
            reg.set_value(cut.as_slice())?;
        }
    }
    Ok(())
}

/// `reg` without `hidden`; `None` where it does not name any of it.
fn cut(reg: &[u8], cells: (usize, usize), hidden: PaRange) -> Result<Option<Vec<u8, MAX_REG>>> {
    let (address, size) = (cells.0 * 4, cells.1 * 4);
    if !(4..=8).contains(&address) || !(4..=8).contains(&size) {
        return Err(RewriteError::Memory);
    }
    let mut left = Vec::new();
    let mut touched = false;
    for entry in reg.chunks(address + size) {
        let (start, length) = entry
            .split_at_checked(address)
            .filter(|(_, length)| length.len() == size)
            .ok_or(RewriteError::Memory)?;
        let run = PaRange::new(model_addr::Pa(number(start)), number(length))
            .ok_or(RewriteError::Memory)?;
        touched |= run.overlaps(hidden);
        let before = (run.start, run.end().min(hidden.start));
        let after = (run.start.max(hidden.end()), run.end());
        let parts = if run.overlaps(hidden) {
            [before, after]
        } else {
            [(run.start, run.end()), after]
        };
        let parts = parts.iter().take(if run.overlaps(hidden) { 2 } else { 1 });
        for (from, to) in parts.filter(|(from, to)| from < to) {
            let both = [(from.0, address), (to.0 - from.0, size)];
            for (value, bytes) in both {
                left.extend_from_slice(&value.to_be_bytes()[8 - bytes..])
                    .map_err(|_| RewriteError::Memory)?;
            }
        }
    }
    Ok(touched.then_some(left))
}

/// One or two cells.
fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}
