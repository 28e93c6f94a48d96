//! Every surface, with what it has to become.

use reqwest::header::HeaderValue;
use serde_json::json;

use super::*;

fn http(status: u16, body: &str) -> Status {
    from_http(status, &HeaderMap::new(), body.as_bytes())
}

const ERROR_INFO: &str = "type.googleapis.com/google.rpc.ErrorInfo";

fn google(code: i64, status: &str) -> Value {
    json!({"error": {"code": code, "message": "no more", "status": status, "details": [
        {"@type": ERROR_INFO, "reason": "TOO_MANY_ACTIVE_RUNTIMES", "domain": "colab", "metadata": {"limit": "3"}},
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "2.5s"},
    ]}})
}

fn assert_quota(status: &Status) {
    assert_eq!(status.code, Code::FailedPrecondition);
    assert_eq!(status.origin, Origin::Service);
    assert_eq!(status.message, "no more");
    assert_eq!(status.reason.as_deref(), Some("TOO_MANY_ACTIVE_RUNTIMES"));
    assert_eq!(status.metadata["limit"], "3");
    assert_eq!(status.retry_after, Some(Duration::from_millis(2500)));
}

#[test]
fn google_status_is_read_from_every_surface() {
    let body = google(400, "FAILED_PRECONDITION");
    let inner = body["error"].clone();
    assert_quota(&http(400, &body.to_string()));
    assert_quota(&http(400, &json!([body]).to_string()));
    assert_quota(&from_rpc(
        &json!({"code": -32000, "message": "no more", "data": inner}),
    ));
    assert_quota(&from_rpc(
        &json!({"code": -32603, "message": "no more", "data": body}),
    ));
    assert_quota(&from_rpc(
        &json!({"code": 9, "message": "no more", "data": inner["details"]}),
    ));
    assert_quota(&from_tool(
        &json!({"isError": true, "structuredContent": body}),
    ));
    assert_quota(&from_tool(
        &json!({"isError": true, "content": [{"type": "text", "text": body.to_string()}]}),
    ));
    let prefixed = format!("Error executing tool create_runtime: {inner}");
    assert_quota(&from_tool(
        &json!({"isError": true, "content": [{"type": "text", "text": prefixed}]}),
    ));
    assert_quota(&from_google(
        &json!({"code": 9, "message": "no more", "details": inner["details"]}),
    ));
}

#[test]
fn data_that_is_an_error_info_gives_the_reason() {
    let status = from_rpc(&json!({"code": 8, "message": "slow down", "data":
        {"@type": ERROR_INFO, "reason": "RATE_LIMIT_EXCEEDED", "metadata": {"quota": "x"}}}));
    assert_eq!(status.code, Code::ResourceExhausted);
    assert_eq!(status.reason.as_deref(), Some("RATE_LIMIT_EXCEEDED"));
    assert_eq!(status.message, "slow down");
}

#[test]
fn rpc_numbers_of_either_kind_are_understood() {
    for (number, code) in [
        (5, Code::NotFound),
        (16, Code::Unauthenticated),
        (404, Code::NotFound),
        (429, Code::ResourceExhausted),
        (-32602, Code::InvalidArgument),
        (-32601, Code::Unimplemented),
        (-32603, Code::Internal),
        (-32000, Code::Unknown),
    ] {
        assert_eq!(
            from_rpc(&json!({"code": number, "message": "m"})).code,
            code,
            "{number}"
        );
    }
    let text = from_rpc(&json!({"code": -32000, "message": "NOT_FOUND: no such runtime"}));
    assert_eq!(
        (text.code, text.message.as_str()),
        (Code::NotFound, "no such runtime")
    );
    assert_eq!(
        from_rpc(&json!({"code": 0, "message": "Request cancelled"})).code,
        Code::Cancelled
    );
}

#[test]
fn tool_text_that_names_the_code_is_understood() {
    for (text, code, message) in [
        (
            "NOT_FOUND: Runtime r1 was not found",
            Code::NotFound,
            "Runtime r1 was not found",
        ),
        (
            "Error: RESOURCE_EXHAUSTED",
            Code::ResourceExhausted,
            "Error: RESOURCE_EXHAUSTED",
        ),
        ("[UNAVAILABLE] try later", Code::Unavailable, "try later"),
        (
            "rpc error: code = DeadlineExceeded desc = too long",
            Code::DeadlineExceeded,
            "rpc error: code = DeadlineExceeded desc = too long",
        ),
        (
            "StatusCode.PERMISSION_DENIED (no)",
            Code::PermissionDenied,
            "StatusCode.PERMISSION_DENIED (no)",
        ),
        ("something else", Code::Unknown, "something else"),
    ] {
        let status =
            from_tool(&json!({"isError": true, "content": [{"type": "text", "text": text}]}));
        assert_eq!(
            (status.code, status.message.as_str()),
            (code, message),
            "{text}"
        );
    }
    assert_eq!(from_tool(&json!({"isError": true})).code, Code::Unknown);
}

#[test]
fn tool_text_gives_the_reason_too() {
    let status = from_tool(&json!({"isError": true, "content": [{"type": "text",
        "text": "FAILED_PRECONDITION: limit reached (reason: TOO_MANY_ACTIVE_RUNTIMES)"}]}));
    assert_eq!(status.reason.as_deref(), Some("TOO_MANY_ACTIVE_RUNTIMES"));
    assert_eq!(status.code, Code::FailedPrecondition);
}

#[test]
fn error_pages_become_one_short_line() {
    let page = "<!DOCTYPE html><html><head><title>502 Bad Gateway</title><style>p{x:y}</style></head>\
                <body><h1>Oh</h1><script>let a = 1;</script></body></html>";
    let status = http(502, page);
    assert_eq!(status.code, Code::Unavailable);
    assert_eq!(status.message, "HTTP 502 Bad Gateway: 502 Bad Gateway");
    assert_eq!(http(503, "").message, "HTTP 503 Service Unavailable");
    let long = http(500, &"word ".repeat(1000));
    assert!(long.message.len() < 400, "{}", long.message.len());
}

#[test]
fn http_status_decides_where_the_body_says_nothing() {
    assert_eq!(
        http(
            429,
            r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"slow"}}"#
        )
        .code,
        Code::ResourceExhausted
    );
    assert_eq!(
        http(
            409,
            r#"{"error":{"code":409,"message":"m","status":"ALREADY_EXISTS"}}"#
        )
        .code,
        Code::AlreadyExists
    );
    assert_eq!(
        http(409, r#"{"error":{"code":409,"message":"m"}}"#).code,
        Code::Aborted
    );
    assert_eq!(http(499, "gone").code, Code::Cancelled);
    let oauth = http(
        401,
        r#"{"error":"invalid_token","error_description":"it expired"}"#,
    );
    assert_eq!(
        (oauth.code, oauth.message.as_str()),
        (Code::Unauthenticated, "it expired")
    );
}

#[test]
fn retry_after_is_read_as_seconds_and_as_a_date() {
    let mut headers = HeaderMap::new();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("7"));
    assert_eq!(
        from_http(429, &headers, b"").retry_after,
        Some(Duration::from_secs(7))
    );
    headers.insert(
        DATE,
        HeaderValue::from_static("Wed, 21 Oct 2026 07:28:00 GMT"),
    );
    headers.insert(
        RETRY_AFTER,
        HeaderValue::from_static("Wed, 21 Oct 2026 07:28:30 GMT"),
    );
    assert_eq!(retry_after(&headers), Some(Duration::from_secs(30)));
    headers.insert(
        RETRY_AFTER,
        HeaderValue::from_static("Wed, 21 Oct 2026 07:27:00 GMT"),
    );
    assert_eq!(retry_after(&headers), Some(Duration::ZERO));
    headers.insert(RETRY_AFTER, HeaderValue::from_static("soon"));
    assert_eq!(retry_after(&headers), None);
}

#[test]
fn tokens_never_reach_a_message() {
    let status = http(
        401,
        r#"{"error":{"code":401,"message":"bad token ya29.A0AfB_byC-12345 in Bearer abcdef","status":"UNAUTHENTICATED"}}"#,
    );
    assert!(!status.message.contains("A0AfB"), "{}", status.message);
    assert!(!status.message.contains("abcdef"), "{}", status.message);
}

#[test]
fn a_challenge_names_the_reason() {
    let mut headers = HeaderMap::new();
    headers.insert(
        WWW_AUTHENTICATE,
        HeaderValue::from_static(r#"Bearer error="insufficient_scope", scope="x""#),
    );
    assert_eq!(
        from_http(403, &headers, b"").reason.as_deref(),
        Some("insufficient_scope")
    );
}

#[test]
fn a_layer_that_does_not_know_does_not_hide_the_words_of_the_one_that_does() {
    let data = json!({"error": {"code": 404, "status": "NOT_FOUND", "message": "no such runtime"}});
    let status = from_rpc(&json!({"code": -32603, "message": "Internal error", "data": data}));
    assert_eq!(
        (status.code, status.message.as_str()),
        (Code::NotFound, "no such runtime")
    );
}

#[test]
fn a_known_reason_alone_is_a_failed_precondition() {
    let status = from_tool(&json!({"isError": true, "content": [
        {"type": "text", "text": "create_runtime failed: TOO_MANY_ACTIVE_RUNTIMES"}]}));
    assert_eq!(status.code, Code::FailedPrecondition);
    assert_eq!(status.reason.as_deref(), Some("TOO_MANY_ACTIVE_RUNTIMES"));
}
