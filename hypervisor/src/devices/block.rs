//! A VM's disk: requests of its virtio-blk device, served from a base and an overlay, or from a
//! partition of a physical disk.
//!
//! What is in memory is served at once. For what is not, a [`Part`] of the request goes to the
//! physical disk in a buffer of EL2's own, and the request goes on from there when it is back.

mod state;
mod transfer;

use crate::devices::disk::{Backing, CowDisk, Near};
use crate::devices::virtio::{Behaviour, Virtio};
use crate::drivers::{Buffer, Extent, Io, Part};
use crate::guest::{Guest, paging};
use crate::machine::{self, due, stretch};
use crate::memory::{frames, heap, sharing};
use abi::control::{count, latency_bucket};
use alloc::boxed::Box;
use arch::timer;
use model_addr::{FRAME_SIZE, Gfn};
use model_disk::{Budget, Loaded, Pass, Progress, Side, Store as _, Turn, execute};
use model_virtio::Transport;
use model_virtio::blk::{Blk, Next, Operation, Request, Status};
use transfer::{begin, fill_buffer};

/// The partition of that side of a disk's data.
fn extent(backing: &Backing, side: Side) -> Option<Extent> {
    backing.partition(side).map(|partition| **partition)
}

/// State of a disk.
pub struct State {
    transport: Transport<Blk>,
    /// Its place among the VM's devices.
    window: usize,
    backing: Backing,
    /// Where the next request is taken to.
    spare: Option<Box<Part>>,
    /// Requests that go on in the next pass, or when there is a buffer of the physical disk.
    parked: Option<Box<Part>>,
    /// Requests that the physical disk is at.
    under_way: u32,
    /// Bytes a second; 0: no limit.
    limit: u64,
    /// When the disk is done with what it was limited to.
    busy_until: u64,
    /// Requests that are done, of which the driver is told later: at a limited rate, or once there is a frame to tell it in.
    held: Option<Box<Part>>,
}

impl State {
    /// Tells the driver of a request that is done: in its time, or `at_once`, and when there is a frame to tell it in.
    fn tell(&mut self, vm: &Guest, mut part: Box<Part>, at_once: bool) {
        let ((status, until), now) = (part.end, timer::now());
        if at_once || now >= until || !self.transport.awaits(&part.request) {
            if complete(&mut self.transport, vm, &part, status) {
                return;
            }
            part.end.1 = now + timer::frequency() / 100;
        }
        due::tick_at(part.end.1);
        push(&mut self.held, part);
    }

    /// Tells of all that is held, as [`Self::tell`].
    fn tell_held(&mut self, vm: &Guest, at_once: bool) {
        let mut held = self.held.take();
        while let Some(part) = pop(&mut held) {
            self.tell(vm, part, at_once);
        }
    }
}

/// Puts a request before those of a list.
fn push(list: &mut Option<Box<Part>>, mut part: Box<Part>) {
    part.next = list.take();
    *list = Some(part);
}

/// Takes the first of a list.
fn pop(list: &mut Option<Box<Part>>) -> Option<Box<Part>> {
    let mut part = list.take()?;
    *list = part.next.take();
    Some(part)
}

/// All requests of a list that begins with this one.
fn each(first: Option<&Part>) -> impl Iterator<Item = &Part> {
    core::iter::successors(first, |part| part.next.as_deref())
}

/// Answers a request; `false` where the driver's memory has to come first.
fn complete(transport: &mut Transport<Blk>, vm: &Guest, part: &Part, status: Status) -> bool {
    if !transport.complete(&vm.memory(), &part.request, status) {
        return false;
    }
    let took = machine::nanoseconds(timer::now().saturating_sub(part.since));
    vm.count(count::DISK_NS, took);
    vm.count(count::DISK_LATENCY + latency_bucket(took), 1);
    vm.count(count::DISK_ERRORS, (status == Status::IoError).into());
    true
}

/// A disk.
pub type Block = Virtio<State>;

impl Block {
    /// A disk that looks like `device`, at that place among the VM's devices, and keeps its data in `backing`, of which
    /// `limit` bytes a second may be read or written (0: any number).
    pub fn new(device: Blk, window: usize, backing: Backing, limit: u64) -> Self {
        let state = State {
            transport: Transport::new(device),
            window,
            backing,
            spare: None,
            parked: None,
            under_way: 0,
            limit,
            busy_until: 0,
            held: None,
        };
        Self::with(window, state)
    }

    /// What `io` said was done with `buffer`, or went wrong: the request goes on, as far as the pass allows.
    pub fn go_on(
        &self,
        vm: &Guest,
        mut part: Box<Part>,
        (buffer, io): (Buffer, Io),
        done: bool,
        budget: &mut Budget,
    ) {
        let before = budget.pages();
        let mut state = self.state.lock();
        state.under_way -= 1;
        part.progress.moves(io.bytes);
        let (page, side) = (buffer.data(), part.side);
        if done {
            part.came = Some((buffer, Loaded { page, side, io }));
            advance(&mut state, vm, part, budget);
            paging::charge_request(vm, budget.pages() - before);
        } else {
            drop(buffer);
            fail(&mut state, vm, part);
        }
        self.show(vm, &mut state);
        // Requests may wait for the buffer that became free.
        vm.put_off_device_work();
    }

    /// Asks its overlay, if it has one; else gives nothing.
    pub fn of_overlay<T: Default>(&self, say: impl FnOnce(&CowDisk) -> T) -> T {
        match &self.state.lock().backing {
            Backing::Cow(disk) => say(disk),
            Backing::ReadOnly(..) | Backing::Partition(_) => T::default(),
        }
    }

    /// The number of the partition that is its base, if one is.
    pub fn base(&self) -> Option<u8> {
        let state = self.state.lock();
        let Backing::Cow(_) = &state.backing else {
            return None;
        };
        let base = extent(&state.backing, Side::Base);
        base.map(|partition| partition.number())
    }

    /// Takes the disk's data from it: the VM has ended.
    pub fn into_backing(self) -> Backing {
        self.state.into_inner().backing
    }
}

impl Behaviour for State {
    type Device = Blk;
    const WAITS: bool = true;

    fn transport(&mut self) -> &mut Transport<Blk> {
        &mut self.transport
    }

    /// Serves requests, as far as one pass goes; vCPU 0 comes back for the rest.
    fn work(&mut self, vm: &Guest) {
        let mut budget = Budget::until(stretch::is_past);
        self.tell_held(vm, false);
        serve_parked(self, vm, &mut budget);
        serve_next(self, vm, &mut budget);
        paging::charge_request(vm, budget.pages());
    }

    /// Requests that are held.
    fn due(&mut self) -> Option<u64> {
        each(self.held.as_deref()).map(|part| part.end.1).min()
    }

    /// Those of its overlay that nobody else uses.
    fn frames(&self) -> u64 {
        match &self.backing {
            Backing::Cow(disk) => disk.private() / FRAME_SIZE,
            Backing::ReadOnly(..) | Backing::Partition(_) => 0,
        }
    }

    /// Whether the rings, or a request that is not answered, use a guest frame.
    fn uses(&mut self, gfn: Gfn) -> bool {
        let (mut parked, mut held) = (each(self.parked.as_deref()), each(self.held.as_deref()));
        // What is held is done with its data, for as long as a low rate says.
        self.transport.uses(gfn)
            || parked.any(|part| part.request.uses(gfn))
            || held.any(|part| part.request.is_told_in(gfn))
    }

    fn record(&mut self) -> Result<abi::state::Device, &'static str> {
        let is_idle = self.under_way == 0 && self.parked.is_none() && self.held.is_none();
        let record = is_idle.then(|| self.transport.record());
        record.ok_or("a disk that is at work")
    }
}

fn serve_next(state: &mut State, vm: &Guest, budget: &mut Budget) {
    let memory = vm.memory();
    loop {
        // A disk with a limited rate does one request after the other, too.
        let is_single = state.limit > 0 || state.backing.is_single();
        let is_busy = state.held.is_some() || is_single && state.under_way > 0;
        if is_busy || state.parked.is_some() {
            return;
        }
        if budget.is_spent() {
            return vm.put_off_device_work();
        }
        if must_wait_for_frames(vm) {
            return;
        }
        if state.spare.is_none() {
            state.spare = heap::try_box(Part::new(vm.id, state.window)).ok();
        }
        let Some(part) = &mut state.spare else {
            return vm.put_off_device_work();
        };
        budget.began();
        match state.transport.next_request(&memory, &mut part.request) {
            Next::Empty => return,
            Next::Answered => drop(vm.count(count::DISK_REFUSED, 1)),
            Next::Request => {
                count_request(vm, &part.request);
                start(state, vm, budget);
            }
        }
    }
}

/// Counts a request that reads, writes or flushes.
fn count_request(vm: &Guest, request: &Request) {
    let kind = match request.operation() {
        Operation::Read { .. } => 0,
        Operation::Write { .. } => 1,
        Operation::Flush => 2,
        Operation::Discard | Operation::WriteZeroes => return,
    };
    vm.count(count::DISK + kind, 1);
    if kind < 2 {
        vm.count(count::DISK_BYTES + kind, request.data_bytes().into());
    }
}

/// Goes on with requests that were parked, until one is parked again.
fn serve_parked(state: &mut State, vm: &Guest, budget: &mut Budget) {
    while state.parked.is_some()
        && !must_wait_for_frames(vm)
        && let Some(part) = pop(&mut state.parked)
    {
        if !advance(state, vm, part, budget) {
            return;
        }
        if budget.is_spent() {
            return vm.put_off_device_work();
        }
    }
}

/// Whether no request is to be begun, for want of frames for it: the devices are told when there are
/// some. What a request needs beyond those is taken of the emergency reserve. Who is paused ends what it began, whatever it
/// owes: until then no page of the request can be taken.
fn must_wait_for_frames(vm: &Guest) -> bool {
    if !vm.is_paused() && !paging::may_begin_request(vm) {
        return true;
    }
    if !frames::are_few()
        || sharing::evict_some(vm.home)
        || !crate::memory::shortage::may_wait_for_frames()
    {
        return false;
    }
    paging::stall(vm, paging::DEVICES);
    true
}

/// What a pass for a VM's disk works with.
fn pass<'a>(vm: &'a Guest, budget: &'a mut Budget) -> Pass<'a, Near, Guest> {
    Pass {
        machine: Near(vm.home),
        guest: vm,
        budget,
    }
}

/// Begins with the request that was taken.
fn start(state: &mut State, vm: &Guest, budget: &mut Budget) {
    let Some(part) = &mut state.spare else { return };
    part.since = timer::now();
    part.progress = Progress::new(state.limit > 0);
    let (mut pass, backing) = (pass(vm, budget), &mut state.backing);
    let turn = execute(&mut pass, backing, &part.request, &mut part.progress, None);
    let is_told = match turn {
        Turn::Done(status) if part.progress.moved.unwrap_or(0) == 0 => {
            complete(&mut state.transport, vm, part, status)
        }
        _ => false,
    };
    if !is_told && let Some(part) = state.spare.take() {
        follow(state, vm, (part, turn), budget);
    }
}

/// Goes on with a request, with what came for it; `false` where it was parked again. One whose driver has reset
/// the device is over.
fn advance(state: &mut State, vm: &Guest, mut part: Box<Part>, budget: &mut Budget) -> bool {
    if !state.transport.awaits(&part.request) {
        return true;
    }
    if let Some(filling) = part.filling.take() {
        return fill_buffer(state, vm, part, (filling, None), budget);
    }
    let Part {
        request,
        progress,
        came,
        ..
    } = &mut *part;
    let loaded = came.as_ref().map(|(_, loaded)| *loaded);
    let mut pass = pass(vm, budget);
    let turn = execute(&mut pass, &mut state.backing, request, progress, loaded);
    follow(state, vm, (part, turn), budget)
}

/// Does with a request what comes next; `false` where it was parked.
fn follow(
    state: &mut State,
    vm: &Guest,
    (mut part, turn): (Box<Part>, Turn),
    budget: &mut Budget,
) -> bool {
    match turn {
        Turn::Needs(side, io) => return begin(state, vm, part, (side, io), budget),
        Turn::More => {
            push(&mut state.parked, part);
            vm.put_off_device_work();
            return false;
        }
        Turn::Later => {
            part.came = None;
            return park_until_freed(state, vm, part);
        }
        Turn::Done(status) => {
            part.came = None;
            finish(state, vm, part, status);
        }
    }
    true
}

/// Parks a request for want of a buffer or a slot, which the end of another may bring.
fn park_until_freed(state: &mut State, vm: &Guest, part: Box<Part>) -> bool {
    push(&mut state.parked, part);
    if state.under_way == 0 {
        // Nobody else comes back to it.
        vm.put_off_device_work();
    }
    false
}

fn fail(state: &mut State, vm: &Guest, mut part: Box<Part>) {
    part.progress.moved = None;
    finish(state, vm, part, Status::IoError);
}

/// Tells the guest how a request ended: now, or when a disk of the rate it is limited to would be done with the bytes that
/// were really moved.
fn finish(state: &mut State, vm: &Guest, mut part: Box<Part>, status: Status) {
    let moved = part.progress.moved.unwrap_or(0);
    part.end = (status, 0);
    if state.limit > 0 && moved > 0 {
        let takes = u128::from(moved) * u128::from(timer::frequency()) / u128::from(state.limit);
        let begins = state.busy_until.max(timer::now());
        part.end.1 = begins.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
        state.busy_until = part.end.1;
    }
    state.tell(vm, part, false);
}
