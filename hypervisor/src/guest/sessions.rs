//! Control VMs: what they ask through their ports, as far as they may, and what they are told.
//!
//! None delays anybody. A VM's requests are taken one at a time, and only where the answer to the
//! one before has gone; after each, nine times as long as it took passes before the next, so that
//! all together take a tenth of one CPU for each such VM. What a VM does not take is kept up to a
//! bound, and then lost to that VM alone.

use crate::drivers::port::{self, SLOTS_FOR_REPLIES, Sent};
use crate::drivers::requests;
use crate::machine::stretch;
use crate::memory::heap;
use abi::Text;
use abi::control::{FrameHeader, RawVm, event};
use alloc::collections::VecDeque;
use core::sync::atomic::{AtomicBool, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::VmId;
use model_control::{Caller, FRAME_MAX};
use zerocopy::IntoBytes;

/// The most control VMs that run at a time.
pub const CONTROL_VMS_MAX: usize = 8;
/// Bytes that wait for one at most; an answer always fits behind events.
const ROOM: usize = 2 * FRAME_MAX;
/// Bytes of console output in one frame.
const OUTPUT_AT_ONCE: usize = 2048;
/// Bytes that are moved to a guest at once.
const AT_ONCE: usize = 512;

/// A request to another host: which host, this one's number of it, the VM's tag of it.
pub type Asked = (u8, u32, u32);

/// One control VM that runs.
struct Way {
    vm: VmId,
    name: Text<32>,
    caller: Caller,
    is_open: bool,
    out: VecDeque<u8>,
    /// A request to another host that is not answered yet.
    asked: Option<Asked>,
    /// When its next request is taken, in counts, or that one is given up.
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
        asked: None,
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

/// Tells the bytes that wait for a VM.
pub fn waiting(vm: VmId, mut tell: impl FnMut(&[u8])) {
    with(vm, |way| {
        let (front, back) = way.out.as_slices();
        tell(front);
        tell(back);
    });
}

/// A VM has its port open, and these bytes wait for it; `false` where they cannot.
pub fn take_over(vm: VmId, is_open: bool, bytes: &[u8]) -> bool {
    with(vm, |way| {
        way.is_open = is_open;
        way.out.extend(bytes);
    });
    bytes.len() <= if is_open { ROOM } else { 0 }
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
fn show_output(name: Text<32>, bytes: &[u8]) {
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
        requests::ring();
    }
}

/// Whether any control VM runs, or has.
pub fn are_some() -> bool {
    SOME.load(Ordering::Relaxed)
}

/// Another host is asked for a VM, until that count.
pub fn await_host(vm: VmId, asked: Asked, until: u64) {
    with(vm, |way| (way.asked, way.not_before) = (Some(asked), until));
}

/// Gives the request that is not answered yet, for its answer, if it is the one that is meant.
pub fn take_asked(vm: VmId, is_it: impl FnOnce(Asked) -> bool) -> Option<Asked> {
    with(vm, |way| way.asked.take_if(|asked| is_it(*asked))).flatten()
}

/// Who asks by a VM's port, whether there is room for an answer, and when its next request is taken.
pub fn asks(vm: VmId) -> Option<(Caller, bool, u64)> {
    with(vm, |way| {
        let fits = way.out.len() + FRAME_MAX <= ROOM;
        (way.caller, fits, way.not_before)
    })
}

/// Queues the answer to a VM's request, the next of which is not taken before that count.
pub fn answer(vm: VmId, (kind, tag): (u32, u32), parts: &[&[u8]], next: u64) {
    with(vm, |way| {
        way.queue(kind, tag, parts, 0);
        way.not_before = next;
    });
}

/// Sends what a VM wrote to its console; how many of the bytes went out.
pub fn console_output(name: Text<32>, bytes: &[u8]) -> usize {
    let bytes = &bytes[..bytes.len().min(OUTPUT_AT_ONCE)];
    let sent = send_output(name, bytes);
    show_output(name, &bytes[..sent]);
    sent
}

fn send_output(name: Text<32>, bytes: &[u8]) -> usize {
    let parts = [name.as_bytes(), bytes];
    match port::send_leaving(SLOTS_FOR_REPLIES, event::CONSOLE_OUTPUT, 0, &parts) {
        Sent::NoRoom => 0,
        // Where it never goes, output is lost, as on a line that is not plugged in.
        Sent::Yes | Sent::Never => bytes.len(),
    }
}
