//! Checks that one rank averages the gradients of backward in their own memory, and that a program's views of
//! these gradients keep their values.

use std::time::Duration;

use burn::backend::Flex;
use burn::module::{Module, Param};
use burn::nn::{Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use burn_mpi::threads::{Options, run};
use burn_mpi::{
    Backend, CommError, GradientSync, MicroBatch, ShardedOptimizer, Signals, SyncOptions, Transport, World,
    connect,
};

const SAMPLES: usize = 6;

fn model(world: &World) -> Result<(Linear, GradientSync), CommError> {
    let device = Device::flex().autodiff();
    device.seed(3);
    let model = LinearConfig::new(5, 4).init(&device);
    let transport = connect(world, Backend::Mpi, &Transport::default())?;
    let sync = GradientSync::of_module(world, transport, &model, SyncOptions::default());
    Ok((model, sync))
}

fn gradients(model: &Linear) -> GradientsParams {
    let inputs = Tensor::<2>::random([SAMPLES, 5], Distribution::Default, &model.weight.device());
    GradientsParams::from_grads(model.forward(inputs).powf_scalar(2.0).mean().backward(), model)
}

fn weight(gradients: &GradientsParams, model: &Linear) -> Tensor<2> {
    gradients.get::<2>(model.weight.id).expect("a gradient")
}

fn address(values: &[f32]) -> *const f32 {
    values.as_ptr()
}

fn address_of(tensor: Tensor<2>) -> *const f32 {
    let primitive = tensor.try_into_primitive::<Flex>().expect("a flex tensor");
    address(primitive.as_slice::<f32>().expect("a contiguous tensor"))
}

#[test]
fn one_rank_copies_no_gradients() {
    let copied = run(1, &Options::default(), |world| {
        let (model, mut sync) = model(world)?;
        for _ in 0..3 {
            let own = gradients(&model);
            let from = address_of(weight(&own, &model));
            sync.contribute(own, &model, SAMPLES, SAMPLES)?;
            sync.reduce(Signals::default())?;
            assert_eq!(address(sync.gradient(0)?), from);
            // Nothing else refers to the memory, so it is clipped in place.
            sync.clip_norm(1e-3)?;
            assert_eq!(address(sync.gradient(0)?), from);
            assert_eq!(address_of(weight(&sync.gradients(&model)?, &model)), from);
        }
        Ok::<_, CommError>(sync.times().copy)
    });
    assert_eq!(copied.unwrap(), [Duration::ZERO]);
}

#[test]
fn clipping_does_not_change_gradients_that_the_program_keeps() {
    let kept = run(1, &Options::default(), |world| {
        let (model, mut sync) = model(world)?;
        let own = gradients(&model);
        let kept = weight(&own, &model);
        let before = kept.to_data();
        sync.contribute(own, &model, SAMPLES, SAMPLES)?;
        sync.reduce(Signals::default())?;
        let norm = sync.clip_norm(1e-3)? as f32;
        let clipped = TensorData::new(sync.gradient(0)?.to_vec(), [5, 4]);
        let expected = kept.clone().mul_scalar(1e-3 / (norm + 1e-6)).into_data();
        clipped.assert_approx_eq::<f32>(&expected, Default::default());
        assert_eq!(kept.to_data(), before);
        // Nor does the next step.
        sync.contribute(gradients(&model), &model, SAMPLES, SAMPLES)?;
        sync.gradient_mut(0).expect_err("the step has not ended");
        sync.reduce(Signals::default())?;
        sync.gradient_mut(0)?.fill(7.0);
        assert_eq!(kept.to_data(), before);
        Ok::<_, CommError>(())
    });
    kept.unwrap();
}

#[test]
fn half_of_the_samples_count_half() {
    let averages = run(1, &Options::default(), |world| {
        let (model, mut sync) = model(world)?;
        let own = [gradients(&model), gradients(&model)];
        let expected = own.iter().map(|own| weight(own, &model).mul_scalar(0.5));
        let expected = expected.reduce(|a, b| a + b).expect("two gradients").into_data();
        for own in own {
            sync.contribute(own, &model, SAMPLES / 2, SAMPLES)?;
        }
        let averages = sync.finish(&model)?;
        Ok::<_, CommError>((weight(&averages, &model).into_data(), expected))
    });
    for (average, expected) in averages.unwrap() {
        assert_eq!(average, expected);
    }
}

/// Parameters with gradients of every layout.
#[derive(Module, Debug)]
struct Layouts {
    /// These two have one gradient, in the same memory.
    added: [Param<Tensor<2>>; 2],
    transposed: Param<Tensor<2>>,
    expanded: Param<Tensor<1>>,
    /// Has no gradient in odd steps.
    sliced: Param<Tensor<2>>,
    empty: Param<Tensor<2>>,
}

impl Layouts {
    fn new(device: &Device) -> Self {
        device.seed(5);
        let new =
            |shape: [usize; 2]| Tensor::<2>::random(shape, Distribution::Default, device).require_grad();
        let [added, other, transposed, sliced, empty] = [[3, 4], [3, 4], [5, 4], [6, 4], [0, 3]].map(new);
        let expanded = Tensor::<1>::random([5], Distribution::Default, device);
        Self {
            added: [added, other].map(Param::from_tensor),
            transposed: Param::from_tensor(transposed),
            expanded: Param::from_tensor(expanded.require_grad()),
            sliced: Param::from_tensor(sliced),
            empty: Param::from_tensor(empty),
        }
    }

    fn loss(&self, step: usize) -> Tensor<1> {
        let [first, second] = [0, 1].map(|number: usize| self.added[number].val());
        let scores = (first.clone() + second).matmul(self.transposed.val().transpose());
        let scores = scores + self.expanded.val().expand([3, 5]);
        let loss = scores.powf_scalar(2.0).mean() + self.empty.val().sum() + self.expanded.val().sum();
        match step % 2 {
            0 => loss + (self.sliced.val().narrow(0, 1, 3) * first.detach()).mean(),
            _ => loss,
        }
    }

    fn values(&self) -> Vec<Vec<f32>> {
        let flat = |values: &Param<Tensor<2>>| values.val().into_data().try_into_vec().expect("f32");
        let [first, second] = &self.added;
        let mut all: Vec<_> =
            [first, second, &self.transposed, &self.sliced, &self.empty].map(flat).into_iter().collect();
        all.push(self.expanded.val().into_data().try_into_vec().expect("f32"));
        all
    }
}

/// How a step is made.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Step {
    Burns,
    Finish,
    Contribute,
    MicroBatches,
    Sharded(bool),
}

/// Returns the values after some steps.
fn trained(world: &World, device: &Device, how: Step) -> Result<Vec<Vec<f32>>, CommError> {
    let mut model = Layouts::new(device);
    let options = SyncOptions::default().with_shard(how == Step::Sharded(true));
    let transport = connect(world, Backend::Mpi, &Transport::default())?;
    let mut sync = GradientSync::of_module(world, transport, &model, options);
    let mut optimizer = AdamWConfig::new().init();
    let mut sharded = ShardedOptimizer::new(AdamWConfig::new().build())?;
    let mut kept = Vec::new();
    for step in 0..6 {
        let loss = model.loss(step);
        kept.push((model.clone(), model.values()));
        let gradients = match how {
            Step::Burns => GradientsParams::from_grads(loss.backward(), &model),
            Step::Sharded(_) => {
                sync.backward(&loss, &model, 4, 4, MicroBatch::Last)?;
                sync.reduce(Signals::default())?;
                model = sharded.step(0.01, model, &mut sync)?;
                continue;
            }
            Step::Finish => sync.average(&loss, &model, 4, 4)?,
            Step::Contribute => {
                sync.contribute(GradientsParams::from_grads(loss.backward(), &model), &model, 4, 4)?;
                sync.finish(&model)?
            }
            Step::MicroBatches => {
                sync.backward(&loss, &model, 1, 4, MicroBatch::More)?;
                sync.backward(&model.loss(step), &model, 3, 4, MicroBatch::Last)?;
                sync.finish(&model)?
            }
        };
        model = optimizer.step(0.01, model, gradients);
    }
    // A step writes parameters in place only if nothing else refers to their memory.
    assert!(kept.iter().all(|(model, values)| model.values() == *values), "{how:?}");
    Ok(model.values())
}

#[test]
fn gradients_of_every_layout_are_burns() {
    let device = Device::flex().autodiff();
    for device in [device.clone(), device.gradient_checkpointing()] {
        let after =
            |how| run(1, &Options::default(), |world| trained(world, &device, how)).unwrap().remove(0);
        let expected = after(Step::Burns);
        for how in [Step::Finish, Step::Contribute, Step::Sharded(false), Step::Sharded(true)] {
            assert_eq!(after(how), expected, "{how:?}");
        }
        for (found, expected) in after(Step::MicroBatches).iter().flatten().zip(expected.iter().flatten()) {
            assert!((found - expected).abs() < 1e-5, "{found} {expected}");
        }
    }
}
