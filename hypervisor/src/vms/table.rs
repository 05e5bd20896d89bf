//! Which VMs there are, and what may be asked of them.

use crate::devices::virtio::Slot;
use crate::economy::ledger;
use crate::machine;
use crate::machine::stretch::{self, Kind};
use crate::run::housekeeping;
use crate::vms::instance::{End, Instance};
use crate::vms::{create, report};
use abi::Text;
use abi::bundle::{NET_DOWN, VM_AUTOSTART, VmRecord, kind};
use abi::control::{RawVm, SetRequest, VmName, code, state};
use alloc::sync::Arc;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::VmId;
use model_entitlement::Terms;

/// The most VMs that are described at a time.
pub const VMS_MAX: usize = 64;

/// A VM as it was described, and how it stands.
pub struct Vm {
    /// Its slot in the table.
    pub slot: u16,
    /// Its name.
    pub name: VmName,
    /// Its description, some of which can change.
    record: SpinLock<VmRecord>,
    /// How often it was started.
    pub starts: AtomicU32,
    life: SpinLock<Life>,
}

/// How a VM stands.
#[expect(
    clippy::large_enum_variant,
    reason = "one for each VM, made when it is described: an end allocates nothing"
)]
enum Life {
    /// Never started.
    Defined,
    /// Running, paused or ending.
    Running(Arc<Instance>),
    /// It has ended, with these last figures.
    Ended(RawVm),
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

/// Describes the bundle's VMs, and starts those that are to start by themselves. Who asked cannot be told
/// what is refused: that VM has ended, and its reason says why.
pub fn init() {
    crate::vms::reaper::init();
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

fn enter(record: &VmRecord) -> Result<Arc<Vm>, Refusal> {
    let mut table = TABLE.lock();
    if table.iter().any(|vm| vm.name == record.name) {
        return Err(Refusal::new(
            code::EXISTS,
            0,
            format_args!("a VM named {} exists already", record.name),
        ));
    }
    let vm = Arc::new(Vm {
        slot: table.len() as u16,
        name: record.name,
        record: SpinLock::new(Rank::Vm, *record),
        starts: AtomicU32::new(0),
        life: SpinLock::new(Rank::Vm, Life::Defined),
    });
    table.push(Arc::clone(&vm)).map_err(|_| {
        Refusal::new(
            code::IMPOSSIBLE,
            VMS_MAX as u64,
            format_args!("too many VMs (limit {VMS_MAX})"),
        )
    })?;
    Ok(vm)
}

/// All VMs, as they are now.
pub fn all() -> heapless::Vec<Arc<Vm>, VMS_MAX> {
    TABLE.lock().clone()
}

/// Whether no VM runs, and nothing of one that ran is left.
pub fn is_quiet() -> bool {
    all().iter().all(|vm| vm.is_settled())
}

/// Whether each VM has ended or is paused.
pub fn stand_still() -> bool {
    let stands = |vm: &Arc<Vm>| {
        let instance = vm.instance();
        let is_paused = instance.is_some_and(|vm| vm.is_paused() && !vm.is_ending());
        is_paused || vm.is_settled()
    };
    all().iter().all(stands)
}

/// Disks of paused VMs may have something to go on with.
static UNSETTLED: AtomicBool = AtomicBool::new(false);

pub fn ask_to_settle() {
    UNSETTLED.store(true, Ordering::SeqCst);
    housekeeping::request();
}

/// Goes on with requests of paused VMs, a pass for each disk: VMs are parked when none is left. Whether there is
/// more.
pub fn settle() -> bool {
    if UNSETTLED.swap(false, Ordering::SeqCst) {
        for vm in all().iter().filter_map(|vm| vm.instance()) {
            for (n, slot) in vm.virtio.iter().enumerate() {
                if let Slot::Block(block) = slot
                    && vm.is_paused()
                {
                    stretch::look(Kind::Device);
                    block.settle(&vm, n);
                }
            }
        }
    }
    UNSETTLED.load(Ordering::Relaxed)
}

/// Whether nothing is left for [`settle`].
pub fn is_settled() -> bool {
    let instances = all();
    let mut instances = instances.iter().filter_map(|vm| vm.instance());
    instances.all(|vm| vm.disks().all(|block| block.is_settled(&vm)))
}

/// Forgets all descriptions. No VM runs.
pub fn forget() {
    TABLE.lock().clear();
}

/// The VM of that name.
pub fn find(name: VmName) -> Result<Arc<Vm>, Refusal> {
    let table = TABLE.lock();
    let found = table.iter().find(|vm| vm.name == name);
    found.cloned().ok_or_else(|| no_such(name))
}

/// There is no such VM, as far as who asks is to know.
pub fn no_such(name: VmName) -> Refusal {
    let what = format_args!("there is no VM named {name}");
    Refusal::new(code::NO_SUCH_VM, 0, what)
}

/// The running VM with that identity; `None` where it has ended.
pub fn instance(id: VmId) -> Option<Arc<Instance>> {
    let vm = TABLE.lock().get(usize::from(id.index)).cloned()?;
    vm.instance().filter(|instance| instance.id == id)
}

impl Vm {
    /// Its description, as it is now.
    pub fn record(&self) -> VmRecord {
        *self.record.lock()
    }

    /// The name of its share group.
    pub fn group(&self) -> Text<24> {
        self.record.lock().group
    }

    /// What memory it was promised.
    pub fn terms(&self) -> Terms {
        Terms::of(&self.record.lock())
    }

    /// The VM as it runs, if it does.
    pub fn instance(&self) -> Option<Arc<Instance>> {
        match &*self.life.lock() {
            Life::Running(instance) => Some(Arc::clone(instance)),
            Life::Defined | Life::Ended(_) => None,
        }
    }

    /// Its last figures, if it has ended.
    pub fn last(&self) -> Option<RawVm> {
        match &*self.life.lock() {
            Life::Ended(raw) => Some(*raw),
            Life::Defined | Life::Running(_) => None,
        }
    }

    /// It was started so often in the image before this one, and runs, or has ended.
    pub fn take_over(&self, starts: u32, runs: Option<Arc<Instance>>, ended: Option<&RawVm>) {
        self.starts.store(starts, Ordering::Relaxed);
        let life = runs
            .map(Life::Running)
            .or(ended.map(|status| Life::Ended(*status)));
        *self.life.lock() = life.unwrap_or(Life::Defined);
    }

    /// Nothing of it runs any more: its instance, for the reaper. The VM is ending until what it had
    /// is free again; see [`Self::settle`].
    pub fn take_ended(&self) -> Option<Arc<Instance>> {
        let instance = self.instance()?;
        let mut raw = report::read_vm(self);
        raw.state = state::ENDING;
        (raw.holding, raw.overlays, raw.bookkeeping) = ([0; 7], [0; 2], 0);
        *self.life.lock() = Life::Ended(raw);
        Some(instance)
    }

    /// All that it had is free again: it has ended.
    pub fn settle(&self) {
        if let Life::Ended(status) = &mut *self.life.lock() {
            status.state = state::ENDED;
        }
    }

    /// It was to start by itself, and cannot.
    fn refuse(&self, refusal: &Refusal) {
        if !matches!(&*self.life.lock(), Life::Defined) {
            return;
        }
        let mut raw = report::read_vm(self);
        let why = format_args!("not started: {}", refusal.sentence);
        let reason = Refusal::new(refusal.code, 0, why).sentence;
        (raw.state, raw.reason) = (state::ENDED, Text::cut(&reason));
        *self.life.lock() = Life::Ended(raw);
        report::send_state(self);
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
                    format_args!("{} is not running", self.name),
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
            format_args!("{} is already running, or its end is not complete", vm.name),
        ));
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
    stretch::look(Kind::Control);
    let instance = create::instance(vm, id)?;
    vm.starts.store(starts, Ordering::Relaxed);
    *vm.life.lock() = Life::Running(Arc::clone(&instance));
    log::info!(
        "{} starts: {} vCPUs, {} MiB, {}",
        vm.name,
        instance.vcpus.len(),
        instance.space.range().size >> 20,
        instance.home
    );
    create::launch(&instance);
    stretch::look(Kind::Tick);
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
        return Err(Refusal::new(
            code::OWES,
            owed,
            format_args!(
                "{name} cannot listen to its power button: it is paused, and owes {owed} pages"
            ),
        ));
    }
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
    let instance = vm.running()?;
    // It stands still until somebody says otherwise, whatever it owes.
    instance.paging.forgive();
    instance.pause();
    report::send_state(&vm);
    Ok(())
}

/// Lets a paused VM go on; its time has passed meanwhile, or it has not.
pub fn resume(name: VmName, time_stood_still: bool) -> Result<(), Refusal> {
    let vm = find(name)?;
    let instance = vm.running()?;
    if !instance.is_paused() {
        return Err(Refusal::new(
            code::WRONG_STATE,
            0,
            format_args!("{name} is not paused"),
        ));
    }
    instance.resume(time_stood_still);
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
        instance.set_hold(record.hold_ms);
        show_links(&instance, &record);
        for vcpu in &instance.vcpus {
            crate::vcpu::sched::entitle(vcpu.entity, record.weight as u16, record.cap as u8);
        }
    }
    Ok(())
}

/// Lets the guest see which of its links are up.
fn show_links(instance: &Instance, record: &VmRecord) {
    let mut nets = record.nets.iter();
    for (window, slot) in instance.virtio.iter().enumerate() {
        if let Slot::Net(net) = slot {
            let up = nets.next().is_none_or(|net| net.flags & NET_DOWN == 0);
            net.set_link(instance, window, up);
        }
    }
}

/// Passes on console output that waits.
pub fn flush_terminals() {
    for vm in all() {
        if let Some(instance) = vm.instance() {
            stretch::look(Kind::Control);
            instance.uart.terminal.flush();
        }
    }
}
