//! A VM's control port: bytes that its programs write, as requests, and what they are told.

use crate::devices::virtio::{Behaviour, Virtio};
use crate::drivers::requests;
use crate::guest::{Guest, sessions};
use abi::state::{self, Sink, kind};
use alloc::boxed::Box;
use model_addr::VmId;
use model_control::Inbox;
use model_virtio::{Transport, port::Port};

/// How a guest's programs find it: `/dev/virtio-ports/` and this.
const NAME: &str = "org.underpin.control";

/// Bytes taken in one go: noise is looked through for a header, at some 33 instructions a byte.
const BYTES_AT_ONCE: usize = 512;

/// The port.
pub type ControlPort = Virtio<State>;

/// State of a control port.
pub struct State {
    port: Box<Transport<Port>>,
    inbox: Inbox,
    was_open: bool,
}

impl ControlPort {
    /// A port that nobody uses yet.
    pub fn new(window: usize) -> Self {
        let state = State {
            port: Box::new(Transport::new(Port::new(NAME))),
            inbox: Inbox::default(),
            was_open: false,
        };
        Self::with(window, state)
    }

    /// The next request, if one is complete.
    pub fn request(&self) -> Option<requests::Incoming> {
        requests::next(&mut self.state.lock().inbox)
    }

    /// Writes what the guest's programs have asked and what waits for them.
    pub fn write(&self, vm: VmId, to: &mut impl Sink) {
        to.put(kind::ASKED, self.state.lock().inbox.bytes());
        to.begin(kind::ANSWERS);
        sessions::waiting(vm, |bytes| to.add(bytes));
    }

    /// Takes over what was asked; `false` where it is more than there is room for.
    #[must_use]
    pub fn take_asked(&self, asked: &[u8]) -> bool {
        requests::ring();
        self.state.lock().inbox.push(asked) == asked.len()
    }

    /// Takes over what waits for its programs; `false` where it is more than there is room for.
    #[must_use]
    pub fn take_answers(&self, vm: VmId, answers: &[u8]) -> bool {
        let is_open = self.state.lock().was_open;
        sessions::take_over(vm, is_open, answers)
    }
}

impl State {
    /// Moves bytes both ways. What there is no room for waits in the guest's own buffers, and what the
    /// guest does not take waits with [`sessions`].
    fn move_bytes(&mut self, vm: &Guest) {
        let memory = vm.memory();
        let Self { port, inbox, .. } = self;
        if port.converse(&memory) {
            vm.put_off_device_work();
        }
        let is_open = port.device().is_open();
        if is_open != self.was_open {
            self.was_open = is_open;
            // Whoever opens it next has nothing to do with what was asked before.
            inbox.clear();
            sessions::set_open(vm.id, is_open);
        }
        if !inbox.has_frame() {
            let room = inbox.room().min(BYTES_AT_ONCE);
            let progress = port.transmit(&memory, room, |bytes| _ = inbox.push(bytes));
            if progress.more && !inbox.has_frame() {
                vm.put_off_device_work();
            }
        }
        if sessions::give(vm.id, |bytes| port.receive(&memory, bytes)) {
            vm.put_off_device_work();
        }
    }
}

impl Behaviour for State {
    type Device = Port;

    fn transport(&mut self) -> &mut Transport<Port> {
        &mut self.port
    }

    /// Goes on where there is more room, here or at the guest.
    fn work(&mut self, vm: &Guest) {
        let had_frame = self.inbox.has_frame();
        self.move_bytes(vm);
        if !had_frame && self.inbox.has_frame() {
            requests::ring();
        }
    }

    fn notified(&mut self, vm: &Guest) {
        self.move_bytes(vm);
        if self.inbox.has_frame() {
            // Its answer may have found no room until now.
            requests::ring();
        }
    }

    fn restore(&mut self, record: &state::Device) -> bool {
        let is_restored = self.port.restore(record);
        self.was_open = self.port.device().is_open();
        is_restored
    }
}
