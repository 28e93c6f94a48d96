use std::fmt::Write as _;
use std::time::Duration;

use super::*;

/// Runs it on a thread and fails when it takes longer.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(limit).expect("took too long")
}

/// Debug builds are some thirty times slower than the kernel.
const LIMIT: Duration = Duration::from_secs(30);

/// Each row: the code, and what `TransformerManager().check_complete` of IPython 9.18 on Python 3.11 answered.
#[test]
fn answers_as_ipython_does() {
    let rows: Vec<(String, String, usize)> =
        serde_json::from_str(include_str!("samples.json")).unwrap();
    assert!(rows.len() > 400);
    let mut wrong = String::new();
    for (code, status, indent) in &rows {
        let ours = is_complete(code);
        let width = match &ours {
            Completeness::Incomplete { indent } => indent.len(),
            _ => 0,
        };
        if ours.status() != status || width != *indent {
            writeln!(wrong, "{code:?}: IPython {status} {indent}, ours {ours:?}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

/// Where we answer otherwise on purpose: the code, IPython's answer, ours.
#[test]
fn differs_from_ipython_where_that_is_meant() {
    for (code, ipython, ours) in [
        // Asking for more would never end.
        ("a = 1\n)", "incomplete", "invalid"),
        ("a = 1\n)\n\n", "incomplete", "invalid"),
        // It runs, with a warning.
        ("x is 1", "invalid", "complete"),
        ("assert (x, 'message')", "invalid", "complete"),
        // The remote Python may be newer than 3.11.
        ("type Alias = int", "invalid", "complete"),
        ("def f[T](x: T): pass", "invalid", "complete"),
        ("f'{a['b']}'", "invalid", "complete"),
        ("try: pass\nexcept A, B: pass\n", "invalid", "complete"),
        // A doctest prompt without a blank is no prompt for IPython 7.
        (">>>x", "complete", "invalid"),
        // Rules of the compiler that need names to be resolved.
        ("__debug__ = 1", "invalid", "complete"),
    ] {
        assert_ne!(ipython, ours);
        assert_eq!(is_complete(code).status(), ours, "{code:?}");
    }
}

#[test]
fn a_megabyte_is_judged_in_time() {
    let statements = "x = [1, 2, 3]; y = f(x)[0] + 4\n".repeat(33_000);
    let one_list = format!("x = [\n{}]", "    1234567,\n".repeat(80_000));
    let magics = "a = !ls \"x\nfoo?\n%time (\n".repeat(40_000);
    for code in [statements, one_list, magics] {
        assert!(code.len() > 900_000);
        let answer = within(LIMIT, move || is_complete(&code));
        assert_eq!(answer, Completeness::Complete);
    }
}

#[test]
fn large_code_is_judged_by_its_tokens() {
    let lines = "x = 1\n".repeat(MAX_PARSED / 6 + 1);
    for (last, status) in [
        ("y", "complete"),
        ("if y:", "incomplete"),
        ("f(", "incomplete"),
        ("def f():\n    y", "incomplete"),
        ("def f():\n    y\n", "complete"),
        ("x)", "invalid"),
        ("if y:\n    a\n  b\n", "invalid"),
        ("!ls \"a", "complete"),
    ] {
        let code = lines.clone() + last;
        assert_eq!(
            within(LIMIT, move || is_complete(&code)).status(),
            status,
            "{last:?}"
        );
    }
}

#[test]
fn deep_code_neither_overflows_the_stack_nor_hangs() {
    let n = MAX_PARSED / 16;
    let deep = |opening: &str, middle: &str, closing: &str, n: usize| {
        format!("{}{middle}{}\n", opening.repeat(n), closing.repeat(n))
    };
    for code in [
        deep("(", "1", ")", n),
        deep("(", "1", "", n),
        deep("[", "", "]", n),
        deep("-", "1", "", n),
        deep("not ", "1", "", n),
        deep("lambda: ", "1", "", n),
        deep("lambda a, b: ", "1", "", n),
        deep("a.", "b", "", n),
        deep("a + ", "b", "", n),
        deep("a ** ", "b", "", n),
        deep("a if b else ", "c", "", n),
        deep("f", "", "()", n),
        deep("-", "1", "", DEEPEST - 1),
        deep("a.", "b", "", DEEPEST - 1),
        deep("f", "", "()", DEEPEST - 1),
        deep("f", "", "(1)[2]", n),
        deep("await ", "x", "", n),
        deep("f'{", "x", "}'", n),
        format!("f'{{{}1}}'\n", "-".repeat(n)),
        format!("f'''{{\n{}1}}'''\n", "-".repeat(n)),
        format!("f'{{f\"{{{}1}}\"}}'\n", "-".repeat(n)),
        format!("x = {}y\n", "x = ".repeat(n)),
        (0..600).fold(String::new(), |code, i| code + &" ".repeat(i) + "if x:\n")
            + &" ".repeat(600)
            + "pass\n",
        "if x: pass\n".to_owned() + &"elif y: pass\n".repeat(10_000),
    ] {
        within(LIMIT, move || is_complete(&code));
    }
}

#[test]
fn moderately_deep_code_is_still_judged() {
    let sum = "1 + ".repeat(5_000) + "1";
    assert_eq!(
        within(LIMIT, move || is_complete(&sum)),
        Completeness::Complete
    );
    let too_deep = "1 + ".repeat(DEEPEST + 1) + "1";
    assert_eq!(is_complete(&too_deep), Completeness::Unknown);
    let brackets = "(".repeat(250) + &")".repeat(250);
    assert_eq!(is_complete(&brackets), Completeness::Invalid);
}

#[test]
fn a_long_template_is_not_mistaken_for_deep_code() {
    let template = format!(
        "x = f\"\"\"{}{{y}}\"\"\"",
        "<p class='a'>&nbsp;</p>\n".repeat(1_000)
    );
    assert_eq!(
        within(LIMIT, move || is_complete(&template)),
        Completeness::Complete
    );
    let statements = "x = f'{a!r}: {b}'\n".repeat(10_000);
    assert_eq!(
        within(LIMIT, move || is_complete(&statements)),
        Completeness::Complete
    );
}

#[test]
fn too_much_code_is_unknown() {
    assert_eq!(
        is_complete(&" ".repeat(MAX_CODE + 1)),
        Completeness::Unknown
    );
}

#[test]
fn random_input_never_panics() {
    const PIECES: &[&str] = &[
        "(", ")", "[", "]", "{", "}", "\n", "\n\n", "\r\n", "\r", "\\", "\\\n", "\"", "'",
        "\"\"\"", "'''", "f'", "f\"{", "rb'", "t'", "!", "%", "%%", "?", "??", ",", ";", "/", ":",
        ":=", "=", "==", "!=", "@", "#", " ", "    ", "\t", "\u{c}", "\u{b}", "\0", "\u{feff}",
        "\u{2028}", "\u{85}", "é", "変", "😀", "€", "²", "x", "1", "0x", "1e", ".", "...", "->",
        "if ", "else", "def f", "class A", "lambda ", "return", "yield ", "await ", "async ",
        "for ", "in ", "match ", "case ", "try", "except", "import ", ">>> ", "... ", "In [1]: ",
        "   ...: ", "[nav] ", "$", "`", "*", "**", "\\N{", "_",
    ];
    let run = |seed: u64| {
        // xorshift64: the same strings in every run.
        let mut state = seed | 1;
        let mut next = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below as u64).unwrap()
        };
        for _ in 0..4_000 {
            let mut code = String::new();
            for _ in 0..next(24) {
                code.push_str(PIECES[next(PIECES.len())]);
            }
            is_complete(&code);
            let raw: String = (0..next(12))
                .filter_map(|_| char::from_u32(u32::try_from(next(0x3000)).unwrap()))
                .collect();
            is_complete(&raw);
        }
    };
    within(LIMIT, move || {
        (1..6).for_each(|seed| run(seed * 0x9E37_79B9))
    });
}

#[test]
fn carriage_returns_end_lines() {
    for code in ["if a:\r\n    b", "if a:\r    b"] {
        let expected = Completeness::Incomplete {
            indent: "    ".to_owned(),
        };
        assert_eq!(is_complete(code), expected);
    }
    assert_eq!(is_complete("if a:\r\n    b\r\n"), Completeness::Complete);
}
