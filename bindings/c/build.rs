//! Gives the shared library its SONAME: without one a program that was linked with it looks for the path that it had then.
//! cargo-c, which turns `capi` on, names the one that it installs.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name, value| std::env::var(name).is_ok_and(|found| found == value);
    if is("CARGO_CFG_TARGET_OS", "linux") && std::env::var_os("CARGO_FEATURE_CAPI").is_none() {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpleach_c.so");
    }
}
