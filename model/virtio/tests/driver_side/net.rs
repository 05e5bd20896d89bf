//! The network device: frames both ways, what is refused, and the control queue.

use crate::driver::{Buffer, DATA, Driver, Shape, ram, start};
use machine_fake::FakeGuest;
use model_addr::Ipa;
use model_virtio::net::{
    self, Frame, Net, Next, Offload, Options, Protocol, Received, Role, feature,
};
use model_virtio::{Runs, Transport, Window as _};
use proptest::prelude::*;

mod in_a_row;
mod unfinished;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const TX: Ipa = DATA;
const RX: Ipa = Ipa(DATA.0 + 0x4_0000);
const OUT: Ipa = Ipa(DATA.0 + 0x8_0000);

fn device(offloads: bool) -> Net {
    Net::new(Options {
        mac: MAC,
        mtu: 1500,
        offloads,
        pairs: 1,
    })
}

/// One with several pairs of queues.
fn with_pairs(pairs: u16) -> Net {
    Net::new(Options {
        pairs,
        ..device(true).options()
    })
}

fn readable(ipa: Ipa, len: usize) -> Buffer {
    Buffer {
        ipa,
        len: len as u32,
        writable: false,
    }
}

fn writable(ipa: Ipa, len: usize) -> Buffer {
    Buffer {
        writable: true,
        ..readable(ipa, len)
    }
}

/// Puts header and bytes into a transmit queue, cut into `cuts`.
fn send(guest: &FakeGuest, driver: &mut Driver, header: [u8; 12], bytes: &[u8], cuts: &[usize]) {
    let all = [&header[..], bytes].concat();
    guest.put(TX, &all);
    let (mut buffers, mut at) = (Vec::new(), 0);
    for cut in cuts
        .iter()
        .map(|cut| cut % all.len().max(1))
        .chain([all.len()])
    {
        if cut > at {
            buffers.push(readable(Ipa(TX.0 + at as u64), cut - at));
            at = cut;
        }
    }
    driver.add(guest, &buffers, Shape::Direct).unwrap();
    driver.publish(guest);
}

fn ethernet(bytes: usize) -> Vec<u8> {
    let mut frame: Vec<u8> = (0..bytes).map(|n| (n * 7) as u8).collect();
    let n = 14.min(bytes);
    frame[..n].copy_from_slice(&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 8, 0][..n]);
    frame
}

/// A TCP frame over IPv4 of so many bytes, and its header of a piece size.
fn tcp(bytes: usize, size: u16) -> (Vec<u8>, [u8; 12]) {
    let mut frame = ethernet(bytes);
    frame[14] = 0x45;
    frame[23] = 6;
    frame[46] = 5 << 4;
    let mut header = [0; 12];
    header[0] = 1;
    header[1] = 1;
    header[4..6].copy_from_slice(&size.to_le_bytes());
    header[6] = 34;
    header[8] = 16;
    (frame, header)
}

fn read_all(guest: &FakeGuest, frame: &Frame) -> Vec<u8> {
    let mut all = frame.head().to_vec();
    for segment in frame.rest() {
        all.extend(guest.get(segment.ipa, segment.len as usize));
    }
    all
}

/// The device that records make, in which the frame that `waits` is to be taken anew.
fn gone_over(mut net: Transport<Net>, waits: Option<&Frame>) -> Transport<Net> {
    if let Some(frame) = waits {
        net.unsend(frame);
    }
    let mut other = Transport::new(Net::new(net.device().options()));
    assert!(other.restore(&net.record()));
    assert_eq!(other.record(), net.record());
    other
}

/// What no driver could have come to makes no device.
#[test]
fn a_record_of_nonsense_is_refused() {
    let (mut net, _) = start(device(true), 0, 16);
    let record = net.record();
    let refused = |change: fn(&mut abi::state::Device)| {
        let mut record = record;
        change(&mut record);
        !Transport::new(device(true)).restore(&record)
    };
    assert!(!refused(|_| {}));
    assert!(refused(|record| record.own[1] &= 0xffff));
    assert!(refused(|record| record.own[1] |= 2 << 16));
    assert!(refused(|record| record.own[1] |= 4));
    assert!(refused(|record| record.queues[1].size = 512));
    assert!(refused(|record| record.registers.driver_features |= 1 << 60));
}

/// A frame that waits for its receiver is sent by the device that comes after, and its buffers go back once.
#[test]
fn a_frame_that_waits_is_taken_anew() {
    let guest = ram();
    let (mut net, mut drivers) = start(device(true), 0, 16);
    for bytes in [100, 200] {
        send(&guest, &mut drivers[1], [0; 12], &ethernet(bytes), &[]);
        let mut frame = Frame::default();
        assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Frame);
        net = gone_over(net, Some(&frame));
        let mut again = Frame::default();
        assert_eq!(net.next_frame(&guest, &mut again, false), Next::Frame);
        assert_eq!(read_all(&guest, &again), ethernet(bytes));
        net.sent(&guest, &again);
        net = gone_over(net, None);
        assert_eq!(net.next_frame(&guest, &mut again, false), Next::Empty);
        assert!(drivers[1].reap(&guest).is_some() && drivers[1].reap(&guest).is_none());
    }
}

/// A frame that waits when its driver stops the queue is nobody's: the queue begins at its first entry again.
#[test]
fn a_stopped_queue_takes_no_frame_back() {
    let guest = ram();
    let (mut net, mut drivers) = start(device(true), 0, 16);
    send(&guest, &mut drivers[1], [0; 12], &ethernet(100), &[]);
    let mut frame = Frame::default();
    assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Frame);
    net.write(0x030, 4, 1);
    net.write(0x044, 4, 0);
    net = gone_over(net, Some(&frame));
    net.write(0x044, 4, 1);
    assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Frame);
    assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Empty);
}

proptest! {
    #![proptest_config(crate::cases(100))]

    /// What one driver sends another gets, whatever the buffers of both.
    #[test]
    fn frames_arrive(
        bytes in 14..65_500_usize,
        mut cuts in prop::collection::vec(0..65_500_usize, 0..20),
        sizes in prop::collection::vec(60..5000_usize, 64..65),
        merge in any::<bool>(),
    ) {
        let guest = ram();
        let without = if merge { 0 } else { feature::MRG_RXBUF };
        let (mut net, mut drivers) = start(device(true), without, 256);
        cuts.sort_unstable();
        let (packet, header) = match bytes {
            0..=1400 => (ethernet(bytes), [0; 12]),
            _ => tcp(bytes, 1448),
        };
        send(&guest, &mut drivers[1], header, &packet, &cuts);
        let mut frame = Frame::default();
        prop_assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Frame);
        prop_assert_eq!(read_all(&guest, &frame), &packet[..]);
        prop_assert_eq!(frame.source(), MAC);
        net.sent(&guest, &frame);
        prop_assert!(drivers[1].reap(&guest).is_some());
        net = gone_over(net, None);

        let mut at = RX.0;
        let mut buffers = Vec::new();
        for len in &sizes {
            drivers[0].add(&guest, &[writable(Ipa(at), *len)], Shape::Direct).unwrap();
            buffers.push((Ipa(at), *len));
            at += *len as u64;
        }
        drivers[0].publish(&guest);
        let received = net.receive(&guest, (frame.bytes(), frame.offload(), frame.flow()), |runs| {
            let mut left = &packet[..];
            while let Some(run) = runs.front() {
                let (part, later) = left.split_at(left.len().min(1000).min(run.len as usize));
                guest.put(run.ipa, part);
                runs.advance(part.len() as u32);
                left = later;
            }
            assert!(left.is_empty());
            Ok(())
        });
        let room: usize = if merge { sizes.iter().sum() } else { sizes[0] };
        if room < bytes + 12 {
            let expected = if merge { Received::NoBuffers } else { Received::TooLong };
            // Too many buffers for one frame is too long, too.
            prop_assert!(received == expected || merge && received == Received::TooLong);
            prop_assert!(drivers[0].reap(&guest).is_none());
            return Ok(());
        }
        prop_assert_eq!(received, Received::Done);
        let mut seen = Vec::new();
        while let Some((_, len)) = drivers[0].reap(&guest) {
            let (ipa, size) = buffers.remove(0);
            seen.extend(guest.get(ipa, len as usize));
            prop_assert!(len as usize == size || seen.len() == bytes + 12, "a gap");
        }
        let count = u16::from_le_bytes([seen[10], seen[11]]);
        prop_assert_eq!(usize::from(count), sizes.len() - buffers.len());
        prop_assert_eq!(&seen[12..], &packet[..]);
        prop_assert_eq!(&seen[..2], &header[..2]);
        prop_assert_eq!(&seen[4..10], &header[4..10]);
    }
}

#[test]
fn buffers_that_are_too_few_stay_the_next_ones() {
    let guest = ram();
    let (mut net, mut drivers) = start(device(true), 0, 16);
    let add = |driver: &mut Driver, n: u64| {
        let buffer = writable(Ipa(RX.0 + 0x1000 * n), 512);
        driver.add(&guest, &[buffer], Shape::Direct).unwrap();
        driver.publish(&guest);
    };
    let receive =
        |net: &mut Transport<Net>| net.receive(&guest, (1000, Offload::default(), 0), |_| Ok(()));
    add(&mut drivers[0], 0);
    assert!(drivers[0].wants_kick(&guest));
    assert_eq!(receive(&mut net), Received::NoBuffers);
    assert_eq!(receive(&mut net), Received::NoBuffers);
    // The device is told of the next one, and then the first is still the first.
    add(&mut drivers[0], 1);
    assert!(drivers[0].wants_kick(&guest));
    assert_eq!(receive(&mut net), Received::Done);
    assert_eq!(drivers[0].reap(&guest).unwrap().1, 512);
    assert_eq!(drivers[0].reap(&guest).unwrap().1, 500);
    // What cannot be moved is not noticed.
    add(&mut drivers[0], 2);
    let lost = |_: &mut Runs<'_>| Err(machine_contract::GuestMemoryError::NoFrame(RX));
    assert_eq!(
        net.receive(&guest, (64, Offload::default(), 0), lost),
        Received::Lost
    );
    assert!(drivers[0].reap(&guest).is_none());
    assert_eq!(
        net.receive(&guest, (64, Offload::default(), 0), |_| Ok(())),
        Received::Done
    );
    assert_eq!(drivers[0].reap(&guest).unwrap().1, 76);
}

/// Segments that join into one run are looked at all the same.
#[test]
fn buffers_of_many_segments_are_too_small_for_a_frame() {
    let guest = ram();
    let (mut net, mut drivers) = start(device(true), 0, 16);
    for chain in 0..16 {
        let byte = |n| writable(Ipa(RX.0 + 128 * chain + n), 1);
        let buffers: Vec<Buffer> = (0..128).map(byte).collect();
        drivers[0].add(&guest, &buffers, Shape::Indirect).unwrap();
    }
    drivers[0].publish(&guest);
    let mut receive = |bytes| net.receive(&guest, (bytes, Offload::default(), 0), |_| Ok(()));
    assert_eq!(receive(1000), Received::TooLong);
    assert_eq!(receive(100), Received::Done);
}

/// A device that will look by itself asks for no notification until it does not.
#[test]
fn who_looks_again_is_not_notified() {
    let guest = ram();
    let (mut net, mut drivers) = start(device(true), 0, 16);
    let mut frame = Frame::default();
    let (bytes, header) = tcp(9000, 1448);
    let send_one = |driver: &mut Driver| {
        send(&guest, driver, header, &bytes, &[]);
        driver.wants_kick(&guest)
    };
    assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Empty);
    assert!(send_one(&mut drivers[1]));
    for will_look in [true, true, false] {
        assert_eq!(net.next_frame(&guest, &mut frame, will_look), Next::Frame);
        net.sent(&guest, &frame);
        assert_eq!(net.next_frame(&guest, &mut frame, will_look), Next::Empty);
        assert_eq!(send_one(&mut drivers[1]), !will_look);
    }
}

/// One frame with that header: whether it is taken.
fn taken(offloads: bool, without: u64, header: [u8; 12], bytes: &[u8]) -> Option<Frame> {
    let guest = ram();
    let (mut net, mut drivers) = start(device(offloads), without, 16);
    send(&guest, &mut drivers[1], header, bytes, &[]);
    let mut frame = Frame::default();
    let next = net.next_frame(&guest, &mut frame, false);
    assert_eq!(net.errors().0, 0);
    if next == Next::Refused {
        // It goes back, and the driver may send the next one.
        assert!(drivers[1].reap(&guest).is_some());
        return None;
    }
    assert_eq!(next, Next::Frame);
    Some(frame)
}

#[test]
fn headers_are_held_against_frames() {
    let (bytes, good) = tcp(9000, 1448);
    let gso = taken(true, 0, good, &bytes).unwrap().offload().gso.unwrap();
    assert_eq!(
        (gso.protocol, gso.payload, gso.network),
        (Protocol::Tcp, 54, 14)
    );
    assert!(
        taken(false, 0, good, &bytes).is_none(),
        "nothing of this was offered"
    );
    assert!(taken(true, feature::CSUM, good, &bytes).is_none());
    assert!(taken(true, feature::HOST_TSO4, good, &bytes).is_none());
    let spoiled = |at: usize, value: u8| {
        let mut header = good;
        header[at] = value;
        taken(true, 0, header, &bytes).is_none()
    };
    assert!(spoiled(0, 0), "pieces without a checksum");
    assert!(spoiled(1, 0), "9000 bytes in one frame");
    assert!(spoiled(1, 4), "IPv6 over IPv4");
    assert!(spoiled(1, 5), "UDP in TCP");
    assert!(spoiled(1, 0x7f), "nothing known");
    assert!(
        !spoiled(5, 0) && !spoiled(4, 10),
        "pieces of 168 and 1290 bytes"
    );
    let mut tiny = good;
    tiny[4..6].copy_from_slice(&47_u16.to_le_bytes());
    assert!(taken(true, 0, tiny, &bytes).is_none());
}

#[test]
fn sizes_are_held_against_the_mtu() {
    assert!(taken(true, 0, [0; 12], &ethernet(13)).is_none());
    assert!(taken(true, 0, [0; 12], &ethernet(14)).is_some());
    assert!(taken(true, 0, [0; 12], &ethernet(1518)).is_some());
    assert!(taken(true, 0, [0; 12], &ethernet(1519)).is_none());
    let (bytes, header) = tcp(net::FRAME_MAX as usize, 1448);
    assert!(taken(true, 0, header, &bytes).is_some());
    let (bytes, header) = tcp(net::FRAME_MAX as usize + 1, 1448);
    assert!(taken(true, 0, header, &bytes).is_none());
}

#[test]
fn a_driver_without_offloads_is_asked_for() {
    let (bytes, header) = tcp(9000, 1448);
    let offload = taken(true, 0, header, &bytes).unwrap().offload();
    let with = |without| start(device(true), without, 16).0.takes();
    assert!(offload.fits(with(0)));
    assert!(!offload.fits(with(feature::GUEST_CSUM)));
    assert!(!offload.fits(with(feature::GUEST_TSO4)));
    assert!(offload.fits(with(feature::GUEST_TSO6)));
    assert!(!offload.fits(start(device(false), 0, 16).0.takes()));
    assert!(Offload::default().fits(0));
}

/// A command: whether the device says that it did it.
fn command(
    guest: &FakeGuest,
    net: &mut Transport<Net>,
    driver: &mut Driver,
    class: [u8; 2],
    data: &[u8],
) -> bool {
    let bytes = [&class[..], data].concat();
    guest.put(OUT, &bytes);
    let ack = Ipa(OUT.0 + 0x1000);
    guest.put(ack, &[0xaa]);
    let buffers = [readable(OUT, bytes.len()), writable(ack, 1)];
    driver.add(guest, &buffers, Shape::Direct).unwrap();
    driver.publish(guest);
    assert!(!net.control(guest, 8));
    assert_eq!(driver.reap(guest).unwrap().1, 1);
    let answer = guest.get(ack, 1)[0];
    assert!(answer < 2);
    answer == 0
}

#[test]
fn commands_change_what_is_offered() {
    let guest = ram();
    let (mut net, mut drivers) = start(device(true), 0, 16);
    let control = &mut drivers[2];
    // Receive modes are not offered.
    assert!(!command(&guest, &mut net, control, [0, 0], &[0]));
    assert!(!command(&guest, &mut net, control, [0, 1], &[1]));
    assert!(!command(&guest, &mut net, control, [1, 0], &[0; 8]));
    // Addresses are the machine's to give.
    assert!(command(&guest, &mut net, control, [1, 1], &MAC));
    assert!(!command(&guest, &mut net, control, [1, 1], &[2; 6]));
    // What makes no sense, and what is cut off.
    assert!(!command(&guest, &mut net, control, [0, 9], &[1]));
    assert!(!command(&guest, &mut net, control, [4, 0], &[1, 0]));
    assert!(!command(&guest, &mut net, control, [1, 1], &MAC[..5]));
    // Offloads can be given up, and no more taken than was agreed upon.
    assert!(command(
        &guest,
        &mut net,
        control,
        [5, 0],
        &feature::GUEST_CSUM.to_le_bytes()
    ));
    net = gone_over(net, None);
    assert_eq!(net.takes(), feature::GUEST_CSUM);
    assert!(command(
        &guest,
        &mut net,
        control,
        [5, 0],
        &u64::MAX.to_le_bytes()
    ));
    assert_eq!(net.takes() & feature::CSUM, 0);
    net.write(0x070, 4, 0);
    assert_eq!(net.errors().0, 0);
}

#[test]
fn the_link_comes_and_goes() {
    let guest = ram();
    let (mut net, mut drivers) = start(device(true), 0, 16);
    let status = |net: &Transport<Net>| net.read(0x100 + 6, 2);
    assert_eq!(
        (net.read(0x100, 4), net.read(0x104, 2)),
        (0x0000_0002, 0x0100)
    );
    assert_eq!((net.read(0x100 + 10, 2), status(&net)), (1500, 1));
    net.set_link(false);
    assert!(net.irq_level() && !net.link());
    assert_eq!(status(&net), 0);
    net = gone_over(net, None);
    assert!(net.irq_level() && !net.link());
    net.set_link(true);
    net = gone_over(net, None);
    assert_eq!(status(&net), 3);
    assert!(command(&guest, &mut net, &mut drivers[2], [3, 0], &[]));
    assert_eq!(status(&net), 1);
}

#[test]
fn rules_broken_break_the_device() {
    for (queue, buffers) in [
        (1, vec![readable(TX, 11)]),
        (1, vec![readable(TX, 64), writable(RX, 64)]),
        (2, vec![readable(TX, 64)]),
    ] {
        let guest = ram();
        let (mut net, mut drivers) = start(device(true), 0, 16);
        drivers[queue].add(&guest, &buffers, Shape::Direct).unwrap();
        drivers[queue].publish(&guest);
        let mut frame = Frame::default();
        assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Empty);
        net.control(&guest, 4);
        assert_eq!(net.errors().0, 1, "queue {queue}");
    }
    let guest = ram();
    let (mut net, mut drivers) = start(device(true), 0, 16);
    drivers[0]
        .add(&guest, &[readable(RX, 512)], Shape::Direct)
        .unwrap();
    drivers[0].publish(&guest);
    let received = net.receive(&guest, (64, Offload::default(), 0), |_| Ok(()));
    assert_eq!((received, net.errors().0), (Received::NoDriver, 1));
}

/// A frame of a connection, which its ports tell.
fn of_connection(ports: [u8; 4]) -> Vec<u8> {
    let (mut frame, _) = tcp(100, 0);
    frame[34..38].copy_from_slice(&ports);
    frame
}

proptest! {
    #![proptest_config(crate::cases(200))]

    /// Frames of several queues all come, those of one queue in their order; each is given back where it
    /// came from. What is received goes where its connection goes, among the pairs in use.
    #[test]
    fn pairs_share_the_work(
        sent in prop::collection::vec(0..3_usize, 0..30),
        connections in prop::collection::vec((any::<[u8; 4]>(), 1..4_u16), 0..20),
    ) {
        let guest = ram();
        let (mut net, mut drivers) = start(with_pairs(3), 0, 64);
        prop_assert_eq!(net.read(0x108, 2), 3);
        let mut left = [0_u8; 3].map(|_| std::collections::VecDeque::new());
        for (n, &pair) in sent.iter().enumerate() {
            let at = Ipa(TX.0 + 0x100 * n as u64);
            let mut bytes = vec![0; 12];
            bytes.extend(of_connection([n as u8; 4]));
            guest.put(at, &bytes);
            drivers[2 * pair + 1].add(&guest, &[readable(at, bytes.len())], Shape::Direct).unwrap();
            drivers[2 * pair + 1].publish(&guest);
            left[pair].push_back(n as u8);
        }
        let mut frame = Frame::default();
        for _ in &sent {
            prop_assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Frame);
            let n = frame.head()[34];
            let pair = left.iter().position(|left| left.front() == Some(&n));
            let pair = pair.expect("out of order");
            left[pair].pop_front();
            net.sent(&guest, &frame);
            prop_assert!(drivers[2 * pair + 1].reap(&guest).is_some());
        }
        prop_assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Empty);
        prop_assert_eq!(usize::from(net.untold()), sent.len());
        net.signal_sent(&guest);
        prop_assert_eq!(net.untold(), 0);

        for (ports, used) in connections {
            let set = command(&guest, &mut net, &mut drivers[6], [4, 0], &used.to_le_bytes());
            prop_assert!(set);
            for pair in 0..3 {
                drivers[2 * pair].add(&guest, &[writable(RX, 2000)], Shape::Direct).unwrap();
                drivers[2 * pair].publish(&guest);
            }
            let flow = net::flow(&of_connection(ports));
            let received = net.receive(&guest, (64, Offload::default(), flow), |_| Ok(()));
            prop_assert_eq!(received, Received::Done);
            let expected = (flow % u32::from(used)) as usize;
            for pair in 0..3 {
                prop_assert_eq!(drivers[2 * pair].reap(&guest).is_some(), pair == expected);
            }
            // What was not used stays for the next; a new driver would begin anew.
            let (fresh, of_fresh) = start(with_pairs(3), 0, 64);
            (net, drivers) = (fresh, of_fresh);
            let zeroes = vec![0; 7 * 0x4000];
            guest.put(crate::driver::RAM, &zeroes);
        }
    }
}

/// Pairs are 1 to what the device has, and only for a driver that knows of several; its control queue
/// is behind the last pair, for others behind the first.
#[test]
fn pairs_are_what_was_agreed_upon() {
    let guest = ram();
    let (mut net, mut drivers) = start(with_pairs(3), 0, 16);
    let control = &mut drivers[6];
    for (pairs, done) in [
        (0_u16, false),
        (1, true),
        (3, true),
        (4, false),
        (u16::MAX, false),
    ] {
        let said = command(&guest, &mut net, control, [4, 0], &pairs.to_le_bytes());
        assert_eq!(said, done, "{pairs}");
    }
    assert_eq!(net.role(6), Role::Control);
    assert_eq!((net.role(4), net.role(5)), (Role::Receive, Role::Transmit));

    let guest = ram();
    let (mut net, mut drivers) = start(with_pairs(3), feature::MQ, 16);
    assert_eq!((net.role(2), net.role(1)), (Role::Control, Role::Transmit));
    assert!(!command(&guest, &mut net, &mut drivers[2], [4, 0], &[1, 0]));
    assert_eq!(start(with_pairs(9), 0, 16).1.len(), 9, "four pairs at most");
    assert_eq!(start(device(true), 0, 16).1.len(), 3);
}
