//! The picture of `underpin top` in the documents, drawn from numbers that were made up.

use super::super::{
    draw::{Look, draw},
    screen::Screen,
};
use crate::watch::{Sample, VmSample};
use abi::{
    Text,
    control::{MachineStatus, state},
};
use ratatui::{
    Terminal,
    backend::TestBackend,
    buffer::{Buffer, Cell},
    style::{Color, Modifier},
};
use std::{env, fmt::Write as _, fs, path::Path};
use tools_abi::status::{MachineMem, MemStatus, VmStatus};
use zerocopy::FromZeros as _;

const MS: u64 = 1_000_000;
const MIB: u64 = 1 << 20;
/// The terminal, and one of its cells in pixels.
const SIZE: (u16, u16) = (100, 12);
const CELL: (usize, usize) = (8, 17);
/// Around the terminal.
const MARGIN: usize = 12;
const PAPER: &str = "#16181d";
const INK: &str = "#d8dbe2";

/// What happened to a VM in a second: milliseconds that it ran, was stolen from and kept EL2 busy,
/// exits, KiB read and written; and its memory in MiB: private, shared, entitled, owed.
type Numbers = ([u64; 3], u64, [u64; 2], [u64; 4]);

const VMS: [(&str, u32, Numbers); 6] = [
    (
        "build-1",
        state::RUNNING,
        ([1893, 41, 62], 9_420, [11_600, 820], [612, 208, 117, 0]),
    ),
    (
        "build-2",
        state::RUNNING,
        ([1402, 288, 58], 8_870, [10_300, 640], [587, 211, 119, 14]),
    ),
    (
        "db",
        state::RUNNING,
        ([304, 12, 27], 3_310, [96, 5_230], [391, 74, 31, 0]),
    ),
    (
        "web1",
        state::RUNNING,
        ([121, 3, 19], 1_240, [0, 12], [88, 66, 44, 0]),
    ),
    (
        "old",
        state::PAUSED,
        ([0, 0, 0], 0, [0, 0], [142, 66, 40, 0]),
    ),
    (
        "nightly",
        state::ENDED,
        ([0, 0, 0], 0, [0, 0], [0, 0, 0, 0]),
    ),
];

/// The machine after so many seconds.
fn sample(second: u64) -> Sample {
    let vm = |(name, is, (times, exits, disk, memory)): (&str, u32, Numbers)| {
        let mut status = VmStatus::new_zeroed();
        (status.state, status.vcpus, status.starts) = (is, 2, 1);
        status.kernel = Text::cut("6.12.48-arm64");
        [status.run_ns, status.steal_ns, status.hypervisor_ns] =
            times.map(|time| time * MS * second);
        status.exits[7] = exits * second;
        status.disk_bytes = disk.map(|kib| (kib << 10) * second);
        let mut mem = MemStatus::new_zeroed();
        [mem.private, mem.shared, mem.entitlement, mem.owed] = memory.map(|mib| mib * MIB);
        mem.resident = mem.private + mem.shared;
        VmSample {
            name: name.to_owned(),
            status,
            memory: (is != state::ENDED).then_some(mem),
            vcpus: None,
        }
    };
    let mut machine = MachineStatus::new_zeroed();
    (machine.cpus, machine.memory, machine.memory_free) = (4, 4 << 30, 1_871 * MIB);
    machine.uptime_ns = (754 + second) * 1_000 * MS;
    let mut memory = MachineMem::new_zeroed();
    (memory.shared, memory.saved) = (274 * MIB, 351 * MIB);
    let mut vms = VMS.map(vm).to_vec();
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

/// The terminal's cells as SVG. Each run of cells that look the same is as wide as its cells,
/// whatever the font.
fn svg(cells: &Buffer) -> String {
    let columns = usize::from(cells.area.width);
    let lines = usize::from(cells.area.height);
    let (wide, high) = (columns * CELL.0 + 2 * MARGIN, lines * CELL.1 + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide} {high}\" \
         width=\"{wide}\" height=\"{high}\" font-family=\"monospace\" font-size=\"13\">\n\
         <rect width=\"{wide}\" height=\"{high}\" rx=\"6\" fill=\"{PAPER}\"/>\n"
    );
    for (line, cells) in cells.content.chunks(columns).enumerate() {
        let mut column = 0;
        for run in cells.chunk_by(|a, b| a.style() == b.style()) {
            run_of(&mut svg, run, (column, line));
            column += run.len();
        }
    }
    svg + "</svg>\n"
}

fn run_of(svg: &mut String, run: &[Cell], (column, line): (usize, usize)) {
    let (x, y) = (MARGIN + column * CELL.0, MARGIN + line * CELL.1);
    let style = run[0].style();
    let ink = match run[0].fg {
        Color::Green => "#7bc275",
        Color::Yellow => "#e5b567",
        Color::Red => "#e8706d",
        _ => INK,
    };
    let reversed = style.add_modifier.contains(Modifier::REVERSED);
    let width = run.len() * CELL.0;
    if reversed {
        let (_, high) = CELL;
        writeln!(
            svg,
            r#"<rect x="{x}" y="{y}" width="{width}" height="{high}" fill="{ink}"/>"#
        )
        .unwrap();
    }
    let text: String = run.iter().map(Cell::symbol).collect();
    if text.trim().is_empty() {
        return;
    }
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let fill = if reversed { PAPER } else { ink };
    let bold = style.add_modifier.contains(Modifier::BOLD);
    let bold = if bold { r#" font-weight="bold""# } else { "" };
    let base = y + 13;
    writeln!(
        svg,
        r#"<text x="{x}" y="{base}" textLength="{width}" fill="{fill}"{bold} xml:space="preserve">{text}</text>"#
    )
    .unwrap();
}

#[test]
fn the_picture_in_the_documents_is_what_is_drawn() {
    let mut screen = Screen::new(sample(0));
    screen.update(sample(1));
    let look = Look {
        machine: "sim".to_owned(),
        colour: true,
    };
    let mut terminal = Terminal::new(TestBackend::new(SIZE.0, SIZE.1)).unwrap();
    terminal
        .draw(|frame| draw(frame, &mut screen, &look))
        .unwrap();
    let drawn = svg(terminal.backend().buffer());
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/figures/top.svg");
    if fs::read_to_string(&kept).ok().as_ref() != Some(&drawn) {
        let new = env::temp_dir().join("top.svg");
        fs::write(&new, drawn).unwrap();
        panic!(
            "docs/figures/top.svg is not what is drawn now: {}",
            new.display()
        );
    }
}
