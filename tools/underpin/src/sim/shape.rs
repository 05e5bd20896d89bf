//! What the simulated machine is, and the QEMU command line that makes it so.

use super::{
    cluster::{Cluster, Port},
    flash::{self, Flash},
};
use crate::{
    failure::{Failure, Result, exit},
    units,
};
use clap::Args;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    str::FromStr,
};

/// The most pCPUs of a machine.
const CPUS_MAX: u32 = 256;
/// QEMU's most NUMA nodes.
const NODES_MAX: u32 = 64;
/// The most physical disks that the hypervisor drives.
const DISKS_MAX: usize = 4;
/// Where QEMU's virt machine puts the bundle: so far behind the beginning of RAM.
const BUNDLE_AFTER: u64 = 128 << 20;
/// NUMA distance of a node to itself, and to others where nothing else is said.
const LOCAL: u32 = 10;
const REMOTE: u32 = 20;

/// The simulated machine.
#[derive(Args, Clone, Debug)]
pub struct Shape {
    /// CPUs of the machine, shared out evenly among the nodes
    #[arg(long, default_value_t = 2, value_name = "N")]
    pub cpus: u32,
    /// Memory of the machine, shared out evenly among the nodes
    #[arg(long, default_value = "2GiB", value_name = "SIZE", value_parser = units::parse_size)]
    pub memory: u64,
    /// NUMA nodes
    #[arg(long, visible_alias = "numa", default_value_t = 1, value_name = "N")]
    pub nodes: u32,
    /// One node, for uneven machines; repeat it for each: cpus=2,memory=3GiB
    #[arg(long, value_name = "SHAPE", conflicts_with_all = ["cpus", "memory", "nodes"])]
    pub node: Vec<NodeShape>,
    /// NUMA distance between two nodes; a node is 10 from itself [default: 20, with --flash 30]
    #[arg(long, value_name = "N")]
    pub distance: Option<u32>,
    /// CPU model, as QEMU calls it
    #[arg(long, default_value = "neoverse-n1", value_name = "MODEL")]
    pub cpu: String,
    /// The hypervisor [default: $UNDERPIN_IMAGE, else target/el2/underpin.img of the source tree]
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// A physical disk of the machine: a raw image, written to (repeatable)
    #[arg(long, value_name = "FILE")]
    pub disk: Vec<PathBuf>,
    /// Log each disk's writes and flushes to this file, in disk order (dm-log-writes format)
    #[arg(long, value_name = "FILE", requires = "disk")]
    pub disk_log: Vec<PathBuf>,
    /// Give the machine a network card, with a way out through this one's network
    #[arg(long)]
    pub net: bool,
    /// Reach a port of the first VM with a way out (TCP): HOST-PORT:VM-PORT (repeatable)
    #[arg(long, value_name = "PORTS", value_parser = forward, requires = "net")]
    pub forward: Vec<(u16, u16)>,
    /// The hypervisor's own command line, as in log=debug
    ///
    /// log=LEVEL: what is logged, one of error, warn, info (default), debug, trace.
    ///
    /// zeroed=64M: how much memory of each node idle CPUs keep zeroed, in MiB; off: none. Default: an eighth of what is
    /// free, from 8 to 256 MiB.
    ///
    /// numa=off: pages are not moved to where they are used; numa=sample: also where the machine does not count misses.
    ///
    /// trace=all: events of all classes are recorded from the start.
    ///
    /// bhb=off: exits leave the guest's branches in the CPU's history (Spectre-BHB). For measurements only.
    #[arg(long, value_name = "TEXT")]
    pub append: Option<String>,
    /// Count instructions for time: each takes 2^SHIFT ns, on one host CPU. Random seeds and the calendar are fixed, so
    /// that runs are equal until a command asks something of the hypervisor
    #[arg(long, value_name = "SHIFT")]
    pub icount: Option<u8>,
    /// The measuring machine.
    #[command(flatten)]
    pub flash: Flash,
    /// The hosts of a cluster.
    #[command(flatten)]
    pub cluster: Cluster,
    /// A further argument for QEMU (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub qemu_arg: Vec<OsString>,
}

/// The CPUs and memory of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeShape {
    /// Its CPUs; there may be none.
    pub cpus: u32,
    /// Bytes of its memory.
    pub memory: u64,
}

impl FromStr for NodeShape {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (mut cpus, mut memory) = (None, None);
        for part in text.split(',') {
            match part.split_once('=') {
                Some(("cpus", n)) => cpus = n.parse().ok(),
                Some(("memory", size)) => memory = Some(units::parse_size(size)?),
                _ => return Err(format!("'{part}' is neither cpus=N nor memory=SIZE")),
            }
        }
        let shape = cpus.zip(memory).map(|(cpus, memory)| Self { cpus, memory });
        shape.ok_or_else(|| "give both, as in cpus=2,memory=3GiB".to_owned())
    }
}

/// The files that QEMU is given.
pub struct Files<'a> {
    /// The hypervisor's image.
    pub image: &'a Path,
    /// The bundle, and its bytes.
    pub bundle: (&'a Path, u64),
    /// Where the hypervisor's UART goes.
    pub log: &'a Path,
    /// QEMU's own control socket.
    pub qmp: &'a Path,
    /// The directory of the measuring machine's memory; see [`Flash::lay_out`].
    pub ram: &'a Path,
    /// The disk of files that are disks of single VMs (VMDK).
    pub own_disks: Option<PathBuf>,
    /// How it is joined to other hosts, where it is one of a cluster.
    pub port: Option<Port>,
}

impl Shape {
    /// The machine's nodes; fails where the shape is impossible.
    pub fn nodes(&self) -> Result<Vec<NodeShape>> {
        let wrong =
            |message: String, help: &str| Err(Failure::new(exit::USAGE, message).help(help));
        let nodes = if self.node.is_empty() {
            self.even_nodes()
        } else {
            self.node.clone()
        };
        let cpus: u32 = nodes
            .iter()
            .fold(0, |sum, node| sum.saturating_add(node.cpus));
        if nodes.is_empty() || nodes.len() > NODES_MAX as usize {
            return wrong(
                format!("{} nodes are impossible", self.nodes),
                "use 1 to 64 nodes",
            );
        }
        if !(1..=CPUS_MAX).contains(&cpus) {
            return wrong(format!("{cpus} CPUs are impossible"), "use 1 to 256 CPUs");
        }
        if let Some(small) = nodes.iter().find(|node| node.memory < 64 << 20) {
            let message = format!("a node of {} is too small", units::size(small.memory));
            return wrong(message, "give each node 64MiB or more");
        }
        if !(LOCAL + 1..=254).contains(&self.distance()) {
            return wrong(
                format!("a distance of {} is impossible", self.distance()),
                "use 11 to 254",
            );
        }
        if self.flash.flash {
            self.flash.check(&nodes)?;
        }
        Ok(nodes)
    }

    fn distance(&self) -> u32 {
        let usual = if self.flash.flash {
            flash::DISTANCE
        } else {
            REMOTE
        };
        self.distance.unwrap_or(usual)
    }

    /// Shares CPUs and memory out evenly; the first nodes get the CPUs that are over.
    fn even_nodes(&self) -> Vec<NodeShape> {
        let nodes = self.nodes.min(NODES_MAX + 1);
        let memory = self.memory.checked_div(u64::from(nodes)).unwrap_or(0) & !0xf_ffff;
        let cpus = |n| self.cpus / nodes + u32::from(n < self.cpus % nodes);
        (0..nodes)
            .map(|n| NodeShape {
                cpus: cpus(n),
                memory,
            })
            .collect()
    }

    /// QEMU's arguments. The control channel is QEMU's standard input, a connected socket: so it
    /// is there before the first instruction, and its end tells that QEMU is gone.
    pub fn arguments(&self, files: &Files<'_>) -> Result<Vec<OsString>> {
        let nodes = self.nodes()?;
        let cpus: u32 = nodes.iter().map(|node| node.cpus).sum();
        let memory: u64 = nodes.iter().map(|node| node.memory).sum();
        check_bundle(files.bundle.1, memory)?;
        let mut args = Arguments::default();
        args.words("-nodefaults -no-user-config -no-reboot -display none -monitor none");
        args.pair("-M", "virt,virtualization=on,gic-version=3");
        args.words("-global virtio-mmio.force-legacy=false");
        args.pair("-cpu", self.cpu_model(files.port.as_ref()));
        // A socket belongs to one node: QEMU warns of others.
        let even = nodes
            .iter()
            .all(|node| node.cpus == cpus / nodes.len() as u32);
        let sockets = if even { nodes.len() as u32 } else { cpus };
        args.pair("-smp", format!("{cpus},sockets={sockets}"));
        let icount = if self.flash.flash {
            args.pair("-m", format!("{}M", (memory + Flash::window(&nodes)) >> 20));
            let flash = &self.flash;
            flash.arguments(&mut args, &nodes, self.distance(), files.ram)?;
            self.icount.or(Some(0))
        } else {
            args.pair("-m", format!("{}M", memory >> 20));
            args.numa(&nodes, self.distance());
            // In lock-step, time is counted.
            let is_wired = files.port.is_some() && !self.cluster.free;
            self.icount.or(is_wired.then_some(0))
        };
        match icount {
            Some(shift) => {
                args.words("-accel tcg,thread=single");
                args.pair("-icount", format!("shift={shift},sleep=off"));
                if files.port.is_none() || self.cluster.free {
                    args.pair("-plugin", self.flash.clock_plugin()?);
                }
                if let Some(plugin) = flash::profile_plugin()? {
                    args.pair("-plugin", plugin);
                }
                // The machine's random bits and its calendar are the same in each run; hosts have random bits of their own.
                let seed = files.port.as_ref().map_or(1, |port| port.me + 1);
                args.pair("-seed", seed.to_string());
                args.words("-rtc base=2020-01-01,clock=vm");
                // A device that is rung acts at once, and not when QEMU's other thread comes to it, by chance.
                args.words("-global virtio-mmio.ioeventfd=off");
            }
            None => args.words("-accel tcg,thread=multi"),
        }
        args.pair("-kernel", files.image);
        args.pair("-initrd", files.bundle.0);
        if let Some(text) = &self.append {
            args.pair("-append", text);
        }
        args.pair("-serial", prefixed("file:", files.log, ""));
        args.pair("-qmp", prefixed("unix:", files.qmp, ",server=on,wait=off"));
        args.words("-chardev socket,id=control,fd=0 -device virtio-serial-device,max_ports=1");
        args.words("-device virtconsole,chardev=control");
        self.disks(&mut args, files.own_disks.as_deref())?;
        self.network(&mut args);
        if let Some(port) = &files.port {
            let plugin = flash::wire_plugin(&self.cluster)?;
            port.arguments(&mut args, &self.cluster, plugin.as_deref());
        }
        args.0.extend(self.qemu_arg.iter().cloned());
        Ok(args.0)
    }

    fn cpu_model(&self, port: Option<&Port>) -> String {
        let own = port.and_then(|port| self.cluster.cpu_of(port.me));
        let model = own.unwrap_or(&self.cpu);
        // Pointer authentication's architected hash costs emulation dearly, and proves nothing.
        let slow = model.starts_with("max") && !model.contains("pauth");
        if slow {
            format!("{model},pauth-impdef=on")
        } else {
            model.to_owned()
        }
    }

    /// QEMU's user network: DHCP, and connections outwards, without rights on this machine.
    fn network(&self, args: &mut Arguments) {
        if self.net {
            let forward = |(host, vm): &(u16, u16)| format!("hostfwd=tcp:127.0.0.1:{host}-:{vm}");
            let options = std::iter::once("user,id=outside".to_owned());
            let options: Vec<_> = options.chain(self.forward.iter().map(forward)).collect();
            args.pair("-netdev", options.join(","));
            args.pair("-device", "virtio-net-device,netdev=outside");
        }
    }

    fn disks(&self, args: &mut Arguments, own: Option<&Path>) -> Result<()> {
        let count = self.disk.len() + usize::from(own.is_some());
        if count > DISKS_MAX {
            let message = format!("{count} disks are more than the {DISKS_MAX} of a machine");
            let help = "leave out a --disk; all files that are disks of VMs count as one";
            return Err(Failure::new(exit::USAGE, message).help(help));
        }
        for (n, disk) in self.disk.iter().enumerate() {
            let raw = format!("driver=raw,node-name=disk{n},file.driver=file,file.filename=");
            args.pair("-blockdev", prefixed(&raw, disk, ""));
            let node = match self.disk_log.get(n) {
                None => format!("disk{n}"),
                Some(log) => {
                    let raw =
                        format!("driver=raw,node-name=log{n},file.driver=file,file.filename=");
                    args.pair("-blockdev", prefixed(&raw, log, ""));
                    let logging =
                        format!("driver=blklogwrites,node-name=logged{n},file=disk{n},log=log{n}");
                    args.pair("-blockdev", logging);
                    format!("logged{n}")
                }
            };
            args.pair(
                "-device",
                format!("virtio-blk-device,drive={node},serial=disk{n}"),
            );
        }
        if let Some(own) = own {
            let composed = "driver=vmdk,node-name=files,file.driver=file,file.filename=";
            args.pair("-blockdev", prefixed(composed, own, ""));
            args.pair("-device", "virtio-blk-device,drive=files,serial=files");
        }
        Ok(())
    }
}

/// `HOST-PORT:VM-PORT`.
fn forward(text: &str) -> std::result::Result<(u16, u16), String> {
    let ports = text.split_once(':');
    let ports = ports.and_then(|(host, vm)| Some((host.parse().ok()?, vm.parse().ok()?)));
    ports.ok_or_else(|| format!("'{text}' is not two ports, as in 8080:80"))
}

/// The VMs need memory beside the bundle.
fn check_bundle(bundle: u64, memory: u64) -> Result<()> {
    if bundle.saturating_add(2 * BUNDLE_AFTER) <= memory || bundle <= 64 << 10 {
        return Ok(());
    }
    let (bundle, memory) = (units::size(bundle), units::size(memory));
    let message =
        format!("a bundle of {bundle} leaves the VMs no memory on a machine with {memory}");
    Err(Failure::new(exit::USAGE, message).help("give the machine more: --memory"))
}

#[derive(Default)]
pub(super) struct Arguments(Vec<OsString>);

impl Arguments {
    pub(super) fn words(&mut self, words: &str) {
        self.0.extend(words.split_whitespace().map(OsString::from));
    }

    pub(super) fn pair(&mut self, option: &str, value: impl Into<OsString>) {
        self.0.push(option.into());
        self.0.push(value.into());
    }

    /// Memory is not reserved on the host, so that a machine can be larger than its host.
    fn numa(&mut self, nodes: &[NodeShape], distance: u32) {
        let mut first = 0;
        for (n, node) in nodes.iter().enumerate() {
            let size = node.memory >> 20;
            self.pair(
                "-object",
                format!("memory-backend-ram,id=memory{n},size={size}M,reserve=off"),
            );
            let cpus = match node.cpus {
                0 => String::new(),
                cpus => format!(",cpus={first}-{}", first + cpus - 1),
            };
            first += node.cpus;
            self.pair("-numa", format!("node,nodeid={n}{cpus},memdev=memory{n}"));
        }
        for from in 0..nodes.len() {
            for to in (0..nodes.len()).filter(|to| *to != from) {
                self.pair("-numa", format!("dist,src={from},dst={to},val={distance}"));
            }
        }
    }
}

/// A path within a QEMU option, where a comma must be doubled.
pub(super) fn prefixed(before: &str, path: &Path, after: &str) -> OsString {
    let path = path.to_string_lossy().replace(',', ",,");
    format!("{before}{path}{after}").into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Verb};
    use clap::Parser as _;

    fn shape(words: &str) -> Shape {
        let words = ["underpin", "sim"]
            .into_iter()
            .chain(words.split_whitespace());
        match Cli::try_parse_from(words).unwrap().verb {
            Verb::Sim(sim) => sim.shape,
            _ => unreachable!(),
        }
    }

    /// A file that is there: nothing loads it.
    fn own_program() -> String {
        std::env::current_exe().unwrap().display().to_string()
    }

    fn line(words: &str) -> String {
        let path = Path::new("a,b");
        let files = Files {
            image: path,
            bundle: (path, 1 << 30),
            log: path,
            qmp: path,
            ram: path,
            own_disks: words.contains("--disk d1").then(|| path.to_owned()),
            port: words.contains("--hosts").then(|| Port {
                cluster: PathBuf::from("c,d"),
                host_dir: path.to_owned(),
                me: 1,
            }),
        };
        let arguments = shape(words).arguments(&files).unwrap();
        let words: Vec<_> = arguments
            .iter()
            .map(|word| word.to_str().unwrap())
            .collect();
        words.join(" ")
    }

    #[test]
    fn cpus_and_memory_are_shared_out() {
        let nodes = shape("--cpus 5 --nodes 2 --memory 3G").nodes().unwrap();
        let node = |cpus, memory| NodeShape { cpus, memory };
        assert_eq!(nodes, [node(3, 3 << 29), node(2, 3 << 29)]);
        let uneven = shape("--node cpus=1,memory=1G --node memory=64M,cpus=0")
            .nodes()
            .unwrap();
        assert_eq!(uneven, [node(1, 1 << 30), node(0, 64 << 20)]);
    }

    #[test]
    fn impossible_machines_are_refused() {
        for words in [
            "--nodes 0",
            "--nodes 65",
            "--cpus 0",
            "--cpus 300",
            "--nodes 64",
            "--distance 10",
        ] {
            assert_eq!(
                shape(words).nodes().unwrap_err().code(),
                exit::USAGE,
                "{words}"
            );
        }
        assert!("cpus=1".parse::<NodeShape>().is_err());
        assert!("cpus=1,memory=1G,x=1".parse::<NodeShape>().is_err());
        let files = Files {
            image: Path::new("i"),
            bundle: (Path::new("b"), 1900 << 20),
            log: Path::new("l"),
            qmp: Path::new("q"),
            ram: Path::new("r"),
            own_disks: None,
            port: None,
        };
        let refused = shape("--memory 2G").arguments(&files).unwrap_err();
        assert!(
            refused
                .message()
                .contains("a bundle of 1.8 GiB leaves the VMs no memory"),
            "{refused}"
        );
    }

    #[test]
    fn the_command_line_says_what_was_asked() {
        let line = line(&format!(
            "--nodes 2 --cpus 4 --memory 4G --icount 1 --clock {} --disk d1 --disk-log l1 --cpu max --net --forward 8080:80",
            own_program()
        ));
        for part in [
            "memory-backend-ram,id=memory1,size=2048M,reserve=off",
            "-numa node,nodeid=1,cpus=2-3,memdev=memory1",
            "-numa dist,src=1,dst=0,val=20",
            "-smp 4,sockets=2 -m 4096M",
            "-accel tcg,thread=single -icount shift=1,sleep=off -plugin",
            "-seed 1 -rtc base=2020-01-01,clock=vm -global virtio-mmio.ioeventfd=off",
            "-cpu max,pauth-impdef=on",
            "-kernel a,b -initrd a,b -serial file:a,,b -qmp unix:a,,b,server=on,wait=off",
            "driver=blklogwrites,node-name=logged0,file=disk0,log=log0",
            "virtio-blk-device,drive=logged0",
            "driver=vmdk,node-name=files,file.driver=file,file.filename=a,,b -device virtio-blk-device,drive=files",
            "-netdev user,id=outside,hostfwd=tcp:127.0.0.1:8080-:80 -device virtio-net-device,netdev=outside",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        let other = super::tests::line("--cpus 3 --nodes 2");
        assert!(other.contains("-smp 3,sockets=3") && !other.contains("vmdk"));
    }

    #[test]
    fn a_host_has_a_card_on_the_wire() {
        let own = own_program();
        let wired = line(&format!(
            "--hosts 3 --wire class=20us,lose=1% --wire cut=0-1@1s+1s --wire-plugin {own}"
        ));
        for part in [
            "-icount shift=0,sleep=off -seed 2 -rtc base=2020-01-01,clock=vm",
            &format!(
                "-plugin {own},class=20us,lose=1%,cut=0-1@1s+1s,me=1,hosts=3,shared=c,,d/wire,report=a,,b/wire.report"
            ),
            "-device virtio-net-device,netdev=wire,mac=52:54:00:00:00:01,tx=timer,x-txtimer=1",
        ] {
            assert!(wired.contains(part), "{part} in {wired}");
        }
        assert_eq!(wired.matches("-plugin").count(), 1, "{wired}");
        let free = line("--hosts 2 --free");
        let socket = "-netdev dgram,id=wire,local.type=unix,remote.type=unix,local.path=c,,d/card1.sock,remote.path=c,,d/switch1.sock \
                      -device virtio-net-device,netdev=wire,mac=52:54:00:00:00:01";
        assert!(
            free.contains(socket) && free.contains("thread=multi"),
            "{free}"
        );
    }

    #[test]
    fn a_clock_that_counts_needs_its_plugin() {
        let path = Path::new("a");
        let files = Files {
            image: path,
            bundle: (path, 1 << 20),
            log: path,
            qmp: path,
            ram: path,
            own_disks: None,
            port: None,
        };
        let line = "--icount 1 --clock /no/such/plugin";
        let refused = shape(line).arguments(&files).unwrap_err();
        assert_eq!(refused.code(), exit::FILE);
        assert_eq!(refused.message(), "the plugin /no/such/plugin is not there");
    }

    #[test]
    fn a_machine_has_four_disks_at_most() {
        let disks = "--disk d1 --disk d2 --disk d3 --disk d4";
        let own = Path::new("own");
        let refused = |own| shape(disks).disks(&mut Arguments::default(), own).err();
        assert!(refused(None).is_none());
        let refused = refused(Some(own)).unwrap();
        assert_eq!(refused.code(), exit::USAGE);
        assert_eq!(
            refused.message(),
            "5 disks are more than the 4 of a machine"
        );
    }

    #[test]
    fn the_measuring_machine_has_files_a_window_and_a_plugin() {
        let words =
            "--numa 2 --cpus 4 --memory 4G --flash --flash-option ways=4 --plugin /dev/null";
        // It is no file.
        assert!(shape(words).nodes().is_ok());
        let own = own_program();
        let line = line(&format!(
            "{} --clock {own}",
            words.replace("/dev/null", &own)
        ));
        for part in [
            "-M virt,virtualization=on,gic-version=3 ",
            "-seed 1 -rtc base=2020-01-01,clock=vm",
            // 1,048,576 pages of three words, and a header.
            "-m 4109M",
            "memory-backend-file,id=memory1,size=2048M,mem-path=a,,b/node1.ram,share=on",
            "memory-backend-file,id=window,size=13M,mem-path=a,,b/window,share=on",
            "-numa node,nodeid=1,cpus=2-3,memdev=memory1",
            "-numa node,nodeid=2,memdev=window",
            "-numa dist,src=0,dst=1,val=30",
            "-numa dist,src=1,dst=2,val=254",
            ",nodes=2,node_mib=2048,remote_ns=900,ram=a,,b,window=a,,b/window,out=results.csv,ways=4",
            "-icount shift=0,sleep=off",
            "-global virtio-mmio.ioeventfd=off",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        for words in ["--flash --cpus 3 --nodes 2", "--flash --nodes 9 --cpus 9"] {
            assert_eq!(
                shape(words).nodes().unwrap_err().code(),
                exit::USAGE,
                "{words}"
            );
        }
    }
}
