//! `underpin` inside an operating system that Underpin is beneath: the verbs for it, and no others.
#![forbid(unsafe_code)]

use clap::{Parser, Subcommand, ValueEnum};
use std::{
    io::{Write as _, stderr, stdout},
    process::ExitCode,
};
use tools_os0::{Ended, Running, Verb, codes};

/// Underpin, a hypervisor for 64-bit Arm: put it beneath this running system, and take it away.
#[derive(Debug, Parser)]
#[command(name = "underpin", version, after_help = EXIT_STATUSES)]
struct Cli {
    /// How to print results and errors
    #[arg(short, long, global = true, value_enum, default_value_t = Format::Table)]
    output: Format,
    /// What to do.
    #[command(subcommand)]
    verb: Own,
}

const EXIT_STATUSES: &str = "\
Exit status:
   0  done; for doctor: ready
   1  failed for a reason without a number of its own
   2  the command line makes no sense
   7  something that attaching needs is missing or not proved: nothing was touched
   8  the hypervisor did not make the switch";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables and sentences for people
    Table,
    /// JSON for programs
    Json,
}

#[derive(Debug, Subcommand)]
enum Own {
    #[command(flatten)]
    Os0(Verb),
    /// Say what a refusal, or something that doctor checks, means and what to do about it
    Explain {
        /// Its name
        code: String,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let ended = match cli.verb {
        Own::Os0(verb) => tools_os0::run(verb, cli.output == Format::Json, &Running),
        Own::Explain { code } => explain(&code),
    };
    // Where the reader has gone, nobody is left to be told.
    let _ = stdout().write_all(ended.output.as_bytes());
    let _ = stderr().write_all(ended.error.as_bytes());
    ExitCode::from(ended.status)
}

fn explain(name: &str) -> Ended {
    let (status, output, error) = match codes::find(name) {
        Some(code) => (0, code.to_string(), String::new()),
        None => (
            2,
            String::new(),
            format!("underpin: nothing is called '{name}'\n"),
        ),
    };
    Ended {
        status,
        output,
        error,
    }
}
