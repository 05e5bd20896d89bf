//! Rust source as tokens with line numbers: enough for rules about style, far from a compiler.

/// What a token is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An identifier or a keyword.
    Word(String),
    /// One character of punctuation.
    Mark(char),
    /// A string's contents, without its quotes.
    Text(String),
    /// A number, character, byte or lifetime.
    Other,
}

/// A token.
#[derive(Clone, Debug)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// Its line, from 1.
    pub line: usize,
    /// Whether it is part of a test, so that it does not run in the product.
    pub test: bool,
    /// Whether a lint is switched off for it with `#[expect(clippy::...)]` or `allow`.
    pub excused: bool,
}

impl Token {
    /// Whether it is this word.
    pub fn is(&self, word: &str) -> bool {
        matches!(&self.kind, Kind::Word(text) if text == word)
    }

    /// Whether it is this mark.
    pub fn mark(&self, mark: char) -> bool {
        self.kind == Kind::Mark(mark)
    }
}

/// A source file.
#[derive(Debug)]
pub struct Source {
    /// Its tokens, in order.
    pub tokens: Vec<Token>,
    /// Each line's comment, from line 1 at index 0; empty where it has none.
    pub comments: Vec<String>,
}

impl Source {
    /// Reads a file's text; all of it counts as test where `test` says so.
    pub fn read(text: &str, test: bool) -> Self {
        let mut reader = Reader {
            rest: text,
            line: 1,
            tokens: Vec::new(),
            comments: Vec::new(),
        };
        reader
            .comments
            .resize(text.lines().count() + 1, String::new());
        while reader.step() {}
        let mut source = Self {
            tokens: reader.tokens,
            comments: reader.comments,
        };
        source.mark_regions(test);
        source
    }

    /// The comment of a line, from 1.
    pub fn comment(&self, line: usize) -> &str {
        line.checked_sub(1)
            .and_then(|index| self.comments.get(index))
            .map_or("", String::as_str)
    }

    /// The index of the mark that closes the one at `open`, or the last token's where none does.
    pub fn closing(&self, open: usize) -> usize {
        let mut depth = 0usize;
        for (index, token) in self.tokens.iter().enumerate().skip(open) {
            match token.kind {
                Kind::Mark('(' | '[' | '{') => depth += 1,
                Kind::Mark(')' | ']' | '}') => depth = depth.saturating_sub(1),
                _ => continue,
            }
            if depth == 0 {
                return index;
            }
        }
        self.tokens.len().saturating_sub(1)
    }

    /// The index of the last token of the item or statement that begins at `start`: the `}` of its
    /// first braces, or its `;`.
    pub fn item_end(&self, start: usize) -> usize {
        let mut index = start;
        while let Some(token) = self.tokens.get(index) {
            match token.kind {
                Kind::Mark(';' | '}') => return index,
                Kind::Mark('{') => return self.closing(index),
                Kind::Mark('(' | '[') => index = self.closing(index),
                _ => {}
            }
            index += 1;
        }
        self.tokens.len().saturating_sub(1)
    }

    /// Marks what is under `#[cfg(test)]` or `#[cfg(not(target_os = "none"))]`, and what is under an attribute that excuses it.
    fn mark_regions(&mut self, all: bool) {
        for token in &mut self.tokens {
            token.test = all;
        }
        for start in 0..self.tokens.len() {
            let opens = self.tokens[start].mark('#')
                && self.tokens.get(start + 1).is_some_and(|t| t.mark('['));
            if !opens {
                continue;
            }
            let end = self.closing(start + 1);
            let attribute = &self.tokens[start + 2..end];
            let has = |word: &str| attribute.iter().any(|token| token.is(word));
            // Neither tests nor what only an ordinary process has are part of the image.
            let test = has("cfg") && (has("test") && !has("not") || has("not") && has("target_os"));
            let excused = (has("expect") || has("allow")) && has("clippy");
            if test || excused {
                let last = self.item_end(end + 1);
                for token in &mut self.tokens[start..=last] {
                    token.test |= test;
                    token.excused |= excused;
                }
            }
        }
    }
}

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
    comments: Vec<String>,
}

impl<'a> Reader<'a> {
    /// Takes one token, comment or space; false at the end.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else {
            return false;
        };
        let second = self.rest[first.len_utf8()..].chars().next().unwrap_or(' ');
        match (first, second) {
            ('/', '/') => self.line_comment(),
            ('/', '*') => self.block_comment(),
            ('"', _) => self.text(0),
            ('b' | 'c', '"') => self.text(1),
            ('r', '"' | '#') if self.raw_text(1) => {}
            ('b' | 'c', 'r') if self.raw_text(2) => {}
            ('b', '\'') => self.quoted(1),
            ('\'', _) => self.quoted(0),
            _ if first.is_whitespace() => drop(self.take(first.len_utf8())),
            _ if first.is_ascii_digit() => {
                let end = self
                    .rest
                    .find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                self.push(Kind::Other, end.unwrap_or(self.rest.len()));
            }
            _ if first.is_alphabetic() || first == '_' => {
                let end = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                let word = &self.rest[..end.unwrap_or(self.rest.len())];
                self.push(Kind::Word(word.to_owned()), word.len());
            }
            _ => self.push(Kind::Mark(first), first.len_utf8()),
        }
        true
    }

    /// Takes so many bytes and counts their lines.
    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        self.line += taken.matches('\n').count();
        taken
    }

    fn push(&mut self, kind: Kind, bytes: usize) {
        self.tokens.push(Token {
            kind,
            line: self.line,
            test: false,
            excused: false,
        });
        self.take(bytes);
    }

    fn line_comment(&mut self) {
        let end = self.rest.find('\n').unwrap_or(self.rest.len());
        let line = self.line;
        let comment = self.take(end);
        self.comments[line - 1].push_str(comment);
    }

    fn block_comment(&mut self) {
        let (mut depth, mut end) = (0usize, 0);
        while end < self.rest.len() {
            let here = &self.rest[end..];
            let step = here.chars().next().map_or(1, char::len_utf8);
            (depth, end) = match (here.starts_with("/*"), here.starts_with("*/")) {
                (true, _) => (depth + 1, end + 2),
                (_, true) => (depth - 1, end + 2),
                _ => (depth, end + step),
            };
            if depth == 0 {
                break;
            }
        }
        let line = self.line;
        for (offset, comment) in self.take(end).lines().enumerate() {
            self.comments[line - 1 + offset].push_str(comment);
        }
    }

    /// A string that begins after so many bytes of prefix.
    fn text(&mut self, prefix: usize) {
        let inner = &self.rest[prefix + 1..];
        let end = closing_quote(inner, '"').unwrap_or(inner.len());
        let text = inner[..end].to_owned();
        self.push(Kind::Text(text), (prefix + end + 2).min(self.rest.len()));
    }

    /// A raw string after so many bytes of prefix; false where it is none.
    fn raw_text(&mut self, prefix: usize) -> bool {
        let hashes = self.rest[prefix..]
            .bytes()
            .take_while(|byte| *byte == b'#')
            .count();
        let Some(inner) = self.rest[prefix + hashes..].strip_prefix('"') else {
            return false;
        };
        let end = inner
            .find(&format!("\"{}", "#".repeat(hashes)))
            .unwrap_or(inner.len());
        let text = inner[..end].to_owned();
        self.push(
            Kind::Text(text),
            (prefix + 2 * hashes + end + 2).min(self.rest.len()),
        );
        true
    }

    /// A character, byte or lifetime.
    fn quoted(&mut self, prefix: usize) {
        let inner = &self.rest[prefix + 1..];
        let mut chars = inner.chars();
        let (first, second) = (chars.next().unwrap_or(' '), chars.next().unwrap_or(' '));
        let bytes = if first == '\\' || second == '\'' {
            closing_quote(inner, '\'').map_or(inner.len(), |end| end + 2)
        } else {
            1 + inner
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(inner.len())
        };
        self.push(Kind::Other, (prefix + bytes).min(self.rest.len()));
    }
}

/// Where the quote stands that no backslash escapes.
fn closing_quote(text: &str, quote: char) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let word = |token: &Token| match &token.kind {
            Kind::Word(word) => Some(word.clone()),
            _ => None,
        };
        Source::read(text, false)
            .tokens
            .iter()
            .filter_map(word)
            .collect()
    }

    #[test]
    fn strings_and_comments_are_no_code() {
        assert_eq!(words("a /* b /* c */ d */ e // f\ng"), ["a", "e", "g"]);
        assert_eq!(
            words(r##"a "b \" c" d r#"e " f"# g b"h" i"##),
            ["a", "d", "g", "i"]
        );
        assert_eq!(
            words(r"a '\'' b 'c' d: &'e f b'\\' g '\u{41}' h"),
            ["a", "b", "d", "f", "g", "h"]
        );
        assert_eq!(words("for r in 0..3 { 0x1f_u8 }"), ["for", "r", "in"]);
        assert_eq!(words("é \"unclosed"), ["é"]);
    }

    #[test]
    fn lines_and_comments_are_found() {
        let source = Source::read("a\n// why\n\"x\ny\" b /* c\nd */ e\n", false);
        let lines: Vec<usize> = source.tokens.iter().map(|token| token.line).collect();
        assert_eq!(lines, [1, 3, 4, 5]);
        assert_eq!(source.comment(2), "// why");
        assert_eq!(source.comment(5), "d */");
        assert_eq!(source.comment(0), "");
    }

    #[test]
    fn tests_are_told_from_the_product() {
        let text = "fn a() {} #[cfg(test)] mod tests { fn b() {} } #[cfg(not(test))] fn c() {}";
        let source = Source::read(text, false);
        let test = |word: &str| {
            source
                .tokens
                .iter()
                .find(|token| token.is(word))
                .unwrap()
                .test
        };
        assert!(!test("a") && test("b") && !test("c"));
        let source = Source::read("#[cfg(test)] use x::{y}; fn z() {}", false);
        assert!(
            source
                .tokens
                .iter()
                .find(|token| token.is("y"))
                .unwrap()
                .test
        );
        assert!(Source::read("fn a() {}", true).tokens[0].test);
    }

    #[test]
    fn an_excuse_covers_its_statement() {
        let text = "fn a() { #[expect(clippy::panic, reason = \"b\")] { c!() } d() }";
        let source = Source::read(text, false);
        let excused = |word: &str| {
            source
                .tokens
                .iter()
                .find(|token| token.is(word))
                .unwrap()
                .excused
        };
        assert!(excused("c") && !excused("d"));
    }
}
