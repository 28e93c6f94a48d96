//! How often things happened that a test wants to know of: a fault that never fired proves nothing.
//!
//! They are read by [`super::Emulator::counters`] and as JSON at `/emulator/counters`, without a bearer token.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

/// One number that only grows.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The counters of one emulator.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub websockets: Counter,
    pub blocked: Counter,
    pub cut: Counter,
    pub swallowed: Counter,
    pub stalled: Counter,
    pub unknown_iopub: Counter,
}

impl Counters {
    /// What they are now.
    pub fn counts(&self) -> Counts {
        Counts {
            websockets: self.websockets.read(),
            blocked: self.blocked.read(),
            cut: self.cut.read(),
            swallowed: self.swallowed.read(),
            stalled: self.stalled.read(),
            unknown_iopub: self.unknown_iopub.read(),
        }
    }
}

/// How often things have happened since the emulator started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// WebSockets that were opened to a runtime.
    pub websockets: u64,
    /// Upgrades refused by `companion=blocked`.
    pub blocked: u64,
    /// Connections dropped by `companion=cut:N`.
    pub cut: u64,
    /// iopub messages dropped by `companion=swallow:N`.
    pub swallowed: u64,
    /// Connections frozen by `companion=stall:N`.
    pub stalled: u64,
    /// Calls failed by `unknown-iopub=fail`.
    pub unknown_iopub: u64,
}
