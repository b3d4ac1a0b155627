//! Groups: layers that are fused into one layer of the integer model.

use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::nn::{Linear, PaddingConfig2d};

use super::QuantError;
use crate::model::{Activation, BatchNorm, Dropout, Layer, NamedLayer, Network};

/// A convolution or a linear layer, and the following layers that are fused with it:
/// batch norm, ReLU, pooling.
#[derive(Debug, Clone)]
pub struct Group<'a> {
    /// PyTorch's name of the first layer.
    pub name: String,
    /// The layer with weights.
    pub product: Product<'a>,
    /// Batch norm, to be folded into the weights.
    pub norm: Option<&'a BatchNorm>,
    /// Whether ReLU follows.
    pub relu: bool,
    /// Pooling of the output.
    pub pool: Option<&'a MaxPool2d>,
    /// Dropout of the output, in training.
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
    /// Output channels or features.
    pub fn outputs(self) -> usize {
        match self {
            Self::Conv(conv) => conv.weight.dims()[0],
            Self::Linear(linear) => linear.weight.dims()[1],
        }
    }
}

/// The groups of `network`, in the order of forward.
///
/// # Errors
/// If a layer cannot be quantized; the first is named.
pub fn groups(network: &Network) -> Result<Vec<Group<'_>>, QuantError> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for NamedLayer { name, layer } in network.layers() {
        let group = |product| Group {
            name: name.clone(),
            product,
            norm: None,
            relu: false,
            pool: None,
            dropout: None,
        };
        let refused = |reason: &str| QuantError::layer(&name, reason);
        match layer {
            Layer::Conv(conv) => {
                check_conv(conv).map_err(refused)?;
                groups.push(group(Product::Conv(conv)));
                continue;
            }
            Layer::Linear(linear) => {
                groups.push(group(Product::Linear(linear)));
                continue;
            }
            Layer::Flatten => continue,
            Layer::Norm(_) | Layer::Activation(_) | Layer::Pool(_) | Layer::Dropout(_) => {}
        }
        let Some(last) = groups.last_mut() else {
            return Err(refused("no convolution or linear layer is in front of it"));
        };
        match layer {
            Layer::Norm(norm) if last.norm.is_none() && !last.relu && last.pool.is_none() => {
                last.norm = Some(norm);
            }
            Layer::Norm(_) => {
                return Err(refused("batch norm does not follow its convolution or linear layer"));
            }
            Layer::Activation(Activation::Relu) if last.pool.is_none() => last.relu = true,
            Layer::Activation(Activation::Relu) => return Err(refused("ReLU follows a pooling")),
            Layer::Activation(other) => {
                return Err(refused(&format!("{other} has no integer version; --activation relu has one")));
            }
            Layer::Pool(pool) if last.pool.is_none() => {
                check_pool(pool).map_err(refused)?;
                last.pool = Some(pool);
            }
            Layer::Pool(_) => return Err(refused("a second pooling follows the first")),
            Layer::Dropout(dropout) => last.dropout = Some(dropout),
            Layer::Conv(_) | Layer::Linear(_) | Layer::Flatten => {}
        }
    }
    Ok(groups)
}

fn check_conv(conv: &Conv2d) -> Result<(), &'static str> {
    match () {
        () if conv.dilation != [1, 1] => Err("its kernel is dilated"),
        () if conv.groups != 1 => Err("its channels are in groups"),
        () => padding(&conv.padding).map(|_| ()),
    }
}

fn check_pool(pool: &MaxPool2d) -> Result<(), &'static str> {
    match padding(&pool.padding)? {
        [0, 0] if pool.dilation == [1, 1] && !pool.ceil_mode => Ok(()),
        _ => Err("its windows are padded, dilated or cut off"),
    }
}

/// Rows above and below, columns to the left and to the right.
pub(super) fn padding(padding: &PaddingConfig2d) -> Result<[usize; 2], &'static str> {
    match *padding {
        PaddingConfig2d::Valid => Ok([0, 0]),
        PaddingConfig2d::Explicit(top, left, bottom, right) if top == bottom && left == right => {
            Ok([top, left])
        }
        _ => Err("its padding is not the same on both sides"),
    }
}
