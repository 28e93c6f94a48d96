//! A runtime whose kernels are served by the real kernel gateway.

use serde_json::json;

use super::lab::{Lab, fresh, limited};
use super::socket::{V1, attach, printed};

#[tokio::test]
async fn calls_files_and_websockets_work_and_listings_are_refused() {
    limited(async {
        for kernels in ["kernels=colab", "kernels=newest"] {
            let (lab, runtime) = Lab::with_runtime(&["server=gateway", kernels]).await;
            let connection = lab.connection(&runtime).await;
            for (path, status) in [
                ("api/kernels", 403),
                ("api/sessions", 403),
                ("api/status", 404),
                ("api/contents/content", 200),
                ("api/kernelspecs", 200),
            ] {
                let request = lab
                    .http
                    .get(format!("{}/{path}", connection.url))
                    .header("X-Colab-Runtime-Proxy-Token", &connection.token);
                assert_eq!(request.send().await.unwrap().status(), status, "{path}");
            }
            for protocol in [None, Some(V1)] {
                let (session, mut socket) = attach(&lab, &runtime, protocol).await;
                let code = "x = 6\nopen('file', 'w').write('written')\nprint(x, end='')";
                assert_eq!(printed(&socket.run(code).await), "6");
                assert_eq!(
                    lab.execute(&session, "x * 7").await.unwrap()["result"],
                    "42"
                );
                let file = lab.read_file(&runtime, "content/file").await;
                assert_eq!(file.as_deref(), Some("written"));

                let mut call = lab
                    .begin(
                        "it",
                        &session,
                        "print('on', flush=True)\nwhile True: pass",
                        "",
                    )
                    .await;
                call.wait_for("on").await;
                lab.cancel("it").await;
                let response = call.response().await;
                let result = &response["result"]["structuredContent"];
                assert_eq!(result["executionError"]["name"], "KeyboardInterrupt");
                assert_eq!(lab.execute(&session, "x").await.unwrap()["result"], "6");

                let listed = lab.call("list_sessions", json!({"parent": runtime})).await;
                assert_eq!(listed.unwrap()["sessions"], json!([{"name": session}]));
                lab.close(&session).await;
                let listed = lab.call("list_sessions", json!({"parent": runtime})).await;
                assert_eq!(listed.unwrap(), json!({}));
            }
            let (session, mut socket) = attach(&lab, &runtime, None).await;
            socket.execute("import os; os.kill(os.getpid(), 9)").await;
            // The gateway starts it anew, like the server.
            socket.until_state("restarting").await;
            assert_eq!(lab.execute(&session, "1").await.unwrap()["result"], "1");
            lab.shutdown().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_gateway_limits_its_websockets_unless_told_otherwise() {
    limited(async {
        let code = "for i in range(30): print('x' * 300_000, flush=True)";
        for (quirk, all) in [("limits=on", false), ("limits=off", true)] {
            let (lab, runtime) = Lab::with_runtime(&["server=gateway", quirk]).await;
            let (_, mut socket) = attach(&lab, &runtime, None).await;
            let heard = socket.run(code).await;
            assert_eq!(printed(&heard).matches('x').count() == 9_000_000, all);
            lab.shutdown().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_session_of_a_gateway_is_opened_once_by_calls_at_the_same_time() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["server=gateway"]).await;
        let session = fresh(&runtime);
        let pid = "import os; os.getpid()";
        let (one, two) = tokio::join!(lab.execute(&session, pid), lab.execute(&session, pid));
        assert_eq!(one.unwrap()["result"], two.unwrap()["result"]);
        lab.shutdown().await;
    })
    .await;
}
