//! Checks that a report can read what a run writes, with each field at its lowest and at its highest value.

use run_record::{
    Attempt, ByClass, Change, ClassRecord, Curve, CurvePoint, DataRecord, EpochRow, FailedAttempt,
    FailedCheckpoint, Machine, Metrics, RankPlace, RankRecord, Results, RunDir, RunRecord, RunWriter, Start,
    StepMs,
};

use crate::allreduce::LatencyRow;
use crate::collectives::CollectiveRow;
use crate::csv_table::{self, TableRow};
use crate::curve_points::{tests, training};
use crate::findings::findings;
use crate::fused::FusedRow;
use crate::link::LinkRow;
use crate::profiles::testing::{json, operator};
use crate::rows::group;
use crate::runs::{Section, read_run};
use crate::summary::summary;
use crate::testing::run;

/// The lowest or highest values of each kind of number. The highest counts and times are far above real ones.
struct Ends {
    /// Count of something that exists at least once.
    some: usize,
    count: usize,
    seconds: f64,
    ms_per_step: f64,
    percent: f64,
    loss: f64,
    /// Mean of a feature.
    mean: f32,
    std: f32,
    /// Value of an option.
    option: f64,
}

const LOWEST: Ends = Ends {
    some: 1,
    count: 0,
    seconds: 1e-9,
    ms_per_step: 1e-6,
    percent: 0.0,
    loss: 0.0,
    mean: f32::MIN,
    std: f32::MIN_POSITIVE,
    option: 0.0,
};
const HIGHEST: Ends = Ends {
    some: 1_000_000_000_000,
    count: 1_000_000_000_000,
    seconds: 1e12,
    ms_per_step: 1e3,
    percent: 100.0,
    loss: 1e300,
    mean: f32::MAX,
    std: f32::MAX,
    option: 1e300,
};

fn epoch(of: &Ends) -> EpochRow {
    EpochRow {
        epoch: 1,
        train_loss: of.loss,
        train_accuracy: of.percent,
        test_loss: of.loss,
        test_accuracy: of.percent,
        seconds: of.seconds,
        learning_rate: of.option,
        int8_test_accuracy: Some(of.percent),
        int8_test_loss: Some(of.loss),
    }
}

fn rank(rank: usize, of: &Ends) -> RankRecord {
    RankRecord {
        rank,
        // Names that are also names of fields.
        host: ["loss_ms", "epoch"][rank].into(),
        // The samples of all ranks must add up to those of the data set.
        train_samples: if rank == 0 { of.count } else { 0 },
        test_samples: if rank == 0 { of.count } else { 0 },
        train_loss: Some(of.loss),
        train_accuracy: Some(of.percent),
        test_loss: Some(of.loss),
        test_accuracy: Some(of.percent),
        int8_test_loss: Some(of.loss),
        int8_test_accuracy: Some(of.percent),
        comm_seconds: of.seconds,
        peak_rss_mb: of.seconds,
        live_mb: Some(of.seconds),
    }
}

fn results(of: &Ends) -> Results {
    let class = |name: &str| ClassRecord {
        name: name.into(),
        samples: of.count as u64,
        named: of.count as u64,
        correct: of.count as u64,
        precision: Some(of.percent),
        recall: Some(of.percent),
        accuracy: of.percent,
        taken_for: Some("b".into()),
    };
    let untested = |name: &str| ClassRecord {
        name: name.into(),
        samples: 0,
        named: 0,
        correct: 0,
        precision: None,
        recall: None,
        accuracy: 100.0,
        taken_for: None,
    };
    Results {
        steps: of.some,
        // `epochs.csv` needs a line for each epoch.
        epochs_run: 1,
        start_up_seconds: of.seconds,
        train_seconds: of.seconds,
        test_seconds: of.seconds,
        checkpoint_seconds: of.seconds,
        total_seconds: of.seconds,
        ms_per_step: of.ms_per_step,
        images_per_second: if of.count == 0 { of.seconds } else { of.count as f64 / of.seconds },
        comm_seconds: of.seconds,
        step_ms: StepMs::from_array([of.ms_per_step; 7]),
        bytes_per_step: Some(of.seconds),
        test_accuracy: of.percent,
        int8_test_accuracy: Some(of.percent),
        int8_test_loss: Some(of.loss),
        float_inference_seconds: Some(of.seconds),
        int8_inference_seconds: Some(of.seconds),
        test_loss: of.loss,
        train_accuracy: of.percent,
        train_loss: of.loss,
        per_rank: vec![rank(0, of), rank(1, of)],
        by_class: Some(ByClass {
            balanced_accuracy: of.percent,
            largest_class_accuracy: of.percent,
            classes: vec![class("a"), untested("b")],
            confusion_matrix: vec![vec![of.count as u64, 0], vec![0; 2]],
        }),
        peak_rss_mb: of.seconds,
        live_mb: Some(of.seconds),
        skipped_steps: Some(of.count),
        loss_scale: Some(of.std),
        others_cpu_percent: Some(of.percent),
        others_cpu_percent_by_host: ["loss_ms", "epoch", "batch.accuracy"]
            .map(|host| (host.into(), of.percent))
            .into(),
        weights_sha256: String::new(),
        best_epoch: Some(1),
        stopped_early_after: Some(1),
        target_reached: None,
        steps_to_target: None,
        epochs_to_target: None,
        seconds_to_target: None,
    }
}

fn record(of: &Ends) -> RunRecord {
    let machine = Machine {
        host: "loss_ms".into(),
        cpu: "unknown".into(),
        memory_bytes: of.count as u64 * 1_000_000,
        kernel: String::new(),
    };
    let hosts = ["loss_ms", "epoch"].map(String::from);
    let place = |rank: usize| RankPlace {
        rank,
        host: hosts[rank].clone(),
        pid: if of.count == 0 { 0 } else { u32::MAX },
        binding: "0".into(),
        cores: of.count,
        boot_id: hosts[rank].clone(),
    };
    let option = serde_json::Value::from(of.option);
    let attempt = |step, changed| Attempt { started_at: String::new(), step, changed };
    let mut record = run((2, 1), &["--epochs", "1"], 1.0).record;
    for name in ["lr", "weight_decay", "l1", "l2"] {
        record.config.insert(name.into(), option.clone());
    }
    RunRecord {
        params: of.count,
        machines: vec![machine],
        places: vec![place(0), place(1)],
        oversubscribed: of.count == 0,
        hosts: hosts.to_vec(),
        data: DataRecord {
            train_samples: of.count,
            train_available: of.count,
            test_samples: of.count,
            test_available: of.count,
            test_largest_class: of.count,
            shape: [of.some; 3],
            classes: of.some,
            mean: vec![of.mean, -of.mean],
            std: vec![of.std; 2],
            ..DataRecord::default()
        },
        history: vec![
            attempt(0, Vec::new()),
            attempt(of.count, vec![Change { field: "lr".into(), from: (-1).into(), to: option }]),
        ],
        failed_attempts: vec![FailedAttempt {
            started_at: String::new(),
            ended_at: String::new(),
            from_step: of.count,
            step: of.count,
            exit_code: if of.count == 0 { i32::MIN } else { i32::MAX },
            cause: None,
        }],
        failed_checkpoints: Some(FailedCheckpoint { count: of.count, step: of.count, error: String::new() }),
        results: Some(results(of)),
        ..record
    }
}

#[test]
fn a_report_reads_every_field_of_a_run_at_its_ends() {
    for of in [LOWEST, HIGHEST] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run");
        let dir = RunDir::create(&path, false).unwrap();
        dir.write_record(&record(&of)).unwrap();
        let start = Start { has_int8: true, ..Start::default() };
        let mut writer = RunWriter::open(dir, 2, start).unwrap();
        writer.epoch(&epoch(&of)).unwrap();
        let metrics = Some(Metrics { loss: of.loss, accuracy: of.percent });
        let point = |step| CurvePoint { step, ranks: vec![metrics; 2], mean: metrics };
        for curve in Curve::ALL {
            writer.points(curve, &[point(1), point(of.some)]).unwrap();
        }
        let mut section = Section::default();
        read_run(&path, None, &mut section);
        assert_eq!(section.notes, Vec::<String>::new());
        let rows = group(&section.runs);
        for ending in ["loss", "acc"] {
            training(rows[0].first(), ending).unwrap();
            for name in ["test", "test.int8"] {
                tests(rows[0].first(), name, ending).unwrap();
            }
        }
        let table = summary(&section, &rows, "1x1");
        assert_eq!((findings(&rows, "1x1").is_empty(), table.csv().unwrap().lines().count()), (false, 2));
    }
}

#[test]
fn tables_and_profiles_are_read_at_their_ends() {
    fn check<R: TableRow>(row: R) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.csv");
        crate::write_csv(&path, &[row]).unwrap();
        assert_eq!(csv_table::read::<R>(&path).map(|rows| rows.map(|rows| rows.len())), Ok(Some(1)));
    }
    for (of, ms) in [(LOWEST, 1e-6), (HIGHEST, 1e9)] {
        let [operation, backend, topology] = ["send", "mpi", "1x2"].map(String::from);
        check(FusedRow {
            operator: "fused".into(),
            layers: of.some,
            channels: of.some,
            batch: of.some,
            steps: of.some,
            forward_ms: ms,
            backward_ms: ms,
            test_accuracy: of.percent,
        });
        let (bytes, median_us, result) = (of.some, Some(ms), String::new());
        check(CollectiveRow { operation, backend: backend.clone(), topology, bytes, median_us, result });
        let (min_us, p99_us) = (ms, ms);
        check(LinkRow { backend: backend.clone(), bytes, min_us, one_way_us: ms, p99_us });
        check(LatencyRow { backend, bytes, min_us, median_us: ms, p99_us, busbw_mb_s: of.seconds });

        let mut profile =
            json("mlp", "relu", false, &[operator("relu", of.some as u64, ms, of.count as u64)]);
        for name in ["wall_ms", "batch_ms", "batch_ms_without_profiling"] {
            profile[name] = ms.into();
        }
        for name in ["memory_bytes", "self_memory_bytes", "peak_memory_bytes"] {
            profile["operators"][0][name] = if of.count == 0 { i64::MIN } else { i64::MAX }.into();
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), profile.to_string()).unwrap();
        let read = run_record::profile::Profile::read(file.path());
        assert!(read.is_ok(), "{:?}", read.err());
    }
}
