//! Simulated machines as `underpin sim` is told of them.

use std::path::{Path, PathBuf};

/// What `underpin sim` is asked to simulate.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// Options of `underpin sim`.
    pub options: Vec<String>,
    /// Whether the hypervisor has hooks for benches.
    pub(crate) has_hooks: bool,
    /// The file that gets the counts of instructions at EL2.
    pub(crate) counts: Option<PathBuf>,
}

impl Hardware {
    /// A machine with so many pCPUs and with RAM such as `2G`, all in one node.
    pub fn new(cpus: u32, memory: &str) -> Self {
        let words = ["--cpus", &cpus.to_string(), "--memory", memory].map(str::to_owned);
        Self {
            options: words.into(),
            has_hooks: false,
            counts: None,
        }
    }

    /// Hosts of a cluster in lock-step, each of one CPU and so much memory, on a wire as `--wire` of `underpin sim` takes it.
    pub fn hosts(hosts: u8, memory: &str, wire: &str) -> Self {
        let hardware = Self::new(1, memory).option("--hosts");
        hardware
            .option(hosts.to_string())
            .option("--wire")
            .option(wire)
    }

    /// A machine of unlike nodes, each such as `cpus=2,memory=3G`.
    pub fn uneven(nodes: &[&str]) -> Self {
        let words = nodes
            .iter()
            .flat_map(|node| ["--node".to_owned(), (*node).to_owned()]);
        Self {
            options: words.collect(),
            has_hooks: false,
            counts: None,
        }
    }

    /// With CPUs and memory split evenly over so many nodes.
    #[must_use]
    pub fn nodes(self, nodes: u32) -> Self {
        self.option("--nodes").option(nodes.to_string())
    }

    /// With a hypervisor that has hooks for benches.
    #[must_use]
    pub fn hooks(self) -> Self {
        Self {
            has_hooks: true,
            ..self
        }
    }

    /// With instructions at EL2 counted by place, each QEMU's in this file with its process behind a dot (sim/README.md).
    #[must_use]
    pub fn counts_to(self, file: &Path) -> Self {
        Self {
            counts: Some(file.to_owned()),
            ..self
        }
    }

    /// With deterministic time: two nanoseconds for each instruction.
    #[must_use]
    pub fn counted(self) -> Self {
        self.option("--icount").option("1")
    }

    /// Whether an instruction takes 2 ns there.
    pub fn is_counted(&self) -> bool {
        let is_icount = |pair: &[String]| pair == ["--icount", "1"];
        self.options.windows(2).any(is_icount)
    }

    /// Whether it has one CPU. Time is counted for all of them together.
    pub fn is_single(&self) -> bool {
        self.options
            .starts_with(&["--cpus".to_owned(), "1".to_owned()])
    }

    /// With one more word for `underpin sim`.
    #[must_use]
    pub fn option(mut self, word: impl Into<String>) -> Self {
        self.options.push(word.into());
        self
    }
}
