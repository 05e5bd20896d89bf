//! What a frame holds: by way of the caches, in memory, and in instruction caches.

use crate::frames::bad;
use model_addr::{FRAME_SIZE, Mfn};

/// What a frame that nobody has zeroed yet contains.
const POISON: u8 = 0xa5;

const SIZE: usize = FRAME_SIZE as usize;

type Page = Box<[u8; SIZE]>;

/// Which earlier contents of a frame are still somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stale {
    /// None.
    Nothing,
    /// Of whoever has the frame now.
    Own,
    /// Of whoever had it before.
    Others,
}

/// A frame as those see it who look at it in different ways. Data caches hold all that was stored through them
/// until they are cleaned, and instruction caches all that the frame ever held: hardware may do either.
#[derive(Debug)]
pub(crate) struct Views {
    /// What caches give; `None` where the frame was not zeroed since it was last free.
    cache: Option<Page>,
    /// What memory holds, to the point of coherency; `None` where it is what caches give.
    memory: Option<Page>,
    /// Caches have what memory has not: it is written back some time.
    dirty: bool,
    data: Stale,
    instructions: Stale,
}

impl Default for Views {
    /// What the machine was started with.
    fn default() -> Self {
        Self {
            cache: None,
            memory: Some(poison()),
            dirty: false,
            data: Stale::Others,
            instructions: Stale::Others,
        }
    }
}

fn poison() -> Page {
    Box::new([POISON; SIZE])
}

impl Views {
    /// A page that a boot loader wrote through the caches, since when instruction caches were emptied.
    pub(crate) fn written(bytes: &[u8]) -> Self {
        let mut page = Box::new([0; SIZE]);
        page[..bytes.len()].copy_from_slice(bytes);
        Self {
            cache: Some(page),
            dirty: true,
            instructions: Stale::Nothing,
            ..Self::default()
        }
    }

    /// The frame has nobody any more, or somebody new.
    pub(crate) fn forget(&mut self) {
        let held = self.cache.take();
        *self = Self {
            memory: self.memory.take().or(held),
            ..Self::default()
        };
    }

    /// All is zeroes, in caches and in memory; whether the frame held something.
    pub(crate) fn zero(&mut self) -> bool {
        let held = self.cache.replace(Box::new([0; SIZE]));
        self.agree();
        held.is_some()
    }

    fn agree(&mut self) {
        (self.memory, self.dirty, self.data) = (None, false, Stale::Nothing);
    }

    /// No instruction cache holds anything of the frame.
    pub(crate) fn drop_code(&mut self) {
        self.instructions = Stale::Nothing;
    }

    /// What caches give.
    pub(crate) fn cached(&self) -> Option<&[u8; SIZE]> {
        self.cache.as_deref()
    }

    pub(crate) fn load(&self, offset: u64, into: &mut [u8]) {
        match &self.cache {
            Some(page) => into.copy_from_slice(&page[offset as usize..][..into.len()]),
            None => into.fill(POISON),
        }
    }

    /// As [`Self::load`], of what memory holds.
    pub(crate) fn load_uncached(&self, offset: u64, into: &mut [u8]) {
        match &self.memory {
            Some(page) => into.copy_from_slice(&page[offset as usize..][..into.len()]),
            None => self.load(offset, into),
        }
    }

    fn outdate(&mut self) {
        for stale in [&mut self.data, &mut self.instructions] {
            if *stale == Stale::Nothing {
                *stale = Stale::Own;
            }
        }
    }

    /// Stores through the caches into a frame that was zeroed.
    pub(crate) fn store(&mut self, frame: Mfn, offset: u64, bytes: &[u8]) {
        self.outdate();
        let Some(page) = &mut self.cache else {
            bad(&format_args!("{frame} was never zeroed"))
        };
        self.memory.get_or_insert_with(|| page.clone());
        self.dirty = true;
        page[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    /// Stores all of a frame through the caches, whatever it held.
    pub(crate) fn fill(&mut self, frame: Mfn, bytes: &[u8; SIZE]) {
        self.cache.get_or_insert_with(poison);
        self.store(frame, 0, bytes);
    }

    /// Stores into memory past the caches, which may give what was there before.
    pub(crate) fn store_uncached(&mut self, offset: u64, bytes: &[u8]) {
        self.outdate();
        let now = self.memory.take().or_else(|| self.cache.clone());
        let mut page = now.unwrap_or_else(poison);
        page[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        self.memory = Some(page);
    }

    /// Cleans and drops the lines of data caches.
    pub(crate) fn clean(&mut self) {
        if self.cache.is_none() {
            return;
        }
        if let Some(memory) = self.memory.take()
            && !self.dirty
        {
            self.cache = Some(memory);
        }
        self.agree();
    }

    /// Stores bytes into a frame that nobody has seen since it was zeroed, and cleans their lines.
    pub(crate) fn write(&mut self, frame: Mfn, offset: u64, bytes: &[u8]) {
        let before = (self.dirty, self.data, self.instructions);
        self.store(frame, offset, bytes);
        (self.dirty, self.data, self.instructions) = before;
        match (&mut self.memory, self.data) {
            (memory, Stale::Nothing) => *memory = None,
            (Some(page), _) => page[offset as usize..][..bytes.len()].copy_from_slice(bytes),
            (None, _) => {}
        }
    }

    /// What a guest that has the frame could find in it that it must not, alone or with others.
    pub(crate) fn fault(&self, shared: bool) -> Option<&'static str> {
        match (self.data, self.instructions) {
            (Stale::Others, _) => Some("memory holds data of who had it before"),
            (_, Stale::Others) => Some("an instruction cache may hold code of who had it before"),
            (Stale::Own, _) if shared => Some("memory and caches do not agree"),
            (_, Stale::Own) if shared => Some("an instruction cache may hold older code"),
            _ => None,
        }
    }
}
