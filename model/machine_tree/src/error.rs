//! What is wrong with a tree, and where.

use dtoolkit::error::FdtParseError;
use heapless::String;

/// The most characters of a node's name that an error repeats.
const NAME_LENGTH: usize = 40;

/// Why the tree was refused: the node and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("device tree, {}: {problem}", if .node.is_empty() { "/" } else { &.node })]
pub struct TreeError {
    /// The node's name with its address, cut where it is very long; empty for the whole tree.
    pub node: String<NAME_LENGTH>,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The blob is no device tree.
    #[error("{0}")]
    Blob(FdtParseError),
    /// There is no such node.
    #[error("there is no such node")]
    NoNode,
    /// A property that must be there is not.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// A property has the wrong length or type.
    #[error("{0} is malformed")]
    Malformed(&'static str),
    /// A property has a value that makes no sense.
    #[error("{0} cannot be {1:#x}")]
    Value(&'static str, u64),
    /// There are more of these than the limit.
    #[error("more than {1} {0}")]
    TooMany(&'static str, usize),
    /// Two runs of memory have this address in common.
    #[error("memory is given twice at {0:#x}")]
    Overlap(u64),
}

impl TreeError {
    pub(crate) fn new(node: &str, problem: Problem) -> Self {
        let mut name = String::new();
        for character in node.chars() {
            if name.push(character).is_err() {
                break;
            }
        }
        Self {
            node: name,
            problem,
        }
    }
}
