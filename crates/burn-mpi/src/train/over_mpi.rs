//! [`OverMpi::over_mpi`], the call that makes a training of burn-train data-parallel, and its options.

#[cfg(feature = "mpi")]
use std::io::IsTerminal;
use std::sync::Arc;

use burn::train::logger::{EvaluationProgressLogger, InMemoryMetricLogger, TrainingProgressLogger};
use burn::train::metric::MetricDefinition;
#[cfg(feature = "mpi")]
use burn::train::renderer::CliMetricsRenderer;
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
};
use burn::train::{
    InferenceStep, LearnerModel, LearnerSummary, SupervisedTraining, TrainStep, TrainingStrategy,
};
use derive_setters::Setters;

#[cfg(feature = "mpi")]
use crate::Launcher;
use crate::train::outputs::RankOutput;
use crate::train::state;
use crate::train::strategy::MpiStrategy;
use crate::{Backend, SyncOptions, Transport, World};

/// Options of a training over all ranks. They must be equal on all ranks, except that ranks may have
/// different timeouts and names of network interfaces in `transport`.
///
/// ```
/// use burn_mpi::{Backend, LearnerOptions};
///
/// let options = LearnerOptions::default().with_backend(Backend::Gloo);
/// assert!(options.metrics_of_all_ranks);
/// ```
#[derive(Debug, Clone, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct LearnerOptions {
    /// Transport of gradients.
    pub backend: Backend,
    /// Settings of the transport.
    pub transport: Transport,
    /// How gradients are averaged. burn-train's checkpoints do not have the state of a compression: after
    /// `checkpoint(n)`, the error memories begin at 0.
    pub sync: SyncOptions,
    /// Whether training metrics are computed over the samples of all ranks, instead of over the samples of
    /// rank 0 only. If true, every step sends the outputs of all ranks to rank 0. Validation metrics always
    /// cover the samples of all ranks.
    pub metrics_of_all_ranks: bool,
}

impl Default for LearnerOptions {
    fn default() -> Self {
        Self {
            backend: Backend::Mpi,
            transport: Transport::default(),
            sync: SyncOptions::default(),
            metrics_of_all_ranks: true,
        }
    }
}

/// Trains burn-train's [`SupervisedTraining`] over all ranks of a job.
pub trait OverMpi {
    /// Makes this training data-parallel. Call it last, before `launch`, on every rank: it replaces the
    /// training strategy, and on ranks other than 0 the display, the logs and the checkpointers.
    ///
    /// - Every rank begins with rank 0's weights. If the training resumes from a checkpoint
    ///   (`checkpoint(n)`), every rank also begins with rank 0's optimizer and scheduler. Only rank 0 reads
    ///   the files.
    /// - Each rank trains on its shard of the training loader. Nothing is padded or dropped, and shards
    ///   differ by at most one sample. A step takes one batch of every rank, so the batch of a step is the
    ///   loader's batch times the number of ranks. A rank with an exhausted shard takes part with no samples.
    /// - Gradients are weighted by samples, as the loader's progress counts them. Burn's loaders count
    ///   correctly for a fixed batch size, with any number of workers. A loader or a `BatchStrategy` of the
    ///   program has to count the samples of the batches returned so far, and no others.
    /// - The validation loader is divided in the same way. Its metrics are computed on rank 0 over all
    ///   samples.
    /// - Only rank 0 shows progress, writes logs and checkpoints, and decides about early stopping. If the
    ///   interrupter of one rank is asked to stop, all ranks stop, and every rank's interrupter gets the
    ///   reason.
    /// - If rank 0 runs under a launcher and prints to a terminal, it uses burn-train's plain display. Open
    ///   MPI gives ranks a terminal without a keyboard, on which burn-train's terminal UI fails. The plain
    ///   display replaces a renderer that was set before, because burn-train does not show whether one was
    ///   set. To use another renderer, set it after this call, on rank 0. An evaluator of the program needs a
    ///   renderer as well: `.renderer(Box::new(CliMetricsRenderer::new()))`.
    /// - Buffers without gradients (running statistics of batch norm) are replaced by their mean over ranks
    ///   after each epoch.
    ///
    /// An error on any rank, including an error of its loader, ends the job with one line that names the
    /// rank, because a strategy of burn-train cannot return errors. `grads_accumulation` sums the averaged
    /// gradients of its steps.
    ///
    /// ```no_run
    /// # use burn::train::{InferenceStep, Learner, LearnerModel, SupervisedTraining, TrainStep};
    /// # use burn_mpi::{CommError, LearnerOptions, OverMpi, RankOutput, World};
    /// # fn train<M: LearnerModel>(training: SupervisedTraining<M>, learner: Learner<M>) -> Result<(), CommError>
    /// # where <M as TrainStep>::Output: RankOutput, <M as InferenceStep>::Output: RankOutput {
    /// let world = World::init()?;
    /// let training = training.over_mpi(&world, LearnerOptions::default());
    /// let result = training.launch(learner);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    fn over_mpi(self, world: &World, options: LearnerOptions) -> Self;
}

impl<M: LearnerModel> OverMpi for SupervisedTraining<M>
where
    <M as TrainStep>::Output: RankOutput,
    <M as InferenceStep>::Output: RankOutput,
{
    fn over_mpi(self, world: &World, options: LearnerOptions) -> Self {
        // A world cannot move to another thread. burn-train calls the strategy on this thread.
        #[allow(clippy::arc_with_non_send_sync)]
        let strategy = Arc::new(MpiStrategy { world: world.clone(), options });
        let training = self.with_training_strategy(TrainingStrategy::Custom(strategy));
        if world.is_root() {
            // Without a renderer, burn-train would choose its terminal UI.
            #[cfg(feature = "mpi")]
            if std::io::stdout().is_terminal() && Launcher::detect().is_some() {
                return training.renderer(Box::new(CliMetricsRenderer::new()));
            }
            return training;
        }
        state::without_files(training)
            .with_application_logger(None)
            .with_metric_logger(InMemoryMetricLogger::new())
            .with_progress_logger(NoDisplay)
            .renderer(Box::new(NoDisplay))
    }
}

/// Shows nothing.
pub(super) struct NoDisplay;

impl MetricsRendererTraining for NoDisplay {
    fn update_train(&mut self, _state: MetricState) {}

    fn update_valid(&mut self, _state: MetricState) {}

    fn on_train_end(&mut self, _summary: Option<LearnerSummary>) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

impl MetricsRendererEvaluation for NoDisplay {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn on_test_end(&mut self, _summary: Option<LearnerSummary>) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

impl TrainingProgressLogger for NoDisplay {
    fn start(&mut self, _epochs: usize, _first: usize, _items: Option<usize>, _label: Option<&str>) {}

    fn update_epoch(&mut self, _epoch: usize) {}

    fn start_split(&mut self, _split: &str, _items: usize) {}

    fn update_split(&mut self, _items: usize) {}

    fn end_split(&mut self) {}

    fn end(&mut self) {}

    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for NoDisplay {
    fn start_global_progress(&mut self, _tests: usize) {}

    fn start_test(&mut self, _name: &str, _items: usize) {}

    fn update_test_progress(&mut self, _items: usize) {}

    fn end_test(&mut self) {}

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _event: String) {}
}

impl MetricsRenderer for NoDisplay {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, _definition: MetricDefinition) {}
}
