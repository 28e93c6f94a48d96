//! The tools and their documented rules.

use serde_json::{Value, json};

use super::lab::{Lab, cpu, fresh, limited, shared, uuid};

#[tokio::test]
async fn tools_list_names_the_ten_tools_with_schemas_and_hints() {
    limited(async {
        let (lab, _) = shared().await;
        let answer = lab.rpc("tools/list", json!({})).await;
        let tools = answer["result"]["tools"].as_array().unwrap();
        let mut names: Vec<_> = tools
            .iter()
            .map(|tool| tool["name"].as_str().unwrap())
            .collect();
        names.sort_unstable();
        let expected = [
            "create_runtime",
            "create_session",
            "delete_runtime",
            "delete_session",
            "execute_code",
            "get_runtime",
            "get_subscription",
            "list_runtime_specs",
            "list_runtimes",
            "list_sessions",
        ];
        assert_eq!(names, expected);
        for tool in tools {
            assert_eq!(tool["inputSchema"]["type"], "object");
            assert_eq!(tool["outputSchema"]["type"], "object");
            assert_eq!(tool["annotations"]["openWorldHint"], false);
        }
        let execute = tools
            .iter()
            .find(|tool| tool["name"] == "execute_code")
            .unwrap();
        let arguments = execute["inputSchema"]["properties"].as_object().unwrap();
        assert_eq!(
            arguments.keys().collect::<Vec<_>>(),
            ["code", "runtime", "session", "executionId"]
        );
    })
    .await;
}

#[tokio::test]
async fn accounts_are_named_by_their_tokens_and_do_not_see_each_other() {
    limited(async {
        let (lab, runtime) = shared().await;
        let mut other = Lab::new(&[]).await;
        other.endpoint.clone_from(&lab.endpoint);
        other.token = "somebody-else";
        assert_eq!(
            other.call("list_runtimes", json!({})).await.unwrap(),
            json!({})
        );
        let refused = other
            .call("get_runtime", json!({"name": runtime}))
            .await
            .unwrap_err();
        assert_eq!(refused.status, "NOT_FOUND");
        let refused = other.execute(&fresh(runtime), "1").await.unwrap_err();
        assert_eq!(refused.status, "NOT_FOUND");
    })
    .await;
}

#[tokio::test]
async fn specs_and_subscription_are_the_users() {
    limited(async {
        let (lab, _) = shared().await;
        let specs = lab.call("list_runtime_specs", json!({})).await.unwrap();
        let specs = specs["runtimeSpecs"].as_array().unwrap();
        let eligible = |accelerator: &str| {
            let of = specs
                .iter()
                .filter(|spec| spec["key"]["accelerator"] == accelerator);
            of.map(|spec| spec["eligible"] == true).collect::<Vec<_>>()
        };
        assert_eq!(eligible("NONE"), [true, true]);
        assert_eq!(eligible("L4"), [true], "high memory only");
        assert_eq!(eligible("A100"), [false, false]);
        let subscription = lab.call("get_subscription", json!({})).await.unwrap();
        assert_eq!(subscription, json!({"name": "subscription", "tier": "PRO"}));
    })
    .await;
}

#[tokio::test]
async fn runtimes_are_created_by_the_rules_and_deleted() {
    limited(async {
        let lab = Lab::new(&["runtimes=2"]).await;
        let spec = |accelerator, shape| {
            json!({"runtime": {"runtimeSpec": {"variant": "VARIANT_GPU", "accelerator": accelerator, "shape": shape}}})
        };
        let refused = lab.call("create_runtime", spec("A100", "SHAPE_STANDARD")).await.unwrap_err();
        assert_eq!((refused.status.as_str(), refused.reason.as_str()), ("FAILED_PRECONDITION", "INELIGIBLE_RUNTIME_SPEC"));
        let refused = lab.call("create_runtime", spec("L4", "SHAPE_STANDARD")).await.unwrap_err();
        assert_eq!(refused.status, "INVALID_ARGUMENT");
        let refused = lab.call("create_runtime", json!({"runtime": {}})).await.unwrap_err();
        assert_eq!(refused.status, "INVALID_ARGUMENT");

        let mut wanted = spec("T4", "SHAPE_STANDARD");
        wanted["runtimeId"] = "mine".into();
        wanted["requestId"] = uuid().into();
        let runtime = lab.call("create_runtime", wanted.clone()).await.unwrap();
        assert_eq!(runtime["name"], "runtimes/mine");
        assert_eq!(runtime["runtimeSpec"], wanted["runtime"]["runtimeSpec"]);
        // The same request again is the same runtime; another one cannot have its id.
        let again = lab.call("create_runtime", wanted.clone()).await.unwrap();
        assert_eq!(again["name"], "runtimes/mine");
        wanted["requestId"] = uuid().into();
        let refused = lab.call("create_runtime", wanted).await.unwrap_err();
        assert_eq!(refused.status, "ALREADY_EXISTS");

        let second = lab.new_runtime().await;
        let refused = lab.call("create_runtime", cpu()).await.unwrap_err();
        assert_eq!((refused.status.as_str(), refused.reason.as_str()), ("FAILED_PRECONDITION", "TOO_MANY_ACTIVE_RUNTIMES"));
        let listed = lab.call("list_runtimes", json!({})).await.unwrap();
        let names: Vec<_> = listed["runtimes"].as_array().unwrap().iter().map(|r| r["name"].clone()).collect();
        assert_eq!(names, [Value::from("runtimes/mine"), Value::from(second)]);

        assert_eq!(lab.call("delete_runtime", json!({"name": "runtimes/mine"})).await.unwrap(), json!({}));
        let refused = lab.call("get_runtime", json!({"name": "runtimes/mine"})).await.unwrap_err();
        assert_eq!((refused.status.as_str(), refused.reason.as_str()), ("NOT_FOUND", "RESOURCE_NOT_FOUND"));
        let refused = lab.call("delete_runtime", json!({"name": "runtimes/mine"})).await.unwrap_err();
        assert_eq!(refused.status, "NOT_FOUND");
        let allowed = json!({"name": "runtimes/mine", "allowMissing": true});
        assert_eq!(lab.call("delete_runtime", allowed).await.unwrap(), json!({}));
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn sessions_are_opened_once_per_id_listed_and_deleted_and_their_files_stay() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let id = session.rsplit('/').next().unwrap();
        let wanted = json!({"parent": runtime, "sessionId": id, "session": {}});
        let opened = lab.call("create_session", wanted.clone()).await.unwrap();
        assert_eq!(opened, json!({"name": session}));
        lab.execute(&session, "x = 1; open('kept.txt', 'w').write('kept')")
            .await
            .unwrap();
        // Opened again it is the same one, with its variables.
        assert_eq!(
            lab.call("create_session", wanted.clone()).await.unwrap(),
            opened
        );
        assert_eq!(lab.execute(&session, "x").await.unwrap()["result"], "1");

        assert_eq!(
            lab.call("delete_session", json!({"name": session}))
                .await
                .unwrap(),
            json!({})
        );
        assert!(!names(lab, runtime).await.contains(&session));
        let refused = lab
            .call("delete_session", json!({"name": session}))
            .await
            .unwrap_err();
        assert_eq!(refused.status, "NOT_FOUND");
        // execute_code opens what is missing.
        let result = lab
            .execute(&session, "'x' in globals(), open('kept.txt').read()")
            .await
            .unwrap();
        assert_eq!(result["result"], "(False, 'kept')");
        assert!(names(lab, runtime).await.contains(&session));
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn a_session_without_an_id_gets_a_random_one_and_a_bad_id_is_refused() {
    limited(async {
        let (lab, runtime) = shared().await;
        let opened = lab
            .call("create_session", json!({"parent": runtime}))
            .await
            .unwrap();
        let name = opened["name"].as_str().unwrap().to_owned();
        let id = name.rsplit('/').next().unwrap();
        assert!(uuid::Uuid::parse_str(id).is_ok());
        assert!(names(lab, runtime).await.contains(&name));
        assert_eq!(
            lab.execute(&name, "1").await.unwrap()["session"],
            name.as_str()
        );
        lab.call("delete_session", json!({"name": name}))
            .await
            .unwrap();
        for bad in ["1abc", "Abc", "abc-", "a_b", &"a".repeat(64)] {
            let refused = lab
                .call(
                    "create_session",
                    json!({"parent": runtime, "sessionId": bad}),
                )
                .await
                .unwrap_err();
            assert_eq!(refused.status, "INVALID_ARGUMENT", "{bad}");
            let refused = lab
                .execute(&format!("{runtime}/sessions/{bad}"), "1")
                .await
                .unwrap_err();
            assert_eq!(refused.status, "INVALID_ARGUMENT", "{bad}");
        }
    })
    .await;
}

#[tokio::test]
async fn sessions_that_others_open_on_the_runtime_are_listed_and_can_be_used() {
    limited(async {
        let (lab, runtime) = shared().await;
        let connection = lab.connection(runtime).await;
        let opened: Value = lab
            .http
            .post(format!("{}/api/sessions", connection.url))
            .header("X-Colab-Runtime-Proxy-Token", &connection.token)
            .json(&json!({"name": "", "path": "content/other.ipynb", "type": "notebook", "kernel": {"name": "python3"}}))
            .send()
            .await
            .unwrap()
            .json()
            .await
            .unwrap();
        let name = format!("{runtime}/sessions/{}", opened["id"].as_str().unwrap());
        assert!(names(lab, runtime).await.contains(&name));
        assert_eq!(lab.execute(&name, "6 * 7").await.unwrap()["result"], "42");
        lab.call("delete_session", json!({"name": name})).await.unwrap();
        assert!(!names(lab, runtime).await.contains(&name));
    })
    .await;
}

#[tokio::test]
async fn a_session_that_others_restart_or_close_goes_on_with_a_fresh_kernel() {
    limited(async {
        let (lab, runtime) = shared().await;
        let connection = lab.connection(runtime).await;
        let session = fresh(runtime);
        let id = session.rsplit('/').next().unwrap();
        lab.execute(&session, "x = 1").await.unwrap();
        let request = |method, path: &str| {
            lab.http
                .request(method, format!("{}/{path}", connection.url))
                .header("X-Colab-Runtime-Proxy-Token", &connection.token)
        };
        let listed = request(reqwest::Method::GET, "api/sessions").send().await;
        let listed: Value = listed.unwrap().json().await.unwrap();
        let all = listed.as_array().unwrap();
        let ours = all.iter().find(|known| known["name"] == id).unwrap();
        let kernel = ours["kernel"]["id"].as_str().unwrap();
        let restart = format!("api/kernels/{kernel}/restart");
        let restarted = request(reqwest::Method::POST, &restart).send().await;
        assert!(restarted.unwrap().status().is_success());
        let result = lab.execute(&session, "'x' in globals()").await.unwrap();
        assert_eq!(result["result"], "False");
        assert_eq!(result["executionCount"], 1);

        lab.execute(&session, "x = 1").await.unwrap();
        let close = format!("api/sessions/{}", ours["id"].as_str().unwrap());
        let closed = request(reqwest::Method::DELETE, &close).send().await;
        assert!(closed.unwrap().status().is_success());
        assert!(!names(lab, runtime).await.contains(&session));
        let result = lab.execute(&session, "'x' in globals()").await.unwrap();
        assert_eq!(result["result"], "False");
        lab.close(&session).await;
    })
    .await;
}

#[tokio::test]
async fn arguments_are_checked_against_the_schema() {
    limited(async {
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let bad = [
            ("execute_code", json!({"code": "1"})),
            (
                "execute_code",
                json!({"code": "1", "session": session, "runtime": runtime}),
            ),
            ("execute_code", json!({"session": session})),
            (
                "execute_code",
                json!({"code": "1", "session": session, "executionId": "not-a-uuid"}),
            ),
            (
                "execute_code",
                json!({"code": "1", "session": session, "execution_id": uuid()}),
            ),
            ("execute_code", json!({"code": 1, "session": session})),
            ("execute_code", json!({"code": "1", "session": "ck-1"})),
            ("get_runtime", json!({})),
            ("get_runtime", json!({"name": "mine"})),
            ("list_runtimes", json!({"filter": ""})),
            (
                "delete_runtime",
                json!({"name": runtime, "allowMissing": "yes"}),
            ),
        ];
        for (tool, arguments) in bad {
            let refused = lab.call(tool, arguments.clone()).await.unwrap_err();
            assert_eq!(refused.status, "INVALID_ARGUMENT", "{tool} {arguments}");
        }
        let unknown = lab
            .rpc(
                "tools/call",
                json!({"name": "make_coffee", "arguments": {}}),
            )
            .await;
        assert_eq!(unknown["error"]["code"], -32602);
        for (tool, arguments) in [
            (
                "execute_code",
                json!({"code": "1", "session": "runtimes/nowhere/sessions/a"}),
            ),
            (
                "execute_code",
                json!({"code": "1", "runtime": "runtimes/nowhere"}),
            ),
            ("list_sessions", json!({"parent": "runtimes/nowhere"})),
            ("create_session", json!({"parent": "runtimes/nowhere"})),
        ] {
            let refused = lab.call(tool, arguments).await.unwrap_err();
            assert_eq!(
                (refused.status.as_str(), refused.reason.as_str()),
                ("NOT_FOUND", "RESOURCE_NOT_FOUND"),
                "{tool}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn a_runtime_target_opens_a_fresh_session_and_leaves_it_open() {
    limited(async {
        let (lab, runtime) = shared().await;
        let run = async || {
            lab.call("execute_code", json!({"code": "x = 1", "runtime": runtime}))
                .await
                .unwrap()
        };
        let (first, second) = (run().await, run().await);
        assert_ne!(first["session"], second["session"]);
        let open = names(lab, runtime).await;
        for result in [first, second] {
            let session = result["session"].as_str().unwrap().to_owned();
            assert!(open.contains(&session));
            assert_eq!(lab.execute(&session, "x").await.unwrap()["result"], "1");
            lab.close(&session).await;
        }
    })
    .await;
}

async fn names(lab: &Lab, runtime: &str) -> Vec<String> {
    let listed = lab
        .call("list_sessions", json!({"parent": runtime}))
        .await
        .unwrap();
    let sessions = listed["sessions"].as_array().cloned().unwrap_or_default();
    for session in &sessions {
        assert_eq!(session.as_object().unwrap().len(), 1, "names only");
    }
    sessions
        .iter()
        .map(|session| session["name"].as_str().unwrap().to_owned())
        .collect()
}
