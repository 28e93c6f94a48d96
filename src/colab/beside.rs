//! Getting a session its companion.
//!
//! Invariants: what is found out, installed and replayed shows nothing and takes no number of the user's; where there is no
//! companion to be had, one line in the log says why and the session goes on as text.

use std::sync::Arc;

use super::api::ConnectionInfo;
use super::cell::Run;
use super::companion::link::NoAddress;
use super::companion::rest::{self, RestError};
use super::companion::{Companion, Setup, find};
use super::execution::Lost;
use super::helper;
use super::mcp::errors::Code;
use super::service::Service;
use super::session::{Beside, OpenSession};
use super::text::Publisher;

impl<S: Service> Run<'_, S> {
    /// The session, with its companion if it is new and has one.
    pub(super) async fn with_companion(
        &self,
        session: OpenSession,
    ) -> Result<OpenSession, (OpenSession, Lost)> {
        let is_wanted = self.backend.settings.companion.is_some();
        if !is_wanted || !matches!(session.companion, Beside::Untried) {
            return Ok(session);
        }
        self.waiting.notice("Preparing the Colab session").await;
        let connected = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err((session, Lost::InterruptedBefore)),
            connected = self.connect(&session) => connected,
        };
        let beside = match connected {
            Ok(companion) => Beside::Here(companion),
            Err(Failed::Lost(lost)) => return Err((session, lost)),
            Err(Failed::Absent(why)) => {
                tracing::warn!(why, "no companion: this session runs as text");
                Beside::Absent
            }
        };
        self.backend.update(&session.name, |session| {
            if matches!(beside, Beside::Here(_)) {
                session.prepared = true;
                // The bootstrap has set the counter back.
                session.last_count = 0;
                session.untold_runs = 0;
            }
            session.companion = beside;
        });
        Ok(self.current(session))
    }

    async fn connect(&self, session: &OpenSession) -> Result<Companion, Failed> {
        let Some(settings) = self.backend.settings.companion.clone() else {
            return Err(Failed::Absent("it is not wanted".to_owned()));
        };
        let info = self
            .fresh_connection(session)
            .await
            .map_err(Failed::Absent)?;
        let kernel = self.kernel(session, &info).await?;
        let service = self.backend.service.clone();
        let runtime = session.runtime.name.clone();
        let setup = Setup {
            http: self.backend.http.clone(),
            info,
            address: Arc::new(move || {
                let (service, runtime) = (service.clone(), runtime.clone());
                Box::pin(async move { address(&service, &runtime).await })
            }),
            kernel,
            background: self.backend.background(),
            count: 1,
            settings,
        };
        let companion = Companion::start(setup).await.map_err(Failed::Absent)?;
        if companion
            .insist_silently(&helper::without_page())
            .await
            .is_err()
        {
            tracing::warn!("helpers of Colab's web page could not be replaced");
        }
        let setup = self.backend.state().setup.clone();
        for code in setup {
            match companion.run_silently(&code).await {
                Ok(reply) if reply.status.as_deref() == Some("error") => {
                    tracing::warn!(name = reply.ename, "set-up code of the front-end failed");
                }
                Ok(_) => {}
                // It may have run, and is not run twice.
                Err(_) => {
                    tracing::warn!("the connection was lost over set-up code of the front-end")
                }
            }
        }
        Ok(companion)
    }

    /// The id of the session's kernel: from the server's list where our own id occurs in it, else from the kernel itself.
    async fn kernel(&self, session: &OpenSession, info: &ConnectionInfo) -> Result<String, Failed> {
        let id = session.name.rsplit('/').next().unwrap_or(&session.name);
        let http = &self.backend.http;
        let listed = match rest::sessions(http, info).await {
            // A token that has expired is answered like a refusal.
            Err(RestError::Refused(404 | 401)) => {
                let info = self.connection(session).await.map_err(Failed::Absent)?;
                rest::sessions(http, &info).await
            }
            listed => listed,
        };
        match listed {
            Ok(sessions) => {
                if let Some(kernel) = find::kernel_of(&sessions, id) {
                    return Ok(kernel);
                }
            }
            Err(RestError::Unreachable(why)) => return Err(Failed::Absent(why)),
            // Code is run to ask the kernel itself only where a Jupyter server has shown that it is there.
            Err(error @ (RestError::Refused(404) | RestError::Unreadable)) => {
                return Err(Failed::Absent(error.to_string()));
            }
            // Listings may be refused for good.
            Err(error) => tracing::debug!(%error, "the server does not list its sessions"),
        }
        let mut unseen = Publisher::new(None, self.backend.state().shape);
        let probe = self
            .execution(session)
            .run(find::probe(), &mut unseen, false)
            .await;
        let reply = match probe {
            Ok(reply) => reply,
            Err(lost) => {
                self.count_untold(session);
                return Err(Failed::Lost(lost));
            }
        };
        let is_replaced = self.count(session, &reply.result).await;
        if reply.interrupted {
            return Err(Failed::Lost(Lost::InterruptedBefore));
        }
        if is_replaced {
            return Err(Failed::Lost(Lost::Session));
        }
        self.backend
            .update(&session.name, |session| session.proven = true);
        find::probed(&reply.result.stdout)
            .ok_or_else(|| Failed::Absent("the session's kernel does not tell its id".to_owned()))
    }
}

/// Why a session has no companion.
enum Failed {
    /// The session itself is in trouble.
    Lost(Lost),
    /// In words for the log.
    Absent(String),
}

async fn address<S: Service>(service: &S, runtime: &str) -> Result<ConnectionInfo, NoAddress> {
    let runtime = service
        .get_runtime(runtime)
        .await
        .map_err(|status| match status.code {
            Code::NotFound => NoAddress::Gone,
            code => NoAddress::Failed(format!("get_runtime failed: {code:?}")),
        })?;
    runtime
        .connection_info
        .ok_or_else(|| NoAddress::Failed("Colab tells no address of the runtime".to_owned()))
}
