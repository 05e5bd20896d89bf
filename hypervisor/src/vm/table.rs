//! Which VMs there are, and what may be asked of them.

use super::instance::{End, Instance};
use super::{create, memory, report};
use crate::host;
use abi::bundle::{VM_AUTOSTART, VmRecord, kind};
use abi::control::{SetRequest, VmName, VmStatus, code, state};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU32, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::VmId;
use model_entitlement::Terms;

/// The most VMs that are described at a time.
pub const VMS_MAX: usize = 64;

/// A VM as it was described, and how it stands.
pub struct Vm {
    /// Its slot in the table.
    pub slot: u16,
    /// Its description.
    pub record: VmRecord,
    /// Its weight and cap, which can change.
    pub share: SpinLock<(u16, u8)>,
    /// What memory it was promised, which can change.
    terms: SpinLock<Terms>,
    /// How often it was started.
    pub starts: AtomicU32,
    life: SpinLock<Life>,
}

/// How a VM stands.
enum Life {
    /// Never started.
    Defined,
    /// Running, paused or ending.
    Running(Arc<Instance>),
    /// It has ended, with these last figures.
    Ended(alloc::boxed::Box<VmStatus>),
}

/// Why a request is refused: a code for programs, a sentence for people, and the number in it.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// One of [`abi::control::code`].
    pub code: u32,
    /// The number measured.
    pub value: u64,
    /// The sentence.
    pub sentence: heapless::String<200>,
}

impl Refusal {
    /// A refusal with that code and sentence.
    pub fn new(code: u32, value: u64, sentence: core::fmt::Arguments<'_>) -> Self {
        let mut text = heapless::String::new();
        // A sentence that is too long is cut.
        let _ = core::fmt::Write::write_fmt(&mut text, sentence);
        Self {
            code,
            value,
            sentence: text,
        }
    }
}

static TABLE: SpinLock<heapless::Vec<Arc<Vm>, VMS_MAX>> =
    SpinLock::new(Rank::VmTable, heapless::Vec::new());

/// Describes the bundle's VMs, and starts those that are to start by themselves.
pub fn init() {
    super::reaper::init();
    memory::init();
    let Some(bundle) = &host::get().bundle else {
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
        }
    }
}

/// Adds a VM, and starts it if its description says so.
pub fn define(record: &VmRecord) -> Result<Arc<Vm>, Refusal> {
    create::check(record)?;
    create::adopt(record)?;
    let vm = {
        let mut table = TABLE.lock();
        if table.iter().any(|vm| vm.record.name == record.name) {
            return Err(Refusal::new(
                code::EXISTS,
                0,
                format_args!("a VM named {} is there already", record.name),
            ));
        }
        let share = (
            record.weight.clamp(1, 10_000) as u16,
            record.cap.min(100) as u8,
        );
        let vm = Arc::new(Vm {
            slot: table.len() as u16,
            record: *record,
            share: SpinLock::new(Rank::Vm, share),
            terms: SpinLock::new(Rank::Vm, memory::terms(record)),
            starts: AtomicU32::new(0),
            life: SpinLock::new(Rank::Vm, Life::Defined),
        });
        table.push(Arc::clone(&vm)).map_err(|_| {
            Refusal::new(
                code::IMPOSSIBLE,
                VMS_MAX as u64,
                format_args!("there are {VMS_MAX} VMs already, the most there can be"),
            )
        })?;
        vm
    };
    if record.flags & VM_AUTOSTART != 0 {
        begin(&vm)?;
    }
    Ok(vm)
}

/// All VMs, as they are now.
pub fn all() -> heapless::Vec<Arc<Vm>, VMS_MAX> {
    TABLE.lock().clone()
}

/// The VM of that name.
pub fn find(name: VmName) -> Result<Arc<Vm>, Refusal> {
    let table = TABLE.lock();
    let found = table.iter().find(|vm| vm.record.name == name);
    found.cloned().ok_or_else(|| {
        Refusal::new(
            code::NO_SUCH_VM,
            0,
            format_args!("there is no VM named {name}"),
        )
    })
}

/// The running VM with that identity; `None` where it has ended.
pub fn instance(id: VmId) -> Option<Arc<Instance>> {
    let vm = TABLE.lock().get(usize::from(id.index)).cloned()?;
    vm.instance().filter(|instance| instance.id == id)
}

impl Vm {
    /// What memory it was promised.
    pub fn terms(&self) -> Terms {
        *self.terms.lock()
    }

    /// The VM as it runs, if it does.
    pub fn instance(&self) -> Option<Arc<Instance>> {
        match &*self.life.lock() {
            Life::Running(instance) => Some(Arc::clone(instance)),
            Life::Defined | Life::Ended(_) => None,
        }
    }

    /// Its last figures, if it has ended.
    pub fn last_status(&self) -> Option<VmStatus> {
        match &*self.life.lock() {
            Life::Ended(status) => Some(**status),
            Life::Defined | Life::Running(_) => None,
        }
    }

    /// Nothing of it runs any more: its instance, for the reaper. The VM is ending until what it had
    /// is free again; see [`Self::settle`].
    pub fn take_ended(&self) -> Option<Arc<Instance>> {
        let instance = self.instance()?;
        let mut status = report::vm_status(self);
        status.state = state::ENDING;
        status.touched = 0;
        status.overlay = 0;
        status.overhead = 0;
        let status = alloc::boxed::Box::new(status);
        *self.life.lock() = Life::Ended(status);
        Some(instance)
    }

    /// All that it had is free again: it has ended.
    pub fn settle(&self) {
        if let Life::Ended(status) = &mut *self.life.lock() {
            status.state = state::ENDED;
        }
    }

    /// Whether nothing of it is left.
    fn is_settled(&self) -> bool {
        match &*self.life.lock() {
            Life::Defined => true,
            Life::Ended(status) => status.state == state::ENDED,
            Life::Running(_) => false,
        }
    }

    fn running(&self) -> Result<Arc<Instance>, Refusal> {
        self.instance()
            .filter(|instance| !instance.is_ending())
            .ok_or_else(|| {
                Refusal::new(
                    code::WRONG_STATE,
                    0,
                    format_args!("{} does not run", self.record.name),
                )
            })
    }
}

/// Makes a VM run that does not.
pub fn begin(vm: &Arc<Vm>) -> Result<(), Refusal> {
    if !vm.is_settled() {
        return Err(Refusal::new(
            code::WRONG_STATE,
            0,
            format_args!("{} runs already, or has not quite ended", vm.record.name),
        ));
    }
    begin_again(vm)
}

/// Makes a VM run of which nothing is left.
pub fn begin_again(vm: &Arc<Vm>) -> Result<(), Refusal> {
    let starts = vm.starts.fetch_add(1, Ordering::Relaxed) + 1;
    let id = VmId {
        index: vm.slot,
        generation: starts as u16,
    };
    memory::admit(vm)?;
    let instance = create::instance(vm, id)?;
    *vm.life.lock() = Life::Running(Arc::clone(&instance));
    log::info!(
        "{} starts: {} vCPUs, {} MiB, {}",
        vm.record.name,
        vm.record.vcpus,
        vm.record.memory >> 20,
        instance.home
    );
    create::launch(&instance);
    memory::tick();
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
    if instance.press_power_button() {
        return Ok(());
    }
    Err(Refusal::new(
        code::IMPOSSIBLE,
        0,
        format_args!(
            "the guest of {name} does not listen to its power button; `underpin kill {name}` ends it without asking"
        ),
    ))
}

/// Ends a VM now.
pub fn kill(name: VmName) -> Result<(), Refusal> {
    find(name)?.running()?.finish(End::Killed);
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
    vm.running()?.pause();
    report::send_state(&vm);
    Ok(())
}

/// Lets a paused VM go on.
pub fn resume(name: VmName) -> Result<(), Refusal> {
    let vm = find(name)?;
    let instance = vm.running()?;
    if !instance.is_paused() {
        return Err(Refusal::new(
            code::WRONG_STATE,
            0,
            format_args!("{name} is not paused"),
        ));
    }
    instance.resume();
    report::send_state(&vm);
    Ok(())
}

/// Changes a VM's share of CPU time, and what memory it is promised.
pub fn set(request: &SetRequest) -> Result<(), Refusal> {
    let vm = find(request.name)?;
    let (weight, cap) = create::share(request.weight, request.cap, *vm.share.lock())?;
    let terms = memory::change(vm.terms(), request)?;
    *vm.share.lock() = (weight, cap);
    *vm.terms.lock() = terms;
    memory::tick();
    if let Some(instance) = vm.instance() {
        for vcpu in &instance.vcpus {
            crate::sched::entitle(vcpu.entity, weight, cap);
        }
    }
    Ok(())
}

/// Passes on console output that waits.
pub fn flush_terminals() {
    for vm in all() {
        if let Some(instance) = vm.instance() {
            instance.uart.terminal.flush();
        }
    }
}
