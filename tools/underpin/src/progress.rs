//! Shows how long work gets on: a bar or spinner on a terminal, plain lines without one.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::{io::IsTerminal as _, time::Duration};

/// Says what is being done, on standard error.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    quiet: bool,
    terminal: bool,
}

impl Progress {
    /// For the standard error of this process; `quiet` says nothing at all.
    pub fn new(quiet: bool) -> Self {
        Self {
            quiet,
            terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Says nothing.
    pub fn silent() -> Self {
        Self {
            quiet: true,
            terminal: false,
        }
    }

    /// A line about a step.
    pub fn say(&self, line: &str) {
        if !self.quiet {
            // Nobody is left to be told that standard error is gone.
            let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{line}\n"));
        }
    }

    /// A bar that counts bytes.
    pub fn bytes(&self, what: &'static str, bytes: u64) -> ProgressBar {
        let template = "{prefix} {wide_bar} {binary_bytes}/{binary_total_bytes}";
        let bar = ProgressBar::with_draw_target(Some(bytes), self.target());
        if !self.terminal {
            self.say(&format!("{what}, {}", crate::units::size(bytes)));
        }
        bar.with_style(style(template)).with_prefix(what)
    }

    /// A bar that fills.
    pub fn parts(&self, what: String, all: u64) -> ProgressBar {
        if !self.terminal {
            self.say(&what);
        }
        let bar = ProgressBar::with_draw_target(Some(all), self.target());
        bar.with_style(style("{prefix} {wide_bar} {percent} %"))
            .with_prefix(what)
    }

    /// A spinner for a wait of unknown length.
    pub fn wait(&self, what: String) -> ProgressBar {
        if !self.terminal {
            self.say(&what);
        }
        let bar = ProgressBar::with_draw_target(None, self.target());
        let bar = bar
            .with_style(style("{spinner} {msg} ({elapsed})"))
            .with_message(what);
        if self.terminal && !self.quiet {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        bar
    }

    fn target(self) -> ProgressDrawTarget {
        if self.quiet || !self.terminal {
            ProgressDrawTarget::hidden()
        } else {
            ProgressDrawTarget::stderr()
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}
