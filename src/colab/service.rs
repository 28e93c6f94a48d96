//! What the backend needs of Colab: the tools it calls, and one execution in flight.
//!
//! [`crate::colab::mcp::Client`] is the real one; tests script another. Invariants:
//!
//! * [`ServiceCall::next`] may be dropped at any await without losing an event.
//! * Dropping a [`ServiceCall`] closes its stream and returns at once.

use std::future::Future;

use super::api::{ExecuteCode, Runtime, RuntimeSpec, Session, SpecKey};
use super::mcp::CallEvent;
use super::mcp::errors::Status;

/// Colab, as far as the backend is concerned.
pub trait Service: Clone + Send + Sync + 'static {
    /// An execution in flight.
    type Call: ServiceCall;

    /// `list_runtimes`
    fn list_runtimes(&self) -> impl Future<Output = Result<Vec<Runtime>, Status>> + Send;

    /// `list_runtime_specs`
    fn list_runtime_specs(&self) -> impl Future<Output = Result<Vec<RuntimeSpec>, Status>> + Send;

    /// `get_runtime`
    fn get_runtime(&self, name: &str) -> impl Future<Output = Result<Runtime, Status>> + Send;

    /// `create_runtime`. The request id stays the same when the call is repeated.
    fn create_runtime(
        &self,
        spec: &SpecKey,
        request_id: &str,
    ) -> impl Future<Output = Result<Runtime, Status>> + Send;

    /// `create_session`
    fn create_session(
        &self,
        parent: &str,
        session_id: &str,
    ) -> impl Future<Output = Result<Session, Status>> + Send;

    /// `delete_session`
    fn delete_session(&self, name: &str) -> impl Future<Output = Result<(), Status>> + Send;

    /// `list_sessions`
    fn list_sessions(
        &self,
        parent: &str,
    ) -> impl Future<Output = Result<Vec<Session>, Status>> + Send;

    /// `execute_code`. Returns when the service has taken the request.
    fn execute_code(
        &self,
        call: &ExecuteCode,
    ) -> impl Future<Output = Result<Self::Call, Status>> + Send;
}

/// An `execute_code` call in flight.
pub trait ServiceCall: Send + 'static {
    /// What comes next; `None` after the end.
    fn next(&mut self) -> impl Future<Output = Option<CallEvent>> + Send;

    /// Posts `notifications/cancelled` for the call when awaited; independent of the call's own life.
    fn cancel(&self) -> impl Future<Output = Result<(), Status>> + Send + 'static;
}
