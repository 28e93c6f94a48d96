//! Who may call, and as whom: any bearer token is good and names an account.
//!
//! Invariants: the token itself is kept nowhere, only a hash of it; pages of other sites are refused (DNS rebinding).

use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// Who sent a request.
#[derive(Clone)]
pub(super) struct Caller {
    pub account: String,
}

/// Notes the caller of a request, or refuses it.
pub(super) async fn authenticate(mut request: Request, next: Next) -> Response {
    let headers = request.headers();
    let origin = headers
        .get(header::ORIGIN)
        .and_then(|origin| origin.to_str().ok());
    if origin.is_some_and(|origin| !is_loopback(origin)) {
        return StatusCode::FORBIDDEN.into_response();
    }
    let token = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map(|(_, token)| token.trim())
        .filter(|token| !token.is_empty());
    let Some(token) = token else {
        let body = json!({"error": {
            "code": 401,
            "message": "Request is missing required authentication credential.",
            "status": "UNAUTHENTICATED",
            "details": [{
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "CREDENTIALS_MISSING",
                "domain": "googleapis.com",
            }],
        }});
        let mut response = (StatusCode::UNAUTHORIZED, axum::Json(body)).into_response();
        let challenge = HeaderValue::from_static("Bearer realm=\"local Colab\"");
        response
            .headers_mut()
            .insert(header::WWW_AUTHENTICATE, challenge);
        return response;
    };
    let hash = Sha256::digest(token.as_bytes());
    let account = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    request.extensions_mut().insert(Caller { account });
    next.run(request).await
}

fn is_loopback(origin: &str) -> bool {
    url::Url::parse(origin).is_ok_and(|origin| match origin.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(address)) => address.is_loopback(),
        Some(url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    })
}
