//! The `underpin` command.
#![forbid(unsafe_code)]

use clap::Parser as _;
use miette::{MietteHandlerOpts, Report};
use std::{
    env,
    ffi::OsString,
    fmt::Write as _,
    io::{IsTerminal as _, Write as _, stderr},
    process::ExitCode,
};
use underpin::{
    cli::{Cli, Format},
    failure::{Failure, exit},
};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && wants_json(env::args_os()) => {
            let failure = misused(&error);
            // Nobody is left to be told that standard error is gone.
            let _ = stderr().write_all(tell(failure, Format::Json).as_bytes());
            return ExitCode::from(exit::USAGE);
        }
        Err(error) => error.exit(),
    };
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

/// Whether a command line that makes no sense asks for JSON.
fn wants_json(words: impl Iterator<Item = OsString>) -> bool {
    let mut before = OsString::new();
    for word in words.take_while(|word| word != "--") {
        let joined = ["-ojson", "-o=json", "--output=json"];
        let apart = word == "json" && (before == "-o" || before == "--output");
        if apart || joined.iter().any(|joined| word == *joined) {
            return true;
        }
        before = word;
    }
    false
}

/// What is wrong with the command line, in a sentence; what else the parser says is what to do.
fn misused(error: &clap::Error) -> Failure {
    let said = error.render().to_string();
    let said = said.trim().trim_start_matches("error: ");
    let (wrong, rest) = said.split_once("\n\n").unwrap_or((said, ""));
    let on_a_line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    Failure::new(exit::USAGE, on_a_line(wrong)).help(on_a_line(rest))
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
