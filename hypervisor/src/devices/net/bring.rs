//! How a frame gets to one of a switch's ends, whole or in pieces.

use crate::devices::net::frame::{Accepted, Body, Incoming};
use crate::devices::net::{Sent, copies, lose};
use crate::devices::network::{self, End};
use crate::drivers::nic;
use crate::guest::Guest;
use crate::machine::stretch;
use machine_contract::GuestMemoryError;
use model_ethernet::Why;
use model_virtio::net::wire::Pieces;

/// A piece of more bytes is begun early in a stretch, or in another: to read, sum and write 64 KiB takes longer than
/// what may come late in one.
const LONG: usize = 16 * 1024;

/// Brings a frame to one end, which has the first so many `pieces` of it; the sender at port `waiter` can wait
/// for it.
pub fn bring(
    end: &End,
    to: u8,
    incoming: Incoming<'_>,
    (waiter, pieces): (Option<u8>, u32),
) -> Sent {
    let accepted = match end {
        _ if pieces > 0 => Accepted::NeedsPieces,
        // To read it took long: it goes on in another stretch.
        _ if stretch::is_long() => Accepted::Away,
        End::Vm(vm, window) => vm.take(*window, incoming, waiter),
        End::Uplink => Accepted::NeedsPieces,
    };
    match accepted {
        Accepted::Over => Sent::Over(false),
        Accepted::Full => Sent::Waits(to),
        Accepted::Away => Sent::Pieces(to, pieces),
        Accepted::NeedsPieces => match bring_pieces(end, incoming, pieces) {
            Some(next) => Sent::Pieces(to, next),
            None => Sent::Over(true),
        },
    }
}

/// Brings a frame in pieces as they go over a wire, from piece `n` on; which one is left for another stretch.
fn bring_pieces(end: &End, incoming: Incoming<'_>, mut n: u32) -> Option<u32> {
    let Body::Guest(vm, frame) = incoming.body else {
        return None;
    };
    let Ok(pieces) = Pieces::of(frame.head(), frame.bytes(), frame.offload()) else {
        lose(vm, Why::Malformed);
        return None;
    };
    let Some(mut scratch) = network::scratch() else {
        lose(vm, Why::NoMemory);
        return None;
    };
    while n < pieces.count() {
        let range = pieces.payload(n);
        if range.len() > LONG && stretch::is_past(2) {
            return Some(n);
        }
        let rest = &mut scratch.bytes()[..range.len()];
        match copies::read(vm, frame, range.start, rest) {
            Ok(()) => {}
            Err(GuestMemoryError::Away(_)) => return Some(n),
            Err(_) => {
                lose(vm, Why::NoMemory);
                return None;
            }
        }
        let accepted = match &*pieces.complete(n, rest) {
            [] => bring_piece(end, vm, rest, &[]),
            head => bring_piece(end, vm, head, rest),
        };
        if let Accepted::Away = accepted {
            return Some(n);
        }
        n += 1;
        if stretch::is_long() && n < pieces.count() {
            return Some(n);
        }
    }
    None
}

/// Brings one piece; what is lost is the sender's.
fn bring_piece(end: &End, sender: &Guest, head: &[u8], rest: &[u8]) -> Accepted {
    match end {
        End::Uplink => {
            if nic::is_of_link(head, rest) {
                lose(sender, Why::Nowhere);
            } else if !nic::send(head, rest) {
                lose(sender, Why::NoRoom);
            }
            Accepted::Over
        }
        End::Vm(vm, window) => vm.take(*window, Incoming::own(head, rest), None),
    }
}
