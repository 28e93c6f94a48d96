//! The companion: the session's own kernel, reached through the runtime's Jupyter server beside `execute_code`.
//!
//! [`find`] tells which kernel is ours, [`rest`] asks the server, [`channels`] speaks to the kernel and [`wire`] says how its
//! messages look on a WebSocket. [`link`] keeps one connection up; over it `bootstrap.py` is installed, which numbers and journals
//! what the kernel publishes. [`journal`] reads that in order, from [`sequence`], and [`activity`] hands it to what runs;
//! [`events`] puts it in the backend's words, and [`page`] answers what code asks of Colab's web page. [`Companion`] is all of
//! it. It is a gain, never a need: where it cannot be had, cells run as text over `execute_code`.

pub mod activity;
pub mod channels;
pub mod events;
#[cfg(test)]
pub(super) mod fake_kernel;
pub mod find;
pub mod journal;
pub mod link;
pub mod page;
mod pulse;
mod pump;
pub mod rest;
pub mod sequence;
#[cfg(test)]
mod tests;
pub mod wire;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::timeout;

use self::activity::{Activity, ExecuteReply, Expect, Routes};
use self::journal::{Journal, Reader};
use self::link::{Address, Away, Health, Link, Loss, Target};
use self::page::Page;
use self::wire::{Channel, Message};
use super::api::ConnectionInfo;
use super::helper;
use super::runtime_http::RuntimeHttp;
use crate::backend::{self, EventSender, InputAnswer, Origin};

const BOOTSTRAP: &str = include_str!("bootstrap.py");

/// The journal's size, where nothing else is asked for.
pub const JOURNAL_BYTES: u64 = 64 * 1024 * 1024;

/// How long the whole way to an installed bootstrap may take: a session's kernel may be starting.
const START_LIMIT: Duration = Duration::from_secs(20);
/// How long an interrupt may take to be answered before it is sent in the other way.
const INTERRUPT_LIMIT: Duration = Duration::from_secs(2);

/// What the user wants of the companion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompanionSettings {
    /// The size of the journal in bytes.
    pub journal_bytes: u64,
    /// Local variables that code on Colab gets, by name.
    pub forwarded: Page,
}

/// Where to begin.
pub(super) struct Setup {
    pub http: RuntimeHttp,
    /// The runtime's proxy, as it is known now.
    pub info: ConnectionInfo,
    /// How to learn it anew.
    pub address: Address,
    /// The kernel's id.
    pub kernel: String,
    /// Where goes what runs outside of cells.
    pub background: EventSender,
    /// The number that the next cell shall get, where no cell of the user has run.
    pub count: u32,
    pub settings: CompanionSettings,
}

/// The session's kernel, with the bootstrap in it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Companion {
    link: Link,
    journal: Journal,
    routes: Arc<Routes>,
    http: RuntimeHttp,
    address: Hidden,
    kernel: Arc<str>,
}

/// An [`Address`] of which [`std::fmt::Debug`] shows nothing.
#[derive(Clone)]
struct Hidden(Address);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Address")
    }
}

/// Code that is run by a request of our own.
#[derive(Debug, Clone)]
pub struct OwnRequest {
    /// The source.
    pub code: String,
    /// Whether nothing of it is published.
    pub silent: bool,
    /// Whether it may ask for input.
    pub allow_stdin: bool,
    /// Expressions to evaluate afterwards.
    pub user_expressions: backend::JsonMap,
}

impl Companion {
    /// Connects to the kernel and installs the bootstrap. The error says why not, in words for the log.
    pub(super) async fn start(setup: Setup) -> Result<Self, String> {
        timeout(START_LIMIT, Self::try_start(setup))
            .await
            .map_err(|_| "the session's kernel did not answer in time".to_owned())?
    }

    async fn try_start(setup: Setup) -> Result<Self, String> {
        let target = Target {
            http: setup.http.clone(),
            address: setup.address.clone(),
            kernel: setup.kernel.clone(),
        };
        let (link, inbox) = Link::open(target, &setup.info)
            .await
            .map_err(|error| error.to_string())?;
        let call = format!(
            "\ninstall(count={}, limit={}, marker={})\n",
            setup.count,
            setup.settings.journal_bytes,
            helper::literal(helper::MARKER),
        );
        let code = format!(
            "exec(compile({}, '<colab-kernel>', 'exec'), {{'__name__': 'colab_kernel_companion'}})",
            helper::literal(&format!("{BOOTSTRAP}{call}")),
        );
        let nothing = backend::JsonMap::new();
        // Nothing is read from the journal so far.
        let reply = again(&link, || execute(&link, &code, &nothing, |_| {}))
            .await
            .map_err(|away| away.to_string())?;
        if reply.status.as_deref() == Some("error") {
            return Err(format!(
                "the bootstrap failed: {}: {}",
                reply.ename, reply.evalue
            ));
        }
        let status = again(&link, || link.ask("ck_status_request", &json!({})))
            .await
            .map_err(|away| away.to_string())?
            .content::<Standing>()
            .map_err(|_| "the bootstrap does not answer".to_owned())?;
        let variables = setup.settings.forwarded.secrets();
        if !variables.is_empty() {
            let variables: serde_json::Map<String, Value> = variables
                .iter()
                .map(|(name, value)| (name.clone(), value.as_str().into()))
                .collect();
            let content = json!({"variables": variables});
            if again(&link, || link.ask("ck_environ_request", &content))
                .await
                .map_err(|away| away.to_string())?
                .content::<Standing>()
                .is_err()
            {
                tracing::warn!("the variables of COLAB_KERNEL_FORWARD_ENV could not be set");
            }
        }
        link.arm();
        let routes = Arc::new(Routes::default());
        let journal = Journal::start(Reader {
            link: link.clone(),
            inbox,
            routes: routes.clone(),
            background: setup.background,
            page: setup.settings.forwarded,
            id: status.journal,
            position: status.last,
        });
        tracing::info!(numbering = status.numbering, "the companion is installed");
        Ok(Self {
            link,
            journal,
            routes,
            http: setup.http,
            address: Hidden(setup.address),
            kernel: setup.kernel.into(),
        })
    }

    /// How the connection is.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.link.health()
    }

    /// Whether the kernel is still the one with our bootstrap.
    pub fn is_lost(&self) -> bool {
        matches!(*self.link.health().borrow(), Health::Lost(_))
    }

    /// Whether the kernel went with its runtime.
    pub fn is_without_runtime(&self) -> bool {
        *self.link.health().borrow() == Health::Lost(Loss::Runtime)
    }

    /// Whether the connection has been lost for so long, or longer.
    pub fn is_away_for(&self, time: Duration) -> bool {
        matches!(*self.link.health().borrow(), Health::Away(since) if since.elapsed() >= time)
    }

    /// The reader of the journal.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Waits for the execution of this code, which the service is about to be given.
    pub fn expect(&self, code: String, origin: Origin) -> Activity {
        let after = self.journal.position();
        self.routes.begin(Expect::Code(code), origin, after)
    }

    /// Learns by which session the service's requests are known.
    pub fn confirm_service(&self, session: &str) {
        self.routes.confirm_service(session);
    }

    /// The service is not always known by the same session.
    pub fn forget_service(&self) {
        self.routes.forget_service();
    }

    /// Runs code by a request of our own. The reply comes when the kernel has run it, or never if the connection is lost.
    pub fn run(
        &self,
        request: OwnRequest,
        origin: Origin,
    ) -> (
        Activity,
        impl Future<Output = Result<ExecuteReply, Away>> + Send + use<>,
    ) {
        let message = execute_request(&self.link, &request);
        let activity = self.begin_own(&message, origin);
        let link = self.link.clone();
        let reply = async move {
            let reply = link.request(message).await?;
            Ok(reply.content().unwrap_or_default())
        };
        (activity, reply)
    }

    /// Hands a comm message to the kernel.
    pub fn comm(&self, message: backend::Message, origin: Origin) -> Activity {
        let mut own = Message::new(
            Channel::Shell,
            self.link.session(),
            &message.msg_type,
            &message.content,
        );
        if !message.metadata.is_empty() {
            own.metadata = serde_json::to_vec(&message.metadata)
                .map_or_else(|_| own.metadata.clone(), Bytes::from);
        }
        own.buffers = message.buffers;
        let activity = self.begin_own(&own, origin);
        self.link.send(own);
        activity
    }

    fn begin_own(&self, message: &Message, origin: Origin) -> Activity {
        let id = message.id().unwrap_or_default();
        let after = self.journal.position();
        self.routes.begin(Expect::Own(id), origin, after)
    }

    /// Runs code of which nothing is shown.
    pub async fn run_silently(&self, code: &str) -> Result<ExecuteReply, Away> {
        let discard = |id| self.routes.discard(id);
        execute(&self.link, code, &backend::JsonMap::new(), discard).await
    }

    /// Runs code of which nothing is shown and that may run twice, until its reply has come.
    pub async fn insist_silently(&self, code: &str) -> Result<ExecuteReply, Away> {
        again(&self.link, || self.run_silently(code)).await
    }

    /// Evaluates expressions, silently.
    pub async fn evaluate(&self, expressions: &backend::JsonMap) -> Result<backend::JsonMap, Away> {
        let reply = execute(&self.link, "", expressions, |_| {}).await?;
        Ok(reply.user_expressions)
    }

    /// Asks the kernel, and returns the content of its reply.
    pub async fn ask(
        &self,
        channel: Channel,
        msg_type: &str,
        content: &RawValue,
    ) -> Result<Box<RawValue>, Away> {
        for _ in 0..2 {
            let message = Message::new(channel, self.link.session(), msg_type, &content);
            let reply = self.link.request(message).await?;
            let is_aborted = reply
                .content::<ExecuteReply>()
                .is_ok_and(|reply| reply.status.as_deref() == Some("aborted"));
            if !is_aborted {
                return reply.content().map_err(|_| Away);
            }
        }
        Err(Away)
    }

    /// Interrupts whatever the kernel runs: on its control channel, or else through its server.
    pub async fn interrupt(&self) {
        let asked = self.link.ask("interrupt_request", &json!({}));
        if let Ok(Ok(_)) = timeout(INTERRUPT_LIMIT, asked).await {
            return;
        }
        let outcome = match (self.address.0)().await {
            Ok(info) => rest::interrupt(&self.http, &info, &self.kernel)
                .await
                .map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        if let Err(error) = outcome {
            tracing::info!(error, "the kernel could not be interrupted");
        }
    }

    /// Answers a prompt, however long it takes to reach the kernel.
    pub async fn answer(&self, key: &str, answer: InputAnswer) {
        let content = match answer {
            InputAnswer::Value(value) => json!({"key": key, "value": value}),
            InputAnswer::Eof => json!({"key": key, "eof": true}),
            InputAnswer::Refused(why) => json!({"key": key, "refused": why}),
        };
        while self.link.ask("ck_answer_request", &content).await.is_err() {
            if !self.link.is_back().await {
                return;
            }
        }
    }

    /// Whether the execution that the running activity has adopted, or one of its code, is over, goes on, or never began.
    pub async fn fate(&self) -> Fate {
        match timeout(FATE_LIMIT, self.link.is_back()).await {
            Ok(true) => {}
            Ok(false) => return Fate::Lost,
            Err(_) => return Fate::Unknown,
        }
        let mut told = self.journal.told();
        let sent = told.borrow_and_update().sent;
        self.journal.poke();
        let answered = told.wait_for(|told| told.polls > sent && told.caught_up);
        if !matches!(timeout(FATE_LIMIT, answered).await, Ok(Ok(_))) {
            return Fate::Unknown;
        }
        Fate::Told
    }

    /// Takes the bootstrap out of the kernel.
    pub async fn uninstall(&self) {
        let asked = self.link.ask("ck_uninstall_request", &json!({}));
        let _ = timeout(INTERRUPT_LIMIT, asked).await;
    }
}

/// How long the journal may take to decide whether a call is repeated.
const FATE_LIMIT: Duration = Duration::from_secs(15);

/// What the journal can say of a cell whose call was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It was asked: what the activity has heard by now is all there is.
    Told,
    /// The kernel is another one.
    Lost,
    /// It cannot be asked.
    Unknown,
}

#[derive(Debug, Deserialize)]
struct Standing {
    journal: String,
    last: u64,
    #[serde(default)]
    numbering: String,
}

/// How often a question of the beginning is asked, over a connection that is lost again and again.
const ATTEMPTS: usize = 10;

/// Asks again what does no harm when it is asked twice, where the connection was lost over it.
async fn again<T, F>(link: &Link, ask: impl Fn() -> F) -> Result<T, Away>
where
    F: Future<Output = Result<T, Away>>,
{
    for _ in 1..ATTEMPTS {
        if let Ok(answer) = ask().await {
            return Ok(answer);
        }
        if !link.is_back().await {
            return Err(Away);
        }
    }
    ask().await
}

/// A request that neither counts nor aborts what is queued behind it.
fn execute_request(link: &Link, request: &OwnRequest) -> Message {
    let content = json!({
        "code": request.code,
        "silent": request.silent,
        "store_history": false,
        "user_expressions": request.user_expressions,
        "allow_stdin": request.allow_stdin,
        "stop_on_error": false,
    });
    Message::new(Channel::Shell, link.session(), "execute_request", &content)
}

/// A silent request, whose id is told before it is sent. One that comes back aborted, because somebody else's cell has failed, is sent again.
async fn execute(
    link: &Link,
    code: &str,
    expressions: &backend::JsonMap,
    announce: impl Fn(String),
) -> Result<ExecuteReply, Away> {
    let request = OwnRequest {
        code: code.to_owned(),
        silent: true,
        allow_stdin: false,
        user_expressions: expressions.clone(),
    };
    let mut reply = ExecuteReply::default();
    for _ in 0..2 {
        let message = execute_request(link, &request);
        announce(message.id().unwrap_or_default());
        reply = link.request(message).await?.content().unwrap_or_default();
        if reply.status.as_deref() != Some("aborted") {
            break;
        }
    }
    Ok(reply)
}
