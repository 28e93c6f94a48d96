//! The backend of these tests, and the kernel over it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use colab_kernel::backend::{
    Answerer, Backend, BackendError, Cell, ErrorName, Event, EventSender, Exception, InputAnswer,
    JsonMap, Message, Origin, Outcome, Question, StreamName,
};
use colab_kernel::jupyter::ConnectionInfo;
use colab_kernel::kernel;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::client::{Client, connection_file};

/// What a question is answered with.
#[derive(Clone, Copy)]
pub enum Reply {
    With(&'static str),
    /// It is not answered while the test runs.
    Never,
    Panic,
}

/// A backend that gives expressions back as they are, and whose cells are words, one a line (see [`Scripted::word`]). A comm
/// message runs the words in its `data.code`; comms of the target `unknown` find nobody.
#[derive(Default)]
pub struct Scripted {
    pub ran: Mutex<Vec<String>>,
    pub setup: Mutex<Vec<String>>,
    pub comms: Mutex<Vec<Message>>,
    pub asked: Mutex<Vec<(Question, String)>>,
    pub replies: Mutex<HashMap<Question, Reply>>,
    pub background: Mutex<Option<EventSender>>,
    pub remembered: Mutex<Origin>,
    count: AtomicU32,
    open: Mutex<bool>,
    kept: Mutex<Vec<mpsc::Receiver<InputAnswer>>>,
}

/// How a word ended the cell.
enum Stop {
    Raised(Exception),
    Failed(BackendError),
}

pub fn stream(text: &str) -> Event {
    Event::Stream {
        name: StreamName::Stdout,
        text: text.to_owned(),
    }
}

fn map(value: Value) -> JsonMap {
    value.as_object().unwrap().clone()
}

fn exception(ename: &str, evalue: &str) -> Exception {
    Exception {
        ename: ename.into(),
        evalue: evalue.into(),
        traceback: vec![format!("{ename}: {evalue}")],
    }
}

pub fn message(msg_type: &str, content: &str, buffers: Vec<Bytes>) -> Message {
    Message {
        msg_type: msg_type.into(),
        content: RawValue::from_string(content.to_owned()).unwrap(),
        metadata: map(json!({"from": "the kernel"})),
        buffers,
    }
}

impl Scripted {
    /// Sends an event of the remembered cell while nothing is served.
    pub async fn later(&self, event: Event) {
        let event = Event::Of(self.remembered(), Box::new(event));
        self.background().send(event).await;
    }

    pub fn background(&self) -> EventSender {
        self.background.lock().unwrap().clone().unwrap()
    }

    pub fn reply(&self, question: Question, reply: Reply) {
        self.replies.lock().unwrap().insert(question, reply);
    }

    fn remembered(&self) -> Origin {
        self.remembered.lock().unwrap().clone()
    }

    async fn words(
        &self,
        code: &str,
        origin: &Origin,
        interrupt: &CancellationToken,
        events: &EventSender,
    ) -> Result<(), Stop> {
        for line in code.lines() {
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match self.word(word, rest, origin, interrupt, events).await {
                Err(Stop::Raised(exception)) => {
                    events.send(Event::Error(exception.clone())).await;
                    return Err(Stop::Raised(exception));
                }
                Err(stop) => return Err(stop),
                Ok(Some(event)) => events.send(event).await,
                Ok(None) => {}
            }
        }
        Ok(())
    }

    async fn word(
        &self,
        word: &str,
        rest: &str,
        origin: &Origin,
        interrupt: &CancellationToken,
        events: &EventSender,
    ) -> Result<Option<Event>, Stop> {
        let data = || map(json!({"text/plain": rest}));
        let shown = || map(json!({"display_id": "d"}));
        let event = match word {
            "print" => stream(&format!("{rest}\n")),
            "eprint" => Event::Stream {
                name: StreamName::Stderr,
                text: format!("{rest}\n"),
            },
            "notice" => Event::Notice(rest.into()),
            "submitted" => Event::Submitted,
            "result" => Event::ExecuteResult {
                data: data(),
                metadata: JsonMap::new(),
                execution_count: None,
            },
            "display" => Event::DisplayData {
                data: data(),
                metadata: map(json!({"isolated": true})),
                transient: shown(),
            },
            "update" => Event::UpdateDisplayData {
                data: data(),
                metadata: JsonMap::new(),
                transient: shown(),
            },
            "clear" => Event::ClearOutput {
                wait: rest == "wait",
            },
            "message" => {
                let (msg_type, content) = rest.split_once(' ').unwrap();
                let buffer = Bytes::from_static(b"\x00\xffraw");
                Event::Message(message(msg_type, content, vec![buffer]))
            }
            "remember" => {
                *self.remembered.lock().unwrap() = origin.clone();
                return Ok(None);
            }
            // What the remembered cell's thread prints while this one runs.
            "thread" => Event::Of(self.remembered(), Box::new(stream(&format!("{rest}\n")))),
            // The same, told by the other channel just before this cell goes on.
            "before" => {
                self.later(stream("one ")).await;
                self.later(stream(rest)).await;
                self.background().settled().await;
                return Ok(None);
            }
            "ask" | "secret" => return self.ask(rest, word == "secret", interrupt, events).await,
            // A prompt that is never withdrawn, though nobody waits for it.
            "forget" => {
                let (answer, answers) = Answerer::new();
                self.kept.lock().unwrap().push(answers);
                Event::InputRequest {
                    prompt: rest.into(),
                    password: false,
                    answer,
                }
            }
            "raise" => return Err(Stop::Raised(exception("ValueError", rest))),
            "wait" => {
                interrupt.cancelled().await;
                return Err(Stop::Raised(exception("KeyboardInterrupt", rest)));
            }
            "lose" => {
                let text = "it is gone; run the cell again";
                return Err(Stop::Failed(BackendError::new(
                    ErrorName::ColabSessionLost,
                    text,
                )));
            }
            "panic" => panic!("scripted"),
            other => panic!("unknown word {other}"),
        };
        Ok(Some(event))
    }

    async fn ask(
        &self,
        prompt: &str,
        password: bool,
        interrupt: &CancellationToken,
        events: &EventSender,
    ) -> Result<Option<Event>, Stop> {
        let (answer, mut answers) = Answerer::new();
        let request = Event::InputRequest {
            prompt: prompt.into(),
            password,
            answer,
        };
        events.send(request).await;
        let answer = tokio::select! {
            answer = answers.recv() => answer.unwrap(),
            () = interrupt.cancelled() => {
                return Err(Stop::Raised(exception("KeyboardInterrupt", "")));
            }
        };
        match answer {
            InputAnswer::Value(value) => Ok(Some(stream(&format!("got {value}\n")))),
            InputAnswer::Eof => Err(Stop::Raised(exception("EOFError", ""))),
            InputAnswer::Refused(why) => {
                Err(Stop::Raised(exception("StdinNotImplementedError", &why)))
            }
        }
    }
}

/// What the kernel is given; the test keeps the other handle.
pub struct Handle(Arc<Scripted>);

impl Backend for Handle {
    async fn execute(&self, cell: Cell, events: EventSender) -> Result<Outcome, BackendError> {
        let scripted = &self.0;
        scripted.ran.lock().unwrap().push(cell.code.clone());
        *scripted.open.lock().unwrap() = true;
        let mut outcome = Outcome {
            user_expressions: cell.user_expressions,
            payload: vec![json!({"source": "page", "data": {"text/plain": "doc"}, "start": 0})],
            ..Outcome::default()
        };
        if cell.store_history {
            let count = scripted.count.fetch_add(1, Ordering::SeqCst) + 1;
            outcome.execution_count = Some(count);
        }
        let ran = scripted
            .words(&cell.code, &cell.origin, &cell.interrupt, &events)
            .await;
        match ran {
            Ok(()) => {}
            Err(Stop::Raised(exception)) => outcome.exception = Some(exception),
            Err(Stop::Failed(error)) => {
                *scripted.open.lock().unwrap() = false;
                return Err(error);
            }
        }
        Ok(outcome)
    }

    fn attach(&self, background: EventSender) {
        *self.0.background.lock().unwrap() = Some(background);
    }

    async fn comm(
        &self,
        message: Message,
        origin: Origin,
        interrupt: CancellationToken,
        events: EventSender,
    ) -> bool {
        let content: Value = serde_json::from_str(message.content.get()).unwrap();
        self.0.comms.lock().unwrap().push(message);
        if content["target_name"] == "unknown" {
            return false;
        }
        let code = content["data"]["code"].as_str().unwrap_or("");
        let _ = self.0.words(code, &origin, &interrupt, &events).await;
        true
    }

    async fn ask(&self, question: Question, content: Box<RawValue>) -> Option<Box<RawValue>> {
        let asked = (question, content.get().to_owned());
        self.0.asked.lock().unwrap().push(asked);
        let reply = self.0.replies.lock().unwrap().get(&question).copied()?;
        match reply {
            Reply::With(content) => Some(RawValue::from_string(content.to_owned()).unwrap()),
            Reply::Panic => panic!("scripted"),
            Reply::Never => std::future::pending().await,
        }
    }

    fn has_session(&self) -> bool {
        *self.0.open.lock().unwrap()
    }

    fn keep_setup(&self, code: String) {
        self.0.setup.lock().unwrap().push(code);
    }

    fn next_execution_count(&self) -> u32 {
        self.0.count.load(Ordering::SeqCst) + 1
    }

    async fn shutdown(&self) {}
}

pub struct Fixture {
    pub client: Client,
    pub backend: Arc<Scripted>,
    pub kernel: JoinHandle<()>,
    pub file: PathBuf,
    _dir: TempDir,
}

pub async fn kernel() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let file = connection_file(dir.path());
    let backend = Arc::new(Scripted::default());
    let handle = Handle(backend.clone());
    let info = ConnectionInfo::load(&file).unwrap();
    let kernel = tokio::spawn(async move {
        kernel::run(info, handle, kernel::Options::default())
            .await
            .unwrap();
    });
    Fixture {
        client: Client::connect(&file).await,
        backend,
        kernel,
        file,
        _dir: dir,
    }
}
