//! While a physical disk is at requests, paging takes none of their pages: whatever they are, in whatever order
//! they come and end.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Gfn, Ipa, IpaRange, Mfn, VmId};
use model_address_space::Policy;
use model_disk::{Io, Job, Jobs, Lent, Transfer, UnderWay};
use model_virtio::blk::{Next, Request};
use proptest::prelude::*;
use tests_request_path::{Disk, DiskKind, Driver, Guest, Kind, Partition, vm};

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x10_0000,
};
const BLOCKS: u64 = 16;
const BUFFERS: usize = 4;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 8 * 512,
}];
/// The page of the driver's with headers and statuses: see [`Driver`].
const STATUS: u64 = RAM.start.0 + 0x3800;

struct Asked(VmId, Request);

impl UnderWay for Asked {
    fn vm(&self) -> VmId {
        self.0
    }
    fn request(&self) -> &Request {
        &self.1
    }
}

/// A step: a VM asks with a buffer, of data in two places; or the buffer comes back.
#[derive(Clone, Debug)]
enum Step {
    Ask(u16, usize, Kind, [(u64, u64); 2]),
    Page(usize),
    Back(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop::sample::select(vec![Kind::Read, Kind::Write, Kind::Flush]);
    // In sectors, from the seventeenth page of RAM on.
    let data = || (0..1600_u64, 1..32_u64);
    prop_oneof![
        4 => (0..2_u16, 0..BUFFERS, kind, data(), data())
            .prop_map(|(vm, buffer, kind, one, other)| Step::Ask(vm, buffer, kind, [one, other])),
        1 => (0..BUFFERS).prop_map(Step::Page),
        2 => (0..BUFFERS).prop_map(Step::Back),
    ]
}

/// The request that a driver makes of it, as its device reads it from the ring.
fn request(index: u16, kind: Kind, data: &[(Ipa, u64)]) -> Request {
    let frames = FakeFrames::new(&NODES);
    let partition = Partition::new(&frames, 1, &vec![0; (BLOCKS * FRAME_SIZE) as usize]);
    let policy = Policy {
        share: false,
        keep_blocks: false,
        hide: false,
    };
    let guest = Guest::new(&frames, vm(index), RAM, policy);
    let mut disk = Disk::of(&frames, DiskKind::Persistent(partition), vm(index), 0);
    let mut driver = Driver::start(&guest, &mut disk, RAM.start);
    driver.submit(&guest, (kind, 0), data);
    let mut request = Request::default();
    assert_eq!(
        disk.transport.next_request(&guest, &mut request),
        Next::Request
    );
    disk.transport
        .complete(&guest, &request, model_virtio::blk::Status::Ok);
    request
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_page_of_a_request_under_way_is_taken(steps in prop::collection::vec(step(), 1..12)) {
        let mut jobs = Jobs::<Asked, Gfn, BUFFERS>::default();
        // By buffer: whose pages are in use.
        let mut used: [Option<(u16, Vec<Gfn>)>; BUFFERS] = [const { None }; BUFFERS];
        for step in steps {
            match step {
                Step::Ask(index, buffer, kind, data) => {
                    let data = data.map(|(at, sectors)| (Ipa(RAM.start.0 + 0x1_0000 + 512 * at), 512 * sectors));
                    let data = if kind == Kind::Flush { &[] } else { &data[..] };
                    let io = Io { operation: Transfer::Read, sector: 0, bytes: FRAME_SIZE };
                    let job = Job::Request(Asked(vm(index), request(index, kind, data)));
                    jobs.lend(buffer, Lent { partition: index as u8, io, job });
                    let bytes = data.iter().flat_map(|(at, len)| (at.0..at.0 + len).step_by(512));
                    let pages = bytes.chain([STATUS]).map(|at| Ipa(at).frame());
                    used[buffer] = Some((index, pages.collect()));
                }
                Step::Page(buffer) => {
                    let io = Io { operation: Transfer::Write, sector: 0, bytes: FRAME_SIZE };
                    let job = Job::Page(RAM.start.frame());
                    jobs.lend(buffer, Lent { partition: 9, io, job });
                    used[buffer] = None;
                }
                Step::Back(buffer) => {
                    let was = jobs.take(buffer);
                    prop_assert!(was.is_some() || used[buffer].is_none());
                    used[buffer] = None;
                }
            }
            let is_used = |index, gfn: Gfn| used.iter().flatten().any(|(vm, pages)| *vm == index && pages.contains(&gfn));
            for gfn in (0..RAM.size / FRAME_SIZE).map(|n| RAM.start.frame().add(n)) {
                for index in 0..2 {
                    prop_assert_eq!(jobs.uses(vm(index), gfn), is_used(index, gfn), "{} of VM {}", gfn.0, index);
                }
            }
            for index in 0..2 {
                let has = used.iter().flatten().any(|(vm, _)| *vm == index);
                prop_assert_eq!(jobs.has_of(index as u8), has);
            }
        }
    }
}
