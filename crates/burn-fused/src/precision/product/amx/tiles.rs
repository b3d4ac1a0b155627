//! The tiles' instructions.

use std::arch::asm;
use std::cell::Cell;
use std::marker::PhantomData;

/// Rows of a tile.
pub(crate) const TILE: usize = 16;
/// Rows and columns of a block of sums: two tiles by two.
pub(crate) const BLOCK: usize = 2 * TILE;
/// Words of a tile.
pub(crate) const WORDS: usize = TILE * TILE;
/// Values of a tile's row.
const VALUES: usize = 2 * TILE;

thread_local! {
    /// How many [`Tiles`] this thread has.
    static CONFIGURED: Cell<usize> = const { Cell::new(0) };
}

/// The tiles of this thread, until dropped. Not to be held while code outside this crate runs, which may
/// use them otherwise: the callback of [`crate::set_poll`] is such code.
pub(crate) struct Tiles {
    _of_this_thread: PhantomData<*const ()>,
}

/// Where the four tiles of a block's sums are, and the bytes from a row of theirs to the next.
#[repr(C)]
struct Corners {
    tiles: [*mut f32; 4],
    row: usize,
}

/// What [`Tiles::add_products`] multiplies: 32 rows by 32 columns, in steps of 32 values.
pub(crate) struct Operands<'a> {
    /// The values of the left matrix; 32 neighbouring ones are a row's in a step.
    pub left: &'a [u16],
    /// Values from a row to the next, and from row 0 to row 16.
    pub left_strides: [usize; 2],
    /// The first value of row 0 in each step.
    pub steps: &'a [usize],
    /// The right matrix in packed tiles: rows of pairs of neighbouring values of 16 columns. The
    /// tile of the first 16 columns and that of the others are side by side.
    pub right: &'a [u32],
    /// Words from a step's tiles to the next one's.
    pub right_stride: usize,
    /// The sums that products are added to.
    pub sums: &'a mut [f32],
    /// Sums from a row to the next, from row 0 to row 16, and from column 0 to column 16.
    pub sums_strides: [usize; 3],
}

impl Operands<'_> {
    /// Whether all that the instructions read and write is in the slices.
    pub fn fit(&self) -> bool {
        let beyond = |start: usize, [row, half]: [usize; 2], values: usize| {
            row.saturating_mul(TILE - 1).saturating_add(half).saturating_add(start).saturating_add(values)
        };
        let last = self.steps.iter().copied().max().unwrap_or(0);
        let [row, rows, columns] = self.sums_strides;
        let right = self.right_stride.saturating_mul(self.steps.len().saturating_sub(1));
        beyond(last, self.left_strides, VALUES) <= self.left.len()
            && right.saturating_add(2 * WORDS) <= self.right.len()
            && beyond(columns, [row, rows], TILE) <= self.sums.len()
    }
}

impl Tiles {
    /// Eight tiles of 16 rows of 64 bytes.
    ///
    /// # Safety
    /// The instructions exist and are permitted, or are emulated.
    pub unsafe fn configure() -> Self {
        #[repr(C, align(64))]
        struct Config([u8; 64]);
        // Palette 1; bytes of a row from byte 16 on, two for each tile, and rows from byte 48 on.
        let mut config = Config([0; 64]);
        config.0[0] = 1;
        for tile in 0..8 {
            config.0[16 + 2 * tile] = 64;
            config.0[48 + tile] = TILE as u8;
        }
        // SAFETY: as of this function; it reads 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, readonly, preserves_flags)) };
        CONFIGURED.set(CONFIGURED.get() + 1);
        Self { _of_this_thread: PhantomData }
    }

    /// Adds the products of 32 rows and 32 columns to their sums.
    ///
    /// # Panics
    /// If a slice is too short, or there are no steps.
    pub fn add_products(&self, operands: Operands<'_>) {
        assert!(operands.fit() && !operands.steps.is_empty(), "tiles beyond their slices");
        let Operands { left, left_strides, steps, right, right_stride, sums, sums_strides } = operands;
        let [row, rows, columns] = sums_strides;
        let sums = sums.as_mut_ptr();
        let corners = Corners {
            tiles: [0, columns, rows, rows + columns].map(|first| sums.wrapping_add(first)),
            row: 4 * row,
        };
        // SAFETY: the instructions exist, and this thread's tiles are configured while `self` lives, by all
        // `Tiles` alike; in between, no other code runs but copies of memory, which use no tiles. Each step reads two tiles on either side, and
        // sums are loaded from and stored to four tiles, all of which `fit` found in their slices.
        unsafe {
            asm!(
                "mov {row}, [{corners} + 32]",
                "mov {at}, [{corners}]",
                "tileloadd tmm0, [{at} + {row}]",
                "mov {at}, [{corners} + 8]",
                "tileloadd tmm1, [{at} + {row}]",
                "mov {at}, [{corners} + 16]",
                "tileloadd tmm2, [{at} + {row}]",
                "mov {at}, [{corners} + 24]",
                "tileloadd tmm3, [{at} + {row}]",
                "2:",
                "mov {at}, [{steps}]",
                "lea {at}, [{left} + 2 * {at}]",
                "tileloadd tmm6, [{right} + {right_row}]",
                "tileloadd tmm4, [{at} + {left_row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "add {at}, {left_half}",
                "tileloadd tmm5, [{at} + {left_row}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{right} + {right_row} + 1024]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {right}, {right_step}",
                "add {steps}, 8",
                "cmp {steps}, {end}",
                "jne 2b",
                "mov {at}, [{corners}]",
                "tilestored [{at} + {row}], tmm0",
                "mov {at}, [{corners} + 8]",
                "tilestored [{at} + {row}], tmm1",
                "mov {at}, [{corners} + 16]",
                "tilestored [{at} + {row}], tmm2",
                "mov {at}, [{corners} + 24]",
                "tilestored [{at} + {row}], tmm3",
                corners = in(reg) &corners,
                steps = inout(reg) steps.as_ptr() => _,
                end = in(reg) steps.as_ptr_range().end,
                left = in(reg) left.as_ptr(),
                // Bytes of two for each value, and of four for each word.
                left_row = in(reg) 2 * left_strides[0],
                left_half = in(reg) 2 * left_strides[1],
                right = inout(reg) right.as_ptr() => _,
                right_step = in(reg) 4 * right_stride,
                right_row = in(reg) 64_usize,
                at = out(reg) _,
                row = out(reg) _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        CONFIGURED.set(CONFIGURED.get() - 1);
        if CONFIGURED.get() == 0 {
            // SAFETY: as of `configure`, without which there is no `Tiles`, and no other needs them.
            // Without this the system saves 8 KiB of tiles at each switch of threads.
            unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
        }
    }
}
