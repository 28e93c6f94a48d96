//! Reading an answer: the JSON-RPC messages in one HTTP body, whether it is one JSON value or a stream of server-sent events.
//!
//! Which of the two it is, is decided by the first byte that is not white space, because content types are sometimes missing or
//! wrong. Invariants:
//!
//! * Messages come out in the order in which they came in, each as soon as it is whole.
//! * Nothing is read ahead of the reader but what one network read brought: a reader that stops reading stops the sender.
//! * [`Answer::next`] can be dropped at any await and called again: no byte is lost.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use serde_json::value::RawValue;
use sse_stream::SseByteStream;

use super::errors::Status;
use super::http::Http;
use super::words;

/// The largest JSON body or event that is taken. Cells may print a lot, but memory is bounded.
const MESSAGE_BYTES: usize = 256 * 1024 * 1024;

type Chunks = Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send>>;

/// Why a body ended before its end.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error("{0}")]
    Lost(Status),
    #[error("a message is larger than {MESSAGE_BYTES} bytes")]
    TooLarge,
}

/// An answer that is being read.
pub(crate) struct Answer {
    form: Form,
    is_event_stream: bool,
    /// What the server called it, for errors about something that is neither.
    content_type: String,
}

enum Form {
    /// The first bytes, until they tell what the body is.
    Unknown {
        start: BytesMut,
        chunks: Chunks,
    },
    Json {
        body: BytesMut,
        chunks: Chunks,
    },
    /// Messages of a JSON body that are yet to be handed out.
    Parsed(VecDeque<String>),
    Events(Pin<Box<SseByteStream<Metered>>>),
    /// Neither: its beginning is collected for the error.
    Other {
        body: BytesMut,
        chunks: Chunks,
    },
    Ended,
}

impl Answer {
    pub(crate) fn new(response: Response, http: Http) -> Self {
        let content_type = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
            .to_ascii_lowercase();
        let chunks = response
            .bytes_stream()
            .map(move |chunk| chunk.map_err(|error| Broken::Lost(http.failure(&error))));
        Self::from_chunks(content_type, Box::pin(chunks))
    }

    fn from_chunks(content_type: String, chunks: Chunks) -> Self {
        Self {
            form: Form::Unknown {
                start: BytesMut::new(),
                chunks,
            },
            is_event_stream: content_type.starts_with("text/event-stream"),
            content_type,
        }
    }

    /// The text of the next JSON-RPC message; `None` at the body's end.
    pub(crate) async fn next(&mut self) -> Option<Result<String, Status>> {
        loop {
            match &mut self.form {
                Form::Unknown { start, chunks } => {
                    let chunk = match chunks.next().await {
                        Some(Ok(chunk)) => Some(chunk),
                        Some(Err(broken)) => return self.fail(broken),
                        None => None,
                    };
                    let is_end = chunk.is_none();
                    start.extend_from_slice(&chunk.unwrap_or_default());
                    self.decide(is_end);
                }
                Form::Json { body, chunks } => match chunks.next().await {
                    Some(Ok(chunk)) if body.len() + chunk.len() > MESSAGE_BYTES => {
                        return self.fail(Broken::TooLarge);
                    }
                    Some(Ok(chunk)) => body.extend_from_slice(&chunk),
                    Some(Err(broken)) => return self.fail(broken),
                    None => match messages_of(body) {
                        Ok(messages) => self.form = Form::Parsed(messages),
                        Err(status) => {
                            self.form = Form::Ended;
                            return Some(Err(status));
                        }
                    },
                },
                Form::Parsed(messages) => match messages.pop_front() {
                    Some(message) => return Some(Ok(message)),
                    None => self.form = Form::Ended,
                },
                Form::Events(events) => match events.next().await {
                    // Priming events and bare ids carry nothing to read.
                    Some(Ok(event)) => match event.data {
                        Some(data) if !data.trim().is_empty() => return Some(Ok(data)),
                        _ => {}
                    },
                    Some(Err(error)) => {
                        self.form = Form::Ended;
                        return Some(Err(status_of(error)));
                    }
                    None => self.form = Form::Ended,
                },
                Form::Other { body, chunks } => {
                    const ENOUGH: usize = 64 * 1024;
                    match chunks.next().await {
                        Some(Ok(chunk)) if body.len() + chunk.len() < ENOUGH => {
                            body.extend_from_slice(&chunk);
                        }
                        _ => {
                            let text = words::readable(&String::from_utf8_lossy(body));
                            self.form = Form::Ended;
                            return Some(Err(self.not_mcp(&text)));
                        }
                    }
                }
                Form::Ended => return None,
            }
        }
    }

    /// Decides what the body is as soon as its beginning tells.
    fn decide(&mut self, is_end: bool) {
        const BOM: &[u8] = b"\xEF\xBB\xBF";
        let Form::Unknown { start, .. } = &self.form else {
            return;
        };
        if !is_end && start.len() < BOM.len() && BOM.starts_with(start) {
            return;
        }
        let text = start.strip_prefix(BOM).unwrap_or(start);
        let first = text
            .iter()
            .find(|byte| !byte.is_ascii_whitespace())
            .copied();
        if first.is_none() && !is_end {
            return;
        }
        let bom = start.len() - text.len();
        // A field name may still be incomplete; the longest that matters is `event:`.
        let looks_like_events =
            [&b":"[..], b"data", b"event", b"id", b"retry"]
                .iter()
                .any(|field| {
                    let text = text.trim_ascii_start();
                    text.starts_with(field) || field.starts_with(text)
                });
        let Form::Unknown { mut start, chunks } = std::mem::replace(&mut self.form, Form::Ended)
        else {
            return;
        };
        self.form = match first {
            None => Form::Ended,
            Some(b'{' | b'[') => {
                let _ = start.split_to(bom);
                Form::Json {
                    body: start,
                    chunks,
                }
            }
            Some(_) if self.is_event_stream || looks_like_events => Form::Events(Box::pin(
                SseByteStream::new(Metered::new(start.freeze(), chunks)),
            )),
            Some(_) => Form::Other {
                body: start,
                chunks,
            },
        };
    }

    fn fail(&mut self, broken: Broken) -> Option<Result<String, Status>> {
        self.form = Form::Ended;
        Some(Err(broken.into_status()))
    }

    fn not_mcp(&self, text: &str) -> Status {
        let kind = match self.content_type.as_str() {
            "" => "something without a content type",
            kind => kind,
        };
        Status::protocol(format!(
            "The endpoint does not speak MCP: it answered with {kind}: {}",
            words::cut(&words::mask_secrets(text), 200)
        ))
    }
}

impl Broken {
    fn into_status(self) -> Status {
        match self {
            Self::Lost(status) => status,
            Self::TooLarge => Status::protocol(self.to_string()),
        }
    }
}

fn status_of(error: sse_stream::Error) -> Status {
    match error {
        sse_stream::Error::Body(inner) => match inner.downcast::<Broken>() {
            Ok(broken) => broken.into_status(),
            Err(other) => Status::lost(format!("The answer's stream broke: {other}")),
        },
        other => Status::protocol(format!("The answer's event stream is malformed: {other}")),
    }
}

/// The messages of a JSON body: one, or the members of a batch.
fn messages_of(body: &[u8]) -> Result<VecDeque<String>, Status> {
    let text = String::from_utf8_lossy(body);
    let text = text.trim();
    if text.starts_with('[') {
        let batch: Vec<Box<RawValue>> =
            serde_json::from_str(text).map_err(|error| truncated(&error))?;
        return Ok(batch
            .into_iter()
            .map(|message| message.get().to_owned())
            .collect());
    }
    // Whether it is whole is found out when it is parsed.
    Ok(VecDeque::from([text.to_owned()]))
}

/// JSON that stops short was cut on its way; JSON that is wrong was wrong from the start.
pub(crate) fn truncated(error: &serde_json::Error) -> Status {
    if error.is_eof() {
        Status::lost("The answer was cut short")
    } else {
        Status::protocol(format!("The answer is not JSON: {error}"))
    }
}

/// The chunks of an event stream, with a limit on what comes between two ends of an event, and an end of the last one where the
/// server left it out (the specification would have such an event thrown away).
struct Metered {
    chunks: Pin<Box<dyn Stream<Item = Result<Bytes, Broken>> + Send>>,
    since_blank: usize,
}

impl Metered {
    fn new(start: Bytes, chunks: Chunks) -> Self {
        let start = stream::iter([Ok(start)]);
        let end = stream::iter([Ok(Bytes::from_static(b"\n\n"))]);
        Self {
            chunks: Box::pin(start.chain(chunks).chain(end)),
            since_blank: 0,
        }
    }
}

impl Stream for Metered {
    type Item = Result<Bytes, Broken>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let polled = self.chunks.as_mut().poll_next(cx);
        if let Poll::Ready(Some(Ok(chunk))) = &polled {
            // An event ends with a blank line. One that straddles two chunks is missed here, which only makes the meter run a
            // little longer; the limit is no exact one.
            let ends = chunk
                .windows(2)
                .rposition(|pair| pair == b"\n\n" || pair == b"\n\r" || pair == b"\r\r");
            self.since_blank = match ends {
                Some(at) => chunk.len() - at,
                None => self.since_blank + chunk.len(),
            };
            if self.since_blank > MESSAGE_BYTES {
                return Poll::Ready(Some(Err(Broken::TooLarge)));
            }
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(content_type: &str, body: &[u8], size: usize) -> Vec<Result<String, Status>> {
        let chunks: Vec<Result<Bytes, Broken>> = body
            .chunks(size)
            .map(|chunk| Ok(Bytes::copy_from_slice(chunk)))
            .collect();
        let mut answer =
            Answer::from_chunks(content_type.to_owned(), Box::pin(stream::iter(chunks)));
        let mut messages = Vec::new();
        while let Some(message) = answer.next().await {
            messages.push(message);
        }
        messages
    }

    fn texts(messages: Vec<Result<String, Status>>) -> Vec<String> {
        messages.into_iter().map(Result::unwrap).collect()
    }

    #[tokio::test]
    async fn every_form_reads_the_same_however_it_is_split() {
        let events = "\u{feff}: hello\r\nid: 1\r\nevent: message\r\nretry: 10\r\ndata: {\"a\":\r\ndata: \"Grüße 🎈\"}\r\n\r\n\
                      : ping\r\n\r\nid: 2\r\ndata:\r\n\r\ndata:{\"b\":2}\r\n\r\n";
        for size in [1, 2, 3, 5, 7, 1000] {
            for kind in ["text/event-stream; charset=utf-8", "", "application/json"] {
                let got = texts(read(kind, events.as_bytes(), size).await);
                assert_eq!(
                    got,
                    ["{\"a\":\n\"Grüße 🎈\"}", "{\"b\":2}"],
                    "{kind} {size}"
                );
            }
            for kind in ["application/json; charset=utf-8", "", "text/event-stream"] {
                let got = texts(read(kind, "\u{feff} {\"ü\":1}\n".as_bytes(), size).await);
                assert_eq!(got, ["{\"ü\":1}"], "{kind} {size}");
                let batch = texts(read(kind, b"[{\"a\":1}, {\"b\":2}]", size).await);
                assert_eq!(batch, ["{\"a\":1}", "{\"b\":2}"]);
            }
        }
    }

    #[tokio::test]
    async fn a_last_event_without_its_blank_line_is_kept() {
        assert_eq!(
            texts(read("text/event-stream", b"data: {\"a\":1}", 4).await),
            ["{\"a\":1}"]
        );
        assert_eq!(
            texts(read("text/event-stream", b"data: {\"a\":1}\n", 4).await),
            ["{\"a\":1}"]
        );
    }

    #[tokio::test]
    async fn an_empty_body_has_no_messages() {
        assert!(read("application/json", b"", 1).await.is_empty());
        assert!(read("text/event-stream", b"\r\n\r\n", 1).await.is_empty());
    }

    #[tokio::test]
    async fn a_page_is_a_named_protocol_error() {
        let got = read("text/html", b"<html><title>Sign in</title></html>", 4).await;
        let status = got[0].clone().unwrap_err();
        assert_eq!(status.origin, super::super::errors::Origin::Protocol);
        assert!(status.message.contains("Sign in"), "{}", status.message);
    }

    #[tokio::test]
    async fn a_large_event_is_read_whole() {
        let body = format!("data: \"{}\"\n\n", "x".repeat(65 * 1024 * 1024));
        let got = texts(read("text/event-stream", body.as_bytes(), 128 * 1024).await);
        assert_eq!(got[0].len(), 65 * 1024 * 1024 + 2);
    }
}
