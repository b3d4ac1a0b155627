//! Layer and RMS normalisation of rows, and their gradients.

use std::array::from_fn;

use crate::kernels::simd::{Kernel, Lanes, MAX_LANES, kernel, load};

/// How a row is normalised.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    pub epsilon: f32,
    /// Whether the mean is subtracted, as in layer normalisation. RMS normalisation does not subtract it.
    pub centred: bool,
}

/// Statistics of a row.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Statistics {
    /// The mean, or 0 if the mean is not subtracted.
    mean: f32,
    inverse_deviation: f32,
}

/// Number of rows in a part. One thread computes a part. The gradients of gamma and beta are summed over the
/// rows of a part, and then over parts, because short chains of additions are more exact.
pub(crate) const ROWS: usize = 64;

/// Number of rows in a group. The rows of a group are computed together. In forward, the last additions of
/// one row's sum overlap with the next row's additions. In backward, the sums of columns are read and written
/// once for all rows of a group.
const GROUP: usize = 4;

kernel! {
    /// Computes `output = (row - mean) * inverse deviation * gamma + beta` for each row.
    pub(crate) fn rows_forward<S>(
        simd: S,
        rule: Rule,
        rows: &[f32],
        // Gamma and beta. Beta may be empty.
        parameters: [&[f32]; 2],
        output: &mut [f32],
        statistics: &mut [Statistics],
    ) {
        let [gamma, beta] = parameters;
        let width = gamma.len();
        let groups = rows.chunks(GROUP * width).zip(output.chunks_mut(GROUP * width));
        for ((rows, output), statistics) in groups.zip(statistics.chunks_mut(GROUP)) {
            let rows = rows.chunks_exact(width);
            for (row, statistics) in rows.clone().zip(&mut *statistics) {
                let sum = if rule.centred { sum::<S, false>(simd, row, 0.0) } else { 0.0 };
                statistics.mean = sum / width as f32;
            }
            for (row, statistics) in rows.clone().zip(&mut *statistics) {
                // The variance is computed from distances to the mean. The difference between the mean square
                // and the squared mean would lose digits.
                let variance = sum::<S, true>(simd, row, statistics.mean) / width as f32;
                statistics.inverse_deviation = 1.0 / (variance + rule.epsilon).sqrt();
            }
            for ((row, output), statistics) in rows.zip(output.chunks_exact_mut(width)).zip(statistics) {
                let &mut Statistics { mean, inverse_deviation } = statistics;
                let values = row.iter().zip(gamma).map(|(x, gamma)| (x - mean) * inverse_deviation * gamma);
                if beta.is_empty() {
                    output.iter_mut().zip(values).for_each(|(y, value)| *y = value);
                } else {
                    let values = values.zip(beta).map(|(value, beta)| value + beta);
                    output.iter_mut().zip(values).for_each(|(y, value)| *y = value);
                }
            }
        }
    }
}

/// Returns the sum of a row's distances from `origin`, or of their squares if `SQUARED`.
#[inline(always)]
fn sum<S: Lanes, const SQUARED: bool>(simd: S, row: &[f32], origin: f32) -> f32 {
    let (vectors, rest) = S::as_simd_f32s(row);
    // Lanes without a value contain `origin`, so their distance is 0.
    let mut last = [origin; MAX_LANES];
    last[..rest.len()].copy_from_slice(rest);
    let last = load(simd, &last[..S::F32_LANES]);
    let origin = simd.splat_f32s(origin);
    // There are four independent sums, so that their additions overlap.
    let mut sums = [simd.splat_f32s(0.0); 4];
    let (fours, ones) = vectors.as_chunks::<4>();
    for four in fours {
        for n in 0..4 {
            sums[n] = add_distance::<S, SQUARED>(simd, sums[n], four[n], origin);
        }
    }
    for &one in ones {
        sums[0] = add_distance::<S, SQUARED>(simd, sums[0], one, origin);
    }
    sums[1] = add_distance::<S, SQUARED>(simd, sums[1], last, origin);
    let [a, b, c, d] = sums;
    simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(a, b), simd.add_f32s(c, d)))
}

#[inline(always)]
fn add_distance<S: Lanes, const SQUARED: bool>(
    simd: S,
    sum: S::f32s,
    x: S::f32s,
    origin: S::f32s,
) -> S::f32s {
    let distance = simd.sub_f32s(x, origin);
    if SQUARED { simd.fma(distance, distance, sum) } else { simd.add_f32s(sum, distance) }
}

/// Backward of [`rows_forward`]: the gradients of its rows and parameters. Let `h` be the normalised row,
/// before gamma, and `dh` its gradient. The gradient of the row is
/// `(dh - mean(dh) - h * mean(dh * h)) * inverse deviation`. Without centring, the term `mean(dh)` is left
/// out.
pub(crate) struct RowsBackward<'a> {
    /// Whether the mean was subtracted.
    pub centred: bool,
    /// Inputs of forward, `[rows, width]`.
    pub rows: &'a [f32],
    /// Mean and inverse deviation of each row.
    pub statistics: &'a [Statistics],
    /// Factors of the columns, `[width]`.
    pub gamma: &'a [f32],
    /// Gradient of the outputs, `[rows, width]`, which becomes the gradient of the rows.
    pub gradient: &'a mut [f32],
    /// Gradient of gamma, `[width]`, to which the terms of the rows are added.
    pub of_gamma: &'a mut [f32],
    /// Gradient of beta, `[width]`, to which the terms of the rows are added.
    pub of_beta: &'a mut [f32],
}

impl Kernel for RowsBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self, simd: S) {
        let Self { centred, rows, statistics, gamma, gradient, of_gamma, of_beta } = self;
        let width = gamma.len();
        let groups = rows.chunks(GROUP * width).zip(gradient.chunks_mut(GROUP * width));
        for ((rows, gradient), statistics) in groups.zip(statistics.chunks(GROUP)) {
            let mut sums = [[0.0; 2]; GROUP];
            if let Ok(statistics) = <&[Statistics; GROUP]>::try_from(statistics) {
                sums = column_sums(simd, rows, gradient, statistics, gamma, [of_gamma, of_beta]);
            } else {
                let rows = rows.chunks_exact(width).zip(gradient.chunks_exact(width));
                for ((row, gradient), (sums, &one)) in rows.zip(sums.iter_mut().zip(statistics)) {
                    [*sums] = column_sums(simd, row, gradient, &[one], gamma, [of_gamma, of_beta]);
                }
            }
            let rows = rows.chunks_exact(width).zip(gradient.chunks_exact_mut(width));
            for ((row, gradient), (sums, statistics)) in rows.zip(sums.iter().zip(statistics)) {
                let [of_mean, of_deviation] = sums.map(|sum| sum / width as f32);
                let of_mean = if centred { of_mean } else { 0.0 };
                let &Statistics { mean, inverse_deviation } = statistics;
                for ((gradient, x), gamma) in gradient.iter_mut().zip(row).zip(gamma) {
                    let normalised = (x - mean) * inverse_deviation;
                    *gradient = (*gradient * gamma - of_mean - normalised * of_deviation) * inverse_deviation;
                }
            }
        }
    }
}

/// Adds the terms of `R` rows to the gradients of gamma and beta. Returns for each row the sums of `dh` and
/// of `dh * h`, which [`RowsBackward`] defines.
#[inline(always)]
fn column_sums<S: Lanes, const R: usize>(
    simd: S,
    rows: &[f32],
    gradient: &[f32],
    statistics: &[Statistics; R],
    gamma: &[f32],
    [of_gamma, of_beta]: [&mut [f32]; 2],
) -> [[f32; 2]; R] {
    let width = gamma.len();
    let [x, g]: [[_; R]; 2] =
        [rows, gradient].map(|values| from_fn(|r| S::as_simd_f32s(&values[r * width..][..width])));
    let (gamma, gamma_rest) = S::as_simd_f32s(gamma);
    let (of_gamma, of_gamma_rest) = S::as_mut_simd_f32s(of_gamma);
    let (of_beta, of_beta_rest) = S::as_mut_simd_f32s(of_beta);
    let mut row_sums = RowSums::new(simd, statistics);
    // Slices of equal length save checks in the loop.
    let vectors = gamma.len();
    let (of_gamma, of_beta) = (&mut of_gamma[..vectors], &mut of_beta[..vectors]);
    let (x_vectors, g_vectors) = (x.map(|(x, _)| &x[..vectors]), g.map(|(g, _)| &g[..vectors]));
    for at in 0..vectors {
        let (x, g) = (from_fn(|r| x_vectors[r][at]), from_fn(|r| g_vectors[r][at]));
        [of_gamma[at], of_beta[at]] = row_sums.add(simd, x, g, gamma[at], [of_gamma[at], of_beta[at]]);
    }
    if !gamma_rest.is_empty() {
        // Lanes without a value contain 0, in inputs and in gradients, and add nothing.
        let (x, g) = (from_fn(|r| load(simd, x[r].1)), from_fn(|r| load(simd, g[r].1)));
        let sums = [load(simd, of_gamma_rest), load(simd, of_beta_rest)];
        let [of_gamma, of_beta] = row_sums.add(simd, x, g, load(simd, gamma_rest), sums);
        simd.partial_store_f32s(of_gamma_rest, of_gamma);
        simd.partial_store_f32s(of_beta_rest, of_beta);
    }
    row_sums.sums.map(|sums| sums.map(|sum| simd.reduce_sum_f32s(sum)))
}

/// Sums of `R` rows, in the lanes of vectors.
struct RowSums<S: Lanes, const R: usize> {
    means: [S::f32s; R],
    inverse_deviations: [S::f32s; R],
    /// Sums of `dh` and of `dh * h`, which [`RowsBackward`] defines.
    sums: [[S::f32s; 2]; R],
}

impl<S: Lanes, const R: usize> RowSums<S, R> {
    #[inline(always)]
    fn new(simd: S, statistics: &[Statistics; R]) -> Self {
        Self {
            means: statistics.map(|row| simd.splat_f32s(row.mean)),
            inverse_deviations: statistics.map(|row| simd.splat_f32s(row.inverse_deviation)),
            sums: [[simd.splat_f32s(0.0); 2]; R],
        }
    }

    /// Adds a vector of columns to the sums of the rows. Returns the columns' gradients of gamma and beta,
    /// with the terms of these rows added.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "the index names a register")]
    fn add(
        &mut self,
        simd: S,
        x: [S::f32s; R],
        g: [S::f32s; R],
        gamma: S::f32s,
        [mut of_gamma, mut of_beta]: [S::f32s; 2],
    ) -> [S::f32s; 2] {
        for r in 0..R {
            let normalised = simd.mul_f32s(simd.sub_f32s(x[r], self.means[r]), self.inverse_deviations[r]);
            let weighted = simd.mul_f32s(g[r], gamma);
            let [of_mean, of_deviation] = self.sums[r];
            self.sums[r] = [simd.add_f32s(of_mean, weighted), simd.fma(weighted, normalised, of_deviation)];
            of_gamma = simd.fma(g[r], normalised, of_gamma);
            of_beta = simd.add_f32s(of_beta, g[r]);
        }
        [of_gamma, of_beta]
    }
}
