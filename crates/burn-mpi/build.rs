//! Compiles the C layer over MPI and the C++ layer over gloo, and tells the crate which MPI and which sources
//! it is built from.

use std::path::Path;
use std::process::Command;

fn main() {
    if std::env::var_os("CARGO_FEATURE_MPI").is_none() {
        return;
    }
    if std::env::var_os("DOCS_RS").is_some() {
        // docs.rs has no MPI and no gloo, and runs nothing.
        println!("cargo:rustc-env=BURN_MPI_FLAVOUR=none");
        println!("cargo:rustc-env=BURN_MPI_SOURCES=none");
        return;
    }
    let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".into());
    println!("cargo:rerun-if-env-changed=MPICC");
    println!("cargo:rerun-if-changed=src/collective/mpi/shim.c");
    if Command::new(&mpicc).arg("--version").output().is_err() {
        println!(
            "cargo::error={mpicc} not found: install an MPI with its headers \
             (Debian, Ubuntu: apt-get install openmpi-bin libopenmpi-dev), or set MPICC to its compiler wrapper"
        );
        return;
    }
    cc::Build::new()
        .compiler(&mpicc)
        .file("src/collective/mpi/shim.c")
        .warnings(true)
        .compile("burn_mpi_shim");
    if std::env::var_os("CARGO_FEATURE_GLOO").is_some() {
        compile_gloo();
    }

    println!("cargo:rustc-env=BURN_MPI_FLAVOUR={}", flavour(&mpicc));
    println!("cargo:rerun-if-changed=src");
    println!("cargo:rustc-env=BURN_MPI_SOURCES={:016x}", sources(Path::new("src"), 0xcbf2_9ce4_8422_2325));
}

/// Continues the digest `before` (FNV-1a, 64 bits) with the bytes of all files in `folder`. The digest does
/// not depend on the compiler or the machine.
fn sources(folder: &Path, before: u64) -> u64 {
    let mut paths: Vec<_> = folder.read_dir().into_iter().flatten().flatten().map(|e| e.path()).collect();
    paths.sort();
    paths.iter().fold(before, |digest, path| match std::fs::read(path) {
        Ok(bytes) => bytes
            .iter()
            .fold(digest, |digest, byte| (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)),
        Err(_) => sources(path, digest),
    })
}

/// Returns the MPI of the compiler wrapper `mpicc`. Only Open MPI's wrapper has the option
/// `--showme:version`.
fn flavour(mpicc: &str) -> &'static str {
    let shown = Command::new(mpicc).arg("--showme:version").output();
    if shown.is_ok_and(|output| output.status.success()) { "openmpi" } else { "mpich" }
}

/// Compiles the layer over gloo, and links gloo before the libraries of any other crate. libtorch also
/// exports the symbols of another gloo version, and a program gets a symbol from the first library that
/// defines it.
fn compile_gloo() {
    for file in ["shim.cc", "gathers.h", "mesh.h", "sums.h"] {
        println!("cargo:rerun-if-changed=src/collective/gloo/{file}");
    }
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17");
    let probe = ["-E", "-include", "gloo/allreduce.h", "-x", "c++", "/dev/null", "-o", "/dev/null"];
    let probed = build.try_get_compiler().ok().and_then(|c| c.to_command().args(probe).output().ok());
    let (what, package) = match probed {
        Some(output) if output.status.success() => ("", ""),
        Some(_) => ("gloo/allreduce.h", "libgloo-dev"),
        None => ("C++ compiler", "g++"),
    };
    if !what.is_empty() {
        println!(
            "cargo::error={what} not found: install it (Debian, Ubuntu: apt-get install {package}), \
             or build without gloo (--no-default-features)"
        );
        return;
    }
    // Warnings are off because gloo's headers cause some.
    build.file("src/collective/gloo/shim.cc").warnings(false).compile("burn_mpi_gloo_shim");
    println!("cargo:rustc-link-lib=dylib=gloo");
}
