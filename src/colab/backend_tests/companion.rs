//! Cells with a companion, over a scripted service and a scripted kernel.

use tokio_util::sync::CancellationToken;

use super::*;
use crate::colab::companion::activity::ExecuteReply;
use crate::colab::companion::fake_kernel::{FakeKernel, Request};
use crate::colab::companion::{CompanionSettings, JOURNAL_BYTES, page::Page};

/// Above every wait, in real time: sockets know no other.
const LIMIT: Duration = Duration::from_secs(30);

struct Both {
    fake: Fake,
    kernel: FakeKernel,
    backend: Arc<ColabBackend<Fake>>,
}

async fn both(executions: Vec<Vec<Step>>) -> Both {
    let (kernel, info) = FakeKernel::serve().await;
    let fake = Fake::new(|script| {
        let mut runtime = runtime("a", "NONE");
        runtime.connection_info = Some(info);
        script.runtimes.push(runtime);
        script.executions.extend(executions);
    });
    let settings = BackendSettings {
        companion: Some(CompanionSettings {
            journal_bytes: JOURNAL_BYTES,
            forwarded: Page::default(),
        }),
        ..BackendSettings::default()
    };
    let backend = with_settings(&fake, settings);
    let both = Both {
        fake,
        kernel,
        backend,
    };
    both.list_sessions();
    both
}

impl Both {
    /// The server of the kernel lists the sessions of the service as soon as they are there.
    fn list_sessions(&self) {
        let (fake, kernel) = (self.fake.clone(), self.kernel.clone());
        fake.with(|script| {
            script.opened = Some(Box::new(move |name: &str| {
                let id = name.rsplit('/').next().unwrap_or(name).to_owned();
                kernel.with(|kernel| kernel.sessions.push(id));
            }))
        });
    }

    fn start(&self, cell: Cell) -> tokio::task::JoinHandle<Ran> {
        let backend = self.backend.clone();
        tokio::spawn(async move {
            let (sender, mut receiver) = events();
            // The end of a cell waits until everything is published.
            let published = async {
                let mut published = Vec::new();
                while let Some(event) = receiver.recv().await {
                    published.push(event);
                }
                published
            };
            let (outcome, events) = tokio::join!(backend.execute(cell, sender), published);
            Ran { outcome, events }
        })
    }

    async fn called(&self, times: usize) {
        let waited = async {
            while self.fake.count_of("execute_code") < times {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(LIMIT, waited).await.expect("not called");
    }

    /// Lets the kernel run code as a service's would.
    fn begin(&self, code: &str) -> Request {
        self.kernel.begin(code, "service")
    }
}

async fn ended(running: tokio::task::JoinHandle<Ran>) -> Ran {
    timeout(LIMIT, running).await.expect("no end").unwrap()
}

fn ok() -> Value {
    json!({"status": "ok"})
}

#[tokio::test]
async fn a_cell_ends_with_the_journal_and_its_call_is_waited_for() {
    let gate = CancellationToken::new();
    let both = both(vec![
        vec![Step::When(gate.clone()), result(1, "a")],
        vec![result(2, "")],
    ])
    .await;
    let running = both.start(cell("x"));
    both.called(1).await;
    let request = both.begin("x");
    both.kernel.print(&request, "a");
    both.kernel.end(&request, ok());
    let ran = ended(running).await;
    assert_eq!((ran.stdout().as_str(), ran.count()), ("a", Some(1)));
    let next = both.start(cell("y"));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(both.fake.count_of("execute_code"), 1, "it did not wait");
    gate.cancel();
    both.called(2).await;
    let request = both.begin("y");
    both.kernel.end(&request, ok());
    assert_eq!(ended(next).await.count(), Some(2));
}

#[tokio::test]
async fn nothing_is_asked_before_the_call_of_a_cell() {
    let gate = CancellationToken::new();
    let both = both(vec![
        vec![result(1, "")],
        vec![Step::When(gate.clone()), result(2, "")],
    ])
    .await;
    let running = both.start(cell("x"));
    both.called(1).await;
    let request = both.begin("x");
    both.kernel.end(&request, ok());
    ended(running).await;
    // What the result of the first call made the journal be asked for is answered by then.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let asked = || both.kernel.with(|kernel| kernel.asked.len());
    let (of_kernel, of_service) = (asked(), both.fake.log().len());
    let next = both.start(cell("pass"));
    both.called(2).await;
    assert_eq!(asked(), of_kernel);
    assert_eq!(both.fake.log().len(), of_service + 1, "the call alone");
    gate.cancel();
    let request = both.begin("pass");
    both.kernel.end(&request, ok());
    assert_eq!(ended(next).await.count(), Some(2));
}

#[tokio::test]
async fn a_call_that_was_lost_is_not_repeated_when_the_journal_says_that_its_code_has_ended() {
    let gate = CancellationToken::new();
    let both = both(vec![vec![
        Step::When(gate.clone()),
        Step::End(Err(status(Code::Unavailable))),
    ]])
    .await;
    let running = both.start(cell("x"));
    both.called(1).await;
    let request = both.begin("x");
    both.kernel.mute(true);
    both.kernel.print(&request, "a");
    both.kernel.end(&request, ok());
    gate.cancel();
    let ran = ended(running).await;
    assert_eq!((ran.stdout().as_str(), ran.count()), ("a", Some(1)));
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(both.fake.count_of("execute_code"), 1);
}

#[tokio::test]
async fn text_goes_over_to_the_call_and_back_without_loss_or_repetition() {
    let (away, back) = (CancellationToken::new(), CancellationToken::new());
    let both = both(vec![vec![
        Step::Say("a\n"),
        Step::When(away.clone()),
        Step::Say("b\n"),
        Step::When(back.clone()),
        result(1, "a\nb\nc\n"),
    ]])
    .await;
    let (sender, mut receiver) = events();
    let backend = both.backend.clone();
    let running = tokio::spawn(async move { backend.execute(cell("x"), sender).await });
    both.called(1).await;
    let request = both.begin("x");
    both.kernel.print(&request, "a\n");
    let mut text = String::new();
    while text != "a\n" {
        if let Event::Stream { text: more, .. } = receiver.recv().await.unwrap() {
            text.push_str(&more);
        }
    }
    both.kernel.cut();
    both.kernel.print(&request, "b\n");
    away.cancel();
    // Only the call tells it, as soon as the companion has been away for long enough.
    while text != "a\nb\n" {
        let event = timeout(LIMIT, receiver.recv()).await.unwrap().unwrap();
        if let Event::Stream { text: more, .. } = event {
            text.push_str(&more);
        }
    }
    both.kernel.with(|kernel| kernel.closed = false);
    both.kernel.print(&request, "c\n");
    both.kernel.end(&request, ok());
    while let Some(event) = timeout(LIMIT, receiver.recv()).await.unwrap() {
        if let Event::Stream { text: more, .. } = event {
            text.push_str(&more);
        }
    }
    let outcome = timeout(LIMIT, running).await.unwrap().unwrap().unwrap();
    assert_eq!(outcome.execution_count, Some(1));
    assert_eq!(text, "a\nb\nc\n");
    back.cancel();
}

#[tokio::test]
async fn a_result_before_the_journals_end_waits_for_it() {
    let both = both(vec![vec![result(1, "a")]]).await;
    let running = both.start(cell("x"));
    both.called(1).await;
    let request = both.begin("x");
    both.kernel.mute(true);
    let html = json!({"data": {"text/html": "<b>"}, "metadata": {}, "transient": {}});
    both.kernel.publish(&request, "display_data", html);
    both.kernel.print(&request, "a");
    both.kernel.end(&request, ok());
    let ran = ended(running).await;
    assert_eq!(ran.stdout(), "a");
    let displays = ran.events.iter();
    let displays = displays.filter(|event| matches!(event, Event::DisplayData { .. }));
    assert_eq!(displays.count(), 1);
}

#[tokio::test]
async fn an_interrupt_is_the_kernels_own_traceback() {
    let both = both(vec![vec![
        Step::UntilCancelled(Duration::ZERO),
        result(1, ""),
    ]])
    .await;
    let endless = cell("while True: pass");
    let interrupt = endless.interrupt.clone();
    let running = both.start(endless);
    both.called(1).await;
    let request = both.begin("while True: pass");
    interrupt.cancel();
    while both.fake.count_of("cancelled") == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let raised = json!({"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["real"]});
    both.kernel.publish(&request, "error", raised.clone());
    let mut reply = raised;
    reply["status"] = "error".into();
    let read: ExecuteReply = serde_json::from_value(reply.clone()).unwrap();
    assert_eq!(read.ename, "KeyboardInterrupt");
    both.kernel.end(&request, reply);
    let exception = ended(running).await.outcome.unwrap().exception.unwrap();
    assert_eq!(exception.traceback, ["real"]);
    let interrupts = both
        .kernel
        .with(|kernel| kernel.times_asked("interrupt_request"));
    assert_eq!(interrupts, 0, "the service had done it");
}

#[tokio::test]
async fn uncounted_code_that_a_lost_connection_swallowed_ends() {
    let both = both(vec![vec![result(1, "")]]).await;
    let running = both.start(cell("x"));
    both.called(1).await;
    let request = both.begin("x");
    both.kernel.end(&request, ok());
    ended(running).await;
    both.kernel.with(|kernel| kernel.deaf = true);
    let uncounted = Cell {
        store_history: false,
        ..cell("y")
    };
    let running = both.start(uncounted);
    let asked = || {
        both.kernel
            .with(|kernel| kernel.times_asked("execute_request"))
    };
    while asked() < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    both.kernel.cut();
    both.kernel.with(|kernel| kernel.closed = false);
    let ran = ended(running).await;
    assert_eq!(ran.error().name, ErrorName::ColabUnreachable);
}

#[tokio::test]
async fn a_kernel_that_is_lost_ends_its_cell_and_uncounted_code() {
    for store_history in [true, false] {
        let both = both(vec![vec![result(1, "")], vec![Step::Hang]]).await;
        let running = both.start(cell("x"));
        both.called(1).await;
        let request = both.begin("x");
        both.kernel.end(&request, ok());
        ended(running).await;
        both.kernel.with(|kernel| kernel.deaf = true);
        let running = both.start(Cell {
            store_history,
            ..cell("y")
        });
        tokio::time::sleep(Duration::from_millis(100)).await;
        let dead = json!({"execution_state": "dead"});
        both.kernel.with(|kernel| kernel.notice("status", dead));
        let ran = ended(running).await;
        assert_eq!(ran.error().name, ErrorName::ColabSessionLost);
    }
}
