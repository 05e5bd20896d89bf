//! Which VMs there are, and what may be asked of them.

use crate::devices::Block;
use crate::drivers::{Buffer, Io, Part};
use crate::memory::VMS_MAX;
use crate::vms::instance::Instance;
use abi::Text;
use abi::bundle::{VM_RESTART, VmRecord};
use abi::control::{RawVm, VmName, code, state};
use alloc::{boxed::Box, sync::Arc};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::VmId;
use model_control::Refusal;
use model_disk::Budget;
use model_entitlement::Terms;

/// A VM as it was described, and how it stands.
pub struct Vm {
    /// Its slot in the table.
    pub slot: u16,
    /// Its name.
    pub name: VmName,
    /// Its description, some of which can change.
    pub record: SpinLock<VmRecord>,
    /// How often it was started.
    pub starts: AtomicU32,
    /// Whether it stays as it is once it has ended, be it by a reset.
    pub is_killed: AtomicBool,
    /// How it stands.
    pub life: SpinLock<Life>,
}

/// How a VM stands.
#[expect(
    clippy::large_enum_variant,
    reason = "one for each VM, made when it is described: an end allocates nothing"
)]
pub enum Life {
    /// Never started.
    Defined,
    /// Running, paused or ending.
    Running(Arc<Instance>),
    /// It has ended, with these last figures.
    Ended(RawVm),
}

static TABLE: SpinLock<heapless::Vec<Arc<Vm>, VMS_MAX>> =
    SpinLock::new(Rank::VmTable, heapless::Vec::new());

/// Adds a VM of this description, which was checked.
pub fn enter(record: &VmRecord) -> Result<Arc<Vm>, Refusal> {
    let mut table = TABLE.lock();
    if table.iter().any(|vm| vm.name == record.name) {
        let what = format_args!("a VM named {} exists already", record.name);
        return Err(Refusal::new(code::EXISTS, 0, what));
    }
    let vm = Arc::new(Vm {
        slot: table.len() as u16,
        name: record.name,
        record: SpinLock::new(Rank::Vm, *record),
        starts: AtomicU32::new(0),
        is_killed: AtomicBool::new(false),
        life: SpinLock::new(Rank::Vm, Life::Defined),
    });
    table.push(Arc::clone(&vm)).map_err(|_| {
        let what = format_args!("too many VMs (limit {VMS_MAX})");
        Refusal::new(code::IMPOSSIBLE, VMS_MAX as u64, what)
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

    /// Whether it starts again after a reset.
    pub fn restarts(&self) -> bool {
        self.record.lock().flags & VM_RESTART != 0 && !self.is_killed.load(Ordering::Relaxed)
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

    /// All that it had is free again: it has ended.
    pub fn settle(&self) {
        if let Life::Ended(status) = &mut *self.life.lock() {
            status.state = state::ENDED;
        }
    }

    /// Whether nothing of it is left.
    pub fn is_settled(&self) -> bool {
        match &*self.life.lock() {
            Life::Defined => true,
            Life::Ended(status) => status.state == state::ENDED,
            Life::Running(_) => false,
        }
    }

    /// The VM as it runs, unless its end has begun.
    pub fn live(&self) -> Option<Arc<Instance>> {
        self.instance().filter(|instance| !instance.is_ending())
    }

    /// As it runs, for whoever asks something of it.
    ///
    /// # Errors
    /// It does not run.
    pub fn running(&self) -> Result<Arc<Instance>, Refusal> {
        self.live().ok_or_else(|| {
            let what = format_args!("{} is not running", self.name);
            Refusal::new(code::WRONG_STATE, 0, what)
        })
    }
}

/// What `io` said was done with a request's buffer, or went wrong: the request goes on, as far as the pass allows.
pub fn go_on(part: Box<Part>, came: (Buffer, Io), done: bool, budget: &mut Budget) {
    // Where the VM has ended in the meantime there is nobody to tell.
    if let Some(vm) = instance(part.vm)
        && let Some(block) = vm.at::<Block>(part.window)
    {
        block.go_on(&vm, part, came, done, budget);
    }
}
