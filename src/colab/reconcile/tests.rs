//! Comparing what was published with results of many shapes.

use super::*;

const OUT: Option<StreamName> = Some(StreamName::Stdout);
const ERR: Option<StreamName> = Some(StreamName::Stderr);

fn record(pieces: &[(Option<StreamName>, &str)]) -> Record {
    let mut record = Record::default();
    for (stream, text) in pieces {
        record.push(&Chunk {
            stream: *stream,
            text: (*text).to_owned(),
        });
    }
    record
}

fn result(stdout: &str, stderr: &str) -> ExecuteCodeResult {
    ExecuteCodeResult {
        stdout: stdout.into(),
        stderr: stderr.into(),
        ..ExecuteCodeResult::default()
    }
}

fn truncated(stdout: &str, stderr: &str) -> ExecuteCodeResult {
    ExecuteCodeResult {
        output_truncated: true,
        ..result(stdout, stderr)
    }
}

fn missing(stdout: &str, stderr: &str, lost: bool) -> Missing {
    Missing {
        stdout: stdout.into(),
        stderr: stderr.into(),
        lost,
    }
}

#[test]
fn without_progress_the_result_is_all() {
    assert_eq!(
        record(&[]).missing(&result("a\n", "b\n"), false),
        missing("a\n", "b\n", false)
    );
}

#[test]
fn a_complete_record_leaves_nothing() {
    let published = record(&[(None, "a\n"), (None, "b\n")]);
    assert_eq!(
        published.missing(&result("a\nb\n", ""), false),
        Missing::default()
    );
}

#[test]
fn the_end_that_progress_missed_is_given() {
    let published = record(&[(OUT, "a\n"), (ERR, "w")]);
    assert_eq!(
        published.missing(&result("a\nb\n", "warn"), false),
        missing("b\n", "arn", false)
    );
}

#[test]
fn unnamed_stderr_is_not_given_again() {
    let published = record(&[(None, "out 1\n"), (None, "err 1\n"), (None, "out 2\n")]);
    assert_eq!(
        published.missing(&result("out 1\nout 2\nout 3\n", "err 1\nerr 2\n"), false),
        missing("out 3\n", "err 2\n", false)
    );
}

#[test]
fn a_piece_that_mixes_both_streams_is_divided() {
    let published = record(&[(None, "out 1\nerr 1\nout 2\n")]);
    assert_eq!(
        published.missing(&result("out 1\nout 2\n", "err 1\n"), false),
        Missing::default()
    );
}

#[test]
fn stderr_that_progress_never_carried_is_given() {
    let published = record(&[(None, "a\n")]);
    assert_eq!(
        published.missing(&result("a\n", "warning\n"), false),
        missing("", "warning\n", false)
    );
}

#[test]
fn lost_pieces_in_the_middle_are_given() {
    let published = record(&[(None, "line 1\n"), (None, "line 3\n")]);
    assert_eq!(
        published.missing(&result("line 1\nline 2\nline 3\nline 4\n", ""), false),
        missing("line 2\nline 4\n", "", false)
    );
}

#[test]
fn a_result_without_its_last_newline_is_covered() {
    let published = record(&[(None, "hello\n")]);
    assert_eq!(
        published.missing(&result("hello", ""), false),
        Missing::default()
    );
    let published = record(&[(None, "hello\n"), (None, "warn\n")]);
    assert_eq!(
        published.missing(&result("hello", "warn"), false),
        Missing::default()
    );
}

#[test]
fn a_result_without_text_leaves_what_was_published() {
    let published = record(&[(None, "a\n"), (ERR, "b\n")]);
    assert_eq!(
        published.missing(&result("", ""), false),
        Missing::default()
    );
}

#[test]
fn a_cut_result_that_progress_covers_is_no_loss() {
    let published = record(&[(OUT, "0123456789")]);
    for kept in ["0123", "6789"] {
        assert_eq!(
            published.missing(&truncated(kept, ""), false),
            Missing::default(),
            "{kept}"
        );
    }
}

#[test]
fn a_cut_result_that_nothing_covers_is_a_loss() {
    assert_eq!(
        record(&[]).missing(&truncated("01", ""), false),
        missing("01", "", true)
    );
    let published = record(&[(OUT, "0123")]);
    assert_eq!(
        published.missing(&truncated("012345", ""), false),
        missing("45", "", true)
    );
}

#[test]
fn the_tail_of_a_cut_result_continues_what_was_published() {
    let published = record(&[(OUT, "line 1\nline 2\nline 3\n")]);
    let rest = published.missing(&truncated("line 2\nline 3\nline 4\n", ""), false);
    assert_eq!(rest.stdout, "line 4\n");
}

#[test]
fn a_result_that_begins_at_the_reattach_continues() {
    let published = record(&[(None, "one\n"), (None, "two\n")]);
    assert_eq!(
        published.missing(&result("two\nthree\n", ""), true),
        missing("three\n", "", false)
    );
}

#[test]
fn more_than_is_remembered_is_compared_by_hash() {
    let line = "x".repeat(1023) + "\n";
    let mut published = Record::default();
    let mut all = String::new();
    while all.len() <= RECORD_BYTES + 10_000 {
        published.push(&Chunk {
            stream: None,
            text: line.clone(),
        });
        all.push_str(&line);
    }
    assert_eq!(
        published.missing(&result(&all, ""), false),
        Missing::default()
    );
    let more = all.clone() + "end\n";
    assert_eq!(
        published.missing(&result(&more, "warn\n"), false),
        missing("end\n", "warn\n", false)
    );
    assert!(!published.missing(&truncated("xx", ""), false).lost);
}

#[test]
fn equal_lines_that_the_result_cuts_off_in_the_middle_of_one_are_not_given_out_again() {
    let mut published = Record::default();
    let mut all = String::new();
    while all.len() <= 2 * RECORD_BYTES {
        let text = ("y".repeat(100) + "\n").repeat(1000);
        all.push_str(&text);
        published.push(&Chunk { stream: None, text });
    }
    let cut = &all[..RECORD_BYTES + 41];
    assert_eq!(
        published.missing(&truncated(cut, ""), false),
        Missing::default()
    );
}

/// A small generator of repeatable noise.
struct Noise(u64);

impl Noise {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

/// Whatever the chunks, the names and the point where progress stopped: each character is shown exactly once.
#[test]
fn random_chunkings_end_with_every_character_once() {
    const WORDS: [&str; 8] = ["a", "bc\n", "\r", "𝄞", "é", "\u{1b}[0m", "\0", "line\n"];
    let mut noise = Noise(0x9e37_79b9_7f4a_7c15);
    for round in 0..2000 {
        let mode = noise.below(3);
        let mut whole = [String::new(), String::new()];
        let mut shown = [String::new(), String::new()];
        let mut published = Record::default();
        let count = noise.below(30);
        let stop = noise.below(count + 1);
        for index in 0..count {
            let stream = if noise.below(3) == 0 { ERR } else { OUT };
            let text: String = (0..=noise.below(4))
                .map(|_| WORDS[noise.below(WORDS.len())])
                .collect();
            whole[channel(stream)].push_str(&text);
            if index >= stop {
                continue;
            }
            let stream = match mode {
                0 => stream,
                1 => None,
                _ if noise.below(2) == 0 => stream,
                _ => None,
            };
            shown[channel(stream)].push_str(&text);
            published.push(&Chunk { stream, text });
        }
        let rest = published.missing(&result(&whole[0], &whole[1]), false);
        shown[0].push_str(&rest.stdout);
        shown[1].push_str(&rest.stderr);
        if mode == 0 {
            assert_eq!(shown, whole, "round {round}");
        } else {
            let sorted = |parts: &[String; 2]| {
                let mut all: Vec<char> = parts.concat().chars().collect();
                all.sort_unstable();
                all
            };
            assert_eq!(sorted(&shown), sorted(&whole), "round {round}");
        }
        assert!(!rest.lost);
    }
}
