//! Whether VMs would start: `underpin mem fit` and `--dry-run`.

use super::{Context, list::state_name, record_of};
use crate::{
    failure::{Failure, Result, exit},
    units,
    vmfile::{self, VmFile},
};
use abi::control::{code, state};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tools_abi::status::{FitStatus, fit};

/// `underpin mem fit`: succeeds where `wanted` more VMs of the file would start.
pub fn fit(context: &Context, file: &Path, wanted: u64) -> Result<u8> {
    let vm = VmFile::read(file)?;
    let mut client = context.connect()?;
    let record = record_of(&mut client, &vm)?;
    let fit = client.fit(&record)?;
    let mut json = to_json(&vm.name, &fit);
    json["wanted"] = json!(wanted);
    context
        .output
        .result(|| json, |_| sentence(&vm.name, &fit))?;
    Ok(status(&fit, wanted))
}

/// `underpin start --dry-run`.
pub fn start_dry(context: &Context, vm: &str) -> Result<u8> {
    let mut client = context.connect()?;
    let (status, _) = client.show(vm)?;
    if ![state::DEFINED, state::ENDED].contains(&status.state) {
        let message = format!("{vm} is {} already", state_name(status.state).0);
        let failure = Failure::new(code::WRONG_STATE as u8, message);
        return Err(failure.help("`underpin list` shows the VM's state"));
    }
    let fit = client.fit_again(vm)?;
    tell_dry(context, vm, &fit)
}

/// `underpin run --dry-run`. Starts no machine.
pub fn run_dry(context: &Context, files: &[PathBuf]) -> Result<u8> {
    let mut client = context.connect()?;
    let mut worst = exit::OK;
    for vm in vmfile::read_all(files)? {
        let record = record_of(&mut client, &vm)?;
        if client.list()?.iter().any(|known| known.name == record.name) {
            let message = format!("a VM named {} is there already", vm.name);
            let help = format!("underpin start --dry-run {}", vm.name);
            return Err(Failure::new(code::EXISTS as u8, message).help(help));
        }
        let fit = client.fit(&record)?;
        worst = worst.max(tell_dry(context, &vm.name, &fit)?);
    }
    Ok(worst)
}

fn tell_dry(context: &Context, vm: &str, fit: &FitStatus) -> Result<u8> {
    context.output.result(
        || to_json(vm, fit),
        |_| {
            let [needed, there] = [fit.needed, fit.there].map(units::size);
            if fit.count == 0 {
                let why = binds(fit);
                format!("{vm} would not start: {why} (it needs {needed}; there is {there})\n")
            } else {
                format!("{vm} would start: it needs {needed}, and there is {there}\n")
            }
        },
    )?;
    Ok(status(fit, 1))
}

fn to_json(vm: &str, fit: &FitStatus) -> Value {
    json!({
        "name": vm, "fits": fit.count, "needed": fit.needed, "there": fit.there,
        "binds": binding(fit).0,
    })
}

fn sentence(vm: &str, fit: &FitStatus) -> String {
    let [needed, there] = [fit.needed, fit.there].map(units::size);
    let why = binds(fit);
    let told = match fit.count {
        0 => format!("no VM like {vm} would start: {why}"),
        1 => format!("1 more VM like {vm} would start; then {why}"),
        n => format!("{n} more VMs like {vm} would start; then {why}"),
    };
    format!("{told} (each needs {needed}; there is {there})\n")
}

/// What binds: its name, and in words.
fn binding(fit: &FitStatus) -> (&'static str, &'static str) {
    match fit.binds {
        fit::MEMORY => ("memory", "memory binds"),
        fit::VMS => ("vms", "the machine has as many VMs as it can have"),
        fit::VCPUS => ("vcpus", "the machine has as many vCPUs as it can have"),
        fit::DISK => ("disk", "its persistent disk serves one VM only"),
        _ => (
            "unknown",
            "something binds that this command does not know of",
        ),
    }
}

fn binds(fit: &FitStatus) -> &'static str {
    binding(fit).1
}

/// The exit status: as of the start that would be refused.
fn status(status: &FitStatus, wanted: u64) -> u8 {
    let code = match status.binds {
        _ if status.count >= wanted => return exit::OK,
        fit::MEMORY => code::NO_MEMORY,
        fit::DISK => code::BUSY,
        _ => code::IMPOSSIBLE,
    };
    code as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_and_statuses_say_what_binds() {
        let fit = |count, binds| FitStatus {
            count,
            needed: 512 << 20,
            there: 1 << 30,
            binds,
            reserved: 0,
        };
        let told = [
            sentence("web", &fit(0, fit::MEMORY)),
            sentence("web", &fit(1, fit::DISK)),
            sentence("web", &fit(9, 77)),
        ];
        let expected = [
            "no VM like web would start: memory binds",
            "1 more VM like web would start; then its persistent disk serves one VM only",
            "9 more VMs like web would start; then something binds that this command does not know of",
        ];
        for (told, expected) in told.iter().zip(expected) {
            assert_eq!(
                *told,
                format!("{expected} (each needs 512 MiB; there is 1 GiB)\n")
            );
        }
        let status = |count, binds| status(&fit(count, binds), 2);
        let statuses = [
            status(2, fit::MEMORY),
            status(1, fit::MEMORY),
            status(1, fit::DISK),
            status(0, fit::VMS),
            status(0, fit::VCPUS),
        ];
        assert_eq!(statuses, [0, 14, 16, 15, 15]);
    }
}
