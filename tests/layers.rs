//! Checks that the modules of the program, and of burn-fused, use only modules on lower lines of the pictures
//! in ARCHITECTURE.md. Cargo checks the dependencies between crates, but not between modules.
//!
//! A picture is a block of lines, fenced as `layers` and followed by the folder of the modules. A module may
//! use the modules on lower lines, but no other module of its own line.
//!
//! The test finds what a module uses in the paths that start at the crate's root, including the paths in unit
//! tests. A picture that differs from the code therefore fails. A name after `crate::` that is not in the
//! picture fails too: such a name is a re-export, which hides the module that it comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// A module, and a module that it uses.
type Arrow = (String, String);
/// The line of each module in a picture. Line 0 is the top.
type Layers = BTreeMap<String, usize>;

/// The pictures of a document, each with the folder of its modules.
fn pictures(document: &str) -> Vec<(&str, Layers)> {
    let blocks = document.split("```layers ").skip(1);
    let parts = blocks.filter_map(|block| block.split_once("```")?.0.split_once('\n'));
    parts.map(|(root, picture)| (root, layers(picture))).collect()
}

fn layers(picture: &str) -> Layers {
    let mut layers = BTreeMap::new();
    for (line, text) in picture.lines().filter(|line| !line.trim().is_empty()).enumerate() {
        for module in text.split_whitespace() {
            assert!(layers.insert(module.to_owned(), line).is_none(), "{module} is in the picture twice");
        }
    }
    layers
}

/// Words and punctuation of a source file, without comments and strings.
fn tokens(source: &str) -> Vec<String> {
    let chars: Vec<char> = source.chars().collect();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let (mut tokens, mut at) = (Vec::new(), 0);
    while at < chars.len() {
        let rest = &chars[at..];
        at += match rest {
            ['/', '/', ..] => rest.iter().position(|&c| c == '\n').unwrap_or(rest.len()),
            ['/', '*', ..] => {
                rest.windows(2).position(|pair| pair == ['*', '/']).map_or(rest.len(), |i| i + 2)
            }
            ['r', '"', ..] | ['r', '#', '"' | '#', ..] => raw_string(rest),
            ['"', ..] => string(rest),
            ['\'', '\\', ..] => 2 + rest[2..].iter().position(|&c| c == '\'').map_or(1, |i| i.max(1) + 1),
            ['\'', _, '\'', ..] => 3,
            [c, ..] if is_word(*c) => {
                let length = rest.iter().position(|&c| !is_word(c)).unwrap_or(rest.len());
                tokens.push(rest[..length].iter().collect());
                length
            }
            [c, ..] => {
                if !c.is_whitespace() {
                    tokens.push(c.to_string());
                }
                1
            }
            [] => 1,
        };
    }
    tokens
}

/// Length of the string literal at the start of `rest`.
fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn raw_string(rest: &[char]) -> usize {
    let marks = rest[1..].iter().take_while(|&&c| c == '#').count();
    let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', marks)).collect();
    let begin = marks + 2;
    let found = rest.get(begin..).and_then(|rest| rest.windows(end.len()).position(|part| part == end));
    found.map_or(rest.len(), |found| begin + found + end.len())
}

/// The names below the crate's root that a file uses. `depth` is how deep the file's module is below the
/// root, as its path says (`#[path]` is ignored).
fn used(source: &str, depth: usize, layers: &Layers) -> BTreeSet<String> {
    let tokens = tokens(source);
    let is = |at: usize, word: &str| tokens.get(at).is_some_and(|token| token == word);
    let path = |at: usize| is(at, ":") && is(at + 1, ":");
    let mut found = BTreeSet::new();
    // The depth of braces at the start of each inline module that is open.
    let (mut braces, mut inner) = (0, Vec::new());
    for at in 0..tokens.len() {
        match tokens[at].as_str() {
            "{" => {
                braces += 1;
                if at >= 2 && is(at - 2, "mod") {
                    inner.push(braces);
                }
            }
            "}" => {
                if inner.last() == Some(&braces) {
                    inner.pop();
                }
                braces -= 1;
            }
            _ => {}
        }
        // Skips a word after `::`: only the first word of a path counts.
        if at >= 2 && path(at - 2) {
            continue;
        }
        let mut next = at;
        let mut up = 0;
        while is(next, "super") && path(next + 1) {
            (next, up) = (next + 3, up + 1);
        }
        let from_root = up > 0 && up == depth + inner.len();
        if is(at, "crate") && path(at + 1) {
            next = at + 3;
        } else if !from_root {
            continue;
        }
        let words = first_words(&tokens[next..]).into_iter();
        found.extend(words.filter(|word| !from_root || layers.contains_key(word)));
    }
    found
}

/// The first word of a path, or the first word of each path inside the braces.
fn first_words(tokens: &[String]) -> Vec<String> {
    if tokens.first().is_none_or(|token| token != "{") {
        return tokens.first().cloned().into_iter().collect();
    }
    let (mut words, mut braces, mut fresh) = (Vec::new(), 0, true);
    for token in tokens {
        match token.as_str() {
            "{" => braces += 1,
            "}" => braces -= 1,
            "," => fresh = braces == 1,
            word if braces == 1 && fresh => {
                words.push(word.to_owned());
                fresh = false;
            }
            _ => {}
        }
        if braces == 0 {
            break;
        }
    }
    words
}

/// The sources below `root`, with their text.
fn sources(root: &Path) -> Vec<(PathBuf, String)> {
    let (mut sources, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let source = std::fs::read_to_string(&path).expect("a source file");
                sources.push((path, source));
            }
        }
    }
    sources
}

/// Each pair of a module and a module that it uses, with a file in which this happens. `lib.rs` and `main.rs`
/// are above all modules.
fn arrows(root: &Path, layers: &Layers) -> BTreeMap<Arrow, PathBuf> {
    let mut arrows = BTreeMap::new();
    for (path, source) in sources(root) {
        let inside = path.strip_prefix(root).expect("a path below the root").with_extension("");
        let mut words: Vec<_> = inside.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        words.retain(|word| word != "mod");
        if ["lib", "main"].contains(&&*words[0]) {
            continue;
        }
        assert!(layers.contains_key(&words[0]), "{} is not in the picture of ARCHITECTURE.md", words[0]);
        for other in used(&source, words.len(), layers).into_iter().filter(|other| *other != words[0]) {
            arrows.entry((words[0].clone(), other)).or_insert_with(|| path.clone());
        }
    }
    arrows
}

/// One line for each arrow that does not point to a lower line.
fn wrong(arrows: &BTreeMap<Arrow, PathBuf>, layers: &Layers) -> Vec<String> {
    let up = arrows.iter().filter(|((from, to), _)| layers.get(to).is_none_or(|to| layers[from] >= *to));
    up.map(|((from, to), file)| format!("{from} uses {to}, which is not below it: {}", file.display()))
        .collect()
}

/// True if the source names Burn or one of Burn's crates outside of comments and strings. `burn_std`, which has
/// the memory of tensors and no tensors, does not count.
fn names_burn(source: &str) -> bool {
    tokens(source).iter().any(|token| token.starts_with("burn") && *token != "burn_std")
}

fn architecture() -> String {
    std::fs::read_to_string("ARCHITECTURE.md").expect("ARCHITECTURE.md")
}

#[test]
fn modules_use_those_below_them_alone() {
    let document = architecture();
    let pictures = pictures(&document);
    assert_eq!(pictures.len(), 2, "the pictures are found");
    let mut found = Vec::new();
    for (root, layers) in pictures {
        let arrows = arrows(Path::new(root), &layers);
        assert!(arrows.len() >= layers.len(), "the arrows of {root} are found: {}", arrows.len());
        found.extend(wrong(&arrows, &layers));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn pictures_have_no_module_that_is_gone() {
    for (root, layers) in pictures(&architecture()) {
        for module in layers.keys() {
            let there = [format!("{root}/{module}.rs"), format!("{root}/{module}/mod.rs")];
            assert!(there.iter().any(|path| Path::new(path).exists()), "no module {module} in {root}");
        }
    }
}

#[test]
fn what_computes_on_slices_does_not_name_burn() {
    for folder in ["kernels", "runtime", "int8"] {
        let sources = sources(&Path::new("crates/burn-fused/src").join(folder));
        assert!(!sources.is_empty(), "{folder} has sources");
        for (path, source) in sources {
            assert!(!names_burn(&source), "{} names Burn", path.display());
        }
    }
    assert!(names_burn("use burn::tensor::Tensor;") && names_burn("fn f(x: burn_ndarray::NdArray) {}"));
    assert!(!names_burn("//! As burn::tensor::Tensor.\nconst NAME: &str = \"burn\";"));
}

/// Writes a small program, and returns a line for each of its arrows that does not point down.
fn fixture(files: &[(&str, &str)]) -> Vec<String> {
    let root = tempfile::tempdir().expect("a folder");
    for (name, source) in files {
        let path = root.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, source).expect("a file");
    }
    let (_, layers) = pictures("```layers src\ntop\nleft right\nlow\n```").remove(0);
    wrong(&arrows(root.path(), &layers), &layers)
}

#[test]
fn arrows_down_are_fine() {
    let found = fixture(&[
        ("main.rs", "use fixture::top; fn main() { crate::low::f() }"),
        ("top.rs", "use crate::{left::{self, low}, low::X};"),
        ("left/mod.rs", "use crate::low; // use crate::top;\n/* crate::top */ mod part;"),
        (
            "left/part.rs",
            "use super::top; const TEXT: &str = \"crate::top \\\" crate::top\"; use crate::left::x;",
        ),
        ("right.rs", "mod tests { use super::top; } fn f<'a>(c: &'a char) { r#\"crate::top\"#; '\"'; }"),
    ]);
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn arrows_up_and_sideways_fail_in_any_form() {
    for (name, source) in [
        ("low.rs", "use crate::top::f;"),
        ("low.rs", "use crate::{\n    low,\n    top::{f, g},\n};"),
        ("low.rs", "fn f() -> u8 { '\"'; crate::left::g(\"x\") }"),
        ("low/deep/down.rs", "pub(super) use super::super::super::right::x;"),
        ("low.rs", "#[cfg(test)]\nmod tests { use super::super::top::f; }"),
        ("left.rs", "use crate::right;"),
        ("left.rs", "use crate::Right;"),
        ("left.rs", "use crate::*;"),
    ] {
        let found = fixture(&[(name, source)]);
        assert_eq!(found.len(), 1, "{source}: {found:?}");
        assert!(found[0].contains("which is not below it") && found[0].contains(name), "{found:?}");
    }
}
