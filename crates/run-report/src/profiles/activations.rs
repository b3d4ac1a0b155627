//! Activation functions of one network beside each other.

use super::file::Profile;
use super::{Found, groups, kb, left_out, numbered};
use crate::figures::{Figures, cell};
use crate::noise::few_differ;
use crate::sheet::{Cell, Column, Sheet};
use run_record::count;

/// The activation's operators in one profile.
struct Activation<'a> {
    profile: &'a Profile,
    calls: u64,
    ms: f64,
    allocated: Option<u64>,
}

impl<'a> Activation<'a> {
    /// `None` where the activation is part of a fused operator.
    fn of(profile: &'a Profile) -> Option<Self> {
        let rows = profile.operators.iter();
        let own = rows.filter(|row| row.kind == profile.activation() && row.phase == "forward");
        let mut sum = Self { profile, calls: 0, ms: 0.0, allocated: Some(0) };
        for row in own {
            sum.calls += row.calls;
            sum.ms += row.self_cpu_ms;
            sum.allocated = sum.allocated.zip(row.allocated_bytes).map(|(sum, bytes)| sum + bytes);
        }
        (sum.calls > 0).then_some(sum)
    }
}

/// A table for each two or more profiles that differ in the activation alone.
pub fn sheets(profiles: &[Profile], figures: Option<&Figures>) -> Vec<Found> {
    let groups = groups(profiles.iter().filter(|profile| !profile.train), &["activation"]);
    fn of_group(group: Vec<&Profile>) -> (Vec<Activation<'_>>, Vec<&Profile>) {
        let mut found: Vec<Activation<'_>> = Vec::new();
        let mut again: Vec<&Profile> = Vec::new();
        for one in group.into_iter().filter_map(Activation::of) {
            match found.iter().all(|other| other.profile.activation() != one.profile.activation()) {
                true => found.push(one),
                false => again.push(one.profile),
            }
        }
        found.sort_by(|a, b| a.ms.total_cmp(&b.ms));
        (found, again)
    }
    let several = groups.into_iter().map(of_group).filter(|(found, _)| found.len() > 1);
    let sheet = |(i, (found, again)): (usize, (Vec<Activation<'_>>, Vec<&Profile>))| {
        let (mut sheet, line) = sheet(i, &found, figures);
        sheet.remarks.extend(left_out(&again));
        (sheet, line)
    };
    several.enumerate().map(sheet).collect()
}

fn sheet(index: usize, found: &[Activation<'_>], figures: Option<&Figures>) -> Found {
    let first = found[0].profile;
    let model = first.model.as_str();
    let relu = found.iter().find(|one| one.profile.activation() == "relu").filter(|one| one.ms > 0.0);
    let wanted = [("model", model)];
    let figures = figures.filter(|figures| figures.find(&wanted).is_some());
    let mut columns = vec![
        Column::words("activation", "activation"),
        Column::number("self CPU ms", "self_cpu_ms").means("The activation alone, over all batches"),
        Column::number("times relu", "times_relu").means("self CPU ms over that of relu"),
        Column::number("allocated KB", "allocated_kb")
            .means("Bytes allocated in all calls, freed or not; 1 KB is 1024 bytes")
            .ranked(1),
        Column::number("calls", "calls").ranked(3),
        Column::number("batch ms", "batch_ms").means("A whole batch without profiling, median").ranked(2),
    ];
    if figures.is_some() {
        columns.push(Column::number("ms published", "time_ms_published"));
        columns.push(Column::number("times relu published", "times_relu_published"));
        columns.push(Column::number("KB published", "memory_kb_published").ranked(4));
    }
    const TIME: &str = "operator_ms_of_100_batches";
    let published = |name: &str| {
        let line = figures?.find(&[wanted[0], ("activation", name)])?;
        line.get(TIME)?.parse::<f64>().ok().filter(|ms| *ms > 0.0)
    };
    let rows = found.iter().map(|one| {
        let own = |number: f64, digits| Cell::number(number, digits, vec![one.profile.path.clone()]);
        let name = one.profile.activation();
        let mut row = vec![
            Cell::text(name),
            own(one.ms, 3),
            relu.map_or_else(Cell::nothing, |relu| own(one.ms / relu.ms, 1)),
            one.allocated.map_or_else(Cell::nothing, |bytes| own(kb(bytes), 1)),
            own(one.calls as f64, 0),
            own(one.profile.batch_ms_without_profiling, 4),
        ];
        if let Some(figures) = figures {
            let line = figures.find(&[wanted[0], ("activation", name)]);
            let ratio = published(name).zip(published("relu"));
            row.push(cell(line, TIME));
            row.push(ratio.map_or_else(Cell::nothing, |(ms, of_relu)| Cell::number(ms / of_relu, 1, vec![])));
            row.push(cell(line, "operator_memory_kb"));
        }
        row
    });
    let rows = rows.collect();
    let mut remarks = Vec::new();
    // A read of the clock takes some tens of nanoseconds.
    if found.iter().any(|one| one.ms < 1e-3 * one.calls as f64) {
        remarks.push(
            "Times below 1 µs a call are near the cost of reading the clock, which is part of them.".into(),
        );
    }
    match figures {
        Some(figures) => remarks.push(figures.remark(&wanted, &first.machine())),
        None => remarks.push(format!("{}.", first.machine())),
    }
    let sheet = Sheet {
        name: numbered("activations", index),
        title: format!("{model} by activation, {}", first.amount()),
        columns,
        rows,
        remarks,
    };
    let slowest = &found[found.len() - 1];
    let ratio = relu.filter(|_| slowest.profile.activation() != "relu");
    let alone = few_differ(slowest.ms, found[found.len() - 2].ms);
    let alike = if alone { "" } else { ", with others within noise," };
    let line = format!(
        "{model}: slowest activation{alike} is {} with {:.3} ms in {}{}",
        slowest.profile.activation(),
        slowest.ms,
        count(slowest.calls as usize, "call"),
        ratio.map_or_else(String::new, |relu| format!(", {:.1} times relu's", slowest.ms / relu.ms))
    );
    (sheet, line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::testing::{operator, profile};

    fn of(activation: &str, ms: f64) -> Profile {
        profile(
            "mlp",
            activation,
            false,
            &[operator("linear", 200, 3.0, 0), operator(activation, 100, ms, 4096)],
        )
    }

    #[test]
    fn activations_are_compared_with_relu_and_the_published_ones() {
        let published = Figures::of_text(
            "model,activation,operator_ms_of_100_batches,operator_memory_kb,hardware\n\
             mlp,relu,1.357,400,a CPU\nmlp,gelu,35.540,400,a CPU\n",
        );
        let (sheet, line) = sheets(&[of("gelu", 1.0), of("relu", 0.025)], Some(&published)).remove(0);
        let rows: Vec<String> =
            sheet.rows.iter().map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(rows[0], "relu 0.025 1.0 4.0 100 0.0900 1.357 1.0 400");
        assert_eq!(rows[1], "gelu 1.000 40.0 4.0 100 0.0900 35.540 26.2 400");
        assert!(line.ends_with("gelu with 1.000 ms in 100 calls, 40.0 times relu's"), "{line}");
        assert!(sheet.remarks[0].contains("reading the clock"), "{:?}", sheet.remarks);
        let (_, line) = sheets(&[of("gelu", 1.0), of("tanh", 1.02)], None).remove(0);
        assert!(
            line.contains("slowest activation, with others within noise, is tanh with 1.020 ms"),
            "{line}"
        );
    }

    #[test]
    fn nothing_is_compared_with_what_was_not_run() {
        assert!(sheets(&[of("relu", 1.0)], None).is_empty());
        let again = Profile { path: "again.json".into(), ..of("relu", 9.0) };
        let (sheet, _) = sheets(&[of("relu", 1.0), again, of("gelu", 1.0)], None).remove(0);
        assert_eq!(sheet.rows.len(), 2);
        assert!(sheet.remarks.iter().any(|remark| remark.contains("again.json")), "{:?}", sheet.remarks);
        let other_batch = Profile { batch: 64, ..of("gelu", 1.0) };
        assert!(sheets(&[of("relu", 1.0), other_batch], None).is_empty());
        let (sheet, line) = sheets(&[of("tanh", 1.0), of("gelu", 2.0)], None).remove(0);
        assert!(sheet.rows.iter().all(|row| row[2].shown() == "–") && !line.contains("times relu"), "{line}");
    }
}
