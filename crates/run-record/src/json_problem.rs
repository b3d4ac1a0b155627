//! Errors of JSON files for readers who do not know Rust.
//!
//! serde_json says `invalid type: string "3", expected usize at line 4 column 12`. This module says the same
//! without Rust's type names.

use serde_json::error::Category;

/// Says what is wrong with a JSON text, and in which line.
pub fn json_problem(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let text = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    match error.classify() {
        Category::Eof => "the JSON text ends too early".to_owned(),
        Category::Syntax if text == "number out of range" => format!("line {line}: the number is too large"),
        Category::Syntax => format!("invalid JSON at line {line}, column {column}"),
        Category::Data | Category::Io => match in_words(text) {
            Some(words) if line > 0 => format!("line {line}: {words}"),
            Some(words) => words,
            // The deserialized type made this error itself. Its text is for users already: the error of an
            // option, for example, names the option.
            None => text.to_owned(),
        },
    }
}

/// Translates an error of serde; `None` if the deserialized type made the error itself.
fn in_words(text: &str) -> Option<String> {
    let named = |start: &str| text.strip_prefix(start)?.split_once('`').map(|(name, _)| name);
    if let Some(field) = named("missing field `") {
        return Some(format!("`{field}` is missing"));
    }
    if let Some(field) = named("unknown field `") {
        return Some(format!("`{field}` is unknown"));
    }
    if let Some(field) = named("duplicate field `") {
        return Some(format!("`{field}` is given twice"));
    }
    if let Some(variant) = named("unknown variant `") {
        let known = text.split_once("expected ").map_or("", |(_, known)| known);
        let known = known.trim_start_matches("one of ").replace('`', "");
        return Some(format!("{:?} is unknown; known: {known}", short(variant)));
    }
    let wrong = ["invalid type: ", "invalid value: ", "invalid length "];
    let parts = wrong.iter().find_map(|start| text.strip_prefix(start)?.rsplit_once(", expected "));
    let (given, expected) = parts?;
    Some(if text.starts_with("invalid length ") && expected.starts_with("struct ") {
        // serde_json reads a list as the fields of a struct, in their order.
        "expected an object, found a list".to_owned()
    } else if text.starts_with("invalid length ") {
        format!("expected {}, found {given} values", kind(expected))
    } else {
        format!("expected {}, found {}", kind(expected), value(given))
    })
}

/// Translates a value from serde's form: the name of its type, followed by the value.
fn value(given: &str) -> String {
    let given = match given {
        "map" => "an object",
        "sequence" => "a list",
        _ => {
            let types = ["string ", "integer ", "floating point ", "boolean ", "character "];
            types.iter().find_map(|name| given.strip_prefix(name)).unwrap_or(given)
        }
    };
    short(given.trim_matches('`'))
}

/// Translates the name of a Rust type to JSON terms.
fn kind(expected: &str) -> String {
    let lists = ["an array of length ", "a tuple of size "];
    if let Some(length) = lists.iter().find_map(|start| expected.strip_prefix(start)) {
        return format!("a list of {length} values");
    }
    let is_number = |signs: &[char]| {
        expected
            .strip_prefix(signs)
            .is_some_and(|size| ["8", "16", "32", "64", "128", "size"].contains(&size))
    };
    match expected {
        _ if is_number(&['u']) => "a whole number from 0",
        _ if is_number(&['i']) => "a whole number",
        _ if is_number(&['f']) => "a number",
        "a JSON number" => "a number",
        "a boolean" => "true or false",
        "a string" | "string or map" | "a borrowed string" | "path string" => "text",
        "a sequence" | "a nonempty sequence" => "a list",
        "a map" => "an object",
        _ if expected.starts_with("struct ") => "an object",
        _ => "another value",
    }
    .to_owned()
}

/// Returns the first 60 characters of `text`, followed by `…` if there are more.
pub(crate) fn short(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() > MOST {
        text.chars().take(MOST).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "lowercase")]
    #[allow(dead_code, reason = "only its errors are of interest")]
    enum Kind {
        Some,
        Other,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[allow(dead_code, reason = "only its errors are of interest")]
    struct Record {
        steps: usize,
        #[serde(default)]
        lr: f64,
        #[serde(default)]
        step: i32,
        seed: Option<serde_json::Number>,
        name: Option<String>,
        on: Option<bool>,
        shape: Option<[usize; 3]>,
        list: Option<Vec<u8>>,
        map: Option<BTreeMap<String, u8>>,
        kind: Option<Kind>,
    }

    #[test]
    fn no_type_of_rust_is_named() {
        for (text, expected) in [
            ("{\n\"steps\": \"3\"}", "line 2: expected a whole number from 0, found \"3\""),
            ("{\"steps\": -1}", "line 1: expected a whole number from 0, found -1"),
            ("{\"steps\": 1.5}", "line 1: expected a whole number from 0, found 1.5"),
            ("{\"steps\": 1, \"lr\": null}", "line 1: expected a number, found null"),
            ("{\"steps\": 1, \"step\": true}", "line 1: expected a whole number, found true"),
            ("{\"steps\": 1, \"seed\": {}}", "line 1: expected a number, found an object"),
            ("{\"steps\": 1, \"name\": []}", "line 1: expected text, found a list"),
            ("{\"steps\": 1, \"on\": \"on\"}", "line 1: expected true or false, found \"on\""),
            ("{\"steps\": 1, \"shape\": [1]}", "line 1: expected a list of 3 values, found 1 values"),
            ("{\"steps\": 1, \"list\": {}}", "line 1: expected a list, found an object"),
            ("{\"steps\": 1, \"map\": 7}", "line 1: expected an object, found 7"),
            ("{\"steps\": 1, \"kind\": \"x\"}", "line 1: \"x\" is unknown; known: some or other"),
            ("{\"steps\": 1, \"x\": 1}", "line 1: `x` is unknown"),
            ("{\"steps\": 1, \"steps\": 1}", "line 1: `steps` is given twice"),
            ("{}", "line 1: `steps` is missing"),
            ("[]", "line 1: expected an object, found a list"),
            ("7", "line 1: expected an object, found 7"),
            ("", "the JSON text ends too early"),
            ("{\"steps\":", "the JSON text ends too early"),
            ("{\"steps\": 1e999}", "line 1: the number is too large"),
            ("title = 1", "invalid JSON at line 1, column 2"),
            ("{\"steps\": 1} x", "invalid JSON at line 1, column 14"),
        ] {
            let error = serde_json::from_str::<Record>(text).expect_err(text);
            assert_eq!(json_problem(&error), expected, "{error}");
        }
        let own: serde_json::Error = serde::de::Error::custom("--lr x: must be a number");
        assert_eq!(json_problem(&own), "--lr x: must be a number");
        let error = serde_json::from_value::<Record>(serde_json::json!({"steps": "x".repeat(900)}));
        let message = json_problem(&error.unwrap_err());
        assert!(message.contains("found \"xxx") && message.chars().count() < 110, "{message}");
    }
}
