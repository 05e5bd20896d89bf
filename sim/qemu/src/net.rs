//! A network back end of the plugin's own: `-device virtio-net-device,netdev=NAME` finds it.
//!
//! QEMU loads plugins after it has made the back ends of its command line and before it makes devices (system/vl.c,
//! `qemu_init`), so that a plugin can put one beside them. It has no virtio-net header: the card offers its guest no
//! checksums and no segmentation, and frames are plain.

use crate::{private::Qemu, refuse};
use std::{
    ffi::{CStr, c_int, c_void},
    slice,
    sync::OnceLock,
};

/// What takes a frame that the card sends; false where the card must wait until [`Client::go_on`].
pub type Take = fn(&[u8]) -> bool;

/// The head of `NetClientInfo` (include/net/net.h); what follows stays empty.
#[repr(C)]
pub struct Info {
    /// `NET_CLIENT_DRIVER_NONE`: none of QEMU's own.
    kind: c_int,
    /// Of the `NetClientState` that QEMU makes.
    bytes: usize,
    receive: extern "C" fn(*mut c_void, *const u8, usize) -> isize,
    rest: [usize; 60],
}

/// More than a `NetClientState` has.
const CLIENT_BYTES: usize = 8192;

static INFO: Info = Info {
    kind: 0,
    bytes: CLIENT_BYTES,
    receive,
    rest: [0; 60],
};

static TAKE: OnceLock<Take> = OnceLock::new();

/// The back end.
#[derive(Clone, Copy)]
pub struct Client {
    qemu: &'static Qemu,
    state: *mut c_void,
}

// SAFETY: the address of an object that QEMU keeps for ever, and which only QEMU looks into.
unsafe impl Sync for Client {}
// SAFETY: the same.
unsafe impl Send for Client {}

impl Client {
    /// Makes the back end of this name; to be called while QEMU loads the plugin.
    pub fn new(qemu: &'static Qemu, name: &'static CStr, take: Take) -> Self {
        let _ = TAKE.set(take);
        let state = qemu.new_client(&INFO, name);
        Self { qemu, state }
    }

    /// Gives the card a frame; false where the guest has no room for it. QEMU keeps it then, and gives it later.
    pub fn send(self, frame: &[u8]) -> bool {
        self.qemu.send_packet(self.state, frame) != 0
    }

    /// Has the card go on that had to wait.
    pub fn go_on(self) {
        self.qemu.flush_packets(self.state);
    }
}

/// A card sends a frame.
extern "C" fn receive(_: *mut c_void, bytes: *const u8, length: usize) -> isize {
    let Some(take) = TAKE.get() else {
        refuse("a card sends before the plugin was installed");
    };
    // SAFETY: QEMU gives a buffer of that length, which nobody changes during the call.
    let frame = unsafe { slice::from_raw_parts(bytes, length) };
    if take(frame) { length as isize } else { 0 }
}
