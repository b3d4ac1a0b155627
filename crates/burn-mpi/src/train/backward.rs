//! [`backward`] replaces `loss.backward()` in a `TrainStep` of burn-train. It overlaps: it sends gradients to
//! the other ranks while the backward pass still runs.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use burn::module::Module;
use burn::tensor::{Gradients, Tensor};
use burn::train::TrainOutput;

use crate::{CommError, GradientSync, MicroBatch};

type Backward = Box<dyn FnOnce(&Tensor<1>) -> Option<Gradients>>;

thread_local! {
    /// What the first `backward` of the current step runs; `None` after that call, and outside a step of a
    /// training over MPI.
    static CURRENT: Cell<Option<Backward>> = const { Cell::new(None) };
}

/// Runs `loss.backward()` in a `TrainStep`. In a training over MPI, gradients are sent to the other ranks
/// while backward still runs. The result has this rank's own gradients, as from Burn's `backward`, whatever
/// the number of ranks.
///
/// ```no_run
/// # use burn::module::Module;
/// # use burn::tensor::Tensor;
/// # use burn::train::TrainOutput;
/// # fn step<M: Module>(model: &M, loss: Tensor<1>) -> TrainOutput<Tensor<1>> {
/// // instead of TrainOutput::new(model, loss.backward(), loss)
/// TrainOutput::new(model, burn_mpi::backward(&loss), loss)
/// # }
/// ```
///
/// At the end of a step, ranks average the gradients in its `TrainOutput`, whatever was sent before. If a
/// step has changed a gradient after it was sent (scaled it, clipped it, added another loss's gradient, left
/// it out), all ranks send all gradients again. So choose the call by what the step does:
///
/// - Several losses: `burn_mpi::backward(&(first + second))` sends gradients while it runs. If a step makes
///   several calls, only the first call sends gradients while it runs; the later calls run Burn's backward.
/// - Gradients that are changed in every step: `loss.backward()` sends each gradient once, at the end of the
///   step.
/// - Gradients that are rarely changed, as by clipping: `burn_mpi::backward`.
pub fn backward(loss: &Tensor<1>) -> Gradients {
    // `take` leaves `None` behind, so only the first call of a step runs the closure. A step may call
    // `backward` again: in the module, while this call runs, or for a second loss.
    let gradients = CURRENT.take().and_then(|run| run(loss));
    gradients.unwrap_or_else(|| loss.backward())
}

/// Runs a step of `model`, and averages the gradients of the step's output. `own` is the number of this
/// rank's samples in the step, `total` the number of all ranks' samples. The gradients of the first
/// [`backward`] in the step are sent while this call runs. Returns the output's item.
pub(super) fn run_step<M: Module + 'static, O>(
    sync: &Rc<RefCell<GradientSync>>,
    model: &M,
    own: usize,
    total: usize,
    step: impl FnOnce() -> TrainOutput<O>,
) -> Result<O, CommError> {
    let result = Rc::new(Cell::new(None));
    let (inside, found, module) = (Rc::clone(sync), Rc::clone(&result), model.clone());
    CURRENT.set(Some(Box::new(move |loss| {
        let mut sync = inside.borrow_mut();
        let begun = sync.begin_share(own, total);
        let hooked = begun.and_then(|_| sync.hooked_backward(loss, &module, MicroBatch::Last));
        let (gradients, taken) =
            hooked.map_or_else(|error| (None, Err(error)), |(all, taken)| (Some(all), Ok(taken)));
        found.set(Some(taken));
        gradients
    })));
    let output = step();
    CURRENT.take();
    let taken = result.take().transpose()?;
    sync.borrow_mut().contribute_all(output.grads, model, own, total, taken)?;
    Ok(output.item)
}

#[cfg(test)]
mod tests;
