//! A front-end's side of the Jupyter protocol: as much of it as running a notebook takes.

use std::io;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

use crate::jupyter::connection::ConnectionInfo;
use crate::jupyter::message::{Header, OutMessage, Parent, Request, Session};

/// How often a port is tried until the kernel listens.
const RETRY: Duration = Duration::from_millis(5);

/// The sockets of a front-end.
pub(super) struct KernelClient {
    session: Session,
    shell: DealerSocket,
    control: DealerSocket,
    iopub: SubSocket,
}

impl KernelClient {
    /// Connects to a kernel, also one that does not listen yet. What it publishes from now on is not missed.
    pub(super) async fn connect(info: &ConnectionInfo) -> anyhow::Result<Self> {
        let mut client = Self {
            session: Session::new(info),
            shell: DealerSocket::new(),
            control: DealerSocket::new(),
            iopub: SubSocket::new(),
        };
        let address = |port: u16| format!("tcp://{}:{port}", info.ip);
        for port in [info.shell_port, info.control_port, info.iopub_port] {
            while TcpStream::connect((info.ip.as_str(), port)).await.is_err() {
                tokio::time::sleep(RETRY).await;
            }
        }
        client.shell.connect(&address(info.shell_port)).await?;
        client.control.connect(&address(info.control_port)).await?;
        client.iopub.connect(&address(info.iopub_port)).await?;
        client.iopub.subscribe("").await?;
        // The kernel's first message to a subscriber says that the subscription holds (JEP 65).
        while client.published().await?.msg_type() != "iopub_welcome" {}
        Ok(client)
    }

    /// What the kernel says about itself.
    pub(super) async fn kernel_info(&mut self) -> anyhow::Result<Value> {
        self.request("kernel_info_request", &json!({}), |_, _| Ok(()))
            .await
    }

    /// Runs a cell, handing on what it publishes, and returns the content of its reply.
    pub(super) async fn execute(
        &mut self,
        code: &str,
        show: impl FnMut(&str, &Value) -> io::Result<()>,
    ) -> anyhow::Result<Value> {
        let content = json!({
            "code": code,
            "silent": false,
            "store_history": true,
            "user_expressions": {},
            "allow_stdin": false,
            "stop_on_error": true,
        });
        self.request("execute_request", &content, show).await
    }

    /// Asks the kernel to end and returns once it has said that it will.
    pub(super) async fn request_shutdown(&mut self) -> anyhow::Result<()> {
        let content = json!({"restart": false});
        let request = OutMessage::new("shutdown_request", &Parent::none(), &content);
        let (frames, id) = self.encode(request)?;
        self.control.send(frames).await?;
        loop {
            let reply = self.control.recv().await?;
            let reply = self.decode(reply)?;
            if answers(&reply, &id) {
                return Ok(());
            }
        }
    }

    /// Sends a request on shell; it is done when its reply has come and the kernel is idle again.
    async fn request(
        &mut self,
        msg_type: &str,
        content: &Value,
        mut show: impl FnMut(&str, &Value) -> io::Result<()>,
    ) -> anyhow::Result<Value> {
        let request = OutMessage::new(msg_type, &Parent::none(), content);
        let (frames, id) = self.encode(request)?;
        self.shell.send(frames).await?;
        let mut reply = None;
        let mut idle = false;
        loop {
            if let (true, Some(reply)) = (idle, &mut reply) {
                return Ok(std::mem::take(reply));
            }
            tokio::select! {
                message = self.shell.recv() => {
                    let message = self.decode(message?)?;
                    if answers(&message, &id) {
                        reply = Some(message.content()?);
                    }
                }
                message = self.iopub.recv() => {
                    let message = self.decode(message?)?;
                    if answers(&message, &id) {
                        let content: Value = message.content()?;
                        idle |= message.msg_type() == "status" && content["execution_state"] == "idle";
                        show(message.msg_type(), &content).context("The output cannot be printed")?;
                    }
                }
            }
        }
    }

    async fn published(&mut self) -> anyhow::Result<Request> {
        let message = self.iopub.recv().await?;
        self.decode(message)
    }

    /// The frames of a message, and the id that it was given.
    fn encode(&self, message: OutMessage) -> anyhow::Result<(ZmqMessage, String)> {
        let frames = self.session.encode(message);
        let id = self.session.decode(frames.clone())?.header.msg_id;
        let message =
            ZmqMessage::try_from(frames).map_err(|_| anyhow!("A message without frames"))?;
        Ok((message, id))
    }

    fn decode(&self, message: ZmqMessage) -> anyhow::Result<Request> {
        Ok(self.session.decode(message.into_vec())?)
    }
}

/// Whether a message belongs to the request of this id.
fn answers(message: &Request, id: &str) -> bool {
    serde_json::from_str::<Header>(message.parent_header.get())
        .is_ok_and(|parent| parent.msg_id == id)
}
