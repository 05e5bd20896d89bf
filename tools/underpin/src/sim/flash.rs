//! The measuring machine: each node's memory is a file, and a plugin of QEMU's (`sim/plugin`) counts
//! misses and time. One node more, without CPUs, is the window in which the hypervisor reads the
//! counters.

use super::{
    cluster::Cluster,
    shape::{Arguments, NodeShape, prefixed},
};
use crate::failure::{Failure, Result, exit};
use clap::Args;
use std::{
    env,
    ffi::OsString,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

/// Nodes that the hypervisor uses.
const NODES_MAX: usize = 8;
/// CPUs that the plugin models.
const CPUS_MAX: u32 = 32;
/// Distance of the window to all nodes, the largest there is: nobody's memory.
const WINDOW_DISTANCE: u32 = 254;
/// Distance of two nodes where nothing else is said: 900 ns, as on FLASH.
pub const DISTANCE: u32 = 30;
/// Nanoseconds of a miss for each unit of distance.
const NS_OF_DISTANCE: u32 = 30;
/// The header of the window, in bytes; then four bytes for each page and node, and four more.
const WINDOW_HEADER: u64 = 36_864;
const MIB: u64 = 1 << 20;

/// What is measured, and where that goes.
#[derive(Args, Clone, Debug, Default)]
pub struct Flash {
    /// Model caches and latencies of a ccNUMA machine, and count misses by page and node: time is
    /// that of the model. Needs QEMU 10.0 and the plugin (see sim/README.md)
    #[arg(long, conflicts_with_all = ["node", "disk"])]
    pub flash: bool,
    /// An option of the plugin, as in cache_kib=256 (repeatable)
    #[arg(long, value_name = "KEY=VALUE", requires = "flash")]
    pub flash_option: Vec<String>,
    /// The plugin [default: $UNDERPIN_SIM_PLUGIN, else target/sim/release/libsim_plugin.so of the
    /// source tree]
    #[arg(long, value_name = "FILE", requires = "flash")]
    pub plugin: Option<PathBuf>,
    /// The plugin that keeps a counted clock exact [default: $UNDERPIN_SIM_CLOCK, else
    /// target/sim/release/libsim_clock.so of the source tree]
    #[arg(long, value_name = "FILE")]
    pub clock: Option<PathBuf>,
    /// Where measured regions go, as CSV [default: results.csv in the machine's directory]
    #[arg(long, value_name = "FILE", requires = "flash")]
    pub results: Option<PathBuf>,
}

impl Flash {
    /// The size of the window for these nodes, a whole number of MiB.
    pub fn window(nodes: &[NodeShape]) -> u64 {
        let memory: u64 = nodes.iter().map(|node| node.memory).sum();
        let bytes = WINDOW_HEADER + memory / 4096 * (nodes.len() as u64 + 1) * 4;
        bytes.next_multiple_of(MIB)
    }

    /// Refuses machines that cannot be measured.
    pub fn check(&self, nodes: &[NodeShape]) -> Result<()> {
        let cpus: u32 = nodes.iter().map(|node| node.cpus).sum();
        let is_even = nodes.iter().all(|node| Some(node) == nodes.first());
        let (what, help) = if nodes.len() > NODES_MAX {
            (
                format!("{} nodes cannot be measured", nodes.len()),
                "use 1 to 8 nodes",
            )
        } else if cpus > CPUS_MAX {
            (
                format!("{cpus} CPUs cannot be measured"),
                "use 1 to 32 CPUs",
            )
        } else if !is_even {
            (
                "a machine whose nodes differ cannot be measured".to_owned(),
                "let --cpus be a multiple of --nodes",
            )
        } else {
            return Ok(());
        };
        Err(Failure::new(exit::USAGE, what).help(help))
    }

    /// Makes the files of the nodes' memory and the window, empty and of their full size, in a
    /// directory of their own.
    pub fn lay_out(nodes: &[NodeShape], directory: &Path) -> Result<()> {
        let failed = |error: io::Error| Failure::file("cannot make", directory, &error);
        let _ = fs::remove_dir_all(directory);
        fs::create_dir_all(directory).map_err(failed)?;
        let make = |path: PathBuf, bytes| File::create(path).and_then(|file| file.set_len(bytes));
        for (n, node) in nodes.iter().enumerate() {
            make(node_file(directory, n), node.memory).map_err(failed)?;
        }
        make(window_file(directory), Self::window(nodes)).map_err(failed)
    }

    /// QEMU's arguments for the nodes, the window and the plugin.
    pub(super) fn arguments(
        &self,
        args: &mut Arguments,
        nodes: &[NodeShape],
        distance: u32,
        directory: &Path,
    ) -> Result<()> {
        let mut first = 0;
        let shared = |id: &str, bytes: u64, path: &Path| {
            let before = format!(
                "memory-backend-file,id={id},size={}M,mem-path=",
                bytes / MIB
            );
            prefixed(&before, path, ",share=on")
        };
        for (n, node) in nodes.iter().enumerate() {
            let file = node_file(directory, n);
            args.pair("-object", shared(&format!("memory{n}"), node.memory, &file));
            let last = first + node.cpus - 1;
            args.pair(
                "-numa",
                format!("node,nodeid={n},cpus={first}-{last},memdev=memory{n}"),
            );
            first += node.cpus;
        }
        let count = nodes.len();
        let window = window_file(directory);
        args.pair("-object", shared("window", Self::window(nodes), &window));
        args.pair("-numa", format!("node,nodeid={count},memdev=window"));
        for from in 0..count {
            for to in (0..=count).filter(|to| *to != from) {
                let distance = if to == count {
                    WINDOW_DISTANCE
                } else {
                    distance
                };
                args.pair("-numa", format!("dist,src={from},dst={to},val={distance}"));
            }
        }
        let mib = nodes.first().map_or(0, |node| node.memory / MIB);
        let results = self.results.clone();
        let results = results.unwrap_or_else(|| directory.with_file_name("results.csv"));
        let mut plugin = prefixed("", &MACHINE.find(self.plugin.as_deref())?, "");
        plugin.push(format!(
            ",nodes={count},node_mib={mib},remote_ns={}",
            distance * NS_OF_DISTANCE
        ));
        for (key, path) in [
            (",ram=", directory),
            (",window=", &window),
            (",out=", &results),
        ] {
            plugin.push(prefixed(key, path, ""));
        }
        for option in &self.flash_option {
            plugin.push(OsString::from(format!(",{option}")));
        }
        args.pair("-plugin", plugin);
        Ok(())
    }

    /// QEMU's argument that loads the plugin of a counted clock.
    pub(super) fn clock_plugin(&self) -> Result<OsString> {
        let plugin = CLOCK.find(self.clock.as_deref())?;
        Ok(prefixed("", &plugin, ""))
    }
}

/// QEMU's argument that loads the plugin which counts what the hypervisor executes, where `$UNDERPIN_SIM_PROFILE` asks for
/// it: FILE, perhaps with options, as in FILE,over=9000. The plugin makes a file of it for each machine.
pub(super) fn profile_plugin() -> Result<Option<OsString>> {
    let asked = env::var("UNDERPIN_SIM_PROFILE").unwrap_or_default();
    if asked.is_empty() {
        return Ok(None);
    }
    let plugin = PROFILE.find(None)?;
    Ok(Some(prefixed("", &plugin, &format!(",each={asked}"))))
}

/// A plugin of QEMU's, and where it is looked for.
struct Plugin {
    what: &'static str,
    option: &'static str,
    variable: &'static str,
    built: &'static str,
}

const MACHINE: Plugin = Plugin {
    what: "the measuring machine",
    option: "--plugin",
    variable: "UNDERPIN_SIM_PLUGIN",
    built: "target/sim/release/libsim_plugin.so",
};

const CLOCK: Plugin = Plugin {
    what: "a clock that counts instructions",
    option: "--clock",
    variable: "UNDERPIN_SIM_CLOCK",
    built: "target/sim/release/libsim_clock.so",
};

const PROFILE: Plugin = Plugin {
    what: "what the hypervisor executes",
    option: "$UNDERPIN_SIM_PROFILE",
    variable: "UNDERPIN_SIM_PROFILER",
    built: "target/sim/release/libsim_profile.so",
};

const WIRE: Plugin = Plugin {
    what: "an Ethernet between hosts",
    option: "--wire-plugin",
    variable: "UNDERPIN_SIM_WIRE",
    built: "target/sim/release/libsim_wire.so",
};

/// The plugin that carries frames between hosts; none where they run free.
pub(super) fn wire_plugin(cluster: &Cluster) -> Result<Option<PathBuf>> {
    if cluster.free {
        return Ok(None);
    }
    WIRE.find(cluster.wire_plugin.as_deref()).map(Some)
}

impl Plugin {
    fn find(&self, given: Option<&Path>) -> Result<PathBuf> {
        let Self {
            what,
            option,
            variable,
            built,
        } = self;
        let named = env::var_os(variable).filter(|plugin| !plugin.is_empty());
        let given = given.map(Path::to_path_buf).or(named.map(PathBuf::from));
        let found = given.or_else(|| {
            let places = [env::current_exe().ok(), env::current_dir().ok()];
            let trees = places.iter().flatten().flat_map(|place| place.ancestors());
            trees
                .map(|tree| tree.join(built))
                .find(|plugin| plugin.is_file())
        });
        match found {
            Some(plugin) if plugin.is_file() => Ok(plugin),
            Some(plugin) => {
                let message = format!("the plugin {} is not there", plugin.display());
                Err(Failure::new(exit::FILE, message)
                    .help(format!("look at {option} and ${variable}")))
            }
            None => Err(
                Failure::new(exit::FILE, format!("no plugin for {what} is found")).help(format!(
                    "build it as sim/README.md says, or name it: {option} FILE"
                )),
            ),
        }
    }
}

fn node_file(directory: &Path, node: usize) -> PathBuf {
    directory.join(format!("node{node}.ram"))
}

fn window_file(directory: &Path) -> PathBuf {
    directory.join("window")
}
