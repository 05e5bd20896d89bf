//! What goes between a host's process and the network: words of 64 bits and runs of bytes, each message behind its length.

use hypervisor::outside::cluster::{Features, Standing};
use std::io::{self, Read, Write};

/// The most bytes of a message: what a host sends and logs in a turn is far less.
const LONGEST: u64 = 64 << 20;

/// A host's turn. Times are counts of its own clock since it was switched on.
#[derive(Debug, Default)]
pub struct Turn {
    /// When the frames arrive.
    pub at: u64,
    /// The time to run to.
    pub until: u64,
    /// Frames for its card.
    pub frames: Vec<Vec<u8>>,
    /// Messages of a probe to each other host that it is to begin; 0: none.
    pub probes: u32,
    /// It is to free itself of the VM over several hosts, and to leave.
    pub drains: bool,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Report {
    /// The time that it has reached.
    pub at: u64,
    /// When it goes on by itself; `u64::MAX`: never.
    pub goes_on_at: u64,
    /// Points at which another CPU could go on, so far.
    pub steps: u64,
    /// Frames that left its card, with the times at which they did.
    pub frames: Vec<(u64, Vec<u8>)>,
    /// How it stands in the cluster; `None` before it has links.
    pub standing: Option<Standing>,
    /// The features that it has, and those in common, where a host differs in them.
    pub features: Option<[Features; 2]>,
    /// What it wrote to its log.
    pub log: String,
    /// What went wrong; empty if nothing has.
    pub wrong: String,
}

#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn word(&mut self, word: u64) {
        self.0.extend(word.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        self.0.extend(bytes);
    }

    fn write(self, to: &mut impl Write) -> io::Result<()> {
        let length = (self.0.len() as u64).to_le_bytes();
        to.write_all(&[&length, self.0.as_slice()].concat())?;
        to.flush()
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let length = self.word()? as usize;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes.to_vec())
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?).ok()
    }
}

/// The next message; `None` at the end.
fn read(from: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u64::from_le_bytes(length);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

impl Turn {
    /// Writes it.
    ///
    /// # Errors
    /// The host's process has ended.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut writer = Writer::default();
        [self.at, self.until, self.probes.into(), self.drains.into()]
            .into_iter()
            .chain([self.frames.len() as u64])
            .for_each(|word| writer.word(word));
        for frame in &self.frames {
            writer.bytes(frame);
        }
        writer.write(to)
    }

    /// Reads one; `None` at the end.
    ///
    /// # Errors
    /// It is none.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let Some(bytes) = read(from)? else {
            return Ok(None);
        };
        let turn = Self::parse(&mut Reader(&bytes));
        turn.map(Some).ok_or(io::ErrorKind::InvalidData.into())
    }

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let (at, until, probes) = (reader.word()?, reader.word()?, reader.word()? as u32);
        let drains = reader.word()? != 0;
        let count = reader.word()?;
        let frames = (0..count).map(|_| reader.bytes()).collect::<Option<_>>()?;
        Some(Self {
            at,
            until,
            frames,
            probes,
            drains,
        })
    }
}

impl Report {
    /// Writes it.
    ///
    /// # Errors
    /// Nobody listens.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut writer = Writer::default();
        [self.at, self.goes_on_at, self.steps]
            .into_iter()
            .chain([self.frames.len() as u64])
            .for_each(|word| writer.word(word));
        for (at, frame) in &self.frames {
            writer.word(*at);
            writer.bytes(frame);
        }
        writer.word(self.standing.is_some().into());
        if let Some(it) = &self.standing {
            let words = [it.now_ns, it.id, it.runs_until_ns, it.owes_until_ns];
            let words = words
                .into_iter()
                .chain([it.probed.into(), it.taken, it.unheard])
                .chain([it.retired, it.has_left.into()]);
            let words = words.chain(it.lives);
            words.for_each(|word| writer.word(word));
        }
        writer.word(self.features.is_some().into());
        for word in self.features.iter().flatten().flatten() {
            writer.word(*word);
        }
        writer.bytes(self.log.as_bytes());
        writer.bytes(self.wrong.as_bytes());
        writer.write(to)
    }

    /// Reads one, and a sum of all its bytes, which is added to `sum`.
    ///
    /// # Errors
    /// It is none, or the host's process has ended.
    pub fn read(from: &mut impl Read, sum: &mut u64) -> io::Result<Self> {
        let bytes = read(from)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            *sum =
                (sum.rotate_left(7) ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        Self::parse(&mut Reader(&bytes)).ok_or(io::ErrorKind::InvalidData.into())
    }

    fn parse(reader: &mut Reader<'_>) -> Option<Self> {
        let [at, goes_on_at, steps] = [reader.word()?, reader.word()?, reader.word()?];
        let count = reader.word()?;
        let mut frame = || Some((reader.word()?, reader.bytes()?));
        let frames = (0..count).map(|_| frame()).collect::<Option<_>>()?;
        let standing = match reader.word()? {
            0 => None,
            _ => Some(standing(reader)?),
        };
        let features = match reader.word()? {
            0 => None,
            _ => Some(features(reader)?),
        };
        Some(Self {
            at,
            goes_on_at,
            steps,
            frames,
            standing,
            features,
            log: reader.text()?,
            wrong: reader.text()?,
        })
    }
}

fn standing(reader: &mut Reader<'_>) -> Option<Standing> {
    let mut standing = Standing {
        now_ns: reader.word()?,
        id: reader.word()?,
        runs_until_ns: reader.word()?,
        owes_until_ns: reader.word()?,
        probed: reader.word()? as u16,
        taken: reader.word()?,
        unheard: reader.word()?,
        retired: reader.word()?,
        has_left: reader.word()? != 0,
        ..Standing::default()
    };
    for life in &mut standing.lives {
        *life = reader.word()?;
    }
    Some(standing)
}

fn features(reader: &mut Reader<'_>) -> Option<[Features; 2]> {
    let mut features = [Features::default(); 2];
    for word in features.iter_mut().flatten() {
        *word = reader.word()?;
    }
    Some(features)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() -> io::Result<()> {
        let turn = Turn {
            at: 1,
            until: 2,
            frames: vec![vec![3; 64], Vec::new()],
            probes: 4,
            drains: true,
        };
        let report = Report {
            at: 5,
            goes_on_at: u64::MAX,
            steps: 6,
            frames: vec![(7, vec![8; 70])],
            standing: Some(Standing {
                id: 9,
                lives: [10; _],
                ..Standing::default()
            }),
            features: Some([[11; _], [12; _]]),
            log: "said".into(),
            wrong: String::new(),
        };
        let mut bytes = Vec::new();
        turn.write(&mut bytes)?;
        let read = Turn::read(&mut bytes.as_slice())?;
        assert_eq!(format!("{read:?}"), format!("{:?}", Some(turn)));
        bytes.clear();
        report.write(&mut bytes)?;
        let (mut sum, mut other) = (0, 0);
        let read = Report::read(&mut bytes.as_slice(), &mut sum)?;
        assert_eq!(format!("{read:?}"), format!("{report:?}"));
        bytes[20] ^= 1;
        let _ = Report::read(&mut bytes.as_slice(), &mut other);
        assert_ne!(sum, other);
        assert!(Turn::read(&mut [].as_slice())?.is_none());
        assert!(Turn::read(&mut [8, 0, 0, 0, 0, 0, 0, 0, 1].as_slice()).is_err());
        Ok(())
    }
}
