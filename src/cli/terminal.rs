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

/// Tells on standard error why a command failed.
pub(crate) fn report(error: &Error) {
    let label = paint("error:", Style::Failure, &io::stderr());
    // Standard error may be closed; there is nowhere else to say so.
    let _ = writeln!(io::stderr(), "{label} {}", described(error));
}

/// The error, then what caused it, then what can be done about it, one line each.
fn described(error: &Error) -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut hints = Vec::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        let mut said = cause.lines();
        let what = said.next().unwrap_or_default();
        hints.extend(said.map(str::to_owned));
        if lines.is_empty() {
            lines.push(what.to_owned());
        } else if !lines.iter().any(|line| line.contains(what)) {
            // Some errors tell their cause in their own words already.
            lines.push(format!("  caused by: {what}"));
        }
    }
    lines.extend(hints);
    lines.join("\n")
}

/// Tells on standard error what was not done.
pub(crate) fn warn(message: &str) {
    let label = paint("warning:", Style::Warning, &io::stderr());
    let _ = writeln!(io::stderr(), "{label} {message}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_comes_last_and_a_cause_once() {
        let cause = io::Error::other("no space");
        let error = Error::new(cause)
            .context("x cannot be written: no space")
            .context("The log cannot be kept\nName another place");
        assert_eq!(
            described(&error),
            "The log cannot be kept\n  caused by: x cannot be written: no space\nName another place"
        );
    }
}
