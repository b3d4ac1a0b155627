//! Times modules of `burn_fused::nn` against those of `burn::nn`, forward and backward, in turn:
//!
//! ```text
//! cargo run --release --example compare_modules [PART OF A NAME]
//! ```

use std::hint::black_box;
use std::time::Instant;

use burn::tensor::{Device, Distribution, Tensor};
use burn_fused::nn as fused;

/// Measurements of each side.
const REPEATS: usize = 21;

/// What is timed: an output, whose sum is differentiated.
type Output = Box<dyn Fn() -> Tensor<1>>;

fn main() {
    let part = std::env::args().nth(1).unwrap_or_default();
    println!("{:<40} {:>9} {:>9} {:>6}", "module", "Burn, ms", "fused, ms", "ratio");
    for (name, burns, ours) in pairs(&Device::flex().autodiff()) {
        if name.contains(&part) {
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..REPEATS {
                for (times, output) in times.iter_mut().zip([&burns, &ours]) {
                    let began = Instant::now();
                    black_box(output().backward());
                    times.push(1e3 * began.elapsed().as_secs_f64());
                }
            }
            let [burns, ours] = times.map(|mut times| {
                times.sort_by(f64::total_cmp);
                times[REPEATS / 2]
            });
            println!("{name:<40} {burns:>9.3} {ours:>9.3} {:>6.2}", burns / ours);
        }
    }
}

/// Each module as Burn's and as ours.
fn pairs(device: &Device) -> Vec<(&'static str, Output, Output)> {
    let mut pairs: Vec<(_, Output, Output)> = Vec::new();
    let random = |shape: [usize; 3]| Tensor::<3>::random(shape, Distribution::Default, device).require_grad();

    let (x, layer) = (random([16, 32, 256]), burn::nn::LinearConfig::new(256, 1024).init(device));
    let (y, ours) = (x.clone(), fused::Linear::from(layer.clone()));
    pairs.push((
        "Linear 256 to 1024, 16 x 32 rows",
        Box::new(move || layer.forward(x.clone()).sum()),
        Box::new(move || ours.forward(y.clone()).sum()),
    ));
    for width in [256, 512] {
        let name = |what: &str| format!("{what} {width}, 16 x 32 rows").leak() as &'static str;
        let (x, layer) = (random([16, 32, width]), burn::nn::LayerNormConfig::new(width).init(device));
        let (y, ours) = (x.clone(), fused::LayerNorm::from(layer.clone()));
        pairs.push((
            name("LayerNorm"),
            Box::new(move || layer.forward(x.clone()).sum()),
            Box::new(move || ours.forward(y.clone()).sum()),
        ));
        let (x, layer) = (random([16, 32, width]), burn::nn::RmsNormConfig::new(width).init(device));
        let (y, ours) = (x.clone(), fused::RmsNorm::from(layer.clone()));
        pairs.push((
            name("RmsNorm"),
            Box::new(move || layer.forward(x.clone()).sum()),
            Box::new(move || ours.forward(y.clone()).sum()),
        ));
        let (x, layer) = (random([16, 32, width]), burn::nn::DropoutConfig::new(0.1).init());
        let (y, ours) = (x.clone(), fused::Dropout::from(layer.clone()));
        pairs.push((
            name("Dropout"),
            Box::new(move || layer.forward(x.clone()).sum()),
            Box::new(move || ours.forward(y.clone()).sum()),
        ));
    }
    pairs
}
