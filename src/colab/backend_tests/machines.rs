//! Which machine is chosen.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_newest_running_runtime_of_the_wanted_kind_is_used() {
    let fake = Fake::new(|script| {
        for (id, accelerator) in [("a", "T4"), ("b", "NONE"), ("c", "T4"), ("d", "NONE")] {
            script.runtimes.push(runtime(id, accelerator));
        }
    });
    for (accelerator, expected) in [(None, "runtimes/d"), (Some("t4"), "runtimes/c")] {
        let settings = BackendSettings {
            accelerator: accelerator.map(str::to_owned),
            ..BackendSettings::default()
        };
        let ran = run(&with_settings(&fake, settings), cell("1")).await;
        assert!(
            ran.notices().iter().any(|line| line.contains(expected)),
            "{:?}",
            ran.notices()
        );
        assert_eq!(fake.count_of("create_runtime"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_named_runtime_is_used_or_the_running_ones_are_listed() {
    let fake = scripted(Vec::new());
    for (name, found) in [("a", true), ("runtimes/a", true), ("zz", false)] {
        let settings = BackendSettings {
            runtime: RuntimeChoice::Named(name.into()),
            ..BackendSettings::default()
        };
        let ran = run(&with_settings(&fake, settings), cell("1")).await;
        assert_eq!(ran.outcome.is_ok(), found, "{name}");
        if !found {
            assert_eq!(ran.error().name, ErrorName::ColabRuntimeLost);
            assert!(ran.error().message.contains("runtimes/a (CPU)"));
            assert!(ran.error().message.contains("--runtime"));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_runtime_is_created_once_and_kept() {
    let fake = scripted(Vec::new());
    fake.with(|script| {
        let failures = [status(Code::Unavailable), status(Code::ResourceExhausted)];
        script.failures.insert("create_runtime", failures.into());
    });
    let settings = BackendSettings {
        runtime: RuntimeChoice::New,
        ..BackendSettings::default()
    };
    let backend = with_settings(&fake, settings);
    assert!(run(&backend, cell("1")).await.outcome.is_ok());
    let requests: Vec<String> = fake
        .log()
        .into_iter()
        .filter(|line| line.starts_with("create_runtime"))
        .collect();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| *request == requests[0]));
    assert!(run(&backend, cell("2")).await.outcome.is_ok());
    assert_eq!(fake.count_of("create_runtime"), 3);
}

#[tokio::test(start_paused = true)]
async fn refusals_to_create_are_named_with_what_can_be_done() {
    let reasons = [
        (
            "TOO_MANY_ACTIVE_RUNTIMES",
            ErrorName::ColabQuotaExceeded,
            "runtimes/g (L4)",
        ),
        (
            "QUOTA_EXCEEDED_USAGE_TIME",
            ErrorName::ColabQuotaExceeded,
            "usage time",
        ),
        ("DENYLISTED", ErrorName::ColabQuotaExceeded, "barred"),
        ("OUT_OF_STOCK", ErrorName::ColabAcceleratorUnavailable, "T4"),
    ];
    for (reason, name, words) in reasons {
        let fake = Fake::new(|script| {
            script.runtimes.push(runtime("g", "L4"));
            script.specs.push(RuntimeSpec {
                key: SpecKey {
                    variant: "VARIANT_GPU".into(),
                    accelerator: "T4".into(),
                    shape: "SHAPE_STANDARD".into(),
                },
                eligible: true,
            });
            let refusal = Status {
                reason: Some(reason.into()),
                ..status(Code::FailedPrecondition)
            };
            script.failures.insert("create_runtime", [refusal].into());
        });
        let settings = BackendSettings {
            accelerator: Some("t4".into()),
            ..BackendSettings::default()
        };
        let ran = run(&with_settings(&fake, settings), cell("1")).await;
        assert_eq!(ran.error().name, name, "{reason}");
        assert!(ran.error().message.contains(words), "{}", ran.error());
    }
}

#[tokio::test(start_paused = true)]
async fn a_listed_runtime_that_is_not_there_is_passed_over_once() {
    for tool in ["create_session", "execute_code"] {
        let fake = scripted(Vec::new());
        fake.with(|script| {
            script.runtimes.push(runtime("b", "NONE"));
            script
                .failures
                .insert(tool, [status(Code::NotFound)].into());
        });
        let ran = run(&backend(&fake), cell("1")).await;
        assert!(ran.outcome.is_ok(), "{tool}: {:?}", ran.outcome);
        let session = fake.with(|script| script.calls[0].session.clone());
        assert!(session.starts_with("runtimes/a/"), "{tool}");
    }
}
