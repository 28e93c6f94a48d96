//! The Rust SDK as the server.

use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::json;
use tokio::sync::Notify;

use super::{assert_in_order, client, drain, limited, map};

const N: usize = 10_000;

#[derive(Clone)]
struct Peer {
    cancelled: Arc<Notify>,
}

impl ServerHandler for Peer {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = map(json!({"type": "object", "properties": {"n": {"type": "integer"}}}));
        let tools = ["count", "hang"].map(|name| Tool::new(name, "", Arc::new(schema.clone())));
        Ok(ListToolsResult::with_all_items(tools.to_vec()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let token = context.meta.get_progress_token();
        let notify = async |i: usize| {
            let Some(token) = token.clone() else { return };
            #[allow(clippy::cast_precision_loss)]
            let params =
                ProgressNotificationParam::new(token, i as f64).with_message(format!("line {i}\n"));
            context.peer.notify_progress(params).await.unwrap();
        };
        if request.name == "hang" {
            notify(0).await;
            context.ct.cancelled().await;
            self.cancelled.notify_one();
            return Ok(CallToolResult::structured(json!({"stopped": true})).into());
        }
        let n = request
            .arguments
            .and_then(|arguments| arguments.get("n")?.as_u64())
            .unwrap_or_default();
        for i in 0..usize::try_from(n).unwrap() {
            notify(i).await;
        }
        Ok(CallToolResult::structured(json!({"n": n})).into())
    }
}

/// Whether the server takes the stateless era; if not, whether it keeps sessions.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Stateless,
    Sessions,
    NoSessions,
}

async fn serve(kind: Kind) -> (String, Arc<Notify>) {
    let cancelled = Arc::new(Notify::new());
    let peer = Peer {
        cancelled: Arc::clone(&cancelled),
    };
    let mut config = StreamableHttpServerConfig::default();
    config.legacy_session_mode = matches!(kind, Kind::Sessions);
    let service: StreamableHttpService<Peer, LocalSessionManager> =
        StreamableHttpService::new(move || Ok(peer.clone()), Arc::default(), config);
    let mut app = axum::Router::new().nest_service("/mcp", service);
    if !matches!(kind, Kind::Stateless) {
        app = app.layer(axum::middleware::from_fn(refuse_stateless));
    }
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (url, cancelled)
}

/// Makes the server one that is older than the stateless era.
async fn refuse_stateless(
    request: axum::extract::Request,
    next: axum::middleware::Next,
) -> axum::response::Response {
    use axum::response::IntoResponse as _;
    if request
        .headers()
        .get("mcp-protocol-version")
        .is_some_and(|version| version == "2026-07-28")
    {
        return (
            axum::http::StatusCode::BAD_REQUEST,
            "Bad Request: Unsupported protocol version",
        )
            .into_response();
    }
    next.run(request).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_notifications_come_in_order_in_every_era() {
    for kind in [Kind::Stateless, Kind::Sessions, Kind::NoSessions] {
        limited(async {
            let (url, _) = serve(kind).await;
            let client = client(&url);
            assert!(
                client.input_schema("count").await.unwrap().is_some(),
                "{kind:?}"
            );
            let call = client.start("count", map(json!({"n": N}))).await.unwrap();
            let (progress, result) = drain(call).await;
            assert_eq!(result.unwrap(), json!({"n": N}), "{kind:?}");
            assert_in_order(&progress, N);
            assert_eq!(
                client.call("count", map(json!({"n": 0}))).await.unwrap(),
                json!({"n": 0})
            );
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_reaches_the_tool_in_a_session_and_a_closed_stream_without() {
    for kind in [Kind::Stateless, Kind::Sessions] {
        limited(async {
            let (url, cancelled) = serve(kind).await;
            let mut call = client(&url).start("hang", map(json!({}))).await.unwrap();
            call.next().await.unwrap();
            call.canceller().cancel("test").await.unwrap();
            if matches!(kind, Kind::Stateless) {
                // Here closing the stream is the cancel, and the notification may be dropped.
                drop(call);
            }
            cancelled.notified().await;
        })
        .await;
    }
}
