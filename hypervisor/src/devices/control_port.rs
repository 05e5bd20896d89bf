//! A VM's control port: bytes that its programs write, as requests, and what they are told.

use crate::devices::register::{RegisterAccess, register, update_line};
use crate::drivers::requests;
use crate::guest::{Guest, sessions};
use abi::state::{self, Writer, kind};
use machine_locks::{Rank, SpinLock};
use model_addr::{Gfn, VmId};
use model_control::Inbox;
use model_virtio::{Transport, port::Port};

/// How a guest's programs find it: `/dev/virtio-ports/` and this.
const NAME: &str = "org.underpin.control";

/// The port.
pub struct ControlPort(SpinLock<State>);

struct State {
    transport: Transport<Port>,
    inbox: Inbox,
    was_open: bool,
}

impl ControlPort {
    /// One that nobody uses yet.
    pub fn new() -> Self {
        let state = State {
            transport: Transport::new(Port::new(NAME)),
            inbox: Inbox::default(),
            was_open: false,
        };
        Self(SpinLock::new(Rank::Device, state))
    }

    /// As [`crate::devices::virtio::Slot::access`].
    pub fn access(&self, vm: &Guest, n: usize, access: RegisterAccess) -> u64 {
        let mut state = self.0.lock();
        let mut notified = false;
        let transport = &mut state.transport;
        let read = register(transport, vm, n, access, |_, _| {
            notified = true;
        });
        if notified || access.value.is_some() && !state.transport.is_live() {
            state.work(vm, n);
            if state.inbox.has_frame() {
                // Its answer may have found no room until now.
                requests::ring();
            }
        }
        read
    }

    /// Goes on where there is more room, here or at the guest.
    pub fn proceed(&self, vm: &Guest, n: usize) {
        let mut state = self.0.lock();
        let had_frame = state.inbox.has_frame();
        state.work(vm, n);
        if !had_frame && state.inbox.has_frame() {
            requests::ring();
        }
    }

    /// The next request, if one is complete.
    pub fn request(&self) -> Option<requests::Incoming> {
        requests::next(&mut self.0.lock().inbox)
    }

    /// Its record.
    pub fn record(&self) -> state::Device {
        self.0.lock().transport.record()
    }

    /// As a record has it; `false` where that makes no sense.
    #[must_use]
    pub fn restore(&self, record: &state::Device) -> bool {
        let mut state = self.0.lock();
        let is_restored = state.transport.restore(record);
        state.was_open = state.transport.device().is_open();
        is_restored
    }

    /// Writes what the guest's programs have asked and what waits for them.
    pub fn write(&self, vm: VmId, to: &mut Writer<'_>) {
        to.put(kind::ASKED, self.0.lock().inbox.bytes());
        to.begin(kind::ANSWERS);
        sessions::waiting(vm, |bytes| to.add(bytes));
    }

    /// Takes over what was written; `false` where it is more than there is room for.
    #[must_use]
    pub fn read(&self, vm: VmId, asked: &[u8], answers: &[u8]) -> bool {
        let mut state = self.0.lock();
        requests::ring();
        state.inbox.push(asked) == asked.len() && sessions::take_over(vm, state.was_open, answers)
    }

    /// As [`crate::devices::virtio::Slot::uses`].
    pub fn uses(&self, gfn: Gfn) -> bool {
        self.0.try_lock().is_none_or(|it| it.transport.uses(gfn))
    }

    /// Queues that its driver broke.
    pub fn errors(&self) -> u64 {
        let (errors, _) = self.0.lock().transport.errors();
        errors.into()
    }
}

impl State {
    /// Moves bytes both ways. What there is no room for waits in the guest's own buffers, and what the
    /// guest does not take waits with [`vms`].
    fn work(&mut self, vm: &Guest, n: usize) {
        let memory = vm.memory();
        let Self {
            transport, inbox, ..
        } = self;
        if transport.converse(&memory) {
            vm.put_off_device_work();
        }
        let is_open = transport.device().is_open();
        if is_open != self.was_open {
            self.was_open = is_open;
            // Whoever opens it next has nothing to do with what was asked before.
            inbox.clear();
            sessions::set_open(vm.id, is_open);
        }
        if !inbox.has_frame() {
            let room = inbox.room();
            let progress = transport.transmit(&memory, room, |bytes| {
                inbox.push(bytes);
            });
            if progress.more && !inbox.has_frame() {
                vm.put_off_device_work();
            }
        }
        if sessions::give(vm.id, |bytes| transport.receive(&memory, bytes)) {
            vm.put_off_device_work();
        }
        update_line(transport, vm, n);
    }
}
