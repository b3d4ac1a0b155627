//! Checks that one rank averages the gradients of backward in their own memory, and that a program's views of
//! these gradients keep their values.

use std::time::Duration;

use burn::backend::Flex;
use burn::nn::{Linear, LinearConfig};
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, Tensor, TensorData};
use burn_mpi::threads::{Options, run};
use burn_mpi::{Backend, CommError, GradientSync, Signals, SyncOptions, Transport, World, connect};

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
