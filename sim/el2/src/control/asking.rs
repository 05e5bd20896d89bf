//! What is asked, as a seed has it.

use crate::bundle;
use crate::control::{Asked, Control, Phase, What};
use abi::Text;
use abi::bundle::VM_AUTOSTART;
use abi::coherence::SWITCHES;
use abi::control::{
    EventsRequest, FrameHeader, MAGIC, MoveRequest, ReadRequest, ReclaimRequest, SetRequest,
    TRACE_ALL, TraceRequest, VmName, request,
};
use machine_host::machine;
use zerocopy::IntoBytes;

/// Requests that name a VM and nothing else.
const ABOUT: [u32; 8] = [
    request::START,
    request::STOP,
    request::KILL,
    request::PAUSE,
    request::RESUME,
    request::CONTINUE,
    request::RESET,
    request::PAUSE,
];
/// Requests that read, of the machine or of a VM.
const READS: [u32; 8] = [
    request::LIST,
    request::LIST,
    request::SHOW,
    request::NODES,
    request::CPUS,
    request::REGIONS,
    request::PAGES,
    request::PAGE_COUNTS,
];

impl Control {
    fn send(&mut self, asked: Asked, payload: &[u8]) {
        self.tell(|| {
            let name = asked.vm.map_or(String::new(), |vm| format!(" vm{vm}"));
            format!("asks {}{name}, number {}", asked.kind, asked.tag)
        });
        let Some(header) = FrameHeader::of(asked.kind, asked.tag, &[payload]) else {
            return;
        };
        if let (request::KILL | request::RESET, Some(vm)) = (asked.kind, asked.vm) {
            self.known[vm].may_be_ended = true;
        }
        // A pause counts where it is the only thing that is asked.
        if let Some(vm) = asked.vm {
            match asked.kind {
                request::PAUSE if self.asked.is_empty() => self.known[vm].is_to_go_on = false,
                request::START..=request::RESET | request::CONTINUE => {
                    self.known[vm].is_to_go_on = true;
                }
                _ => {}
            }
        }
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(payload);
        self.asked.push_back(asked);
        machine::with(|machine| machine.tell(&bytes));
    }

    fn new_asked(&mut self, kind: u32, vm: Option<usize>, names: bool, what: What) -> Asked {
        self.tag += 1;
        Asked {
            kind,
            tag: self.tag,
            vm,
            names,
            what,
        }
    }

    /// A VM to ask about, or a name that nobody has.
    fn any_vm(&mut self) -> (Option<usize>, VmName) {
        let number = self.rng.below(8 * self.known.len() as u64 + 1) as usize / 8;
        match self.known.get(number) {
            Some(vm) => (Some(number), vm.name),
            None => (None, VmName::new("nobody").unwrap_or_default()),
        }
    }

    /// Asks about a VM.
    pub fn ask_about(&mut self, kind: u32, vm: usize) {
        let name = self.known[vm].name;
        let asked = self.new_asked(kind, Some(vm), true, What::Nothing);
        self.send(asked, name.as_bytes());
    }

    /// Goes on counting frames, or switches the machine off.
    pub fn ask_last(&mut self) {
        match self.phase {
            Phase::Counts(from) => {
                let asked = self.new_asked(request::RECOUNT, None, false, What::Nothing);
                self.send(asked, &from.to_le_bytes());
            }
            Phase::SwitchesOff => {
                let asked = self.new_asked(request::POWER_OFF, None, false, What::Nothing);
                self.send(asked, &[]);
            }
            _ => {}
        }
    }

    pub(super) fn ask_something(&mut self) {
        let (vm, name) = self.any_vm();
        match self.rng.below(20) {
            0..9 => {
                let kind = ABOUT[self.rng.below(ABOUT.len() as u64) as usize];
                let asked = self.new_asked(kind, vm, true, What::Nothing);
                self.send(asked, name.as_bytes());
            }
            9..13 => {
                let kind = READS[self.rng.below(READS.len() as u64) as usize];
                let is_of_all = kind == request::LIST && self.rng.below(2) == 0;
                let of_machine =
                    [request::NODES, request::CPUS, request::REGIONS].contains(&kind) || is_of_all;
                let name = if of_machine { VmName::default() } else { name };
                let asked =
                    self.new_asked(kind, vm.filter(|_| !of_machine), !of_machine, What::Nothing);
                self.send(asked, ReadRequest { name, from: 0 }.as_bytes());
            }
            13..15 => self.create(),
            15 => self.set(vm, name),
            16 => self.ask_more(vm, name),
            17 => self.ask_of_machine(),
            18 => self.malformed(),
            _ => self.noise(),
        }
    }

    fn ask_more(&mut self, vm: Option<usize>, name: VmName) {
        match self.rng.below(3) {
            0 => {
                let bytes = 4096 * self.rng.below(100);
                let asked = self.new_asked(request::RECLAIM, vm, true, What::Nothing);
                self.send(asked, ReclaimRequest { name, bytes }.as_bytes());
            }
            1 => {
                let node = self.rng.below(3);
                let is_there = node < self.nodes as u64;
                let asked = self.new_asked(request::NUMA_MOVE, vm, true, What::Move(is_there));
                self.send(asked, MoveRequest { name, node }.as_bytes());
            }
            _ => {
                let asked = self.new_asked(request::CONSOLE_INPUT, vm, true, What::Nothing);
                let typed = vec![b'x'; self.rng.below(40) as usize];
                self.send(asked, &[name.as_bytes(), &typed].concat());
            }
        }
    }

    fn ask_of_machine(&mut self) {
        match self.rng.below(4) {
            0 => {
                let asked = self.new_asked(request::HELLO, None, false, What::Nothing);
                self.send(asked, &[]);
            }
            1 => {
                let classes = self.rng.below(2) as u32 * TRACE_ALL;
                let asked = self.new_asked(request::TRACE, None, false, What::Nothing);
                let reserved = 0;
                self.send(asked, TraceRequest { classes, reserved }.as_bytes());
            }
            2 => {
                let (cpu, from) = (self.rng.below(4) as u32, self.rng.below(100));
                let asked = self.new_asked(request::EVENTS, None, false, What::Nothing);
                let reserved = 0;
                self.send(
                    asked,
                    EventsRequest {
                        cpu,
                        reserved,
                        from,
                    }
                    .as_bytes(),
                );
            }
            _ => {
                let asked = self.new_asked(request::RECOUNT, None, false, What::Nothing);
                self.send(asked, &0_u64.to_le_bytes());
            }
        }
    }

    fn create(&mut self) {
        let number = self.rng.below(self.known.len() as u64) as usize;
        let mut record = bundle::record(&self.vms[number], &self.vms);
        if self.rng.below(3) == 0 {
            record.flags &= !VM_AUTOSTART;
        }
        let is_wrong = self.rng.below(6) == 0;
        if is_wrong {
            match self.rng.below(8) {
                0 => record.vcpus = 17,
                1 => record.memory += 4096,
                2 => record.cap = 101,
                3 => record.nodes = 1 << 40,
                4 => record.switched = 1 << SWITCHES.len(),
                5 => record.flags = !VM_AUTOSTART,
                6 => record.reserved = 1,
                _ => record.claim = 9,
            }
        }
        let asked = What::Create(Box::new(record), !is_wrong);
        let asked = self.new_asked(request::CREATE, Some(number), false, asked);
        self.send(asked, record.as_bytes());
    }

    fn set(&mut self, vm: Option<usize>, name: VmName) {
        let mut set = SetRequest::about(name);
        let mut is_possible = true;
        match self.rng.below(4) {
            0 => {
                (set.to.cap, set.mask.cap) = (self.rng.below(120) as u16, !0);
                is_possible = set.to.cap <= 100;
            }
            1 => (set.to.weight, set.mask.weight) = (1 + self.rng.below(1000) as u32, !0),
            2 => {
                (set.to.vcpus, set.mask.vcpus) = (2, !0);
                is_possible = false;
            }
            _ => {
                let group = ["all", "others"][self.rng.below(2) as usize];
                set.to.group = Text::new(group).unwrap_or_default();
                set.mask.group = Text::ONES;
            }
        }
        let what = What::Set(Box::new(set), is_possible);
        let asked = self.new_asked(request::SET, vm, true, what);
        self.send(asked, set.as_bytes());
    }

    /// A frame that is none of the protocol's.
    fn malformed(&mut self) {
        let kinds = [
            0,
            16,
            999,
            request::LIST,
            request::KILL,
            request::SET,
            request::CREATE,
        ];
        let kind = kinds[self.rng.below(kinds.len() as u64) as usize];
        let length = 1 + self.rng.below(30) as usize;
        let bytes: Vec<u8> = (0..length).map(|_| self.rng.next() as u8).collect();
        let asked = self.new_asked(kind, None, false, What::Malformed);
        self.send(asked, &bytes);
    }

    /// Bytes that begin no frame, which nobody answers.
    fn noise(&mut self) {
        let length = 1 + self.rng.below(100) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| self.rng.next() as u8).collect();
        if self.rng.below(2) == 0 {
            // What looks like the beginning of one, with a length that none has.
            bytes.extend(MAGIC.to_le_bytes());
            bytes.extend([0xff; 12]);
        }
        machine::with(|machine| machine.tell(&bytes));
    }
}
