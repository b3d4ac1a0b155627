//! Data of users: from pictures and tables, through import and training, to predictions.

use std::fs;

use data::Split;
use data::generate::digits;
use run_report::write_png;

use crate::harness::*;

const CLASSES: [&str; 3] = ["blue sky", "grass", "żar"];

/// A picture whose brightest colour channel depends on its class.
fn picture(class: usize, number: usize, [width, height]: [usize; 2]) -> Vec<u8> {
    let value = |at: usize| 40 + (at * 31 + number * 17) % 60;
    let channel = [2, 1, 0][class];
    (0..3 * width * height).map(|at| (value(at) + if at % 3 == channel { 110 } else { 0 }) as u8).collect()
}

/// Writes a folder of pictures for each of three classes: 7, 9 and 11 pictures.
fn pictures(lab: &Lab, name: &str, size: [usize; 2]) {
    for (class, folder) in CLASSES.iter().enumerate() {
        fs::create_dir_all(lab.path(name).join(folder)).unwrap();
        for number in 0..7 + 2 * class {
            let path = lab.path(name).join(folder).join(format!("{number}.png"));
            write_png(&path, size.map(|side| side as u32), &picture(class, number, size)).unwrap();
        }
    }
}

/// Imports `source` into the data set `out`.
fn import(lab: &Lab, source: &str, out: &str, options: &[&str]) -> String {
    let mut job = job(1);
    job.args(["data", "import"]).arg(lab.path(source)).arg("--out").arg(lab.path(out)).args(options);
    succeeds(&job)
}

/// Trains on the data set `data` into `run`.
fn train(lab: &Lab, ranks: usize, run: &str, data: &str, options: &[&str]) -> serde_json::Value {
    let data = lab.path(data);
    lab.train(ranks, run, &[&["--data-root", data.to_str().unwrap()], options].concat())
}

/// The job of `predict` for the files `paths`.
fn predict(lab: &Lab, run: &str, paths: &[&str], options: &[&str]) -> Job {
    let mut job = lab.on(1, &["predict"], run);
    job.args(paths.iter().map(|path| lab.path(path))).args(options);
    job
}

/// Checks that what a command prints contains all `facts`.
fn names(printed: &str, facts: &[&str]) {
    for fact in facts {
        assert!(printed.contains(fact), "{fact}: {printed}");
    }
}

/// Options of a training that learns to classify the pictures.
const LEARNS: &[&str] = &[
    "--train-batch-size",
    "1",
    "--epochs",
    "5",
    "--seed",
    "3",
    "--overwrite",
    "--optimizer",
    "adam",
    "--lr",
    "0.01",
];

/// Trains on the imported pictures, checks that all test samples are right, and returns the digest of the weights.
fn learn(lab: &Lab, ranks: usize, more: &[&str]) -> serde_json::Value {
    let run = train(lab, ranks, "run", "data", &[LEARNS, more].concat());
    assert_eq!(run["test_accuracy"], 100.0, "{ranks} ranks");
    run["weights_sha256"].clone()
}

/// A lab with a folder of pictures (`skies`), the data set made of them (`data`), and a run trained on it
/// (`run`).
fn trained_on_pictures() -> Lab {
    let lab = Lab::new();
    pictures(&lab, "skies", [13, 9]);
    import(&lab, "skies", "data", &[]);
    learn(&lab, 2, &[]);
    lab
}

#[test]
fn pictures_become_a_network_that_names_them() {
    let lab = Lab::new();
    pictures(&lab, "skies", [13, 9]);
    let printed = import(&lab, "skies", "data", &[]);
    names(&printed, &["3 classes", "3 x 9 x 13", "--data-root"]);
    assert!(table_rows(&printed).contains(&vec!["2", "żar", "9", "2"]), "{printed}");
    learn(&lab, 2, &[]);
    let data = lab.run_json("run")["data"].clone();
    assert_eq!((&data["shape"], &data["class_names"]), (&vec![3, 9, 13].into(), &CLASSES.to_vec().into()));

    let printed = succeeds(predict(&lab, "run", &["skies"], &["--csv", "--top", "9"]));
    let mut lines = csv::Reader::from_reader(printed.as_bytes());
    let rows: Vec<csv::StringRecord> = lines.records().map(Result::unwrap).collect();
    assert_eq!(rows.len(), 27);
    for row in &rows {
        assert!(row[0].contains(&format!("/{}/", &row[1])), "{row:?}");
        let sum: f64 = [2, 4, 6].iter().map(|&column| row[column].parse::<f64>().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{row:?}");
    }
    succeeds(lab.on(1, &["quantize"], "run"));
    let printed = succeeds(predict(&lab, "run", &["skies/grass/3.png"], &["--int8"]));
    assert!(
        printed.contains("grass/3.png: grass 0.") || printed.contains("grass/3.png: grass 1.0"),
        "{printed}"
    );
    let tested = succeeds(lab.on(3, &["eval", "--int8", "--checkpoint"], "run"));
    names(&tested, &["100.00%", "5 of 5 samples"]);
    let resumed = output_of(lab.resume(2, "run", &["--epochs", "6"]));
    assert!(resumed.contains("resuming"), "{resumed}");
}

#[test]
fn trainings_on_pictures_repeat_to_the_bit_in_memory_and_from_disk() {
    let lab = trained_on_pictures();
    assert_eq!(learn(&lab, 3, &[]), learn(&lab, 3, &[]));
    let in_memory = learn(&lab, 3, &["--shuffle"]);
    assert_eq!(in_memory, learn(&lab, 3, &["--shuffle", "--samples-in", "disk"]));
}

#[test]
fn a_training_on_pictures_prints_classes_and_info_the_digests_of_the_run() {
    let lab = trained_on_pictures();
    let data = lab.path("data");
    let of_data = ["--data-root", data.to_str().unwrap(), "--train-batch-size", "1", "--overwrite"];
    let printed = succeeds(lab.command(2, "run", &of_data));
    let has_class = table_rows(&printed).iter().any(|row| row[0] == "blue sky");
    assert!(printed.contains("balanced accuracy") && has_class, "{printed}");
    // The digests of the data set, which later commands compare with.
    let manifest = fs::read(lab.newest("run").join("manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let run = lab.run_json("run");
    let mut info = job(1);
    info.args(["data", "info"]).arg(&data);
    let printed = succeeds(&info);
    for known in [&run["data"]["train_sha256"], &manifest["data"]["train"], &manifest["data"]["test"]] {
        assert!(printed.contains(known.as_str().unwrap()), "{known}: {printed}");
    }
}

#[test]
fn a_picture_that_cannot_be_read_has_a_line_and_the_others_theirs() {
    let lab = trained_on_pictures();
    fs::write(lab.path("skies/grass/x.png"), "no picture").unwrap();
    let output = must_fail(predict(&lab, "run", &["skies/grass", "nowhere.png"], &[]));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 9);
    let lines = text(&output);
    names(&lines, &["grass/x.png: is not a picture", "nowhere.png: No such file", "2 paths"]);
}

#[test]
fn a_data_set_that_changed_after_the_training_is_named() {
    let lab = trained_on_pictures();
    let set = lab.path("data/dataset.json");
    let whole = fs::read(&set).unwrap();
    for (key, value, named) in [
        ("classes", "sea".into(), ["class 1", "sea", "grass"]),
        ("mean", 0.25.into(), ["channel 1", "mean 0.25", "standard deviation"]),
    ] {
        edit(&set, |set| set[key][1] = value);
        for job in [lab.on(3, &["eval", "--checkpoint"], "run"), lab.resume(2, "run", &[])] {
            refused(job, 2, &[&["/data: ", "training"], &named[..]].concat());
        }
        fs::write(&set, &whole).unwrap();
    }
    import(&lab, "skies", "data", &["--overwrite", "--size", "9"]);
    refused(lab.on(2, &["eval", "--checkpoint"], "run"), 2, &["has samples of 3x9x9", "3x9x13"]);
    // A prediction needs the description of the data set in run.json.
    for mean in [vec![0.5], vec![0.5; 3]] {
        edit(&lab.path("run/run.json"), |run| run["data"]["mean"] = mean.into());
        refused(predict(&lab, "run", &["skies"], &[]), 1, &["`data`", "run.json", "checkpoint"]);
    }
}

#[test]
fn another_data_set_is_normalised_as_that_of_the_training() {
    let lab = trained_on_pictures();
    import(&lab, "skies", "same", &[]);
    import(&lab, "skies", "other", &["--mean", "0.9", "--std", "0.01"]);
    let tested = |data: &str| {
        let mut job = lab.on(2, &["eval", "--checkpoint"], "run");
        succeeds(job.arg("--data-root").arg(lab.path(data)))
    };
    assert_eq!(tested("other"), tested("same"));
    let before = lab.run_json("run")["data"]["mean"].clone();
    let other = lab.path("other");
    output_of(lab.resume(2, "run", &["--epochs", "7", "--data-root", other.to_str().unwrap()]));
    assert_eq!(lab.run_json("run")["data"]["mean"], before, "the network was trained with it");
}

#[test]
fn a_table_becomes_a_network_that_names_its_rows() {
    let lab = Lab::new();
    let row = |n: usize| {
        let class = n % 3;
        format!("{n};{},5;{};{}\n", 1000 * class + n % 7, 3 - class, ["x", "y", "z"][class])
    };
    let rows: String = (0..50).map(row).collect();
    fs::write(lab.path("table.csv"), format!("id;length;size;species\n{rows}")).unwrap();
    let printed = import(&lab, "table.csv", "data", &["--drop", "id"]);
    names(&printed, &["2 features of f32", "mean"]);
    let run = train(
        &lab,
        3,
        "run",
        "data",
        &[
            "--model",
            "mlp",
            "--epochs",
            "40",
            "--train-batch-size",
            "8",
            "--lr",
            "0.02",
            "--optimizer",
            "adam",
        ],
    );
    assert_eq!(
        (&run["test_accuracy"], &run["data"]["features"]),
        (&100.0.into(), &vec!["length", "size"].into())
    );
    // A data set with other columns, or from another import, is rejected.
    fs::write(lab.path("table.csv"), format!("id;size;length;species\n{rows}")).unwrap();
    import(&lab, "table.csv", "swapped", &["--drop", "id"]);
    let mut other = lab.on(2, &["eval", "--checkpoint"], "run");
    refused(
        other.arg("--data-root").arg(lab.path("swapped")).clone(),
        2,
        &["--data-root ", "the feature size", "length"],
    );
    import(&lab, "table.csv", "seeded", &["--drop", "id", "--seed", "9"]);
    fs::copy(lab.path("seeded/train-labels.npy"), lab.path("data/train-labels.npy")).unwrap();
    let mut again = job(3);
    again.args(["train", "--model", "mlp", "--epochs", "1", "--data-root"]).arg(lab.path("data"));
    fails_with(
        again.arg("--out").arg(lab.path("again")).clone(),
        &["data: ", "training samples", "digest", "dataset.json", "import the data set again"],
    );
    let mut info = job(1);
    info.args(["data", "info"]).arg(lab.path("data"));
    fails_with(info, &["data: ", "training samples", "digest", "dataset.json", "import the data set again"]);

    fs::write(lab.path("new.csv"), "size,length\n1,2003.5\n3,4.5\nlarge,1\n").unwrap();
    let output = must_fail(predict(&lab, "run", &["new.csv"], &["--csv"]));
    let lines: Vec<String> = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    assert!(lines[1].contains("new.csv:2,z,") && lines[2].contains("new.csv:3,x,"), "{lines:?}");
    names(&text(&output), &["new.csv: line 4: ", "column size is \"large\""]);
}

/// Trains on the same samples three times: as they are, imported from pictures, and imported from tables. All
/// three trainings give the same bits.
#[test]
fn imported_samples_are_those_of_the_original() {
    let lab = Lab::new();
    let draw = |split, count: u64| {
        let mut samples: Vec<_> = (0..count).map(|index| digits::draw(5, split, index)).collect();
        // In the order in which an import reads a folder for each class.
        samples.sort_by_key(|(_, label)| *label);
        samples
    };
    let splits = [("train", Split::Train, 150), ("test", Split::Test, 60)];
    fs::create_dir(lab.path("idx")).unwrap();
    fs::create_dir(lab.path("tables")).unwrap();
    for (name, split, count) in splits {
        let samples = draw(split, count);
        let prefix = if name == "train" { "train" } else { "t10k" };
        let header = |magic: u32, sizes: &[u32]| {
            [&[magic], sizes].concat().into_iter().flat_map(u32::to_be_bytes).collect::<Vec<u8>>()
        };
        let pixels: Vec<u8> = samples.iter().flat_map(|sample| sample.0).collect();
        let labels: Vec<u8> = samples.iter().map(|sample| sample.1).collect();
        let idx = lab.path("idx");
        fs::write(
            idx.join(format!("{prefix}-images-idx3-ubyte")),
            [header(0x803, &[count as u32, 28, 28]), pixels].concat(),
        )
        .unwrap();
        fs::write(
            idx.join(format!("{prefix}-labels-idx1-ubyte")),
            [header(0x801, &[count as u32]), labels].concat(),
        )
        .unwrap();
        let mut table =
            format!("{},label\n", (0..784).map(|at| format!("p{at}")).collect::<Vec<_>>().join(","));
        for (number, (pixels, label)) in samples.iter().enumerate() {
            let folder = lab.path(&format!("png/{name}/{label}"));
            fs::create_dir_all(&folder).unwrap();
            let rgb: Vec<u8> = pixels.iter().flat_map(|&byte| [byte; 3]).collect();
            write_png(&folder.join(format!("{number:04}.png")), [28, 28], &rgb).unwrap();
            let values = pixels.iter().map(|&byte| (f32::from(byte) / 255.0).to_string());
            table += &values.chain([label.to_string()]).collect::<Vec<_>>().join(",");
            table.push('\n');
        }
        fs::write(lab.path(&format!("tables/{name}.csv")), table).unwrap();
    }
    let moments = ["--order", "files", "--mean", "0.1307", "--std", "0.3081"];
    import(&lab, "png", "png-set", &[&moments[..], &["--grey"]].concat());
    import(&lab, "tables", "table-set", &moments);
    for (model, sets) in [("convnet", &["png-set"][..]), ("mlp", &["png-set", "table-set"])] {
        let digest = |data: &str| {
            let run = train(&lab, 2, &format!("{model}-{data}"), data, &["--model", model, "--epochs", "2"]);
            [run["weights_sha256"].clone(), run["test_loss"].clone()]
        };
        let original = digest("idx");
        sets.iter().for_each(|set| assert_eq!(digest(set), original, "{model}, {set}"));
    }

    // paper.png is black on white; the network has learned white on black.
    for (name, value) in [("paper.png", 230), ("night.png", 30)] {
        write_png(&lab.path(name), [28, 28], &vec![value; 28 * 28 * 3]).unwrap();
    }
    let told = |names: &[&str]| text(&run(predict(&lab, "convnet-png-set", names, &[])));
    let both = told(&["night.png", "paper.png"]);
    let paper = lab.path("paper.png");
    names(&both, &["1 of 2 pictures", "brighter", paper.to_str().unwrap(), "0.90", "0.13"]);
    let ordinary = told(&["night.png"]);
    assert!(!ordinary.contains("brighter"), "{ordinary}");
    // A table where a picture is expected, and a picture where a table is expected.
    fs::write(lab.path("empty.csv"), (0..784).map(|at| format!("p{at}")).collect::<Vec<_>>().join(","))
        .unwrap();
    let output = must_fail(predict(&lab, "mlp-table-set", &["empty.csv", "night.png"], &[]));
    names(&text(&output), &["empty.csv: ", "no rows", "night.png: is a picture (PNG)", "table", "1 path"]);
}
