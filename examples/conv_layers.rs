//! Times the convolutions of a VGG network with each algorithm. The algorithms are timed in turn. Usage:
//! `cargo run --release --workspace --example conv_layers [BATCH [ROUNDS [THREADS]]]`.

use std::process::ExitCode;
use std::time::Instant;

use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::{Device, Distribution, Tensor};
use burn_fused::conv::{Algorithm, conv_relu, conv_relu_pool};

/// Input channels, output channels, height and width, and whether pooling follows.
const LAYERS: [([usize; 3], bool); 6] = [
    ([3, 32, 32], false),
    ([32, 64, 32], true),
    ([64, 128, 16], false),
    ([128, 256, 16], true),
    ([256, 256, 8], false),
    ([256, 256, 8], true),
];

/// Returns the milliseconds of one forward and of one backward.
fn time(images: &Tensor<4>, layer: &Conv2d, pools: bool) -> [f64; 2] {
    let start = Instant::now();
    let output = if pools { conv_relu_pool(images.clone(), layer) } else { conv_relu(images.clone(), layer) };
    let forward = start.elapsed();
    let loss = output.sum();
    let start = Instant::now();
    let gradients = loss.backward();
    let backward = start.elapsed();
    assert!(images.grad(&gradients).is_some());
    [forward, backward].map(|time| 1e3 * time.as_secs_f64())
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() -> ExitCode {
    let numbers: Result<Vec<usize>, _> = std::env::args().skip(1).map(|word| word.parse()).collect();
    let Ok(numbers) = numbers else {
        eprintln!("usage: conv_layers [BATCH [ROUNDS [THREADS]]]");
        return ExitCode::FAILURE;
    };
    let mut numbers = numbers.into_iter();
    let [batch, rounds, threads] = [32, 9, 1].map(|default| numbers.next().unwrap_or(default));
    if let Err(error) = burn_fused::use_threads(threads) {
        eprintln!("conv_layers: {error}");
        return ExitCode::FAILURE;
    }
    let device = Device::flex().autodiff();
    let mut sums = [0.0; 2];
    println!(
        "ms per call, median of {rounds}, batch {batch}, threads {threads}: forward, backward (of input, weights and bias)"
    );
    for ([inputs, outputs, side], pools) in LAYERS {
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        let layer = Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(&device);
        let images = Tensor::<4>::random([batch, inputs, side, side], Distribution::Default, &device);
        let images = images.require_grad();
        let mut times = [[vec![], vec![]], [vec![], vec![]]];
        for round in 0..=rounds {
            for (algorithm, times) in Algorithm::ALL.into_iter().zip(&mut times) {
                algorithm.use_algorithm();
                let found = time(&images, &layer, pools);
                // The first round allocates buffers, so it does not count.
                for (times, found) in times.iter_mut().zip(found).filter(|_| round > 0) {
                    times.push(found);
                }
            }
        }
        let medians = times.map(|times| times.map(median));
        let columns = Algorithm::ALL
            .iter()
            .zip(medians)
            .map(|(algorithm, [forward, backward])| format!("{algorithm} {forward:6.2} {backward:6.2}"));
        println!(
            "{inputs:3} to {outputs:3} at {side:2}x{side:2}: {}",
            columns.collect::<Vec<_>>().join(", ")
        );
        for (sum, [forward, backward]) in sums.iter_mut().zip(medians) {
            *sum += forward + backward;
        }
    }
    println!(
        "all layers: winograd {:.1}, gemm {:.1}; winograd is {:.2} times as fast",
        sums[0],
        sums[1],
        sums[1] / sums[0]
    );
    ExitCode::SUCCESS
}
