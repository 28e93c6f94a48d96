//! What the backend needs of Colab: the tools it calls, and one execution in flight.
//!
//! [`crate::colab::mcp::Client`] is the real one; tests script another. Invariants:
//!
//! * [`ServiceCall::next`] may be dropped at any await without losing an event.
//! * Dropping a [`ServiceCall`] closes its stream and returns at once.

use std::future::Future;

use super::api::{ExecuteCode, Runtime, RuntimeSpec, Session, SpecKey};
use super::mcp::errors::Status;
use super::mcp::{Call, CallEvent, Client};

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

    /// `create_runtime`, where `before` is what runs already. The request id stays the same when the call is repeated.
    fn create_runtime(
        &self,
        spec: &SpecKey,
        request_id: &str,
        before: &[Runtime],
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

    /// `execute_code`. The call is sent by the first [`ServiceCall::next`].
    fn execute_code(&self, call: &ExecuteCode) -> Self::Call;
}

/// An `execute_code` call in flight.
pub trait ServiceCall: Send + 'static {
    /// What comes next; `None` after the end.
    fn next(&mut self) -> impl Future<Output = Option<CallEvent>> + Send;

    /// Posts `notifications/cancelled` for the call when awaited; independent of the call's own life.
    fn cancel(&self) -> impl Future<Output = Result<(), Status>> + Send + 'static;
}

impl Service for Client {
    type Call = Call;

    async fn list_runtimes(&self) -> Result<Vec<Runtime>, Status> {
        Client::list_runtimes(self).await
    }

    async fn list_runtime_specs(&self) -> Result<Vec<RuntimeSpec>, Status> {
        Client::list_runtime_specs(self).await
    }

    async fn get_runtime(&self, name: &str) -> Result<Runtime, Status> {
        Client::get_runtime(self, name).await
    }

    async fn create_runtime(
        &self,
        spec: &SpecKey,
        request_id: &str,
        before: &[Runtime],
    ) -> Result<Runtime, Status> {
        self.create_beside(spec, request_id, before).await
    }

    async fn create_session(&self, parent: &str, session_id: &str) -> Result<Session, Status> {
        Client::create_session(self, parent, session_id).await
    }

    async fn delete_session(&self, name: &str) -> Result<(), Status> {
        Client::delete_session(self, name).await
    }

    async fn list_sessions(&self, parent: &str) -> Result<Vec<Session>, Status> {
        Client::list_sessions(self, parent).await
    }

    fn execute_code(&self, call: &ExecuteCode) -> Call {
        Client::execute_code(self, call)
    }
}

impl ServiceCall for Call {
    async fn next(&mut self) -> Option<CallEvent> {
        Call::next(self).await
    }

    fn cancel(&self) -> impl Future<Output = Result<(), Status>> + Send + 'static {
        let canceller = self.canceller();
        async move { canceller.cancel("interrupted by the user").await }
    }
}
