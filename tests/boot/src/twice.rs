//! Two runs of a cluster that nobody asks anything: what they leave must be equal to the bit.

use crate::{
    Outcome, because,
    machine::{Hardware, Machine},
    scenario::Scenario,
};
use abi::control::{FrameHeader, ProbeRequest, request};
use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};
use zerocopy::IntoBytes as _;

/// How long a run may take.
const RUN_MAX: Duration = Duration::from_mins(10);
const POLL: Duration = Duration::from_millis(50);
/// What a host's wire counted; absent where the host was to die.
const REPORT: &str = "wire.report";
/// The most of a line that a failure shows.
const SHOWN_CHARS_MAX: usize = 300;

/// The text of each file that a run leaves, by name.
type Kept = BTreeMap<PathBuf, String>;

/// How the hosts of a scenario run twice.
#[derive(Clone, Copy, Debug)]
pub struct Twice {
    /// They end when so many seconds of virtual time have passed.
    pub seconds: u32,
    /// What host0 is asked meanwhile, at a set moment.
    pub transfer: Option<Transfer>,
    /// What a console must say, so that it is compared.
    pub says: Option<&'static str>,
}

/// A transfer of pages from host0 to host1.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// From which second of virtual time on.
    pub from_s: u32,
    /// How many pages.
    pub pages: u32,
}

impl Transfer {
    /// Asks for it, by one request, which comes while the host's clock stands still. More than one would not repeat: a second
    /// one may come while the first is still worked on. Dropped, the stream is closed.
    fn ask(self, socket: &Path) -> Outcome<UnixStream> {
        let asked = ProbeRequest {
            host: 1,
            messages: self.pages,
            has_pages: 1,
        };
        let parts = [asked.as_bytes()];
        let header = FrameHeader::of(request::PROBE, 1, &parts).ok_or("the request is too long")?;
        let bytes = [header.as_bytes(), asked.as_bytes()].concat();
        let failed = because("cannot ask host0 for a transfer");
        let stream = UnixStream::connect(socket).and_then(|mut stream| {
            stream.write_all(&bytes)?;
            Ok(stream)
        });
        stream.map_err(failed)
    }
}

/// Each of these that starts several hosts, to run twice as `how` says of its name.
pub fn again(once: Vec<Scenario>, how: fn(&str) -> Twice) -> impl Iterator<Item = Scenario> {
    let hosts = once.into_iter().filter(Scenario::has_hosts);
    hosts.map(move |mut scenario| {
        let twice = how(&scenario.name);
        let name = scenario.name.trim_start_matches("cluster/");
        scenario.name = format!("twice/{}", name.replace('/', "-"));
        scenario.twice(twice)
    })
}

impl Twice {
    /// Runs a scenario's hosts twice.
    ///
    /// # Errors
    /// A run fails, or they differ: the first line that does.
    pub fn play(
        &self,
        scenario: &Scenario,
        command: &Path,
        directory: &Path,
        logs: &Path,
    ) -> Outcome {
        let mut hardware = scenario.hardware.clone();
        if let Some(prepare) = scenario.prepare {
            hardware.options.extend(prepare(directory)?);
        }
        hardware = hardware.option("--unasked").option("--wire");
        hardware = hardware.option(format!("end={}s", self.seconds));
        if let Some(Transfer { from_s, .. }) = self.transfer {
            hardware = hardware.option("--wire");
            hardware = hardware.option(format!("ask=0@{from_s}s"));
        }
        let run = |name: &str| -> Outcome<Kept> {
            let kept = logs.join(name);
            let own = directory.join("run");
            let hardware = hardware.clone().option("--keep-logs");
            let hardware = hardware.option(kept.display().to_string());
            let ran = self.run_once(scenario, &hardware, command, &own);
            // For those who look why it failed.
            let _ = fs::copy(own.join("sim.log"), logs.join("sim.log"));
            ran?;
            fs::remove_dir_all(&own).map_err(because("cannot remove a run's files"))?;
            let mut files = Kept::new();
            read_all(&kept, Path::new(""), &mut files)?;
            Ok(files)
        };
        let (first, second) = (run("first")?, run("second")?);
        compare(&first, &second)?;
        self.judge(&first)
    }

    fn run_once(
        &self,
        scenario: &Scenario,
        hardware: &Hardware,
        command: &Path,
        directory: &Path,
    ) -> Outcome {
        let mut machine = Machine::start(command, directory, hardware, &scenario.vms)?;
        let mut asking = None;
        if let Some(transfer) = self.transfer {
            await_word(&mut machine, directory, "to be asked")?;
            let socket = machine.control_socket("host0");
            asking = Some(transfer.ask(&socket.ok_or("host0 has no directory")?)?);
        }
        let ended = machine.await_end(RUN_MAX);
        drop(asking);
        // A host that dies by the wire's word fails, and so does the command.
        let is_to_fail = hardware.options.iter().any(|word| word.contains("die="));
        match ended {
            Err(_) if is_to_fail && machine.has_ended() => Ok(()),
            _ => ended,
        }
    }

    /// A console says what it must. No host was woken from outside where none was asked; else what it was asked for has come.
    fn judge(&self, kept: &Kept) -> Outcome {
        let is_said = |text: &&str| kept.values().any(|it| it.contains(text));
        if let Some(text) = self.says.filter(|text| !is_said(text)) {
            return Err(format!("no console says '{text}'"));
        }
        let mut reports = kept.iter().filter(|(name, _)| name.ends_with(REPORT));
        reports.try_for_each(|(name, text)| {
            let number = |key: &str| {
                let mut words = text.split_whitespace();
                let value = words.find_map(|word| word.strip_prefix(key))?;
                value.parse::<u64>().ok()
            };
            let is_right = match self.transfer {
                None => number("outside=") == Some(0),
                // Pages to host1, of more than one frame each, and acknowledgements to host0.
                Some(transfer) => {
                    let frames = number("received=").max(number("sent="));
                    frames > Some(transfer.pages.into())
                }
            };
            is_right
                .then_some(())
                .ok_or_else(|| format!("{}: {text}", name.display()))
        })
    }
}

/// Waits until the wire of a host has said something, and asks nothing meanwhile.
fn await_word(machine: &mut Machine, directory: &Path, text: &str) -> Outcome {
    let deadline = Instant::now() + RUN_MAX;
    loop {
        let said = fs::read_to_string(directory.join("sim.log")).unwrap_or_default();
        if said.contains(text) {
            return Ok(());
        }
        let alive = machine.check_alive();
        alive.map_err(|why| format!("{why} and has not said '{text}': {}", said.trim()))?;
        if Instant::now() > deadline {
            return Err(format!("nobody says '{text}': {}", said.trim()));
        }
        sleep(POLL);
    }
}

fn read_all(directory: &Path, below: &Path, files: &mut Kept) -> Outcome {
    let entries =
        fs::read_dir(directory.join(below)).map_err(because("cannot read what is kept"))?;
    for entry in entries {
        let entry = entry.map_err(because("cannot read what is kept"))?;
        let name = below.join(entry.file_name());
        let path = entry.path();
        if path.is_dir() {
            read_all(directory, &name, files)?;
        } else {
            let bytes = fs::read(&path).map_err(because("cannot read what is kept"))?;
            files.insert(name, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(())
}

fn compare(first: &Kept, second: &Kept) -> Outcome {
    if !first.keys().any(|name| name.ends_with(REPORT)) {
        return Err(format!("no host left {REPORT}, but {:?}", first.keys()));
    }
    if !first.keys().eq(second.keys()) {
        let [first, second] = [first, second].map(|kept| kept.keys().collect::<Vec<_>>());
        return Err(format!("one run left {first:?}, the other {second:?}"));
    }
    for ((name, one), other) in first.iter().zip(second.values()) {
        if one == other {
            continue;
        }
        let mut lines = one.lines().zip(other.lines());
        let line = lines.find(|(one, other)| one != other);
        let shown = |line: &str| line.chars().take(SHOWN_CHARS_MAX).collect::<String>();
        let (one, other) = line.map_or(("(less)", "(more, or less)"), |both| both);
        let (one, other) = (shown(one), shown(other));
        return Err(format!(
            "two runs differ in {}: '{one}', then '{other}'",
            name.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(files: &[(&str, &str)]) -> Kept {
        let file = |(name, text): &(&str, &str)| (PathBuf::from(name), (*text).to_owned());
        files.iter().map(file).collect()
    }

    #[test]
    fn one_bit_is_a_difference() {
        let report = ("host0/wire.report", "outside=0 arrivals_digest=1\n");
        let first = kept(&[("host0/hypervisor.log", "a\nb\n"), report]);
        assert_eq!(compare(&first, &first), Ok(()));
        let other = kept(&[("host0/hypervisor.log", "a\nc\n"), report]);
        let why = compare(&first, &other).unwrap_err();
        assert!(why.ends_with("hypervisor.log: 'b', then 'c'"), "{why}");
        let less = kept(&[("host0/hypervisor.log", "a\n"), report]);
        assert!(compare(&first, &less).is_err());
        assert!(compare(&first, &kept(&[report])).is_err());
        let none = kept(&[("host0/hypervisor.log", "a\nb\n")]);
        assert!(compare(&none, &none).is_err(), "no report at all");
    }

    #[test]
    fn an_unasked_host_was_not_woken_from_outside() {
        let report = |text| kept(&[("host1/wire.report", text)]);
        let mut twice = Twice {
            seconds: 1,
            transfer: None,
            says: Some("received"),
        };
        assert_eq!(twice.judge(&report("outside=0 received=5\n")), Ok(()));
        assert!(twice.judge(&report("outside=3 received=5\n")).is_err());
        assert!(twice.judge(&report("received=5\n")).is_err());
        assert!(twice.judge(&report("outside=0\n")).is_err());
        twice.transfer = Some(Transfer {
            from_s: 1,
            pages: 4,
        });
        assert_eq!(
            twice.judge(&report("outside=3 sent=1 received=5\n")),
            Ok(())
        );
        assert!(
            twice
                .judge(&report("outside=3 sent=4 received=4\n"))
                .is_err()
        );
    }
}
