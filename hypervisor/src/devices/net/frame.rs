//! A frame on its way to a receiver.

use crate::guest::Guest;
use model_virtio::net::{self, Frame, Offload};

/// A frame as it comes to a receiver.
#[derive(Clone, Copy)]
pub struct Incoming<'a> {
    /// Bytes of it.
    pub bytes: u32,
    /// What is still to be done with it.
    pub offload: Offload,
    /// What it has in common with others of its connection.
    pub flow: u32,
    pub body: Body<'a>,
}

/// Where it is.
#[derive(Clone, Copy)]
pub enum Body<'a> {
    /// In a guest's memory, behind its head.
    Guest(&'a Guest, &'a Frame),
    /// In EL2's own, in two parts.
    Own(&'a [u8], &'a [u8]),
}

impl<'a> Incoming<'a> {
    /// A frame at EL2, in two parts, with nothing left to do.
    pub fn own(head: &'a [u8], rest: &'a [u8]) -> Self {
        Self {
            bytes: (head.len() + rest.len()) as u32,
            offload: Offload::default(),
            flow: net::flow(head),
            body: Body::Own(head, rest),
        }
    }

    /// A frame of a guest, as it was taken from its queue.
    pub fn of_guest(vm: &'a Guest, frame: &'a Frame) -> Self {
        Self {
            bytes: frame.bytes(),
            offload: frame.offload(),
            flow: frame.flow(),
            body: Body::Guest(vm, frame),
        }
    }
}

/// What a receiver says of a frame.
pub enum Accepted {
    /// It is over: taken, unwanted, or lost and counted.
    Over,
    /// There is no room now; the waiter is told when there is.
    Full,
    /// It takes no such offloads.
    NeedsPieces,
    /// Not all of its memory is at hand, and more of it in another stretch.
    Away,
}
