//! Checks the optimizers against Burn's: parameters and records over 50 steps.

use burn::backend::Flex;
use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, ModuleVisitor, Param, ParamGroup};
use burn::optim as burns;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::{DType, Device, Tensor};

use super::*;
use crate::kernels::simd::Level;
use crate::ops::flex_tensor::f32_on_flex;
use crate::ops::linear::linear;
use crate::ops::testing::{Part, assert_close, random};

/// A module with parameters of one to five dimensions.
#[derive(Module, Debug)]
struct Parameters {
    vector: Param<Tensor<1>>,
    matrix: Param<Tensor<2>>,
    cube: Param<Tensor<3>>,
    kernel: Param<Tensor<4>>,
    five: Param<Tensor<5>>,
    single: Param<Tensor<1>>,
    empty: Param<Tensor<2>>,
    /// Larger than the other parameters. Its length is not a multiple of a SIMD vector's.
    large: Param<Tensor<2>>,
    /// A matrix that is stored by column.
    transposed: Param<Tensor<2>>,
    frozen: Param<Tensor<2>>,
    half: Param<Tensor<1>>,
}

impl Parameters {
    fn new(device: &Device) -> Self {
        let param = |tensor| Param::from_tensor(tensor);
        Self {
            vector: Param::from_tensor(random([37], 1, device)),
            matrix: param(random([7, 33], 2, device)),
            cube: Param::from_tensor(random([3, 5, 9], 3, device)),
            kernel: Param::from_tensor(random([4, 3, 3, 3], 4, device)),
            five: Param::from_tensor(random([2, 1, 3, 2, 2], 5, device)),
            single: Param::from_tensor(random([1], 6, device)),
            empty: param(random([0, 4], 7, device)),
            large: param(random([67, 131], 8, device)),
            transposed: param(random([12, 30], 9, device).transpose()),
            frozen: param(random([4, 4], 10, device)).no_grad(),
            half: Param::from_tensor(random([16], 11, device).cast(DType::BF16)),
        }
    }
}

/// Registers random gradients of the parameters. In each step, some parameters get no gradient, and some
/// gradients are views.
struct RandomGradients {
    gradients: GradientsParams,
    step: u64,
    seed: u64,
}

impl ModuleVisitor for RandomGradients {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.seed += 1;
        let value = param.val();
        // The test loads records at step 20. Moments in bf16 load as f32, and Burn's operators then reject
        // them beside the bf16 parameter, so this parameter gets no gradient after step 20.
        let unloadable = self.step > 20 && value.dtype() == DType::BF16;
        if !param.is_require_grad() || unloadable || (self.step + self.seed).is_multiple_of(5) {
            return;
        }
        let (shape, device, seed) = (value.dims(), value.device().inner(), 100 * self.step + self.seed);
        let count: usize = shape.iter().product();
        let gradient = match self.seed % 3 {
            // A gradient that is a view into a longer buffer, as averaged gradients are.
            0 => random([count + 12], seed, &device).narrow(0, 5, count).reshape(shape),
            // A gradient that is stored by column.
            1 if D > 1 => {
                let mut swapped = shape;
                swapped.swap(0, D - 1);
                random(swapped, seed, &device).swap_dims(0, D - 1)
            }
            _ => random(shape, seed, &device),
        };
        self.gradients.register(param.id, (gradient * self.scale()).cast(value.dtype()));
    }
}

impl RandomGradients {
    fn for_module(module: &impl Module, step: u64) -> GradientsParams {
        let mut all = Self { gradients: GradientsParams::new(), step, seed: 0 };
        module.visit(&mut all);
        all.gradients
    }

    /// Returns the scale of gradients. It grows and shrinks, so that second moments fall below their maxima
    /// and AMSGrad differs from Adam.
    fn scale(&self) -> f32 {
        [1.0, 3.0, 0.1, 0.0][(self.step / 4) as usize % 4]
    }
}

/// Returns the values of all parameters.
fn values(module: &impl Module) -> Vec<Part> {
    struct Values(Vec<Part>);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let values = param.val().cast(DType::F32).into_data().try_into_vec().expect("floats");
            self.0.push((format!("parameter {}", self.0.len()), values));
        }
    }
    let mut all = Values(Vec::new());
    module.visit(&mut all);
    all.0
}

/// Asserts that 50 steps of both optimizers give the same parameters, and that each optimizer continues from
/// the other's record.
fn assert_steps_equal(
    module: Parameters,
    mut ours: ModuleOptimizer,
    mut burns: ModuleOptimizer,
    lr: f64,
    context: &str,
) {
    let (mut our_module, mut burns_module) = (module.clone(), module);
    for step in 0..50 {
        let context = format!("{context}, step {step}");
        let both = |ours: &mut ModuleOptimizer, burns: &mut ModuleOptimizer, lr, modules: [Parameters; 2]| {
            let [first, second] = modules;
            let [gradients, same] = [&first, &second].map(|module| RandomGradients::for_module(module, step));
            let modules = [ours.step(lr, first, gradients), burns.step(lr, second, same)];
            assert_close(&values(&modules[0]), &values(&modules[1]), &context);
            modules
        };
        let held = (step % 3 == 0).then(|| (our_module.clone(), values(&our_module)));
        let mut copies = (step == 30).then(|| [&ours, &burns].map(ModuleOptimizer::clone));
        let lr = if step == 7 { 0.0 } else { lr };
        [our_module, burns_module] = both(&mut ours, &mut burns, lr, [our_module, burns_module]);
        if let Some((module, before)) = held {
            assert_eq!(values(&module), before, "{context}: a copy of the module");
        }
        if let Some([ours, burns]) = &mut copies {
            // Until the step above, the copies shared their moments with the optimizers. The step must not
            // have changed the moments of the copies.
            both(ours, burns, lr, [our_module.clone(), burns_module.clone()]);
        }
        if step == 20 {
            let [of_ours, of_burns] =
                [&ours, &burns].map(|optimizer| optimizer.into_bytes().expect("a record"));
            ours = ours.from_bytes(of_burns).expect("Burn's record");
            burns = burns.from_bytes(of_ours).expect("our record");
        }
    }
}

fn clippings() -> [Option<GradientClippingConfig>; 3] {
    [None, Some(GradientClippingConfig::Value(0.3)), Some(GradientClippingConfig::Norm(1.5))]
}

#[test]
fn adamw_is_that_of_burn() {
    let device = Device::flex().autodiff();
    for (amsgrad, cautious) in [(false, false), (true, false), (false, true), (true, true)] {
        let levels: Vec<_> = Level::available().collect();
        for ((clipping, decay), level) in
            clippings().into_iter().zip([0.0, 0.1, 0.01]).zip(levels.iter().cycle())
        {
            let _held = level.hold();
            let context = format!("{level}, AMSGrad {amsgrad}, cautious {cautious}, decay {decay}");
            let config = AdamWConfig::new()
                .with_amsgrad(amsgrad)
                .with_cautious_weight_decay(cautious)
                .with_weight_decay(decay)
                .with_grad_clipping(clipping);
            let burns = burns::AdamWConfig::from(config.clone());
            assert_eq!(config.to_string(), burns.to_string());
            assert_steps_equal(Parameters::new(&device), config.init(), burns.init(), 0.01, &context);
        }
    }
}

#[test]
fn adam_is_that_of_burn() {
    let device = Device::flex().autodiff();
    for (amsgrad, epsilon) in [(false, 1e-8), (true, 1e-3)] {
        for (clipping, penalty) in clippings().into_iter().zip([None, Some(0.1), Some(0.0)]) {
            let context = format!("AMSGrad {amsgrad}, penalty {penalty:?}");
            let config = AdamConfig::new()
                .with_beta_1(0.8)
                .with_beta_2(0.95)
                .with_epsilon(epsilon)
                .with_amsgrad(amsgrad)
                .with_weight_decay(penalty.map(WeightDecayConfig::new))
                .with_grad_clipping(clipping);
            let burns = burns::AdamConfig::from(config.clone());
            assert_eq!(config.to_string(), burns.to_string());
            assert_steps_equal(Parameters::new(&device), config.init(), burns.init(), 0.01, &context);
        }
    }
}

#[test]
fn sgd_is_that_of_burn() {
    let device = Device::flex().autodiff();
    let momentum =
        |dampening, nesterov| Some(MomentumConfig::new().with_dampening(dampening).with_nesterov(nesterov));
    for momentum in [None, momentum(0.1, false), momentum(0.0, true), momentum(0.3, true)] {
        for (clipping, penalty) in clippings().into_iter().zip([None, Some(0.1), Some(0.0)]) {
            let context = format!("{momentum:?}, penalty {penalty:?}");
            let config = SgdConfig::new()
                .with_weight_decay(penalty.map(WeightDecayConfig::new))
                .with_momentum(momentum.clone())
                .with_gradient_clipping(clipping);
            let burns = burns::SgdConfig::from(config.clone());
            assert_eq!(config.to_string(), burns.to_string());
            assert_steps_equal(Parameters::new(&device), config.init(), burns.init(), 0.01, &context);
        }
    }
}

#[test]
fn groups_have_their_own_optimizers() {
    let device = Device::flex().autodiff();
    let module = Parameters::new(&device);
    let group = || ParamGroup::from_paths(vec!["matrix", "large"]);
    let ours = AdamWConfig::new().init().with_group(group(), SgdConfig::new().build(), None);
    let burns = burns::AdamWConfig::new().init();
    let burns = burns.with_group(group(), burns::SgdConfig::new().build(), None);
    assert_steps_equal(module, ours, burns, 0.01, "two groups");
}

/// Returns the addresses of the tensors' values.
fn addresses<const D: usize, const N: usize>(tensors: [&Tensor<D>; N]) -> [usize; N] {
    tensors.map(|tensor| f32_on_flex(tensor).expect("on flex").bytes().as_ptr() as usize)
}

#[test]
fn values_stay_where_they_are_unless_they_are_shared() {
    let device = Device::flex();
    let optimizer = AdamWConfig::new().with_amsgrad(true).build();
    let gradient = |seed| random([64, 65], seed, &device);
    let x = random([64, 65], 1, &device);
    let before = addresses([&x]);
    let (x, state) = optimizer.step(0.1, x, gradient(2), None);
    assert_eq!(addresses([&x]), before);
    let all = |x: &Tensor<2>, state: &Option<AdamWState<2>>| {
        let momentum = &state.as_ref().expect("a state").momentum;
        let most = momentum.max_moment_2.as_ref().expect("with AMSGrad");
        addresses([x, &momentum.moment_1, &momentum.moment_2, most])
    };
    let before = all(&x, &state);
    let (x, state) = optimizer.step(0.1, x, gradient(3), state);
    assert_eq!(all(&x, &state), before);
    // Another tensor shares the memory of the parameter. The step then uses the memory of the gradient,
    // unless this memory is shared too.
    let (held, g) = (x.clone(), gradient(4));
    let of_gradient = addresses([&g]);
    let (x, state) = optimizer.step(0.1, x, g, state);
    assert_eq!(addresses([&x]), of_gradient);
    assert_ne!(x.to_data(), held.to_data());
    let (held, g) = (x.clone(), gradient(5));
    let (x, state) = optimizer.step(0.1, x, g.clone(), state);
    let [now, held, of_gradient] = [&x, &held, &g].map(|tensor| addresses([tensor]));
    assert!(now != held && now != of_gradient);
    assert_eq!(g.to_data(), gradient(5).to_data());
    // The gradient is a view into a larger buffer, to which no other tensor refers. The step must not write
    // into this buffer, because the parameter would then keep all of it in memory.
    let (_held, view) = (x.clone(), random([70, 65], 6, &device).narrow(0, 0, 64));
    let (x, _) = optimizer.step(0.1, x, view, state);
    let x = x.try_into_primitive::<Flex>().expect("on flex");
    assert_eq!(x.bytes().len(), 64 * 65 * 4);
}

#[test]
fn parameters_of_a_training_loop_stay_where_they_are() {
    let device = Device::flex().autodiff();
    let mut layer = burn::nn::LinearConfig::new(33, 65).init(&device);
    let mut optimizer = AdamWConfig::new().init();
    let before = addresses([&layer.weight.val()]);
    for seed in 1..4 {
        let loss = linear(random([3, 33], seed, &device), &layer).sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &layer);
        layer = optimizer.step(0.1, layer, gradients);
        assert_eq!(addresses([&layer.weight.val()]), before, "step {seed}");
    }
}

/// Asserts that steps of one parameter, without a module, equal Burn's.
fn assert_alone_equal<const D: usize>(shape: [usize; D], bad: Option<f32>, device: &Device) {
    let (ours, burns) = (AdamWConfig::new().with_amsgrad(true), burns::AdamWConfig::new().with_amsgrad(true));
    let (ours, burns) = (ours.build(), burns.build());
    let mut x = [random(shape, 1, device), random(shape, 1, device)];
    let (mut state, mut burns_state) = (None, None);
    for seed in 2..8 {
        let mut g = random(shape, seed, device);
        if let Some(bad) = bad.filter(|_| seed > 3) {
            let mask = g.clone().greater_scalar(0.5);
            g = g.mask_fill(mask, bad);
        }
        let [first, second] = x;
        let (first, now) = ours.step(0.1, first, g.clone(), state);
        let (second, burns_now) = burns.step(0.1, second, g, burns_state);
        (state, burns_state) = (now, burns_now);
        let part = |tensor: &Tensor<D>| {
            vec![("values".to_string(), tensor.to_data().try_into_vec::<f32>().expect("floats"))]
        };
        assert_close(&part(&first), &part(&second), &format!("{shape:?} {bad:?}, step {seed}"));
        x = [first, second];
    }
}

#[test]
fn what_is_not_finite_is_as_burns() {
    let device = Device::flex();
    assert_alone_equal([1], None, &device);
    // On an autodiff device, Burn's operators make the steps.
    assert_alone_equal([5, 67], None, &device.clone().autodiff());
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e-30] {
        assert_alone_equal([5, 67], Some(bad), &device);
    }
}

#[test]
fn values_do_not_depend_on_the_number_of_threads() {
    let device = Device::flex();
    let steps = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| {
            let optimizer = AdamConfig::new().build();
            let (mut x, mut state) = (random([300_001], 1, &device), None);
            for seed in 2..5 {
                let held = (seed == 3).then(|| x.clone());
                (x, state) = optimizer.step(0.1, x, random([300_001], seed, &device), state);
                drop(held);
            }
            x.to_data()
        })
    };
    assert_eq!(steps(1), steps(3));
}
