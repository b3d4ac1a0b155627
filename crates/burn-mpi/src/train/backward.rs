//! Backward inside a `TrainStep`, whose gradients travel meanwhile.

use std::cell::RefCell;
use std::rc::Rc;

use burn::module::Module;
use burn::tensor::{Gradients, Tensor};

use crate::{CommError, GradientSync, MicroBatch};

type Backward = Box<dyn FnMut(&Tensor<1>) -> Result<Option<Gradients>, CommError>>;

/// What `backward` does inside the current step of a training over MPI.
struct Current {
    run: Backward,
    called: bool,
    failure: Option<CommError>,
}

thread_local! {
    static CURRENT: RefCell<Option<Current>> = const { RefCell::new(None) };
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
    // Taken out while it runs: a module may call backward of its own inside.
    let Some(mut current) = CURRENT.take() else { return loss.backward() };
    let gradients = match current.called {
        // A second loss in one step: its gradients are added as the output's are.
        true => None,
        false => match (current.run)(loss) {
            Ok(gradients) => {
                current.called = true;
                gradients
            }
            Err(error) => {
                current.failure = Some(error);
                None
            }
        },
    };
    CURRENT.set(Some(current));
    gradients.unwrap_or_else(|| loss.backward())
}

/// What a step did with its gradients.
pub(super) enum Gave {
    /// They are in the buckets.
    Buckets,
    /// They are in its output.
    Output,
}

/// Runs a step of `model`, in which [`backward`] averages gradients of `own` of `total` samples.
pub(super) fn with<M: Module + 'static, T>(
    sync: &Rc<RefCell<GradientSync>>,
    model: M,
    own: usize,
    total: usize,
    step: impl FnOnce() -> T,
) -> Result<(T, Gave), CommError> {
    let sync = Rc::clone(sync);
    let run: Backward = Box::new(move |loss| {
        sync.borrow_mut().backward_with_rest(loss, &model, own, total, MicroBatch::Last)
    });
    CURRENT.set(Some(Current { run, called: false, failure: None }));
    let output = step();
    match CURRENT.take() {
        Some(Current { failure: Some(error), .. }) => Err(error),
        Some(Current { called: true, .. }) => Ok((output, Gave::Buckets)),
        _ => Ok((output, Gave::Output)),
    }
}
