//! The way out beside OS-0: a network device of OS-0's, to and from which frames go through an area that it
//! gives (`abi::uplink`). Each frame is copied once into the area, or once out of it before anything looks
//! at it.

use crate::machine;
use abi::uplink::{AREA_BYTES, FRAME_AT, FRAME_MAX, LINK_AT, WANTS_AT};
use arch::{cpu::dsb_sy, frames::Ram};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use machine_locks::{Once, Rank, SpinLock};
use model_uplink::{Next, Uplink};

/// Frames taken in one call; OS-0 calls again for the rest.
const FRAMES_AT_ONCE: u32 = 16;

struct Line {
    area: Ram,
    places: Uplink,
    /// The interrupt that tells OS-0.
    bell: u32,
}

/// What OS-0 has given, while it has.
static LINE: SpinLock<Option<Line>> = SpinLock::new(Rank::PhysicalDevice, None);
/// A switch has a way out.
static PLUGGED: AtomicBool = AtomicBool::new(false);
/// Frames from outside, to it, and lost, by OS-0 or by the card.
static COUNTS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

/// Takes each frame that comes from outside: given at boot.
pub static RECEIVER: Once<fn(&[u8])> = Once::new();

/// A frame has come from outside, by OS-0 or by the card.
pub fn hand_in(frame: &[u8]) {
    if let Some(take) = RECEIVER.get() {
        take(frame);
    }
}

/// Counts a frame.
pub fn count(what: usize) {
    COUNTS[what].fetch_add(1, Ordering::Relaxed);
}

/// Goes on through an area of [`AREA_BYTES`] of OS-0's memory, at `places` where it did before; `false` where it has
/// one, or `may` says no.
pub fn open((area, bell): (Ram, u32), places: Option<Uplink>, may: impl FnOnce() -> bool) -> bool {
    debug_assert!(area.size() == AREA_BYTES);
    let mut line = LINE.lock();
    if line.is_some() || !may() {
        return false;
    }
    let places = places.unwrap_or_else(|| {
        area.zero(0, AREA_BYTES as usize);
        Uplink::new()
    });
    let new = line.insert(Line { area, places, bell });
    new.show_link();
    true
}

/// The area that OS-0 gave, the interrupt that tells it, and the slots that are next: as a record has them.
pub fn given() -> Option<[u64; 4]> {
    let line = LINE.lock();
    line.as_ref().map(|line| {
        let [to_os0, from_os0] = line.places.next();
        [line.area.start().0, line.bell.into(), to_os0, from_os0]
    })
}

/// Nothing of the area is read or written any more: frames go nowhere.
pub fn close() {
    *LINE.lock() = None;
}

/// A switch has a way out from now on, or none has one any more, and OS-0 sees that.
pub fn set_plugged(plugged: bool) {
    let mut line = LINE.lock();
    PLUGGED.store(plugged, Ordering::Relaxed);
    if let Some(line) = &mut *line {
        line.show_link();
        machine::os0::interrupt(line.bell);
    }
}

/// Sends a frame that is in two parts; `false` where it is lost.
pub fn send(head: &[u8], rest: &[u8]) -> bool {
    let mut line = LINE.lock();
    line.as_mut().is_some_and(|line| line.send(head, rest))
}

/// OS-0 has put frames into the area: takes some, and says whether there may be more.
pub fn receive() -> bool {
    let mut frame = [0; FRAME_MAX];
    for _ in 0..FRAMES_AT_ONCE {
        let taken = LINE.lock().as_mut().and_then(|line| line.take(&mut frame));
        match taken {
            None => return false,
            Some(0) => count(2),
            Some(bytes) => {
                count(0);
                hand_in(&frame[..bytes]);
            }
        }
    }
    true
}

/// Frames that came from OS-0, went to it, and were lost.
pub fn counts() -> [u64; 3] {
    COUNTS.each_ref().map(|count| count.load(Ordering::Relaxed))
}

impl Line {
    fn show_link(&mut self) {
        let link = PLUGGED.load(Ordering::Relaxed).into();
        self.area.write_u16(LINK_AT, link);
        dsb_sy();
    }

    fn send(&mut self, head: &[u8], rest: &[u8]) -> bool {
        let (area, bytes) = (self.area, head.len() + rest.len());
        let Some(at) = self.places.fill(bytes, |at| area.read_u16(at)) else {
            return false;
        };
        area.write(at + FRAME_AT, head);
        area.write(at + FRAME_AT + head.len() as u64, rest);
        area.write_u16(at, bytes as u16);
        // OS-0 asks for the interrupt, and then looks for frames once more.
        dsb_sy();
        if area.read_u16(WANTS_AT) != 0 {
            area.write_u16(WANTS_AT, 0);
            machine::os0::interrupt(self.bell);
        }
        true
    }

    /// Copies the next frame from OS-0: how many bytes, 0 where it is none.
    fn take(&mut self, into: &mut [u8; FRAME_MAX]) -> Option<usize> {
        let area = self.area;
        let (at, bytes) = match self.places.take(|at| area.read_u16(at)) {
            Next::Nothing => return None,
            Next::Nonsense(at) => (at, 0),
            Next::Frame { at, bytes } => (at, bytes),
        };
        area.read(at + FRAME_AT, &mut into[..bytes]);
        area.write_u16(at, 0);
        Some(bytes)
    }
}
