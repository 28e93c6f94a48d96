//! Starting and ending: ports, processes, directories, the interpreter.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use colab_kernel::emulator::{Emulator, EmulatorConfig, EmulatorError, PythonChoice, Quirks};
use serde_json::json;

use super::lab::{Lab, cpu, eventually, fresh, limited, python, request_id, shared, start};

#[tokio::test]
async fn a_port_that_is_taken_is_refused_with_the_next_step() {
    limited(async {
        let first = start(&[]).await;
        let port = first.endpoint().port().unwrap();
        let config = EmulatorConfig {
            port,
            python: python(),
            ..EmulatorConfig::default()
        };
        let Err(error) = Emulator::start(config).await else {
            panic!("the port is taken")
        };
        assert!(matches!(error, EmulatorError::Bind { .. }));
        assert!(error.to_string().contains("--port"), "{error}");
        first.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn an_interpreter_without_jupyter_is_refused_with_the_next_step() {
    limited(async {
        let choice = PythonChoice::Path(PathBuf::from("/nonexistent/python"));
        let config = EmulatorConfig {
            python: choice,
            ..EmulatorConfig::default()
        };
        let Err(error) = Emulator::start(config).await else {
            panic!("there is no such interpreter")
        };
        assert!(
            error
                .to_string()
                .contains("pip install jupyter_server ipykernel"),
            "{error}"
        );
    })
    .await;
}

#[tokio::test]
async fn an_interpreter_with_jupyter_is_taken_and_nothing_is_made() {
    limited(async {
        // Any environment that has both will do: the managed one has.
        let (lab, runtime) = shared().await;
        let session = fresh(runtime);
        let interpreter = lab
            .execute(&session, "import sys; print(sys.executable, end='')")
            .await
            .unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = lines.clone();
        let config = EmulatorConfig {
            python: PythonChoice::Path(PathBuf::from(interpreter["stdout"].as_str().unwrap())),
            progress: Some(Arc::new(move |line| {
                heard.lock().unwrap().push(line.to_owned())
            })),
            ..EmulatorConfig::default()
        };
        let emulator = Emulator::start(config).await.unwrap();
        assert!(lines.lock().unwrap().is_empty());
        emulator.shutdown().await;
    })
    .await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn no_process_and_no_directory_is_left_after_a_shutdown_or_a_drop() {
    limited(async {
        for by_drop in [false, true] {
            let parent = tempfile::tempdir().unwrap();
            let config = EmulatorConfig {
                python: python(),
                runtimes_dir: Some(parent.path().to_owned()),
                ..EmulatorConfig::default()
            };
            let mut lab = Lab::of(Emulator::start(config).await.unwrap());
            let runtime = lab.new_runtime().await;
            let session = fresh(&runtime);
            // A busy kernel that ignores interrupts, with a child that has left its process group and its parent.
            let code = "import os, signal, subprocess, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsubprocess.Popen([sys.executable, '-c', 'import os, subprocess, sys; subprocess.Popen([\"sleep\", \"600\"], start_new_session=True, cwd=os.getcwd())'], start_new_session=True).wait()\nprint('running', flush=True)\nwhile True: pass";
            let mut call = lab.begin(&request_id(), &session, code, "").await;
            call.wait_for("running").await;
            assert!(processes_in(parent.path()).len() >= 3);
            let emulator = lab.emulator.take().unwrap();
            if by_drop {
                drop(emulator);
            } else {
                emulator.shutdown().await;
                assert_eq!(processes_in(parent.path()), Vec::<String>::new());
            }
            eventually("the processes are gone", async || processes_in(parent.path()).is_empty()).await;
            eventually("the directories are gone", async || parent.path().read_dir().unwrap().next().is_none()).await;
        }
    })
    .await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn nothing_is_left_of_a_runtime_that_was_starting() {
    limited(async {
        for by_drop in [false, true] {
            let parent = tempfile::tempdir().unwrap();
            let mut quirks = Quirks::default();
            quirks.set("create=operation").unwrap();
            let config = EmulatorConfig {
                python: python(),
                runtimes_dir: Some(parent.path().to_owned()),
                quirks,
                ..EmulatorConfig::default()
            };
            let mut lab = Lab::of(Emulator::start(config).await.unwrap());
            lab.call("create_runtime", cpu()).await.unwrap();
            let emulator = lab.emulator.take().unwrap();
            if by_drop {
                drop(emulator);
            } else {
                emulator.shutdown().await;
                assert_eq!(processes_in(parent.path()), Vec::<String>::new());
                assert_eq!(parent.path().read_dir().unwrap().count(), 0);
            }
            eventually("the processes are gone", async || {
                processes_in(parent.path()).is_empty()
            })
            .await;
            eventually("the directories are gone", async || {
                parent.path().read_dir().unwrap().next().is_none()
            })
            .await;
        }
    })
    .await;
}

/// The processes whose working directory or command line is below a directory.
#[cfg(target_os = "linux")]
fn processes_in(directory: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let cwd = std::fs::read_link(entry.path().join("cwd")).unwrap_or_default();
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        let named = command.contains(&*directory.to_string_lossy());
        if cwd.starts_with(directory) || named {
            found.push(command);
        }
    }
    found
}

#[tokio::test]
async fn a_server_that_dies_makes_its_runtime_not_found() {
    limited(async {
        let (lab, runtime) = Lab::with_runtime(&[]).await;
        let session = fresh(&runtime);
        let code = "import os; print('running', flush=True); os.kill(os.getppid(), 9)";
        // The code may end before the server's end is seen.
        let _ = lab.execute(&session, code).await;
        eventually("the runtime no longer answers", async || {
            lab.execute(&session, "1")
                .await
                .is_err_and(|refused| refused.status == "NOT_FOUND")
        })
        .await;
        lab.call("delete_runtime", json!({"name": runtime}))
            .await
            .unwrap();
        lab.shutdown().await;
    })
    .await;
}

#[tokio::test]
async fn two_emulators_at_once_do_not_touch_each_other() {
    limited(async {
        let ((a, on_a), (b, on_b)) = tokio::join!(Lab::with_runtime(&[]), Lab::with_runtime(&[]));
        let (session_a, session_b) = (fresh(&on_a), fresh(&on_b));
        a.execute(&session_a, "open('mine', 'w').write('a')")
            .await
            .unwrap();
        assert_eq!(
            b.execute(&session_b, "import os; os.listdir()")
                .await
                .unwrap()["result"],
            "[]"
        );
        a.shutdown().await;
        assert_eq!(b.execute(&session_b, "1").await.unwrap()["result"], "1");
        b.shutdown().await;
    })
    .await;
}
