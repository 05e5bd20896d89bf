//! Requests of control VMs: each is served in its turn.

use crate::control::{answer_to, errands, reply_of};
use crate::devices::{VirtualDevice as _, control_port::ControlPort};
use crate::drivers::requests;
use crate::guest::sessions;
use crate::machine::{Kind, stretch};
use crate::vms::{self, Instance};
use abi::control::{REPLY, request};
use arch::timer;
use zerocopy::IntoBytes;

/// What passes after a request before the next is taken, in times that it took.
const REST: u64 = 9;

/// Serves each control VM: one request, and what waits for it.
pub fn serve() {
    if !sessions::are_some() {
        return;
    }
    for vm in vms::all() {
        let Some(instance) = vm.live() else { continue };
        for port in instance.all::<ControlPort>() {
            serve_one(&instance, port);
            stretch::look(Kind::Control);
            port.proceed(&instance);
            stretch::look(Kind::Control);
        }
    }
}

/// Answers a VM's next request, if it is its turn.
fn serve_one(vm: &Instance, port: &ControlPort) {
    let since = timer::now();
    let turn = sessions::asks(vm.id);
    let Some((caller, true, not_before)) = turn else {
        return;
    };
    if since < not_before {
        return requests::ring_at(not_before);
    }
    errands::give_up(vm.id);
    let Some(incoming) = port.request() else {
        return;
    };
    let header = incoming.header;
    let (reply, rest) = if header.kind == request::AT_HOST {
        let Err(refusal) = errands::ask(vm.id, caller, &incoming) else {
            return;
        };
        reply_of(Err(refusal))
    } else {
        answer_to(&incoming, caller, 0)
    };
    let parts = [reply.as_bytes(), &rest];
    let next = after(since);
    sessions::answer(vm.id, (header.kind | REPLY, header.tag), &parts, next);
    // The next one may be here already.
    requests::ring_at(next);
}

/// When the next request is taken, after one that was taken at that count.
pub fn after(since: u64) -> u64 {
    let now = timer::now();
    now + REST * now.wrapping_sub(since)
}
