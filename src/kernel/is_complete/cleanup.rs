//! What IPython does to the lines before it looks at them: empty lines at the top, common indentation and pasted prompts go.

use std::borrow::Cow;

/// Line ends as `\n`, the only one that the other steps know.
pub(super) fn unix_lines(code: &str) -> Cow<'_, str> {
    if code.contains('\r') {
        code.replace("\r\n", "\n").replace('\r', "\n").into()
    } else {
        code.into()
    }
}

/// Whether only blanks follow the last newline.
pub(super) fn ends_with_newline(code: &str) -> bool {
    code.trim_end_matches(|c: char| c != '\n' && c.is_whitespace())
        .ends_with('\n')
}

/// The lines with their ends.
pub(super) fn split_lines(code: &str) -> Vec<&str> {
    code.split_inclusive('\n').collect()
}

/// The lines without leading empty ones, common indentation and prompts. Never empty if the input is not.
pub(super) fn tidy<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let first = lines.iter().position(|line| !line.trim().is_empty());
    let mut lines = dedent(&lines[first.unwrap_or(0)..]);
    strip_prompts(&mut lines, classic_prompt, |line| {
        classic_prompt(line).is_some() && line.starts_with(">>>")
    });
    strip_prompts(&mut lines, ipython_prompt, |line| {
        ipython_prompt(line).is_some()
    });
    lines
}

/// Python's `textwrap.dedent`: blank lines are emptied and do not count.
fn dedent<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let blank = |line: &str| {
        line.bytes()
            .all(|byte| matches!(byte, b' ' | b'\t' | b'\n'))
    };
    let mut margin: Option<&str> = None;
    for line in lines.iter().filter(|line| !blank(line)) {
        if margin == Some("") {
            break;
        }
        let indent = &line[..line.len() - line.trim_start_matches([' ', '\t']).len()];
        margin = Some(match margin {
            None => indent,
            Some(margin) => common_prefix(margin, indent),
        });
    }
    let margin = margin.map_or(0, str::len);
    lines
        .iter()
        .map(|line| {
            if !blank(line) {
                &line[margin..]
            } else if line.ends_with('\n') {
                "\n"
            } else {
                ""
            }
        })
        .filter(|line| !line.is_empty())
        .collect()
}

fn common_prefix<'a>(a: &'a str, b: &str) -> &'a str {
    let same = a.bytes().zip(b.bytes()).take_while(|(x, y)| x == y).count();
    &a[..same]
}

/// Strips a prompt from every line if the first or the second has it.
fn strip_prompts(
    lines: &mut [&str],
    prompt: fn(&str) -> Option<usize>,
    is_first: fn(&str) -> bool,
) {
    let found = lines.first().is_some_and(|line| is_first(line))
        || lines.get(1).is_some_and(|line| prompt(line).is_some());
    if !found {
        return;
    }
    for line in lines {
        if let Some(length) = prompt(line) {
            *line = &line[length..];
        }
    }
}

/// The length of `>>> ` or `... ` at the start of a line.
fn classic_prompt(line: &str) -> Option<usize> {
    if !line.starts_with(">>>") && !line.starts_with("...") {
        return None;
    }
    match line.as_bytes().get(3) {
        Some(b' ') => Some(4),
        Some(b'\n') | None => Some(3),
        Some(_) => None,
    }
}

/// The length of `In [12]: ` (with vi's mode before it) or of `   ...: ` at the start of a line.
fn ipython_prompt(line: &str) -> Option<usize> {
    let mut rest = line;
    rest = ["[nav] ", "[ins] ", " "]
        .iter()
        .find_map(|mode| rest.strip_prefix(mode))
        .unwrap_or(rest);
    if let Some(number) = rest.strip_prefix("In [") {
        let after = number.trim_start_matches(|c: char| c.is_ascii_digit());
        if after.len() < number.len()
            && let Some(code) = after.strip_prefix("]: ")
        {
            return Some(line.len() - code.len());
        }
    }
    let dots = line.trim_start_matches(|c: char| c.is_whitespace() && c != '\n');
    let after = dots.trim_start_matches('.');
    if dots.len() - after.len() < 3 {
        return None;
    }
    let code = after.strip_prefix(':')?;
    Some(line.len() - code.strip_prefix(' ').unwrap_or(code).len())
}
