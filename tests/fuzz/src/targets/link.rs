//! Frames that come to a host's link, from strangers and from a peer with the key.

use crate::input::Input;
use abi::link::{
    BODY_AT, CHALLENGE, ETHERTYPE, FRAME_STANDARD, HELLO, HELLO_BYTES, Hello, NO_AES, NONCE_BYTES,
    OPEN, Prefix, SEALED, TAG_BYTES, VERSION,
};
use blake2::Blake2sMac256;
use blake2::digest::{KeyInit, Mac};
use model_link::{
    Actions, Cipher, Down, Event, Iv, KEY_BYTES, Lane, Link, Nonce, Secret, Settings, Suite, Tag,
};
use zerocopy::IntoBytes;

/// The cluster's key.
const KEY: [u8; 32] = [1; 32];

/// A cipher that is not used, as frames are open: they are as those of a peer who has the key.
#[derive(Clone, Copy)]
struct Unused;

impl Cipher for Unused {
    const FRAMES_PER_KEY_LOG2: u32 = 4;

    fn new(_: Suite, _: &[u8; KEY_BYTES]) -> Self {
        Self
    }

    fn seal(&self, _: &Iv, _: &[u8], _: &mut [u8]) -> Tag {
        [0; TAG_BYTES]
    }

    fn open(&self, _: &Iv, _: &[u8], _: &mut [u8], _: &Tag) -> bool {
        false
    }
}

/// Keeps the frames that were sent last, and the nonce of the latest hello or challenge.
#[derive(Default)]
struct Owner {
    nonces: u32,
    said: Nonce,
    sent: Vec<Vec<u8>>,
    refuses: bool,
    sessions: i32,
}

impl Actions for Owner {
    fn transmit(&mut self, fill: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let mut frame = vec![0; FRAME_STANDARD];
        let bytes = fill(&mut frame);
        frame.truncate(bytes);
        if frame[KIND_AT] != SEALED {
            self.said
                .copy_from_slice(&frame[core::mem::offset_of!(Hello, mine)..][..NONCE_BYTES]);
        }
        self.sent.push(frame);
        true
    }

    fn deliver(&mut self, lane: Lane, message: &[u8]) -> bool {
        assert!(message.len() <= abi::link::MESSAGE_MAX[lane as usize]);
        !self.refuses
    }

    fn nonce(&mut self) -> Nonce {
        self.nonces += 1;
        u128::from(self.nonces).to_le_bytes()
    }

    fn up(&mut self) {
        self.sessions += 1;
        assert_eq!(self.sessions, 1);
    }

    fn down(&mut self, _: Down) {
        self.sessions -= 1;
        assert_eq!(self.sessions, 0);
    }
}

const SLOTS: usize = 8;
/// Where a frame says its kind.
const KIND_AT: usize = core::mem::offset_of!(Prefix, kind);

struct Host {
    link: Link<Unused, Vec<u8>, SLOTS>,
    owner: Owner,
}

impl Host {
    fn new(host: u8) -> Option<Self> {
        let settings = Settings {
            host,
            peer: 1 - host,
            macs: [[host; 6], [1 - host; 6]],
            epoch: 1,
            frame_bytes: FRAME_STANDARD,
            timeout_floor_ns: 1000,
            delay_ns: 100,
            hello_ns: 1000,
            is_open: true,
            suite: Suite::Aes,
        };
        let bytes = |lane: Lane| vec![0; lane.buffer_bytes(SLOTS, FRAME_STANDARD)];
        let buffers = [(); 2].map(|()| Lane::ALL.map(bytes));
        let owner = Owner {
            nonces: 1_000_000 * u32::from(host),
            ..Owner::default()
        };
        let link = Link::new(settings, Secret(KEY), buffers, [100 * host + 99; 16])?;
        Some(Self { link, owner })
    }

    fn step(&mut self, now: u64, event: Event<'_>) -> Vec<Vec<u8>> {
        let _ = self.link.step(now, event, &mut self.owner);
        std::mem::take(&mut self.owner.sent)
    }
}

/// Joins two hosts; gives the host that frames come to.
fn joined() -> Option<Host> {
    let mut hosts = [Host::new(0)?, Host::new(1)?];
    for _ in 0..4 {
        for from in 0..2 {
            for mut frame in hosts[from].step(0, Event::Tick) {
                hosts[1 - from].step(0, Event::Frame(&mut frame));
            }
        }
    }
    let [_, host] = hosts;
    assert!(host.link.session().is_some());
    Some(host)
}

/// A hello or a challenge under the right MAC, whether it is a hello, and whether it answers the host's latest nonce.
fn hello(said: &Nonce, input: &mut Input<'_>) -> (Vec<u8>, bool, bool) {
    let how = input.u8().unwrap_or(0);
    let [mine, other] = [input.u8(), input.u8()].map(|byte| [byte.unwrap_or(0); NONCE_BYTES]);
    let (is_hello, answers) = (how & 1 == 0, how & 2 == 0);
    let hello = Hello {
        prefix: Prefix {
            macs: [[1; 6], [0; 6]],
            ethertype: ETHERTYPE,
            version: VERSION | OPEN | how & NO_AES,
            kind: if is_hello { HELLO } else { CHALLENGE },
            from: 0,
            to: 1 + (how >> 2 & 1),
            epoch: (1 + u32::from(how >> 3 & 1)).into(),
        },
        mine,
        theirs: if answers { *said } else { other },
        tag: [0; TAG_BYTES],
    };
    let mut bytes = hello.as_bytes().to_vec();
    let (head, tag) = bytes.split_at_mut(HELLO_BYTES - TAG_BYTES);
    let mac = Blake2sMac256::new(&KEY.into()).chain_update([1]);
    tag.copy_from_slice(&mac.chain_update(head).finalize().into_bytes()[..TAG_BYTES]);
    (bytes, is_hello, answers)
}

/// Frames to a host that has a session: each as it is, as a body that the peer sealed with the next counter, or a hello of one that
/// has the key, which ends the session only if it answers the host's latest nonce.
pub fn link_frame(data: &[u8]) {
    let Some(mut host) = joined() else {
        return;
    };
    let mut input = Input(data);
    let mut now = 0;
    let mut counter = 10_u64;
    while let Some(kind) = input.u8() {
        let len = usize::from(input.u16().unwrap_or(0)) % FRAME_STANDARD;
        let mut frame = input.bytes(len).to_vec();
        now += 200;
        host.owner.refuses = kind & 0x80 != 0;
        if kind & 0x40 != 0 {
            let before = host.link.session();
            let (mut hello, is_hello, answers) = hello(&host.owner.said, &mut input);
            host.step(now, Event::Frame(&mut hello));
            let may_begin = answers && (is_hello || before.is_none());
            assert!(may_begin || host.link.session() == before);
        }
        if kind & 1 == 0 {
            host.step(now, Event::Frame(&mut frame));
        } else if let Some(session) = host.link.session() {
            let mut sealed = vec![1; 6];
            sealed.extend([0; 6]);
            sealed.extend([0x88, 0xb5, VERSION | OPEN, SEALED, 0, 1, 1, 0, 0, 0]);
            sealed.extend(session.to_le_bytes());
            sealed.extend([0; 8]);
            counter += 1;
            sealed.extend(counter.to_le_bytes());
            assert_eq!(sealed.len(), BODY_AT);
            sealed.append(&mut frame);
            sealed.extend([0; TAG_BYTES]);
            host.step(now, Event::Frame(&mut sealed));
        }
        if kind & 2 != 0 {
            let message = vec![kind; len * 3 % 5000];
            host.step(now, Event::Send(Lane::Bulk, [&message, &[]]));
        }
        for sent in host.step(now, Event::Tick) {
            assert!((HELLO_BYTES..=FRAME_STANDARD).contains(&sent.len()));
        }
    }
}
