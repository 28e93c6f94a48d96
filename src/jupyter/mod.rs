//! The Jupyter wire protocol: connection file, envelope, signing, the gate, the sockets and the iopub publisher.

pub mod connection;
pub mod iopub;
pub mod message;
pub mod signing;
pub mod sockets;
pub mod stream;

pub use connection::{ConnectionError, ConnectionInfo, SecretKey, Transport};
pub use iopub::IoPub;
pub use message::{Header, OutMessage, Parent, Request, Session};
pub use signing::Scheme;
pub use sockets::{BindError, Inbox, Outbox, Sockets};
pub use stream::Coalescer;
