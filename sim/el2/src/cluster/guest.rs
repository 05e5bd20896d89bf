//! The VM over two to seven hosts: its vCPUs write numbers that grow into words of their own, in pages that all write into, and read
//! those of others. Whoever has seen a number must see all that was written before it.

use crate::program::{BEGINS, COMPARE, DISTRIBUTOR, Program, RAM, SGI, TIME, TREE, VCPU};
use abi::Text;
use abi::bundle::{DEFAULT_GROUP, NO_ENTRY, VM_AUTOSTART, VM_RESTART, VmRecord};
use abi::coherence::SWITCHES;
use abi::control::{FrameHeader, ReplyHeader, VmName, code};
use abi::span::PARTED;
use machine_host::instruction::{DMB, DSB, Instruction as I, Operation, TLBI};
use machine_host::machine::{Observer, Registers};
use machine_host::rng::Rng;
use model_addr::Ipa;
use std::cell::Cell;
use std::rc::Rc;
use zerocopy::{FromBytes, FromZeros};

/// Its name.
pub const NAME: &str = "wide";
/// A host's share of its memory.
const SHARE: u64 = 2 << 20;
/// The pages that all use, which are at home on all hosts.
const PAGE_COUNT: u64 = 12;
/// In some lines of each page, a word for each vCPU; in the first also one that all add to, and the time at which each vCPU was there.
const WORDS_MAX: u64 = 7;
const LINE: u64 = 64;
const LINES: [u64; 4] = [0, 0x7c0, 0x800, 0xfc0];
const ADDED: u64 = 8 * WORDS_MAX;
const TIMES: u64 = 0x100;
/// A page with a word for each vCPU that is done.
const DONE: u64 = TREE.end + PAGE_COUNT * 0x1000;

/// What `HLT` says: x3 was read from x1.
const SAW: u16 = 12;
/// It is x4 o'clock, and x3 is past.
const KNOWS: u16 = 13;
/// The register with the number of this life of the VM, in bits that steps of programs leave free.
const LIFE: u8 = 26;
const STEP_BITS: u32 = 16;

const PSCI_CPU_OFF: u64 = 0x8400_0002;
const PSCI_CPU_ON: u64 = 0xc400_0003;
const PSCI_AFFINITY_INFO: u64 = 0xc400_0004;
const PSCI_SYSTEM_RESET: u64 = 0x8400_0009;
/// What the distributor says that it is, and where.
const PIDR2: [u64; 2] = [DISTRIBUTOR + 0xffe8, 0x3b];

/// ID_AA64ISAR0_EL1, all of it but AES, which hosts may lack, and what a VM over several hosts finds there where one of them
/// has no atomics, and others have no dot products: random numbers.
const FEATURES: ([u8; 5], u64, u64) = ([3, 0, 0, 6, 0], !0xf0, 1 << 60);

/// Stores x2 at x1.
const STORE: I = I::Store {
    size: 3,
    from: 2,
    base: 1,
    offset: 0,
};

/// A word that is written: by which step, and where.
type Write = (u64, u64);

/// What a VM is made by, and what its vCPUs do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its hosts, a bit each.
    pub hosts: u16,
    /// What they do for its pages otherwise than where nothing is said.
    switched: u16,
    /// Its kernel.
    pub image: Vec<u8>,
    /// What each vCPU writes, in order.
    writes: Vec<Vec<Write>>,
}

/// A vCPU's program, which grows.
struct Body {
    program: Program,
    vcpu: u64,
    /// How many hosts the VM has.
    hosts: u64,
    writes: Vec<Write>,
    /// How often it adds to the word of each page.
    added: [u64; PAGE_COUNT as usize],
}

/// The VM's name, as it is asked for.
pub fn name() -> VmName {
    Text::new(NAME).unwrap_or_default()
}

/// Whether a piece of a host's log says that it has ended for good.
pub fn is_to_be_started(log: &str) -> bool {
    let ends = |line: &str| ended(line).is_some_and(|why| why != "reset");
    log.lines().any(ends)
}

/// Why it has ended, if a line of a log says so.
pub fn ended(line: &str) -> Option<&str> {
    let (_, why) = line.split_once("wide has ended: ")?;
    Some(why)
}

/// Whether a line of a log says that it begins on all its hosts.
pub fn has_begun(line: &str) -> bool {
    line.ends_with("wide runs on all its hosts")
}

/// Whether a line of a log says that a vCPU has come from another host.
pub fn has_come(line: &str) -> bool {
    line.contains("wide: vCPU ") && line.ends_with("has come")
}

/// Whether that follows from the loss of a host, here or where that was noticed first.
pub fn is_of_loss(why: &str) -> bool {
    why.ends_with("is lost") || why == "another host could not go on with it"
}

/// Whether that is how it ends on a host that is drained.
pub fn is_of_drain(why: &str) -> bool {
    why == PARTED
}

/// Where a page is: behind the kernel in the first host's share, behind the device tree in the second's.
fn page(number: u64, hosts: u64) -> u64 {
    let each = PAGE_COUNT / hosts;
    let host = (number / each).min(hosts - 1);
    let first = match host {
        0 => RAM + (1 << 20),
        1 => TREE.end,
        _ => RAM + host * SHARE,
    };
    first + (number - host * each) * 0x1000
}

impl Plan {
    /// The plan of `seed` on a cluster of so many hosts; with `reads_features` each vCPU looks what its CPU has.
    pub fn new(seed: u64, hosts: u8, reads_features: bool) -> Self {
        let mut rng = Rng::new(seed);
        let left_out = if hosts == 2 {
            2
        } else {
            rng.below(hosts.into())
        };
        let has_all = u64::from(hosts) <= WORDS_MAX && seed.is_multiple_of(2);
        let all = (1 << hosts) - 1;
        let hosts: u16 = if has_all { all } else { all & !(1 << left_out) };
        let shares = u64::from(hosts.count_ones());
        let vcpus = (2 + rng.below(3)).max(shares);
        let steps = 40 + rng.below(160);
        let pages = 1 + rng.below(PAGE_COUNT);
        let mut bodies: Vec<Body> = (0..vcpus)
            .map(|vcpu| Body::new(vcpu, shares, (vcpus, pages, steps), &mut rng))
            .collect();
        if reads_features {
            bodies.iter_mut().for_each(Body::read_features);
        }
        let added = |page| bodies.iter().map(|body| body.added[page]).sum();
        let added: [u64; PAGE_COUNT as usize] = std::array::from_fn(added);
        let closer = rng.below(vcpus);
        for body in &mut bodies {
            if body.vcpu == closer {
                body.close(vcpus, &added);
            } else {
                body.end(rng.below(2) == 0);
            }
        }
        Self {
            hosts,
            switched: switched(seed),
            image: image(&bodies),
            writes: bodies.into_iter().map(|body| body.writes).collect(),
        }
    }

    /// How many vCPUs it has.
    pub fn vcpus(&self) -> u64 {
        self.writes.len() as u64
    }

    /// Its description, whose kernel is entry 0.
    pub fn record(&self) -> VmRecord {
        let mut record = VmRecord::new_zeroed();
        record.name = name();
        record.flags = VM_AUTOSTART | VM_RESTART;
        (record.hosts, record.vcpus) = (self.hosts, self.writes.len() as u32);
        record.memory = u64::from(self.hosts.count_ones()) * SHARE;
        record.base = record.memory;
        record.switched = self.switched;
        record.weight = 256;
        (record.kernel, record.initrd) = (0, NO_ENTRY);
        record.group = Text::new(DEFAULT_GROUP).unwrap_or_default();
        record
    }
}

/// What the hosts do for its pages otherwise than where nothing is said: in two of three lives nothing. Drawn apart, as that
/// would change all that is drawn behind it.
fn switched(seed: u64) -> u16 {
    let mut rng = Rng::new(!seed);
    if rng.below(3) == 0 {
        rng.below(1 << SWITCHES.len()) as u16
    } else {
        0
    }
}

/// A branch behind the other vCPUs' programs, which are there, and what starts them, before the first one's.
fn image(bodies: &[Body]) -> Vec<u8> {
    let Some((first, others)) = bodies.split_first() else {
        return Vec::new();
    };
    let mut start = Program::default();
    start.add([I::Ask(BEGINS)]);
    let mut at = 1;
    for body in others {
        let entry = RAM + 4 * at as u64;
        start.move_to(3, LIFE);
        start.call(&[PSCI_CPU_ON, body.vcpu, entry]);
        start.move_to(10, 0);
        start.put(11, 0);
        start.add([I::Ask(COMPARE)]);
        at += body.program.len();
    }
    let programs = others.iter().map(|body| &body.program);
    let programs = programs.chain([&start, &first.program]);
    let words = programs.flat_map(Program::encode);
    let words = [I::Branch(at as i32).encode()].into_iter().chain(words);
    words.flat_map(u32::to_le_bytes).collect()
}

impl Body {
    fn new(vcpu: u64, hosts: u64, (vcpus, pages, steps): (u64, u64, u64), rng: &mut Rng) -> Self {
        let mut body = Self {
            program: Program::default(),
            vcpu,
            hosts,
            writes: Vec::new(),
            added: [0; _],
        };
        if vcpu > 0 {
            // The context that it was started with.
            body.program.move_to(LIFE, 0);
        }
        body.program.put(VCPU, vcpu);
        body.program.open_interrupts(vcpu);
        for step in 1..=steps {
            body.step(step, (vcpus, pages), rng);
        }
        body
    }

    fn step(&mut self, step: u64, (vcpus, pages): (u64, u64), rng: &mut Rng) {
        // Those in the middle are at home on different hosts.
        let number = (PAGE_COUNT - pages) / 2 + rng.below(pages);
        let other = rng.below(vcpus);
        let line = page(number, self.hosts) + LINES[rng.below(4) as usize];
        match rng.below(24) {
            0..=5 => self.write(step, line + 8 * self.vcpu),
            6..=11 => {
                self.program.load(3, line + 8 * other);
                self.program.add([I::Ask(SAW)]);
            }
            12 | 13 => {
                self.added[number as usize] += 1;
                self.program.count(page(number, self.hosts) + ADDED);
            }
            14 => self.program.add([[DMB, DSB, TLBI][rng.below(3) as usize]]),
            15 => {
                self.program.put(1, 1 << other | rng.below(8) << 24);
                self.program.add([I::System(true, 1, SGI)]);
            }
            16 if rng.below(4) == 0 => {
                self.program.load(2, PIDR2[0]);
                self.compare(PIDR2[1]);
            }
            16 => {
                // vCPU 0 is on.
                self.program.call(&[PSCI_AFFINITY_INFO, 0, 0]);
                self.program.move_to(3, 0);
                self.compare(0);
            }
            17 | 18 => {
                self.program
                    .put(1, page(number, self.hosts) + TIMES + 8 * self.vcpu);
                self.program.add([I::System(false, 2, TIME), STORE]);
            }
            19 | 20 => {
                self.program
                    .load(3, page(number, self.hosts) + TIMES + 8 * other);
                self.program.add([I::System(false, 4, TIME), I::Ask(KNOWS)]);
            }
            21 => self.program.sleep(rng.below(1_000_000) as u32),
            _ => self.program.sleep(rng.below(60_000) as u32),
        }
    }

    /// Writes this step's number, and finds it there.
    fn write(&mut self, step: u64, at: u64) {
        self.writes.push((step, at));
        self.program.put(1, at);
        self.program.put(2, step);
        let number = I::Calculate(Operation::Or, 2, 2, LIFE);
        self.program.add([number, STORE]);
        self.program.load(3, at);
        self.program.move_to(11, 2);
        self.program.move_to(10, 3);
        self.program.add([I::Ask(COMPARE)]);
    }

    /// The CPU must have what all hosts have, be it on one that has more.
    fn read_features(&mut self) {
        self.program.add([I::System(false, 3, FEATURES.0)]);
        self.program.put(2, FEATURES.1);
        self.program.add([I::Calculate(Operation::And, 3, 3, 2)]);
        self.compare(FEATURES.2);
    }

    /// x3 must be that.
    fn compare(&mut self, value: u64) {
        self.program.move_to(10, 3);
        self.program.put(11, value);
        self.program.add([I::Ask(COMPARE)]);
    }

    /// Says that it is done, and does nothing more, or turns itself off.
    fn end(&mut self, goes_off: bool) {
        self.program.store(3, DONE + 8 * self.vcpu, 1);
        if goes_off && self.vcpu > 0 {
            self.program.call(&[PSCI_CPU_OFF]);
        }
        let start = self.program.len();
        self.program.put(3, 1);
        self.program.repeat_until_zero(start, 10_000_000);
    }

    /// Waits until all others are done, looks at what they have added, and ends this life of the VM.
    fn close(&mut self, vcpus: u64, added: &[u64]) {
        for vcpu in (0..vcpus).filter(|vcpu| *vcpu != self.vcpu) {
            self.program.wait_for(DONE + 8 * vcpu);
        }
        for (number, added) in (0..).zip(added) {
            self.program.load(3, page(number, self.hosts) + ADDED);
            self.compare(*added);
        }
        self.program.call(&[PSCI_SYSTEM_RESET]);
        self.program.add([I::Branch(0)]);
    }
}

/// The answers that a control VM has been told: their tags, and how many records each has; `None`: it is a refusal.
pub fn answers(mut bytes: &[u8]) -> Vec<(u32, Option<u32>)> {
    let mut answers = Vec::new();
    while let Ok((header, rest)) = FrameHeader::read_from_prefix(bytes) {
        let Some((payload, rest)) = rest.split_at_checked(header.length as usize) else {
            break;
        };
        let reply = ReplyHeader::read_from_prefix(payload).ok();
        let count = reply.filter(|(it, _)| it.code == code::OK);
        answers.push((header.tag, count.map(|(it, _)| it.count)));
        bytes = rest;
    }
    answers
}

/// What this host's vCPUs have seen.
#[derive(Debug)]
pub struct Witness {
    writes: Vec<Vec<Write>>,
    /// By vCPU: the number of the life that it is in, and the latest step of each other one that it has seen.
    seen: Vec<(u64, Vec<u64>)>,
    rng: Rng,
    /// Words of others that were looked at.
    looks: Rc<Cell<u64>>,
}

impl Witness {
    /// Of a VM of that plan; `looks` counts what its vCPUs have seen.
    pub fn new(plan: &Plan, seed: u64, looks: Rc<Cell<u64>>) -> Self {
        let vcpus = plan.writes.len();
        Self {
            writes: plan.writes.clone(),
            seen: vec![(0, vec![0; vcpus]); vcpus],
            rng: Rng::new(seed),
            looks,
        }
    }

    /// A vCPU of that life has read a word.
    fn sees(&mut self, (vcpu, life): (usize, u64), at: u64, value: u64) -> Result<(), String> {
        let writer = (at % LINE / 8) as usize;
        let writes = self.writes.get(writer).map_or(&[][..], Vec::as_slice);
        let count = writes.len();
        let Some((known, seen)) = self.seen.get_mut(vcpu) else {
            return Err(format!("there is no vCPU {vcpu}"));
        };
        if *known != life {
            (*known, *seen) = (life, vec![0; self.writes.len()]);
        }
        let Some(latest) = seen.get_mut(writer) else {
            return Err(format!("no vCPU writes {at:#x}"));
        };
        let mut of_this = writes.iter().filter(|(_, place)| *place == at);
        let least = of_this.clone().rfind(|(step, _)| *step <= *latest);
        let least = least.map_or(0, |(step, _)| *step);
        let step = value ^ if value == 0 { 0 } else { life };
        if value != 0 && !of_this.any(|(number, _)| *number == step) || step < least {
            return Err(format!(
                "vCPU {vcpu} in life {life:#x} reads {value:#x} from {at:#x}, of vCPU {writer} with {count} writes: at least step {least} was there"
            ));
        }
        *latest = step.max(*latest);
        self.looks.update(|looks| looks + 1);
        Ok(())
    }
}

impl Observer for Witness {
    fn loaded(&mut self, _: &Registers, _: Ipa, _: u64, _: u64) -> Result<(), String> {
        Ok(())
    }

    fn stored(&mut self, _: &Registers, _: Ipa, _: u64, _: u64) {}

    fn called(
        &mut self,
        vcpu: &mut Registers,
        number: u16,
        _: &mut dyn FnMut(Ipa) -> Option<u64>,
    ) -> Result<(), String> {
        let (own, life) = (vcpu.register(VCPU) as usize, vcpu.register(LIFE));
        let (found, meant) = (vcpu.register(10), vcpu.register(11));
        match number {
            BEGINS => {
                let life = self.rng.next() | 1 << 63;
                vcpu.set_register(LIFE, life >> STEP_BITS << STEP_BITS);
            }
            SAW => return self.sees((own, life), vcpu.register(1), vcpu.register(3)),
            KNOWS if vcpu.register(4) < vcpu.register(3) => {
                let (now, past) = (vcpu.register(4), vcpu.register(3));
                return Err(format!(
                    "vCPU {own} reads {now} from its clock, and knows of {past}"
                ));
            }
            COMPARE if found != meant => {
                return Err(format!(
                    "vCPU {own} at {:#x} finds {found:#x} and not {meant:#x}",
                    vcpu.pc
                ));
            }
            _ => {}
        }
        Ok(())
    }
}
