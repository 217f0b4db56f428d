//! The device's tests, linked once. Each module is named by the claim that it checks.

mod os_closed_files;
mod os_fallbacks;
mod os_files;
mod os_lock;
mod os_support;
mod os_transfers;
mod sim_crash_semantics;
mod sim_faults;
mod sim_log_is_checked_at_every_crash_point;
mod sim_runtime;
mod sim_same_seed_same_run;
mod sim_twin;
mod threads_runtime;
