//! `underpin console`: a VM's console on this terminal, or through pipes.

use super::Context;
use crate::{
    cli::Console,
    control::{Client, console_log, state_event},
    failure::{Failure, Result, exit, reason},
    output::print,
};
use abi::control::state;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use signal_hook::consts::{SIGHUP, SIGTERM};
use std::{
    io::{self, IsTerminal as _, Read as _, Write as _},
    process, thread,
    time::Duration,
};

/// Ctrl-], which leaves the console.
const ESCAPE: u8 = 0x1d;
/// How much of the log is shown first on a terminal.
const SHOWN_FIRST: u64 = 4096;
/// The most bytes of one `CONSOLE_INPUT`.
const TYPED_MAX: usize = 4096;
/// How long to wait with further input while the VM takes none.
const FULL_WAIT: Duration = Duration::from_millis(20);

/// Shows a VM's console, and types at it.
pub fn console(context: &Context, options: &Console) -> Result<()> {
    let vm = &options.vm;
    crate::control::vm_name(vm)?;
    if options.log {
        let mut log = console_log::Reader::open(context.run.console_log(vm), u64::MAX);
        if !context.run.console_log(vm).exists() {
            // Where a machine runs, it knows whether there is such a VM.
            context.connect()?.show(vm)?;
            let message = format!("{vm} has written nothing to its console");
            return Err(Failure::new(exit::FAILED, message).help("`underpin list` shows the VMs"));
        }
        copy(&mut log)?;
        return if options.follow {
            watch(context, vm, log)
        } else {
            Ok(())
        };
    }
    if options.follow {
        let log = console_log::Reader::open(context.run.console_log(vm), SHOWN_FIRST);
        return watch(context, vm, log);
    }
    attach(context, vm)
}

/// Types what comes from standard input, and shows what the VM writes.
fn attach(context: &Context, vm: &str) -> Result<()> {
    let mut typist = context.connect()?;
    typist.show(vm)?;
    let terminal = io::stdin().is_terminal();
    if terminal {
        context
            .progress
            .say(&format!("console of {vm}; leave it with Ctrl-]"));
    }
    let shown = if terminal { SHOWN_FIRST } else { 0 };
    let log = console_log::Reader::open(context.run.console_log(vm), shown);
    let raw = RawTerminal::begin()?;
    let restore = raw.as_ref().map(|raw| raw.before.clone());
    let name = vm.to_owned();
    let progress = context.progress;
    let typing = move || match type_input(&mut typist, &name) {
        Ok(Left::Escape) => leave(restore.as_ref()),
        Ok(Left::EndOfInput) => {}
        Err(failure) => progress.say(&format!("\r\ncannot type any more: {failure}")),
    };
    thread::Builder::new()
        .name("typing".into())
        .spawn(typing)
        .map_err(|error| broken(&error))?;
    let watched = watch(context, vm, log);
    drop(raw);
    watched
}

/// Why typing came to an end.
enum Left {
    Escape,
    EndOfInput,
}

fn type_input(client: &mut Client, vm: &str) -> Result<Left> {
    let mut buffer = [0; TYPED_MAX];
    let mut input = io::stdin().lock();
    let terminal = input.is_terminal();
    loop {
        let read = match input.read(&mut buffer) {
            Ok(0) => return Ok(Left::EndOfInput),
            Ok(n) => buffer.get(..n).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(&error)),
        };
        let escape = read.iter().position(|byte| terminal && *byte == ESCAPE);
        let mut typed = read.get(..escape.unwrap_or(read.len())).unwrap_or_default();
        while !typed.is_empty() {
            let taken = client.type_at(vm, typed)?;
            typed = typed.get(taken..).unwrap_or_default();
            if taken == 0 {
                thread::sleep(FULL_WAIT);
            }
        }
        if escape.is_some() {
            return Ok(Left::Escape);
        }
    }
}

/// Shows what the VM writes until it has ended.
fn watch(context: &Context, vm: &str, mut log: console_log::Reader) -> Result<()> {
    let mut client = context.connect()?;
    client.watch(vm)?;
    let (status, _) = client.show(vm)?;
    let mut ended = (status.state == state::ENDED).then_some(status);
    loop {
        copy(&mut log)?;
        if let Some(status) = ended {
            context
                .progress
                .say(&format!("\r\n{vm} has ended: {}", status.reason));
            return Ok(());
        }
        let Some(frame) = client.event(None)? else {
            return Ok(());
        };
        let changed = state_event(&frame).filter(|changed| changed.name == status.name);
        ended = changed.filter(|changed| changed.state == state::ENDED);
    }
}

/// Prints what is new in the log.
fn copy(log: &mut console_log::Reader) -> Result<()> {
    let mut buffer = [0; 16 * 1024];
    loop {
        let n = log.read(&mut buffer).map_err(|error| broken(&error))?;
        if n == 0 {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        let written = out
            .write_all(buffer.get(..n).unwrap_or_default())
            .and_then(|()| out.flush());
        if let Err(error) = written {
            return if error.kind() == io::ErrorKind::BrokenPipe {
                print("")
            } else {
                Err(broken(&error))
            };
        }
    }
}

/// Ends the command from another thread than the one that waits for output.
fn leave(before: Option<&Termios>) -> ! {
    if let Some(before) = before {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, before);
        let _ = io::stderr().write_all(b"\r\n");
    }
    process::exit(i32::from(exit::OK))
}

fn broken(error: &io::Error) -> Failure {
    Failure::new(
        exit::FAILED,
        format!("the console broke off: {}", reason(error)),
    )
}

/// The terminal passes every key on, until this is dropped or the command is ended by a signal.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    /// `None` where standard input is no terminal.
    fn begin() -> Result<Option<Self>> {
        if !io::stdin().is_terminal() {
            return Ok(None);
        }
        let before = tcgetattr(io::stdin()).map_err(|error| broken(&error.into()))?;
        let mut raw = before.clone();
        raw.make_raw();
        let restore = before.clone();
        let mut signals = signal_hook::iterator::Signals::new([SIGTERM, SIGHUP])
            .map_err(|error| broken(&error))?;
        let watch = move || {
            if signals.forever().next().is_some() {
                leave(Some(&restore));
            }
        };
        thread::Builder::new()
            .name("signals".into())
            .spawn(watch)
            .map_err(|error| broken(&error))?;
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)
            .map_err(|error| broken(&error.into()))?;
        Ok(Some(Self { before }))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}
