//! Notes what the binary was built from.

use std::process::Command;

fn main() {
    println!("cargo:rustc-env=MPIBURN_GIT={}", git_commit());
    println!("cargo:rustc-env=MPIBURN_RUSTC={}", rustc_version());
    println!("cargo:rerun-if-changed=.git/HEAD");
    println!("cargo:rerun-if-changed=.git/refs/heads");
}

/// The commit of the checkout, or `unknown` for a source archive.
fn git_commit() -> String {
    output(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]))
}

fn rustc_version() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    output(Command::new(rustc).arg("--version"))
}

fn output(command: &mut Command) -> String {
    command
        .output()
        .ok()
        .filter(|o| o.status.success())
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
        .unwrap_or_else(|| "unknown".into())
}
