//! Finds and shows the tables of benchmarks: CSV files of `mpiburn bench fused`, `bench collectives` and
//! `bench allreduce`. A file's columns tell which benchmark it is from.

use std::path::{Path, PathBuf};

use super::LatencyRow;
use super::collectives::CollectiveRow;
use super::csv_table::{self, TableRow, damaged};
use super::fused::FusedRow;
use super::page::PagePart;
use super::plots::Picture;
use super::published::Figures;
use super::sheet::{DEFAULT_WIDTH, Sheet};
use run_record::count;

/// Names of the files with published figures, in `results/reference/`. Reports show these figures, which
/// others have published, beside the measurements.
pub const REFERENCES: [&str; 2] = ["fused", "collectives"];

/// A row of a benchmark's table. Implementations say how reports show the table.
pub trait Benchmark: TableRow {
    /// Prefix of the names of the benchmark's parts in a report. A part is what the report shows under one
    /// heading.
    const NAME: &'static str;
    /// What the benchmark measures.
    const TITLE: &'static str;
    /// Name of the file of published figures, in `results/reference/`; `None` if there is no such file.
    const FIGURES: Option<&'static str>;

    /// Returns what the rows show, each finding as one line.
    fn findings(rows: &[Self]) -> Vec<String>;

    /// Makes the tables of the file `path`. The names of the tables begin with `name`, and the titles with
    /// `part`.
    fn sheets(name: &str, part: &str, path: &Path, rows: &[Self], figures: Option<&Figures>) -> Vec<Sheet>;

    /// Makes the plot of the file `path`. `number` is the file's position among the files of this benchmark.
    fn picture(_number: usize, _path: &Path, _rows: &[Self]) -> Option<Picture> {
        None
    }
}

/// Makes the part of a report about the file `path`. `others` are the earlier parts: the new part must have
/// another name. Returns an error line if the table is damaged, and `None` if the file is not a table of a
/// benchmark.
fn part(path: &Path, others: &[PagePart]) -> Option<Result<PagePart, String>> {
    part_of::<FusedRow>(path, others)
        .or_else(|| part_of::<CollectiveRow>(path, others))
        .or_else(|| part_of::<LatencyRow>(path, others))
}

fn part_of<R: Benchmark>(path: &Path, others: &[PagePart]) -> Option<Result<PagePart, String>> {
    let rows = match csv_table::read::<R>(path).transpose()? {
        Ok(rows) if rows.is_empty() => {
            return Some(Err(damaged::<R>(path, "it has no row below the header")));
        }
        Ok(rows) => rows,
        Err(line) => return Some(Err(line)),
    };
    let number = others.iter().filter(|part| part.name.starts_with(R::NAME)).count() + 1;
    let (name, title) = (format!("{}-{number}", R::NAME), format!("{} in {}", R::TITLE, path.display()));
    let (mut notes, folder) = (Vec::new(), path.parent().unwrap_or(Path::new("")));
    let figures = R::FIGURES.and_then(|name| Figures::beside(folder, name, &mut notes));
    let sheets = R::sheets(&name, &title, path, &rows, figures.as_ref());
    let pictures = R::picture(number, path, &rows).into_iter().collect();
    let findings = R::findings(&rows).into_iter().map(Into::into).collect();
    Some(Ok(PagePart { findings, name, title, sheets, notes, pictures, ..PagePart::default() }))
}

/// Returns the measurements as a table for a terminal. If the table would be too wide, the least important
/// columns are left out.
pub fn table<R: Benchmark>(rows: &[R]) -> comfy_table::Table {
    let sheet = R::sheets("", "", Path::new(""), rows, None).into_iter().next().unwrap_or_default();
    sheet.fitting(DEFAULT_WIDTH).table()
}

/// Whether `path` is a benchmark's table, intact or damaged.
pub fn is_table(path: &Path) -> bool {
    path.is_file() && part(path, &[]).is_some()
}

/// Makes a part of the report for each table among `files`, and one part that lists the damaged tables. Other
/// files are ignored.
pub fn parts(files: &[PathBuf]) -> Vec<PagePart> {
    let mut parts: Vec<PagePart> = Vec::new();
    let mut of_damaged: Vec<String> = Vec::new();
    for path in files {
        match part(path, &parts) {
            Some(Ok(part)) => parts.push(part),
            Some(Err(line)) => of_damaged.push(line),
            None => {}
        }
    }
    if !of_damaged.is_empty() {
        parts.push(PagePart {
            title: "Damaged benchmarks".into(),
            name: "bench-damaged".into(),
            findings: vec![format!("{} not shown", count(of_damaged.len(), "damaged file")).into()],
            notes: of_damaged,
            ..PagePart::default()
        });
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::fs;

    use itertools::Itertools;

    use super::*;
    use crate::inputs::Inputs;
    use crate::testing::tells;

    const FUSED: &str = "operator,layers,channels,batch,steps,forward_ms,backward_ms,test_accuracy\n\
                         fused,2,1,32,200,1.0,1.0,86.0\nunfused,2,1,32,200,1.0,5.0,86.0\n";
    const COLLECTIVES: &str =
        "operation,backend,topology,bytes,median_us,result\nsend,mpi,1x2,1024,1.5,correct\n";

    #[test]
    fn tables_are_found_by_their_columns_in_folders_and_below() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir_all(path("topologies")).unwrap();
        fs::create_dir_all(path("reference")).unwrap();
        fs::write(path("any-name.csv"), FUSED).unwrap();
        fs::write(path("topologies/c.csv"), COLLECTIVES).unwrap();
        fs::write(path("other.csv"), "a,b\n1,2\n").unwrap();
        let figures = "layers,published_operator,operator,forward_s,backward_s,test_accuracy,hardware\n\
                       2,fused,fused,1.88,6.39,94.12,a GPU\n";
        fs::write(path("reference/fused.csv"), figures).unwrap();
        let latencies = "backend,bytes,min_us,median_us,p99_us,busbw_mb_s\nmpi,4,1.0,2.0,3.0,2.0\n";
        fs::write(path("latency.csv"), latencies).unwrap();
        let parts = parts(&Inputs::find(&[], root.path(), Path::new("")).unwrap().tables);
        let names: Vec<&str> =
            parts.iter().flat_map(|part| &part.sheets).map(|sheet| sheet.name.as_str()).collect();
        let expected =
            ["bench-fused-1", "bench-fused-1-published", "bench-allreduce-1", "bench-collectives-1"];
        assert_eq!(names, expected);
        let found = |part: usize| parts[part].findings.iter().join("; ");
        assert!(found(0).contains("3.00 times as fast"), "{}", found(0));
        assert!(tells(&found(1), &["mpi: 2.00 µs", "4 B", "2.0 MB/s", "4 B"]), "{}", found(1));
        assert!(found(2).starts_with("mpi: 1 of 1 operation "), "{}", found(2));
        assert!(
            is_table(&path("any-name.csv")) && !is_table(&path("other.csv")) && !is_table(&path("none.csv"))
        );
    }

    #[test]
    fn damaged_tables_are_named_and_the_others_are_shown() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::write(path("fused.csv"), FUSED).unwrap();
        fs::write(path("cut.csv"), &FUSED[..FUSED.len() - 10]).unwrap();
        fs::write(path("nan.csv"), COLLECTIVES.replace("1.5", "NaN")).unwrap();
        fs::write(path("latency.csv"), "backend,bytes,min_us,median_us,p99_us,busbw_mb_s\nmpi,4,1,x,3,1\n")
            .unwrap();
        fs::write(path("empty.csv"), FUSED.lines().next().unwrap()).unwrap();
        let parts = parts(&Inputs::find(&[], root.path(), Path::new("")).unwrap().tables);
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["bench-fused-1", "bench-damaged"]);
        assert_eq!(parts[1].findings, ["4 damaged files not shown".into()]);
        for (line, expected) in parts[1].notes.iter().zip([
            "has 6 cells, but the first line has 8): ",
            "empty.csv: is damaged (",
            "latency.csv: is damaged (line 2, column median_us: \"x\" is not a number)",
            "nan.csv: is damaged (line 2, column median_us: NaN is outside 0 to 1e12)",
        ]) {
            assert!(line.contains(expected), "{line}");
        }
        assert!(is_table(&path("nan.csv")), "a damaged table is still a table");
    }
}
