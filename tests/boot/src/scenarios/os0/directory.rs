//! Disks beside OS-0 that are a directory and a file of its own.

use super::BOOT;
use crate::{os0::Os0, scenario::Scenario, vm::Vm};

/// A VM reads a directory that it has a copy of, and writes over it; a file is made for it, and has what it wrote.
/// The directory stays as it was.
pub fn is_copied() -> Scenario {
    let vm = Vm::linux("reader", "trixie-cloud", "script").memory("64MiB");
    let vm = vm.persistent_disk("first");
    let vm = vm.file_disk("../srv/made.img", Some("1MiB"));
    let vm = vm.directory_disk("../srv/www");
    let os0 = Os0::new("trixie-cloud", 2, "2G", "directory")
        .cpu("max,pauth=off,sme=off")
        .mke2fs();
    let os0 = os0
        .beside(vec![vm])
        .expect("directory read=open_till_six wrote=open_till_ten", 5 * BOOT)
        .expect("directory kept=open_till_six made=made bytes=1048576", BOOT)
        .expect("Power down", BOOT);
    Scenario::os0("os0/directory", os0)
}
