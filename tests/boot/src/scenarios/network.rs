//! VMs that talk to each other, and to what is outside the machine.

mod crowd;
pub mod hosts;

use super::kernels::powered_off;
use crate::{Outcome, because, disk_image::script, machine::Hardware, scenario::Scenario, vm::Vm};
use std::{
    fs,
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

const KERNEL: &str = "trixie-cloud";
/// What a web server outside, and one in a VM, say.
const FROM_OUTSIDE: &str = "hello from outside";
const FROM_INSIDE: &str = "hello from a VM";

pub fn scenarios() -> Vec<Scenario> {
    vec![
        exchange("net/tcp", 1),
        outside(),
        hosts::ping(),
        hosts::twice("twice/net-hosts", hosts::words),
        crowd::malformed(),
        crowd::storm().slow(),
        exchange("net/long-tcp", 116).slow(),
        crowd::ring().slow(),
        web_load().slow(),
    ]
}

/// Two clients send a server what it can make itself, and get it back: one client with offloads as
/// the server, which has two pairs of queues, one without. A round is 2.3 MB, each way; 116 are 256 MiB. The server
/// calculates meanwhile, in registers that EL2 uses for copies and must bring back.
fn exchange(name: &'static str, rounds: u32) -> Scenario {
    let vm = |name: &str, address: u32| {
        let vm = Vm::linux(name, KERNEL, "script").cow_disk("../talk.sh");
        vm.args(&format!("address={address} rounds={rounds}"))
    };
    let vms = vec![
        vm("server", 1).net("lan").cpus(2),
        vm("full", 2).net("lan"),
        vm("plain", 3).plain_net("lan"),
    ];
    let seconds = 240 + u64::from(rounds) * 30;
    let scenario = Scenario::new(name, Hardware::new(2, "2G"), vms).prepare(with_talk);
    let scenario = scenario
        .expect("server", "mtu 1500 queues 2", seconds)
        .expect("server", "underpin-guest: net got 2 ok", seconds)
        .expect("server", "underpin-guest: net got 3 ok", seconds)
        .expect("server", "underpin-guest: net sums 21901", seconds)
        .expect("full", "underpin-guest: net back ok", seconds)
        .expect("plain", "underpin-guest: net back ok", seconds);
    ["server", "full", "plain"]
        .into_iter()
        .fold(scenario, |scenario, vm| {
            scenario.check(move |stage| powered_off(stage, vm))
        })
}

fn with_talk(directory: &Path) -> Outcome<Vec<String>> {
    script(directory, "talk.sh", include_str!("network/talk.sh"))?;
    Ok(Vec::new())
}

/// A VM gets its address from outside, asks a web server there, and is asked itself.
fn outside() -> Scenario {
    let vm = Vm::linux("web", KERNEL, "script").cow_disk("../web.sh");
    Scenario::new(
        "net/outside",
        Hardware::new(2, "2G"),
        vec![vm.uplink("lan")],
    )
    .prepare(with_outside)
    .expect("web", "underpin-guest: net address 10.0.2.15", 240)
    .expect(
        "web",
        format!("underpin-guest: net heard {FROM_OUTSIDE}"),
        60,
    )
    .expect("web", "underpin-guest: net serves", 60)
    .check(|stage| {
        let port = fs::read_to_string(stage.directory.join("port"));
        let port = port.map_err(because("cannot read the port"))?;
        let said = ask(port.parse().map_err(because("odd port"))?)?;
        if said.contains(FROM_INSIDE) {
            return Ok(());
        }
        Err(format!("the VM's web server says {said:?}"))
    })
}

/// A VM's web server is asked again and again for a minute, and answers each time.
fn web_load() -> Scenario {
    let vm = Vm::linux("web", KERNEL, "script").cow_disk("../web.sh");
    let vms = vec![vm.uplink("lan")];
    Scenario::new("net/web-load", Hardware::new(2, "2G"), vms)
        .prepare(with_outside)
        .expect("web", "underpin-guest: net serves", 300)
        .check(|stage| {
            let port = fs::read_to_string(stage.directory.join("port"));
            let port = port.map_err(because("cannot read the port"))?;
            let port = port.parse().map_err(because("odd port"))?;
            ask(port)?;
            let workers: Vec<_> = (0..4).map(|_| thread::spawn(move || load(port))).collect();
            let (mut answers, mut failures) = (0, 0);
            for worker in workers {
                let (came, failed) = worker.join().map_err(|_| "a client died")??;
                answers += came;
                failures += failed;
            }
            let state = stage.machine()?.vm("web")?.state;
            let few_fail = failures * ANSWERS_PER_FAILURE <= answers;
            if state != "running" || answers < ANSWERS_MIN || !few_fail {
                return Err(format!(
                    "{answers} answers and {failures} failures, and the VM is {state}"
                ));
            }
            Ok(())
        })
}

/// So many answers in a minute are few even for a host that is busy.
const ANSWERS_MIN: u32 = 100;

/// One question in so many may fail where the host is too busy for QEMU's own side of the network.
const ANSWERS_PER_FAILURE: u32 = 100;

/// Asks for a minute; how many answers came, each of them right, and how many questions failed.
fn load(port: u16) -> Outcome<(u32, u32)> {
    let end = Instant::now() + Duration::from_mins(1);
    let (mut answers, mut failures) = (0, 0);
    while Instant::now() < end {
        match ask_once(port) {
            Ok(said) if said.contains(FROM_INSIDE) => answers += 1,
            Ok(said) if !said.is_empty() => {
                return Err(format!("after {answers} answers the VM says {said:?}"));
            }
            _ => failures += 1,
        }
    }
    Ok((answers, failures))
}

fn with_outside(directory: &Path) -> Outcome<Vec<String>> {
    let bound = || TcpListener::bind("127.0.0.1:0").map_err(because("cannot listen"));
    let server = bound()?;
    let port = |listener: &TcpListener| {
        let address = listener.local_addr().map_err(because("no port"))?;
        Ok::<_, String>(address.port())
    };
    // Free a moment ago, and nobody else looks for one here.
    let (own, inside) = (port(&server)?, port(&bound()?)?);
    thread::spawn(move || {
        for stream in server.incoming().flatten() {
            // Who does not listen to the end has its own message.
            let _ = answer(stream);
        }
    });
    fs::write(directory.join("port"), inside.to_string()).map_err(because("cannot write"))?;
    let text = include_str!("network/web.sh").replace("PORT", &own.to_string());
    script(directory, "web.sh", &text.replace("GREETING", FROM_INSIDE))?;
    let forward = format!("{inside}:80");
    Ok(["--net", "--forward", &forward].map(str::to_owned).into())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut request = [0; 1024];
    let _ = stream.read(&mut request)?;
    let length = FROM_OUTSIDE.len();
    write!(
        stream,
        "HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n{FROM_OUTSIDE}"
    )
}

/// What the web server behind a port of this machine says.
fn ask_once(port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
    let mut said = String::new();
    stream.read_to_string(&mut said)?;
    Ok(said)
}

fn ask(port: u16) -> Outcome<String> {
    let end = Instant::now() + Duration::from_mins(1);
    loop {
        match ask_once(port) {
            Ok(said) if !said.is_empty() => return Ok(said),
            Ok(_) | Err(_) if Instant::now() < end => thread::sleep(Duration::from_secs(1)),
            Ok(_) => return Err("the VM's web server says nothing".to_owned()),
            Err(error) => return Err(format!("no answer from port {port}: {error}")),
        }
    }
}
