//! Words that stand for a missing value, in features and in labels.

/// Texts of cells without a value. They are recognised as spelled here, in lower case, and in upper case.
/// Other spellings are values, such as "Na" (sodium) and "Nan" (a name).
///
/// - pandas reads most of these words as missing: `na_values` of
///   <https://pandas.pydata.org/docs/reference/api/pandas.read_csv.html>. pandas writes `NaT` for a missing
///   date.
/// - UCI's tables and Weka write `?`. Dumps of MySQL and Hive write `\N`.
/// - Excel writes its errors into cells: its function ERROR.TYPE lists them.
/// - SAS, Stata and SPSS print a period for a missing number. The World Bank's tables have two periods.
///   Statistical offices write `n.a.`.
///
/// Not in the list: `-`, which is a class in UCI's tables (credit approval, promoters), and `missing` and
/// `unknown`, which are answers in surveys.
const MISSING: [&str; 27] = [
    "", "NA", "N/A", "NaN", "-NaN", "NaT", "None", "Null", "<NA>", "#NA", "#N/A", "#N/A N/A", "1.#IND",
    "-1.#IND", "1.#QNAN", "-1.#QNAN", "?", "\\N", "#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!",
    ".", "..", "n.a.",
];

/// Returns whether the text of a cell, without blanks around it, stands for a missing value.
pub(crate) fn is_missing(text: &str) -> bool {
    let is_small = text.chars().all(|letter| !letter.is_ascii_uppercase());
    let is_large = text.chars().all(|letter| !letter.is_ascii_lowercase());
    MISSING.iter().any(|word| *word == text || (is_small || is_large) && word.eq_ignore_ascii_case(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_tools_are_missing_and_words_of_people_are_not() {
        for text in [
            "", "?", "NA", "na", "NaN", "nan", "NAN", "null", "NULL", "None", "n/a", "<NA>", "#n/a", "\\N",
            ".", "N.A.",
        ] {
            assert!(is_missing(text), "{text:?}");
        }
        for text in ["Na", "Nan", "no", "0", "-", "--", "missing", "unknown", "nOnE", "nil"] {
            assert!(!is_missing(text), "{text:?}");
        }
    }
}
