//! Compares the approximation with PyTorch's `powerSGD_hook` on two ranks. `tests/pytorch/powersgd.py` has the
//! same sequence of matrices, and prints the errors below (PyTorch 2.9.0).

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use burn_mpi::threads::run;
use burn_mpi::{
    Backend, CommError, CompressionState, GradientSync, MicroBatch, PowerSgd, SyncOptions, Transport, World,
    connect,
};

use super::with_seed;

/// Rank of the approximation, step, relative error of the step's average, and relative error of the sum of all
/// averages so far.
const ERRORS: [(usize, usize, f64, f64); 36] = [
    (1, 0, 0.822547, 0.822547),
    (1, 1, 0.826950, 0.543075),
    (1, 2, 0.931663, 0.369394),
    (1, 3, 0.688855, 0.370946),
    (1, 4, 0.898803, 0.377842),
    (1, 5, 1.128439, 0.392773),
    (1, 6, 1.851135, 0.276274),
    (1, 7, 1.070121, 0.237777),
    (1, 8, 1.139387, 0.220374),
    (1, 9, 1.425836, 0.201480),
    (1, 10, 1.280900, 0.199176),
    (1, 11, 1.268494, 0.196005),
    (2, 0, 0.560640, 0.560640),
    (2, 1, 0.571059, 0.257164),
    (2, 2, 0.383505, 0.218780),
    (2, 3, 0.447626, 0.198896),
    (2, 4, 0.607278, 0.188109),
    (2, 5, 0.756449, 0.116581),
    (2, 6, 0.405555, 0.104199),
    (2, 7, 0.315891, 0.107304),
    (2, 8, 0.334674, 0.115846),
    (2, 9, 0.478537, 0.114467),
    (2, 10, 0.698202, 0.109185),
    (2, 11, 0.771844, 0.106428),
    (3, 0, 0.313446, 0.313446),
    (3, 1, 0.320701, 0.136148),
    (3, 2, 0.212246, 0.115055),
    (3, 3, 0.204376, 0.105511),
    (3, 4, 0.202693, 0.101932),
    (3, 5, 0.267547, 0.088679),
    (3, 6, 0.411808, 0.068405),
    (3, 7, 0.301180, 0.062641),
    (3, 8, 0.338173, 0.051844),
    (3, 9, 0.223444, 0.049234),
    (3, 10, 0.225145, 0.049079),
    (3, 11, 0.229705, 0.050302),
];

const SHAPES: [[usize; 2]; 2] = [[24, 20], [8, 36]];

#[derive(Module, Debug)]
struct Net {
    weight: Param<Tensor<2>>,
    kernel: Param<Tensor<4>>,
}

/// Pseudo-random numbers from -1 to 1, in integer arithmetic.
fn numbers(seed: usize, count: usize) -> Vec<f32> {
    let mut state = (seed as u64 * 7919 + 12345) % 2_147_483_647;
    let mut next = || {
        state = state * 48271 % 2_147_483_647;
        ((state % 2001) as f64 / 1000.0 - 1.0) as f32
    };
    (0..count).map(|_| next()).collect()
}

/// A matrix of falling singular values that changes slowly, and noise of the step and of the rank.
fn gradient(param: usize, step: usize, rank: usize) -> Vec<f32> {
    let [rows, columns] = SHAPES[param];
    let mut matrix = vec![0.0; rows * columns];
    for k in 0..4 {
        let left = numbers(100 * param + 10 * k + 1, rows);
        let right = numbers(100 * param + 10 * k + 2, columns);
        let change = numbers(1000 + 100 * param + 10 * k + step / 4, columns);
        for (at, value) in matrix.iter_mut().enumerate() {
            let (i, j) = (at / columns, at % columns);
            *value += 0.5f32.powi(k as i32) * (left[i] * (right[j] + 0.25 * change[j]));
        }
    }
    for seed in [5000 + 10 * step + param, 9000 + 100 * step + 10 * rank + param] {
        matrix
            .iter_mut()
            .zip(numbers(seed, rows * columns))
            .for_each(|(value, noise)| *value += 0.125 * noise);
    }
    matrix
}

/// Returns the norm of the difference of `found` and `exact`, relative to the norm of `exact`.
fn error(found: &[f64], exact: &[f64]) -> f64 {
    let difference: f64 = found.iter().zip(exact).map(|(a, b)| (a - b).powi(2)).sum();
    (difference / exact.iter().map(|value| value.powi(2)).sum::<f64>()).sqrt()
}

/// Returns the errors of each step, with approximations of this rank.
fn errors(world: &World, rank: usize) -> Result<Vec<[f64; 2]>, CommError> {
    let device = Device::flex().autodiff();
    let net = Net {
        weight: Param::from_tensor(Tensor::zeros([24, 20], &device)),
        kernel: Param::from_tensor(Tensor::zeros([8, 4, 3, 3], &device)),
    };
    let collective = connect(world, Backend::Mpi, &Transport::default())?;
    let options = SyncOptions::default().with_compression(Some(PowerSgd::new(rank)));
    let mut sync = GradientSync::of_module(world, collective, &net, options);
    let shared = (0..2).flat_map(|param| numbers(70 + param, rank * SHAPES[param][1])).collect();
    sync.restore_compression(CompressionState { shared, own: vec![0.0; 24 * 20 + 8 * 36] })?;
    let (mut given, mut delivered) = (vec![0.0; 768], vec![0.0; 768]);
    let mut errors = Vec::new();
    for step in 0..ERRORS.len() / 3 {
        let data = |param, shape: &[usize]| TensorData::new(gradient(param, step, world.rank()), shape);
        let weight = net.weight.val() * Tensor::from_data(data(0, &[24, 20]), &device);
        let kernel = net.kernel.val() * Tensor::from_data(data(1, &[8, 4, 3, 3]), &device);
        sync.backward(&(weight.sum() + kernel.sum()), &net, 1, world.size(), MicroBatch::Last)?;
        sync.finish(&net)?;
        let average = [sync.gradient(0)?, sync.gradient(1)?].concat();
        let average: Vec<f64> = average.into_iter().map(f64::from).collect();
        let of_rank = |rank| (0..2).flat_map(move |param| gradient(param, step, rank));
        let exact: Vec<f64> =
            of_rank(0).zip(of_rank(1)).map(|(a, b)| (f64::from(a) + f64::from(b)) / 2.0).collect();
        given.iter_mut().zip(&exact).for_each(|(sum, value)| *sum += value);
        delivered.iter_mut().zip(&average).for_each(|(sum, value)| *sum += value);
        errors.push([error(&average, &exact), error(&delivered, &given)]);
    }
    Ok(errors)
}

#[test]
fn errors_are_those_of_pytorch() {
    for (rank, expected) in (1..).zip(ERRORS.chunks(ERRORS.len() / 3)) {
        let found = run(2, &with_seed(0), |world| errors(world, rank)).unwrap();
        assert_eq!(found[0], found[1]);
        for (found, &(of_rank, step, average, sum)) in found[0].iter().zip(expected) {
            assert_eq!(of_rank, rank);
            for (found, expected) in found.iter().zip([average, sum]) {
                let off = (found / expected - 1.0).abs();
                assert!(off < 1e-3, "rank {rank}, step {step}: {found} instead of {expected}");
            }
        }
    }
}
