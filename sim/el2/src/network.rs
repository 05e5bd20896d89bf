//! A guest's driver of its network device: virtio-net over virtio-mmio (virtio 1.2, 5.1), a frame at a time.

use crate::program::{Program, RAM};
use crate::wire::{self, LONGEST, OUTSIDE, SHORTEST};
use machine_host::instruction::{Instruction as I, Operation, put};
use machine_host::rng::Rng;
use std::ops::Range;

/// The device, behind disk, random bits, console and balloon.
const DEVICE: u64 = 0x0a00_0000 + 4 * 0x200;
const AREA: u64 = RAM + (3 << 20) + 0x4_0000;
/// Rings, a page each, for receiving and for sending.
const RECEIVE: [u64; 3] = [AREA, AREA + 0x1000, AREA + 0x2000];
const SEND: [u64; 3] = [AREA + 0x3000, AREA + 0x4000, AREA + 0x5000];
/// How many frames it has taken.
const SEEN: u64 = AREA + 0x6000;
/// Pages for frames that come, and the one of what is sent.
const BUFFERS: u64 = AREA + 0x8000;
const BUFFER_COUNT: u64 = 4;
const OUT: u64 = AREA + 0xc000;
/// Bytes before a frame: `struct virtio_net_hdr_v1`. So that the frame itself is aligned, it begins 4 behind.
pub const HEADER: u64 = 12;
const FRAME: u64 = OUT + 16;
/// What the device writes.
pub const ANSWERS: [Range<u64>; 3] = [
    RECEIVE[2]..RECEIVE[2] + 0x1000,
    SEND[2]..SEND[2] + 0x1000,
    BUFFERS..BUFFERS + BUFFER_COUNT * 0x1000,
];
const NEXT_FEATURES: u64 = 0x24;
const WRITES: u64 = 2 << 32;

/// What `HLT` says: a frame is made, whose number it wants in x14; it is sent, x12 bytes at x10; one has come, x12 bytes with
/// its header at x10.
pub const FRAME_BEGINS: u16 = 6;
/// See [`FRAME_BEGINS`].
pub const FRAME_GOES: u16 = 7;
/// See [`FRAME_BEGINS`].
pub const FRAME_COMES: u16 = 8;

impl Program {
    /// Sets the device's queues up and gives it buffers.
    pub fn open_network(&mut self) {
        let mut set = |register: u64, value: u64| self.store(2, DEVICE + register, value);
        for (register, value) in [
            (0x70, 1),
            (0x70, 3),
            (NEXT_FEATURES, 1),
            (0x20, 1),
            (0x70, 0xb),
        ] {
            set(register, value);
        }
        for (queue, [descriptors, available, used]) in (0..).zip([RECEIVE, SEND]) {
            for (register, value) in [
                (0x30, queue),
                (0x38, BUFFER_COUNT),
                (0x80, descriptors),
                (0x90, available),
                (0xa0, used),
                (0x44, 1),
            ] {
                set(register, value);
            }
        }
        set(0x70, 0xf);
        for number in 0..BUFFER_COUNT {
            let descriptor = RECEIVE[0] + 16 * number;
            self.store(3, descriptor, BUFFERS + 0x1000 * number);
            self.store(3, descriptor + 8, 0x800 | WRITES);
            self.store(1, RECEIVE[1] + 4 + 2 * number, number);
        }
        self.store(1, RECEIVE[1] + 2, BUFFER_COUNT);
        self.store(2, DEVICE + 0x50, 0);
        self.store(3, SEND[0], OUT + 4);
    }

    /// Begins to send a frame that `rng` names; its bytes.
    fn begin_frame(&mut self, rng: &mut Rng, number: u16, (vm, vms): (u64, u64)) -> u64 {
        let to = match rng.below(vms + 2) {
            other if other < vms => wire::address(other as u8),
            other if other == vms => [0xff; 6],
            _ => wire::address(OUTSIDE),
        };
        let lies = rng.below(12) == 0;
        let from = wire::address(if lies { 0x77 } else { vm as u8 });
        let length = SHORTEST + 8 * rng.below((LONGEST - SHORTEST) / 8);
        self.note(format!("sends {length} bytes to {to:x?} from {from:x?}"));
        for (n, word) in (0..).zip(wire::head(to, from)) {
            self.store(3, FRAME + 8 * n, word);
        }
        for _ in 0..3 {
            self.store(3, FRAME + 24 + 8 * rng.below(length / 8 - 3), rng.next());
        }
        self.add([I::Ask(FRAME_BEGINS)]);
        self.add(put(1, FRAME + 16));
        self.add([I::Store {
            size: 3,
            from: 14,
            base: 1,
            offset: 0,
        }]);
        self.store(3, SEND[0] + 8, HEADER + length);
        self.store(1, SEND[1] + 4 + 2 * (u64::from(number) % BUFFER_COUNT), 0);
        self.add(put(10, FRAME));
        self.add(put(12, length));
        self.add([I::Ask(FRAME_GOES)]);
        // From here on the device may take it, also before it is told.
        self.store(1, SEND[1] + 2, u64::from(number) + 1);
        self.store(2, DEVICE + 0x50, 1);
        length
    }

    /// Sends a frame, as number `number` of VM `vm` of so many, and waits until it has gone.
    pub fn send_frame(&mut self, rng: &mut Rng, number: u16, vm: (u64, u64)) {
        self.begin_frame(rng, number, vm);
        let start = self.len();
        self.load(1, SEND[2] + 2);
        self.add([I::CalculateWith(Operation::Subtract, 3, 3, number + 1)]);
        self.repeat_until_zero(start, 100_000);
        self.store(2, DEVICE + 0x64, 1);
    }

    /// Begins to send a frame, resets the device after a while, and sets it up again: what is in memory from then on is
    /// no frame.
    pub fn reset_network(&mut self, rng: &mut Rng, number: u16, vm: (u64, u64)) {
        let length = self.begin_frame(rng, number, vm);
        self.note("resets its network device meanwhile".into());
        if rng.below(2) == 0 {
            self.sleep(rng.below(4000) as u32);
        }
        self.store(2, DEVICE + 0x70, 0);
        for _ in 0..4 {
            self.store(3, FRAME + 24 + 8 * rng.below(length / 8 - 3), rng.next());
        }
        for place in [RECEIVE[1] + 2, RECEIVE[2] + 2, SEND[1] + 2, SEND[2] + 2] {
            self.store(1, place, 0);
        }
        self.store(3, SEEN, 0);
        self.sleep(4095);
        self.open_network();
    }

    /// Takes a frame, if one has come.
    pub fn take_frame(&mut self) {
        use Operation::{Add, And, Or, Subtract};
        self.note("takes a frame, if one has come".into());
        let word = |size: u8, to: u8, base: u8, offset: u16| I::Load {
            size,
            to,
            base,
            offset,
        };
        let store = |size: u8, from: u8, base: u8, offset: u16| I::Store {
            size,
            from,
            base,
            offset,
        };
        self.add(put(1, SEEN));
        self.add([word(3, 4, 1, 0)]);
        self.add(put(2, RECEIVE[2]));
        self.add([word(1, 3, 2, 2), I::Calculate(Subtract, 3, 3, 4)]);
        let branch = self.len();
        self.add([I::Branch(1)]);
        self.add(put(5, BUFFER_COUNT - 1));
        // Twice the slot in x7, eight times in x6.
        self.add([
            I::Calculate(And, 5, 4, 5),
            I::Calculate(Add, 7, 5, 5),
            I::Calculate(Add, 6, 7, 7),
            I::Calculate(Add, 6, 6, 6),
            I::Calculate(Add, 6, 6, 2),
            word(2, 8, 6, 4),
            word(2, 12, 6, 8),
            I::Calculate(Or, 9, 8, 31),
        ]);
        self.add([I::Calculate(Add, 9, 9, 9); 12]);
        self.add(put(10, BUFFERS));
        self.add([
            I::Calculate(Add, 10, 10, 9),
            // So that it is there to be looked at.
            word(3, 3, 10, 0),
            I::Ask(FRAME_COMES),
            I::CalculateWith(Add, 4, 4, 1),
            store(3, 4, 1, 0),
        ]);
        self.add(put(2, RECEIVE[1]));
        self.add([
            I::Calculate(Add, 7, 7, 2),
            store(1, 8, 7, 4),
            I::CalculateWith(Add, 4, 4, BUFFER_COUNT as u16),
            store(1, 4, 2, 2),
        ]);
        self.store(2, DEVICE + 0x50, 0);
        let end = self.len();
        self.branch_if_zero(branch, 3, end);
    }
}
