//! Prompts on the stdin channel: `input_request` out, `input_reply` in.
//!
//! One task owns the socket and shows one prompt at a time. Invariants:
//!
//! * A prompt goes to the client that sent the cell and has the cell's request as its parent.
//! * Only what that client sends while the prompt is open answers it. What lies in the socket when a prompt is shown was meant
//!   for an earlier one and is dropped, as in ipykernel; so is a reply whose parent is another prompt. Replies without a parent
//!   are taken, because many clients send no other.
//! * A withdrawn prompt takes no answer any more, and lets the next one be shown.

use bytes::Bytes;
use futures_util::FutureExt;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::backend::{Answerer, InputAnswer};
use crate::jupyter::message::{OutMessage, Request};
use crate::jupyter::sockets::{Inbox, Outbox};

/// What the value of a reply is when the user ended the input (control-D), as in ipykernel.
const EOF: &str = "\x04";

/// One question to the user.
#[derive(Debug)]
pub struct Prompt {
    /// What is asked.
    pub text: String,
    /// Whether the answer is not to be shown.
    pub password: bool,
    /// Where the answer goes.
    pub answer: Answerer,
}

impl Prompt {
    /// Answers that nobody can answer.
    pub fn refuse(&self, why: &str) {
        self.answer.answer(InputAnswer::Refused(why.to_owned()));
    }
}

/// Asks the client of one request.
#[derive(Debug)]
pub struct Asker {
    stdin: Stdin,
    asked: Request,
    allowed: bool,
}

impl Asker {
    /// Asks the client that sent this request, if it allowed that.
    pub fn new(stdin: Stdin, asked: Request, allowed: bool) -> Self {
        Self {
            stdin,
            asked,
            allowed,
        }
    }

    /// Shows the prompt after those that are open.
    pub fn ask(&self, prompt: Prompt) {
        if !self.allowed {
            return prompt.refuse(
                "The front-end that runs this cell cannot be asked for input. Run the cell in JupyterLab, VS Code or a console, \
                 or give the value in the code",
            );
        }
        // The task ends only with the process.
        let _ = self.stdin.0.send((self.asked.clone(), prompt));
    }
}

/// A handle on the task that owns the stdin socket.
#[derive(Debug, Clone)]
pub struct Stdin(mpsc::UnboundedSender<(Request, Prompt)>);

impl Stdin {
    /// Starts the task.
    pub fn start(inbox: Inbox, outbox: Outbox) -> Self {
        let (sender, prompts) = mpsc::unbounded_channel();
        tokio::spawn(serve(inbox, outbox, prompts));
        Self(sender)
    }
}

async fn serve(
    mut inbox: Inbox,
    outbox: Outbox,
    mut prompts: mpsc::UnboundedReceiver<(Request, Prompt)>,
) {
    loop {
        tokio::select! {
            prompt = prompts.recv() => match prompt {
                Some((asked, prompt)) => show(&mut inbox, &outbox, &asked, &prompt).await,
                None => return,
            },
            message = inbox.recv() => match message {
                Some(message) => drop_unasked(&message),
                None => return,
            },
        }
    }
}

/// Shows one prompt, until it is answered or withdrawn.
async fn show(inbox: &mut Inbox, outbox: &Outbox, asked: &Request, prompt: &Prompt) {
    while let Some(Some(message)) = inbox.recv().now_or_never() {
        drop_unasked(&message);
    }
    if prompt.answer.withdrawn().now_or_never().is_some() {
        return;
    }
    let content = json!({"prompt": prompt.text, "password": prompt.password});
    let question = OutMessage::new("input_request", &asked.parent(), &content);
    let question_id = question.msg_id.to_string();
    outbox.send(asked.identities.clone(), question).await;
    loop {
        let message = tokio::select! {
            biased;
            () = prompt.answer.withdrawn() => return,
            message = inbox.recv() => message,
        };
        let Some(message) = message else {
            return;
        };
        if !answers(&message, asked, &question_id) {
            drop_unasked(&message);
            continue;
        }
        return prompt.answer.answer(answer(&message));
    }
}

/// Whether this is the answer to the prompt with this id.
fn answers(message: &Request, asked: &Request, question_id: &str) -> bool {
    #[derive(Deserialize)]
    struct ParentId {
        msg_id: String,
    }
    if message.msg_type() != "input_reply"
        || client(&message.identities) != client(&asked.identities)
    {
        return false;
    }
    match serde_json::from_str::<ParentId>(message.parent_header.get()) {
        Ok(parent) => {
            let known = [question_id, &asked.header.msg_id, ""];
            known.contains(&parent.msg_id.as_str())
        }
        Err(_) => true,
    }
}

fn client(identities: &[Bytes]) -> Option<&Bytes> {
    identities.first()
}

/// What was answered. A reply without a value is an empty line, as in ipykernel.
fn answer(message: &Request) -> InputAnswer {
    let value = message
        .content::<Value>()
        .ok()
        .and_then(|content| content.get("value")?.as_str().map(str::to_owned));
    match value {
        Some(value) if value == EOF => InputAnswer::Eof,
        Some(value) => InputAnswer::Value(value),
        None => {
            tracing::warn!("an input_reply has no text as its value");
            InputAnswer::Value(String::new())
        }
    }
}

fn drop_unasked(message: &Request) {
    tracing::debug!(?message, "nothing was asked on stdin that this answers");
}

/// A prompt of something that is no cell, or of another request's code.
pub fn refuse_outside_cells(prompt: &Prompt) {
    prompt.refuse("input() works only in a cell, while it runs: move the question into a cell");
}
