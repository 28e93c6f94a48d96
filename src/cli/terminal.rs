//! What commands say on a terminal: sentence case, the hint on its own line, colour only where it is wanted.

use std::io::{self, IsTerminal, Write};

use anyhow::Error;

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    /// Something went wrong.
    Failure,
    /// Something to look at.
    Warning,
    /// A title.
    Strong,
    /// Beside the point.
    Faint,
}

impl Style {
    fn code(self) -> &'static str {
        match self {
            Self::Failure => "1;31",
            Self::Warning => "1;33",
            Self::Strong => "1",
            Self::Faint => "2",
        }
    }
}

/// The text in this style if the stream is a terminal and `NO_COLOR` (<https://no-color.org>) is not set.
pub(crate) fn paint(text: &str, style: Style, stream: &impl IsTerminal) -> String {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    if plain || !stream.is_terminal() {
        return text.to_owned();
    }
    format!("\x1b[{}m{text}\x1b[0m", style.code())
}

/// Tells on standard error why a command failed: the error, then what caused it, one line each.
pub(crate) fn report(error: &Error) {
    let mut text = String::new();
    for (depth, cause) in error.chain().enumerate() {
        if depth == 0 {
            text += &format!(
                "{} {cause}\n",
                paint("error:", Style::Failure, &io::stderr())
            );
        } else {
            text += &format!("  caused by: {cause}\n");
        }
    }
    // Standard error may be closed; there is nowhere else to say so.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Tells on standard error what was not done.
pub(crate) fn warn(message: &str) {
    let label = paint("warning:", Style::Warning, &io::stderr());
    let _ = writeln!(io::stderr(), "{label} {message}");
}
