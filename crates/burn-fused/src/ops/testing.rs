//! Helpers of tests that compare a module with Burn's module. They compare outputs, and the gradients of
//! inputs and parameters.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};

pub use crate::kernels::testing::numbers;

/// Returns the CPU with autodiff, first without and then with gradient checkpointing.
pub fn autodiff_devices() -> [Device; 2] {
    let device = Device::flex().autodiff();
    [device.clone(), device.gradient_checkpointing()]
}

/// Returns a tensor of pseudo-random [`numbers`].
pub fn random<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(numbers(shape.iter().product(), seed), shape), device)
}

/// Returns `module` with parameters that are the same in each run.
pub fn fixed<M: Module>(module: M) -> M {
    module.map(&mut Fixed { seed: 100 })
}

struct Fixed {
    seed: u64,
}

impl ModuleMapper for Fixed {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        self.seed += 1;
        param.map(|before| {
            let tensor = random(before.dims(), self.seed, &before.device());
            // Weights are scaled so that outputs are about as large as inputs. Factors and biases are near 1.
            let tensor = if D > 1 { tensor / (before.dims()[0] as f32).sqrt() } else { tensor * 0.3 + 0.7 };
            if before.is_require_grad() { tensor.detach().require_grad() } else { tensor }
        })
    }
}

/// A part of a module's results: a name, such as `gradient of input 0`, and the values.
pub type Part = (String, Vec<f32>);

/// Returns the output of `forward` for these inputs, and the gradients of a weighted sum of the output with
/// respect to the inputs and to all parameters of `module`. A parameter without a gradient has no values.
pub fn results<M: Module, const D: usize, const E: usize>(
    module: &M,
    inputs: &[Tensor<D>],
    forward: impl FnOnce(&M, &[Tensor<D>]) -> Tensor<E>,
) -> Vec<Part> {
    let inputs: Vec<Tensor<D>> = inputs.iter().map(|input| input.clone().detach().require_grad()).collect();
    let output = forward(module, &inputs);
    let weights = random(output.dims(), 9, &output.device());
    let gradients = (output.clone() * weights).sum().backward();
    let mut parts = vec![("output".into(), values(output))];
    for (at, input) in inputs.iter().enumerate() {
        parts.push((
            format!("gradient of input {at}"),
            input.grad(&gradients).map(values).unwrap_or_default(),
        ));
    }
    let mut visitor = GradientsOf { gradients, path: Vec::new(), parts };
    module.visit(&mut visitor);
    visitor.parts
}

/// Asserts that each part equals Burn's. The tolerance is 1e-5 of the part's largest value, and at least
/// 1e-7, which is the rounding error of values of about 1 that cancel out. NaN is required where Burn's value
/// is NaN.
#[track_caller]
pub fn assert_close(ours: &[Part], burns: &[Part], context: &str) {
    assert_eq!(ours.len(), burns.len(), "{context}: numbers of parts");
    for ((name, ours), (other, burns)) in ours.iter().zip(burns) {
        assert_eq!((name, ours.len()), (other, burns.len()), "{context}");
        let largest = burns.iter().filter(|x| x.is_finite()).fold(1e-2f32, |most, x| most.max(x.abs()));
        for (at, (&ours, &burns)) in ours.iter().zip(burns).enumerate() {
            let close = ours == burns || (ours - burns).abs() <= 1e-5 * largest;
            let nan = ours.is_nan() && burns.is_nan();
            assert!(close || nan, "{context}: {name} at {at}: {ours}, Burn's {burns}, the largest {largest}");
        }
    }
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as().expect("floats")
}

/// Collects the gradients of parameters.
struct GradientsOf {
    gradients: Gradients,
    path: Vec<String>,
    parts: Vec<Part>,
}

impl ModuleVisitor for GradientsOf {
    fn enter_module(&mut self, name: &str, _container: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().grad(&self.gradients).map(values).unwrap_or_default();
        self.parts.push((format!("gradient of {}", self.path.join(".")), gradient));
    }
}
