use super::*;
use crate::failure::exit;
use abi::bundle::{REGION_READ_ONLY, block_policy, claim};
use proptest::prelude::*;

mod directories;
mod disk_files;
mod hosts;

/// A directory with a kernel, an initrd and a disk image beside the VM file.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let directory = env::temp_dir().join(format!("underpin-vm-{name}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let files = Self(directory);
        files.write("kernel", &kernel());
        files.write("flat", &[0x14; 4096]);
        files.write("initrd", &[1; 512]);
        files.write("disk.img", &[2; 8192]);
        files.write("odd.img", &[2; 8192 + 512]);
        files.write("disk.qcow2", b"QFI\xfb and more");
        files
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.0.join(name), bytes).unwrap();
    }

    fn parse(&self, text: &str) -> Result<VmFile> {
        VmFile::parse(&self.0.join("vm.toml"), text)
    }

    /// Every problem as `line:column message / help`, without the directory.
    fn problems(&self, text: &str) -> Vec<String> {
        let json = self.parse(text).unwrap_err().to_json();
        let one = vec![json["error"].clone()];
        let all = json["errors"].as_array().unwrap_or(&one);
        let directory = format!("{}/", self.0.display());
        let line = |e: &serde_json::Value| {
            assert_eq!(e["code"], exit::FILE);
            let (message, help) = (e["message"].as_str().unwrap(), e["help"].as_str().unwrap());
            format!("{}:{} {message} / {help}", e["line"], e["column"]).replace(&directory, "")
        };
        all.iter().map(line).collect()
    }
}

/// What has the header of an arm64 Image.
fn kernel() -> Vec<u8> {
    let mut image = vec![0; 4096];
    image[56..60].copy_from_slice(b"ARM\x64");
    image
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const BOOT: &str = "[boot]\nkernel = \"kernel\"\n";

fn with(lines: &str) -> String {
    format!("name = \"web1\"\nmemory = \"512MiB\"\n{lines}\n{BOOT}")
}

/// Says all that can be said.
const FULL: &str = "
name = 'web1'
cpus = 4
memory = { base = '1GiB', max = '2GiB', swap = 'spare', hold = '100ms' }
sharing = { group = 'team-a', claim = 'grow', hide = true, blocks = 'keep', never = true }
weight = 512
cap = 50
nodes = [0, 3]
autostart = false
on_reset = 'end'
boot = { kernel = 'kernel', initrd = 'initrd', args = 'quiet' }
[[disk]]
image = 'disk.img'
overlay = { size = '1GiB', on = 'memory' }
block_size = 4096
limit = '5MB/s'
never_share = true
[[disk]]
image = 'odd.img'
mode = 'read-only'
[[disk]]
partition = 'data'
mode = 'persistent'
[[disk]]
partition = 'golden'
mode = 'cow'
overlay = { size = '64MiB', on = 'scratch' }
";

#[test]
fn a_full_file_is_read() {
    let files = Files::new("full");
    let vm = files.parse(FULL).unwrap();
    let mut asked = Vec::new();
    let record = vm
        .record(|kind, path| {
            asked.push((kind, path.file_name().unwrap().to_str().unwrap().to_owned()));
            Ok(asked.len() as u32)
        })
        .unwrap();
    assert_eq!(record.name.as_str(), Some("web1"));
    assert_eq!(
        (record.vcpus, record.memory, record.weight, record.cap),
        (4, 2 << 30, 512, 50)
    );
    assert_eq!(
        (record.base, record.swap.as_str()),
        (1 << 30, Some("spare"))
    );
    assert_eq!(record.group.as_str(), Some("team-a"));
    let sharing = (record.claim, record.hide, record.blocks, record.never_share);
    assert_eq!(sharing, (claim::GROW, 1, block_policy::KEEP, 1));
    assert!(record.has_texts());
    assert_eq!((record.nodes, record.flags), (0b1001, 0));
    assert_eq!(record.command_line.as_str(), Some("quiet"));
    let modes = [
        disk_mode::COW,
        disk_mode::READ_ONLY,
        disk_mode::PERSISTENT,
        disk_mode::COW,
    ];
    assert_eq!(record.disks.map(|disk| disk.mode), modes);
    assert_eq!(
        record.disks.map(|disk| disk.block_size),
        [4096, 512, 512, 512]
    );
    assert_eq!(record.disks[0].overlay_max, 1 << 30);
    assert_eq!(record.disks[2].entry, NO_ENTRY);
    assert_eq!(record.disks[2].partition.as_str(), Some("data"));
    assert_eq!(record.disks[3].entry, NO_ENTRY);
    assert_eq!(record.disks[3].partition.as_str(), Some("golden"));
    assert_eq!(record.disks[3].overlay_max, 64 << 20);
    assert!(record.disks[0].overlay_on.is_empty());
    assert_eq!(record.disks[3].overlay_on.as_str(), Some("scratch"));
    let limits = record.disks.map(|disk| (disk.limit, disk.flags));
    assert_eq!(
        limits,
        [(5_000_000, DISK_NEVER_SHARE), (0, 0), (0, 0), (0, 0)]
    );
    asked.sort();
    let expected = [
        (kind::KERNEL, "kernel"),
        (kind::INITRD, "initrd"),
        (kind::DISK, "disk.img"),
        (kind::DISK, "odd.img"),
    ];
    assert_eq!(asked, expected.map(|(kind, name)| (kind, name.to_owned())));
}

#[test]
fn what_is_left_out_has_a_default() {
    let files = Files::new("defaults");
    let vm = files.parse(&with("")).unwrap();
    assert_eq!((vm.cpus, vm.weight, vm.cap, vm.nodes), (1, 256, 0, 0));
    assert!(vm.autostart && vm.restart && vm.disks.is_empty() && vm.initrd.is_none());
    let record = vm.record(|_, _| Ok(7)).unwrap();
    assert_eq!((record.kernel, record.initrd), (7, NO_ENTRY));
    assert_eq!(record.flags, VM_AUTOSTART | VM_RESTART);
    assert_eq!((record.memory, record.base), (512 << 20, 512 << 20));
    assert!(record.swap.is_empty() && record.group.as_str() == Some("default"));
    let sharing = (record.claim, record.hide, record.blocks, record.never_share);
    assert_eq!(sharing, (claim::NONE, 0, block_policy::SHARE, 0));
}

#[test]
fn errors_point_at_the_value_and_say_what_to_do() {
    let files = Files::new("values");
    let cases = [
        (
            "cpus = 17",
            "3:8 'cpus' is 17, outside 1 to 16 / use a number from 1 to 16",
        ),
        (
            "cpus = \"2\"",
            "3:8 'cpus' must be a whole number, and is of type string / write it like this: cpus = 1",
        ),
        ("cpuz = 2", "3:1 unknown key 'cpuz' / do you mean 'cpus'?"),
        (
            "cap = 101",
            "3:7 'cap' is 101, outside 0 to 100 / use a number from 0 to 100",
        ),
        (
            "weight = 99999999999999999999",
            "3:10 'weight' is 9223372036854775807, outside 1 to 10000 / use a number from 1 to 10000",
        ),
        (
            "autostart = 1",
            "3:13 'autostart' must be true or false, and is of type integer / write it like this: autostart = true",
        ),
        (
            "on_reset = \"stop\"",
            "3:12 'on_reset' is \"stop\", which is not known / use \"restart\" or \"end\"",
        ),
        (
            "nodes = \"all\"",
            "3:9 'nodes' is \"all\", which is not known / use \"auto\"",
        ),
        (
            "nodes = [0, 64]",
            "3:13 'nodes' may hold numbers from 0 to 63 only / as in nodes = [0, 1] or \"auto\"",
        ),
        (
            "disk = 1",
            "3:8 'disk' must be a list of tables / begin each with a line [[disk]]",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(files.problems(&with(line)), [expected], "{line}");
    }
}

#[test]
fn names_and_sizes_are_checked() {
    let files = Files::new("names");
    let named = |name: &str| files.problems(&format!("name = {name}\nmemory = \"64MiB\"\n{BOOT}"));
    let help = "use 1 to 31 characters: small letters a to z, digits and hyphens";
    assert_eq!(
        named("\"Web\""),
        [format!("1:8 'Web' cannot be a VM's name / {help}")]
    );
    assert_eq!(
        named("\"\""),
        [format!("1:8 '' cannot be a VM's name / {help}")]
    );
    assert!(named(&format!("\"{}\"", "a".repeat(32)))[0].contains("cannot be"));
    assert!(is_name(&"a".repeat(31)));
    let memory = |memory: &str| files.problems(&format!("name = \"a\"\nmemory = {memory}\n{BOOT}"));
    assert_eq!(
        memory("512"),
        ["2:10 'memory' has no unit / write it like this: memory = \"512MiB\""]
    );
    assert_eq!(
        memory("\"63MiB\""),
        ["2:10 a VM cannot have 63 MiB of memory / use 64MiB to 256GiB"]
    );
    assert_eq!(
        memory("\"65MiB\""),
        ["2:10 memory of 65 MiB is no multiple of 2 MiB / use \"66MiB\""]
    );
    assert!(memory("\"1GB\"")[0].contains("'GB' is no unit: use KiB, MiB, GiB or TiB"));
    assert_eq!(
        memory("{ base = \"512MiB\", max = \"256MiB\" }"),
        [
            "2:35 'max' is 256 MiB, less than the base of 512 MiB / make 'max' larger, or leave it out: then it is as large as the base"
        ]
    );
    assert!(memory("{ base = \"1GiB\", max = \"1025MiB\" }")[0].contains("use \"1026MiB\""));
    assert!(memory("{ max = \"1GiB\" }")[0].starts_with("2:10 'base' is missing in memory"));
    assert!(memory("{ base = \"1GiB\", swap = \"\" }")[0].contains("a partition's name"));
    let hold = |hold: &str| memory(&format!("{{ base = \"1GiB\", hold = {hold} }}")).join(" ");
    assert!(hold("100").contains("'hold' has no unit"));
    assert!(hold("\"2m\"").contains("'2m' is too long: 60000ms are the most"));
    let sharing = |inner: &str| files.problems(&with(&format!("sharing = {{ {inner} }}")));
    assert_eq!(
        sharing("group = \"Team A\""),
        [
            "3:21 'Team A' cannot be a share group's name / use 1 to 24 characters: small letters a to z, digits and hyphens"
        ]
    );
    assert!(sharing(&format!("group = \"{}\"", "g".repeat(25)))[0].contains("cannot be"));
    let unknown =
        "3:21 'claim' is \"all\", which is not known / use \"none\" or \"grow\" or \"start\"";
    assert_eq!(sharing("claim = \"all\""), [unknown]);
    assert!(sharing("block = \"keep\"")[0].contains("do you mean 'blocks'?"));
    assert!(sharing("hide = 1")[0].contains("'hide' must be true or false"));
}

#[test]
fn files_are_looked_at() {
    let files = Files::new("files");
    let disk = |lines: &str| files.problems(&format!("{}[[disk]]\n{lines}\n", with("")));
    assert_eq!(
        disk("image = \"none.img\""),
        ["7:9 cannot read none.img: no such file or directory / paths are relative to the VM file"]
    );
    assert_eq!(
        disk("image = \"disk.qcow2\""),
        [
            "7:9 disk.qcow2 is a qcow2 image, and disks must be raw / convert it: qemu-img convert -O raw disk.qcow2"
        ]
    );
    assert!(
        disk("image = \"odd.img\"\nblock_size = 4096")[0]
            .contains("has 8704 bytes, no multiple of 4096")
    );
    assert!(
        disk("image = \"disk.img\"\nblock_size = 1024")[0]
            .contains("a block size of 1024 is not known")
    );
    assert!(
        disk("image = \"disk.img\"\npartition = \"x\"")[0]
            .contains("both an image and a partition")
    );
    assert!(
        disk("image = \"disk.img\"\nmode = \"persistent\"")[0]
            .contains("use \"cow\" or \"read-only\"")
    );
    assert!(
        disk("partition = \"x\"\nmode = \"read-only\"")[0]
            .contains("use \"persistent\" or \"cow\"")
    );
    assert_eq!(
        disk("image = \"disk.img\"\noverlay = { size = \"1GiB\", on = \"\" }"),
        [
            "8:33 '' cannot be a partition's name / use the name in the partition table, 1 to 40 bytes"
        ]
    );
    assert_eq!(
        disk("image = \"disk.img\"\nlimit = \"5MB\""),
        [
            "8:9 'limit' is no rate: '5MB' has no unit of a rate: kB/s, MB/s, GB/s, KiB/s, MiB/s or GiB/s / write it like this: limit = \"5MB/s\""
        ]
    );
    assert!(
        disk("partition = \"x\"\noverlay = \"1GiB\"")[0]
            .contains("a persistent disk has no overlay")
    );
    assert!(disk("mode = \"cow\"")[0].starts_with("6:1 'image' is missing in [[disk]]"));
    files.write("kernel", b"\x1f\x8b...");
    assert!(files.problems(&with(""))[0].contains("kernel is compressed"));
}

#[test]
fn a_flat_image_must_be_asked_for() {
    let files = Files::new("flat");
    let boot = |lines: &str| format!("name = \"a\"\nmemory = \"64MiB\"\n[boot]\n{lines}\n");
    let flat = "kernel = \"flat\"";
    let problems = files.problems(&boot(flat));
    assert!(
        problems[0].starts_with("4:10 flat has no arm64 Image header / name an arm64 kernel")
            && problems[0].contains("format = \"flat\""),
        "{problems:?}"
    );
    let asked = format!("{flat}\nformat = \"flat\"");
    assert!(files.parse(&boot(&asked)).is_ok());
    assert_eq!(
        files.problems(&boot("kernel = \"kernel\"\nformat = \"flat\"")),
        [
            "4:10 kernel has an arm64 Image header, so it is no flat image / remove format = \"flat\""
        ]
    );
    assert!(
        files.problems(&boot("kernel = \"kernel\"\nformat = \"raw\""))[0]
            .contains("use \"image\" or \"flat\"")
    );
    files.write("kernel", &kernel()[..60]);
    assert!(files.problems(&with(""))[0].contains("kernel has no arm64 Image header"));
}

#[test]
fn all_problems_are_told_in_the_order_of_the_file() {
    let files = Files::new("all");
    let problems = files.problems("cpus = 0\nnaem = \"x\"\n[boot]\nargs = 1\n");
    let starts = [
        "1:1 'memory' is missing",
        "1:1 'name' is missing",
        "1:8 'cpus' is 0",
        "2:1 unknown key 'naem' / do you mean 'name'?",
        "3:1 'kernel' is missing in [boot]",
        "4:8 'args' must be text",
    ];
    assert_eq!(problems.len(), starts.len(), "{problems:#?}");
    for start in starts {
        assert!(
            problems.iter().any(|problem| problem.starts_with(start)),
            "{start} in {problems:#?}"
        );
    }
    let lines: Vec<&str> = problems.iter().map(|problem| &problem[..1]).collect();
    assert!(lines.is_sorted(), "{problems:#?}");
}

#[test]
fn kernel_and_initrd_must_fit() {
    let files = Files::new("fit");
    fs::File::create(files.0.join("initrd"))
        .unwrap()
        .set_len(64 << 20)
        .unwrap();
    let text = format!("name = \"a\"\nmemory = \"64MiB\"\n{BOOT}initrd = \"initrd\"\n");
    assert!(
        files.problems(&text)[0].starts_with("4:10 kernel and initrd have 64 MiB"),
        "{:?}",
        files.problems(&text)
    );
}

#[test]
fn two_vms_of_one_name_are_refused() {
    let files = Files::new("twice");
    files.write("a.toml", with("").as_bytes());
    files.write("b.toml", with("").as_bytes());
    let failure = read_all(std::slice::from_ref(&files.0)).unwrap_err();
    assert!(
        failure
            .message()
            .ends_with("both describe a VM named 'web1'"),
        "{failure}"
    );
    assert_eq!(read_all(&[files.0.join("a.toml")]).unwrap().len(), 1);
}

#[test]
fn partitions_have_uses_that_go_together() {
    let files = Files::new("partitions");
    let vm = |name: &str, more: &str| {
        let text = format!("name = \"{name}\"\nmemory = \"512MiB\"\n{BOOT}{more}");
        files.write(&format!("{name}.toml"), text.as_bytes());
    };
    let cow = |base: &str, on: &str| {
        format!("[[disk]]\npartition = \"{base}\"\nmode = \"cow\"\noverlay = {{ on = \"{on}\" }}\n")
    };
    let refused = || {
        let failure = read_all(std::slice::from_ref(&files.0));
        failure.map_or_else(|failure| failure.to_json().to_string(), |_| String::new())
    };
    vm("a", &cow("golden", "one"));
    vm("b", &cow("golden", "two"));
    // Not at the same time.
    vm("c", &cow("golden", "two"));
    assert_eq!(refused(), "");
    vm("b", &cow("two", "golden"));
    let said = refused();
    let swapped = "partition 'golden' is the base of a disk of 'a', and where an overlay is of 'b'";
    assert!(said.contains(swapped), "{said}");
    let other = "partition 'two' is the base of a disk of 'b', and where an overlay is of 'c'";
    assert!(said.contains(other), "{said}");
    vm("b", &cow("two", "memory"));
    vm("c", "");
    assert_eq!(refused(), "");
    vm("c", &cow("one", "memory"));
    assert!(refused().contains("'one' is where an overlay is of 'a', and the base"));
    let persistent = "[[disk]]\npartition = \"golden\"\n";
    vm("c", persistent);
    assert_eq!(refused(), "");
    vm("c", &(cow("golden", "x") + persistent));
    assert!(refused().contains("base of a disk of 'c', and a persistent disk of 'c'"));
    vm("c", &cow("x", "x"));
    assert!(refused().contains("partition 'x' is the base of a disk of 'c', and where"));
    vm("c", &(cow("x", "y") + &cow("x", "y")));
    assert!(refused().contains("partition 'y' is where an overlay is of 'c', and where"));
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(lines in proptest::collection::vec(
        prop_oneof![
            Just("name = \"a\"".to_owned()), Just("[boot]".to_owned()), Just("[[disk]]".to_owned()),
            "(cpus|memory|nodes|disk|boot|cap|image) = (1|-1|\"x\"|[\\[{1]|[\"x\", 1]|nan|true|1979-05-27)",
            ".{0,20}",
        ], 0..8,
    )) {
        let _ = VmFile::parse(Path::new("/nowhere/vm.toml"), &lines.join("\n"));
    }
}

#[test]
fn regions_and_rights_are_read() {
    let files = Files::new("regions");
    let text = |more: &str| format!("name = \"a\"\nmemory = \"128MiB\"\n{more}\n{BOOT}");
    let region = |what: &str| text(&format!("regions = [{{ {what} }}]"));
    let vm = files
        .parse(&region(
            "name = \"table\", size = \"64MiB\", access = \"ro\"",
        ))
        .unwrap();
    let record = vm.record(|_, _| Ok(0)).unwrap();
    let first = record.regions[0];
    assert_eq!(first.name.as_str(), Some("table"));
    assert_eq!((first.size, first.flags), (64 << 20, REGION_READ_ONLY));
    assert!(record.regions[1].name.is_empty());
    let wrong = [
        (
            region("name = \"table\", size = \"3MiB\""),
            "multiple of 2 MiB",
        ),
        (
            region("name = \"table\", size = \"0MiB\""),
            "multiple of 2 MiB",
        ),
        (region("name = \"table\", size = \"2GiB\""), "at most 1 GiB"),
        (region("name = \"Table\", size = \"2MiB\""), "'Table'"),
        (region("size = \"2MiB\""), "'name' is missing"),
        (region("name = \"table\""), "'size' is missing"),
        (
            region("name = \"t\", size = \"2MiB\", access = \"wo\""),
            "\"wo\"",
        ),
        (
            text(
                "regions = [{ name = \"t\", size = \"2MiB\" }, { name = \"t\", size = \"2MiB\" }]",
            ),
            "named twice",
        ),
        (text("control = \"some\""), "\"some\""),
        (text("control = 1"), "true or false"),
    ];
    for (text, said) in wrong {
        let problems = files.problems(&text);
        assert!(
            problems.len() == 1 && problems[0].contains(said),
            "{text}: {problems:?}"
        );
    }
    let rights = |value: &str| {
        files
            .parse(&text(&format!("control = {value}")))
            .unwrap()
            .control
    };
    let all = ["\"none\"", "\"read\"", "\"all\"", "false", "true"].map(rights);
    assert_eq!(all, [0, 1, 2, 0, 2]);
}
