//! The whole kernel process.
