//! Disks that are directories.

use super::*;
use std::{os::unix::fs::symlink, process::Command};

const MIB: u64 = 1 << 20;

fn disk(lines: &str) -> String {
    format!("{}[[disk]]\n{lines}\n", with(""))
}

/// The directory of a VM file's only disk.
fn directory(files: &Files, lines: &str) -> DiskDirectory {
    let vm = files.parse(&disk(lines)).unwrap();
    vm.disk_directories().next().unwrap().clone()
}

/// A directory to copy, with nothing in it.
fn www(files: &Files) -> PathBuf {
    let www = files.0.join("www");
    fs::create_dir(&www).unwrap();
    www
}

/// What debugfs says of a file system.
fn debugfs(image: &Path, request: &str) -> String {
    let said = Command::new("/usr/sbin/debugfs")
        .args(["-R", request])
        .arg(image)
        .output();
    String::from_utf8(said.unwrap().stdout).unwrap()
}

#[test]
fn a_directory_is_a_base_below_an_overlay() {
    let files = Files::new("directory");
    www(&files);
    let faults = |lines: &str| files.problems(&disk(lines)).join("; ");
    for (lines, why) in [
        ("directory = \"gone\"", "7:13 cannot read gone: no such"),
        (
            "directory = \"disk.img\"",
            "7:13 disk.img is no directory / use image = or file =",
        ),
        (
            "directory = \"www\"\nsize = \"1MiB\"",
            "a file system of 1 MiB is none for www / use whole MiB, from 17 MiB to 1 TiB;",
        ),
        (
            "directory = \"www\"\nsize = \"65537KiB\"",
            "none for www / use whole MiB",
        ),
        (
            "directory = \"www\"\nsize = \"2TiB\"",
            "a file system of 2 TiB is none for www",
        ),
        ("directory = \"www\"\nsize = 4096", "'size' has no unit"),
        ("directory = \"www\"\nmode = \"persistent\"", "use \"cow\""),
        (
            "directory = \"www\"\nfile = \"disk.img\"",
            "both a file and a directory",
        ),
        (
            "image = \"disk.img\"\nsize = \"8KiB\"",
            "only a disk that is a file or a directory has a size",
        ),
    ] {
        assert!(faults(lines).contains(why), "{lines}: {}", faults(lines));
    }
    symlink("www", files.0.join("link")).unwrap();
    let text = disk("directory = \"link\"\noverlay = \"1GiB\"");
    let record = files.parse(&text).unwrap().record(|_, _| Ok(0)).unwrap();
    let www = directory(&files, "directory = \"www\"");
    assert!(www.name.starts_with("www-"), "{}", www.name);
    let of_record = &record.disks[0];
    assert_eq!(of_record.partition.as_str(), Some(&*www.name));
    assert_eq!(
        (of_record.entry, of_record.mode, of_record.overlay_max),
        (NO_ENTRY, disk_mode::COW, 1 << 30)
    );
    // One directory is one copy; another size is another.
    assert_eq!(directory(&files, "directory = \"./link\""), www);
    let larger = directory(&files, "directory = \"www\"\nsize = \"64MiB\"");
    assert_eq!(larger.size, 64 * MIB);
    assert_ne!(larger.name, www.name);
}

#[test]
fn two_vms_may_have_one_directory() {
    let files = Files::new("two-of-one");
    www(&files);
    for name in ["a", "b"] {
        let text =
            format!("name = '{name}'\nmemory = '512MiB'\n{BOOT}[[disk]]\ndirectory = 'www'\n");
        files.write(&format!("{name}.toml"), text.as_bytes());
    }
    let vms = read_all(std::slice::from_ref(&files.0)).unwrap();
    assert_eq!(vms.iter().flat_map(VmFile::disk_directories).count(), 2);
}

#[test]
fn a_copy_holds_what_the_directory_has() {
    let files = Files::new("copied");
    let www = www(&files);
    fs::create_dir_all(www.join("deep/er")).unwrap();
    fs::write(www.join("index.html"), "<p>here</p>\n").unwrap();
    fs::write(www.join("deep/er/large"), vec![7; 3 << 20]).unwrap();
    symlink("index.html", www.join("home")).unwrap();
    let directory = directory(&files, "directory = 'www'");
    let copy = directory.copy_in(&files.0);
    // A second start finds the first one's copy.
    for _ in 0..2 {
        directory.make(&copy.path).unwrap();
    }
    assert_eq!(fs::metadata(&copy.path).unwrap().len(), directory.size);
    assert_eq!(copy.name, directory.name);
    assert_eq!(debugfs(&copy.path, "cat /index.html"), "<p>here</p>\n");
    assert_eq!(debugfs(&copy.path, "cat /deep/er/large").len(), 3 << 20);
    assert!(debugfs(&copy.path, "stat /home").contains("index.html"));
    assert!(debugfs(&copy.path, "stats -h").contains("volume name:   www\n"));
    // What is in it alone says how much of it is used.
    assert_eq!(fs::read_dir(&www).unwrap().count(), 3);
}

#[test]
fn a_directory_that_is_full_of_names_fits() {
    let files = Files::new("full-of-names");
    let www = www(&files);
    let name = |n: u32| format!("{n:0>200}");
    for n in 0..1000 {
        symlink(name(n), www.join(name(n))).unwrap();
    }
    let directory = directory(&files, "directory = 'www'");
    directory.make(&files.0.join("copy")).unwrap();
    let last = debugfs(&files.0.join("copy"), &format!("stat /{}", name(999)));
    assert!(last.contains("Type: symlink"), "{last}");
}

#[test]
fn attributes_of_files_fit() {
    let files = Files::new("attributes");
    let www = www(&files);
    for n in 0..6000 {
        let path = www.join(n.to_string());
        fs::write(&path, "").unwrap();
        let set = rustix::fs::setxattr(&path, "user.n", &[7; 1500], rustix::fs::XattrFlags::CREATE);
        // Not all file systems have attributes; of those, nothing is copied.
        if set == Err(rustix::io::Errno::OPNOTSUPP) {
            return;
        }
        set.unwrap();
    }
    let directory = directory(&files, "directory = 'www'");
    directory.make(&files.0.join("copy")).unwrap();
    let last = debugfs(&files.0.join("copy"), "ea_list /5999");
    assert!(last.contains("user.n (1500)"), "{last}");
}

#[test]
fn what_cannot_be_copied_is_said() {
    let files = Files::new("no-copy");
    let www = www(&files);
    let directory = directory(&files, "directory = 'www'");
    let inside = directory.make(&www.join("copy")).unwrap_err();
    assert!(inside.message().contains("www would be in it: "));
    fs::write(www.join("grown"), vec![1; 20 << 20]).unwrap();
    let grown = directory.make(&files.0.join("copy")).unwrap_err();
    assert!(
        grown.message().starts_with("mke2fs cannot copy "),
        "{}",
        grown.message()
    );
}
