//! The loops that compute the crate's operators. They work on slices and do not use Burn. [`simd`] selects
//! their instructions at run time.

pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod conv;
pub(crate) mod dropout;
pub(crate) mod epilogue;
pub(crate) mod half;
pub(crate) mod loss;
pub(crate) mod matrix;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod quantization;
pub(crate) mod recurrent;
pub(crate) mod rows;
pub mod simd;
pub(crate) mod squares;
#[cfg(test)]
pub(crate) mod testing;
