//! Ethertypes of frames in two parts, with VLAN tags and without.

use model_ethernet::is_of;
use proptest::prelude::*;

const OWN: [u8; 2] = [0x88, 0xb5];

proptest! {
    /// Wherever a frame is cut, it is of the type behind at most two tags, if it is long enough to have one.
    #[test]
    fn a_type_is_found_behind_tags(
        addresses in any::<[u8; 12]>(),
        tags in prop::collection::vec((prop::sample::select(vec![[0x81, 0x00], [0x88, 0xa8]]), any::<[u8; 2]>()), 0..4),
        other in any::<[u8; 2]>(),
        is_own in any::<bool>(),
        rest in prop::collection::vec(any::<u8>(), 0..8),
        cut in 0..40_usize,
        end in 0..40_usize,
    ) {
        let mut frame = addresses.to_vec();
        for (tag, id) in &tags {
            frame.extend(tag.iter().chain(id));
        }
        let at = frame.len();
        let ethertype = if is_own { OWN } else { other };
        frame.extend(ethertype);
        frame.extend(rest);
        frame.truncate(end.max(1));
        let parts = frame.split_at(cut.min(frame.len()));
        let is_whole = frame.len() >= at + 2;
        // A third tag is itself the type of the frame behind two.
        let expected = tags.len() <= 2 && is_whole && ethertype == OWN;
        prop_assert_eq!(is_of(OWN, [parts.0, parts.1]), expected);
    }
}
