//! What hosts of a VM ask of each other: done for others in housekeeping, and asked by vCPUs that leave their guest.

use crate::cluster;
use crate::cluster::calls;
use crate::cluster::messages::{Call, is_state};
use crate::guest::{End, Guest};
use crate::life::create::turn_on_first;
use crate::machine;
use crate::run::entry::{Flow, Loaded};
use crate::run::exit::{mmio, skip};
use crate::run::moving;
use crate::vcpu::{Asked, Outcome, attention};
use crate::vms::{Instance, report, table};
use abi::span::PARTED;
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use model_addr::Ipa;
use model_span::{Broken, GROUP1_TOO, Kind, Message, Todo, end};
use model_trap::MmioAccess;
use model_vgic::Sgi;
use model_vpsci::Reply;

/// Does what other hosts ask; whether there is more.
pub fn pass() -> bool {
    let vm = calls::current().and_then(table::instance);
    if let Some(vm) = vm.as_ref().filter(|_| calls::has_grown()) {
        // Another VM's may be as old.
        let life = u32::from(vm.id.generation) << 16 | (u32::from(vm.id.index) + 1);
        vm.with_session(|session, send| {
            let is_complete = session.layout().hosts().all(cluster::has);
            session.announce(life, is_complete, send);
        });
    }
    let (mut held, mut number) = (0_u16, 0);
    while let Some((from, call)) = cluster::call(number) {
        // Those of one host stay in order, but for a vCPU's state, which others may wait for.
        let is_held = held >> from & 1 != 0 && !is_state(&call);
        let is_done = !is_held && vm.as_ref().is_none_or(|vm| act(vm, from, &call));
        if is_done {
            cluster::forget_call(number);
        } else {
            held |= 1 << from;
            number += 1;
        }
    }
    if let Some(vm) = vm.as_ref().filter(|vm| vm.is_left()) {
        moving::go_on(vm);
    }
    false
}

/// Acts upon a message; `false` if it must wait.
fn act(vm: &Arc<Instance>, from: u8, call: &Call) -> bool {
    let wanted = heard(vm, from, call);
    match wanted {
        Ok(Some(wanted)) => act_upon(vm, &wanted),
        Ok(None) => return false,
        Err(broken) => vm.end(format_args!("{broken}")),
    }
    wanted != Ok(Some(Todo::Later))
}

/// Takes a message, once no vCPU reads a count less than the sender's; `None` before.
fn heard(vm: &Guest, from: u8, call: &Call) -> Result<Option<Todo>, Broken> {
    let behind = vm.with_session(|session, _| session.behind(from, call, vm.time()));
    if let Some(count) = behind.transpose()?.flatten() {
        vm.set_count(count);
    }
    if !vm.shows_count() {
        return Ok(None);
    }
    let wanted = vm.with_session(|session, send| session.receive(from, call, send));
    wanted.transpose()
}

fn act_upon(vm: &Arc<Instance>, wanted: &Todo) {
    match *wanted {
        Todo::Nothing | Todo::Later => {}
        Todo::Start => start(vm),
        Todo::Live(Kind::Pause, _) => vm.pause(),
        Todo::Live(Kind::Resume, stood_still) => vm.resume(stood_still != 0),
        Todo::Live(_, why) => vm.finish(match why {
            end::POWER_OFF => End::PowerOff,
            end::RESET => End::Reset,
            end::KILLED => End::Killed,
            end::UNLIKE => return vm.end(format_args!("a host describes the VM otherwise")),
            _ => return vm.end(format_args!("another host could not go on with it")),
        }),
        Todo::Asked(asked) => {
            let answer = serve(vm, &asked);
            vm.with_session(|session, send| session.reply(&asked, answer, send));
        }
        Todo::TryAgain => moving::try_again(vm),
        Todo::Arrives(vcpu) => moving::arrive(vm, vcpu),
        Todo::Part => vm.end(format_args!("{PARTED}")),
        Todo::Wake(vcpu) => {
            if let Some(vcpu) = vm.vcpus.get(usize::from(vcpu)) {
                vcpu.call(attention::PAGE);
            }
        }
    }
    if matches!(wanted, Todo::Live(Kind::Pause | Kind::Resume, _))
        && let Some(vm) = table::all().iter().find(|it| it.slot == vm.id.index)
    {
        report::send_state(vm);
    }
}

/// All hosts have the VM.
fn start(vm: &Instance) {
    let Some(span) = &vm.span else { return };
    let ids = machine::guest_ids().copied().unwrap_or_default();
    let common = cluster::own().map(|(_, common)| ids.spanning(common));
    let _ = span.ids.set(common.unwrap_or(ids));
    if span.is_first() {
        turn_on_first(vm);
    }
    log::info!("{} runs on all its hosts", vm.name());
}

/// Does what a vCPU of another host asks; what it reads.
fn serve(vm: &Instance, asked: &Message) -> u64 {
    let (at, value) = (asked.at.get(), asked.value.get());
    let target = vm.vcpus.get(usize::from(asked.detail));
    let reply = match (asked.kind, target) {
        (Kind::Load, _) => return mmio::of_another_host(vm, Ipa(at), asked.detail, None),
        (Kind::Store, _) => return mmio::of_another_host(vm, Ipa(at), asked.detail, Some(value)),
        (Kind::CpuOn, Some(vcpu)) => {
            let on = vcpu.turn_on(Ipa(at), vm.space.contains(Ipa(at)), value);
            on.map_or_else(model_vpsci::Refusal::reply, |()| Reply::SUCCESS)
        }
        (Kind::AffinityInfo, Some(vcpu)) => vcpu.power.lock().state.affinity_info(),
        _ => {
            vm.receive_sgi(asked.detail, at);
            Reply::SUCCESS
        }
    };
    match reply {
        Reply::X0(value) | Reply::X0To3([value, ..]) => value,
    }
}

impl Loaded<'_> {
    /// Asks the host of the vCPU that a call is about.
    #[cold]
    pub fn ask(&mut self, (kind, target, at, value): (Kind, u8, u64, u64), how: Asked) -> Flow {
        self.ask_host((kind, target, at, value), how)
    }

    /// Asks the host that has the device.
    #[cold]
    pub fn ask_device(&mut self, ipa: Ipa, access: MmioAccess) -> Flow {
        let (kind, value) = if access.write {
            let value = self.core.context.register(access.rt);
            (Kind::Store, access.stored(value))
        } else {
            (Kind::Load, 0)
        };
        self.ask_host((kind, access.size, ipa.0, value), Asked::Access(access))
    }

    fn ask_host(&mut self, what: (Kind, u8, u64, u64), how: Asked) -> Flow {
        let vcpu = self.vcpu.index as u8;
        self.core.asked = Some(how);
        self.vm
            .with_session(|session, send| session.ask(vcpu, what, send));
        self.wait_for_host()
    }

    /// Sends an SGI to vCPUs that other hosts have, a bit each.
    #[cold]
    pub fn send_sgi_elsewhere(&mut self, sgi: &Sgi, targets: u64) {
        let group1 = if sgi.group1_too { GROUP1_TOO } else { 0 };
        self.send_sgi((sgi.intid as u8 | group1, targets));
    }

    /// Sends an SGI to other hosts, or waits until the last one has come.
    fn send_sgi(&mut self, what: (u8, u64)) {
        let vcpu = self.vcpu.index as u8;
        let sent = self
            .vm
            .with_session(|session, send| session.send_sgi(vcpu, what, send));
        match sent {
            // One that came here meanwhile.
            Some(Some(own)) => self.vm.receive_sgi(what.0, own),
            Some(None) => {
                self.core.asked = Some(Asked::Sgi(what));
                let _ = self.wait_for_host();
            }
            None => {}
        }
        // This CPU sends it.
        self.cpu.kick();
    }

    /// Does not enter the guest again before [`Self::take_answer`] allows it.
    fn wait_for_host(&self) -> Flow {
        self.vcpu
            .attention
            .fetch_or(attention::REMOTE, Ordering::SeqCst);
        Flow::Resume
    }

    /// Completes what the vCPU asked another host for, or leaves the CPU.
    #[cold]
    pub fn take_answer(&mut self) -> Flow {
        let vcpu = self.vcpu.index as u8;
        let answer = self
            .vm
            .with_session(|session, _| (!session.waits(vcpu)).then(|| session.take_answer(vcpu)));
        let Some(answer) = answer.flatten() else {
            return Flow::Leave(Outcome::Waiting);
        };
        self.vcpu
            .attention
            .fetch_and(!attention::REMOTE, Ordering::SeqCst);
        match (self.core.asked.take(), answer) {
            (Some(Asked::Call), Some(value)) => self.core.context.set_register(0, value),
            // It asks again.
            (Some(Asked::Call), None) => {
                self.core.context.pc = self.core.context.pc.wrapping_sub(4);
            }
            (Some(Asked::Access(access)), Some(value)) => {
                if !access.write {
                    self.core
                        .context
                        .set_register(access.rt, access.loaded(value));
                }
                skip(self);
            }
            (Some(Asked::Sgi(what)), _) => {
                self.send_sgi(what);
                if self.core.asked.is_some() {
                    return Flow::Leave(Outcome::Waiting);
                }
            }
            (Some(Asked::Access(_)) | None, _) => {}
        }
        Flow::Resume
    }
}
