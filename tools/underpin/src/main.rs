//! The `underpin` command.
#![forbid(unsafe_code)]

use clap::Parser as _;
use miette::{MietteHandlerOpts, Report};
use std::{
    fmt::Write as _,
    io::{IsTerminal as _, Write as _, stderr},
    process::ExitCode,
};
use underpin::{
    cli::{Cli, Format},
    failure::Failure,
};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let format = cli.output;
    match underpin::run(cli) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            let status = ExitCode::from(failure.code());
            // Nobody is left to be told that standard error is gone.
            let _ = stderr().write_all(tell(failure, format).as_bytes());
            status
        }
    }
}

fn tell(failure: Failure, format: Format) -> String {
    if format == Format::Json {
        return format!("{:#}\n", failure.to_json());
    }
    let more = format!("`underpin explain {}` says more", failure.code());
    // In logs and pipes a sentence stays on its line.
    let handler = |_: &_| {
        let options = MietteHandlerOpts::new().wrap_lines(stderr().is_terminal());
        Box::new(options.build()) as Box<dyn miette::ReportHandler>
    };
    // Only a second hook is refused.
    let _ = miette::set_hook(Box::new(handler));
    let mut text = String::new();
    for one in failure.split() {
        let _ = writeln!(text, "{:?}", Report::new(one));
    }
    let _ = writeln!(text, "{more}");
    text
}
