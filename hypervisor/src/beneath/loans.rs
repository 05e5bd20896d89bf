//! Memory that OS-0 lends, and what is made of it: frame table, pools and VMs.

use crate::beneath::{Os0Cpu, attach, get, stage2};
use crate::devices::network;
use crate::drivers::{channel, disk, uplink};
use crate::memory::{frames, sharing};
use crate::vcpu::sched;
use crate::{cluster, control, life, start, vms};
use abi::os0::{DONE, MORE, Refusal};
use abi::served::AREA_BYTES;
use arch::frames::{Ram, zero_frames_for_guest};
use arch::gic;
use core::sync::atomic::{AtomicBool, Ordering};
use machine_locks::{Rank, SpinGuard, SpinLock};
use model_addr::{FRAME_SIZE, NodeId, Pa, PaRange};
use model_frame_table::{MAX_RANGES, entries_bytes};
use model_loans::{
    BLOCK, Borrower, LOANS_MAX, Lending, Loans, Made, Returned, SCATTERED_MAX, Scattered,
};
use model_machine_tree::Memory;
use model_uplink::Uplink;

/// What is lent to VMs, and staged, and who uses it.
static LENDING: SpinLock<Lending> = SpinLock::new(Rank::Vm, Lending::new());
/// VMs can be made of what is lent, for those who need no more than a look.
static OPEN: AtomicBool = AtomicBool::new(false);
/// The CPUs of this image had not come when VMs were taken over.
static AWAITS_CPUS: AtomicBool = AtomicBool::new(false);

/// Each has a range of the frame table.
const _: () = assert!(LOANS_MAX + SCATTERED_MAX <= MAX_RANGES);

/// What EL2 must have free in all loans beside the bundle and the frame table.
const LEAST: u64 = 4 << 20;

/// All that is lent, kept as it is until this is dropped.
pub fn hold() -> SpinGuard<'static, Lending> {
    LENDING.lock()
}

/// Whether any memory is lent, or staged.
pub fn are_any() -> bool {
    let lending = LENDING.lock();
    let mut borrowers = [Borrower::Vms, Borrower::Successor].into_iter();
    borrowers.any(|borrower| !lending.loans().is_empty(borrower))
}

/// Whether VMs are parked in what is lent, and nothing else is.
pub fn are_parked() -> bool {
    let lending = LENDING.lock();
    lending.are_parked() && lending.loans().is_empty(Borrower::Successor)
}

/// VMs were parked in what is lent before this image came, and are again.
pub fn stay_open() {
    AWAITS_CPUS.store(true, Ordering::Relaxed);
    settle(Made::Vms);
}

/// What has become of what is lent.
fn settle(made: Made) {
    LENDING.lock().settle(made);
    OPEN.store(made == Made::Vms, Ordering::Release);
}

/// LEND.
pub fn lend(start: u64, size: u64) -> Result<u64, Refusal> {
    take(Borrower::Vms, start, size, false).map(|_| DONE)
}

/// LEND_PAGES, with these arguments behind the function's number.
pub fn lend_pages([_, start, pages @ ..]: &[u64; 31]) -> Result<u64, Refusal> {
    let mut scattered = Scattered {
        start: Pa(*start),
        pages: [0; 8],
    };
    let bits = scattered.pages.iter_mut();
    bits.zip(pages).for_each(|(bits, given)| *bits = *given);
    let mut lending = LENDING.lock();
    let loans = lending.to_lend(Borrower::Vms, attach::is_attached());
    loans?.lend_pages(scattered, memory(), kept())?;
    stage2::withdraw_pages(&scattered);
    Ok(DONE)
}

/// Takes a run out of OS-0's reach, if it is its; `anyway`: also where EL2 is not beneath all CPUs.
pub fn take(borrower: Borrower, start: u64, size: u64, anyway: bool) -> Result<PaRange, Refusal> {
    let run = PaRange::of(Pa(start), size);
    let mut lending = LENDING.lock();
    let loans = lending.to_lend(borrower, anyway || attach::is_attached());
    loans?.lend(borrower, run, memory(), kept())?;
    // Nothing of OS-0 reaches it from here on, on any CPU.
    stage2::withdraw(run);
    Ok(run)
}

fn memory() -> impl Iterator<Item = PaRange> {
    get().tree.memory.iter().map(|memory| memory.range)
}

/// What is never OS-0's to lend, and the areas of its own that EL2 writes.
fn kept() -> impl Iterator<Item = PaRange> {
    let os0 = get();
    let served = disk::served().map(|(area, _)| (area.start(), AREA_BYTES));
    let uplink = uplink::given().map(|[start, ..]| (Pa(start), abi::uplink::AREA_BYTES));
    let areas = served.into_iter().chain(uplink);
    let areas = areas.map(|(start, size)| PaRange { start, size });
    { os0.tree.reserved.iter().copied() }
        .chain([os0.home.hidden])
        .chain(areas)
}

/// The runs that are lent to VMs, and the blocks of which pages are.
pub fn runs() -> heapless::Vec<PaRange, MAX_RANGES> {
    let lending = LENDING.lock();
    let loans = lending.loans();
    let blocks = loans.scattered().iter().map(Scattered::block);
    loans.runs(Borrower::Vms).chain(blocks).collect()
}

/// The run that is staged.
pub fn staged() -> Option<PaRange> {
    LENDING.lock().loans().whole(Borrower::Successor).next()
}

/// Whether single pages are lent, which no record says.
pub fn are_scattered() -> bool {
    !LENDING.lock().loans().scattered().is_empty()
}

/// REPAY and UNSTAGE. Gives back one block in a call, so that OS-0's interrupts wait for no more than that.
pub fn give_back(borrower: Borrower, start: u64) -> Result<u64, Refusal> {
    let mut lending = LENDING.lock();
    let loans = lending.to_return(borrower)?;
    match loans.next_returned(borrower, Pa(start))? {
        Returned::All => Ok(DONE),
        Returned::Block(block) => {
            // SAFETY: it is lent, and nothing is made of it now.
            unsafe { zero_frames_for_guest(block.start.frame(), block.size / FRAME_SIZE) }
            stage2::give_back(block);
            Ok(MORE)
        }
        Returned::Pages(pages) => {
            for run in pages.lent() {
                // SAFETY: as above.
                unsafe { zero_frames_for_guest(run.start.frame(), run.size / FRAME_SIZE) }
            }
            stage2::give_back_pages(pages.block());
            Ok(DONE)
        }
    }
}

/// An area of whole pages that OS-0 gives, and the interrupt that tells it what is there. It is OS-0's as long as
/// what is lent stays as it is.
pub fn area(loans: &Loans, start: u64, bytes: u64, interrupt: u64) -> Result<(Ram, u32), Refusal> {
    let is_shared = u64::from(gic::FIRST_SPI)..=get().distributor.last_interrupt().into();
    if !is_shared.contains(&interrupt) {
        return Err(Refusal::NoInterrupt);
    }
    let area = Some(start).filter(|start| start.is_multiple_of(FRAME_SIZE));
    let area = area.and_then(|start| memory_of_os0(loans, start, bytes));
    Ok((area.ok_or(Refusal::NoMemory)?, interrupt as u32))
}

type Blocks = heapless::Vec<Scattered, SCATTERED_MAX>;

/// What is lent, if the bundle lies there and there is room beside it and the frame table: that of blocks of
/// which pages are lent lies in the first run.
fn lent_for(
    loans: &Loans,
    bundle: PaRange,
) -> Result<(heapless::Vec<PaRange, LOANS_MAX>, Blocks), Refusal> {
    let is_lent = bundle.start.is_aligned(FRAME_SIZE) && loans.contains(bundle);
    if bundle.size > 0 && !is_lent {
        return Err(Refusal::NotLent);
    }
    let runs: heapless::Vec<PaRange, LOANS_MAX> = loans.whole(Borrower::Vms).collect();
    let scattered = loans.scattered();
    if runs.is_empty() {
        return Err(Refusal::NotLent);
    }
    let mut left = 0;
    let mut used = scattered.len() as u64 * entries_bytes(BLOCK / FRAME_SIZE);
    for run in &runs {
        if run.overlaps(bundle) {
            used += bundle.size;
        }
        used += entries_bytes(run.size / FRAME_SIZE);
        left += run.size.checked_sub(used).ok_or(Refusal::TooLittle)?;
        used = 0;
    }
    if left < LEAST {
        return Err(Refusal::TooLittle);
    }
    Ok((runs, scattered.iter().copied().collect()))
}

/// OPEN.
pub fn open(
    (bundle_start, bundle_bytes): (u64, u64),
    (area_start, interrupt): (u64, u64),
) -> Result<u64, Refusal> {
    if !attach::is_attached() {
        return Err(Refusal::NotAttached);
    }
    if attach::on() as usize != get().tree.cpus.len() {
        return Err(Refusal::CpusOff);
    }
    let bundle = PaRange::of(Pa(bundle_start), bundle_bytes);
    let mut lending = LENDING.lock();
    let (runs, scattered) = lent_for(lending.loans(), bundle)?;
    let area = || area(lending.loans(), area_start, AREA_BYTES, interrupt);
    let area = (area_start > 0).then(area).transpose()?;
    lending.open(attach::is_attached())?;
    drop(lending);
    OPEN.store(true, Ordering::Release);
    let memory: heapless::Vec<Memory, LOANS_MAX> = runs.iter().map(|run| of_node(*run)).collect();
    let bundle = (bundle.size > 0).then_some(bundle);
    let (tree, in_use) = (get().tree, start::InUse::new());
    start::use_memory(tree, (&memory, &scattered), bundle, in_use, None);
    start::settle_features();
    sched::init();
    control::forget_owed();
    channel::open();
    sharing::init();
    if let Some((area, interrupt)) = area
        && !disk::serve(area, interrupt)
    {
        log::warn!("disks that OS-0 serves do not start");
    }
    cluster::init();
    life::init();
    settle(Made::Vms);
    Ok(DONE)
}

pub fn of_node(run: PaRange) -> Memory {
    let mut memory = get().tree.memory.iter();
    let node = memory.find(|memory| memory.range.overlaps(run));
    Memory {
        range: run,
        node: node.map_or(NodeId(0), |memory| memory.node),
    }
}

/// CLOSE.
pub fn close() -> Result<u64, Refusal> {
    LENDING.lock().close()?;
    let undone = undo();
    settle(undone.map_or(Made::Vms, |()| Made::Nothing));
    undone?;
    control::forget_owed();
    uplink::close();
    Ok(DONE)
}

/// Undoes what is made of what is lent, while nobody shares or changes it.
fn undo() -> Result<(), Refusal> {
    if !vms::is_quiet() {
        return Err(Refusal::VmsRun);
    }
    network::forget();
    // SAFETY: no CPU shares, so that none runs a VM, and none is left.
    unsafe { disk::forget_served() }
    if !frames::forget() {
        log::error!("some of what is lent is still in use: it stays lent");
        return Err(Refusal::InUse);
    }
    vms::forget();
    sharing::forget();
    // SAFETY: no CPU shares, so that none runs anything that uses it, and no VM is left.
    unsafe { crate::machine::forget() }
    Ok(())
}

/// SHARE, for the CPU that calls.
pub fn share(me: &Os0Cpu, on: bool) -> Result<u64, Refusal> {
    if me.shares.get() == on {
        return Ok(DONE);
    }
    if on {
        let mut missing = model_native_el1::not_covered(crate::machine::id_register);
        if missing.next().is_some() {
            return Err(Refusal::NotCovered);
        }
        LENDING.lock().share(attach::is_attached())?;
        if AWAITS_CPUS.swap(false, Ordering::AcqRel) {
            start::settle_features();
        }
    } else if !vms::stand_still() {
        return Err(Refusal::VmsRun);
    } else if !disk::are_idle() || !vms::is_settled() {
        return Err(Refusal::InUse);
    }
    // The CPU's loop sees it when the call is over; it counts itself out.
    me.shares.set(on);
    Ok(DONE)
}

/// Whether CPUs of OS-0 must stay on and off as they are.
pub fn pin_cpus() -> bool {
    OPEN.load(Ordering::Acquire)
}

/// Bytes that go through EL2's stack at once.
const PIECE: usize = 512;

/// TELL and HEAR: bytes between the control port and a page of OS-0's.
pub fn carry(start: u64, size: u64, to_el2: bool) -> Result<u64, Refusal> {
    let is_open = OPEN.load(Ordering::Acquire);
    if !is_open && to_el2 {
        return Err(Refusal::NotOpen);
    }
    // The page stays OS-0's until all is carried.
    let lending = LENDING.lock();
    let page = window(lending.loans(), start, size).ok_or(Refusal::NoMemory)?;
    let mut done = 0;
    while done < size {
        let mut piece = [0; PIECE];
        let piece = &mut piece[..(size - done).min(PIECE as u64) as usize];
        let carried = if to_el2 {
            page.read(done, piece);
            channel::tell(piece)
        } else {
            let heard = channel::hear(piece);
            page.write(done, &piece[..heard]);
            heard
        };
        done += carried as u64;
        if carried < piece.len() {
            break;
        }
    }
    // What was said before all was closed is heard.
    if done == 0 && !is_open {
        return Err(Refusal::NotOpen);
    }
    Ok(done)
}

/// SERVE.
pub fn serve(area: u64, interrupt: u64) -> Result<u64, Refusal> {
    if !OPEN.load(Ordering::Acquire) {
        return Err(Refusal::NotOpen);
    }
    let lending = LENDING.lock();
    let (area, interrupt) = self::area(lending.loans(), area, AREA_BYTES, interrupt)?;
    let served = disk::serve_again(area, interrupt);
    served.then_some(DONE).ok_or(Refusal::NotOpen)
}

/// UPLINK; at `places` where another image was.
pub fn open_uplink((start, interrupt): (u64, u64), places: Option<Uplink>) -> Result<u64, Refusal> {
    let is_open = || OPEN.load(Ordering::Acquire);
    if !is_open() {
        return Err(Refusal::NotOpen);
    }
    let lending = LENDING.lock();
    let area = area(lending.loans(), start, abi::uplink::AREA_BYTES, interrupt)?;
    // What CLOSE has ended meanwhile has no area afterwards either.
    let opened = uplink::open(area, places, is_open);
    opened.then_some(DONE).ok_or(Refusal::InUse)
}

/// FRAMES.
pub fn frames() -> Result<u64, Refusal> {
    // VMs that are parked get nothing.
    if !LENDING.lock().is_shared() {
        return Err(Refusal::NotOpen);
    }
    Ok(if uplink::receive() { MORE } else { DONE })
}

/// SERVED.
pub fn served() -> Result<u64, Refusal> {
    if !OPEN.load(Ordering::Acquire) {
        return Err(Refusal::NotOpen);
    }
    Ok(if disk::answered() { MORE } else { DONE })
}

/// A part of a page of OS-0's own memory, as long as what is lent stays as it is.
pub fn window(loans: &Loans, start: u64, size: u64) -> Option<Ram> {
    let ends_in_page = start % FRAME_SIZE + size.min(FRAME_SIZE + 1) <= FRAME_SIZE;
    memory_of_os0(loans, start, size).filter(|_| ends_in_page)
}

/// A run of OS-0's own memory.
fn memory_of_os0(loans: &Loans, start: u64, size: u64) -> Option<Ram> {
    let run = PaRange::of(Pa(start), size);
    let is_memory = memory().any(|memory| memory.contains_run(run.start, run.size));
    let is_its = is_memory && !run.overlaps(get().home.hidden) && !loans.overlaps(run);
    // SAFETY: RAM of OS-0's, which EL2 has mapped and Rust owns nothing of.
    is_its.then(|| unsafe { Ram::new(run.start, size) })
}
