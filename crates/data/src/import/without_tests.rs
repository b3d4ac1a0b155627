//! Tests the errors of an import in a build that lacks a feature.

use std::fs;
use std::ops::ControlFlow;

use clap::Parser;

use super::{ImportArgs, import};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ImportArgs,
}

#[test]
fn a_source_that_needs_a_missing_feature_is_named_with_it() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    fs::create_dir_all(path("pets/cat")).unwrap();
    fs::create_dir_all(path("pets/dog")).unwrap();
    for (file, contents) in [
        ("pets/cat/1.png", &b"\x89PNG\r\n\x1a\n"[..]),
        ("pets/dog/1.png", b"\x89PNG\r\n\x1a\n"),
        ("pets.zip", b"PK\x03\x04"),
        ("pets.parquet", b"PAR1"),
    ] {
        fs::write(path(file), contents).unwrap();
    }
    let archives = ("pets.zip", "archives", "archives", cfg!(feature = "archives"));
    let parquet = ("pets.parquet", "Parquet", "parquet", cfg!(feature = "parquet"));
    let pictures = ("pets", "pictures", "pictures", cfg!(feature = "pictures"));
    for (source, what, feature, _) in [archives, parquet, pictures].into_iter().filter(|(.., has)| !has) {
        let words = ["import".into(), path(source), "--out".into(), path("out")];
        let args = Cli::parse_from(words).args;
        let message = import(&args, &|_, _| ControlFlow::Continue(())).unwrap_err().to_string();
        let expected = format!("{source}: this build cannot read {what}; build with the feature {feature}");
        assert!(message.ends_with(&expected), "{message}");
    }
}
