//! Draws the screen: the machine's lines, the table of VMs or the page of one, the line of keys.

use super::{
    columns::{COLUMNS, Column, NONE},
    page,
    screen::{Screen, Sort},
};
use crate::{
    cli, hosts,
    output::{Side, Tone},
    units,
    watch::rates::Rates,
};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Style, Stylize as _},
    text::{Line, Span},
    widgets::{Cell, Paragraph, Row, Table},
};

/// The least width of names in the table, in characters.
const NAME_MIN: u16 = 11;

/// What does not change while the command runs.
#[derive(Debug)]
pub struct Look {
    /// The machine's name.
    pub machine: String,
    /// Whether there may be colours.
    pub colour: bool,
}

impl Look {
    /// How a tone looks.
    pub fn style(&self, tone: Tone) -> Style {
        let plain = Style::new();
        match tone {
            Tone::Strong => plain.bold(),
            _ if !self.colour => plain,
            Tone::Plain => plain,
            Tone::Good => plain.fg(Color::Green),
            Tone::Still => plain.fg(Color::Yellow),
            Tone::Bad => plain.fg(Color::Red),
        }
    }
}

/// Draws all of it.
pub fn draw(frame: &mut Frame<'_>, screen: &mut Screen, look: &Look) {
    let has_hosts = u16::from(!screen.sample.hosts.is_empty());
    let areas = [
        Constraint::Length(3 + has_hosts),
        Constraint::Fill(1),
        Constraint::Length(1),
    ];
    let [head, body, foot] = Layout::vertical(areas).areas(frame.area());
    frame.render_widget(machine(screen, look), head);
    if screen.help {
        scrolled(
            frame,
            body,
            screen,
            cli::TOP.lines().map(Line::from).collect(),
        );
    } else if screen.vm().is_some() {
        let lines = page::lines(screen, look);
        scrolled(frame, body, screen, lines);
    } else {
        vms(frame, body, screen, look);
    }
    frame.render_widget(Paragraph::new(keys(screen)), foot);
}

/// Lines, as many as there is room for, from where the screen was scrolled to.
fn scrolled(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen, lines: Vec<Line<'_>>) {
    let last = lines.len().saturating_sub(area.height.into());
    screen.scroll = screen.scroll.min(last);
    let shown: Vec<_> = lines.into_iter().skip(screen.scroll).collect();
    frame.render_widget(Paragraph::new(shown), area);
}

fn machine(screen: &Screen, look: &Look) -> Paragraph<'static> {
    let sample = &screen.sample;
    let machine = &sample.machine;
    let busy = screen.rates.as_ref().map(Rates::busy);
    let busy = busy.map_or_else(|| NONE.to_owned(), |busy| format!("{busy:.1}"));
    let title = Span::styled(look.machine.clone(), look.style(Tone::Strong));
    let os0 = screen.rates.as_ref().and_then(|rates| rates.os0);
    let os0 = os0.map_or_else(String::new, |[ran, stolen]| {
        format!("  OS-0 {ran:.1}, stolen {stolen:.1}")
    });
    let rest = format!(
        "  up {}  CPUs {busy} of {} busy{os0}  VMs {} of {} running",
        units::nanoseconds(machine.uptime_ns),
        machine.cpus,
        sample.running(),
        sample.vms.len(),
    );
    let memory = format!(
        "memory {}  used {}  free {}  shared {}  saved {}",
        units::size(machine.memory),
        units::size(sample.memory_used()),
        units::size(machine.memory_free),
        units::size(sample.memory.shared),
        units::size(sample.memory.saved),
    );
    let mut lines = vec![Line::from(vec![title, rest.into()]), memory.into()];
    lines.extend(hosts::line(&sample.hosts).map(Line::from));
    Paragraph::new(lines)
}

fn keys(screen: &Screen) -> Line<'static> {
    let text = if screen.help || screen.vm().is_some() {
        "Esc back  Up Down scroll  ? help".to_owned()
    } else {
        let by = match screen.sort {
            Sort::Cpu => "CPU",
            Sort::Memory => "memory",
            Sort::Exits => "exits",
            Sort::Disk => "disk",
            Sort::Net => "traffic",
            Sort::Steal => "steal",
            Sort::Name => "name",
        };
        let reversed = if screen.reversed { ", reversed" } else { "" };
        format!("q end  Enter one VM  ? help  c m e d t s n sort, r reverse: by {by}{reversed}")
    };
    Line::from(text).reversed()
}

/// The columns that a table of that width has room for.
fn columns(width: u16) -> Vec<&'static Column> {
    let mut columns: Vec<&Column> = COLUMNS.iter().collect();
    let needed = |columns: &[&Column]| {
        let widths = columns.iter().map(|column| column.width + 1);
        widths.sum::<u16>() + NAME_MIN
    };
    while needed(&columns) > width {
        let Some(rank) = columns
            .iter()
            .map(|column| column.rank)
            .max()
            .filter(|rank| *rank > 0)
        else {
            break;
        };
        columns.retain(|column| column.rank < rank);
    }
    columns
}

/// Text that fits a width; what is cut off is told by a dot.
fn cut(text: &str, width: u16) -> String {
    let width = usize::from(width);
    let mut shown: String = text.chars().take(width).collect();
    if text.chars().count() > width {
        shown.pop();
        shown.push('…');
    }
    shown
}

fn vms(frame: &mut Frame<'_>, area: Rect, screen: &mut Screen, look: &Look) {
    let columns = columns(area.width);
    let taken: u16 = columns.iter().map(|column| column.width + 1).sum();
    let name = area.width.saturating_sub(taken);
    let titles = columns
        .iter()
        .map(|column| cell(column, column.title.into()));
    let head = std::iter::once(Cell::from("NAME")).chain(titles);
    let rows = screen.rows();
    let rows = rows.into_iter().map(|(vm, rates)| {
        let cells = columns.iter().map(|column| {
            let style = look.style((column.tone)(vm, rates));
            cell(column, (column.cell)(vm, rates)).style(style)
        });
        Row::new(std::iter::once(Cell::from(cut(&vm.name, name))).chain(cells))
    });
    let widths = columns
        .iter()
        .map(|column| Constraint::Length(column.width));
    let widths = std::iter::once(Constraint::Length(name)).chain(widths);
    let table = Table::new(rows.collect::<Vec<_>>(), widths)
        .header(Row::new(head).style(look.style(Tone::Strong)))
        .row_highlight_style(Style::new().reversed());
    let place = screen.place();
    screen.table.select(place);
    frame.render_stateful_widget(table, area, &mut screen.table);
}

fn cell(column: &Column, text: String) -> Cell<'static> {
    let line = Line::from(text);
    Cell::from(match column.side {
        Side::Left => line,
        Side::Right => line.right_aligned(),
    })
}
