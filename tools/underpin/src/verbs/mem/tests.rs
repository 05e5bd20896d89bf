use super::*;
use crate::cli::Format;
use abi::Text;
use zerocopy::FromZeros as _;

fn vm(name: &str) -> MemStatus {
    let mut vm = MemStatus::new_zeroed();
    (vm.name, vm.group) = (Text::cut(name), Text::cut("default"));
    (vm.base, vm.max, vm.limit, vm.target) = (512 << 20, 1 << 30, 512 << 20, 512 << 20);
    (vm.resident, vm.private, vm.shared) = (300 << 20, 220 << 20, 80 << 20);
    (vm.overlay, vm.tables) = (3 << 20, 700 << 10);
    (vm.charge, vm.entitlement, vm.balance) = (264 << 20, 40 << 20, 40 << 20);
    (vm.blocks, vm.pages, vm.events[0]) = (90, 30_720, 20_480);
    vm
}

fn plain() -> Output {
    Output::new(Format::Table)
}

#[test]
fn table_leaves_out_what_says_nothing() {
    let shown = vm_table(&[vm("web1"), vm("web2")], false, plain());
    let expected = "\
NAME  BASE  RESIDENT  PRIVATE  SHARED  CHARGE  ENTITLED  2M     4K
web1  512M      300M     220M     80M    264M       40M  90  30720
web2  512M      300M     220M     80M    264M       40M  90  30720
";
    assert_eq!(shown, expected);
}

#[test]
fn table_shows_who_drew_and_who_owes() {
    let (mut rich, mut poor) = (vm("rich"), vm("poor"));
    rich.group = Text::cut("team-a");
    (rich.limit, rich.target, rich.drawn, rich.balance) = (552 << 20, 544 << 20, 32 << 20, 8 << 20);
    (poor.drawn, poor.balance, poor.owed) = (44 << 20, -4 << 20, 4 << 20);
    let shown = vm_table(&[poor, rich], false, plain());
    let expected = "\
NAME  GROUP    BASE  LIMIT  TARGET  RESIDENT  PRIVATE  SHARED  CHARGE  ENTITLED  DRAWN  BALANCE  OWED  2M     4K
poor  default  512M   512M    512M      300M     220M     80M    264M       40M    44M      -4M    4M  90  30720
rich  team-a   512M   552M    544M      300M     220M     80M    264M       40M    32M       8M     0  90  30720
";
    assert_eq!(shown, expected);
    assert!(expected.lines().all(|line| line.len() <= 120));
    let wide = vm_table(&[vm("web1")], true, plain());
    assert!(wide.contains("OVERLAY") && wide.contains("700K"), "{wide}");
}

#[test]
fn totals_are_short_lines() {
    let mut machine = MachineMem::new_zeroed();
    (machine.managed, machine.free, machine.saved) = (8 << 30, 5 << 30, 640 << 20);
    let expected = "\
Machine
  managed 8 GiB, free 5 GiB, reserve 0 B, bases 0 B, pool 0 B
  shared once 0 B, saved 640 MiB, cached only 0 B, images 0 B, records 0 B
";
    assert_eq!(totals(&machine, plain()), expected);
}

#[test]
fn programs_get_everything() {
    let json = vm_json(&vm("web1"));
    assert_eq!(json["events"].as_object().unwrap().len(), MEM_EVENTS.len());
    assert_eq!(json["events"]["shared-by-block"], 20_480);
    for key in [
        "name",
        "group",
        "balance",
        "entries_2m",
        "entries_4k",
        "overlay",
        "max",
        "takeable_estimate",
        "refault_p99_ns",
        "stalled_ns",
    ] {
        assert!(!json[key].is_null(), "{key}");
    }
    let text = vm_text(&vm("web1"), plain());
    assert!(
        text.contains("shared-by-block") && !text.contains("refault"),
        "{text}"
    );
    let mut vm = vm("web1");
    (vm.takeable, vm.refault_ns, vm.stalled_ns) = (7 << 20, [40_000, 2_000_000], 9_000_000_000);
    let text = vm_text(&vm, plain());
    for told in ["7 MiB (estimate)", "refault, p99", "stalled"] {
        assert!(text.contains(told), "{text}");
    }
}
