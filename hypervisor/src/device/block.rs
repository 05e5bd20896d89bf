//! A VM's disk: requests of its virtio-blk device, served from a base and an overlay, or from a
//! partition of a physical disk.
//!
//! What is in memory is served at once. For what is not, a [`Part`] of the request goes to the
//! physical disk in a buffer of EL2's own, and the request goes on from there when it is back.

mod parked;

use super::overlay::{Base, CowDisk};
use super::request::{Loaded, Side, Turn, execute, fill, first_read};
use super::virtio::{Slot, register, update_line};
use crate::physical::disk::{Buffer, Extent, Io, JOBS_FOR_PAGES, Job, Partition};
use crate::vm::{self, Instance};
use crate::{frames, heap, host, housekeeping, paging, sharing};
use abi::bundle::Image;
use abi::control::{LATENCY_BUCKETS, latency_bucket};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicU64, Ordering};
use machine_aarch64::timer;
use machine_locks::{Rank, SpinLock};
use model_addr::{Gfn, VmId};
use model_virtio::Transport;
use model_virtio::blk::{Blk, Next, Operation, Request, Status};

/// Bytes moved, and requests served, in one go.
const BYTES_AT_ONCE: u64 = 256 * 1024;
const REQUESTS_AT_ONCE: u32 = 64;

/// What holds a disk's data.
pub enum Backing {
    /// A base and a private overlay.
    Cow(CowDisk),
    /// A base image that cannot be written, and whether others may use what is read of it.
    ReadOnly(Image<'static>, bool),
    /// A partition of a physical disk.
    Partition(Partition),
}

impl Backing {
    fn partition(&self, side: Side) -> Option<Extent> {
        let partition = match (self, side) {
            (Self::Partition(partition), Side::Base) => partition,
            (Self::Cow(disk), Side::Overlay) => disk.store()?,
            (Self::Cow(disk), Side::Base) => match &disk.base {
                Base::Partition(partition) => partition,
                Base::Image(_) => return None,
            },
            _ => return None,
        };
        Some(**partition)
    }

    /// Whether it does one request after the other: a block may not be read while it is written.
    fn is_single(&self) -> bool {
        self.partition(Side::Overlay).is_some()
    }
}

/// A request of a VM that a physical disk is at.
pub struct Part {
    /// The VM.
    pub vm: VmId,
    /// Its virtio window.
    window: usize,
    /// The request.
    pub request: Request,
    /// Bytes of its data that are done.
    pub done: u64,
    /// The partition that is at it.
    side: Side,
    /// Bytes that were really read or written for it.
    moved: u64,
    /// When it was taken from the ring, in counts.
    since: u64,
}

impl Part {
    /// What `io` said was done with `buffer`, or went wrong: the request goes on.
    pub fn go_on(self: Box<Self>, buffer: Buffer, io: Io, done: bool) {
        // Where the VM has ended in the meantime there is nobody to tell.
        if let Some(vm) = vm::instance(self.vm)
            && let Some(Slot::Block(block)) = vm.virtio.get(self.window)
        {
            block.go_on(&vm, self, buffer, io, done);
        }
    }
}

/// A request that is done, of which a disk with a limited rate tells later.
struct Held {
    until: u64,
    since: u64,
    request: Box<Request>,
    status: Status,
}

struct State {
    transport: Transport<Blk>,
    backing: Backing,
    /// Where the next request is taken to.
    request: Option<Box<Request>>,
    /// A request that waits for a buffer of the physical disk.
    parked: Option<Box<Part>>,
    /// Requests that the physical disk is at.
    under_way: u32,
    /// Bytes a second; 0: no limit.
    limit: u64,
    /// When the disk is done with what it was limited to.
    busy_until: u64,
    held: Option<Held>,
    served: Served,
}

/// How requests ended.
#[derive(Clone, Copy, Default)]
pub struct Served {
    /// They failed on the machine's side.
    pub errors: u64,
    /// Nanoseconds they took, from the ring and back to it.
    pub nanoseconds: u64,
    /// How many took how long.
    pub latency: [u64; LATENCY_BUCKETS],
}

impl State {
    /// Answers a request that was taken from the ring at that count.
    fn complete(&mut self, vm: &Instance, request: &Request, status: Status, since: u64) {
        let took = host::nanoseconds(timer::now().saturating_sub(since));
        self.served.nanoseconds = self.served.nanoseconds.saturating_add(took);
        self.served.latency[latency_bucket(took)] += 1;
        self.served.errors += u64::from(status == Status::IoError);
        self.transport.complete(&vm.memory(), request, status);
    }
}

/// Counters of a disk.
#[derive(Default)]
pub struct Counts {
    reads: AtomicU64,
    writes: AtomicU64,
    flushes: AtomicU64,
    refused: AtomicU64,
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
}

/// A disk.
pub struct Block {
    state: SpinLock<State>,
    counts: Counts,
}

impl Block {
    /// A disk that looks like `device` and keeps its data in `backing`, of which `limit` bytes a
    /// second may be read or written (0: any number).
    pub fn new(device: Blk, backing: Backing, limit: u64) -> Self {
        let state = State {
            transport: Transport::new(device),
            backing,
            request: Some(Box::default()),
            parked: None,
            under_way: 0,
            limit,
            busy_until: 0,
            held: None,
            served: Served::default(),
        };
        Self {
            state: SpinLock::new(Rank::Device, state),
            counts: Counts::default(),
        }
    }

    /// The guest reads the register at `offset`, or writes it.
    pub fn access(
        &self,
        vm: &Instance,
        n: usize,
        offset: u64,
        size: usize,
        value: Option<u64>,
    ) -> u64 {
        let mut notified = false;
        let mut state = self.state.lock();
        let read = register(&mut state.transport, vm, n, offset, size, value, |_, _| {
            notified = true;
        });
        if notified {
            self.serve(&mut state, vm, n);
            update_line(&state.transport, vm, n);
        }
        read
    }

    /// Goes on with requests that were put off.
    pub fn proceed(&self, vm: &Instance, n: usize) {
        let mut state = self.state.lock();
        self.serve(&mut state, vm, n);
        update_line(&state.transport, vm, n);
    }

    /// Whether a request that was held may be told of now; asks to be asked again where it may later.
    pub fn is_due(&self) -> bool {
        let until = self.state.lock().held.as_ref().map(|held| held.until);
        until.is_some_and(housekeeping::has_come)
    }

    fn go_on(&self, vm: &Instance, mut part: Box<Part>, buffer: Buffer, io: Io, done: bool) {
        let n = part.window;
        let mut state = self.state.lock();
        state.under_way -= 1;
        part.moved += io.bytes;
        let (page, side) = (buffer.data(), part.side);
        if done {
            advance(
                &mut state,
                vm,
                part,
                Some((buffer, Loaded { page, side, io })),
            );
        } else {
            drop(buffer);
            fail(&mut state, vm, &part);
        }
        update_line(&state.transport, vm, n);
        // Requests may wait for the buffer that became free.
        vm.put_off_device_work();
    }

    /// Queues that the driver broke, since the start.
    pub fn errors(&self) -> u64 {
        self.state.lock().transport.errors().0.into()
    }

    /// Bytes of frames in the overlay, and bytes that it has on a partition.
    pub fn overlay_usage(&self) -> (u64, u64) {
        match &self.state.lock().backing {
            Backing::Cow(disk) => (disk.usage(), disk.stored()),
            _ => (0, 0),
        }
    }

    /// Requests: reads, writes, flushes, refused; bytes read and written.
    pub fn counts(&self) -> ([u64; 4], [u64; 2]) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts {
            reads,
            writes,
            flushes,
            refused,
            bytes_read,
            bytes_written,
        } = &self.counts;
        (
            [load(reads), load(writes), load(flushes), load(refused)],
            [load(bytes_read), load(bytes_written)],
        )
    }

    /// How its requests ended.
    pub fn served(&self) -> Served {
        self.state.lock().served
    }

    /// Bytes of frames in the overlay that nobody else can use.
    pub fn overlay_private(&self) -> u64 {
        match &self.state.lock().backing {
            Backing::Cow(disk) => disk.private(),
            _ => 0,
        }
    }

    /// The number of the partition that is its base, if one is.
    pub fn base(&self) -> Option<u8> {
        let state = self.state.lock();
        let Backing::Cow(_) = &state.backing else {
            return None;
        };
        let base = state.backing.partition(Side::Base);
        base.map(|partition| partition.number())
    }

    /// Takes the disk's data from it: the VM has ended.
    pub fn into_backing(self) -> Backing {
        self.state.into_inner().backing
    }

    /// Whether the rings of the disk, or a request under way, use a guest frame.
    pub fn uses(&self, gfn: Gfn) -> bool {
        let Some(state) = self.state.try_lock() else {
            return true;
        };
        let parked = state.parked.as_ref().map(|part| &part.request);
        let held = state.held.as_ref().map(|held| &*held.request);
        let mut waiting = [parked, held].into_iter().flatten();
        state.transport.uses(gfn) || waiting.any(|request| request.uses(gfn))
    }

    /// Serves requests, as many as one go allows; vCPU 0 comes back for the rest.
    fn serve(&self, state: &mut State, vm: &Instance, n: usize) {
        if let Some(part) = state.parked.take() {
            advance(state, vm, part, None);
        }
        if let Some(held) = state.held.take_if(|held| timer::now() >= held.until) {
            state.complete(vm, &held.request, held.status, held.since);
        }
        if let Some(mut request) = state.request.take() {
            self.serve_next(state, &mut request, vm, n);
            state.request = Some(request);
        }
    }

    fn serve_next(&self, state: &mut State, request: &mut Request, vm: &Instance, n: usize) {
        let memory = vm.memory();
        let mut bytes = 0;
        for _ in 0..REQUESTS_AT_ONCE {
            // A disk with a limited rate does one request after the other, too.
            let is_single = state.limit > 0 || state.backing.is_single();
            let is_busy = state.held.is_some() || is_single && state.under_way > 0;
            if is_busy || state.parked.is_some() {
                return;
            }
            if bytes >= BYTES_AT_ONCE {
                break;
            }
            if must_wait_for_frames(vm) {
                return;
            }
            match state.transport.next_request(&memory, request) {
                Next::Empty => return,
                Next::Answered => count(&self.counts.refused, 1),
                Next::Request => {
                    bytes += u64::from(request.data_bytes());
                    self.count_request(request);
                    start(state, request, vm, n);
                }
            }
        }
        vm.put_off_device_work();
    }

    fn count_request(&self, request: &Request) {
        let bytes = u64::from(request.data_bytes());
        match request.operation() {
            Operation::Read { .. } => {
                count(&self.counts.reads, 1);
                count(&self.counts.bytes_read, bytes);
            }
            Operation::Write { .. } => {
                count(&self.counts.writes, 1);
                count(&self.counts.bytes_written, bytes);
            }
            Operation::Flush => count(&self.counts.flushes, 1),
            Operation::Discard | Operation::WriteZeroes => {}
        }
    }
}

/// Whether no request is to be begun, for want of frames for it: the devices are told when there are
/// some. What a request needs beyond those is taken of the emergency reserve.
fn must_wait_for_frames(vm: &Instance) -> bool {
    if !paging::may_begin_request(vm) {
        return true;
    }
    if !frames::are_few() || sharing::evict_some(vm.home) || !vm::may_wait_for_frames() {
        return false;
    }
    paging::stall(vm, paging::DEVICES);
    true
}

fn count(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Begins with a request.
fn start(state: &mut State, request: &mut Request, vm: &Instance, window: usize) {
    let (mut done, since) = (0, timer::now());
    let moved = match (&state.backing, state.limit) {
        (_, 0) => 0,
        (backing, _) => first_read(backing, request),
    };
    match execute(&mut state.backing, request, &mut done, None, vm) {
        Turn::Done(status) => finish(state, vm, request, status, (moved, since)),
        _ if !heap::reserve(size_of::<Part>() as u64) => {
            finish(state, vm, request, Status::IoError, (0, since));
        }
        turn => {
            let part = Box::new(Part {
                vm: vm.id,
                window,
                request: core::mem::take(request),
                done,
                side: Side::default(),
                moved,
                since,
            });
            follow(state, vm, part, turn, None);
        }
    }
}

/// What a transfer has brought, and to where.
type Came = Option<(Buffer, Loaded)>;

/// Goes on with a request, with what came for it.
fn advance(state: &mut State, vm: &Instance, mut part: Box<Part>, came: Came) {
    let Part { request, done, .. } = &mut *part;
    let loaded = came.as_ref().map(|(_, loaded)| *loaded);
    let turn = execute(&mut state.backing, request, done, loaded, vm);
    follow(state, vm, part, turn, came);
}

/// Does with a request what comes next.
fn follow(state: &mut State, vm: &Instance, part: Box<Part>, turn: Turn, came: Came) {
    match turn {
        Turn::Needs(side, io) => begin(state, vm, part, (side, io), came),
        Turn::Later => park(state, vm, part),
        Turn::Done(status) => {
            drop(came);
            finish(state, vm, &part.request, status, (part.moved, part.since));
        }
    }
}

fn park(state: &mut State, vm: &Instance, part: Box<Part>) {
    state.parked = Some(part);
    if state.under_way == 0 {
        // Nobody else comes back to it.
        vm.put_off_device_work();
    }
}

fn fail(state: &mut State, vm: &Instance, part: &Part) {
    finish(state, vm, &part.request, Status::IoError, (0, part.since));
}

/// Gives a part of a request to a physical disk, or parks it until there is a buffer.
fn begin(
    state: &mut State,
    vm: &Instance,
    mut part: Box<Part>,
    (side, io): (Side, Io),
    came: Came,
) {
    let Some(partition) = state.backing.partition(side) else {
        return fail(state, vm, &part);
    };
    let loaded = came.as_ref().map(|(_, loaded)| *loaded);
    // What came stays until it was used, where it is another disk's.
    let (buffer, kept) = match came {
        Some((buffer, _)) if partition.fits(&buffer) => (Some(buffer), None),
        came => (partition.buffer(JOBS_FOR_PAGES), came),
    };
    let Some(buffer) = buffer else {
        return park(state, vm, part);
    };
    let filled = fill(&mut state.backing, &part, (io, buffer.data()), loaded, vm);
    drop(kept);
    let io = match filled {
        Ok(io) => io,
        Err(turn) => {
            drop(buffer);
            return follow(state, vm, part, turn, None);
        }
    };
    part.side = side;
    match partition.begin(buffer, io, Job::Request(part)) {
        Ok(()) => state.under_way += 1,
        Err(Job::Request(part)) => fail(state, vm, &part),
        Err(Job::Page(_)) => {}
    }
}

/// Tells the guest how a request ended for which so many bytes were really moved, since then: now, or when a
/// disk of the rate it is limited to would be done with them.
fn finish(
    state: &mut State,
    vm: &Instance,
    request: &Request,
    status: Status,
    (moved, since): (u64, u64),
) {
    if state.limit == 0 || moved == 0 || !heap::reserve(size_of::<Request>() as u64) {
        state.complete(vm, request, status, since);
        return;
    }
    let takes = u128::from(moved) * u128::from(timer::frequency()) / u128::from(state.limit);
    let begins = state.busy_until.max(timer::now());
    let until = begins.saturating_add(u64::try_from(takes).unwrap_or(u64::MAX));
    state.busy_until = until;
    housekeeping::request_at(until);
    state.held = Some(Held {
        until,
        since,
        request: Box::new(request.clone()),
        status,
    });
}
