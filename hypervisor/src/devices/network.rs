//! The machine's virtual switches: which there are, and what is plugged into them.
//!
//! A switch is made by the first VM that names it and stays. A VM that ends pulls its cables, and a
//! cable that is dropped gives its port back.

use crate::devices::net::frame::{Accepted, Incoming};
use crate::drivers::{nic, uplink};
use crate::machine::cpu;
use crate::memory::frames;
use abi::Text;
use abi::bundle::{NET_DOWN, NET_UPLINK, NetRecord};
use alloc::sync::Arc;
use arch::timer;
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use machine_locks::{Rank, SpinLock};
use model_addr::{FRAME_SIZE, Pa};
use model_ethernet::{Limit, Mac, PORTS_MAX, PortOptions, PortSet, Refused, Switch, Verdict, Why};

/// The most switches.
const LANS_MAX: usize = 16;
/// Addresses that are learned from outside, for each switch.
const OUTSIDE_MAX: u16 = 256;
/// Frames a second from outside that more than one VM is to get.
const OUTSIDE_FLOODS: Limit = Limit {
    per_second: 1000,
    burst: 100,
};
/// What may come at once where a rate is limited: a tenth of a second's worth, and this at least.
const BURST_BYTES: u64 = 256 * 1024;
const BURST_FRAMES: u64 = 64;
/// A buffer for a frame of any length: 128 KiB.
const SCRATCH_ORDER: u8 = 5;
const SCRATCH_MAX: usize = 4;

/// A VM that has devices at the ends of cables, by their windows.
pub trait Plugged: Send + Sync {
    /// A frame comes to a device; the sender at port `waiter` can wait for buffers.
    fn take(&self, window: usize, incoming: Incoming<'_>, waiter: Option<u8>) -> Accepted;

    /// A device may send: what it waited for may be there.
    fn send(&self, window: usize);

    /// A device was waited for in vain.
    fn pass_over(&self, window: usize);
}

/// What is at the end of a cable.
#[derive(Clone)]
pub enum End {
    /// A VM's device: its window.
    Vm(Arc<dyn Plugged>, usize),
    /// The machine's network card, or OS-0.
    Uplink,
}

/// Where a frame goes.
pub enum Route {
    /// To the end at this port.
    To(u8, End),
    /// To the ends at these ports.
    Flood(PortSet),
    /// Nowhere.
    Drop(Why),
}

/// A switch, and what is plugged into it.
pub struct Lan {
    name: Text<24>,
    inner: SpinLock<Inner>,
}

struct Inner {
    switch: Switch,
    ends: [Option<End>; PORTS_MAX],
    uplink: Option<u8>,
}

/// A port of a switch; given back when it is dropped.
pub struct Cable {
    lan: Arc<Lan>,
    port: u8,
}

/// Why there is no cable.
#[derive(Clone, Copy, Debug)]
pub enum Unplugged {
    /// There are as many switches as there can be.
    TooManySwitches,
    /// All ports are in use, or the address is.
    Switch(Refused),
    /// The machine has no network card.
    NoCard,
}

impl fmt::Display for Unplugged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManySwitches => {
                write!(f, "too many switches (limit {LANS_MAX})")
            }
            Self::Switch(Refused::Full) => {
                write!(f, "all {PORTS_MAX} ports of the switch are in use")
            }
            Self::Switch(Refused::Address(mac)) => {
                write!(f, "another VM on the switch has the address ")?;
                for (n, byte) in mac.iter().enumerate() {
                    write!(f, "{}{byte:02x}", if n == 0 { "" } else { ":" })?;
                }
                write!(f, ": give one of them another mac")
            }
            Self::NoCard => write!(
                f,
                "uplink: this machine has no network card (underpin sim --net)"
            ),
        }
    }
}

static LANS: SpinLock<heapless::Vec<Arc<Lan>, LANS_MAX>> =
    SpinLock::new(Rank::Vm, heapless::Vec::new());

impl Lan {
    /// The switch of that name, made where there is none.
    fn of(name: Text<24>) -> Option<Arc<Self>> {
        let mut lans = LANS.lock();
        if let Some(lan) = lans.iter().find(|lan| lan.name == name) {
            return Some(Arc::clone(lan));
        }
        let inner = Inner {
            switch: Switch::new(timer::frequency()),
            ends: [const { None }; PORTS_MAX],
            uplink: None,
        };
        let lan = Arc::new(Self {
            name,
            inner: SpinLock::new(Rank::Switch, inner),
        });
        lans.push(Arc::clone(&lan)).ok()?;
        Some(lan)
    }

    /// Where a frame from a port goes.
    pub fn route(&self, from: u8, source: Mac, destination: Mac, bytes: u32) -> Route {
        let mut inner = self.inner.lock();
        let now = timer::now();
        match inner.switch.forward(from, source, destination, bytes, now) {
            Verdict::To(port) => match inner.end(port) {
                Some(end) => Route::To(port, end),
                None => Route::Drop(Why::Nowhere),
            },
            Verdict::Flood(ports) => Route::Flood(ports),
            Verdict::Drop(why) => Route::Drop(why),
        }
    }

    /// What is at a port.
    pub fn end(&self, port: u8) -> Option<End> {
        self.inner.lock().end(port)
    }

    /// Puts something at a port, or nothing.
    pub fn set_end(&self, port: u8, end: Option<End>) {
        let mut inner = self.inner.lock();
        let before = inner
            .ends
            .get_mut(usize::from(port))
            .and_then(|place| core::mem::replace(place, end));
        drop(inner);
        // An instance that goes with this goes without the lock.
        drop(before);
    }
}

impl Inner {
    fn end(&self, port: u8) -> Option<End> {
        self.ends.get(usize::from(port)).cloned().flatten()
    }

    fn plug_out(&mut self) -> Result<(), Unplugged> {
        if self.uplink.is_some() {
            return Ok(());
        }
        if !nic::plug() {
            return Err(Unplugged::NoCard);
        }
        let options = PortOptions {
            mac: None,
            learns: OUTSIDE_MAX,
            bytes: None,
            floods: Some(OUTSIDE_FLOODS),
        };
        let port = self.switch.attach(options).map_err(Unplugged::Switch)?;
        self.uplink = Some(port);
        if let Some(place) = self.ends.get_mut(usize::from(port)) {
            *place = Some(End::Uplink);
        }
        Ok(())
    }
}

impl Cable {
    /// A cable to the switch that a record names.
    pub fn plug(record: &NetRecord) -> Result<Self, Unplugged> {
        prepare();
        let lan = Lan::of(record.switch).ok_or(Unplugged::TooManySwitches)?;
        let limit = |per_second: u64, least: u64| {
            let burst = (per_second / 10).max(least);
            (per_second > 0).then_some(Limit { per_second, burst })
        };
        let options = PortOptions {
            mac: Some(record.mac),
            learns: record.learns,
            bytes: limit(record.limit, BURST_BYTES),
            floods: limit(record.floods, BURST_FRAMES),
        };
        let port = {
            let mut inner = lan.inner.lock();
            if record.flags & NET_UPLINK != 0 {
                inner.plug_out()?;
            }
            let port = inner.switch.attach(options).map_err(Unplugged::Switch)?;
            inner.switch.set_link(port, record.flags & NET_DOWN == 0);
            port
        };
        Ok(Self { lan, port })
    }

    /// Its switch.
    pub fn lan(&self) -> &Lan {
        &self.lan
    }

    /// Pulls it, or plugs it in again.
    pub fn set_link(&self, up: bool) {
        self.lan.inner.lock().switch.set_link(self.port, up);
    }

    /// Its port there.
    pub fn port(&self) -> u8 {
        self.port
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.lan.set_end(self.port, None);
        self.lan.inner.lock().switch.detach(self.port);
    }
}

/// EL2's own room for a whole frame; given back when it is dropped.
pub struct Scratch(Option<&'static mut [u8]>);

static SCRATCH: SpinLock<heapless::Vec<&'static mut [u8], SCRATCH_MAX>> =
    SpinLock::new(Rank::Switch, heapless::Vec::new());
/// Scratch buffers that there are, in use or not.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Takes the memory for scratch buffers when a cable is plugged, as far as there is some. One CPU at a time comes here.
fn prepare() {
    while TAKEN.load(Ordering::SeqCst) < SCRATCH_MAX {
        let Some(first) = frames::take_for_el2(cpu::this().node, SCRATCH_ORDER) else {
            return;
        };
        let start = core::ptr::with_exposed_provenance_mut(first.address().0 as usize);
        // SAFETY: these frames were just taken from the pool for EL2, which maps them one to one,
        // and never go back; nothing else names them.
        let bytes = unsafe {
            core::slice::from_raw_parts_mut(start, (FRAME_SIZE as usize) << SCRATCH_ORDER)
        };
        // There are as many places as buffers.
        let _ = SCRATCH.lock().push(bytes);
        TAKEN.fetch_add(1, Ordering::SeqCst);
    }
}

/// Frames of scratch buffers.
pub fn frames() -> u64 {
    (TAKEN.load(Ordering::SeqCst) as u64) << SCRATCH_ORDER
}

/// Forgets all switches, and gives the memory of scratch buffers back. No cable is plugged.
pub fn forget() {
    uplink::set_plugged(false);
    let lans = core::mem::take(&mut *LANS.lock());
    drop(lans);
    let mut scratch = SCRATCH.lock();
    while let Some(bytes) = scratch.pop() {
        let first = Pa(bytes.as_ptr().expose_provenance() as u64).frame();
        frames::free(first, SCRATCH_ORDER);
    }
    TAKEN.store(0, Ordering::SeqCst);
}

/// Room for a frame, where some is free.
pub fn scratch() -> Option<Scratch> {
    SCRATCH.lock().pop().map(|bytes| Scratch(Some(bytes)))
}

impl Scratch {
    /// The room.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.0.as_deref_mut().unwrap_or_default()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(bytes) = self.0.take() {
            // It has come from there, so there is a place.
            let _ = SCRATCH.lock().push(bytes);
        }
    }
}

/// The switches that have a way out, each with its port there.
pub fn ways_out() -> impl Iterator<Item = (Arc<Lan>, u8)> {
    let lans = LANS.lock().clone();
    lans.into_iter().filter_map(|lan| {
        let port = lan.inner.lock().uplink?;
        Some((lan, port))
    })
}
