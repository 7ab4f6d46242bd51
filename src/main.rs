//! The `orch` program: all of it is in the library.

fn main() -> std::process::ExitCode {
    orch::cli::main()
}
