//! Many VMs on one switch, and such as misbehave there.

use super::KERNEL;
use crate::{
    Outcome, because,
    disk_image::script,
    machine::{Hardware, Machine},
    scenario::Scenario,
    vm::Vm,
};
use std::{fs, path::Path, time::Duration};

/// What `bad_frames` of the bare guest `hostile` sends: frames that are none, and under others' addresses.
const MALFORMED: u64 = 16 * 50;
const SPOOFED: u64 = 100;

/// VMs in the ring, and MiB that each sends to the next.
const RING: u32 = 8;

/// MiB of a transfer beside a storm, what it may grow to in instructions, and what it must keep of its rate, both in
/// percent. Two of three VMs of equal weight have two thirds of the only CPU, for work that may have grown so.
const TRANSFER_MIB: u32 = 8;
const KEPT_MIN: u64 = 80;
const RATE_KEPT_MIN: u64 = KEPT_MIN * 2 / 3;
/// How long the storm lasts, in seconds of the guest's clock.
const STORM: u32 = 600;

/// A bare guest sends frames that are none, and under others' addresses: each is counted and goes
/// nowhere. Its neighbour gets the one good frame that follows, and nothing else. So it is where a cable
/// is pulled, the sender's or the neighbour's, but that nobody gets that frame either; nor does who is on
/// another switch.
pub fn malformed() -> Scenario {
    let bad = Vm::bare("bad", "hostile", "do=bad_frames").net("lan");
    let good = Vm::linux("good", KERNEL, "script").cow_disk("../up.sh");
    let far = Vm::bare("far", "hostile", "do=bad_frames").net("elsewhere");
    let vms = vec![good.net("lan"), bad.asleep(), far.asleep()];
    Scenario::new("net/malformed", Hardware::new(1, "1G"), vms)
        .prepare(with_up)
        .expect("good", "underpin-guest: net up", 240)
        .check(|stage| {
            let machine = stage.machine()?;
            bad_frames(machine, ("bad", 1), None)?;
            bad_frames(machine, ("far", 1), Some("nowhere"))?;
            // Who does not run has cables, too.
            machine.run(&["set", "bad", "--link", "0=down"])?;
            bad_frames(machine, ("bad", 2), Some("link-down"))?;
            machine.run(&["set", "bad", "--link", "0=up"])?;
            for (times, link, seen) in [(3, "0=down", "carrier 0"), (4, "0=up", "carrier 1")] {
                machine.run(&["set", "good", "--link", link])?;
                let seen = format!("underpin-guest: net {seen}");
                machine.expect("good", &seen, 1, Duration::from_mins(1))?;
                bad_frames(machine, ("bad", times), (times == 3).then_some("nowhere"))?;
            }
            match machine.refused(&["set", "good", "--link", "1=down"])? {
                15 => Ok(()),
                status => Err(format!("a cable that is not there: {status}")),
            }
        })
}

/// Lets a bare guest send for the `times`-th time, whose good frame is lost for that reason, or for none.
fn bad_frames(
    machine: &mut Machine,
    (sender, times): (&str, usize),
    lost: Option<&str>,
) -> Outcome {
    let before = machine.vm("good")?.net.frames_received;
    machine.run(&["start", sender])?;
    let minute = Duration::from_mins(1);
    machine.expect(
        sender,
        "underpin-guest: hostile/bad_frames ok",
        times,
        minute,
    )?;
    let net = machine.await_state(sender, "ended", minute)?.net;
    let dropped = |why| net.dropped.get(why).copied().unwrap_or(0);
    let goes = u64::from(lost.is_none());
    let is = [
        dropped("malformed"),
        dropped("spoofed"),
        lost.map_or(0, dropped),
        net.dropped.values().sum(),
        net.frames_sent,
        net.latency.iter().map(|bucket| bucket.count).sum(),
        machine.vm("good")?.net.frames_received - before,
    ];
    let all = MALFORMED + SPOOFED + 1 - goes;
    let should = [MALFORMED, SPOOFED, 1 - goes, all, goes, goes, goes];
    if is == should {
        return Ok(());
    }
    Err(format!(
        "malformed, spoofed, {lost:?}, all dropped, sent, timed, came: {is:?}, not {should:?}"
    ))
}

fn with_up(directory: &Path) -> Outcome<Vec<String>> {
    script(directory, "up.sh", include_str!("up.sh"))?;
    Ok(Vec::new())
}

/// Two VMs transfer, first alone, then beside one that sends to all as fast as it can: the instructions
/// that both need for it hardly grow, and it takes them no longer than their shares of the CPU say.
pub fn storm() -> Scenario {
    let vm = |name: &str, address: u32| {
        let vm = Vm::linux(name, KERNEL, "script").cow_disk("../transfer.sh");
        vm.args(&format!("address={address} mib={TRANSFER_MIB}"))
            .net("lan")
    };
    let args = format!("do=frame_storm seconds={STORM}");
    let storm = Vm::bare("storm", "hostile", &args).net("lan");
    let vms = vec![vm("server", 1), vm("asker", 2), storm.asleep()];
    Scenario::new("net/storm", Hardware::new(1, "1G").counted(), vms)
        .prepare(with_transfer)
        .expect("server", "underpin-guest: net serves", 240)
        .expect("asker", "underpin-guest: net ready", 240)
        .check(|stage| {
            let log = stage.directory.join("storm.log");
            let machine = stage.machine()?;
            // One warms up.
            transfer(machine, 1)?;
            let quiet = transfer(machine, 2)?;
            machine.run(&["start", "storm"])?;
            let beside = transfer(machine, 3)?;
            let storm = machine.vm("storm")?;
            machine.run(&["kill", "storm"])?;
            let limited = storm.net.dropped.get("limited").copied().unwrap_or(0);
            if storm.state != "running" || limited == 0 {
                return Err(format!("the storm is {}, {limited} limited", storm.state));
            }
            let ([quiet, quiet_us], [beside, beside_us]) = (quiet, beside);
            let found = format!(
                "a transfer took {quiet} ns of work and {quiet_us} us alone, {beside} ns and {beside_us} us in a storm\n"
            );
            fs::write(&log, &found).map_err(because("cannot write storm.log"))?;
            let has_grown = quiet * 100 < beside * KEPT_MIN;
            if has_grown || quiet_us * 100 < beside_us * RATE_KEPT_MIN {
                return Err(found);
            }
            Ok(())
        })
}

fn with_transfer(directory: &Path) -> Outcome<Vec<String>> {
    script(directory, "transfer.sh", include_str!("transfer.sh"))?;
    Ok(Vec::new())
}

/// Lets the asker send for the `times`-th time; nanoseconds that both VMs, and EL2 for them, worked, and microseconds
/// that it took by the asker's clock, which is counted as the machine's.
fn transfer(machine: &mut Machine, times: usize) -> Outcome<[u64; 2]> {
    let worked = |machine: &Machine| {
        let of = |vm: &str| machine.vm(vm).map(|vm| vm.run_ns + vm.hypervisor_ns);
        Ok::<_, String>(of("server")? + of("asker")?)
    };
    let before = worked(machine)?;
    machine.type_line("asker", "go")?;
    let within = Duration::from_mins(5);
    let said = machine.expect("asker", "underpin-guest: net sent us=", times, within)?;
    let took = said
        .trim()
        .rsplit('=')
        .next()
        .and_then(|us| us.parse().ok());
    let took = took.ok_or_else(|| format!("the asker says '{said}'"))?;
    Ok([worked(machine)? - before, took])
}

/// Each of eight VMs sends to the next, all at once, and all arrives.
pub fn ring() -> Scenario {
    let name = |n: u32| format!("vm{n}");
    let vms = (1..=RING).map(|n| {
        let vm = Vm::linux(&name(n), KERNEL, "script").cow_disk("../ring.sh");
        let next = n % RING + 1;
        vm.memory("160MiB")
            .args(&format!("address={n} next={next}"))
            .net("lan")
    });
    let scenario = Scenario::new("net/ring", Hardware::new(2, "3G"), vms.collect());
    (1..=RING).fold(scenario.prepare(with_ring), |scenario, n| {
        scenario
            .expect(&name(n), "underpin-guest: net got ok", 600)
            .expect(&name(n), "underpin-guest: net ping ok", 600)
    })
}

fn with_ring(directory: &Path) -> Outcome<Vec<String>> {
    script(directory, "ring.sh", include_str!("ring.sh"))?;
    Ok(Vec::new())
}
