//! A cell's text, coalesced.

use std::time::{Duration, Instant};

use colab_kernel::backend::StreamName::{self, Stderr, Stdout};
use colab_kernel::jupyter::{Coalescer, Parent};
use serde_json::json;

use super::client::Peer;
use super::parrot::Parrot;
use super::within;

struct Texts {
    parrot: Parrot,
    peer: Peer,
    coalescer: Coalescer,
}

impl Texts {
    async fn start() -> Self {
        let parrot = Parrot::start_unsigned().await;
        let peer = Peer::subscriber(&parrot).await;
        let coalescer = Coalescer::new(parrot.iopub.clone(), Parent::none());
        Self {
            parrot,
            peer,
            coalescer,
        }
    }

    /// Lets the coalescer end and returns what was published: name, text, and when it came.
    async fn end(self, work: impl AsyncFnOnce(&mut Coalescer)) -> Vec<(String, String, Instant)> {
        let Self {
            parrot,
            mut peer,
            mut coalescer,
        } = self;
        let reader = tokio::spawn(async move {
            let mut seen = Vec::new();
            loop {
                let message = peer.message().await.unwrap();
                if message.msg_type() != "stream" {
                    return seen;
                }
                let part = |name: &str| message.content[name].as_str().unwrap().to_owned();
                seen.push((part("name"), part("text"), Instant::now()));
            }
        });
        work(&mut coalescer).await;
        coalescer.flush().await;
        parrot
            .iopub
            .publish(
                &Parent::none(),
                "status",
                &json!({"execution_state": "idle"}),
            )
            .await;
        reader.await.unwrap()
    }
}

fn joined(seen: &[(String, String, Instant)]) -> String {
    seen.iter().map(|(_, text, _)| text.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn text_that_comes_alone_is_published_at_once_and_whole() {
    within(async {
        let mut texts = Texts::start().await;
        texts.coalescer.push(Stdout, "hello, world").await;
        assert_eq!(texts.coalescer.due(), None, "nothing is held back");
        let message = texts.peer.message().await.unwrap();
        assert_eq!(
            message.content,
            json!({"name": "stdout", "text": "hello, world"})
        );

        texts.coalescer.push(Stdout, "a").await;
        texts.coalescer.push(Stdout, "b\r").await;
        let due = texts.coalescer.due().expect("what follows is gathered");
        tokio::time::sleep_until(due).await;
        texts.coalescer.flush_due().await;
        let message = texts.peer.message().await.unwrap();
        assert_eq!(message.content["text"], "ab\r");
        assert_eq!(texts.coalescer.due(), None);

        let full = "é".repeat(64 * 1024);
        texts.coalescer.push(Stdout, &full).await;
        texts.coalescer.flush().await;
        let message = texts.peer.message().await.unwrap();
        assert_eq!(message.content["text"], full);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_big_print_takes_few_messages_and_arrives_whole() {
    within(async {
        let line = format!("{}\n", "x".repeat(99));
        let seen = Texts::start()
            .await
            .end(async |coalescer| {
                for _ in 0..200_000 {
                    coalescer.push(Stdout, &line).await;
                }
            })
            .await;
        assert!(seen.len() < 1000, "{} messages", seen.len());
        assert!(seen.iter().all(|(_, text, _)| text.len() <= 128 * 1024));
        assert!(joined(&seen) == line.repeat(200_000));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn large_chunks_are_cut_between_characters_only() {
    within(async {
        let text: String = "aé€😀\0\u{1b}[0m\r\n".repeat(100_000);
        let pushed = text.clone();
        let seen = Texts::start()
            .await
            .end(async |coalescer| {
                coalescer.push(Stdout, "x").await;
                coalescer.push(Stdout, "y").await;
                coalescer.push(Stdout, &pushed).await;
            })
            .await;
        assert!(seen.iter().all(|(_, text, _)| text.len() <= 128 * 1024));
        assert!(joined(&seen) == format!("xy{text}"));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_two_streams_keep_their_order_and_are_paced() {
    within(async {
        let line = |number: usize| format!("{number}\n");
        let stream = |number: usize| -> StreamName {
            if number.is_multiple_of(2) {
                Stdout
            } else {
                Stderr
            }
        };
        let seen = Texts::start()
            .await
            .end(async |coalescer| {
                for number in 0..2000 {
                    coalescer.push(stream(number), &line(number)).await;
                }
            })
            .await;
        assert_eq!(seen.len(), 2000);
        for (number, (name, text, _)) in seen.iter().enumerate() {
            assert_eq!(
                (name.as_str(), text),
                (stream(number).as_str(), &line(number))
            );
        }
        // 800 a second, with some slack for the clock of the reader.
        for window in seen.windows(850) {
            let took = window[849].2 - window[0].2;
            assert!(took > Duration::from_millis(900), "{took:?}");
        }
    })
    .await;
}
