//! A guest that does as it likes with its disk, its balloon and its memory, while another one has the same
//! image's pages: that one's memory stays what it read, and no frame is lost.

use crate::input::Input;
use machine_contract::GuestMemory as _;
use machine_fake::FakeFrames;
use model_addr::{FRAME_SIZE, FrameRange, Gfn, Ipa, IpaRange, Mfn, VmId};
use model_address_space::Policy;
use model_virtio::balloon::Balloon;
use model_virtio::{Transport, Window as _};
use tests_request_path::{Disk, Driver, Guest, Image, Kind};

const RAM: IpaRange = IpaRange {
    start: Ipa(0x4000_0000),
    size: 0x40_0000,
};
/// Where disks are read to; the balloon's rings, and both devices' pages of the guest, are before it.
const DATA: u64 = RAM.start.0 + 0x20_0000;
const BALLOON: u64 = RAM.start.0 + 0x8000;
/// Pages from either on that steps name.
const PAGES: u64 = 24;
const BLOCKS: u64 = 20;
const LIMIT: u64 = 40;
const NODES: [FrameRange; 1] = [FrameRange {
    start: Mfn(0x8_0000),
    count: 4 * 512,
}];
const IMAGE: Mfn = Mfn(0x10_0000);
const SHARES: Policy = Policy {
    share: true,
    keep_blocks: false,
    hide: false,
};
/// Pages that the balloon gives back in one go.
const BUDGET: u64 = 300;

/// A guest with its devices.
struct Hostile<'a> {
    guest: Guest<'a>,
    disk: Disk<'a>,
    driver: Driver,
    balloon: Transport<Balloon>,
}

/// Requests, rings, registers, a balloon and stores, with pages shared.
pub fn shared_disk(data: &[u8]) {
    let base = base();
    let image = Image::new(IMAGE, &base);
    let frames = image.machine(&NODES);
    let fresh = free(&frames);
    let (other, mut its_disk, mut its_driver) = start(&frames, &image, 0);
    let all = [(Ipa(DATA), BLOCKS * FRAME_SIZE)];
    its_driver.submit(&other, (Kind::Read, 0), &all);
    its_disk.serve(&other);
    let (guest, disk, driver) = start(&frames, &image, 1);
    let mut hostile = Hostile {
        guest,
        disk,
        driver,
        balloon: balloon(),
    };
    let mut input = Input(data);
    while hostile.step(&mut input).is_some() {}
    hostile.serve();
    assert!(other.get(Ipa(DATA), base.len()) == base, "others' memory");
    let tables = [
        hostile.guest.end(),
        hostile.disk.end(),
        other.end(),
        its_disk.end(),
    ];
    assert_eq!(tables, [0; 4]);
    assert_eq!(free(&frames), fresh, "frames are lost");
}

/// Blocks that differ, but for each fifth, which is zero, and each seventh, which is the first.
fn base() -> Vec<u8> {
    let byte = |block: u64| match block {
        _ if block % 5 == 4 => 0,
        _ if block % 7 == 6 => 1,
        _ => block as u8 + 1,
    };
    let blocks = (0..BLOCKS).map(|block| vec![byte(block); FRAME_SIZE as usize]);
    blocks.flatten().collect()
}

fn free(frames: &FakeFrames) -> u64 {
    frames.counts().iter().map(|counts| counts.free).sum()
}

fn start<'a>(
    frames: &'a FakeFrames,
    image: &'a Image,
    index: u16,
) -> (Guest<'a>, Disk<'a>, Driver) {
    let vm = VmId {
        index,
        generation: 1,
    };
    let guest = Guest::new(frames, vm, RAM, SHARES);
    let mut disk = Disk::new(frames, image, vm, LIMIT);
    let driver = Driver::start(&guest, &mut disk, RAM.start);
    (guest, disk, driver)
}

/// One with its queues set up, and all that it offers.
fn balloon() -> Transport<Balloon> {
    let mut balloon = Transport::new(Balloon::default());
    super::virtio::start(&mut balloon, BALLOON);
    balloon
}

impl Hostile<'_> {
    fn step(&mut self, input: &mut Input<'_>) -> Option<()> {
        match input.u8()? % 8 {
            0 => {
                let (offset, value) = (u64::from(input.u16()?) & 0xffc, u64::from(input.u32()?));
                self.disk.transport.write(offset, 4, value);
            }
            1 => {
                let (offset, value) = (u64::from(input.u16()?) & 0xffc, u64::from(input.u32()?));
                self.balloon.write(offset, 4, value);
            }
            2 | 3 => {
                let (offset, len) = (u64::from(input.u16()?), usize::from(input.u8()?));
                self.guest.put(Ipa(RAM.start.0 + offset), input.bytes(len));
            }
            4 => {
                let (kind, sector) = (input.u8()?, input.u8()?.into());
                let (page, sectors) = (u64::from(input.u8()?) % PAGES, u64::from(input.u8()?));
                let kinds = [Kind::Read, Kind::Write, Kind::Discard, Kind::WriteZeroes];
                let kind = kinds[usize::from(kind) % kinds.len()];
                let data = [(Ipa(DATA + page * FRAME_SIZE), sectors * 512)];
                self.driver.submit(&self.guest, (kind, sector), &data);
            }
            5 => {
                let (page, byte) = (u64::from(input.u8()?) % PAGES, input.u8()?);
                self.guest.put(Ipa(DATA + page * FRAME_SIZE), &[byte]);
            }
            6 => {
                let page = u64::from(input.u8()?) % PAGES;
                self.guest.evict(Gfn(DATA / FRAME_SIZE + page));
            }
            _ => self.serve(),
        }
        Some(())
    }

    fn serve(&mut self) {
        self.disk.serve(&self.guest);
        let guest = &self.guest;
        self.balloon.serve(
            guest,
            0,
            BUDGET,
            |gfn| gfn.0 & 512 == 0,
            |_, runs| {
                for run in runs {
                    assert!(guest.contains(run.first.address(), run.count * FRAME_SIZE));
                    guest.release(run.first, run.count);
                }
            },
        );
    }
}
