//! Two programs that talk by TCP, in two VMs on a switch, beside the same two in one VM.
//!
//! The machine has one CPU, so that all that is done for a byte, on both sides and at EL2, is done
//! one after the other, and the time that it takes is a count of instructions.

use super::{
    KERNEL, LINUX_ARGS, Measured, directory, figures,
    initramfs::archive,
    table::{Figures, Rows, Table, Unit},
};
use crate::{
    bench_sharing::lab::Lab,
    step::{Outcome, Step},
};
use std::{
    fs,
    path::{Path, PathBuf},
};
use tests_boot::assets;

/// An instruction takes so many nanoseconds.
const NS: f64 = 2.0;

/// Rows of the large MTU, and what they are beside others.
const LONG: [(&str, &str); 2] = [("stream-long", "stream"), ("file-long", "file")];

/// What runs on the machine: the file of each VM.
struct Talk {
    name: &'static str,
    vms: Vec<String>,
    /// The VM that asks, and prints what it took.
    asker: &'static str,
}

/// Measures each stream and request twice; the same files must give the same bytes.
///
/// # Errors
/// A VM does not do its work.
pub fn measure(step: &mut Step<'_>, rows: &Rows) -> Outcome<Measured> {
    let program = assets::target().join("linux/aarch64-unknown-linux-gnu/release/bench_linux");
    let kernel = assets::cached(&format!("kernels/{KERNEL}"))?;
    let (busybox, region) = (assets::cached("busybox")?, assets::cached("region")?);
    let programs: [(&str, &Path); 2] = [("busybox", &busybox), ("region", &region)];
    let pmem = assets::cached(&format!("pmem/{KERNEL}"))?;
    for (path, programs, more) in [
        (initrd("network"), &programs[..1], None),
        (initrd("region"), &programs[1..], Some(&*pmem)),
    ] {
        fs::write(&path, archive(&program, &kernel, programs, more)?)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    step.doing("through a shared region, and copied in one VM");
    let (copied, same) = Talk::copied()?.twice()?;
    let (exchanged, mut agreed) = Talk::by_region()?.twice()?;
    agreed &= same;
    step.doing("in one VM");
    let (mut loopback, same) = Talk::in_one()?.twice()?;
    agreed &= same;
    step.doing("between two VMs");
    let (mut ours, same) = Talk::between_two("")?.twice()?;
    agreed &= same;
    step.doing("between two VMs with an MTU that is nearly loopback's");
    let (long, same) = Talk::between_two("mtu = 65535\n")?.twice()?;
    agreed &= same;
    for (long_key, key) in LONG {
        loopback.extend(loopback.get(key).map(|count| (long_key.to_owned(), *count)));
        ours.extend(long.get(key).map(|count| (long_key.to_owned(), *count)));
    }
    loopback.extend(copied);
    ours.extend(exchanged);
    let table = Table::new("network", Unit::Beside, &rows.network, &loopback, &ours);
    Ok(Measured {
        table,
        exits: Vec::new(),
        log: String::new(),
        agreed,
    })
}

/// What VMs start with for one or the other.
fn initrd(what: &str) -> PathBuf {
    directory().join(format!("{what}.cpio"))
}

/// The file of a VM whose first program has a role in the network, or with a region.
fn vm(name: &str, (what, role): (&str, &str), more: &str) -> Outcome<String> {
    let kernel = assets::cached(&format!("kernels/{KERNEL}/vmlinuz"))?;
    Ok(format!(
        "name = '{name}'\nmemory = '256MiB'\n{more}[boot]\nkernel = '{}'\ninitrd = '{}'\nargs = '{LINUX_ARGS} -- {what} {role}'\n",
        kernel.display(),
        initrd(what).display(),
    ))
}

impl Talk {
    fn in_one() -> Outcome<Self> {
        Ok(Self {
            name: "loopback",
            vms: vec![vm("both", ("network", "both 127.0.0.1"), "")?],
            asker: "both",
        })
    }

    fn between_two(mtu: &str) -> Outcome<Self> {
        let net = format!("[[net]]\nswitch = 'lan'\n{mtu}");
        let server = vm("server", ("network", "serve 10.0.0.1"), &net)?;
        let asker = vm("asker", ("network", "ask 10.0.0.2 10.0.0.1"), &net)?;
        Ok(Self {
            name: "two-vms",
            vms: vec![server, asker],
            asker: "asker",
        })
    }

    fn copied() -> Outcome<Self> {
        Ok(Self {
            name: "copied",
            vms: vec![vm("both", ("region", "none copy 64"), "")?],
            asker: "both",
        })
    }

    fn by_region() -> Outcome<Self> {
        let region = "regions = [{ name = 'table', size = '16MiB', access = 'rw' }]\n";
        let role = |name, role| vm(name, ("region", role), region);
        Ok(Self {
            name: "region",
            vms: vec![
                role("taker", "table take 64")?,
                role("giver", "table give 64")?,
            ],
            asker: "giver",
        })
    }

    /// The instructions that the asker counted, and whether it counted as many again.
    fn twice(&self) -> Outcome<(Figures, bool)> {
        let (first, again) = (self.once()?, self.once()?);
        let agreed = first == again;
        let counted = first.into_iter().map(|(key, ns)| (key, ns / NS));
        Ok((counted.collect(), agreed))
    }

    fn once(&self) -> Outcome<Figures> {
        let mut lab = Lab::start(self.name, "2G", &self.vms)?;
        lab.await_all(&[self.asker], "bench: done")?;
        figures("bench:", 0, lab.console(self.asker))
    }
}
