//! What a hot page costs, and an interval, beside the size of the machine: `cargo bench -p
//! model_placement`. Pages are spread over all of the memory; counters are as the hypervisor reads
//! them, one word for each node.
#![allow(clippy::unwrap_used, reason = "it only measures")]

use model_addr::NodeId;
use model_placement::{Decision, NodeSet, Page, Placement, Set, Sight, Thresholds};
use std::hint::black_box;
use std::time::Instant;

/// Hot pages of an interval: what a ring of 256 entries brings.
const HOT: u64 = 256;
const INTERVALS: u32 = 2_000;
/// Records that the hypervisor keeps, in sets.
const SETS: usize = 512;

/// Nanoseconds for a hot page, the best of five runs.
fn per_page(frames: u64, nodes: usize) -> f64 {
    let run = || {
        let mut sets = vec![Set::EMPTY; SETS];
        let mut placement = Placement::new(&mut sets, Thresholds::DEFAULT);
        let mut misses = vec![0; nodes];
        let start = Instant::now();
        for now in 0..INTERVALS {
            for n in 0..HOT {
                let page =
                    Page((u64::from(now) * HOT + n).wrapping_mul(0x9e37_79b9_7f4a_7c15) % frames);
                let user = (page.0 % nodes as u64) as usize;
                misses[user] = 200;
                let sight = Sight {
                    home: NodeId(((user + 1) % nodes) as u8),
                    replicas: NodeSet::NONE,
                    misses: &misses,
                    written: n % 2 == 0,
                };
                if let Decision::Migrate(_) = placement.look(page, sight, NodeSet::NONE, now) {
                    placement.moved(page, now);
                }
                misses[user] = 0;
            }
        }
        black_box(&placement);
        start.elapsed().as_nanos() as f64 / f64::from(INTERVALS) / HOT as f64
    };
    (0..5).map(|_| run()).fold(f64::MAX, f64::min)
}

fn main() {
    println!("memory_gib,nodes,ns_per_hot_page,us_per_interval_of_{HOT}");
    for nodes in [2, 8, 64] {
        for gib in [1_u64, 64, 1 << 10, 16 << 10] {
            let ns = per_page(gib << 18, nodes);
            println!("{gib},{nodes},{ns:.1},{:.1}", ns * HOT as f64 / 1000.0);
        }
    }
    // With nothing hot there is nothing to do: the interval is one look at the ring.
}
