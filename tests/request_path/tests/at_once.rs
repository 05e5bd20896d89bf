//! A guest whose rings, tables, headers and statuses lie anywhere in the pages that its own requests fill, with two disks
//! that serve at once, a balloon and paging between any two steps of them: another VM of its group reads what the
//! partition holds, nobody reads what is another's, and at the end all memory is back.
#![allow(clippy::unwrap_used, reason = "a test")]

use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Ipa, IpaRange, Mfn};
use model_address_space::Policy;
use model_virtio::Window as _;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use tests_request_path::{Disk, DiskKind, Driver, Guest, Host, Image, Kind, Partition, vm};

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x20_0000,
};
/// Pages that the attacker uses for everything: few, so that all meet.
const PAGES: u64 = 24;
const PAGE: usize = FRAME_SIZE as usize;
const BLOCKS: u64 = 9;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 6 * 512,
}];
const IMAGE: Mfn = Mfn(0x10_0000);
const QUEUE_SIZE: u64 = 16;
/// What only the victim has. A buffer holds 0x5a and a frame 0xa5 from before.
const SECRET: u8 = 0xd7;
const FOREIGN: [u8; 3] = [SECRET, 0x5a, 0xa5];

/// What a guest does, or what happens to it.
#[derive(Clone, Debug)]
enum Act {
    Store(u64, u8),
    Release(u64, u64),
    Evict(u64),
    Secret(u64),
    Victim(u64),
    /// A disk is told of what its ring holds by now.
    Kick(usize),
    /// A disk is reset; its rings come to lie here.
    Reset(usize, u64),
    /// So many frames, and records of users, are left until the request has ended.
    Scarce(u64, u64),
}

/// A request that a disk finds, and what happens between its steps.
#[derive(Clone, Debug)]
struct Asked {
    disk: usize,
    /// The type, the first sector.
    what: (u8, u64),
    data: Vec<(u64, u64)>,
    /// Where the header, the status, and an indirect table are.
    places: (u64, u64, Option<u64>),
    /// After so many steps of it.
    then: Vec<(u32, Act)>,
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Asked),
    Act(Act),
}

fn place() -> impl Strategy<Value = u64> {
    let page = || (0..PAGES - 4).prop_map(|page| page * FRAME_SIZE);
    prop_oneof![
        3 => page(),
        1 => (page(), 0..8_u64).prop_map(|(at, n)| at + 512 * n),
        1 => (page(), 0..FRAME_SIZE).prop_map(|(at, n)| at + n),
    ]
}

fn act() -> impl Strategy<Value = Act> {
    let page = || 0..PAGES;
    prop_oneof![
        3 => (page(), 1..0x40_u8).prop_map(|(page, byte)| Act::Store(page, byte)),
        3 => (page(), 1..5_u64).prop_map(|(page, n)| Act::Release(page, n)),
        1 => page().prop_map(Act::Evict),
        1 => page().prop_map(Act::Secret),
        2 => (0..BLOCKS).prop_map(Act::Victim),
        3 => (0..2_usize).prop_map(Act::Kick),
        1 => (0..2_usize, place()).prop_map(|(disk, at)| Act::Reset(disk, at & !0xf)),
        1 => (0..9_u64, 0..9_u64).prop_map(|(frames, records)| Act::Scarce(frames, records)),
    ]
}

fn asked() -> impl Strategy<Value = Asked> {
    let kind = prop_oneof![6 => Just(0_u8), 3 => Just(1), 1 => Just(4), 1 => Just(8), 1 => Just(11), 1 => Just(13)];
    let sector = prop_oneof![2 => (0..BLOCKS).prop_map(|block| 8 * block), 1 => 0..8 * BLOCKS];
    let len = prop_oneof![
        4 => (1..4_u64).prop_map(|n| n * FRAME_SIZE),
        2 => (1..12_u64).prop_map(|n| n * 512),
        1 => 0..700_u64,
        1 => Just(16),
    ];
    let places = (place(), place(), prop::option::of(place()));
    let then = prop::collection::vec((0..24_u32, act()), 0..4);
    let data = prop::collection::vec((place(), len), 1..4);
    (0..2_usize, (kind, sector), data, places, then).prop_map(|(disk, what, data, places, then)| {
        Asked {
            disk,
            what,
            data,
            places,
            then,
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![4 => asked().prop_map(Step::Ask), 1 => act().prop_map(Step::Act)]
}

fn base() -> Vec<u8> {
    let byte = |n: usize| match n / PAGE % 7 {
        5 => 0,
        _ => ((n / 61 + n / PAGE * 5) as u8 % 64) | 1,
    };
    (0..BLOCKS as usize * PAGE).map(byte).collect()
}

/// A disk, and a driver of it that keeps no rule but the layout of a ring.
struct Rough<'a> {
    disk: Disk<'a>,
    rings: Ipa,
    sent: u16,
}

impl<'a> Rough<'a> {
    fn new(disk: Disk<'a>, rings: u64) -> Self {
        let mut rough = Self {
            disk,
            rings: RAM.start,
            sent: 0,
        };
        rough.reset(rings);
        rough
    }

    fn reset(&mut self, rings: u64) {
        (self.rings, self.sent) = (Ipa(RAM.start.0 + rings), 0);
        self.disk.transport.write(0x014, 4, 0);
        let offered = self.disk.transport.read(0x010, 4);
        let features = [(0, offered & (1 << 13 | 1 << 14 | 1 << 28)), (1, 1)];
        let mut write = |register, value| self.disk.transport.write(register, 4, value);
        for status in [0, 1, 3] {
            write(0x070, status);
        }
        for (half, features) in features {
            write(0x024, half);
            write(0x020, features);
        }
        write(0x070, 0xb);
        write(0x038, QUEUE_SIZE);
        for (register, skip) in [(0x080, 0), (0x090, 0x100), (0x0a0, 0x140)] {
            write(register, self.rings.0 + skip);
        }
        write(0x044, 1);
        write(0x070, 0xf);
    }

    fn submit(&mut self, guest: &Guest<'_>, asked: &Asked) {
        if self.disk.transport.status().bits() != 0xf {
            let rings = self.rings.0 - RAM.start.0;
            self.reset(rings);
        }
        let at = |place: u64| RAM.start.0 + place;
        let (header, status, table) = asked.places;
        let (kind, sector) = asked.what;
        let mut first = [0; 16];
        first[0] = kind;
        first[8..].copy_from_slice(&sector.to_le_bytes());
        assert!(guest.put(Ipa(at(header)), &first));
        let mut buffers = vec![(at(header), 16, false)];
        let writes = [0, 8].contains(&kind);
        buffers.extend(
            asked
                .data
                .iter()
                .map(|(place, len)| (at(*place), *len, writes)),
        );
        buffers.push((at(status), 1, true));
        let mut chain = Vec::new();
        for (n, (ipa, len, writes)) in (1_u16..).zip(&buffers) {
            chain.extend(ipa.to_le_bytes());
            chain.extend((*len as u32).to_le_bytes());
            let flags = u16::from(usize::from(n) < buffers.len()) | u16::from(*writes) << 1;
            chain.extend(flags.to_le_bytes());
            chain.extend(n.to_le_bytes());
        }
        if let Some(table) = table {
            assert!(guest.put(Ipa(at(table)), &chain));
            let len = chain.len() as u32;
            chain = at(table).to_le_bytes().to_vec();
            chain.extend(len.to_le_bytes());
            chain.extend([4, 0, 0, 0]);
        }
        assert!(guest.put(self.rings, &chain));
        let slot = u64::from(self.sent) % QUEUE_SIZE;
        self.sent = self.sent.wrapping_add(1);
        assert!(guest.put(Ipa(self.rings.0 + 0x104 + 2 * slot), &[0, 0]));
        assert!(guest.put(Ipa(self.rings.0 + 0x102), &self.sent.to_le_bytes()));
    }

    fn kick(&mut self, guest: &Guest<'_>) {
        self.disk.transport.write(0x050, 4, 0);
        self.disk.serve(guest);
    }
}

/// A VM that keeps the rules, and has a secret.
struct Victim<'a> {
    guest: Guest<'a>,
    disk: Disk<'a>,
    driver: Driver,
}

impl<'a> Victim<'a> {
    fn new(frames: &'a FakeFrames, partition: &Partition<'a>) -> Self {
        let guest = Guest::new(frames, vm(1), RAM, shares(false, false));
        let mut disk = Disk::of(
            frames,
            DiskKind::CowPartition(partition.clone()),
            vm(1),
            BLOCKS,
        );
        let driver = Driver::start(&guest, &mut disk, RAM.start);
        let victim = Self {
            guest,
            disk,
            driver,
        };
        assert!(victim.guest.put(at(PAGES), &vec![SECRET; 4 * PAGE]));
        victim
    }

    fn read(&mut self, block: u64) {
        let Self {
            guest,
            disk,
            driver,
        } = self;
        driver.submit(guest, (Kind::Read, 8 * block), &[(at(8), FRAME_SIZE)]);
        assert_eq!(driver.ring(guest, disk), 0);
        let seen = guest.get(at(8), PAGE);
        let block = block as usize * PAGE;
        assert!(seen == base()[block..block + PAGE], "a block is another");
        // What it read goes, and the frame with what it keeps for itself comes.
        guest.release(at(8).frame(), 1);
        assert!(guest.put(at(9), &[SECRET; PAGE]));
        guest.release(at(9).frame(), 1);
    }
}

fn shares(keep_blocks: bool, hide: bool) -> Policy {
    Policy {
        share: true,
        keep_blocks,
        hide,
    }
}

fn at(page: u64) -> Ipa {
    Ipa(RAM.start.0 + page * FRAME_SIZE)
}

type Disks<'a> = Rc<[RefCell<Rough<'a>>; 2]>;

fn happen<'a>(
    act: &Act,
    (frames, guest): (&FakeFrames, &Guest<'a>),
    disks: &Disks<'a>,
    victim: &Rc<RefCell<Victim<'a>>>,
) {
    match act {
        // Where no frame is left, it waits.
        Act::Store(page, byte) => drop(guest.put(at(*page), &[*byte; 600])),
        Act::Release(page, count) => guest.release(at(*page).frame(), *count),
        Act::Evict(page) => drop(guest.evict(at(*page).frame())),
        Act::Secret(page) => drop(guest.keep_secret(at(*page).frame())),
        Act::Victim(block) => {
            lack(frames, None);
            victim.borrow_mut().read(*block);
        }
        Act::Scarce(left, records) => lack(frames, Some((*left, *records))),
        // One that is at work is not told twice: its lock is taken.
        Act::Kick(disk) => drop(disks[*disk].try_borrow_mut().map(|mut it| it.kick(guest))),
        Act::Reset(disk, at) => {
            drop(
                disks[*disk]
                    .try_borrow_mut()
                    .map(|mut disk| disk.reset(*at)),
            );
        }
    }
}

/// So many frames, and records of users, are left; or enough.
fn lack(frames: &FakeFrames, left: Option<(u64, u64)>) {
    frames.fail_after(left.map(|(left, _)| left));
    frames.fail_records_after(left.map(|(_, records)| records));
}

/// Whether eight bytes in a row are ones that only another has.
fn has_foreign(bytes: &[u8]) -> bool {
    let is_foreign =
        |run: &[u8]| FOREIGN.contains(&run[0]) && run.iter().all(|byte| *byte == run[0]);
    bytes.chunks(8).any(is_foreign)
}

fn kind<'a>(
    frames: &'a FakeFrames,
    n: usize,
    image: &'a Image,
    base: &Partition<'a>,
) -> DiskKind<'a> {
    let room = || Partition::new(frames, 2, &vec![0xee; (BLOCKS as usize + 3) * PAGE]);
    match n {
        0 => DiskKind::CowPartition(base.clone()),
        1 => DiskKind::CowPartitionOn(base.clone(), room()),
        2 => DiskKind::Cow(image),
        _ => DiskKind::ReadOnly(image),
    }
}

fn live(steps: &[Step], kinds: [usize; 2], policy: Policy, is_long: bool) {
    let image = Image::new(IMAGE, &base());
    let frames = &image.machine(&NODES);
    let free = frames.counts()[0].free;
    let partition = Partition::new(frames, 1, &base());
    let guest = Guest::new(frames, vm(0), RAM, policy);
    let disks = [0, 1].map(|n| {
        let kind = kind(frames, kinds[n], &image, &partition);
        let mut disk = Disk::numbered(frames, kind, (vm(0), n as u64), BLOCKS);
        if is_long {
            disk.take_long();
        }
        RefCell::new(Rough::new(disk, n as u64 * 0x5000))
    });
    let (disks, victim) = (Rc::new(disks), Victim::new(frames, &partition));
    let victim = Rc::new(RefCell::new(victim));
    for step in steps {
        match step {
            Step::Act(act) => {
                happen(act, (frames, &guest), &disks, &victim);
                lack(frames, None);
            }
            Step::Ask(asked) => {
                let (count, then) = (Cell::new(0), asked.then.clone());
                let (others, other) = (Rc::clone(&disks), Rc::clone(&victim));
                guest.between(move |guest| {
                    let now = count.replace(count.get() + 1);
                    for (_, act) in then.iter().filter(|(moment, _)| *moment == now) {
                        happen(act, (frames, guest), &others, &other);
                    }
                });
                let mut disk = disks[asked.disk].borrow_mut();
                disk.submit(&guest, asked);
                disk.kick(&guest);
                guest.between(|_| {});
                lack(frames, None);
            }
        }
    }
    let mut victim = Rc::into_inner(victim).unwrap().into_inner();
    (0..BLOCKS).for_each(|block| victim.read(block));
    let seen = guest.get(RAM.start, PAGES as usize * PAGE);
    assert!(!has_foreign(&seen), "it sees what is another's");
    let is_kept = victim
        .guest
        .get(at(PAGES), 4 * PAGE)
        .iter()
        .all(|byte| *byte == SECRET);
    assert!(is_kept, "the secret is another");
    let disks = Rc::into_inner(disks).unwrap().map(RefCell::into_inner);
    let [one, two] = disks.map(|rough| {
        assert!(
            !has_foreign(&rough.disk.contents()),
            "a disk has what is another's"
        );
        rough.disk.end()
    });
    assert_eq!(
        (one, two, victim.disk.end()),
        (0, 0, 0),
        "tables of disks are left"
    );
    assert_eq!((guest.end(), victim.guest.end()), (0, 0), "tables are left");
    Host(frames).evict_all((0..NODES[0].count).map(|n| NODES[0].start.add(n)));
    assert_eq!(frames.counts()[0].free, free, "frames are left");
    assert_eq!(frames.record_frames(), 0, "records are left");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]

    #[test]
    fn nothing_that_a_guest_has_at_once_reaches_another(
        steps in prop::collection::vec(step(), 1..16),
        kinds in [0..4_usize, 0..4_usize],
        (keep_blocks, hide, is_long) in any::<(bool, bool, bool)>(),
    ) {
        live(&steps, kinds, shares(keep_blocks, hide), is_long);
    }
}
