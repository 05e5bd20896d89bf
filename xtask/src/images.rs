//! Builds what runs: the command, the EL2 image, the bare guests.

use crate::{
    project::{self, cargo},
    step::{Outcome, Step},
};
use abi::upgrade::{Mark, OLDEST, VERSION};
use std::{fs, path::Path, process::Command, thread};
use tests_boot::assets;
use toml::{Table, Value};
use tools_abi::image;

/// Programs that make a flat image of an ELF file for another architecture.
const OBJCOPY: [&str; 3] = ["llvm-objcopy", "aarch64-linux-gnu-objcopy", "rust-objcopy"];
/// What cargo is told to build the hypervisor.
const BUILD: &str = "build --release --manifest-path hypervisor/Cargo.toml";
/// Then it has hooks for tests and benches, which is never shipped.
const HOOKS: [&str; 2] = ["--features", "test_hooks"];
/// Manifests whose binaries are bare guests; the first is their workspace's.
const GUESTS: [&str; 2] = ["tests/guests/Cargo.toml", "bench/guest/Cargo.toml"];

/// Builds the `underpin` command.
///
/// # Errors
/// As cargo says.
pub fn command(step: &Step<'_>) -> Outcome {
    step.doing("building the underpin command");
    program(step, "underpin")
}

/// Builds the program of a package, for this machine.
///
/// # Errors
/// As cargo says.
pub fn program(step: &Step<'_>, package: &str) -> Outcome {
    let words = format!("build --release -p {package}");
    step.command(&mut cargo("host", &words)).map(drop)
}

/// Builds the EL2 image: `target/el2/underpin.img`.
///
/// # Errors
/// As cargo and objcopy say.
pub fn hypervisor(step: &Step<'_>) -> Outcome {
    step.doing("building the hypervisor");
    step.command(&mut cargo("el2", BUILD))?;
    let image = project::products().join("el2/underpin.img");
    flatten(step, &project::el2_binary("underpin"), &image)?;
    seal(&image)
}

/// Builds the same hypervisor with hooks for tests and benches: `target/el2/hooked.img`.
///
/// # Errors
/// As cargo and objcopy say.
pub fn hooked_hypervisor(step: &Step<'_>) -> Outcome {
    step.doing("building the hypervisor with hooks for tests");
    step.command(cargo("el2", BUILD).args(HOOKS))?;
    let image = assets::hooked_image();
    flatten(step, &project::el2_binary("underpin"), &image)?;
    seal(&image)
}

/// Builds that with hooks as another image, laid out differently inside: `target/el2-other/underpin.img`.
///
/// # Errors
/// As cargo and objcopy say.
pub fn other_hypervisor(step: &Step<'_>) -> Outcome {
    step.doing("building the hypervisor with another layout");
    step.command(cargo("el2-other", BUILD).args(HOOKS))?;
    let products = project::products().join("el2-other");
    let image = products.join("underpin.img");
    let built = products.join("aarch64-unknown-none-softfloat/release/underpin");
    flatten(step, &built, &image)?;
    seal(&image)
}

/// Lets the image say what it is, so that it can take the place of one that runs.
fn seal(image: &Path) -> Outcome {
    let said =
        |what: &str, error: std::io::Error| format!("cannot {what} {}: {error}", image.display());
    let mut file = fs::read(image).map_err(|error| said("read", error))?;
    let mark = Mark {
        oldest: OLDEST,
        newest: VERSION,
        // Where the header for boot loaders has it (Linux: booting.rst).
        memory_bytes: file
            .get(16..)
            .and_then(|rest| rest.first_chunk())
            .map_or(0, |bytes| u64::from_le_bytes(*bytes)),
        ..Mark::default()
    };
    if !image::seal(mark, &mut file) {
        return Err(format!("{} has no room for a mark", image.display()));
    }
    fs::write(image, file).map_err(|error| said("write", error))
}

/// Builds the bare guests: `target/guests/NAME.img`.
///
/// # Errors
/// As cargo and objcopy say.
pub fn guests(step: &Step<'_>) -> Outcome {
    step.doing("building the bare guests");
    step.command(&mut cargo(
        "el2",
        &format!("build --release --workspace --manifest-path {}", GUESTS[0]),
    ))?;
    for manifest in GUESTS {
        let text = fs::read_to_string(project::root().join(manifest))
            .map_err(|e| format!("cannot read {manifest}: {e}"))?;
        for name in binaries(&text) {
            flatten(
                step,
                &project::el2_binary(&name),
                &project::products().join(format!("guests/{name}.img")),
            )?;
        }
    }
    Ok(())
}

/// Builds the plugins of the measuring machine and of counted clocks.
///
/// # Errors
/// As cargo says.
pub fn plugin(step: &Step<'_>) -> Outcome {
    step.doing("building the plugins of QEMU");
    step.command(&mut project::sim_cargo("build --release"))
        .map(drop)
}

/// Builds the command for OS-0 and for control VMs, a static arm64 program without what debuggers need:
/// `target/linux/underpin`.
///
/// # Errors
/// As cargo and strip say.
pub fn arm64_command(step: &Step<'_>) -> Outcome {
    step.doing("building the underpin command for OS-0 and control VMs");
    step.command(&mut cargo("linux", "build --release -p underpin"))?;
    let built = project::products().join("linux");
    step.command(
        Command::new("aarch64-linux-gnu-strip")
            .arg("-o")
            .arg(built.join("underpin"))
            .arg(built.join("aarch64-unknown-linux-gnu/release/underpin")),
    )
    .map(drop)
}

/// All but the hypervisors that tests of upgrades and failures need.
///
/// # Errors
/// As the first that fails.
pub fn usual(step: &Step<'_>) -> Outcome {
    command(step)?;
    arm64_command(step)?;
    hypervisor(step)?;
    guests(step)?;
    plugin(step)
}

/// All seven, in two lanes: linking a hypervisor keeps one CPU busy and leaves the other free.
///
/// # Errors
/// As the first that fails.
pub fn all(step: &Step<'_>) -> Outcome {
    let for_el2 = || {
        // First, as it leaves its program where the one that is shipped belongs.
        hooked_hypervisor(step)?;
        hypervisor(step)?;
        guests(step)
    };
    let others = || {
        other_hypervisor(step)?;
        command(step)?;
        arm64_command(step)?;
        plugin(step)
    };
    thread::scope(|scope| {
        let lane = scope.spawn(for_el2);
        let done = others();
        lane.join()
            .unwrap_or_else(|_| Err("a build ended in a panic".to_owned()))?;
        done
    })
}

/// The names of a manifest's `[[bin]]` tables.
fn binaries(manifest: &str) -> Vec<String> {
    let table: Table = manifest.parse().unwrap_or_default();
    let bins = table
        .get("bin")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    bins.filter_map(|bin| bin.get("name").and_then(Value::as_str))
        .map(str::to_owned)
        .collect()
}

fn flatten(step: &Step<'_>, elf: &Path, image: &Path) -> Outcome {
    let objcopy = project::first_program(&OBJCOPY)
        .ok_or("cannot make a flat image, because there is neither llvm-objcopy nor aarch64-linux-gnu-objcopy; run scripts/setup")?;
    let directory = image.parent().unwrap_or(image);
    fs::create_dir_all(directory)
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))?;
    step.command(
        Command::new(objcopy)
            .args(["-O", "binary"])
            .arg(elf)
            .arg(image),
    )
    .map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_are_the_binaries_of_their_manifest() {
        let manifest = "[package]\nname = \"p\"\n[[bin]]\nname = \"a\"\n[[bin]]\nname = \"b\"\n";
        assert_eq!(binaries(manifest), ["a", "b"]);
        assert!(binaries("[package]\n").is_empty());
    }
}
