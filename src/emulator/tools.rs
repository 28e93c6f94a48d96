//! The ten tools, as the reference describes them.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::errors::Failure;
use super::executions::Follower;
use super::quirks::{CreateAnswer, Quirks};
use super::runtimes::{Account, Runtime, Wanted, Workshop, check_session_id};
use super::sessions::Session;
use super::{schemas, specs};

/// What a tool answers.
pub(super) enum Answer {
    /// Its result.
    Value(Value),
    /// An execution to follow.
    Execution {
        follower: Follower,
        session: Arc<Session>,
    },
}

/// Why a tool has no answer.
pub(super) enum ToolError {
    /// There is no such tool.
    Unknown,
    /// The call failed.
    Failed(Failure),
}

impl From<Failure> for ToolError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

type Arguments = Map<String, Value>;

/// Calls a tool.
pub(super) async fn call(
    account: &Arc<Account>,
    workshop: &Arc<Workshop>,
    name: &str,
    arguments: &Arguments,
) -> Result<Answer, ToolError> {
    let quirks = &workshop.quirks;
    let Some(checked) = schemas::check(quirks, name, arguments) else {
        return Err(ToolError::Unknown);
    };
    account.count_call(quirks.rate)?;
    checked?;
    let value = match name {
        "list_runtimes" => {
            let runtimes = account.runtimes();
            list(
                "runtimes",
                runtimes.iter().map(|runtime| runtime.json()).collect(),
            )
        }
        "list_runtime_specs" => specs::list(),
        "get_subscription" => json!({"name": "subscription", "tier": specs::TIER}),
        "get_runtime" => named_runtime(account, text(arguments, "name"))?.json(),
        "create_runtime" => create_runtime(account, workshop, arguments).await?,
        "delete_runtime" => delete_runtime(account, arguments).await?,
        "create_session" => create_session(account, arguments).await?,
        "delete_session" => {
            let (runtime, session) = session_parts(text(arguments, "name"))?;
            account.runtime(runtime)?.delete_session(session).await?;
            json!({})
        }
        "list_sessions" => {
            let runtime = named_runtime(account, text(arguments, "parent"))?;
            let names = runtime.session_names().await?;
            list(
                "sessions",
                names
                    .into_iter()
                    .map(|name| json!({"name": name}))
                    .collect(),
            )
        }
        _ => return Ok(execute_code(account, quirks, arguments).await?),
    };
    Ok(Answer::Value(value))
}

async fn execute_code(
    account: &Account,
    quirks: &Quirks,
    arguments: &Arguments,
) -> Result<Answer, Failure> {
    let id = text(arguments, "executionId");
    if !id.is_empty() && Uuid::parse_str(id).is_err() {
        return Err(Failure::invalid("executionId must be a UUID"));
    }
    let (runtime, session) = (text(arguments, "runtime"), text(arguments, "session"));
    let session = match (runtime.is_empty(), session.is_empty()) {
        (false, true) => {
            let runtime = named_runtime(account, runtime)?;
            runtime.open_random_session().await?
        }
        (true, false) => {
            let (runtime, session) = session_parts(session)?;
            account.runtime(runtime)?.open_session(session).await?
        }
        _ => {
            return Err(Failure::invalid(
                "Exactly one of runtime and session must be given",
            ));
        }
    };
    let execution = session.submit(id, text(arguments, &quirks.code_argument))?;
    Ok(Answer::Execution {
        follower: execution.follow(quirks.reattach),
        session,
    })
}

async fn create_runtime(
    account: &Arc<Account>,
    workshop: &Arc<Workshop>,
    arguments: &Arguments,
) -> Result<Value, Failure> {
    let runtime = arguments.get("runtime").and_then(Value::as_object);
    let runtime = runtime.unwrap_or(arguments);
    let empty = Map::new();
    let spec = runtime.get("runtimeSpec").and_then(Value::as_object);
    let optional = |name| Some(text(arguments, name).to_owned()).filter(|text| !text.is_empty());
    let wanted = Wanted {
        spec: specs::find(spec.unwrap_or(&empty))?,
        version: text(runtime, "version").to_owned(),
        runtime_id: optional("runtimeId"),
        request_id: optional("requestId"),
    };
    if let Some(id) = &wanted.runtime_id {
        check_session_id(id)?;
    }
    let operation = account.create(wanted, workshop)?;
    Ok(match workshop.quirks.create {
        CreateAnswer::Runtime => operation.done().await?.json(),
        CreateAnswer::Operation => operation.json(),
        CreateAnswer::Empty => {
            operation.done().await?;
            json!({})
        }
    })
}

async fn delete_runtime(account: &Account, arguments: &Arguments) -> Result<Value, Failure> {
    let name = text(arguments, "name");
    let id = runtime_id(name)?;
    let allow_missing = arguments.get("allowMissing") == Some(&Value::Bool(true));
    match account.remove(id) {
        Some(runtime) => runtime.server.ended().await,
        None if allow_missing => {}
        None => return Err(Failure::not_found(name)),
    }
    Ok(json!({}))
}

async fn create_session(account: &Account, arguments: &Arguments) -> Result<Value, Failure> {
    let id = text(arguments, "sessionId");
    if !id.is_empty() {
        check_session_id(id)?;
    }
    let runtime = named_runtime(account, text(arguments, "parent"))?;
    let session = if id.is_empty() {
        runtime.open_random_session().await?
    } else {
        runtime.open_session(id).await?
    };
    Ok(json!({"name": session.name}))
}

fn named_runtime(account: &Account, name: &str) -> Result<Arc<Runtime>, Failure> {
    account.runtime(runtime_id(name)?)
}

fn runtime_id(name: &str) -> Result<&str, Failure> {
    let id = name.strip_prefix("runtimes/");
    let id = id.filter(|id| !id.is_empty() && !id.contains('/'));
    id.ok_or_else(|| Failure::invalid(format!("'{name}' is not of the form runtimes/{{runtime}}")))
}

fn session_parts(name: &str) -> Result<(&str, &str), Failure> {
    let parts: Vec<_> = name.split('/').collect();
    match parts[..] {
        ["runtimes", runtime, "sessions", session]
            if !runtime.is_empty() && !session.is_empty() =>
        {
            Ok((runtime, session))
        }
        _ => Err(Failure::invalid(format!(
            "'{name}' is not of the form runtimes/{{runtime}}/sessions/{{session}}"
        ))),
    }
}

/// A repeated field; proto-JSON leaves it out when it is empty.
fn list(name: &str, items: Vec<Value>) -> Value {
    if items.is_empty() {
        return json!({});
    }
    json!({name: items})
}

fn text<'a>(arguments: &'a Arguments, name: &str) -> &'a str {
    arguments
        .get(name)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
