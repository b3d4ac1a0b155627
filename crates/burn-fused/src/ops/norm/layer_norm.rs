//! Layer normalisation, and RMS normalisation, which is layer normalisation without the mean.
//!
//! Burn composes each normalisation of a dozen operators, and each operator is a pass over memory. Here,
//! forward reads each row once from memory and saves two numbers for it. Backward reads each row and its
//! gradient once.

use burn::backend::TensorMetadata;
use burn::backend::flex::FlexTensor;
use burn::tensor::{DType, Tensor};

use crate::kernels::norm::layer_norm::{ROWS, RowsBackward, Rule, Statistics, rows_forward};
use crate::kernels::simd::Level;
use crate::ops::extension::{Backward, Saved, on_flex_or};
use crate::ops::flex_tensor::{contiguous, unshared, values};
use crate::ops::precision::compose_mixed;
use crate::runtime::memory::Buffer;
use crate::runtime::poll::Poll;
use crate::runtime::threads::each;

/// Normalises the rows of `x` `[..., width]` by `rule`, with `width` values of `gamma` and of `beta`. If the
/// operator does not support the tensors, runs Burn's layer, `burns`.
pub(crate) fn normalise_rows<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    rule: Rule,
    burns: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    let dtype = gamma.dtype();
    // The number of an operator's tensors is fixed, so an empty tensor stands for an absent beta.
    let beta = beta.unwrap_or_else(|| Tensor::empty([0], &x.device()));
    let tensors = [x.into_dispatch(), gamma.into_dispatch(), beta.into_dispatch()];
    let name = if rule.centred { "layer_norm" } else { "rms_norm" };
    let forward = |tensors, width, _backward| forward(tensors, width, rule);
    on_flex_or(name, tensors, width_of, forward, |[x, ..]| {
        compose_mixed(Tensor::from_dispatch(x), dtype, burns)
    })
}

/// Returns the width of a row if all tensors are f32 and their shapes fit. Only beta may be empty.
fn width_of(tensors: [&FlexTensor; 3]) -> Option<usize> {
    let [x, gamma, beta] = tensors.map(|tensor| tensor.shape());
    let (width, betas) = (gamma[0], beta[0]);
    let fits = x.last() == Some(&width) && (betas == 0 || betas == width) && x.num_elements() > 0;
    (fits && tensors.iter().all(|tensor| tensor.dtype() == DType::F32)).then_some(width)
}

fn forward(tensors: [FlexTensor; 3], width: usize, rule: Rule) -> (FlexTensor, Backward<impl Saved, 3>) {
    let [x, gamma, beta] = tensors.map(contiguous);
    let level = Level::current();
    let rows = values(&x);
    let (mut output, mut statistics) =
        (Buffer::new(rows.len()), vec![Statistics::default(); rows.len() / width]);
    let parameters = [&gamma, &beta].map(values);
    let part = |((rows, output), statistics)| {
        rows_forward(level, rule, rows, parameters, output, statistics);
    };
    let parts = rows.chunks(ROWS * width).zip(output.chunks_mut(ROWS * width));
    each(rows.len() / 4, parts.zip(statistics.chunks_mut(ROWS)), part);
    let output = output.into_tensor(&x.shape());
    let has_beta = !values(&beta).is_empty();
    let backward = Backward::new(move |gradient, _of_x| {
        let (gamma, poll) = (values(&gamma), Poll::current());
        // The gradient of x overwrites the gradient of the output.
        let mut of_x = unshared(gradient);
        let mut of_parameters = [(); 2].map(|()| Buffer::zeroed(width));
        // The sums of gamma and beta of each block, which are then added in order.
        let mut sums = Buffer::zeroed(2 * width * statistics.len().div_ceil(ROWS));
        let blocks = of_x.storage_mut::<f32>().chunks_mut(ROWS * width).zip(sums.chunks_mut(2 * width));
        let blocks = values(&x).chunks(ROWS * width).zip(statistics.chunks(ROWS)).zip(blocks);
        each(values(&x).len() / 2, blocks, |((rows, statistics), (gradient, sums))| {
            let ((of_gamma, of_beta), centred) = (sums.split_at_mut(width), rule.centred);
            level.run(RowsBackward { centred, rows, statistics, gamma, gradient, of_gamma, of_beta });
            poll.call();
        });
        for sums in sums.chunks_exact(2 * width) {
            for (total, sum) in of_parameters.iter_mut().zip(sums.chunks_exact(width)) {
                total.iter_mut().zip(sum).for_each(|(total, sum)| *total += sum);
            }
        }
        let [of_gamma, of_beta] = of_parameters.map(|gradient| gradient.into_tensor(&[width]));
        [Some(of_x), Some(of_gamma), has_beta.then_some(of_beta)]
    });
    (output, backward)
}
