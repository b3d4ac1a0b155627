//! Checks models of random sizes, bit by bit, against plain loops.

use super::testing::reference;
use super::*;
use crate::kernels::simd::Level;
use crate::kernels::testing::Random;

/// Returns the scales of `weights`. Chance decides whether there is one for each output channel or one for
/// all.
fn scales(random: &mut Random, weights: &[f32], outputs: usize) -> Vec<f32> {
    let channels = if random.below(2) == 0 { outputs } else { 1 };
    let ranges = min_max_by_channel(weights, channels).unwrap();
    let scale = |&[min, max]: &[f32; 2]| Scheme::Symmetric.parameters(min, max).unwrap().scale;
    ranges.iter().map(scale).collect()
}

/// Returns quantized weights of a layer, and the scale and zero point of its output.
fn weights(
    random: &mut Random,
    inputs: usize,
    outputs: usize,
    input: QParams,
    relu: bool,
) -> (Weights, QParams) {
    let values = random.floats(inputs * outputs, 0.5);
    let bias = random.floats(outputs, 1.0);
    // Some output ranges are much narrower than the layer's sums, so that outputs saturate and ratios of
    // scales vary.
    let size = 100.0 * input.scale * (inputs as f32).sqrt() * [0.01, 0.3, 1.0][random.below(3)];
    let min = if relu && random.below(4) > 0 { 0.0 } else { -size * random.float(1.0).abs() };
    let output = Scheme::Affine.parameters(min, size).unwrap();
    let scales = scales(random, &values, outputs);
    (Weights::quantize(&values, &bias, &scales, input, output).unwrap(), output)
}

/// Returns a model of up to four layers before a linear layer.
fn random_model(random: &mut Random, one_channel: bool) -> Model {
    let channels = if one_channel { 1 } else { 1 + random.below(9) };
    let mut shape = [channels, 1 + random.below(14), 1 + random.below(14)];
    let low = random.float(2.0);
    let input = Scheme::Affine.parameters(low, low + 3.0).unwrap();
    let (mut parameters, start) = (input, shape);
    let mut layers = Vec::new();
    for _ in 0..random.below(5) {
        let layer = match random.below(3) {
            0 => Layer::MaxPool(MaxPool {
                kernel: [1 + random.below(3), 1 + random.below(3)],
                stride: [1 + random.below(2), 1 + random.below(2)],
            }),
            1 if random.below(2) == 0 => Layer::MaxPool(MaxPool { kernel: [2; 2], stride: [2; 2] }),
            1 => Layer::AveragePool(AveragePool { output: [1 + random.below(5), 1 + random.below(5)] }),
            _ => {
                let kernel = [1 + random.below(5), 1 + random.below(5)];
                let outputs = if one_channel { 1 + random.below(16) } else { 1 + random.below(90) };
                let relu = random.below(2) == 0;
                let (weights, output) =
                    weights(random, shape[0] * kernel[0] * kernel[1], outputs, parameters, relu);
                let stride = if layers.is_empty() && one_channel {
                    [1 + random.below(2), 1]
                } else {
                    [1 + random.below(2), 1 + random.below(3)]
                };
                let padding = kernel.map(|kernel| random.below(kernel));
                Layer::Conv(Conv {
                    inputs: shape[0],
                    outputs,
                    kernel,
                    stride,
                    padding,
                    weights,
                    relu,
                    output,
                })
            }
        };
        if let Ok(next) = layer.output_shape(shape) {
            shape = next;
            parameters = match &layer {
                Layer::Conv(conv) => conv.output,
                _ => parameters,
            };
            layers.push(layer);
        }
    }
    let (inputs, outputs) = (shape.iter().product(), 1 + random.below(if one_channel { 16 } else { 40 }));
    let (weights, output) = weights(random, inputs, outputs, parameters, false);
    layers.push(Layer::Linear(Linear { inputs, outputs, weights, relu: false, output }));
    // A third of the models has images in rows in any case. The others have images in lanes if `lanes`
    // supports their layers.
    Model::planned(start, input, layers, random.below(3) > 0).unwrap()
}

fn check(model: &Model, random: &mut Random, batches: &[usize]) {
    let size: usize = model.input_shape().iter().product();
    let largest = batches.iter().copied().max().unwrap_or(0);
    let images = random.floats(largest * size, 5.0);
    let expected = reference(model, &images);
    for level in Level::available() {
        let _held = level.hold();
        let mut workspace = model.workspace();
        for &batch in batches {
            let mut scores = vec![7; batch * model.outputs()];
            model.infer_bytes(&mut workspace, &images[..batch * size], &mut scores);
            let expected = &expected[..scores.len()];
            assert!(scores == expected, "{level}, batch {batch}, {model:#?}");
            let (mut real, mut plain) = (vec![0.0; scores.len()], vec![0.0; scores.len()]);
            model.infer(&mut workspace, &images[..batch * size], &mut real);
            dequantize(expected, model.output(), &mut plain);
            assert_eq!(real, plain);
        }
    }
}

#[test]
fn models_of_any_size_equal_plain_loops_on_every_level() {
    let mut random = Random(1);
    let mut shifts = Vec::new();
    for i in 0..200 {
        let model = random_model(&mut random, i % 2 == 0);
        check(&model, &mut random, &[5, 1, 19, 0, 2]);
        for layer in model.layers() {
            if let layer::Operation::Product(_, weights) = layer.operation([1; 3]) {
                shifts.push(weights.shifts[0]);
            }
        }
    }
    // Ratios of at least 1/4 have shifts below 33, and are computed differently. Check that the models had
    // ratios of both kinds.
    for wide in [false, true] {
        assert!(shifts.iter().filter(|&&shift| (shift < 33) == wide).count() > 20, "{wide}: {shifts:?}");
    }
}

#[test]
fn batches_from_1_to_257_equal_plain_loops() {
    let mut random = Random(2);
    let model = convnet(&mut random, [9, 11]);
    check(&model, &mut random, &(1..=257).collect::<Vec<_>>());
}

/// Returns the MNIST ConvNet for images of this size, with random weights.
fn convnet(random: &mut Random, [height, width]: [usize; 2]) -> Model {
    let input = Scheme::Affine.parameters(-0.42, 2.82).unwrap();
    let (mut parameters, mut layers) = (input, Vec::new());
    for (inputs, outputs) in [(1, 4), (4, 8)] {
        let (weights, output) = weights(random, inputs * 9, outputs, parameters, true);
        let (kernel, stride, padding) = ([3; 2], [1; 2], [1; 2]);
        layers.push(Layer::Conv(Conv {
            inputs,
            outputs,
            kernel,
            stride,
            padding,
            weights,
            relu: true,
            output,
        }));
        layers.push(Layer::MaxPool(MaxPool { kernel: [2; 2], stride: [2; 2] }));
        parameters = output;
    }
    let (inputs, outputs) = (8 * (height / 4) * (width / 4), 10);
    let (weights, output) = weights(random, inputs, outputs, parameters, false);
    layers.push(Layer::Linear(Linear { inputs, outputs, weights, relu: false, output }));
    Model::new([1, height, width], input, layers).unwrap()
}

#[test]
fn bytes_and_weights_at_their_bounds_do_not_saturate_in_between() {
    // The instruction vpmaddubsw would saturate: the sum of two products of 255 · 127 exceeds 16 bits.
    let (inputs, one) = (1000, QParams { scale: 1.0, zero_point: 0 });
    for sign in [1.0, -1.0] {
        let output = QParams { scale: 255_000.0, zero_point: 128 };
        let weights = Weights::quantize(&vec![127.0 * sign; inputs], &[0.0], &[1.0], one, output).unwrap();
        let linear = Linear { inputs, outputs: 1, weights, relu: false, output };
        let model = Model::new([inputs, 1, 1], one, vec![Layer::Linear(linear)]).unwrap();
        for level in Level::available() {
            let _held = level.hold();
            let mut scores = [0];
            model.infer_bytes(&mut model.workspace(), &vec![255.0; inputs], &mut scores);
            assert_eq!(scores, [(128.0 + 127.0 * sign) as u8], "{level}");
        }
    }
}

#[test]
fn integers_are_close_to_the_real_model() {
    let mut random = Random(6);
    let (values, bias) = (random.floats(20 * 64, 0.2), random.floats(20, 0.5));
    let input = Scheme::Affine.parameters(-1.0, 1.0).unwrap();
    let output = Scheme::Affine.parameters(-4.0, 4.0).unwrap();
    let scales = scales(&mut random, &values, 20);
    let weights = Weights::quantize(&values, &bias, &scales, input, output).unwrap();
    let linear = Linear { inputs: 64, outputs: 20, weights, relu: false, output };
    let model = Model::new([64, 1, 1], input, vec![Layer::Linear(linear)]).unwrap();
    let features = random.floats(64, 1.0);
    let mut scores = [0.0; 20];
    model.infer(&mut model.workspace(), &features, &mut scores);
    for ((weights, bias), score) in values.chunks(64).zip(&bias).zip(scores) {
        let real: f32 = weights.iter().zip(&features).map(|(w, x)| w * x).sum::<f32>() + bias;
        assert!((real - score).abs() < 0.04, "{real} and {score}");
    }
}

#[test]
fn invalid_models_are_errors() {
    let mut random = Random(7);
    let valid = convnet(&mut random, [8, 8]);
    let changed = |change: fn(&mut Vec<Layer>)| {
        let mut layers = valid.layers().to_vec();
        change(&mut layers);
        Model::new([1, 8, 8], valid.input(), layers).map(|_| ()).unwrap_err().to_string()
    };
    fn weights_of(layer: &mut Layer) -> &mut Weights {
        match layer {
            Layer::Conv(conv) => &mut conv.weights,
            Layer::Linear(linear) => &mut linear.weights,
            Layer::MaxPool(_) | Layer::AveragePool(_) => panic!("no weights"),
        }
    }
    let error = changed(|layers| {
        layers.remove(3);
    });
    assert!(error.starts_with("layer 3: a linear layer of 32->10 "), "{error}");
    let error = changed(|layers| weights_of(&mut layers[2]).bias.truncate(3));
    assert_eq!(error, "layer 2: biases: 3 values, expected 8");
    let error = changed(|layers| weights_of(&mut layers[0]).bias[2] = i32::MAX - 5);
    assert_eq!(error, "layer 0: output 2 overflows a 32-bit accumulator");
    let error = changed(|layers| weights_of(&mut layers[4]).multipliers[0] ^= 1);
    assert!(error.starts_with("layer 4: multiplier ") && error.contains("output 0"), "{error}");
    let error = changed(|layers| weights_of(&mut layers[4]).scales[0] = f32::NAN);
    assert!(error.starts_with("layer 4: scale NaN"), "{error}");
    let error = changed(Vec::clear);
    assert_eq!(error, Int8Error::NoLayers.to_string());
    let one = QParams { scale: 1.0, zero_point: 0 };
    let small = QParams { scale: 1e-20, zero_point: 0 };
    let overflow = Weights::quantize(&[1.0], &[0.0], &[1.0], one, small);
    assert!(matches!(overflow, Err(Int8Error::ScaleOverflow { .. })));
    let overflow = Weights::quantize(&[1.0], &[1e9], &[1e-3], one, one);
    assert_eq!(overflow, Err(Int8Error::Accumulator { output: 0 }));
    assert_eq!(Weights::quantize(&[f32::NAN], &[0.0], &[1.0], one, one), Err(Int8Error::NonFinite));
}

#[test]
#[should_panic(expected = "workspace")]
fn a_workspace_is_for_one_model() {
    let mut random = Random(9);
    let models = [(); 2].map(|()| convnet(&mut random, [8, 8]));
    models[0].infer(&mut models[1].workspace(), &[], &mut []);
}

#[test]
fn a_layer_without_output_range_gives_its_zero_point() {
    // If the output of a ReLU is always 0, its range has no width. Its scale is then the smallest, and the
    // ratio is far above 1/4.
    let input = Scheme::Affine.parameters(0.0, 3.0).unwrap();
    let output = Scheme::Affine.parameters(0.0, 0.0).unwrap();
    let weights = Weights::quantize(&[-0.5; 20], &[-1.0; 2], &[0.5 / 127.0], input, output).unwrap();
    assert!(weights.shifts[0] < 30);
    let linear = Linear { inputs: 10, outputs: 2, weights, relu: true, output };
    let model = Model::new([10, 1, 1], input, vec![Layer::Linear(linear)]).unwrap();
    let mut scores = [1.0; 2];
    model.infer(&mut model.workspace(), &[1.0; 10], &mut scores);
    assert_eq!(scores, [0.0; 2]);
}

#[test]
fn stages_of_each_block_are_told_in_order() {
    let model = convnet(&mut Random(3), [8, 8]);
    let in_rows =
        Model::planned([1, 8, 8], model.input(), model.layers().to_vec(), false).expect("valid layers");
    for model in [model, in_rows] {
        let steps = model.steps();
        assert_eq!((steps[0].start, steps[steps.len() - 1].end), (0, model.layers().len()));
        assert!(steps.windows(2).all(|pair| pair[0].end == pair[1].start));
        let (mut workspace, mut told) = (model.workspace(), Vec::new());
        let images = vec![0.25; 3 * 64];
        let mut scores = [vec![0.0; 3 * model.outputs()], vec![0.0; 3 * model.outputs()]];
        model.infer_watched(&mut workspace, &images, &mut scores[0], &mut |stage| told.push(stage));
        model.infer(&mut workspace, &images, &mut scores[1]);
        assert_eq!(scores[0], scores[1]);
        let all = (0..steps.len()).map(Stage::Step);
        let expected: Vec<Stage> = [Stage::Input].into_iter().chain(all).chain([Stage::Output]).collect();
        assert_eq!(told, expected);
    }
}
