//! Control VMs: what they ask through their ports, as far as they may, and what they are told.
//!
//! None delays anybody. A VM's requests are taken one at a time, and only where the answer to the
//! one before has gone; after each, nine times as long as it took passes before the next, so that
//! all together take a tenth of one CPU for each such VM. What a VM does not take is kept up to a
//! bound, and then lost to that VM alone.

use crate::control::{answer_to, port};
use crate::devices::control_port::ControlPort;
use crate::devices::virtio::Slot;
use crate::machine::stretch::{self, Kind};
use crate::memory::heap;
use crate::vms;
use crate::vms::instance::Instance;
use abi::Text;
use abi::control::{FrameHeader, REPLY, RawVm, event};
use alloc::collections::VecDeque;
use arch::timer;
use core::sync::atomic::{AtomicBool, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::VmId;
use model_control::{Caller, FRAME_MAX};
use zerocopy::IntoBytes;

/// The most control VMs that run at a time.
pub const CONTROL_VMS_MAX: usize = 8;
/// Bytes that wait for one at most; an answer always fits behind events.
const ROOM: usize = 2 * FRAME_MAX;
/// Bytes that are moved to a guest at once.
const AT_ONCE: usize = 512;
/// What passes after a request before the next is taken, in times that it took.
const REST: u64 = 9;

/// One control VM that runs.
struct Way {
    vm: VmId,
    name: Text<32>,
    caller: Caller,
    is_open: bool,
    out: VecDeque<u8>,
    /// When its next request is taken, in counts.
    not_before: u64,
}

static WAYS: SpinLock<heapless::Vec<Way, CONTROL_VMS_MAX>> =
    SpinLock::new(Rank::PhysicalDevice, heapless::Vec::new());
static SOME: AtomicBool = AtomicBool::new(false);

/// A VM starts that may ask things; `false` where there are as many as can be, or no memory.
pub fn enter(vm: VmId, name: Text<32>, group: Text<24>, rights: u8) -> bool {
    let Some(_reserved) = heap::reserve(ROOM) else {
        return false;
    };
    let way = Way {
        vm,
        name,
        caller: Caller::vm(rights, group),
        is_open: false,
        out: VecDeque::with_capacity(ROOM),
        not_before: 0,
    };
    SOME.store(true, Ordering::Relaxed);
    WAYS.lock().push(way).is_ok()
}

/// It has ended.
pub fn leave(vm: VmId) {
    WAYS.lock().retain(|way| way.vm != vm);
}

fn with<T>(vm: VmId, action: impl FnOnce(&mut Way) -> T) -> Option<T> {
    let mut ways = WAYS.lock();
    ways.iter_mut().find(|way| way.vm == vm).map(action)
}

/// A program of the VM has opened its port, or closed it.
pub fn set_open(vm: VmId, is_open: bool) {
    with(vm, |way| {
        way.is_open = is_open;
        way.out.clear();
    });
}

/// Gives a VM what waits for it, as far as `take` says that it takes it; whether there is more for later.
pub fn give(vm: VmId, mut take: impl FnMut(&[u8]) -> usize) -> bool {
    let mut bytes = [0; AT_ONCE];
    loop {
        // Its port is locked: nobody else takes any.
        let count = with(vm, |way| {
            let front = way.out.iter().zip(&mut bytes);
            front.map(|(byte, own)| *own = *byte).count()
        });
        let Some(count) = count.filter(|count| *count > 0) else {
            return false;
        };
        let taken = take(&bytes[..count]).min(count);
        with(vm, |way| way.out.drain(..taken).count());
        if taken < count {
            return false;
        }
        if stretch::is_long() {
            return true;
        }
    }
}

impl Way {
    /// Queues a frame whole, if `reserve` bytes stay free behind it; whether it did.
    fn queue(&mut self, kind: u32, tag: u32, parts: &[&[u8]], reserve: usize) -> bool {
        let Some(header) = FrameHeader::of(kind, tag, parts) else {
            return false;
        };
        let whole = size_of::<FrameHeader>() + header.length as usize;
        if !self.is_open || self.out.len() + whole + reserve > ROOM {
            return false;
        }
        self.out.extend(header.as_bytes());
        for part in parts {
            self.out.extend(*part);
        }
        true
    }
}

/// What a VM wrote to its console, for control VMs that may see it: not that one itself, whose
/// console would never end.
pub fn console_output(name: Text<32>, bytes: &[u8]) {
    if !SOME.load(Ordering::Relaxed) {
        return;
    }
    tell(event::CONSOLE_OUTPUT, &[name.as_bytes(), bytes], |way| {
        way.caller.may_all() && way.name != name
    });
}

/// A VM of that group stands otherwise.
pub fn state(group: Text<24>, raw: &RawVm) {
    if !SOME.load(Ordering::Relaxed) {
        return;
    }
    tell(event::STATE, &[raw.as_bytes()], |way| {
        way.caller.sees(group)
    });
}

/// Tells an event to those whom it concerns, and who have room for it beside an answer.
fn tell(kind: u32, parts: &[&[u8]], concerns: impl Fn(&Way) -> bool) {
    let mut told = false;
    for way in WAYS.lock().iter_mut() {
        told |= concerns(way) && way.queue(kind, 0, parts, FRAME_MAX);
    }
    if told {
        port::ring();
    }
}

/// Serves each control VM: one request, and what waits for it.
pub fn serve() {
    if !SOME.load(Ordering::Relaxed) {
        return;
    }
    for vm in vms::all() {
        let Some(instance) = vm.instance().filter(|instance| !instance.is_ending()) else {
            continue;
        };
        for (n, slot) in instance.virtio.iter().enumerate() {
            if let Slot::Control(port) = slot {
                serve_one(&instance, port);
                stretch::look(Kind::Control);
                port.proceed(&instance, n);
                stretch::look(Kind::Control);
            }
        }
    }
}

/// Answers a VM's next request, if it is its turn.
fn serve_one(vm: &Instance, port: &ControlPort) {
    let since = timer::now();
    let turn = with(vm.id, |way| {
        let fits = way.out.len() + FRAME_MAX <= ROOM;
        (way.caller, fits, way.not_before)
    });
    let Some((caller, true, not_before)) = turn else {
        return;
    };
    if since < not_before {
        return port::ring_at(not_before);
    }
    let Some(incoming) = port.request() else {
        return;
    };
    let header = incoming.header;
    let (reply, rest) = answer_to(&incoming, caller);
    let took = timer::now().wrapping_sub(since);
    let next = timer::now() + REST * took;
    with(vm.id, |way| {
        let parts = [reply.as_bytes(), &rest];
        way.queue(header.kind | REPLY, header.tag, &parts, 0);
        way.not_before = next;
    });
    // The next one may be here already.
    port::ring_at(next);
}
