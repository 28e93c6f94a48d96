//! Finding a bearer token for the service.
//!
//! The order: a ready token (`COLAB_KERNEL_TOKEN`), else application-default credentials, else an error that says how to sign in.
//! Invariants:
//!
//! * Nothing is read, asked or started before the first call of [`TokenSource::headers`].
//! * Tokens, keys and refresh tokens reach neither `Debug` nor an error text.
//! * A failure is not remembered: whoever signs in needs not restart the kernel.

mod adc;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};

pub use self::adc::Environment;
use crate::colab::mcp::TokenSource;
use crate::colab::mcp::errors::{Code, Origin, Status};

/// The command that signs a user in, with the scopes that are needed.
pub const SIGN_IN: &str = "gcloud auth application-default login --scopes=openid,https://www.googleapis.com/auth/cloud-platform,https://www.googleapis.com/auth/userinfo.email,https://www.googleapis.com/auth/colaboratory";

/// The scope that the service asks for.
pub const SCOPE: &str = "https://www.googleapis.com/auth/colaboratory";

const QUOTA_PROJECT: HeaderName = HeaderName::from_static("x-goog-user-project");

/// How long a token may take to be got.
const LIMIT: Duration = Duration::from_secs(30);

/// The user's credentials.
pub struct Credentials {
    token: Option<String>,
    quota_project: Option<String>,
    environment: Environment,
    found: Mutex<Option<google_cloud_auth::credentials::Credentials>>,
}

impl Credentials {
    /// Credentials from a ready token, if there is one, else from where this environment points. The quota project given here
    /// goes before the one that application-default credentials bring.
    pub fn new(
        token: Option<String>,
        quota_project: Option<String>,
        environment: Environment,
    ) -> Self {
        let set = |text: String| {
            let text = text.trim();
            (!text.is_empty()).then(|| text.to_owned())
        };
        Self {
            token: token.and_then(set),
            quota_project: quota_project.and_then(set),
            environment,
            found: Mutex::new(None),
        }
    }

    async fn find_headers(&self, refresh: bool) -> Result<HeaderMap, Status> {
        if let Some(token) = &self.token {
            return self.ready_token(token, refresh);
        }
        let headers = tokio::time::timeout(LIMIT, self.default_credentials(refresh))
            .await
            .unwrap_or_else(|_| {
                Err(unavailable(format!(
                    "No access token within {} seconds. Check the network, then run the cell again",
                    LIMIT.as_secs()
                )))
            });
        if headers.is_err() {
            self.remember(None);
        }
        headers
    }

    fn ready_token(&self, token: &str, refused: bool) -> Result<HeaderMap, Status> {
        if refused {
            return Err(unauthenticated(format!(
                "Colab refused the token in COLAB_KERNEL_TOKEN; it may have expired.\n\
                 Set a fresh one and restart the kernel, or unset it and sign in:\n{SIGN_IN}"
            )));
        }
        let mut headers = HeaderMap::new();
        let mut bearer = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| {
            unauthenticated(
                "The token in COLAB_KERNEL_TOKEN has characters that no token has. Set it again"
                    .to_owned(),
            )
        })?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
        if let Some(project) = &self.quota_project {
            let project = HeaderValue::try_from(project).map_err(|_| {
                unauthenticated(
                    "COLAB_KERNEL_QUOTA_PROJECT is not the name of a project".to_owned(),
                )
            })?;
            headers.insert(QUOTA_PROJECT, project);
        }
        Ok(headers)
    }

    async fn default_credentials(&self, refresh: bool) -> Result<HeaderMap, Status> {
        use google_cloud_auth::credentials::CacheableResource;

        let known = if refresh { None } else { self.recall() };
        let credentials = match known {
            Some(credentials) => credentials,
            None => {
                let found = adc::find(&self.environment, self.quota_project.as_deref()).await?;
                self.remember(Some(found.clone()));
                found
            }
        };
        match credentials.headers(Default::default()).await {
            Ok(CacheableResource::New { data, .. }) => Ok(data),
            Ok(CacheableResource::NotModified) => Err(unavailable(
                "The credentials gave no token. Run the cell again".to_owned(),
            )),
            Err(error) => Err(adc::explain(&error, &self.environment)),
        }
    }

    fn recall(&self) -> Option<google_cloud_auth::credentials::Credentials> {
        self.found
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn remember(&self, credentials: Option<google_cloud_auth::credentials::Credentials>) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = credentials;
    }
}

impl TokenSource for Credentials {
    fn headers(
        &self,
        refresh: bool,
    ) -> Pin<Box<dyn Future<Output = Result<HeaderMap, Status>> + Send + '_>> {
        Box::pin(self.find_headers(refresh))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("quota_project", &self.quota_project)
            .field("environment", &self.environment)
            .finish_non_exhaustive()
    }
}

fn unauthenticated(message: String) -> Status {
    Status::new(Code::Unauthenticated, Origin::Credentials, message)
}

fn unavailable(message: String) -> Status {
    Status::new(Code::Unavailable, Origin::Credentials, message)
}

#[cfg(test)]
mod tests;
