//! What the plugin's arguments ask for.

use sim_model::{Geometry, Topology};
use std::path::PathBuf;

/// Where QEMU's `virt` machine has memory.
const MEMORY_BASE: u64 = 0x4000_0000;
/// The distance of a node to itself in every distance matrix (ACPI SLIT, NUMA device tree binding).
const LOCAL_DISTANCE: u64 = 10;

/// The machine to model, and where to write.
#[derive(Debug)]
pub struct Options {
    /// The cache of each CPU.
    pub geometry: Geometry,
    /// CPUs, nodes and latencies.
    pub topology: Topology,
    /// How long a CPU's turn lasts, in local nanoseconds.
    pub slice_ns: u64,
    /// The directory with the nodes' memory, `node0.ram` and so on.
    pub ram: PathBuf,
    /// The file behind the counter window's memory.
    pub window: Option<PathBuf>,
    /// The results.
    pub out: PathBuf,
}

/// The arguments as they were written.
struct Arguments<'a>(Vec<(&'a str, &'a str)>);

/// All that there are.
const KEYS: [&str; 12] = [
    "nodes",
    "node_mib",
    "cache_kib",
    "ways",
    "line",
    "local_ns",
    "remote_ns",
    "distances",
    "slice_ns",
    "ram",
    "window",
    "out",
];

impl<'a> Arguments<'a> {
    fn read(words: &'a [String]) -> Result<Self, String> {
        let mut found = Vec::new();
        for word in words {
            let (key, value) = word
                .split_once('=')
                .filter(|(key, _)| KEYS.contains(key))
                .ok_or_else(|| {
                    format!(
                        "'{word}' is no option; there are {}, each with =VALUE",
                        KEYS.join(", ")
                    )
                })?;
            found.push((key, value));
        }
        Ok(Self(found))
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        let last = self.0.iter().rev().find(|(found, _)| *found == key);
        last.map(|(_, value)| *value)
    }

    fn number(&self, key: &str, default: u64) -> Result<u64, String> {
        self.text(key).map_or(Ok(default), |text| {
            let number = text.parse::<u32>().map(u64::from);
            number.map_err(|_| format!("'{key}={text}' is no number below 2^32"))
        })
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    /// One latency for each pair of nodes.
    fn latencies(&self, nodes: usize) -> Result<Vec<u64>, String> {
        let local = self.number("local_ns", 300)?;
        let Some(distances) = self.text("distances") else {
            let remote = self.number("remote_ns", 900)?;
            return Ok(Topology::two_latencies(nodes, local, remote));
        };
        let latency = |text: &str| {
            let distance = text.parse::<u8>().ok().filter(|distance| *distance > 0);
            distance
                .map(|distance| u64::from(distance) * local / LOCAL_DISTANCE)
                .ok_or_else(|| format!("'{text}' is no distance; distances are 1 to 255"))
        };
        distances.split(':').map(latency).collect()
    }
}

impl Options {
    /// Reads the arguments `key=value` of a machine with so many CPUs.
    ///
    /// # Errors
    /// A sentence for the user.
    pub fn read(words: &[String], cpus: usize) -> Result<Self, String> {
        let arguments = Arguments::read(words)?;
        let nodes = arguments.number("nodes", 1)? as usize;
        let geometry = Geometry::new(
            arguments.number("cache_kib", 1024)? << 10,
            arguments.number("ways", 2)?,
            arguments.number("line", 64)?,
        )
        .map_err(|bad| bad.to_string())?;
        let topology = Topology::new(
            cpus,
            nodes,
            MEMORY_BASE,
            arguments.number("node_mib", 128)? << 20,
            arguments.latencies(nodes)?,
        )
        .map_err(|bad| bad.to_string())?;
        let needed = |key| {
            arguments
                .path(key)
                .ok_or_else(|| format!("the option '{key}=PATH' is missing"))
        };
        Ok(Self {
            geometry,
            topology,
            slice_ns: arguments.number("slice_ns", 10_000)?.max(1),
            ram: needed("ram")?,
            window: arguments.path("window"),
            out: needed("out")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &str) -> Result<Options, String> {
        let words: Vec<String> = words.split(' ').map(str::to_owned).collect();
        Options::read(&words, 4)
    }

    #[test]
    fn the_default_is_flash() {
        let options = read("ram=d out=o nodes=2").unwrap();
        assert_eq!(options.geometry, Geometry::new(1 << 20, 2, 64).unwrap());
        assert_eq!(options.topology.latency_ns(0, 0), 300);
        assert_eq!(options.topology.latency_ns(0, 1), 900);
        assert_eq!(options.topology.bytes(), 256 << 20);
        assert_eq!(options.slice_ns, 10_000);
    }

    #[test]
    fn latencies_follow_distances() {
        let options =
            read("ram=d out=o nodes=2 local_ns=100 distances=10:21:30:10 cache_kib=256").unwrap();
        assert_eq!(options.topology.latency_ns(0, 1), 210);
        assert_eq!(options.topology.latency_ns(1, 0), 300);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for words in [
            "ram=d",
            "out=o",
            "ram=d out=o noodles=2",
            "ram=d out=o nodes=x",
            "ram=d out=o nodes=3",
            "ram=d out=o cache_kib=4294967295",
            "ram=d out=o nodes=2 distances=10:20",
            "ram=d out=o nodes=1 distances=0",
            "ram",
        ] {
            assert!(read(words).is_err(), "{words}");
        }
    }
}
