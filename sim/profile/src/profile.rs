//! What is counted, and how it is written.

use crate::options::Options;
use sim_qemu::{
    private::{CpuState, Current},
    refuse,
};
use std::{fmt::Write as _, fs, mem};

/// Results are written each time that so many instructions more were executed: many a machine is killed in the end.
const WRITE_EVERY: u64 = 4_000_000;
/// The instruction at which a CPU waits for an interrupt (Arm ARM, WFI).
const WFI: u32 = 0xd503_207f;
/// Long visits that are kept, the first ones.
const VISITS: u64 = 10_000;

/// A block of code as it was translated, perhaps more than once.
struct Block {
    address: u64,
    instructions: u64,
    is_images: bool,
    /// A CPU waits behind it, which ends a visit.
    waits: bool,
    /// How often it was executed, in visits that have ended.
    times: u64,
}

/// A CPU in a visit, or not.
struct Cpu {
    state: CpuState,
    /// The blocks of the visit, in the order in which they were first executed, and how often each was.
    blocks: Vec<usize>,
    times: Vec<u64>,
    instructions: u64,
}

/// All that is counted.
pub struct Profile {
    options: Options,
    /// Where QEMU keeps the image's first byte, once it was entered.
    host: Option<u64>,
    current: Option<Current>,
    blocks: Vec<Block>,
    cpus: Vec<Cpu>,
    executed: u64,
    write_at: u64,
    visits: u64,
    told: String,
}

impl Profile {
    /// Nothing is counted yet.
    ///
    /// # Errors
    /// The results cannot be written.
    pub fn new(options: Options) -> Result<Self, String> {
        let profile = Self {
            options,
            host: None,
            current: None,
            blocks: Vec::new(),
            cpus: Vec::new(),
            executed: 0,
            write_at: WRITE_EVERY,
            visits: 0,
            told: String::new(),
        };
        profile.write().map(|()| profile)
    }

    /// A block is translated that begins at a virtual address, which QEMU keeps at `host`; its number. `last` is its last
    /// instruction.
    ///
    /// Guests may have code at the image's addresses: it is the image's where QEMU keeps it there, too.
    pub fn translated(
        &mut self,
        (address, host): (u64, u64),
        instructions: u64,
        last: u32,
    ) -> usize {
        let Options { from, bytes, .. } = self.options;
        if address == from && self.host.is_none() {
            self.host = Some(host);
        }
        let offset = address.wrapping_sub(from);
        let is_images = offset < bytes && self.host.is_some_and(|it| it + offset == host);
        self.blocks.push(Block {
            address,
            instructions,
            is_images,
            waits: last == WFI,
            times: 0,
        });
        self.blocks.len() - 1
    }

    /// The CPU that runs begins with a block.
    pub fn executes(&mut self, number: usize) {
        let cpu = self.cpu();
        let Some(block) = self.blocks.get(number) else {
            return;
        };
        if !block.is_images {
            return self.leaves(cpu);
        }
        let waits = block.waits;
        let on = &mut self.cpus[cpu];
        if on.times.len() <= number {
            on.times.resize(self.blocks.len(), 0);
        }
        if on.times[number] == 0 {
            on.blocks.push(number);
        }
        on.times[number] += 1;
        on.instructions += block.instructions;
        if waits {
            self.leaves(cpu);
        }
    }

    /// The place of the CPU that runs, in the order in which they came.
    fn cpu(&mut self) -> usize {
        let current = *self
            .current
            .get_or_insert_with(|| Current::of_this_thread().unwrap_or_else(|why| refuse(why)));
        let state = current.get();
        let found = self.cpus.iter().position(|cpu| cpu.state == state);
        found.unwrap_or_else(|| {
            self.cpus.push(Cpu {
                state,
                blocks: Vec::new(),
                times: Vec::new(),
                instructions: 0,
            });
            self.cpus.len() - 1
        })
    }

    /// A CPU waits, or executes something else: its visit, if it was on one, is over.
    fn leaves(&mut self, number: usize) {
        let cpu = &mut self.cpus[number];
        if cpu.blocks.is_empty() {
            return;
        }
        let instructions = mem::take(&mut cpu.instructions);
        let is_long = self.options.over > 0 && instructions > self.options.over;
        let is_told = is_long && self.visits < VISITS;
        self.visits += u64::from(is_told);
        for place in cpu.blocks.drain(..) {
            let times = mem::take(&mut cpu.times[place]);
            let block = &mut self.blocks[place];
            block.times += times;
            if is_told {
                let visit = self.visits;
                let _ = row(&mut self.told, (visit, &number), block, times);
            }
        }
        self.executed += instructions;
        if self.executed >= self.write_at {
            self.write_at = self.executed + WRITE_EVERY;
            self.must_write();
        }
    }

    /// The machine ends: visits that have not ended are told, too.
    pub fn finish(&mut self) {
        (0..self.cpus.len()).for_each(|cpu| self.leaves(cpu));
        self.must_write();
    }

    /// Writes, or ends QEMU.
    fn must_write(&self) {
        self.write().unwrap_or_else(|why| refuse(why));
    }

    /// Writes what was counted in visits that have ended.
    fn write(&self) -> Result<(), String> {
        let mut text = "visit,cpu,address,times,instructions\n".to_owned();
        let executed = self.blocks.iter().filter(|block| block.times > 0);
        for block in executed {
            let _ = row(&mut text, (0, &""), block, block.times);
        }
        text.push_str(&self.told);
        let path = self.options.out.display();
        fs::write(&self.options.out, text)
            .map_err(|error| format!("cannot write '{path}': {error}"))
    }
}

/// A line of the results.
fn row(
    to: &mut String,
    (visit, cpu): (u64, &dyn std::fmt::Display),
    block: &Block,
    times: u64,
) -> std::fmt::Result {
    let (address, instructions) = (block.address, times * block.instructions);
    writeln!(to, "{visit},{cpu},{address:#x},{times},{instructions}")
}
