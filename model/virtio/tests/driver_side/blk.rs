//! Requests in any framing do to the disk what they say, and nothing else does.

use crate::driver::{Buffer, DATA, Driver, Shape, ram, start, start_again};
use crate::queue::shapes;
use machine_contract::GuestMemory;
use machine_fake::FakeGuest;
use model_addr::Ipa;
use model_virtio::blk::{Blk, BlockSize, Next, Operation, Options, Request, Status};
use model_virtio::{Transport, Window as _};
use proptest::prelude::*;

const SECTORS: u64 = 64;
const HEADER: Ipa = DATA;
const READABLE: Ipa = Ipa(DATA.0 + 0x1000);
const WRITABLE: Ipa = Ipa(DATA.0 + 0x1_0000);
const ID: [u8; 20] = *b"underpin-test-disk-0";

/// What the driver sends: header and data as one run of readable bytes, room for data and status
/// as one run of writable ones, both cut anywhere.
#[derive(Clone, Debug)]
struct Sent {
    kind: u32,
    sector: u64,
    out: Vec<u8>,
    room: usize,
    cuts: Vec<usize>,
    shape: Shape,
}

fn cut(mut at: Ipa, mut len: usize, cuts: &[usize], writable: bool) -> Vec<Buffer> {
    let mut buffers = Vec::new();
    for &cut in cuts.iter().chain(&[usize::MAX]) {
        let n = cut.min(len);
        if n > 0 {
            buffers.push(Buffer {
                ipa: at,
                len: n as u32,
                writable,
            });
        }
        at = Ipa(at.0 + n as u64);
        len -= n;
    }
    buffers
}

impl Sent {
    fn submit(&self, guest: &FakeGuest, driver: &mut Driver) {
        let mut readable = Vec::new();
        readable.extend(self.kind.to_le_bytes());
        readable.extend([0xee; 4]);
        readable.extend(self.sector.to_le_bytes());
        readable.extend(&self.out);
        guest.put(HEADER, &readable);
        guest.put(WRITABLE, &vec![0xcc; self.room + 1]);
        let mut buffers = cut(HEADER, readable.len(), &self.cuts, false);
        buffers.extend(cut(WRITABLE, self.room + 1, &self.cuts, true));
        driver.add(guest, &buffers, self.shape).unwrap();
        driver.publish(guest);
    }

    /// What must come of it: status, data, and the disk changed.
    fn expected(&self, options: &Options, disk: &mut [u8]) -> (u8, Option<Vec<u8>>) {
        let block = options.block_size.sectors() as usize * 512;
        let place = |sector: u64, len: usize| {
            let from = usize::try_from(sector).ok()?.checked_mul(512)?;
            let fits = len > 0 && from.checked_add(len)? <= SECTORS as usize * 512;
            (fits && from.is_multiple_of(block) && len.is_multiple_of(block))
                .then_some(from..from + len)
        };
        match self.kind {
            0 => match place(self.sector, self.room) {
                Some(range) => (0, Some(disk[range].to_vec())),
                None => (1, None),
            },
            1 => match place(self.sector, self.out.len()) {
                Some(range) if !options.read_only => {
                    disk[range].copy_from_slice(&self.out);
                    (0, None)
                }
                _ => (1, None),
            },
            4 => (0, None),
            8 => (0, Some(ID[..self.room.min(20)].to_vec())),
            11 | 13 => (self.expected_ranges(options, disk, &place), None),
            _ => (2, None),
        }
    }

    fn expected_ranges(
        &self,
        options: &Options,
        disk: &mut [u8],
        place: &impl Fn(u64, usize) -> Option<std::ops::Range<usize>>,
    ) -> u8 {
        if options.read_only {
            return 1;
        }
        if !options.discard {
            return 2;
        }
        if self.out.is_empty() || !self.out.len().is_multiple_of(16) || self.out.len() > 256 {
            return 1;
        }
        let mut zero = Vec::new();
        for raw in self.out.chunks(16) {
            let sector = u64::from_le_bytes(raw[..8].try_into().unwrap());
            let count = u32::from_le_bytes(raw[8..12].try_into().unwrap());
            let flags = u32::from_le_bytes(raw[12..].try_into().unwrap());
            if flags > u32::from(self.kind == 13) {
                return 2;
            }
            match place(sector, count as usize * 512) {
                Some(range) => zero.push(range),
                None => return 1,
            }
        }
        for range in zero {
            disk[range].fill(0);
        }
        0
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    let len =
        || prop_oneof![6 => (0..6usize).prop_map(|n| n * 512), 2 => Just(4096), 1 => 0..3000usize];
    let range = (
        0..SECTORS + 2,
        0..10u32,
        prop_oneof![5 => Just(0u32), 2 => Just(1), 1 => Just(2)],
    )
        .prop_map(|(sector, count, flags)| {
            let mut raw = sector.to_le_bytes().to_vec();
            raw.extend(count.to_le_bytes());
            raw.extend(flags.to_le_bytes());
            raw
        });
    let ranges = (prop::collection::vec(range, 0..18), 0..20usize).prop_map(|(ranges, n)| {
        let mut out = ranges.concat();
        out.truncate(out.len() - if n == 1 { out.len().min(3) } else { 0 });
        out
    });
    let data = len().prop_map(|n| (0..n).map(|i| (i * 7 + n) as u8).collect());
    let kind = prop_oneof![
        4 => Just(0u32), 4 => Just(1), 1 => Just(4), 1 => Just(8), 2 => Just(11), 2 => Just(13),
        1 => any::<u32>()
    ];
    let sector = prop_oneof![4 => 0..8u64, 4 => 0..SECTORS + 2, 1 => any::<u64>()];
    let cuts = prop::collection::vec(1..2000usize, 0..8);
    (kind, sector, data, ranges, len(), cuts, shapes()).prop_map(
        |(kind, sector, data, ranges, room, cuts, shape)| {
            let out = if kind == 11 || kind == 13 {
                ranges
            } else {
                data
            };
            Sent {
                kind,
                sector,
                out,
                room,
                cuts,
                shape,
            }
        },
    )
}

/// The owner: moves the data between the guest and a vector.
fn serve(guest: &FakeGuest, disk: &mut [u8], request: &Request) {
    match request.operation() {
        Operation::Read { sector } => {
            let mut at = sector as usize * 512;
            for segment in request.data() {
                guest
                    .write(segment.ipa, &disk[at..at + segment.len as usize])
                    .unwrap();
                at += segment.len as usize;
            }
        }
        Operation::Write { sector } => {
            let mut at = sector as usize * 512;
            for segment in request.data() {
                guest
                    .read(segment.ipa, &mut disk[at..at + segment.len as usize])
                    .unwrap();
                at += segment.len as usize;
            }
        }
        Operation::Discard | Operation::WriteZeroes => {
            for range in request.ranges() {
                let at = range.sector as usize * 512;
                disk[at..at + range.count as usize * 512].fill(0);
            }
        }
        Operation::Flush => {}
    }
}

fn options() -> impl Strategy<Value = Options> {
    let block_size = prop_oneof![Just(BlockSize::B512), Just(BlockSize::B4096)];
    (
        block_size,
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.8),
    )
        .prop_map(|(block_size, read_only, discard)| Options {
            capacity: SECTORS,
            block_size,
            read_only,
            discard,
            id: ID,
        })
}

proptest! {
    #![proptest_config(crate::cases(150))]

    #[test]
    fn requests_do_what_they_say(
        options in options(), features in 0..4u64, sent in prop::collection::vec(sent(), 1..30),
    ) {
        let guest = ram();
        let (mut transport, mut drivers) = start(Blk::new(options), features << 28, 32);
        let driver = &mut drivers[0];
        let mut disk: Vec<u8> = (0..SECTORS as usize * 512).map(|n| (n / 512 + n) as u8).collect();
        let mut model = disk.clone();
        let mut request = Request::default();
        for sent in sent {
            sent.submit(&guest, driver);
            let (status, data) = sent.expected(&options, &mut model);
            match transport.next_request(&guest, &mut request) {
                Next::Request => {
                    serve(&guest, &mut disk, &request);
                    transport.complete(&guest, &request, Status::Ok);
                }
                next => prop_assert_eq!(next, Next::Answered),
            }
            prop_assert_eq!(transport.next_request(&guest, &mut request), Next::Empty);
            let room = guest.get(WRITABLE, sent.room + 1);
            prop_assert_eq!(room[sent.room], status, "{:?}", sent);
            let data = data.unwrap_or_default();
            prop_assert_eq!(&room[..data.len()], &data[..]);
            prop_assert!(room[data.len()..sent.room].iter().all(|&byte| byte == 0xcc));
            let (_, len) = driver.reap(&guest).unwrap();
            prop_assert_eq!(len as usize, data.len() + 1);
            prop_assert_eq!(&disk, &model);
            prop_assert_eq!(transport.errors(), (0, None));
        }
    }
}

fn started(options: Options) -> (FakeGuest, Transport<Blk>, Driver) {
    let (transport, mut drivers) = start(Blk::new(options), 0, 32);
    (ram(), transport, drivers.remove(0))
}

fn read_of(room: usize) -> Sent {
    Sent {
        kind: 0,
        sector: 0,
        out: Vec::new(),
        room,
        cuts: Vec::new(),
        shape: Shape::Direct,
    }
}

#[test]
fn failures_of_the_owner_reach_the_driver() {
    let (guest, mut transport, mut driver) = started(Options {
        capacity: 8,
        ..Options::default()
    });
    let mut request = Request::default();
    read_of(512).submit(&guest, &mut driver);
    assert_eq!(transport.next_request(&guest, &mut request), Next::Request);
    assert!(!transport.irq_level());
    transport.complete(&guest, &request, Status::IoError);
    assert!(transport.irq_level());
    assert_eq!(guest.get(Ipa(WRITABLE.0 + 512), 1), [1]);
    assert_eq!(driver.reap(&guest).map(|(_, len)| len), Some(1));
}

#[test]
fn a_request_does_not_outlive_a_reset() {
    let (guest, mut transport, mut driver) = started(Options {
        capacity: 8,
        ..Options::default()
    });
    let mut request = Request::default();
    read_of(512).submit(&guest, &mut driver);
    assert_eq!(transport.next_request(&guest, &mut request), Next::Request);
    assert!(transport.awaits(&request));
    transport.write(0x070, 4, 0);
    guest.take_log();
    transport.complete(&guest, &request, Status::Ok);
    assert_eq!(guest.take_log(), []);
    assert!(!transport.awaits(&request));
    // Nor is it the next driver's, which uses the same memory.
    start_again(&mut transport, 0, 32);
    assert!(transport.is_live() && !transport.awaits(&request));
    guest.take_log();
    transport.complete(&guest, &request, Status::Ok);
    assert_eq!(guest.take_log(), []);
}

#[test]
fn a_request_uses_its_data_and_its_status() {
    let (guest, mut transport, mut driver) = started(Options {
        capacity: 16,
        ..Options::default()
    });
    let mut request = Request::default();
    read_of(4096).submit(&guest, &mut driver);
    assert_eq!(transport.next_request(&guest, &mut request), Next::Request);
    let pages = [0, 1, 2, 3].map(|n| request.uses(WRITABLE.frame().add(n)));
    assert_eq!(
        pages,
        [true, true, false, false],
        "data, and the status behind them"
    );
    assert!(!request.uses(model_addr::Gfn(WRITABLE.frame().0 - 1)));
    let told = [0, 1, 2].map(|n| request.is_told_in(WRITABLE.frame().add(n)));
    assert_eq!(told, [false, true, false], "the status alone");
}

#[test]
fn a_request_does_not_outlive_its_queue() {
    let (guest, mut transport, mut driver) = started(Options {
        capacity: 8,
        ..Options::default()
    });
    let mut request = Request::default();
    read_of(512).submit(&guest, &mut driver);
    assert_eq!(transport.next_request(&guest, &mut request), Next::Request);
    transport.write(0x044, 4, 0);
    guest.take_log();
    transport.complete(&guest, &request, Status::Ok);
    let ring = guest.take_log().into_iter().filter(|of| of.len != 1);
    assert_eq!(ring.count(), 0);
    assert_eq!(transport.errors().0, 0);
}

#[test]
fn a_request_without_header_or_status_breaks_the_device() {
    let whole = Buffer {
        ipa: READABLE,
        len: 16,
        writable: false,
    };
    let short = Buffer { len: 15, ..whole };
    let status = Buffer {
        ipa: WRITABLE,
        len: 1,
        writable: true,
    };
    for buffers in [&[whole][..], &[short, status], &[status]] {
        let (guest, mut transport, mut driver) = started(Options::default());
        driver.add(&guest, buffers, Shape::Direct);
        driver.publish(&guest);
        assert_eq!(
            transport.next_request(&guest, &mut Request::default()),
            Next::Empty
        );
        assert_eq!(transport.errors().0, 1);
        assert_eq!(transport.read(0x070, 4), 0x4f);
        assert_eq!(transport.read(0x060, 4), 2);
    }
}

#[test]
fn the_configuration_says_what_the_disk_is() {
    let options = Options {
        capacity: 1003,
        discard: true,
        ..Options::default()
    };
    let transport = Transport::new(Blk::new(options));
    assert_eq!(transport.read(0x100, 8), 1003);
    assert_eq!(transport.read(0x10c, 4), 128);
    assert_eq!(transport.read(0x114, 4), 512);
    assert_eq!(transport.read(0x118, 4), 0x0008_0003);
    assert_eq!(transport.read(0x12c, 4), 8);
    assert_eq!(transport.read(0x138, 1), 1);
    assert_eq!(transport.read(0x139, 8), 0);
    let large = Blk::new(Options {
        block_size: BlockSize::B4096,
        ..options
    });
    let transport = Transport::new(large);
    assert_eq!(transport.read(0x100, 4), 1000);
    assert_eq!(transport.read(0x114, 4), 4096);
    assert_eq!(transport.read(0x118, 4), 0x0001_0000);
}
