//! Small programs for a guest, made here: they mark regions of the measuring machine's results, and wait for the
//! other VMs, so that all begin at one moment without a word of the host's.

/// `hint`s that begin and end a region.
pub const BEGIN: u32 = 96;
pub const END: u32 = 97;
/// The first region's device, once Linux's modules for it are loaded.
const DEVICE: [u32; 3] = [0x7665_642f, 0x7861_642f, 0x0030_2e30]; // "/dev/dax0.0"
/// Where each VM says that it has come to the begin, or to the end, in the memory that all have.
const HERE: u32 = 0;
const DONE: u32 = 16;

/// A program that begins or ends a region of the measuring machine's results, by this hint, and exits.
pub fn mark(hint: u32, region: u32) -> Vec<u8> {
    elf(&[marked(hint, region).as_slice(), &EXIT].concat())
}

/// A program that waits until all of `vms` VMs have come as far, busily, and begins the region.
pub fn begin_together(vm: u32, vms: u32, region: u32) -> Vec<u8> {
    let mut code = mapping();
    code.push(store(HERE + vm));
    for other in 0..vms {
        // Looks again while there is nothing: cbz w2, the load.
        code.extend([load(HERE + other), 0x34ff_ffe2]);
    }
    code.extend(marked(BEGIN, region));
    elf(&[code.as_slice(), &EXIT].concat())
}

/// A program that ends the region and sleeps until all of `vms` VMs have: what they do thereafter is in nobody's way.
pub fn end_together(vm: u32, vms: u32, region: u32) -> Vec<u8> {
    let mut code = marked(END, region).to_vec();
    // The data are behind the branch that `mapping` begins with.
    let data = code.len() as u32 + 1;
    code.extend(mapping());
    code.push(store(DONE + vm));
    for other in 0..vms {
        let pause = data + DEVICE.len() as u32;
        let here = code.len() as u32 + 2;
        code.extend([
            load(DONE + other),
            0x3500_00c2, // cbnz w2: behind the branch below
            address(0, here, pause),
            0xd280_0001,
            0xd280_0ca8, // nanosleep(pause, none)
            0xd400_0001,
            0x17ff_fffa, // b: the load
        ]);
    }
    elf(&[code.as_slice(), &EXIT].concat())
}

/// exit(0).
const EXIT: [u32; 3] = [0xd280_0000, 0xd280_0ba8, 0xd400_0001];

/// x0 = region; the hint.
fn marked(hint: u32, region: u32) -> [u32; 2] {
    [0xd280_0000 | region << 5, 0xd503_201f | hint << 5]
}

/// ldr w2, [x9, word]
fn load(word: u32) -> u32 {
    0xb940_0122 | word << 10
}

/// str w2, [x9, word], of the 1 that [`mapping`] leaves there
fn store(word: u32) -> u32 {
    0xb900_0122 | word << 10
}

/// adr xN, the word `to` of the code, by the word `from`
fn address(register: u32, from: u32, to: u32) -> u32 {
    0x1000_0000 | (to.wrapping_sub(from) & 0x7_ffff) << 5 | register
}

/// The memory that all VMs have is at x9, and w2 is 1; where there is none, the program exits with 1.
fn mapping() -> Vec<u32> {
    let data = DEVICE.len() as u32 + 4;
    let mut code = vec![0x1400_0000 | (data + 1)];
    code.extend(DEVICE);
    code.extend([0, 0, 20_000_000, 0]); // 20 ms
    code.extend([
        0x9280_0c60, // openat(here, DEVICE, to read and write)
        address(1, data + 2, 1),
        0xd280_0042,
        0xd280_0708,
        0xd400_0001,
        0xb7f8_0140, // failed: exit(1)
        0xaa00_03e4, // mmap(anywhere, 2 MiB, to read and write, shared, it, 0)
        0xd280_0000,
        0xd2a0_0401,
        0xd280_0062,
        0xd280_0023,
        0xd280_0005,
        0xd280_1bc8,
        0xd400_0001,
        0xb6f8_0080, // succeeded: go on
        0xd280_0020,
        0xd280_0ba8,
        0xd400_0001,
        0xaa00_03e9, // x9 = it
        0x5280_0022, // w2 = 1
    ]);
    code
}

/// An executable of this code.
fn elf(code: &[u32]) -> Vec<u8> {
    const AT: u64 = 0x40_0000;
    let headers = 64 + 56;
    let size = headers + 4 * code.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    // An executable for AArch64; one program header; no sections.
    elf.extend([2_u16, 183].iter().flat_map(|half| half.to_le_bytes()));
    elf.extend(1_u32.to_le_bytes());
    elf.extend(
        [AT + headers, 64, 0]
            .iter()
            .flat_map(|word| word.to_le_bytes()),
    );
    elf.extend(0_u32.to_le_bytes());
    elf.extend(
        [64_u16, 56, 1, 0, 0, 0]
            .iter()
            .flat_map(|half| half.to_le_bytes()),
    );
    // All of it is loaded, to be read and executed.
    elf.extend([1_u32, 5].iter().flat_map(|word| word.to_le_bytes()));
    elf.extend(
        [0, AT, AT, size, size, 0x1000]
            .iter()
            .flat_map(|word| word.to_le_bytes()),
    );
    elf.extend(code.iter().flat_map(|word| word.to_le_bytes()));
    elf
}
