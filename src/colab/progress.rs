//! What a progress notification says was printed.
//!
//! Which field carries the text is not documented: it may stand in `message` as it is, in a JSON object inside `message`, or in
//! `message` with the stream's name in `_meta`. Invariants:
//!
//! * Prefixes are never guessed and nothing is trimmed: plain text passes as it is.
//! * A JSON object counts as an envelope only if it is the whole message, is made of known keys alone, and no message of this
//!   session has shown that the service sends plain text. A user who prints JSON lines sees JSON lines: what `print` sends ends
//!   with a newline outside of the braces. Where one message leaves it open, it is held until the next one or the result.

use serde_json::Value;

use super::api::ExecuteCodeResult;
use super::mcp::Progress;
use crate::backend::{JsonMap, StreamName};

/// A piece of printed text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The stream, where the notification names it.
    pub stream: Option<StreamName>,
    /// The text.
    pub text: String,
}

/// How this service sends text, as far as its messages have told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// No message has told.
    #[default]
    Unknown,
    /// `message` is the text.
    Plain,
    /// `message` is a JSON object that holds the text.
    Envelope,
}

/// Turns the notifications of one execution into chunks.
#[derive(Debug, Default)]
pub struct Decoder {
    shape: Shape,
    /// A message that may be either: as it came, and as an envelope.
    held: Option<(Chunk, Vec<Chunk>)>,
    /// The first message that could be read both ways, for the result to judge.
    sample: Option<(String, String)>,
}

/// Keys that hold text.
const TEXT_KEYS: [&str; 10] = [
    "text", "data", "content", "chunk", "output", "message", "payload", "value", "line", "delta",
];
/// Keys of text that stand beside it in an object that names no stream.
const OTHER_KEYS: [&str; 10] = [
    "executionid",
    "session",
    "seq",
    "sequence",
    "index",
    "timestamp",
    "time",
    "executioncount",
    "offset",
    "cellid",
];
/// How deep an envelope may hold its text.
const MAX_DEPTH: usize = 3;

impl Decoder {
    /// A decoder that starts from what earlier executions have told.
    pub fn new(shape: Shape) -> Self {
        Self {
            shape,
            ..Self::default()
        }
    }

    /// What has been learned.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The chunks of one notification.
    pub fn decode(&mut self, progress: Progress) -> Vec<Chunk> {
        let message = progress.message.unwrap_or_default();
        let told = Envelope::read(&progress.meta).chunks;
        // Named text in `_meta` is all of it; `message` is then the same, or words for people.
        if message.is_empty() || told.iter().any(|chunk| chunk.stream.is_some()) {
            let mut chunks = if told.is_empty() {
                Vec::new()
            } else {
                self.release(self.shape)
            };
            chunks.extend(told);
            return chunks;
        }
        let tag = stream_of(&progress.meta);
        if tag.is_some() {
            // A tag in `_meta` says what `message` is: the text.
            let mut chunks = self.release(Shape::Plain);
            chunks.push(Chunk {
                stream: tag,
                text: message,
            });
            return chunks;
        }
        let decoded = self.read_envelope(&message);
        let plain = Chunk {
            stream: None,
            text: message,
        };
        let Some(decoded) = decoded.filter(|_| self.shape != Shape::Plain) else {
            let shape = match self.shape {
                Shape::Unknown => Shape::Plain,
                known => known,
            };
            let mut chunks = self.release(shape);
            chunks.push(plain);
            return chunks;
        };
        let open = self.shape == Shape::Unknown && self.held.is_none() && !is_sure(&decoded);
        if open {
            self.held = Some((plain, decoded));
            return Vec::new();
        }
        let mut chunks = self.release(Shape::Envelope);
        chunks.extend(decoded);
        chunks
    }

    /// The chunks of a message that may be an envelope. Where plain text is known to come, one such message is looked at: the
    /// result may show that what told so was no text of the cell.
    fn read_envelope(&mut self, message: &str) -> Option<Vec<Chunk>> {
        let is_settled = self.shape == Shape::Plain && self.sample.is_some();
        if is_settled || !message.starts_with('{') || !message.ends_with('}') {
            return None;
        }
        let map = serde_json::from_str::<JsonMap>(message).ok()?;
        let decoded = Envelope::read(&map).accepted()?;
        let text: String = decoded.iter().map(|chunk| chunk.text.as_str()).collect();
        if self.sample.is_none() && !text.is_empty() {
            self.sample = Some((message.to_owned(), text));
        }
        Some(decoded)
    }

    /// What is still held, read as the result shows it to be; the result also corrects what was learned.
    pub fn settle(&mut self, result: &ExecuteCodeResult) -> Vec<Chunk> {
        if let Some((raw, text)) = self.sample.take() {
            let has = |needle: &str| {
                !needle.is_empty()
                    && (result.stdout.contains(needle) || result.stderr.contains(needle))
            };
            if has(&raw) {
                self.shape = Shape::Plain;
            } else if has(&text) {
                self.shape = Shape::Envelope;
            }
        }
        // What is held but in neither reading is in the result, and so is published from there.
        match self.shape {
            Shape::Unknown => {
                self.held = None;
                Vec::new()
            }
            shape => self.release(shape),
        }
    }

    /// Decides about what is held, and gives it out.
    fn release(&mut self, shape: Shape) -> Vec<Chunk> {
        self.shape = shape;
        match (self.held.take(), shape) {
            (None, _) => Vec::new(),
            (Some((_, decoded)), Shape::Envelope) => decoded,
            (Some((plain, _)), _) => vec![plain],
        }
    }
}

/// Whether these chunks can hardly be something that a user printed: a stream is named, or the newline is inside.
fn is_sure(chunks: &[Chunk]) -> bool {
    chunks
        .iter()
        .any(|chunk| chunk.stream.is_some() || chunk.text.ends_with('\n'))
}

/// What an object holds of text.
#[derive(Debug, Default)]
struct Envelope {
    chunks: Vec<Chunk>,
    /// Whether text stands in it, be it empty.
    has_text: bool,
    /// Whether it has members that are none of an envelope.
    has_others: bool,
    /// Whether all its text comes with a stream's name.
    is_named: bool,
}

impl Envelope {
    fn read(map: &JsonMap) -> Self {
        let mut read = Self::default();
        read.collect(map, None, MAX_DEPTH);
        read.is_named = read.chunks.iter().all(|chunk| chunk.stream.is_some());
        read.chunks.retain(|chunk| !chunk.text.is_empty());
        read
    }

    /// The chunks, if this is an envelope: text under a stream's name makes one, whatever else there is; without the name only
    /// what is known may stand beside the text.
    fn accepted(self) -> Option<Vec<Chunk>> {
        (self.has_text && (self.is_named || !self.has_others)).then_some(self.chunks)
    }

    fn collect(&mut self, map: &JsonMap, outer: Option<StreamName>, depth: usize) {
        let stream = own_stream(map).or(outer);
        let mut has_own = false;
        for (key, value) in map {
            let key = plain_key(key);
            let is_text = TEXT_KEYS.contains(&key.as_str());
            match (stream_named(&key), text_of(value)) {
                (Some(named), Some(text)) => self.push(Some(named), text),
                (None, Some(text)) if is_text && !has_own => {
                    has_own = true;
                    self.push(stream, text);
                }
                (None, Some(_)) if value.as_str().is_some_and(is_known_word) && !is_text => {}
                _ if depth > 0 && value.is_object() => {
                    if let Value::Object(inner) = value {
                        self.collect(inner, stream, depth - 1);
                    }
                }
                _ if depth > 0 && is_list_of_objects(value) => {
                    for inner in value.as_array().into_iter().flatten() {
                        if let Value::Object(inner) = inner {
                            self.collect(inner, stream, depth - 1);
                        }
                    }
                }
                _ => self.has_others |= !value.is_null() && !OTHER_KEYS.contains(&key.as_str()),
            }
        }
    }

    fn push(&mut self, stream: Option<StreamName>, text: String) {
        self.has_text = true;
        self.chunks.push(Chunk { stream, text });
    }
}

/// The stream that a member of this object names. (What stands under a key of text is text.)
fn own_stream(map: &JsonMap) -> Option<StreamName> {
    map.iter()
        .filter(|(key, _)| !TEXT_KEYS.contains(&plain_key(key).as_str()))
        .find_map(|(_, value)| value.as_str().and_then(stream_named))
}

/// A word that says which stream is meant, or of what kind the object is, as `"output_type": "stream"` does.
fn is_known_word(word: &str) -> bool {
    stream_named(word).is_some() || matches!(word, "stream" | "output" | "text" | "progress")
}

fn is_list_of_objects(value: &Value) -> bool {
    value
        .as_array()
        .is_some_and(|items| !items.is_empty() && items.iter().all(Value::is_object))
}

/// The stream that `_meta` names.
fn stream_of(meta: &JsonMap) -> Option<StreamName> {
    meta.iter().find_map(|(key, value)| match value {
        Value::String(name) => stream_named(name),
        Value::Bool(true) => stream_named(&plain_key(key)),
        Value::Object(inner) => stream_of(inner),
        _ => None,
    })
}

/// A key without its namespace, in lower case and without underscores: `colab.example/stream_name` is `streamname`.
fn plain_key(key: &str) -> String {
    key.rsplit(['/', '.'])
        .next()
        .unwrap_or(key)
        .chars()
        .filter(|c| !matches!(c, '_' | '-'))
        .flat_map(char::to_lowercase)
        .collect()
}

fn stream_named(name: &str) -> Option<StreamName> {
    // Nothing that was printed is taken for a name.
    if name.len() > 40 {
        return None;
    }
    let name = name.to_ascii_lowercase();
    match name.rsplit(['_', '.', '/']).next().unwrap_or_default() {
        "stdout" => Some(StreamName::Stdout),
        "stderr" => Some(StreamName::Stderr),
        _ => None,
    }
}

/// A string, or a list of strings as nbformat writes long ones.
fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => lines.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn message(text: &str) -> Progress {
        Progress {
            message: Some(text.to_owned()),
            ..Progress::default()
        }
    }

    fn tagged(text: &str, meta: Value) -> Progress {
        let Value::Object(meta) = meta else {
            panic!("meta is an object")
        };
        Progress {
            message: (!text.is_empty()).then(|| text.to_owned()),
            meta,
            ..Progress::default()
        }
    }

    fn chunk(stream: Option<StreamName>, text: &str) -> Chunk {
        Chunk {
            stream,
            text: text.to_owned(),
        }
    }

    const OUT: Option<StreamName> = Some(StreamName::Stdout);
    const ERR: Option<StreamName> = Some(StreamName::Stderr);

    #[test]
    fn plain_text_passes_as_it_is() {
        let mut decoder = Decoder::default();
        for text in [
            "a\n",
            " \r50%",
            "\u{1b}[31mred",
            "\0",
            "𝄞",
            "stderr: x",
            "{",
            "{}\n",
        ] {
            assert_eq!(decoder.decode(message(text)), [chunk(None, text)]);
        }
        assert_eq!(decoder.shape(), Shape::Plain);
    }

    #[test]
    fn envelopes_of_many_forms_are_read() {
        let cases = [
            (r#"{"stdout":"a"}"#, vec![chunk(OUT, "a")]),
            (r#"{"stderr":"b","stdout":""}"#, vec![chunk(ERR, "b")]),
            (r#"{"stream":"stderr","text":"x"}"#, vec![chunk(ERR, "x")]),
            (r#"{"name":"stdout","text":"x\n"}"#, vec![chunk(OUT, "x\n")]),
            (r#"{"channel":"STDERR","data":"x"}"#, vec![chunk(ERR, "x")]),
            (
                r#"{"output_type":"stream","name":"stderr","text":["a\n","b"]}"#,
                vec![chunk(ERR, "a\nb")],
            ),
            (
                r#"{"type":"stdout","content":"x","executionId":"1","sequenceNumber":3}"#,
                vec![chunk(OUT, "x")],
            ),
            (
                r#"{"msg_type":"stream","content":{"name":"stderr","text":"x"},"header":{}}"#,
                vec![chunk(ERR, "x")],
            ),
            (
                r#"{"stream":"STREAM_STDERR","data":{"text":"x"}}"#,
                vec![chunk(ERR, "x")],
            ),
            (
                r#"{"outputs":[{"stream":"stdout","text":"a"},{"stream":"stderr","text":"b"}]}"#,
                vec![chunk(OUT, "a"), chunk(ERR, "b")],
            ),
            (
                r#"{"streamType":"STDERR","payload":"x"}"#,
                vec![chunk(ERR, "x")],
            ),
            (
                r#"{"stdout":"a","stderr":"","result":null,"isFinal":false}"#,
                vec![chunk(OUT, "a")],
            ),
        ];
        for (text, expected) in cases {
            let mut decoder = Decoder::default();
            assert_eq!(decoder.decode(message(text)), expected, "{text}");
            assert_eq!(decoder.shape(), Shape::Envelope, "{text}");
        }
    }

    #[test]
    fn a_tag_in_meta_names_the_stream_of_the_message() {
        for meta in [
            json!({"stream": "stderr"}),
            json!({"colab.example/stream": "stderr"}),
            json!({"colab": {"streamName": "STREAM_STDERR"}}),
            json!({"stderr": true}),
            json!({"colab.example/outputStream": "STDERR"}),
            json!({"stderr": "x"}),
        ] {
            let mut decoder = Decoder::default();
            assert_eq!(
                decoder.decode(tagged("x", meta.clone())),
                [chunk(ERR, "x")],
                "{meta}"
            );
        }
    }

    #[test]
    fn a_tagged_message_that_looks_like_json_is_text() {
        let mut decoder = Decoder::default();
        let text = r#"{"text": "x"}"#;
        assert_eq!(
            decoder.decode(tagged(text, json!({"stream": "stdout"}))),
            [chunk(OUT, text)]
        );
    }

    #[test]
    fn text_in_meta_alone_is_found() {
        let mut decoder = Decoder::default();
        let meta = json!({"colab.example/stdout": "x", "other": 1});
        assert_eq!(decoder.decode(tagged("", meta)), [chunk(OUT, "x")]);
    }

    #[test]
    fn words_for_people_beside_the_text_in_meta_are_not_shown() {
        for meta in [
            json!({"colab.example/stderr": "x"}),
            json!({"colab.example/output": {"name": "stderr", "text": "x"}}),
        ] {
            let mut decoder = Decoder::default();
            assert_eq!(
                decoder.decode(tagged("Executing…", meta.clone())),
                [chunk(ERR, "x")],
                "{meta}"
            );
        }
    }

    #[test]
    fn printed_json_lines_are_not_unpacked() {
        let mut decoder = Decoder::default();
        let line = "{\"text\": \"x\"}\n";
        assert_eq!(decoder.decode(message(line)), [chunk(None, line)]);
        let bare = r#"{"stdout": "x"}"#;
        assert_eq!(decoder.decode(message(bare)), [chunk(None, bare)]);
    }

    #[test]
    fn json_of_other_keys_is_text() {
        for text in [
            r#"{"text": "x", "loss": 1}"#,
            r#"{"a": 1}"#,
            "{}",
            "[1]",
            "1",
            r#""s""#,
        ] {
            let mut decoder = Decoder::default();
            assert_eq!(decoder.decode(message(text)), [chunk(None, text)]);
        }
    }

    #[test]
    fn an_open_first_message_waits_for_the_next() {
        let bare = r#"{"text": "x"}"#;
        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(message(bare)), []);
        assert_eq!(
            decoder.decode(message("\n")),
            [chunk(None, bare), chunk(None, "\n")]
        );

        let mut decoder = Decoder::default();
        assert_eq!(decoder.decode(message(bare)), []);
        assert_eq!(
            decoder.decode(message(r#"{"text": "y"}"#)),
            [chunk(None, "x"), chunk(None, "y")]
        );
    }

    #[test]
    fn the_result_settles_an_open_message() {
        let bare = r#"{"text": "x"}"#;
        for (stdout, shape, expected) in [
            ("{\"text\": \"x\"}\n", Shape::Plain, bare),
            ("x", Shape::Envelope, "x"),
        ] {
            let mut decoder = Decoder::default();
            assert_eq!(decoder.decode(message(bare)), []);
            let result = ExecuteCodeResult {
                stdout: stdout.into(),
                ..ExecuteCodeResult::default()
            };
            assert_eq!(decoder.settle(&result), [chunk(None, expected)]);
            assert_eq!(decoder.shape(), shape);
        }
    }

    #[test]
    fn words_before_the_first_envelope_mislead_for_one_cell_only() {
        let mut decoder = Decoder::default();
        let envelope = r#"{"stream": "stdout", "text": "x"}"#;
        decoder.decode(message("Starting…"));
        assert_eq!(decoder.decode(message(envelope)), [chunk(None, envelope)]);
        let result = ExecuteCodeResult {
            stdout: "x".into(),
            ..ExecuteCodeResult::default()
        };
        decoder.settle(&result);
        assert_eq!(decoder.decode(message(envelope)), [chunk(OUT, "x")]);
    }

    #[test]
    fn the_result_corrects_what_was_learned() {
        let mut decoder = Decoder::default();
        let printed = r#"{"stream": "stdout", "text": "x"}"#;
        assert_eq!(decoder.decode(message(printed)), [chunk(OUT, "x")]);
        let result = ExecuteCodeResult {
            stdout: printed.into(),
            ..ExecuteCodeResult::default()
        };
        decoder.settle(&result);
        assert_eq!(decoder.shape(), Shape::Plain);
    }
}
