//! Bounds of the numbers in `run.json`, in `epochs.csv`, in curves and in benchmark tables.
//!
//! Readers check the bounds, because somebody may have edited a file. Every number that this program writes
//! is within its bounds. Times and most counts share one generous limit, 1e12. Losses, learning rates, loss
//! scales, and means and standard deviations of features depend on data and options: they may reach the limit
//! of their type, f32 or f64.

/// Fields and columns that must be above 0: other numbers are divided by them, or they count something that
/// exists at least once. Times whose names end in `_ms` or `_us` must be above 0 too.
const ABOVE_0: [&str; 12] = [
    "batch",
    "bytes",
    "channels",
    "epoch",
    "epochs",
    "images_per_second",
    "layers",
    "ms_per_step",
    "steps",
    "total_seconds",
    "train_seconds",
    "world_size",
];

/// A little above `f32::MAX`, because JSON contains `f32::MAX` rounded up, as 3.4028235e38.
const LARGEST_F32: f64 = 3.5e38;
/// Field with a number for each host, by the host's name. All hosts have the bounds of this field, even a
/// host with the name of another field.
const BY_HOST: &str = "others_cpu_percent_by_host";

/// Says what is wrong with the number `text`; `None` if it is within the bounds of its field. `path` names
/// the field in `run.json`, such as `per_rank[1].test_loss`, or the column of a table. If `text` is not a
/// number, the result is also `None`: the parser of the file reports this error.
pub fn out_of_bounds(path: &str, text: &str) -> Option<String> {
    let number: f64 = text.parse().ok()?;
    let name = if path.starts_with(BY_HOST) {
        BY_HOST
    } else {
        path.rsplit('.').next().unwrap_or(path).split('[').next().unwrap_or(path)
    };
    // A resumed run records the old and the new value of each changed option. The option's own parser has
    // checked both values.
    if path.starts_with("history[") && path.contains("].changed[") {
        return None;
    }
    let ends = |ending: &str| name.ends_with(ending);
    if number == 0.0 && (ABOVE_0.contains(&name) || ends("_ms") || ends("_us")) {
        return Some(format!("{text} must be above 0"));
    }
    let (low, high, words) = match name {
        _ if path == "config.lr" => (0.0, f64::MAX, "0 to 1.8e308"),
        // Of the options, only `lr` has a range. Another option has none, because a later version of the
        // program may allow any value for it.
        _ if path.starts_with("config.") || path.starts_with("schema.") => return None,
        "mean" => (-LARGEST_F32, LARGEST_F32, "-3.5e38 to 3.5e38"),
        "std" | "loss_scale" => (0.0, LARGEST_F32, "0 to 3.5e38"),
        "exit_code" => (f64::from(i32::MIN), f64::from(i32::MAX), "-2147483648 to 2147483647"),
        // Weights close to the limits of f32 can make the int8 loss non-finite. The loss of the float model
        // is always finite here: a non-finite one would have ended the run.
        "int8_test_loss" if !number.is_finite() => return None,
        "precision" | "recall" => (0.0, 100.0, "0 to 100"),
        _ if ends("accuracy") => (0.0, 100.0, "0 to 100"),
        _ if ends("loss") || name == "learning_rate" => (0.0, f64::MAX, "0 to 1.8e308"),
        _ if ends("bytes") => (0.0, 1e18, "0 to 1e18"),
        _ => (0.0, 1e12, "0 to 1e12"),
    };
    (!(low..=high).contains(&number)).then(|| format!("{text} is outside {words}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_field_has_the_bounds_of_what_is_written_there() {
        for (path, inside, outside) in [
            ("data.mean[0]", &["-21.0", "1.7e12", "-3.4028235e38"][..], &["1e39", "NaN"][..]),
            ("data.std[3]", &["0.5", "3.4028235e38"], &["-0.5"]),
            ("loss_scale", &["1e13"], &["-1"]),
            ("learning_rate", &["1e300", "0"], &["-1e-3", "inf"]),
            ("per_rank[0].test_loss", &["1e38"], &["-0.1", "inf"]),
            ("history[2].changed[0].to", &["-1", "1e30"], &[]),
            ("config.lr", &["1e30", "0"], &["-1"]),
            ("config.momentum", &["-1"], &[]),
            ("schema.lr.default", &["-1", "1e30"], &[]),
            ("config.epochs", &["1"], &["0"]),
            ("others_cpu_percent_by_host.batch", &["0.0"], &["-1"]),
            ("others_cpu_percent_by_host.node.loss", &["0.0"], &["1e13"]),
            ("failed_attempts[0].exit_code", &["-1", "137"], &[]),
            ("by_class.classes[1].recall", &["100.0"], &["100.5"]),
            ("int8_test_loss", &["NaN", "inf"], &["-1"]),
            ("forward_ms", &["1e-3"], &["0.0", "-5"]),
            ("steps", &["1"], &["0", "1e13"]),
        ] {
            let found = |text: &&&str| out_of_bounds(path, text).is_some();
            assert_eq!(inside.iter().filter(found).count(), 0, "{path}: {inside:?}");
            assert_eq!(outside.iter().filter(found).count(), outside.len(), "{path}: {outside:?}");
        }
        assert_eq!(out_of_bounds("steps", "many"), None, "its parser reports it");
    }
}
