//! Times steps of the optimizers of `burn_fused::optim` against the optimizers of `burn::optim`. Each
//! measurement times a step of Burn's optimizer, then of the fused one. Usage:
//!
//! ```text
//! cargo run --release --example compare_optimizers [PART OF A NAME]
//! ```

use std::time::Instant;

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig};
use burn::optim as burns;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::{Device, Distribution, Tensor};
use burn_fused::optim as fused;

/// Number of measurements of each optimizer.
const REPEATS: usize = 31;

fn main() {
    let part = std::env::args().nth(1).unwrap_or_default();
    let device = Device::flex().autodiff();
    // 3.2 million values, and 50 thousand values, in 64 tensors each.
    let wide = TransformerEncoderConfig::new(256, 1024, 4, 4).init(&device);
    let narrow = TransformerEncoderConfig::new(32, 128, 4, 4).init(&device);
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    println!("threads of operators: {threads}");
    println!("{:<40} {:>9} {:>9} {:>6}", "optimizer", "Burn, ms", "fused, ms", "ratio");
    let (decay, momentum) = (Some(WeightDecayConfig::new(0.01)), Some(MomentumConfig::new()));
    let clipping = Some(GradientClippingConfig::Norm(1.0));
    let pairs = [
        ("AdamW", burns::AdamWConfig::new().init(), fused::AdamWConfig::new().init()),
        (
            "AdamW, AMSGrad",
            burns::AdamWConfig::new().with_amsgrad(true).init(),
            fused::AdamWConfig::new().with_amsgrad(true).init(),
        ),
        (
            "AdamW, clipped by norm",
            burns::AdamWConfig::new().with_grad_clipping(clipping.clone()).init(),
            fused::AdamWConfig::new().with_grad_clipping(clipping).init(),
        ),
        (
            "Adam, weight decay",
            burns::AdamConfig::new().with_weight_decay(decay.clone()).init(),
            fused::AdamConfig::new().with_weight_decay(decay.clone()).init(),
        ),
        ("SGD", burns::SgdConfig::new().init(), fused::SgdConfig::new().init()),
        (
            "SGD, momentum",
            burns::SgdConfig::new().with_momentum(momentum.clone()).init(),
            fused::SgdConfig::new().with_momentum(momentum).init(),
        ),
    ];
    for (name, burns, ours) in pairs {
        for (size, module) in [("", &wide), (", width 32", &narrow)] {
            // A training loop may hold the module during the step, as Burn's `Learner` does.
            for (held, also) in [(false, ""), (true, ", module held")] {
                let name = format!("{name}{size}{also}");
                if name.contains(&part) {
                    let [burns, ours] = compare([burns.clone(), ours.clone()], module, held);
                    println!("{name:<40} {burns:>9.3} {ours:>9.3} {:>6.2}", burns / ours);
                }
            }
        }
    }
}

/// Returns the milliseconds of a step of each optimizer.
fn compare(mut optimizers: [ModuleOptimizer; 2], module: &TransformerEncoder, held: bool) -> [f64; 2] {
    let mut modules = [(); 2].map(|()| Some(module.clone().fork(&module.devices()[0])));
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..REPEATS {
        for ((optimizer, module), times) in optimizers.iter_mut().zip(&mut modules).zip(&mut times) {
            let owned = module.take().expect("it is put back");
            let mut gradients = Gradients(GradientsParams::new());
            owned.visit(&mut gradients);
            *module = held.then(|| owned.clone());
            let began = Instant::now();
            *module = Some(optimizer.step(1e-3, owned, gradients.0));
            times.push(1e3 * began.elapsed().as_secs_f64());
        }
    }
    times.map(|mut times| {
        times.sort_by(f64::total_cmp);
        // Other processes share the cores, so take the 10th percentile: the fastest steps are the undisturbed
        // ones.
        times[REPEATS / 10]
    })
}

/// Draws random gradients of parameters.
struct Gradients(GradientsParams);

impl ModuleVisitor for Gradients {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = param.val();
        let gradient = Tensor::random(value.dims(), Distribution::Default, &value.device().inner());
        self.0.register::<D>(param.id, gradient);
    }
}
