//! Disks that are files.

use super::*;

#[test]
fn a_file_is_the_disk_of_one_vm_and_made_by_its_size() {
    let files = Files::new("own");
    let disk = |lines: &str| format!("{}[[disk]]\n{lines}\n", with(""));
    let faults = |lines: &str| files.problems(&disk(lines)).join("; ");
    assert_eq!(
        faults("file = \"new.img\""),
        "7:8 new.img is not there / add size = \"8GiB\" to have it made; paths are relative to the VM file"
    );
    assert_eq!(
        faults("file = \"disk.img\"\nsize = \"1MiB\""),
        "7:8 disk.img has 8192 bytes, and size says 1048576 / leave size out to use the file as it is"
    );
    assert_eq!(
        faults("file = \"odd.img\""),
        "7:8 odd.img has 8704 bytes, no multiple of 4096 / make it longer: truncate --size=%4096 FILE"
    );
    files.write("image.qcow2", &[&b"QFI\xfb"[..], &[0; 4092]].concat());
    for (lines, why) in [
        (
            "file = \"image.qcow2\"",
            "is a qcow2 image, and disks must be raw",
        ),
        ("file = \".\"", "is no regular file"),
        (
            "file = \"x/new.img\"\nsize = \"1MiB\"",
            "cannot use x/new.img as a disk: no such",
        ),
        (
            "file = \"new.img\"\nsize = \"1KiB\"",
            "new.img has 1024 bytes, no multiple",
        ),
        ("file = \"new.img\"\nsize = 4096", "'size' has no unit"),
        ("file = \"disk.img\"\nmode = \"cow\"", "use \"persistent\""),
        (
            "file = \"disk.img\"\noverlay = \"1GiB\"",
            "a persistent disk has no overlay",
        ),
        (
            "file = \"disk.img\"\nimage = \"x\"",
            "both an image and a file",
        ),
        (
            "image = \"disk.img\"\nsize = \"8KiB\"",
            "only a disk that is a file or a directory has a size",
        ),
    ] {
        assert!(faults(lines).contains(why), "{lines}: {}", faults(lines));
    }
    let vm = |name: &str| {
        let text = disk(&format!("file = \"{name}\"\nsize = \"8KiB\""));
        files.parse(&text).unwrap()
    };
    let new = vm("new.img");
    let file = new.disk_files().next().unwrap();
    assert!(!file.path.exists() && file.name.starts_with("new.img-"));
    assert!(vm(&"n".repeat(99)).disk_files().next().unwrap().name.len() == 36);
    file.make().unwrap();
    files.write("new.img", &[5; 8192]);
    // What is there stays, and is the same file by each of its names.
    file.make().unwrap();
    assert_eq!(fs::read(&file.path).unwrap(), [5; 8192]);
    std::os::unix::fs::symlink("new.img", files.0.join("link.img")).unwrap();
    assert_eq!(vm("link.img").disks, new.disks);
    let record = new.record(|_, _| Ok(0)).unwrap();
    assert_eq!(record.disks[0].partition.as_str(), Some(&*file.name));
    assert_eq!(
        (record.disks[0].entry, record.disks[0].mode),
        (NO_ENTRY, disk_mode::PERSISTENT)
    );
}

#[test]
fn a_file_is_no_disk_twice() {
    let files = Files::new("file-twice");
    let vm = |name: &str, own: &str| {
        let text =
            format!("name = \"{name}\"\nmemory = \"512MiB\"\n{BOOT}[[disk]]\nfile = \"{own}\"\n");
        files.write(&format!("{name}.toml"), text.as_bytes());
    };
    files.write("other.img", &[0; 4096]);
    vm("a", "disk.img");
    vm("b", "other.img");
    let both = std::slice::from_ref(&files.0);
    assert_eq!(read_all(both).unwrap().len(), 2);
    vm("b", "./disk.img");
    let refused = read_all(both).unwrap_err();
    assert!(
        refused
            .message()
            .ends_with("disk.img is a disk of 'a', and a disk of 'b'")
    );
}
