//! The calls of the ten tools.
//!
//! Invariants: each function is one attempt of its tool; arguments have the documented names and are fitted to the server's
//! schema by the client; `create_runtime` called again with the same request id asks for the same machine.

use std::time::Duration;

use serde_json::{Value, json};

use super::creation::{Created, creation, is_of_kind, newcomer};
use super::{ExecuteCode, Runtime, RuntimeSpec, Session, SpecKey, Subscription, parse};
use crate::backend::JsonMap;
use crate::colab::mcp::arguments::{property, required};
use crate::colab::mcp::errors::{Code, Origin, Status};
use crate::colab::mcp::{Call, Client};

/// A server that pages for ever is believed this long.
const MAX_PAGES: usize = 100;
/// How long an operation that was not done at once may take.
const OPERATION_TIME: Duration = Duration::from_secs(300);
const POLL_FIRST: Duration = Duration::from_secs(1);
const POLL_LAST: Duration = Duration::from_secs(5);

impl Client {
    /// `list_runtimes`: the machines assigned to the user.
    pub async fn list_runtimes(&self) -> Result<Vec<Runtime>, Status> {
        self.list("list_runtimes", JsonMap::new(), "runtimes").await
    }

    /// `list_runtime_specs`: the configurations, and whether the user may have them.
    pub async fn list_runtime_specs(&self) -> Result<Vec<RuntimeSpec>, Status> {
        self.list("list_runtime_specs", JsonMap::new(), "runtimeSpecs")
            .await
    }

    /// `get_subscription`: the user's plan.
    pub async fn get_subscription(&self) -> Result<Subscription, Status> {
        let schema = self.input_schema("get_subscription").await?;
        let has_name = schema
            .as_ref()
            .is_some_and(|schema| property(schema, "name").is_some());
        // The REST twin has this one fixed name.
        let arguments = if has_name {
            map(json!({"name": "subscription"}))
        } else {
            JsonMap::new()
        };
        parse(inner(
            self.call("get_subscription", arguments).await?,
            "subscription",
        ))
    }

    /// `get_runtime`: one machine, with fresh connection info.
    pub async fn get_runtime(&self, name: &str) -> Result<Runtime, Status> {
        let answer = self.call("get_runtime", map(json!({"name": name}))).await?;
        parse(inner(answer, "runtime"))
    }

    /// `create_runtime`: a new machine of this kind. Returns when it is there, which may take minutes.
    ///
    /// `request_id` is a UUID that says which machine is meant: an attempt that is repeated takes the same one.
    pub async fn create_runtime(
        &self,
        spec: &SpecKey,
        request_id: &str,
    ) -> Result<Runtime, Status> {
        // Where the answer does not say which runtime it made, it is the one that was not there before.
        let before = self.list_runtimes().await?;
        self.create_beside(spec, request_id, &before).await
    }

    /// `create_runtime` once more, after an attempt whose answer was lost: `before` is what was there before the first attempt,
    /// and a runtime of this kind that has come into being since is taken for its result.
    pub async fn create_runtime_again(
        &self,
        spec: &SpecKey,
        request_id: &str,
        before: &[Runtime],
    ) -> Result<Runtime, Status> {
        let now = self.list_runtimes().await?;
        match newcomer(now, spec, before) {
            Some(runtime) if is_of_kind(&runtime, spec) => Ok(runtime),
            _ => self.create_beside(spec, request_id, before).await,
        }
    }

    /// As [`Client::create_runtime`], where what runs already is known.
    pub(crate) async fn create_beside(
        &self,
        spec: &SpecKey,
        request_id: &str,
        before: &[Runtime],
    ) -> Result<Runtime, Status> {
        let schema = self.input_schema("create_runtime").await?;
        let request = creation(spec, request_id, schema.as_ref());
        let answer = match self.call("create_runtime", request.arguments).await {
            Ok(answer) => answer,
            Err(status) if status.code == Code::AlreadyExists && request.runtime_id.is_some() => {
                let id = request.runtime_id.unwrap_or_default();
                return self.get_runtime(&format!("runtimes/{id}")).await;
            }
            Err(status) => return Err(status),
        };
        match Created::read(answer)? {
            Created::Runtime(runtime) => Ok(*runtime),
            Created::Pending(operation) => {
                self.await_creation(operation.as_deref(), spec, before)
                    .await
            }
        }
    }

    /// `delete_runtime`: gives a machine back. With `allow_missing` one that is gone already is no error.
    pub async fn delete_runtime(&self, name: &str, allow_missing: bool) -> Result<(), Status> {
        let mut arguments = map(json!({"name": name}));
        if allow_missing {
            arguments.insert("allowMissing".to_owned(), json!(true));
        }
        match self.call("delete_runtime", arguments).await {
            Ok(_) => Ok(()),
            Err(status) if allow_missing && is_missing(&status) => Ok(()),
            Err(status) => Err(status),
        }
    }

    /// `create_session`: opens a session of this id (`None`: the server picks one). Returns the session that is there if it is
    /// open already.
    pub async fn create_session<'a>(
        &self,
        parent: &str,
        session_id: impl Into<Option<&'a str>>,
    ) -> Result<Session, Status> {
        if !self.offers("create_session").await? {
            return Err(Status::new(
                Code::Unimplemented,
                Origin::Service,
                "The service has no tool create_session",
            ));
        }
        let session_id = session_id.into();
        let schema = self.input_schema("create_session").await?;
        let mut arguments = map(json!({"parent": parent}));
        if let Some(id) = session_id {
            arguments.insert("sessionId".to_owned(), json!(id));
        }
        if schema
            .as_ref()
            .is_some_and(|schema| required(schema).contains(&"session"))
        {
            arguments.insert("session".to_owned(), json!({}));
        }
        let named = session_id.map(|id| Session {
            name: format!("{parent}/sessions/{id}"),
        });
        let answer = match (self.call("create_session", arguments).await, &named) {
            (Ok(answer), _) => answer,
            (Err(status), Some(session)) if status.code == Code::AlreadyExists => {
                return Ok(session.clone());
            }
            (Err(status), _) => return Err(status),
        };
        let session: Session = match inner(answer, "session") {
            Value::String(_) => Session::default(),
            object => parse(object)?,
        };
        match named {
            Some(named) if session.name.is_empty() => Ok(named),
            _ if session.name.is_empty() => Err(Status::protocol(
                "The service did not name the session that it opened",
            )),
            _ => Ok(session),
        }
    }

    /// `delete_session`: closes a session and forgets its variables.
    pub async fn delete_session(&self, name: &str) -> Result<(), Status> {
        self.call("delete_session", map(json!({"name": name})))
            .await?;
        Ok(())
    }

    /// `list_sessions`: the open sessions of a runtime, also those that others opened.
    pub async fn list_sessions(&self, parent: &str) -> Result<Vec<Session>, Status> {
        self.list("list_sessions", map(json!({"parent": parent})), "sessions")
            .await
    }

    /// `execute_code`: runs code. The call is sent by its first `next`.
    pub fn execute_code(&self, execution: &ExecuteCode) -> Call {
        let mut arguments = map(json!({"session": execution.session, "code": execution.code}));
        if !execution.execution_id.is_empty() {
            arguments.insert("executionId".to_owned(), json!(execution.execution_id));
        }
        self.begin("execute_code", arguments)
    }

    /// All pages of a list.
    async fn list<T: serde::de::DeserializeOwned>(
        &self,
        tool: &str,
        arguments: JsonMap,
        key: &str,
    ) -> Result<Vec<T>, Status> {
        let mut found = Vec::new();
        let mut arguments = arguments;
        let mut seen: Vec<String> = Vec::new();
        for _ in 0..MAX_PAGES {
            let (items, next) = page(self.call(tool, arguments.clone()).await?, key)?;
            for item in items {
                found.push(parse(item)?);
            }
            let Some(token) = next.filter(|token| !seen.contains(token)) else {
                break;
            };
            let schema = self.input_schema(tool).await?;
            let takes_token = schema
                .as_ref()
                .is_none_or(|schema| property(schema, "pageToken").is_some());
            if !takes_token {
                break;
            }
            arguments.insert("pageToken".to_owned(), json!(token));
            seen.push(token);
        }
        Ok(found)
    }

    /// Waits for a machine whose creation was answered with an operation, or with nothing.
    async fn await_creation(
        &self,
        operation: Option<&str>,
        spec: &SpecKey,
        before: &[Runtime],
    ) -> Result<Runtime, Status> {
        let mut operation = operation;
        let mut pause = POLL_FIRST;
        let poll = async {
            loop {
                if let Some(name) = operation {
                    match self.get(&format!("v1/{name}")).await {
                        Ok(answer) => {
                            if let Created::Runtime(runtime) = Created::read(answer)? {
                                return Ok(*runtime);
                            }
                        }
                        // Where there is no REST twin, the list has to tell.
                        Err(status) if is_rest_missing(&status) => operation = None,
                        Err(status) => return Err(status),
                    }
                }
                let now = self.list_runtimes().await?;
                if let Some(runtime) = newcomer(now, spec, before) {
                    return Ok(runtime);
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(POLL_LAST);
            }
        };
        tokio::time::timeout(OPERATION_TIME, poll)
            .await
            .unwrap_or_else(|_| {
                Err(Status::new(
                    Code::DeadlineExceeded,
                    Origin::Service,
                    format!(
                        "The runtime was not ready within {} s",
                        OPERATION_TIME.as_secs()
                    ),
                ))
            })
    }
}

/// Whether the status says that what was to be deleted is not there.
fn is_missing(status: &Status) -> bool {
    status.code == Code::NotFound && status.origin == Origin::Service
}

/// Whether the host has no such REST resource, or does not let us read it.
fn is_rest_missing(status: &Status) -> bool {
    status.origin == Origin::Protocol
        || matches!(
            status.code,
            Code::NotFound
                | Code::Unimplemented
                | Code::PermissionDenied
                | Code::InvalidArgument
                | Code::Unauthenticated
        )
}

/// An object that some servers wrap in a member of its own name.
pub(super) fn inner(answer: Value, key: &str) -> Value {
    match answer {
        Value::Object(mut object)
            if !object.contains_key("name") && object.get(key).is_some_and(Value::is_object) =>
        {
            object.remove(key).unwrap_or_default()
        }
        other => other,
    }
}

/// The items of one page and the token of the next.
///
/// What cannot be read is not an empty list: a machine would be created beside those that run.
fn page(answer: Value, key: &str) -> Result<(Vec<Value>, Option<String>), Status> {
    let items = |value: Value| match value {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    Ok(match answer {
        Value::Array(list) => (list, None),
        Value::Object(mut object) => {
            let next = ["nextPageToken", "next_page_token"]
                .iter()
                .filter_map(|name| object.get(*name))
                .find_map(Value::as_str)
                .filter(|token| !token.is_empty())
                .map(str::to_owned);
            let snake = key
                .chars()
                .flat_map(|c| {
                    if c.is_ascii_uppercase() {
                        vec!['_', c.to_ascii_lowercase()]
                    } else {
                        vec![c]
                    }
                })
                .collect::<String>();
            let list = object
                .remove(key)
                .or_else(|| object.remove(&snake))
                // The SDKs' wrapping of a bare list.
                .or_else(|| object.remove("result"))
                .unwrap_or_default();
            (items(list), next)
        }
        _ => {
            return Err(Status::protocol(format!(
                "The service's list of {key} has an unknown form"
            )));
        }
    })
}

fn map(value: Value) -> JsonMap {
    match value {
        Value::Object(map) => map,
        _ => JsonMap::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_come_in_several_wrappings() {
        for answer in [
            json!({"runtimeSpecs": [1]}),
            json!({"runtime_specs": [1]}),
            json!([1]),
            json!({"result": [1]}),
        ] {
            assert_eq!(page(answer, "runtimeSpecs").unwrap().0, [json!(1)]);
        }
        assert_eq!(page(json!({}), "runtimes").unwrap(), (vec![], None));
        assert!(page(json!("words"), "runtimes").is_err());
        assert_eq!(
            page(json!({"nextPageToken": "t"}), "runtimes")
                .unwrap()
                .1
                .as_deref(),
            Some("t")
        );
    }
}
