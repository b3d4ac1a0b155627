//! Writes and restores checkpoints of a training.
//!
//! Rank 0 writes the files, so each rank's part (tallies, times, running statistics) is gathered first. On
//! resume, rank 0 sends the checkpoint to all ranks, and each rank takes its own part. With local updates,
//! the weights file has the mean of the ranks' parameters, and another file has the parameters and moments of
//! each rank. With a compression of gradients, that file has the error memory of each rank.

use super::Trainer;
use crate::quant::Int8File;
use crate::spans;
use crate::train::recorder::Streamed;
use crate::train::step::Learner;
use crate::train::{OwnTensors, Position, Recorder, Tally, TrainError, ranks};
use data::Split;
use run_record::{Checkpoint, Curve, FinishedRankFile, MomentsFile, Phases, RecordError, StepMs};

impl Trainer<'_> {
    /// Restores the position and the optimizer of `checkpoint`. The network must already have the
    /// checkpoint's weights. `own` are the tensors that the checkpoint has for this rank alone. Rank 0 has the
    /// checkpoint's moments open in `file`. If another number of ranks wrote the checkpoint, divides its lists
    /// among the ranks of this job.
    ///
    /// # Errors
    /// If the shard of the checkpoint's epoch cannot be read, if the moments belong to a different optimizer,
    /// or if the order of gradients does not fit the network.
    pub fn restore(
        &mut self,
        checkpoint: Checkpoint<Position>,
        own: OwnTensors,
        file: Option<&MomentsFile>,
    ) -> Result<(), TrainError> {
        let rank = self.world.rank();
        self.position = checkpoint.position;
        if checkpoint.world_size != self.world.size() {
            let test = self.learner.options.plan(&self.source, Split::Test, self.world.size());
            self.position.reshard(checkpoint.world_size, &self.plan, &test);
        }
        if let Some(ranks) = self.position.first_ranks {
            self.schedule = self.learner.options.rates(self.plan.steps(), ranks);
        }
        self.checkpoint_step = Some(self.position.step);
        if let Some(arrival) = self.position.arrival.clone() {
            let adopted = self.learner.sync.adopt(arrival);
            let damaged =
                |error| TrainError::Ends(format!("the checkpoint's state.json is damaged: {error}"));
            adopted.map_err(damaged)?;
        } else if self.learner.options.communication.shard_optimizer {
            return Err(TrainError::Ends(
                "the checkpoint is from an older version, without the order of gradients that determines the shares \
                 of --shard-optimizer: resume it with --shard-optimizer off"
                    .into(),
            ));
        }
        self.learner.restore_moments(&checkpoint.moments, checkpoint.updates, file)?;
        if let (Some(scale), Some(saved)) = (&mut self.learner.loss_scale, self.position.loss_scale) {
            *scale = saved;
        }
        if let (Some(quantizer), Some(ranges)) = (&mut self.learner.quantizer, self.position.ranges.clone()) {
            quantizer.restore(ranges);
        }
        self.bytes_before = self.position.bytes_sent;
        if let Some(local) = self.position.local.take() {
            self.learner.restore_local(&local, own, self.position.step)?;
            if !self.is_done() {
                self.learner.hide_average();
            }
        } else {
            self.learner.restore_compression(own)?;
        }
        let buffers = std::mem::take(&mut self.position.buffers);
        if let Some(own) = buffers.get(rank) {
            self.learner.set_buffers(own);
        }
        let own = |tallies: &[Tally]| tallies.get(rank).copied().unwrap_or_default();
        self.epoch_tally = own(&self.position.epoch_tallies);
        // The window is the steps since the last log line. Discard its tally if the window began before the
        // last line was due: the checkpoint was written with another `--log-every`. Also discard the tally if
        // the window's beginning is unknown: the checkpoint is from an older version, whose windows could
        // begin in one epoch and end in the next.
        let log_every = self.learner.options.log_every.get();
        let last_line = self.position.step_in_epoch / log_every * log_every;
        (self.window_tally, self.window_begin) =
            match self.position.window_begin.filter(|&begin| begin >= last_line) {
                Some(begin) => (own(&self.position.window_tallies), begin),
                None => (Tally::default(), self.position.step_in_epoch),
            };
        // A complete run keeps the tally of its last epoch, which the results need.
        if self.position.step_in_epoch == 0 && !self.is_done() {
            self.epoch_tally = Tally::default();
        }
        self.comm_before = self.position.comm_seconds.get(rank).copied().unwrap_or(0.0);
        (self.phases_before, self.phase_steps_before) =
            (self.position.phase_seconds, self.position.phase_steps);
        if !self.is_done() {
            self.load_shard()?;
        }
        Ok(())
    }

    /// Writes a checkpoint in the middle of an epoch.
    ///
    /// Its weights file contains the running statistics, and with local updates the parameters, averaged over
    /// ranks. The checkpoint also contains each rank's own values, with which this training and a resumed
    /// training go on. Therefore a checkpoint does not change the results.
    pub(super) fn checkpoint_inside_epoch(&mut self, recorder: &mut Recorder<'_>) -> Result<(), TrainError> {
        self.check_statistics()?;
        let own = self.learner.buffers();
        if !own.is_empty() {
            self.position.buffers = self.world.gather(&own)?;
            self.learner.average_buffers()?;
        }
        self.learner.show_average()?;
        self.checkpoint(recorder, None)?;
        self.learner.hide_average();
        if !own.is_empty() {
            self.position.buffers.clear();
            self.learner.set_buffers(&own);
        }
        Ok(())
    }

    /// Replaces this rank's times in the position by all ranks' times: each rank's wait for gradients, and
    /// means over ranks of the epoch's seconds and of the phases. All means are over the same ranks, so the
    /// phases still sum to the total.
    fn share_times(&mut self) -> Result<(), TrainError> {
        let comm_seconds = self.comm_before + self.learner.times().exposed.as_secs_f64();
        let ranks: Vec<(f64, Phases<f64>, f64)> =
            self.world.gather(&(comm_seconds, self.phases(), self.position.epoch_seconds))?;
        let mean =
            |of: fn(&(f64, Phases<f64>, f64)) -> f64| ranks.iter().map(of).sum::<f64>() / ranks.len() as f64;
        let here = StepMs::mean(&ranks.iter().map(|rank| rank.1).collect::<Vec<_>>()).into_array();
        let before = self.phases_before.into_array();
        let position = &mut self.position;
        position.epoch_seconds = mean(|rank| rank.2);
        position.comm_seconds = ranks.iter().map(|rank| rank.0).collect();
        position.phase_seconds = Phases::from_array(std::array::from_fn(|phase| before[phase] + here[phase]));
        position.phase_steps = self.phase_steps_before + self.steps_here;
        Ok(())
    }

    /// Writes what differs between ranks into a file, which rank 0 returns: parameters and moments with local
    /// updates, and the state of a compression.
    fn rank_file(
        &mut self,
        recorder: &Recorder<'_>,
    ) -> Result<Option<Result<FinishedRankFile, RecordError>>, TrainError> {
        let (world, step) = (self.world, self.position.step);
        let Some((position, mut shared)) = self.learner.local_position()? else {
            return match self.learner.compression_tensors() {
                Some(mut tensors) => Ok(ranks::write(world, recorder, step, slices(&mut tensors))?),
                None => Ok(None),
            };
        };
        self.position.local = Some(position);
        Ok(ranks::write(world, recorder, step, self.learner.own_tensors().chain(slices(&mut shared)))?)
    }

    /// Writes a checkpoint, with each rank's part of the position. A checkpoint that cannot be written ends
    /// the run only if it is the last checkpoint of this process.
    pub(super) fn checkpoint(
        &mut self,
        recorder: &mut Recorder<'_>,
        int8: Option<&Int8File>,
    ) -> Result<(), TrainError> {
        spans::span(&spans::CHECKPOINT, || {
            let ranks: Vec<Vec<(usize, Tally)>> = self.world.gather(&std::mem::take(&mut self.unwritten))?;
            // All ranks have points of the same steps.
            let point = |at: usize| {
                let tallies: Vec<Tally> = ranks.iter().map(|lines| lines[at].1).collect();
                Tally::curve_point(ranks[0][at].0, &tallies)
            };
            let points: Vec<_> = (0..ranks[0].len()).map(point).collect();
            recorder.write(|writer| writer.points(Curve::Train, &points))?;
            self.position.epoch_tallies = self.world.gather(&self.epoch_tally)?;
            self.position.window_tallies = self.world.gather(&self.window_tally)?;
            self.position.window_begin = Some(self.window_begin);
            self.share_times()?;
            self.position.arrival = self.learner.sync.arrival().cloned();
            self.position.loss_scale = self.learner.loss_scale;
            self.position.ranges =
                self.learner.quantizer.as_ref().map(|quantizer| quantizer.ranges().clone());
            self.position.bytes_sent = self.bytes_before + self.learner.bytes_sent;
            let ranks = self.rank_file(recorder)?;
            let moments = self.learner.write_moments(recorder, self.position.step)?;
            let last = self.stopping || self.is_done();
            // Move the weights into the checkpoint and back: a copy would need their memory twice.
            let Learner { params, optimizer, .. } = &mut self.learner;
            let checkpoint = Checkpoint {
                params: std::mem::take(params),
                moments: optimizer.names(),
                updates: optimizer.updates(),
                model: self.learner.options.model.to_string(),
                world_size: self.world.size(),
                position: self.position.clone(),
            };
            let files = (int8, Streamed { moments, ranks });
            let written = recorder.checkpoint(self.learner.layout(), files, last, &checkpoint);
            self.learner.params = checkpoint.params;
            if written? {
                self.checkpoint_step = Some(self.position.step);
            }
            Ok(())
        })
    }
}

fn slices(tensors: &mut OwnTensors) -> impl Iterator<Item = (String, &mut [f32])> {
    tensors.iter_mut().map(|(name, values)| (name.clone(), values.as_mut_slice()))
}
