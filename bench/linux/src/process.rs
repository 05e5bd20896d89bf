//! What processes cost: to start one, and to switch between two.

use crate::{Outcome, clock};
use std::{
    io::{self, Read, Write},
    os::unix::process::CommandExt as _,
    process::{Command, Stdio},
};

/// This program, wherever it was started from.
pub const SELF: &str = "/init";
/// Argument: do nothing.
pub const EXIT: &str = "exit";
/// Argument: send back each byte.
pub const ECHO: &str = "echo";
/// Processes that are averaged.
const PROCESSES: u32 = 50;
/// Round trips that are averaged.
const ROUNDS: u32 = 2000;

/// Measures fork with exec, and a switch by a pipe.
pub fn measure() -> Outcome {
    // Asking for a user makes the standard library fork and exec, instead of sharing the memory
    // until the exec.
    clock::try_measure("fork_exec", PROCESSES, || {
        Command::new(SELF).arg(EXIT).uid(0).status().map(drop)
    })?;
    pipe_switch()
}

/// A byte goes to another process on the same CPU and back, which is two switches.
fn pipe_switch() -> Outcome {
    let mut other = Command::new(SELF)
        .arg(ECHO)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let (mut there, mut back) = (
        other.stdin.take().ok_or("no pipe")?,
        other.stdout.take().ok_or("no pipe")?,
    );
    let mut failure = None;
    let round = clock::average(ROUNDS, || {
        failure = failure.take().or(pass_on(&mut there, &mut back).err());
    });
    failure.map_or(Ok(()), Err)?;
    clock::report("pipe_switch", round / 2.0);
    drop(there);
    other.wait()?;
    Ok(())
}

fn pass_on(there: &mut impl Write, back: &mut impl Read) -> io::Result<()> {
    there.write_all(&[1])?;
    back.read_exact(&mut [0])
}

/// The other process: sends each byte back, until there are no more.
pub fn echo() {
    use rustix::stdio::{stdin, stdout};
    let mut byte = [0];
    while rustix::io::read(stdin(), &mut byte) == Ok(1)
        && rustix::io::write(stdout(), &byte) == Ok(1)
    {}
}
