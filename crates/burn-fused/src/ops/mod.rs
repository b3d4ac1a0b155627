//! Operators on flex, each with its backward pass. An operator that does not support its operands is composed
//! of Burn's operators.

pub(crate) mod activation;
pub(crate) mod attention;
pub mod conv;
pub(crate) mod dropout;
pub(crate) mod embedding;
pub(crate) mod epilogue;
pub(crate) mod extension;
pub mod fake_quantize;
pub(crate) mod flex_tensor;
pub mod linear;
pub mod loss;
pub(crate) mod max_pool;
pub mod norm;
pub mod precision;
pub(crate) mod recurrent;
pub(crate) mod shapes;
pub(crate) mod stamp;
#[cfg(test)]
pub(crate) mod testing;
