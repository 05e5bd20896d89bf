//! Requests of control VMs: each is served in its turn.

use crate::control::answer_to;
use crate::devices::{VirtualDevice as _, control_port::ControlPort};
use crate::drivers::requests;
use crate::guest::sessions;
use crate::machine::{Kind, stretch};
use crate::vms::{self, Instance};
use abi::control::REPLY;
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
        let Some(instance) = vm.instance().filter(|instance| !instance.is_ending()) else {
            continue;
        };
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
    let Some(incoming) = port.request() else {
        return;
    };
    let header = incoming.header;
    let (reply, rest) = answer_to(&incoming, caller);
    let took = timer::now().wrapping_sub(since);
    let next = timer::now() + REST * took;
    let parts = [reply.as_bytes(), &rest];
    sessions::answer(vm.id, (header.kind | REPLY, header.tag), &parts, next);
    // The next one may be here already.
    requests::ring_at(next);
}
