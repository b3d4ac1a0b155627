use super::*;
use burn::module::Param;
use burn::nn::{Linear, LinearConfig, LinearLayout};
use burn::tensor::Device;
use burn::tensor::Tensor;

/// A user-defined layer that stores `[outputs, inputs]`, as PyTorch does.
#[derive(Module, Debug)]
struct OwnLinear {
    weight: Param<Tensor<2>>,
}

#[derive(Module, Debug)]
enum Head {
    Projection(Linear),
}

#[derive(Module, Debug)]
struct Net {
    linear: OwnLinear,
    embedding: Linear,
    columns: Vec<Linear>,
    head: Head,
    weight: Param<Tensor<2>>,
}

fn net(device: &Device) -> Net {
    let own = || Param::from_tensor(Tensor::<2>::ones([2, 3], device));
    let linear = |layout| LinearConfig::new(3, 2).with_layout(layout).init(device);
    Net {
        linear: OwnLinear { weight: own() },
        embedding: linear(LinearLayout::Row),
        columns: vec![linear(LinearLayout::Col)],
        head: Head::Projection(linear(LinearLayout::Row)),
        weight: own(),
    }
}

#[test]
fn transposing_twice_is_nothing() {
    let spec = ParamSpec {
        name: "linear.weight".into(),
        shape: vec![3, 2],
        range: 0..6,
        dtype: DType::F32,
        transposed: true,
        trainable: true,
        tied_to: None,
    };
    let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_eq!(spec.to_torch(&values), [1.0, 3.0, 5.0, 2.0, 4.0, 6.0]);
    assert_eq!(spec.from_torch(&spec.to_torch(&values)), values);
}

#[test]
fn linear_weights_are_transposed_by_their_type_and_under_any_name() {
    let layout = ParamLayout::of_module(&net(&Device::flex()));
    let transposed = |name: &str| {
        let spec = layout.specs().iter().find(|spec| spec.name == name);
        spec.map(|spec| (spec.transposed, spec.torch_shape()))
    };
    assert_eq!(transposed("embedding.weight"), Some((true, vec![2, 3])));
    assert_eq!(transposed("columns.0.weight"), Some((true, vec![2, 3])));
    assert_eq!(transposed("head.weight"), Some((true, vec![2, 3])));
    assert_eq!(transposed("embedding.bias"), Some((false, vec![2])));
    assert_eq!(transposed("linear.weight"), Some((false, vec![2, 3])), "a struct called OwnLinear");
    assert_eq!(transposed("weight"), Some((false, vec![2, 3])), "in no layer at all");
}

#[test]
fn weights_stored_by_columns_are_read_and_written_as_by_rows() {
    let device = Device::flex().autodiff();
    for layer in [LinearLayout::Row, LinearLayout::Col] {
        let linear = LinearConfig::new(3, 2).with_bias(false).with_layout(layer).init(&device);
        let layout = ParamLayout::of_module(&linear);
        let x = Tensor::<2>::from_data([[1.0, 10.0, 100.0]], &device);
        // PyTorch stores all weights of one output next to each other.
        let torch = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let linear = layout.write(linear, &layout.specs()[0].from_torch(&torch));
        let out = linear.forward(x).into_data();
        assert_eq!(out, TensorData::from([[321.0f32, 654.0]]), "{layer:?}");
        assert_eq!(layout.specs()[0].to_torch(&layout.read(&linear)), torch, "{layer:?}");
    }
}

#[test]
fn types_stay() {
    let device = Device::flex().autodiff();
    let double = |value: f64| Tensor::<2>::from_data([[value]], (&device, DType::F64));
    let module = OwnLinear { weight: Param::from_tensor(double(0.5)) };
    let module = ParamLayout::of_module(&module).write(module, &[2.0]);
    assert_eq!(module.weight.val().into_data(), TensorData::from([[2.0f64]]));
}

#[test]
fn a_tied_parameter_counts_once_and_stays_one_tensor() {
    let mut module = net(&Device::flex().autodiff());
    module.weight = module.linear.weight.clone();
    let layout = ParamLayout::of_module(&module);
    let fields: Vec<_> = layout.specs().iter().map(|spec| (spec.tied_to, spec.trainable)).collect();
    assert_eq!(fields[0], (None, true));
    assert_eq!(fields.last(), Some(&(Some(0), false)));
    assert!(!layout.has_buffers() && layout.read_buffers(&module).is_empty());
    let mut flat = layout.read(&module);
    assert_eq!(layout.trainable() + 6, flat.len());
    flat[0] = 7.0;
    let module = layout.write_trainable(module, &flat);
    assert_eq!(module.weight.val().into_data(), module.linear.weight.val().into_data());
    assert_eq!(layout.read(&module)[0], 7.0);
}
