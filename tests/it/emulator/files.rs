//! The proxy in front of a runtime: its token, files and contents.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::lab::{Connection, Lab, eventually, fresh, limited, shared};

#[tokio::test]
async fn without_a_good_token_everything_is_404() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&[]).await;
        lab.put_file(&runtime, "content/here.txt", "here").await;
        let connection = lab.connection(&runtime).await;
        let other = lab.new_runtime().await;
        let of_another = lab.connection(&other).await.token;
        for path in [
            "files/content/here.txt",
            "api/contents/content",
            "api/sessions",
            "api/status",
            "",
        ] {
            let url = format!("{}/{path}", connection.url);
            let tries = [
                lab.http.get(&url),
                lab.http.get(&url).bearer_auth(lab.token),
                lab.http
                    .get(&url)
                    .header("X-Colab-Runtime-Proxy-Token", "wrong"),
                lab.http
                    .get(&url)
                    .header("X-Colab-Runtime-Proxy-Token", &of_another),
                lab.http
                    .get(&url)
                    .query(&[("colab-runtime-proxy-token", &of_another)]),
            ];
            for request in tries {
                assert_eq!(request.send().await.unwrap().status(), 404, "{path}");
            }
        }
        let in_query = lab
            .http
            .get(format!("{}/files/content/here.txt", connection.url))
            .query(&[("colab-runtime-proxy-token", &connection.token)]);
        for good in [connection.get(&lab.http, "content/here.txt"), in_query] {
            let good = good.send().await.unwrap();
            assert_eq!(
                (good.status().as_u16(), good.text().await.unwrap().as_str()),
                (200, "here")
            );
        }
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn every_get_runtime_gives_a_fresh_token_for_an_hour_and_earlier_ones_stay_good() {
    limited(async {
        let (lab, runtime) = shared().await;
        let (first, second) = (lab.connection(runtime).await, lab.connection(runtime).await);
        assert_eq!(first.url, second.url);
        assert_ne!(first.token, second.token);
        for connection in [first, second] {
            let url = format!("{}/api/status", connection.url);
            let request = lab
                .http
                .get(url)
                .header("X-Colab-Runtime-Proxy-Token", connection.token);
            assert_eq!(request.send().await.unwrap().status(), 200);
        }
        let info = lab
            .call("get_runtime", json!({"name": runtime}))
            .await
            .unwrap();
        let expiry = info["connectionInfo"]["expireTime"].as_str().unwrap();
        let left = chrono::DateTime::parse_from_rfc3339(expiry)
            .unwrap()
            .to_utc()
            - chrono::Utc::now();
        assert!(
            (3500..=3600).contains(&left.num_seconds()) && expiry.ends_with('Z'),
            "{expiry}"
        );
    })
    .await;
}

#[tokio::test]
async fn an_expired_token_is_404_and_get_runtime_gives_a_new_one() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&["token=1"]).await;
        let connection = lab.connection(&runtime).await;
        let status = async |connection: &Connection| {
            let request = connection.get(&lab.http, "content/none.txt");
            let response = request.send().await.unwrap();
            (response.status().as_u16(), response.text().await.unwrap())
        };
        // The server's own 404 says more than the proxy's.
        assert_ne!(status(&connection).await.1, "Not found\n");
        eventually("the token expires", async || {
            status(&connection).await == (404, "Not found\n".to_owned())
        })
        .await;
        let renewed = lab.connection(&runtime).await;
        assert_ne!(status(&renewed).await.1, "Not found\n");
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn files_go_up_in_chunks_and_come_down_raw_and_in_ranges() {
    limited(async {
        let (lab, runtime) = shared().await;
        let connection = lab.connection(runtime).await;
        let directory = connection.put(&lab.http, "content/.hidden").json(&json!({"type": "directory"}));
        assert!(directory.send().await.unwrap().status().is_success());
        let bytes: Vec<u8> = (0..300_000_u32).flat_map(|n| n.to_le_bytes()).collect();
        let pieces: Vec<_> = bytes.chunks(500_000).collect();
        for (at, piece) in pieces.iter().enumerate() {
            let chunk = if at + 1 == pieces.len() { -1 } else { i64::try_from(at).unwrap() + 1 };
            let body = json!({"type": "file", "format": "base64", "chunk": chunk, "content": BASE64_STANDARD.encode(piece)});
            let put = connection.put(&lab.http, "content/.hidden/data.bin").json(&body);
            assert!(put.send().await.unwrap().status().is_success());
        }
        let whole = connection.get(&lab.http, "content/.hidden/data.bin").send().await.unwrap();
        assert!(whole.bytes().await.unwrap() == bytes);
        let range = connection.get(&lab.http, "content/.hidden/data.bin").header("range", "bytes=10-19");
        let range = range.send().await.unwrap();
        assert_eq!(range.status(), 206);
        assert_eq!(range.bytes().await.unwrap(), bytes[10..20]);

        let session = fresh(runtime);
        let read = lab.execute(&session, "len(open('.hidden/data.bin', 'rb').read())").await.unwrap();
        assert_eq!(read["result"], "1200000");
        let listing: Value = lab
            .http
            .get(format!("{}/api/contents/content/.hidden", connection.url))
            .header("X-Colab-Runtime-Proxy-Token", &connection.token)
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        assert_eq!(listing["content"][0]["name"], "data.bin");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn nothing_of_the_users_own_settings_reaches_a_runtime() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let code = "import os\nprint(os.getcwd(), os.path.expanduser('~'), os.environ['IPYTHONDIR'], os.environ['JUPYTER_RUNTIME_DIR'], sep='\\n')";
        let result = lab.execute(&session, code).await.unwrap();
        let paths: Vec<_> = result["stdout"].as_str().unwrap().lines().collect();
        let (cwd, rest) = paths.split_first().unwrap();
        let root = cwd.strip_suffix("/root/content").unwrap();
        assert!(rest.iter().all(|path| path.starts_with(root)), "{paths:?}");
        let result = lab.execute(&session, "[n for n in os.environ if n.startswith(('COLAB_KERNEL', 'CARGO_TARGET'))]").await.unwrap();
        assert!(!result["result"].as_str().unwrap().contains("COLAB_KERNEL"));
        lab.close(&session).await;
    })
    .await;
}
