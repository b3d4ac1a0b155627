//! Checks the names of classes: no class may occur in two spellings, and the test split must share a class
//! with the training split.

use std::collections::{BTreeMap, HashMap};

use icu_normalizer::ComposingNormalizerBorrowed;

use crate::DataError;
use crate::import::ImportArgs;
use crate::quote::{listed, quoted};

/// Invisible characters that editors and web pages leave in names: soft hyphens, zero width spaces, word
/// joiners and byte order marks. Zero width joiners are not among them, because they change the letters
/// beside them.
const INVISIBLE: [char; 4] = ['\u{ad}', '\u{200b}', '\u{2060}', '\u{feff}'];

/// Returns the normal form of a name, which all spellings of the name have in common: Unicode's form NFC,
/// lower case, no invisible characters, no repeated spaces.
pub(crate) fn key(name: &str) -> String {
    composed(&composed(name).to_lowercase())
}

/// Returns a function that finds the index of a name in `names`. The function looks first for an equal name,
/// and then for a name that differs only in spelling (see [`key`]). It returns `None` if no name or several
/// names fit.
pub(crate) fn finder<T: AsRef<str>>(names: &[T]) -> impl Fn(&str) -> Option<usize> {
    let (mut exact, mut alike) = (HashMap::new(), HashMap::new());
    for (place, name) in names.iter().enumerate() {
        exact.entry(name.as_ref()).or_insert_with(Vec::new).push(place);
        alike.entry(key(name.as_ref())).or_insert_with(Vec::new).push(place);
    }
    let only =
        |places: Option<&Vec<usize>>| places.filter(|places| places.len() == 1).map(|places| places[0]);
    move |wanted| only(exact.get(wanted)).or_else(|| only(alike.get(&key(wanted))))
}

/// Removes invisible characters and repeated spaces, and converts to NFC. Linux and Windows keep typed names
/// in NFC. macOS and some archives use NFD, in which accents are separate characters.
fn composed(name: &str) -> String {
    let name = name.replace(INVISIBLE, "");
    let name = ComposingNormalizerBorrowed::new_nfc().normalize(&name);
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks the names of the classes of a source of any kind (folders, tables, arrays, metadata files).
/// `counts` has the number of samples of each class in the training split and in the test split. If
/// `has_test` is false, the source has no test split, and all its samples count as training samples.
pub(crate) fn check(
    args: &ImportArgs,
    classes: &[String],
    counts: &[Vec<usize>; 2],
    has_test: bool,
) -> Result<(), DataError> {
    check_spellings(args, classes, counts, has_test)?;
    let of_split = |split: usize| {
        let has = move |class: &usize| counts[split][*class] > 0;
        (0..classes.len()).filter(has).map(|class| classes[class].as_str())
    };
    let is_known = counts[0].iter().zip(&counts[1]).any(|(train, test)| *train > 0 && *test > 0);
    if !has_test || is_known || of_split(1).next().is_none() {
        return Ok(());
    }
    bail!(
        &args.source,
        "the test split shares no class with the training split: it has {}, but the training split has {}; give \
         both the same class names, choose a split with --test-split, or move the test split away (a part of each \
         class then becomes the test split)",
        listed(of_split(1)),
        listed(of_split(0))
    );
}

/// Rejects two classes that are spellings of one name: a network would learn one class and be tested on the
/// other.
///
/// The two classes are not merged. The name of a class determines its number, and the program would have to
/// guess which spelling is right. Names that differ only in capitals are accepted with a warning in two
/// cases: if they are single letters, or if both names occur in both splits.
fn check_spellings(
    args: &ImportArgs,
    classes: &[String],
    counts: &[Vec<usize>; 2],
    has_test: bool,
) -> Result<(), DataError> {
    let is_used = |class: &usize| counts.iter().any(|split| split[*class] > 0);
    let mut spellings: BTreeMap<String, usize> = BTreeMap::new();
    let mut apart = Vec::new();
    for second in (0..classes.len()).filter(is_used) {
        let Some(first) = spellings.insert(key(&classes[second]), second) else { continue };
        let [a, b] = [first, second].map(|class| &*classes[class]);
        let in_all = |class: usize| counts.iter().all(|split| split[class] > 0);
        let differ = if composed(a) != composed(b) {
            if a.chars().count() == 1 || has_test && in_all(first) && in_all(second) {
                apart.push(format!("{a} and {b}"));
                continue;
            }
            "capital letters"
        } else if [a, b].iter().any(|name| name.contains(INVISIBLE)) {
            "invisible characters"
        } else if a.split_whitespace().eq(b.split_whitespace()) {
            "spaces"
        } else {
            "the form of Unicode (NFC and NFD)"
        };
        let split = |class: usize| match counts.each_ref().map(|split| split[class] > 0) {
            [true, false] if has_test => " (training split)",
            [false, true] if has_test => " (test split)",
            _ => "",
        };
        // If the two names look alike, escape the characters that are not ASCII.
        let [a, b] = [a, b].map(|name| {
            if differ.contains("Unicode") || differ.contains("invisible") {
                name.escape_default().to_string()
            } else {
                name.into()
            }
        });
        bail!(
            &args.source,
            "the names of the classes {}{} and {}{} differ only in {differ}: if they are one class, give both the \
             same name; if not, rename one",
            quoted(&a),
            split(first),
            quoted(&b),
            split(second)
        );
    }
    if !apart.is_empty() {
        log::warn!("names of classes that differ only in capital letters: {}", listed(apart));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::error::names_all;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ImportArgs,
    }

    /// Checks classes, each given with its number of training samples and of test samples.
    fn check(classes: &[(&str, usize, usize)], has_test: bool) -> Result<(), String> {
        let args = Cli::parse_from(["import", "pets", "--out", "out"]).args;
        let names: Vec<String> = classes.iter().map(|(name, ..)| (*name).to_owned()).collect();
        let counts = [classes.iter().map(|c| c.1).collect(), classes.iter().map(|c| c.2).collect()];
        super::check(&args, &names, &counts, has_test).map_err(|error| error.to_string())
    }

    #[test]
    fn a_class_has_one_spelling() {
        for (classes, has_test, expected) in [
            (&[("Cat", 3, 0), ("cat", 3, 0)][..], false, "\"Cat\" | \"cat\" | capital letters"),
            (
                &[("Cat", 0, 2), ("cat", 3, 0), ("dog", 3, 2)],
                true,
                "\"Cat\" (test split) | \"cat\" (training split) | capital letters",
            ),
            (
                &[("caf\u{e9}", 3, 0), ("cafe\u{301}", 3, 0)],
                false,
                "\"caf\\u{e9}\" | \"cafe\\u{301}\" | Unicode",
            ),
            (
                &[("\u{c9}t\u{e9}", 3, 0), ("e\u{301}te\u{301}", 3, 0)],
                false,
                "\u{c9}t\u{e9} | e\u{301}te\u{301} | capital letters",
            ),
            (
                &[("cat", 3, 0), ("cat\u{200b}", 3, 0)],
                false,
                "\"cat\" | \"cat\\u{200b}\" | invisible characters",
            ),
            (&[("big dog", 3, 0), ("big  dog ", 3, 0)], false, "\"big dog\" | \"big  dog \" | spaces"),
            (&[("a", 3, 0), ("A", 0, 2)], true, "test split | has A, | has a;"),
        ] {
            let message = check(classes, has_test).unwrap_err();
            assert!(
                message.starts_with("pets: ") && names_all(&message, expected),
                "{message}, not {expected}"
            );
        }
        for (classes, has_test) in [
            (&[("A", 3, 0), ("a", 3, 0), ("B", 3, 0)][..], false),
            (&[("Delta", 3, 1), ("delta", 3, 1)], true),
            (&[("Cat", 0, 0), ("cat", 3, 0)], false),
            (&[("caf\u{e9}", 3, 0), ("cafe", 3, 0)], false),
        ] {
            assert_eq!(check(classes, has_test), Ok(()), "{classes:?}");
        }
    }

    #[test]
    fn a_test_split_has_a_class_that_was_learned() {
        let message = check(&[("cat", 3, 0), ("dog", 3, 0), ("images", 0, 4)], true).unwrap_err();
        assert!(names_all(&message, "test split | has images, | has cat, dog;"), "{message}");
        assert_eq!(check(&[("cat", 3, 1), ("dog", 3, 0), ("images", 0, 4)], true), Ok(()));
        assert_eq!(check(&[("cat", 3, 0)], false), Ok(()));
        let long: Vec<String> = (0..1000).map(|n| format!("{n:0>100}")).collect();
        let mut classes: Vec<_> = long.iter().map(|name| (&**name, 2, 0)).collect();
        classes.push(("other", 0, 2));
        let message = check(&classes, true).unwrap_err();
        assert!(message.len() < 700 && message.contains("… (1000 in all)"), "{message}");
    }
}
