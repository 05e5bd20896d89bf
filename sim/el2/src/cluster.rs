//! Lives of a cluster: complete hypervisors, each in a process of its own, as what a hypervisor keeps for ever is one a
//! process. The network between them loses, repeats, delays, reorders, corrupts and cuts; hosts stall, crash and come
//! back. All of it is decided by a seed, in virtual time.
//!
//! ```text
//!   world: the network, and what may be seen of hosts        one process
//!     │ Turn: frames that arrive, the time to run to
//!     │ Report: the time reached, frames that left, how the host stands
//!   host 0      host 1      host 2                           a process each, from its start to its crash
//! ```

mod guest;
mod host;
mod judge;
mod network;
mod pipe;
mod world;

pub use host::{Birth, Odd, be};

use machine_host::rng::Rng;
use network::Network;
use world::World;

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;
/// How long there are faults, at least and at most.
const FAULTS_NS: [u64; 2] = [2_500 * MS, 6_000 * MS];
/// How long it may take until all are one membership after that, while frames still get lost.
const PEACE_NS: u64 = 20_000 * MS;
/// How long they then stay one, without loss: longer than a silent host is waited for.
const CALM_NS: u64 = 2_100 * MS;
/// How long a host that does not fit has to be let in.
const APART_NS: u64 = 4_000 * MS;
/// One life in so many has a flood, which lasts so long, with a frame so often.
const FLOODED: u64 = 32;
const FLOOD_NS: u64 = 100 * MS;
const FLOOD_EVERY_NS: u64 = 3_333;
/// The most frames that a host takes off its card meanwhile: 32 in 0.27 ms, those that are worth a look, and those of its
/// peers.
const FLOOD_TAKEN_MAX: u64 = 12_350;
/// Messages of the probe to each other host, within that time; and one life in so many in which they are this many: frames
/// come faster than they are worked at, and overtake each other by hundreds, and none is dropped.
const PROBES: u32 = 12;
const CROWDED: u64 = 16;
const PROBES_AT_ONCE: u32 = 1_500;
/// How often a VM must come to its end on a host while another one is drained, so that this need not happen.
const ENDS_MANY: u64 = 40;
/// One life in so many is of four to eight hosts.
const WIDE: u64 = 128;
/// Lives of 16 in which a page takes one frame, and one of so many in which hosts are crowded.
const JUMBO: [u64; 3] = [5, 8, 13];
const JUMBO_CROWDED: u64 = 128;

/// What became of a cluster.
#[derive(Debug, Default)]
pub struct Life {
    /// Frames that hosts have sent.
    pub frames: u64,
    /// Bytes of the longest.
    pub longest: usize,
    /// Memberships that a host has entered.
    pub entered: u64,
    /// Hosts that were started, also those that came back.
    pub starts: u64,
    /// Turns of hosts.
    pub turns: u64,
    /// A sum of all reports: equal for two lives of one seed.
    pub trace: u64,
    /// Milliseconds of virtual time.
    pub ms: u64,
    /// How often the VM over several hosts ran to its end, and was ended by the loss of a host, on each.
    pub whole: u64,
    pub lost: u64,
    /// How often a vCPU of it came from another host, and a host left it.
    pub moved: u64,
    pub drained: u64,
}

/// Lives the life of `seed`; `log` is given what hypervisors write to their logs.
///
/// # Errors
/// What went wrong.
pub fn live(seed: u64, log: &mut dyn FnMut(&str)) -> Result<Life, String> {
    let mut rng = Rng::new(seed ^ 0x636c_7573_7465_7200);
    let few = 2 + rng.below(2) as usize;
    let hosts = match seed % WIDE {
        2 => 4 + rng.below(5) as usize,
        _ => few,
    };
    let mut network = Network::new(&mut rng, hosts);
    let mut birth = Birth::of(hosts as u8);
    birth.vm = Some(rng.next()).filter(|_| seed.is_multiple_of(2));
    birth.is_jumbo = JUMBO.contains(&(seed % 16)) || seed % JUMBO_CROWDED == 67;
    let mut world = World::new(&mut rng, birth, network.latency_ns);
    let faults_ns = FAULTS_NS[0] + rng.below(FAULTS_NS[1] - FAULTS_NS[0]);
    let mut next_fault = 500 * MS + rng.below(1_500 * MS);
    while world.now < faults_ns {
        if world.now >= next_fault {
            network::fault(&mut rng, &mut network, &mut world);
            next_fault = world.now + 1 + rng.below(1_500 * MS);
        }
        world.run(next_fault.min(faults_ns), &mut network, log)?;
    }
    network.mend();
    world.start_all();
    let end = world.now + PEACE_NS;
    while !world.is_one() {
        if world.now >= end {
            return Err(format!("hosts stay apart: {}", world.describe()));
        }
        let until = end.min(world.now + 20 * MS);
        world.run(until, &mut network, log)?;
    }
    network.calm();
    let (view, is_crowded) = (world.view(), seed % CROWDED == 3);
    world.lose_damaged(is_crowded);
    if is_crowded {
        // Those that have arrived are looked at.
        world.run(world.now + 20 * MS, &mut network, log)?;
    }
    let unheard = world.unheard();
    world.probe_all(if is_crowded { PROBES_AT_ONCE } else { PROBES });
    world.await_vm();
    if seed % FLOODED == 1 {
        flood(&mut world, &mut network, log)?;
    }
    world.run(world.now + CALM_NS, &mut network, log)?;
    // A proposal from before may have been made again, of the same hosts.
    let lives = |view: Option<judge::View>| view.map(|(_, lives)| lives);
    if !world.is_one() || lives(world.view()) != lives(view) {
        return Err(format!("hosts part without a fault: {}", world.describe()));
    }
    let end = world.now + PEACE_NS;
    while !world.vm_goes_on() {
        if world.now >= end {
            return Err(format!("the VM does not go on: {}", world.describe()));
        }
        world.run(world.now + 20 * MS, &mut network, log)?;
    }
    if !world.are_probed() {
        return Err(format!("messages were lost: {}", world.describe()));
    }
    let unheard = world.unheard() - unheard;
    if is_crowded && unheard > 0 {
        return Err(format!("hosts were overrun: {unheard} frames had no room"));
    }
    if let Some(host) = world.drain() {
        drain(host, &mut world, &mut network, log)?;
    }
    Ok(world.end())
}

/// A host is drained and switched off: the others run on and come into one membership, and the VM comes to its end on them. One that comes to
/// its end too often, where messages take long, begins anew each time before the host has left.
fn drain(
    host: usize,
    world: &mut World,
    network: &mut Network,
    log: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let (end, before) = (world.now + PEACE_NS, world.whole());
    while !world.has_left(host) {
        if world.now >= end && world.whole() > before + ENDS_MANY {
            return Ok(());
        }
        if world.now >= end {
            return Err(format!("host{host} does not leave: {}", world.describe()));
        }
        world.run(world.now + 20 * MS, network, log)?;
    }
    world.crash(host, u64::MAX);
    let (calm, end) = (world.now + CALM_NS, world.now + PEACE_NS);
    while world.now < calm || !world.vm_goes_on() {
        world.run(world.now + 20 * MS, network, log)?;
        if !world.are_one_but(Some(host), world.now >= calm) {
            let what = world.describe();
            return Err(format!("hosts part as host{host} has left: {what}"));
        }
        if world.now >= end {
            let what = world.describe();
            return Err(format!("the VM does not go on without host{host}: {what}"));
        }
    }
    Ok(())
}

/// Somebody without the key floods the first host, whose CPU is to bear a bounded part of it.
fn flood(
    world: &mut World,
    network: &mut Network,
    log: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let (before, until) = (world.taken(), world.now + FLOOD_NS);
    world.flood(FLOOD_EVERY_NS, until);
    world.run(until, network, log)?;
    let taken = world.taken() - before;
    let told =
        format!("a flood had {taken} frames taken off the card, of at most {FLOOD_TAKEN_MAX}");
    log(&told);
    (taken <= FLOOD_TAKEN_MAX).then_some(()).ok_or(told)
}

/// Lives a life of three hosts, of which the last has other CPU features; `log` as for [`live`]. A VM over all of them finds what
/// they have in common.
///
/// # Errors
/// What went wrong.
pub fn live_unlike(seed: u64, log: &mut dyn FnMut(&str)) -> Result<Life, String> {
    let mut rng = Rng::new(seed ^ 0x756e_6c69_6b65);
    let mut network = Network::new(&mut rng, 3);
    let birth = Birth {
        odd: Some(Odd::Features),
        vm: Some(rng.next() & !1),
        ..Birth::of(3)
    };
    let mut world = World::new(&mut rng, birth, network.latency_ns);
    let end = PEACE_NS;
    while !world.is_one() && world.now < end {
        world.run(world.now + 20 * MS, &mut network, log)?;
    }
    network.calm();
    world.await_vm();
    while !world.vm_goes_on() && world.now < 2 * end {
        world.run(world.now + 20 * MS, &mut network, log)?;
    }
    let all = [world.is_one(), world.have_common(), world.vm_goes_on()];
    if all == [true; 3] {
        Ok(world.end())
    } else {
        let hosts = world.describe();
        Err(format!(
            "one, with what is common, and a VM: {all:?}: {hosts}"
        ))
    }
}

/// Lives a life of two hosts, of which the last one asks the other; `log` as for [`live`].
///
/// # Errors
/// They did not come together.
pub fn live_asking(seed: u64, log: &mut dyn FnMut(&str)) -> Result<Life, String> {
    let mut rng = Rng::new(seed ^ 0x6173_6b73);
    let mut network = Network::new(&mut rng, 2);
    let odd = Some(Odd::Asks);
    let birth = Birth {
        odd,
        ..Birth::of(2)
    };
    let mut world = World::new(&mut rng, birth, network.latency_ns);
    world.run(APART_NS, &mut network, log)?;
    if world.is_one() {
        Ok(world.end())
    } else {
        Err(format!("hosts stay apart: {}", world.describe()))
    }
}

/// Lives a life of three hosts, of which the last one does not fit; `log` as for [`live`].
///
/// # Errors
/// It was let in, or the others did not come together.
pub fn live_apart(seed: u64, odd: Odd, log: &mut dyn FnMut(&str)) -> Result<Life, String> {
    let mut rng = Rng::new(seed ^ 0x6170_6172_7400);
    let mut network = Network::new(&mut rng, 3);
    let odd = Some(odd);
    let birth = Birth {
        odd,
        ..Birth::of(3)
    };
    let mut world = World::new(&mut rng, birth, network.latency_ns);
    world.run(APART_NS, &mut network, log)?;
    if world.is_last_alone() {
        Ok(world.end())
    } else {
        Err(format!("host2 is not alone: {}", world.describe()))
    }
}
