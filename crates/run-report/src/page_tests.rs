//! Checks the page: its links, its card, and what is folded.

use super::*;
use crate::findings::Question;
use crate::sheet::Column;

fn fastest(value: &str, text: &str) -> Finding {
    Finding::of_card(Question::Fastest, "fastest", value, text.into())
}

#[test]
fn a_number_links_to_its_run_and_lists_repeats() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("report");
    std::fs::create_dir(&folder).unwrap();
    let runs: Vec<PathBuf> = ["a run#1", "b"].map(|name| root.path().join(name)).into();
    runs.iter().for_each(|run| std::fs::create_dir(run).unwrap());
    let sheet = Sheet {
        name: "t".into(),
        title: "a < b".into(),
        columns: vec![Column::number("n", "n")],
        rows: vec![vec![Cell::number(1.5, 1, runs.clone())]],
        remarks: vec!["a rule".into()],
        ..Sheet::default()
    };
    let listed = |sheet: &Sheet| {
        table(&PagePart::default(), sheet, &folder).into_string().contains("All runs of rows with repeats")
    };
    let cells = [Cell::number(4.0, 1, runs[..1].to_vec()), Cell::number(1.5, 1, runs.clone())];
    let columns = vec![Column::number("n", "n"), Column::number("m", "m")];
    let of_ratio = Sheet { rows: vec![cells.into()], columns, ..sheet.clone() };
    assert!(listed(&sheet) && !listed(&of_ratio), "a row and its baseline are no repeats");
    let part = PagePart {
        title: "T".into(),
        name: "t".into(),
        findings: vec![fastest("1x2", "5 s"), "fast".into()],
        sheets: vec![sheet],
        notes: vec!["x & y".into()],
        ..PagePart::default()
    };
    let alone = page(std::slice::from_ref(&part), &BTreeMap::new(), &folder, "Today.");
    assert!(!alone.contains("<nav") && alone.contains("<li>fast</li>"), "{alone}");
    assert!(alone.contains("<strong>1x2</strong>5 s</dd>"), "{alone}");
    let other = PagePart {
        title: "O".into(),
        name: "o".into(),
        findings: vec![fastest("2x1", "9 s")],
        ..PagePart::default()
    };
    let text = page(&[part, other], &BTreeMap::new(), &folder, "Today.");
    assert!(text.contains("<strong>1x2</strong><a href=\"#t-part\">T</a>: 5 s</dd>"), "{text}");
    assert!(!text.contains("2x1"), "one answer to each question: {text}");
    assert!(text.contains("href=\"../a%20run%231/\""), "{text}");
    assert!(text.contains(&format!("title=\"{}\n{}\"", runs[0].display(), runs[1].display())), "{text}");
    assert!(
        text.contains("a &lt; b") && text.contains("x &amp; y") && text.contains("href=\"../b/\""),
        "{text}"
    );
    assert_eq!(text.matches(&rows::rule()).count(), 1, "how differences are decided: {text}");
    let folded = "<summary>How to read this</summary><ul class=\"soft\"><li>a rule</li></ul></details>";
    assert!(text.contains(folded), "{text}");
    assert!(text.contains("<a href=\"#t-part\">T</a>"), "the menu has titles: {text}");
    assert!(text.contains("href=\"#t-part\"") && text.contains("<li>fast</li>"), "{text}");
    assert!(!text.contains("<script") && !text.contains("http"), "{text}");
}

#[test]
fn one_configuration_has_no_rule_of_comparison_and_many_findings_are_folded() {
    let with = |is_single, count: usize| {
        let lines = (0..count).map(|number| format!("finding {number}").into());
        let findings = lines.chain([fastest("1x2", "5 s")]).collect();
        let part = PagePart { title: "Run a".into(), is_single, findings, ..PagePart::default() };
        page(&[part], &BTreeMap::new(), Path::new("."), "Today.")
    };
    assert!(!with(true, 1).contains(&rows::rule()) && with(false, 1).contains(&rows::rule()));
    assert!(with(true, 1).contains("<title>Run a – mpiburn report</title>"), "{}", with(true, 1));
    assert!(!with(true, 7).contains("more finding"), "{}", with(true, 7));
    let folded =
        "<summary>2 more findings in this list</summary><ul><li>finding 6</li><li>finding 7</li></ul>";
    assert!(with(true, 8).contains(folded), "{}", with(true, 8));
}

#[test]
fn files_of_an_earlier_report_are_removed_unless_somebody_changed_them() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path();
    let sheet = |name: &str| Sheet { name: name.into(), ..Sheet::default() };
    let report = |names: &[&str]| {
        let sheets = names.iter().map(|name| sheet(name)).collect();
        publish(&[PagePart { sheets, ..PagePart::default() }], folder, "report.html", &[]).unwrap();
    };
    let names = || {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        entries
            .filter_map(|name| name.into_string().ok())
            .filter(|name| !name.starts_with('.'))
            .sorted()
            .join(" ")
    };
    report(&["a", "b"]);
    assert_eq!(names(), "a.csv a.md b.csv b.md report.html");
    std::fs::write(folder.join("b.md"), "a user's").unwrap();
    std::fs::write(folder.join("c.svg"), "a user's").unwrap();
    report(&["a"]);
    assert_eq!(names(), "a.csv a.md b.md c.svg report.html");
    publish(&[], folder, "prediction.html", &[]).unwrap();
    assert_eq!(names(), "a.csv a.md b.md c.svg prediction.html report.html");
    let list = folder.join(".report.html.sha256");
    std::fs::write(folder.with_extension("kept"), "").unwrap();
    let outside = folder.with_extension("kept");
    let name = outside.file_name().unwrap().to_str().unwrap();
    std::fs::write(&list, format!("{}  ../{name}\n", sha256(b""))).unwrap();
    report(&[]);
    assert!(outside.exists(), "not in the folder");
    // Reports that are written at the same time may leave lines without a digest.
    std::fs::create_dir(folder.join("d")).unwrap();
    std::fs::write(&list, "  none.md\n  d\n").unwrap();
    report(&[]);
    assert!(folder.join("d").exists());
    std::fs::remove_file(outside).unwrap();
}

#[test]
fn a_report_goes_into_a_new_or_empty_folder_or_over_another_report() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let is_free = || check_folder(folder).is_ok();
    assert!(is_free() && check_folder(&folder.join("new")).is_ok());
    std::fs::write(folder.join(".gitkeep"), "").unwrap();
    assert!(is_free());
    for name in ["train.csv", "dataset.json", "b", "c"] {
        std::fs::write(folder.join(name), "1").unwrap();
    }
    let error = check_folder(folder).unwrap_err().to_string();
    let expected = "(b, c, dataset.json and 1 more)";
    assert!(error.starts_with("--out ") && error.contains(expected), "{error}");
    for (name, text) in [
        (".report.html.sha256", ""),
        (".prediction.html.sha256", ""),
        ("report.html", "<p>Generated by mpiburn 0.1.0 on"),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
        assert!(is_free(), "{name}");
        std::fs::remove_file(folder.join(name)).unwrap();
    }
    let error = check_folder(&folder.join("b")).unwrap_err().to_string();
    assert!(error.starts_with("--out ") && error.contains("/b: is not a folder"), "{error}");
    let others = tempfile::tempdir().unwrap();
    std::fs::write(others.path().join("report.html"), "<p>Report generated by pytest-html").unwrap();
    assert!(check_folder(others.path()).unwrap_err().to_string().contains("(report.html)"));
}
