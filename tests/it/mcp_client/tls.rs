//! HTTP/2 over TLS, and certificates.
//!
//! The platform's roots are what the client trusts. A test that needs a server to be trusted runs itself in a second process, in
//! which `SSL_CERT_FILE` names the server's certificate.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use colab_kernel::colab::mcp::CallEvent;
use colab_kernel::colab::mcp::errors::{Code, Origin, REASON_CERTIFICATE};
use colab_kernel::colab::mcp::http::install_crypto;
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_rustls::TlsAcceptor;

use super::{client, drain, limited, map};

/// A body that is written by the test; it tells when the client drops it.
struct Written {
    chunks: mpsc::UnboundedReceiver<Bytes>,
    dropped: Arc<Notify>,
}

impl Body for Written {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.chunks
            .poll_recv(cx)
            .map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        self.dropped.notify_one();
    }
}

/// A server that speaks HTTP/2 alone. A call of `hang` gets one notification and no end; `dropped` tells that its stream is closed.
async fn serve(certificate: &CertifiedKey<rcgen::KeyPair>, dropped: Arc<Notify>) -> String {
    install_crypto();
    let key = PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!(
        "https://localhost:{}/mcp",
        listener.local_addr().unwrap().port()
    );
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, dropped) = (acceptor.clone(), Arc::clone(&dropped));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = service_fn(|request| answer(request, Arc::clone(&dropped)));
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    url
}

async fn answer(
    request: Request<Incoming>,
    dropped: Arc<Notify>,
) -> Result<Response<Written>, Infallible> {
    assert_eq!(request.version(), Version::HTTP_2);
    let mut body = request.into_body();
    let mut bytes = Vec::new();
    while let Some(Ok(frame)) = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await
    {
        bytes.extend_from_slice(&frame.into_data().unwrap_or_default());
    }
    let message: Value = serde_json::from_slice(&bytes).unwrap();
    let (sender, chunks) = mpsc::unbounded_channel();
    let mut told = Arc::new(Notify::new());
    if message["params"]["name"] == "hang" {
        told = dropped;
        let token = &message["params"]["_meta"]["progressToken"];
        let progress = json!({"method": "notifications/progress", "params": {"progressToken": token, "progress": 1, "message": "a"}});
        sender
            .send(Bytes::from(format!("data: {progress}\n\n")))
            .unwrap();
        // Kept open until the client closes it.
        tokio::spawn(async move { sender.closed().await });
    } else {
        let result = json!({"tools": [], "structuredContent": {"ok": true}});
        sender
            .send(Bytes::from(
                json!({"id": message["id"], "result": result}).to_string(),
            ))
            .unwrap();
    }
    Ok(Response::new(Written {
        chunks,
        dropped: told,
    }))
}

fn certificate() -> CertifiedKey<rcgen::KeyPair> {
    generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_named() {
    limited(async {
        let url = serve(&certificate(), Arc::default()).await;
        let status = client(&url)
            .call("list_runtimes", map(json!({})))
            .await
            .unwrap_err();
        assert_eq!(
            (status.code, status.origin),
            (Code::Unavailable, Origin::Connect)
        );
        assert_eq!(
            status.reason.as_deref(),
            Some(REASON_CERTIFICATE),
            "{status}"
        );
        assert!(
            status.message.contains("certificate of https://localhost"),
            "{status}"
        );
    })
    .await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn http2_is_spoken_and_a_dropped_call_resets_its_stream() {
    const INSIDE: &str = "COLAB_KERNEL_TEST_INSIDE";
    if std::env::var_os(INSIDE).is_none() {
        let directory = tempfile::tempdir().unwrap();
        let output = tokio::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "mcp_client::tls::http2_is_spoken_and_a_dropped_call_resets_its_stream",
            ])
            .env(INSIDE, "1")
            .env("SSL_CERT_FILE", directory.path().join("roots.pem"))
            .kill_on_drop(true)
            .output();
        let output = limited(output).await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
        return;
    }
    limited(async {
        let certificate = certificate();
        // Written before the client is built, which is when the platform's roots are read.
        std::fs::write(
            std::env::var("SSL_CERT_FILE").unwrap(),
            certificate.cert.pem(),
        )
        .unwrap();
        let dropped = Arc::new(Notify::new());
        let client = client(&serve(&certificate, Arc::clone(&dropped)).await);
        assert_eq!(
            client.call("list_runtimes", map(json!({}))).await.unwrap(),
            json!({"ok": true})
        );
        let mut call = client.start("hang", map(json!({}))).await.unwrap();
        assert!(matches!(call.next().await, Some(CallEvent::Progress(_))));
        drop(call);
        dropped.notified().await;
        // The connection goes on.
        let call = client.start("x", map(json!({}))).await.unwrap();
        assert_eq!(drain(call).await.1.unwrap(), json!({"ok": true}));
    })
    .await;
}
