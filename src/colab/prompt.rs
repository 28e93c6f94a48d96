//! Prompts of the kernel, shown and answered.

use tokio::task::JoinSet;

use super::companion::Companion;
use super::companion::activity::Prompt;
use crate::backend::{Answerer, Event, EventSender};

/// Shows a prompt, and hands its answer to the kernel from a task in `tasks`, with whose end the prompt is withdrawn.
pub(super) async fn ask(
    companion: &Companion,
    prompt: Prompt,
    events: &EventSender,
    tasks: &mut JoinSet<()>,
) {
    let (answer, mut answered) = Answerer::new();
    events
        .send(Event::InputRequest {
            prompt: prompt.prompt,
            password: prompt.password,
            answer,
        })
        .await;
    let companion = companion.clone();
    tasks.spawn(async move {
        if let Some(answer) = answered.recv().await {
            companion.answer(&prompt.key, answer).await;
        }
    });
}
