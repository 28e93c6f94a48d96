//! Application-default credentials: the file that `GOOGLE_APPLICATION_CREDENTIALS` names, else the one that `gcloud` wrote, else
//! the metadata server of a Google machine (<https://google.aip.dev/auth/4110>).
//!
//! The file is looked for here, and the token got by the `google-cloud-auth` crate, so that each way to fail has its own words.
//! The metadata server is asked last and for 300 ms at most: elsewhere its address leads nowhere.

use std::error::Error as _;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use google_cloud_auth::build_errors;
use google_cloud_auth::credentials::{
    Credentials, external_account, external_account_authorized_user, impersonated, mds,
    service_account, user_account,
};
use google_cloud_auth::errors::CredentialsError;
use serde_json::Value;

use super::{SCOPE, SIGN_IN, unauthenticated, unavailable};
use crate::colab::mcp::errors::Status;
use crate::colab::mcp::http::install_crypto;

const METADATA_LIMIT: Duration = Duration::from_millis(300);

/// By address, because the name `metadata.google.internal` may be slow not to be found.
const METADATA_HOST: &str = "169.254.169.254";

/// What of the process environment decides where credentials are.
#[derive(Debug, Clone, Default)]
pub struct Environment {
    /// `GOOGLE_APPLICATION_CREDENTIALS`
    pub credentials_file: Option<PathBuf>,
    /// `CLOUDSDK_CONFIG`
    pub gcloud_dir: Option<PathBuf>,
    /// `HOME`, or `APPDATA` on Windows.
    pub home: Option<PathBuf>,
    /// `GOOGLE_CLOUD_QUOTA_PROJECT`
    pub quota_project: Option<String>,
    /// `GCE_METADATA_HOST`
    pub metadata_host: Option<String>,
}

impl Environment {
    /// The environment of this process.
    pub fn from_process() -> Self {
        let set = |name: &str| -> Option<OsString> {
            std::env::var_os(name).filter(|value| !value.is_empty())
        };
        let text = |name: &str| set(name).and_then(|value| value.into_string().ok());
        Self {
            credentials_file: set("GOOGLE_APPLICATION_CREDENTIALS").map(PathBuf::from),
            gcloud_dir: set("CLOUDSDK_CONFIG").map(PathBuf::from),
            home: set(if cfg!(windows) { "APPDATA" } else { "HOME" }).map(PathBuf::from),
            quota_project: text("GOOGLE_CLOUD_QUOTA_PROJECT"),
            metadata_host: text("GCE_METADATA_HOST"),
        }
    }

    /// Where `gcloud auth application-default login` writes.
    fn well_known_file(&self) -> Option<PathBuf> {
        let directory = match (&self.gcloud_dir, &self.home) {
            (Some(directory), _) => directory.clone(),
            (None, Some(home)) if cfg!(windows) => home.join("gcloud"),
            (None, Some(home)) => home.join(".config").join("gcloud"),
            (None, None) => return None,
        };
        Some(directory.join("application_default_credentials.json"))
    }

    /// The file that holds the credentials, and its text.
    fn read_file(&self) -> Result<Option<(PathBuf, String)>, Status> {
        if let Some(path) = &self.credentials_file {
            return match std::fs::read_to_string(path) {
                Ok(text) => Ok(Some((path.clone(), text))),
                Err(error) => Err(unauthenticated(format!(
                    "GOOGLE_APPLICATION_CREDENTIALS names {}, which cannot be read: {error}.\n\
                     Correct it, or unset it and sign in:\n{SIGN_IN}",
                    path.display()
                ))),
            };
        }
        let Some(path) = self.well_known_file() else {
            return Ok(None);
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(Some((path, text))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(broken(&path, &error.to_string())),
        }
    }
}

/// The credentials that this environment has.
pub(super) async fn find(
    environment: &Environment,
    quota_project: Option<&str>,
) -> Result<Credentials, Status> {
    install_crypto();
    let quota_project = quota_project
        .or(environment.quota_project.as_deref())
        .map(str::to_owned);
    match environment.read_file()? {
        Some((path, text)) => {
            from_file(&text, quota_project).map_err(|problem| broken(&path, &problem))
        }
        None if metadata_server_answers(environment).await => {
            let builder = mds::Builder::default()
                .with_endpoint(metadata_url(environment))
                .with_scopes([SCOPE]);
            quota_project
                .into_iter()
                .fold(builder, mds::Builder::with_quota_project_id)
                .build()
                .map_err(|_| nothing_found())
        }
        None => Err(nothing_found()),
    }
}

/// Reads a credentials file. The error says what is wrong with it, without a word of its content but names of fields.
fn from_file(text: &str, quota_project: Option<String>) -> Result<Credentials, String> {
    let json: Value =
        serde_json::from_str(text).map_err(|error| format!("it is not JSON ({error})"))?;
    let Some(kind) = json.get("type").and_then(Value::as_str) else {
        return Err("it has no field \"type\"".to_owned());
    };
    let required: &[&str] = match kind {
        "authorized_user" => &["client_id", "client_secret", "refresh_token"],
        "service_account" => &[
            "client_email",
            "private_key",
            "private_key_id",
            "project_id",
        ],
        "impersonated_service_account"
        | "external_account"
        | "external_account_authorized_user" => &[],
        _ => {
            return Err(format!(
                "credentials of the type \"{kind}\" are not supported"
            ));
        }
    };
    for name in required {
        if json
            .get(name)
            .and_then(Value::as_str)
            .is_none_or(str::is_empty)
        {
            return Err(format!("it has no field \"{name}\""));
        }
    }
    let kind = kind.to_owned();
    // The crate's own words may quote the file.
    build(&kind, json, quota_project)
        .map_err(|_| format!("its fields are not those of credentials of the type \"{kind}\""))
}

fn build(
    kind: &str,
    json: Value,
    quota_project: Option<String>,
) -> Result<Credentials, build_errors::Error> {
    let project = quota_project.into_iter();
    match kind {
        "authorized_user" => project
            .fold(
                user_account::Builder::new(json).with_scopes([SCOPE]),
                user_account::Builder::with_quota_project_id,
            )
            .build(),
        "service_account" => project
            .fold(
                service_account::Builder::new(json)
                    .with_access_specifier(service_account::AccessSpecifier::from_scopes([SCOPE])),
                service_account::Builder::with_quota_project_id,
            )
            .build(),
        "impersonated_service_account" => project
            .fold(
                impersonated::Builder::new(json).with_scopes([SCOPE]),
                impersonated::Builder::with_quota_project_id,
            )
            .build(),
        // Their scopes were fixed when they were made.
        "external_account_authorized_user" => project
            .fold(
                external_account_authorized_user::Builder::new(json),
                external_account_authorized_user::Builder::with_quota_project_id,
            )
            .build(),
        _ => project
            .fold(
                external_account::Builder::new(json).with_scopes([SCOPE]),
                external_account::Builder::with_quota_project_id,
            )
            .build(),
    }
}

/// Why no token came, in words for the user.
pub(super) fn explain(error: &CredentialsError, environment: &Environment) -> Status {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let words = inner.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        cause = inner.source();
    }
    let text = without_secrets(text, environment);
    if error.is_transient() {
        return unavailable(format!(
            "No access token could be got: {text}.\nCheck the network, then run the cell again"
        ));
    }
    let reason = if text.contains("invalid_scope") || text.contains("insufficient_scope") {
        "They were made without the scope for Colab"
    } else if text.contains("invalid_grant") || text.contains("invalid_rapt") {
        "They have expired or were withdrawn"
    } else if text.contains("invalid_client") || text.contains("unauthorized_client") {
        "Their client is not accepted"
    } else {
        return unauthenticated(format!(
            "The application-default credentials gave no access token: {text}.\nSign in again:\n{SIGN_IN}"
        ));
    };
    unauthenticated(format!(
        "The application-default credentials were refused. {reason}.\nSign in again:\n{SIGN_IN}"
    ))
}

/// A server's answer could repeat what was sent to it.
fn without_secrets(mut text: String, environment: &Environment) -> String {
    const LONGEST: usize = 500;
    if let Ok(Some((_, file))) = environment.read_file()
        && let Ok(Value::Object(fields)) = serde_json::from_str(&file)
    {
        for name in ["refresh_token", "client_secret", "private_key"] {
            if let Some(secret) = fields.get(name).and_then(Value::as_str)
                && !secret.is_empty()
            {
                text = text.replace(secret, "…");
            }
        }
    }
    if let Some((cut, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(cut);
        text.push('…');
    }
    text.trim_end_matches(['.', '\n']).to_owned()
}

fn nothing_found() -> Status {
    unauthenticated(format!(
        "You are not signed in to Google.\nSign in with:\n{SIGN_IN}\n\
         Or set COLAB_KERNEL_TOKEN to an access token and restart the kernel"
    ))
}

fn broken(path: &std::path::Path, problem: &str) -> Status {
    unauthenticated(format!(
        "The credentials in {} cannot be used: {problem}.\nSign in again:\n{SIGN_IN}\n\
         Or set COLAB_KERNEL_TOKEN to an access token and restart the kernel",
        path.display()
    ))
}

fn metadata_url(environment: &Environment) -> String {
    let host = environment.metadata_host.as_deref();
    format!("http://{}", host.unwrap_or(METADATA_HOST))
}

/// Whether this is a machine of Google's. Its metadata server signs every answer with a header.
async fn metadata_server_answers(environment: &Environment) -> bool {
    let Ok(client) = reqwest::Client::builder()
        .no_proxy()
        .timeout(METADATA_LIMIT)
        .build()
    else {
        return false;
    };
    let answer = client
        .get(metadata_url(environment))
        .header("metadata-flavor", "Google")
        .send()
        .await;
    answer.is_ok_and(|answer| {
        answer
            .headers()
            .get("metadata-flavor")
            .is_some_and(|flavor| flavor == "Google")
    })
}
