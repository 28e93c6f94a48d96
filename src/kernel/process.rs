//! Why a kernel process stops without being asked to by a message: SIGTERM, and the death of its parent. SIGINT interrupts.

use std::time::Duration;

use super::running::Running;

/// Waits until the process has to stop. Until then, every SIGINT interrupts the cell that runs.
pub async fn told_to_stop(running: &Running) {
    tokio::select! {
        () = terminated() => tracing::info!("stopping: SIGTERM"),
        () = parent_gone() => tracing::info!("stopping: the parent process is gone"),
        never = interrupts(running) => match never {},
    }
}

enum Never {}

#[cfg(unix)]
async fn interrupts(running: &Running) -> Never {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::interrupt()) {
        Ok(mut interrupts) => loop {
            interrupts.recv().await;
            running.interrupt();
        },
        Err(error) => {
            tracing::error!(%error, "SIGINT cannot be handled");
            std::future::pending().await
        }
    }
}

#[cfg(not(unix))]
async fn interrupts(running: &Running) -> Never {
    loop {
        if let Err(error) = tokio::signal::ctrl_c().await {
            tracing::error!(%error, "Ctrl-C cannot be handled");
            std::future::pending::<()>().await;
        }
        running.interrupt();
    }
}

#[cfg(unix)]
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            terminate.recv().await;
        }
        Err(error) => {
            tracing::error!(%error, "SIGTERM cannot be handled");
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(not(unix))]
async fn terminated() {
    std::future::pending::<()>().await;
}

/// Waits for the death of the process that `JPY_PARENT_PID` names (set by jupyter_client), looking once a second.
///
/// Where a wrapper stands between that process and this one, the process table is asked instead of our own parent; where
/// neither can be asked (Windows, where the variable is a handle), this waits for ever.
#[cfg(unix)]
async fn parent_gone() {
    let Some(parent) = std::env::var("JPY_PARENT_PID")
        .ok()
        .and_then(|value| value.parse::<u32>().ok())
        .filter(|&pid| pid > 1)
    else {
        return std::future::pending().await;
    };
    let own_child = std::os::unix::process::parent_id() == parent;
    let process = std::path::PathBuf::from(format!("/proc/{parent}"));
    if !own_child && !process.exists() {
        return std::future::pending().await;
    }
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        ticks.tick().await;
        let alive = if own_child {
            std::os::unix::process::parent_id() == parent
        } else {
            process.exists()
        };
        if !alive {
            return;
        }
    }
}

#[cfg(not(unix))]
async fn parent_gone() {
    std::future::pending::<()>().await;
}
