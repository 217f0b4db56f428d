//! `nomt-bench`: the workloads of the field on Pleach and its peers.

fn main() -> std::process::ExitCode {
    pleach_bench::nomt_bench()
}
