//! Checks the output of a table for terminal, Markdown and CSV, and the choice of its columns.

use super::*;

fn sheet() -> Sheet {
    let time = |values: &[f64], beside: &str| Cell {
        value: CellValue::Number(Spread::from_values(values.to_vec()), 2),
        beside: beside.into(),
        ..Cell::of_runs(vec!["results/a".into()])
    };
    Sheet {
        name: "times".into(),
        title: "Times".into(),
        columns: vec![Column::words("topo|logy", "topology"), Column::spread("train s", "train_s")],
        rows: vec![
            vec![Cell::text("1x1"), time(&[2.0, 1.0, 1.5], "(1–2)")],
            vec![Cell::text("2x1"), time(&[1.0], "")],
            vec![Cell::text("2x2"), Cell::nothing()],
        ],
        common: None,
        remarks: vec!["A remark.".into()],
    }
}

#[test]
fn a_number_is_its_median_and_what_stands_beside_it() {
    let text = sheet().terminal(None, false);
    assert!(text.contains(" 1.50 (1–2) │") && text.contains(" 1.00       │"), "on the decimal point: {text}");
    assert!(text.ends_with("A remark.\n"), "{text}");
}

#[test]
fn a_narrow_terminal_gets_equal_columns_as_one_line_and_the_first_of_the_others() {
    let mut sheet = sheet();
    for (column, cell) in [
        (Column::words("backend", "backend"), Cell::text("mpi")),
        (Column::number("speed-up", "speed_up"), Cell::nothing()),
        (Column::spread("memory", "memory").hide_order(2), Cell::number(12.5, 1, vec![])),
        (Column::words("doubts", "doubts").for_programs(), Cell::text("short")),
    ] {
        sheet.columns.push(column);
        sheet.rows.iter_mut().for_each(|row| row.push(cell.clone()));
    }
    let all = sheet.terminal(Some(40), true);
    assert!(all.contains("speed-up") && all.contains("memory") && !all.contains("doubts"), "{all}");
    let fits = sheet.terminal(Some(80), false);
    assert!(fits.contains("\nIn all rows: backend mpi.\n") && fits.contains("memory"), "{fits}");
    assert!(!fits.contains("speed-up") && !fits.contains("--wide"), "{fits}");
    let narrow = sheet.terminal(Some(30), false);
    assert!(narrow.contains("More columns with --wide: memory.\n"), "{narrow}");
    let table: Vec<&str> = narrow.lines().filter(|line| line.starts_with('│')).collect();
    assert!(narrow.contains("1.50 (1–2)") && table.iter().all(|l| l.chars().count() <= 30), "{narrow}");
    sheet.rows.truncate(1);
    assert!(!sheet.terminal(Some(20), false).contains("In all rows"), "a single row has no equal columns");
    assert!(sheet.csv().unwrap().contains("short"));
}

#[test]
fn markdown_is_a_table_with_right_aligned_numbers() {
    let expected = "### Times\n\n| topo\\|logy | train s |\n| --- | ---: |\n| 1x1 | 1.50 (1–2) |\n\
                    | 2x1 | 1.00 |\n| 2x2 | – |\n\nA remark.\n";
    assert_eq!(sheet().markdown(), expected);
}

#[test]
fn csv_has_the_range_in_separate_columns() {
    let expected = "topology,train_s,train_s_min,train_s_max\n1x1,1.5,1,2\n2x1,1,1,1\n2x2,,,\n";
    assert_eq!(sheet().csv().unwrap(), expected);
    assert_eq!(significant(1.0 / 3.0, 6), "0.333333");
}

#[test]
fn columns_that_do_not_fit_are_in_further_tables() {
    let columns = ["a", "b", "c", "d"].map(|name| Column::number(name, name));
    let columns = [Column::words("name", "name")].into_iter().chain(columns).collect();
    let cell = |number: f64| Cell::number(number, 2, Vec::new());
    let rows = vec![vec![Cell::text("x"), cell(1.0), cell(2.0), cell(3.0), cell(4.0)]];
    let sheet = Sheet { columns, rows, ..Sheet::default() };
    let keys = |limit: usize| -> Vec<String> {
        let parts = sheet.parted(limit);
        parts.iter().map(|part| part.columns.iter().map(|column| column.key.as_str()).collect()).collect()
    };
    assert_eq!(keys(200), ["nameabcd"]);
    assert_eq!(keys(24), ["nameab", "namecd"]);
    assert_eq!(keys(1), ["namea", "nameb", "namec", "named"]);
}

#[test]
fn wide_labels_are_one_column_and_measurements_lead() {
    let words = ["topology", "backend", "lr", "shuffle", "oversubscribed"];
    let columns = words.map(|name| Column::words(&name.replace('_', " "), name));
    let columns: Vec<Column> = columns
        .into_iter()
        .chain([Column::spread("train s", "train_seconds"), Column::spread("test acc %", "test_accuracy")])
        .collect();
    let row = |cells: [&str; 5], seconds| {
        let numbers = [seconds, 97.5].map(|number| Cell::number(number, 2, Vec::new()));
        cells.map(Cell::text).into_iter().chain(numbers).collect()
    };
    let rows = vec![
        row(["1x1", "mpi", "0.001", "false", "no"], 2.0),
        row(["1x2", "gloo", "0.01", "true", "yes"], 3.0),
    ];
    let sheet = Sheet { columns, rows, ..Sheet::default() }.led_by(&["test_accuracy", "none"]);
    let keys = |sheet: &Sheet| sheet.columns.iter().map(|column| column.key.clone()).join(" ");
    let (wide, rest) = sheet.narrow(200, 60);
    assert_eq!(keys(&wide), "topology backend lr shuffle oversubscribed test_accuracy train_seconds");
    assert!(rest.is_none());
    let (narrow, _) = sheet.narrow(200, 30);
    assert_eq!(keys(&narrow), "configuration test_accuracy train_seconds");
    let names: Vec<String> = narrow.rows.iter().map(|row| row[0].shown()).collect();
    assert_eq!(names, ["1x1, mpi, lr 0.001", "1x2, gloo, lr 0.01, shuffle, oversubscribed"]);
    let long = sheet.terminal(None, false);
    assert!(long.lines().all(|line| line.chars().count() <= 100), "{long}");
}
