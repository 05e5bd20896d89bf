use super::*;
use zerocopy::FromZeros as _;

#[test]
fn hosts_are_checked_with_what_is_shared_out() {
    let files = Files::new("hosts");
    let problems = |lines: &str| files.problems(&with(lines));
    let one = |lines: &str, message: &str, help: &str| {
        let found = problems(lines);
        let is_told = found[0].ends_with(&format!(" {message} / {help}"));
        assert!(is_told && found.len() == 1, "{lines}: {found:?}");
    };
    one(
        "cpus = 4\nhosts = 9",
        "'hosts' is 9, outside 2 to 8",
        "use a number from 2 to 8",
    );
    one(
        "hosts = 2",
        "1 vCPUs are fewer than the 2 hosts",
        "give the VM at least one vCPU for each host: cpus",
    );
    one(
        "cpus = 3\nhosts = 3",
        "512 MiB of memory do not make 3 shares of whole 2 MiB",
        "use a multiple of 6 MiB",
    );
    one(
        "cpus = 2\nhosts = [\"left\"]",
        "'hosts' names 1 hosts, and a VM spans 2 to 8",
        "name as many, or leave 'hosts' out",
    );
    one(
        "cpus = 2\nhosts = [\"left\", \"left\"]",
        "'hosts' names left twice",
        "name each host once",
    );
    one(
        "cpus = 2\nhosts = [\"left\", \"right\", 2]",
        "'hosts' may hold texts only",
        "as in hosts = [\"left\", \"right\"]",
    );
    one(
        "cpus = 2\nhosts = 2\ncoherence = [\"zero\", \"zeal\"]",
        "'coherence' has no 'zeal'",
        "use some of versions, zero, lazy-tlbi, burst, companions, hold, push, changes, migratory",
    );
    one(
        "cpus = 2\nhosts = 2\ncoherence = \"none\"",
        "'coherence' is \"none\", which is not known",
        "use \"best\" or \"all\" or \"ivy\"",
    );
    one(
        "coherence = \"ivy\"",
        "'coherence' is about pages of several hosts, and the VM is one machine's",
        "name its hosts, as in hosts = 2, or leave 'coherence' out",
    );
    let found = problems(&format!("cpus = 9\nhosts = [{}]", "\"a\", ".repeat(9)));
    let wanted = "'hosts' names 9 hosts, and a VM spans 2 to 8";
    assert!(found.iter().any(|it| it.contains(wanted)), "{found:?}");
    for (lines, what) in [
        ("sharing = { hide = true }", "memory shared with other VMs"),
        ("nodes = [0]", "a choice of nodes"),
        ("control = \"read\"", "a control port"),
        (
            "disk = [{ partition = \"data\" }]",
            "disks on partitions or files",
        ),
    ] {
        let found = problems(&format!("cpus = 2\nhosts = 2\n{lines}"));
        let wanted = format!("a VM that spans hosts cannot have {what} yet");
        assert!(found.iter().any(|it| it.contains(&wanted)), "{found:?}");
    }
}

#[test]
fn what_is_left_out_of_the_protocol_is_by_name() {
    let files = Files::new("coherence");
    assert_eq!(abi::coherence::WITHOUT, 1 << 6);
    assert_eq!(abi::coherence::SWITCHES[6], "push");
    for (word, without) in [
        ("'best'", abi::coherence::WITHOUT),
        ("'all'", 0),
        ("'ivy'", 0b1_1111_1111),
        ("[]", 0b1_1111_1111),
        ("['versions', 'push']", 0b1_1011_1110),
    ] {
        let lines = format!("cpus = 2\nhosts = 2\ncoherence = {word}");
        assert_eq!(
            files.parse(&with(&lines)).unwrap().without,
            without,
            "{word}"
        );
    }
}

#[test]
fn hosts_are_found_in_the_cluster() {
    let files = Files::new("cluster");
    let vm = |hosts: &str| {
        files
            .parse(&with(&format!("cpus = 4\nhosts = {hosts}")))
            .unwrap()
    };
    let mut cluster = abi::bundle::ClusterRecord::new_zeroed();
    (cluster.host, cluster.hosts) = (1, 3);
    for (name, known) in cluster.names.iter_mut().zip(["left", "right", "third"]) {
        *name = abi::Text::cut(known);
    }
    let hosts = |hosts: &str| vm(hosts).hosts_in(Some(&cluster));
    assert_eq!(hosts("2").unwrap(), Some(0b11));
    assert_eq!(hosts("['third', 'right']").unwrap(), Some(0b110));
    assert_eq!(
        hosts("['third', 'left']").unwrap(),
        None,
        "not this machine's"
    );
    let refused = |found: Result<Option<u16>>| found.unwrap_err().message().to_owned();
    let message = refused(hosts("4"));
    assert!(
        message.ends_with("'hosts' is 4, and the cluster has 3"),
        "{message}"
    );
    let message = refused(hosts("['left', 'rihgt']"));
    assert!(
        message.ends_with("no host of the cluster has the name 'rihgt'"),
        "{message}"
    );
    let message = refused(vm("2").hosts_in(None));
    assert!(
        message.ends_with("spans hosts, and the bundle has no cluster"),
        "{message}"
    );
    let alone = files.parse(&with("cpus = 2")).unwrap();
    assert_eq!(alone.hosts_in(None).unwrap(), Some(0));
}
