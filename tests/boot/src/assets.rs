//! Where things are that scenarios are made of: the command, kernels, images, bare guests.

use crate::{Outcome, because};
use std::{
    env, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// The kernels that every release of Underpin carries, by their names in the asset cache.
pub const KERNELS: [&str; 4] = ["bookworm", "trixie", "trixie-cloud", "newest"];

/// The checkout that this program was built from.
pub fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .canonicalize()
        .unwrap_or_else(|_| PathBuf::from("."))
}

/// Where cargo puts what the host runs.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The `underpin` command: `$UNDERPIN_COMMAND`, or the one that `xtask build` leaves.
pub fn command() -> PathBuf {
    env::var_os("UNDERPIN_COMMAND").map_or_else(|| target().join("release/underpin"), PathBuf::from)
}

/// The EL2 image: `$UNDERPIN_IMAGE`, or the one that `xtask build` leaves.
pub fn image() -> PathBuf {
    env::var_os("UNDERPIN_IMAGE")
        .map_or_else(|| root().join("target/el2/underpin.img"), PathBuf::from)
}

/// The EL2 image with hooks for tests and benches, which the one that is shipped lacks, as `xtask build` leaves it.
pub fn hooked_image() -> PathBuf {
    root().join("target/el2/hooked.img")
}

/// QEMU's options that load the plugin which keeps a counted clock exact, as `xtask build` leaves it, and the one that
/// counts what the hypervisor executes, where `$UNDERPIN_SIM_PROFILE` asks for it. Each machine with `-icount` has them: see
/// `sim/README.md`.
pub fn counted_clock() -> Vec<String> {
    let plugin = |name: &str| target().join(format!("sim/release/libsim_{name}.so"));
    let mut words = vec!["-plugin".to_owned(), plugin("clock").display().to_string()];
    if let Some(asked) = env::var("UNDERPIN_SIM_PROFILE")
        .ok()
        .filter(|it| !it.is_empty())
    {
        let profile = plugin("profile");
        words.extend([
            "-plugin".to_owned(),
            format!("{},each={asked}", profile.display()),
        ]);
    }
    words
}

/// An EL2 image with hooks that is laid out differently inside, as `xtask build` leaves it.
pub fn other_image() -> PathBuf {
    root().join("target/el2-other/underpin.img")
}

/// The kernel module for a kernel of the asset cache, as `scripts/setup` leaves it.
pub fn module(kernel: &str) -> PathBuf {
    target().join("modules").join(kernel).join("underpin.ko")
}

/// The `underpin` command as an arm64 program, for OS-0 and control VMs, as `xtask build` leaves it.
pub fn arm64_command() -> PathBuf {
    target().join("linux/underpin")
}

/// A bare guest's flat image, as `xtask build` leaves it.
pub fn guest(name: &str) -> String {
    root()
        .join("target/guests")
        .join(format!("{name}.img"))
        .display()
        .to_string()
}

/// Makes `directory` an asset cache with the same assets, but without the bundles that machines
/// of other tests were started from: the command would take one for this machine's.
///
/// # Errors
/// The directory or a link cannot be made.
pub fn private_cache(directory: &Path) -> Outcome {
    let tried = || format!("cannot make {}", directory.display());
    fs::create_dir_all(directory).map_err(because(tried()))?;
    // Without a cache there is nothing to link; the command says what a test misses then.
    for asset in cache()
        .and_then(|cache| fs::read_dir(cache).ok())
        .into_iter()
        .flatten()
        .flatten()
    {
        if asset.file_name() != "bundles" {
            match symlink(asset.path(), directory.join(asset.file_name())) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(because(tried())(error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The asset cache.
pub fn cache() -> Option<PathBuf> {
    let set = |name: &str| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let user = || set("XDG_CACHE_HOME").or_else(|| Some(set("HOME")?.join(".cache")));
    set("UNDERPIN_CACHE").or_else(|| Some(user()?.join("underpin")))
}

/// A file of the asset cache.
///
/// # Errors
/// There is no cache.
pub fn cached(path: &str) -> Outcome<PathBuf> {
    let cache =
        cache().ok_or("there is no asset cache, because neither UNDERPIN_CACHE nor HOME is set")?;
    Ok(cache.join(path))
}

/// What is in a file of the asset cache.
///
/// # Errors
/// It cannot be read.
pub fn read_cached(path: &str) -> Outcome<Vec<u8>> {
    read(&cached(path)?)
}

/// What is in a file.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Outcome<Vec<u8>> {
    fs::read(path).map_err(because(format!("cannot read {}", path.display())))
}

/// A kernel of the asset cache, as VM files name it.
pub fn kernel(name: &str) -> String {
    format!("cache:kernels/{name}/vmlinuz")
}

/// The test guests' initial RAM disk for a kernel of the asset cache.
pub fn initramfs(name: &str) -> String {
    format!("cache:initramfs/{name}.cpio.gz")
}

/// Debian 13's root disk: its file system is the first partition.
pub const DEBIAN13: &str = "cache:debian13.img";
