//! Whether two hosts fit, and what they have in common.

use abi::cluster::{Description, FEATURES_MAX, PROTOCOL};
use model_id_registers::{HostIdRegisters, registers};
use zerocopy::little_endian::U64;

/// Reason why a host cannot join: the field that differs, its value there and here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Unfit {
    /// Version of the messages.
    #[error("its protocol has version {0}, here {1}: run one version of Underpin on all hosts")]
    Protocol(u8, u8),
    /// Version of Underpin, as in [`Description::version`].
    #[error("its Underpin has version {0:#x}, here {1:#x}: run one version on all hosts")]
    Version(u32, u32),
    /// Bytes of the longest frame of the link.
    #[error(
        "its frames on the link have up to {0} bytes, here {1}: give the same mtu in the cluster files of all hosts"
    )]
    Frames(u64, u64),
    /// log2 of the bytes of a page.
    #[error("its pages have 2^{0} bytes, here 2^{1}: they must be equal")]
    PageSize(u8, u8),
    /// log2 of the bytes that DC ZVA zeroes.
    #[error(
        "its DC ZVA zeroes 2^{0} bytes, here 2^{1}: guests read the size once, so it must be equal"
    )]
    ZeroedBlock(u8, u8),
    /// Sizes of cache lines, as in CTR_EL0.
    #[error(
        "its cache lines are {0:#x} in CTR_EL0, here {1:#x}: guests read them once, so they must be equal"
    )]
    CacheLines(u32, u32),
    /// Frequency of the counter in Hz.
    #[error(
        "its clock has {0} Hz, here {1} Hz: guests read the frequency once, so it must be equal"
    )]
    Clock(u32, u32),
}

/// Returns in what a host differs from this one, field by field. ID registers have a common set ([`common`]) and are not
/// compared.
pub fn differences(theirs: &Description, ours: &Description) -> impl Iterator<Item = Unfit> {
    let of = |it: &Description| (it.version.get(), it.clock_hz.get(), it.cache_lines.get());
    let ((version, clock, lines), (our_version, our_clock, our_lines)) = (of(theirs), of(ours));
    let [frames, our_frames] = [theirs, ours].map(|it| it.frame_bytes.get());
    let (protocol, page, zva) = (theirs.protocol, theirs.page_log2, theirs.zva_log2);
    [
        (protocol != PROTOCOL, Unfit::Protocol(protocol, PROTOCOL)),
        (version != our_version, Unfit::Version(version, our_version)),
        (frames != our_frames, Unfit::Frames(frames, our_frames)),
        (
            page != ours.page_log2,
            Unfit::PageSize(page, ours.page_log2),
        ),
        (zva != ours.zva_log2, Unfit::ZeroedBlock(zva, ours.zva_log2)),
        (lines != our_lines, Unfit::CacheLines(lines, our_lines)),
        (clock != our_clock, Unfit::Clock(clock, our_clock)),
    ]
    .into_iter()
    .filter_map(|(differs, why)| differs.then_some(why))
}

/// Returns the ID registers of a description's `features`.
fn id_registers(features: &[U64; FEATURES_MAX]) -> HostIdRegisters {
    HostIdRegisters::new(|crm, op2| {
        let mut all = registers().iter().zip(features);
        let found = all.find(|(it, _)| (it.crm, it.op2) == (crm, op2));
        found.map_or(0, |(_, value)| value.get())
    })
}

/// Returns what both have: of each field of each ID register the value that promises less.
pub fn common(a: &[U64; FEATURES_MAX], b: &[U64; FEATURES_MAX]) -> [U64; FEATURES_MAX] {
    let both = id_registers(a).minimum(id_registers(b));
    let mut words = [U64::ZERO; FEATURES_MAX];
    for (word, register) in words.iter_mut().zip(registers()) {
        *word = both.get(register.crm, register.op2).into();
    }
    words
}
