//! How often the poll callback is called.

/// Multiplications between two calls: some tens of microseconds.
const EACH: usize = 1 << 21;

/// Calls a callback as products are computed.
pub struct Pace<'a> {
    between: &'a mut dyn FnMut(),
    products: usize,
}

impl<'a> Pace<'a> {
    pub fn new(between: &'a mut dyn FnMut()) -> Self {
        Self { between, products: 0 }
    }

    /// After this many more multiplications.
    pub fn after(&mut self, products: usize) {
        self.products += products;
        if self.products >= EACH {
            self.products = 0;
            (self.between)();
        }
    }
}
