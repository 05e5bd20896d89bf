//! Random bits: for guests' seeds, their TRNG calls and entropy devices, and for EL2's own keys. All come from
//! the sources that the machine has ([`model_entropy`]). A machine without any has none to give, and says so.

use crate::machine::cpu;
use arch::{features, frames::Ram, psci, timer};
use core::sync::atomic::{AtomicBool, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{Pa, PaRange};
use model_entropy::{Generator, Pool, Source, ask_firmware};
use model_machine_tree::{Conduit, Machine};

/// Words of the CPU's generator, and of a seed in the device tree at most.
const WORDS: usize = 8;
/// How often the CPU is asked for one that has none ready.
const TRIES: usize = 64;

/// What each CPU's own generator is forked from, once.
static ROOT: SpinLock<Option<Generator>> = SpinLock::new(Rank::Heap, None);
static IS_SEEDED: AtomicBool = AtomicBool::new(false);

/// Gathers what the machine's sources give, and takes the seed out of its device tree: whoever reads the tree
/// later finds another one, of which nothing of EL2's follows.
pub fn init(tree: &Machine, blob: PaRange) {
    let mut pool = Pool::default();
    pool.stir(timer::now());
    if let Some(seed) = seed_in(tree, blob) {
        let mut bytes = [0; 8 * WORDS];
        let size = bytes.len().min(seed.size() as usize) & !7;
        seed.read(0, &mut bytes[..size]);
        let (words, _) = bytes[..size].as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        pool.add(Source::Tree, &words.collect::<heapless::Vec<_, WORDS>>());
    }
    if tree.psci.conduit == Conduit::Smc
        && let Some(words) = ask_firmware(psci::ask)
    {
        pool.add(Source::Firmware, &words);
    }
    let ready = (0..TRIES).filter_map(|_| features::random());
    let words: heapless::Vec<_, WORDS> = ready.take(WORDS).collect();
    pool.add(Source::Cpu, &words);
    for source in Source::ALL.into_iter().filter(|it| pool.counts(*it)) {
        log::info!("random bits come from {}", source.name());
    }
    let Some(generator) = pool.generator() else {
        return log::warn!(
            "no source of random bits: guests get no seeds and no entropy device, and equal pages are not \
             found; give the machine rng-seed in its device tree, RNDR, or firmware with TRNG"
        );
    };
    *ROOT.lock() = Some(generator);
    IS_SEEDED.store(true, Ordering::Release);
    renew(tree, blob);
}

/// Puts a new seed into a device tree that has one: for the next image, or for OS-0.
pub fn renew(tree: &Machine, blob: PaRange) {
    if let (Some(seed), Some(root)) = (seed_in(tree, blob), &mut *ROOT.lock()) {
        let mut bytes = [0; 8 * WORDS];
        let size = bytes.len().min(seed.size() as usize);
        root.fill(&mut bytes[..size]);
        seed.write(0, &bytes[..size]);
    }
}

/// Where the seed of a device tree is.
fn seed_in(tree: &Machine, blob: PaRange) -> Option<Ram> {
    let (at, size) = tree.rng_seed?;
    // SAFETY: the device tree is RAM, and has its seed there, by the reader; nothing else of EL2 uses it.
    Some(unsafe { Ram::new(Pa(blob.start.0 + u64::from(at)), size.into()) })
}

/// Whether there are random bits.
pub fn is_seeded() -> bool {
    IS_SEEDED.load(Ordering::Acquire)
}

/// Lets `with` use this CPU's generator; `None` on a machine without a source.
fn with<R>(with: impl FnOnce(&mut Generator) -> R) -> Option<R> {
    let own = &cpu::this().entropy;
    let first = || ROOT.lock().as_mut().map(Generator::fork);
    let mut generator = own.take().or_else(first)?;
    let result = with(&mut generator);
    own.set(Some(generator));
    Some(result)
}

/// Random words; `None` on a machine without a source.
pub fn words<const N: usize>() -> Option<[u64; N]> {
    with(Generator::words)
}

/// Fills `bytes`, as far as there is a source.
pub fn fill(bytes: &mut [u8]) {
    with(|generator| generator.fill(bytes));
}
