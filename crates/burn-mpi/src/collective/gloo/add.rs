//! Addition callbacks for gloo, one per wire type.

use std::ffi::c_void;
use std::slice::{from_raw_parts, from_raw_parts_mut};

use half::{bf16, f16};

use crate::collective::sum::Sum;
use crate::collective::wire::Element;

/// `out = a + b` over `n` elements; the three may alias.
pub(crate) type Add = unsafe extern "C" fn(*mut c_void, *const c_void, *const c_void, usize);

/// The addition of values; bytes have none, and get one that is never called.
pub(super) fn adder_of(element: Element) -> Add {
    match element {
        Element::F32 | Element::Byte => add::<f32>,
        Element::F64 => add::<f64>,
        Element::Bf16 => add::<bf16>,
        Element::F16 => add::<f16>,
    }
}

/// # Safety
/// Called by gloo: all three point at `n` elements of type `T`, and any two of
/// them are equal or do not overlap.
unsafe extern "C" fn add<T: Sum>(out: *mut c_void, a: *const c_void, b: *const c_void, n: usize) {
    let (out, a, b) = (out.cast::<T>(), a.cast::<T>(), b.cast::<T>());
    // SAFETY: see above. `out` aliases one of the terms, or a copy makes it
    // equal to one; the remaining term does not overlap it, or was copied.
    unsafe {
        if out.cast_const() == a && a == b {
            let terms = from_raw_parts(b, n).to_vec();
            T::add_to(from_raw_parts_mut(out, n), &terms);
        } else if out.cast_const() == b {
            T::add_to(from_raw_parts_mut(out, n), from_raw_parts(a, n));
        } else {
            if out.cast_const() != a {
                a.copy_to_nonoverlapping(out, n);
            }
            T::add_to(from_raw_parts_mut(out, n), from_raw_parts(b, n));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum_of<T: Sum>(a: &[T], b: &[T]) -> [Vec<T>; 3] {
        let (mut into_a, mut into_b, mut apart) = (a.to_vec(), b.to_vec(), a.to_vec());
        let (out_a, out_b) = (into_a.as_mut_ptr(), into_b.as_mut_ptr());
        // SAFETY: all have length `a.len()`; `out` is the same pointer as a
        // term or does not overlap them.
        unsafe {
            add::<T>(out_a.cast(), out_a.cast_const().cast(), b.as_ptr().cast(), a.len());
            add::<T>(out_b.cast(), a.as_ptr().cast(), out_b.cast_const().cast(), a.len());
            add::<T>(apart.as_mut_ptr().cast(), a.as_ptr().cast(), b.as_ptr().cast(), a.len());
        }
        [into_a, into_b, apart]
    }

    #[test]
    fn sums_are_right_wherever_they_go() {
        let a: Vec<f32> = (0..1301).map(|i| i as f32).collect();
        let b: Vec<f32> = (0..1301).map(|i| 1.0 - i as f32).collect();
        assert!(sum_of(&a, &b).iter().flatten().all(|&x| x == 1.0));

        let (a, b) = (vec![bf16::from_f32(1.5); 1301], vec![bf16::from_f32(2.0); 1301]);
        assert!(sum_of(&a, &b).iter().flatten().all(|&x| x == bf16::from_f32(3.5)));
        let (a, b) = (vec![f16::from_f32(1.5); 3], vec![f16::from_f32(2.0); 3]);
        assert!(sum_of(&a, &b).iter().flatten().all(|&x| x == f16::from_f32(3.5)));
    }

    #[test]
    fn a_buffer_is_doubled_in_place() {
        let mut values = vec![1.0f64, 2.0, 3.0];
        let at = values.as_mut_ptr();
        // SAFETY: all three are the same memory, which `add` allows.
        unsafe { add::<f64>(at.cast(), at.cast_const().cast(), at.cast_const().cast(), 3) };
        assert_eq!(values, [2.0, 4.0, 6.0]);
    }
}
