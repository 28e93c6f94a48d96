//! The order of what a kernel publishes, restored from numbers.
//!
//! Messages come live, with holes where a server dropped some, and again in replays. [`Sequence`] gives each out once, in the order
//! of the numbers, and tells what has to be asked for. Invariants: no number is given out twice or before a smaller one; what is
//! kept because it came too early is bounded in bytes, for the journal has it still.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// How many bytes of early messages are kept.
const EARLY_BYTES: usize = 16 * 1024 * 1024;

/// Where in the journal we are, and what came early.
#[derive(Debug)]
pub struct Sequence<M> {
    /// The last number that was given out, or will never come.
    position: u64,
    /// The last number that is known to exist.
    last: u64,
    /// Smaller numbers have left the journal: those that are not here will never come.
    first: u64,
    early: BTreeMap<u64, (usize, M)>,
    early_bytes: usize,
}

impl<M> Sequence<M> {
    /// Everything up to `position` is passed over.
    pub fn new(position: u64) -> Self {
        Self {
            position,
            last: position,
            first: 0,
            early: BTreeMap::new(),
            early_bytes: 0,
        }
    }

    /// The last number that was given out.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Takes a message of `size` bytes. What came before is not taken again.
    pub fn take(&mut self, n: u64, size: usize, message: M) {
        self.exists(n);
        if n <= self.position || self.early.contains_key(&n) {
            return;
        }
        self.early_bytes += size;
        self.early.insert(n, (size, message));
        // The next one is kept whatever its size; of the others, those that are needed last go first.
        while self.early_bytes > EARLY_BYTES && self.early.len() > 1 {
            if let Some((_, (size, _))) = self.early.pop_last() {
                self.early_bytes -= size;
            }
        }
    }

    /// The next message in the order, if it is here.
    pub fn advance(&mut self) -> Option<(u64, M)> {
        self.pass_over();
        let n = self.position + 1;
        let (size, message) = self.early.remove(&n)?;
        self.early_bytes -= size;
        self.position = n;
        Some((n, message))
    }

    /// A message of this number exists.
    pub fn exists(&mut self, n: u64) {
        self.last = self.last.max(n);
    }

    /// What was told of the end may be wrong: only what is here is known to exist.
    pub fn forget_end(&mut self) {
        self.last = self.early.keys().last().copied().unwrap_or(self.position);
    }

    /// The journal begins with `first`. Returns how many messages before that were never given out, and now never will be.
    pub fn begins_with(&mut self, first: u64) -> u64 {
        let from = self.first.max(self.position + 1);
        if first <= from {
            return 0;
        }
        self.first = first;
        let early = self.early.range(from..first).count() as u64;
        self.pass_over();
        first - from - early
    }

    /// Passes over numbers that will never come.
    fn pass_over(&mut self) {
        let next = match self.early.keys().next() {
            Some(early) => (*early).min(self.first),
            None => self.first,
        };
        self.position = self.position.max(next.saturating_sub(1));
    }

    /// The numbers to ask for: those up to the next message that is here, or to the last one that exists.
    pub fn gap(&self) -> Option<RangeInclusive<u64>> {
        let from = self.first.max(self.position + 1);
        let to = match self.early.range(from..).next() {
            Some((early, _)) => early - 1,
            None => self.last,
        };
        (from <= to).then_some(from..=to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(sequence: &mut Sequence<u64>) -> Vec<u64> {
        std::iter::from_fn(|| sequence.advance())
            .map(|(n, message)| {
                assert_eq!(n, message);
                n
            })
            .collect()
    }

    #[test]
    fn messages_come_out_once_and_in_order() {
        let mut sequence = Sequence::new(10);
        for n in [11, 10, 3, 13, 13, 11] {
            sequence.take(n, 1, n);
        }
        assert_eq!(all(&mut sequence), [11]);
        assert_eq!(sequence.gap(), Some(12..=12));
        sequence.take(12, 1, 12);
        assert_eq!(all(&mut sequence), [12, 13]);
        assert_eq!(sequence.gap(), None);
        sequence.exists(20);
        assert_eq!(sequence.gap(), Some(14..=20));
        sequence.take(18, 1, 18);
        assert_eq!(sequence.gap(), Some(14..=17));
        assert_eq!(sequence.position(), 13);
    }

    #[test]
    fn early_messages_are_bounded_and_asked_for_again() {
        let mut sequence = Sequence::new(0);
        for n in [2, 3, 4, 5] {
            sequence.take(n, EARLY_BYTES / 2, n);
        }
        assert_eq!(sequence.early.len(), 2);
        sequence.take(1, EARLY_BYTES * 3, 1);
        assert_eq!(all(&mut sequence), [1]);
        assert_eq!(sequence.gap(), Some(2..=5));
    }

    #[test]
    fn what_has_left_the_journal_is_counted_and_passed_over() {
        let mut sequence = Sequence::new(5);
        sequence.take(8, 1, 8);
        sequence.take(12, 1, 12);
        assert_eq!(sequence.begins_with(6), 0);
        assert_eq!(sequence.begins_with(11), 4);
        assert_eq!(sequence.begins_with(11), 0);
        assert_eq!(sequence.gap(), Some(11..=11));
        sequence.take(11, 1, 11);
        assert_eq!(all(&mut sequence), [8, 11, 12]);
        assert_eq!(sequence.begins_with(15), 2);
        assert_eq!(sequence.position(), 14);
    }

    /// Whatever the order in which live messages and replays come, the outcome is the same.
    #[test]
    fn any_interleaving_gives_the_same_order() {
        let mut seed = 7_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..200 {
            let mut sequence = Sequence::new(0);
            let mut given = Vec::new();
            let mut live = 0;
            while given.len() < 60 {
                if live < 60 && random(3) > 0 {
                    live += 1;
                    if random(2) == 0 {
                        sequence.take(live, 1, live);
                    }
                } else {
                    sequence.exists(live);
                    if let Some(gap) = sequence.gap() {
                        let end = (*gap.start() + random(5)).min(*gap.end());
                        for n in *gap.start()..=end {
                            sequence.take(n, 1, n);
                        }
                    }
                }
                given.extend(all(&mut sequence));
            }
            assert_eq!(given, (1..=60).collect::<Vec<_>>());
        }
    }
}
