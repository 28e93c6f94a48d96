//! The task that owns the history; others send it what happened and ask it.
//!
//! It begins by waiting, not long, for what earlier processes left, so that no session gets two numbers. Requests are
//! answered in the order in which they came, after everything that was noted before them.

use std::path::PathBuf;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::{History, HistoryRequest};

/// A handle on the history. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Keeper {
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Debug)]
enum Order {
    Push {
        line: i64,
        code: String,
        output: Option<String>,
    },
    Reply(HistoryRequest, oneshot::Sender<Value>),
    Flush(oneshot::Sender<()>),
}

impl Keeper {
    /// Keeps the history in this directory (`None`: in memory).
    pub fn start(state_dir: Option<PathBuf>) -> Self {
        let (orders, mut queue) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut history = match state_dir {
                Some(dir) => History::open(&dir),
                None => History::new(1),
            };
            history.ready().await;
            while let Some(order) = queue.recv().await {
                match order {
                    Order::Push { line, code, output } => {
                        history.push(line, code);
                        if let Some(output) = output {
                            history.set_output(line, output);
                        }
                    }
                    // Whoever asked may have given up.
                    Order::Reply(request, answer) => drop(answer.send(history.reply(&request))),
                    Order::Flush(done) => {
                        history.flush().await;
                        let _ = done.send(());
                    }
                }
            }
        });
        Self { orders }
    }

    /// Notes an input under its number, with the `text/plain` of its result.
    pub fn push(&self, line: u32, code: &str, output: Option<&str>) {
        self.send(Order::Push {
            line: line.into(),
            code: code.to_owned(),
            output: output.map(str::to_owned),
        });
    }

    /// The content of the `history_reply` to this content of a `history_request`.
    pub async fn reply(&self, content: &Value) -> Value {
        let (answer, reply) = oneshot::channel();
        self.send(Order::Reply(HistoryRequest::from_content(content), answer));
        let none = || json!({"status": "ok", "history": []});
        reply.await.unwrap_or_else(|_| none())
    }

    /// Waits until what was noted is on disk, but not long.
    pub async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        self.send(Order::Flush(done));
        let _ = flushed.await;
    }

    fn send(&self, order: Order) {
        // The task ends only with the process.
        let _ = self.orders.send(order);
    }
}
