//! How much of a CPU's stack the EL2 image needs: the frame of each function, and the deepest calls.
//!
//! A stack has 128 KiB and a page behind it that nobody can touch (`hypervisor/src/start/mod.rs`): a call too deep stops
//! the machine. Rust moves values through frames as it likes, so the image itself is asked: the first instructions of each
//! function take its frame from the stack pointer, as the disassembly shows.

use crate::{
    project,
    step::{Outcome, Step},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    path::Path,
};

/// The most bytes of a function's frame.
const FRAME_MAX: u64 = 16 * 1024;
/// Functions with larger frames, and the most bytes of each: they run at boot, once, or as VMs come and go.
const LARGER: [(&str, u64); 12] = [
    ("hypervisor::start_up", 42_000),
    ("hypervisor::beneath::take_over::take_over", 38_000),
    ("hypervisor::drivers::disk::start", 36_000),
    ("hypervisor::drivers::nic::start", 32_000),
    ("model_machine_tree::read::read", 33_000),
    (
        "hypervisor::life::create::with_memory::<hypervisor::life::create::instance::{closure#0}>",
        36_000,
    ),
    (
        "hypervisor::life::create::with_memory::<hypervisor::life::state::make_instance<abi::state::stream::Reader>::{closure#0}>",
        36_000,
    ),
    ("hypervisor::life::reaper::waiting", 33_500),
    ("hypervisor::life::reaper::step", 22_000),
    ("hypervisor::drivers::disk::serve", 20_500),
    ("hypervisor::beneath::calls::other", 18_000),
    ("hypervisor::life::create::devices", 17_000),
];
/// The most bytes that calls take one below the other: an eighth of the stack is left.
const DEPTH_MAX: u64 = 112 * 1024;
/// What may be behind a pointer that some function calls, of what needs much: interrupts between two pieces of work, and the
/// ends of transfers.
const POINTED: [&str; 3] = [
    "hypervisor::run::exit::interrupt::take_interrupts",
    "hypervisor::vms::table::go_on",
    "hypervisor::economy::paging::end",
];

/// What is known of a function.
#[derive(Debug, Default, PartialEq, Eq)]
struct Function {
    name: String,
    frame: u64,
    calls: BTreeSet<u64>,
    /// It calls what a pointer says, too.
    by_pointer: bool,
}

/// The functions of an image, by their addresses.
#[derive(Debug, Default)]
struct Image {
    functions: BTreeMap<u64, Function>,
}

/// Checks the frames of the functions of an ELF file.
///
/// # Errors
/// The functions whose frames are too large, and calls that are too deep.
pub fn check(step: &Step<'_>, elf: &Path) -> Outcome {
    step.doing("reading frames of functions");
    let arguments = ["--disassemble", "--demangle", "--no-show-raw-insn"];
    let image = Image::read(&project::binutil("objdump", &arguments, elf)?);
    if image.functions.values().all(|function| function.frame == 0) {
        return Err(format!("objdump shows no frames in {}", elf.display()));
    }
    let depth = image.judge(&LARGER, &POINTED)?;
    step.say(&format!(
        "the deepest calls take {depth} bytes of the stack, of {DEPTH_MAX} that are allowed"
    ));
    Ok(())
}

impl Image {
    fn read(text: &str) -> Self {
        let mut functions = BTreeMap::new();
        let (mut current, mut probed) = (Function::default(), false);
        let mut start = None;
        for line in text.lines() {
            if let Some((address, name)) = label(line) {
                // Data between instructions have names that mean nothing.
                if !name.starts_with('$') {
                    let before = std::mem::take(&mut current);
                    start
                        .replace(address)
                        .map(|start| functions.insert(start, before));
                    name.clone_into(&mut current.name);
                    probed = false;
                }
                continue;
            }
            match Instruction::read(line) {
                // A large frame is touched page by page, down to the end that is computed first.
                Some(Instruction::End(bytes)) => {
                    current.frame += bytes;
                    probed = true;
                }
                Some(Instruction::Take(_)) if probed => probed = false,
                Some(Instruction::Take(bytes)) => current.frame += bytes,
                Some(Instruction::Call(to)) => drop(current.calls.insert(to)),
                Some(Instruction::CallByPointer) => current.by_pointer = true,
                None => {}
            }
        }
        start.map(|start| functions.insert(start, current));
        Self { functions }
    }

    fn judge(&self, larger: &[(&str, u64)], pointed: &[&str]) -> Outcome<u64> {
        let mut why = String::new();
        for Function { name, frame, .. } in self.functions.values() {
            let known = larger.iter().find(|(known, _)| known == name);
            let most = known.map_or(FRAME_MAX, |(_, most)| *most);
            if *frame > most {
                let _ = writeln!(
                    why,
                    "{name} has a frame of {frame} bytes; at most {most} are allowed: keep what is large on the heap, or make it in place"
                );
            }
        }
        for name in pointed.iter().chain(larger.iter().map(|(name, _)| name)) {
            if self
                .functions
                .values()
                .all(|function| function.name != *name)
            {
                let _ = writeln!(
                    why,
                    "there is no function {name}: xtask/src/frames.rs names it"
                );
            }
        }
        let (depth, path) = self.deepest(pointed);
        if depth > DEPTH_MAX {
            let _ = writeln!(
                why,
                "calls take {depth} bytes of the stack, of which {DEPTH_MAX} are allowed; with frames of 256 bytes or more:"
            );
            for function in path.iter().filter_map(|start| self.functions.get(start)) {
                if function.frame >= 256 {
                    let _ = writeln!(why, "{:>8} {}", function.frame, function.name);
                }
            }
        }
        if why.is_empty() { Ok(depth) } else { Err(why) }
    }

    /// What the calls that take most take, and which they are.
    fn deepest(&self, pointed: &[&str]) -> (u64, Vec<u64>) {
        let is_pointed =
            |(_, function): &(&u64, &Function)| pointed.contains(&function.name.as_str());
        let pointed = self.functions.iter().filter(is_pointed);
        let pointed: Vec<u64> = pointed.map(|(start, _)| *start).collect();
        let mut known = BTreeMap::new();
        for start in self.functions.keys() {
            self.depth(*start, &pointed, &mut known);
        }
        let deepest = known.iter().max_by_key(|(_, (depth, _))| *depth);
        let (mut next, mut path) = (deepest.map(|(start, _)| *start), Vec::new());
        while let Some(start) = next {
            path.push(start);
            next = known.get(&start).and_then(|(_, next)| *next);
        }
        (deepest.map_or(0, |(_, (depth, _))| *depth), path)
    }

    /// What a function takes with those that it calls, and which of them takes most. Calls in a circle count once.
    fn depth(
        &self,
        start: u64,
        pointed: &[u64],
        known: &mut BTreeMap<u64, (u64, Option<u64>)>,
    ) -> u64 {
        if let Some((depth, _)) = known.get(&start) {
            return *depth;
        }
        let Some(function) = self.functions.get(&start) else {
            return 0;
        };
        known.insert(start, (0, None));
        let by_pointer = pointed.iter().filter(|_| function.by_pointer);
        let calls = function.calls.iter().chain(by_pointer);
        let depths = calls.map(|to| (self.depth(*to, pointed, known), *to));
        let most = depths.max().filter(|(depth, _)| *depth > 0);
        let depth = function.frame + most.map_or(0, |(depth, _)| depth);
        known.insert(start, (depth, most.map(|(_, to)| to)));
        depth
    }
}

/// The address and the name in a line such as `0000000000000190 <early_state>:`.
fn label(line: &str) -> Option<(u64, &str)> {
    let (address, name) = line.strip_suffix(">:")?.split_once(" <")?;
    Some((u64::from_str_radix(address, 16).ok()?, name))
}

/// What counts of an instruction.
#[derive(Debug, PartialEq, Eq)]
enum Instruction {
    /// The stack pointer goes down by so many bytes.
    Take(u64),
    /// The stack pointer is about to go down by so many bytes, in steps.
    End(u64),
    /// A call, or a jump to another function.
    Call(u64),
    /// The same to where a register says.
    CallByPointer,
}

impl Instruction {
    /// Reads a line such as `    16640: sub  sp, sp, #6, lsl #12`.
    fn read(line: &str) -> Option<Self> {
        let (address, rest) = line.trim_start().split_once(':')?;
        u64::from_str_radix(address, 16).ok()?;
        let (name, operands) = rest.trim_start().split_once(char::is_whitespace)?;
        let operands: Vec<&str> = operands.split(',').map(str::trim).collect();
        match (name, &*operands) {
            ("sub", ["sp", "sp", bytes, shift @ ..]) => {
                Some(Self::Take(number(bytes)? << shift_of(shift)))
            }
            ("sub", [to, "sp", bytes, shift @ ..]) if to.starts_with('x') => {
                let shift = shift_of(shift);
                (shift > 0).then_some(Self::End(number(bytes)? << shift))
            }
            ("stp" | "str", [.., base, bytes]) if *base == "[sp" => {
                let bytes = bytes.strip_suffix("]!")?.strip_prefix("#-")?;
                Some(Self::Take(parse(bytes)?))
            }
            ("b" | "bl", [to]) => {
                let to = to.split_whitespace().next()?;
                let to = u64::from_str_radix(to.trim_start_matches("0x"), 16).ok()?;
                Some(Self::Call(to))
            }
            ("blr", _) => Some(Self::CallByPointer),
            _ => None,
        }
    }
}

/// The number in an operand such as `#16` or `#0x10`, with a comment behind it or without.
fn number(operand: &str) -> Option<u64> {
    parse(operand.strip_prefix('#')?.split_whitespace().next()?)
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn shift_of(operands: &[&str]) -> u32 {
    let is_shifted = operands
        .first()
        .is_some_and(|shift| shift.starts_with("lsl #12"));
    if is_shifted { 12 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
underpin:     file format elf64-littleaarch64

0000000000001000 <large>:
    1000:      \tstp\tx29, x30, [sp, #-0x30]!
    1004:      \tsub\tx9, sp, #0x6, lsl #12   // =0x6000
    1008:      \tsub\tsp, sp, #0x1, lsl #12   // =0x1000
    100c:      \tcmp\tsp, x9
    1010:      \tstr\txzr, [sp]
    1014:      \tb.ne\t0x1008 <large+0x8>
    1018:      \tsub\tsp, sp, #80
    101c:      \tbl\t0x2000 <small>
    1020:      \tsub\tx0, x29, #16

0000000000001024 <$d>:
    1024:      \t.word\t0x00000010

0000000000002000 <small>:
    2000:\tsub\tsp, sp, #0x1, lsl #12   // =0x1000
    2004:\tstr\txzr, [sp]
    2008:\tsub\tsp, sp, #0x10
    200c:\tldp\tx29, x30, [sp], #16
    2010:\tb\t1000 <large>
";

    #[test]
    fn frames_are_read_from_the_first_instructions() {
        let image = Image::read(TEXT);
        let found: Vec<(&str, u64)> = image
            .functions
            .values()
            .map(|function| (&*function.name, function.frame))
            .collect();
        assert_eq!(found, [("large", 0x6000 + 0x30 + 80), ("small", 0x1010)]);
        assert_eq!(image.functions[&0x1000].calls, [0x2000].into());
        assert_eq!(image.functions[&0x2000].calls, [0x1000].into());
    }

    #[test]
    fn what_is_too_large_is_named() {
        let image = Image::read(TEXT);
        let why = image.judge(&[], &[]).unwrap_err();
        assert!(why.contains("large has a frame of 24704 bytes"), "{why}");
        let depth = image.judge(&[("large", 24_704)], &[]);
        assert_eq!(depth, Ok(24_704 + 0x1010));
        assert!(image.judge(&[("large", 24_703)], &[]).is_err());
    }

    #[test]
    fn calls_too_deep_are_shown() {
        let mut text = String::new();
        for n in 0..9 {
            let next = 0x1000 + (n + 1) * 0x100;
            let _ = write!(
                text,
                "{:016x} <f{n}>:\n {:x}:\tsub\tsp, sp, #0x4, lsl #12\n {:x}:\tbl\t0x{next:x} <next>\n",
                0x1000 + n * 0x100,
                0x1000 + n * 0x100,
                0x1004 + n * 0x100,
            );
        }
        let image = Image::read(&text);
        let why = image.judge(&[], &[]).unwrap_err();
        assert!(why.contains("calls take 147456 bytes"), "{why}");
        assert!(why.contains("16384 f8"), "{why}");
        // A pointer is a call, too.
        let text = text.replace("bl\t0x1400", "blr\tx8");
        let image = Image::read(&text);
        assert_eq!(image.deepest(&[]).0, 5 * 0x4000);
        let (depth, path) = image.deepest(&["f5"]);
        assert_eq!((depth, path.len()), (8 * 0x4000, 8));
        let why = image.judge(&[("f", 1)], &["g"]).unwrap_err();
        assert!(
            why.contains("function f:") && why.contains("function g:"),
            "{why}"
        );
    }
}
