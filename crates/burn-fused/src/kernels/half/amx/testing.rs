//! Emulation of the AMX instructions in a handler of SIGILL, so that tests can run them on any x86-64
//! processor.
//!
//! A processor without AMX raises SIGILL at each of these instructions. The handler decodes the instruction,
//! computes it, and continues after it. Source: Intel's Architecture Instruction Set Extensions Programming
//! Reference, chapter 3.

use std::cell::{Cell, RefCell};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::{REG_RIP, c_int, c_void, greg_t, siginfo_t, ucontext_t};

/// Number of bytes in a row, and in a tile.
const ROW: usize = 64;
const TILE: usize = 16 * ROW;

/// The emulated tiles. The shape of a tile is the number of bytes in a row and the number of rows. Both
/// numbers are 0 until the tiles are configured.
struct State {
    tiles: [[u8; TILE]; 8],
    shapes: [(usize, usize); 8],
}

/// Number of tile products that were emulated.
static PRODUCTS: AtomicUsize = AtomicUsize::new(0);
/// Locked during an emulation, so that only one runs at a time.
static RUNNING: Mutex<()> = Mutex::new(());

thread_local! {
    static STATE: RefCell<State> =
        const { RefCell::new(State { tiles: [[0; TILE]; 8], shapes: [(0, 0); 8] }) };
    static IN_THIS_THREAD: Cell<bool> = const { Cell::new(false) };
}

/// Whether the instructions are emulated on this thread: it is inside [`run_where_needed`], or belongs to a
/// pool with a thread that is.
pub fn is_running() -> bool {
    IN_THIS_THREAD.get()
}

/// Runs `job`, which multiplies tiles. If the processor lacks the instructions, they are emulated.
///
/// # Panics
/// If the instructions were emulated, and `job` did not multiply tiles.
pub fn run_where_needed<T>(job: impl FnOnce() -> T) -> T {
    if super::is_available() {
        return job();
    }
    set_running(true);
    let (result, multiplied) = run(job);
    set_running(false);
    assert!(multiplied, "the job multiplied no tiles while AMX was emulated");
    result
}

/// Sets whether the instructions are emulated on this thread and on the others of its pool.
fn set_running(is_running: bool) {
    if rayon::current_thread_index().is_some() {
        rayon::broadcast(|_| IN_THIS_THREAD.set(is_running));
    }
    IN_THIS_THREAD.set(is_running);
}

/// Runs `job` with the instructions emulated. Returns its result, and whether tiles were multiplied.
fn run<T>(job: impl FnOnce() -> T) -> (T, bool) {
    let _running = RUNNING.lock().unwrap();
    let before = PRODUCTS.load(Ordering::Relaxed);
    let mut previous = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the handler has the signature that SA_SIGINFO requires, zeros are a valid `sigaction`, and the
    // previous handler is restored.
    let result = unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_illegal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGILL, &action, previous.as_mut_ptr()), 0);
        let result = job();
        libc::sigaction(libc::SIGILL, previous.as_ptr(), null_mut());
        result
    };
    (result, PRODUCTS.load(Ordering::Relaxed) > before)
}

/// Executes the instruction that raised SIGILL, and continues after it. Aborts the process if it is not an
/// AMX instruction. The handler allocates nothing, and uses only the state of its thread.
extern "C" fn on_illegal(_signal: c_int, _info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the registers in `context`, and RIP is the address of the instruction that
    // raised the signal.
    unsafe {
        let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        let at = registers[REG_RIP as usize] as *const u8;
        match STATE.with(|state| state.try_borrow_mut().ok()?.execute(at, registers)) {
            Some(length) => registers[REG_RIP as usize] += length as greg_t,
            None => libc::abort(),
        }
    }
}

/// The registers in the order of their numbers in instructions.
const REGISTERS: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

impl State {
    /// Executes the instruction at `at`. Returns its length, or `None` if it is not an AMX instruction.
    ///
    /// # Safety
    /// `at` must be the address of an instruction, and the memory that the instruction reads or writes must
    /// be accessible.
    unsafe fn execute(&mut self, at: *const u8, registers: &[greg_t; 23]) -> Option<usize> {
        // SAFETY: an instruction with this prefix has at least five bytes, and its operand determines how
        // many bytes follow.
        let byte = |index: usize| unsafe { *at.add(index) };
        // The VEX prefix has three bytes: map 0F38, W = 0, 128 bits. The bits R, X, B and vvvv are inverted.
        if byte(0) != 0xc4 || byte(1) & 0x1f != 2 || byte(2) & 0x84 != 0 {
            return None;
        }
        let [x, base_high] = [6, 5].map(|bit| usize::from(byte(1) >> bit & 1 ^ 1) << 3);
        let (source, prefix) = (usize::from(!byte(2) >> 3 & 15), byte(2) & 3);
        let (opcode, operand) = (byte(3), byte(4));
        let (mode, register, low) = (operand >> 6, usize::from(operand >> 3 & 7), usize::from(operand & 7));
        if mode == 3 {
            match (prefix, opcode) {
                (0, 0x49) if operand == 0xc0 => self.shapes = [(0, 0); 8],
                (3, 0x49) => self.tiles[register] = [0; TILE],
                (2, 0x5c) => self.multiply(register, low, source),
                _ => return None,
            }
            return Some(5);
        }
        // An address is a base, plus a scaled index if there is a second operand byte, plus a displacement of
        // 0, 1 or 4 bytes.
        let value = |number: usize| registers[REGISTERS[number] as usize] as usize;
        let (base, stride, start) = match low {
            4 if byte(5) & 7 == 5 && mode == 0 => return None,
            4 => {
                let (scale, index) = (byte(5) >> 6, x | usize::from(byte(5) >> 3 & 7));
                let stride = if index == 4 { 0 } else { value(index) << scale };
                (value(base_high | usize::from(byte(5) & 7)), stride, 6)
            }
            5 if mode == 0 => return None,
            low => (value(base_high | low), 0, 5),
        };
        let (distance, length) = match mode {
            0 => (0, 0),
            1 => (i64::from(byte(start) as i8), 1),
            _ => (i64::from(i32::from_le_bytes([0, 1, 2, 3].map(|index| byte(start + index)))), 4),
        };
        let address = base.wrapping_add_signed(distance as isize);
        match (prefix, opcode) {
            // SAFETY: the instruction reads 64 bytes at this address.
            (0, 0x49) => unsafe { self.configure(&*(address as *const [u8; 64])) },
            (3, 0x4b) | (2, 0x4b) if low == 4 => {
                let (bytes, rows) = self.shapes[register];
                for row in 0..rows {
                    let memory = address.wrapping_add(row * stride) as *mut u8;
                    let tile = &mut self.tiles[register][row * ROW..][..bytes];
                    match prefix {
                        // SAFETY: the instruction reads this row at this address.
                        3 => unsafe { memory.copy_to_nonoverlapping(tile.as_mut_ptr(), bytes) },
                        // SAFETY: the instruction writes this row at this address.
                        _ => unsafe { memory.copy_from_nonoverlapping(tile.as_ptr(), bytes) },
                    }
                }
            }
            _ => return None,
        }
        Some(start + length)
    }

    /// Reads a configuration of palette 1. Bytes 16 and later have the length of each tile's rows in bytes,
    /// two bytes for each tile. Bytes 48 and later have the number of rows, one byte for each tile.
    fn configure(&mut self, config: &[u8; 64]) {
        for (tile, shape) in self.shapes.iter_mut().enumerate() {
            let bytes = u16::from_le_bytes([config[16 + 2 * tile], config[17 + 2 * tile]]);
            *shape = (usize::from(bytes), usize::from(config[48 + tile]));
        }
        let legal = config[0] == 1 && self.shapes.iter().all(|&(bytes, rows)| bytes <= ROW && rows <= 16);
        if !legal {
            self.shapes = [(0, 0); 8];
        }
        self.tiles = [[0; TILE]; 8];
    }

    /// Executes `tdpbf16ps`, which sums the even and the odd products of a row separately, and then adds the
    /// two sums.
    fn multiply(&mut self, sums: usize, left: usize, right: usize) {
        PRODUCTS.fetch_add(1, Ordering::Relaxed);
        let word = |tile: &[u8; TILE], row: usize, column: usize| {
            let start = row * ROW + 4 * column;
            u32::from_le_bytes([0, 1, 2, 3].map(|byte| tile[start + byte]))
        };
        let halves = |word: u32| [word << 16, word & 0xffff_0000].map(f32::from_bits);
        for row in 0..self.shapes[sums].1 {
            for column in 0..self.shapes[sums].0 / 4 {
                let mut parts = [0.0_f32; 2];
                for pair in 0..self.shapes[left].0 / 4 {
                    let a = halves(word(&self.tiles[left], row, pair));
                    let b = halves(word(&self.tiles[right], pair, column));
                    parts = [0, 1].map(|half| a[half].mul_add(b[half], parts[half]));
                }
                let sum = f32::from_bits(word(&self.tiles[sums], row, column)) + (parts[0] + parts[1]);
                self.tiles[sums][row * ROW + 4 * column..][..4].copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}
