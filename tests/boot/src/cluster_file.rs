//! Cluster files of simulated hosts.

use crate::{Outcome, assets, because, machine::Hardware};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

/// The names of host0 and so on in their cluster.
pub const NAMES: [&str; 8] = [
    "left", "right", "third", "fourth", "fifth", "sixth", "seventh", "eighth",
];

/// MTU of an Ethernet on which a page takes one frame.
pub const JUMBO: u16 = 9000;

/// Writes a cluster file and its key, one digit 64 times; gives its path.
///
/// # Errors
/// A file cannot be written.
pub fn write(directory: &Path, name: &str, digit: char, hosts: usize) -> Outcome<String> {
    write_for((directory, name), digit, hosts, 1500)
}

/// As [`write`], of hosts whose Ethernet has that MTU.
///
/// # Errors
/// A file cannot be written.
pub fn write_for(
    (directory, name): (&Path, &str),
    digit: char,
    hosts: usize,
    mtu: u16,
) -> Outcome<String> {
    let key = directory.join(format!("{name}.key"));
    let tried = "cannot write a cluster file";
    fs::write(&key, digit.to_string().repeat(64)).map_err(because(tried))?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).map_err(because(tried))?;
    let host = |(number, name): (usize, &&str)| {
        format!("[[host]]\nname = \"{name}\"\nmac = \"52:54:00:00:00:{number:02x}\"\n")
    };
    let hosts: String = NAMES.iter().take(hosts).enumerate().map(host).collect();
    let text = format!("key = \"{name}.key\"\nmtu = {mtu}\n{hosts}");
    let file = directory.join(format!("{name}.toml"));
    fs::write(&file, text).map_err(because(tried))?;
    Ok(file.display().to_string())
}

/// Hardware of hosts that join a cluster of their own, whose file is written; and the MTU of their Ethernet.
///
/// # Errors
/// As for [`write`].
pub fn joined(
    hardware: Hardware,
    directory: &Path,
    (hosts, mtu): (usize, u16),
) -> Outcome<Hardware> {
    let file = write_for((directory, "cluster"), 'a', hosts, mtu)?;
    Ok(options(&[file])
        .into_iter()
        .fold(hardware, Hardware::option))
}

/// The command's words by which simulated hosts join the clusters of these files.
pub fn options(files: &[String]) -> Vec<String> {
    let plugin = assets::target().join("sim/release/libsim_wire.so");
    let mut words = vec!["--wire-plugin".to_owned(), plugin.display().to_string()];
    for file in files {
        words.extend(["--cluster".to_owned(), file.clone()]);
    }
    words
}
