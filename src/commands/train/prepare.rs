//! What a training starts from: its run directory, and the weights or the checkpoint in it.

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Context;

use super::resume::Resumed;
use crate::commands::covered::Samples;
use crate::commands::outcome::default_name;
use crate::layout::stored;
use crate::options::{ConfigError, RunConfig, RunRecord, TrainArgs};
use crate::train::Position;
use burn_mpi::{ParamLayout, World};
use run_record::checkpoint::load_weights;
use run_record::{Attempt, Checkpoint, Curves, RunDir, Seen, Status, is_of_run, now};

/// What a training starts from; nothing on other ranks than 0.
#[derive(Default)]
pub struct Begin {
    pub dir: Option<RunDir>,
    /// Those of `--init`.
    pub weights: Option<Vec<f32>>,
    pub checkpoint: Option<Checkpoint<Position>>,
    /// The curves up to the checkpoint.
    pub curves: Curves,
    /// What a resumed run has to go on with.
    pub samples: Samples,
    /// Whether a resumed run has nothing to do.
    pub complete: bool,
    /// Whether an old run is in the directory, which goes when nothing can fail any more.
    pub replaces: bool,
}

/// Makes or opens the run directory and reads what the run starts from: rank
/// 0's work. `steps` are those of an epoch.
pub fn prepare(
    args: &TrainArgs,
    layout: &ParamLayout,
    resumed: Option<Resumed>,
    record: &mut RunRecord,
    steps: usize,
) -> anyhow::Result<Begin> {
    if let Some(resumed) = resumed {
        return resumed.restart(record, layout, steps);
    }
    if args.overwrite
        && let Some(out) = &args.out
    {
        check_inputs_stay(out, &record.config)?;
    }
    let init = record.config.init.as_ref();
    let weights = init.map(|file| load_weights(file, &stored(layout)).context("--init")).transpose()?;
    let dir = match &args.out {
        Some(path) => RunDir::create(path, args.overwrite)?,
        None => RunDir::create_unique(&default_name(record))?,
    };
    record.history.push(Attempt { started_at: record.started_at.clone(), step: 0, changed: Vec::new() });
    let replaces = dir.is_occupied()?;
    if !replaces {
        dir.begin(record)?;
    }
    Ok(Begin { dir: Some(dir), weights, replaces, ..Begin::default() })
}

/// Checks that a run which replaces the one in `out` reads nothing that goes with it.
fn check_inputs_stay(out: &Path, config: &RunConfig) -> Result<(), ConfigError> {
    let Ok(folder) = out.canonicalize() else { return Ok(()) };
    let inputs = [("data-root", Some(&config.data.data_root)), ("init", config.init.as_ref())];
    for (option, path) in inputs {
        let Some(path) = path else { continue };
        let path_there = path.canonicalize().unwrap_or_default();
        let mut inside = path_there.strip_prefix(&folder).into_iter().flatten();
        if inside.next().and_then(OsStr::to_str).is_some_and(is_of_run) {
            let problem = format!(
                "it is part of the run in {}, which --overwrite removes: choose another --out",
                out.display()
            );
            return Err(ConfigError::new(option, path.display(), problem));
        }
    }
    Ok(())
}

/// Notes in the `run.json` of a new run that it ended before its first step; what a training has noted of
/// its own end stays.
pub fn note_failure(dir: &RunDir, error: &anyhow::Error) {
    if !Seen::of(dir.path()).is_ok_and(|seen| seen.status == Some(Status::Running)) {
        return;
    }
    let noted = dir.note("status", &Status::Failed).and_then(|()| dir.note("error", &format!("{error:#}")));
    if let Err(error) = noted.and_then(|()| dir.note("ended_at", &now())) {
        log::debug!("{error}");
    }
}

/// Gives every rank rank 0's checkpoint: numbers as bytes, the rest as JSON.
pub fn share(
    world: &World,
    checkpoint: Option<Checkpoint<Position>>,
) -> anyhow::Result<Option<Checkpoint<Position>>> {
    let names = |c: &Checkpoint<Position>| c.moments.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let head = checkpoint
        .as_ref()
        .map(|c| (c.model.clone(), c.updates, c.position.clone(), c.params.len(), names(c)));
    let Some((model, updates, position, length, names)) = world.broadcast(&head)? else {
        return Ok(None);
    };
    let zeros = |name| (name, vec![0.0; length]);
    let (mut params, mut moments) = match checkpoint {
        Some(c) => (c.params, c.moments),
        None => (vec![0.0; length], names.into_iter().map(zeros).collect()),
    };
    for buffer in std::iter::once(&mut params).chain(moments.iter_mut().map(|(_, values)| values)) {
        world.broadcast_f32(buffer)?;
    }
    Ok(Some(Checkpoint { model, world_size: world.size(), params, moments, updates, position }))
}
