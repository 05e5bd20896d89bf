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
use model_addr::Gfn;
use model_disk::{Budget, Loaded, Pass, Progress, Side, Store as _, Turn, execute};
use model_virtio::Transport;
use model_virtio::blk::{Blk, Next, Operation, Request, Status};
use transfer::{begin, fill_buffer};

/// The partition of that side of a disk's data.
fn extent(backing: &Backing, side: Side) -> Option<Extent> {
    backing.partition(side).map(|partition| **partition)
}

/// A request that is done, of which a disk with a limited rate tells later.
struct Held {
    until: u64,
    since: u64,
    request: Box<Request>,
    status: Status,
}

/// State of a disk.
pub struct State {
    transport: Transport<Blk>,
    /// Its place among the VM's devices.
    window: usize,
    backing: Backing,
    /// Where the next request is taken to.
    request: Option<Box<Request>>,
    /// Requests that go on in the next pass, or when there is a buffer of the physical disk.
    parked: Option<Box<Part>>,
    /// Requests that the physical disk is at.
    under_way: u32,
    /// Bytes a second; 0: no limit.
    limit: u64,
    /// When the disk is done with what it was limited to.
    busy_until: u64,
    held: Option<Held>,
}

impl State {
    /// The requests that are parked.
    fn waiting(&self) -> impl Iterator<Item = &Part> {
        core::iter::successors(self.parked.as_deref(), |part| part.next.as_deref())
    }

    /// Takes a parked request.
    fn unpark(&mut self) -> Option<Box<Part>> {
        let mut part = self.parked.take()?;
        self.parked = part.next.take();
        Some(part)
    }

    /// Answers a request that was taken from the ring at that count.
    fn complete(&mut self, vm: &Guest, request: &Request, status: Status, since: u64) {
        let took = machine::nanoseconds(timer::now().saturating_sub(since));
        vm.count(count::DISK_NS, took);
        vm.count(count::DISK_LATENCY + latency_bucket(took), 1);
        vm.count(count::DISK_ERRORS, (status == Status::IoError).into());
        self.transport.complete(&vm.memory(), request, status);
    }
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
            request: Some(Box::default()),
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
            fail(&mut state, vm, &part);
        }
        self.show_line(vm, &mut state);
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

    fn transport(&mut self) -> &mut Transport<Blk> {
        &mut self.transport
    }

    /// Serves requests, as far as one pass goes; vCPU 0 comes back for the rest.
    fn work(&mut self, vm: &Guest) {
        let mut budget = Budget::until(stretch::is_past);
        let Self {
            transport, held, ..
        } = self;
        let is_over =
            |held: &mut Held| timer::now() >= held.until || !transport.awaits(&held.request);
        if let Some(held) = held.take_if(is_over) {
            self.complete(vm, &held.request, held.status, held.since);
        }
        serve_parked(self, vm, &mut budget);
        if let Some(mut request) = self.request.take() {
            serve_next(self, &mut request, vm, &mut budget);
            self.request = Some(request);
        }
        paging::charge_request(vm, budget.pages());
    }

    /// A request that is held.
    fn due(&mut self) -> Option<u64> {
        self.held.as_ref().map(|held| held.until)
    }

    /// Whether the rings, or a request that is not answered, use a guest frame.
    fn uses(&mut self, gfn: Gfn) -> bool {
        let held = self.held.iter().map(|held| &*held.request);
        let mut requests = self.waiting().map(|part| &part.request).chain(held);
        self.transport.uses(gfn) || requests.any(|request| request.uses(gfn))
    }

    fn record(&mut self) -> Result<abi::state::Device, &'static str> {
        let is_idle = self.under_way == 0 && self.parked.is_none() && self.held.is_none();
        let record = is_idle.then(|| self.transport.record());
        record.ok_or("a disk that is at work")
    }
}

fn serve_next(state: &mut State, request: &mut Request, vm: &Guest, budget: &mut Budget) {
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
        budget.began();
        match state.transport.next_request(&memory, request) {
            Next::Empty => return,
            Next::Answered => drop(vm.count(count::DISK_REFUSED, 1)),
            Next::Request => {
                count_request(vm, request);
                start(state, request, vm, budget);
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
    while state.parked.is_some() {
        if must_wait_for_frames(vm) {
            return;
        }
        let Some(part) = state.unpark() else { return };
        if !advance(state, vm, part, budget) {
            return;
        }
        if budget.is_spent() {
            return vm.put_off_device_work();
        }
    }
}

/// Whether no request is to be begun, for want of frames for it: the devices are told when there are
/// some. What a request needs beyond those is taken of the emergency reserve.
fn must_wait_for_frames(vm: &Guest) -> bool {
    if !paging::may_begin_request(vm) {
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

/// Begins with a request.
fn start(state: &mut State, request: &mut Request, vm: &Guest, budget: &mut Budget) {
    let since = timer::now();
    let mut progress = Progress::new(state.limit > 0);
    let mut pass = pass(vm, budget);
    match execute(&mut pass, &mut state.backing, request, &mut progress, None) {
        Turn::Done(status) => finish(state, vm, request, status, (progress.moved, since)),
        turn => {
            let part = Part {
                vm: vm.id,
                window: state.window,
                request: core::mem::take(request),
                progress,
                side: Side::default(),
                came: None,
                filling: None,
                since,
                next: None,
            };
            match heap::try_box(part) {
                Ok(part) => drop(follow(state, vm, (part, turn), budget)),
                Err(part) => finish(state, vm, &part.request, Status::IoError, (None, since)),
            }
        }
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
            park(state, part);
            vm.put_off_device_work();
            return false;
        }
        Turn::Later => {
            part.came = None;
            return park_until_freed(state, vm, part);
        }
        Turn::Done(status) => {
            part.came = None;
            let moved = part.progress.moved;
            finish(state, vm, &part.request, status, (moved, part.since));
        }
    }
    true
}

fn park(state: &mut State, mut part: Box<Part>) {
    part.next = state.parked.take();
    state.parked = Some(part);
}

/// Parks a request for want of a buffer or a slot, which the end of another may bring.
fn park_until_freed(state: &mut State, vm: &Guest, part: Box<Part>) -> bool {
    park(state, part);
    if state.under_way == 0 {
        // Nobody else comes back to it.
        vm.put_off_device_work();
    }
    false
}

fn fail(state: &mut State, vm: &Guest, part: &Part) {
    let moved = (None, part.since);
    finish(state, vm, &part.request, Status::IoError, moved);
}

/// Tells the guest how a request ended for which so many bytes were really moved, since then: now, or when a
/// disk of the rate it is limited to would be done with them.
fn finish(
    state: &mut State,
    vm: &Guest,
    request: &Request,
    status: Status,
    (moved, since): (Option<u64>, u64),
) {
    let moved = moved.unwrap_or(0);
    let waits = state.limit > 0 && moved > 0;
    let held = waits.then(|| heap::try_box(request.clone()).ok());
    let Some(Some(held)) = held else {
        state.complete(vm, request, status, since);
        return;
    };
    let takes = u128::from(moved) * u128::from(timer::frequency()) / u128::from(state.limit);
    let begins = state.busy_until.max(timer::now());
    let until = begins.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
    state.busy_until = until;
    due::request_at(until);
    state.held = Some(Held {
        until,
        since,
        request: held,
        status,
    });
}
