//! Checks that a module that falls back to Burn's operators logs the reason.

use std::sync::Mutex;

use burn::module::{Module, Param};
use burn::nn::conv::Conv2dConfig;
use burn::tensor::{DType, Device, Int, Tensor};

use crate::nn::activation::ActivationConfig;
use crate::nn::{self, loss, pool};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().expect("a list").push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// Runs modules that the fused operators do not support.
fn compose(device: &Device) {
    let lstm = nn::LstmConfig::new(3, 4, true);
    let x = Tensor::<3>::ones([2, 3, 3], device);
    lstm.clone().with_cell_activation(ActivationConfig::Relu).init(device).forward(x.clone(), None);
    lstm.clone().with_clip(Some(-1.0)).init(device).forward(x.clone(), None);
    lstm.init(device).forward(x.clone().slice([0..0, 0..3, 0..3]), None);
    nn::GruConfig::new(3, 4, true).with_reset_after(false).init(device).forward(x.clone(), None);
    nn::BatchNormConfig::new(3).init(device).freeze().forward(x);
    let images = Tensor::<4>::ones([1, 1, 4, 4], device);
    nn::conv::Conv2d::from(Conv2dConfig::new([1, 1], [1, 1]).init(device)).forward(images.clone());
    pool::MaxPool2dConfig::new([3, 3]).init().forward(images);
    let half = Tensor::<2>::ones([2, 4], device).cast(DType::BF16);
    nn::Gelu::new().forward(half.clone());
    nn::DropoutConfig::new(0.5).init().forward(half.clone());
    nn::DropoutConfig::new(0.0).init().forward(half.cast(DType::F64));
    let scores = Tensor::<2>::ones([2, 3], device);
    let loss = loss::CrossEntropyLossConfig::new().with_logits(false).init(device);
    loss.forward(scores, Tensor::<1, Int>::zeros([2], device));
    let weights = Tensor::<2>::ones([2, 2], device).cast(DType::F64);
    nn::Linear { weight: Param::from_tensor(weights.clone()), bias: None }.forward(weights);
}

#[test]
fn each_module_and_reason_is_one_debug_line() {
    log::set_logger(&Recorder).expect("no other logger");
    log::set_max_level(log::LevelFilter::Debug);
    for _ in 0..2 {
        compose(&Device::flex().autodiff());
    }
    let lines = LINES.lock().expect("a list");
    // Dropout with a probability of 0 does nothing, so it logs no reason.
    assert!(!lines.iter().any(|line| line.starts_with("dropout") && line.contains("F64")), "{lines:?}");
    for (module, what) in [
        ("lstm", "sigmoid and tanh"),
        ("lstm", "negative clips"),
        ("lstm", "empty inputs"),
        ("gru", "reset_after"),
        ("batch_norm", "inference"),
        ("conv2d", "3x3"),
        ("max_pool2d", "2x2 with stride 2"),
        ("activation", "[BF16]"),
        ("dropout", "[BF16]"),
        ("cross_entropy", "probabilities"),
        ("linear", "[F64, F32]"),
    ] {
        let is_it = |line: &&String| {
            line.strip_prefix(module).is_some_and(|rest| rest.starts_with(' ') && rest.contains(what))
        };
        assert_eq!(lines.iter().filter(is_it).count(), 1, "{module}, {what}: {lines:?}");
    }
}
