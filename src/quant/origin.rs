//! Checks that an int8 file is a model of the float network beside it.
//!
//! The digest in a file detects damage, but not an edit by a program that computes it
//! anew. So layers, weights, scales of weights and biases, which follow from the float
//! network, are compared with it. Scales and zero points of activations are measurements;
//! biases depend on the scale of their layer's input.

use super::{Group, Product, groups, padding};
use crate::model::Network;
use crate::quant::int8_file::{Bias, Int8File, LayerValues, Operation, StoredLayer};

/// Largest difference of a float bias from the stored one relative to its size, beyond half a step:
/// of f32 products.
const RELATIVE: f64 = 1e-5;

impl Int8File {
    /// Checks that the file's layers are those of `network`, with its weights.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_origin(&self, network: &Network) -> Result<(), String> {
        let groups = groups(network).map_err(|error| error.to_string())?;
        let mut stored = self.layers.iter();
        for (index, group) in groups.iter().enumerate() {
            let input = self.activations.get(index).map(|input| input.scale);
            group.check(stored.next(), input)?;
            if let Some(pool) = group.pool {
                let expected = Operation::MaxPool { kernel: pool.kernel_size, stride: pool.stride };
                check_operation(&group.name, stored.next(), &expected)?;
            }
            // ReLU's output starts at 0, which the scheme maps to the lowest byte.
            let zero = self.activations.get(index + 1).map_or(0, |output| output.zero_point);
            if group.relu && zero != 0 {
                return Err(format!("the zero point of {} is {zero}, and ReLU's is 0", group.name));
            }
        }
        match stored.next() {
            Some(layer) => Err(format!("after the network's last layer it has {}", layer.op)),
            None => Ok(()),
        }
    }
}

fn check_operation(name: &str, found: Option<&StoredLayer>, expected: &Operation) -> Result<(), String> {
    match found.map(|layer| &layer.op) {
        Some(found) if found == expected => Ok(()),
        Some(found) => Err(format!("at {name} it has {found}, and the run's network {expected}")),
        None => Err(format!("it ends before {name}")),
    }
}

impl Group<'_> {
    /// The layer with weights, as files describe it.
    fn operation(&self) -> Result<(Operation, Vec<usize>), String> {
        let (name, relu) = (self.name.clone(), self.relu);
        Ok(match self.product {
            Product::Conv(conv) => {
                let padding = padding(&conv.padding)?;
                (Operation::Conv { name, stride: conv.stride, padding, relu }, conv.weight.dims().to_vec())
            }
            Product::Linear(linear) => {
                let [inputs, outputs] = linear.weight.dims();
                (Operation::Linear { name, relu }, vec![outputs, inputs])
            }
        })
    }

    /// Compares with a stored layer, whose input has the scale `input` in a static model.
    fn check(&self, stored: Option<&StoredLayer>, input: Option<f32>) -> Result<(), String> {
        let name = &self.name;
        let (operation, expected) = self.operation()?;
        check_operation(name, stored, &operation)?;
        let Some(LayerValues { shape, weights, scales, bias }) =
            stored.and_then(|layer| layer.values.as_ref())
        else {
            return Err(format!("{name} has no weights"));
        };
        if *shape != expected {
            return Err(format!("{name}.weight has the shape {shape:?}, and the run's {expected:?}"));
        }
        let folded = self.folded();
        let of_output = folded.weights.len() / folded.bias.len().max(1);
        let scale = |output: usize| f64::from(scales[if scales.len() == 1 { 0 } else { output }]);
        for (at, (&weight, &q)) in folded.weights.iter().zip(weights).enumerate() {
            // Observed ranges may be narrower than the weights, which are then clamped.
            let steps = (f64::from(weight) / scale(at / of_output)).clamp(-127.0, 127.0);
            // Half a step of rounding, and the rounding of the product.
            if (steps - f64::from(q)).abs() > 0.51 {
                return Err(format!("{name}: weights and scales are not those of the run's network"));
            }
        }
        let differs = match bias {
            Bias::Float(values) => {
                let apart = |(&a, &b): (&f32, &f32)| f64::from(a - b).abs() > RELATIVE * f64::from(b).abs();
                values.iter().zip(&folded.bias).any(apart)
            }
            Bias::Integer(steps) => {
                let apart = |(output, (&found, &bias)): (usize, (&i32, &f32))| {
                    let step = scale(output) * f64::from(input.unwrap_or(f32::NAN));
                    let expected = f64::from(bias) / step;
                    let apart = (expected - f64::from(found)).abs();
                    apart.is_nan() || apart > 0.5 + RELATIVE * (1.0 + expected.abs())
                };
                steps.iter().zip(&folded.bias).enumerate().any(apart)
            }
        };
        match differs {
            true => Err(format!("{name}: biases and scales are not those of the run's network")),
            false => Ok(()),
        }
    }
}
