//! Backward inside a `TrainStep`, whose gradients travel meanwhile.

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

/// `loss.backward()` for a `TrainStep`: in a training over MPI, gradients are averaged while
/// backward still runs. Elsewhere, and with one rank, it is Burn's.
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
pub fn backward(loss: &Tensor<1>) -> Gradients {
    // Taken out: a module may call backward of its own inside, and a step may have a second loss, whose
    // gradients are Burn's.
    let gradients = CURRENT.take().and_then(|run| run(loss));
    gradients.unwrap_or_else(|| loss.backward())
}

/// Runs a step of `model`, in which the first [`backward`] averages gradients of `own` of `total` samples;
/// without one, its output's are averaged. Returns the output's item.
pub(super) fn with<M: Module + 'static, O>(
    sync: &Rc<RefCell<GradientSync>>,
    model: &M,
    own: usize,
    total: usize,
    step: impl FnOnce() -> TrainOutput<O>,
) -> Result<O, CommError> {
    let result = Rc::new(Cell::new(None));
    let (inside, found, module) = (Rc::clone(sync), Rc::clone(&result), model.clone());
    CURRENT.set(Some(Box::new(move |loss| {
        let averaged = inside.borrow_mut().backward_with_rest(loss, &module, own, total, MicroBatch::Last);
        let (rest, outcome) = match averaged {
            Ok(rest) => (rest, Ok(())),
            Err(error) => (None, Err(error)),
        };
        found.set(Some(outcome));
        rest
    })));
    let output = step();
    CURRENT.take();
    match result.take() {
        Some(averaged) => averaged?,
        None => sync.borrow_mut().contribute(output.grads, model, own, total)?,
    }
    Ok(output.item)
}
