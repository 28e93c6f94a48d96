use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

const REFRESH_TOKEN: &str = "1//a-secret-refresh-token";
const CLIENT_SECRET: &str = "a-secret-client-secret";

/// Everything that is awaited in a test.
async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), work)
        .await
        .expect("took too long")
}

/// A token endpoint that answers each request with the next number, or with an error.
struct TokenServer {
    url: String,
    requests: Arc<Mutex<Vec<Value>>>,
}

impl TokenServer {
    async fn start(error: Option<(StatusCode, &'static str)>) -> Self {
        type Shared = (Arc<Mutex<Vec<Value>>>, Option<(StatusCode, &'static str)>);
        async fn answer(
            State((requests, error)): State<Shared>,
            Json(request): Json<Value>,
        ) -> axum::response::Response {
            let mut requests = requests.lock().unwrap();
            requests.push(request);
            if let Some((status, body)) = error {
                return (status, body).into_response();
            }
            Json(json!({
                "access_token": format!("token-{}", requests.len()),
                "token_type": "Bearer",
                "expires_in": 3600,
            }))
            .into_response()
        }
        let requests = Arc::default();
        let router = Router::new()
            .route("/token", post(answer))
            .with_state((Arc::clone(&requests), error));
        Self {
            url: format!("http://{}/token", serve(router).await),
            requests,
        }
    }

    fn requests(&self) -> Vec<Value> {
        self.requests.lock().unwrap().clone()
    }
}

/// Serves until the test's runtime ends.
async fn serve(router: Router) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A home directory, and an environment that knows nothing else. The metadata server's port is closed.
fn home() -> (TempDir, Environment) {
    let home = tempfile::tempdir().unwrap();
    let environment = Environment {
        home: Some(home.path().to_owned()),
        metadata_host: Some("127.0.0.1:1".to_owned()),
        ..Environment::default()
    };
    (home, environment)
}

fn gcloud_file(home: &Path) -> PathBuf {
    let directory = if cfg!(windows) {
        home.join("gcloud")
    } else {
        home.join(".config/gcloud")
    };
    std::fs::create_dir_all(&directory).unwrap();
    directory.join("application_default_credentials.json")
}

fn user(token_uri: &str) -> Value {
    json!({
        "type": "authorized_user",
        "client_id": "a-client",
        "client_secret": CLIENT_SECRET,
        "refresh_token": REFRESH_TOKEN,
        "token_uri": token_uri,
        "quota_project_id": "own-project",
    })
}

fn signed_in(token_uri: &str) -> (TempDir, Environment) {
    let (home, environment) = home();
    std::fs::write(gcloud_file(home.path()), user(token_uri).to_string()).unwrap();
    (home, environment)
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    headers
        .get(name)
        .map(|value| value.to_str().unwrap().to_owned())
}

async fn refused(credentials: &Credentials) -> Status {
    let status = within(credentials.headers(false)).await.unwrap_err();
    assert_eq!(status.origin, Origin::Credentials);
    let shown = format!("{status} {status:?} {credentials:?}");
    assert!(!shown.contains(REFRESH_TOKEN), "{shown}");
    assert!(!shown.contains(CLIENT_SECRET), "{shown}");
    status
}

fn has_line(status: &Status, line: &str) -> bool {
    status.message.lines().any(|found| found == line)
}

#[tokio::test]
async fn a_ready_token_goes_first() {
    let (_home, environment) = signed_in("http://127.0.0.1:1/token");
    let credentials = Credentials::new(Some(" ya29.ready\n".to_owned()), None, environment.clone());
    let headers = within(credentials.headers(false)).await.unwrap();
    assert_eq!(
        header(&headers, "authorization").unwrap(),
        "Bearer ya29.ready"
    );
    assert_eq!(header(&headers, "x-goog-user-project"), None);
    assert!(!format!("{credentials:?} {headers:?}").contains("ya29"));

    let credentials = Credentials::new(
        Some("ya29.ready".to_owned()),
        Some("my-project".to_owned()),
        environment,
    );
    let headers = within(credentials.headers(false)).await.unwrap();
    assert_eq!(
        header(&headers, "x-goog-user-project").unwrap(),
        "my-project"
    );
}

#[tokio::test]
async fn a_ready_token_that_was_refused_is_not_used_again() {
    let (_home, environment) = home();
    let credentials = Credentials::new(Some("ya29.old".to_owned()), None, environment);
    let status = within(credentials.headers(true)).await.unwrap_err();
    assert_eq!(status.code, Code::Unauthenticated);
    assert!(status.message.contains("COLAB_KERNEL_TOKEN"));
    assert!(has_line(&status, SIGN_IN));
    assert!(!status.message.contains("ya29"));
}

#[tokio::test]
async fn a_token_with_a_line_break_inside_is_refused_without_being_shown() {
    let credentials = Credentials::new(Some("se\ncret".to_owned()), None, home().1);
    let status = within(credentials.headers(false)).await.unwrap_err();
    assert_eq!(status.code, Code::Unauthenticated);
    assert!(!status.message.contains("cret"));
}

#[tokio::test]
async fn without_credentials_the_error_says_how_to_sign_in() {
    for (token, environment) in [
        (None, home().1),
        (Some("  ".to_owned()), home().1),
        (
            None,
            Environment {
                metadata_host: Some("127.0.0.1:1".to_owned()),
                ..Environment::default()
            },
        ),
    ] {
        let credentials = Credentials::new(token, None, environment);
        let status = refused(&credentials).await;
        assert_eq!(status.code, Code::Unauthenticated);
        assert!(has_line(
            &status,
            "gcloud auth application-default login --scopes=openid,https://www.googleapis.com/auth/cloud-platform,https://www.googleapis.com/auth/userinfo.email,https://www.googleapis.com/auth/colaboratory"
        ));
        assert!(status.message.contains("COLAB_KERNEL_TOKEN"));
    }
}

#[tokio::test]
async fn a_metadata_server_that_does_not_answer_costs_little() {
    // It accepts, and says nothing.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut environment = home().1;
    environment.metadata_host = Some(silent.local_addr().unwrap().to_string());
    let credentials = Credentials::new(None, None, environment);
    let started = Instant::now();
    assert_eq!(refused(&credentials).await.code, Code::Unauthenticated);
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn a_server_that_is_not_of_google_is_no_metadata_server() {
    let router = Router::new().route("/", get(|| async { "hello" }));
    let mut environment = home().1;
    environment.metadata_host = Some(serve(router).await.to_string());
    let credentials = Credentials::new(None, None, environment);
    assert!(has_line(&refused(&credentials).await, SIGN_IN));
}

#[tokio::test]
async fn the_metadata_server_gives_a_token_for_the_scope() {
    async fn token(axum::extract::RawQuery(query): axum::extract::RawQuery) -> impl IntoResponse {
        assert!(query.unwrap().contains("colaboratory"));
        Json(json!({"access_token": "from-metadata", "token_type": "Bearer", "expires_in": 3600}))
    }
    let router = Router::new()
        .route("/", get(|| async { ([("metadata-flavor", "Google")], "") }))
        .route(
            "/computeMetadata/v1/instance/service-accounts/default/token",
            get(token),
        );
    let mut environment = home().1;
    environment.metadata_host = Some(serve(router).await.to_string());
    let credentials = Credentials::new(None, None, environment);
    let headers = within(credentials.headers(false)).await.unwrap();
    assert_eq!(
        header(&headers, "authorization").unwrap(),
        "Bearer from-metadata"
    );
}

#[tokio::test]
async fn a_signed_in_user_gets_a_token_for_the_scope_and_the_files_quota_project() {
    let server = TokenServer::start(None).await;
    let (_home, environment) = signed_in(&server.url);
    let credentials = Credentials::new(None, None, environment);
    assert_eq!(server.requests().len(), 0);
    for _ in 0..2 {
        let headers = within(credentials.headers(false)).await.unwrap();
        assert_eq!(header(&headers, "authorization").unwrap(), "Bearer token-1");
        assert_eq!(
            header(&headers, "x-goog-user-project").unwrap(),
            "own-project"
        );
    }
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0]["scope"], SCOPE);
    assert_eq!(requests[0]["refresh_token"], REFRESH_TOKEN);
}

#[tokio::test]
async fn the_setting_goes_before_the_files_quota_project() {
    let server = TokenServer::start(None).await;
    let (_home, mut environment) = signed_in(&server.url);
    environment.quota_project = Some("shared".to_owned());
    for (setting, expected) in [(Some("mine".to_owned()), "mine"), (None, "shared")] {
        let credentials = Credentials::new(None, setting, environment.clone());
        let headers = within(credentials.headers(false)).await.unwrap();
        assert_eq!(header(&headers, "x-goog-user-project").unwrap(), expected);
    }
}

#[tokio::test]
async fn a_refused_token_is_replaced() {
    let server = TokenServer::start(None).await;
    let (_home, environment) = signed_in(&server.url);
    let credentials = Credentials::new(None, None, environment);
    let token = async |refresh| {
        let headers = within(credentials.headers(refresh)).await.unwrap();
        header(&headers, "authorization").unwrap()
    };
    assert_eq!(token(false).await, "Bearer token-1");
    assert_eq!(token(true).await, "Bearer token-2");
    assert_eq!(token(false).await, "Bearer token-2");
}

#[tokio::test]
async fn withdrawn_credentials_ask_for_a_new_sign_in() {
    for (body, words) in [
        (
            r#"{"error": "invalid_grant", "error_description": "Token has been expired or revoked. 1//a-secret-refresh-token"}"#,
            "expired or were withdrawn",
        ),
        (r#"{"error": "invalid_scope"}"#, "without the scope"),
        (r#"{"error": "invalid_client"}"#, "client is not accepted"),
        (r#"{"error": "other 1//a-secret-refresh-token"}"#, "other …"),
    ] {
        let server = TokenServer::start(Some((StatusCode::BAD_REQUEST, body))).await;
        let (_home, environment) = signed_in(&server.url);
        let credentials = Credentials::new(None, None, environment);
        let status = refused(&credentials).await;
        assert_eq!(status.code, Code::Unauthenticated);
        assert!(status.message.contains(words), "{}", status.message);
        assert!(has_line(&status, SIGN_IN));
    }
}

#[tokio::test]
async fn an_unreachable_token_server_is_not_a_reason_to_sign_in_again() {
    let (_home, environment) = signed_in("http://127.0.0.1:1/token");
    let credentials = Credentials::new(None, None, environment);
    let status = refused(&credentials).await;
    assert_eq!(status.code, Code::Unavailable);
    assert!(!status.message.contains(SIGN_IN));
}

#[tokio::test]
async fn an_ailing_token_server_is_not_a_reason_to_sign_in_again() {
    let server = TokenServer::start(Some((StatusCode::SERVICE_UNAVAILABLE, "later"))).await;
    let (_home, environment) = signed_in(&server.url);
    let credentials = Credentials::new(None, None, environment);
    let status = refused(&credentials).await;
    assert_eq!(status.code, Code::Unavailable);
    assert!(!status.message.contains(SIGN_IN));
}

#[tokio::test]
async fn signing_in_later_needs_no_restart() {
    let (home, environment) = home();
    let credentials = Credentials::new(None, None, environment);
    refused(&credentials).await;

    let withdrawn = TokenServer::start(Some((
        StatusCode::BAD_REQUEST,
        r#"{"error": "invalid_grant"}"#,
    )))
    .await;
    let file = gcloud_file(home.path());
    std::fs::write(&file, user(&withdrawn.url).to_string()).unwrap();
    refused(&credentials).await;

    let server = TokenServer::start(None).await;
    std::fs::write(&file, user(&server.url).to_string()).unwrap();
    let headers = within(credentials.headers(false)).await.unwrap();
    assert_eq!(header(&headers, "authorization").unwrap(), "Bearer token-1");
}

#[tokio::test]
async fn the_variables_say_where_the_file_is() {
    let server = TokenServer::start(None).await;
    let (home, mut environment) = home();
    let gcloud = home.path().join("elsewhere");
    std::fs::create_dir(&gcloud).unwrap();
    std::fs::write(
        gcloud.join("application_default_credentials.json"),
        user(&server.url).to_string(),
    )
    .unwrap();
    environment.gcloud_dir = Some(gcloud.clone());
    let credentials = Credentials::new(None, None, environment.clone());
    within(credentials.headers(false)).await.unwrap();

    environment.gcloud_dir = None;
    environment.credentials_file = Some(gcloud.join("application_default_credentials.json"));
    let credentials = Credentials::new(None, None, environment);
    within(credentials.headers(false)).await.unwrap();
}

#[tokio::test]
async fn a_service_account_signs_its_own_token() {
    let (home, mut environment) = home();
    let file = home.path().join("key.json");
    let mut key = json!({
        "type": "service_account",
        "client_email": "robot@project.iam.gserviceaccount.com",
        "private_key_id": "1",
        "private_key": format!(
            "-----BEGIN {0}-----\n{1}-----END {0}-----\n",
            "PRIVATE KEY",
            // Made for this test; it opens nothing.
            include_str!("test_key.txt")
        ),
        "project_id": "project",
    });
    std::fs::write(&file, key.to_string()).unwrap();
    environment.credentials_file = Some(file.clone());
    let credentials = Credentials::new(None, Some("paying".to_owned()), environment.clone());
    let headers = within(credentials.headers(false)).await.unwrap();
    let bearer = header(&headers, "authorization").unwrap();
    assert_eq!(bearer.split('.').count(), 3);
    assert_eq!(header(&headers, "x-goog-user-project").unwrap(), "paying");

    key["private_key"] = json!("not a secret but not a key either");
    std::fs::write(&file, key.to_string()).unwrap();
    let credentials = Credentials::new(None, None, environment);
    let status = refused(&credentials).await;
    assert_eq!(status.code, Code::Unauthenticated);
    assert!(!status.message.contains("not a key either"));
}

#[tokio::test]
async fn a_broken_file_is_named_with_what_is_wrong() {
    let (home, mut environment) = home();
    let file = home.path().join("credentials.json");
    environment.credentials_file = Some(file.clone());
    let mut without_field = user("http://127.0.0.1:1/token");
    without_field.as_object_mut().unwrap().remove("client_id");
    let mut wrong_field = user("http://127.0.0.1:1/token");
    wrong_field["quota_project_id"] = json!([CLIENT_SECRET]);
    for (text, words) in [
        ("{\"type\": \"authorized_user\",".to_owned(), "not JSON"),
        (String::new(), "not JSON"),
        ("[]".to_owned(), "no field \"type\""),
        ("{\"type\": \"mystery\"}".to_owned(), "\"mystery\""),
        (without_field.to_string(), "no field \"client_id\""),
        (wrong_field.to_string(), "\"authorized_user\""),
        (
            json!({"type": "external_account"}).to_string(),
            "\"external_account\"",
        ),
    ] {
        std::fs::write(&file, text).unwrap();
        let credentials = Credentials::new(None, None, environment.clone());
        let status = refused(&credentials).await;
        assert_eq!(status.code, Code::Unauthenticated);
        assert!(status.message.contains(words), "{}", status.message);
        assert!(status.message.contains(file.to_str().unwrap()));
        assert!(has_line(&status, SIGN_IN));
    }

    std::fs::remove_file(&file).unwrap();
    let credentials = Credentials::new(None, None, environment);
    let status = refused(&credentials).await;
    assert!(status.message.contains("GOOGLE_APPLICATION_CREDENTIALS"));
    assert!(status.message.contains(file.to_str().unwrap()));
}

#[tokio::test]
async fn the_whole_credentials_are_shared_between_tasks() {
    let server = TokenServer::start(None).await;
    let (_home, environment) = signed_in(&server.url);
    let credentials: Arc<dyn TokenSource> = Arc::new(Credentials::new(None, None, environment));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let credentials = Arc::clone(&credentials);
        tasks.spawn(async move { within(credentials.headers(false)).await.is_ok() });
    }
    assert!(tasks.join_all().await.into_iter().all(|ok| ok));
}
