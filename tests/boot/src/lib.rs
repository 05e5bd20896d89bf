//! Boot tests: real kernels and bare guests on the simulated machine, started, watched and ended
//! through the `underpin` command, as a person would.
//!
//! A [`scenario::Scenario`] is data: a machine, its VMs, the console lines that must come, and
//! checks. A [`suite::Suite`] runs scenarios two at a time, each on a [`machine::Machine`] of its
//! own, and shows the end of the right console where one fails.
#![forbid(unsafe_code)]

pub mod archive;
pub mod assets;
mod bounds;
pub mod cluster_file;
mod control_log;
pub mod debugger;
pub mod disk_image;
pub mod hardware;
pub mod machine;
pub mod os0;
pub mod scenario;
pub mod scenarios;
pub mod status;
pub mod suite;
pub mod timeline;
pub mod twice;
pub mod vm;
pub mod write_log;

/// What a step of a test gives, or the sentence that says why it failed.
pub type Outcome<T = ()> = Result<T, String>;

/// Turns an error into a sentence that begins with what was tried.
pub(crate) fn because<E: std::fmt::Display>(
    tried: impl std::fmt::Display,
) -> impl FnOnce(E) -> String {
    move |error| format!("{tried}: {error}")
}
