//! What may be asked of VMs: to be described, to start and to end, and to change.

use crate::cluster::span::leaving;
use crate::devices::{Net, balloon::Balloon};
use crate::economy::ledger;
use crate::guest::{self, End, spanning, terminal};
use crate::life::create;
use crate::machine::{self, stretch};
use crate::vms::table::{Life, all, enter, find};
use crate::vms::{Instance, Vm, report};
use abi::bundle::{NET_DOWN, VM_AUTOSTART, VmRecord, kind};
use abi::control::{SetRequest, SpanMoveRequest, VmName, code};
use alloc::sync::Arc;
use core::sync::atomic::Ordering;
use model_addr::VmId;
use model_control::Refusal;
use model_entitlement::Terms;
use model_span::{Kind, Stays};

/// Describes the bundle's VMs, and starts those that are to start by themselves. Who asked cannot be told
/// what is refused: that VM has ended, and its reason says why.
pub fn init() {
    ledger::init();
    let Some(bundle) = &machine::get().bundle else {
        return;
    };
    for (number, entry) in bundle.entries() {
        if entry.kind != kind::VM {
            continue;
        }
        let defined = bundle.vm(number).map_err(|error| {
            log::warn!("bundle: {error}");
        });
        let Ok(record) = defined else { continue };
        if let Err(refusal) = define(&record) {
            log::warn!("{}: {}", record.name, refusal.sentence);
            let vm = find(record.name).or_else(|_| enter(&record));
            let _ = vm.map(|vm| vm.refuse(&refusal)); // where the table is full, the log has it
        }
    }
}

/// Adds a VM, and starts it if its description says so.
pub fn define(record: &VmRecord) -> Result<Arc<Vm>, Refusal> {
    let vm = describe(record)?;
    if record.flags & VM_AUTOSTART != 0 {
        begin(&vm).inspect_err(|refusal| vm.refuse(refusal))?;
    }
    Ok(vm)
}

/// Adds a VM that does not run.
pub fn describe(record: &VmRecord) -> Result<Arc<Vm>, Refusal> {
    create::check(record)?;
    create::adopt(record)?;
    enter(record)
}

/// Goes on with requests of paused VMs, a pass for each disk: VMs are parked when none is left. Whether there is
/// more.
pub fn settle() -> bool {
    if guest::take_unsettled() {
        for vm in all().iter().filter_map(|vm| vm.instance()) {
            // A chain that was not all at hand is asked for again once it goes on.
            let devices = vm.virtio.iter().filter(|_| vm.is_paused());
            devices.for_each(|device| device.let_go());
            for block in vm.disks().take_while(|_| vm.is_paused()) {
                stretch::look(stretch::Kind::Device);
                block.settle(&vm);
            }
        }
    }
    guest::is_unsettled()
}

/// Makes a VM run that does not.
pub fn begin(vm: &Arc<Vm>) -> Result<(), Refusal> {
    if !vm.is_settled() {
        let what = format_args!("{} is already running, or its end is not complete", vm.name);
        return Err(Refusal::new(code::WRONG_STATE, 0, what));
    }
    begin_again(vm)
}

/// Makes a VM run of which nothing is left.
pub fn begin_again(vm: &Arc<Vm>) -> Result<(), Refusal> {
    let starts = vm.starts.load(Ordering::Relaxed) + 1;
    let id = VmId {
        index: vm.slot,
        generation: starts as u16,
    };
    if starts == 1 && vm.last().is_some() {
        // It was refused, be it for its description.
        let record = vm.record();
        create::check(&record)?;
        create::adopt(&record)?;
    }
    ledger::admit(vm)?;
    stretch::look(stretch::Kind::Control);
    let instance = create::instance(vm, id)?;
    vm.starts.store(starts, Ordering::Relaxed);
    vm.is_killed.store(false, Ordering::Relaxed);
    *vm.life.lock() = Life::Running(Arc::clone(&instance));
    log::info!(
        "{} starts: {} vCPUs, {} MiB, {}",
        vm.name,
        instance.vcpus.len(),
        instance.space.range().size >> 20,
        instance.home
    );
    create::launch(&instance);
    stretch::look(stretch::Kind::Tick);
    ledger::tick();
    report::send_state(vm);
    Ok(())
}

/// Starts a VM that was described and does not run.
pub fn start(name: VmName) -> Result<(), Refusal> {
    begin(&find(name)?)
}

/// Presses the power button.
pub fn stop(name: VmName) -> Result<(), Refusal> {
    let vm = find(name)?;
    let instance = vm.running()?;
    if let Some(owed) = instance.paging.paused_for() {
        let what = format_args!(
            "{name} cannot listen to its power button: it is paused, and owes {owed} pages"
        );
        return Err(Refusal::new(code::OWES, owed, what));
    }
    if instance.power_button.press(&instance) {
        return Ok(());
    }
    let what = format_args!(
        "the guest of {name} does not listen to its power button; `underpin kill {name}` ends it without asking"
    );
    Err(Refusal::new(code::IMPOSSIBLE, 0, what))
}

/// Ends a VM now and for good: one that is being reset does not start again.
pub fn kill(name: VmName) -> Result<(), Refusal> {
    let vm = find(name)?;
    match vm.running() {
        Ok(instance) => instance.finish(End::Killed),
        Err(refusal) if vm.is_settled() => return Err(refusal),
        Err(_) => {}
    }
    vm.is_killed.store(true, Ordering::Relaxed);
    Ok(())
}

/// Presses the reset button.
pub fn reset(name: VmName) -> Result<(), Refusal> {
    find(name)?.running()?.finish(End::Reset);
    Ok(())
}

/// Stops a VM's vCPUs where they are.
pub fn pause(name: VmName) -> Result<(), Refusal> {
    let vm = find(name)?;
    let instance = vm.running()?;
    // It stands still until somebody says otherwise, whatever it owes.
    instance.paging.forgive();
    instance.pause();
    spanning::tell(&instance, Kind::Pause, 0);
    report::send_state(&vm);
    Ok(())
}

/// Lets a paused VM go on; its time has passed meanwhile, or it has not.
pub fn resume(name: VmName, time_stood_still: bool) -> Result<(), Refusal> {
    let vm = find(name)?;
    let instance = vm.running()?;
    if !instance.is_paused() {
        let what = format_args!("{name} is not paused");
        return Err(Refusal::new(code::WRONG_STATE, 0, what));
    }
    instance.resume(time_stood_still);
    spanning::tell(&instance, Kind::Resume, time_stood_still.into());
    report::send_state(&vm);
    Ok(())
}

/// Changes a VM's description, and what runs of it.
pub fn set(request: &SetRequest) -> Result<(), Refusal> {
    let vm = find(request.to.name)?;
    let (name, before) = (vm.name, vm.record());
    let record = request.applied_to(&before).ok_or_else(|| {
        let what = format_args!("a field of {name} is to change that is settled when it is made");
        Refusal::new(code::IMPOSSIBLE, 0, what)
    })?;
    let mut nets = record.nets.iter().zip(&request.mask.nets);
    if let Some(n) = nets.position(|(net, mask)| net.switch.is_empty() && mask.flags != 0) {
        let what = format_args!("{name} has no network device {n} (they count from 0)");
        return Err(Refusal::new(code::IMPOSSIBLE, n as u64, what));
    }
    create::check(&record)?;
    let terms = Terms::of(&record);
    ledger::admit_change(&vm, terms)?;
    let instance = vm.instance();
    if (before.group, before.hide) != (record.group, record.hide) {
        if instance.is_some() {
            let what = format_args!(
                "{name} is running; stop it before changing its share group or `hide`"
            );
            return Err(Refusal::new(code::WRONG_STATE, 0, what));
        }
        create::adopt(&record)?;
    }
    *vm.record.lock() = record;
    ledger::tick();
    if let Some(instance) = instance {
        if terms != Terms::of(&before) {
            ledger::ask_for_nothing(&vm, &instance);
        }
        instance.space.set_policy(create::policy(&record));
        let balloons = instance.all::<Balloon>();
        balloons.for_each(|balloon| balloon.set_hold(record.hold_ms));
        show_links(&instance, &record);
        for vcpu in &instance.vcpus {
            crate::vcpu::sched::entitle(vcpu.entity, record.weight as u16, record.cap as u8);
        }
    }
    Ok(())
}

/// Lets the guest see which of its links are up.
fn show_links(instance: &Instance, record: &VmRecord) {
    for (net, record) in instance.all::<Net>().zip(&record.nets) {
        net.set_link(instance, record.flags & NET_DOWN == 0);
    }
}

/// Passes on console output that waits.
pub fn flush_terminals() {
    if !terminal::take_some() {
        return;
    }
    for vm in all() {
        if let Some(instance) = vm.instance() {
            stretch::look(stretch::Kind::Control);
            instance.terminal.flush();
        }
    }
}

/// Begins to move a vCPU to another host of its VM.
///
/// # Errors
/// Why it stays.
pub fn move_vcpu(request: &SpanMoveRequest) -> Result<(), Refusal> {
    let vm = find(request.name)?.running()?;
    let [vcpu, host] = [request.vcpu, request.host].map(|it| u8::try_from(it).unwrap_or(u8::MAX));
    let begun = vm.with_session(|session, send| session.move_vcpu(vcpu, host, send));
    begun_or_stays(request.name, vcpu.into(), begun)
}

/// Begins to leave a VM, or goes on with that: the pages at which this host has not looked, of how many.
///
/// # Errors
/// Why this host cannot.
pub fn leave(name: VmName) -> Result<[u64; 2], Refusal> {
    let vm = find(name)?.running()?;
    begun_or_stays(name, 0, vm.with_session(|session, _| session.leave()))?;
    leaving::hand_over();
    Ok(leaving::pages_left().unwrap_or_default())
}

fn begun_or_stays(
    name: VmName,
    number: u64,
    begun: Option<Result<(), Stays>>,
) -> Result<(), Refusal> {
    let stays = match begun {
        Some(Ok(())) => return Ok(()),
        Some(Err(stays)) => stays,
        None => {
            let what = format_args!("{name} spans no hosts");
            return Err(Refusal::new(code::WRONG_STATE, 0, what));
        }
    };
    let code = match stays {
        Stays::Busy(_) => code::BUSY,
        Stays::Apart | Stays::Occupied(_) => code::WRONG_STATE,
        _ => code::IMPOSSIBLE,
    };
    let what = format_args!("{name}: {stays}");
    Err(Refusal::new(code, number, what))
}
