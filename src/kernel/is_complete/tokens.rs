//! A tokenizer with the habits of Python's own `tokenize` module, on which IPython's rules rest: it never fails on what it does
//! not know (such a character is a token of its own), and an unclosed quote ends with its character.

/// What a token is, as far as the rules care.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Name,
    /// Numbers and strings.
    Literal,
    Op,
    /// A character that Python does not know, or an unclosed quote.
    Error,
    Comment,
    /// The end of a statement.
    Newline,
    /// Another line end.
    Nl,
    Indent,
    Dedent,
}

/// A token: its place is a line of the current statement and byte columns in it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token {
    pub(super) kind: Kind,
    /// The character, if the token is one ASCII character.
    character: u8,
    line: u32,
    start: u32,
    end: u32,
}

impl Token {
    /// The line of the statement in which it stands.
    pub(super) fn line(&self) -> usize {
        self.line as usize
    }

    /// The column of its first byte.
    pub(super) fn start(&self) -> usize {
        self.start as usize
    }

    /// The column behind it.
    pub(super) fn end(&self) -> usize {
        self.end as usize
    }

    /// Whether the token is this character.
    pub(super) fn is(&self, character: u8) -> bool {
        self.character == character
    }
}

/// A dedent to a column where no block begins.
#[derive(Debug)]
pub(super) struct BadIndent;

/// A string that goes on in the next line.
#[derive(Debug, Clone, Copy)]
struct OpenString {
    quote: u8,
    triple: bool,
}

/// Where the tokenizer stands between two lines.
#[derive(Debug, Clone)]
pub(super) struct Tokenizer {
    pub(super) brackets: isize,
    pub(super) indents: Vec<usize>,
    string: Option<OpenString>,
    continued: bool,
    nesting: Nesting,
    pub(super) max_brackets: usize,
    pub(super) max_indents: usize,
}

impl Tokenizer {
    pub(super) fn new() -> Self {
        Self {
            brackets: 0,
            indents: vec![0],
            string: None,
            continued: false,
            nesting: Nesting::default(),
            max_brackets: 0,
            max_indents: 0,
        }
    }

    /// Whether the next line begins a statement.
    pub(super) fn between_statements(&self) -> bool {
        self.brackets == 0 && self.string.is_none() && !self.continued
    }

    /// Forgets an unfinished statement. Indentation stays: what replaces the statement has the same.
    pub(super) fn restart_statement(&mut self) {
        self.brackets = 0;
        self.string = None;
        self.continued = false;
        self.nesting.end_statement();
    }

    /// An upper bound for the depth of the syntax tree.
    pub(super) fn max_nesting(&self) -> usize {
        self.nesting.max + self.max_brackets + self.max_indents
    }

    /// Appends the tokens of a line, which ends in `\n`.
    pub(super) fn line(
        &mut self,
        text: &str,
        number: usize,
        tokens: &mut Vec<Token>,
    ) -> Result<(), BadIndent> {
        let bytes = text.as_bytes();
        let mut at = 0;
        let mut push = |kind, start, end| {
            tokens.push(Token {
                kind,
                character: if end - start == 1 { bytes[start] } else { 0 },
                line: narrow(number),
                start: narrow(start),
                end: narrow(end),
            });
        };
        if let Some(open) = self.string {
            match close_string(bytes, 0, open) {
                Close::At(end) => {
                    self.nesting.string(&bytes[..end]);
                    self.string = None;
                    push(Kind::Literal, 0, end);
                    at = end;
                }
                Close::NextLine => {
                    self.nesting.string(bytes);
                    return Ok(());
                }
                Close::Never => {
                    self.nesting.string(bytes);
                    self.string = None;
                    push(Kind::Error, 0, bytes.len());
                    return Ok(());
                }
            }
        } else if self.brackets == 0 && !self.continued {
            let (column, start) = indentation(bytes);
            at = start;
            match bytes.get(at) {
                None => return Ok(()),
                Some(b'\n') => {
                    push(Kind::Nl, at, at + 1);
                    return Ok(());
                }
                Some(b'#') => {
                    push(Kind::Comment, at, bytes.len() - 1);
                    push(Kind::Nl, bytes.len() - 1, bytes.len());
                    return Ok(());
                }
                Some(_) => {}
            }
            let current = self.indents.last().copied().unwrap_or(0);
            if column > current {
                self.indents.push(column);
                self.max_indents = self.max_indents.max(self.indents.len() - 1);
                push(Kind::Indent, 0, at);
            }
            while column < self.indents.last().copied().unwrap_or(0) {
                if !self.indents.contains(&column) {
                    return Err(BadIndent);
                }
                self.indents.pop();
                push(Kind::Dedent, at, at);
            }
        } else {
            self.continued = false;
        }

        while at < bytes.len() {
            let byte = bytes[at];
            let start = at;
            match byte {
                b' ' | b'\t' | b'\x0c' => at += 1,
                b'\n' => {
                    at += 1;
                    if self.brackets > 0 {
                        push(Kind::Nl, start, at);
                    } else {
                        push(Kind::Newline, start, at);
                        self.nesting.end_statement();
                    }
                }
                b'#' => {
                    at = bytes.len() - 1;
                    push(Kind::Comment, start, at);
                }
                b'\\' if bytes.get(at + 1) == Some(&b'\n') => {
                    self.continued = true;
                    at += 2;
                }
                b'0'..=b'9' => {
                    at = word_end(text, at);
                    push(Kind::Literal, start, at);
                }
                _ => {
                    if let Some((body, open)) = string_start(bytes, at) {
                        self.nesting.string_start(&bytes[at..body]);
                        match close_string(bytes, body, open) {
                            Close::At(end) => {
                                self.nesting.string(&bytes[body..end]);
                                push(Kind::Literal, start, end);
                                at = end;
                                continue;
                            }
                            Close::NextLine => {
                                self.nesting.string(&bytes[body..]);
                                self.string = Some(open);
                                return Ok(());
                            }
                            Close::Never => {
                                // The prefix is a name of its own; the quote alone is the error.
                                let quote = body - 1;
                                if quote > start {
                                    push(Kind::Name, start, quote);
                                }
                                push(Kind::Error, quote, body);
                                at = body;
                                continue;
                            }
                        }
                    }
                    let end = word_end(text, at);
                    if end > at {
                        self.nesting.name(&text[start..end]);
                        push(Kind::Name, start, end);
                        at = end;
                        continue;
                    }
                    if !byte.is_ascii() || !byte.is_ascii_punctuation() || b"!?$`\\".contains(&byte)
                    {
                        if text[at..].starts_with("!=") {
                            at += 2;
                            push(Kind::Op, start, at);
                        } else {
                            at += text[at..].chars().next().map_or(1, char::len_utf8);
                            push(Kind::Error, start, at);
                        }
                        continue;
                    }
                    at += operator_length(&bytes[at..]);
                    match byte {
                        b'(' | b'[' | b'{' => {
                            self.brackets += 1;
                            let depth = usize::try_from(self.brackets).unwrap_or(0);
                            self.max_brackets = self.max_brackets.max(depth);
                            self.nesting.open();
                        }
                        b')' | b']' | b'}' => {
                            self.brackets -= 1;
                            self.nesting.close();
                        }
                        b',' => self.nesting.comma(),
                        _ => self.nesting.operator(),
                    }
                    push(Kind::Op, start, at);
                }
            }
        }
        Ok(())
    }
}

/// Places fit: no code larger than [`super::MAX_CODE`] comes here.
fn narrow(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// The column of the first character, a tab reaching to the next multiple of eight, and its place.
fn indentation(bytes: &[u8]) -> (usize, usize) {
    let mut column = 0;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b' ' => column += 1,
            b'\t' => column = (column / 8 + 1) * 8,
            b'\x0c' => column = 0,
            _ => return (column, at),
        }
    }
    (column, bytes.len())
}

fn word_end(text: &str, at: usize) -> usize {
    let bytes = text.as_bytes();
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let end = at + bytes[at..].iter().take_while(|byte| is_word(byte)).count();
    if bytes.get(end).is_none_or(u8::is_ascii) {
        return end;
    }
    text[end..]
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .map_or(text.len(), |length| end + length)
}

/// Where the body of a string literal begins that starts here, prefix included.
fn string_start(bytes: &[u8], at: usize) -> Option<(usize, OpenString)> {
    let prefix = bytes[at..]
        .iter()
        .take(3)
        .take_while(|byte| matches!(byte.to_ascii_lowercase(), b'r' | b'b' | b'u' | b'f' | b't'))
        .count();
    let known = match &bytes[at..at + prefix] {
        [] | [_] => true,
        [a, b] => {
            let (a, b) = (a.to_ascii_lowercase(), b.to_ascii_lowercase());
            (a == b'r') != (b == b'r') && a != b'u' && b != b'u'
        }
        _ => false,
    };
    let quote = *bytes.get(at + prefix)?;
    if !known || (quote != b'"' && quote != b'\'') {
        return None;
    }
    let body = at + prefix + 1;
    let triple = bytes.get(body) == Some(&quote) && bytes.get(body + 1) == Some(&quote);
    Some((
        if triple { body + 2 } else { body },
        OpenString { quote, triple },
    ))
}

enum Close {
    At(usize),
    NextLine,
    Never,
}

/// Where a string ends, from inside it.
fn close_string(bytes: &[u8], mut at: usize, open: OpenString) -> Close {
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => {
                at += 2;
                if !open.triple && at == bytes.len() {
                    return Close::NextLine;
                }
            }
            b'\n' if !open.triple => return Close::Never,
            _ if byte == open.quote && !open.triple => return Close::At(at + 1),
            _ if byte == open.quote
                && bytes.get(at + 1) == Some(&byte)
                && bytes.get(at + 2) == Some(&byte) =>
            {
                return Close::At(at + 3);
            }
            _ => at += 1,
        }
    }
    if open.triple {
        Close::NextLine
    } else {
        Close::Never
    }
}

fn operator_length(bytes: &[u8]) -> usize {
    match bytes {
        [b'.', b'.', b'.', ..]
        | [b'*', b'*', b'=', ..]
        | [b'/', b'/', b'=', ..]
        | [b'>', b'>', b'=', ..]
        | [b'<', b'<', b'=', ..] => 3,
        [b'*', b'*', ..]
        | [b'/', b'/', ..]
        | [b'>', b'>', ..]
        | [b'<', b'<', ..]
        | [b'-', b'>', ..] => 2,
        [
            b'+' | b'-' | b'*' | b'/' | b'%' | b'@' | b'&' | b'|' | b'^' | b'=' | b'<' | b'>'
            | b':',
            b'=',
            ..,
        ] => 2,
        _ => 1,
    }
}

/// An estimate, from above, of how deep the syntax tree of a statement can be: chains of operators nest, commas end a chain.
#[derive(Debug, Clone, Default)]
struct Nesting {
    /// For each open bracket: the chain so far, and how much of it a comma does not end (lambdas).
    levels: Vec<(usize, usize)>,
    chain: usize,
    lambdas: usize,
    /// The sum over all levels.
    total: usize,
    /// Punctuation inside strings: the code inside f-strings is not tokenised here.
    in_strings: usize,
    has_fields: bool,
    /// The largest total of this statement, and of the statements before it.
    highest: usize,
    max: usize,
}

impl Nesting {
    fn operator(&mut self) {
        self.chain += 1;
        self.total += 1;
        self.highest = self.highest.max(self.total);
    }

    fn name(&mut self, name: &str) {
        match name {
            "not" | "await" | "if" | "else" | "and" | "or" | "in" | "is" | "yield" => {
                self.operator();
            }
            "lambda" => {
                self.operator();
                self.lambdas += 1;
            }
            _ => {}
        }
    }

    fn comma(&mut self) {
        self.total -= self.chain - self.lambdas;
        self.chain = self.lambdas;
    }

    fn open(&mut self) {
        self.operator();
        self.levels.push((self.chain, self.lambdas));
        (self.chain, self.lambdas) = (0, 0);
    }

    fn close(&mut self) {
        self.total -= self.chain;
        (self.chain, self.lambdas) = self.levels.pop().unwrap_or_default();
        if self.levels.is_empty() {
            self.total = self.chain;
        }
    }

    fn string_start(&mut self, opening: &[u8]) {
        self.has_fields |= opening.iter().any(|byte| b"fFtT".contains(byte));
    }

    fn string(&mut self, text: &[u8]) {
        self.in_strings += text
            .iter()
            .filter(|byte| !byte.is_ascii_alphanumeric())
            .count();
    }

    fn end_statement(&mut self) {
        let in_strings = if self.has_fields { self.in_strings } else { 0 };
        let max = self.max.max(self.highest + in_strings);
        let mut levels = std::mem::take(&mut self.levels);
        levels.clear();
        *self = Self {
            levels,
            max,
            ..Self::default()
        };
    }
}
