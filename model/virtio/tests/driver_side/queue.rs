//! Every chain comes out once, in order, as it went in; bad ones do not come out.

use crate::driver::QueueFeatures;
use crate::driver::{Buffer, DATA, Driver, RAM, RAM_SIZE, Shape, ram, start};
use machine_contract::{GuestMemory, GuestMemoryError};
use machine_fake::FakeGuest;
use model_addr::Ipa;
use model_virtio::rng::Rng;
use model_virtio::{Chain, Queue, QueueError, Segment, Window as _};
use proptest::prelude::*;
use std::collections::VecDeque;

#[derive(Clone, Debug)]
enum Step {
    Add {
        readable: Vec<u32>,
        writable: Vec<u32>,
        shape: Shape,
    },
    Publish,
    Pop,
    Use {
        which: usize,
        len: u32,
    },
    Reap,
}

pub fn shapes() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Direct),
        Just(Shape::Indirect),
        Just(Shape::Mixed)
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    let lens = || prop::collection::vec(1..5000u32, 0..6);
    prop_oneof![
        3 => (lens(), lens(), shapes())
            .prop_filter("a chain has a buffer", |(r, w, _)| !r.is_empty() || !w.is_empty())
            .prop_map(|(readable, writable, shape)| Step::Add { readable, writable, shape }),
        2 => Just(Step::Publish),
        4 => Just(Step::Pop),
        4 => (any::<usize>(), any::<u32>()).prop_map(|(which, len)| Step::Use { which, len }),
        2 => Just(Step::Reap),
    ]
}

fn buffers(readable: &[u32], writable: &[u32]) -> Vec<Buffer> {
    let readable = readable.iter().map(|&len| (len, false));
    let writable = writable.iter().map(|&len| (len, true));
    let mut at = DATA;
    let place = |(len, writable)| {
        let buffer = Buffer {
            ipa: at,
            len,
            writable,
        };
        at = Ipa(at.0 + u64::from(len) + 3);
        buffer
    };
    readable.chain(writable).map(place).collect()
}

fn segments(buffers: &[Buffer], writable: bool) -> Vec<Segment> {
    let wanted = buffers.iter().filter(|buffer| buffer.writable == writable);
    wanted
        .map(|buffer| Segment {
            ipa: buffer.ipa,
            len: buffer.len,
        })
        .collect()
}

proptest! {
    #![proptest_config(crate::cases(100))]

    #[test]
    fn chains_come_out_once_and_in_order(
        log_size in 0..9u32, event_idx: bool, indirect: bool,
        steps in prop::collection::vec(steps(), 1..300),
    ) {
        let guest = ram();
        let features = QueueFeatures { event_idx, indirect };
        let mut driver = Driver::new(0, 1 << log_size, features);
        let mut queue = Queue::of(driver.setup, 256).unwrap();
        let mut chain = Chain::default();
        let (mut added, mut visible) = (VecDeque::new(), VecDeque::new());
        let (mut taken, mut used) = (Vec::new(), VecDeque::new());
        for step in steps {
            match step {
                Step::Add { readable, writable, shape } => {
                    let buffers = buffers(&readable, &writable);
                    if let Some(head) = driver.add(&guest, &buffers, shape) {
                        added.push_back((head, buffers));
                    }
                }
                Step::Publish => {
                    driver.publish(&guest);
                    visible.append(&mut added);
                }
                Step::Pop => {
                    let popped = queue.pop(&guest, &mut chain).unwrap();
                    prop_assert_eq!(popped, !visible.is_empty());
                    if let Some((head, buffers)) = visible.pop_front() {
                        prop_assert_eq!(chain.head(), head);
                        let (readable, writable) = (segments(&buffers, false), segments(&buffers, true));
                        prop_assert_eq!(chain.readable(), &readable[..]);
                        prop_assert_eq!(chain.writable(), &writable[..]);
                        let bytes = |s: &[Segment]| s.iter().map(|s| s.len).sum::<u32>();
                        prop_assert_eq!(chain.readable_bytes(), bytes(&readable));
                        prop_assert_eq!(chain.writable_bytes(), bytes(&writable));
                        taken.push(head);
                    }
                }
                Step::Use { which, len } if !taken.is_empty() => {
                    let head = taken.swap_remove(which % taken.len());
                    queue.push_used(&guest, head, len).unwrap();
                    used.push_back((head, len));
                }
                Step::Use { .. } => {}
                Step::Reap => prop_assert_eq!(driver.reap(&guest), used.pop_front()),
            }
        }
    }

    #[test]
    fn bytes_are_consumed_across_segments(
        lens in prop::collection::vec(1..40u32, 1..12),
        cuts in prop::collection::vec(1..60usize, 1..20),
        take_last: bool,
    ) {
        let guest = ram();
        let features = QueueFeatures::default();
        let mut driver = Driver::new(0, 64, features);
        let mut queue = Queue::of(driver.setup, 256).unwrap();
        let buffers = buffers(&lens, &lens);
        let total: usize = lens.iter().map(|&len| len as usize).sum();
        let bytes: Vec<u8> = (0..total).map(|n| n as u8 ^ 0x5a).collect();
        let mut at = 0;
        for buffer in &buffers[..lens.len()] {
            guest.put(buffer.ipa, &bytes[at..at + buffer.len as usize]);
            at += buffer.len as usize;
        }
        driver.add(&guest, &buffers, Shape::Direct).unwrap();
        driver.publish(&guest);
        let mut chain = Chain::default();
        prop_assert!(queue.pop(&guest, &mut chain).unwrap());
        let last = buffers[buffers.len() - 1];
        if take_last {
            let at = Ipa(last.ipa.0 + u64::from(last.len) - 1);
            prop_assert_eq!(chain.take_last_writable(), Some(at));
        }
        let room = total - usize::from(take_last);
        let (mut read, mut written) = (Vec::new(), 0);
        for cut in cuts {
            let mut piece = vec![0; cut];
            let n = chain.read(&guest, &mut piece).unwrap();
            prop_assert_eq!(n, cut.min(total - read.len()));
            read.extend_from_slice(&piece[..n]);
            let end = (written + cut).min(total);
            let n = chain.write(&guest, &bytes[written..end]).unwrap();
            prop_assert_eq!(n, (end - written).min(room - written));
            written += n;
            prop_assert_eq!(chain.readable_bytes() as usize, total - read.len());
            prop_assert_eq!(chain.writable_bytes() as usize, room - written);
        }
        prop_assert_eq!(&read[..], &bytes[..read.len()]);
        let mut stored = Vec::new();
        for buffer in &buffers[lens.len()..] {
            stored.extend(guest.get(buffer.ipa, buffer.len as usize));
        }
        prop_assert_eq!(&stored[..written], &bytes[..written]);
        prop_assert!(stored[written..].iter().all(|&byte| byte == 0));
    }
}

/// A queue of 8 whose descriptor 0 is available, and its table for the test to fill.
fn one_available(indirect: bool) -> (FakeGuest, Queue, u64) {
    let guest = ram();
    let features = QueueFeatures {
        event_idx: true,
        indirect,
    };
    let driver = Driver::new(0, 8, features);
    let queue = Queue::of(driver.setup, 256).unwrap();
    guest.put(Ipa(driver.setup.driver + 2), &1u16.to_le_bytes());
    (guest, queue, driver.setup.descriptors)
}

fn buffer(ipa: u64, len: u32) -> Buffer {
    Buffer {
        ipa: Ipa(ipa),
        len,
        writable: false,
    }
}

fn pop(queue: &mut Queue, guest: &FakeGuest) -> Result<bool, QueueError> {
    queue.pop(guest, &mut Chain::default())
}

#[test]
fn bad_descriptors_are_refused() {
    let outside = |at| QueueError::Memory(GuestMemoryError::NotMemory(Ipa(at)));
    let end = RAM.0 + RAM_SIZE as u64;
    let cases = [
        (buffer(DATA.0, 1), 1, 8, QueueError::NoSuchDescriptor),
        (buffer(DATA.0, 1), 1, 0, QueueError::TooManySegments),
        (buffer(DATA.0, 0), 0, 0, QueueError::EmptyDescriptor),
        (buffer(end - 1, 2), 0, 0, outside(end - 1)),
        (buffer(0x1000, 4), 0, 0, outside(0x1000)),
        (buffer(u64::MAX, 4), 0, 0, outside(u64::MAX)),
        (buffer(DATA.0, 16), 4 | 1, 0, QueueError::Indirect),
        (buffer(DATA.0, 0), 4, 0, QueueError::Indirect),
        (buffer(DATA.0, 24), 4, 0, QueueError::Indirect),
        (buffer(DATA.0, 257 * 16), 4, 0, QueueError::Indirect),
        (buffer(u64::MAX - 8, 16), 4, 0, QueueError::Indirect),
        (buffer(0x1000, 16), 4, 0, outside(0x1000)),
        (buffer(DATA.0, 16), 4, 0, QueueError::EmptyDescriptor),
    ];
    for (descriptor, flags, next, error) in cases {
        let (guest, mut queue, table) = one_available(true);
        Driver::write_descriptor(&guest, table, descriptor, flags, next);
        assert_eq!(pop(&mut queue, &guest), Err(error), "{descriptor:?}");
    }
}

/// What lies behind the table is no descriptor, and those that come before are taken all the same.
#[test]
fn heads_outside_the_table_are_refused() {
    for head in [8_u16, 9, u16::MAX] {
        let (guest, mut queue, table) = one_available(true);
        for n in 0..10 {
            Driver::write_descriptor(&guest, table + 16 * n, buffer(DATA.0, 16), 0, 0);
        }
        guest.put(Ipa(RAM.0 + 0x1006), &head.to_le_bytes());
        guest.put(Ipa(RAM.0 + 0x1002), &2_u16.to_le_bytes());
        assert_eq!(pop(&mut queue, &guest), Ok(true));
        assert_eq!(pop(&mut queue, &guest), Err(QueueError::NoSuchDescriptor));
    }
}

#[test]
fn indirect_tables_do_not_nest_nor_come_uninvited() {
    let (guest, mut queue, table) = one_available(true);
    Driver::write_descriptor(&guest, table, buffer(DATA.0, 32), 4, 0);
    Driver::write_descriptor(&guest, DATA.0, buffer(DATA.0, 32), 4, 0);
    assert_eq!(pop(&mut queue, &guest), Err(QueueError::Indirect));
    let (guest, mut queue, table) = one_available(false);
    Driver::write_descriptor(&guest, table, buffer(DATA.0, 32), 4, 0);
    assert_eq!(pop(&mut queue, &guest), Err(QueueError::Indirect));
}

#[test]
fn bad_chains_are_refused() {
    let (guest, mut queue, table) = one_available(false);
    Driver::write_descriptor(&guest, table, buffer(DATA.0, 1), 1 | 2, 1);
    Driver::write_descriptor(&guest, table + 16, buffer(DATA.0, 1), 0, 0);
    assert_eq!(
        pop(&mut queue, &guest),
        Err(QueueError::ReadableAfterWritable)
    );

    let (guest, mut queue, _) = one_available(false);
    guest.put(Ipa(RAM.0 + 0x1002), &9u16.to_le_bytes());
    assert_eq!(pop(&mut queue, &guest), Err(QueueError::Overrun));
    guest.put(Ipa(RAM.0 + 0x1002), &0xffffu16.to_le_bytes());
    assert_eq!(pop(&mut queue, &guest), Err(QueueError::Overrun));
}

/// A guest that says it has all memory there is, so that sums can overflow.
struct Endless(FakeGuest);

impl machine_contract::GuestMemory for Endless {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.0.read(ipa, into)
    }
    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        self.0.write(ipa, from)
    }
    fn contains(&self, _: Ipa, _: u64) -> bool {
        true
    }
}

#[test]
fn chains_of_4_gib_are_refused() {
    let (guest, mut queue, table) = one_available(false);
    Driver::write_descriptor(&guest, table, buffer(DATA.0, u32::MAX), 1, 1);
    Driver::write_descriptor(&guest, table + 16, buffer(DATA.0, 1), 0, 0);
    assert_eq!(
        queue.pop(&Endless(guest), &mut Chain::default()),
        Err(QueueError::TooManyBytes)
    );
}

#[test]
fn bad_layouts_are_refused() {
    let good = Driver::new(0, 8, QueueFeatures::default()).setup;
    let new = |setup| Queue::of(setup, 64);
    assert!(new(good).is_ok());
    let mut bad = vec![good; 8];
    bad[0].size = 0;
    bad[1].size = 24;
    bad[2].size = 128;
    bad[3].size = 0x1_0008;
    bad[4].descriptors += 8;
    bad[5].driver += 1;
    bad[6].device += 2;
    bad[7].device = !3;
    for setup in bad {
        assert_eq!(new(setup).err(), Some(QueueError::Layout), "{setup:?}");
    }
    assert!(!pop(&mut Queue::default(), &ram()).unwrap());
}

/// Memory of which a device gets so many bytes at once.
pub struct Later<'a>(pub &'a FakeGuest, pub u64);

impl GuestMemory for Later<'_> {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.0.read(ipa, into)
    }
    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        self.0.write(ipa, from)
    }
    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        self.0.contains(ipa, len)
    }
    fn ready(&self, _: Ipa, len: u64, _: bool) -> u64 {
        len.min(self.1)
    }
}

#[test]
fn a_chain_waits_for_its_memory() {
    let guest = ram();
    let features = QueueFeatures::default();
    let mut driver = Driver::new(0, 8, features);
    let mut queue = Queue::of(driver.setup, 8).unwrap();
    let buffer = Buffer {
        ipa: DATA,
        len: 100,
        writable: true,
    };
    let head = driver.add(&guest, &[buffer], Shape::Indirect);
    driver.publish(&guest);
    let mut chain = Chain::default();
    for _ in 0..2 {
        assert_eq!(queue.pop(&Later(&guest, 0), &mut chain), Ok(false));
        assert!(!queue.uses(DATA.frame()));
    }
    for _ in 0..2 {
        assert_eq!(queue.pop(&Later(&guest, 40), &mut chain), Ok(false));
        // What is at hand stays so.
        assert!(queue.uses(DATA.frame()));
    }
    assert_eq!(queue.pop(&Later(&guest, 40), &mut chain), Ok(true));
    assert_eq!(Some(chain.head()), head);
    assert!(queue.uses(RAM.frame()) && !queue.uses(DATA.frame()));
}

/// A driver that breaks its device while a chain comes to be at hand keeps none of its pages by that.
#[test]
fn a_broken_device_uses_no_page() {
    let guest = ram();
    let (mut rng, mut drivers) = start(Rng::default(), 0, 8);
    let buffer = Buffer {
        ipa: DATA,
        len: 100,
        writable: true,
    };
    drivers[0].add(&guest, &[buffer], Shape::Direct);
    drivers[0].publish(&guest);
    rng.fill(&Later(&guest, 40), 100, |_| {});
    let pages = [RAM.frame(), DATA.frame(), DATA.frame().add(9)];
    assert_eq!(pages.map(|gfn| rng.uses(gfn)), [true; 3]);
    // Nor does one whose VM stands still, whatever of the chain was at hand; its rings stay.
    rng.let_go();
    assert_eq!(pages.map(|gfn| rng.uses(gfn)), [true, false, false]);
    rng.fill(&Later(&guest, 40), 100, |_| {});
    assert_eq!(pages.map(|gfn| rng.uses(gfn)), [true; 3]);
    // The register of the interface before virtio 1.0.
    rng.write(0x040, 4, 1);
    assert_eq!(pages.map(|gfn| rng.uses(gfn)), [false; 3]);
}

/// Memory of which one access finds no frame, after so many that do.
struct Once<'a>(&'a FakeGuest, core::cell::Cell<i32>);

impl Once<'_> {
    fn frame(&self, ipa: Ipa) -> Result<(), GuestMemoryError> {
        let has = self.1.replace(self.1.get() - 1) != 0;
        has.then_some(()).ok_or(GuestMemoryError::NoFrame(ipa))
    }
}

impl GuestMemory for Once<'_> {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.frame(ipa).and_then(|()| self.0.read(ipa, into))
    }
    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        self.frame(ipa).and_then(|()| self.0.write(ipa, from))
    }
    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        self.0.contains(ipa, len)
    }
    fn touch(&self, ipa: Ipa, len: u64, _: bool, _: bool) -> u64 {
        self.frame(ipa).map_or(0, |()| len)
    }
}

#[test]
fn a_queue_waits_for_frames_of_its_rings_before_it_takes_a_chain() {
    let mut accesses = 0;
    loop {
        let guest = ram();
        let features = QueueFeatures {
            indirect: true,
            ..QueueFeatures::default()
        };
        let mut driver = Driver::new(0, 8, features);
        let mut queue = Queue::of(driver.setup, 8).unwrap();
        let buffer = Buffer {
            ipa: DATA,
            len: 100,
            writable: true,
        };
        let head = driver.add(&guest, &[buffer], Shape::Indirect);
        driver.publish(&guest);
        let mut chain = Chain::default();
        let once = Once(&guest, core::cell::Cell::new(accesses));
        let popped = queue.pop(&once, &mut chain).unwrap();
        if !popped {
            assert_eq!(queue.pop(&guest, &mut chain), Ok(true), "{accesses}");
        }
        assert_eq!(Some(chain.head()), head);
        assert_eq!(chain.writable_bytes(), 100);
        assert_eq!(queue.push_used(&guest, chain.head(), 0), Ok(()));
        if popped {
            break;
        }
        accesses += 1;
    }
    // The index, that kicks are not wanted, the head, a descriptor of each table, and the used ring.
    assert_eq!(accesses, 6);
}

/// Memory that stops a device before each frame that it has to get, once it may.
struct Slow<'a>(&'a FakeGuest, core::cell::Cell<u32>);

impl GuestMemory for Slow<'_> {
    fn read(&self, ipa: Ipa, into: &mut [u8]) -> Result<(), GuestMemoryError> {
        self.0.read(ipa, into)
    }
    fn write(&self, ipa: Ipa, from: &[u8]) -> Result<(), GuestMemoryError> {
        self.0.write(ipa, from)
    }
    fn contains(&self, ipa: Ipa, len: u64) -> bool {
        self.0.contains(ipa, len)
    }
    fn touch(&self, ipa: Ipa, len: u64, _: bool, may_stop: bool) -> u64 {
        if may_stop {
            return 0;
        }
        // The used ring gets its frames with the first chain.
        let is_buffer = ipa >= DATA;
        self.1.set(self.1.get() + u32::from(is_buffer));
        len
    }
}

/// A header in many short segments takes a frame at a time; one in a few, and long segments, none before it is read.
#[test]
fn short_segments_get_their_frames_one_by_one() {
    let guest = ram();
    let features = QueueFeatures::default();
    let mut driver = Driver::new(0, 16, features);
    let mut queue = Queue::of(driver.setup, 16).unwrap();
    let buffer = |n: u64, len| Buffer {
        ipa: Ipa(DATA.0 + n * 4096),
        len,
        writable: false,
    };
    let long = (0..10).map(|n| buffer(n, 512)).collect::<Vec<_>>();
    let few = (0..4).map(|n| buffer(n, 1)).collect::<Vec<_>>();
    let many = (0..10).map(|n| buffer(n, 1)).collect::<Vec<_>>();
    let mut chain = Chain::default();
    for (buffers, passes) in [(long, 1), (few, 1), (many, 7)] {
        let slow = Slow(&guest, core::cell::Cell::new(0));
        assert!(driver.add(&guest, &buffers, Shape::Direct).is_some());
        driver.publish(&guest);
        for pass in 1..=passes {
            assert_eq!(queue.pop(&slow, &mut chain), Ok(pass == passes), "{pass}");
        }
        assert_eq!(slow.1.get(), passes - 1);
        queue.push_used(&guest, chain.head(), 0).unwrap();
        assert!(driver.reap(&guest).is_some());
    }
}
