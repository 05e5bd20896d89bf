//! A learning Ethernet switch: who gets a frame, and who may send it.
//!
//! ```text
//!  sender's port ──> Switch::forward(source, destination, bytes, now)
//!                      │ source:       the port's own, or one it may learn?   no: Drop(Spoofed)
//!                      │ cable:        pulled?                                yes: Drop(Down)
//!                      │ rate:         within the port's bytes a second?      no: Drop(Limited)
//!                      │ destination:  known?  yes: To(port), or Drop(Down)
//!                      └─ broadcast, multicast, unknown: Flood(ports), within the port's floods a second
//! ```
//!
//! A switch has no queues and moves no bytes: whoever owns it does that by the [`Verdict`]. VLANs do
//! not exist; networks that must not see each other have a switch each. A port of a VM has one address
//! that nobody else can claim; a port to the outside learns addresses, so many and no more, and
//! forgets those it has not heard for [`FORGET_SECONDS`].
#![no_std]
#![forbid(unsafe_code)]

mod limit;

pub use limit::{Limit, Limiter};

use heapless::index_map::FnvIndexMap;

/// A MAC address (IEEE 802).
pub type Mac = [u8; 6];

/// The most ports of a switch.
pub const PORTS_MAX: usize = 64;
/// An address that was learned and not heard for so long is forgotten.
pub const FORGET_SECONDS: u64 = 300;

/// Addresses that can be known. A power of two, as the map demands.
const KNOWN_MAX: usize = 512;
/// Of them, those that can be learned: ports' own always fit.
const LEARNED_MAX: usize = KNOWN_MAX - 2 * PORTS_MAX;

/// What says that a VLAN tag follows, the customer's and the provider's (IEEE 802.1Q, 9.5).
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];

/// Returns whether a frame in two parts is of that ethertype, also behind one VLAN tag or two: a switch on its way may take them
/// off.
pub fn is_of(ethertype: [u8; 2], [head, rest]: [&[u8]; 2]) -> bool {
    let byte = |at: usize| head.get(at).or_else(|| rest.get(at - head.len()));
    let pair = |at: usize| Some([*byte(at)?, *byte(at + 1)?]);
    let is_tag = |at: &usize| pair(*at).is_some_and(|it| TAGS.contains(&it));
    let tags = [12, 16].iter().take_while(|at| is_tag(at)).count();
    pair(12 + 4 * tags) == Some(ethertype)
}

/// A set of ports: bit n is port n.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSet(pub u64);

impl PortSet {
    /// The ports, in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        (0..PORTS_MAX as u8).filter(move |port| self.0 >> port & 1 == 1)
    }
}

/// What a port may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortOptions {
    /// Its own address; `None`: it only learns.
    pub mac: Option<Mac>,
    /// How many more addresses it may send from.
    pub learns: u16,
    /// Bytes that it may send.
    pub bytes: Option<Limit>,
    /// Frames that it may send to more than one port.
    pub floods: Option<Limit>,
}

/// What becomes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes to this port.
    To(u8),
    /// It goes to all of these, never to the one it came from.
    Flood(PortSet),
    /// It goes nowhere.
    Drop(Why),
}

/// Why a frame is lost, in the order in which losses are counted: by the switch, or by who is to send or to get it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its source is not the sender's address: another port's, one too many, or no single host's.
    Spoofed,
    /// The port has sent too much, or too many to more than one port.
    Limited,
    /// It is for the port that it came from, or there is no other port.
    Nowhere,
    /// It is no frame, or has a header that does not fit it; no switch says so.
    Malformed,
    /// The receiver took none, or had no room; no switch says so.
    NoRoom,
    /// There was no memory to move it; no switch says so.
    NoMemory,
    /// The cable of its sender, or of who was to get it, is pulled.
    Down,
}

/// Why a port cannot be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// All ports are in use.
    Full,
    /// The address is another port's, or no single host's.
    Address(Mac),
}

#[derive(Clone, Copy, Debug)]
struct Port {
    options: PortOptions,
    bytes: Limiter,
    floods: Limiter,
    learned: u16,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    port: u8,
    /// When it was heard last; `None`: the port's own, never forgotten.
    heard: Option<u64>,
}

/// A switch. All times are counts of one clock.
#[derive(Debug)]
pub struct Switch {
    /// Counts of the clock in a second.
    frequency: u64,
    ports: [Option<Port>; PORTS_MAX],
    /// Ports whose cable is pulled.
    down: PortSet,
    known: FnvIndexMap<Mac, Known, KNOWN_MAX>,
    learned: usize,
    /// When old addresses were looked for last.
    swept: u64,
}

/// Whether an address is a group's: broadcast, or multicast.
pub const fn is_group(mac: Mac) -> bool {
    mac[0] & 1 == 1
}

impl Switch {
    /// A switch without ports, for a clock of so many counts a second.
    pub fn new(frequency: u64) -> Self {
        Self {
            frequency: frequency.max(1),
            ports: [None; PORTS_MAX],
            down: PortSet(0),
            known: FnvIndexMap::new(),
            learned: 0,
            swept: 0,
        }
    }

    /// Adds a port: its number.
    ///
    /// # Errors
    /// No port is free, or the address is not.
    pub fn attach(&mut self, options: PortOptions) -> Result<u8, Refused> {
        let free = self.ports.iter().position(Option::is_none);
        let number = free.ok_or(Refused::Full)? as u8;
        if let Some(mac) = options.mac {
            let is_own = |known: &Known| known.heard.is_none();
            if is_group(mac) || mac == [0; 6] || self.known.get(&mac).is_some_and(is_own) {
                return Err(Refused::Address(mac));
            }
            self.forget(mac);
            let own = Known {
                port: number,
                heard: None,
            };
            // Own addresses have places that learning leaves free.
            self.known.insert(mac, own).map_err(|_| Refused::Full)?;
        }
        self.ports[usize::from(number)] = Some(Port {
            options,
            bytes: Limiter::default(),
            floods: Limiter::default(),
            learned: 0,
        });
        Ok(number)
    }

    /// Takes a port away, and all that was learned from it.
    pub fn detach(&mut self, number: u8) {
        self.set_link(number, true);
        self.known.retain(|_, known| known.port != number);
        if let Some(port) = self
            .ports
            .get_mut(usize::from(number))
            .and_then(Option::take)
        {
            self.learned -= usize::from(port.learned);
        }
    }

    /// Pulls a port's cable, or plugs it in again: while it is pulled, no frame goes in or out there.
    /// The port keeps its address, and a new one has its cable in.
    pub fn set_link(&mut self, number: u8, up: bool) {
        let bit = 1_u64.checked_shl(number.into()).unwrap_or(0);
        self.down.0 = if up {
            self.down.0 & !bit
        } else {
            self.down.0 | bit
        };
    }

    fn is_down(&self, number: u8) -> bool {
        self.down.0 >> number & 1 == 1
    }

    /// The ports there are.
    pub fn ports(&self) -> PortSet {
        let used = self
            .ports
            .iter()
            .enumerate()
            .filter(|(_, port)| port.is_some());
        PortSet(used.fold(0, |set, (n, _)| set | 1 << n))
    }

    /// How many addresses are learned.
    pub fn learned(&self) -> usize {
        self.learned
    }

    /// What becomes of a frame of `bytes` from a port, at `now`.
    pub fn forward(
        &mut self,
        from: u8,
        source: Mac,
        destination: Mac,
        bytes: u32,
        now: u64,
    ) -> Verdict {
        if !self.may_send(from, source, now) {
            return Verdict::Drop(Why::Spoofed);
        }
        if self.is_down(from) {
            return Verdict::Drop(Why::Down);
        }
        let frequency = self.frequency;
        let Some(port) = self.port(from) else {
            return Verdict::Drop(Why::Nowhere);
        };
        if let Some(limit) = port.options.bytes
            && !port.bytes.take(limit, u64::from(bytes), now, frequency)
        {
            return Verdict::Drop(Why::Limited);
        }
        match self.find(destination, now) {
            Some(to) if to == from => Verdict::Drop(Why::Nowhere),
            Some(to) if self.is_down(to) => Verdict::Drop(Why::Down),
            Some(to) => Verdict::To(to),
            None => self.flood(from, now),
        }
    }

    fn flood(&mut self, from: u8, now: u64) -> Verdict {
        let others = PortSet(self.ports().0 & !(1 << from) & !self.down.0);
        let frequency = self.frequency;
        let Some(port) = self.port(from).filter(|_| others != PortSet(0)) else {
            return Verdict::Drop(Why::Nowhere);
        };
        match port.options.floods {
            Some(limit) if !port.floods.take(limit, 1, now, frequency) => {
                Verdict::Drop(Why::Limited)
            }
            _ => Verdict::Flood(others),
        }
    }

    fn port(&mut self, number: u8) -> Option<&mut Port> {
        self.ports.get_mut(usize::from(number))?.as_mut()
    }

    /// The port where an address is, as far as that is known and fresh.
    fn find(&self, mac: Mac, now: u64) -> Option<u8> {
        let known = self.known.get(&mac)?;
        (!self.is_old(known, now)).then_some(known.port)
    }

    fn is_old(&self, known: &Known, now: u64) -> bool {
        let most = FORGET_SECONDS.saturating_mul(self.frequency);
        known
            .heard
            .is_some_and(|heard| now.saturating_sub(heard) > most)
    }

    /// Whether `source` may send from this port; it is learned where it can be.
    fn may_send(&mut self, from: u8, source: Mac, now: u64) -> bool {
        if is_group(source) || source == [0; 6] {
            return false;
        }
        match self.known.get_mut(&source) {
            Some(Known { port, heard: None }) => return *port == from,
            Some(Known {
                port,
                heard: Some(heard),
            }) if *port == from => {
                *heard = now;
                return true;
            }
            _ => {}
        }
        let Some(&mut Port {
            options, learned, ..
        }) = self.port(from)
        else {
            return false;
        };
        if learned >= options.learns {
            self.sweep(now);
        }
        let Some(port) = self.port(from).filter(|port| port.learned < options.learns) else {
            return false;
        };
        port.learned += 1;
        self.forget(source);
        self.learn(from, source, now);
        true
    }

    /// Notes where an address is; the port has counted it.
    fn learn(&mut self, from: u8, source: Mac, now: u64) {
        if self.learned >= LEARNED_MAX {
            self.sweep(now);
        }
        let known = Known {
            port: from,
            heard: Some(now),
        };
        if self.learned < LEARNED_MAX && self.known.insert(source, known).is_ok() {
            self.learned += 1;
        } else if let Some(port) = self.port(from) {
            // It is flooded to until there is room.
            port.learned -= 1;
        }
    }

    /// Forgets an address that was learned.
    fn forget(&mut self, mac: Mac) {
        if self
            .known
            .get(&mac)
            .is_some_and(|known| known.heard.is_some())
            && let Some(known) = self.known.remove(&mac)
        {
            self.learned -= 1;
            if let Some(port) = self.port(known.port) {
                port.learned -= 1;
            }
        }
    }

    /// Forgets what is old, once a second at most.
    fn sweep(&mut self, now: u64) {
        if now.saturating_sub(self.swept) < self.frequency {
            return;
        }
        self.swept = now;
        while let Some(old) = self
            .known
            .iter()
            .find(|(_, known)| self.is_old(known, now))
            .map(|(mac, _)| *mac)
        {
            self.forget(old);
        }
    }
}
