//! Parses the message sizes of the option `--sizes`, such as `4,17KiB,1..64MiB`.

/// Largest message in bytes: 1 GiB. MPI counts elements in C ints, which can hold this number. Several
/// messages of this size fit into memory.
const LARGEST: usize = 1 << 30;

/// Parses a list such as `4,17KiB,1..64MiB`: sizes in bytes, KiB or MiB. A range stands for its first size,
/// twice this size, and so on, up to its last size. Each size must be a multiple of `width`, the bytes of a
/// value.
///
/// # Errors
/// Returns the invalid part and what is wrong with it.
pub fn parse(text: &str, width: usize) -> Result<Vec<usize>, String> {
    let mut sizes = Vec::new();
    for part in text.split(',').map(str::trim) {
        match part.split_once("..") {
            None => sizes.push(size(part)?),
            Some((first, last)) => sizes.extend(powers_of_two(size(first)?, size(last)?)?),
        }
    }
    match sizes.iter().find(|bytes| !bytes.is_multiple_of(width)) {
        Some(bytes) => Err(format!("{bytes} bytes are not a whole number of {width}-byte values")),
        None => Ok(sizes),
    }
}

fn powers_of_two(first: usize, last: usize) -> Result<Vec<usize>, String> {
    if first > last {
        return Err("a range is descending: write the smaller size first".into());
    }
    if !first.is_power_of_two() {
        return Err(format!(
            "a range must start at a power of two, but {first} is not one: list the sizes with commas"
        ));
    }
    Ok(std::iter::successors(Some(first), |bytes| Some(bytes * 2))
        .take_while(|&bytes| bytes <= last)
        .collect())
}

/// Parses one size and returns it in bytes.
fn size(text: &str) -> Result<usize, String> {
    const EXAMPLES: &str = "write bytes, KiB or MiB, such as 4 or 64KiB";
    let units = [("KiB", 1 << 10), ("MiB", 1 << 20), ("B", 1)];
    let text = text.trim();
    let with_unit = units.into_iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)));
    let (digits, unit) = with_unit.unwrap_or((text, 1));
    let digits = digits.trim();
    match digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit)) {
        _ if digits.is_empty() => Err(format!("a size is missing: {EXAMPLES}")),
        _ if !digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err(format!("invalid size {text:.60}: {EXAMPLES}"))
        }
        Some(0) => Err("must be at least 1 byte".into()),
        Some(bytes) if bytes <= LARGEST => Ok(bytes),
        _ => Err(format!("{text:.60} is too large: at most {}MiB", LARGEST >> 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_ranges_are_parsed() {
        assert_eq!(parse("4,17408,13631488", 4), Ok(vec![4, 17408, 13631488]));
        assert_eq!(parse("17KiB, 13 MiB ,8B", 4), Ok(vec![17408, 13631488, 8]));
        assert_eq!(parse("4..32", 4), Ok(vec![4, 8, 16, 32]));
        assert_eq!(parse("512..3KiB,6", 2), Ok(vec![512, 1024, 2048, 6]));
        assert_eq!(parse("4..64MiB", 4).unwrap().len(), 25);
    }

    #[test]
    fn invalid_sizes_are_rejected_with_the_reason() {
        for (text, word) in [
            ("0", "at least 1 byte"),
            ("", "missing"),
            ("4,,8", "missing"),
            ("4KB", "KiB or MiB"),
            ("x", "KiB or MiB"),
            ("-4", "KiB or MiB"),
            ("6", "not a whole number of 4-byte values"),
            ("64..4", "descending"),
            ("12..64", "power of two"),
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
