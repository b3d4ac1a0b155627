//! Formats times with enough digits. With only two decimal places, short times look equal: 0.001 and 0.004
//! seconds would both be printed as 0.00.

/// Returns the number of decimal places for a time. A time between 0 and 1 gets as many places as three
/// significant digits need, but not fewer than `least`. Any other time gets `least` places.
pub fn decimals(time: f64, least: usize) -> usize {
    if time > 0.0 && time < 1.0 {
        (2 - time.log10().floor().max(-9.0) as i32).max(least as i32) as usize
    } else {
        least
    }
}

/// Formats a time in seconds. A time below one second gets three significant digits, and other times get two
/// decimal places.
pub fn seconds(time: f64) -> String {
    format!("{time:.*}", decimals(time, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_significant_digits() {
        let shown = [123.456, 4.0, 0.5, 0.0123456, 0.00999, 0.0].map(seconds);
        assert_eq!(shown, ["123.46", "4.00", "0.500", "0.0123", "0.00999", "0.00"]);
        assert_eq!((decimals(0.25, 3), decimals(0.025, 3), decimals(25.0, 3)), (3, 4, 3), "milliseconds");
    }
}
