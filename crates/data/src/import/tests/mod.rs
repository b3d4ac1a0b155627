//! Tests whole imports of pictures and of tables.

mod archives;
mod folders;
mod kinds;
mod own_tables;
mod parquet;
mod sources;
mod tables;
mod values;

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use clap::Parser;

use crate::Element;
use crate::error::names_all;
use crate::formats::DataSet;
use crate::import::{Fit, ImportArgs, ImportProgress, Imported, import};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: ImportArgs,
}

/// A temporary folder for sources and data sets.
pub(crate) struct Lab(tempfile::TempDir);

impl Lab {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    /// Writes a picture of one colour. `red` is its red value, by which tests tell pictures apart.
    pub(crate) fn picture(&self, name: &str, [height, width]: [u32; 2], red: u8) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        image::RgbImage::from_pixel(width, height, image::Rgb([red, 20, 30])).save(path).unwrap();
    }

    pub(crate) fn import(&self, source: &str, options: &[&str]) -> Result<Imported, String> {
        self.import_while(source, options, &|_, _| ControlFlow::Continue(()))
    }

    pub(crate) fn import_while(
        &self,
        source: &str,
        options: &[&str],
        progress: &ImportProgress<'_>,
    ) -> Result<Imported, String> {
        let (source, out) = (self.path(source), self.path("out"));
        let words = [&["import", source.to_str().unwrap(), "--out", out.to_str().unwrap()], options].concat();
        let args = Cli::try_parse_from(words).map_err(|error| error.to_string())?.args;
        import(&args, progress).map_err(|error| {
            let text = error.to_string();
            assert_eq!(text.lines().count(), 1, "{text}");
            text
        })
    }

    pub(crate) fn imported(&self, source: &str, options: &[&str]) -> Imported {
        self.import(source, &[options, &["--overwrite"]].concat()).unwrap()
    }

    /// Returns the names of everything in the folder.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Returns the bytes after the header of a file of the data set.
    pub(crate) fn data(&self, name: &str) -> Vec<u8> {
        fs::read(self.path("out").join(name)).unwrap().split_off(128)
    }

    /// Returns the labels of a split.
    pub(crate) fn labels(&self, split: &str) -> Vec<u8> {
        self.data(&format!("{split}-labels.npy")).into_iter().step_by(2).collect()
    }

    /// Returns the origins of the samples of both splits, from `dataset.json`.
    pub(crate) fn from(&self) -> [Vec<String>; 2] {
        let text = fs::read_to_string(self.path("out/dataset.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        ["train", "test"].map(|split| serde_json::from_value(json[split]["from"].clone()).unwrap())
    }
}

#[test]
fn a_folder_for_each_class_is_divided_and_written_in_a_drawn_order() {
    let lab = Lab::new();
    for number in 0..10 {
        lab.picture(&format!("pets/10/{number}.png"), [4, 6], number);
        lab.picture(&format!("pets/2/deep/{number}.bmp"), [4, 6], 100 + number);
    }
    let Imported { set, counts } = lab.imported("pets", &[]);
    assert_eq!((set.shape, set.numbers), ([3, 4, 6], Element::U8));
    assert_eq!(set.classes, ["10", "2"], "by code points, as torchvision's ImageFolder");
    assert_eq!(counts, [[8, 8], [2, 2]]);
    let [train, test] = lab.from();
    assert_eq!((train.len(), test.len()), (16, 4));
    assert!(!train.is_sorted(), "{train:?}");
    let (labels, bytes) = (lab.labels("train"), lab.data("train-images.npy"));
    for ((from, label), sample) in train.iter().zip(labels).zip(bytes.chunks_exact(3 * 4 * 6)) {
        let number: u8 = from.rsplit_once('/').unwrap().1.split('.').next().unwrap().parse().unwrap();
        let (red, class) = if from.starts_with("10/") { (number, 0) } else { (100 + number, 1) };
        assert_eq!(label, class, "{from}");
        assert!(
            sample[..24].iter().all(|byte| *byte == red) && sample[24..48].iter().all(|byte| *byte == 20)
        );
    }
    let mean = 0.5 * (set.mean[0] - set.mean[0]) + 20.0 / 255.0;
    assert!((set.mean[1] - mean).abs() < 1e-6 && set.std[1] == 1.0, "{set:?}");
    assert_eq!(DataSet::read(&lab.path("out")).unwrap().train.samples, 16);

    let first = fs::read(lab.path("out/dataset.json")).unwrap();
    lab.imported("pets", &[]);
    assert_eq!(fs::read(lab.path("out/dataset.json")).unwrap(), first, "the same again");
    lab.imported("pets", &["--seed", "8"]);
    assert_ne!(lab.from()[0], train);
    lab.imported("pets", &["--order", "files", "--test-fraction", "0.1"]);
    assert!(lab.from().iter().all(|split| split.is_sorted()));
    assert_eq!(lab.from()[1].len(), 2);
}

#[test]
fn splits_of_the_source_are_kept_and_named() {
    let lab = Lab::new();
    for (name, red) in [
        ("train/a/1.png", 1),
        ("train/a/2.png", 2),
        ("train/b/1.png", 3),
        ("val/a/1.png", 4),
        ("test/b/1.png", 5),
        ("test/c/1.png", 1),
        // Files that systems and tools leave behind are ignored.
        ("train/a/.hidden.png", 9),
        ("train/.ipynb_checkpoints/x/1.png", 9),
        ("__MACOSX/train/a/1.png", 9),
    ] {
        lab.picture(&format!("archive/{name}"), [2, 2], red);
    }
    lab.write("archive/train/a/notes.txt", "no picture");
    fs::create_dir(lab.path("archive/train/empty")).unwrap();
    std::os::unix::fs::symlink("..", lab.path("archive/train/a/up")).unwrap();
    std::os::unix::fs::symlink("../val/a", lab.path("archive/train/c")).unwrap();
    let Imported { set, counts } = lab.imported("archive", &["--order", "files"]);
    assert_eq!(set.classes, ["a", "b", "c"], "those of both splits, without the empty one");
    assert_eq!(counts, [[2, 1, 1], [0, 1, 1]], "links are followed, loops are not");
    assert_eq!(
        lab.from(),
        [
            vec!["train/a/1.png", "train/a/2.png", "train/b/1.png", "train/c/1.png"],
            vec!["test/b/1.png", "test/c/1.png"]
        ]
    );
    fs::remove_file(lab.path("archive/train/c")).unwrap();
    lab.imported("archive", &["--test-split", "val"]);
    assert_eq!(lab.from()[1], ["val/a/1.png"]);
    let message = lab.import("archive", &["--overwrite", "--test-split", "x"]).unwrap_err();
    assert!(message.starts_with("--test-split x: ") && message.ends_with(" test, val"), "{message}");
    let message = lab.import("archive", &["--overwrite", "--test-fraction", "0.5"]).unwrap_err();
    assert!(names_all(&message, "--test-fraction 0.5: | archive | test split"), "{message}");

    // Unpacking an archive often creates an outer folder.
    fs::create_dir(lab.path("outer")).unwrap();
    fs::rename(lab.path("archive"), lab.path("outer/archive")).unwrap();
    lab.imported("outer", &[]);
    assert_eq!(lab.from()[1].len(), 2);
}

#[test]
fn pictures_of_many_sizes_need_one_and_get_it() {
    let lab = Lab::new();
    lab.picture("pets/a/wide.png", [10, 30], 200);
    lab.picture("pets/a/high.png", [30, 10], 200);
    lab.picture("pets/b/x.png", [8, 8], 200);
    lab.picture("pets/b/y.png", [8, 8], 100);
    let message = lab.import("pets", &[]).unwrap_err();
    assert!(
        names_all(&message, "3 sizes | 8x8 (2, | b/x.png | 10x30 (1, | 30x10 (1, | --size 64x64 | --fit"),
        "{message}"
    );
    for (name, fit) in [("crop", Fit::Crop), ("stretch", Fit::Stretch), ("pad", Fit::Pad)] {
        let options = ["--size", "8x10", "--fit", name, "--order", "files"];
        let set = lab.imported("pets", &options).set;
        assert_eq!((set.shape, set.fit), ([3, 8, 10], Some(fit)));
        let bytes = lab.data("train-images.npy");
        assert_eq!(bytes.contains(&0), fit == Fit::Pad, "{name}");
        assert!(bytes.iter().all(|byte| [0, 20, 30, 100, 200].contains(byte)), "{name}");
    }
    assert_eq!(lab.imported("pets", &["--size", "5", "--grey"]).set.shape, [1, 5, 5]);
    for size in ["0x3", "x", "3x", "9000", "3x-1"] {
        assert!(
            names_all(&lab.import("pets", &["--size", size]).unwrap_err(), "height | width | 64x96"),
            "{size}"
        );
    }
}

#[test]
fn files_that_are_no_pictures_are_named_and_can_be_left_out() {
    let lab = Lab::new();
    for number in 0..4 {
        for class in ["a", "b"] {
            lab.picture(&format!("pets/{class}/{number}.jpg"), [16, 16], number * 50);
            lab.picture(&format!("pets/{class}/{number}.png"), [16, 16], number * 50 + 1);
        }
    }
    for (name, of) in [("cut.png", "0.png"), ("cut.jpg", "0.jpg")] {
        let whole = fs::read(lab.path(&format!("pets/a/{of}"))).unwrap();
        lab.write(&format!("pets/a/{name}"), &whole[..whole.len() * 4 / 5]);
    }
    lab.write("pets/a/empty.png", "");
    lab.write("pets/b/page.jpg", "<html>");
    std::os::unix::fs::symlink("nowhere", lab.path("pets/b/link.png")).unwrap();
    let message = lab.import("pets", &[]).unwrap_err();
    assert!(names_all(&message, "/pets: | 5 pictures | --skip-broken"), "{message}");
    assert!(!lab.path("out").exists(), "nothing is written");
    assert_eq!(lab.names(), ["pets"], "nor left behind");
    let Imported { counts, .. } = lab.imported("pets", &["--skip-broken"]);
    assert_eq!(counts[0].iter().chain(&counts[1]).sum::<usize>(), 16);
}

/// Returns a PNG file with an additional chunk after its pixels.
fn with_chunk(png: &[u8], kind: &[u8; 4], contents: &[u8]) -> Vec<u8> {
    let mut checksum = flate2::Crc::new();
    [&kind[..], contents].iter().for_each(|bytes| checksum.update(bytes));
    let length = (contents.len() as u32).to_be_bytes();
    let (before, end) = png.split_at(png.len() - 12);
    [before, &length, kind, contents, &checksum.sum().to_be_bytes(), end].concat()
}

#[test]
fn palettes_are_read_and_an_orientation_behind_the_pixels_is_applied() {
    let lab = Lab::new();
    lab.picture("pets/a/x.png", [2, 3], 7);
    // Orientation 6, a quarter turn, in the first directory of a little-endian TIFF header.
    let exif = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let whole = fs::read(lab.path("pets/a/x.png")).unwrap();
    lab.write("pets/a/x.png", with_chunk(&whole, b"eXIf", exif));
    // A BMP with a palette: 8 bits for each pixel, 3 high and 2 wide. Its rows take 4 bytes.
    let header =
        |kind: &[u8], fields: [u32; 13]| [kind, fields.map(u32::to_le_bytes).as_flattened()].concat();
    let bmp = header(b"BM", [74, 0, 62, 40, 2, 3, 0x0008_0001, 0, 12, 0, 0, 2, 0]);
    let pixels = [30, 20, 8, 0, 0, 0, 0, 0].into_iter().chain([0; 12]);
    lab.write("pets/b/x.bmp", bmp.into_iter().chain(pixels).collect::<Vec<u8>>());
    let special = |name: &str| {
        let place = crate::import::pictures::place::Encoded::File(lab.path(name));
        crate::import::pictures::codec::look(&crate::import::pictures::place::Place::Encoded(place))
            .unwrap()
            .special
    };
    let [turned] = &special("pets/a/x.png")[..] else { panic!("one property") };
    assert!(turned.contains("EXIF"), "{turned}");
    let [palette] = &special("pets/b/x.bmp")[..] else { panic!("one property") };
    assert!(names_all(palette, "palette | RGB"), "{palette}");
    for (copy, of) in [("pets/a/y.png", "pets/a/x.png"), ("pets/b/y.bmp", "pets/b/x.bmp")] {
        fs::copy(lab.path(of), lab.path(copy)).unwrap();
    }
    assert_eq!(lab.imported("pets", &["--order", "files"]).set.shape, [3, 3, 2]);
    let pixels = lab.data("train-images.npy");
    assert_eq!([0, 6, 12, 18, 24, 30].map(|at| pixels[at]), [7, 20, 30, 8, 20, 30]);
    // A TIFF with a palette is rejected. The first tags are width, height, bits, no compression and palette.
    // The others say where the only pixel is.
    let fields =
        [(256u16, 1u16), (257, 1), (258, 8), (259, 1), (262, 3), (273, 0), (277, 1), (278, 1), (279, 1)];
    let entry = |(tag, value): (u16, u16)| [tag, 3, 1, 0, value, 0].map(u16::to_le_bytes).concat();
    let entries: Vec<u8> = fields.into_iter().flat_map(entry).collect();
    lab.write("pets/a/y.png", [b"II*\0\x08\0\0\0\x09\0", &entries[..], &[0; 4]].concat());
    let message = crate::import::reading::picture(&lab.path("pets/a/y.png"), [3, 1, 1], Fit::Crop)
        .unwrap_err()
        .to_string();
    assert!(names_all(&message, "y.png: | TIFF | palette | PNG"), "{message}");
}

#[test]
fn a_folder_of_anything_else_is_one_line() {
    let lab = Lab::new();
    lab.write("nothing/readme.txt", "x");
    lab.write("words/a/x.txt", "x");
    lab.picture("flat/x.png", [2, 2], 1);
    lab.picture("pets/a/x.png", [2, 2], 1);
    lab.picture("pets/a/y.png", [2, 2], 2);
    lab.picture("one/a/x.png", [2, 2], 1);
    lab.picture("untrained/test/a/x.png", [2, 2], 1);
    lab.picture("untrained/val/a/x.png", [2, 2], 1);
    for (source, options, expected) in [
        ("untrained", &[][..], "/untrained: | test | folder train"),
        (
            "nothing",
            &[][..],
            "/nothing: | no data set | metadata.csv | train.csv and test.csv | 1 .txt file (readme.txt)",
        ),
        ("words", &[], "/words: | 1 folder (a) | webp"),
        ("flat", &[], "/flat: | 1 picture (x.png) | class folder | metadata.csv"),
        ("missing", &[], "cannot read | missing"),
        ("pets", &["--test-fraction", "1"], "--test-fraction | above 0 | below 1"),
        ("pets", &["--test-split", "val"], "--test-split val: | pets | folder train"),
        ("pets", &["--mean", "1e39"], "--mean | 1e39 | 3.4e38"),
        ("pets", &["--mean", "1,2"], "--mean 1,2: | 2 values | 3 channels"),
        ("one", &[], "/one: | the only class | \"a\" | one sample"),
        ("pets", &["--std", "1,2,0"], "--std | above 0"),
    ] {
        let message = lab.import(source, options).unwrap_err();
        assert!(names_all(&message, expected), "{source}: {message}");
    }
    for (out, relation) in [("pets", "the same folder"), ("pets/x", "inside"), (".", "contains")] {
        let out = lab.path(out);
        let message = lab.import("pets", &["--out", out.to_str().unwrap()]).unwrap_err();
        assert!(names_all(&message, "--out | /pets: ") && message.contains(relation), "{message}");
    }
    let message = lab.import("pets", &["--out", "/proc"]).unwrap_err();
    assert!(names_all(&message, "--out /proc: | mount point"), "{message}");
}

#[test]
fn nothing_but_a_data_set_is_replaced() {
    let lab = Lab::new();
    lab.picture("pets/a/x.png", [2, 2], 1);
    lab.picture("pets/b/x.png", [2, 2], 1);
    lab.picture("pets/b/y.png", [2, 2], 1);
    lab.import("pets", &[]).unwrap();
    assert!(names_all(&lab.import("pets", &[]).unwrap_err(), "--out | data set | --overwrite"));
    lab.write("out/thesis.txt", "mine");
    assert!(names_all(&lab.import("pets", &["--overwrite"]).unwrap_err(), "--out | thesis.txt"));
    fs::remove_file(lab.path("out/thesis.txt")).unwrap();
    lab.write("idx/train-labels-idx1-ubyte", "");
    let idx = lab.path("idx");
    let message = lab.import("pets", &["--overwrite", "--out", idx.to_str().unwrap()]).unwrap_err();
    assert!(names_all(&message, "--out | /idx: | another data set, IDX files"), "{message}");
    fs::remove_dir_all(idx).unwrap();
    lab.import("pets", &["--overwrite"]).unwrap();
    let other = lab.path("other");
    let options = ["--out", other.to_str().unwrap()];
    let stopped = lab.import_while("pets", &options, &|_, _| ControlFlow::Break(()));
    assert_eq!(stopped.unwrap_err(), "stopped");
    assert_eq!(lab.names(), ["out", "pets"]);
}

#[test]
fn one_import_at_a_time_writes_to_a_folder_and_removes_what_a_killed_one_left() {
    let lab = Lab::new();
    lab.picture("pets/a/x.png", [2, 2], 1);
    lab.picture("pets/a/y.png", [2, 2], 2);
    let second = Mutex::new(String::new());
    let first = lab.import_while("pets", &[], &|_, _| {
        *second.lock().unwrap() = lab.import("pets", &[]).unwrap_err();
        ControlFlow::Continue(())
    });
    first.unwrap();
    let second = second.into_inner().unwrap();
    assert!(names_all(&second, ".out.part | process "), "{second}");
    assert_eq!(lab.names(), ["out", "pets"]);

    // A killed import leaves a lock that nobody holds.
    lab.write(".out.part/.lock", "process 1 on elsewhere");
    lab.write(".out.part/unpacked/pets/z.png", "half");
    lab.imported("pets", &[]);
    assert_eq!(lab.names(), ["out", "pets"]);
    // If the import is killed between its two renames, `old` is the only data set.
    lab.write(".out.part/.lock", "process 1 on elsewhere");
    fs::rename(lab.path("out"), lab.path(".out.part/old")).unwrap();
    let message = lab.import("pets", &[]).unwrap_err();
    assert!(names_all(&message, "--out | data set | --overwrite"), "{message}");
    assert_eq!(lab.names(), ["out", "pets"]);
    // An empty folder at the data set's place does not count as a data set, and a failing import loses no
    // data set.
    lab.write(".out.part/.lock", "");
    fs::rename(lab.path("out"), lab.path(".out.part/old")).unwrap();
    fs::create_dir(lab.path("out")).unwrap();
    lab.import("pets", &["--label", "nope"]).unwrap_err();
    lab.import("pets", &[]).unwrap_err();
    assert!(lab.path("out/dataset.json").exists() && !lab.path(".out.part").exists());
    lab.write(".out.part/.lock", "");
    fs::rename(lab.path("out"), lab.path(".out.part/old")).unwrap();
    std::os::unix::fs::symlink("nowhere", lab.path("out")).unwrap();
    assert!(names_all(&lab.import("pets", &[]).unwrap_err(), "--out | .out.part/old | killed"));
    fs::remove_file(lab.path("out")).unwrap();
    lab.import("pets", &[]).unwrap_err();
    assert!(lab.path("out/dataset.json").exists());
}

#[test]
fn an_import_keeps_what_others_have_beside_or_in_its_folder() {
    use std::os::unix::fs::PermissionsExt;
    let lab = Lab::new();
    lab.picture("pets/a/x.png", [2, 2], 1);
    lab.picture("pets/a/y.png", [2, 2], 2);
    lab.imported("pets", &[]);
    // A private folder is still private after it is replaced.
    fs::set_permissions(lab.path("out"), fs::Permissions::from_mode(0o700)).unwrap();
    lab.imported("pets", &[]);
    assert_eq!(fs::metadata(lab.path("out")).unwrap().permissions().mode() & 0o777, 0o700);
    // A file that somebody puts there during the import stays.
    let first = lab.import_while("pets", &["--overwrite"], &|_, _| {
        lab.write("out/notes.txt", "mine");
        ControlFlow::Continue(())
    });
    assert!(names_all(&first.unwrap_err(), "--out | notes.txt"));
    assert!(lab.path("out/notes.txt").exists());
    fs::remove_file(lab.path("out/notes.txt")).unwrap();
    // The output is a link to the source.
    fs::rename(lab.path("out"), lab.path("kept")).unwrap();
    std::os::unix::fs::symlink("pets", lab.path("out")).unwrap();
    assert!(names_all(&lab.import("pets", &["--overwrite"]).unwrap_err(), "--out | the same folder"));
    fs::remove_file(lab.path("out")).unwrap();
    fs::rename(lab.path("kept"), lab.path("out")).unwrap();
    lab.write(".out.part/.lock", "");
    lab.write(".out.part/run.json", "another's");
    lab.import("pets", &["--overwrite"]).unwrap_err();
    assert!(lab.path(".out.part/run.json").exists());
    fs::remove_dir_all(lab.path(".out.part")).unwrap();
    lab.write(".out.part/thesis.txt", "mine");
    assert!(names_all(&lab.import("pets", &["--overwrite"]).unwrap_err(), "--out | .out.part"));
    assert!(lab.path(".out.part/thesis.txt").exists());
    fs::remove_dir_all(lab.path(".out.part")).unwrap();
    // If the import's folder is a link, the folder that it leads to does not belong to an import.
    lab.write("thesis/text", "mine");
    std::os::unix::fs::symlink("thesis", lab.path(".out.part")).unwrap();
    assert!(names_all(&lab.import("pets", &["--overwrite"]).unwrap_err(), "--out | .out.part"));
    assert!(lab.path("thesis/text").exists());
}

/// Returns the features of the training split, by sample.
pub(crate) fn features(lab: &Lab, columns: usize) -> Vec<Vec<f32>> {
    let values: Vec<f32> =
        lab.data("train-images.npy").as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    values.chunks_exact(columns).map(<[f32]>::to_vec).collect()
}

#[test]
fn pictures_and_rows_are_read_as_those_of_the_data_set() {
    let lab = Lab::new();
    for number in 0..5 {
        lab.picture(&format!("pets/a/{number}.png"), [10, 14], 40 * number);
    }
    let set = lab.imported("pets", &["--size", "6x5", "--fit", "pad", "--order", "files"]).set;
    let found = crate::import::reading::pictures(&lab.path("pets")).unwrap();
    assert_eq!(found.len(), 5);
    let bytes = lab.data("train-images.npy");
    for (from, sample) in lab.from()[0].iter().zip(bytes.chunks_exact(3 * 6 * 5)) {
        assert_eq!(
            crate::import::reading::picture(&lab.path("pets").join(from), set.shape, set.fit.unwrap())
                .unwrap(),
            sample
        );
    }
    lab.write("pets/a/notes.png", "no picture");
    assert!(crate::import::reading::picture(&lab.path("pets/a/notes.png"), set.shape, Fit::Crop).is_err());

    let names = ["y".to_owned(), "x".into()];
    let rows = |contents: &str| {
        lab.write("rows.csv", contents);
        let mut found = Vec::new();
        crate::import::reading::rows(&lab.path("rows.csv"), 2, &names, |line, row| {
            found.push((line, row.ok()))
        })
        .map(|()| found)
        .map_err(|error| error.to_string())
    };
    assert_eq!(rows("x,y,name\n1,2,a\n3,?,b\n").unwrap(), [(2, Some(vec![2.0, 1.0])), (3, None)]);
    assert_eq!(rows("X,Y\n1,2\n").unwrap(), [(2, Some(vec![2.0, 1.0]))], "as in the table of a split");
    assert_eq!(rows("X,x,y\n9,1,2\n").unwrap(), [(2, Some(vec![2.0, 1.0]))]);
    assert_eq!(rows("1,2\n3,4\n").unwrap(), [(1, Some(vec![1.0, 2.0])), (2, Some(vec![3.0, 4.0]))]);
    let twins = ["x".to_owned(), "X".into()];
    lab.write("rows.csv", "x,y\n1,2\n");
    let message =
        crate::import::reading::rows(&lab.path("rows.csv"), 2, &twins, |_, _| {}).unwrap_err().to_string();
    assert!(names_all(&message, "rows.csv: | column \"x\" | two features | x, X"), "{message}");
    assert!(names_all(&rows("1,2,3\n").unwrap_err(), "rows.csv: | 3 columns | 2 features | y, x"));
}

#[test]
fn pictures_that_are_left_out_have_no_say() {
    let lab = Lab::new();
    for number in 0..3 {
        lab.picture(&format!("pets/train/{number}.png"), [4, 4], number);
        lab.picture(&format!("pets/bus/{number}.png"), [4, 4], number);
    }
    lab.picture("pets/bus/big.png", [40, 40], 9);
    let whole = fs::read(lab.path("pets/bus/big.png")).unwrap();
    lab.write("pets/bus/big.png", &whole[..whole.len() - 20]);
    let fifo = lab.path("pets/bus/pipe.png");
    assert!(std::process::Command::new("mkfifo").arg(fifo).status().unwrap().success());
    let set = lab.imported("pets", &["--skip-broken"]).set;
    assert_eq!(
        (set.shape, &set.classes[..]),
        ([3, 4, 4], &["bus".to_owned(), "train".into()][..]),
        "train is a class"
    );
    let message = lab.import("pets", &["--overwrite", "--skip-broken", "--drop", "x"]).unwrap_err();
    assert!(names_all(&message, "--drop x: | tables | pets"), "{message}");

    // A link to a data set is followed. Files that another import has written stay.
    lab.imported("pets", &["--skip-broken"]);
    fs::rename(lab.path("out"), lab.path("there")).unwrap();
    std::os::unix::fs::symlink("there", lab.path("out")).unwrap();
    lab.imported("pets", &["--skip-broken", "--seed", "9"]);
    assert!(lab.path("out").is_symlink());
    assert_eq!(DataSet::read(&lab.path("there")).unwrap().seed, 9);
}

#[test]
fn a_data_set_that_changed_after_the_import_is_named() {
    let lab = Lab::new();
    lab.write("table.csv", "x,class\n1,a\n2,a\n3,b\n4,b\n");
    lab.imported("table.csv", &[]);
    let out = lab.path("out");
    let digest = || {
        let source = crate::open(&out).map_err(|error| error.to_string())?;
        crate::shard::digest(&source, crate::Split::Test, 2).map_err(|error| error.to_string())
    };
    let recorded = digest().unwrap();
    let samples = out.join("test-images.npy");
    let mut bytes = fs::read(&samples).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&samples, bytes).unwrap();
    let message = digest().unwrap_err();
    assert!(message.starts_with(&format!("{}: ", out.display())), "{message}");
    assert!(names_all(&message, "test samples | import") && message.contains(&recorded[..12]), "{message}");
    fs::remove_file(out.join("train-labels.npy")).unwrap();
    let message = digest().unwrap_err();
    assert!(
        message.contains("train-labels.npy: ") && message.ends_with("import the data set again"),
        "{message}"
    );
}

#[test]
fn a_damaged_description_is_one_line() {
    let lab = Lab::new();
    lab.write("table.csv", "x,class\n1,a\n2,a\n3,b\n4,b\n");
    lab.imported("table.csv", &[]);
    let path = lab.path("out/dataset.json");
    let text = fs::read_to_string(&path).unwrap();
    let read = |text: &str| {
        fs::write(&path, text).unwrap();
        DataSet::read(path.parent().unwrap_or(Path::new("."))).map_err(|error| error.to_string())
    };
    assert!(read(&text).is_ok());
    for (from, to, expected) in [
        ("\"version\": 1", "\"version\": 2", "dataset.json: | version 2 | version 1"),
        ("\"std\": [", "\"std\": [1, ", "dataset.json: | 1 mean | 2 standard deviations"),
        ("\"mean\": [", "\"mean\": [1e999, ", "dataset.json: | too large"),
        ("\"shape\"", "\"shapes\"", "dataset.json: | `shape` | missing"),
    ] {
        let message = read(&text.replacen(from, to, 1)).unwrap_err();
        assert!(names_all(&message, expected) && message.lines().count() == 1, "{message}");
    }
}
