extern crate std;
use super::*;
use std::{vec, vec::Vec};

/// A bundle of entries of some kind and size, with their bytes.
fn bundle_of(entries: &[(u32, u64, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    for (n, (kind, size, content)) in entries.iter().enumerate() {
        let entry = Entry {
            kind: *kind,
            reserved: 0,
            offset: bytes.len() as u64,
            size: *size,
            name: Text::new("k").unwrap(),
        };
        bytes[32 + n * 64..][..64].copy_from_slice(entry.as_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
    }
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        entries: entries.len() as u32,
        size: bytes.len() as u64,
        reserved: 0,
    };
    bytes[..32].copy_from_slice(header.as_bytes());
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn refused(bytes: &[u8]) -> BundleError {
    Bundle::parse(bytes).map(|_| ()).unwrap_err()
}

/// Puts a word into entry `n` of the table, `at` bytes from its start.
fn with(bytes: &[u8], n: usize, at: usize, value: u64) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[32 + n * 64 + at..][..8].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn what_was_put_in_comes_out() {
    let bytes = bundle_of(&[(kind::KERNEL, 3, b"abc")]);
    let bundle = Bundle::parse(&bytes).unwrap();
    let (n, _) = bundle.find(kind::KERNEL, "k").unwrap();
    assert_eq!(bundle.content_of(n, kind::KERNEL), Some(&b"abc"[..]));
    assert_eq!(bundle.content_of(n, kind::DISK), None);
    assert!(bundle.find(kind::DISK, "k").is_none() && bundle.image(n).is_none());
    assert_eq!(bundle.vm(n).unwrap_err(), BundleError::Vm(0));
    assert!(
        Bundle::parse(&bundle_of(&[]))
            .unwrap()
            .pages()
            .next()
            .is_none()
    );
}

#[test]
fn an_image_is_read_by_its_map() {
    let pages = [[7_u8; BLOCK_SIZE], [8; BLOCK_SIZE]];
    let bytes = bundle_of(&[
        (kind::INITRD, 5, b"lamps"),
        (kind::DISK, 4 * 4096, &words(&[2, 0, 1, 2])),
        (kind::DISK, 4096 + 1, &words(&[1, 0])),
        (kind::BLOCKS, 2 * 4096, pages.as_flattened()),
    ]);
    // Nothing depends on how the bytes lie on this machine.
    let mut shifted = vec![0; bytes.len() + 1];
    shifted[1..].copy_from_slice(&bytes);
    let bundle = Bundle::parse(&shifted[1..]).unwrap();
    let image = bundle.image(1).unwrap();
    assert_eq!((image.size(), image.blocks()), (4 * 4096, 4));
    let (seven, eight) = (Place::Page(&pages[0], 0), Place::Page(&pages[1], 1));
    let places = [0, 1, 2, 3, 4, u64::MAX].map(|n| image.block(n));
    let zero = Place::Zero;
    assert_eq!(places, [eight, zero, seven, eight, zero, zero]);
    let other = bundle.image(2).unwrap();
    assert_eq!((other.size(), other.blocks()), (4097, 2));
    assert_eq!(other.block(0), seven);
    assert!(bundle.image(0).is_none() && bundle.image(4).is_none());
    let mappable: Vec<_> = bundle.pages().collect();
    assert_eq!(mappable, [4096..8192, 4 * 4096..6 * 4096]);
}

#[test]
fn lies_are_refused() {
    let kernel = |size| bundle_of(&[(kind::KERNEL, size, b"abc")]);
    assert_eq!(refused(&kernel(4097)), BundleError::Entry(0));
    assert_eq!(refused(&kernel(u64::MAX)), BundleError::Entry(0));
    assert_eq!(
        refused(&kernel(2)),
        BundleError::Entry(0),
        "c is no padding"
    );
    let good = kernel(3);
    assert_eq!(refused(&with(&good, 0, 8, 4097)), BundleError::Entry(0));
    assert_eq!(refused(&with(&good, 0, 8, 0)), BundleError::Entry(0));
    assert_eq!(refused(&good[..20]), BundleError::Short(20));
    assert!(matches!(refused(&good[..100]), BundleError::Truncated(_)));
    let patched = |at: usize, bytes: &[u8]| {
        let mut other = good.clone();
        other[at..at + bytes.len()].copy_from_slice(bytes);
        refused(&other)
    };
    let too_many = u32::MAX.to_le_bytes();
    assert!(matches!(patched(12, &too_many), BundleError::Truncated(_)));
    assert_eq!(patched(0, b"OVERPIN "), BundleError::NotABundle);
    // What an older tool made, and what to do.
    assert_eq!(patched(8, &[1]), BundleError::Version(1));
    let sentence = std::format!("{}", BundleError::Version(1));
    assert!(
        sentence.contains("build it again, underpin bundle"),
        "{sentence}"
    );
    // A bundle whose end is cut off says how much it should have.
    let mut cut = good.clone();
    cut[16..24].copy_from_slice(&4099_u64.to_le_bytes());
    assert_eq!(
        refused(&cut),
        BundleError::Entry(0),
        "its padding is missing"
    );
}

#[test]
fn maps_that_lie_are_refused() {
    let mut page = [1; BLOCK_SIZE];
    page[BLOCK_SIZE - 1] = 0;
    let bundle = |map: &[u32], size: u64, blocks: u64| {
        let map = words(map);
        bundle_of(&[(kind::DISK, size, &map), (kind::BLOCKS, blocks, &page)])
    };
    let good = bundle(&[1, 0], 8192, 4096);
    assert!(Bundle::parse(&good).is_ok());
    assert_eq!(refused(&bundle(&[1, 2], 8192, 4096)), BundleError::Map(0));
    let most = bundle(&[u32::MAX], 4096, 4096);
    assert_eq!(refused(&most), BundleError::Map(0));
    // An image longer than its map, whose blocks then come from the next entry's bytes.
    let long = bundle(&[1, 0], 2048 * 4096, 4096);
    assert_eq!(refused(&long), BundleError::Entry(1));
    let longest = bundle(&[1, 0], u64::MAX, 4096);
    assert_eq!(refused(&longest), BundleError::Entry(0));
    // One shorter than its map.
    assert_eq!(refused(&bundle(&[0, 1], 4096, 4096)), BundleError::Entry(0));
    // A part of a page.
    assert_eq!(refused(&bundle(&[1], 4096, 4095)), BundleError::Map(0));
    // No page at all, two areas, and an area over the map.
    let alone = bundle_of(&[(kind::DISK, 4096, &words(&[1]))]);
    assert_eq!(refused(&alone), BundleError::Map(0));
    let blocks = (kind::BLOCKS, 4096, &page[..]);
    assert_eq!(
        refused(&bundle_of(&[blocks, blocks])),
        BundleError::Entry(1)
    );
    assert_eq!(refused(&with(&good, 1, 8, 4096)), BundleError::Entry(1));
}

#[test]
fn whatever_is_cut_off_or_flipped_is_refused_or_read() {
    let (map, page) = (words(&[1, 0, 1]), [1; BLOCK_SIZE]);
    let good = bundle_of(&[
        (kind::KERNEL, 3, b"abc"),
        (kind::DISK, 3 * 4096, &map),
        (kind::BLOCKS, 4096, &page),
    ]);
    for end in (0..good.len()).step_by(61) {
        assert!(Bundle::parse(&good[..end]).is_err(), "{end} bytes");
    }
    let of_interest = (0..32 + 3 * 64).chain(2 * 4096..2 * 4096 + 12);
    for bit in of_interest.flat_map(|byte| (0..8).map(move |bit| byte * 8 + bit)) {
        let mut garbled = good.clone();
        garbled[bit / 8] ^= 1 << (bit % 8);
        let Ok(bundle) = Bundle::parse(&garbled) else {
            continue;
        };
        for (n, entry) in bundle.entries() {
            let size = bundle.content(&entry).unwrap().len() as u64;
            assert_eq!(size, entry.stored());
            if let Some(image) = bundle.image(n) {
                assert_eq!(image.blocks(), image.size().div_ceil(4096));
                for block in 0..=image.blocks() {
                    let _ = image.block(block);
                }
            }
        }
        for range in bundle.pages() {
            assert!(range.start % 4096 == 0 && range.end % 4096 == 0 && range.end <= good.len());
        }
    }
}

#[test]
fn a_vm_says_its_name_and_its_group() {
    let mut record = VmRecord::read_from_bytes(&[0; size_of::<VmRecord>()]).unwrap();
    let vm = |record: &VmRecord| {
        let bytes = record.as_bytes();
        let bundle = bundle_of(&[(kind::VM, bytes.len() as u64, bytes)]);
        Bundle::parse(&bundle).unwrap().vm(0).map(|vm| vm.name)
    };
    assert!(vm(&record).is_err());
    record.name = Text::cut("a");
    assert!(vm(&record).is_err());
    record.group = Text::cut(DEFAULT_GROUP);
    assert_eq!(vm(&record), Ok(Text::cut("a")));
    let not_text = Text::read_from_bytes(&[0xff; 40]).unwrap();
    for spoil in [
        |record: &mut VmRecord, text| record.swap = text,
        |record: &mut VmRecord, text| record.disks[3].partition = text,
    ] {
        let mut spoiled = record;
        spoil(&mut spoiled, not_text);
        assert_eq!(vm(&spoiled), Err(BundleError::Vm(0)));
    }
}

fn cluster() -> ClusterRecord {
    let mut record = ClusterRecord {
        number: 1,
        host: 1,
        hosts: 2,
        is_open: 0,
        no_aes: 0,
        mtu: 1500,
        zeroes: [0; 2],
        key: [7; 32],
        macs: [[0; 6]; 16],
        names: [Text::default(); 16],
    };
    (record.macs[0], record.macs[1]) = ([2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]);
    (record.names[0], record.names[1]) = (Text::cut("a"), Text::cut("b"));
    record
}

fn parsed(record: &ClusterRecord) -> Result<Option<ClusterRecord>, BundleError> {
    let content = record.as_bytes();
    let bytes = bundle_of(&[(kind::CLUSTER, content.len() as u64, content)]);
    Bundle::parse(&bytes).unwrap().cluster()
}

#[test]
fn a_cluster_is_taken_only_if_its_hosts_differ() {
    let good = parsed(&cluster()).unwrap().unwrap();
    assert_eq!(good.as_bytes(), cluster().as_bytes());
    assert!(
        Bundle::parse(&bundle_of(&[]))
            .unwrap()
            .cluster()
            .unwrap()
            .is_none()
    );
    let wrong: [fn(&mut ClusterRecord); 15] = [
        |it| it.zeroes[1] = 1,
        |it| it.mtu = 0,
        |it| it.mtu = 1501,
        |it| it.mtu = 4255,
        |it| it.is_open = 2,
        |it| it.no_aes = 2,
        |it| it.host = 2,
        |it| it.hosts = 1,
        |it| it.hosts = 17,
        |it| it.hosts = 3,
        |it| it.key = [0; 32],
        |it| it.macs[1] = it.macs[0],
        |it| it.macs[1][0] |= 1,
        |it| it.names[0] = it.names[1],
        |it| it.names[0] = Text::default(),
    ];
    for (n, change) in wrong.into_iter().enumerate() {
        let mut record = cluster();
        change(&mut record);
        assert!(
            matches!(parsed(&record), Err(BundleError::Cluster(0))),
            "{n}"
        );
    }
    let record = cluster();
    let content = record.as_bytes();
    let size = content.len() as u64;
    let two = bundle_of(&[
        (kind::CLUSTER, size, content),
        (kind::CLUSTER, size, content),
    ]);
    let two = Bundle::parse(&two).unwrap().cluster();
    assert!(matches!(two, Err(BundleError::Cluster(0))));
    let short = bundle_of(&[(kind::CLUSTER, 3, b"abc")]);
    let short = Bundle::parse(&short).unwrap().cluster();
    assert!(matches!(short, Err(BundleError::Cluster(0))));
}
