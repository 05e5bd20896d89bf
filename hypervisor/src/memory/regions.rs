//! Shared regions: memory of nobody's that several VMs see ([`model_regions`]).
//!
//! A region's frames are the hypervisor's, in runs of 2 MiB, taken when its first user starts and
//! given back when its last has been taken apart. No VM's map knows them, so they are never shared by
//! content, moved, taken away or given to a balloon. They are zeroed 64 KiB at a time, when somebody
//! first touches them; a VM sees a run as one block once all of it is.

use crate::memory::frames::{self, Metal};
use abi::Text;
use abi::bundle::{REGION_READ_ONLY, RegionRecord, VmRecord};
use abi::control::{RegionStatus, code};
use abi::state::{Sink, kind};
use alloc::{sync::Arc, vec::Vec};
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, FrameRange, Ipa, IpaRange, Mfn, NodeId};
use model_address_space::Frames;
use model_control::Refusal;
use model_frame_table::{CHUNK_FRAMES, MAX_ORDER, Purpose};
use model_guest_image::{REGION_BLOCK, REGION_HEADER, region_block};
use model_regions::{Name, Refused, Regions, STEP, Wanted};
use model_stage2::Rights;

const RUN_FRAMES: u64 = STEP / FRAME_SIZE;
const _: () = assert!(RUN_FRAMES == 1 << MAX_ORDER && REGION_HEADER == STEP);
/// All chunks of a run.
const ALL_CHUNKS: u32 = u32::MAX;
const _: () = assert!(RUN_FRAMES / CHUNK_FRAMES == ALL_CHUNKS.count_ones() as u64);

/// A region's memory.
pub struct Region {
    /// Zeroes, and the information block.
    header: Mfn,
    runs: Vec<Run>,
}

/// 2 MiB of a region.
struct Run {
    first: Mfn,
    /// Which of its chunks are zeroed, a bit each.
    zeroed: SpinLock<u32>,
}

static REGIONS: SpinLock<Regions<Arc<Region>>> = SpinLock::new(Rank::Vm, Regions::empty());

/// What a description says of its regions.
pub fn records(record: &VmRecord) -> impl Iterator<Item = &RegionRecord> + Clone {
    let regions = record.regions.iter();
    regions.take_while(|region| !region.name.is_empty())
}

fn wanted(group: Text<24>, region: &RegionRecord) -> Wanted {
    Wanted {
        name: region.name,
        group,
        size: region.size,
    }
}

fn refuse(refused: Refused) -> Refusal {
    let code = match refused {
        Refused::NoMemory(_) => code::NO_MEMORY,
        _ => code::IMPOSSIBLE,
    };
    Refusal::new(code, refused.value(), format_args!("{refused}"))
}

/// Checks what a description says of its regions, as far as other VMs do not matter.
pub fn check(record: &VmRecord) -> Result<(), Refusal> {
    for (n, region) in records(record).enumerate() {
        model_regions::check(wanted(record.group, region)).map_err(refuse)?;
        let mut before = records(record).take(n);
        if before.any(|other| other.name == region.name) || region.flags & !REGION_READ_ONLY != 0 {
            let what = format_args!(
                "region {} is named twice, or has unknown flags {:#x}",
                region.name, region.flags
            );
            return Err(Refusal::new(code::IMPOSSIBLE, region.flags.into(), what));
        }
    }
    Ok(())
}

/// Frames that would have to be taken for the regions of a VM of this description.
pub fn missing(record: &VmRecord) -> u64 {
    let regions = REGIONS.lock();
    let missing = records(record).map(|region| regions.missing(wanted(record.group, region)));
    // A description that was refused may say anything.
    missing.fold(0, u64::saturating_add) / FRAME_SIZE
}

/// Frames of all regions.
pub fn frames() -> u64 {
    REGIONS.lock().bytes() / FRAME_SIZE
}

/// What is said of all regions.
pub fn statuses() -> Vec<RegionStatus> {
    let regions = REGIONS.lock();
    regions.iter().map(status).collect()
}

fn status((known, users, region): (Wanted, u32, &Arc<Region>)) -> RegionStatus {
    RegionStatus {
        name: known.name,
        group: known.group,
        size: known.size,
        touched: region.touched() * FRAME_SIZE,
        users,
        reserved: 0,
    }
}

/// Writes the records of all regions.
pub fn write(to: &mut impl Sink) {
    for known in REGIONS.lock().iter() {
        to.put(kind::REGION, &status(known));
        let region = known.2;
        to.put(kind::REGION_RUNS, &[region.header.0, 0]);
        for run in &region.runs {
            to.add(&[run.first.0, (*run.zeroed.lock()).into()]);
        }
    }
}

/// Takes over a region, which VMs are yet to join; `false` where its record makes no sense.
pub fn take_over(record: &RegionStatus, mut runs: impl ExactSizeIterator<Item = [u64; 2]>) -> bool {
    let Some([header, _]) = runs.next() else {
        return false;
    };
    let is_whole = runs.len() as u64 == record.size / STEP;
    let run = |[first, zeroed]: [u64; 2]| Run {
        first: Mfn(first),
        zeroed: SpinLock::new(Rank::Region, zeroed as u32),
    };
    let (header, runs) = (Mfn(header), runs.map(run).collect());
    let known = Wanted {
        name: record.name,
        group: record.group,
        size: record.size,
    };
    is_whole
        && REGIONS
            .lock()
            .put(known, Arc::new(Region { header, runs }))
            .is_ok()
}

/// Whether each of them has users.
pub fn are_used() -> bool {
    REGIONS.lock().iter().all(|(_, users, _)| users > 0)
}

/// A region as one VM sees it, until it is taken apart.
pub struct Window {
    /// Where the guest finds it.
    pub range: IpaRange,
    write: bool,
    name: Name,
    region: Option<Arc<Region>>,
    /// The last user's: on its way back to the pools.
    leaving: Option<Region>,
}

/// Makes a VM a user of the regions of its description, at `ranges`, their memory near `home`.
pub fn join(
    record: &VmRecord,
    ranges: impl Iterator<Item = IpaRange>,
    home: NodeId,
) -> Result<Vec<Window>, Refusal> {
    let mut windows = Vec::new();
    for (region, range) in records(record).zip(ranges) {
        let wanted = wanted(record.group, region);
        let joined = REGIONS
            .lock()
            .join(wanted, || Region::new(wanted, home).map(Arc::new));
        let joined = joined.map_err(refuse)?;
        windows.push(Window {
            range,
            write: region.flags & REGION_READ_ONLY == 0,
            name: region.name,
            region: Some(joined),
            leaving: None,
        });
    }
    Ok(windows)
}

impl Window {
    /// The frames to show a guest that touches `ipa`, which is inside: the first address and the run;
    /// `None` where it may not do that.
    pub fn touch(&self, ipa: Ipa, writes: bool) -> Option<(Ipa, FrameRange, Rights)> {
        let region = self.region.as_ref()?;
        let offset = ipa.0 - self.range.start.0;
        let rights = Rights {
            write: self.write && offset >= REGION_HEADER,
            execute: false,
        };
        if writes && !rights.write {
            return None;
        }
        let run = match offset.checked_sub(REGION_HEADER) {
            None => {
                let block = u64::from(offset & !(FRAME_SIZE - 1) == REGION_BLOCK);
                FrameRange::of(region.header.add(block), 1)
            }
            Some(offset) => region.runs.get((offset / STEP) as usize)?.touch(offset),
        };
        Some((ipa.align_down(run.count * FRAME_SIZE), run, rights))
    }

    /// The frame behind `ipa`, for a device.
    pub fn frame(&self, ipa: Ipa, writes: bool) -> Option<Mfn> {
        let (first, run, _) = self.touch(ipa, writes)?;
        Some(run.start.add((ipa.0 - first.0) / FRAME_SIZE))
    }

    /// Goes a step on with leaving the region; `true` where all is done. No TLB knows it any more.
    pub fn step_out(&mut self) -> bool {
        if self.region.take().is_some() {
            let last = REGIONS.lock().leave(self.name);
            self.leaving = last.and_then(Arc::into_inner);
        }
        let Some(region) = &mut self.leaving else {
            return true;
        };
        if let Some(run) = region.runs.pop() {
            frames::free(run.first, MAX_ORDER);
            return false;
        }
        frames::free(region.header, 1);
        self.leaving = None;
        true
    }
}

impl Drop for Window {
    /// What is left where the VM was not taken apart step by step, as it never ran.
    fn drop(&mut self) {
        while !self.step_out() {}
    }
}

impl Region {
    /// `None` where there is no memory for all of it.
    fn new(wanted: Wanted, home: NodeId) -> Option<Self> {
        let mut runs = Vec::new();
        runs.try_reserve_exact((wanted.size / STEP) as usize).ok()?;
        let header = frames::take_for_el2(home, 1)?;
        let name = wanted.name.as_str().unwrap_or_default();
        let block = region_block(name, wanted.size);
        Metal.write(header, REGION_BLOCK, &block);
        let mut region = Self { header, runs };
        for _ in 0..wanted.size / STEP {
            let Some(first) = frames::allocate(home, MAX_ORDER, Purpose::Hypervisor) else {
                for run in region.runs {
                    frames::free(run.first, MAX_ORDER);
                }
                frames::free(header, 1);
                return None;
            };
            region.runs.push(Run {
                first,
                zeroed: SpinLock::new(Rank::Region, 0),
            });
        }
        Some(region)
    }

    /// Frames that somebody has touched.
    fn touched(&self) -> u64 {
        let chunks = |run: &Run| u64::from(run.zeroed.lock().count_ones());
        self.runs.iter().map(chunks).sum::<u64>() * CHUNK_FRAMES
    }
}

impl Run {
    /// The chunk with this byte of the region, or the run once all of it is zeroed.
    fn touch(&self, offset: u64) -> FrameRange {
        let chunk = offset % STEP / (CHUNK_FRAMES * FRAME_SIZE);
        let mut zeroed = self.zeroed.lock();
        let start = self.first.add(chunk * CHUNK_FRAMES);
        if *zeroed & 1 << chunk == 0 {
            Metal.zero(start, CHUNK_FRAMES);
            *zeroed |= 1 << chunk;
        }
        if *zeroed == ALL_CHUNKS {
            return FrameRange::of(self.first, RUN_FRAMES);
        }
        FrameRange::of(start, CHUNK_FRAMES)
    }
}
