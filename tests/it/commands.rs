//! The commands and their contract.
