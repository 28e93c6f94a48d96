//! Which of three protocol eras a server speaks, found out with `tools/list` alone.
//!
//! 1. *Stateless* (MCP 2026-07-28 and later): version, client and method in headers and in `_meta` of every request.
//! 2. *Plain*: bare POSTs, as in the samples of Colab's reference pages.
//! 3. *Session* (2025-11-25 and before): `initialize`, `notifications/initialized`, and a session id where the server gives one.
//!
//! Invariants: nothing but `tools/list` and the handshake is sent before an era is agreed on, so that trying cannot change
//! anything; a refusal that is about the caller (401, 403, 429) or about the server's health (5xx) ends the search, because no
//! other era would change it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};

use super::arguments::{self, MirroredArgument};
use super::errors::{Code, Origin, Status};
use super::exchange::{self, Trouble, TroubleKind};
use super::http::Http;
use super::rpc::{self, RequestId};

/// The stateless version that is asked for first.
const STATELESS: &str = "2026-07-28";
/// The versions of the handshake that are understood, the newest first.
const HANDSHAKE: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];
/// How long one request of the negotiation may take.
const STEP_TIME: Duration = Duration::from_secs(60);
/// A server that pages for ever is believed this long.
const MAX_PAGES: usize = 100;

const SESSION_ID: HeaderName = HeaderName::from_static("mcp-session-id");
const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// How requests to a server are dressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Era {
    Stateless { version: String },
    Plain,
    Session { version: String, id: Option<String> },
}

/// What was agreed with a server: the era, and the tools that it names.
#[derive(Debug)]
pub(crate) struct Agreement {
    pub(crate) era: Era,
    tools: HashMap<String, Tool>,
    /// Whether it replaced one whose session was gone or missing.
    is_replacement: bool,
    /// Whether a call was answered under it.
    is_proven: AtomicBool,
}

#[derive(Debug)]
struct Tool {
    schema: Value,
    mirrored: Vec<MirroredArgument>,
}

impl Era {
    /// The headers of a message.
    pub(crate) fn headers(&self, method: &str, tool: Option<&str>) -> HeaderMap {
        let mut headers = HeaderMap::new();
        match self {
            Self::Stateless { version } => {
                headers.insert(VERSION, arguments::header_value(version));
                headers.insert(METHOD, arguments::header_value(method));
                if let Some(tool) = tool {
                    headers.insert(NAME, arguments::header_value(tool));
                }
            }
            Self::Plain => {}
            Self::Session { version, id } => {
                if method != "initialize" {
                    headers.insert(VERSION, arguments::header_value(version));
                }
                if let Some(id) = id.as_ref().and_then(|id| HeaderValue::from_str(id).ok()) {
                    headers.insert(SESSION_ID, id);
                }
            }
        }
        headers
    }

    /// The parameters of a message, with what the era wants in `_meta`.
    pub(crate) fn params(
        &self,
        mut params: Map<String, Value>,
        progress: Option<RequestId>,
    ) -> Option<Map<String, Value>> {
        let mut meta = Map::new();
        if let Self::Stateless { version } = self {
            meta.insert(
                "io.modelcontextprotocol/protocolVersion".to_owned(),
                json!(version),
            );
            meta.insert(
                "io.modelcontextprotocol/clientInfo".to_owned(),
                client_info(),
            );
            meta.insert(
                "io.modelcontextprotocol/clientCapabilities".to_owned(),
                json!({}),
            );
        }
        if let Some(id) = progress {
            meta.insert("progressToken".to_owned(), id.value());
        }
        if !meta.is_empty() {
            params.insert("_meta".to_owned(), Value::Object(meta));
        }
        (!params.is_empty()).then_some(params)
    }
}

impl Agreement {
    /// The input schema that the server gives for a tool.
    pub(crate) fn schema(&self, tool: &str) -> Option<&Value> {
        self.tools
            .get(tool)
            .map(|tool| &tool.schema)
            .filter(|schema| schema.is_object())
    }

    /// Whether the server names a tool, or names none at all.
    pub(crate) fn offers(&self, tool: &str) -> bool {
        self.tools.is_empty() || self.tools.contains_key(tool)
    }

    /// The headers that mirror a call's arguments. Only the stateless era has them.
    pub(crate) fn mirror(
        &self,
        tool: &str,
        arguments: &crate::backend::JsonMap,
        headers: &mut HeaderMap,
    ) {
        if let (Era::Stateless { .. }, Some(tool)) = (&self.era, self.tools.get(tool)) {
            arguments::mirror(arguments, &tool.mirrored, headers);
        }
    }

    /// Notes that a call was answered under this agreement.
    pub(crate) fn prove(&self) {
        self.is_proven.store(true, Ordering::Relaxed);
    }

    /// Whether the server keeps a session for us.
    pub(crate) fn has_session(&self) -> bool {
        matches!(&self.era, Era::Session { .. })
    }

    /// Whether a vanished session can be the cause of a refusal: not where a new session met the same refusal at once.
    pub(crate) fn may_have_expired(&self) -> bool {
        matches!(&self.era, Era::Session { id: Some(_), .. })
            && (!self.is_replacement || self.is_proven.load(Ordering::Relaxed))
    }
}

/// Agrees on an era. `wants_session` says that a server has just asked for a session, or lost ours, which makes the third era the
/// first to try.
pub(crate) async fn negotiate(http: &Http, wants_session: bool) -> Result<Agreement, Status> {
    let mut plans = VecDeque::from([
        Plan::Stateless(STATELESS.to_owned()),
        Plan::Plain,
        Plan::Handshake(HANDSHAKE[0].to_owned()),
    ]);
    if wants_session {
        plans.rotate_right(1);
    }
    let mut tried: Vec<String> = Vec::new();
    let mut failures: Vec<Trouble> = Vec::new();
    while let Some(plan) = plans.pop_front() {
        if let Plan::Stateless(version) | Plan::Handshake(version) = &plan {
            tried.push(version.clone());
        }
        match attempt(http, &plan).await {
            Ok((era, tools)) => {
                // Without the session id, which opens the session to whoever knows it.
                tracing::debug!(target: "colab_kernel::mcp", ?plan, tools = tools.len(), "agreed");
                return Ok(Agreement {
                    era,
                    tools,
                    is_replacement: wants_session,
                    is_proven: AtomicBool::new(false),
                });
            }
            Err(trouble) if trouble.ends_negotiation() => return Err(trouble.status),
            Err(trouble) => {
                tracing::debug!(target: "colab_kernel::mcp", ?plan, status = %trouble.status, "not this era");
                if let Some(supported) = trouble.supported_versions() {
                    plans = plans_for(&supported, &tried);
                    if plans.is_empty() {
                        return Err(Status::protocol(format!(
                            "The server speaks only MCP {}, which this version does not",
                            supported.join(", ")
                        )));
                    }
                }
                failures.push(trouble);
            }
        }
    }
    Err(most_telling(failures))
}

/// One way of asking.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Plan {
    Stateless(String),
    Plain,
    Handshake(String),
}

/// What to try with a server that lists its versions (error -32022): the newest that is ours, else one that is newer than all of
/// ours (its requests have had the same shape since 2026-07-28).
fn plans_for(supported: &[String], tried: &[String]) -> VecDeque<Plan> {
    let is_open = |version: &String| !tried.contains(version);
    let mut stateless: Vec<&String> = supported
        .iter()
        .filter(|version| is_open(version) && is_date(version) && version.as_str() >= STATELESS)
        .collect();
    stateless.sort();
    let handshake = HANDSHAKE
        .iter()
        .map(|version| (*version).to_owned())
        .filter(|version| supported.contains(version) && is_open(version));
    stateless
        .into_iter()
        .map(|version| Plan::Stateless(version.clone()))
        .chain(handshake.map(Plan::Handshake))
        .collect()
}

/// Versions are dates (MCP, "Versioning").
fn is_date(version: &str) -> bool {
    version.len() == 10
        && version
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'-')
}

async fn attempt(http: &Http, plan: &Plan) -> Result<(Era, HashMap<String, Tool>), Trouble> {
    let era = match plan {
        Plan::Stateless(version) => Era::Stateless {
            version: version.clone(),
        },
        Plan::Plain => Era::Plain,
        Plan::Handshake(version) => handshake(http, version).await?,
    };
    let tools = list_tools(http, &era).await?;
    Ok((era, tools))
}

async fn handshake(http: &Http, version: &str) -> Result<Era, Trouble> {
    let opening = Era::Session {
        version: version.to_owned(),
        id: None,
    };
    let params =
        json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client_info()});
    let (result, headers) =
        exchange::ask(http, &opening, "initialize", into_map(params), STEP_TIME).await?;
    let era = Era::Session {
        version: result
            .get("protocolVersion")
            .and_then(Value::as_str)
            .unwrap_or(version)
            .to_owned(),
        id: headers
            .get(SESSION_ID)
            .and_then(|id| id.to_str().ok())
            .map(str::to_owned),
    };
    match exchange::tell(http, &era, "notifications/initialized", Map::new()).await {
        Err(trouble) if trouble.kind == TroubleKind::Failed => Err(trouble),
        // A server that takes no notifications may still list its tools.
        Ok(()) | Err(_) => Ok(era),
    }
}

async fn list_tools(http: &Http, era: &Era) -> Result<HashMap<String, Tool>, Trouble> {
    let mut tools = HashMap::new();
    let mut cursors: Vec<String> = Vec::new();
    for _ in 0..MAX_PAGES {
        let mut params = Map::new();
        if let Some(cursor) = cursors.last() {
            params.insert("cursor".to_owned(), json!(cursor));
        }
        let (result, _) = exchange::ask(http, era, "tools/list", params, STEP_TIME).await?;
        let page = result.get("tools").and_then(Value::as_array);
        for tool in page.into_iter().flatten() {
            if let Some((name, tool)) = read_tool(tool) {
                tools.insert(name, tool);
            }
        }
        match result.get("nextCursor").and_then(Value::as_str) {
            Some(cursor) if !cursor.is_empty() && !cursors.iter().any(|seen| seen == cursor) => {
                cursors.push(cursor.to_owned());
            }
            _ => break,
        }
    }
    Ok(tools)
}

fn read_tool(tool: &Value) -> Option<(String, Tool)> {
    let name = tool.get("name")?.as_str()?;
    let schema = tool
        .get("inputSchema")
        .or_else(|| tool.get("input_schema"))
        .cloned()
        .unwrap_or_default();
    match arguments::mirrored(&schema) {
        Ok(mirrored) => Some((name.to_owned(), Tool { schema, mirrored })),
        Err(reason) => {
            // "Clients MUST exclude the invalid tool" (Streamable HTTP, "Schema Extension").
            tracing::warn!(
                tool = name,
                reason,
                "the tool's definition is invalid and is not used"
            );
            None
        }
    }
}

impl Trouble {
    /// Whether no other era can do better.
    fn ends_negotiation(&self) -> bool {
        match self.http {
            // A server that wants a session may say so with the wrong status.
            Some(400..=499) if self.is_lost_session() => return false,
            Some(401 | 403 | 407 | 429) => return true,
            Some(http) if http >= 500 && http != 501 => return true,
            Some(http) if (300..400).contains(&http) => return true,
            _ => {}
        }
        match self.kind {
            TroubleKind::Failed => true,
            // Google's front ends refuse members that they do not know with INVALID_ARGUMENT: `_meta` may be one.
            TroubleKind::Google => !matches!(
                self.status.code,
                Code::InvalidArgument | Code::NotFound | Code::Unimplemented
            ),
            TroubleKind::Rpc(_) | TroubleKind::Unrecognised => false,
        }
    }
}

/// The failure that tells the user most: the service's own words, else a JSON-RPC error, else the first.
fn most_telling(mut failures: Vec<Trouble>) -> Status {
    let rank = |trouble: &Trouble| match trouble.kind {
        TroubleKind::Google => 0,
        TroubleKind::Rpc(_) => 1,
        _ => 2,
    };
    failures.sort_by_key(rank);
    match failures.into_iter().next() {
        Some(trouble) if trouble.kind == TroubleKind::Google => Status {
            // It is about `tools/list`: a NOT_FOUND here must not be taken for a runtime that is gone.
            origin: Origin::Protocol,
            ..trouble.status
        },
        Some(trouble) => Status::protocol(format!(
            "The endpoint does not speak MCP: {}",
            trouble.status.message
        )),
        None => Status::protocol("The endpoint does not speak MCP"),
    }
}

fn client_info() -> Value {
    json!({"name": env!("CARGO_PKG_NAME"), "version": env!("CARGO_PKG_VERSION")})
}

fn into_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// A request in an era.
pub(crate) fn request(
    era: &Era,
    id: RequestId,
    method: &str,
    params: Map<String, Value>,
    progress: bool,
) -> String {
    rpc::request(id, method, era.params(params, progress.then_some(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(list: &[&str]) -> Vec<String> {
        list.iter().map(|&version| version.to_owned()).collect()
    }

    #[test]
    fn the_versions_that_a_server_lists_are_tried_best_first() {
        let tried = versions(&[STATELESS]);
        let plans = |list: &[&str]| Vec::from(plans_for(&versions(list), &tried));
        assert_eq!(
            plans(&["2025-06-18", "2025-11-25"]),
            [
                Plan::Handshake("2025-11-25".into()),
                Plan::Handshake("2025-06-18".into())
            ]
        );
        assert_eq!(
            plans(&["2027-01-01", "2025-06-18"])[0],
            Plan::Stateless("2027-01-01".into())
        );
        assert!(plans(&["2026-07-28", "DRAFT-2027"]).is_empty());
        assert!(plans(&["2024-11-05"]).is_empty());
    }

    #[test]
    fn each_era_dresses_its_requests() {
        let stateless = Era::Stateless {
            version: STATELESS.into(),
        };
        let headers = stateless.headers("tools/call", Some("list_runtimes"));
        assert_eq!(headers["mcp-protocol-version"], STATELESS);
        assert_eq!(headers["mcp-method"], "tools/call");
        assert_eq!(headers["mcp-name"], "list_runtimes");
        let params = stateless.params(Map::new(), None).unwrap();
        assert_eq!(
            params["_meta"]["io.modelcontextprotocol/protocolVersion"],
            STATELESS
        );

        assert!(Era::Plain.headers("tools/call", Some("x")).is_empty());
        assert_eq!(Era::Plain.params(Map::new(), None), None);

        let session = Era::Session {
            version: "2025-06-18".into(),
            id: Some("s".into()),
        };
        let headers = session.headers("tools/call", Some("x"));
        assert_eq!(headers["mcp-session-id"], "s");
        assert_eq!(headers["mcp-protocol-version"], "2025-06-18");
        assert_eq!(headers.len(), 2);
    }
}
