//! A host that tells of a frame when its arrival is past.

use crate::cluster::Cluster;
use sim_ethernet::{
    Options,
    frame::{Head, append},
};
use sim_qemu::trial::has_qemu;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt as _,
    thread,
    time::Duration,
};

/// The desk of a host in the memory that hosts share, by `sim_wire::shared`.
fn desk(host: u64) -> u64 {
    host * 4096
}

/// This process plays host1, which tells of a frame when its arrival is past.
#[test]
fn a_frame_of_the_past_ends_the_run() {
    if !has_qemu() {
        return;
    }
    let cluster = Cluster::new("past", 2, "latency=10us,patience=1s", "rounds=3");
    fs::create_dir_all(cluster.directory()).unwrap();
    let shared = cluster.directory().join("shared");
    let words = ["me=1", "hosts=2", "shared=s", "latency=10us"].map(str::to_owned);
    let room = Options::read(&words).unwrap().room();
    for (arrival_ns, is_past) in [(10_000, true), (10_001, false)] {
        fs::write(&shared, []).unwrap();
        let host = cluster.qemu(0).spawn().unwrap();
        let file = File::options().read(true).write(true).open(&shared);
        let file = file.unwrap();
        let mut word = [0; 8];
        // Its fingerprint, which is that of all.
        while file.read_exact_at(&mut word, desk(0) + 16).is_err() || word == [0; 8] {
            thread::sleep(Duration::from_millis(5));
        }
        let tell = |at: u64, bytes: &[u8]| file.write_all_at(bytes, desk(1) + at).unwrap();
        tell(12, &std::process::id().to_ne_bytes());
        tell(16, &word);
        let head = Head {
            start_ns: 1,
            arrival_ns,
            number: 0,
            receivers: 1,
        };
        let mut frames = vec![0; room];
        let used = append(&mut frames, 0, &head, &[0xff; 60]).unwrap();
        let half_1_of_host_1 = desk(2) + 3 * room as u64;
        file.write_all_at(&frames, half_1_of_host_1).unwrap();
        tell(40, &10_000_i64.to_ne_bytes());
        tell(48, &(used as u64).to_ne_bytes());
        tell(0, &1_u32.to_ne_bytes());
        let output = host.wait_with_output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        let said = "host1 tells at 10000 ns of a frame that arrived at 10000 ns";
        assert!(!output.status.success());
        assert_eq!(words.contains(said), is_past, "{words}");
        // What came in time is taken: then host1 hangs.
        assert_eq!(words.contains("host1 hangs"), !is_past, "{words}");
    }
    fs::remove_dir_all(cluster.directory()).unwrap();
}
