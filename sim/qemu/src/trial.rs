//! Programs, plugins and QEMU for the plugins' tests.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

/// QEMU's program.
pub const QEMU: &str = "qemu-system-aarch64";

/// Programs that make a flat image of an ELF file for another architecture.
const OBJCOPY: [&str; 3] = ["llvm-objcopy", "aarch64-linux-gnu-objcopy", "rust-objcopy"];

/// Whether there is a QEMU; says so where there is none.
pub fn has_qemu() -> bool {
    let there = Command::new(QEMU).arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: there is no {QEMU} here; scripts/setup installs it");
    }
    there
}

/// Builds one of `sim/guest`'s programs, and returns its file.
///
/// # Errors
/// What cargo says.
pub fn guest(name: &str) -> Result<PathBuf, String> {
    let arguments = ["--release", "--manifest-path", "sim/guest/Cargo.toml"];
    build("el2", &arguments, &format!("/{name}"))
}

/// Builds one of `tests/guests`, and returns its flat image.
///
/// # Errors
/// What cargo or objcopy says.
pub fn flat_guest(name: &str) -> Result<PathBuf, String> {
    let manifest = ["--release", "--manifest-path", "tests/guests/Cargo.toml"];
    let arguments = [&manifest[..], &["--bin", name]].concat();
    let elf = build("el2", &arguments, &format!("/{name}"))?;
    let test = env::current_exe().map_err(|error| error.to_string())?;
    let flat = test.with_file_name(format!("{name}.bin"));
    let mut why = String::new();
    for objcopy in OBJCOPY {
        let mut command = Command::new(objcopy);
        command.args(["-O", "binary"]).arg(&elf).arg(&flat);
        match command.status() {
            Ok(status) if status.success() => return Ok(flat),
            Ok(status) => why = format!("{objcopy}: {status}"),
            Err(error) => why = format!("{objcopy}: {error}"),
        }
    }
    Err(format!(
        "cannot make a flat image ({why}); run scripts/setup"
    ))
}

/// Builds a plugin, `clock` for one, in the target directory of the test that runs, and returns its file. Cargo makes no
/// shared object for a test's sake.
///
/// # Errors
/// What cargo says.
pub fn plugin(name: &str) -> Result<PathBuf, String> {
    let test = env::current_exe().map_err(|error| error.to_string())?;
    let target = test.ancestors().nth(3).and_then(Path::to_str);
    let target = target.ok_or("the test lies in no target directory")?;
    let manifest = format!("sim/{name}/Cargo.toml");
    let arguments = ["--manifest-path", &manifest, "--target-dir", target];
    build("host", &arguments, &format!("/libsim_{name}.so"))
}

/// Runs cargo for `kind` of build; returns the file of that ending, which it made.
fn build(kind: &str, arguments: &[&str], ending: &str) -> Result<PathBuf, String> {
    // Tests of one program run at the same time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut cargo = Command::new(root.join("scripts/cargo"));
    cargo.args([kind, "build", "--message-format=json"]);
    cargo.args(arguments);
    for variable in ["RUSTC", "RUSTDOC", "CARGO", "RUSTUP_TOOLCHAIN"] {
        cargo.env_remove(variable);
    }
    let output = cargo.current_dir(&root).output();
    let output = output.map_err(|error| format!("cannot run scripts/cargo: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let words = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        return Err(format!("cargo cannot build: {words}"));
    }
    let file = messages.split('"').find(|word| word.ends_with(ending));
    file.map(PathBuf::from)
        .ok_or_else(|| format!("cargo made no file '...{ending}'"))
}

/// The number of a `KEY=NUMBER` word in a plugin's report.
pub fn number(report: &str, key: &str) -> Option<u64> {
    let word = report.split_whitespace().find_map(|word| {
        let (name, number) = word.split_once('=')?;
        (name == key).then_some(number)
    });
    word?.parse().ok()
}
