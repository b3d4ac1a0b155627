//! Products of bf16 values in the instructions for them.

pub(crate) mod amx;
pub(crate) mod avx512bf16;

use crate::ops::precision::Bits;
