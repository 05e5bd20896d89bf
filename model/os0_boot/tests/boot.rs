//! Layouts against a flat model, and the tree of QEMU's `virt` machine with its guest-loader.

#![allow(clippy::unwrap_used)]

use abi::stage::{Head, MAGIC, PAYLOAD_AT};
use model_addr::{Pa, PaRange};
use model_guest_image::ImageHeader;
use model_machine_tree::read;
use model_os0_boot::{Chosen, Given, LayoutError, is_startable, lay_out, place, rewrite};
use proptest::prelude::*;

const TREE: &[u8] = include_bytes!("../../machine_tree/tests/data/os0.dtb");
const BLOCK: u64 = 2 << 20;

const fn run(start: u64, size: u64) -> PaRange {
    PaRange {
        start: Pa(start),
        size,
    }
}

const HEADER: ImageHeader = ImageHeader {
    text_offset: 0,
    image_size: 0x1e7_0000,
};

#[test]
fn a_kernel_that_can_run_where_it_lies_stays() {
    let given = Given {
        memory: &[run(0x4000_0000, 1 << 30)],
        kept: &[run(0x4800_0000, 0x10_0000)],
        image: run(0x4020_0000, 0xe_0000),
        arena: 0x3_0000,
        kernel: run(0x5000_0000, 0x1d7_67c0),
        header: HEADER,
    };
    let layout = lay_out(&given).unwrap();
    assert_eq!(layout.hidden, run(0x4020_0000, 2 * BLOCK));
    assert_eq!(layout.arena, run(0x402e_0000, 0x12_0000));
    assert_eq!(layout.spare, run(0x4040_0000, BLOCK));
    assert_eq!(layout.kernel, Pa(0x5000_0000));
    // One that is not on a 2 MiB boundary goes to the lowest place: behind EL2's memory.
    let crooked = Given {
        kernel: run(0x5000_1000, 0x1d7_67c0),
        ..given
    };
    assert_eq!(lay_out(&crooked).unwrap().kernel, Pa(0x4060_0000));
    let tree = run(0x402f_0000, 0x1000);
    let full = Given {
        kept: &[tree],
        ..given
    };
    let error = lay_out(&full).unwrap_err();
    assert_eq!(
        error,
        LayoutError::InTheWay {
            hidden: layout.hidden,
            other: tree
        }
    );
    assert!(error.to_string().contains("0x402f0000"), "{error}");
}

#[test]
fn the_tree_is_os0s() {
    let before = read(TREE).unwrap();
    let os0 = before.os0.clone().unwrap();
    let mut blob = TREE.to_vec();
    let hidden = run(0x4020_0000, BLOCK);
    let chosen = Chosen {
        bootargs: &os0.bootargs,
        initrd: os0.ramdisk,
    };
    let size = rewrite(&mut blob, hidden, chosen).unwrap();
    let after = read(&blob[..size]).unwrap();
    let memory: Vec<PaRange> = after.memory.iter().map(|memory| memory.range).collect();
    assert_eq!(
        memory,
        [run(0x4000_0000, BLOCK), run(0x4040_0000, 0x3fc0_0000)]
    );
    assert_eq!(after.bootargs, os0.bootargs.as_str());
    assert_eq!(after.initrd, os0.ramdisk);
    assert_eq!(after.os0, None);
    assert_eq!(after.virtio, before.virtio);
    assert_eq!(after.cpus, before.cpus);
}

#[test]
fn what_is_no_tree_is_refused() {
    let chosen = Chosen {
        bootargs: "",
        initrd: None,
    };
    assert!(rewrite(&mut [0; 64], run(0, BLOCK), chosen).is_err());
    assert!(rewrite(&mut [], run(0, BLOCK), chosen).is_err());
}

/// Runs of whole frames among the first 256 MiB.
fn runs(most: usize) -> impl Strategy<Value = Vec<PaRange>> {
    prop::collection::vec((0..65_000_u64, 1..4096_u64), 0..most)
        .prop_map(|all| all.iter().map(|(at, n)| run(at << 12, n << 12)).collect())
}

proptest! {
    /// Whatever lies where: nothing that is given to one belongs to another.
    #[test]
    fn nobody_shares(
        kept in runs(6),
        image in (0..60_000_u64, 1..600_u64),
        kernel in (0..60_000_u64, 1..4000_u64),
        arena in 0..4_000_000_u64,
        offset in prop_oneof![Just(0), Just(0x8_0000)],
        size in 0..0x200_0000_u64,
    ) {
        let memory = [run(0, 100 << 20), run(112 << 20, 160 << 20)];
        let given = Given {
            memory: &memory,
            kept: &kept,
            image: run(image.0 << 12, image.1 << 12),
            arena,
            kernel: run(kernel.0 << 12, kernel.1 << 12),
            header: ImageHeader { text_offset: offset, image_size: size },
        };
        let Ok(layout) = lay_out(&given) else { return Ok(()) };
        let needed = run(layout.kernel.0, size.max(given.kernel.size));
        prop_assert!(memory.iter().any(|run| run.contains_run(needed.start, needed.size)));
        prop_assert!(memory.iter().any(|run| run.contains_run(layout.hidden.start, layout.hidden.size)));
        prop_assert!(layout.hidden.contains_run(given.image.start, given.image.size));
        prop_assert!(layout.hidden.contains_run(layout.arena.start, layout.arena.size));
        prop_assert!(layout.arena.size >= arena && !layout.arena.overlaps(given.image));
        prop_assert!(layout.hidden.contains_run(layout.spare.start, layout.spare.size));
        prop_assert!(!layout.spare.overlaps(layout.arena) && !layout.spare.overlaps(given.image));
        prop_assert!(layout.spare.start.is_aligned(BLOCK) && layout.spare.size >= given.image.size + arena);
        prop_assert!(layout.hidden.start.is_aligned(BLOCK) && layout.hidden.size % BLOCK == 0);
        prop_assert_eq!((layout.kernel.0 - offset) % BLOCK, 0);
        prop_assert!(!needed.overlaps(layout.hidden) && !given.kernel.overlaps(layout.hidden));
        prop_assert!(layout.kernel == given.kernel.start || !needed.overlaps(given.kernel));
        for other in &kept {
            prop_assert!(!other.overlaps(needed) && !other.overlaps(layout.hidden));
        }
    }

    /// Memory is cut exactly: each byte is memory afterwards if it was before and is not hidden.
    #[test]
    fn memory_is_cut_exactly(at in 0..0x60_0000_u64, count in 1..64_u64) {
        let hidden = run((at & !0x1f_ffff) << 8, count << 21);
        let mut blob = TREE.to_vec();
        let chosen = Chosen { bootargs: "quiet", initrd: None };
        let size = rewrite(&mut blob, hidden, chosen).unwrap();
        let Ok(after) = read(&blob[..size]) else {
            prop_assert!(hidden.contains_run(Pa(0x4000_0000), 1 << 30));
            return Ok(());
        };
        let total: u64 = after.memory.iter().map(|memory| memory.range.size).sum();
        let overlap = hidden.end().0.min(0x8000_0000).saturating_sub(hidden.start.0.max(0x4000_0000));
        prop_assert_eq!(total, (1 << 30) - overlap);
        prop_assert!(!after.memory.iter().any(|memory| memory.range.overlaps(hidden)));
    }
}

/// What a stage says is inside the run, or it is refused.
#[test]
fn a_stage_is_checked() {
    let head = Head {
        magic: MAGIC,
        bytes: 0x10_0000,
        room: 0x20_0000,
        tree: 0x8_0000,
        initrd: [0x8_0104, 0x8_0110],
        reservations: [0x9_0000, 0x7000],
    };
    let run = 0x10_0000 + PAYLOAD_AT;
    assert!(is_startable(&head, run));
    assert!(!is_startable(&head, run - 1));
    let wrong = [
        Head { magic: 0, ..head },
        Head {
            room: 0xf_ffff,
            ..head
        },
        Head {
            room: u64::MAX,
            ..head
        },
        Head {
            tree: 0x8_0001,
            ..head
        },
        Head {
            tree: 0xf_fff9,
            ..head
        },
        Head {
            tree: u64::MAX - 7,
            ..head
        },
        Head {
            initrd: [0x8_0104, 0xf_fffc],
            ..head
        },
        Head {
            reservations: [0x9_0000, 0x7001],
            ..head
        },
        Head {
            reservations: [0x9_0000, u64::MAX],
            ..head
        },
        Head {
            reservations: [0x9_0000, 0],
            ..head
        },
    ];
    for head in wrong {
        assert!(!is_startable(&head, run), "{head:x?}");
    }
}

proptest! {
    /// Against a search block by block.
    #[test]
    fn the_lowest_free_place(
        taken in prop::collection::vec((0..40_u64, 1..9_u64), 0..8), room in 1..(12 * BLOCK),
    ) {
        let memory = [run(3 * BLOCK, 10 * BLOCK), run(20 * BLOCK, 15 * BLOCK)];
        let taken: Vec<PaRange> = taken.iter().map(|(at, size)| run(at * BLOCK, size * BLOCK - 5)).collect();
        let is_free = |start: u64| {
            let wanted = run(start, room);
            memory.iter().any(|memory| memory.contains_run(Pa(start), room))
                && taken.iter().all(|other| !other.overlaps(wanted))
        };
        let lowest = (0..40).map(|n| n * BLOCK).find(|start| is_free(*start));
        prop_assert_eq!(place(&memory, &taken, room), lowest.map(Pa));
    }
}
