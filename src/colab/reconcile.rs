//! What a result has that was not published while the cell ran.
//!
//! The service streams text and returns it again as a whole. [`Record`] remembers what was published; [`Record::missing`] compares
//! it with the result. Invariants:
//!
//! * Nothing is given out twice: where the two cannot be brought together, nothing more is given out.
//! * Text that came without a stream's name may belong to either stream; it is looked for in both.
//! * Memory is bounded: above [`RECORD_BYTES`] only lengths, hashes and the ends of the streams are kept.

use super::api::ExecuteCodeResult;
use super::progress::Chunk;
use crate::backend::StreamName;

/// How much published text is remembered verbatim.
pub const RECORD_BYTES: usize = 8 * 1024 * 1024;
/// How much of each stream's end is remembered beyond that.
const TAIL_BYTES: usize = 64 * 1024;
/// How many ways to divide unnamed text between the streams are followed at once.
const MAX_WAYS: usize = 512;
/// Up to which length text is divided character by character.
const FINE_BYTES: usize = 256 * 1024;
/// How many published pieces may be absent from the result before the comparison is given up.
const MAX_FOREIGN: usize = 64;

/// What was published, as far as it is needed to find what is missing.
#[derive(Debug, Default)]
pub struct Record {
    /// The text of all pieces in the order of publication, up to [`RECORD_BYTES`].
    text: String,
    pieces: Vec<Piece>,
    /// Whether there was more than that.
    overflowed: bool,
    tracks: [Track; 2],
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    stream: Option<StreamName>,
    end: usize,
}

/// What appeared on one stream (unnamed text appears on stdout).
#[derive(Debug)]
struct Track {
    len: usize,
    hash: u64,
    tail: String,
    unnamed: bool,
}

impl Default for Track {
    fn default() -> Self {
        Self {
            len: 0,
            hash: FNV_START,
            tail: String::new(),
            unnamed: false,
        }
    }
}

/// What a result has that was not published.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Rest of standard output.
    pub stdout: String,
    /// Rest of standard error.
    pub stderr: String,
    /// Whether the service cut text away that was never seen.
    pub lost: bool,
}

impl Record {
    /// Notes a piece that is published.
    pub fn push(&mut self, chunk: &Chunk) {
        let track = &mut self.tracks[channel(chunk.stream)];
        track.len += chunk.text.len();
        track.hash = fnv(track.hash, chunk.text.as_bytes());
        track.unnamed |= chunk.stream.is_none();
        track.push_tail(&chunk.text);
        if self.overflowed || self.text.len() + chunk.text.len() > RECORD_BYTES {
            self.overflowed = true;
            return;
        }
        self.text.push_str(&chunk.text);
        let end = self.text.len();
        match self.pieces.last_mut() {
            // Named neighbours need no border between them.
            Some(last) if last.stream == chunk.stream && last.stream.is_some() => last.end = end,
            _ => self.pieces.push(Piece {
                stream: chunk.stream,
                end,
            }),
        }
    }

    /// How many bytes appeared on a stream.
    pub fn len(&self, channel: usize) -> usize {
        self.tracks[channel].len
    }

    /// Whether nothing was published.
    pub fn is_empty(&self) -> bool {
        self.tracks.iter().all(|track| track.len == 0)
    }

    /// What appeared on a stream, from its beginning as far as it is remembered.
    pub fn head(&self, wanted: usize) -> String {
        self.iter()
            .filter(|(stream, _)| channel(*stream) == wanted)
            .map(|(_, text)| text)
            .collect()
    }

    /// What the result has that was not published. `reattached`: the result may cover a part of the cell only.
    pub fn missing(&self, result: &ExecuteCodeResult, reattached: bool) -> Missing {
        let (out, err) = (result.stdout.as_str(), result.stderr.as_str());
        let truncated = result.output_truncated;
        if self.is_empty() {
            return Missing {
                stdout: out.to_owned(),
                stderr: err.to_owned(),
                lost: truncated,
            };
        }
        let (stdout, stderr) = self.rest(out, err, truncated || reattached);
        let covered = self.tracks[0].len > out.len() && self.tracks[1].len >= err.len()
            || self.tracks[1].len > err.len() && self.tracks[0].len >= out.len()
            || self.tracks[0].unnamed
                && self.tracks[0].len + self.tracks[1].len > out.len() + err.len();
        Missing {
            stdout,
            stderr,
            lost: truncated && !covered,
        }
    }

    fn rest(&self, out: &str, err: &str, partial: bool) -> (String, String) {
        if self.overflowed {
            return self.rest_by_hash(out, err);
        }
        if let Some((i, j)) = self
            .divide(out, err)
            .or_else(|| self.divide_finely(out, err))
        {
            return (out[i..].to_owned(), err[j..].to_owned());
        }
        let mixed = self.tracks[0].unnamed && !err.is_empty();
        let heads = [self.head(0), self.head(1)];
        if mixed && partial {
            let out_rest = rest_of_one(&heads[0], out, partial).unwrap_or_default();
            let err_rest = if heads[0].contains(err) {
                ""
            } else {
                rest_of_one(&heads[1], err, partial).unwrap_or_default()
            };
            return (out_rest.to_owned(), err_rest.to_owned());
        }
        if !mixed {
            let rests = [
                rest_of_one(&heads[0], out, partial),
                rest_of_one(&heads[1], err, partial),
            ];
            if let [Some(out), Some(err)] = rests {
                return (out.to_owned(), err.to_owned());
            }
            if partial {
                let [out, err] = rests.map(Option::unwrap_or_default);
                return (out.to_owned(), err.to_owned());
            }
        }
        self.gaps(out, err)
    }

    /// Reads the pieces as an exact interleaving of the beginnings of both streams: how far each goes.
    fn divide(&self, out: &str, err: &str) -> Option<(usize, usize)> {
        let mut ways = vec![0_usize];
        let mut done = 0;
        for (stream, text) in self.iter() {
            let mut next = Vec::with_capacity(ways.len());
            for &i in &ways {
                let j = done - i;
                if stream != Some(StreamName::Stderr) && starts_at(out, i, text) {
                    next.push(i + text.len());
                }
                if stream != Some(StreamName::Stdout) && starts_at(err, j, text) {
                    next.push(i);
                }
            }
            done += text.len();
            ways = keep_best(next)?;
        }
        // It was shown as stdout: the way that takes most of stdout is the nearest to what the user saw.
        let i = ways.into_iter().max()?;
        Some((i, done - i))
    }

    /// As [`Self::divide`], where one piece may hold text of both streams.
    fn divide_finely(&self, out: &str, err: &str) -> Option<(usize, usize)> {
        if !self.tracks[0].unnamed || err.is_empty() || self.text.len() > FINE_BYTES {
            return None;
        }
        let mut ways = vec![0_usize];
        let mut done = 0;
        for (stream, text) in self.iter() {
            for character in text.chars() {
                let size = character.len_utf8();
                let mut next = Vec::with_capacity(ways.len() + 1);
                for &i in &ways {
                    let j = done - i;
                    let fits = |text: &str, at: usize| {
                        text.get(at..)
                            .is_some_and(|rest| rest.starts_with(character))
                    };
                    if stream != Some(StreamName::Stderr) && fits(out, i) {
                        next.push(i + size);
                    }
                    if stream != Some(StreamName::Stdout) && fits(err, j) {
                        next.push(i);
                    }
                }
                done += size;
                ways = keep_best(next)?;
            }
        }
        let i = ways.into_iter().max()?;
        Some((i, done - i))
    }

    /// Places each piece where it is found next; what lies between was not published.
    fn gaps(&self, out: &str, err: &str) -> (String, String) {
        let mut at = [0_usize, 0];
        let mut gaps = [String::new(), String::new()];
        let whole = [out, err];
        let mut foreign = 0;
        for (stream, text) in self.iter() {
            let channels: &[usize] = match stream {
                Some(StreamName::Stdout) => &[0],
                Some(StreamName::Stderr) => &[1],
                None => &[0, 1],
            };
            let found = channels
                .iter()
                .filter_map(|&c| {
                    let rest = &whole[c][at[c]..];
                    let cut = !rest.is_empty() && text.starts_with(rest);
                    let place = if cut { Some(0) } else { rest.find(text) };
                    place.map(|gap| (gap, c, text.len().min(rest.len() - gap)))
                })
                .min();
            let Some((gap, c, taken)) = found else {
                foreign += 1;
                if foreign > MAX_FOREIGN {
                    return Default::default();
                }
                continue;
            };
            gaps[c].push_str(&whole[c][at[c]..at[c] + gap]);
            at[c] += gap + taken;
        }
        let [mut out_gaps, mut err_gaps] = gaps;
        out_gaps.push_str(&out[at[0]..]);
        err_gaps.push_str(&err[at[1]..]);
        (out_gaps, err_gaps)
    }

    /// The rest where only hashes and ends are left to compare.
    fn rest_by_hash(&self, out: &str, err: &str) -> (String, String) {
        let [out_track, err_track] = &self.tracks;
        let out_rest = out_track.rest(out);
        let err_rest = match (out_track.unnamed, &out_rest) {
            // What was shown as stdout is not stdout alone: it may hold all of stderr.
            (true, None) => None,
            _ => err_track.rest(err),
        };
        (
            out_rest.unwrap_or_default().to_owned(),
            err_rest.unwrap_or_default().to_owned(),
        )
    }

    fn iter(&self) -> impl Iterator<Item = (Option<StreamName>, &str)> {
        self.pieces.iter().scan(0, |start, piece| {
            let text = &self.text[*start..piece.end];
            *start = piece.end;
            Some((piece.stream, text))
        })
    }
}

impl Track {
    fn push_tail(&mut self, text: &str) {
        self.tail.push_str(text);
        if self.tail.len() > 2 * TAIL_BYTES {
            let mut cut = self.tail.len() - TAIL_BYTES;
            while !self.tail.is_char_boundary(cut) {
                cut += 1;
            }
            self.tail.drain(..cut);
        }
    }

    /// What stands in `whole` behind what was published, if that can be found.
    fn rest<'a>(&self, whole: &'a str) -> Option<&'a str> {
        if let Some(head) = whole.get(..self.len)
            && fnv(FNV_START, head.as_bytes()) == self.hash
        {
            return Some(&whole[self.len..]);
        }
        if self.len == 0 {
            return Some(whole);
        }
        let end = whole.rfind(&self.tail)? + self.tail.len();
        Some(&whole[end..])
    }
}

/// The stream on which a piece appears.
pub fn channel(stream: Option<StreamName>) -> usize {
    usize::from(stream == Some(StreamName::Stderr))
}

fn starts_at(whole: &str, at: usize, text: &str) -> bool {
    whole.get(at..).is_some_and(|rest| rest.starts_with(text))
}

/// Removes doubles; `None` when no way is left.
fn keep_best(mut ways: Vec<usize>) -> Option<Vec<usize>> {
    ways.sort_unstable_by(|a, b| b.cmp(a));
    ways.dedup();
    ways.truncate(MAX_WAYS);
    (!ways.is_empty()).then_some(ways)
}

/// What `whole` adds to `published`; with `partial`, `whole` may have lost its beginning.
fn rest_of_one<'a>(published: &str, whole: &'a str, partial: bool) -> Option<&'a str> {
    if let Some(rest) = whole.strip_prefix(published) {
        return Some(rest);
    }
    if published.starts_with(whole) || published.ends_with(whole) {
        return Some("");
    }
    let shared = if partial {
        overlap(published, whole)
    } else {
        0
    };
    (shared > 0).then(|| &whole[shared..])
}

/// The length of the longest end of `published` that `whole` begins with (Knuth, Morris and Pratt).
fn overlap(published: &str, whole: &str) -> usize {
    let limit = published.len().min(whole.len());
    let (text, pattern) = (
        &published.as_bytes()[published.len() - limit..],
        &whole.as_bytes()[..limit],
    );
    let mut borders = vec![0_usize; limit];
    let mut matched = 0;
    for at in 1..limit {
        while matched > 0 && pattern[at] != pattern[matched] {
            matched = borders[matched - 1];
        }
        matched += usize::from(pattern[at] == pattern[matched]);
        borders[at] = matched;
    }
    matched = 0;
    for byte in text {
        while matched > 0 && (matched == limit || *byte != pattern[matched]) {
            matched = borders[matched - 1];
        }
        matched += usize::from(*byte == pattern[matched]);
    }
    matched
}

/// FNV-1a: independent of how the text was divided.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

fn fnv(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
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
}
