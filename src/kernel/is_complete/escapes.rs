//! IPython's special syntax, replaced by calls in one pass over the cell, and what the last logical line looks like.
//!
//! IPython replaces the first special syntax it finds and tokenises all again, until nothing changes. What comes before a place
//! does not depend on what follows it, so one pass that tokenises a replaced statement again gives the same.

use std::borrow::Cow;

use super::tokens::{Kind, Token, Tokenizer};

/// A call stands for every replacement: what it calls does not matter here.
const CALL: &str = "get_ipython()";

/// A cell after the replacements.
#[derive(Debug)]
pub(super) struct Cell {
    /// Plain Python.
    pub(super) code: String,
    /// The last line of it.
    pub(super) last_line: String,
    /// Where the newline of the last statement stands in `code`.
    pub(super) last_newline: usize,
    /// Whether the last statement ends in a colon.
    pub(super) opens_block: bool,
    /// Whether a block is open at the end.
    pub(super) in_block: bool,
    /// How it ends.
    pub(super) end: End,
    pub(super) nesting: usize,
    pub(super) max_brackets: usize,
    pub(super) max_indents: usize,
}

/// How the tokens of a cell end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// At the end of a statement.
    Closed,
    /// Inside brackets or a string.
    Open,
    /// With the last line opening a block at this column.
    Colon { column: usize },
    /// A closing bracket has no opening one.
    UnmatchedCloser,
    /// The tokenizer gave up.
    BadIndent,
}

/// Replaces special syntax. The lines end in `\n`.
pub(super) fn replace(lines: Vec<&str>) -> Cell {
    let length = lines.iter().map(|line| line.len()).sum();
    let mut pass = Pass {
        tokenizer: Tokenizer::new(),
        to_read: lines.into_iter().rev().map(Cow::Borrowed).collect(),
        code: String::with_capacity(length),
        last_line_at: 0,
        last_newline: 0,
        opens_block: false,
        last_group: Group::default(),
        replacing: true,
    };
    let end = pass.run();
    Cell {
        last_line: pass.code[pass.last_line_at..].to_owned(),
        in_block: pass.tokenizer.indents.len() > 1,
        nesting: pass.tokenizer.max_nesting(),
        max_brackets: pass.tokenizer.max_brackets,
        max_indents: pass.tokenizer.max_indents,
        code: pass.code,
        last_newline: pass.last_newline,
        opens_block: pass.opens_block,
        end,
    }
}

/// The lines of one statement (or one blank or comment line) and their tokens.
#[derive(Debug, Default)]
struct Group<'a> {
    lines: Vec<Cow<'a, str>>,
    tokens: Vec<Token>,
}

impl Group<'_> {
    fn clear(&mut self) {
        self.lines.clear();
        self.tokens.clear();
    }

    /// The first token that is not a change of indentation.
    fn first(&self) -> Option<&Token> {
        self.tokens
            .iter()
            .find(|token| !matches!(token.kind, Kind::Indent | Kind::Dedent))
    }
}

struct Pass<'a> {
    tokenizer: Tokenizer,
    /// The lines to come, the next one last.
    to_read: Vec<Cow<'a, str>>,
    code: String,
    last_line_at: usize,
    last_newline: usize,
    opens_block: bool,
    last_group: Group<'a>,
    /// False after a replacement failed: IPython stops there, too.
    replacing: bool,
}

impl<'a> Pass<'a> {
    fn run(&mut self) -> End {
        let mut group = Group::default();
        while !self.to_read.is_empty() {
            group.clear();
            while let Some(line) = self.to_read.pop() {
                let number = group.lines.len();
                let scanned = self.tokenizer.line(&line, number, &mut group.tokens);
                group.lines.push(line);
                if scanned.is_err() {
                    self.take(&mut group);
                    return End::BadIndent;
                }
                if (number == 0 && self.starts_special(&group)) || self.is_finished(&group) {
                    break;
                }
            }
            if let Some(lines) = self.replacement(&group) {
                self.to_read.extend(lines.into_iter().rev());
                self.tokenizer.restart_statement();
                continue;
            }
            self.take(&mut group);
            if self.tokenizer.brackets < 0 {
                return End::UnmatchedCloser;
            }
        }
        self.end()
    }

    /// Whether a line end closed the group.
    fn is_finished(&self, group: &Group) -> bool {
        match group.tokens.last().map(|token| token.kind) {
            Some(Kind::Newline) => true,
            Some(Kind::Nl) => self.tokenizer.brackets <= 0,
            _ => false,
        }
    }

    fn end(&self) -> End {
        if !self.tokenizer.between_statements() {
            return End::Open;
        }
        let tokens = &self.last_group.tokens;
        let Some(last) = tokens
            .iter()
            .rev()
            .find(|token| !matches!(token.kind, Kind::Newline | Kind::Comment))
        else {
            return End::Open;
        };
        if !last.is(b':') {
            return End::Closed;
        }
        let column = self.last_group.first().map_or(0, |token| {
            self.last_group
                .lines
                .get(token.line())
                .and_then(|line| line.get(..token.start()))
                .map_or(0, |before| before.chars().count())
        });
        End::Colon { column }
    }

    /// Adds a finished group to the code.
    fn take(&mut self, group: &mut Group<'a>) {
        for line in &group.lines {
            self.last_line_at = self.code.len();
            self.code.push_str(line);
        }
        let mut ends = group.tokens.iter().rev();
        match ends.next().map(|token| token.kind) {
            Some(Kind::Newline) => {
                self.last_newline = self.code.len() - 1;
                self.opens_block = ends
                    .find(|token| token.kind != Kind::Comment)
                    .is_some_and(|token| token.is(b':'));
            }
            Some(Kind::Nl) => {}
            _ => self.last_newline = self.code.len(),
        }
        std::mem::swap(&mut self.last_group, group);
    }

    /// Whether the first line alone shows that the group will be replaced.
    fn starts_special(&self, group: &Group) -> bool {
        self.replacing && (starts_with_escape(group) || special_assignment(group).is_some())
    }

    /// The lines that stand for this group, if it has special syntax. Reads on where a backslash continues the syntax.
    fn replacement(&mut self, group: &Group<'a>) -> Option<Vec<Cow<'a, str>>> {
        if !self.replacing {
            return None;
        }
        let first = *group.first()?;
        if starts_with_escape(group) {
            return Some(self.replace_escape(group, first));
        }
        if asks_for_help(group) {
            if let Some(lines) = replace_help(group, first) {
                return Some(lines);
            }
            if special_assignment(group).is_none() {
                self.replacing = false;
                return None;
            }
        }
        let start = special_assignment(group)?;
        Some(self.replace_from(group, start, CALL))
    }

    /// `%magic`, `!command`, `?name`, `,call`, `;call` or `/call` at the start of a line.
    fn replace_escape(&mut self, group: &Group<'a>, first: Token) -> Vec<Cow<'a, str>> {
        let line = group.lines.get(first.line()).map_or("", |line| &**line);
        let rest = line.get(first.end()..).unwrap_or("").trim_end();
        let (name, arguments) = rest.split_once(' ').unwrap_or((rest, ""));
        let call = match line.get(first.start()..first.end()).unwrap_or("") {
            "," => {
                let words: Vec<&str> = arguments.split_whitespace().collect();
                format!("{name}(\"{}\")", words.join("\", \""))
            }
            ";" => format!("{name}(\"{arguments}\")"),
            "/" if name.is_empty() => {
                // IPython refuses it, and with it every later replacement.
                self.replacing = false;
                return group.lines.clone();
            }
            "/" => {
                let words: Vec<&str> = arguments.split_whitespace().collect();
                format!("{name}({})", words.join(", "))
            }
            _ => CALL.to_owned(),
        };
        self.replace_from(group, first, &call)
    }

    /// The group's lines with everything from the token on, and the lines that backslashes join to it, replaced by the call.
    fn replace_from(&mut self, group: &Group<'a>, start: Token, call: &str) -> Vec<Cow<'a, str>> {
        let mut rest = group.lines.iter().skip(start.line());
        let first = rest.next().map_or("", |line| &**line);
        let mut lines = group.lines[..start.line().min(group.lines.len())].to_vec();
        let before = first.get(..start.start()).unwrap_or("");
        lines.push(Cow::Owned(format!("{before}{call}\n")));

        let mut continues = first.ends_with("\\\n");
        let mut after: Vec<Cow<'a, str>> = Vec::new();
        for line in rest {
            if continues {
                continues = line.ends_with("\\\n");
            } else {
                after.push(line.clone());
            }
        }
        while continues && after.is_empty() {
            let Some(line) = self.to_read.pop() else {
                break;
            };
            continues = line.ends_with("\\\n");
        }
        lines.extend(after);
        lines
    }
}

/// Whether the group begins with one of IPython's escape characters.
fn starts_with_escape(group: &Group) -> bool {
    group
        .first()
        .is_some_and(|token| b"!?%,;/".iter().any(|escape| token.is(*escape)))
}

fn asks_for_help(group: &Group) -> bool {
    let [.., _, mark, end] = group.tokens.as_slice() else {
        return false;
    };
    end.kind == Kind::Newline && mark.is(b'?')
}

/// `name?` or `name??` at the end of a statement.
fn replace_help<'a>(group: &Group<'a>, first: Token) -> Option<Vec<Cow<'a, str>>> {
    let text = group.lines.concat();
    let content = text.strip_suffix('\n').unwrap_or(&text);
    let content = content.strip_suffix('?')?;
    if !names_something(content.strip_suffix('?').unwrap_or(content)) {
        return None;
    }
    let indent = group.lines.first()?.get(..first.start())?;
    Some(vec![Cow::Owned(format!("{indent}{CALL}\n"))])
}

/// Whether the text ends in a dotted name, perhaps with wildcards or literal indices, as IPython's help syntax takes it.
fn names_something(text: &str) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '*';
    if let Some(rest) = text.strip_suffix(']') {
        let digits = rest.trim_end_matches(|c: char| c.is_ascii_digit());
        let Some(name) = digits
            .strip_suffix("[-")
            .or_else(|| digits.strip_suffix('['))
        else {
            return false;
        };
        return digits.len() < rest.len() && names_something(name);
    }
    let word = &text[text.trim_end_matches(is_word).len()..];
    word.chars().any(|c| !c.is_ascii_digit())
}

/// Where `%magic` or `!command` begins that is assigned (`a = %magic`).
fn special_assignment(group: &Group) -> Option<Token> {
    let mut depth = 0_usize;
    let assign = group.tokens.iter().position(|token| {
        match token.kind {
            Kind::Op if token.is(b'=') => return depth == 0,
            Kind::Op if token.is(b'(') || token.is(b'[') || token.is(b'{') => depth += 1,
            Kind::Op if token.is(b')') || token.is(b']') || token.is(b'}') => {
                depth = depth.saturating_sub(1);
            }
            _ => {}
        }
        false
    })?;
    let value = *group.tokens.get(assign + 1)?;
    let is_magic = value.is(b'%')
        && group
            .tokens
            .get(assign + 2)
            .is_some_and(|token| token.kind == Kind::Name);
    let line = group.lines.get(group.tokens.get(assign)?.line())?;
    let is_command = value.is(b'!') && !line.trim_start().starts_with('=');
    (is_magic || is_command).then_some(value)
}
