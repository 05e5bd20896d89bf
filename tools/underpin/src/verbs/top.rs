//! `underpin top`: the machine and its VMs at work.

use super::Context;
use crate::{
    cli::Top,
    control::Client,
    failure::{Failure, Result, exit, reason},
    sim::RunDir,
    watch::Sample,
};
use draw::Look;
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event},
};
use screen::{Screen, Then};
use signal_hook::consts::{SIGHUP, SIGTERM};
use std::{
    io::{self, IsTerminal as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread,
    time::{Duration, Instant},
};

pub(super) mod batch;
mod columns;
mod draw;
mod page;
mod screen;
#[cfg(test)]
mod tests;

/// How long to wait for a key before looking at all else.
const LOOK_TIME: Duration = Duration::from_millis(100);

/// Watches the machine, on the terminal or in lines.
pub fn top(context: &Context, options: &Top) -> Result<()> {
    if options.batch {
        return batch::batch(context, options);
    }
    if context.output.is_json() || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let message = "top draws on a terminal, in no other format";
        return Err(Failure::new(exit::USAGE, message).help("underpin top --batch -n 1"));
    }
    let mut client = context.connect()?;
    let screen = Screen::new(Sample::take(&mut client, |_| false)?);
    let sampler = Sampler::start(client, options.delay)?;
    let look = Look {
        machine: name(&context.run),
        colour: context.output.is_coloured(),
    };
    let ended = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(|error| broken(&error))?;
    }
    let mut terminal = ratatui::try_init().map_err(|error| broken(&error))?;
    let watched = watch(&mut terminal, screen, &sampler, &look, &ended);
    ratatui::try_restore().map_err(|error| broken(&error))?;
    watched
}

/// What the screen calls the machine, and the host of it if it is one.
fn name(run: &RunDir) -> String {
    match run.host() {
        None => run.machine().to_owned(),
        Some(host) => format!("{} {host}", run.machine()),
    }
}

/// Draws what the sampler brings and does what keys say, until one says to end.
fn watch(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    sampler: &Sampler,
    look: &Look,
    ended: &AtomicBool,
) -> Result<()> {
    while !ended.load(Ordering::Relaxed) {
        terminal
            .draw(|frame| draw::draw(frame, &mut screen, look))
            .map_err(|error| broken(&error))?;
        let mut changed = false;
        while !changed && !ended.load(Ordering::Relaxed) {
            if event::poll(LOOK_TIME).map_err(|error| broken(&error))? {
                changed = true; // a new size, too
                if let Event::Key(key) = event::read().map_err(|error| broken(&error))?
                    && screen.key(key) == Then::End
                {
                    return Ok(());
                }
                sampler.want(screen.vm());
            }
            if let Some(sample) = sampler.sample()? {
                screen.update(sample);
                changed = true;
            }
        }
    }
    Ok(())
}

fn broken(error: &io::Error) -> Failure {
    Failure::new(
        exit::FAILED,
        format!("cannot use the terminal: {}", reason(error)),
    )
}

/// A thread that takes samples, so that keys are heard while the hypervisor is slow to answer.
struct Sampler {
    wanted: Sender<Option<String>>,
    samples: Receiver<Result<Sample>>,
}

impl Sampler {
    fn start(mut client: Client, delay: Duration) -> Result<Self> {
        let (wanted, asked) = channel::<Option<String>>();
        let (give, samples) = channel();
        let take = move || {
            let mut vm: Option<String> = None;
            loop {
                // A page that was opened is not kept waiting for its VM.
                let deadline = Instant::now() + delay;
                while let Ok(next) = asked.recv_timeout(deadline - Instant::now().min(deadline)) {
                    let opened = next.is_some() && next != vm;
                    vm = next;
                    if opened {
                        break;
                    }
                }
                let sample = Sample::take(&mut client, |name| vm.as_deref() == Some(name));
                let last = sample.is_err();
                if give.send(sample).is_err() || last {
                    return;
                }
            }
        };
        thread::Builder::new()
            .name("sampling".into())
            .spawn(take)
            .map_err(|error| broken(&error))?;
        Ok(Self { wanted, samples })
    }

    /// Asks for the vCPUs of this VM, too, from the next sample on.
    fn want(&self, vm: Option<&str>) {
        // Where the thread has ended, its last sample says why.
        let _ = self.wanted.send(vm.map(str::to_owned));
    }

    /// The next sample, where there is one.
    fn sample(&self) -> Result<Option<Sample>> {
        match self.samples.try_recv() {
            Ok(sample) => sample.map(Some),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                Err(Failure::new(exit::FAILED, "nobody takes samples any more"))
            }
        }
    }
}
