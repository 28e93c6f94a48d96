//! The commands and their contract.

mod cli;
mod install;
