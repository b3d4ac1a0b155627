//! Backward inside a `TrainStep`, whose gradients are reduced meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use burn::module::Module;
use burn::tensor::{Gradients, Tensor};
use burn::train::TrainOutput;

use crate::{CommError, GradientSync, MicroBatch};

type Backward = Box<dyn FnOnce(&Tensor<1>) -> Option<Gradients>>;

thread_local! {
    /// What the first `backward` does inside the current step of a training over MPI.
    static CURRENT: Cell<Option<Backward>> = const { Cell::new(None) };
}

/// `loss.backward()` for a `TrainStep`: in a training over MPI, gradients are sent to the other ranks while
/// backward still runs. The gradients that it returns are this rank's, as Burn's, with any number of ranks.
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
/// What the `TrainOutput` of a step holds at its end is what is averaged, whatever was sent. If the step has
/// changed a gradient after it was sent (scaled, clipped, added to another loss's, left out), all
/// are sent again, by all ranks. So a step chooses by its calls:
///
/// - several losses: `burn_mpi::backward(&(first + second))` overlaps. Of several calls in a step the first one
///   does; the others are Burn's.
/// - gradients that are changed in every step: `loss.backward()`, which waits for the end of the step and
///   sends each gradient once.
/// - gradients that are rarely changed, as by clipping: `burn_mpi::backward`.
pub fn backward(loss: &Tensor<1>) -> Gradients {
    // Taken out: a module may call backward of its own inside, and a step may have a second loss.
    let gradients = CURRENT.take().and_then(|run| run(loss));
    gradients.unwrap_or_else(|| loss.backward())
}

/// Runs a step of `model` with `own` of `total` samples, in which the gradients of the first [`backward`]
/// are sent meanwhile; those of its output are averaged. Returns the output's item.
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
