//! [`Spare`]: buffers of complete operations, for later operations. New memory would first be filled with
//! zeros, and memory that is allocated and freed in each step fragments the heap.

use crate::Wire;
use crate::collective::wire::Element;

/// Maximum number of buffers. A rank has few exchanges in flight, and each has two buffers.
const COUNT: usize = 4;

/// Maximum bytes of a buffer. It may be a bucket, but not all parameters, which local updates exchange: they
/// would occupy the memory for many steps.
const BYTES: usize = 32 << 20;

#[derive(Default)]
pub(crate) struct Spare(Vec<Wire>);

impl Spare {
    /// Returns a buffer of `length` values of type `element`. Its values are arbitrary.
    pub fn take(&mut self, element: Element, length: usize) -> Wire {
        // A much longer buffer is left for a longer request.
        let fits = |wire: &Wire| {
            wire.element() == element && (length..=2 * length).contains(&wire.capacity()) && length > 0
        };
        match self.0.iter().position(fits) {
            Some(at) => {
                let mut wire = self.0.swap_remove(at);
                wire.resize(length);
                wire
            }
            None => Wire::zeros(element, length),
        }
    }

    /// Keeps the memory of `wire`. Frees a buffer if there are too many.
    pub fn put(&mut self, wire: Wire) {
        if (1..=BYTES).contains(&wire.bytes().len()) {
            self.0.push(wire);
        }
        if self.0.len() > COUNT {
            self.0.remove(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(wire: &Wire) -> *const u8 {
        wire.bytes().as_ptr()
    }

    #[test]
    fn a_buffer_is_used_again_if_it_fits() {
        let mut spare = Spare::default();
        let wire = Wire::zeros(Element::F32, 100);
        let first = address(&wire);
        spare.put(wire);
        assert_ne!(address(&spare.take(Element::Bf16, 100)), first, "it has another type");
        assert_ne!(address(&spare.take(Element::F32, 101)), first, "it is too short");
        assert_ne!(address(&spare.take(Element::F32, 49)), first, "it is much longer");
        let shorter = spare.take(Element::F32, 60);
        assert_eq!((address(&shorter), shorter.len()), (first, 60));
        spare.put(shorter);
        let whole = spare.take(Element::F32, 100);
        assert_eq!((address(&whole), whole.len()), (first, 100), "a shorter use loses no memory");
        assert_eq!(spare.take(Element::F32, 0).len(), 0);
    }

    #[test]
    fn few_buffers_are_kept_and_none_that_is_large_or_empty() {
        let mut spare = Spare::default();
        (0..COUNT + 3).for_each(|extra| spare.put(Wire::zeros(Element::Byte, 10 + extra)));
        spare.put(Wire::zeros(Element::Byte, BYTES + 1));
        spare.put(Wire::zeros(Element::Byte, 0));
        let lengths: Vec<usize> = spare.0.iter().map(Wire::len).collect();
        assert_eq!(lengths, [13, 14, 15, 16]);
    }
}
