//! Checks that whatever documents name exists: links, files, commands, options, tests and versions.

mod commands;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// All Markdown files of the project, except in build folders, results and hidden folders.
fn documents() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut found, mut folders) = (Vec::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_output = name.starts_with('.')
                || folder == top && (name.starts_with("target") || name == "results" || name == "data");
            if path.is_dir() && !path.is_symlink() && !is_output {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                found.push(path);
            }
        }
    }
    found
}

/// The text without blocks of code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let lines = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The targets of `[text](target)`.
fn links(text: &str) -> Vec<&str> {
    text.split("](").skip(1).filter_map(|rest| rest.split([')', ' ']).next()).collect()
}

/// The anchors of headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| -> String {
        let words = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    };
    headings.map(anchor).collect()
}

/// Why a link of `document` leads nowhere; `None` if its file and heading exist.
fn broken(document: &Path, link: &str) -> Option<String> {
    // A page of the repository's host, relative to this file on its site.
    if ["https://", "http://", "mailto:", "../../actions/"].iter().any(|start| link.starts_with(start)) {
        return None;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { document.to_owned() } else { document.parent()?.join(file) };
    if !path.exists() {
        return Some(format!("{}: no file {link}", document.display()));
    }
    let text = fs::read_to_string(&path).unwrap_or_default();
    let is_there = anchor.is_none_or(|anchor| anchors(&prose(&text)).contains(anchor));
    (!is_there).then(|| format!("{}: no heading {link}", document.display()))
}

#[test]
fn relative_links_lead_to_files_and_headings() {
    let documents = documents();
    assert!(documents.len() > 20, "{}", documents.len());
    let (mut checked, mut wrong) = (0, Vec::new());
    for document in documents {
        let text = prose(&fs::read_to_string(&document).expect("a document"));
        let links = links(&text);
        checked += links.len();
        wrong.extend(links.into_iter().filter_map(|link| broken(&document, link)));
    }
    assert!(checked > 50, "links are found: {checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_broken_link_is_found() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text =
        prose("[a](LICENSE-MIT)\n```\n[b](none)\n```\n[c](none.md), [d](#none), [e](https://burn.dev)");
    let found: Vec<String> = links(&text).into_iter().filter_map(|link| broken(&readme, link)).collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].ends_with("no file none.md") && found[1].ends_with("no heading #none"), "{found:?}");
}

/// Folders of the repository in which documents name files.
const FOLDERS: [&str; 9] =
    ["benches/", "containers/", "crates/", "docs/", "examples/", "jobs/", "scripts/", "src/", "tests/"];
/// The endings of the files that documents name.
const ENDINGS: [&str; 8] = [".c", ".cc", ".csv", ".md", ".py", ".rs", ".sh", ".toml"];

/// The paths of files in a text, including its code blocks, relative to the repository's folder.
fn files(text: &str) -> Vec<&str> {
    let is_path = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let words = text.split(|c| !is_path(c)).map(|word| word.trim_end_matches('.'));
    let is_file = |word: &&str| {
        FOLDERS.iter().any(|folder| word.starts_with(folder))
            && ENDINGS.iter().any(|ending| word.ends_with(ending))
    };
    words.filter(is_file).collect()
}

#[test]
fn files_that_documents_name_exist() {
    assert_eq!(
        files("see `src/lib.rs`.\n```\ncd a; tests/all.sh --only src\n```"),
        ["src/lib.rs", "tests/all.sh"]
    );
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut checked, mut wrong) = (0, Vec::new());
    // A changelog may name a file that no longer exists.
    for document in documents().into_iter().filter(|path| !path.ends_with("CHANGELOG.md")) {
        let text = fs::read_to_string(&document).expect("a document");
        // A crate's README may name files of its own folder.
        let beside = document.parent().expect("a folder");
        for file in files(&text) {
            checked += 1;
            if !top.join(file).exists() && !beside.join(file).exists() {
                wrong.push(format!("{}: no file {file}", document.display()));
            }
        }
    }
    assert!(checked > 50, "files are found: {checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// True if a word in code is the name of a test. Tests have long names, such as
/// `a_repeated_run_is_bit_identical`.
fn is_test_name(word: &str) -> bool {
    word.matches('_').count() >= 5
        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// All Rust sources below the folders `src`, `crates` and `tests`.
fn sources() -> Vec<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders: Vec<PathBuf> =
        ["src", "crates", "tests", "examples"].map(|folder| top.join(folder)).into();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
    }
    found
}

#[test]
fn sources_that_comments_name_exist() {
    let sources = sources();
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let exists = |name: &str| sources.iter().any(|path| path.ends_with(name.trim_start_matches("./")));
    let (mut checked, mut wrong) = (0, Vec::new());
    for source in &sources {
        let text = fs::read_to_string(source).expect("a source file");
        let comments = text.lines().filter(|line| line.trim_start().starts_with("//"));
        let words =
            comments.flat_map(|line| line.split(|c| !is_part(c))).map(|word| word.trim_end_matches('.'));
        for name in words.filter(|word| {
            word.len() > 3 && word.ends_with(".rs") && !word.starts_with("//") && *word != "docs.rs"
        }) {
            checked += 1;
            if !exists(name) {
                wrong.push(format!("{}: no file {name}", source.display()));
            }
        }
    }
    assert!(checked > 5, "names are found: {checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn tests_that_documents_name_exist() {
    let mut functions = BTreeSet::new();
    for source in sources() {
        let text = fs::read_to_string(source).expect("a source file");
        let found = text.split("fn ").skip(1).filter_map(|rest| rest.split(['(', '<']).next());
        functions.extend(found.map(str::to_owned));
    }
    let (mut checked, mut wrong) = (0, Vec::new());
    for document in documents() {
        let text = prose(&fs::read_to_string(&document).expect("a document"));
        for name in text.split('`').skip(1).step_by(2).filter(|code| is_test_name(code)) {
            checked += 1;
            if !functions.contains(name) {
                wrong.push(format!("{}: no test {name}", document.display()));
            }
        }
    }
    assert!(checked > 10, "tests are found: {checked}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The value of the first `version = "…"` in the lines from `start`.
fn version(text: &str, start: &str) -> String {
    let value = text.split_once(start).and_then(|(_, rest)| rest.split('"').nth(1));
    value.unwrap_or_else(|| panic!("no {start}")).trim_start_matches('=').to_owned()
}

#[test]
fn readmes_have_the_versions_of_the_crates() {
    let read = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path);
    for name in ["burn-fused", "burn-mpi"] {
        let crate_version = version(&read(&format!("crates/{name}/Cargo.toml")), "\nversion = ");
        let (minor, _) = crate_version.rsplit_once('.').expect("three numbers");
        assert_eq!(
            version(&read(&format!("crates/{name}/README.md")), &format!("\n{name} = ")),
            minor,
            "{name}"
        );
    }
    let range = version(&read("Cargo.toml"), "\nburn = { version = ");
    let [lowest, above] = range.split(", ").collect::<Vec<_>>()[..] else { panic!("no range: {range}") };
    let lowest = lowest.trim_start_matches(">=");
    let supported = format!("{lowest} or newer, below {}", above.trim_start_matches('<'));
    let rust = version(&read("Cargo.toml"), "\nrust-version = ");
    assert!(read(".github/workflows/checks.yml").contains(&format!("image: rust:{rust}-")), "{rust}");
    for readme in ["crates/burn-fused/README.md", "crates/burn-mpi/README.md"].map(read) {
        assert_eq!(version(&readme, "\nburn = { version = "), lowest);
        assert!(readme.contains(&format!("| 0.2 | {supported} | {rust} or newer |")), "{supported}, {rust}");
        assert!(readme.lines().nth(2).is_some_and(|line| line.starts_with("An unofficial companion")));
    }
}

/// A README that a registry shows cannot refer to other files, and its program is a file of the package.
#[test]
fn readmes_of_the_libraries_stand_alone() {
    for name in ["burn-fused", "burn-mpi"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates").join(name);
        let [readme, example] =
            ["README.md", "examples/first.rs"].map(|file| fs::read_to_string(folder.join(file)).expect(file));
        let prose = prose(&readme);
        let elsewhere: Vec<&str> = links(&prose)
            .into_iter()
            .filter(|link| !link.starts_with("https://") && !link.starts_with('#'))
            .collect();
        assert!(elsewhere.is_empty(), "{name}: {elsewhere:?}");
        let (_, program) = example.split_once("\n\n").expect("a comment, then the program");
        assert!(readme.contains(program.trim_end()), "{name}: the program is not examples/first.rs");
    }
}
