//! The MCP client against a scripted server and against foreign ones.
//!
//! [`server`] is a raw HTTP/1.1 server whose answers a test writes byte by byte; `python_peer` and `rmcp_peer` are the official
//! Python SDK and the Rust SDK.

mod answers;
mod eras;
mod failures;
mod python_peer;
mod rmcp_peer;
mod server;
mod tls;
mod tools;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use colab_kernel::backend::JsonMap;
use colab_kernel::colab::mcp::errors::Status;
use colab_kernel::colab::mcp::{Call, CallEvent, Client, Progress, TokenSource};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde_json::Value;

/// No test takes longer.
async fn limited<T>(test: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(120), test)
        .await
        .expect("the test took too long")
}

/// Tokens `t0`, `t1`, …: a refresh gives the next.
#[derive(Default)]
struct Tokens {
    refreshed: AtomicU32,
}

impl TokenSource for Tokens {
    fn headers(
        &self,
        refresh: bool,
    ) -> Pin<Box<dyn Future<Output = Result<HeaderMap, Status>> + Send + '_>> {
        let number = if refresh {
            self.refreshed.fetch_add(1, Ordering::SeqCst) + 1
        } else {
            self.refreshed.load(Ordering::SeqCst)
        };
        let mut headers = HeaderMap::new();
        let value = HeaderValue::from_str(&format!("Bearer t{number}")).unwrap();
        headers.insert(AUTHORIZATION, value);
        Box::pin(async move { Ok(headers) })
    }
}

fn client(url: &str) -> Client {
    Client::new(url.parse().unwrap(), Arc::new(Tokens::default())).unwrap()
}

fn map(value: Value) -> JsonMap {
    value.as_object().unwrap().clone()
}

/// All progress of a call, and how it ended. Nothing may come after the end.
async fn drain(mut call: Call) -> (Vec<Progress>, Result<Value, Status>) {
    let mut progress = Vec::new();
    loop {
        match call.next().await.expect("an end") {
            CallEvent::Progress(one) => progress.push(one),
            CallEvent::Finished(result) => {
                assert_eq!(call.next().await, None);
                return (progress, result);
            }
        }
    }
}

fn texts(progress: &[Progress]) -> Vec<&str> {
    progress
        .iter()
        .filter_map(|one| one.message.as_deref())
        .collect()
}

/// `n` numbered notifications came, each once, in order.
fn assert_in_order(progress: &[Progress], n: usize) {
    let numbers: Vec<usize> = texts(progress)
        .iter()
        .map(|text| text.trim_start_matches("line ").trim_end().parse().unwrap())
        .collect();
    assert_eq!(numbers.len(), n);
    assert!(
        numbers.iter().enumerate().all(|(i, number)| i == *number),
        "out of order"
    );
}
