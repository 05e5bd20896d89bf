//! `underpin detach --park`, and the `attach` after it.

use super::{Context, os0_alone, told};
use crate::failure::{Failure, Result, exit};
use abi::control::{request, state};
use std::{
    fs, io,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};
use tools_os0::{Clock, Running, Verb};

/// How long disks may take to do what VMs have asked of them.
const DRAIN_TIME: Duration = Duration::from_secs(10);
/// Where a machine's directory keeps the names of VMs that were parked.
const LIST: &str = "parked";

fn list(context: &Context) -> PathBuf {
    context.run.path().join(LIST)
}

/// Pauses all VMs that run, waits until nothing is asked of disks, and detaches; or all is as before.
pub fn park(context: &Context, verb: &Verb) -> Result<u8> {
    let mut client = context.connect()?;
    let all = client.list()?;
    let running = all.iter().filter(|vm| vm.state == state::RUNNING);
    let names: Vec<String> = running.map(|vm| vm.name.to_string()).collect();
    let path = list(context);
    fs::write(&path, names.join("\n"))
        .map_err(|error| Failure::file("cannot write", &path, &error))?;
    let mut ended = Ok(());
    for name in &names {
        ended = ended.and_then(|()| client.about(request::PAUSE, name).map(drop));
    }
    let deadline = Instant::now() + DRAIN_TIME;
    let detached = ended.map(|()| {
        loop {
            let ended = tools_os0::run(verb.clone(), context.output.is_json(), &Running);
            if ended.status == exit::OK || Instant::now() > deadline {
                return ended;
            }
            thread::sleep(Duration::from_millis(50));
        }
    });
    if !matches!(&detached, Ok(ended) if ended.status == exit::OK) {
        for name in &names {
            // Those that were not paused yet run.
            let _ = client.about(request::CONTINUE, name);
        }
        let _ = fs::remove_file(&path);
    }
    told(&detached?)
}

/// Attaches, and lets VMs go on that were parked.
pub fn attach(context: &Context, verb: Verb, clock: Clock) -> Result<u8> {
    let status = os0_alone(context, verb)?;
    let path = list(context);
    let names = match fs::read_to_string(&path) {
        Ok(names) if status == exit::OK => names,
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Failure::file("cannot read", &path, &error));
        }
        _ => return Ok(status),
    };
    let go_on = match clock {
        Clock::Continue => request::CONTINUE,
        Clock::Host => request::RESUME,
    };
    let mut client = context.connect()?;
    for name in names.lines() {
        client.about(go_on, name)?;
    }
    let _ = fs::remove_file(&path);
    Ok(status)
}
