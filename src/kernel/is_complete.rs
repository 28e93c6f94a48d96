//! Whether a piece of code is ready to run, as IPython's `TransformerManager.check_complete` answers it, computed locally.
//!
//! Consoles ask at every Enter and give up after 0.1 s (qtconsole), so no round trip is made. The steps are IPython's: tidy the
//! lines, replace special syntax (`%magic`, `!command`, `name?`) by calls, look at the last logical line, then parse. Invariants:
//!
//! * No input makes it panic or overflow the stack: nesting is estimated before anything recursive runs, and deep code is parsed
//!   on a thread with a stack to match.
//! * Time is linear in the code (IPython's own loop tokenises again after each replacement), and a megabyte takes less than 50 ms.
//!
//! Deliberate differences from IPython 9 on Python 3.11, each pinned in the tests:
//!
//! * A closing bracket without its opening one is invalid at once; IPython asks for more, for ever, when it is not on the only line.
//! * Code that runs with a `SyntaxWarning` (`x is 1`) is complete; IPython calls it invalid.
//! * Newer syntax than Python 3.11's is accepted, because the remote Python is what counts.
//! * Doctest prompts are stripped as IPython 7 (Colab's) does it.
//! * Code above [`MAX_PARSED`] is judged by its tokens alone: a mistake in it shows when it runs.
//! * Code nested too deep to be judged, or larger than [`MAX_CODE`], is unknown; IPython raises or takes minutes.

mod cleanup;
mod escapes;
mod placement;
mod tokens;

use ruff_python_parser::{Mode, ParseOptions, parse_unchecked};
use ruff_text_size::Ranged;

use self::escapes::{Cell, End};

/// Code larger than this is not judged.
pub const MAX_CODE: usize = 16 * 1024 * 1024;

/// Code larger than this is not parsed, for the sake of time.
pub const MAX_PARSED: usize = 256 * 1024;

/// What can be parsed on the caller's stack, and what can be parsed at all, in levels of nesting.
const SHALLOW: usize = 100;
const DEEPEST: usize = 40_000;
/// Measured need in a debug build: below 3 KiB a level.
const STACK_PER_LEVEL: usize = 6 * 1024;

/// CPython's tokenizer refuses more (`MAXLEVEL`, `MAXINDENT` of its `tokenizer.h`).
const MAX_BRACKETS: usize = 200;
const MAX_INDENTS: usize = 100;

/// The answer of an `is_complete_reply`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completeness {
    /// Ready to run.
    Complete,
    /// More is to come.
    Incomplete {
        /// What the next line should start with.
        indent: String,
    },
    /// No continuation can make it valid.
    Invalid,
    /// Cannot be judged.
    Unknown,
}

impl Completeness {
    /// The `status` field of the reply.
    pub fn status(&self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Incomplete { .. } => "incomplete",
            Self::Invalid => "invalid",
            Self::Unknown => "unknown",
        }
    }

    fn incomplete(spaces: usize) -> Self {
        Self::Incomplete {
            indent: " ".repeat(spaces),
        }
    }
}

/// Judges a cell.
pub fn is_complete(code: &str) -> Completeness {
    if code.len() > MAX_CODE {
        return Completeness::Unknown;
    }
    let code = cleanup::unix_lines(code);
    let ends_with_newline = cleanup::ends_with_newline(&code);
    let code = if ends_with_newline {
        code
    } else {
        (code.into_owned() + "\n").into()
    };

    let lines = cleanup::split_lines(&code);
    let last_written = lines.iter().rev().find(|line| !line.trim().is_empty());
    if last_written.is_some_and(|line| line.trim_matches('\n').ends_with('\\')) {
        return Completeness::incomplete(last_indent(lines.last()));
    }

    let lines = cleanup::tidy(&lines);
    if lines.first().is_some_and(|line| line.starts_with("%%")) {
        // A cell magic's body is opaque: only a blank line ends it.
        return match lines.last() {
            Some(last) if !last.trim().is_empty() => {
                Completeness::incomplete(last_indent(Some(last)))
            }
            _ => Completeness::Complete,
        };
    }

    let cell = escapes::replace(lines);
    let indent = last_indent(Some(&cell.last_line));
    match cell.end {
        End::BadIndent | End::UnmatchedCloser => return Completeness::Invalid,
        End::Open => return Completeness::incomplete(indent),
        End::Colon { column } => return Completeness::incomplete(column + 4),
        End::Closed => {}
    }
    if cell.max_brackets > MAX_BRACKETS || cell.max_indents > MAX_INDENTS {
        return Completeness::Invalid;
    }
    match judge(&cell) {
        Verdict::Valid if cell.in_block && !ends_with_newline => Completeness::incomplete(indent),
        Verdict::Valid => Completeness::Complete,
        Verdict::EndsEarly => Completeness::incomplete(indent),
        Verdict::Wrong => Completeness::Invalid,
        Verdict::TooDeep => Completeness::Unknown,
    }
}

enum Verdict {
    Valid,
    /// The parser wanted more after the last line.
    EndsEarly,
    Wrong,
    TooDeep,
}

/// Parses on a stack that is large enough for what the code can nest.
fn judge(cell: &Cell) -> Verdict {
    if cell.code.len() > MAX_PARSED {
        return Verdict::Valid;
    }
    if cell.nesting <= SHALLOW {
        return parse(cell);
    }
    if cell.nesting > DEEPEST {
        return Verdict::TooDeep;
    }
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .stack_size((cell.nesting + SHALLOW) * STACK_PER_LEVEL + 1024 * 1024)
            .spawn_scoped(scope, || parse(cell))
            .ok()
            .and_then(|thread| thread.join().ok())
            .unwrap_or(Verdict::TooDeep)
    })
}

fn parse(cell: &Cell) -> Verdict {
    if cell.code.starts_with('\u{feff}') {
        return Verdict::Wrong; // A byte order mark means something in a file only.
    }
    let parsed = parse_unchecked(&cell.code, ParseOptions::from(Mode::Module));
    if let Some(error) = parsed.errors().iter().min_by_key(|error| error.start()) {
        // CPython says "incomplete input" when its parser stood at the end of the source; here that is an error behind the last
        // statement, or at the newline of a last line that opens a block.
        let at = usize::from(error.start());
        let wants_more = at > cell.last_newline || (cell.opens_block && at == cell.last_newline);
        return if wants_more {
            Verdict::EndsEarly
        } else {
            Verdict::Wrong
        };
    }
    if placement::is_valid(parsed.syntax()) {
        Verdict::Valid
    } else {
        Verdict::Wrong
    }
}

/// The indentation of a line in spaces, a tab being four, as IPython counts it.
fn last_indent(line: Option<&impl AsRef<str>>) -> usize {
    let Some(line) = line else { return 0 };
    line.as_ref()
        .bytes()
        .map_while(|byte| match byte {
            b' ' => Some(1),
            b'\t' => Some(4),
            _ => None,
        })
        .sum()
}

#[cfg(test)]
mod tests;
