//! Checks the plots of curves.

use itertools::Itertools;

use super::*;
use crate::rows::group;
use crate::testing::{run, with_target, with_test_losses};

fn drawn_curves(ending: &str, rows: &[Row<'_>]) -> Option<(Plot, String)> {
    curves("loss", ending, &NamedRow::all(rows, &Palette::for_sections(&[names(rows)])), &mut Vec::new())
}

/// Plots of a run's loss and of its accuracy, and whether each marks overfitting.
fn drawn(losses: &[f64]) -> [(String, bool); 2] {
    let folder = tempfile::tempdir().unwrap();
    let runs = [with_test_losses(run((1, 1), &["--epochs", "4"], 4.0), folder.path(), losses)];
    let steps = runs[0].results.steps / losses.len();
    let line = |(i, loss): (usize, &f64)| format!("{} {loss}\n", (i + 1) * steps);
    let text: String = losses.iter().enumerate().map(line).collect();
    std::fs::create_dir(folder.path().join("rank0")).unwrap();
    for file in ["test.loss", "test.acc"] {
        std::fs::write(folder.path().join("rank0").join(file), &text).unwrap();
    }
    ["loss", "acc"].map(|ending| {
        let (plot, marks) = drawn_curves(ending, &group(&runs)).expect("there are curves");
        (plot.svg().unwrap(), marks.contains("overfitting"))
    })
}

#[test]
fn only_rows_that_reached_the_target_have_a_bar_and_the_caption_names_the_others() {
    let drawn = |reached: [bool; 3]| {
        let runs = [(1, 1), (1, 2), (2, 2)].map(|topology| run(topology, &[], 4.0));
        let mut reached = reached.into_iter();
        let runs = runs.map(|run| with_target(run, reached.next().expect("one for each run")));
        let rows = group(&runs);
        let named = NamedRow::all(&rows, &Palette::for_sections(&[names(&rows)]));
        let charts = bar_charts(&rows, &named, "1x1");
        charts.into_iter().find(|chart| chart.name == "target").map(|chart| chart.caption)
    };
    let caption = drawn([true, true, false]).expect("two bars");
    assert!(caption.contains("Not reached by all runs: 2x2"), "{caption}");
    let caption = drawn([true; 3]).expect("three bars");
    assert!(!caption.contains("Not reached"), "{caption}");
    assert_eq!(drawn([true, false, false]), None, "a single bar compares nothing");
}

#[test]
fn int8_models_have_dashed_curves() {
    let folder = tempfile::tempdir().unwrap();
    let mut runs =
        [run((1, 1), &["--epochs", "2"], 4.0), run((1, 1), &["--epochs", "2", "--quantized"], 5.0)];
    let steps = runs[0].results.steps / 2;
    for (run, int8) in runs.iter_mut().zip([["", ""], ["90.5", "93.25"]]) {
        run.path = folder.path().join(int8[0]).join("run");
        std::fs::create_dir_all(run.path.join("rank0")).unwrap();
        let curve = format!("{steps} 91\n{} 92\n", 2 * steps);
        for file in ["test.acc", "test.loss"] {
            std::fs::write(run.path.join("rank0").join(file), &curve).unwrap();
        }
    }
    let rows = group(&runs);
    let drawn = |rows: &[Row<'_>], ending: &str| {
        let (plot, marks) = drawn_curves(ending, rows).expect("there are curves");
        (plot.svg().unwrap(), marks.contains("int8"))
    };
    assert!(!drawn(&rows, "acc").1, "no int8 curve");
    for file in ["test.int8.acc", "test.int8.loss"] {
        let path = runs[1].path.join("rank0").join(file);
        std::fs::write(path, format!("{steps} 0.5\n{} 0.25\n", 2 * steps)).unwrap();
    }
    let (picture, has_int8) = drawn(&rows, "acc");
    assert!(
        has_int8 && picture.contains("\nquantized qat, int8\n") && picture.contains("\nquantized no\n"),
        "{picture}"
    );
    // Three curves with two points each. The points of the int8 model are hollow.
    let dots = |hollow: bool| {
        let lines = picture.split('<').filter(|element| element.starts_with("circle"));
        lines.filter(|line| line.contains("fill=\"none\"") == hollow).count()
    };
    assert_eq!((dots(false), dots(true)), (4, 2), "{picture}");
    assert!(!drawn(&rows[..1], "acc").1, "a float run has none");
    let alone = drawn(&rows[1..], "acc").0;
    assert!(alone.contains("\nfloat\n") && alone.contains("\nint8\n"), "{alone}");
    assert!(drawn(&rows, "loss").0.contains("quantized qat, int8"));
}

#[test]
fn names_in_findings_are_the_settings_that_differ() {
    let names = |runs: &[Run]| {
        let rows = group(runs);
        rows.iter().map(|row| row.name(&rows, &crate::rows::varied(&rows))).collect::<Vec<_>>()
    };
    let gloo = ["--backend", "gloo"];
    assert_eq!(names(&[run((1, 1), &[], 4.0), run((1, 2), &[], 4.0)]), ["1x1", "1x2"]);
    assert_eq!(names(&[run((1, 2), &gloo, 4.0), run((1, 2), &[], 4.0)]), ["gloo", "mpi"]);
    assert_eq!(names(&[run((1, 2), &[], 4.0), run((1, 2), &["--shuffle"], 4.0)]), ["shuffle off", "shuffle"]);
    let clipped = ["--clip-norm", "1", "--augment", "crop"];
    let expected = ["augment crop, clip norm 1", "default augment, default clip norm"];
    assert_eq!(names(&[run((1, 2), &[], 4.0), run((1, 2), &clipped, 4.0)]), expected);
    let both = [run((1, 1), &[], 4.0), run((1, 2), &["--shuffle"], 4.0)];
    assert_eq!(names(&both), ["1x1", "1x2, shuffle"]);
}

#[test]
fn a_ring_marks_overfitting_in_the_loss_plot_only() {
    let rings = |svg: &str| svg.matches("r=\"7\"").count();
    let [loss, accuracy] = drawn(&[2.0, 1.5, 1.6, 1.7]);
    assert_eq!((rings(&loss.0), loss.1), (1, true));
    assert_eq!((rings(&accuracy.0), accuracy.1), (0, false), "accuracy has no mark");
    assert!(!loss.0.contains("1x1"), "one curve needs no name");
    let [loss, _] = drawn(&[2.0, 1.5, 1.4, 1.3]);
    assert_eq!((rings(&loss.0), loss.1), (0, false));
}

#[test]
fn a_plot_without_a_logged_value_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str| {
        let rank = folder.path().join("rank0");
        std::fs::create_dir_all(&rank).unwrap();
        std::fs::write(rank.join(name), "100 0.5\n").unwrap();
    };
    let drawn = || {
        let runs = [Run { path: folder.path().into(), ..run((1, 1), &[], 4.0) }];
        drawn_curves("loss", &group(&runs)).unwrap().0.svg().unwrap()
    };
    write("test.loss");
    assert!(drawn().contains("training: no value logged"), "{}", drawn());
    write("train.loss");
    assert!(!drawn().contains("no value logged"), "{}", drawn());
    let run = with_test_losses(run((1, 1), &[], 4.0), folder.path(), &[2.0, 1.5, 1.6]);
    let (Plot::Lines(plot), marks) = drawn_curves("loss", &group(&[run])).unwrap() else { panic!("lines") };
    let points = &plot.panels[0].lines[0].points;
    assert_eq!((points.len(), points[1]), (3, (1.5, 0.5)), "those of epochs.csv");
    assert!(marks.contains("the mean of an epoch"), "{marks}");
}

#[test]
fn damaged_curves_are_named_and_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let rank = folder.path().join("rank0");
    std::fs::create_dir(&rank).unwrap();
    let runs = [with_test_losses(run((1, 1), &[], 4.0), folder.path(), &[2.0, 1.5, 1.25])];
    let rows = group(&runs);
    std::fs::write(rank.join("test.acc"), "1 50\n2 60\n").unwrap();
    let drawn = |text: &str, ending: &str| {
        std::fs::write(rank.join(format!("train.{ending}")), text).unwrap();
        let named = vec![NamedRow { name: "a".into(), colour: RGBColor(0, 0, 0), row: &rows[0] }];
        let mut notes = Vec::new();
        let plot = curves("loss", ending, &named, &mut notes);
        let panels = plot.map(|(plot, _)| match plot {
            Plot::Lines(plot) => plot.panels,
            _ => panic!("lines"),
        });
        let points = panels.map(|panels| [0, 1].map(|panel| panels[panel].lines[0].points.len()));
        (points.unwrap_or_default(), notes.join("\n"))
    };
    assert_eq!(drawn("1 50\n2 0\n2 100\n", "acc"), ([2, 2], String::new()));
    for (text, expected) in [
        ("1 50\n2 150\n", "rank0/train.acc: is damaged (line 2: 150 is outside 0 to 100): "),
        ("1 NaN\n", "line 1: NaN is outside 0 to 100"),
        ("1 50\n2 -3\n", "line 2: -3 is outside 0 to 100"),
        ("1 50\n2 many\n", "line 2: \"many\" is not a number"),
        ("2 50\n3 50\n1 50\n", "line 3: step 1 after step 3"),
        ("1 50\n\n2 50\n", "line 2: expected a step and a value"),
        ("\0\0", "line 1: expected a step and a value"),
    ] {
        let (points, note) = drawn(text, "acc");
        assert!(points == [0, 2] && note.contains(expected) && !note.contains('\n'), "{points:?} {note}");
    }
    assert_eq!(drawn("1 2.5\n2 inf\n3 2.5\n", "loss"), ([2, 3], String::new()), "a step that diverged");
    assert!(drawn("1 2.5\n2 -1\n", "loss").1.contains("train.loss: is damaged (line 2: -1 is outside 0"));
}

#[test]
fn labels_of_one_value_differ() {
    let point = [54.2085; 4];
    let [_, axis] = axes("loss", &[line(&Line::default(), &[point], None)], [3].into_iter());
    let labels: Vec<String> = axis.ticks.iter().map(axis.text).collect();
    assert!(labels.len() > 2 && labels.iter().all_unique(), "{labels:?}");
}

#[test]
fn a_configuration_has_one_name_and_one_colour_in_all_charts() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, topology, options: &[&str]| {
        let run = Run { path: folder.path().join(name), ..run(topology, options, 4.0) };
        std::fs::create_dir_all(run.path.join("rank0")).unwrap();
        std::fs::write(run.path.join("rank0/test.loss"), "100 0.5\n").unwrap();
        run
    };
    let gloo = ["--backend", "gloo"];
    let runs =
        [of("a", (1, 1), &[]), of("b", (1, 2), &[]), of("c", (1, 2), &gloo), of("d", (2, 2), &["--shuffle"])];
    let rows = group(&runs);
    let palette = Palette::for_sections(&[names(&rows)]);
    let pictures = pictures(&Section::default(), &rows, "1x1", &palette, &mut Vec::new());
    let of = |name: &str| pictures.iter().find(|picture| picture.name.ends_with(name)).unwrap();
    let (Plot::Bars(bars), Plot::Lines(lines)) = (&of("time").plot, &of("loss").plot) else {
        panic!("bars and lines")
    };
    let of_bars: Vec<_> = bars.bars.iter().map(|bar| (bar.name.clone(), bar.colour)).collect();
    let of_lines: Vec<_> = lines.legend.iter().map(|(name, colour, _)| (name.clone(), *colour)).collect();
    assert_eq!(of_bars, of_lines);
    let names: Vec<&str> = of_bars.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["1x1 mpi", "1x2 gloo", "1x2 mpi", "2x2 mpi, shuffle"]);
    let colours = lines.panels[1].lines.iter().map(|line| line.colour);
    assert!(colours.eq(of_bars.iter().map(|(_, colour)| *colour)));
}

#[test]
fn many_curves_have_a_short_legend_and_one_pair_of_axes() {
    let folder = tempfile::tempdir().unwrap();
    let of = |lr: &str, batch: &str| {
        let run = run((1, 1), &["--lr", lr, "--batch-size", batch, "--epochs", "4"], 4.0);
        let run = Run { path: folder.path().join(lr).join(batch), ..run };
        std::fs::create_dir_all(run.path.join("rank0")).unwrap();
        let (half, last) = (run.results.steps / 2, run.results.steps);
        std::fs::write(run.path.join("rank0/train.loss"), format!("{half} {batch}\n")).unwrap();
        std::fs::write(run.path.join("rank0/test.loss"), format!("{half} 1\n{last} 0.5\n")).unwrap();
        run
    };
    let runs: Vec<Run> =
        ["0.1", "0.2", "0.3"].iter().flat_map(|lr| ["8", "16", "32"].map(|batch| of(lr, batch))).collect();
    let rows = group(&runs);
    let (plot, marks) = drawn_curves("loss", &rows).unwrap();
    assert!(marks.contains("Where curves are equal, their colours alternate."), "{marks}");
    let Plot::Lines(plot) = plot else { panic!("lines") };
    assert_eq!(plot.heading, "lr, train batch size:");
    let names: Vec<&str> = plot.legend.iter().map(|(name, ..)| name.as_str()).collect();
    assert_eq!(names[..3], ["0.1, 8", "0.1, 16", "0.1, 32"]);
    let [train, test] = &plot.panels[..] else { panic!("two panels") };
    assert_eq!((train.x.title, train.y.title, train.title.as_str()), ("epochs", "loss", "training"));
    assert_eq!((&train.x.range, &train.y.range), (&test.x.range, &test.y.range));
    assert!(train.x.range.end > 4.0 && train.y.range.end > 32.0, "{:?} {:?}", train.x.range, train.y.range);
    // The legend has several names in a row. Fewer fit in a row than there are curves.
    let height = |names: usize| {
        let legend = plot.legend[..names].to_vec();
        Plot::Lines(LinePlot { panels: Vec::new(), heading: String::new(), legend }).size().1
    };
    assert_eq!(height(9), height(8), "three in a row");
    let few = legend(&rows[..3]);
    assert_eq!(
        few,
        (
            String::new(),
            ["train batch size 8", "train batch size 16", "train batch size 32"].map(Into::into).into()
        )
    );
}
