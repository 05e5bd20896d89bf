//! `underpin check` and `underpin bundle`: what is done with files alone.

use super::Context;
use crate::{
    bundle::{Plan, Tally, Written},
    cli::Membership,
    failure::{Failure, Result},
    layout::{self, Obstacle},
    output::Tone,
    units,
    vmfile::{self, Hosts, VmFile},
};
use abi::bundle::kind;
use model_guest_image::{HEADER_SIZE, ImageHeader};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    fs::File,
    io::Read,
    path::{Path, PathBuf},
};

/// Tells whether the VM files are good, and what keeps their disks from being shared.
pub fn check(context: &Context, files: &[PathBuf]) -> Result<()> {
    let vms = vmfile::read_all(files)?;
    // Which hosts there are is said where a bundle is made.
    let here = |vm: &VmFile| VmFile {
        hosts: Hosts::One,
        ..vm.clone()
    };
    let size = Plan::new(&vms.iter().map(here).collect::<Vec<_>>())?.size_at_most();
    let warnings = warnings(&vms)?;
    let json = || {
        let vm = |vm: &VmFile| {
            json!({
                "name": vm.name, "file": vm.path, "cpus": vm.cpus, "memory": vm.memory.max,
                "base": vm.memory.base, "group": vm.sharing.group,
            })
        };
        let warning = |(image, found): &(&Path, Obstacle)| json!({ "file": image, "message": found.message, "help": found.help });
        json!({
            "vms": vms.iter().map(vm).collect::<Vec<Value>>(), "bundle": size,
            "warnings": warnings.iter().map(warning).collect::<Vec<Value>>(),
        })
    };
    context.output.result(json, |output| {
        let vm = |vm: &VmFile| {
            let (file, name, cpus) = (vm.path.display(), &vm.name, vm.cpus);
            let memory = units::size(vm.memory.max);
            format!("{file}: good; {name}, {cpus} vCPUs, {memory}\n")
        };
        let warning = |(image, found): &(&Path, Obstacle)| {
            let (image, word) = (image.display(), output.paint(Tone::Still, "warning"));
            format!("{image}: {word}: {}; {}\n", found.message, found.help)
        };
        vms.iter()
            .map(vm)
            .chain(warnings.iter().map(warning))
            .chain([format!("bundle: at most {}\n", units::size(size))])
            .collect()
    })
}

/// What keeps pages of the VMs' disk images from being shared, with the image; and VMs over several hosts whose kernel ticks on
/// each of them.
fn warnings(vms: &[VmFile]) -> Result<Vec<(&Path, Obstacle)>> {
    let files = vms.iter().flat_map(VmFile::files);
    let images: BTreeSet<&Path> = files.filter(|f| f.0 == kind::DISK).map(|f| f.1).collect();
    let mut warnings = Vec::new();
    for image in images {
        let obstacles = layout::obstacles(image);
        let obstacles = obstacles.map_err(|error| Failure::file("cannot read", image, &error))?;
        warnings.extend(obstacles.into_iter().map(|found| (image, found)));
    }
    for vm in vms.iter().filter(|vm| vm.hosts != Hosts::One) {
        if !vm.args.contains("nohz_full") && is_linux(&vm.kernel)? {
            let message = "timer ticks of its vCPUs touch the same pages on all hosts".to_owned();
            let help = "add nohz_full=1-N to args, where N is its last vCPU";
            warnings.push((&vm.path, Obstacle { message, help }));
        }
    }
    Ok(warnings)
}

fn is_linux(kernel: &Path) -> Result<bool> {
    let mut head = Vec::new();
    let read =
        File::open(kernel).and_then(|file| file.take(HEADER_SIZE as u64).read_to_end(&mut head));
    read.map_err(|error| Failure::file("cannot read", kernel, &error))?;
    Ok(matches!(ImageHeader::parse(&head), Ok(Some(_))))
}

/// Writes the bundle of the VM files, unless it is there and they have not changed.
pub fn bundle(
    context: &Context,
    files: &[PathBuf],
    out: &Path,
    membership: &Membership,
) -> Result<()> {
    let plan = Plan::with_cluster(&vmfile::read_all(files)?, membership.record()?)?;
    let Written { anew, size, tally } = plan.write(out, context.progress)?;
    let Tally {
        images,
        bytes,
        different,
        zero,
        equal,
    } = tally;
    let json = || {
        json!({
            "file": out, "size": size, "written": anew,
            "images": images, "image_bytes": bytes,
            "different": different, "zero": zero, "equal": equal,
        })
    };
    context.output.result(json, |_| {
        let (what, told) = (
            if anew { "written" } else { "unchanged" },
            units::size(size),
        );
        let disks = if images == 0 {
            String::new()
        } else {
            format!("; {tally}")
        };
        format!("{}: {what}, {told}{disks}\n", out.display())
    })
}
