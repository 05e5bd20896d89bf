//! Reads the values of a TOML table one by one, and collects every problem with its place.

use crate::{
    failure::{Failure, Place, exit},
    units,
};
use miette::NamedSource;
use std::{cell::RefCell, collections::BTreeMap, ops::Range, sync::Arc};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

/// A value and the bytes of the file that say it.
pub struct Found<T> {
    /// The value.
    pub value: T,
    /// Where it stands.
    pub span: Range<usize>,
}

/// Collects what is wrong with one file.
pub struct Problems {
    source: Arc<NamedSource<String>>,
    found: RefCell<BTreeMap<usize, Vec<Failure>>>,
}

impl Problems {
    /// For a file of that name and text.
    pub fn new(name: &str, text: &str) -> Self {
        let source = Arc::new(NamedSource::new(name, text.to_owned()));
        Self {
            source,
            found: RefCell::default(),
        }
    }

    /// Adds a problem: what is wrong, the bytes at fault and what to do.
    pub fn add(&self, span: &Range<usize>, message: String, help: &str) {
        let place = Place {
            source: Arc::clone(&self.source),
            span: span.clone(),
            label: "here".to_owned(),
        };
        let failure = Failure::new(exit::FILE, message).help(help).at(place);
        self.found
            .borrow_mut()
            .entry(span.start)
            .or_default()
            .push(failure);
    }

    /// All problems as one failure, in the order of the file.
    pub fn into_failure(self) -> Option<Failure> {
        Failure::join(self.found.into_inner().into_values().flatten().collect())
    }
}

/// One table of the file and the keys that it may have.
pub struct Section<'a, 's> {
    name: &'static str,
    table: &'a DeTable<'s>,
    span: Range<usize>,
    problems: &'a Problems,
}

impl<'a, 's> Section<'a, 's> {
    /// Begins to read a table; `name` is empty for the file itself. Keys other than `known` are
    /// problems.
    pub fn new(
        name: &'static str,
        table: &'a DeTable<'s>,
        span: Range<usize>,
        known: &[&str],
        problems: &'a Problems,
    ) -> Self {
        for key in table.keys() {
            let text: &str = key.get_ref();
            if !known.contains(&text) {
                let help = match nearest(text, known) {
                    Some(near) => format!("do you mean '{near}'?"),
                    None => format!("the keys known here are: {}", known.join(", ")),
                };
                problems.add(&key.span(), format!("unknown key '{text}'"), &help);
            }
        }
        Self {
            name,
            table,
            span,
            problems,
        }
    }

    /// Where the table stands.
    pub fn span(&self) -> &Range<usize> {
        &self.span
    }

    /// Whether the key is there.
    pub fn has(&self, key: &str) -> Option<Range<usize>> {
        self.table.get(key).map(Spanned::span)
    }

    /// Adds the problem that a key is missing.
    pub fn missing(&self, key: &str, help: &str) {
        let message = match self.name {
            "" => format!("'{key}' is missing"),
            section => format!("'{key}' is missing in {section}"),
        };
        let first_line = self.span.start..self.span.end.min(self.span.start + 1);
        self.problems.add(&first_line, message, help);
    }

    fn wrong(&self, key: &str, value: &Spanned<DeValue<'_>>, wanted: &str, example: &str) {
        let is = value.get_ref().type_str();
        let help = format!("write it like this: {key} = {example}");
        self.problems.add(
            &value.span(),
            format!("'{key}' must be {wanted}, and is of type {is}"),
            &help,
        );
    }

    /// A text.
    pub fn text(&self, key: &str, example: &str) -> Option<Found<&'a str>> {
        let value = self.table.get(key)?;
        let found = value.get_ref().as_str().map(|text| Found {
            value: text,
            span: value.span(),
        });
        if found.is_none() {
            self.wrong(key, value, "text in quotes", example);
        }
        found
    }

    /// A whole number from `range`, or `default` where the key is absent.
    pub fn number(&self, key: &str, range: Range<u32>, default: u32) -> u32 {
        let Some(value) = self.table.get(key) else {
            return default;
        };
        let last = range.end - 1;
        match integer(value.get_ref()) {
            None => self.wrong(
                key,
                value,
                "a whole number",
                &default.max(range.start).to_string(),
            ),
            Some(n) => match u32::try_from(n).ok().filter(|n| range.contains(n)) {
                Some(n) => return n,
                None => self.problems.add(
                    &value.span(),
                    format!("'{key}' is {n}, outside {} to {last}", range.start),
                    &format!("use a number from {} to {last}", range.start),
                ),
            },
        }
        default
    }

    /// `true` or `false`, or `default` where the key is absent.
    pub fn boolean(&self, key: &str, default: bool) -> bool {
        let Some(value) = self.table.get(key) else {
            return default;
        };
        value.get_ref().as_bool().unwrap_or_else(|| {
            self.wrong(key, value, "true or false", &default.to_string());
            default
        })
    }

    /// One of some words; the first where the key is absent.
    pub fn choice<'c>(&self, key: &str, words: &[&'c str]) -> &'c str {
        let first = words.first().copied().unwrap_or_default();
        let Some(found) = self.text(key, &format!("\"{first}\"")) else {
            return first;
        };
        if let Some(word) = words.iter().find(|word| **word == found.value) {
            return word;
        }
        let help = format!("use \"{}\"", words.join("\" or \""));
        let message = format!("'{key}' is \"{}\", which is not known", found.value);
        self.problems.add(&found.span, message, &help);
        first
    }

    /// A size in bytes from text such as `512MiB`.
    pub fn size(&self, key: &str, example: &str) -> Option<Found<u64>> {
        self.quantity(key, "size", example, units::parse_size)
    }

    /// Bytes in a second from text such as `5MB/s`.
    pub fn rate(&self, key: &str, example: &str) -> Option<u64> {
        let found = self.quantity(key, "rate", example, units::parse_rate)?;
        Some(found.value)
    }

    /// Milliseconds that reported memory is held, from text such as `100ms`.
    pub fn hold(&self, key: &str, example: &str) -> Option<u16> {
        let parse = |text: &str| units::parse_hold(text).map(u64::from);
        let found = self.quantity(key, "time", example, parse)?;
        u16::try_from(found.value).ok()
    }

    fn quantity(
        &self,
        key: &str,
        what: &str,
        example: &str,
        parse: fn(&str) -> Result<u64, String>,
    ) -> Option<Found<u64>> {
        let value = self.table.get(key)?;
        let help = format!("write it like this: {key} = {example}");
        if integer(value.get_ref()).is_some() {
            self.problems
                .add(&value.span(), format!("'{key}' has no unit"), &help);
            return None;
        }
        let found = self.text(key, example)?;
        match parse(found.value) {
            Ok(value) => Some(Found {
                value,
                span: found.span,
            }),
            Err(why) => {
                let message = format!("'{key}' is no {what}: {why}");
                self.problems.add(&found.span, message, &help);
                None
            }
        }
    }

    /// A list of whole numbers, each below `end`.
    pub fn numbers(&self, key: &str, end: u32, example: &str) -> Option<Vec<u32>> {
        let value = self.table.get(key)?;
        let Some(array) = value.get_ref().as_array() else {
            self.wrong(key, value, "a list of numbers", example);
            return None;
        };
        let number = |item: &Spanned<DeValue<'_>>| {
            let number = integer(item.get_ref()).and_then(|n| u32::try_from(n).ok());
            let number = number.filter(|n| *n < end);
            if number.is_none() {
                let message = format!("'{key}' may hold numbers from 0 to {} only", end - 1);
                self.problems
                    .add(&item.span(), message, &format!("as in {key} = {example}"));
            }
            number
        };
        Some(array.iter().filter_map(number).collect())
    }

    /// A list of texts.
    pub fn texts(&self, key: &str, example: &str) -> Option<Vec<String>> {
        let value = self.table.get(key)?;
        let Some(array) = value.get_ref().as_array() else {
            self.wrong(key, value, "a list of texts", example);
            return None;
        };
        let text = |item: &Spanned<DeValue<'_>>| {
            let text = item.get_ref().as_str();
            if text.is_none() {
                let message = format!("'{key}' may hold texts only");
                let help = format!("as in {key} = {example}");
                self.problems.add(&item.span(), message, &help);
            }
            text.map(str::to_owned)
        };
        Some(array.iter().filter_map(text).collect())
    }

    /// Whether the key holds a list.
    pub fn is_array(&self, key: &str) -> bool {
        self.table
            .get(key)
            .is_some_and(|value| value.get_ref().is_array())
    }

    /// Whether the key holds text.
    pub fn is_text(&self, key: &str) -> bool {
        self.table
            .get(key)
            .is_some_and(|value| value.get_ref().is_str())
    }

    /// Whether the key holds a table.
    pub fn is_table(&self, key: &str) -> bool {
        self.table
            .get(key)
            .is_some_and(|value| value.get_ref().is_table())
    }

    /// A table within this one.
    pub fn section(
        &self,
        name: &'static str,
        key: &str,
        known: &[&str],
    ) -> Option<Section<'a, 's>> {
        let value = self.table.get(key)?;
        let Some(table) = value.get_ref().as_table() else {
            let help = format!("begin it with a line [{key}]");
            self.problems
                .add(&value.span(), format!("'{key}' must be a table"), &help);
            return None;
        };
        Some(Section::new(
            name,
            table,
            value.span(),
            known,
            self.problems,
        ))
    }

    /// The tables of a list, `[[key]]` in the file.
    pub fn sections(&self, name: &'static str, key: &str, known: &[&str]) -> Vec<Section<'a, 's>> {
        let Some(value) = self.table.get(key) else {
            return Vec::new();
        };
        let help = format!("begin each with a line [[{key}]]");
        let Some(array) = value.get_ref().as_array() else {
            self.problems.add(
                &value.span(),
                format!("'{key}' must be a list of tables"),
                &help,
            );
            return Vec::new();
        };
        let section = |item: &'a Spanned<DeValue<'s>>| {
            let table = item.get_ref().as_table();
            if table.is_none() {
                self.problems
                    .add(&item.span(), format!("'{key}' must hold tables"), &help);
            }
            Some(Section::new(
                name,
                table?,
                item.span(),
                known,
                self.problems,
            ))
        };
        array.iter().filter_map(section).collect()
    }
}

fn integer(value: &DeValue<'_>) -> Option<i64> {
    let integer = value.as_integer()?;
    // Beyond 64 bits is still a number, and out of every range.
    Some(i64::from_str_radix(integer.as_str(), integer.radix()).unwrap_or(i64::MAX))
}

/// The known word that differs from `word` in the fewest letters, where these are few.
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let best = known.iter().map(|k| (edits(word, k), *k)).min()?;
    (best.0 <= 1 + word.chars().count() / 3).then_some(best.1)
}

/// How many letters must be added, taken away or changed to get from one word to the other
/// (Levenshtein's distance); two letters swapped count as two.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = i;
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_found() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(
            nearest("memroy", &["name", "memory", "cpus"]),
            Some("memory")
        );
        assert_eq!(nearest("cpu", &["name", "memory", "cpus"]), Some("cpus"));
        assert_eq!(nearest("zzzz", &["name", "memory", "cpus"]), None);
    }
}
