//! Frames that are on their way, and buffers that are not all at hand.

use super::{RX, device, ethernet, send, with_pairs, writable};
use crate::driver::{RAM, Shape, ram, start, start_again};
use crate::queue::Later;
use model_virtio::Window as _;
use model_virtio::net::{Frame, Next, Offload, Received};

/// A frame is on its way while its driver starts over: it is nothing to the next one, which has as many buffers.
#[test]
fn a_frame_does_not_outlive_a_reset() {
    let guest = ram();
    let (mut net, mut drivers) = start(device(false), 0, 16);
    let mut frame = Frame::default();
    send(&guest, &mut drivers[1], [0; 12], &ethernet(60), &[]);
    assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Frame);
    assert!(net.awaits(&frame));
    net.write(0x070, 4, 0);
    assert!(!net.awaits(&frame));
    let mut drivers = start_again(&mut net, 0, 16);
    send(&guest, &mut drivers[1], [0; 12], &ethernet(60), &[]);
    assert!(net.is_live() && !net.awaits(&frame));
    guest.take_log();
    net.sent(&guest, &frame);
    net.unsend(&frame);
    assert_eq!(guest.take_log(), []);
    let mut next = Frame::default();
    assert_eq!(net.next_frame(&guest, &mut next, false), Next::Frame);
    assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Empty);
}

/// Which frame comes next nobody knows: until then no page is kept for the buffer that was not all at hand.
#[test]
fn a_buffer_that_is_not_at_hand_keeps_no_page_until_the_next_frame() {
    let guest = ram();
    let (mut net, mut drivers) = start(device(false), 0, 16);
    for shape in [Shape::Direct, Shape::Indirect] {
        let buffers = [writable(RX, 2048)];
        drivers[0].add(&guest, &buffers, shape).unwrap();
        drivers[0].publish(&guest);
        let what = (60, Offload::default(), 0);
        let received = net.receive(&Later(&guest, 40), what, |_| Ok(()));
        assert_eq!(received, Received::NoBuffers);
        assert!(!net.uses(RX.frame()) && net.uses(RAM.frame()));
    }
}

/// An owner that never tells a driver of what was sent counts no further than it can.
#[test]
fn what_is_untold_is_counted_as_far_as_it_goes() {
    let guest = ram();
    let (mut net, mut drivers) = start(with_pairs(2), 0, 16);
    let mut frame = Frame::default();
    for _ in 0..40_000 {
        for pair in 0..2 {
            send(
                &guest,
                &mut drivers[2 * pair + 1],
                [0; 12],
                &ethernet(60),
                &[],
            );
            assert_eq!(net.next_frame(&guest, &mut frame, false), Next::Frame);
            net.sent(&guest, &frame);
            assert!(drivers[2 * pair + 1].reap(&guest).is_some());
        }
    }
    assert_eq!(net.untold(), u16::MAX);
}
