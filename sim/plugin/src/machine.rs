//! The model, wired to QEMU: which CPU it is, where an access goes, and when turns end.

use crate::{
    code::{Run, Special},
    options::Options,
    ram::Ram,
};
use sim_model::{Access, CSV_HEADER, Level, Machine, MicroTlb, PAGE_SHIFT, Regions, Window};
use sim_qemu::{
    interface as qemu,
    private::{ByteArray, CpuState, Current, Qemu},
    refuse,
};
use std::{
    ffi::{CStr, c_void},
    fs::{self, File, OpenOptions},
    io::Write,
    os::fd::AsRawFd,
    ptr, slice,
    sync::atomic::AtomicU32,
};

/// How many answers of the translation cache are compared with QEMU's after the start.
const COMPARED: u32 = 1 << 16;
/// The low bits of what QEMU says of an access are the translation regime (`MemOpIdx`).
const REGIME: u32 = 0xf;

/// Whose a translation regime is (`ARMMMUIdx` in QEMU's `target/arm/cpu.h`). With the host extensions, a
/// kernel may run at EL2.
const fn level(regime: u32) -> Level {
    match regime & REGIME {
        0 | 1 => Level::User,
        2..=5 => Level::Kernel,
        _ => Level::Hypervisor,
    }
}

/// All that the plugin has.
pub struct Simulation {
    qemu: &'static Qemu,
    options: Options,
    machine: Machine<'static>,
    regions: Regions,
    tlbs: Vec<MicroTlb>,
    to_compare: u32,
    out: File,
    thread: Option<Thread>,
}

/// What is known once QEMU runs CPUs.
struct Thread {
    id: libc::pthread_t,
    current: Current,
    cpus: Vec<CpuState>,
    /// The CPU that was asked for last.
    last: (CpuState, usize),
    ram: Ram,
    x0: *mut qemu::qemu_plugin_register,
    value: *mut ByteArray,
    idle_from_ns: i64,
}

impl Thread {
    /// The number of the CPU that runs.
    #[inline]
    fn cpu(&mut self) -> usize {
        let state = self.current.get();
        if state != self.last.0 {
            let number = self.cpus.iter().position(|cpu| *cpu == state);
            let number = number.unwrap_or_else(|| refuse("QEMU runs a CPU that it never named"));
            self.last = (state, number);
        }
        self.last.1
    }
}

/// The counter window: the file's memory, shared with QEMU, or memory that nobody else reads.
fn window(options: &Options) -> Result<&'static [AtomicU32], String> {
    let Some(path) = &options.window else {
        let words = Window::words_for(&options.topology);
        let words: Vec<AtomicU32> = (0..words).map(|_| AtomicU32::new(0)).collect();
        return Ok(words.leak());
    };
    let failed = |error| format!("cannot open the window '{}': {error}", path.display());
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len() as usize;
    // SAFETY: a new mapping of an open file, wherever there is room; it stays when the file is
    // closed, and is never unmapped.
    let memory = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(failed(std::io::Error::last_os_error()));
    }
    // SAFETY: the mapping is page-aligned, has `bytes` bytes and lives as long as the process. The
    // guest changes it, which is why its words are atomic.
    Ok(unsafe { slice::from_raw_parts(memory.cast::<AtomicU32>(), bytes / 4) })
}

impl Simulation {
    /// Makes the machine; the results' first line is written.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn new(qemu: &'static Qemu, options: Options) -> Result<Self, String> {
        let topology = options.topology.clone();
        let window = Window::new(window(&options)?, &topology).map_err(|bad| bad.to_string())?;
        let failed = |error| format!("cannot write '{}': {error}", options.out.display());
        let mut out = File::create(&options.out).map_err(failed)?;
        out.write_all(CSV_HEADER.as_bytes()).map_err(failed)?;
        Ok(Self {
            qemu,
            tlbs: (0..topology.cpus()).map(|_| MicroTlb::default()).collect(),
            machine: Machine::new(topology, options.geometry, options.slice_ns, window),
            options,
            regions: Regions::default(),
            to_compare: COMPARED,
            out,
            thread: None,
        })
    }

    /// The self-test, on the thread that runs CPUs, before it has run any.
    fn start(&self) -> Result<Thread, String> {
        self.qemu.must_count()?;
        let numbers = 0..self.options.topology.cpus();
        let cpus: Vec<CpuState> = numbers.map(|number| self.qemu.cpu(number)).collect();
        let current = Current::of_this_thread()?;
        let running = cpus.iter().filter(|cpu| **cpu == current.get()).count();
        if running != 1 || cpus.iter().any(|cpu| cpu.is_null()) {
            return Err("the self-test failed: the CPU that runs is not one of QEMU's CPUs".into());
        }
        let idle_from_ns = self.qemu.bias_ns();
        if idle_from_ns < 0 {
            return Err("the self-test failed: the clock's bias is not where it should be".into());
        }
        let topology = &self.options.topology;
        let maps = fs::read_to_string("/proc/self/maps")
            .map_err(|error| format!("cannot read QEMU's memory map: {error}"))?;
        let ram = fs::canonicalize(&self.options.ram)
            .map_err(|error| format!("cannot open '{}': {error}", self.options.ram.display()))?;
        let (base, bytes) = (topology.base(), topology.node_bytes());
        let ram = Ram::find(&maps, &ram, topology.nodes(), base, bytes);
        if ram.is_empty() {
            return Err(format!(
                "QEMU's memory is not in '{}'; give each node a memory-backend-file there, node0.ram and so on",
                self.options.ram.display()
            ));
        }
        Ok(Thread {
            // SAFETY: asks for the calling thread's name, and has no precondition.
            id: unsafe { libc::pthread_self() },
            current,
            last: (ptr::null_mut(), 0),
            cpus,
            ram,
            x0: register(c"x0")?,
            value: self.qemu.byte_array(),
            idle_from_ns,
        })
    }

    /// Code is about to be translated. The first time, the self-test is done; always, that it is
    /// the same thread.
    pub fn translates(&mut self) {
        let Some(thread) = &self.thread else {
            self.thread = Some(self.start().unwrap_or_else(|why| refuse(why)));
            return;
        };
        // SAFETY: as above.
        if unsafe { libc::pthread_self() } != thread.id {
            refuse("QEMU runs CPUs in several threads; add '-icount shift=0,sleep=off'");
        }
    }

    /// The run of `instructions` that lie on one page of QEMU's memory.
    pub fn run(&self, first: u64, bytes: u64, instructions: u64) -> Run {
        let thread = self.thread.as_ref();
        let physical = thread.and_then(|thread| thread.ram.physical(first));
        let shift = self.machine.line_shift();
        physical.map_or(
            Run {
                line: 0,
                lines: 0,
                instructions,
            },
            |physical| Run {
                line: physical >> shift,
                lines: ((physical + bytes - 1) >> shift) - (physical >> shift) + 1,
                instructions,
            },
        )
    }

    /// A block of code begins.
    #[inline]
    pub fn block(&mut self, run: Run) {
        let Some(thread) = &mut self.thread else {
            return;
        };
        let cpu = thread.cpu();
        let idle_ns = self.qemu.bias_ns() - thread.idle_from_ns;
        self.machine.set_idle(idle_ns.max(0) as u64);
        if self.machine.execute(cpu, run.instructions) {
            self.qemu.end_turn(thread.last.0);
        }
        self.machine
            .fetch(cpu, run.line << self.machine.line_shift(), run.lines);
    }

    /// A block goes on, on its second page.
    pub fn second_page(&mut self, run: Run) {
        if let Some(thread) = &mut self.thread {
            let cpu = thread.cpu();
            self.machine
                .fetch(cpu, run.line << self.machine.line_shift(), run.lines);
        }
    }

    /// An instruction of the running CPU loads or stores.
    #[inline]
    pub fn access(&mut self, info: qemu::qemu_plugin_meminfo_t, address: u64) {
        let Some(thread) = &mut self.thread else {
            return;
        };
        let cpu = thread.cpu();
        // SAFETY: both only take what QEMU just gave apart.
        let (store, bytes) = unsafe {
            (
                qemu::qemu_plugin_mem_is_store(info),
                1 << qemu::qemu_plugin_mem_size_shift(info),
            )
        };
        let regime = info & REGIME | u32::from(store) << 4;
        self.machine.set_level(cpu, level(regime));
        let page = address >> PAGE_SHIFT;
        let known = self.tlbs[cpu].get(page, regime);
        let frame = if let Some(frame) = known.filter(|_| self.to_compare == 0) {
            frame
        } else {
            let Some(found) = physical(info, address).map(|found| found >> PAGE_SHIFT) else {
                return;
            };
            if known.is_some_and(|known| known != found) {
                refuse("the self-test failed: a translation changed, and nothing showed it");
            }
            self.to_compare -= u32::from(known.is_some());
            self.tlbs[cpu].put(page, regime, found);
            found
        };
        let physical = frame << PAGE_SHIFT | address & ((1 << PAGE_SHIFT) - 1);
        let access = if store { Access::Store } else { Access::Load };
        self.machine.access(cpu, physical, bytes, access);
    }

    /// A special instruction is about to be executed.
    pub fn special(&mut self, special: Special) {
        match special {
            Special::Translation => self.tlbs.iter_mut().for_each(MicroTlb::flush),
            Special::Wait => {
                if let Some(thread) = &mut self.thread {
                    self.machine.rest(thread.cpu());
                }
            }
            Special::Begin => {
                let region = self.x0();
                self.regions.begin(region, &self.machine);
            }
            Special::End => {
                let region = self.x0();
                let lines = self.regions.end(region, &self.machine);
                self.machine.publish();
                if let Err(error) = self.out.write_all(lines.as_bytes()) {
                    refuse(format_args!("cannot write the results: {error}"));
                }
            }
        }
    }

    /// The running CPU's `x0`.
    fn x0(&self) -> u64 {
        let Some(thread) = &self.thread else { return 0 };
        // SAFETY: the handle is that of a register that all CPUs have, and the call is made where
        // QEMU has saved the registers, because the callback asked for that. It appends to the
        // array, whose last 8 bytes are therefore the value.
        unsafe {
            let length = qemu::qemu_plugin_read_register(thread.x0, thread.value.cast());
            let end = (*thread.value).len as usize;
            if length != 8 || end < 8 {
                refuse("QEMU does not give the value of x0");
            }
            u64::from_le(
                (*thread.value)
                    .data
                    .add(end - 8)
                    .cast::<u64>()
                    .read_unaligned(),
            )
        }
    }
}

/// Where an access goes, if it is memory. To be asked while QEMU makes that access.
fn physical(info: qemu::qemu_plugin_meminfo_t, address: u64) -> Option<u64> {
    // SAFETY: all that is called here is meant for callbacks of memory accesses, in which this is;
    // what is given is valid until the callback ends.
    unsafe {
        let place = qemu::qemu_plugin_get_hwaddr(info, address);
        let is_memory = !place.is_null() && !qemu::qemu_plugin_hwaddr_is_io(place);
        is_memory.then(|| qemu::qemu_plugin_hwaddr_phys_addr(place))
    }
}

/// The handle of a register of the CPU that runs.
fn register(name: &CStr) -> Result<*mut qemu::qemu_plugin_register, String> {
    // SAFETY: called on a thread that runs a CPU. QEMU gives an array of descriptors that is ours;
    // each has a name that ends with 0 and lives as long as QEMU.
    let found = unsafe {
        let array = &*qemu::qemu_plugin_get_registers();
        let first = array.data.cast::<c_void>();
        let first = first.cast::<qemu::qemu_plugin_reg_descriptor>();
        let mut all = (0..array.len as usize).map(|index| first.add(index).read_unaligned());
        all.find(|register| CStr::from_ptr(register.name) == name)
    };
    found
        .map(|register| register.handle)
        .ok_or_else(|| "the self-test failed: the CPUs have no x0; use qemu-system-aarch64".into())
}
