//! Tables of the time and memory of a profile's operators, summed by kind, such as `conv` or `linear`.

use super::{Found, Phase, Profile, ProfileRow, by_kind, groups, kb, machines};
use crate::published::{Figures, cell};
use crate::rows::few_differ;
use crate::sheet::{Cell, Column, Sheet};
use run_record::count;

/// Makes a table for each profile. Leaves out profiles that differ from a ReLU profile only in the
/// activation: they are in the table of activations.
pub fn sheets(profiles: &[Profile], figures: Option<&Figures>) -> Vec<Found> {
    let alike = groups(profiles.iter(), &["activation"]);
    let is_variant = |profile: &Profile| {
        let of_group = alike.iter().find(|group| group.iter().any(|other| other.path == profile.path));
        let plain = of_group.is_some_and(|group| group.iter().any(|other| other.activation() == "relu"));
        plain && profile.activation() != "relu"
    };
    let shown: Vec<&Profile> = profiles.iter().filter(|profile| !is_variant(profile)).collect();
    // Profiles with equal descriptions are distinguished by their paths.
    let name = |profile: &Profile| {
        let alike = shown.iter().filter(|other| name(other) == name(profile)).count() > 1;
        if alike { format!("{} ({})", name(profile), profile.path.display()) } else { name(profile) }
    };
    shown.iter().map(|profile| sheet(profile, &name(profile), figures)).collect()
}

fn sheet(profile: &Profile, title: &str, figures: Option<&Figures>) -> Found {
    let kinds = by_kind(&profile.operators, |row| row.self_cpu_ms);
    // The published figures are for inference of a float network with ReLU.
    let wanted = [("model", profile.model.as_str())];
    let figures = figures.filter(|figures| {
        !profile.train && !profile.int8 && profile.activation() == "relu" && figures.find(&wanted).is_some()
    });
    let own = |number, digits| Cell::measured(number, digits, &profile.path);
    let mut columns = vec![
        Column::words("kind", "kind")
            .means("What the operators compute")
            .shows(|kind: &ProfileRow| Cell::text(&kind.name)),
        Column::words("phase", "phase").shows(|kind: &ProfileRow| {
            Cell::text(if kind.phase == Phase::Rest { String::new() } else { kind.phase.to_string() })
        }),
        Column::number("self CPU ms", "self_cpu_ms")
            .means("Time in operators of this kind over all batches, without the operators that they call")
            .shows(|kind: &ProfileRow| own(kind.self_cpu_ms, 3)),
        Column::number("self CPU %", "self_cpu_percent")
            .means("Share of the time of all batches")
            .hide_order(2)
            .shows(|kind: &ProfileRow| {
                own(100.0 * kind.self_cpu_ms / profile.wall_ms.max(f64::MIN_POSITIVE), 1)
            }),
        Column::number("calls", "calls").hide_order(3).shows(|kind: &ProfileRow| own(kind.calls as f64, 0)),
        Column::number("allocated KB", "allocated_kb")
            .means("Bytes allocated in all calls, freed or not; 1 KB is 1024 bytes")
            .hide_order(1)
            .shows(|kind: &ProfileRow| own(kb(kind.allocated_bytes), 1)),
        Column::number("peak KB", "peak_kb")
            .means("Largest increase of the live bytes during a call; 1 KB is 1024 bytes")
            .hide_order(4)
            .shows(|kind: &ProfileRow| own(kind.peak_memory_bytes as f64 / 1024.0, 1)),
    ];
    if let Some(figures) = figures {
        let model = wanted[0];
        for (column, name) in [
            (Column::number("ms published", "time_ms_published"), "time_ms"),
            (Column::number("calls published", "calls_published").hide_order(5), "calls"),
            (Column::number("KB published", "memory_kb_published"), "memory_kb"),
        ] {
            columns
                .push(column.shows(move |kind: &ProfileRow| {
                    cell(figures.find(&[model, ("kind", &kind.name)]), name)
                }));
        }
    }
    let published = figures.and_then(|figures| figures.find(&wanted)?.get("batches"));
    let remarks = [
        "An operator that works in place allocates nothing. The row `rest` is the time outside all operators.".into(),
        machines(profile, figures, &wanted),
    ];
    let remarks = remarks
        .into_iter()
        .chain(published.map(|n| format!("The published figures are for {n} batches of inference.")));
    let name = format!("{}-kinds", crate::runs::file_name(&profile.stem()));
    let title_of = format!("{title} by kind, {}", profile.amount());
    let sheet = Sheet::from_rows(name, title_of, columns, &kinds).with_remarks(remarks);
    (sheet, finding(profile, title, &kinds))
}

/// Says which kind takes the most time. `kinds` is sorted by time.
fn finding(profile: &Profile, title: &str, kinds: &[ProfileRow]) -> String {
    let sum: f64 = profile.computing().map(|row| row.self_cpu_ms).sum();
    let mut slowest = kinds.iter().filter(|kind| !matches!(kind.phase, Phase::Data | Phase::Rest));
    slowest.next().map_or_else(String::new, |kind| {
        let phase = if profile.train { format!(" ({})", kind.phase) } else { String::new() };
        let alone = slowest.next().is_none_or(|next| few_differ(kind.self_cpu_ms, next.self_cpu_ms));
        let others = if alone { "" } else { "; the next kind does not differ beyond noise" };
        format!(
            "{title}: {}{phase} takes the most time of the network's operators, {:.1}% ({:.3} ms in {}){others}",
            kind.name,
            100.0 * kind.self_cpu_ms / sum.max(f64::MIN_POSITIVE),
            kind.self_cpu_ms,
            count(profile.batches, "batch")
        )
    })
}

/// Describes the network as text.
fn name(profile: &Profile) -> String {
    let mut words = profile.model.clone();
    if profile.activation() != "relu" {
        words += &format!(" with {}", profile.activation());
    }
    words += match (profile.int8, profile.train) {
        (true, _) => " in int8",
        (_, true) if profile.fused => " in training",
        (_, true) => " in training, with separate operators",
        _ if !profile.fused => " with separate operators",
        _ => "",
    };
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::testing::{operator, profile};
    use crate::testing::tells;

    #[test]
    fn operators_of_a_kind_are_summed_beside_the_published_ones() {
        let mlp = profile(
            "mlp",
            "relu",
            false,
            &[
                operator("linear", 100, 2.0, 1024),
                operator("linear", 100, 1.5, 2048),
                operator("batch norm", 100, 1.0, 0),
            ],
        );
        let published = Figures::from_csv(
            b"model,kind,batches,time_ms,calls,memory_kb,hardware\nmlp,linear,100,15.235,200,650,a CPU\n",
            &[],
        )
        .unwrap();
        let (sheet, line) = sheets(&[mlp], Some(&published)).remove(0);
        let rows: Vec<String> =
            sheet.rows.iter().map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(rows[0], "linear forward 3.500 35.0 200 3.0 0.0 15.235 200 650");
        assert_eq!(rows[1], "batch norm forward 1.000 10.0 100 0.0 0.0 – – –");
        assert_eq!(sheet.rows[0][2].runs.len(), 1, "ours link to the file");
        assert!(sheet.rows[0][7].runs.is_empty(), "published figures do not");
        let remark = &sheet.remarks[1];
        assert!(remark.contains("Published: a CPU. Ours: a processor, avx2 code"), "{remark}");
        assert!(sheet.remarks[2].contains("100 batches"), "{}", sheet.remarks[2]);
        assert!(tells(&line, &["mlp: linear takes", "77.8%", "3.500 ms", "100 batches"]), "{line}");
        assert!(!line.contains("others"), "{line}");
    }

    #[test]
    fn a_kind_that_takes_as_long_as_the_next_one_is_not_alone() {
        let alike = [operator("linear", 100, 2.0, 0), operator("relu", 100, 1.95, 0)];
        let found = sheets(&[profile("mlp", "relu", false, &alike)], None);
        assert!(tells(&found[0].1, &["linear takes", "next kind", "noise"]), "{}", found[0].1);
    }

    #[test]
    fn profiles_of_equal_settings_are_told_apart_by_their_files() {
        let named = |name: &str| {
            let of = profile("mlp", "relu", false, &[operator("linear", 100, 2.0, 0)]);
            Profile { path: name.into(), ..of }
        };
        let vgg = profile("vgg", "relu", false, &[operator("conv", 1, 2.0, 0)]);
        let found = sheets(&[named("a/p.json"), named("b/p.json"), Profile { batches: 1, ..vgg }], None);
        let titles: Vec<&str> = found.iter().map(|(sheet, _)| sheet.title.as_str()).collect();
        let amount = "by kind, 100 inferences at batch 32";
        assert_eq!(titles[0], format!("mlp (a/p.json) {amount}"));
        assert_eq!(titles[1], format!("mlp (b/p.json) {amount}"));
        assert_eq!(titles[2], "vgg by kind, 1 inference at batch 32");
        assert!(found[1].1.starts_with("mlp (b/p.json): linear takes"), "{}", found[1].1);
        assert!(tells(&found[2].1, &["2.000 ms", "1 batch"]), "{}", found[2].1);
    }

    #[test]
    fn another_network_has_no_published_figures() {
        let vgg = profile("vgg", "relu", false, &[operator("conv", 100, 2.0, 0)]);
        let published = Figures::from_csv(b"model,kind,hardware\nmlp,linear,a CPU\n", &[]).unwrap();
        let (sheet, _) = sheets(&[vgg], Some(&published)).remove(0);
        assert!(sheet.columns.iter().all(|column| !column.key.ends_with("published")));
    }
}
