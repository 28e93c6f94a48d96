//! The wire against raw clients.
