//! What is shown, and what keys do to it.

use crate::watch::{
    Sample, VmSample,
    rates::{Rates, VmRates},
};
use ratatui::{
    crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    widgets::TableState,
};

/// Lines of `PgUp` and `PgDn`.
const PAGE_LINES: isize = 10;

/// What the table of VMs is sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// Time that ran.
    Cpu,
    /// Resident memory.
    Memory,
    /// Exits per second.
    Exits,
    /// Bytes read and written per second.
    Disk,
    /// Bytes sent and received per second.
    Net,
    /// Time stolen.
    Steal,
    /// Name.
    Name,
}

impl Sort {
    fn of_key(key: char) -> Option<Self> {
        Some(match key {
            'c' => Self::Cpu,
            'm' => Self::Memory,
            'e' => Self::Exits,
            'd' => Self::Disk,
            't' => Self::Net,
            's' => Self::Steal,
            'n' => Self::Name,
            _ => return None,
        })
    }

    /// What is sorted by, greatest first; names come in their own order.
    fn amount(self, vm: &VmSample, rates: &VmRates) -> f64 {
        match self {
            Self::Cpu => rates.shares.run,
            Self::Memory => vm.memory.map_or(0.0, |memory| memory.resident as f64),
            Self::Exits => rates.all_exits(),
            Self::Disk => rates.read + rates.written,
            Self::Net => rates.sent + rates.received,
            Self::Steal => rates.shares.steal,
            Self::Name => 0.0,
        }
    }
}

/// What follows a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// To go on.
    GoOn,
    /// The command ends.
    End,
}

/// All that is drawn.
#[derive(Debug)]
pub struct Screen {
    /// The newest sample.
    pub sample: Sample,
    /// What happened before it; `None` for the first.
    pub rates: Option<Rates>,
    /// What the table is sorted by.
    pub sort: Sort,
    /// Whether it is the other way round.
    pub reversed: bool,
    /// Whether help is shown.
    pub help: bool,
    /// The table's place; its selection follows [`Screen::selected`].
    pub table: TableState,
    /// The first line shown of a VM's page; drawing keeps it within the page.
    pub scroll: usize,
    selected: Option<String>,
    open: bool,
}

impl Screen {
    /// Shows the table of VMs.
    pub fn new(sample: Sample) -> Self {
        let mut screen = Self {
            sample,
            rates: None,
            sort: Sort::Cpu,
            reversed: false,
            help: false,
            table: TableState::new(),
            scroll: 0,
            selected: None,
            open: false,
        };
        screen.select(0);
        screen
    }

    /// Takes a newer sample in. A page whose VM has gone is closed.
    pub fn update(&mut self, sample: Sample) {
        let first = self.rates.is_none();
        self.rates = Rates::between(&self.sample, &sample);
        self.sample = sample;
        let there = |name: &String| self.sample.vm(name).is_some();
        if !self.selected.as_ref().is_some_and(there) {
            self.open = false;
            self.select(self.table.selected().unwrap_or(0));
        } else if first && !self.open {
            // Only now there is an order.
            self.select(0);
        }
    }

    /// The VM whose page is shown.
    pub fn vm(&self) -> Option<&str> {
        self.selected.as_deref().filter(|_| self.open)
    }

    /// The VMs and their rates in the order of the table; no rates in the first sample.
    pub fn rows(&self) -> Vec<(&VmSample, Option<&VmRates>)> {
        let rates = |n| self.rates.as_ref().and_then(|rates| rates.vms.get(n));
        let vms = self.sample.vms.iter().enumerate();
        let mut rows: Vec<_> = vms.map(|(n, vm)| (vm, rates(n))).collect();
        let none = VmRates::default();
        let amount = |vm, rates: Option<_>| self.sort.amount(vm, rates.unwrap_or(&none));
        // The sort is stable: VMs that are equal stay in the order of their names.
        rows.sort_by(|a, b| amount(b.0, b.1).total_cmp(&amount(a.0, a.1)));
        if self.reversed {
            rows.reverse();
        }
        rows
    }

    /// Does what a key says.
    pub fn key(&mut self, key: KeyEvent) -> Then {
        if key.kind == KeyEventKind::Release {
            return Then::GoOn;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return Then::End,
            KeyCode::Char(_) if control => {}
            KeyCode::Char('q') | KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc if self.open => self.open = false,
            KeyCode::Char('q') => return Then::End,
            KeyCode::Char('?') => (self.help, self.scroll) = (!self.help, 0),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char(key) => self.sort = Sort::of_key(key).unwrap_or(self.sort),
            KeyCode::Enter if !self.help && self.selected.is_some() => {
                (self.open, self.scroll) = (true, 0);
            }
            KeyCode::Up => self.move_by(-1),
            KeyCode::Down => self.move_by(1),
            KeyCode::PageUp => self.move_by(-PAGE_LINES),
            KeyCode::PageDown => self.move_by(PAGE_LINES),
            KeyCode::Home => self.move_by(isize::MIN),
            KeyCode::End => self.move_by(isize::MAX),
            _ => {}
        }
        Then::GoOn
    }

    /// Where the VM selected stands in the table.
    pub fn place(&self) -> Option<usize> {
        let name = self.selected.as_deref()?;
        self.rows().iter().position(|(vm, _)| vm.name == name)
    }

    fn move_by(&mut self, lines: isize) {
        if self.open || self.help {
            self.scroll = self.scroll.saturating_add_signed(lines);
        } else {
            self.select(self.place().unwrap_or(0).saturating_add_signed(lines));
        }
    }

    /// Selects the VM at a place of the table, or the last one.
    fn select(&mut self, place: usize) {
        let rows = self.rows();
        let place = place.min(rows.len().saturating_sub(1));
        self.selected = rows.get(place).map(|(vm, _)| vm.name.clone());
    }
}
