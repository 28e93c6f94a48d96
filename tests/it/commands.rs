//! The commands and their contract.

mod install;
