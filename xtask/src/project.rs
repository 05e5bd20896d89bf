//! Where things are in the checkout, and how its commands are called.

use crate::step::Outcome;
use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};
use tests_boot::assets;

/// The target of everything that runs at EL2 or bare in a VM.
pub const EL2_TARGET: &str = "aarch64-unknown-none-softfloat";
/// Manifests of workspaces beside the root's, all built by `scripts/cargo el2`.
pub const EL2_MANIFESTS: [&str; 3] = [
    "hypervisor/Cargo.toml",
    "tests/guests/Cargo.toml",
    "sim/guest/Cargo.toml",
];
/// The workspace of the measuring machine, built for the host.
pub const SIM_MANIFEST: &str = "sim/Cargo.toml";

/// The checkout.
pub fn root() -> PathBuf {
    assets::root()
}

/// Where products and logs go: the same place whatever `CARGO_TARGET_DIR` says, so that the
/// `underpin` command finds the image.
pub fn products() -> PathBuf {
    root().join("target")
}

/// `scripts/cargo host WORDS` for the measuring machine, whose products have a place of their own.
pub fn sim_cargo(command: &str) -> Command {
    let target = assets::target().join("sim");
    let mut cargo = cargo("host", &format!("{command} --manifest-path {SIM_MANIFEST}"));
    cargo.arg("--target-dir").arg(target);
    cargo
}

/// What cargo built for EL2.
pub fn el2_binary(name: &str) -> PathBuf {
    assets::target()
        .join("el2")
        .join(EL2_TARGET)
        .join("release")
        .join(name)
}

/// `scripts/cargo KIND WORDS`, run in the checkout: the toolchain is decided there. No word holds
/// white space.
pub fn cargo(kind: &str, words: &str) -> Command {
    let mut command = Command::new(root().join("scripts/cargo"));
    command
        .arg(kind)
        .args(words.split_whitespace())
        .current_dir(root());
    // Outside and inside cargo may be of different toolchains.
    for variable in ["RUSTC", "RUSTDOC", "CARGO", "RUSTUP_TOOLCHAIN"] {
        command.env_remove(variable);
    }
    command
}

/// What `cargo metadata` prints about a manifest for a target.
///
/// # Errors
/// As cargo says.
pub fn metadata(manifest: &str, target: &str) -> Result<Vec<u8>, String> {
    let words = format!(
        "metadata --format-version 1 --filter-platform {target} --manifest-path {manifest}"
    );
    let output = cargo("host", &words)
        .output()
        .map_err(|error| format!("cannot run cargo: {error}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!(
        "cargo metadata for {manifest}: {}",
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// A manifest that is there.
pub fn existing(manifest: &str) -> bool {
    root().join(manifest).exists()
}

/// What a program of binutils says of a file for another architecture, or LLVM's of that name: the one that is there.
///
/// # Errors
/// Neither is there, or what it says.
pub fn binutil(name: &str, arguments: &[&str], file: &Path) -> Outcome<String> {
    let names = [format!("llvm-{name}"), format!("aarch64-linux-gnu-{name}")];
    let program = names.iter().find(|name| is_on_path(name)).ok_or_else(|| {
        let [llvm, gnu] = &names;
        format!(
            "cannot read {}, because there is neither {llvm} nor {gnu}; run scripts/setup",
            file.display()
        )
    })?;
    let output = Command::new(program)
        .args(arguments)
        .arg(file)
        .output()
        .map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program}: {said}"))
}

/// The first of these programs that is on the path.
pub fn first_program(names: &[&'static str]) -> Option<&'static str> {
    names.iter().find(|name| is_on_path(name)).copied()
}

fn is_on_path(name: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(name).is_file())
}
