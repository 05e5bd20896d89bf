use super::*;
use abi::bundle::{Bundle, NO_ENTRY};
use std::env;

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("underpin-bundle-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).unwrap();
    }

    fn vm(&self, name: &str, kernel: &str, rest: &str) -> VmFile {
        let text =
            format!("name = '{name}'\nmemory = '64MiB'\nboot = {{ kernel = '{kernel}' }}\n{rest}");
        VmFile::parse(&self.0.join("vm.toml"), &text).unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_bundle_holds_what_the_vms_name_once() {
    let dir = Dir::new("round");
    let mut kernel = vec![0x14; 5000];
    kernel[3000..3030].copy_from_slice(b"Linux version 6.12.1-x (gcc) \0");
    dir.write("vmlinuz", &kernel);
    fs::create_dir(dir.0.join("other")).unwrap();
    dir.write("other/Image", b"flat image");
    let disk: Vec<u8> = (0..3 * 512u32).map(|n| n as u8).collect();
    dir.write("base.img", &disk);
    let vms = [
        dir.vm("a", "vmlinuz", "[[disk]]\nimage = 'base.img'"),
        dir.vm(
            "b",
            "other/../vmlinuz",
            "[[disk]]\nimage = 'base.img'\nmode = 'read-only'",
        ),
        dir.vm("c", "other/Image", ""),
    ];
    let out = dir.0.join("bundle");
    assert!(
        Plan::new(&vms)
            .unwrap()
            .write(&out, Progress::silent())
            .unwrap()
    );

    let bytes = fs::read(&out).unwrap();
    let bundle = Bundle::parse(&bytes).unwrap();
    let kinds = |kind| {
        bundle
            .entries()
            .filter(|(_, entry)| entry.kind == kind)
            .count()
    };
    assert_eq!(
        (kinds(kind::VM), kinds(kind::KERNEL), kinds(kind::DISK)),
        (3, 2, 1)
    );
    assert_eq!(bytes.len() as u64, Plan::new(&vms).unwrap().size());
    let (linux, entry) = bundle.find(kind::KERNEL, "6.12.1-x").unwrap();
    assert_eq!(bundle.content(&entry).unwrap(), kernel);
    let (flat, entry) = bundle.find(kind::KERNEL, "Image").unwrap();
    assert_eq!(bundle.content(&entry).unwrap(), b"flat image");
    let (base, entry) = bundle.find(kind::DISK, "base").unwrap();
    assert_eq!(bundle.content(&entry).unwrap(), disk);
    for (name, kernel, disk) in [("a", linux, base), ("b", linux, base), ("c", flat, 0)] {
        let (number, _) = bundle.find(kind::VM, name).unwrap();
        let vm = bundle.vm(number).unwrap();
        assert_eq!(
            (vm.kernel, vm.initrd, vm.disks[0].entry),
            (kernel, NO_ENTRY, disk),
            "{name}"
        );
    }
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    let dir = Dir::new("same");
    dir.write("kernel", b"one");
    let out = dir.0.join("bundle");
    let write = |name: &str| {
        let plan = Plan::new(&[dir.vm(name, "kernel", "")]).unwrap();
        plan.write(&out, Progress::silent()).unwrap()
    };
    assert!(write("a"));
    assert!(!write("a"));
    assert!(write("b"), "another VM");
    dir.write("kernel", b"two");
    assert!(write("b"), "another kernel of the same size");
    assert!(!write("b"));
    File::options()
        .write(true)
        .open(&out)
        .unwrap()
        .set_len(100)
        .unwrap();
    assert!(write("b"), "a bundle cut short");
    assert_eq!(
        Bundle::parse(&fs::read(&out).unwrap())
            .unwrap()
            .entries()
            .count(),
        2
    );
}

#[test]
fn holes_stay_holes_and_data_between_them_arrives() {
    let dir = Dir::new("sparse");
    dir.write("kernel", b"one");
    let image = File::create(dir.0.join("disk.img")).unwrap();
    image.set_len(16 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&image, b"middle", 8 << 20).unwrap();
    let out = dir.0.join("bundle");
    let vm = dir.vm("a", "kernel", "[[disk]]\nimage = 'disk.img'");
    Plan::new(&[vm])
        .unwrap()
        .write(&out, Progress::silent())
        .unwrap();
    let bytes = fs::read(&out).unwrap();
    let bundle = Bundle::parse(&bytes).unwrap();
    let (_, entry) = bundle.find(kind::DISK, "disk").unwrap();
    let content = bundle.content(&entry).unwrap();
    assert_eq!(content.len(), 16 << 20);
    assert_eq!(&content[8 << 20..][..6], b"middle");
    assert_eq!(content.iter().filter(|byte| **byte != 0).count(), 6);
    assert!(
        fs::metadata(&out).unwrap().blocks() * 512 < 4 << 20,
        "the bundle is not sparse"
    );
}

#[test]
fn namesakes_are_numbered_and_recognised() {
    let dir = Dir::new("names");
    fs::create_dir(dir.0.join("x")).unwrap();
    dir.write("Image", b"1");
    dir.write("x/Image", b"22");
    let plan = Plan::new(&[dir.vm("a", "Image", ""), dir.vm("b", "x/Image", "")]).unwrap();
    let names: Vec<&str> = plan
        .entries
        .iter()
        .map(|entry| entry.name.as_str())
        .collect();
    assert_eq!(names, ["Image", "Image~2", "a", "b"]);
    assert!(is_entry_of("Image", "Image") && is_entry_of("Image", "Image~2"));
    assert!(!is_entry_of("Image", "Image~x") && !is_entry_of("Image", "Images"));
}

#[test]
fn a_banner_is_found_across_reads() {
    let dir = Dir::new("banner");
    for at in [0, 1 << 19, (1 << 20) - 7, (1 << 20) - 1, (2 << 20) + 5] {
        let mut bytes = vec![b'x'; 3 << 20];
        let banner = b"Linux version %s\0Linux version 6.1.0-9-arm64 (x)";
        bytes[at..at + banner.len()].copy_from_slice(banner);
        dir.write("kernel", &bytes);
        assert_eq!(
            kernel_version(&dir.0.join("kernel")).as_deref(),
            Some("6.1.0-9-arm64"),
            "{at}"
        );
    }
    dir.write("kernel", b"Linux version ?");
    assert_eq!(kernel_version(&dir.0.join("kernel")), None);
}
