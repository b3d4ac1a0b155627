//! Tables of the benchmarks: CSV files of `mpiburn bench fused` and `bench collectives`, known by
//! their columns.

use std::path::{Path, PathBuf};

use super::collectives::{self, CollectiveRow};
use super::figures::Figures;
use super::fused::{self, FusedRow};
use super::latency;
use super::page::Part;

/// Files of published figures, below `results/reference/`.
pub const REFERENCES: [&str; 2] = ["fused", "collectives"];

/// The table in a CSV file.
enum Table {
    Fused(Vec<FusedRow>),
    Collectives(Vec<CollectiveRow>),
}

impl Table {
    fn read(path: &Path) -> Option<Self> {
        fused::read_csv(path).map(Self::Fused).or_else(|| collectives::read_csv(path).map(Self::Collectives))
    }
}

/// Whether `path` is a table of a benchmark that reports show.
pub fn is_table(path: &Path) -> bool {
    path.is_file() && (Table::read(path).is_some() || latency::read_csv(path).is_some())
}

/// CSV files among `roots`, in these folders and in the folders below, but `written`.
pub fn csv_files(roots: &[PathBuf], written: &Path) -> Vec<PathBuf> {
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

/// A part of the report for each table among `files`; those of other contents are left out.
pub fn parts(files: &[PathBuf]) -> Vec<Part> {
    let read = files.iter().filter_map(|path| Some((path, Table::read(path)?)));
    let mut parts: Vec<Part> = Vec::new();
    for (path, table) in read {
        let count = |prefix: &str| parts.iter().filter(|part| part.name.starts_with(prefix)).count() + 1;
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut notes = Vec::new();
        let mut figures = |name: &str| {
            let read = Figures::read(folder, name);
            read.map_err(|error| notes.push(format!("{error}; published figures are omitted"))).ok().flatten()
        };
        let part = match table {
            Table::Fused(rows) => {
                let (name, title) =
                    (format!("bench-fused-{}", count("bench-fused")), title("Fused operator", path));
                let mut sheets = vec![fused::measured(&name, &title, path, &rows)];
                let beside = format!("{name}-published");
                sheets.extend(figures("fused").map(|of| fused::published(&beside, &title, path, &rows, &of)));
                Part { findings: fused::findings(&rows), name, title, sheets, pictures: vec![], notes }
            }
            Table::Collectives(rows) => {
                let name = format!("bench-collectives-{}", count("bench-collectives"));
                let title = title("Collectives", path);
                let sheets =
                    vec![collectives::sheet(&name, &title, path, &rows, figures("collectives").as_ref())];
                Part { findings: collectives::findings(&rows), name, title, sheets, pictures: vec![], notes }
            }
        };
        parts.push(part);
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
        let parts = parts(&csv_files(&[root.path().to_owned()], &path("report")));
        let names: Vec<&str> =
            parts.iter().flat_map(|part| &part.sheets).map(|sheet| sheet.name.as_str()).collect();
        assert_eq!(names, ["bench-fused-1", "bench-fused-1-published", "bench-collectives-1"]);
        assert!(parts[0].findings[0].contains("3.00 times as fast"), "{:?}", parts[0].findings);
        assert_eq!(parts[1].findings, ["mpi: 1 of 1 operations give the right result"]);
        assert!(
            is_table(&path("any-name.csv")) && !is_table(&path("other.csv")) && !is_table(&path("none.csv"))
        );
    }

    #[test]
    fn a_file_that_is_named_is_found_once() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("f.csv");
        fs::write(&file, FUSED).unwrap();
        let files = csv_files(&[file.clone(), root.path().to_owned()], Path::new("report"));
        assert_eq!(files, [file]);
    }
}
