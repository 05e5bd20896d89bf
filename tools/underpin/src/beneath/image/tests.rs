//! Images of a few clusters, whole and damaged.

use super::*;
use imago::FormatCreateBuilder as _;
use proptest::prelude::*;
use std::{
    fs, mem,
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
};

/// Bytes of the disk.
const SIZE: usize = 1 << 20;

/// A path of its own for each image.
fn path() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let name = format!("underpin-image-{}-{number}", std::process::id());
    std::env::temp_dir().join(name)
}

/// An empty image with clusters of 4 KiB, as bytes.
fn empty() -> Vec<u8> {
    let path = path();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    Qcow2::<file::File>::create_builder(file.try_into().unwrap())
        .size(SIZE as u64)
        .cluster_size(4096)
        .create()
        .unwrap();
    let bytes = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    bytes
}

fn open(path: &Path) -> Result<Image> {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut head = [0; 4096];
    let size = file.read_at(&mut head, 0).unwrap();
    Qcow2Image::open(path, file, &head[..size]).map(Image::Qcow2)
}

fn refusal(bytes: &[u8]) -> Option<String> {
    let path = path();
    fs::write(&path, bytes).unwrap();
    let opened = open(&path);
    fs::remove_file(&path).unwrap();
    opened.err().map(|failure| failure.to_string())
}

/// What is damaged, or would need another file, or is of another kind is refused, by a sentence.
#[test]
fn what_is_not_served_is_refused_by_name() {
    let whole = empty();
    assert_eq!(refusal(&whole), None);
    for (at, value, why) in [
        (3, 0, "no such image"),
        (7, 4, "its version is 4"),
        (15, 1, "another image below"),
        (35, 1, "encrypted"),
        (79, 1, "not closed in order"),
        (79, 2, "marked as damaged"),
        (79, 4, "in another file"),
        (79, 16, "features that are not known here: 0x10"),
        (23, 63, "damaged: Invalid cluster size"),
        (23, 255, "damaged"),
        // The tables of clusters and of their uses: unaligned, and where nothing is.
        (47, 1, "damaged"),
        (55, 1, "damaged"),
        (40, 0x7f, "damaged"),
        (48, 0x7f, "damaged"),
        (36, 0xff, "damaged"),
        (56, 0xff, "damaged"),
        // The width of a count of uses, and the header's length.
        (99, 99, "damaged"),
        (103, 8, "damaged"),
        (100, 0xff, "damaged"),
    ] {
        let mut bytes = whole.clone();
        bytes[at] = value;
        let found = refusal(&bytes).unwrap_or_default();
        assert!(found.contains(why), "byte {at} {value:#x}: {found}");
    }
    for length in [0, 3, 71, 103] {
        assert!(refusal(&whole[..length]).is_some_and(|why| why.contains("no such image")));
    }
    assert!(refusal(&[0; 4096]).is_some());
}

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize, u8),
    Sync,
    /// The server is killed, and another one takes its place.
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    let sectors = SIZE / 512;
    prop_oneof![
        8 => (0..sectors, 1..32_usize, any::<u8>()).prop_map(move |(at, count, value)| {
            let count = count.min(sectors - at);
            Step::Write(at * 512, count * 512, value)
        }),
        1 => Just(Step::Sync),
        1 => Just(Step::Kill),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Against plain bytes; whoever is killed has written all that it said.
    #[test]
    fn an_image_is_a_disk(steps in prop::collection::vec(step(), 1..40)) {
        let path = path();
        fs::write(&path, empty()).unwrap();
        let mut image = open(&path).unwrap();
        let mut plain = vec![0; SIZE];
        for step in steps {
            match step {
                Step::Write(at, count, value) => {
                    image.write(&vec![value; count], at as u64).unwrap();
                    plain[at..at + count].fill(value);
                }
                Step::Sync => image.sync().unwrap(),
                Step::Kill => {
                    let next = open(&path).unwrap();
                    mem::forget(mem::replace(&mut image, next));
                }
            }
        }
        mem::forget(image);
        let mut found = vec![0; SIZE];
        open(&path).unwrap().read(&mut found, 0).unwrap();
        fs::remove_file(&path).unwrap();
        prop_assert!(found == plain);
    }

    /// An image with any damage is refused, or its requests end, well or not.
    #[test]
    fn damage_ends_in_errors(
        damage in prop::collection::vec((0..0x7000_usize, any::<u8>()), 1..20),
        steps in prop::collection::vec(step(), 1..10),
    ) {
        let path = path();
        fs::write(&path, empty()).unwrap();
        open(&path).unwrap().write(&[1; 8192], 4096).unwrap();
        let mut bytes = fs::read(&path).unwrap();
        for (at, value) in damage {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = value;
            }
        }
        fs::write(&path, bytes).unwrap();
        if let Ok(image) = open(&path) {
            for step in steps {
                if let Step::Write(at, count, value) = step {
                    let _ = image.write(&vec![value; count], at as u64);
                    let _ = image.read(&mut vec![0; count], at as u64);
                }
            }
            let _ = image.sync();
        }
        fs::remove_file(&path).unwrap();
    }
}
