//! Accounts and their runtimes.
//!
//! A bearer token names an account. Invariants:
//!
//! * An account has at most as many runtimes as the quirk says, those that are still starting included.
//! * Creating goes on when its caller has left, as it does in a cloud.
//! * A proxy token is good for one runtime and for as long as the quirk says.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{SecondsFormat, Utc};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::counters::Counters;
use super::errors::{Code, Failure, locked};
use super::proxy;
use super::python::Python;
use super::quirks::Quirks;
use super::server::JupyterServer;
use super::sessions::Session;
use super::specs::SpecKey;

/// What runtimes are made of.
pub(super) struct Workshop {
    pub python: Python,
    pub directory: PathBuf,
    pub http: reqwest::Client,
    pub quirks: Arc<Quirks>,
    pub counters: Arc<Counters>,
    /// Cancelled when the emulator ends: nothing is created any more, and what is being created ends.
    pub closing: CancellationToken,
}

/// A user.
#[derive(Default)]
pub(super) struct Account {
    state: Mutex<AccountState>,
}

#[derive(Default)]
struct AccountState {
    /// In the order of their creation.
    runtimes: Vec<Arc<Runtime>>,
    starting: Vec<String>,
    operations: HashMap<String, Arc<Operation>>,
    recent_calls: Vec<Instant>,
}

/// What `create_runtime` asks for.
pub(super) struct Wanted {
    pub spec: SpecKey,
    pub version: String,
    pub runtime_id: Option<String>,
    pub request_id: Option<String>,
}

/// A runtime being created.
pub(super) struct Operation {
    /// `operations/{id}`
    pub name: String,
    request_id: Option<String>,
    outcome: watch::Receiver<Option<Result<Arc<Runtime>, Failure>>>,
}

impl Operation {
    /// The runtime, when it is ready.
    pub async fn done(&self) -> Result<Arc<Runtime>, Failure> {
        let mut outcome = self.outcome.clone();
        let outcome = outcome.wait_for(Option::is_some).await;
        let lost = || Failure::new(Code::Internal, "INTERNAL", "The operation was lost");
        outcome.map_err(|_| lost())?.clone().ok_or_else(lost)?
    }

    /// `google.longrunning.Operation`
    pub fn json(&self) -> Value {
        match &*self.outcome.borrow() {
            None => json!({"name": self.name}),
            Some(Ok(runtime)) => {
                json!({"name": self.name, "done": true, "response": runtime.json()})
            }
            Some(Err(failure)) => {
                json!({"name": self.name, "done": true, "error": failure.status()})
            }
        }
    }
}

impl Account {
    /// Counts a tool call against the rate.
    pub fn count_call(&self, rate: Option<u32>) -> Result<(), Failure> {
        let Some(rate) = rate else { return Ok(()) };
        let window = Duration::from_secs(1);
        let now = Instant::now();
        let recent = &mut locked(&self.state).recent_calls;
        recent.retain(|call| now.duration_since(*call) < window);
        if let Some(oldest) = recent.first().filter(|_| recent.len() >= rate as usize) {
            let mut failure = Failure::new(
                Code::ResourceExhausted,
                "RATE_LIMIT_EXCEEDED",
                format!("More than {rate} calls per second; the call did not run"),
            );
            failure.retry_after = Some(window.saturating_sub(now.duration_since(*oldest)));
            return Err(failure);
        }
        recent.push(now);
        Ok(())
    }

    /// All runtimes that answer.
    pub fn runtimes(&self) -> Vec<Arc<Runtime>> {
        locked(&self.state).runtimes.clone()
    }

    /// Begins to end all runtimes.
    pub fn end(&self) {
        for runtime in self.runtimes() {
            runtime.end();
        }
    }

    /// Resolves when all runtimes that were told to end are gone, those included that were still starting.
    pub async fn ended(&self) {
        let operations: Vec<_> = locked(&self.state).operations.values().cloned().collect();
        for operation in operations {
            if let Ok(runtime) = operation.done().await {
                runtime.server.ended().await;
            }
        }
    }

    /// A runtime by its id.
    pub fn runtime(&self, id: &str) -> Result<Arc<Runtime>, Failure> {
        let state = locked(&self.state);
        let found = state.runtimes.iter().find(|runtime| runtime.id == id);
        found
            .cloned()
            .ok_or_else(|| Failure::not_found(&format!("runtimes/{id}")))
    }

    /// An operation by its full name.
    pub fn operation(&self, name: &str) -> Option<Arc<Operation>> {
        locked(&self.state).operations.get(name).cloned()
    }

    /// Removes a runtime and begins to end it.
    pub fn remove(&self, id: &str) -> Option<Arc<Runtime>> {
        let mut state = locked(&self.state);
        let at = state.runtimes.iter().position(|runtime| runtime.id == id)?;
        let runtime = state.runtimes.remove(at);
        runtime.end();
        Some(runtime)
    }

    /// Begins to create a runtime; the same request id gives the same operation.
    pub fn create(
        self: &Arc<Self>,
        wanted: Wanted,
        workshop: &Arc<Workshop>,
    ) -> Result<Arc<Operation>, Failure> {
        let mut state = locked(&self.state);
        if workshop.closing.is_cancelled() {
            return Err(closing());
        }
        let earlier = state.operations.values().find(|operation| {
            wanted.request_id.is_some() && operation.request_id == wanted.request_id
        });
        if let Some(earlier) = earlier {
            return Ok(earlier.clone());
        }
        let random = || format!("r-{}", &Uuid::new_v4().simple().to_string()[..12]);
        let id = wanted.runtime_id.clone().unwrap_or_else(random);
        if state.starting.contains(&id) || state.runtimes.iter().any(|known| known.id == id) {
            return Err(Failure::new(
                Code::AlreadyExists,
                "RESOURCE_ALREADY_EXISTS",
                format!("Resource 'runtimes/{id}' already exists"),
            ));
        }
        let limit = workshop.quirks.runtimes;
        if state.runtimes.len() + state.starting.len() >= limit {
            return Err(Failure::new(
                Code::FailedPrecondition,
                "TOO_MANY_ACTIVE_RUNTIMES",
                format!(
                    "The account has {limit} active runtimes, which is the limit; delete one first"
                ),
            )
            .with("limit", limit.to_string()));
        }
        state.starting.push(id.clone());
        let (sender, outcome) = watch::channel(None);
        let operation = Arc::new(Operation {
            name: format!("operations/{}", Uuid::new_v4()),
            request_id: wanted.request_id,
            outcome,
        });
        state
            .operations
            .insert(operation.name.clone(), operation.clone());
        drop(state);

        let (account, workshop) = (self.clone(), workshop.clone());
        tokio::spawn(async move {
            let started = Runtime::start(id.clone(), wanted.spec, wanted.version, &workshop).await;
            let mut state = locked(&account.state);
            state.starting.retain(|starting| *starting != id);
            if let Ok(runtime) = &started {
                state.runtimes.push(runtime.clone());
                // The emulator ends the runtimes that it finds in the list: this one came too late to be found.
                if workshop.closing.is_cancelled() {
                    runtime.end();
                }
            }
            drop(state);
            sender.send_replace(Some(started));
        });
        Ok(operation)
    }
}

/// A machine of an account.
pub(super) struct Runtime {
    /// The last part of its name.
    pub id: String,
    spec: SpecKey,
    version: String,
    pub server: Arc<JupyterServer>,
    quirks: Arc<Quirks>,
    counters: Arc<Counters>,
    url: String,
    tokens: Mutex<Vec<(String, Instant)>>,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Sessions are opened one at a time, so that two calls for one name get one session.
    turnstile: Semaphore,
    proxy: Mutex<Option<AbortHandle>>,
}

impl Runtime {
    async fn start(
        id: String,
        spec: SpecKey,
        version: String,
        workshop: &Workshop,
    ) -> Result<Arc<Self>, Failure> {
        tokio::select! {
            () = tokio::time::sleep(workshop.quirks.boot) => {}
            () = workshop.closing.cancelled() => return Err(closing()),
        }
        let unavailable = |error: std::io::Error| {
            Failure::new(
                Code::Internal,
                "INTERNAL",
                format!("No port is free: {error}"),
            )
        };
        let listener = TcpListener::bind(("127.0.0.1", 0))
            .await
            .map_err(unavailable)?;
        let address = listener.local_addr().map_err(unavailable)?;
        // Not the id: the same id may be created again while the earlier one's directory is being removed. Short, because
        // Python makes unix sockets below it, whose paths have 104 bytes.
        let name = Uuid::new_v4().simple().to_string();
        let server = JupyterServer::start(workshop, workshop.directory.join(&name[..8])).await?;
        let runtime = Arc::new(Self {
            id,
            spec,
            version,
            server,
            quirks: workshop.quirks.clone(),
            counters: workshop.counters.clone(),
            url: format!("http://{address}"),
            tokens: Mutex::default(),
            sessions: Mutex::default(),
            turnstile: Semaphore::new(1),
            proxy: Mutex::default(),
        });
        let proxy = tokio::spawn(proxy::serve(listener, runtime.clone(), workshop));
        *locked(&runtime.proxy) = Some(proxy.abort_handle());
        Ok(runtime)
    }

    /// Its resource name.
    pub fn name(&self) -> String {
        format!("runtimes/{}", self.id)
    }

    /// `Runtime`, with a fresh proxy token.
    pub fn json(&self) -> Value {
        let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let life = self.quirks.token;
        let expiry = Utc::now() + life;
        let mut tokens = locked(&self.tokens);
        tokens.retain(|(_, expiry)| Instant::now() < *expiry);
        tokens.push((token.clone(), Instant::now() + life));
        let mut json = json!({
            "name": self.name(),
            "runtimeSpec": self.spec.json(),
            "connectionInfo": {
                "token": token,
                "expireTime": expiry.to_rfc3339_opts(SecondsFormat::Micros, true),
                "url": self.url,
            },
        });
        if !self.version.is_empty() {
            json["version"] = self.version.clone().into();
        }
        json
    }

    /// Whether a proxy token is one of its own and still good.
    pub fn takes(&self, token: &str) -> bool {
        let tokens = locked(&self.tokens);
        let mut known = tokens.iter();
        known.any(|(known, expiry)| known == token && Instant::now() < *expiry)
    }

    /// The names of all open sessions, whoever opened them.
    pub async fn session_names(&self) -> Result<Vec<String>, Failure> {
        let listed = self.server.sessions().await?;
        let known = locked(&self.sessions);
        let names = listed.iter().map(|jupyter| {
            let ours = known
                .values()
                .find(|session| session.jupyter.id == jupyter.id);
            let foreign = || self.session_name(&jupyter.id);
            ours.map_or_else(foreign, |session| session.name.clone())
        });
        Ok(names.collect())
    }

    /// The session of this id: the open one, or a new one. A name for a new one must follow RFC 1034.
    pub async fn open_session(&self, id: &str) -> Result<Arc<Session>, Failure> {
        let _turn = self.turnstile.acquire().await;
        if let Some(open) = self.find_session(id).await? {
            return Ok(open);
        }
        check_session_id(id)?;
        let jupyter = self.server.open_session(id).await?;
        Ok(self.keep_session(id, jupyter))
    }

    /// Opens a session that was given no id.
    pub async fn open_random_session(&self) -> Result<Arc<Session>, Failure> {
        let id = Uuid::new_v4().to_string();
        let _turn = self.turnstile.acquire().await;
        let jupyter = self.server.open_session(&id).await?;
        Ok(self.keep_session(&id, jupyter))
    }

    /// Ends the calls of a session and its kernel.
    pub async fn delete_session(&self, id: &str) -> Result<(), Failure> {
        let _turn = self.turnstile.acquire().await;
        let Some(session) = self.find_session(id).await? else {
            return Err(Failure::not_found(&self.session_name(id)));
        };
        locked(&self.sessions).remove(id);
        session.close();
        self.server.delete_session(&session.jupyter.id).await
    }

    /// The open session of this id. The Jupyter Server knows what is open: others may open and close sessions there.
    async fn find_session(&self, id: &str) -> Result<Option<Arc<Session>>, Failure> {
        let known = locked(&self.sessions).get(id).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.is_connected()) {
            return Ok(Some(known.clone()));
        }
        let listed = self.server.sessions().await?;
        if let Some(known) = known {
            let same = |jupyter: &&super::server::JupyterSession| {
                jupyter.id == known.jupyter.id && jupyter.kernel.id == known.jupyter.kernel.id
            };
            if listed.iter().any(|jupyter| same(&jupyter)) {
                return Ok(Some(known));
            }
            known.close();
            locked(&self.sessions).remove(id);
        }
        let foreign = listed.into_iter().find(|jupyter| jupyter.id == id);
        Ok(foreign.map(|jupyter| self.keep_session(id, jupyter)))
    }

    fn keep_session(&self, id: &str, jupyter: super::server::JupyterSession) -> Arc<Session> {
        let session = Session::new(
            self.session_name(id),
            jupyter,
            self.server.clone(),
            self.quirks.clone(),
            self.counters.clone(),
        );
        locked(&self.sessions).insert(id.to_owned(), session.clone());
        session
    }

    fn session_name(&self, id: &str) -> String {
        format!("runtimes/{}/sessions/{id}", self.id)
    }

    /// Begins to end it: its calls, its proxy, its processes.
    pub fn end(&self) {
        for (_, session) in locked(&self.sessions).drain() {
            session.close();
        }
        if let Some(proxy) = locked(&self.proxy).take() {
            proxy.abort();
        }
        self.server.end();
    }
}

/// The failure of what is asked for while the emulator ends.
fn closing() -> Failure {
    Failure::new(
        Code::Unavailable,
        "SHUTTING_DOWN",
        "The local Colab is ending",
    )
}

/// RFC 1034 as the reference words it: 1 to 63 of a-z, 0-9 and hyphen, a letter first, a letter or digit last.
pub(super) fn check_session_id(id: &str) -> Result<(), Failure> {
    let ends = id.starts_with(|c: char| c.is_ascii_lowercase()) && !id.ends_with('-');
    let all = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if ends && id.len() <= 63 && id.chars().all(all) {
        return Ok(());
    }
    Err(Failure::invalid(format!(
        "'{id}' is not an id of 1-63 lowercase ASCII letters, digits and hyphens that starts with a letter and ends with a letter or digit"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_rfc_1034() {
        let long = "a".repeat(63);
        for good in ["a", "ck-0f3a", "a1", long.as_str()] {
            assert!(check_session_id(good).is_ok(), "{good}");
        }
        let longer = "a".repeat(64);
        for bad in [
            "",
            "1a",
            "-a",
            "a-",
            "A",
            "a_b",
            "ä",
            "a b",
            longer.as_str(),
        ] {
            assert!(check_session_id(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_rate_says_when_to_come_back() {
        let account = Account::default();
        assert!(account.count_call(Some(2)).is_ok());
        assert!(account.count_call(Some(2)).is_ok());
        let refused = account
            .count_call(Some(2))
            .expect_err("the third call of a second");
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert!(
            refused
                .retry_after
                .is_some_and(|after| after <= Duration::from_secs(1))
        );
        assert!(account.count_call(None).is_ok());
    }
}
