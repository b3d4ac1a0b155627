//! Checks the arithmetic of PowerSGD, with ranks that are values of this thread.

use burn::tensor::DType;

use super::*;
use crate::ddp::buffers::BucketPlan;

const OPTIONS: PowerSgd = PowerSgd { rank: 2, seed: 5 };

fn layout(shapes: &[&[usize]]) -> ParamLayout {
    let mut start = 0;
    let spec = |shape: &&[usize]| {
        let end = start + shape.iter().product::<usize>();
        let range = std::mem::replace(&mut start, end)..end;
        let name = format!("weight{end}");
        let shape = shape.to_vec();
        ParamSpec { name, shape, range, dtype: DType::F32, transposed: false, trainable: true, tied_to: None }
    };
    ParamLayout { specs: shapes.iter().map(spec).collect(), fields: Vec::new(), shadowed: None }
}

/// Several ranks, each with the gradients of two parameters in one bucket: a matrix and a vector.
struct Ranks {
    plan: BucketPlan,
    ranks: Vec<LowRank>,
}

const VECTOR: usize = 3;

impl Ranks {
    fn new(count: usize, options: PowerSgd, (rows, width): (usize, usize), wire: WireType) -> Self {
        // Also compresses where that saves nothing.
        let rank =
            || LowRank { options, wire, matrices: vec![None, Some(Matrix::new(options, 1, rows, width))] };
        let plan = BucketPlan::new(&[VECTOR, rows * width], &[1, 0], (usize::MAX, usize::MAX), 0, 1);
        Self { plan, ranks: (0..count).map(|_| rank()).collect() }
    }

    /// Sums `gradients`, one for each rank. Returns the values of each rank.
    fn step(&mut self, gradients: &[Vec<f32>], ranks_with_gradient: &[f32], finishes: bool) -> Vec<Vec<f32>> {
        let mut gradients = gradients.to_vec();
        let bucket = GradientBucket::new(&self.plan, 0, None);
        let mut values = vec![Vec::new(); self.ranks.len()];
        for ((rank, gradient), values) in self.ranks.iter_mut().zip(&mut gradients).zip(&mut values) {
            assert!(rank.begin(&bucket, gradient, values));
        }
        for round in 0.. {
            // As the transport rounds them, but without the rounding of the sum.
            values.iter_mut().for_each(|values| super::round(values, self.ranks[0].wire));
            let sums: Vec<f32> =
                (0..values[0].len()).map(|at| values.iter().map(|values| values[at]).sum()).collect();
            values.iter_mut().for_each(|values| values.copy_from_slice(&sums));
            let ranks = self.ranks.iter_mut().zip(&mut gradients).zip(&mut values);
            let more: Vec<bool> =
                ranks.map(|((rank, gradient), values)| rank.next(&bucket, gradient, round, values)).collect();
            if more.iter().all(|more| !more) {
                break;
            }
        }
        let bucket = GradientBucket::new(&self.plan, 0, Some(ranks_with_gradient));
        if finishes {
            for ((rank, gradient), values) in self.ranks.iter_mut().zip(&mut gradients).zip(&values) {
                rank.finish(&bucket, gradient, values);
            }
        }
        gradients
    }

    /// The sum of the error memories of all ranks.
    fn errors(&self) -> Vec<f32> {
        let states: Vec<_> = self.ranks.iter().map(|rank| rank.state().own).collect();
        sum(&states)
    }
}

fn sum(values: &[Vec<f32>]) -> Vec<f32> {
    (0..values[0].len()).map(|at| values.iter().map(|values| values[at]).sum()).collect()
}

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; count];
    fill_random(&mut values, &mut ChaCha8Rng::seed_from_u64(seed));
    values
}

/// Gradients of one rank: a matrix and a vector.
fn gradients((rows, width): (usize, usize), seed: u64) -> Vec<f32> {
    random(rows * width + VECTOR, seed)
}

/// The norm of the difference of two matrices, relative to the norm of `expected`.
fn apart(found: &[f32], expected: &[f32]) -> f32 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
    norm(&mut found.iter().zip(expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied())
}

#[test]
fn a_full_rank_gives_the_sum_and_a_vector_is_exact() {
    for (rows, width) in [(4, 7), (7, 4), (5, 5)] {
        let options = PowerSgd { rank: rows.min(width), seed: 1 };
        let mut ranks = Ranks::new(3, options, (rows, width), WireType::F32);
        for step in 0..3 {
            let own: Vec<_> = (0..3).map(|rank| gradients((rows, width), 10 * step + rank)).collect();
            let found = ranks.step(&own, &[3.0; 2], true);
            let expected = sum(&own);
            assert_eq!(found[0], found[1]);
            assert!(apart(&found[0], &expected) < 1e-5, "{}", apart(&found[0], &expected));
            assert_eq!(found[0][rows * width..], expected[rows * width..]);
        }
    }
}

#[test]
fn a_matrix_of_the_rank_is_exact_and_one_of_lower_rank_does_not_lower_the_rank() {
    let shape = (30, 20);
    let of_rank = |rank: usize, seed: u64| {
        let mut values = vec![0.0; 600];
        let [left, right] = [30, 20].map(|length| random(rank * length, seed + length as u64));
        add_outer_product(&mut values, 20, &left, &right, 1.0);
        values.extend([0.0; VECTOR]);
        values
    };
    let mut ranks = Ranks::new(2, OPTIONS, shape, WireType::F32);
    // Matrices of rank 1 and 0, and matrices of two ranks whose sum has rank 2.
    let zero = vec![0.0; 600 + VECTOR];
    for own in [
        [of_rank(2, 1), zero.clone()],
        [of_rank(1, 2), zero.clone()],
        [zero.clone(), zero.clone()],
        [of_rank(1, 3), of_rank(1, 4)],
        [of_rank(1, 5), of_rank(1, 6)],
    ] {
        let found = ranks.step(&own, &[2.0; 2], true);
        let expected = sum(&own);
        let scale = expected.iter().fold(1f32, |max, value| max.max(value.abs()));
        let off = found[0].iter().zip(&expected).fold(0f32, |max, (a, b)| max.max((a - b).abs()));
        assert!(off < 1e-5 * scale, "{off} of {scale}");
    }
}

#[test]
fn averages_and_error_memories_add_up_to_the_gradients() {
    for wire in [WireType::F32, WireType::Bf16, WireType::F16] {
        let shape = (16, 12);
        let mut ranks = Ranks::new(3, OPTIONS, shape, wire);
        let (mut delivered, mut given) = (vec![0.0; 192], vec![0.0; 192]);
        for step in 0..40 {
            // Rank 2 never has samples.
            let mut own: Vec<_> = (0..2).map(|rank| gradients(shape, 2 * step + rank)).collect();
            own.push(vec![0.0; 192 + VECTOR]);
            let found = ranks.step(&own, &[2.0; 2], true);
            assert!(found.iter().all(|values| *values == found[0]));
            delivered = sum(&[delivered, found[0][..192].to_vec()]);
            given = sum(&[given, sum(&own)[..192].to_vec()]);
            let off = apart(&sum(&[delivered.clone(), ranks.errors()]), &given);
            assert!(off < 1e-5, "step {step}: {off}");
        }
        assert_eq!(ranks.ranks[2].state().own, [0.0; 192], "the memory of a rank without samples");
    }
}

#[test]
fn memories_do_not_grow_with_the_steps() {
    let shape = (16, 12);
    let mut ranks = Ranks::new(2, OPTIONS, shape, WireType::F32);
    let mut largest = [0f32; 2];
    for step in 0..1000 {
        ranks.step(&[gradients(shape, 2 * step), gradients(shape, 2 * step + 1)], &[2.0; 2], true);
        let own = ranks.ranks[0].state().own;
        let norm = own.iter().map(|value| value * value).sum::<f32>().sqrt();
        let largest = &mut largest[usize::from(step >= 50)];
        *largest = largest.max(norm);
    }
    // A sum of random differences would grow by a factor of 4.
    assert!(largest[1] < 2.0 * largest[0], "{largest:?}");
}

#[test]
fn a_step_that_is_not_finished_or_not_finite_leaves_the_state() {
    let shape = (16, 12);
    let mut ranks = Ranks::new(2, OPTIONS, shape, WireType::F32);
    let own = |seed: u64| vec![gradients(shape, seed), gradients(shape, seed + 1)];
    ranks.step(&own(1), &[2.0; 2], true);
    let states = |ranks: &Ranks| ranks.ranks.iter().map(LowRank::state).collect::<Vec<_>>();
    let before = states(&ranks);
    ranks.step(&own(3), &[2.0; 2], false);
    assert_eq!(states(&ranks), before, "not finished");
    ranks.step(&own(5), &[2.0, 0.0], true);
    assert_eq!(states(&ranks), before, "no gradient on any rank");
    for odd in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut own = own(7);
        own[1][5] = odd;
        own[1][17] = odd;
        let found = ranks.step(&own, &[2.0; 2], true);
        assert!(found.iter().all(|values| values[..192].iter().all(|value| value.is_nan())), "{odd}");
        assert!(found[0][192..].iter().all(|value| value.is_finite()), "{odd}");
        assert_eq!(states(&ranks), before, "{odd}");
    }
    ranks.step(&own(9), &[2.0; 2], true);
    assert_ne!(states(&ranks), before);
}

#[test]
fn a_rank_above_that_of_every_matrix_is_refused() {
    let error = |rank: usize, shapes: &[&[usize]]| {
        let options = PowerSgd { rank, seed: 0 };
        LowRank::new(options, WireType::F32, &layout(shapes)).err().map(|error| error.to_string())
    };
    // 2 · 4 · (16 + 16) = 16 · 16, and 8 input channels of 3 · 3 are 72 columns.
    let shapes: [&[usize]; 4] = [&[16, 16], &[1000], &[8, 8, 3, 3], &[0, 4]];
    assert_eq!(error(4, &shapes), None);
    let high = error(5, &shapes).unwrap();
    assert!(high.contains("a rank up to 4, the highest for weight256 [16, 16]"), "{high}");
    assert!(error(0, &shapes).unwrap().contains("at least 1"));
    let none = error(1, &[&[3, 5], &[100]]).unwrap();
    assert!(none.contains("even with rank 1"), "{none}");
    assert!(error(1, &[]).is_some());
    let compressed = LowRank::new(PowerSgd { rank: 3, seed: 0 }, WireType::F32, &layout(&shapes)).unwrap();
    let compressed: Vec<bool> = compressed.matrices.iter().map(Option::is_some).collect();
    assert_eq!(compressed, [true, false, true, false]);
}

#[test]
fn a_state_of_another_module_is_refused() {
    let state = |shapes: &[&[usize]]| LowRank::new(OPTIONS, WireType::F32, &layout(shapes)).unwrap();
    let mut one = state(&[&[16, 16], &[20, 30]]);
    assert_eq!(one.restore(one.state()), Ok(()));
    let error = one.restore(state(&[&[16, 16]]).state()).unwrap_err();
    assert!(error.contains("32 shared values and 256 of this rank, instead of 92 and 856"), "{error}");
}
