//! The screen, drawn without a terminal.

use super::{
    columns::{percent, rate},
    draw::{Look, draw},
    name,
    screen::{Screen, Sort, Then},
};
use crate::{
    hosts::tests::host_of,
    sim::RunDir,
    watch::{Sample, VmSample},
};
use abi::{
    Text,
    control::{MachineStatus, host, state, vcpu_state},
};
use ratatui::{
    Terminal,
    backend::TestBackend,
    buffer::Cell,
    crossterm::event::{KeyCode, KeyEvent, KeyModifiers},
    style::Color,
};
use tools_abi::status::{MemStatus, VcpuStatus, VmStatus};
use zerocopy::FromZeros as _;

mod picture;

const SECOND: u64 = 1_000_000_000;

/// A VM that ran for so many milliseconds.
fn vm(name: &str, ms: u64) -> VmSample {
    let ns = ms * 1_000_000;
    let mut status = VmStatus::new_zeroed();
    (status.state, status.vcpus, status.weight, status.starts) = (state::RUNNING, 2, 256, 1);
    status.kernel = Text::cut("6.12.48-arm64");
    (status.run_ns, status.steal_ns, status.hypervisor_ns) = (ns, ns / 4, ns / 20);
    (status.idle_ns, status.disk_bytes) = (2 * SECOND, [ns / 100, ns / 1_000]);
    (status.exits[6], status.exits[11]) = (ms, 12 * ms);
    let mut memory = MemStatus::new_zeroed();
    (memory.resident, memory.private, memory.shared) = (ms << 20, 100 << 20, 56 << 20);
    (memory.entitlement, memory.base, memory.limit) = (28 << 20, 512 << 20, 512 << 20);
    (memory.events[5], memory.events[0]) = (ms, 100 * ms);
    let mut vcpu = VcpuStatus::new_zeroed();
    (vcpu.state, vcpu.cpu, vcpu.run_ns) = (vcpu_state::RUNNING, 3, ns / 2);
    (vcpu.exits[11], vcpu.exits[6]) = (6 * ms, ms / 2);
    VmSample {
        name: name.to_owned(),
        status,
        memory: Some(memory),
        vcpus: Some(vec![vcpu; 2]),
    }
}

fn sample(second: u64, mut vms: Vec<VmSample>) -> Sample {
    let mut machine = MachineStatus::new_zeroed();
    (machine.cpus, machine.memory, machine.memory_free) = (8, 8 << 30, 6 << 30);
    machine.uptime_ns = second * SECOND;
    let mut memory = tools_abi::status::MachineMem::new_zeroed();
    (memory.shared, memory.saved) = (300 << 20, 600 << 20);
    vms.sort_by(|a, b| a.name.cmp(&b.name));
    Sample {
        machine,
        memory,
        cpus: Vec::new(),
        nodes: Vec::new(),
        hosts: Vec::new(),
        vms,
    }
}

/// Two VMs that run and one that has ended, after a second.
fn screen() -> Screen {
    let at = |second: u64| {
        let mut ended = vm("db", 100);
        (ended.status.state, ended.memory) = (state::ENDED, None);
        let long = "a-name-as-long-as-can-be-31-xxx";
        sample(
            754 + second,
            vec![
                vm("web1", 100 + 800 * second),
                ended,
                vm(long, 300 * second),
            ],
        )
    };
    let mut screen = Screen::new(at(0));
    screen.update(at(1));
    screen
}

/// What is seen, a string for each line.
fn seen(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    seen_of("sim".to_owned(), screen, width, height)
}

fn seen_of(machine: String, screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    let look = Look {
        machine,
        colour: false,
    };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen, &look)).unwrap();
    let buffer = terminal.backend().buffer();
    assert!(
        buffer
            .content
            .iter()
            .all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset)
    );
    let lines = buffer.content.chunks(usize::from(width).max(1));
    let line = |cells: &[Cell]| cells.iter().map(Cell::symbol).collect();
    let text = lines
        .map(line)
        .map(|line: String| line.trim_end().to_owned());
    text.collect()
}

fn press(screen: &mut Screen, code: KeyCode) -> Then {
    screen.key(KeyEvent::new(code, KeyModifiers::NONE))
}

fn names(screen: &Screen) -> Vec<&str> {
    screen.rows().iter().map(|(vm, _)| &*vm.name).collect()
}

#[test]
fn a_host_is_named_and_those_of_its_cluster_have_a_line() {
    let run = RunDir::of("sim").unwrap().of_host("host1").unwrap();
    let mut own = host_of("left", host::OWN | host::IN);
    (own.epoch, own.number) = (3, 1);
    let mut other = host_of("right", host::SESSION | host::IN);
    (other.round_trip_ns, other.frames[0]) = (45_100, 1000);
    let mut of_host = sample(1, vec![vm("web1", 100)]);
    of_host.hosts = vec![own, other];
    let lines = seen_of(name(&run), &mut Screen::new(of_host), 80, 24);
    assert!(lines[0].starts_with("sim host1  up "), "{lines:?}");
    assert_eq!(
        lines[2],
        "cluster: epoch 3, 2 members  right in 45 us, loss 0.0%"
    );
    assert!(lines[5].starts_with("web1"), "{lines:?}");
}

#[test]
fn the_table_at_80_columns() {
    let lines = seen(&mut screen(), 80, 24);
    let table = [
        "sim  up 12:35 min  CPUs 1.2 of 8 busy  VMs 2 of 3 running",
        "memory 8 GiB  used 2 GiB  free 6 GiB  shared 300 MiB  saved 600 MiB",
        "",
        "NAME        STATE    CPU%   ST%  HYP% EXIT/s   RES  PRIV   SHR  OWED  RD/s  WR/s",
        "web1        running  80.0  20.0   4.0   10k   900M  100M   56M     0  7.6M  781K",
        "a-name-as-… running  30.0   7.5   1.5   3.9k  300M  100M   56M     0  2.8M  292K",
        "db          ended     0.0   0.0   0.0      0     -     -     -     -     0     0",
    ];
    let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for (line, wanted) in lines.iter().zip(table) {
        assert_eq!(squeezed(line), squeezed(wanted));
    }
    assert_eq!(lines[3], table[3]);
    let keys = "q end  Enter one VM  ? help  c m e d t s n sort, r reverse: by CPU";
    assert_eq!(lines[23], keys);
}

#[test]
fn the_table_at_120_columns_has_whole_names_and_all_columns() {
    let lines = seen(&mut screen(), 120, 40);
    let titles: Vec<&str> = lines[3].split_whitespace().collect();
    let all = [
        "NAME", "STATE", "CPU%", "ST%", "HYP%", "EXIT/s", "RES", "PRIV", "SHR", "ENT", "OWED",
        "RD/s", "WR/s", "TX/s", "RX/s",
    ];
    assert_eq!(titles, all);
    assert!(lines[5].starts_with("a-name-as-long-as-can-be-31-xxx "));
    assert_eq!(lines[3].chars().count(), 120);
}

#[test]
fn a_page_shows_vcpus_exits_and_memory() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Enter);
    assert_eq!(screen.vm(), Some("web1"));
    for (width, height) in [(80, 24), (120, 40)] {
        let lines = seen(&mut screen, width, height);
        for part in [
            "web1  running",
            "CPU% 80.0  steal 20.0  hypervisor 4.0  idle 0.0",
            "   1 running   3  40.0   0.0   0.0   0.0  wfi 4.8k  uart 400",
            "wfi                9.6k   uart                800",
            "entitled            28M",
            "breaks                     900  800/s",
        ] {
            assert!(
                lines.iter().any(|line| line.contains(part)),
                "{part} in {lines:#?}"
            );
        }
    }
    // On a small terminal the end is seen after scrolling, and no further.
    press(&mut screen, KeyCode::End);
    assert!(
        seen(&mut screen, 80, 10)
            .iter()
            .any(|line| line.contains("breaks"))
    );
    press(&mut screen, KeyCode::Home);
    assert!(
        seen(&mut screen, 80, 10)
            .iter()
            .any(|line| line.starts_with("web1"))
    );
}

#[test]
fn keys_sort_select_open_and_end() {
    let mut screen = screen();
    let long = "a-name-as-long-as-can-be-31-xxx";
    assert_eq!(names(&screen), ["web1", long, "db"]);
    press(&mut screen, KeyCode::Char('n'));
    assert_eq!(
        (screen.sort, names(&screen)),
        (Sort::Name, vec![long, "db", "web1"])
    );
    press(&mut screen, KeyCode::Char('r'));
    assert_eq!(names(&screen), ["web1", "db", long]);
    for key in ['m', 'e', 'd', 's', 'c'] {
        press(&mut screen, KeyCode::Char(key));
        assert_eq!(names(&screen), ["db", long, "web1"], "{key}");
    }
    press(&mut screen, KeyCode::Char('r'));
    // The selection stays with its VM, and within the table.
    assert_eq!(screen.place(), Some(0));
    press(&mut screen, KeyCode::PageDown);
    assert_eq!(screen.place(), Some(2));
    press(&mut screen, KeyCode::Enter);
    assert_eq!(screen.vm(), Some("db"));
    press(&mut screen, KeyCode::Char('?'));
    assert!(
        seen(&mut screen, 80, 24)
            .iter()
            .any(|line| line.contains("Esc"))
    );
    for _ in 0..2 {
        assert_eq!(press(&mut screen, KeyCode::Esc), Then::GoOn);
    }
    assert_eq!((screen.help, screen.vm()), (false, None));
    assert_eq!(press(&mut screen, KeyCode::Esc), Then::GoOn);
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Then::End);
    let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert_eq!(screen.key(control_c), Then::End);
}

#[test]
fn vms_that_go_take_their_page_and_selection_along() {
    let mut screen = screen();
    press(&mut screen, KeyCode::Enter);
    screen.update(sample(800, vec![vm("db", 1)]));
    assert_eq!((screen.vm(), screen.place()), (None, Some(0)));
    screen.update(sample(801, Vec::new()));
    assert_eq!((screen.rows().len(), screen.place()), (0, None));
    assert_eq!(press(&mut screen, KeyCode::Enter), Then::GoOn);
    assert_eq!(seen(&mut screen, 80, 24)[4], "");
}

#[test]
fn any_size_and_any_name_can_be_drawn() {
    let odd = [
        "",
        "\x1b[31mred\n",
        "漢字漢字漢字漢字漢字漢字漢字漢字",
        "e\u{301}",
    ];
    let many = (0..40).map(|n| vm(&format!("vm-{n}"), n));
    let vms: Vec<_> = odd
        .map(|name| vm(name, u64::from(u32::MAX)))
        .into_iter()
        .chain(many)
        .collect();
    let mut screen = Screen::new(sample(1, vms.clone()));
    screen.update(sample(2, vms));
    for code in [
        KeyCode::End,
        KeyCode::Enter,
        KeyCode::End,
        KeyCode::Char('?'),
    ] {
        for (width, height) in [(0, 0), (1, 1), (5, 3), (40, 4), (80, 24), (300, 100)] {
            let lines = seen(&mut screen, width, height);
            assert!(lines.iter().all(|line| !line.contains(char::is_control)));
        }
        press(&mut screen, code);
    }
}

#[test]
fn numbers_fit_their_columns() {
    let percents = [0.0, 0.04, 99.94, 99.95, 1600.0].map(percent);
    assert_eq!(percents, ["0.0", "0.0", "99.9", "100", "1600"]);
    let rates = [0.4, 999.0, 1_000.0, 9_949.0, 9_960.0, 123_456.0, 5e6, 2e9].map(rate);
    assert_eq!(
        rates,
        ["0", "999", "1.0k", "9.9k", "10k", "123k", "5.0M", "2.0G"]
    );
}
