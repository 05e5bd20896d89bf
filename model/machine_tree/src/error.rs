//! What is wrong with a tree, and where.

use core::fmt;

use dtoolkit::error::FdtParseError;
use heapless::String;

/// The most characters of a node's name that an error repeats.
const NAME_LENGTH: usize = 40;

/// Why the tree was refused: the node and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeError {
    /// The node's name with its address, cut where it is very long; empty for the whole tree.
    pub node: String<NAME_LENGTH>,
    /// What is wrong there.
    pub problem: Problem,
}

/// What is wrong with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// The blob is no device tree.
    Blob(FdtParseError),
    /// There is no such node.
    NoNode,
    /// A property that must be there is not.
    Missing(&'static str),
    /// A property has the wrong length or type.
    Malformed(&'static str),
    /// A property has a value that makes no sense.
    Value(&'static str, u64),
    /// There are more of these than the limit.
    TooMany(&'static str, usize),
    /// Two runs of memory have this address in common.
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

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = if self.node.is_empty() {
            "/"
        } else {
            self.node.as_str()
        };
        write!(f, "device tree, {node}: ")?;
        match &self.problem {
            Problem::Blob(error) => write!(f, "{error}"),
            Problem::NoNode => f.write_str("there is no such node"),
            Problem::Missing(property) => write!(f, "{property} is missing"),
            Problem::Malformed(property) => write!(f, "{property} is malformed"),
            Problem::Value(property, value) => write!(f, "{property} cannot be {value:#x}"),
            Problem::TooMany(what, limit) => write!(f, "more than {limit} {what}"),
            Problem::Overlap(address) => write!(f, "memory is given twice at {address:#x}"),
        }
    }
}

impl core::error::Error for TreeError {}
