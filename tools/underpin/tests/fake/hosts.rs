//! What the fake hypervisor says of its cluster.

use abi::{
    Text,
    cluster::{DESCRIPTION, PROTOCOL},
    control::{HostStatus, ProbeRequest, code, host},
};
use zerocopy::FromZeros as _;

fn host_of(name: &str, number: u32, flags: u32) -> HostStatus {
    let mut status = HostStatus::new_zeroed();
    status.name = Text::cut(name);
    (status.number, status.flags, status.epoch) = (number, flags, 3);
    (status.description.kind, status.description.protocol) = (DESCRIPTION, PROTOCOL);
    status
}

/// The machine that is asked, a member, a host with another clock, and one with another key.
pub fn all() -> [HostStatus; 4] {
    let own = host_of("left", 0, host::OWN | host::IN);
    let mut member = host_of("right", 1, host::SESSION | host::IN);
    member.round_trip_ns = 25_000;
    (member.frames, member.bytes) = ([200, 190], [20_000, 19_000]);
    member.resent = 3;
    member.probe = [0, 1_000, 26_000, 1];
    let mut slow = host_of("slow", 2, host::SESSION);
    slow.description.clock_hz = 50_000_000.into();
    slow.probe = [0, 1_000, 26_000, 0];
    let mut stranger = host_of("stranger", 3, 0);
    stranger.dropped[4] = 7;
    [own, member, slow, stranger]
}

/// Probes have ended before they are asked for: right's well, slow's not; there is no session with the others.
pub fn probe(asked: &ProbeRequest) -> Result<(u32, Vec<u8>), (u32, String)> {
    match asked.host {
        1 | 2 => Ok((0, Vec::new())),
        host => Err((
            code::WRONG_STATE,
            format!("there is no session with host {host}"),
        )),
    }
}
