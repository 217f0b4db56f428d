//! `pleach`: look into a database.

fn main() -> std::process::ExitCode {
    pleach_bench::pleach()
}
