//! Guests' programs: what a seed makes of the instructions that the machine's guests know.

use crate::driver;
use machine_host::instruction::{DMB, DSB, Instruction as I, Operation, TLBI, put};
use machine_host::rng::Rng;

/// Where a guest's memory begins.
pub const RAM: u64 = 0x4000_0000;
/// What the hypervisor writes of its own accord: the device tree.
pub const TREE: std::ops::Range<u64> = RAM + (2 << 20)..RAM + (2 << 20) + (64 << 10);
/// The first page behind it.
const DATA: u64 = TREE.end;
/// Pages of the kernel that programs read and write as data.
const KERNEL_DATA: u64 = RAM + 0x8000;
/// Bytes of a kernel's file: program and data.
const KERNEL_SIZE: usize = 0xc000;
/// A word for each vCPU that is done, and a counter that all add to.
const DONE: u64 = DATA;
/// See [`DONE`].
pub const COUNTER: u64 = DATA + 0x100;
/// The first page of data that vCPUs read and write at random, and how many there are.
const PAGES: u64 = DATA + 0x1000;
const PAGE_COUNT: u64 = 40;
/// What `HLT` asks: a VM begins, a vCPU is done.
pub const BEGINS: u16 = 1;
/// See [`BEGINS`].
pub const ENDS: u16 = 2;
/// What `HLT` says: x10 must be x11.
pub const COMPARE: u16 = 11;
/// The register that holds the VM's number, and that of the vCPU's.
pub const VM: u8 = 28;
/// See [`VM`].
pub const VCPU: u8 = 27;

const PSCI_CPU_ON: u64 = 0xc400_0003;
const PSCI_SYSTEM_OFF: u64 = 0x8400_0008;
const PSCI_VERSION: u64 = 0x8400_0000;
const NEVER_SHARE: u64 = abi::hypercall::NEVER_SHARE as u64;
/// The interrupt controller's distributor.
pub const DISTRIBUTOR: u64 = 0x0800_0000;
const REDISTRIBUTORS: u64 = 0x080a_0000;
const UART: u64 = 0x0900_0000;
const TIMER: u64 = 27;
const DISK_INTERRUPT: u16 = 48;
/// Its word in a run of the distributor's registers, and its bit there.
const DISK_BIT: (u64, u64) = (4, 1 << 16);
/// System registers: op0, op1, CRn, CRm, op2.
const IAR: [u8; 5] = [3, 0, 12, 12, 0];
const EOIR: [u8; 5] = [3, 0, 12, 12, 1];
const PMR: [u8; 5] = [3, 0, 4, 6, 0];
const GROUP: [u8; 5] = [3, 0, 12, 12, 7];
/// The register that sends interrupts to vCPUs: bit n of it is for vCPU n, and bits 24 to 27 are which.
pub const SGI: [u8; 5] = [3, 0, 12, 11, 5];
/// The guest's counter.
pub const TIME: [u8; 5] = [3, 3, 14, 0, 2];
const TIMER_CONTROL: [u8; 5] = [3, 3, 14, 3, 1];
const TIMER_COMPARE: [u8; 5] = [3, 3, 14, 3, 2];
const ID: [u8; 5] = [3, 0, 0, 4, 0];
/// Registers of a vCPU's own that keep what it writes.
const OWN: [[u8; 5]; 13] = [
    [3, 0, 13, 0, 4],
    [3, 3, 13, 0, 2],
    [3, 3, 13, 0, 3],
    [3, 0, 13, 0, 1],
    [3, 0, 2, 0, 0],
    [3, 0, 2, 0, 1],
    [3, 0, 6, 0, 0],
    [3, 0, 5, 2, 0],
    [3, 0, 5, 1, 0],
    [3, 0, 5, 1, 1],
    [3, 0, 10, 2, 0],
    [3, 0, 10, 3, 0],
    [3, 0, 7, 4, 0],
];

/// A program that grows.
#[derive(Default)]
pub struct Program {
    words: Vec<I>,
    /// What each step is, for people, and where it begins.
    notes: Vec<(usize, String)>,
    /// What registers of [`OWN`] hold.
    own: [Option<u64>; OWN.len()],
    /// Letters that it says.
    letters: u64,
}

impl Program {
    /// Adds instructions.
    pub fn add(&mut self, instructions: impl IntoIterator<Item = I>) {
        self.words.extend(instructions);
    }

    /// What comes next, for people.
    pub fn note(&mut self, what: String) {
        self.notes.push((self.words.len(), what));
    }

    /// Puts `value` into register `to`.
    pub fn put(&mut self, to: u8, value: u64) {
        self.add(put(to, value));
    }

    /// Stores `value` of 2^`size` bytes at `at`.
    pub fn store(&mut self, size: u8, at: u64, value: u64) {
        self.put(1, at);
        self.put(2, value);
        self.add([I::Store {
            size,
            from: 2,
            base: 1,
            offset: 0,
        }]);
    }

    /// Loads 2^`size` bytes from `at` into x3.
    pub fn load(&mut self, size: u8, at: u64) {
        self.put(1, at);
        self.add([I::Load {
            size,
            to: 3,
            base: 1,
            offset: 0,
        }]);
    }

    /// Copies register `from` to register `to`.
    pub fn move_to(&mut self, to: u8, from: u8) {
        self.add([I::CalculateWith(Operation::Add, to, from, 0)]);
    }

    /// Calls firmware, or the hypervisor.
    pub fn call(&mut self, arguments: &[u64]) {
        for (register, argument) in arguments.iter().enumerate() {
            self.put(register as u8, *argument);
        }
        self.add([I::Hypercall(0)]);
    }

    /// Adds one to the word at `at`, whoever else does.
    pub fn count(&mut self, at: u64) {
        self.put(1, at);
        self.add([
            I::LoadExclusive(2, 1),
            I::CalculateWith(Operation::Add, 2, 2, 1),
            I::StoreExclusive(3, 2, 1),
            I::BranchIf(true, 3, -3),
        ]);
    }

    /// Sets the timer and waits for its interrupt; ends whatever else comes.
    pub fn sleep(&mut self, counts: u32) {
        self.put(2, counts.into());
        self.add([
            I::System(false, 1, TIME),
            I::Calculate(Operation::Add, 1, 1, 2),
            I::System(true, 1, TIMER_COMPARE),
        ]);
        self.put(1, 1);
        self.add([I::System(true, 1, TIMER_CONTROL)]);
        // Again while nothing, or something else, has come.
        self.add([
            I::Wait,
            I::System(false, 2, IAR),
            I::CalculateWith(Operation::Subtract, 3, 2, 1023),
            I::BranchIf(false, 3, -3),
            I::CalculateWith(Operation::Subtract, 3, 2, TIMER as u16),
            I::BranchIf(false, 3, 3),
            I::System(true, 2, EOIR),
            I::Branch(-7),
            I::System(true, 31, TIMER_CONTROL),
            I::System(true, 2, EOIR),
        ]);
    }

    /// Lets the disk's interrupt come to the first vCPU, or not.
    pub fn enable_disk_interrupt(&mut self, enable: bool) {
        let (word, bit) = DISK_BIT;
        let register = if enable { 0x100 } else { 0x180 };
        self.store(2, DISTRIBUTOR + register + word, bit);
    }

    /// Waits for the disk's interrupt, and lets `acknowledge` make the disk lower its line before it ends.
    pub fn wait_for_disk(&mut self, acknowledge: impl FnOnce(&mut Self)) {
        self.add([
            I::Wait,
            I::System(false, 9, IAR),
            I::CalculateWith(Operation::Subtract, 3, 9, 1023),
            I::BranchIf(false, 3, -3),
            I::CalculateWith(Operation::Subtract, 3, 9, DISK_INTERRUPT),
            I::BranchIf(false, 3, 3),
            I::System(true, 9, EOIR),
            I::Branch(-7),
        ]);
        acknowledge(self);
        self.add([I::System(true, 9, EOIR)]);
    }

    /// Its instructions, as words.
    pub fn encode(&self) -> impl Iterator<Item = u32> + use<'_> {
        self.words.iter().map(|word| word.encode())
    }

    /// Instructions so far.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// Goes back to instruction `start` as long as x3 is not zero, asleep before.
    pub fn repeat_until_zero(&mut self, start: usize, counts: u32) {
        let branch = self.words.len();
        self.add([I::Branch(0)]);
        self.sleep(counts);
        self.add([I::Branch(start as i32 - self.words.len() as i32)]);
        self.words[branch] = I::BranchIf(false, 3, (self.words.len() - branch) as i32);
    }

    /// Puts a branch to instruction `end` at `place`, taken where register `register` is zero.
    pub fn branch_if_zero(&mut self, place: usize, register: u8, end: usize) {
        self.words[place] = I::BranchIf(false, register, (end - place) as i32);
    }

    /// Waits until the word at `at` is 1, asleep between two looks.
    pub fn wait_for(&mut self, at: u64) {
        let start = self.words.len();
        self.load(3, at);
        self.add([I::CalculateWith(Operation::Subtract, 3, 3, 1)]);
        self.repeat_until_zero(start, 1_000_000);
    }

    /// Makes the interrupt controller give SGIs and the timer's interrupt to this vCPU.
    pub fn open_interrupts(&mut self, vcpu: u64) {
        let own = REDISTRIBUTORS + vcpu * 0x2_0000;
        if vcpu == 0 {
            self.store(2, DISTRIBUTOR, 0x12);
            let (word, bit) = DISK_BIT;
            self.store(2, DISTRIBUTOR + 0x80 + word, bit);
        }
        self.store(2, own + 0x14, 0);
        self.store(2, own + 0x1_0080, 0xffff_ffff);
        self.store(2, own + 0x1_0100, 1 << TIMER | 0xffff);
        self.put(1, 0xf0);
        self.add([I::System(true, 1, PMR)]);
        self.put(1, 1);
        self.add([I::System(true, 1, GROUP)]);
    }

    /// Stores again and again where vCPU 0 reads blocks to.
    fn hammer(&mut self, rng: &mut Rng) {
        let page = driver::BUFFER + rng.below(driver::CROWDED_PAGES) * 0x1000;
        self.put(1, page + rng.below(512) * 8);
        self.put(2, rng.next());
        self.put(4, 20 + rng.below(1000));
        self.add([
            I::Store {
                size: 3,
                from: 2,
                base: 1,
                offset: 0,
            },
            I::CalculateWith(Operation::Subtract, 4, 4, 1),
            I::BranchIf(true, 4, -2),
        ]);
    }

    /// Writes a register of its own, or finds there what it wrote before.
    fn use_register(&mut self, rng: &mut Rng) {
        let which = rng.below(OWN.len() as u64) as usize;
        match self.own[which] {
            Some(value) if rng.below(2) == 0 => {
                self.add([I::System(false, 10, OWN[which])]);
                self.put(11, value);
                self.add([I::Ask(COMPARE)]);
            }
            _ => {
                let value = rng.next();
                self.put(1, value);
                self.add([I::System(true, 1, OWN[which])]);
                self.own[which] = Some(value);
            }
        }
    }

    fn random_step(&mut self, rng: &mut Rng, (vcpu, vcpus): (u64, u64)) {
        let page = if rng.below(4) == 0 {
            driver::BUFFER + rng.below(driver::CROWDED_PAGES) * 0x1000
        } else {
            PAGES + rng.below(PAGE_COUNT) * 0x1000
        };
        let size = rng.below(4) as u8;
        let place = (rng.below(64) * 8) & !((1 << size) - 1);
        let kernel = KERNEL_DATA + rng.below((KERNEL_SIZE - 0x8000) as u64 / 8) * 8;
        let step = rng.below(28);
        self.note(format!(
            "{} (page {page:#x}, place {place:#x} of {} bytes, kernel {kernel:#x})",
            STEPS[step as usize],
            1 << size
        ));
        match step {
            24.. if vcpu > 0 => self.hammer(rng),
            24.. => self.load(3, page + (place & !7)),
            0..=6 => self.store(size, page + place, rng.next()),
            7..=12 => self.load(size, page + place),
            14 => self.load(3, kernel),
            15 => self.store(3, kernel, rng.next()),
            16 => self.count(COUNTER),
            17 => self.add([[DMB, DSB, TLBI][rng.below(3) as usize]]),
            18 => self.call(&[PSCI_VERSION]),
            // So long that what is due every now and then is done meanwhile.
            19 if rng.below(6) == 0 => self.sleep(4_000_000),
            19 => self.sleep(rng.below(4000) as u32),
            20 if rng.below(4) == 0 => self.add([I::System(false, 4, ID)]),
            13 | 20 => self.use_register(rng),
            21 => {
                self.letters += 1;
                self.put(1, UART);
                self.put(2, u64::from(b'a') + vcpu);
                self.add([I::Store {
                    size: 0,
                    from: 2,
                    base: 1,
                    offset: 0,
                }]);
            }
            22 => {
                self.put(1, 1 << rng.below(vcpus) | rng.below(8) << 24);
                self.add([I::System(true, 1, SGI)]);
            }
            _ => {
                let first = if rng.below(2) == 0 {
                    page
                } else {
                    kernel & !0xfff
                };
                self.call(&[NEVER_SHARE, first, 1 + rng.below(3), rng.below(2)]);
            }
        }
    }
}

/// What steps are, for people.
const STEPS: [&str; 28] = {
    let mut steps = ["stores again and again, or loads"; 28];
    let names = [
        (0, 7, "stores"),
        (7, 13, "loads"),
        (13, 14, "uses a register"),
        (14, 15, "loads of the kernel"),
        (15, 16, "stores into the kernel"),
        (16, 17, "counts"),
        (17, 18, "barrier"),
        (18, 19, "calls firmware"),
        (19, 20, "sleeps"),
        (20, 21, "reads an ID register, or uses one of its own"),
        (21, 22, "says a letter"),
        (22, 23, "sends an interrupt"),
        (23, 24, "lets pages be shared or not"),
    ];
    let mut n = 0;
    while n < names.len() {
        let (mut at, end, name) = names[n];
        while at < end {
            steps[at] = name;
            at += 1;
        }
        n += 1;
    }
    steps
};

/// What a kernel is made by.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The VM's number.
    pub vm: u64,
    /// vCPUs.
    pub vcpus: u64,
    /// Steps of each vCPU.
    pub steps: u64,
    /// Decides the steps.
    pub seed: u64,
    /// Decides the data that lie behind the program; VMs of one such seed share those pages.
    pub data_seed: u64,
    /// It has a network device, among so many VMs; 0: it has none.
    pub peers: u64,
}

/// The flat image of a VM: a program for each vCPU, then data.
pub fn kernel(plan: Plan) -> Vec<u8> {
    // The entry branches to the first vCPU's program; the others' entries are known before they are made.
    let bodies: Vec<Program> = (1..plan.vcpus)
        .map(|vcpu| other(plan, vcpu, &mut Rng::new(plan.seed ^ vcpu)))
        .collect();
    let mut entries = Vec::new();
    let mut words: Vec<u32> = vec![0];
    for body in bodies {
        entries.push(RAM + 4 * words.len() as u64);
        words.extend(body.encode());
    }
    words[0] = I::Branch(words.len() as i32).encode();
    let first = first(plan, &entries, &mut Rng::new(plan.seed));
    words.extend(first.encode());
    let mut image: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    assert!(
        image.len() <= 0x8000,
        "a program of {} bytes leaves its room",
        image.len()
    );
    image.resize(0x8000, 0);
    let mut data = Rng::new(plan.data_seed);
    while image.len() < KERNEL_SIZE {
        image.extend(data.next().to_le_bytes());
    }
    image
}

/// How many letters a VM says.
pub fn letters(plan: Plan) -> u64 {
    let entries = vec![0; plan.vcpus as usize];
    let others = (1..plan.vcpus).map(|vcpu| other(plan, vcpu, &mut Rng::new(plan.seed ^ vcpu)));
    let first = first(plan, &entries, &mut Rng::new(plan.seed));
    others.chain([first]).map(|program| program.letters).sum()
}

/// The steps of a VM's vCPUs, with the address at which each begins, a line each.
pub fn describe(plan: Plan) -> Vec<String> {
    let mut at = 1;
    let mut lines = Vec::new();
    let mut tell = |vcpu: u64, program: &Program| {
        for (place, what) in &program.notes {
            let pc = RAM + 4 * (at + *place) as u64;
            lines.push(format!("  vCPU {vcpu}, {pc:#x}: {what}"));
        }
        at += program.words.len();
        RAM + 4 * (at - program.words.len()) as u64
    };
    let entries: Vec<u64> = (1..plan.vcpus)
        .map(|vcpu| tell(vcpu, &other(plan, vcpu, &mut Rng::new(plan.seed ^ vcpu))))
        .collect();
    tell(0, &first(plan, &entries, &mut Rng::new(plan.seed)));
    lines
}

fn begin(plan: Plan, vcpu: u64) -> Program {
    let mut program = Program::default();
    program.put(VM, plan.vm);
    program.put(VCPU, vcpu);
    program
}

fn first(plan: Plan, entries: &[u64], rng: &mut Rng) -> Program {
    let mut program = begin(plan, 0);
    program.add([I::Ask(BEGINS)]);
    program.open_interrupts(0);
    for (number, entry) in entries.iter().enumerate() {
        program.call(&[PSCI_CPU_ON, number as u64 + 1, *entry, 0]);
    }
    let mut requests = 0;
    program.open_disk();
    let has_network = plan.peers > 0;
    if has_network {
        program.open_network();
    }
    let mut frames = 0;
    for _ in 0..plan.steps {
        let step = rng.below(16);
        if step < 2 && rng.below(12) == 0 {
            program.reset_disk(rng, requests);
            requests = 0;
        } else if step < 2 {
            program.use_disk(rng, requests);
            requests += 1;
        } else if step == 2 && has_network && rng.below(8) == 0 {
            program.reset_network(rng, frames, (plan.vm, plan.peers));
            frames = 0;
        } else if step == 2 && has_network {
            program.send_frame(rng, frames, (plan.vm, plan.peers));
            frames += 1;
        } else if step < 5 && has_network {
            program.take_frame();
        } else {
            program.random_step(rng, (0, plan.vcpus));
        }
    }
    for vcpu in 1..plan.vcpus {
        program.wait_for(DONE + 8 * vcpu);
    }
    program.load(3, COUNTER);
    program.add([I::Ask(ENDS)]);
    program.call(&[PSCI_SYSTEM_OFF]);
    program.add([I::Branch(0)]);
    program
}

fn other(plan: Plan, vcpu: u64, rng: &mut Rng) -> Program {
    let mut program = begin(plan, vcpu);
    program.open_interrupts(vcpu);
    for _ in 0..plan.steps {
        program.random_step(rng, (vcpu, plan.vcpus));
    }
    program.add([I::Ask(ENDS)]);
    program.store(3, DONE + 8 * vcpu, 1);
    // WFI without an interrupt that it would take: its VM ends.
    program.add([
        I::System(false, 2, IAR),
        I::System(true, 2, EOIR),
        I::Wait,
        I::Branch(-3),
    ]);
    program
}
