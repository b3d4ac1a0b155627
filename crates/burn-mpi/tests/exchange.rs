//! Tensors between ranks, with and without gradient, and `SyncBatchNorm`: ranks that are threads have the
//! results of plain Burn on the samples of all ranks.

use std::error::Error;

use burn::module::{Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::quantization::{QuantScheme, QuantValue};
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use burn_mpi::nn::SyncBatchNorm;
use burn_mpi::threads::{Options, run};
use burn_mpi::{
    Backend, CommError, GradientSync, MicroBatch, SyncOptions, Transport, World, broadcast_module,
    check_equal_weights, connect,
};

fn device() -> Device {
    Device::flex().autodiff()
}

fn text<T>(result: Result<T, Box<dyn Error>>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// Runs `check` on 1 to 4 ranks, in several orders of messages.
fn on_ranks<T: Send>(check: impl Fn(&World) -> Result<T, Box<dyn Error>> + Sync, then: impl Fn(Vec<T>)) {
    for (ranks, seed) in (1..=4).flat_map(|ranks| (0..4).map(move |seed| (ranks, seed))) {
        let options = Options::default().with_seed(seed);
        then(run(ranks, &options, |world| text(check(world))).unwrap());
    }
}

/// The tensor of a rank: `rows` rows of two values.
fn rows_of(rank: usize, rows: usize, dtype: DType) -> TensorData {
    let values: Vec<f32> = (0..2 * rows).map(|at| (10 * rank + at) as f32).collect();
    TensorData::new(values, [rows, 2]).convert_dtype(dtype)
}

fn concatenated(parts: impl Iterator<Item = TensorData>) -> Vec<f64> {
    parts.flat_map(|part| part.iter::<f64>().collect::<Vec<_>>()).collect()
}

#[test]
fn tensors_of_every_type_are_summed_gathered_and_broadcast() {
    const FLOATS: [DType; 4] = [DType::F32, DType::F64, DType::F16, DType::BF16];
    const INTS: [DType; 8] =
        [DType::I64, DType::I32, DType::I16, DType::I8, DType::U64, DType::U32, DType::U16, DType::U8];
    /// Checks the exchanges of one type and kind.
    macro_rules! check {
        ($kind:ty, $world:expr, $dtype:expr) => {{
            let (world, dtype): (&World, DType) = ($world, $dtype);
            let (rank, size) = (world.rank(), world.size());
            let of = |rank, rows| {
                Tensor::<2, $kind>::from_data(rows_of(rank, rows, dtype), (&Device::flex(), dtype))
            };
            let values = |tensor: Tensor<2, $kind>| {
                assert_eq!(tensor.dtype(), dtype);
                tensor.into_data().iter::<f64>().collect::<Vec<f64>>()
            };
            // Five rows do not divide by 2, 3 or 4 ranks, and one row leaves ranks without any.
            for rows in [5, 1] {
                let sums: Vec<f64> =
                    (0..2 * rows).map(|at| (0..size).map(|rank| (10 * rank + at) as f64).sum()).collect();
                assert_eq!(values(world.all_reduce(of(rank, rows))?), sums, "{dtype:?}");
                let own = 2 * (rank * rows / size)..2 * ((rank + 1) * rows / size);
                assert_eq!(values(world.reduce_scatter(of(rank, rows))?), sums[own], "{dtype:?}");
            }
            // Rank 0 has no row, rank 1 one, …
            let all = world.all_gather(of(rank, rank))?;
            assert_eq!(all.dims(), [size * (size - 1) / 2, 2]);
            assert_eq!(values(all), concatenated((0..size).map(|rank| rows_of(rank, rank, dtype))));
            let last = values(world.broadcast_tensor(of(rank, 3), size - 1)?);
            assert_eq!(last, concatenated(std::iter::once(rows_of(size - 1, 3, dtype))));
        }};
    }
    on_ranks(
        |world| {
            for dtype in FLOATS {
                check!(burn::tensor::Float, world, dtype);
            }
            for dtype in INTS {
                check!(Int, world, dtype);
            }
            let odd = Tensor::<1, Bool>::from_data([world.rank() % 2 == 1], &Device::flex());
            let all: Vec<bool> = world.all_gather(odd.clone())?.into_data().iter::<bool>().collect();
            assert_eq!(all, (0..world.size()).map(|rank| rank % 2 == 1).collect::<Vec<_>>());
            assert_eq!(world.broadcast_tensor(odd, 0)?.into_data(), [false].into());
            Ok(())
        },
        |_| (),
    );
}

#[test]
fn integers_wrap_around() {
    let sums = run(2, &Options::default(), |world| {
        let x = Tensor::<1, Int>::from_data(TensorData::from([i8::MAX, 1]), (&Device::flex(), DType::I8));
        Ok::<_, CommError>(world.all_reduce(x)?.into_data())
    });
    assert_eq!(sums.unwrap()[1], TensorData::from([-2i8, 2]));
}

/// The gradient of `x`, the tensor of a rank, of a loss of this rank.
fn gradient_of(x: &Tensor<2>, loss: Tensor<1>) -> Vec<f64> {
    x.grad(&loss.backward()).map_or(Vec::new(), |gradient| gradient.into_data().iter::<f64>().collect())
}

#[test]
fn gradients_of_exchanges_are_those_of_the_sum_of_all_losses() {
    on_ranks(
        |world| {
            let (rank, size) = (world.rank(), world.size());
            let leaf =
                |rows| Tensor::<2>::from_data(rows_of(rank, rows, DType::F32), &device()).require_grad();
            // The loss of rank r is the sum of squares of what it has, times r + 1.
            let loss = |tensor: Tensor<2>| tensor.powi_scalar(2).sum() * (rank + 1) as f32;
            let weights: f64 = (1..=size).sum::<usize>() as f64;
            let sum = |at: usize| (0..size).map(|rank| (10 * rank + at) as f64).sum::<f64>();
            let expected =
                |count: usize, term: &dyn Fn(usize) -> f64| (0..count).map(term).collect::<Vec<_>>();

            let x = leaf(5);
            let found = gradient_of(&x, loss(world.all_reduce(x.clone())?));
            assert_eq!(found, expected(10, &|at| 2.0 * weights * sum(at)));

            let x = leaf(5);
            let found = gradient_of(&x, loss(world.reduce_scatter(x.clone())?));
            let owner = |row: usize| (0..size).find(|rank| row < (rank + 1) * 5 / size).unwrap();
            assert_eq!(found, expected(10, &|at| 2.0 * sum(at) * (owner(at / 2) + 1) as f64));

            let x = leaf(rank + 1);
            let found = gradient_of(&x, loss(world.all_gather(x.clone())?));
            assert_eq!(found, expected(2 * (rank + 1), &|at| 2.0 * weights * (10 * rank + at) as f64));

            let (x, root) = (leaf(2), size / 2);
            let found = gradient_of(&x, loss(world.broadcast_tensor(x.clone(), root)?));
            let of_root =
                |at: usize| if rank == root { 2.0 * weights * (10 * root + at) as f64 } else { 0.0 };
            assert_eq!(found, expected(4, &of_root));

            // A tensor without gradient stays without.
            let plain = Tensor::<2>::ones([2, 2], &device());
            assert!(!world.all_reduce(plain)?.is_require_grad());
            Ok(())
        },
        |_| (),
    );
}

#[test]
fn other_shapes_and_types_are_named() {
    let failure = |exchange: fn(&World, Tensor<2>) -> Result<Tensor<2>, CommError>, dims: [usize; 2]| {
        let failed = run(3, &Options::default(), |world| {
            let dims = if world.rank() == 2 { dims } else { [2, 3] };
            exchange(world, Tensor::ones(dims, &Device::flex())).map(drop)
        });
        failed.unwrap_err().to_string()
    };
    for (exchange, call) in [
        ((|world, x| world.all_reduce(x)) as fn(&World, Tensor<2>) -> _, "all_reduce"),
        (|world, x| world.reduce_scatter(x), "reduce_scatter"),
        (|world, x| world.broadcast_tensor(x, 1), "broadcast_tensor"),
    ] {
        let line = failure(exchange, [3, 2]);
        let told =
            [&format!("the tensor of {call} differs"), "rank 2 on node0 has [3, 2] F32", "has [2, 3] F32"];
        assert!(told.iter().all(|part| line.contains(*part)), "{line}");
    }
    let line = failure(|world, x| world.all_gather(x), [2, 4]);
    assert!(line.contains("the tensor of all_gather differs") && line.contains("[_, [4]] F32"), "{line}");
    let line = failure(|world, x| world.broadcast_tensor(x, 3), [2, 3]);
    assert!(line.contains("there is no rank 3, only 0 to 2"), "{line}");
    let line = failure(|world, x| world.broadcast_tensor(x, world.rank() / 2), [2, 3]);
    assert!(line.contains("rank 2 on node0 has [2, 3] F32 from rank 1, rank 0"), "{line}");
}

#[test]
fn ranks_in_the_backward_of_different_exchanges_are_named() {
    let failure = |exchange: fn(&World, Tensor<2>) -> Result<Tensor<2>, CommError>| {
        let failed = run(3, &Options::default(), |world| {
            let leaf = || Tensor::<2>::ones([2, 2], &device()).require_grad();
            // The graph before one of the exchanges is deeper, on the last rank before the first.
            let deep = || leaf().exp().exp();
            let [first, second] = if world.rank() == 2 { [deep(), leaf()] } else { [leaf(), deep()] };
            let (first, second) = (exchange(world, first)?, exchange(world, second)?);
            (first + second).powi_scalar(2).sum().backward();
            Ok::<_, CommError>(())
        });
        failed.unwrap_err().to_string()
    };
    for (exchange, name) in [
        ((|world, x| world.all_reduce(x)) as fn(&World, Tensor<2>) -> _, "all_reduce"),
        (|world, x| world.all_gather(x), "all_gather"),
        (|world, x| world.reduce_scatter(x), "reduce_scatter"),
        (|world, x| world.broadcast_tensor(x, 1), "broadcast_tensor"),
    ] {
        let line = failure(exchange);
        let told = [1, 2].map(|number| format!("has {name}, exchange {number} with gradients"));
        assert!(told.iter().all(|part| line.contains(part)), "{line}");
        assert!(line.contains("the graphs of ranks differ: make one exchange of both tensors"), "{line}");
    }
    let line = failure(|_, x| Ok(SyncBatchNorm::new(2, &device()).forward(x)));
    let told = ["the layer in backward", "exchange 1 with gradients", "exchange 2 with gradients"];
    assert!(told.iter().all(|part| line.contains(part)), "{line}");
}

/// The mean, over all pairs of rows, of the squared products.
fn contrast(features: Tensor<2>) -> Tensor<1> {
    features.clone().matmul(features.transpose()).powi_scalar(2).mean()
}

#[test]
fn ranks_without_rows_take_part_in_a_gather_and_its_backward() {
    let net = || {
        let weight = Tensor::from_data([[0.3, -0.2], [0.5, 0.1]], &device());
        Linear { weight: Param::from_tensor(weight), bias: None }
    };
    let gradient = |net: &Linear, gradients: GradientsParams| {
        let gradient = gradients.get::<2>(net.weight.id).expect("a gradient");
        gradient.into_data().iter::<f64>().collect::<Vec<_>>()
    };
    on_ranks(
        |world| {
            let net = net();
            let collective = connect(world, Backend::Mpi, &Transport::default())?;
            let mut sync = GradientSync::of_module(world, collective, &net, SyncOptions::default());
            // Rank 0 of several has no row, rank 1 one, …
            let rows = if world.size() == 1 { 3 } else { world.rank() };
            let own = if rows > 0 {
                let x = Tensor::from_data(rows_of(world.rank(), rows, DType::F32), &device());
                net.forward(x / 10.0).tanh()
            } else {
                Tensor::zeros([0, 2], &device())
            };
            let loss = contrast(world.all_gather(own)?);
            sync.backward(&loss, &net, 1, world.size(), MicroBatch::Last)?;
            let gradients = sync.finish(&net)?;
            Ok((rows, gradient(&net, gradients)))
        },
        |found| {
            let all: Vec<_> =
                found.iter().enumerate().map(|(rank, (rows, _))| rows_of(rank, *rows, DType::F32)).collect();
            let values: Vec<f32> =
                all.iter().flat_map(|data| data.iter::<f32>().collect::<Vec<_>>()).collect();
            let rows = values.len() / 2;
            let net = net();
            let x = Tensor::from_data(TensorData::new(values, [rows, 2]), &device());
            let loss = contrast(net.forward(x / 10.0).tanh());
            let expected = gradient(&net, GradientsParams::from_grads(loss.backward(), &net));
            for (_, gradient) in found {
                let apart = gradient.iter().zip(&expected).map(|(a, b)| (a - b).abs());
                assert!(apart.clone().all(|apart| apart < 1e-6), "{gradient:?} {expected:?}");
            }
        },
    );
}

/// A network with two normalised layers, of Burn's batch norm or of the synchronised one.
macro_rules! net {
    ($name:ident, $norm:ty) => {
        #[derive(Module, Debug)]
        struct $name {
            conv: Conv2d,
            norm1: $norm,
            norm2: $norm,
            out: Linear,
        }

        impl $name {
            fn loss(&self, images: &[[f32; 18]]) -> Tensor<1> {
                let device = self.out.weight.device();
                let values: Vec<f32> = images.concat();
                let x = Tensor::<4>::from_data(TensorData::new(values, [images.len(), 2, 3, 3]), &device);
                let x = self.norm1.forward(self.conv.forward(x)).tanh();
                let x = self.norm2.forward::<2>(x.mean_dims(&[2, 3]).reshape([images.len(), 3]));
                self.out.forward(x).powi_scalar(2).mean()
            }
        }
    };
}
net!(Plain, BatchNorm);
net!(Synced, SyncBatchNorm);

fn plain_net() -> Plain {
    let device = device();
    let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
    let norm = || BatchNormConfig::new(3).init(&device);
    let mut net = Plain {
        conv: Conv2dConfig::new([2, 3], [3, 3]).with_padding(padding).init(&device),
        norm1: norm(),
        norm2: norm(),
        out: LinearConfig::new(3, 2).init(&device),
    };
    let fixed = |shape: burn::tensor::Shape, factor: f32| {
        let values: Vec<f32> = (0..shape.num_elements()).map(|at| (factor * at as f32).sin()).collect();
        TensorData::new(values, shape)
    };
    let at = &device;
    net.conv.weight = net.conv.weight.map(|x| Tensor::from_data(fixed(x.shape(), 1.3), at).require_grad());
    net.out.weight = net.out.weight.map(|x| Tensor::from_data(fixed(x.shape(), 0.7), at).require_grad());
    net.out.bias =
        net.out.bias.map(|bias| bias.map(|x| Tensor::from_data(fixed(x.shape(), 0.3), at).require_grad()));
    net.conv.bias =
        net.conv.bias.map(|bias| bias.map(|x| Tensor::from_data(fixed(x.shape(), 0.9), at).require_grad()));
    net
}

fn synced_net() -> Synced {
    let Plain { conv, norm1, norm2, out } = plain_net();
    Synced { conv, norm1: norm1.into(), norm2: norm2.into(), out }
}

/// 9 samples with different means, so that the means of shards differ. The last step has one sample on 1, 2 and 4
/// ranks, and three on 3 ranks: ranks have one sample, or none.
fn samples() -> Vec<[f32; 18]> {
    (0..9)
        .map(|at| std::array::from_fn(|value| (at * 3) as f32 + ((at * 18 + value) as f32 * 0.61).sin()))
        .collect()
}

fn values<M: Module>(net: &M) -> Vec<f32> {
    let layout = burn_mpi::ParamLayout::of_module(net);
    let _ = net.valid();
    layout.read(net)
}

#[test]
fn sync_batch_norm_is_burns_batch_norm_over_the_samples_of_all_ranks() {
    const EPOCHS: u64 = 3;
    const BATCH: usize = 2;
    on_ranks(
        |world| {
            let mut net = broadcast_module(world, synced_net())?;
            let collective = connect(world, Backend::Mpi, &Transport::default())?;
            let options = SyncOptions::default().with_bucket_bytes(32).with_first_bucket_bytes(32);
            let mut sync = GradientSync::of_module(world, collective, &net, options);
            let mut optimizer = SgdConfig::new().init();
            for _ in 0..EPOCHS {
                for step in samples().chunks(BATCH * world.size()) {
                    let own: Vec<_> = step.iter().copied().skip(world.rank()).step_by(world.size()).collect();
                    if own.is_empty() {
                        SyncBatchNorm::join(&[&net.norm1, &net.norm2])?;
                    } else {
                        sync.backward(&net.loss(&own), &net, own.len(), step.len(), MicroBatch::Last)?;
                    }
                    let gradients = sync.finish(&net)?;
                    net = optimizer.step(0.05, net, gradients);
                }
            }
            // Without averaging buffers, all ranks have the same running statistics.
            check_equal_weights(world, &net)?;
            // In inference, a rank is on its own.
            if world.is_root() {
                net.valid().loss(&samples());
            }
            Ok((world.size(), values(&net)))
        },
        |ranks| {
            let size = ranks[0].0;
            let (mut net, mut optimizer) = (plain_net(), SgdConfig::new().init());
            let first = values(&net);
            for _ in 0..EPOCHS {
                for step in samples().chunks(BATCH * size) {
                    let gradients = GradientsParams::from_grads(net.loss(step).backward(), &net);
                    net = optimizer.step(0.05, net, gradients);
                }
            }
            let expected = values(&net);
            let apart = |one: &[f32], other: &[f32]| {
                one.iter().zip(other).map(|(a, b)| (a - b).abs() / (1.0 + b.abs())).fold(0.0, f32::max)
            };
            assert!(apart(&first, &expected) > 0.1, "nothing was trained");
            for (_, found) in ranks {
                let apart = apart(&found, &expected);
                assert!(apart < 1e-4, "{size} ranks: {apart}\n{found:?}\n{expected:?}");
            }
        },
    );
}

#[test]
fn a_far_mean_keeps_the_variance() {
    // Values around 10,000 with a standard deviation of 1: E[x²] − E[x]² would have no digit left in f32.
    let variances = run(3, &Options::default(), |world| {
        let norm = SyncBatchNorm { momentum: 1.0, ..SyncBatchNorm::new(1, &device()) };
        let value =
            |at: usize| 10_000.0 + world.rank() as f32 + if at.is_multiple_of(2) { -1.0 } else { 1.0 };
        let values: Vec<f32> = (0..8).map(value).collect();
        norm.forward(Tensor::<2>::from_data(TensorData::new(values, [8, 1]), &device()));
        Ok::<_, String>(norm.running_var.value_sync().into_scalar::<f32>())
    });
    // Within ranks 1, between ranks 2/3.
    assert!(variances.unwrap().iter().all(|variance| (variance - 5.0 / 3.0).abs() < 1e-3));
}

#[test]
fn other_channels_or_options_on_a_rank_are_an_error() {
    for (channels, epsilon) in [(2, 1e-5), (1, 1e-3)] {
        let failure = run(2, &Options::default(), |world| {
            let (channels, epsilon) = if world.is_root() { (1, 1e-5) } else { (channels, epsilon) };
            let norm = SyncBatchNorm { epsilon, ..SyncBatchNorm::new(channels, &device()) };
            norm.forward(Tensor::<2>::ones([2, channels], &device()));
            Ok::<_, String>(())
        });
        let line = failure.unwrap_err().to_string();
        let told = ["the layer (ranks call the same layers", "equal parameters, options", "rank 1 on"];
        assert!(told.iter().all(|part| line.contains(part)), "{line}");
    }
}

#[test]
fn layers_in_another_order_are_an_error() {
    let failure = run(2, &Options::default(), |world| {
        let [first, second] = [1.0, 2.0].map(|scale| SyncBatchNorm {
            gamma: Param::from_tensor(Tensor::from_data([scale], &device())),
            ..SyncBatchNorm::new(1, &device())
        });
        for _ in 0..2 {
            if world.is_root() {
                let x =
                    second.forward(first.forward(Tensor::<2>::from_data([[1.0], [5.0]], &device())) + 3.0);
                x.powi_scalar(3).mean().backward();
            } else {
                SyncBatchNorm::join(&[&second, &first])?;
            }
        }
        Ok::<_, CommError>(())
    });
    let line = failure.unwrap_err().to_string();
    assert!(line.contains("the layer (ranks call the same layers in the same order"), "{line}");
}

#[test]
fn an_empty_batch_counts_nothing() {
    let found = run(2, &Options::default(), |world| {
        let norm = SyncBatchNorm { momentum: 1.0, ..SyncBatchNorm::new(1, &device()) };
        let rows = if world.is_root() { vec![1.0f32, 5.0] } else { Vec::new() };
        let count = rows.len();
        let x = Tensor::<2>::from_data(TensorData::new(rows, [count, 1]), &device()).require_grad();
        let gradients = norm.forward(x.clone()).powi_scalar(3).sum().backward();
        let gradient =
            x.grad(&gradients).map(|gradient| gradient.into_data().iter::<f32>().collect::<Vec<_>>());
        Ok::<_, CommError>((norm.running_mean.value_sync().into_scalar::<f32>(), gradient))
    });
    let found = found.unwrap();
    assert_eq!([found[0].0, found[1].0], [3.0, 3.0]);
    let gradient = found[0].1.clone().expect("a gradient");
    assert!(gradient.iter().all(|value| value.is_finite()), "{gradient:?}");
}

#[test]
fn averaged_running_statistics_are_those_of_all_samples() {
    let found = run(2, &Options::default(), |world| {
        let norm = BatchNorm { momentum: 1.0, ..BatchNormConfig::new(1).init(&device()) };
        let start = 10.0 * world.rank() as f32;
        let batch = Tensor::<2>::from_data([[start], [start + 1.0], [start + 2.0], [start + 3.0]], &device());
        norm.forward(batch);
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let sync = GradientSync::of_module(world, collective, &norm, SyncOptions::default());
        let norm = sync.average_buffers(norm)?;
        let [mean, variance] = [&norm.running_mean, &norm.running_var].map(|state| state.value_sync());
        Ok::<_, CommError>([mean, variance].map(|value| value.into_scalar::<f32>()))
    });
    assert_eq!(found.unwrap(), [[6.5, 26.25]; 2]);
}

#[test]
fn a_variance_that_is_nan_stays_nan() {
    let found = run(2, &Options::default(), |world| {
        let norm = BatchNorm { momentum: 1.0, ..BatchNormConfig::new(1).init(&device()) };
        let value = if world.is_root() { 1.0 } else { f32::NAN };
        norm.forward(Tensor::<2>::from_data([[value], [2.0]], &device()));
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let sync = GradientSync::of_module(world, collective, &norm, SyncOptions::default());
        Ok::<_, CommError>(sync.average_buffers(norm)?.running_var.value_sync().into_scalar::<f32>())
    });
    assert!(found.unwrap().into_iter().all(f32::is_nan));
}

#[test]
fn a_rank_joins_layers_without_gradients_and_leaves_out_those_in_inference() {
    let found = run(3, &Options::default(), |world| {
        let layer = || SyncBatchNorm { momentum: 1.0, ..SyncBatchNorm::new(1, &device()) };
        let (first, frozen, last) = (layer(), layer().freeze(), layer());
        let inference = layer().valid();
        if world.rank() == 1 {
            SyncBatchNorm::join(&[&first, &frozen, &inference, &last])?;
        } else {
            // The input of the first layer needs no gradient.
            let x = Tensor::<2>::from_data([[1.0], [3.0 + world.rank() as f32]], &device());
            let x = frozen.forward(first.forward(x)) * 2.0;
            last.forward(x).powi_scalar(3).mean().backward();
        }
        let mean = |layer: &SyncBatchNorm| layer.running_mean.value_sync().into_scalar::<f32>();
        Ok::<_, CommError>([mean(&first), mean(&frozen), mean(&last)])
    });
    for means in found.unwrap() {
        assert!((means[0] - 2.5).abs() < 1e-6 && means[1] == 0.0 && means[2].abs() < 1e-6, "{means:?}");
    }
}

#[test]
fn double_precision_stays_double() {
    let found = run(2, &Options::default(), |world| {
        let start = 1e8 + 10.0 * world.rank() as f64;
        let x = TensorData::from([[start], [start + 1.0]]);
        let x = Tensor::<2>::from_data(x, (&device(), DType::F64));
        let norm = SyncBatchNorm::new(1, &device());
        Ok::<_, String>(norm.forward(x).into_data().iter::<f64>().collect::<Vec<_>>())
    });
    let root = 25.25f64.sqrt();
    for (found, value) in found.unwrap().concat().into_iter().zip([-5.5, -4.5, 4.5, 5.5]) {
        assert!((found - value / root).abs() < 1e-5, "{found}");
    }
}

#[test]
fn half_precision_is_summed_in_single_and_quantized_values_are_refused() {
    let sums = run(4, &Options::default(), |world| {
        let value = [-60_000.0, 30_000.0, 30_000.0, 30_000.0][world.rank()];
        let x = Tensor::<1>::from_data(
            TensorData::from([value]).convert_dtype(DType::F16),
            (&device(), DType::F16),
        );
        Ok::<_, CommError>(world.all_reduce(x)?.into_data().iter::<f32>().next())
    });
    assert_eq!(sums.unwrap()[3], Some(30_000.0));
    let failure = run(2, &Options::default(), |world| {
        let scheme = QuantScheme::default().with_value(QuantValue::Q8S);
        let x = Tensor::<2>::ones([2, 8], &Device::flex()).quantize_dynamic(&scheme);
        world.all_gather(x).map(drop)
    });
    let line = failure.unwrap_err().to_string();
    assert!(line.contains("exchanges a quantized tensor: dequantize it first"), "{line}");
}

/// A variance without a mean beside it is averaged.
#[test]
fn a_lone_running_variance_is_averaged() {
    #[derive(Module, Debug)]
    struct Other {
        running_var: Param<Tensor<1>>,
    }
    let found = run(2, &Options::default(), |world| {
        let value = Tensor::<1>::from_data([1.0 + 2.0 * world.rank() as f32], &device());
        let module = Other { running_var: Param::from_tensor(value) }.no_grad();
        let collective = connect(world, Backend::Mpi, &Transport::default())?;
        let sync = GradientSync::of_module(world, collective, &module, SyncOptions::default());
        Ok::<_, CommError>(sync.average_buffers(module)?.running_var.val().into_scalar::<f32>())
    });
    assert_eq!(found.unwrap(), [2.0; 2]);
}
