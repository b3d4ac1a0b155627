//! Compares the activation functions of one network by their time and memory in profiles of inference.

use super::{Found, Phase, Profile, ProfileRow, by_kind, groups, kb, left_out, machines};
use crate::published::{Figures, cell};
use crate::rows::few_differ;
use crate::sheet::{Cell, Column, Sheet};
use run_record::count;

/// Cost of the activation's operators in one profile: number of calls, time in milliseconds, and allocated
/// bytes.
struct ActivationCost<'a> {
    profile: &'a Profile,
    calls: usize,
    ms: f64,
    allocated: u64,
}

impl<'a> ActivationCost<'a> {
    /// Sums the activation's operators of the forward pass. `None` if the activation is part of a fused
    /// operator.
    fn from_profile(profile: &'a Profile) -> Option<Self> {
        let is_own = |row: &ProfileRow| row.kind == profile.activation() && row.phase == Phase::Forward;
        let sum = by_kind(&profile.operators, |row| row.self_cpu_ms).into_iter().find(is_own)?;
        Some(Self { profile, calls: sum.calls, ms: sum.self_cpu_ms, allocated: sum.allocated_bytes })
    }
}

/// Makes a table for each group of two or more profiles that differ in the activation only.
pub fn sheets(profiles: &[Profile], figures: Option<&Figures>) -> Vec<Found> {
    let of_inference = profiles.iter().filter(|profile| !profile.train);
    let of_group = |group: Vec<&Profile>| {
        let (mut found, mut again): (Vec<ActivationCost<'_>>, Vec<&Profile>) = Default::default();
        for one in group.into_iter().filter_map(ActivationCost::from_profile) {
            if found.iter().all(|other| other.profile.activation() != one.profile.activation()) {
                found.push(one)
            } else {
                again.push(one.profile)
            }
        }
        found.sort_by(|a, b| a.ms.total_cmp(&b.ms));
        (found.len() > 1).then(|| sheet(&found, &again, figures))
    };
    groups(of_inference, &["activation"]).into_iter().filter_map(of_group).collect()
}

/// Makes the table of `found`. `again` are profiles that are left out, because another profile has the same
/// settings.
fn sheet(found: &[ActivationCost<'_>], again: &[&Profile], figures: Option<&Figures>) -> Found {
    let first = found[0].profile;
    let model = first.model.as_str();
    let relu = relu(found);
    let wanted = [("model", model)];
    let figures = figures.filter(|figures| figures.find(&wanted).is_some());
    const TIME: &str = "operator_ms_of_100_batches";
    let line = |name: &str| figures?.find(&[wanted[0], ("activation", name)]);
    let published = |name: &str| line(name)?.get(TIME)?.parse::<f64>().ok().filter(|ms| *ms > 0.0);
    let own = |one: &ActivationCost<'_>, number, digits| Cell::measured(number, digits, &one.profile.path);
    let mut columns = vec![
        Column::words("activation", "activation")
            .shows(|one: &ActivationCost<'_>| Cell::text(one.profile.activation())),
        Column::number("self CPU ms", "self_cpu_ms")
            .means("Time of the activation alone, over all batches")
            .shows(|one: &ActivationCost<'_>| own(one, one.ms, 3)),
        Column::number("times relu", "times_relu")
            .means("self CPU ms divided by relu's")
            .shows(|one: &ActivationCost<'_>| Cell::maybe(relu.map(|relu| own(one, one.ms / relu.ms, 1)))),
        Column::number("allocated KB", "allocated_kb")
            .means("Bytes allocated in all calls, freed or not; 1 KB is 1024 bytes")
            .hide_order(1)
            .shows(|one: &ActivationCost<'_>| own(one, kb(one.allocated), 1)),
        Column::number("calls", "calls")
            .hide_order(3)
            .shows(|one: &ActivationCost<'_>| own(one, one.calls as f64, 0)),
        Column::number("batch ms", "batch_ms")
            .means("Median time of a whole batch without profiling")
            .hide_order(2)
            .shows(|one: &ActivationCost<'_>| own(one, one.profile.batch_ms_without_profiling, 4)),
    ];
    if figures.is_some() {
        columns.push(
            Column::number("ms published", "time_ms_published")
                .shows(|one: &ActivationCost<'_>| cell(line(one.profile.activation()), TIME)),
        );
        columns.push(Column::number("times relu published", "times_relu_published").shows(
            |one: &ActivationCost<'_>| {
                let ratio = published(one.profile.activation()).zip(published("relu"));
                Cell::maybe(ratio.map(|(ms, of_relu)| Cell::number(ms / of_relu, 1, vec![])))
            },
        ));
        columns.push(
            Column::number("KB published", "memory_kb_published")
                .hide_order(4)
                .shows(|one: &ActivationCost<'_>| cell(line(one.profile.activation()), "operator_memory_kb")),
        );
    }
    let mut remarks = Vec::new();
    // Reading the clock takes tens of nanoseconds.
    if found.iter().any(|one| one.ms < 1e-3 * one.calls as f64) {
        remarks.push(
            "Times include reading the clock, tens of nanoseconds per call: do not compare times below 1 µs per call closely."
                .into(),
        );
    }
    remarks.push(machines(first, figures, &wanted));
    remarks.extend(left_out(again));
    let title = format!("{model} by activation, {}", first.amount());
    let sheet = Sheet::from_rows("activations", title, columns, found).with_remarks(remarks);
    (sheet, finding(model, found))
}

/// Returns ReLU's cost, if its time is above 0.
fn relu<'f, 'a>(found: &'f [ActivationCost<'a>]) -> Option<&'f ActivationCost<'a>> {
    found.iter().find(|one| one.profile.activation() == "relu").filter(|one| one.ms > 0.0)
}

/// Says which activation takes the most time. `found` is sorted by time.
fn finding(model: &str, found: &[ActivationCost<'_>]) -> String {
    let slowest = &found[found.len() - 1];
    let ratio = relu(found).filter(|_| slowest.profile.activation() != "relu");
    let alone = few_differ(slowest.ms, found[found.len() - 2].ms);
    let alike = if alone { "" } else { "; the next activation does not differ beyond noise" };
    format!(
        "{model}: slowest activation is {} with {:.3} ms in {}{}{alike}",
        slowest.profile.activation(),
        slowest.ms,
        count(slowest.calls, "call"),
        ratio.map_or_else(String::new, |relu| format!(", {:.1} times relu's", slowest.ms / relu.ms))
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::testing::{operator, profile};
    use crate::testing::tells;

    fn inference(activation: &str, ms: f64) -> Profile {
        profile(
            "mlp",
            activation,
            false,
            &[operator("linear", 200, 3.0, 0), operator(activation, 100, ms, 4096)],
        )
    }

    #[test]
    fn activations_are_compared_with_relu_and_the_published_ones() {
        let published = Figures::from_csv(
            b"model,activation,operator_ms_of_100_batches,operator_memory_kb,hardware\n\
             mlp,relu,1.357,400,a CPU\nmlp,gelu,35.540,400,a CPU\n",
            &[],
        )
        .unwrap();
        let (sheet, line) =
            sheets(&[inference("gelu", 1.0), inference("relu", 0.025)], Some(&published)).remove(0);
        let rows: Vec<String> =
            sheet.rows.iter().map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(rows[0], "relu 0.025 1.0 4.0 100 0.0900 1.357 1.0 400");
        assert_eq!(rows[1], "gelu 1.000 40.0 4.0 100 0.0900 35.540 26.2 400");
        assert!(tells(&line, &["gelu", "1.000 ms", "100 calls", "40.0 times"]), "{line}");
        assert!(sheet.remarks[0].contains("1 µs"), "{:?}", sheet.remarks);
        let (_, line) = sheets(&[inference("gelu", 1.0), inference("tanh", 1.02)], None).remove(0);
        assert!(
            tells(&line, &["slowest activation", "tanh", "1.020 ms", "next activation", "noise"]),
            "{line}"
        );
    }

    #[test]
    fn nothing_is_compared_with_what_was_not_run() {
        assert!(sheets(&[inference("relu", 1.0)], None).is_empty());
        let again = Profile { path: "again.json".into(), ..inference("relu", 9.0) };
        let (sheet, _) = sheets(&[inference("relu", 1.0), again, inference("gelu", 1.0)], None).remove(0);
        assert_eq!(sheet.rows.len(), 2);
        assert!(sheet.remarks.iter().any(|remark| remark.contains("again.json")), "{:?}", sheet.remarks);
        let other_batch = Profile { batch: 64, ..inference("gelu", 1.0) };
        assert!(sheets(&[inference("relu", 1.0), other_batch], None).is_empty());
        let (sheet, line) = sheets(&[inference("tanh", 1.0), inference("gelu", 2.0)], None).remove(0);
        assert!(sheet.rows.iter().all(|row| row[2].shown() == "–") && !line.contains("times relu"), "{line}");
    }
}
