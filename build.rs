//! Stores commit, compiler and the version of Burn in the binary.

use std::process::Command;

fn main() {
    println!("cargo:rustc-env=MPIBURN_GIT={}", git_commit());
    println!("cargo:rustc-env=MPIBURN_RUSTC={}", rustc_version());
    println!("cargo:rustc-env=MPIBURN_GIT_DIRTY={}", git_dirty());
    println!("cargo:rustc-env=MPIBURN_BURN={}", version_of("burn"));
    // Git's index is not watched: any `git status` may write it, which would compile the program again.
    for path in [".git/HEAD", ".git/refs/heads"].iter().chain(&BUILT_FROM) {
        println!("cargo:rerun-if-changed={path}");
    }
}

/// Files and folders that the binary is built from.
const BUILT_FROM: [&str; 5] = ["src", "crates", "build.rs", "Cargo.toml", "Cargo.lock"];

/// Returns whether the sources differ from the commit: `true`, `false`, or `unknown` for a source archive.
fn git_dirty() -> String {
    let status = ["--no-optional-locks", "status", "--porcelain", "--"];
    let status = Command::new("git").args(status).args(BUILT_FROM).output();
    match status {
        Ok(output) if output.status.success() => (!output.stdout.is_empty()).to_string(),
        _ => "unknown".into(),
    }
}

/// Returns the commit of the checkout, or `unknown` for a source archive.
fn git_commit() -> String {
    output(Command::new("git").args(["rev-parse", "--short=12", "HEAD"]))
}

fn rustc_version() -> String {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    output(Command::new(rustc).arg("--version"))
}

/// Returns the version of a dependency in Cargo.lock.
fn version_of(name: &str) -> String {
    let lock = std::fs::read_to_string("Cargo.lock").expect("cannot read Cargo.lock");
    let package = format!("name = \"{name}\"\nversion = \"");
    let version = lock.split_once(&package).and_then(|(_, rest)| rest.split('"').next());
    version.unwrap_or_else(|| panic!("Cargo.lock has no package {name}")).to_owned()
}

fn output(command: &mut Command) -> String {
    command
        .output()
        .ok()
        .filter(|o| o.status.success())
        .map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned())
        .unwrap_or_else(|| "unknown".into())
}
