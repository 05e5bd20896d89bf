//! Every kind of disk that may lie on served ones, raw and qcow2, against plain bytes: what a guest asks of its device
//! comes to the server as EL2 asks for it, in slots of an area.

use super::super::*;
use abi::served::{AREA_BYTES, SLOTS};
use imago::{FormatCreateBuilder as _, file, qcow2::Qcow2};
use machine_fake::FakeFrames;
use model_served::Slots;
use proptest::prelude::*;
use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};
use tests_request_path::world::{BLOCKS, IMAGE, NODES, Step, World, base, step};
use tests_request_path::{Image as MachineImage, Medium, Partition};

/// The kinds of [`World::new`] that have a partition.
const KINDS: [usize; 4] = [1, 2, 3, 5];

/// The area, what EL2 knows of it, and the server.
struct Lane {
    server: Server,
    slots: RefCell<Slots>,
    data: RefCell<Vec<u8>>,
    asked: Cell<usize>,
}

impl Lane {
    /// Asks for `bytes` from `at` on of a disk and lets the server answer; `data` is copied into the slot or out of it.
    fn ask(&self, disk: u32, operation: u32, at: usize, data: Data<'_>) {
        let mut slots = self.slots.borrow_mut();
        // Another slot each time, as with several requests in flight.
        self.asked.set(self.asked.get() + 1);
        let taken = (0..=self.asked.get() % SLOTS).map(|_| slots.claim().unwrap());
        let taken: Vec<usize> = taken.collect();
        let (&slot, others) = taken.split_last().unwrap();
        for slot in others {
            slots.release(*slot);
        }
        let place = HEAD_BYTES + slot as u64 * DATA_BYTES;
        let area = &self.server.area;
        if let Data::From(bytes) = data {
            area.write_all_at(bytes, place).unwrap();
        }
        let record = Record {
            ticket: slots.ask(slot).unwrap(),
            operation,
            disk,
            sector: at as u64 / SECTOR_BYTES,
            bytes: data.len(),
            ..Record::default()
        };
        let record_at = (slot * size_of::<Record>()) as u64;
        let asked = &record.as_bytes()[..ANSWER_AT as usize];
        area.write_all_at(asked, record_at).unwrap();
        let mut head = vec![0; HEAD_BYTES as usize];
        area.read_exact_at(&mut head, 0).unwrap();
        self.server
            .answer_all(&head, &mut self.data.borrow_mut())
            .unwrap();
        let taken = slots.take_answered(|slot| {
            let mut answer = [0; size_of::<u64>()];
            let at = (slot * size_of::<Record>()) as u64 + ANSWER_AT;
            area.read_exact_at(&mut answer, at).unwrap();
            u64::from_le_bytes(answer)
        });
        assert_eq!(taken, Some((slot, true)));
        if let Data::Into(bytes) = data {
            area.read_exact_at(bytes, place).unwrap();
        }
        slots.release(slot);
    }
}

/// What goes with a request.
enum Data<'a> {
    None,
    From(&'a [u8]),
    Into(&'a mut [u8]),
}

impl Data<'_> {
    fn len(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::From(bytes) => bytes.len() as u64,
            Self::Into(bytes) => bytes.len() as u64,
        }
    }
}

/// One of the served disks.
struct Disk(Rc<Lane>, u32);

impl Medium for Disk {
    fn load(&self, at: usize, into: &mut [u8]) {
        for (n, part) in into.chunks_mut(DATA_BYTES as usize).enumerate() {
            let at = at + n * DATA_BYTES as usize;
            self.0.ask(self.1, operation::READ, at, Data::Into(part));
        }
    }

    fn store(&self, at: usize, bytes: &[u8]) {
        for (n, part) in bytes.chunks(DATA_BYTES as usize).enumerate() {
            let at = at + n * DATA_BYTES as usize;
            self.0.ask(self.1, operation::WRITE, at, Data::From(part));
        }
    }

    fn flush(&self) {
        self.0.ask(self.1, operation::FLUSH, 0, Data::None);
    }
}

fn open(path: &Path, is_new: bool) -> File {
    let mut options = File::options();
    options
        .read(true)
        .write(true)
        .create(is_new)
        .truncate(is_new);
    options.open(path).unwrap()
}

/// A file with an empty disk of so many bytes, open. That it is written through is shown elsewhere.
fn disk(path: &Path, format: Format, size: usize) -> (Image, u64) {
    let file = open(path, true);
    match format {
        Format::Raw => file.set_len(size as u64).unwrap(),
        Format::Qcow2 => {
            Qcow2::<file::File>::create_builder(file.try_into().unwrap())
                .size(size as u64)
                .cluster_size(4096)
                .create()
                .unwrap();
        }
    }
    let file = open(path, false);
    let image = match format {
        Format::Raw => Image::Raw(file),
        Format::Qcow2 => {
            let mut head = [0; ALIGN];
            let read = file.read_at(&mut head, 0).unwrap();
            Image::Qcow2(Qcow2Image::open(path, file, &head[..read]).unwrap())
        }
    };
    (image, size as u64)
}

/// Two disks, for a base and an overlay, and the server of both.
fn lane(directory: &Path, format: Format) -> Rc<Lane> {
    let path = |name: &str| directory.join(name);
    let area = open(&path("area"), true);
    area.set_len(AREA_BYTES).unwrap();
    let sizes = [("base", BLOCKS), ("room", BLOCKS + 3)];
    let files = sizes.map(|(name, blocks)| disk(&path(name), format, blocks * ALIGN));
    Rc::new(Lane {
        server: Server {
            area,
            files: files.into(),
        },
        slots: RefCell::default(),
        data: RefCell::new(vec![0; DATA_BYTES as usize]),
        asked: Cell::default(),
    })
}

fn is_its_bytes(directory: &Path, steps: &[Step], format: Format, kind: usize) {
    let image = MachineImage::new(IMAGE, &base(0));
    let frames: FakeFrames = image.machine(&NODES);
    let lane = lane(directory, format);
    let served = |number: u8, bytes: &[u8]| {
        let disk = Disk(lane.clone(), u32::from(number) - 1);
        disk.store(0, bytes);
        Partition::on(&frames, number, bytes.len(), Rc::new(disk))
    };
    World::new(kind, (&frames, &image), served).live(steps);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_served_disk_is_its_bytes(steps in prop::collection::vec(step(), 1..24)) {
        let name = format!("underpin-kinds-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        fs::create_dir_all(&directory).unwrap();
        for format in [Format::Raw, Format::Qcow2] {
            for kind in KINDS {
                is_its_bytes(&directory, &steps, format, kind);
            }
        }
        fs::remove_dir_all(&directory).unwrap();
    }
}
