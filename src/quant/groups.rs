//! Groups of the layers of a float network. A group is a layer with weights and the layers after it, up to
//! the next layer with weights. The int8 model computes a group with one integer layer and its poolings.

use burn_fused::nn::activation::Activation;
use burn_fused::nn::conv::Conv2d;
use burn_fused::nn::pool::MaxPool2d;
use burn_fused::nn::{BatchNorm, Dropout, Linear, PaddingConfig2d};

use super::QuantError;
use super::int8_file::LARGEST;
use crate::model::{ActivationKind, Layer, NamedLayer, Network};

/// A convolution or a linear layer, and the layers that belong to it: batch norm, ReLU, poolings and dropout.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    /// PyTorch's name of the first layer.
    pub name: String,
    /// The layer with weights.
    pub product: Product<'a>,
    /// Batch norm, which is folded into the weights.
    pub norm: Option<&'a BatchNorm>,
    /// Whether ReLU follows.
    pub relu: bool,
    /// Max pooling of the output.
    pub pool: Option<&'a MaxPool2d>,
    /// Height and width after average pooling of the output, if there is one.
    pub average: Option<[usize; 2]>,
    /// Dropout of the output in training.
    pub dropout: Option<&'a Dropout>,
}

/// A layer with weights.
#[derive(Debug, Clone, Copy)]
pub enum Product<'a> {
    /// Convolution.
    Conv(&'a Conv2d),
    /// Linear layer.
    Linear(&'a Linear),
}

impl Product<'_> {
    /// Number of output channels or features.
    pub fn outputs(self) -> usize {
        match self {
            Self::Conv(conv) => conv.weight.dims()[0],
            Self::Linear(linear) => linear.weight.dims()[1],
        }
    }
}

/// Returns the groups of `network`, in the order of forward.
///
/// # Errors
/// If a layer cannot be quantized. The error names one such layer.
pub fn groups(network: &Network) -> Result<Vec<Group<'_>>, QuantError> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for NamedLayer { name, layer } in network.layers() {
        let group = |product| Group {
            name: name.to_owned(),
            product,
            norm: None,
            relu: false,
            pool: None,
            average: None,
            dropout: None,
        };
        match (layer, groups.last_mut()) {
            (Layer::Conv(conv), _)
                if conv.dilation == [1, 1] && conv.groups == 1 && padding(&conv.padding).is_some() =>
            {
                groups.push(group(Product::Conv(conv)));
            }
            (Layer::Linear(linear), _) => {
                let [inputs, _] = linear.weight.dims();
                if inputs > LARGEST {
                    return Err(QuantError::layer(
                        name,
                        format!("it has {inputs} inputs, but int8 models support at most {LARGEST}"),
                    ));
                }
                groups.push(group(Product::Linear(linear)));
            }
            (Layer::Flatten(_), _) => {}
            (Layer::Norm(norm), Some(last)) if last.norm.is_none() && !last.relu && last.pool.is_none() => {
                last.norm = Some(norm);
            }
            (Layer::Activation(Activation::Relu(_)), Some(last)) if last.pool.is_none() => last.relu = true,
            (Layer::Activation(other), _) if !matches!(other, Activation::Relu(_)) => {
                let other = ActivationKind::from_layer(other);
                let reason = format!("int8 models do not support {other}; choose --activation relu");
                return Err(QuantError::layer(name, reason));
            }
            (Layer::Pool(pool), Some(last)) if last.pool.is_none() && is_fused(pool) => {
                last.pool = Some(pool)
            }
            (Layer::AveragePool(pool), Some(last)) => last.average = Some(pool.output_size),
            (Layer::Dropout(dropout), Some(last)) => last.dropout = Some(dropout),
            _ => {
                return Err(QuantError::layer(
                    name,
                    "int8 models do not support this layer after the preceding layers",
                ));
            }
        }
    }
    match groups.iter().find(|group| matches!(group.product, Product::Conv(_)) && !group.relu) {
        Some(group) => Err(QuantError::layer(&group.name, "int8 models require a ReLU after a convolution")),
        None => Ok(groups),
    }
}

/// Returns whether fused operators support this pooling.
fn is_fused(pool: &MaxPool2d) -> bool {
    let is_plain = padding(&pool.padding) == Some([0, 0]) && pool.dilation == [1, 1] && !pool.ceil_mode;
    is_plain && [pool.kernel_size, pool.stride] == [[2, 2]; 2]
}

/// Returns the padding as `[rows, columns]`: the rows are added both above and below, the columns both to the
/// left and to the right. `None` for padding that is not symmetric, and for [`PaddingConfig2d::Same`].
pub fn padding(padding: &PaddingConfig2d) -> Option<[usize; 2]> {
    match *padding {
        PaddingConfig2d::Valid => Some([0, 0]),
        PaddingConfig2d::Explicit(top, left, bottom, right) if top == bottom && left == right => {
            Some([top, left])
        }
        _ => None,
    }
}
