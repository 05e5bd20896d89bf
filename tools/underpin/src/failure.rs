//! How the command fails: what failed, why, and what to do next; as text that points into the
//! file at fault, or as JSON.

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};
use serde_json::{Value, json};
use std::{error, fmt, io, ops::Range, path::Path, sync::Arc};

/// The command's exit statuses beside those of `abi::control::code`. Stable.
pub mod exit {
    /// Done.
    pub const OK: u8 = 0;
    /// Failed for a reason that has no number of its own.
    pub const FAILED: u8 = 1;
    /// The command line makes no sense.
    pub const USAGE: u8 = 2;
    /// No machine of that name runs.
    pub const NO_MACHINE: u8 = 3;
    /// The machine died, or did not start.
    pub const MACHINE_DIED: u8 = 4;
    /// Something took longer than allowed.
    pub const TIMEOUT: u8 = 5;
    /// A VM file, cluster file, key, kernel or image is wrong, or not there.
    pub const FILE: u8 = 6;
    /// In OS-0: something that attaching needs is missing or not proved.
    pub const NOT_READY: u8 = 7;
    /// In OS-0: the hypervisor did not make a switch.
    pub const REFUSED: u8 = 8;
    /// Ctrl-C ended it.
    pub const INTERRUPTED: u8 = 130;
}

/// What `Result` means in this crate.
pub type Result<T> = std::result::Result<T, Failure>;

/// Where in a file a failure lies.
#[derive(Clone, Debug)]
pub struct Place {
    /// The file's name and text.
    pub source: Arc<NamedSource<String>>,
    /// The bytes at fault.
    pub span: Range<usize>,
    /// What to write beside them.
    pub label: String,
}

impl Place {
    /// Line and column of the first byte at fault, both from 1; columns count characters.
    pub fn line_and_column(&self) -> (usize, usize) {
        let text = self.source.inner();
        let before = text.get(..self.span.start.min(text.len())).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before.get(line_start..).unwrap_or("").chars().count() + 1;
        (before.matches('\n').count() + 1, column)
    }
}

/// One failure of the command, perhaps with others that were found beside it.
#[derive(Debug)]
pub struct Failure(Box<Inner>);

#[derive(Debug)]
struct Inner {
    code: u8,
    message: String,
    help: Option<String>,
    place: Option<Place>,
    more: Vec<Failure>,
}

impl Failure {
    /// A failure with an exit status (one of [`exit`] or `abi::control::code`) and a sentence
    /// that says what failed and why.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        let message = message.into();
        Self(Box::new(Inner {
            code,
            message,
            help: None,
            place: None,
            more: Vec::new(),
        }))
    }

    /// `what` (as in "cannot read") failed on a file.
    pub fn file(what: &str, path: &Path, error: &io::Error) -> Self {
        let message = format!("{what} {}: {}", path.display(), reason(error));
        let failure = Self::new(exit::FAILED, message);
        match error.kind() {
            io::ErrorKind::StorageFull => failure.help("free some space there and try again"),
            io::ErrorKind::PermissionDenied => failure.help("look at who owns it: ls -ld"),
            io::ErrorKind::NotFound => failure.help("look at the name: ls"),
            io::ErrorKind::NotADirectory => failure.help("name a directory"),
            _ => failure,
        }
    }

    /// As [`Failure::file`], for a file that a description is made of.
    pub fn vm_file(what: &str, path: &Path, error: &io::Error) -> Self {
        let mut failure = Self::file(what, path, error);
        failure.0.code = exit::FILE;
        failure
    }

    /// Adds what to do next.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.0.help = Some(help.into());
        self
    }

    /// Adds where it lies.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.0.place = Some(place);
        self
    }

    /// Joins failures that were found together; `None` where there are none.
    pub fn join(failures: Vec<Self>) -> Option<Self> {
        let mut failures = failures.into_iter();
        let mut first = failures.next()?;
        for mut next in failures {
            let more = std::mem::take(&mut next.0.more);
            first.0.more.push(next);
            first.0.more.extend(more);
        }
        Some(first)
    }

    /// The exit status.
    pub fn code(&self) -> u8 {
        self.0.code
    }

    /// Whether the machine is gone, by itself or because somebody has shut it down.
    pub fn is_gone(&self) -> bool {
        [exit::MACHINE_DIED, exit::NO_MACHINE].contains(&self.code())
    }

    /// The sentence.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// What to do next, where something is known.
    pub fn advice(&self) -> Option<&str> {
        self.0.help.as_deref()
    }

    /// This failure and those found beside it, each for itself.
    pub fn split(mut self) -> Vec<Self> {
        let more = std::mem::take(&mut self.0.more);
        std::iter::once(self).chain(more).collect()
    }

    /// As the command's `-o json` prints it: the first failure under `error`, and all under
    /// `errors` where there are several.
    pub fn to_json(&self) -> Value {
        let mut object = json!({ "error": self.one_to_json() });
        if !self.0.more.is_empty() {
            object["errors"] = std::iter::once(self)
                .chain(&self.0.more)
                .map(Self::one_to_json)
                .collect();
        }
        object
    }

    fn one_to_json(&self) -> Value {
        let mut object = json!({
            "code": self.0.code, "message": self.0.message, "help": self.0.help,
            "file": null, "line": null, "column": null,
        });
        if let Some(place) = &self.0.place {
            let (line, column) = place.line_and_column();
            object["file"] = json!(place.source.name());
            object["line"] = json!(line);
            object["column"] = json!(column);
        }
        object
    }
}

/// An error of the operating system without its number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((reason, _)) => reason.to_lowercase(),
        None => text,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl error::Error for Failure {}

impl Diagnostic for Failure {
    fn help(&self) -> Option<Box<dyn fmt::Display + '_>> {
        self.0.help.as_ref().map(|help| Box::new(help) as _)
    }

    fn source_code(&self) -> Option<&dyn SourceCode> {
        self.0.place.as_ref().map(|place| &*place.source as _)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let place = self.0.place.as_ref()?;
        let label = Some(place.label.clone()).filter(|label| !label.is_empty());
        Some(Box::new(std::iter::once(LabeledSpan::new_with_span(
            label,
            place.span.clone(),
        ))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_tells_line_and_column_and_keeps_the_others() {
        let source = Arc::new(NamedSource::new("a.toml", "x = 1\nß = 22\n".to_owned()));
        let place = Place {
            source,
            span: 11..13,
            label: String::new(),
        };
        let first = Failure::new(exit::FILE, "22 is too many")
            .help("say 2")
            .at(place);
        let both = Failure::join(vec![first, Failure::new(exit::FILE, "other")]).unwrap();
        let json = both.to_json();
        assert_eq!(
            json["error"],
            json!({ "code": 6, "message": "22 is too many", "help": "say 2",
                    "file": "a.toml", "line": 2, "column": 5 })
        );
        assert_eq!(json["errors"][1]["message"], "other");
        assert!(Failure::new(1, "x").to_json().get("errors").is_none());
    }
}
