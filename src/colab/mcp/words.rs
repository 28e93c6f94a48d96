//! Reading causes out of texts, and making texts fit to be shown.
//!
//! Invariant: nothing here invents a cause. A code is taken from a text only where the text spells its canonical name, or names
//! a code in one of the ways in which gRPC and HTTP libraries print theirs.

use super::errors::Code;

/// The code that a text names anywhere.
pub(crate) fn code_in(text: &str) -> Option<Code> {
    leading_code(text)
        .or_else(|| word_spans(text).find_map(|(_, word)| Code::from_name(word)))
        .or_else(|| {
            after(text, "code = ")
                .and_then(first_word)
                .and_then(Code::from_camel)
        })
        .or_else(|| {
            // Single-word names are everyday words in camel case; only the unmistakable ones count.
            word_spans(text)
                .filter(|(_, word)| word.chars().filter(char::is_ascii_uppercase).count() > 1)
                .find_map(|(_, word)| Code::from_camel(word))
        })
        .or_else(|| http_number(text).map(Code::from_http))
}

/// The code that a text begins with, as in `NOT_FOUND: …` or `[NOT_FOUND] …`, or a cancellation in JSON-RPC libraries' words.
pub(crate) fn leading_code(text: &str) -> Option<Code> {
    let text = text.trim_start().trim_start_matches('[');
    if let Some(code) = first_word(text).and_then(Code::from_name) {
        return Some(code);
    }
    let lower = text.get(..17).unwrap_or(text).to_ascii_lowercase();
    (lower.starts_with("request cancelled") || lower.starts_with("request canceled"))
        .then_some(Code::Cancelled)
}

/// A message without the code that it begins with.
pub(crate) fn without_code(message: &str, code: Code) -> &str {
    let rest = message.trim();
    let Some(rest) = rest
        .strip_prefix('[')
        .unwrap_or(rest)
        .strip_prefix(code.name())
    else {
        return message;
    };
    let rest = rest.trim_start_matches([']', ':', ' ', '-']);
    if rest.is_empty() { message } else { rest }
}

/// Reasons of `FAILED_PRECONDITION` that the vendor's own client looks for.
const PRECONDITIONS: [&str; 3] = [
    "TOO_MANY_ACTIVE_RUNTIMES",
    "DENYLISTED",
    "QUOTA_EXCEEDED_USAGE_TIME",
];

/// Whether a reason goes with `FAILED_PRECONDITION`.
pub(crate) fn is_precondition(reason: &str) -> bool {
    PRECONDITIONS.contains(&reason)
}

/// `reason: SOME_REASON`, or one of the reasons that the vendor's own client looks for.
pub(crate) fn reason_in(text: &str) -> Option<String> {
    let named = ["reason: ", "reason=", "reason = "]
        .into_iter()
        .filter_map(|key| after(text, key))
        .filter_map(|rest| first_word(rest.trim_start_matches(['"', '\''])))
        .find(|word| {
            word.chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
        });
    named
        .or_else(|| {
            word_spans(text)
                .map(|(_, word)| word)
                .find(|word| is_precondition(word))
        })
        .map(str::to_owned)
}

/// An HTTP status that a text names as one.
fn http_number(text: &str) -> Option<u16> {
    [
        "HTTP ",
        "HttpError ",
        "status code ",
        "status: ",
        "Error code: ",
    ]
    .into_iter()
    .filter_map(|key| after(text, key))
    .chain([text])
    .filter_map(first_word)
    .filter_map(|word| word.parse().ok())
    .find(|number| (400..600).contains(number))
}

/// A text fit for one line: a page's title or its text instead of its markup.
pub(crate) fn readable(text: &str) -> String {
    let text = text.trim();
    let lower = text.to_ascii_lowercase();
    let is_page =
        lower.starts_with("<!doctype") || lower.starts_with("<html") || lower.contains("</html>");
    if !is_page {
        return text.to_owned();
    }
    let between = |open: &str, close: &str| {
        let start = lower.find(open)? + open.len();
        let end = start + lower.get(start..)?.find(close)?;
        let found = text.get(start..end)?.trim();
        (!found.is_empty()).then(|| squeeze(found))
    };
    between("<title>", "</title>")
        .or_else(|| between("<h1>", "</h1>"))
        .unwrap_or_default()
}

/// White space made single.
fn squeeze(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// At most so many characters.
pub(crate) fn cut(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The text with whatever looks like a credential masked: OAuth access tokens, JSON web tokens, `Bearer` values.
pub(crate) fn mask_secrets(text: &str) -> String {
    let is_secret_char =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '~' | '+' | '/' | '=');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut masks_next = false;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_secret_char(c)).unwrap_or(rest.len());
        if end == 0 {
            let Some(c) = rest.chars().next() else { break };
            out.push(c);
            if !c.is_whitespace() {
                masks_next = false;
            }
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let word = &rest[..end];
        let value = word
            .rsplit('=')
            .find(|part| !part.is_empty())
            .unwrap_or(word);
        let names_a_token = word.to_ascii_lowercase().contains("token=");
        let is_token = value.starts_with("ya29.") || (value.starts_with("eyJ") && value.len() > 40);
        if masks_next {
            out.push_str("***");
        } else if is_token || names_a_token {
            let kept = word.find(value).unwrap_or(0);
            out.push_str(&word[..kept]);
            out.push_str("***");
        } else {
            out.push_str(word);
        }
        masks_next = word.eq_ignore_ascii_case("bearer");
        rest = &rest[end..];
    }
    out
}

fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split_once(key).map(|(_, rest)| rest)
}

fn first_word(text: &str) -> Option<&str> {
    let end = text
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or(text.len());
    (end > 0).then(|| &text[..end])
}

fn word_spans(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| !word.is_empty())
        .enumerate()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyday_words_are_no_codes() {
        for text in [
            "Unknown tool: x",
            "Internal pipes",
            "the unknown",
            "waited 500 s",
            "not found",
        ] {
            assert_eq!(code_in(text), None, "{text}");
        }
    }

    #[test]
    fn library_forms_are_codes() {
        for (text, code) in [
            ("google.api_core.exceptions.NotFound: 404 x", Code::NotFound),
            ("HTTP 429 too many", Code::ResourceExhausted),
            ("404 Not Found", Code::NotFound),
            ("failed with status code 503", Code::Unavailable),
            ("rpc error: code = Unavailable desc = x", Code::Unavailable),
        ] {
            assert_eq!(code_in(text), Some(code), "{text}");
        }
    }

    #[test]
    fn masks_hide_tokens_and_leave_words() {
        let jwt = format!("eyJ{}", "a".repeat(60));
        assert_eq!(mask_secrets("a Bearer abc.def b"), "a Bearer *** b");
        assert_eq!(mask_secrets(&format!("x {jwt} y")), "x *** y");
        assert_eq!(
            mask_secrets("https://h/?access_token=abc&x=1"),
            "https://h/?access_token=***&x=1"
        );
        assert_eq!(mask_secrets("ya29.abc"), "***");
        let plain = "nothing to hide: runtimes/r1 (a/b.c) – ünï";
        assert_eq!(mask_secrets(plain), plain);
    }
}
