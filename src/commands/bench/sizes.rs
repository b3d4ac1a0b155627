//! Message sizes as they are typed.

/// The largest message. MPI counts elements in C ints; this is far from it and
/// fits into memory a few times.
const LARGEST: usize = 1 << 30;

/// Reads `4,17KiB,1..64MiB`: sizes in bytes, KiB or MiB; a range is its first
/// size doubled up to its last. Each is a multiple of `width`, the bytes of a
/// value.
///
/// # Errors
/// What is wrong with which part.
pub fn parse(text: &str, width: usize) -> Result<Vec<usize>, String> {
    let mut sizes = Vec::new();
    for part in text.split(',').map(str::trim) {
        match part.split_once("..") {
            None => sizes.push(size(part)?),
            Some((first, last)) => sizes.extend(powers_of_two(part, size(first)?, size(last)?)?),
        }
    }
    match sizes.iter().find(|bytes| !bytes.is_multiple_of(width)) {
        Some(bytes) => Err(format!("{bytes} bytes are no whole number of values of {width} bytes")),
        None => Ok(sizes),
    }
}

fn powers_of_two(part: &str, first: usize, last: usize) -> Result<Vec<usize>, String> {
    if first > last {
        return Err(format!("{part} goes down; write the smaller size first"));
    }
    if !first.is_power_of_two() {
        return Err(format!(
            "{part}: a range is of powers of two, and {first} is none; list sizes by commas"
        ));
    }
    Ok(std::iter::successors(Some(first), |bytes| Some(bytes * 2))
        .take_while(|&bytes| bytes <= last)
        .collect())
}

/// One size in bytes.
fn size(text: &str) -> Result<usize, String> {
    let text = text.trim();
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        _ => return Err(format!("{text} is no size: write bytes, as 4, or KiB or MiB, as 64KiB")),
    };
    let number: usize = digits.parse().map_err(|_| match digits.is_empty() {
        true => "a size is missing: write bytes, as 4, or KiB or MiB, as 64KiB".to_owned(),
        false => too_large(text),
    })?;
    match number.checked_mul(unit) {
        Some(0) => Err("a message of 0 bytes has nothing to sum".into()),
        Some(bytes) if bytes <= LARGEST => Ok(bytes),
        _ => Err(too_large(text)),
    }
}

fn too_large(text: &str) -> String {
    format!("{text} is too large: at most {}MiB", LARGEST >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_ranges() {
        assert_eq!(parse("4,17408,13631488", 4), Ok(vec![4, 17408, 13631488]));
        assert_eq!(parse("17KiB, 13 MiB ,8B", 4), Ok(vec![17408, 13631488, 8]));
        assert_eq!(parse("4..32", 4), Ok(vec![4, 8, 16, 32]));
        assert_eq!(parse("512..3KiB,6", 2), Ok(vec![512, 1024, 2048, 6]));
        assert_eq!(parse("4..64MiB", 4).unwrap().len(), 25);
    }

    #[test]
    fn senseless_sizes_are_refused_in_words() {
        for (text, word) in [
            ("0", "nothing to sum"),
            ("", "missing"),
            ("4,,8", "missing"),
            ("4KB", "KiB or MiB"),
            ("x", "KiB or MiB"),
            ("-4", "KiB or MiB"),
            ("6", "no whole number of values of 4 bytes"),
            ("64..4", "goes down"),
            ("12..64", "powers of two"),
            ("..64", "missing"),
            ("4..", "missing"),
            ("2048MiB", "too large"),
            ("99999999999999999999999", "too large"),
        ] {
            let error = parse(text, 4).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
