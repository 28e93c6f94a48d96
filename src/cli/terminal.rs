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
    if wants_colour(stream) {
        format!("\x1b[{}m{text}\x1b[0m", style.code())
    } else {
        text.to_owned()
    }
}

/// Whether the stream is a terminal whose user has not asked for plain text.
pub(crate) fn wants_colour(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
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
        } else if !text.contains(&cause.to_string()) {
            // Some errors tell their cause in their own words already.
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
