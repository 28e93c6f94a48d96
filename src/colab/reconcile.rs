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
        // Where the end occurs twice (equal lines, cut off in the middle of one) nobody knows which occurrence it is.
        let start = whole.find(&self.tail)?;
        let end = start + self.tail.len();
        (whole.rfind(&self.tail)? == start).then(|| &whole[end..])
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
mod tests;
