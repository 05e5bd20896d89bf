//! Requests of control VMs to other hosts, and of control VMs there to this one. Each is checked by the host that answers it,
//! with the rights and the share group that the asking host knows of the VM.

use crate::cluster;
use crate::control::{ROOM, answer_to, reply_of, sessions::after};
use crate::drivers::requests::{self, Incoming};
use crate::guest::sessions;
use abi::cluster::{ANSWERED, ASKED, Errand};
use abi::control::{REPLY, ReadRequest, code, request};
use abi::link::BULK_MAX;
use arch::timer;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use model_addr::VmId;
use model_control::{Caller, Refusal};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, IntoBytes};

/// What an answer has less room for than one to a VM of this host: it is one message.
const LESS: usize = ROOM + size_of::<Errand>() + size_of::<abi::control::ReplyHeader>() - BULK_MAX;
/// How long an answer is waited for, in seconds: longer than a dead host is taken for alive.
const PATIENCE_S: u64 = 3;

/// Number of the next request to another host.
static NUMBER: AtomicU32 = AtomicU32::new(0);
/// When the next request of another host is taken, in counts.
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);

/// Sends a VM's request to the host that it names.
pub fn ask(vm: VmId, caller: Caller, incoming: &Incoming) -> Result<(), Refusal> {
    let (number, tag) = (NUMBER.fetch_add(1, Ordering::Relaxed), incoming.header.tag);
    let Ok((to, rest)) = ReadRequest::ref_from_prefix(incoming.payload.bytes()) else {
        let what = format_args!("malformed request to another host");
        return Err(Refusal::new(code::MALFORMED, 0, what));
    };
    let errand = Errand {
        kind: ASKED,
        rights: caller.rights,
        zeroes: [0; 2],
        vm: [vm.index.into(), vm.generation.into()],
        request: (to.from as u32).into(),
        number: number.into(),
        group: caller.group,
    };
    let host = cluster::find(to.name.as_str().unwrap_or_default());
    let sent = host.filter(|host| cluster::send(*host, [errand.as_bytes(), rest]));
    let host = sent.ok_or_else(|| {
        let what = format_args!(
            "{} is no member of the cluster, or does not take that now",
            to.name
        );
        Refusal::new(code::WRONG_STATE, 0, what)
    })?;
    let until = timer::now() + PATIENCE_S * timer::frequency();
    sessions::await_host(vm, (host, number, tag), until);
    requests::ring_at(until);
    Ok(())
}

/// Answers a VM whose request no host has answered in time.
pub fn give_up(vm: VmId) {
    if let Some((host, _, tag)) = sessions::take_asked(vm, |_| true) {
        let what =
            format_args!("no answer came in {PATIENCE_S} s: the host may have done what was asked");
        let (reply, rest) = reply_of(Err(Refusal::new(code::WRONG_STATE, host.into(), what)));
        let what = (request::AT_HOST | REPLY, tag);
        sessions::answer(vm, what, &[reply.as_bytes(), &rest], 0);
    }
}

/// Takes an answer for a VM, or answers a request of another host's.
pub fn serve() {
    let since = timer::now();
    let is_due = since >= NOT_BEFORE.load(Ordering::Relaxed);
    let Some((from, mut errand, incoming)) = cluster::errand(is_due) else {
        return;
    };
    requests::ring();
    if errand.kind == ANSWERED {
        let [index, generation] = errand.vm.map(U16::get);
        let vm = VmId { index, generation };
        let number = errand.number.get();
        let answered = sessions::take_asked(vm, |(host, it, _)| (host, it) == (from, number));
        if let Some((.., tag)) = answered {
            let what = (request::AT_HOST | REPLY, tag);
            sessions::answer(vm, what, &[incoming.payload.bytes()], after(since));
        }
        return;
    }
    let (reply, mut rest) = answer_to(&incoming, Caller::vm(errand.rights, errand.group), LESS);
    rest.splice(..0, reply.as_bytes().iter().copied());
    errand.kind = ANSWERED;
    // What the link has no room for is lost: who asked gives up in time.
    cluster::send(from, [errand.as_bytes(), &rest]);
    NOT_BEFORE.store(after(since), Ordering::Relaxed);
}
