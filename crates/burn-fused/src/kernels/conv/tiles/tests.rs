//! Checks convolutions on AMX tiles against im2col + GEMM in f32. The AMX instructions are emulated on
//! processors that lack them.

use super::super::{Convolution, Route};
use super::*;
use crate::kernels::half::Half;
use crate::kernels::half::amx::testing;
use crate::runtime::poll::Poll;
use crate::runtime::poll::counting::counted;

/// Returns values from -1 to 1 that are exact in bf16.
fn numbers(count: usize, by: usize) -> Vec<f32> {
    (0..count).map(|at| (at * by % 127) as f32 / 64.0 - 1.0).collect()
}

fn bits(values: &[f32]) -> Buffer<u16> {
    Half::Bf16.narrowed(LEVEL, values)
}

/// Checks that all values are finite, and that the largest difference is at most `most` times the largest
/// expected value.
fn close(found: &[f32], expected: &[f32], most: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let off = found.iter().zip(expected).fold(0.0f32, |most, (x, y)| most.max((x - y).abs()));
    assert!(found.iter().all(|x| x.is_finite()), "{what}");
    assert!(largest > 0.0 && off <= most * largest, "{what}: {off} of {largest}");
}

#[test]
fn tiles_give_the_convolutions_of_f32() {
    if !Level::available().any(|level| level == LEVEL) {
        let shape = Shape { batch: 32, inputs: 64, outputs: 64, height: 32, width: 32 };
        assert_eq!(Route::Winograd.in_bf16(shape), Route::Winograd, "tiles without AVX-512");
        return;
    }
    for (sizes, epilogue) in [
        ([1, 16, 16, 3, 4], Epilogue::Identity),
        ([3, 33, 17, 5, 2], Epilogue::Relu),
        ([2, 16, 40, 6, 7], Epilogue::ReluPool),
        // This shape takes four blocks, of which the last is smaller.
        ([7, 16, 33, 20, 24], Epilogue::ReluPool),
        // This shape takes two blocks.
        ([2, 17, 16, 25, 40], Epilogue::ReluPool),
        // This shape has more steps than a pass, more positions than are computed between two polls, and two
        // groups of steps in the gradient of the weights.
        ([1, 80, 17, 60, 64], Epilogue::Relu),
    ] {
        let [batch, inputs, outputs, height, width] = sizes;
        let shape = Shape { batch, inputs, outputs, height, width };
        let (images, weights) = (numbers(shape.input_len(), 5), numbers(shape.weight_len(), 11));
        let (bias, gradient) = (numbers(outputs, 3), numbers(shape.output_len(epilogue), 7));
        let conv = Convolution { level: LEVEL, route: Route::Gemm, shape, epilogue };
        let (output, argmax) = conv.forward(&images, [&weights, &bias], true);
        let back = Back {
            normed: None,
            input: &images[..],
            weights: &weights,
            output: &output,
            argmax: &argmax,
            gradient: &gradient,
            of_input: true,
        };
        let expected = conv.backward(back, Poll::nothing());
        let images = bits(&images);
        let gradient = bits(&gradient);
        let run = || {
            let (output, argmax) = forward(shape, epilogue, &images, [&weights, &bias], true);
            let back = Back {
                normed: None,
                input: &images[..],
                weights: &weights,
                output: &output,
                argmax: &argmax,
                gradient: &gradient,
                of_input: true,
            };
            let (found, polls) = counted(|poll| backward(shape, epilogue, back, poll));
            assert!(polls > 0);
            (output, found)
        };
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
            pool.install(|| testing::run_where_needed(run))
        };
        let (found_output, found) = on(1);
        let (other_output, other) = on(3);
        assert!(other_output[..] == found_output[..], "output on three threads");
        assert!(other.input.as_deref() == found.input.as_deref(), "images on three threads");
        assert!(other.weights[..] == found.weights[..], "weights on three threads");
        assert!(other.bias == found.bias, "bias on three threads");
        let wide = |bits: &[u16]| -> Vec<f32> {
            bits.iter().map(|&bits| f32::from_bits(u32::from(bits) << 16)).collect()
        };
        let rounding = 1.0 / 256.0;
        close(&wide(&found_output), &output, rounding, "output");
        let of_images = expected.input.expect("requested");
        close(&wide(&found.input.expect("requested")), &of_images, rounding, "images");
        close(&found.weights, &expected.weights, 1e-5, "weights");
        close(&found.bias, &expected.bias, 1e-5, "bias");
    }
}
