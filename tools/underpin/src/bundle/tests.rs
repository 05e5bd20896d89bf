use super::*;
use abi::bundle::{BLOCK_SIZE, Bundle, NO_ENTRY, Place};
use std::{env, fs::Permissions, os::unix::fs::PermissionsExt as _};

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
        let text = format!(
            "name = '{name}'\nmemory = '64MiB'\nboot = {{ kernel = '{kernel}', format = 'flat' }}\n{rest}"
        );
        VmFile::parse(&self.0.join("vm.toml"), &text).unwrap()
    }
}

/// Builds the bundle of these VMs; its bytes.
fn build(dir: &Dir, vms: &[VmFile]) -> (Vec<u8>, Written) {
    let out = dir.0.join("bundle");
    let written = Plan::new(vms).unwrap().write(&out, Progress::silent());
    let written = written.unwrap();
    let bytes = fs::read(&out).unwrap();
    assert_eq!(bytes.len() as u64, written.size);
    (bytes, written)
}

/// The bytes of a disk image of a bundle.
fn image(bundle: &Bundle<'_>, name: &str) -> Vec<u8> {
    let (number, _) = bundle.find(kind::DISK, name).unwrap();
    let image = bundle.image(number).unwrap();
    let mut bytes = Vec::new();
    for block in 0..image.blocks() {
        match image.block(block) {
            Place::Zero => bytes.extend_from_slice(&[0; BLOCK_SIZE]),
            Place::Page(page, _) => bytes.extend_from_slice(page),
        }
    }
    let behind = bytes.split_off(image.size() as usize);
    assert!(
        behind.iter().all(|byte| *byte == 0),
        "zeroes fill the last block"
    );
    bytes
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
    let (bytes, written) = build(&dir, &vms);
    assert!(written.anew);
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
    assert!(
        bytes.len() as u64
            <= Plan::new(&vms)
                .unwrap()
                .size_at_most()
                .next_multiple_of(4096)
    );
    let (linux, entry) = bundle.find(kind::KERNEL, "6.12.1-x").unwrap();
    assert_eq!(bundle.content(&entry).unwrap(), kernel);
    let (flat, entry) = bundle.find(kind::KERNEL, "Image").unwrap();
    assert_eq!(bundle.content(&entry).unwrap(), b"flat image");
    let (base, _) = bundle.find(kind::DISK, "base").unwrap();
    assert_eq!(image(&bundle, "base"), disk);
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
        plan.write(&out, Progress::silent()).unwrap().anew
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
fn blocks_are_stored_once_and_zeroes_not_at_all() {
    let dir = Dir::new("blocks");
    dir.write("kernel", b"one");
    let of = |blocks: &[u8]| {
        blocks
            .iter()
            .flat_map(|b| [*b; BLOCK_SIZE])
            .collect::<Vec<u8>>()
    };
    let a = of(&[1, 0, 2, 1, 3]);
    let mut b = of(&[0, 3, 4, 1]);
    b.extend_from_slice(&[5; 512]);
    dir.write("a.img", &a);
    dir.write("b.img", &b);
    // Much of this one is a hole; its data equal no block of the others.
    let sparse = File::create(dir.0.join("c.img")).unwrap();
    sparse.set_len(4 << 20).unwrap();
    sparse.write_all_at(b"middle", (2 << 20) + 100).unwrap();
    let disks = "[[disk]]\nimage = 'a.img'\n[[disk]]\nimage = 'b.img'\n[[disk]]\nimage = 'c.img'";
    let vms = [dir.vm("vm", "kernel", disks)];
    let (bytes, written) = build(&dir, &vms);
    let block = BLOCK_SIZE as u64;
    let tally = Tally {
        images: 3,
        bytes: (a.len() + b.len()) as u64 + (4 << 20),
        different: 6 * block, // 1 to 5, and the middle
        zero: 2 * block + (4 << 20) - block,
        equal: 3 * block,
    };
    assert_eq!(written.tally, tally);
    let sentence = "3 images, 4 MiB: 24 KiB of different blocks, 4 MiB zero, 12 KiB equal";
    assert_eq!(tally.to_string(), sentence);
    let bundle = Bundle::parse(&bytes).unwrap();
    assert_eq!(image(&bundle, "a"), a);
    assert_eq!(image(&bundle, "b"), b);
    let c = image(&bundle, "c");
    assert_eq!(&c[(2 << 20) + 100..][..6], b"middle");
    assert_eq!(c.iter().filter(|byte| **byte != 0).count(), 6);
    assert!(bytes.len() < 200 << 10, "{} bytes", bytes.len());
    // What a VM may map is whole pages, and none of the descriptions.
    let (number, _) = bundle.find(kind::VM, "vm").unwrap();
    let vm = bundle.entry(number).unwrap().offset as usize;
    let mappable: Vec<_> = bundle.pages().collect();
    assert_eq!(mappable.len(), 2);
    assert_eq!(mappable[1].len() as u64, tally.different);
    assert!(mappable.iter().all(|range| !range.contains(&vm)));
    // Told again, nothing is read.
    let again = Written {
        anew: false,
        ..written
    };
    assert_eq!(build(&dir, &vms).1, again);
}

#[test]
fn groups_have_no_block_in_common() {
    let dir = Dir::new("groups");
    dir.write("kernel", b"one");
    for image in ["a.img", "b.img", "c.img"] {
        dir.write(image, &[1; BLOCK_SIZE]);
    }
    let vm = |name, group, image| {
        let rest = format!("sharing = {{ group = '{group}' }}\n[[disk]]\nimage = '{image}'");
        dir.vm(name, "kernel", &rest)
    };
    // The second VM's image is that of the first, and so of its group.
    let vms = [
        vm("a", "red", "a.img"),
        vm("b", "blue", "a.img"),
        vm("c", "blue", "b.img"),
        vm("d", "red", "c.img"),
    ];
    let (bytes, written) = build(&dir, &vms);
    let block = BLOCK_SIZE as u64;
    assert_eq!(
        (written.tally.different, written.tally.equal),
        (2 * block, block)
    );
    let bundle = Bundle::parse(&bytes).unwrap();
    let page = |name| {
        let (number, _) = bundle.find(kind::DISK, name).unwrap();
        match bundle.image(number).unwrap().block(0) {
            Place::Page(_, number) => number,
            Place::Zero => u32::MAX,
        }
    };
    assert_eq!(["a", "b", "c"].map(page), [0, 1, 0]);
}

#[test]
fn blocks_are_equal_by_their_bytes_not_their_hash() {
    let dir = Dir::new("hash");
    dir.write("out", b"");
    let mut options = File::options();
    let out = options
        .read(true)
        .write(true)
        .open(dir.0.join("out"))
        .unwrap();
    dir.write(
        "image",
        &[[1; BLOCK_SIZE], [2; BLOCK_SIZE], [1; BLOCK_SIZE]].concat(),
    );
    let file = File::open(dir.0.join("image")).unwrap();
    let mut store = Store::with_hash(&out, 512, |_| 7);
    let add = |store: &mut Store<'_>| {
        store
            .add(&file, 3 * BLOCK_SIZE as u64, "g", |_| {})
            .unwrap()
    };
    assert_eq!(add(&mut store), [1, 2, 1]);
    // The second, whose hash was taken, is not found again; the first is.
    assert_eq!(add(&mut store), [1, 3, 1]);
    let bytes = fs::read(dir.0.join("out")).unwrap();
    assert_eq!(bytes.len(), 512 + 3 * BLOCK_SIZE);
    assert_eq!([512, 512 + 4096, 512 + 8192].map(|at| bytes[at]), [1, 2, 2]);
}

#[test]
fn an_image_that_becomes_shorter_is_refused() {
    let dir = Dir::new("shorter");
    dir.write("kernel", b"one");
    dir.write("disk.img", &[1; 8192]);
    for len in [0, 4096, 8191, 8193] {
        let vm = dir.vm("a", "kernel", "[[disk]]\nimage = 'disk.img'");
        let plan = Plan::new(&[vm]).unwrap();
        dir.write("disk.img", &vec![1; len]);
        let out = dir.0.join("bundle");
        let failure = plan.write(&out, Progress::silent()).unwrap_err();
        let told = failure.message();
        assert!(
            told.contains("shorter while") || told.contains("changed while"),
            "{told}"
        );
        assert!(!out.exists() && !dir.0.join("bundle.part").exists());
        dir.write("disk.img", &[1; 8192]);
    }
}

#[test]
fn a_bundle_that_was_cut_or_garbled_is_refused() {
    let dir = Dir::new("garbled");
    dir.write("kernel", b"one");
    dir.write("disk.img", &[[1; BLOCK_SIZE], [2; BLOCK_SIZE]].concat());
    let vm = dir.vm("a", "kernel", "[[disk]]\nimage = 'disk.img'");
    let (bytes, _) = build(&dir, &[vm]);
    for len in (0..bytes.len()).step_by(509) {
        assert!(Bundle::parse(&bytes[..len]).is_err(), "{len} bytes");
    }
    let (number, disk) = Bundle::parse(&bytes)
        .unwrap()
        .find(kind::DISK, "disk")
        .unwrap();
    let mut garbled = bytes.clone();
    garbled[disk.offset as usize] = 3;
    let refused = Bundle::parse(&garbled).map(|_| ()).unwrap_err();
    assert_eq!(refused, abi::bundle::BundleError::Map(number));
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
        .map(|planned| planned.entry.name.as_str().unwrap())
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

#[test]
fn a_bundle_with_a_key_is_its_owners_alone() {
    let dir = Dir::new("cluster");
    dir.write("kernel", b"1");
    dir.write("key", "07".repeat(32).as_bytes());
    let key = dir.0.join("key");
    fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
    let text = "key = 'key'\nhost = [{ name = 'a', mac = '02:00:00:00:88:01' }, \
                { name = 'b', mac = '02:00:00:00:88:02' }]";
    let cluster = crate::cluster::ClusterFile::parse(&dir.0.join("cluster.toml"), text).unwrap();
    let vms = [dir.vm("x", "kernel", "")];
    let out = dir.0.join("bundle");
    build(&dir, &vms);
    let plan = Plan::with_cluster(&vms, Some(cluster.record("b").unwrap())).unwrap();
    // What was left half written is open to somebody, who sees nothing of what follows.
    let part = with_suffix(&out, ".part");
    fs::write(&part, b"old").unwrap();
    let seen = fs::File::open(&part).unwrap();
    assert!(plan.write(&out, Progress::silent()).unwrap().anew);
    assert_eq!(seen.metadata().unwrap().len(), 3);
    for file in [&out, &with_suffix(&out, ".fingerprint")] {
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", file.display());
    }
    let bytes = fs::read(&out).unwrap();
    let record = Bundle::parse(&bytes).unwrap().cluster().unwrap().unwrap();
    assert_eq!((record.host, record.hosts, record.key), (1, 2, [7; 32]));
    assert!(!plan.write(&out, Progress::silent()).unwrap().anew);
}
