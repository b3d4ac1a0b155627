//! The embedding layer.

use burn::module::Param;
use burn::nn::Initializer;
use burn::tensor::{Device, Int, Tensor};

use super::convert::{config, module};
use crate::ops::embedding::embedding;

config! {
    /// Configuration of an [`Embedding`] layer; replaces [`burn::nn::EmbeddingConfig`].
    pub struct EmbeddingConfig of burn::nn::EmbeddingConfig {
        /// Number of vectors.
        pub n_embedding: usize,
        /// Width of a vector.
        pub d_model: usize,
        /// How the vectors are initialised.
        #[config(default = "Initializer::Normal{mean:0.0, std:1.0}")]
        pub initializer: Initializer,
    }

    /// Creates a layer with new vectors.
    pub fn init(&self, device: &Device) -> Embedding;
}

module! {
    /// Embedding: has a vector for each index, and looks up vectors by their indices. Replaces
    /// [`burn::nn::Embedding`]. The gradient is dense: 0 for the vectors of indices that do not occur.
    pub struct Embedding of burn::nn::Embedding {
        /// Vectors `[n_embedding, d_model]`.
        pub weight: Param<Tensor<2>>,
    }
}

impl Embedding {
    /// Returns the vectors `[batch, sequence, d_model]` for indices `[batch, sequence]`.
    ///
    /// # Panics
    /// If an index is negative or not below `n_embedding`.
    pub fn forward(&self, input: Tensor<2, Int>) -> Tensor<3> {
        embedding(self.weight.val(), input)
    }
}

#[cfg(test)]
mod tests {
    use burn::module::Module;
    use burn::tensor::{DType, Distribution, IntDType, TensorData};

    use super::*;
    use crate::kernels::simd::Level;
    use crate::ops::testing::{assert_close, autodiff_devices, random, results};

    fn indices(shape: [usize; 2], rows: usize, device: &Device) -> Tensor<2, Int> {
        Tensor::random(shape, Distribution::Uniform(0.0, rows as f64), device)
    }

    /// [`results`] takes float inputs; an embedding has none.
    const NONE: &[Tensor<1>] = &[];

    #[test]
    fn outputs_and_gradients_are_those_of_burns_layer() {
        for device in autodiff_devices() {
            for [rows, width, batch, sequence] in
                [[1, 1, 1, 1], [5, 3, 2, 40], [40, 33, 3, 7], [300, 64, 4, 16], [7, 16, 0, 3], [7, 0, 2, 3]]
            {
                let layer =
                    || burn::nn::Embedding { weight: Param::from_tensor(random([rows, width], 3, &device)) };
                let tokens = indices([sequence, batch], rows, &device).swap_dims(0, 1);
                for burns in [layer(), layer().no_grad()] {
                    for dtype in [IntDType::I64, IntDType::I32, IntDType::I16, IntDType::U32, IntDType::U64] {
                        let tokens = tokens.clone().cast(dtype);
                        let expected =
                            results(&burns, NONE, |layer, _| tracked(layer.forward(tokens.clone())));
                        for level in Level::available() {
                            let _held = level.hold();
                            let ours = Embedding::from(burns.clone());
                            let found =
                                results(&ours, NONE, |layer, _| tracked(layer.forward(tokens.clone())));
                            let context =
                                format!("{rows} x {width}, {batch} x {sequence} {dtype:?} at {level}");
                            assert_close(&found, &expected, &context);
                        }
                    }
                }
            }
        }
    }

    /// Adds a tensor of zeros with a gradient, so that a frozen layer has a graph.
    fn tracked(output: Tensor<3>) -> Tensor<3> {
        let zeros = output.zeros_like().require_grad();
        output + zeros
    }

    #[test]
    fn a_layer_is_used_twice_and_its_weights_are_tied() {
        let device = Device::flex().autodiff();
        let burns = burn::nn::EmbeddingConfig::new(9, 12).init(&device);
        let (first, second) = (indices([2, 5], 9, &device), indices([2, 5], 9, &device));
        let scores = |weight: &Param<Tensor<2>>, [x, y]: [Tensor<3>; 2]| {
            (x * 2.0 + y).matmul(weight.val().transpose().unsqueeze())
        };
        let expected = results(&burns, NONE, |layer, _| {
            scores(&layer.weight, [layer.forward(first.clone()), layer.forward(second.clone())])
        });
        let found = results(&Embedding::from(burns), NONE, |layer, _| {
            scores(&layer.weight, [layer.forward(first.clone()), layer.forward(second.clone())])
        });
        assert_close(&found, &expected, "twice, and as the last layer");
    }

    #[test]
    fn without_autodiff_and_in_other_types_it_is_as_in_burn() {
        let device = Device::flex();
        let burns = burn::nn::Embedding { weight: Param::from_tensor(random([8, 30], 1, &device)) };
        let tokens = indices([3, 4], 8, &device);
        let expected = burns.forward(tokens.clone()).into_data();
        Embedding::from(burns.clone()).forward(tokens.clone()).into_data().assert_eq(&expected, true);
        let burns = burn::nn::Embedding { weight: Param::from_tensor(burns.weight.val().cast(DType::BF16)) };
        let expected = burns.forward(tokens.clone()).into_data();
        Embedding::from(burns).forward(tokens).into_data().assert_eq(&expected, true);
    }

    #[test]
    fn indices_of_no_row_panic_as_in_burn() {
        let device = Device::flex();
        let burns = burn::nn::EmbeddingConfig::new(5, 2).init(&device);
        for index in [-1i64, 5, i64::MAX] {
            let tokens =
                Tensor::<2, Int>::from_data(TensorData::new(vec![0, index], [1, 2]), (&device, DType::I64));
            let panics = [true, false].map(|ours| {
                let (burns, tokens) = (burns.clone(), tokens.clone());
                let forward = std::panic::AssertUnwindSafe(|| {
                    if ours { Embedding::from(burns).forward(tokens) } else { burns.forward(tokens) }
                });
                std::panic::catch_unwind(forward)
                    .expect_err("it panics")
                    .downcast::<String>()
                    .expect("a string")
            });
            assert_eq!(panics[0], panics[1]);
        }
    }

    #[test]
    fn it_is_shown_configured_and_recorded_as_burns() {
        let device = Device::flex();
        let config = EmbeddingConfig::new(6, 4).with_initializer(Initializer::Ones);
        let burns = burn::nn::EmbeddingConfig::from(config.clone());
        assert_eq!(config.to_string(), burns.to_string());
        let (ours, burns) = (config.init(&device), burns.init(&device));
        assert_eq!(ours.to_string(), burns.to_string());
        let burns = burn::nn::Embedding { weight: Param::from_tensor(burns.weight.val() * 2.0) };
        let loaded = ours.load_record(burns.into_record());
        assert_eq!(loaded.weight.val().into_data(), TensorData::new(vec![2f32; 24], [6, 4]));
    }
}
