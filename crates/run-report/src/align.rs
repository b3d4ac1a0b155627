//! Numbers of a column aligned on their decimal points.

/// Splits a text before what follows its number's integral part: the decimals, a range, a mark.
/// A text that does not begin with a number is not split.
pub fn split(text: &str) -> (&str, &str) {
    let sign = text.len() - text.trim_start_matches('-').len();
    let digits = text[sign..].bytes().take_while(u8::is_ascii_digit).count();
    match digits {
        0 => (text, ""),
        _ => text.split_at(sign + digits),
    }
}

/// The texts of a column, each padded on its right so that right alignment puts the decimal
/// points below each other.
pub fn aligned(texts: &[String]) -> Vec<String> {
    let behind = |text: &str| split(text).1.chars().count();
    let longest = texts.iter().map(|text| behind(text)).max().unwrap_or(0);
    // Words such as `far lower`, and `–`, stand where a number's integral part does.
    let pad = |text: &String| format!("{text}{}", " ".repeat(longest - behind(text)));
    texts.iter().map(pad).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_points_are_below_each_other() {
        let texts = ["1.50 ±0.05", "12.25", "105", "66.1/65.7", "–", "-3.5 ᵃ"].map(ToOwned::to_owned);
        let found = aligned(&texts);
        let column = |text: &str, width: usize| format!("{text:>width$}").find('.');
        let width = found.iter().map(|text| text.chars().count()).max().unwrap();
        let points: Vec<usize> =
            found.iter().filter(|text| text.contains('.')).filter_map(|text| column(text, width)).collect();
        assert!(points.windows(2).all(|pair| pair[0] == pair[1]), "{found:?}: {points:?}");
        assert_eq!(aligned(&["1".into(), "20".into()]), ["1", "20"]);
        assert_eq!(split("far lower"), ("far lower", ""));
    }
}
