//! The wire's options, as people write them.

use crate::{
    CLASSES, Class, Digest, HOSTS_MAX, Line,
    faults::{Cut, Faults, Stall},
    name, units,
};
use std::path::PathBuf;

/// The most bytes of frames between two meetings: so much memory is shared for each host, twice.
const BETWEEN_MEETINGS_MAX: u64 = 64 << 20;
const SECOND_NS: i64 = 1_000_000_000;
/// How long others wait for a host, in the time of the machine that all run on, before they give it up.
const PATIENCE_NS: i64 = 60 * SECOND_NS;

/// All options, each as KEY=VALUE.
const KEYS: [&str; 22] = [
    "me", "hosts", "shared", "class", "latency", "rate", "frame", "seed", "lose", "repeat",
    "reorder", "corrupt", "spread", "cut", "die", "stall", "ask", "end", "patience", "report",
    "record", "cure",
];

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// This host's number.
    pub me: usize,
    /// How many hosts there are.
    pub hosts: usize,
    /// The file that hosts share as memory, empty at first.
    pub shared: PathBuf,
    /// All hosts' lines.
    pub line: Line,
    /// What befalls frames.
    pub faults: Faults,
    /// When this host dies.
    pub die_ns: Option<i64>,
    /// When this host's CPUs stand still, by time.
    pub stalls: Vec<Stall>,
    /// From when on this host waits to be asked something from outside, by time: once for each.
    pub asks_ns: Vec<i64>,
    /// When all hosts end.
    pub end_ns: Option<i64>,
    /// How long to wait for a host, in real nanoseconds; none: for ever.
    pub patience_ns: Option<i64>,
    /// Where counts go in the end.
    pub report: Option<PathBuf>,
    /// Where each arrival goes.
    pub record: Option<PathBuf>,
    /// Whether the plugin takes over the leap over idle time; tests let QEMU leap, to see late timers.
    pub is_cured: bool,
    /// Stands for all that hosts must have in common.
    pub fingerprint: u64,
}

/// The arguments, as they were written.
struct Arguments<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Arguments<'a> {
    fn read(words: &'a [String]) -> Result<Self, String> {
        let read = |word: &'a String| {
            let pair = word.split_once('=');
            pair.filter(|(key, _)| KEYS.contains(key)).ok_or_else(|| {
                let keys = KEYS.join(", ");
                format!("'{word}' is no option of the wire; there are {keys}, each with =VALUE")
            })
        };
        words.iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// All values of an option, with itself to complain of.
    fn all<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Vec<T>, String> {
        let pairs = self.0.iter().filter(|(found, _)| *found == key);
        let values = pairs.map(|(_, text)| {
            parse(text).map_err(|why| format!("the wire's option '{key}={text}': {why}"))
        });
        values.collect()
    }

    /// The last value of an option.
    fn one<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        Ok(self.all(key, parse)?.pop())
    }
}

impl Options {
    /// Reads the arguments `key=value`.
    ///
    /// # Errors
    /// The sentence about the first that is wrong or missing.
    pub fn read(words: &[String]) -> Result<Self, String> {
        let arguments = Arguments::read(words)?;
        let needed = |key| format!("the wire's option '{key}=' is missing");
        let hosts = arguments.one("hosts", |text| number(text, 2, HOSTS_MAX as u64))?;
        let hosts = hosts.ok_or_else(|| needed("hosts"))? as usize;
        let me = arguments.one("me", |text| host(text, hosts))?;
        let me = me.ok_or_else(|| needed("me"))?;
        let shared = arguments.one("shared", path)?;
        let line = line(&arguments)?;
        let faults = faults(&arguments, &line, hosts)?;
        let deaths = arguments.all("die", |text| {
            let (host, at) = at(text, hosts, "HOST@TIME, as in 1@5ms")?;
            Ok((host, units::time(at)?))
        })?;
        let stalls = stalls(&arguments, hosts)?;
        let mut asks = arguments.all("ask", |text| {
            let (host, at) = at(text, hosts, "HOST@TIME, as in 0@5s")?;
            Ok((host, units::time(at)?))
        })?;
        asks.sort_unstable();
        let end_ns = arguments.one("end", |text| match units::time(text)? {
            0 => Err("hosts that end need 1ns or more".into()),
            ns => Ok(ns),
        })?;
        let patience = arguments.one("patience", units::time)?;
        let common =
            format!("{hosts} {line:?} {faults:?} {deaths:?} {stalls:?} {asks:?} {end_ns:?}");
        let mut fingerprint = Digest::default();
        fingerprint.add(common.as_bytes());
        Ok(Self {
            me,
            hosts,
            shared: shared.ok_or_else(|| needed("shared"))?,
            line,
            faults,
            die_ns: deaths
                .iter()
                .filter(|(host, _)| *host == me)
                .map(|(_, at)| *at)
                .min(),
            stalls: stalls
                .into_iter()
                .filter(|stall| stall.host == me)
                .collect(),
            asks_ns: asks
                .iter()
                .filter(|(host, _)| *host == me)
                .map(|(_, at)| *at)
                .collect(),
            end_ns,
            patience_ns: Some(patience.unwrap_or(PATIENCE_NS)).filter(|ns| *ns > 0),
            report: arguments.one("report", path)?,
            record: arguments.one("record", path)?,
            is_cured: arguments.one("cure", cure)?.unwrap_or(true),
            fingerprint: fingerprint.value(),
        })
    }

    /// The bytes of frames that a host may send between two meetings; more is impossible.
    pub fn room(&self) -> usize {
        (self.line.bytes_between_meetings() as usize).next_multiple_of(4096)
    }
}

fn line(arguments: &Arguments<'_>) -> Result<Line, String> {
    let class = arguments.one("class", |text| {
        let found = CLASSES.iter().find(|class| class.name == text);
        found.map(|class| class.line).ok_or_else(|| {
            let names = CLASSES.map(|Class { name, .. }| name).join(", ");
            format!("there is no such class; there are {names}")
        })
    })?;
    let latency = arguments.one("latency", |text| match units::time(text)? {
        0 => Err("hosts that run apart need a latency of 1ns or more".into()),
        ns if ns > SECOND_NS => Err("a latency is 1s at most".into()),
        ns => Ok(ns),
    })?;
    let rate = arguments.one("rate", units::rate)?;
    let frame = arguments.one("frame", |text| match units::time(text)? {
        ns if ns > SECOND_NS => Err("a frame costs 1s at most".into()),
        ns => Ok(ns),
    })?;
    // 10 Gbit/s in a rack, where nothing is said.
    let usual = CLASSES.iter().find(|class| class.name == "60us");
    let Some(usual) = class.or(usual.map(|class| class.line)) else {
        return Err("the wire's classes are broken".into());
    };
    let line = Line {
        latency_ns: latency.unwrap_or(usual.latency_ns),
        bits_per_second: rate.unwrap_or(usual.bits_per_second),
        frame_ns: frame.unwrap_or(usual.frame_ns),
    };
    let between = line.bytes_between_meetings();
    if between > BETWEEN_MEETINGS_MAX {
        return Err(format!(
            "a wire of {} Mbit/s and {} us holds {} MiB of frames, more than {}; lower latency= or rate=",
            line.bits_per_second / 1_000_000,
            line.latency_ns / 1_000,
            between >> 20,
            BETWEEN_MEETINGS_MAX >> 20,
        ));
    }
    Ok(line)
}

fn faults(arguments: &Arguments<'_>, line: &Line, hosts: usize) -> Result<Faults, String> {
    let share = |key| Ok::<_, String>(arguments.one(key, units::share)?.unwrap_or(0));
    let spread = arguments.one("spread", |text| match units::time(text)? {
        0 => Err("a frame that is late needs 1ns or more".into()),
        ns => Ok(ns),
    })?;
    let seed = arguments.one("seed", |text| number(text, 0, u64::MAX))?;
    let cuts = arguments.all("cut", |text| {
        let form = "A-B@TIME+TIME, as in 0-1@5ms+2ms";
        let (hosts_text, times) = text.split_once('@').ok_or_else(|| expected(form))?;
        let (a, b) = hosts_text.split_once('-').ok_or_else(|| expected(form))?;
        let between = [host(a, hosts)?, host(b, hosts)?];
        if between[0] == between[1] {
            return Err("a host reaches itself always; name two hosts".into());
        }
        let (from_ns, ns) = span(times, form)?;
        Ok(Cut {
            between,
            from_ns,
            until_ns: from_ns + ns,
        })
    })?;
    Ok(Faults {
        seed: seed.unwrap_or(Faults::NONE.seed),
        lost: share("lose")?,
        repeated: share("repeat")?,
        late: share("reorder")?,
        corrupt: share("corrupt")?,
        spread_ns: spread.unwrap_or(line.latency_ns),
        cuts,
    })
}

/// In the order of their time; two of one host may not overlap.
fn stalls(arguments: &Arguments<'_>, hosts: usize) -> Result<Vec<Stall>, String> {
    let mut stalls = arguments.all("stall", |text| {
        let form = "HOST@TIME+TIME, as in 1@5ms+2ms";
        let (host, times) = at(text, hosts, form)?;
        let (from_ns, ns) = span(times, form)?;
        Ok(Stall { host, from_ns, ns })
    })?;
    stalls.sort_by_key(|stall| (stall.host, stall.from_ns));
    for two in stalls.windows(2) {
        if let [a, b] = two
            && a.host == b.host
            && a.from_ns + a.ns > b.from_ns
        {
            return Err(format!(
                "two of the wire's options 'stall=' of {} overlap, at {} ns; give one",
                name(a.host),
                b.from_ns
            ));
        }
    }
    Ok(stalls)
}

fn cure(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(expected("on or off")),
    }
}

fn expected(form: &str) -> String {
    format!("expected {form}")
}

fn path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("expected a file".into());
    }
    Ok(PathBuf::from(text))
}

fn number(text: &str, least: u64, most: u64) -> Result<u64, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (least..=most).contains(number))
        .ok_or_else(|| format!("expected a number from {least} to {most}"))
}

/// A host, by number or name.
fn host(text: &str, hosts: usize) -> Result<usize, String> {
    let number = text.strip_prefix("host").unwrap_or(text).parse().ok();
    number.filter(|host| *host < hosts).ok_or_else(|| {
        format!(
            "'{text}' is no host; there are {} to {}",
            name(0),
            name(hosts - 1)
        )
    })
}

/// `HOST@REST`.
fn at<'a>(text: &'a str, hosts: usize, form: &str) -> Result<(usize, &'a str), String> {
    let (name, rest) = text.split_once('@').ok_or_else(|| expected(form))?;
    Ok((host(name, hosts)?, rest))
}

/// `TIME+TIME`: from when, and how long.
fn span(text: &str, form: &str) -> Result<(i64, i64), String> {
    let (from, ns) = text.split_once('+').ok_or_else(|| expected(form))?;
    let ns = units::time(ns)?;
    if ns == 0 {
        return Err("expected a time of 1ns or more after '+'".into());
    }
    Ok((units::time(from)?, ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Options, String> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        Options::read(&words)
    }

    #[test]
    fn little_need_be_said() {
        let options = read("me=1 hosts=2 shared=f").unwrap();
        assert_eq!(options.line.latency_ns, 30_000);
        assert_eq!(options.line.bits_per_second, 10_000_000_000);
        assert_eq!(
            options.faults,
            Faults {
                spread_ns: 30_000,
                ..Faults::NONE
            }
        );
        assert_eq!(
            (options.die_ns, options.patience_ns),
            (None, Some(PATIENCE_NS))
        );
        // 37,500 bytes in 30 us, 128 KiB that wait, and heads.
        assert_eq!(options.room(), 212_992);
    }

    #[test]
    fn all_can_be_said() {
        let words = "me=host2 hosts=3 shared=f class=1ms latency=10us rate=100M frame=2us seed=7 lose=1% repeat=2% \
             reorder=3% corrupt=0.5% spread=5us cut=0-host2@5ms+1ms die=2@9ms die=0@1ms stall=2@7ms+1us \
             stall=2@3ms+4ms stall=1@0+1s ask=2@5ms ask=2@4ms ask=1@9ms end=20ms patience=0 report=r";
        let options = read(words).unwrap();
        assert_eq!((options.me, options.hosts), (2, 3));
        let line = Line {
            latency_ns: 10_000,
            bits_per_second: 100_000_000,
            frame_ns: 2_000,
        };
        assert_eq!(options.line, line);
        let cuts = vec![Cut {
            between: [0, 2],
            from_ns: 5_000_000,
            until_ns: 6_000_000,
        }];
        let (lost, repeated, late, corrupt) = (10_000, 20_000, 30_000, 5_000);
        let faults = Faults {
            seed: 7,
            lost,
            repeated,
            late,
            corrupt,
            spread_ns: 5_000,
            cuts,
        };
        assert_eq!(options.faults, faults);
        assert_eq!(options.die_ns, Some(9_000_000));
        let stall = |from_ns, ns| Stall {
            host: 2,
            from_ns,
            ns,
        };
        assert_eq!(
            options.stalls,
            [stall(3_000_000, 4_000_000), stall(7_000_000, 1_000)]
        );
        assert_eq!(options.patience_ns, None);
        assert_eq!(options.asks_ns, [4_000_000, 5_000_000]);
        assert_eq!(options.end_ns, Some(20_000_000));
        // The other hosts have the same in common, and not what is theirs alone.
        let other = read(
            &words
                .replace("me=host2", "me=0")
                .replace("report=r", "report=s"),
        );
        assert_eq!(other.unwrap().fingerprint, options.fingerprint);
        for (one, another) in [
            ("seed=7", "seed=8"),
            ("die=2@9ms", "die=2@8ms"),
            ("lose=1%", "lose=2%"),
            ("ask=1@9ms", "ask=1@8ms"),
            ("end=20ms", "end=21ms"),
        ] {
            let other = read(&words.replace(one, another)).unwrap();
            assert_ne!(other.fingerprint, options.fingerprint, "{another}");
        }
    }

    #[test]
    fn errors_say_what_is_wrong_and_what_is_allowed() {
        for (words, said) in [
            (
                "noodles=1",
                "'noodles=1' is no option of the wire; there are me, hosts,",
            ),
            ("cut", "'cut' is no option"),
            ("hosts=9", "'hosts=9': expected a number from 2 to 8"),
            ("hosts=1", "'hosts=1': expected a number from 2 to 8"),
            ("me=3", "'me=3': '3' is no host; there are host0 to host2"),
            (
                "class=5us",
                "'class=5us': there is no such class; there are 4us, 20us,",
            ),
            ("latency=0", "a latency of 1ns or more"),
            ("latency=2s", "a latency is 1s at most"),
            (
                "latency=1s rate=100G",
                "more than 64; lower latency= or rate=",
            ),
            ("rate=ten", "'ten' is no rate"),
            ("frame=2s", "a frame costs 1s at most"),
            ("lose=2", "'2' is no share"),
            ("spread=0", "needs 1ns or more"),
            ("cut=0-0@1+1", "a host reaches itself always"),
            ("cut=0-3@1+1", "'3' is no host"),
            ("cut=0-1@1", "expected A-B@TIME+TIME"),
            ("cut=0@1+1", "expected A-B@TIME+TIME"),
            ("cut=0-1@1+0", "expected a time of 1ns or more"),
            ("die=1", "expected HOST@TIME"),
            ("die=1@x", "'x' is no time"),
            ("stall=1@1us", "expected HOST@TIME+TIME"),
            ("ask=1", "expected HOST@TIME"),
            ("end=0", "hosts that end need 1ns or more"),
            (
                "stall=1@1us+2us stall=1@2us+1us",
                "of host1 overlap, at 2000 ns",
            ),
        ] {
            let why = read(&format!("me=0 hosts=3 shared=f {words}")).unwrap_err();
            assert!(why.contains(said), "{words}: {why}");
        }
        for words in ["hosts=2 shared=f", "me=0 shared=f", "me=0 hosts=2"] {
            assert!(read(words).unwrap_err().ends_with("is missing"), "{words}");
        }
    }
}
