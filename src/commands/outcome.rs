//! Describes a training for the user: the header before its first step, and the results after its last step.
//! Both are printed and recorded in `run.json`.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Context;

use super::logging::is_quiet;
use crate::device::DeviceKind;
use crate::machine::{self, CpuTime, others_percent, peak_rss_mb, shared_machine, topology};
use crate::model::Dimensions;
use crate::options::{RunConfig, RunRecord, schema};
use crate::train::{BackendKind, Learner, MixedPrecision, Tally, Trainer, best_epoch};
use burn_fused::precision::bf16_products;
use burn_fused::simd::Level;
use burn_mpi::{Launcher, ParamLayout, Place, PowerSgd, ShardPlan, World, oversubscribed};
use data::size_of_sample;
use run_record::{
    ByClass, ClassRecord, DataRecord, EpochRow, Machine, RankPlace, RankRecord, Results, RunDir, Status,
    count, now, overfits_after,
};
use terminal::digits::{decimals, seconds};
use terminal::table::{shortened, table};

/// Returns the contents of `run.json` at the start of a run.
///
/// # Errors
/// If the transport fails.
pub fn describe(config: &RunConfig, layout: &ParamLayout, world: &World) -> anyhow::Result<RunRecord> {
    let places: Vec<Place> = world.places().to_vec();
    let mut machines: Vec<Machine> = world.gather(&machine::of_this_process(world.host()))?;
    let mut seen = BTreeSet::new();
    machines.retain(|machine| seen.insert(machine.host.clone()));
    Ok(RunRecord {
        status: Status::Running,
        error: None,
        command_line: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        params: layout.trainable(),
        topology: topology(&places),
        world_size: world.size(),
        hosts: places.iter().map(|place| place.host.clone()).collect(),
        machines,
        simd_level: Some(Level::current().name().into()),
        bf16_products: (config.device == DeviceKind::Flex && config.precision == MixedPrecision::Bf16)
            .then(|| bf16_products().name().into()),
        oversubscribed: oversubscribed(&places, config.threads.get()),
        shared_machine: shared_machine(&places),
        launcher: Launcher::detect().map_or("alone", |launcher| launcher.command).into(),
        connection: None,
        data: DataRecord::default(),
        started_at: now(),
        ended_at: None,
        git: env!("MPIBURN_GIT").into(),
        git_dirty: env!("MPIBURN_GIT_DIRTY").parse().ok(),
        versions: versions(world, config),
        history: Vec::new(),
        failed_attempts: Vec::new(),
        failed_checkpoints: None,
        results: None,
        schema: schema(),
        config: config.clone(),
        places: places.into_iter().map(rank_place).collect(),
    })
}

fn rank_place(Place { rank, host, pid, binding, cores, boot_id }: Place) -> RankPlace {
    RankPlace { rank, host, pid, binding, cores, boot_id }
}

/// Returns the versions of this program, Burn, the compiler, the MPI library, and gloo if it is the run's
/// backend.
fn versions(world: &World, config: &RunConfig) -> BTreeMap<String, String> {
    let entries = [
        ("mpiburn", env!("CARGO_PKG_VERSION")),
        ("burn", env!("MPIBURN_BURN")),
        ("mpi", world.mpi_library()),
        ("rustc", env!("MPIBURN_RUSTC")),
    ];
    let gloo = match config.communication.backend {
        #[cfg(feature = "gloo")]
        BackendKind::Gloo => Some(("gloo".to_owned(), burn_mpi::internals::gloo_version())),
        _ => None,
    };
    entries.map(|(name, version)| (name.to_owned(), version.to_owned())).into_iter().chain(gloo).collect()
}

/// Returns for each host the percentage of CPU time that programs other than the ranks used. If several host
/// names are one machine, the ranks under all of these names count as the machine's ranks.
fn load_of_others(places: &[Place], times: &[CpuTime]) -> BTreeMap<String, f64> {
    let of_host = |place: &Place| {
        let same = places.iter().zip(times).filter(|(other, _)| other.boot_id == place.boot_id);
        let ranks: Vec<CpuTime> = same.map(|(_, time)| *time).collect();
        Some((place.host.clone(), others_percent(&ranks)?))
    };
    places.iter().filter_map(of_host).collect()
}

/// Returns the default run directory, such as `results/convnet-1x2-mpi-20260131-235959`, with the time in
/// UTC.
pub fn default_name(record: &RunRecord) -> PathBuf {
    let time = record.started_at.replace(['-', ':', 'Z'], "").replace('T', "-");
    let name =
        format!("{}-{}-{}-{time}", record.config.model, record.topology, record.config.communication.backend);
    PathBuf::from("results").join(name)
}

/// Logs what the run trains and where each rank runs, before the first step.
pub fn print_header(world: &World, record: &RunRecord, plan: &ShardPlan, dimensions: Dimensions) {
    if !world.is_root() {
        return;
    }
    let mut hosts = record.hosts.clone();
    hosts.dedup();
    let mixed = match record.config.precision {
        MixedPrecision::No => String::new(),
        other => format!(", precision {other}"),
    };
    log::info!(
        "{} ({} parameters) on {} of {}, backend {}{mixed}, {}",
        record.config.model,
        record.params,
        record.topology,
        first_of(&hosts),
        record.config.communication.backend,
        world.mpi_library()
    );
    let Dimensions { input, classes } = dimensions;
    let root = record.config.data.data_root.display();
    log::info!("  samples of {} in {} from {root}", size_of_sample(input), count(classes, "class"));
    for line in rank_lines(&record.places, record.config.device, plan) {
        log::info!("  {line}");
    }
    if record.oversubscribed {
        let threads = record.config.threads.get();
        let remedy = if threads > 1 {
            format!("; give each thread a core: mpiburn launch, or mpirun --map-by slot:PE={threads}")
        } else {
            String::new()
        };
        log::warn!(
            "oversubscribed: threads of ranks share cores and take turns; timings are not representative of the \
             topology{remedy}"
        );
    }
    if record.shared_machine {
        log::info!("these hosts are one machine under several names: they share its cores and memory");
    }
}

/// Describes where the ranks run. With more than [`LINES`] ranks, a line describes all consecutive ranks of a
/// host. `run.json` has all ranks.
fn rank_lines(places: &[RankPlace], device: DeviceKind, plan: &ShardPlan) -> Vec<String> {
    /// Maximum number of lines.
    const LINES: usize = 16;
    let of_one = |place: &RankPlace| {
        let RankPlace { rank, host, pid, binding, .. } = place;
        let samples = plan.shard_len(*rank);
        format!("rank {rank} on {host}: pid {pid}, core {binding}, {device}, {samples} training samples")
    };
    if places.len() <= LINES {
        return places.iter().map(of_one).collect();
    }
    let of_several = |places: &[RankPlace]| {
        let [first, .., last] = places else { return places.iter().map(of_one).collect() };
        let bindings: BTreeSet<&str> = places.iter().map(|place| place.binding.as_str()).collect();
        let cores = first_of(&bindings.into_iter().collect::<Vec<_>>());
        // The shards of the first ranks may have one sample more.
        let samples = match [last, first].map(|place| plan.shard_len(place.rank)) {
            [fewest, most] if fewest == most => format!("{most}"),
            [fewest, most] => format!("{fewest} to {most}"),
        };
        let (first, last, host) = (first.rank, last.rank, &first.host);
        format!("ranks {first} to {last} on {host}: cores {cores}, {device}, {samples} training samples each")
    };
    let hosts: Vec<&[RankPlace]> = places.chunk_by(|a, b| a.host == b.host).collect();
    let shown = if hosts.len() > LINES { LINES - 1 } else { hosts.len() };
    let rest: usize = hosts[shown..].iter().map(|places| places.len()).sum();
    let rest = (rest > 0).then(|| format!("and {rest} more ranks"));
    hosts[..shown].iter().map(|places| of_several(places)).chain(rest).collect()
}

/// Lists the first names.
fn first_of<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    format!("{}{}", shown.join(", "), if names.len() > SHOWN { ", …" } else { "" })
}

/// Gathers the results of a finished training from all ranks. `cpu` is the CPU time of this rank and of its
/// machine during training and tests. If the run was resumed, `total_seconds` includes the time up to the
/// checkpoint.
///
/// # Errors
/// If the transport fails, or no epoch was trained.
pub fn summarize(trainer: &Trainer<'_>, cpu: CpuTime, total_seconds: f64) -> anyhow::Result<Results> {
    let Trainer { world, position, plan, .. } = trainer;
    let config = &trainer.learner.options;
    let last = position.history.last().context("no epoch was trained")?;
    let seconds =
        [position.start_up_seconds, position.test_seconds, position.checkpoint_seconds, total_seconds];
    let ranks = world.gather(&(rank_record(trainer), seconds, cpu))?;
    let (per_rank, seconds, times): (Vec<RankRecord>, Vec<[f64; 4]>, Vec<CpuTime>) =
        ranks.into_iter().collect();
    let mean = |part: usize| seconds.iter().map(|rank| rank[part]).sum::<f64>() / world.size() as f64;
    let [start_up_seconds, test_seconds, checkpoint_seconds, total_seconds] = std::array::from_fn(mean);
    let others = load_of_others(world.places(), &times);
    let steps = position.step;
    // The last epoch may be incomplete.
    let rest: usize = (0..position.step_in_epoch).map(|step| plan.global_batch_len(step)).sum();
    let samples = plan.samples * position.epoch + rest;
    let reached = position.target.and_then(|target| target.reached());
    Ok(Results {
        steps,
        epochs_run: position.history.len(),
        start_up_seconds,
        train_seconds: position.train_seconds,
        test_seconds,
        checkpoint_seconds,
        total_seconds,
        ms_per_step: 1e3 * position.train_seconds / steps.max(1) as f64,
        images_per_second: samples as f64 / position.train_seconds,
        comm_seconds: per_rank.iter().map(|r| r.comm_seconds).sum::<f64>() / world.size() as f64,
        step_ms: trainer.step_ms(),
        bytes_per_step: Some(trainer.bytes_per_step()),
        test_accuracy: last.test_accuracy,
        int8_test_accuracy: last.int8_test_accuracy,
        int8_test_loss: last.int8_test_loss,
        float_inference_seconds: position.inference_seconds.map(|[float, _]| float),
        int8_inference_seconds: position.inference_seconds.map(|[_, int8]| int8),
        test_loss: last.test_loss,
        train_accuracy: last.train_accuracy,
        train_loss: last.train_loss,
        peak_rss_mb: per_rank.iter().map(|rank| rank.peak_rss_mb).fold(0.0, f64::max),
        live_mb: per_rank.iter().filter_map(|rank| rank.live_mb).reduce(f64::max),
        skipped_steps: position.loss_scale.map(|scale| scale.skipped_steps),
        loss_scale: position.loss_scale.map(|scale| scale.scale),
        others_cpu_percent: others.values().copied().reduce(f64::max),
        others_cpu_percent_by_host: others,
        weights_sha256: trainer.weights_sha256(),
        best_epoch: config.recipe.early_stopping.and_then(|_| best_epoch(position.compared())),
        stopped_early_after: (position.epoch < config.epochs.get() && !position.stopped_at_target)
            .then_some(position.epoch),
        target_reached: position.target.map(|_| reached.is_some()),
        steps_to_target: reached.map(|reached| reached.steps),
        epochs_to_target: reached.map(|reached| reached.steps as f64 / plan.steps() as f64),
        seconds_to_target: reached.map(|reached| reached.seconds),
        by_class: ByClass::from_confusion(&position.confusion, &trainer.source.description().class_names),
        per_rank,
    })
}

/// Returns this rank's part of the results.
fn rank_record(trainer: &Trainer<'_>) -> RankRecord {
    let Trainer { world, position, plan, .. } = trainer;
    let rank = world.rank();
    let of_rank = |tallies: &[Tally]| tallies.get(rank).and_then(Tally::metrics);
    let [train, test, int8] =
        [&position.epoch_tallies, &position.test_tallies, &position.int8_tallies].map(|t| of_rank(t));
    RankRecord {
        rank,
        host: world.host().to_owned(),
        train_samples: plan.shard_len(rank),
        test_samples: position.test_tallies.get(rank).map_or(0, |tally| tally.samples as usize),
        train_loss: train.map(|metrics| metrics.loss),
        train_accuracy: train.map(|metrics| metrics.accuracy),
        test_loss: test.map(|metrics| metrics.loss),
        test_accuracy: test.map(|metrics| metrics.accuracy),
        int8_test_loss: int8.map(|metrics| metrics.loss),
        int8_test_accuracy: int8.map(|metrics| metrics.accuracy),
        comm_seconds: position.comm_seconds.get(rank).copied().unwrap_or(0.0),
        peak_rss_mb: peak_rss_mb(),
        live_mb: live_mb(&trainer.learner.options),
    }
}

/// Logs at level debug which parameters are compressed.
pub fn print_compression(world: &World, config: &RunConfig, layout: &ParamLayout) {
    let (true, Some(rank)) = (world.is_root(), config.communication.compression.compress_rank) else {
        return;
    };
    let trainable = layout.specs().iter().filter(|spec| spec.trainable);
    let (compressed, exact): (Vec<_>, Vec<_>) =
        trainable.partition(|spec| PowerSgd::highest_rank(spec) >= rank.get());
    let names: Vec<&str> = compressed.iter().map(|spec| spec.name.as_str()).collect();
    log::debug!(
        "  compressed with rank {rank}: {}; averaged exactly: {}",
        names.join(", "),
        count(exact.len(), "other parameter")
    );
}

/// Prints the table of epochs, one line of totals and, if `is_own` is true, the test results by class.
/// `is_own` is true for a data set that the user has imported. At log level debug, prints more.
pub fn print_results(
    history: &[EpochRow],
    results: &Results,
    learner: &Learner<'_>,
    dir: &RunDir,
    is_own: bool,
) {
    let is_detailed = log::log_enabled!(log::Level::Debug);
    let quantized = history.iter().any(|row| row.int8_test_accuracy.is_some());
    let columns = ["epoch", "train loss", "train accuracy", "test loss", "test accuracy", "seconds"];
    let int8_columns = ["int8 loss", "int8 accuracy"].into_iter().filter(|_| quantized);
    // With titles on two lines, all columns fit into 80 characters.
    let space = if quantized { "\n" } else { " " };
    let header: Vec<String> =
        columns.into_iter().chain(int8_columns).map(|title| title.replacen(' ', space, 1)).collect();
    let places = history.iter().map(|row| decimals(row.seconds, 2)).max().unwrap_or(2);
    let lines = history.iter().map(|row| {
        let mut cells = vec![
            row.epoch.to_string(),
            format!("{:.4}", row.train_loss),
            format!("{:.2}%", row.train_accuracy),
            format!("{:.4}", row.test_loss),
            format!("{:.2}%", row.test_accuracy),
            format!("{:.places$}", row.seconds),
        ];
        if quantized {
            let shown = |value: Option<String>| value.unwrap_or_else(|| "–".into());
            cells.push(shown(row.int8_test_loss.map(|loss| format!("{loss:.4}"))));
            cells.push(shown(row.int8_test_accuracy.map(|accuracy| format!("{accuracy:.2}%"))));
        }
        cells
    });
    if let Some((last, best)) = results.stopped_early_after.zip(results.best_epoch) {
        log::info!("stopped early after epoch {last}: the test loss was lowest in epoch {best}");
    }
    if !is_quiet() {
        println!("{}", table(&header, header.len(), lines));
        if let Some(by_class) = results.by_class.as_ref().filter(|_| is_own || is_detailed) {
            print_classes(by_class);
        }
    }
    println!(
        "{} s of training, {:.*} ms per step, {:.0} images/s; results in {}",
        seconds(results.train_seconds),
        decimals(results.ms_per_step, 3),
        results.ms_per_step,
        results.images_per_second,
        dir.path().display()
    );
    if is_detailed {
        print_details(history, results, learner);
    }
}

/// Prints details that are also in `run.json` and in reports.
fn print_details(history: &[EpochRow], results: &Results, learner: &Learner<'_>) {
    if let (Some(best), None) = (results.best_epoch, results.stopped_early_after) {
        println!("not stopped early: the test loss was lowest in epoch {best}");
    }
    println!("{} s waiting for gradients", seconds(results.comm_seconds));
    if let Some(line) = waiting(results) {
        println!("{line}");
    }
    // If the run was resumed, the lines above also count the steps of earlier processes. The next line counts
    // only the steps of this process.
    if let Some(local) = &learner.local {
        println!("local updates of rank 0: {}", local.report());
    } else {
        let sync = learner.sync.report();
        let part = if sync.steps < results.steps {
            format!(" in the last {}", count(sync.steps, "step"))
        } else {
            String::new()
        };
        println!("gradients of rank 0{part}: {sync}");
    }
    if let (Some(skipped), Some(scale)) = (results.skipped_steps, results.loss_scale) {
        println!(
            "loss scaling: {skipped} of {} steps skipped after an overflow, last scale {scale}",
            results.steps
        );
    }
    let live =
        results.live_mb.map_or_else(String::new, |mb| format!(", {mb:.2} MB of live tensors in a step"));
    if let Some(epoch) = overfits_after(history) {
        println!(
            "overfitting after epoch {epoch}: since then, test loss is higher and training loss is lower"
        );
    }
    println!("peak memory of a rank: {:.0} MB resident{live}", results.peak_rss_mb);
}

/// Prints the confusion matrix if there are at most ten classes. If there are more, prints the ten classes
/// with the lowest recall.
fn print_classes(by_class: &ByClass) {
    const MOST: usize = 10;
    let ByClass { balanced_accuracy, largest_class_accuracy, classes, confusion_matrix } = by_class;
    let percent = |share: Option<f64>| share.map_or_else(|| "–".into(), |share| format!("{share:.1}"));
    let short = |name: &String| shortened(name, 8);
    let of_matrix = classes.len() <= MOST && !confusion_matrix.is_empty();
    let header: Vec<String> = if of_matrix {
        ["class".to_owned()].into_iter().chain(classes.iter().map(|class| short(&class.name))).collect()
    } else {
        ["class", "samples", "taken for"].map(Into::into).to_vec()
    };
    let header: Vec<&str> = header.iter().map(String::as_str).chain(["recall %", "precision %"]).collect();
    let mut order: Vec<usize> =
        (0..classes.len()).filter(|&class| of_matrix || classes[class].samples > 0).collect();
    if !of_matrix {
        order.sort_by(|&a, &b| classes[a].recall.partial_cmp(&classes[b].recall).unwrap_or(Ordering::Equal));
        order.truncate(MOST);
    }
    let lines = order.into_iter().map(|class| {
        let ClassRecord { name, samples, taken_for, recall, precision, .. } = &classes[class];
        let counts = if of_matrix {
            confusion_matrix[class].iter().map(ToString::to_string).collect()
        } else {
            vec![samples.to_string(), taken_for.as_ref().map_or_else(|| "–".into(), short)]
        };
        [short(name)].into_iter().chain(counts).chain([percent(*recall), percent(*precision)]).collect()
    });
    let what = if of_matrix {
        "confusion matrix of the test samples after the last epoch: classes in rows, predicted classes in columns"
    } else {
        "classes with the lowest recall after the last epoch"
    };
    println!("{what}:\n{}", table(&header, 1, lines));
    println!(
        "balanced accuracy {balanced_accuracy:.2}%; accuracy of always predicting the largest class: \
         {largest_class_accuracy:.2}%"
    );
}

/// Describes how long ranks waited for gradients, and for which rank they waited: the rank that waited least
/// itself. `None` if the run has only one rank.
fn waiting(results: &Results) -> Option<String> {
    /// If the longest and the shortest wait differ by more than this share of the training time, the ranks
    /// are named.
    const NOTABLE: f64 = 0.02;
    let by_time = |a: &&RankRecord, b: &&RankRecord| a.comm_seconds.total_cmp(&b.comm_seconds);
    let least = results.per_rank.iter().min_by(by_time)?;
    let most = results.per_rank.iter().max_by(by_time).filter(|_| results.per_rank.len() > 1)?;
    let name = |rank: &RankRecord| format!("rank {} on {}", rank.rank, rank.host);
    Some(if most.comm_seconds - least.comm_seconds > NOTABLE * results.train_seconds {
        format!(
            "{} waited longest, {} s, mostly for {}, which waited {} s",
            name(most),
            seconds(most.comm_seconds),
            name(least),
            seconds(least.comm_seconds)
        )
    } else {
        let [least, most] = [least, most].map(|rank| seconds(rank.comm_seconds));
        format!("all ranks waited about equally long, {least} to {most} s")
    })
}

/// Returns the peak of live tensors in this rank's steps, in MB. `None` for libtorch and GPUs, whose
/// allocators are not counted.
fn live_mb(config: &RunConfig) -> Option<f64> {
    let is_counted = matches!(config.device, DeviceKind::Flex | DeviceKind::NdArray);
    is_counted.then(|| burn_fused::memory::live_bytes::peak_of_steps() as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(ranks: usize, hosts: usize) -> Vec<String> {
        let place = |rank: usize| RankPlace {
            rank,
            host: format!("node{}", rank * hosts / ranks),
            pid: 7,
            binding: (rank % 2).to_string(),
            cores: 2,
            boot_id: String::new(),
        };
        let plan = ShardPlan { samples: 3 * ranks + 1, world_size: ranks, batch_size: 1 };
        rank_lines(&(0..ranks).map(place).collect::<Vec<_>>(), DeviceKind::Flex, &plan)
    }

    #[test]
    fn many_ranks_are_described_by_host() {
        let few = lines(16, 2);
        assert_eq!(
            (few.len(), few[15].as_str()),
            (16, "rank 15 on node1: pid 7, core 1, flex, 3 training samples")
        );
        assert_eq!(
            lines(64, 2),
            [
                "ranks 0 to 31 on node0: cores 0, 1, flex, 3 to 4 training samples each",
                "ranks 32 to 63 on node1: cores 0, 1, flex, 3 training samples each",
            ]
        );
        let hosts = lines(1024, 128);
        assert_eq!((hosts.len(), hosts[15].as_str()), (16, "and 904 more ranks"));
        assert_eq!(lines(40, 40)[14], "rank 14 on node14: pid 7, core 0, flex, 3 training samples");
    }
}
