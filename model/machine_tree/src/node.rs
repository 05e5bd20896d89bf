//! Checked reading of one node's properties.

use dtoolkit::fdt::FdtNode;
use dtoolkit::standard::NodeStandard;
use dtoolkit::{Node, Property};
use model_addr::{Pa, PaRange};

use crate::{Interrupt, Problem, TreeError};

pub(crate) type Result<T> = core::result::Result<T, TreeError>;

/// How deep buses may lie in buses.
const MAX_DEPTH: usize = 4;

/// The error `problem` at `node`.
pub(crate) fn error(node: &FdtNode<'_>, problem: Problem) -> TreeError {
    TreeError::new(node.name(), problem)
}

/// Whether the node may be used: `status` is absent or says so.
pub(crate) fn is_enabled(node: &FdtNode<'_>) -> bool {
    string(node, "status").is_none_or(|status| matches!(status, "okay" | "ok"))
}

/// A string property; `None` where it is absent or is no string.
pub(crate) fn string<'a>(node: &FdtNode<'a>, name: &str) -> Option<&'a str> {
    node.property(name)?.value_as().ok()
}

/// The cells of a property; `None` where it is absent.
pub(crate) fn cells<'a>(
    node: &FdtNode<'a>,
    name: &'static str,
) -> Result<Option<impl Iterator<Item = u32> + Clone + 'a>> {
    let Some(property) = node.property(name) else {
        return Ok(None);
    };
    let malformed = |_| error(node, Problem::Malformed(name));
    let (cells, rest) = property
        .value_as::<&'a [u8]>()
        .map_err(malformed)?
        .as_chunks::<4>();
    if !rest.is_empty() {
        return Err(error(node, Problem::Malformed(name)));
    }
    Ok(Some(cells.iter().map(|cell| u32::from_be_bytes(*cell))))
}

/// A property of one cell; `None` where it is absent.
pub(crate) fn one_cell(node: &FdtNode<'_>, name: &'static str) -> Result<Option<u32>> {
    let Some(mut cells) = cells(node, name)? else {
        return Ok(None);
    };
    match (cells.next(), cells.next()) {
        (Some(value), None) => Ok(Some(value)),
        _ => Err(error(node, Problem::Malformed(name))),
    }
}

/// A number of one or two cells; `None` where it is absent.
pub(crate) fn number(node: &FdtNode<'_>, name: &'static str) -> Result<Option<u64>> {
    let Some(mut cells) = cells(node, name)? else {
        return Ok(None);
    };
    match (cells.next(), cells.next(), cells.next()) {
        (Some(value), None, None) => Ok(Some(value.into())),
        (Some(high), Some(low), None) => Ok(Some(u64::from(high) << 32 | u64::from(low))),
        _ => Err(error(node, Problem::Malformed(name))),
    }
}

/// The runs that `reg` names; a run that wraps around is an error.
pub(crate) fn registers(node: &FdtNode<'_>) -> Result<impl Iterator<Item = Result<PaRange>>> {
    let node = *node;
    let entries = node
        .reg()
        .map_err(|_| error(&node, Problem::Malformed("reg")))?
        .ok_or_else(|| error(&node, Problem::Missing("reg")))?;
    Ok(entries.map(move |entry| {
        let (Ok(start), Ok(size)) = (entry.address::<u64>(), entry.size::<u64>()) else {
            return Err(error(&node, Problem::Malformed("reg")));
        };
        PaRange::new(Pa(start), size).ok_or_else(|| error(&node, Problem::Value("reg", start)))
    }))
}

/// The first run that `reg` names.
pub(crate) fn first_register(node: &FdtNode<'_>) -> Result<PaRange> {
    registers(node)?
        .next()
        .ok_or_else(|| error(node, Problem::Missing("reg")))?
}

/// Interrupt number `index` of the node, of a GIC that uses `width` cells for each (binding
/// `arm,gic-v3`: type, number, flags); `None` where there are fewer.
pub(crate) fn interrupt(
    node: &FdtNode<'_>,
    index: usize,
    width: usize,
) -> Result<Option<Interrupt>> {
    const NAME: &str = "interrupts";
    let Some(cells) = cells(node, NAME)? else {
        return Ok(None);
    };
    let mut cells = cells.skip(index.saturating_mul(width));
    let (Some(kind), Some(number), Some(flags)) = (cells.next(), cells.next(), cells.next()) else {
        return Ok(None);
    };
    let intid = match (kind, number) {
        (0, 0..988) => 32 + number,
        (1, 0..16) => 16 + number,
        (0 | 1, _) => return Err(error(node, Problem::Value(NAME, number.into()))),
        _ => return Err(error(node, Problem::Value(NAME, kind.into()))),
    };
    // Bits 3:0 of the flags: 1 rising, 2 falling, 4 high, 8 low.
    Ok(Some(Interrupt {
        intid,
        edge: flags & 0b11 != 0,
    }))
}

/// Calls `visit` for every enabled device below `bus`: its children, and those of simple buses
/// whose addresses are their parent's (empty `ranges`).
pub(crate) fn for_each_device<'a>(
    bus: &FdtNode<'a>,
    visit: &mut impl FnMut(&FdtNode<'a>) -> Result<()>,
) -> Result<()> {
    visit_bus(bus, MAX_DEPTH, visit)
}

fn visit_bus<'a>(
    bus: &FdtNode<'a>,
    depth: usize,
    visit: &mut impl FnMut(&FdtNode<'a>) -> Result<()>,
) -> Result<()> {
    for child in bus.children().filter(is_enabled) {
        visit(&child)?;
        let transparent = child
            .property("ranges")
            .is_some_and(|r| r.value().is_empty());
        if depth > 0 && transparent && child.is_compatible("simple-bus") {
            visit_bus(&child, depth - 1, visit)?;
        }
    }
    Ok(())
}
