//! The set-up where something is missing: one sentence says what and what to do, and what was made stays.
//!
//! It runs with a `PATH` of this machine's programs, without some and with others in the place of some, and with a
//! cache of its own. Nothing is installed, and no network is used.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    env, fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A package manager without a network.
const APT: &str = "#!/bin/sh
case $* in
*indextargets*) for suite in bookworm trixie stable; do echo $suite main mirror.invalid/debian; done ;;
*) echo 'E: Temporary failure resolving mirror.invalid'; exit 100 ;;
esac
";
/// All packages are installed, and new; or none is.
const INSTALLED: &str = "#!/bin/sh
shift 2
for name; do echo installed $name 1:99.0; done
";
const NOT_INSTALLED: &str = "#!/bin/sh\nexit 1\n";
const FULL: &str = "#!/bin/sh\nprintf 'Avail\\n   12\\n'\n";
/// A product of an earlier set-up, which is of other inputs.
const PRODUCT: &str = "kernels/trixie-cloud/vmlinuz";

/// Runs the set-up without these programs, and with those in the place of the machine's; gives what it said but for
/// its progress, after its last step.
fn set_up(name: &str, without: &[&str], with: &[(&str, &str)]) -> (String, String) {
    let base = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&base);
    let (programs, cache) = (base.join("programs"), base.join("cache"));
    fs::create_dir_all(&programs).unwrap();
    fs::create_dir_all(cache.join(PRODUCT).parent().unwrap()).unwrap();
    fs::write(cache.join(PRODUCT), name).unwrap();
    for (program, text) in with.iter().chain(&[("sudo", NOT_INSTALLED)]) {
        let path = programs.join(program);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for entry in fs::read_dir("/usr/bin").unwrap().flatten() {
        let link = programs.join(entry.file_name());
        let is_there = !without.iter().any(|program| entry.file_name() == **program);
        if is_there && !link.exists() {
            symlink(entry.path(), link).unwrap();
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut set_up = Command::new("bash");
    set_up
        .arg(root.join("scripts/setup"))
        .args(["--for", "demo"])
        .env("PATH", &programs)
        .env("UNDERPIN_CACHE", &cache)
        // Crates are there: this test was built.
        .env("CARGO_NET_OFFLINE", "true")
        .stdin(Stdio::null());
    for variable in [
        "RUSTC",
        "RUSTDOC",
        "CARGO",
        "RUSTUP_TOOLCHAIN",
        "CARGO_TARGET_DIR",
    ] {
        set_up.env_remove(variable);
    }
    let output = set_up.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(cache.join(PRODUCT)).unwrap(), name);
    let left = fs::read_dir(&cache).unwrap().flatten();
    let being_made =
        |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("making");
    assert_eq!(left.filter(being_made).count(), 0);
    let said = String::from_utf8(output.stderr).unwrap();
    let (progress, sentences): (Vec<_>, Vec<_>) =
        said.lines().partition(|line| line.starts_with("set-up: "));
    assert_eq!(sentences.len(), 1, "it says {said}");
    let step = progress.last().copied().unwrap_or_default();
    (step.to_owned(), sentences[0].to_owned())
}

fn is_debian() -> bool {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let keys = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
    release.lines().any(|line| line == "ID=debian")
        && keys.exists()
        && env::consts::ARCH == "x86_64"
}

#[test]
fn without_space_nothing_is_begun() {
    let (step, sentence) = set_up(
        "space",
        &[],
        &[("df", FULL), ("dpkg-query", INSTALLED), ("apt-get", APT)],
    );
    assert_eq!(step, "");
    assert!(
        sentence.starts_with("underpin: set-up needs 100 MiB in "),
        "{sentence}"
    );
    assert!(
        sentence.contains("which has 12 MiB free; free some space or set UNDERPIN_CACHE"),
        "{sentence}"
    );
}

#[test]
fn without_a_network_the_first_package_list_says_so() {
    if !is_debian() {
        return;
    }
    let (step, sentence) = set_up(
        "network",
        &[],
        &[("dpkg-query", NOT_INSTALLED), ("apt-get", APT)],
    );
    assert!(step.ends_with("Debian packages"), "{step}");
    let wanted = "underpin: cannot read Debian's package lists, because apt says 'Temporary failure resolving \
                  mirror.invalid'; check the network and run the same command again";
    assert_eq!(sentence, wanted);
}

#[test]
fn a_tool_that_is_missing_is_named() {
    let (step, sentence) = set_up("tool", &["apt-get"], &[("dpkg-query", INSTALLED)]);
    assert!(step.ends_with("guest busybox"), "{step}");
    assert!(
        sentence.starts_with(
            "underpin: set-up failed at 'guest busybox', because it ended with status "
        ),
        "{sentence}"
    );
    assert!(
        sentence.contains("apt-get") && sentence.contains("not found"),
        "{sentence}"
    );
    assert!(
        sentence.ends_with("then run the same command again"),
        "{sentence}"
    );
}

#[test]
fn another_system_is_told_at_once() {
    let (step, sentence) = set_up("other", &["dpkg-query"], &[("apt-get", APT)]);
    assert_eq!(step, "");
    let wanted = "underpin: cannot install packages, because this is not Debian; use Debian 12 or 13 on amd64";
    assert_eq!(sentence, wanted);
}
