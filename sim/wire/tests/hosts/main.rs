//! Hosts on a wire: bare programs that ping each other. Skipped, with a sentence, where there is no QEMU.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]

mod cluster;
mod past;

use cluster::{Cluster, Load, Outcome, repeat};
use sim_qemu::trial::{self, has_qemu};
use std::{fs, process::Command, thread, time::Duration};

/// Of a round trip, what the two guests take, but for a few instructions that depend on what else they do.
const GUESTS_NS: u64 = 504;
const GUESTS_SPREAD_NS: u64 = 10;

#[test]
fn round_trips_take_what_the_line_takes() {
    if !has_qemu() {
        return;
    }
    // One way: latency, cost of a frame, 1,024 bytes.
    for (name, wire, one_way_ps) in [
        ("line", "latency=10us,rate=10G", 10_000_000 + 819_200),
        (
            "frame",
            "latency=10us,rate=10G,frame=3us",
            13_000_000 + 819_200,
        ),
        ("slow", "latency=5us,rate=100M", 5_000_000 + 81_920_000),
        ("4us", "class=4us", 2_000_000 + 81_920),
        ("20us", "class=20us", 10_000_000 + 327_680),
        ("60us", "class=60us", 30_000_000 + 819_200),
        ("200us", "class=200us", 100_000_000 + 8_192_000),
        ("1ms", "class=1ms", 500_000_000 + 8_192_000),
    ] {
        let guest = "rounds=40 length=1000 end=60000000";
        for outcome in Cluster::new(name, 2, wire, guest).succeed() {
            let expected = 2 * one_way_ps / 1000 + GUESTS_NS;
            let found = outcome.guest("least");
            assert!(
                found.abs_diff(expected) <= GUESTS_SPREAD_NS,
                "{wire}: {found} ns, not {expected}"
            );
            assert_eq!(
                (outcome.guest("pings"), outcome.guest("unanswered")),
                (40, 0)
            );
        }
    }
}

#[test]
fn runs_are_the_same_also_under_load() {
    if !has_qemu() {
        return;
    }
    let guest = "rounds=400 end=40000000";
    let two = Cluster::new("same", 2, "latency=10us", guest);
    let first = two.succeed();
    let load = Load::new();
    assert_eq!(two.succeed(), first);
    // Each host's meetings are the same; what arrives differs.
    let digest = |host: usize, key: &str| {
        let word = first[host]
            .report
            .split_whitespace()
            .find(|word| word.starts_with(key));
        word.unwrap().to_owned()
    };
    assert_eq!(digest(0, "meetings_digest"), digest(1, "meetings_digest"));
    assert_ne!(digest(0, "arrivals_digest"), digest(1, "arrivals_digest"));
    assert_eq!(first[0].wire("received"), 800);
    assert_eq!(first[0].record.lines().count(), 800);
    // Three hosts, two CPUs each, which fight; everything that can befall frames.
    let faults = "latency=10us,lose=2%,repeat=2%,reorder=5%,corrupt=1%,spread=40us,seed=3";
    let guest = "rounds=100 patience=300000 end=25000000 second";
    let mut three = Cluster::new("faults", 3, faults, guest);
    three.cpus = 2;
    let three = repeat(&three, 2);
    drop(load);
    for outcome in &three {
        for key in ["lost", "repeated", "late", "corrupt"] {
            assert!(outcome.wire(key) > 0, "{key} in {outcome:?}");
        }
        assert_eq!(outcome.guest("pings") + outcome.guest("unanswered"), 100);
    }
    // Polling guests never sleep: a meeting each 10 us.
    let spins = Cluster::new("spins", 2, "latency=10us", "rounds=50 end=5000000 spin");
    let spins = repeat(&spins, 2);
    assert!(spins[0].wire("meetings") >= 500 && spins[0].wire("leaps") < 20);
}

/// 10^6 meetings, twice, the second time under load: minutes.
#[test]
#[ignore = "takes minutes; make soak runs it"]
fn a_million_meetings_are_the_same() {
    if !has_qemu() {
        return;
    }
    let guest = "rounds=100000000 pause=3000 end=2001000000 spin";
    let million = Cluster::new("million", 2, "latency=2us,rate=100G", guest);
    let first = million.succeed();
    let _load = Load::new();
    assert_eq!(million.succeed(), first);
    assert!(first[0].wire("meetings") >= 1_000_000, "{first:?}");
    for outcome in &first {
        eprintln!("{}{}", outcome.said, outcome.report);
    }
}

/// The sums of both hosts.
fn sum(outcomes: &[Outcome], of: impl Fn(&Outcome) -> u64) -> u64 {
    outcomes.iter().map(of).sum()
}

#[test]
fn faults_are_what_was_asked_for() {
    if !has_qemu() {
        return;
    }
    let run = |name, faults: &str| {
        let guest = "rounds=250 length=100 pause=1000 patience=100000 end=40000000";
        Cluster::new(name, 2, &format!("latency=10us,{faults}"), guest).succeed()
    };
    // Each ping or answer that is lost is a ping without answer.
    let lost = run("lost", "lose=10%");
    let count = sum(&lost, |host| host.wire("lost"));
    assert_eq!(sum(&lost, |host| host.guest("unanswered")), count);
    assert!((70..130).contains(&count), "{count} of about 1,000 frames");
    // Each second ping makes a second answer, and each second answer is one: within 30 us, before the next ping's.
    let twice = run("twice", "repeat=10%");
    let count = sum(&twice, |host| host.wire("repeated"));
    let strays = sum(&twice, |host| host.guest("strays"));
    assert!(
        (70..130).contains(&count) && strays.abs_diff(count) <= 15,
        "{count}, {strays}"
    );
    assert_eq!(sum(&twice, |host| host.guest("unanswered")), 0);
    // Late frames take up to the spread longer.
    let late = run("late", "reorder=10%,spread=25us");
    let count = sum(&late, |host| host.wire("late"));
    let most = late.iter().map(|host| host.guest("most")).max().unwrap();
    assert!(
        (70..130).contains(&count) && (40_000..72_000).contains(&most),
        "{count}, {most}"
    );
    // One wrong bit each: in these frames of 100 bytes, the guest looks at 40.
    let wrong = run("wrong", "corrupt=100%");
    let count = sum(&wrong, |host| host.wire("corrupt"));
    let received = sum(&wrong, |host| host.wire("received"));
    // The last may be on their way when a host ends.
    assert!(
        received > 100 && (received..received + 5).contains(&count),
        "{received}, {count}"
    );
    let other = run("other", "lose=10%,seed=2");
    assert_ne!(other[0].record, lost[0].record);
}

#[test]
fn a_cut_lasts_as_long_as_it_was_planned() {
    if !has_qemu() {
        return;
    }
    let guest = "rounds=400 length=100 pause=1 patience=1000000 end=60000000";
    let mut cluster = Cluster::new("cut", 3, "latency=10us,cut=0-1@5ms+10ms", guest);
    let hosts = cluster.succeed();
    // Each asks the others in turn, and waits for 1 ms where no answer comes: between 10 and 20 rounds, of which every
    // other is to the host that is cut off.
    for host in &hosts[..2] {
        let unanswered = host.guest("unanswered");
        assert!((9..=11).contains(&unanswered), "{unanswered}");
        assert!(host.wire("cut") > 0);
    }
    assert_eq!((hosts[2].guest("unanswered"), hosts[2].wire("cut")), (0, 0));
    // No frame between the two arrives that was on its way within the cut.
    let between = |line: &str, from: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let at: u64 = words[0].parse().unwrap();
        words[1] == from && (5_000_000..15_010_000).contains(&at)
    };
    assert!(!hosts[0].record.lines().any(|line| between(line, "1")));
    assert!(hosts[0].record.lines().any(|line| between(line, "2")));
    assert!(!hosts[1].record.lines().any(|line| between(line, "0")));
    cluster.wire = "latency=10us".into();
    assert_eq!(cluster.succeed()[0].guest("unanswered"), 0);
}

#[test]
fn a_stall_holds_cpus_and_not_the_card() {
    if !has_qemu() {
        return;
    }
    let guest = "rounds=400 length=100 pause=1 end=30000000";
    let wire = "latency=10us,stall=1@5ms+3ms,stall=1@12ms+1ms,stall=0@20ms+1us";
    let hosts = repeat(&Cluster::new("stall", 2, wire, guest), 2);
    for host in &hosts {
        assert_eq!(host.guest("unanswered"), 0);
        // A ping that comes when the stall begins is answered when it ends.
        let most = host.guest("most");
        assert!((2_975_000..3_025_000).contains(&most), "{most}");
    }
    // Its card took frames meanwhile.
    let at = |line: &str| line.split(' ').next().unwrap().parse::<u64>().unwrap();
    let taken = hosts[1]
        .record
        .lines()
        .filter(|line| (5_000_001..8_000_000).contains(&at(line)));
    assert!(taken.count() > 0, "{}", hosts[1].record);
}

#[test]
fn the_death_of_a_host_is_said_and_repeats() {
    if !has_qemu() {
        return;
    }
    let guest = "rounds=300 length=100 pause=1 patience=1000000 end=40000000";
    let cluster = Cluster::new("die", 3, "latency=10us,die=host1@5ms", guest);
    let (first, second) = (cluster.run(), cluster.run());
    for (host, outcome) in first.iter().enumerate() {
        assert_eq!(outcome.succeeded, host != 1, "{outcome:?}");
        let said = if host == 1 {
            "host1 dies at 5000000 ns"
        } else {
            "host1 has died"
        };
        assert!(outcome.words.contains(said), "{outcome:?}");
    }
    for host in [0, 2] {
        // 35 ms are left, and each other ping goes to it: 1 ms without answer.
        let unanswered = first[host].guest("unanswered");
        assert!((33..=37).contains(&unanswered), "{unanswered}");
        assert_eq!(first[host].said, second[host].said);
        assert_eq!(first[host].record, second[host].record);
        assert_eq!(first[host].report, second[host].report);
    }
}

#[test]
fn a_host_that_ends_sends_its_last_frames() {
    if !has_qemu() {
        return;
    }
    let mut cluster = Cluster::new("ends", 2, "latency=500us", "rounds=3 end=20000000");
    // Its answers to the pings at 1 ms go out; it ends in the quantum in which it asked itself.
    cluster.extra = ["", "rounds=0 end=1700000", ""];
    let hosts = repeat(&cluster, 2);
    assert_eq!(
        (hosts[0].guest("pings"), hosts[0].guest("unanswered")),
        (1, 2)
    );
    assert!(
        hosts[0].words.contains("host1 has left the wire"),
        "{hosts:?}"
    );
    assert_eq!(hosts[1].words, "");
}

/// All end at the same moment, in the midst of what they do, and what they have said by then repeats.
#[test]
fn hosts_end_at_a_time() {
    if !has_qemu() {
        return;
    }
    let ends = |guest: &str| {
        let cluster = Cluster::new("ends-at", 2, "latency=10us,end=5ms", guest);
        let hosts = cluster.run();
        for host in &hosts {
            assert!(host.succeeded && host.words.is_empty(), "{host:?}");
            assert!((5_000_000..5_020_000).contains(&host.wire("met_ns")));
            assert_eq!(host.wire("met_ns"), hosts[0].wire("met_ns"));
        }
        hosts
    };
    let guest = "rounds=100000000 pause=1000 spin";
    let first = ends(guest);
    assert!(first[0].wire("received") > 100 && first[0].said.is_empty());
    let _load = Load::new();
    assert_eq!(ends(guest), first);
}

#[test]
fn a_host_that_hangs_is_named() {
    if !has_qemu() {
        return;
    }
    let cluster = Cluster::new(
        "hangs",
        2,
        "latency=10us,patience=1s",
        "rounds=100000000 spin",
    );
    let mut hosts = cluster.start();
    thread::sleep(Duration::from_millis(300));
    let process = rustix::process::Pid::from_child(&hosts[1]);
    rustix::process::kill_process(process, rustix::process::Signal::STOP).unwrap();
    let status = hosts[0].wait().unwrap();
    hosts[1].kill().unwrap();
    let outcomes = cluster.end(hosts);
    let said = format!(
        "host1 hangs: its QEMU, process {}, has not come to",
        process.as_raw_nonzero()
    );
    assert!(
        !status.success() && outcomes[0].words.contains(&said),
        "{outcomes:?}"
    );
    // One that never starts.
    let mut cluster = Cluster::new("alone", 2, "latency=10us,patience=1s", "");
    fs::create_dir_all(cluster.directory()).unwrap();
    let output = cluster.qemu(0).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("host1 has not started for 1 s"), "{words}");
    // One that was started twice; and two that differ.
    let output = cluster.qemu(0).output().unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("host0 was started before"), "{words}");
    fs::remove_file(cluster.directory().join("shared")).unwrap();
    let one = cluster.qemu(0).spawn().unwrap();
    cluster.wire = "latency=10us,patience=1s,seed=2".into();
    let other = cluster.qemu(1).spawn().unwrap();
    let words: String = cluster
        .end(vec![one, other])
        .into_iter()
        .map(|host| host.words)
        .collect();
    assert!(
        words.contains("have different options of the wire"),
        "{words}"
    );
}

#[test]
fn a_late_timer_ends_the_run() {
    if !has_qemu() {
        return;
    }
    let wire = "latency=10us,cure=off,patience=5s";
    let cluster = Cluster::new(
        "late-timer",
        2,
        wire,
        "rounds=2000 pause=1000 patience=100000",
    );
    for _ in 0..50 {
        let hosts = cluster.run();
        let mut failed = hosts.iter().filter(|host| !host.succeeded);
        if let Some(host) = failed.next() {
            assert!(host.words.contains("ns late at host"), "{host:?}");
            return;
        }
    }
    panic!("no timer was late in 50 runs, although QEMU leaps");
}

#[test]
fn what_cannot_be_exact_is_refused() {
    if !has_qemu() {
        return;
    }
    let mut cluster = Cluster::new("refused", 2, "latency=10us,patience=1s", "");
    fs::create_dir_all(cluster.directory()).unwrap();
    let refused = |cluster: &Cluster, said: &str, change: &dyn Fn(&mut Command)| {
        let _ = fs::remove_file(cluster.directory().join("shared"));
        let mut qemu = cluster.qemu(0);
        change(&mut qemu);
        let output = qemu.output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && words.contains(said), "{words}");
    };
    let clock = trial::plugin("clock").unwrap();
    refused(
        &cluster,
        "load libsim_wire.so or libsim_clock.so, not both",
        &|qemu| {
            qemu.arg("-plugin").arg(&clock);
        },
    );
    cluster.wire = "latency=0".into();
    refused(
        &cluster,
        "hosts that run apart need a latency of 1ns or more",
        &|_| (),
    );
    let mut by_chance = Cluster::new("by-chance", 2, "latency=10us", "patience=100000");
    by_chance.card = "tx=bh";
    let outcomes = by_chance.run();
    let said = "the card sends from QEMU's main thread";
    assert!(
        outcomes.iter().any(|host| host.words.contains(said)),
        "{outcomes:?}"
    );
    fs::remove_dir_all(cluster.directory()).unwrap();
}
