//! Checks that backward passes call the poll callback, and on which thread.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2dConfig;
use burn::tensor::{DType, Device, Tensor};

use crate::ops::conv::{conv_relu_pool, conv_relu_pool_twice};
use crate::runtime::poll::set_poll;

static POLLS: AtomicUsize = AtomicUsize::new(0);
static ELSEWHERE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static RUNS_THE_PASS: Cell<bool> = const { Cell::new(false) };
}

#[test]
fn backward_of_convolutions_calls_the_poll_callback_on_its_thread() {
    set_poll(|| {
        let count = if RUNS_THE_PASS.get() { &POLLS } else { &ELSEWHERE };
        count.fetch_add(1, Relaxed);
    });
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        pool.install(check_all);
    }
    assert_eq!(ELSEWHERE.load(Relaxed), 0, "calls on other threads");
}

fn check_all() {
    RUNS_THE_PASS.set(true);
    let device = Device::flex().autodiff();
    let layer = |inputs, outputs| {
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        Conv2dConfig::new([inputs, outputs], [3, 3]).with_padding(padding).init(&device)
    };
    let images = |channels| Tensor::<4>::ones([2, channels, 8, 8], &device);
    let outputs = [
        conv_relu_pool(images(1), &layer(1, 4)),
        conv_relu_pool(images(12), &layer(12, 12)),
        conv_relu_pool(images(32), &layer(32, 32)),
        conv_relu_pool(images(32).cast(DType::BF16), &layer(32, 32)),
        conv_relu_pool_twice(images(1), &layer(1, 4), &layer(4, 8)),
    ];
    for output in outputs {
        let before = POLLS.load(Relaxed);
        output.sum().backward();
        assert!(POLLS.load(Relaxed) > before);
    }
    RUNS_THE_PASS.set(false);
}
