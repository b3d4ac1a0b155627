//! Checks round trips of int8 files, and the rejection of damaged files.

use burn_fused::int8::{Scheme, quantize_weights};

use super::*;

/// Returns a small network. Each layer has one weight scale for each output if `by_channel`, otherwise one
/// for all outputs.
fn stored(by_channel: bool) -> Int8File {
    let parameters = |min, max| Scheme::Affine.parameters(min, max).unwrap();
    let values = |shape: &[usize], bias: &[i32]| {
        let values = (0..shape.iter().product()).map(|i: usize| ((i * 37) % 19) as f32 / 40.0 - 0.2);
        let scales = vec![0.3 / 127.0; if by_channel { shape[0] } else { 1 }];
        let weights = quantize_weights(&values.collect::<Vec<_>>(), &scales);
        LayerValues { shape: shape.to_vec(), weights, scales, bias: bias.to_vec() }
    };
    Int8File {
        version: VERSION,
        method: Method::Ptq,
        network: "convnet".into(),
        weights_sha256: "0123abcd".into(),
        input_shape: [1, 4, 4],
        layers: vec![
            StoredLayer::Conv {
                name: "conv1".into(),
                stride: [1, 1],
                padding: [1, 1],
                relu: true,
                values: values(&[2, 1, 3, 3], &[-5397, 0]),
            },
            StoredLayer::MaxPool { kernel: [2, 2], stride: [2, 2] },
            StoredLayer::Linear {
                name: "linear".into(),
                relu: false,
                values: values(&[3, 8], &[-5397, 0, 5397]),
            },
        ],
        sha256: NO_DIGEST.into(),
        activations: vec![parameters(-1.0, 1.0), parameters(0.0, 2.0), parameters(-3.0, 3.0)],
    }
}

fn path() -> &'static Path {
    Path::new("some/int8.safetensors")
}

/// Returns the error of a file with these bytes.
fn refusal(bytes: &[u8]) -> String {
    match Int8File::decode(path(), bytes) {
        Ok(file) => format!("{}: {}", path().display(), file.model().expect_err("it is damaged")),
        Err(error) => error.to_string(),
    }
}

/// Returns the error of a file of an inconsistent `network`. The file itself, with its digest, is valid.
fn refusal_of(network: &Int8File) -> String {
    refusal(&network.encode(path()).unwrap())
}

#[test]
fn a_model_is_read_as_it_was_written() {
    for by_channel in [true, false] {
        let file = stored(by_channel);
        let bytes = file.encode(path()).unwrap();
        assert_eq!(bytes, file.encode(path()).unwrap(), "the same network, the same bytes");
        let read = Int8File::decode(path(), &bytes).unwrap();
        assert_eq!(read, file);
        let (expected, read) = (file.model().unwrap(), read.model().unwrap());
        assert_eq!(read.layers(), expected.layers());
    }
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
    assert!(refusal(&longer).contains("safetensors"));
}

#[test]
fn what_does_not_fit_together_is_named() {
    let change = |edit: &dyn Fn(&mut Int8File)| {
        let mut file = stored(true);
        edit(&mut file);
        refusal_of(&file)
    };
    let conv = |edit: &dyn Fn(&mut LayerValues)| {
        change(&|file| match &mut file.layers[0] {
            StoredLayer::Conv { values, .. } => edit(values),
            _ => unreachable!("the first layer is a convolution"),
        })
    };
    for (error, expected) in [
        (conv(&|values| values.scales[1] = f32::NAN), "conv1: "),
        (conv(&|values| values.scales[1] = -1.0), "conv1: "),
        (conv(&|values| values.scales.push(0.1)), "conv1 has 3 scales and 2 biases for 2 outputs"),
        (conv(&|values| values.bias = vec![0]), "conv1 has 2 scales and 1 biases for 2 outputs"),
        (conv(&|values| values.shape = vec![2, 9]), "conv1.weight has the shape [2, 9], expected 4 "),
        (conv(&|values| values.shape = vec![2, 3, 3, 1]), "does not fit an input of [1, 4, 4]"),
        (conv(&|values| values.bias = vec![i32::MAX; 2]), "overflows a 32-bit accumulator"),
        (change(&|file| file.activations[1].scale = 1e-30), "the scale is out of range"),
        (change(&|file| file.activations[0].scale = 0.0), "scale"),
        (change(&|file| file.activations.truncate(2)), "activation.zero_point has 2, expected 3"),
        (change(&|file| file.input_shape = [1, 1 << 40, 4]), "1099511627776, above the limit of 65536"),
        (change(&|file| drop(file.layers.remove(2))), "activation.zero_point has 3, expected 2"),
        (change(&|file| file.input_shape = [1, 5, 9]), "does not fit"),
        (
            change(&|file| {
                file.layers[1] = StoredLayer::MaxPool { kernel: [0, 2], stride: [2, 0] };
            }),
            "max pooling",
        ),
    ] {
        assert!(error.starts_with("some/int8.safetensors: ") && error.contains(expected), "{error}");
    }
}

#[test]
fn other_versions_and_float_networks_are_refused_by_name() {
    let tensors = [("conv1.weight".to_owned(), Dtype::F32, vec![1], vec![0; 4])];
    let float = safetensors_file(&tensors, None).unwrap();
    let error = Int8File::decode(path(), &float).unwrap_err();
    assert!(matches!(error, RecordError::FloatWeights(_)) && error.is_wrong_kind(), "{error}");
    assert!(Int8File::read(Path::new("/nowhere/int8.safetensors")).unwrap_err().is_wrong_kind());
}
