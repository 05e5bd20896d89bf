//! `underpin drain`: what of VMs that span hosts is on one goes to the others, and the host leaves the cluster.

use super::{
    Context,
    span::{LOOK, PATIENCE, goes_over},
};
use crate::{
    control::Client,
    failure::{Failure, Result, exit},
    hosts::{name_of, own},
};
use abi::control::{HostStatus, code, host, state, vcpu_state};
use abi::span::PARTED;
use model_span::OWN_MAX;
use serde_json::json;
use std::{
    thread::sleep,
    time::{Duration, Instant},
};
use tools_abi::status::VcpuStatus;

/// States of VMs that are there.
const RUNS: [u32; 2] = [state::RUNNING, state::PAUSED];
/// How long pages may stay where they are, and how long others may take to see that the host has left.
const STILL: Duration = Duration::from_mins(1);

/// The host that is drained.
struct Drained<'a> {
    context: &'a Context,
    client: Client,
    hosts: Vec<HostStatus>,
    name: &'a str,
}

/// Drains a host.
pub fn drain(context: &Context, name: &str) -> Result<()> {
    let mut drained = Drained::find(context, name)?;
    let began = Instant::now();
    let mut vms = drained.client.list()?;
    vms.retain(|vm| RUNS.contains(&vm.state));
    let (spanning, others): (Vec<_>, Vec<_>) = vms.iter().partition(|vm| vm.hosts != 0);
    let named = |vms: &[&tools_abi::status::VmStatus]| -> Vec<String> {
        vms.iter().map(|vm| vm.name.to_string()).collect()
    };
    let (spanning, others) = (named(&spanning), named(&others));
    let plans = spanning.iter().map(|vm| drained.plan(vm));
    let plans = plans.collect::<Result<Vec<_>>>()?;
    for (vm, plan) in spanning.iter().zip(plans) {
        for (vcpu, to) in plan {
            drained.move_vcpu(vm, vcpu, to)?;
        }
        drained.hand_over(vm)?;
    }
    drained.leave()?;
    let took = began.elapsed();
    context.output.result(
        || json!({ "host": name, "vms": spanning, "stay": others }),
        |_| {
            let on = match spanning.len() {
                0 => String::new(),
                1 => format!(": {} goes on without it", spanning[0]),
                _ => format!(": {} go on without it", spanning.join(", ")),
            };
            let still = match others.len() {
                0 => String::new(),
                1 => format!("{} runs there still\n", others[0]),
                _ => format!("{} run there still\n", others.join(", ")),
            };
            let ms = took.as_millis();
            format!("{name} has left the cluster ({ms} ms){on}\n{still}{name} joins again when it restarts\n")
        },
    )
}

impl<'a> Drained<'a> {
    /// The host of that name, of those that the command reaches.
    fn find(context: &'a Context, name: &'a str) -> Result<Self> {
        let found = context.search(|mut client| {
            let hosts = client.hosts()?;
            let is_it = |it: &HostStatus| it.name.as_str() == Some(name);
            if hosts.is_empty() {
                let message = "this machine is in no cluster: its bundle names none";
                return Err(Failure::new(exit::USAGE, message));
            }
            if !hosts.iter().any(is_it) {
                let message = format!("the machine's cluster has no host '{name}'");
                let help = "`underpin cluster` lists them";
                return Err(Failure::new(exit::USAGE, message).help(help));
            }
            let is_here = own(&hosts).is_some_and(is_it);
            Ok(is_here.then_some((client, hosts)))
        })?;
        let (client, hosts) = found.map_err(|unreached| {
            let message = format!("{name} cannot be asked from here");
            let help = format!("ask there: underpin --host {name} drain {name}");
            unreached.unwrap_or_else(|| Failure::new(exit::USAGE, message).help(help))
        })?;
        Ok(Self {
            context,
            client,
            hosts,
            name,
        })
    }

    fn number(&self) -> u32 {
        own(&self.hosts).map_or(0, |own| own.number)
    }

    /// The vCPUs of a VM that are here, and where they are to go: to the host that has fewest.
    fn plan(&mut self, vm: &str) -> Result<Vec<(u32, u32)>> {
        let (status, vcpus) = self.client.show(vm)?;
        let me = self.number();
        let is_here = |it: &VcpuStatus| it.state != vcpu_state::ELSEWHERE;
        let here: Vec<u32> = (0..)
            .zip(&vcpus)
            .filter(|it| is_here(it.1))
            .map(|it| it.0)
            .collect();
        if here.contains(&0) {
            let message = format!(
                "{} has vCPU 0 and the devices of {vm}, which stay",
                self.name
            );
            let help = format!("stop {vm}, or drain another host");
            return Err(Failure::new(exit::USAGE, message).help(help));
        }
        let has = |host: &HostStatus| {
            let is_there =
                |it: &&VcpuStatus| it.state == vcpu_state::ELSEWHERE && it.cpu == host.number;
            (vcpus.iter().filter(is_there).count(), host.number)
        };
        let others = self.hosts.iter().filter(|it| {
            it.number != me && status.hosts >> it.number & 1 != 0 && it.flags & host::IN != 0
        });
        let others = others.map(has).collect();
        places(&here, others).map_err(|many| {
            let message = format!(
                "{many} of the {} vCPUs that {vm} has on {} do not fit on its other hosts",
                here.len(),
                self.name
            );
            let help = format!("a host has at most {OWN_MAX}; nothing was moved");
            Failure::new(exit::USAGE, message).help(help)
        })
    }

    fn move_vcpu(&mut self, vm: &str, vcpu: u32, to: u32) -> Result<()> {
        let what = format!("moving vCPU {vcpu} of {vm} to {}", name_of(&self.hosts, to));
        let waiting = self.context.progress.wait(what);
        let began = Instant::now();
        while !goes_over(&mut self.client, (vm, vcpu), to)? {
            if began.elapsed() > PATIENCE {
                let message = format!("vCPU {vcpu} of {vm} stays on {}", self.name);
                let help = "it handles interrupts of devices, or another is on its way: try again";
                return Err(Failure::new(exit::TIMEOUT, message).help(help));
            }
            sleep(LOOK);
        }
        waiting.finish_and_clear();
        Ok(())
    }

    /// Lets the memory of a VM go to its other hosts.
    fn hand_over(&mut self, vm: &str) -> Result<()> {
        let [left, all] = self.client.span_leave(vm)?;
        let what = format!("handing over the pages of {vm}");
        let bar = self.context.progress.parts(what, all);
        let (mut before, mut since) = (left, Instant::now());
        let status = loop {
            let status = self.client.show(vm)?.0;
            if status.state == state::ENDED {
                break status;
            }
            let left = match self.client.span_leave(vm) {
                Ok([left, _]) => left,
                // It has ended here in between.
                Err(failure) if failure.code() == code::WRONG_STATE as u8 => 0,
                Err(failure) => return Err(failure),
            };
            bar.set_position(all - left.min(all));
            if left != before {
                (before, since) = (left, Instant::now());
            } else if since.elapsed() > STILL {
                let message = format!("{left} pages of {vm} are on {} still", self.name);
                let help =
                    "do all its hosts answer? `underpin cluster` tells; it goes on by itself";
                return Err(Failure::new(exit::TIMEOUT, message).help(help));
            }
            sleep(LOOK);
        };
        bar.finish_and_clear();
        if status.reason.as_str() == Some(PARTED) {
            return Ok(());
        }
        let message = format!("{vm} has ended meanwhile: {}", status.reason);
        Err(Failure::new(exit::USAGE, message).help("what else was to be drained is where it was"))
    }

    fn leave(&mut self) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.client.cluster_leave() {
                Ok(true) => return Ok(()),
                Err(failure) if failure.code() != code::WRONG_STATE as u8 => return Err(failure),
                // Until what is left of VMs has gone, and all hosts have answered.
                Err(failure) if began.elapsed() > STILL => return Err(failure),
                Ok(false) if began.elapsed() > STILL => {
                    let message = format!("not all hosts have answered that {} leaves", self.name);
                    let help = "do all answer? `underpin cluster` tells";
                    return Err(Failure::new(exit::TIMEOUT, message).help(help));
                }
                _ => sleep(LOOK),
            }
        }
    }
}

/// Where vCPUs go, each to the host that has fewest; `others` is how many each has, and its number. An error is how many do not fit.
fn places(
    vcpus: &[u32],
    mut others: Vec<(usize, u32)>,
) -> std::result::Result<Vec<(u32, u32)>, usize> {
    let free = others.iter().map(|it| OWN_MAX.saturating_sub(it.0)).sum();
    if vcpus.len() > free {
        return Err(vcpus.len() - free);
    }
    let mut plan = Vec::new();
    for vcpu in vcpus {
        if let Some(fewest) = others.iter_mut().min() {
            fewest.0 += 1;
            plan.push((*vcpu, fewest.1));
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::places;

    #[test]
    fn vcpus_go_where_fewest_are_or_it_is_said_how_many_do_not_fit() {
        let plan = places(&[3, 4, 5], vec![(2, 0), (1, 7)]);
        assert_eq!(plan, Ok(vec![(3, 7), (4, 0), (5, 7)]));
        assert_eq!(places(&[3, 4, 5], vec![(8, 0), (7, 7)]), Err(2));
        assert_eq!(places(&[3], Vec::new()), Err(1));
        assert_eq!(places(&[], Vec::new()), Ok(Vec::new()));
    }
}
