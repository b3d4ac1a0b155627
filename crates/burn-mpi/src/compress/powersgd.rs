//! PowerSGD: low-rank approximations of gradient matrices, with error feedback. Vogels, Karimireddy, Jaggi,
//! "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization" (NeurIPS 2019).
//!
//! For each matrix, rank r has the gradient M_r, scaled by the rank's share of the step's samples, and an
//! error memory E_r, at first 0. All ranks have the same orthonormal columns Q, at first random. In a step:
//!
//! 1. A_r = M_r + E_r.
//! 2. P = Σ A_r Q (round 0), and the columns of P are made orthonormal.
//! 3. Q' = Σ A_rᵀ P (round 1).
//! 4. The average is P Q'ᵀ, which is P Pᵀ Σ A_r, a projection of the sum.
//! 5. E_r = A_r − P (A_rᵀ P)ᵀ: what is left of the rank's own matrix after the same projection.
//! 6. The next step's Q is Q' with orthonormal columns. This warm start makes the steps a power iteration.
//!
//! Step 5 differs from the paper and from PyTorch, in which each of W ranks subtracts an equal part of the
//! average, P Q'ᵀ / W. With both, the sum of the memories is Σ A_r − P Q'ᵀ, exactly what the step has not
//! delivered. P and Q' depend on this sum alone, so the averages are the same. But after the subtraction of
//! equal parts, each memory also adds up how the rank's gradients differ from the mean, in all steps, and the
//! memory of a rank without samples adds up a W-th of all averages. In step 5, the projection takes its part
//! of a rank's own matrix away, so that differences between ranks fade. The memory of a rank that never has
//! samples is 0.

use chacha20::ChaCha8Rng;
use chacha20::rand_core::SeedableRng;
use derive_setters::Setters;
use half::{bf16, f16};

use super::orthogonal::{fill_random, orthonormalize};
use super::products::{add_outer_product, append_product, transposed_product};
use super::{Compression, CompressionState, GradientBucket};
use crate::{ParamLayout, ParamSpec, SharedError, WireType};

/// PowerSGD (Vogels, Karimireddy, Jaggi, NeurIPS 2019): gradients of matrices are sent as two factors of a
/// few columns each, and averaged approximately. What a step has not sent stays in an error memory of this
/// rank, and is added to the gradient of the next step. An option of [`SyncOptions`](crate::SyncOptions).
///
/// A parameter of two or more dimensions is a matrix of n rows and m columns: n is its first dimension. It is
/// compressed if that saves at least half of its values: `2 · rank · (n + m) ≤ n · m`. (PyTorch's
/// `powerSGD_hook` by default wants more than half.) All other parameters are averaged exactly, also matrices
/// that are too small for the rank. If the rank is so high that no parameter of the module is compressed, the
/// first step returns [`SharedError::Compression`](crate::SharedError::Compression), which names the highest
/// possible rank.
///
/// The error memory has one f32 for each value of the compressed parameters.
/// [`GradientSync::compression_state`](crate::GradientSync::compression_state) saves it. A gradient with a
/// NaN or infinite value makes the average of its parameter NaN, and leaves the memory as it was.
///
/// ```no_run
/// # use burn::{module::Module, tensor::Tensor};
/// # use burn_mpi::{ArrivalOrder, Collective, CommError, CompressionState, World};
/// use burn_mpi::{GradientSync, PowerSgd, SyncOptions};
///
/// # fn example<M: Module>(
/// #     world: &World, collective: Box<dyn Collective>, model: &M, loss: Tensor<1>,
/// #     saved: Option<(ArrivalOrder, CompressionState)>,
/// # ) -> Result<(), CommError> {
/// let options = SyncOptions::default().with_compression(PowerSgd::new(4).with_seed(1));
/// let mut sync = GradientSync::of_module(world, collective, model, options);
/// if let Some((arrival, state)) = saved {
///     sync.adopt(arrival)?;
///     sync.restore_compression(state)?;
/// }
/// let gradients = sync.average(&loss, model, 8, 8 * world.size())?;
/// println!("{:.0} bytes sent per step", sync.report().sent_per_step());
/// let saved = (sync.arrival().cloned(), sync.compression_state());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Setters)]
#[setters(prefix = "with_")]
#[non_exhaustive]
pub struct PowerSgd {
    /// Number of columns of each factor, at least 1.
    pub rank: usize,
    /// Seed of the columns that the first step begins with.
    pub seed: u64,
}

impl PowerSgd {
    /// Compresses with factors of `rank` columns, and seed 0.
    pub fn new(rank: usize) -> Self {
        Self { rank, seed: 0 }
    }

    /// Returns the highest rank with which a parameter is compressed: it saves half of the values. 0 if no
    /// rank does, for example for a bias.
    pub fn highest_rank(parameter: &ParamSpec) -> usize {
        shape_of(parameter).map_or(0, |(rows, width)| highest_rank(rows, width))
    }
}

/// [`PowerSgd`] for the parameters of a module.
pub(crate) struct LowRank {
    options: PowerSgd,
    wire: WireType,
    /// For each parameter, its matrix; `None` if it is averaged exactly.
    matrices: Vec<Option<Matrix>>,
}

/// A compressed parameter. Factors are stored column by column.
struct Matrix {
    rows: usize,
    width: usize,
    /// Orthonormal columns that the next step begins with.
    q: Vec<f32>,
    /// E_r: what is left of this rank's gradients of earlier steps.
    error: Vec<f32>,
    /// Orthonormal columns of P in this step.
    p: Vec<f32>,
    /// This rank's part of Q', as sent.
    own_q: Vec<f32>,
}

impl LowRank {
    /// Prepares to compress the gradients of a module with `layout`, sent as `wire`.
    pub fn new(options: PowerSgd, wire: WireType, layout: &ParamLayout) -> Result<Self, SharedError> {
        check(options.rank, layout).map_err(SharedError::Compression)?;
        let matrix = |(param, spec): (usize, &ParamSpec)| {
            let (rows, width) = shape_of(spec)?;
            (options.rank <= highest_rank(rows, width)).then(|| Matrix::new(options, param, rows, width))
        };
        Ok(Self { options, wire, matrices: layout.specs().iter().enumerate().map(matrix).collect() })
    }

    fn all(&self) -> impl Iterator<Item = &Matrix> {
        self.matrices.iter().flatten()
    }
}

/// Returns rows and columns of a parameter as a matrix; `None` if it is no matrix or gets no gradient.
fn shape_of(spec: &ParamSpec) -> Option<(usize, usize)> {
    let (rows, rest) = spec.shape.split_first()?;
    (spec.trainable && !rest.is_empty()).then(|| (*rows, rest.iter().product()))
}

/// Returns the highest rank that saves half of the values of a matrix. It is below half of `rows` and
/// `width`.
fn highest_rank(rows: usize, width: usize) -> usize {
    rows * width / (2 * (rows + width)).max(1)
}

/// Checks that at least one parameter is compressed with `rank`.
fn check(rank: usize, layout: &ParamLayout) -> Result<(), String> {
    // Of several parameters with the same highest rank, the first is named.
    let largest = layout.specs().iter().rev().max_by_key(|spec| PowerSgd::highest_rank(spec));
    match largest.map(|spec| (PowerSgd::highest_rank(spec), spec)) {
        _ if rank == 0 => Err("the rank of PowerSGD must be at least 1".to_owned()),
        Some((limit, _)) if rank <= limit => Ok(()),
        Some((limit, spec)) if limit > 0 => Err(format!(
            "PowerSGD of rank {rank} would save half of the values of no parameter; choose a rank up to {limit}, the \
             highest for {} {:?}",
            spec.name, spec.shape
        )),
        _ => {
            Err("PowerSGD would save half of the values of no parameter, even with rank 1; average without \
                  compression"
                .to_owned())
        }
    }
}

impl Matrix {
    fn new(options: PowerSgd, param: usize, rows: usize, width: usize) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
        rng.set_stream(param as u64);
        let mut q = vec![0.0; options.rank * width];
        fill_random(&mut q, &mut rng);
        orthonormalize(&mut q, width);
        let (p, own_q) = (vec![0.0; options.rank * rows], vec![0.0; q.len()]);
        Self { rows, width, error: vec![0.0; rows * width], q, p, own_q }
    }

    /// Computes this rank's part of Q' from `matrix`, which is A_r, and `sums`, which are P before its
    /// columns are made orthonormal.
    fn project(&mut self, matrix: &[f32], sums: &[f32], wire: WireType) {
        self.p.copy_from_slice(sums);
        orthonormalize(&mut self.p, self.rows);
        transposed_product(matrix, self.width, &self.p, &mut self.own_q);
        // The error memory then also has what rounding takes away.
        round(&mut self.own_q, wire);
    }

    /// Overwrites `matrix`, which is A_r, with the average. `sums` are Q'.
    fn reconstruct(&mut self, matrix: &mut [f32], sums: &[f32]) {
        if sums.iter().any(|value| !value.is_finite()) {
            return matrix.fill(f32::NAN);
        }
        self.error.copy_from_slice(matrix);
        add_outer_product(&mut self.error, self.width, &self.p, &self.own_q, -1.0);
        matrix.fill(0.0);
        add_outer_product(matrix, self.width, &self.p, sums, 1.0);
        self.q.copy_from_slice(sums);
        orthonormalize(&mut self.q, self.width);
    }
}

impl Compression for LowRank {
    fn name(&self) -> String {
        format!("{:?}", self.options)
    }

    fn begin(&mut self, bucket: &GradientBucket<'_>, gradients: &mut [f32], send: &mut Vec<f32>) -> bool {
        if bucket.params().all(|(param, _)| self.matrices[param].is_none()) {
            return false;
        }
        for (param, range) in bucket.params() {
            let gradient = &mut gradients[range];
            match &self.matrices[param] {
                Some(matrix) => {
                    gradient.iter_mut().zip(&matrix.error).for_each(|(value, error)| *value += error);
                    append_product(gradient, matrix.width, &matrix.q, send);
                }
                None => send.extend_from_slice(gradient),
            }
        }
        true
    }

    fn next(
        &mut self,
        bucket: &GradientBucket<'_>,
        gradients: &mut [f32],
        round: usize,
        values: &mut Vec<f32>,
    ) -> bool {
        if round > 0 {
            return false;
        }
        let mut rest = &values[..];
        for (param, range) in bucket.params() {
            let gradient = &mut gradients[range];
            match &mut self.matrices[param] {
                Some(matrix) => matrix.project(gradient, take(&mut rest, matrix.p.len()), self.wire),
                None => gradient.copy_from_slice(take(&mut rest, gradient.len())),
            }
        }
        values.clear();
        let matrices = bucket.params().filter_map(|(param, _)| self.matrices[param].as_ref());
        matrices.for_each(|matrix| values.extend_from_slice(&matrix.own_q));
        true
    }

    fn finish(&mut self, bucket: &GradientBucket<'_>, gradients: &mut [f32], mut sums: &[f32]) {
        for (param, range) in bucket.params() {
            if let Some(matrix) = &mut self.matrices[param] {
                let sums = take(&mut sums, matrix.q.len());
                // Without a gradient on any rank, the parameter is not updated: the memory stays.
                if bucket.has_gradient(param) {
                    matrix.reconstruct(&mut gradients[range], sums);
                }
            }
        }
    }

    fn state(&self) -> CompressionState {
        let join = |part: fn(&Matrix) -> &[f32]| self.all().flat_map(part).copied().collect();
        CompressionState { shared: join(|matrix| &matrix.q), own: join(|matrix| &matrix.error) }
    }

    fn restore(&mut self, state: CompressionState) -> Result<(), String> {
        let (mut shared, mut own) = (&state.shared[..], &state.own[..]);
        let expected = [|matrix: &Matrix| matrix.q.len(), |matrix: &Matrix| matrix.error.len()]
            .map(|length| self.all().map(length).sum::<usize>());
        if [shared.len(), own.len()] != expected {
            return Err(format!(
                "{} shared values and {} of this rank, instead of {} and {} for this module and rank {}",
                shared.len(),
                own.len(),
                expected[0],
                expected[1],
                self.options.rank
            ));
        }
        for matrix in self.matrices.iter_mut().flatten() {
            for (part, from) in [(&mut matrix.q, &mut shared), (&mut matrix.error, &mut own)] {
                let values = take(from, part.len());
                part.copy_from_slice(values);
            }
        }
        Ok(())
    }
}

/// Rounds `values` to the type in which they are sent.
fn round(values: &mut [f32], wire: WireType) {
    match wire {
        WireType::F32 => {}
        WireType::Bf16 => values.iter_mut().for_each(|value| *value = bf16::from_f32(*value).into()),
        WireType::F16 => values.iter_mut().for_each(|value| *value = f16::from_f32(*value).into()),
    }
}

/// Splits the first `count` values off.
fn take<'a>(values: &mut &'a [f32], count: usize) -> &'a [f32] {
    let (first, rest) = values.split_at(count);
    *values = rest;
    first
}

#[cfg(test)]
mod tests;
