//! The history of the kernel's inputs, kept on this machine: what a console's arrow-up shows.
//!
//! It answers `history_request` (tail, range, search) from memory. Given a state directory, a thread of its own reads the last
//! inputs of earlier processes from `history.jsonl` there and appends the new ones. Invariants:
//!
//! * Nothing here waits for the file, except [`History::ready`] and [`History::flush`], which are bounded in time.
//! * Without a readable and writable directory the history lives in memory, and the kernel does not notice.
//! * Memory is bounded: at most [`MAX_ENTRIES`] inputs of all sessions together, and [`MAX_BYTES`] of text; the oldest go first.
//! * Outputs stay in memory and are never written to disk (IPython's default as well).

mod file;
pub mod keeper;

use std::collections::VecDeque;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use self::file::Writer;

/// How many inputs are remembered.
pub const MAX_ENTRIES: usize = 10_000;
/// How many bytes of inputs and outputs are remembered.
pub const MAX_BYTES: usize = 8 * 1024 * 1024;

const READY_LIMIT: Duration = Duration::from_millis(500);
const FLUSH_LIMIT: Duration = Duration::from_millis(150);

/// How many inputs a tail has when the request does not say (IPython's default).
const DEFAULT_TAIL: usize = 10;

/// The inputs of this session and of earlier ones.
#[derive(Debug)]
pub struct History {
    session: i64,
    /// Earlier sessions first, each in the order of its inputs. This session's are those with its number.
    entries: VecDeque<Entry>,
    bytes: usize,
    writer: Option<Writer>,
    loading: Option<oneshot::Receiver<Loaded>>,
}

/// One input.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    session: i64,
    line: i64,
    input: String,
    output: Option<String>,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.input.len() + self.output.as_ref().map_or(0, String::len)
    }
}

/// What the file had, and the number that this process got in it.
#[derive(Debug)]
struct Loaded {
    session: i64,
    entries: Vec<Entry>,
}

/// The content of a `history_request`, read tolerantly.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryRequest {
    /// Whether outputs are wanted as well.
    pub output: bool,
    /// Which inputs.
    pub access: Access,
}

/// `hist_access_type` with the fields that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// The last `n` inputs.
    Tail {
        /// How many.
        n: Option<i64>,
    },
    /// Lines of one session.
    Range {
        /// Its number; 0 and negative ones count back from this session.
        session: i64,
        /// The first line.
        start: i64,
        /// The line after the last.
        stop: Option<i64>,
    },
    /// Inputs that match a pattern.
    Search {
        /// A glob over the whole input.
        pattern: String,
        /// The last `n` of them.
        n: Option<i64>,
        /// Each text once, where it stood last.
        unique: bool,
    },
}

impl HistoryRequest {
    /// Reads the content of a request. What is absent, null or of another type is the default; an unknown access type is a tail.
    pub fn from_content(content: &Value) -> Self {
        let integer = |name: &str| content.get(name).and_then(Value::as_i64);
        let flag = |name: &str| content.get(name).and_then(Value::as_bool).unwrap_or(false);
        let text = |name: &str| content.get(name).and_then(Value::as_str);
        let access = match text("hist_access_type") {
            Some("range") => Access::Range {
                session: integer("session").unwrap_or(0),
                start: integer("start").unwrap_or(1),
                stop: integer("stop"),
            },
            Some("search") => Access::Search {
                pattern: text("pattern").unwrap_or("*").to_owned(),
                n: integer("n"),
                unique: flag("unique"),
            },
            _ => Access::Tail { n: integer("n") },
        };
        Self {
            output: flag("output"),
            access,
        }
    }
}

impl History {
    /// A history in memory. Session numbers begin at 1: a front-end takes 0 for "this session".
    pub fn new(session: i64) -> Self {
        Self {
            session: session.max(1),
            entries: VecDeque::new(),
            bytes: 0,
            writer: None,
            loading: None,
        }
    }

    /// A history that goes on where earlier processes left theirs in this directory. Returns at once; the file is read meanwhile.
    pub fn open(state_dir: &Path) -> Self {
        let (sender, receiver) = oneshot::channel();
        Self {
            writer: Writer::start(state_dir, sender),
            loading: Some(receiver),
            ..Self::new(1)
        }
    }

    /// Waits until the earlier inputs are there, but not long.
    pub async fn ready(&mut self) {
        let Some(loading) = self.loading.as_mut() else {
            return;
        };
        if let Ok(result) = tokio::time::timeout(READY_LIMIT, loading).await {
            self.loading = None;
            if let Ok(loaded) = result {
                self.merge(loaded);
            }
        }
    }

    /// The number of this session.
    pub fn session(&mut self) -> i64 {
        self.take_loaded();
        self.session
    }

    /// Adds an input under its number.
    pub fn push(&mut self, line: i64, code: impl Into<String>) {
        self.take_loaded();
        let input = code.into();
        if let Some(writer) = &self.writer {
            writer.append(line, &input);
        }
        self.add(Entry {
            session: self.session,
            line,
            input,
            output: None,
        });
    }

    /// Sets the `text/plain` of an input's result.
    pub fn set_output(&mut self, line: i64, text: impl Into<String>) {
        self.take_loaded();
        let session = self.session;
        let entry = self
            .entries
            .iter_mut()
            .rev()
            .find(|entry| entry.session == session && entry.line == line);
        if let Some(entry) = entry {
            let before = entry.bytes();
            entry.output = Some(text.into());
            self.bytes = self.bytes + entry.bytes() - before;
            self.trim();
        }
    }

    /// The content of the `history_reply`. Inputs are raw: they are never transformed here.
    pub fn reply(&mut self, request: &HistoryRequest) -> Value {
        self.take_loaded();
        let found = match &request.access {
            Access::Tail { n } => {
                let wanted = n.map_or(DEFAULT_TAIL, |n| usize::try_from(n).unwrap_or(usize::MAX));
                last(self.entries.iter().collect(), wanted)
            }
            Access::Range {
                session,
                start,
                stop,
            } => self.range(*session, *start, *stop),
            Access::Search { pattern, n, unique } => self.search(pattern, *n, *unique),
        };
        let rows: Vec<Value> = found
            .into_iter()
            .map(|entry| {
                if request.output {
                    json!([entry.session, entry.line, [entry.input, entry.output]])
                } else {
                    json!([entry.session, entry.line, entry.input])
                }
            })
            .collect();
        json!({"status": "ok", "history": rows})
    }

    /// Waits until what was pushed is in the file, but not long. For the end of the process.
    pub async fn flush(&self) {
        if let Some(writer) = &self.writer {
            // What a slow disk loses is one line of history.
            let _ = tokio::time::timeout(FLUSH_LIMIT, writer.flush()).await;
        }
    }

    fn range(&self, session: i64, start: i64, stop: Option<i64>) -> Vec<&Entry> {
        let session = if session <= 0 {
            self.session.saturating_add(session)
        } else {
            session
        };
        let (mut start, mut stop) = (start, stop.filter(|stop| *stop != 0));
        if session == self.session {
            // In this session negative lines count from the end, as in IPython.
            let end = self
                .entries
                .iter()
                .rev()
                .find(|entry| entry.session == session)
                .map_or(1, |entry| entry.line.saturating_add(1));
            if start < 0 {
                start = start.saturating_add(end);
            }
            stop = stop.map(|stop| {
                if stop < 0 {
                    stop.saturating_add(end)
                } else {
                    stop
                }
            });
        }
        self.entries
            .iter()
            .filter(|entry| entry.session == session && entry.line >= start)
            .filter(|entry| stop.is_none_or(|stop| entry.line < stop))
            .collect()
    }

    fn search(&self, pattern: &str, n: Option<i64>, unique: bool) -> Vec<&Entry> {
        let pattern: Vec<char> = pattern.chars().collect();
        let mut seen = std::collections::HashSet::new();
        let mut found: Vec<&Entry> = self
            .entries
            .iter()
            .rev()
            .filter(|entry| glob_matches(&pattern, &entry.input))
            .filter(|entry| !unique || seen.insert(entry.input.as_str()))
            .take(n.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX)))
            .collect();
        found.reverse();
        found
    }

    /// Takes over what the file had, if it has been read by now.
    fn take_loaded(&mut self) {
        let Some(loading) = self.loading.as_mut() else {
            return;
        };
        match loading.try_recv() {
            Ok(loaded) => {
                self.loading = None;
                self.merge(loaded);
            }
            Err(oneshot::error::TryRecvError::Closed) => self.loading = None,
            Err(oneshot::error::TryRecvError::Empty) => {}
        }
    }

    fn merge(&mut self, loaded: Loaded) {
        for entry in &mut self.entries {
            entry.session = loaded.session;
        }
        self.session = loaded.session;
        let own = std::mem::take(&mut self.entries);
        self.bytes = 0;
        for entry in loaded.entries.into_iter().chain(own) {
            self.add(entry);
        }
    }

    fn add(&mut self, entry: Entry) {
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
        self.trim();
    }

    /// Forgets the oldest inputs above the limits, but never the last one.
    fn trim(&mut self) {
        while self.entries.len() > MAX_ENTRIES || (self.bytes > MAX_BYTES && self.entries.len() > 1)
        {
            if let Some(oldest) = self.entries.pop_front() {
                self.bytes -= oldest.bytes();
            }
        }
    }
}

fn last<T>(mut items: Vec<T>, n: usize) -> Vec<T> {
    items.split_off(items.len().saturating_sub(n))
}

/// SQLite's `GLOB`, with which IPython searches: `*`, `?`, `[abc]`, `[a-z]`, `[^a]`, over the whole text.
fn glob_matches(pattern: &[char], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let (mut p, mut t) = (0, 0);
    // Where to go on when the text after the last star does not fit: one character later.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() || p < pattern.len() {
        if pattern.get(p) == Some(&'*') {
            retry = Some((p, t));
            p += 1;
            continue;
        }
        if let Some(&c) = text.get(t)
            && let Some(length) = matches_one(&pattern[p..], c)
        {
            p += length;
            t += 1;
            continue;
        }
        match retry {
            Some((star, from)) if from < text.len() => {
                retry = Some((star, from + 1));
                (p, t) = (star + 1, from + 1);
            }
            _ => return false,
        }
    }
    true
}

/// The length of the pattern's first element if it matches this character. An unclosed `[` matches nothing, as in SQLite.
fn matches_one(pattern: &[char], c: char) -> Option<usize> {
    match pattern.first()? {
        '?' => Some(1),
        '[' => {
            let negated = pattern.get(1) == Some(&'^');
            let first = if negated { 2 } else { 1 };
            let mut at = first;
            let mut inside = false;
            loop {
                let low = *pattern.get(at)?;
                if low == ']' && at > first {
                    break;
                }
                match (pattern.get(at + 1), pattern.get(at + 2)) {
                    (Some('-'), Some(&high)) if high != ']' => {
                        inside |= (low..=high).contains(&c);
                        at += 3;
                    }
                    _ => {
                        inside |= low == c;
                        at += 1;
                    }
                }
            }
            (inside != negated).then_some(at + 1)
        }
        literal => (*literal == c).then_some(1),
    }
}

#[cfg(test)]
mod tests;
