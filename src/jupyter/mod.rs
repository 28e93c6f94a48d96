//! The Jupyter wire protocol: connection file, envelope, signing, the sockets and what publishes on iopub.
//!
//! ```text
//! connection  the file          listen ─► gate ─► router (zeromq) ─► sockets (Inbox, Outbox; links: who is connected)
//! message     the envelope      listen ─► iopub (subscriber: queue and policy) ◄─ stream (coalescer; pace)
//! signing     the HMAC          zmtp: greeting and frames, for both; files: what is removed at the end
//! ```
//!
//! Nothing a stranger sends to any port ends a loop, blocks another client or fills the memory; nothing here knows of Colab.

pub mod connection;
pub mod files;
mod gate;
pub mod iopub;
mod links;
mod listen;
pub mod message;
mod pace;
mod router;
pub mod signing;
pub mod sockets;
pub mod stream;
mod subscriber;
mod zmtp;

pub use connection::{ConnectionError, ConnectionInfo, SecretKey, Transport};
pub use files::SocketGuard;
pub use iopub::IoPub;
pub use message::{Header, OutMessage, Parent, Request, Session};
pub use signing::Scheme;
pub use sockets::{BindError, Inbox, Outbox, Sockets};
pub use stream::Coalescer;
