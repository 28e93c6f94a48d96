//! One text told twice, published once.
//!
//! In a cell with a companion its text comes from the journal and, again, as progress of its call. [`Ledger`] counts both along with
//! what has been published, so that either can take over from the other in the middle of a line. Invariants:
//!
//! * A character is published when the first of the two tellers that is listened to has told it, and never again.
//! * The two tell the same text in the same order; where progress does not name streams, the order of both streams together counts.
//! * Progress that is ahead is held, up to [`HELD_BYTES`]; it is given out if the journal falls silent.

use std::collections::VecDeque;

use super::progress::Chunk;
use super::reconcile::channel;
use crate::backend::StreamName;

/// How much progress may be ahead of what was published.
pub const HELD_BYTES: usize = 64 * 1024 * 1024;

/// The counts of one cell.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Bytes that were told and published, by stream.
    journal: [usize; 2],
    progress: [usize; 2],
    published: [usize; 2],
    /// Whether progress has come without a stream's name: then only the sums can be compared.
    unnamed: bool,
    held: VecDeque<Held>,
    held_bytes: usize,
    /// Whether progress was dropped because too much was ahead.
    overflowed: bool,
}

#[derive(Debug)]
struct Held {
    chunk: Chunk,
    /// Where it begins in its stream, and in both together.
    at: usize,
    at_sum: usize,
}

impl Ledger {
    /// The journal tells this. Returns what of it has not been published, and counts it as published.
    pub fn journal<'a>(&mut self, name: StreamName, text: &'a str) -> &'a str {
        let stream = channel(Some(name));
        let told = self.told(&self.journal, stream);
        let seen = self.told(&self.published, stream).saturating_sub(told);
        let fresh = text.get(seen.min(text.len())..).unwrap_or(text);
        self.journal[stream] += text.len();
        self.published[stream] += fresh.len();
        self.forget_published();
        fresh
    }

    /// Progress tells this. It is held.
    pub fn progress(&mut self, chunk: Chunk) {
        let stream = channel(chunk.stream);
        self.unnamed |= chunk.stream.is_none();
        let held = Held {
            at: self.progress[stream],
            at_sum: self.progress.iter().sum(),
            chunk,
        };
        self.progress[stream] += held.chunk.text.len();
        self.held_bytes += held.chunk.text.len();
        self.held.push_back(held);
        self.forget_published();
        while self.held_bytes > HELD_BYTES {
            self.overflowed = true;
            self.drop_first();
        }
    }

    /// Whether progress is ahead of what was published.
    pub fn is_ahead(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether progress that was ahead had to be dropped.
    pub fn has_overflowed(&self) -> bool {
        self.overflowed
    }

    /// What progress has told and nobody published. Counts as published.
    pub fn surplus(&mut self) -> Vec<Chunk> {
        let mut surplus = Vec::new();
        while let Some(held) = self.held.pop_front() {
            self.held_bytes -= held.chunk.text.len();
            let stream = channel(held.chunk.stream);
            let at = if self.unnamed { held.at_sum } else { held.at };
            let seen = self.told(&self.published, stream).saturating_sub(at);
            let Some(fresh) = held.chunk.text.get(seen.min(held.chunk.text.len())..) else {
                continue;
            };
            if fresh.is_empty() {
                continue;
            }
            self.published[stream] += fresh.len();
            surplus.push(Chunk {
                stream: held.chunk.stream,
                text: fresh.to_owned(),
            });
        }
        surplus
    }

    /// Forgets what progress has told so far.
    pub fn forget_progress(&mut self) {
        self.held.clear();
        self.held_bytes = 0;
        self.progress = [0, 0];
    }

    /// This much has been published of each stream, by text of a repeated call.
    pub fn set_published(&mut self, published: [usize; 2]) {
        self.published = published;
    }

    fn told(&self, counts: &[usize; 2], stream: usize) -> usize {
        if self.unnamed {
            counts.iter().sum()
        } else {
            counts[stream]
        }
    }

    /// Drops what is held and has been published.
    fn forget_published(&mut self) {
        while let Some(first) = self.held.front() {
            let stream = channel(first.chunk.stream);
            let at = if self.unnamed { first.at_sum } else { first.at };
            if at + first.chunk.text.len() > self.told(&self.published, stream) {
                return;
            }
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        if let Some(first) = self.held.pop_front() {
            self.held_bytes -= first.chunk.text.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(stream: Option<StreamName>, text: &str) -> Chunk {
        Chunk {
            stream,
            text: text.to_owned(),
        }
    }

    const OUT: Option<StreamName> = Some(StreamName::Stdout);
    const ERR: Option<StreamName> = Some(StreamName::Stderr);

    #[test]
    fn progress_behind_the_journal_is_only_counted() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.journal(StreamName::Stdout, "abc"), "abc");
        ledger.progress(chunk(OUT, "ab"));
        assert!(!ledger.is_ahead());
        ledger.progress(chunk(OUT, "cd"));
        assert!(ledger.is_ahead());
        assert_eq!(ledger.surplus(), [chunk(OUT, "d")]);
        assert_eq!(ledger.journal(StreamName::Stdout, "de"), "e");
        ledger.progress(chunk(OUT, "e"));
        assert!(!ledger.is_ahead());
    }

    #[test]
    fn unnamed_progress_is_compared_with_both_streams_together() {
        let mut ledger = Ledger::default();
        assert_eq!(ledger.journal(StreamName::Stdout, "a"), "a");
        assert_eq!(ledger.journal(StreamName::Stderr, "b"), "b");
        ledger.progress(chunk(None, "abcd"));
        assert_eq!(ledger.surplus(), [chunk(None, "cd")]);
        assert_eq!(ledger.journal(StreamName::Stderr, "c"), "");
        assert_eq!(ledger.journal(StreamName::Stdout, "de"), "e");
    }

    #[test]
    fn streams_are_kept_apart_where_they_are_named() {
        let mut ledger = Ledger::default();
        ledger.progress(chunk(ERR, "warn"));
        ledger.progress(chunk(OUT, "text"));
        assert_eq!(ledger.journal(StreamName::Stdout, "te"), "te");
        assert_eq!(ledger.surplus(), [chunk(ERR, "warn"), chunk(OUT, "xt")]);
        assert_eq!(ledger.journal(StreamName::Stderr, "warn"), "");
    }

    /// However the two are cut, and whoever is listened to at which moment, every character is published once, in its order.
    #[test]
    fn any_change_of_teller_publishes_everything_once() {
        let mut seed = 11_u64;
        let mut random = move |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) as usize % below
        };
        for round in 0..300 {
            let text: String = (0..200)
                .map(|n| {
                    if round % 3 == 0 {
                        '.'
                    } else {
                        char::from(b'a' + (n % 26) as u8)
                    }
                })
                .collect();
            let named = if round % 2 == 0 { OUT } else { None };
            let mut ledger = Ledger::default();
            let (mut journal, mut progress, mut shown) = (0, 0, String::new());
            while journal < text.len() && progress < text.len() {
                let step = 1 + random(9);
                if random(2) == 0 {
                    let end = (journal + step).min(text.len());
                    shown.push_str(ledger.journal(StreamName::Stdout, &text[journal..end]));
                    journal = end;
                } else {
                    let end = (progress + step).min(text.len());
                    ledger.progress(chunk(named, &text[progress..end]));
                    progress = end;
                    if random(3) == 0 {
                        shown.extend(ledger.surplus().into_iter().map(|chunk| chunk.text));
                    }
                }
            }
            shown.extend(ledger.surplus().into_iter().map(|chunk| chunk.text));
            shown.push_str(ledger.journal(StreamName::Stdout, &text[journal..]));
            assert_eq!(shown, text);
        }
    }
}
