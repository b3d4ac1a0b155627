//! Sums in MPI: `MPI_SUM`, and a user-defined operation for 16-bit floats,
//! which MPI does not support.

use std::ffi::{c_int, c_void};

use half::{bf16, f16};
use mpi::ffi;

use crate::collective::sum::Sum;
use crate::collective::wire::Element;

/// MPI's datatype of values.
pub(super) fn datatype(element: Element) -> ffi::MPI_Datatype {
    // SAFETY: constants that MPI's library defines.
    unsafe {
        match element {
            Element::F32 => ffi::RSMPI_FLOAT,
            Element::F64 => ffi::RSMPI_DOUBLE,
            Element::Bf16 | Element::F16 => ffi::RSMPI_UINT16_T,
            Element::Byte => ffi::RSMPI_UINT8_T,
        }
    }
}

/// The operation that sums values; bytes have none, and get one that their callers never use.
pub(super) fn sum_of(element: Element) -> ffi::MPI_Op {
    match element {
        Element::Bf16 => BF16_SUM.with(|op| *op),
        Element::F16 => F16_SUM.with(|op| *op),
        // SAFETY: a constant that MPI's library defines.
        _ => unsafe { ffi::RSMPI_SUM },
    }
}

thread_local! {
    // Operations are created on first use and kept until the process exits. One thread calls MPI.
    static BF16_SUM: ffi::MPI_Op = sum_op(add::<bf16>);
    static F16_SUM: ffi::MPI_Op = sum_op(add::<f16>);
}

type UserFunction = unsafe extern "C" fn(*mut c_void, *mut c_void, *mut c_int, *mut ffi::MPI_Datatype);

fn sum_op(function: UserFunction) -> ffi::MPI_Op {
    // SAFETY: `function` has the signature that MPI requires and adds 16-bit elements; 1 marks the operation
    // as commutative.
    unsafe {
        let mut op = ffi::RSMPI_SUM;
        ffi::MPI_Op_create(Some(function), 1, &mut op);
        op
    }
}

/// Adds MPI's `input` to `sum`, two buffers of 16-bit floats.
///
/// # Safety
/// Called by MPI: both point at `*length` elements and do not overlap.
unsafe extern "C" fn add<T: Sum>(
    input: *mut c_void,
    sum: *mut c_void,
    length: *mut c_int,
    _: *mut ffi::MPI_Datatype,
) {
    // SAFETY: see above.
    unsafe {
        let length = *length as usize;
        let input = std::slice::from_raw_parts(input.cast::<T>(), length);
        T::add_to(std::slice::from_raw_parts_mut(sum.cast::<T>(), length), input);
    }
}
