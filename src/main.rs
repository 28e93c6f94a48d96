//! The `colab-kernel` command.

fn main() -> std::process::ExitCode {
    colab_kernel::cli::main()
}
