//! Compares an int8 model with the float network that it was made from, by the times and sizes in their
//! profiles.

use super::{Found, groups, kb, left_out, machines};
use crate::published::{Figures, cell};
use crate::sheet::{Cell, Column, Sheet};
use run_record::profile::Profile;

/// Makes a table for each int8 model and its float network, if their other settings are equal. The table has
/// two rows for the float network if it was profiled with fused and with separate operators.
pub fn sheets(profiles: &[Profile], figures: Option<&Figures>) -> Vec<Found> {
    let of_inference = profiles.iter().filter(|profile| !profile.train);
    let of_group = |group: Vec<&Profile>| {
        let int8 = *group.iter().find(|profile| profile.int8)?;
        let float =
            |fused| group.iter().copied().find(move |profile| !profile.int8 && profile.fused == fused);
        let floats: Vec<&Profile> = [true, false].into_iter().filter_map(float).collect();
        let shown =
            |profile: &&Profile| profile.path == int8.path || floats.iter().any(|f| f.path == profile.path);
        let again: Vec<&Profile> = group.iter().copied().filter(|profile| !shown(profile)).collect();
        (!floats.is_empty()).then(|| sheet(&floats, int8, &again, figures))
    };
    groups(of_inference, &["int8", "fused"]).into_iter().filter_map(of_group).collect()
}

/// Returns the time of all batches in milliseconds, without profiling. Times with profiling would make int8
/// look slower: its operators are shorter, so the profiler's overhead is a larger share of its time.
fn inference_ms(profile: &Profile) -> f64 {
    profile.batch_ms_without_profiling * profile.batches as f64
}

/// Returns the kind of network as text.
fn network(profile: &Profile) -> &'static str {
    match (profile.int8, profile.fused) {
        (true, _) => "int8",
        (false, true) => "float, fused",
        (false, false) => "float, separate",
    }
}

/// Returns the checkpoint size of `float` divided by the checkpoint size of `profile`.
fn times_smaller(profile: &Profile, float: &Profile) -> f64 {
    kb(float.checkpoint_bytes) / kb(profile.checkpoint_bytes)
}

fn sheet(floats: &[&Profile], int8: &Profile, again: &[&Profile], figures: Option<&Figures>) -> Found {
    let model = int8.model.as_str();
    let wanted = [("model", model)];
    let figures = figures.filter(|figures| figures.find(&wanted).is_some());
    let own = |profile: &Profile, number, digits| Cell::measured(number, digits, &profile.path);
    let mut columns = vec![
        Column::words("network", "network").shows(|profile: &Profile| Cell::text(network(profile))),
        Column::number("inference ms", "inference_ms")
            .means("Median time of a batch without profiling, multiplied by the number of batches; includes the conversion of samples")
            .shows(|profile: &Profile| own(profile, inference_ms(profile), 3)),
        Column::number("times as fast", "times_as_fast")
            .means("inference ms of the first row, divided by this row's")
            .shows(|profile: &Profile| own(profile, inference_ms(floats[0]) / inference_ms(profile), 2)),
        Column::number("allocated KB", "allocated_kb")
            .means("Bytes that operators allocated in all batches, freed or not; 1 KB is 1024 bytes")
            .hide_order(4)
            .shows(|profile: &Profile| {
                own(profile, kb(profile.computing().map(|row| row.allocated_bytes).sum()), 1)
            }),
        Column::number("checkpoint KB", "checkpoint_kb")
            .means("Size of the weight file; 1 KB is 1024 bytes")
            .shows(|profile: &Profile| own(profile, kb(profile.checkpoint_bytes), 1)),
        Column::number("times smaller", "times_smaller")
            .means("checkpoint KB of the first row, divided by this row's")
            .hide_order(3)
            .shows(|profile: &Profile| own(profile, times_smaller(profile, floats[0]), 2)),
    ];
    if let Some(figures) = figures {
        let line = move |profile: &Profile| {
            // Figures of only one float network were published, so only the first float row shows them.
            let is_first = profile.int8 || profile.path == floats[0].path;
            let kind = if profile.int8 { "int8" } else { "float" };
            figures.find(&[("model", model), ("network", kind)]).filter(|_| is_first)
        };
        for (column, name) in [
            (Column::number("published ms", "inference_ms_published"), "inference_ms"),
            (
                Column::number("published alloc.", "allocated_published")
                    .means("Memory that operators allocated")
                    .hide_order(2),
                "allocated",
            ),
            (
                Column::number("published KB", "checkpoint_kb_published").means("Size of the weight file"),
                "checkpoint_kb",
            ),
        ] {
            columns.push(column.shows(move |profile: &Profile| cell(line(profile), name)));
        }
    }
    let published = "The published number of samples is not stated; our times are without profiling.";
    let remarks = [machines(int8, figures, &wanted)].into_iter().chain(figures.map(|_| published.into()));
    let remarks = remarks.chain(left_out(again));
    let title = format!("{model} in float and int8, {}", int8.amount());
    let shown = floats.iter().copied().chain([int8]);
    let sheet = Sheet::from_rows("int8", title, columns, shown).with_remarks(remarks);
    (sheet, finding(floats, int8))
}

/// Says how much faster and smaller the int8 model is.
fn finding(floats: &[&Profile], int8: &Profile) -> String {
    let faster = floats.iter().map(|float| {
        let times = inference_ms(float) / inference_ms(int8);
        let operators = if float.fused { "fused" } else { "separate" };
        format!("{times:.2} times as fast as float with {operators} operators")
    });
    let size = format!("its checkpoint is {:.2} times smaller", times_smaller(int8, floats[0]));
    let words: Vec<String> = faster.chain([size]).collect();
    format!("{}: int8 is {}", int8.model, words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::testing::{operator, profile};
    use crate::testing::tells;

    fn convnet(int8: bool, ms: f64) -> Profile {
        let allocated = if int8 { 0 } else { 10 << 10 };
        let own = profile("convnet", "relu", int8, &[operator("conv", 100, ms, allocated)]);
        let checkpoint_bytes = if int8 { 8 << 10 } else { 20 << 10 };
        Profile { checkpoint_bytes, batch_ms_without_profiling: ms / 100.0, ..own }
    }

    #[test]
    fn int8_is_compared_with_float_and_the_published_figures() {
        let published = Figures::from_csv(
            b"model,network,inference_ms,allocated,checkpoint_kb,hardware\n\
             convnet,float,75,4.74 MB,19,a CPU\nconvnet,int8,20,4.61 KB,8.7,a CPU\n",
            &[],
        )
        .unwrap();
        let (sheet, line) = sheets(&[convnet(true, 2.0), convnet(false, 8.0)], Some(&published)).remove(0);
        let rows: Vec<String> =
            sheet.rows.iter().map(|row| row.iter().map(Cell::shown).collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(rows[0], "float, fused 8.000 1.00 10.0 20.0 1.00 75 4.74 MB 19");
        assert_eq!(rows[1], "int8 2.000 4.00 0.0 8.0 2.50 20 4.61 KB 8.7");
        assert!(tells(&line, &["convnet: int8", "4.00 times", "fused", "2.50 times smaller"]), "{line}");
    }

    #[test]
    fn both_float_networks_are_shown_and_a_lone_model_is_not() {
        assert!(sheets(&[convnet(true, 2.0)], None).is_empty());
        assert!(sheets(&[convnet(false, 2.0)], None).is_empty());
        let separate = Profile { fused: false, ..convnet(false, 16.0) };
        let (sheet, _) = sheets(&[convnet(false, 8.0), separate, convnet(true, 2.0)], None).remove(0);
        let faster: Vec<String> = sheet.rows.iter().map(|row| row[2].shown()).collect();
        assert_eq!(faster, ["1.00", "0.50", "4.00"]);
    }
}
