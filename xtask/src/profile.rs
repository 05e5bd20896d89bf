//! What the hypervisor executed, by function, from what the plugin `sim/profile` counted.

use crate::{project, step::Outcome};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Where the boot protocol puts the image, whose symbols begin at 0.
const IMAGE: u64 = 0x4020_0000;
/// Functions that are shown of all visits together, and of each of the longest.
const FUNCTIONS: usize = 40;
const OF_VISIT: usize = 6;

/// Results, and what to show of them.
#[derive(Debug, clap::Args)]
pub struct Asked {
    /// What the plugin has written
    file: PathBuf,
    /// Of how many of the longest visits, too
    #[arg(long, default_value_t = 0)]
    visits: usize,
    /// The image's program [default: that of `xtask build`]; it must be the one that ran
    #[arg(long)]
    elf: Option<PathBuf>,
}

/// Instructions by function.
pub type Counts = BTreeMap<String, u64>;

/// The functions of an image by address.
struct Symbols(BTreeMap<u64, String>);

/// Prints them; whether that went well.
pub fn run(asked: &Asked) -> bool {
    match table(asked) {
        Ok(text) => {
            print!("{text}");
            true
        }
        Err(why) => {
            eprintln!("{why}");
            false
        }
    }
}

/// What the image of `xtask build` executed, as the plugin has written it to a file.
///
/// # Errors
/// It cannot be read, or has nothing of the image.
pub fn all(file: &Path) -> Outcome<Counts> {
    let mut visits = visits(file, &project::el2_binary("underpin"))?;
    Ok(visits.remove(&0).unwrap_or_default())
}

/// Instructions by visit, 0 being all, of which there are some.
fn visits(file: &Path, elf: &Path) -> Outcome<BTreeMap<u64, Counts>> {
    let path = file.display();
    let text = fs::read_to_string(file).map_err(|error| format!("cannot read {path}: {error}"))?;
    let visits = read(&text, &Symbols::of(elf)?).map_err(|why| format!("{path}: {why}"))?;
    if !visits.contains_key(&0) {
        let elf = elf.display();
        return Err(format!("{path} has nothing of the image: was it {elf}?"));
    }
    Ok(visits)
}

fn table(asked: &Asked) -> Outcome<String> {
    let usual = || project::el2_binary("underpin");
    let elf = asked.elf.clone().unwrap_or_else(usual);
    let visits = visits(&asked.file, &elf)?;
    let mut said = String::new();
    let all = &visits[&0];
    show(&mut said, "all visits", all, FUNCTIONS);
    let mut long: Vec<_> = visits.iter().filter(|(visit, _)| **visit > 0).collect();
    long.sort_by_key(|(_, counts)| std::cmp::Reverse(counts.values().sum::<u64>()));
    for (visit, counts) in long.into_iter().take(asked.visits) {
        show(&mut said, &format!("visit {visit}"), counts, OF_VISIT);
    }
    Ok(said)
}

/// Instructions by visit and function.
fn read(text: &str, symbols: &Symbols) -> Outcome<BTreeMap<u64, Counts>> {
    let mut visits = BTreeMap::new();
    for (number, line) in text.lines().enumerate().skip(1) {
        let words: Vec<&str> = line.split(',').collect();
        let row = match words[..] {
            [visit, _, address, _, instructions] => address
                .strip_prefix("0x")
                .and_then(|digits| u64::from_str_radix(digits, 16).ok())
                .zip(visit.parse().ok())
                .zip(instructions.parse::<u64>().ok()),
            _ => None,
        };
        let ((address, visit), instructions) =
            row.ok_or_else(|| format!("line {} is no result: '{line}'", number + 1))?;
        let counts: &mut Counts = visits.entry(visit).or_default();
        *counts
            .entry(symbols.function(address).to_owned())
            .or_default() += instructions;
    }
    Ok(visits)
}

/// A title with the sum, and the functions that took most.
fn show(to: &mut String, what: &str, counts: &Counts, most: usize) {
    let sum: u64 = counts.values().sum();
    let _ = writeln!(to, "{what}: {sum} instructions");
    let mut rows: Vec<_> = counts.iter().collect();
    rows.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (function, count) in rows.into_iter().take(most) {
        let share = 100.0 * *count as f64 / sum.max(1) as f64;
        let _ = writeln!(to, "{count:>12} {share:>5.1} %  {function}");
    }
}

impl Symbols {
    fn of(elf: &Path) -> Outcome<Self> {
        let text = project::binutil("nm", &["--demangle"], elf)?;
        Ok(Self::read(&text))
    }

    fn read(text: &str) -> Self {
        let symbol = |line: &str| {
            let (address, rest) = line.split_once(' ')?;
            let (kind, name) = rest.split_once(' ')?;
            let address = u64::from_str_radix(address, 16).ok()?;
            kind.eq_ignore_ascii_case("t")
                .then(|| (address, name.to_owned()))
        };
        Self(text.lines().filter_map(symbol).collect())
    }

    /// The function that has the instruction at `address`, as the image runs.
    fn function(&self, address: u64) -> &str {
        let offset = address.wrapping_sub(IMAGE);
        let found = self.0.range(..=offset).next_back();
        found.map_or("?", |(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_summed_by_function() {
        let symbols =
            Symbols::read("0000000000000010 t one\n0000000000000020 T two\n0030 d data\n");
        let text = "visit,cpu,address,times,instructions\n0,,0x40200010,1,3\n0,,0x40200018,2,4\n\
                    0,,0x40200034,1,5\n7,0,0x40200020,1,2\n";
        let visits = read(text, &symbols).unwrap();
        let of = |visit, name: &str| visits[&visit].get(name).copied();
        assert_eq!((of(0, "one"), of(0, "two")), (Some(7), Some(5)));
        assert_eq!((of(7, "one"), of(7, "two")), (None, Some(2)));
        let mut said = String::new();
        show(&mut said, "all visits", &visits[&0], 1);
        assert_eq!(
            said,
            "all visits: 12 instructions\n           7  58.3 %  one\n"
        );
        assert!(read("head\n0,,x,1,1\n", &symbols).is_err());
    }
}
