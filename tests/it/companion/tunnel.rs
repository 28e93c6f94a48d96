//! A WebSocket over TLS through a proxy.
//!
//! The proxy and the roots are the system's, so the test runs itself in a second process whose environment names its own.

use std::sync::Arc;

use axum::extract::ws::{Message as Frame, WebSocket};
use colab_kernel::colab::api::ConnectionInfo;
use colab_kernel::colab::companion::channels;
use colab_kernel::colab::companion::wire::{Channel, Message};
use colab_kernel::colab::mcp::http::install_crypto;
use colab_kernel::colab::runtime_http::RuntimeHttp;
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::pki_types::PrivateKeyDer;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::emulator::lab::limited;

/// A name that nobody but the proxy can resolve.
const HOST: &str = "runtime.invalid";
const TOKEN: &str = "s3cret";

/// A listener for axum.
struct Tls(TcpListener, TlsAcceptor);

impl axum::serve::Listener for Tls {
    type Io = TlsStream<TcpStream>;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.0.accept().await.unwrap();
            if let Ok(stream) = self.1.accept(stream).await {
                return (stream, address);
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

/// A server of this certificate that sends back what it gets.
async fn serve(certificate: &CertifiedKey<rcgen::KeyPair>) -> u16 {
    install_crypto();
    let key = PrivateKeyDer::try_from(certificate.signing_key.serialize_der()).unwrap();
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.cert.der().clone()], key)
        .unwrap();
    // As with the real thing, which would speak HTTP/2 to whoever asks for it.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let echo = |mut socket: WebSocket| async move {
        while let Some(Ok(frame @ Frame::Binary(_))) = socket.recv().await {
            socket.send(frame).await.unwrap();
        }
    };
    let app =
        axum::Router::new().fallback(move |upgrade: axum::extract::WebSocketUpgrade| async move {
            upgrade
                .protocols(["v1.kernel.websocket.jupyter.org"])
                .on_upgrade(echo)
        });
    let listener = Tls(listener, TlsAcceptor::from(Arc::new(config)));
    tokio::spawn(async move { axum::serve(listener, app).await });
    port
}

/// A proxy for one connection, to this port of this machine, whatever the name; it returns what it was asked for.
async fn proxy(listener: TcpListener, port: u16) -> String {
    let (mut client, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await.unwrap());
    }
    client
        .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
        .await
        .unwrap();
    let mut server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
    String::from_utf8(head).unwrap()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_websocket_goes_through_the_systems_proxy_and_trusts_its_roots() {
    const INSIDE: &str = "COLAB_KERNEL_TEST_INSIDE";
    const NAME: &str =
        "companion::tunnel::a_websocket_goes_through_the_systems_proxy_and_trusts_its_roots";
    if std::env::var_os(INSIDE).is_some() {
        limited(echo_a_message()).await;
        return;
    }
    limited(async {
        let directory = tempfile::tempdir().unwrap();
        let roots = directory.path().join("roots.pem");
        let certificate = generate_simple_self_signed([HOST.to_owned()]).unwrap();
        std::fs::write(&roots, certificate.cert.pem()).unwrap();
        let port = serve(&certificate).await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = tokio::spawn(proxy(listener, port));
        let mut inside = tokio::process::Command::new(std::env::current_exe().unwrap());
        for name in ["NO_PROXY", "no_proxy", "https_proxy"] {
            inside.env_remove(name);
        }
        let output = inside
            .args(["--exact", NAME])
            .env(INSIDE, "1")
            .env("HTTPS_PROXY", format!("http://{address}"))
            .env("SSL_CERT_FILE", &roots)
            .kill_on_drop(true)
            .output();
        let output = output.await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
        let head = asked.await.unwrap();
        assert!(head.starts_with(&format!("CONNECT {HOST}:443 ")), "{head}");
        assert!(!head.contains(TOKEN), "{head}");
    })
    .await;
}

async fn echo_a_message() {
    let info = ConnectionInfo {
        token: TOKEN.into(),
        expire_time: String::new(),
        url: format!("https://{HOST}/"),
    };
    let http = RuntimeHttp::new();
    let (mut outgoing, mut incoming) = channels::open(&http, &info, "k", "ours").await.unwrap();
    let mut message = Message::new(Channel::Shell, "ours", "x", &json!({}));
    message.buffers = vec![vec![7; 16 << 20].into()];
    outgoing.send(&message).await.unwrap();
    assert!(incoming.recv().await.unwrap() == message);
}
