//! The command line: one file per command.

pub mod emulate;
pub mod install;
pub mod kernelspec;
pub mod uninstall;

use std::process::ExitCode;

/// Runs the command that the arguments name and maps its error to an exit code.
pub fn main() -> ExitCode {
    ExitCode::SUCCESS
}
