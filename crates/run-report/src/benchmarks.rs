//! Tables of the benchmarks: CSV files of `mpiburn bench fused`, `bench collectives` and `bench
//! allreduce`, known by their columns.

use std::path::{Path, PathBuf};

use super::collectives::{self, CollectiveRow};
use super::csv_table::{Table, TableRow, damaged};
use super::figures::Figures;
use super::fused::{self, FusedRow};
use super::page::Part;
use super::seen::Seen;
use super::{LatencyRow, allreduce};
use run_record::count;

/// Files of published figures, below `results/reference/`.
pub const REFERENCES: [&str; 2] = ["fused", "collectives"];

/// What a CSV file is.
enum File {
    Fused(Vec<FusedRow>),
    Collectives(Vec<CollectiveRow>),
    Latencies(Vec<LatencyRow>),
    /// One of them, in one line: the file, line and column, and what to do.
    Damaged(String),
}

impl File {
    /// `None` if it is another table.
    fn read(path: &Path) -> Option<Self> {
        let fused = known(path, Self::Fused);
        let collectives = || known(path, Self::Collectives);
        fused.or_else(collectives).or_else(|| known(path, Self::Latencies))
    }
}

/// `None` if the file is not a table of such rows.
fn known<R: TableRow>(path: &Path, of: impl Fn(Vec<R>) -> File) -> Option<File> {
    match Table::<R>::read(path) {
        Table::Another => None,
        Table::Rows(rows) if rows.is_empty() => {
            Some(File::Damaged(damaged::<R>(path, "no row below the header")))
        }
        Table::Rows(rows) => Some(of(rows)),
        Table::Damaged(line) => Some(File::Damaged(line)),
    }
}

/// Whether `path` is a table of a benchmark that reports show, or a damaged one.
pub fn is_table(path: &Path) -> bool {
    path.is_file() && File::read(path).is_some()
}

/// Begins the names of tables of `bench allreduce`.
pub const ALLREDUCE: &str = "bench-allreduce";

/// Tables of benchmarks.
#[derive(Debug, Default)]
pub struct Tables {
    /// Their files, each once.
    pub files: Vec<PathBuf>,
    /// Other paths to them, a line each.
    pub again: Vec<String>,
}

impl Tables {
    /// Those among `roots`, in these folders and in the folders below, but `written`.
    pub fn find(roots: &[PathBuf], written: &Path) -> Self {
        let mut files = csv_files(roots, written);
        files.retain(|path| is_table(path));
        // The shortest path that is no link names the file.
        files.sort_by_key(|path| (path.is_symlink(), path.components().count()));
        let mut seen = Seen::default();
        files.retain(|path| seen.is_new(path));
        files.sort();
        Self { files, again: seen.again }
    }
}

/// CSV files among `roots`, in these folders and in the folders below, but `written`.
fn csv_files(roots: &[PathBuf], written: &Path) -> Vec<PathBuf> {
    let below = |folder: &PathBuf| -> Vec<PathBuf> {
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
    };
    let is_folder = |path: &PathBuf| path.is_dir() && !path.is_symlink() && path != written;
    let first: Vec<PathBuf> = roots.iter().flat_map(below).collect();
    let second = first.iter().filter(|path| is_folder(path)).flat_map(below).collect();
    let mut files: Vec<PathBuf> = [roots.to_vec(), first, second].concat();
    // Reading a FIFO would wait for a writer.
    files.retain(|path| path.extension().is_some_and(|ending| ending == "csv") && path.is_file());
    files.sort();
    files.dedup();
    files
}

/// A part of the report for each table among `files`, and one that names the damaged ones; those of
/// other contents are left out.
pub fn parts(files: &[PathBuf]) -> Vec<Part> {
    let read = files.iter().filter_map(|path| Some((path, File::read(path)?)));
    let mut parts: Vec<Part> = Vec::new();
    let mut of_damaged: Vec<String> = Vec::new();
    for (path, table) in read {
        let number = |prefix: &str| parts.iter().filter(|part| part.name.starts_with(prefix)).count() + 1;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut notes = Vec::new();
        let mut figures = |name: &str| {
            let read = Figures::read(folder, name);
            read.map_err(|error| notes.push(format!("{error}; published figures are omitted"))).ok().flatten()
        };
        let part = match table {
            File::Fused(rows) => {
                let (name, title) =
                    (format!("bench-fused-{}", number("bench-fused")), title("Fused operator", path));
                let mut sheets = vec![fused::measured(&name, &title, path, &rows)];
                let beside = format!("{name}-published");
                sheets.extend(figures("fused").map(|of| fused::published(&beside, &title, path, &rows, &of)));
                Part { findings: fused::findings(&rows), name, title, sheets, pictures: vec![], notes }
            }
            File::Collectives(rows) => {
                let name = format!("bench-collectives-{}", number("bench-collectives"));
                let title = title("Collectives", path);
                let sheets =
                    vec![collectives::sheet(&name, &title, path, &rows, figures("collectives").as_ref())];
                Part { findings: collectives::findings(&rows), name, title, sheets, pictures: vec![], notes }
            }
            File::Latencies(rows) => {
                let name = format!("{ALLREDUCE}-{}", number(ALLREDUCE));
                let title = title("All-reduce", path);
                let sheets = vec![allreduce::sheet(&name, &title, path, &rows)];
                Part { findings: allreduce::findings(&rows), name, title, sheets, pictures: vec![], notes }
            }
            File::Damaged(line) => {
                of_damaged.push(line);
                continue;
            }
        };
        parts.push(part);
    }
    if !of_damaged.is_empty() {
        parts.push(Part {
            title: "Damaged benchmarks".into(),
            name: "bench-damaged".into(),
            findings: vec![format!("{} left out", count(of_damaged.len(), "damaged file"))],
            sheets: vec![],
            pictures: vec![],
            notes: of_damaged,
        });
    }
    parts
}

fn title(what: &str, path: &Path) -> String {
    format!("{what} in {}", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

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
        let parts = parts(&Tables::find(&[root.path().to_owned()], &path("report")).files);
        let names: Vec<&str> =
            parts.iter().flat_map(|part| &part.sheets).map(|sheet| sheet.name.as_str()).collect();
        let expected =
            ["bench-fused-1", "bench-fused-1-published", "bench-allreduce-1", "bench-collectives-1"];
        assert_eq!(names, expected);
        assert!(parts[0].findings[0].contains("3.00 times as fast"), "{:?}", parts[0].findings);
        assert_eq!(parts[1].findings, ["mpi: 2.00 µs for 4 B; highest bus bandwidth 2.0 MB/s, at 4 B"]);
        assert_eq!(parts[2].findings, ["mpi: 1 of 1 operation with the right result"]);
        assert!(
            is_table(&path("any-name.csv")) && !is_table(&path("other.csv")) && !is_table(&path("none.csv"))
        );
    }

    #[test]
    fn a_file_is_found_once_and_other_paths_to_it_are_named() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("a")).unwrap();
        fs::write(path("a/f.csv"), FUSED).unwrap();
        std::os::unix::fs::symlink(path("a/f.csv"), path("a/b.csv")).unwrap();
        let found = Tables::find(&[path("a/f.csv"), root.path().to_owned()], Path::new("report"));
        assert_eq!(found.files, [path("a/f.csv")]);
        assert_eq!(found.again.len(), 1, "the link alone: {:?}", found.again);
        let found = Tables::find(&[path("a/../a/f.csv"), path("a/b.csv"), path("a/f.csv")], Path::new(""));
        assert_eq!((found.files, found.again.len()), (vec![path("a/f.csv")], 2));
        assert!(found.again[0].contains("a/../a/f.csv: the same as "), "{:?}", found.again);
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
        let parts = parts(&Tables::find(&[root.path().to_owned()], &path("report")).files);
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        assert_eq!(names, ["bench-fused-1", "bench-damaged"]);
        assert_eq!(parts[1].findings, ["4 damaged files left out"]);
        for (line, expected) in parts[1].notes.iter().zip([
            "cut.csv: damaged (line 3: 6 columns, and the header has 8)",
            "empty.csv: damaged (no row below the header)",
            "latency.csv: damaged (line 2, column median_us: \"x\" is not a number)",
            "nan.csv: damaged (line 2, column median_us: NaN is not from 0 to 1e12)",
        ]) {
            assert!(line.contains(expected), "{line}");
        }
        assert!(is_table(&path("nan.csv")), "a damaged table that is typed is named as one");
    }
}
