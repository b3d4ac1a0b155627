//! Shortens names and texts from the user's files, so that a message that quotes them stays one readable
//! line.

use std::borrow::Cow;

/// A text with more characters than this number is shortened.
const MOST: usize = 80;
/// Maximum number of characters of a list of several names. The separator before the last name and the number
/// of all names do not count.
const MOST_OF_LIST: usize = 100;

/// Joins names with commas. A long list is cut, and ends with the number of all names: `a, b, c, … (784 in
/// all)`.
pub(crate) fn listed<T: AsRef<str>>(names: impl IntoIterator<Item = T>) -> String {
    let names: Vec<T> = names.into_iter().collect();
    let (mut text, mut shown) = (String::new(), 0);
    for name in &names {
        let name = short(name.as_ref());
        if shown > 0 && text.chars().count() + name.chars().count() > MOST_OF_LIST {
            break;
        }
        text += if shown > 0 { ", " } else { "" };
        text += &name;
        shown += 1;
    }
    match names.len() {
        all if all > shown => format!("{text}, … ({all} in all)"),
        _ => text,
    }
}

/// Returns the text in one line: control characters are escaped, and the middle of a long text is replaced by
/// `…`.
pub(crate) fn short(text: &str) -> Cow<'_, str> {
    let length = text.chars().count();
    if length <= MOST && !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let in_line = |character: char| {
        if character.is_control() { character.escape_default().collect() } else { character.to_string() }
    };
    if length <= MOST {
        return text.chars().map(in_line).collect();
    }
    let beginning = text.chars().take(3 * MOST / 4).map(in_line);
    let end = text.chars().skip(length - MOST / 4).map(in_line);
    beginning.chain(["…".to_owned()]).chain(end).collect()
}

/// Returns the shortened text in quotation marks.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", short(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_and_lists_are_short() {
        assert_eq!(listed(["a", "b"]), "a, b");
        assert_eq!(listed::<&str>([]), "");
        let pixels: Vec<String> = (0..784).map(|number| format!("pixel{number}")).collect();
        let text = listed(&pixels);
        assert!(text.starts_with("pixel0, pixel1, ") && text.ends_with(", … (784 in all)"), "{text}");
        assert!(text.chars().count() < 130, "{text}");
        let text = listed(["ä".repeat(1000), "b".into()]);
        assert!(text.chars().count() < 130 && text.ends_with(", b"), "{text}");
        assert_eq!(quoted("two\nlines"), "\"two\\nlines\"");
        assert_eq!(quoted(&"x".repeat(80)).len(), 82);
        assert_eq!(short(&"x".repeat(5000)).chars().count(), 81);
    }
}
