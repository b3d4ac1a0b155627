//! Round trips of int8 files, and rejection of damaged ones.

use burn_fused::int8::{Conv, Layer, Linear, MaxPool, Model, QParams, Scheme, Weights};

use super::*;

/// A small static model, with a scale for each output or one for all.
fn model(by_channel: bool) -> Model {
    let parameters = |min, max| Scheme::Affine.parameters(min, max).unwrap();
    let (input, middle, output) = (parameters(-1.0, 1.0), parameters(0.0, 2.0), parameters(-3.0, 3.0));
    let scales = |outputs| vec![0.3 / 127.0; if by_channel { outputs } else { 1 }];
    let weights = |count: usize, outputs: usize, from: QParams, to: QParams| {
        let values: Vec<f32> = (0..count).map(|i| ((i * 37) % 19) as f32 / 40.0 - 0.2).collect();
        let bias: Vec<f32> = (0..outputs).map(|i| i as f32 * 0.1 - 0.1).collect();
        Weights::quantize(&values, &bias, &scales(outputs), from, to).unwrap()
    };
    let conv = Conv {
        inputs: 1,
        outputs: 2,
        kernel: [3, 3],
        stride: [1, 1],
        padding: [1, 1],
        weights: weights(18, 2, input, middle),
        relu: true,
        output: middle,
    };
    let linear =
        Linear { inputs: 8, outputs: 3, weights: weights(24, 3, middle, output), relu: false, output };
    let pool = MaxPool { kernel: [2, 2], stride: [2, 2] };
    Model::new([1, 4, 4], input, vec![Layer::Conv(conv), Layer::MaxPool(pool), Layer::Linear(linear)])
        .unwrap()
}

fn stored(by_channel: bool) -> Int8File {
    let names = ["conv1", "linear"].map(String::from);
    Int8File::of_model(Method::Ptq, "convnet", "0123abcd", &names, &model(by_channel))
}

fn path() -> &'static Path {
    Path::new("some/int8.safetensors")
}

/// The error of a file whose bytes are these.
fn refusal(bytes: &[u8]) -> String {
    let decoded = Int8File::decode(path(), bytes).and_then(|file| file.model(path()));
    decoded.expect_err("it is damaged").to_string()
}

/// A file of `network`, in which everything is consistent but `network` itself.
fn refusal_of(network: &Int8File) -> String {
    refusal(&network.encode(path()).unwrap())
}

#[test]
fn a_model_is_read_as_it_was_written_and_predicts_the_same() {
    for by_channel in [true, false] {
        let file = stored(by_channel);
        let bytes = file.encode(path()).unwrap();
        assert_eq!(bytes, file.encode(path()).unwrap(), "the same network, the same bytes");
        let read = Int8File::decode(path(), &bytes).unwrap();
        assert_eq!(read, file);
        let (expected, read) = (model(by_channel), read.model(path()).unwrap());
        assert_eq!(read.layers(), expected.layers());
        let images: Vec<f32> = (0..5 * 16).map(|i| ((i * 7919) % 997) as f32 / 400.0 - 1.0).collect();
        let scores = |model: &Model| {
            let mut scores = vec![0u8; 5 * 3];
            model.infer_bytes(&mut model.workspace(), &images, &mut scores);
            scores
        };
        assert_eq!(scores(&read), scores(&expected));
    }
}

#[test]
fn a_dynamic_network_has_real_biases_and_no_activations() {
    let mut file = stored(true);
    file.method = Method::Dynamic;
    file.activations.clear();
    assert!(refusal_of(&file).contains("conv1.bias holds I32, expected F32"));
    for layer in &mut file.layers {
        if let Some(values) = &mut layer.values {
            values.bias = Bias::Float(vec![0.25; values.shape[0]]);
        }
    }
    let bytes = file.encode(path()).unwrap();
    assert_eq!(Int8File::decode(path(), &bytes).unwrap(), file);
}

#[test]
fn every_cut_and_every_changed_byte_is_an_error() {
    let bytes = stored(true).encode(path()).unwrap();
    for length in 0..bytes.len() {
        let error = refusal(&bytes[..length]);
        assert!(error.starts_with("some/int8.safetensors"), "{error}");
    }
    for at in 0..bytes.len() {
        for flip in [1, 0x20, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= flip;
            let error = refusal(&changed);
            assert!(error.starts_with("some/int8.safetensors"), "byte {at} ^ {flip:#x}: {error}");
        }
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(refusal(&longer).contains("not a whole safetensors file"));
}

#[test]
fn what_does_not_fit_together_is_named() {
    let change = |edit: &dyn Fn(&mut Int8File)| {
        let mut file = stored(true);
        edit(&mut file);
        refusal_of(&file)
    };
    let conv = |edit: &dyn Fn(&mut LayerValues)| {
        change(&|file| edit(file.layers[0].values.as_mut().expect("values")))
    };
    for (error, expected) in [
        (conv(&|values| values.scales[1] = f32::NAN), "conv1.weight_scale contains NaN"),
        (conv(&|values| values.scales[1] = -1.0), "conv1.weight_scale contains -1"),
        (
            conv(&|values| values.scales.push(0.1)),
            "conv1.weight_scale has the shape [3], expected [1] or [2]",
        ),
        (conv(&|values| values.bias = Bias::Integer(vec![0])), "conv1.bias has the shape [1], expected [2]"),
        (conv(&|values| values.bias = Bias::Float(vec![0.0; 2])), "conv1.bias holds F32, expected I32"),
        (conv(&|values| values.weights[3] = -128), "conv1.weight contains -128"),
        (conv(&|values| values.shape = vec![2, 9]), "conv1.weight has the shape [2, 9], expected 4 sizes"),
        (conv(&|values| values.shape = vec![2, 3, 3, 1]), "does not fit an input of [1, 4, 4]"),
        (conv(&|values| values.bias = Bias::Integer(vec![i32::MAX; 2])), "overflows a 32-bit accumulator"),
        (change(&|file| file.activations[1].scale = 1e-30), "the scale overflows"),
        (change(&|file| file.activations[0].scale = 0.0), "scale"),
        (change(&|file| file.activations.truncate(2)), "activation.scale has the shape [2], expected [3]"),
        (change(&|file| file.input_shape = [1, 1 << 40, 4]), "a size of 1099511627776"),
        (change(&|file| drop(file.layers.remove(2))), "activation.scale has the shape [3], expected [2]"),
        (change(&|file| file.input_shape = [1, 5, 9]), "does not fit"),
        (
            change(&|file| {
                file.layers[1].op = Operation::MaxPool { kernel: [0, 2], stride: [2, 0] };
            }),
            "max pooling",
        ),
        (change(&|file| file.method = Method::Dynamic), "conv1.bias holds I32, expected F32"),
    ] {
        assert!(error.starts_with("some/int8.safetensors: ") && error.contains(expected), "{error}");
    }
    let mut twice = stored(true);
    twice.layers.push(twice.layers[0].clone());
    assert!(twice.encode(path()).unwrap_err().to_string().contains("two layers have the same name"));
}

#[test]
fn other_versions_and_float_networks_are_refused_by_name() {
    let float = safetensors::serialize(
        [("conv1.weight", Values { dtype: Dtype::F32, shape: vec![1], bytes: vec![0; 4] })],
        None::<HashMap<String, String>>,
    )
    .unwrap();
    let error = Int8File::decode(path(), &float).unwrap_err();
    assert!(
        error.is_wrong_kind() && error.to_string().contains("holds a float network's weights"),
        "{error}"
    );
    assert!(Int8File::read(Path::new("/nowhere/int8.safetensors")).unwrap_err().is_wrong_kind());
}
