//! The functions of NCCL that the transport calls.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;

use burn_mpi::Element;

use crate::NoNccl;
use crate::cuda::Handle;
use crate::load::{functions, open};

/// A communicator of NCCL.
pub type Comm = *mut c_void;

/// `ncclUniqueId`: the address of rank 0, to which all ranks connect.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;
/// `ncclSum`.
pub const SUM: c_int = 0;
/// The number that `ncclGetVersion` returns for NCCL 2.10, the first version that sums bf16.
const OLDEST: c_int = 21_000;

// Names and types are those of nccl.h; enums are C ints.
functions!(Nccl {
    get_version: c"ncclGetVersion" (*mut c_int) -> c_int;
    get_unique_id: c"ncclGetUniqueId" (*mut UniqueId) -> c_int;
    error_string: c"ncclGetErrorString" (c_int) -> *const c_char;
    init_rank: c"ncclCommInitRank" (*mut Comm, c_int, UniqueId, c_int) -> c_int;
    async_error: c"ncclCommGetAsyncError" (Comm, *mut c_int) -> c_int;
    abort: c"ncclCommAbort" (Comm) -> c_int;
    destroy: c"ncclCommDestroy" (Comm) -> c_int;
    group_start: c"ncclGroupStart" () -> c_int;
    group_end: c"ncclGroupEnd" () -> c_int;
    all_reduce: c"ncclAllReduce" (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Handle) -> c_int;
    reduce: c"ncclReduce" (*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, Handle) -> c_int;
    reduce_scatter: c"ncclReduceScatter" (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Handle) -> c_int;
    all_gather: c"ncclAllGather" (*const c_void, *mut c_void, usize, c_int, Comm, Handle) -> c_int;
    broadcast: c"ncclBroadcast" (*const c_void, *mut c_void, usize, c_int, c_int, Comm, Handle) -> c_int;
    send: c"ncclSend" (*const c_void, usize, c_int, c_int, Comm, Handle) -> c_int;
    receive: c"ncclRecv" (*mut c_void, usize, c_int, c_int, Comm, Handle) -> c_int;
});

impl Nccl {
    /// The library, loaded once per process.
    pub fn get() -> Result<&'static Self, NoNccl> {
        static NCCL: OnceLock<Result<Nccl, NoNccl>> = OnceLock::new();
        NCCL.get_or_init(|| Self::load().map_err(|reason| NoNccl::Library { reason }))
            .as_ref()
            .map_err(Clone::clone)
    }

    fn load() -> Result<Self, String> {
        let library = open("libnccl.so.2")?;
        // SAFETY: the declarations above are those of nccl.h.
        let nccl = unsafe { Self::from_library(library) }?;
        match nccl.number()? {
            old if old < OLDEST => Err(format!("libnccl.so.2 is NCCL {}, which is too old", named(old))),
            _ => Ok(nccl),
        }
    }

    fn number(&self) -> Result<c_int, String> {
        let mut number = 0;
        // SAFETY: `number` is valid for one int.
        self.check(unsafe { (self.get_version)(&mut number) }, "ncclGetVersion")?;
        Ok(number)
    }

    /// Returns the version, such as `2.21.5`, or the error of `ncclGetVersion`.
    pub fn version(&self) -> String {
        self.number().map_or_else(|error| error, named)
    }

    /// Returns a new identifier for a communicator. Rank 0 calls this function, and sends the identifier to
    /// all ranks.
    pub fn unique_id(&self) -> Result<Vec<u8>, String> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: `id` is valid for one identifier.
        self.check(unsafe { (self.get_unique_id)(&mut id) }, "ncclGetUniqueId")?;
        Ok(id.0.to_vec())
    }

    /// Makes the communicator of `rank`. Returns once all ranks have called this function.
    ///
    /// # Safety
    /// The context of this rank's GPU is current.
    pub unsafe fn connect(&self, size: usize, id: &[u8], rank: usize) -> Result<Comm, String> {
        let id = UniqueId(
            id.try_into().map_err(|_| "rank 0 sent an NCCL identifier of a wrong length".to_owned())?,
        );
        let mut comm = ptr::null_mut();
        // SAFETY: `comm` is valid for one handle; the context is current, as the caller promises.
        let code = unsafe { (self.init_rank)(&mut comm, size as c_int, id, rank as c_int) };
        self.check(code, "ncclCommInitRank")?;
        Ok(comm)
    }

    /// Returns an error if an operation in flight has failed.
    ///
    /// # Safety
    /// `comm` is a communicator that is neither aborted nor destroyed.
    pub unsafe fn check_progress(&self, comm: Comm) -> Result<(), String> {
        let mut code = SUCCESS;
        // SAFETY: as the caller promises; `code` is valid for one int.
        self.check(unsafe { (self.async_error)(comm, &mut code) }, "ncclCommGetAsyncError")?;
        match code {
            IN_PROGRESS => Ok(()),
            code => self.check(code, "an operation in flight"),
        }
    }

    /// Makes `calls` in one NCCL group. Stops at the first call that fails, and returns its code. If all
    /// calls succeed, returns the code of the group's end. NCCL runs all messages of a group at the same
    /// time. If messages ran one after the other, ranks would wait for each other forever.
    pub fn group(&self, mut calls: impl Iterator<Item = c_int>) -> c_int {
        // SAFETY: groups may be begun at any time, and are ended below.
        let begun = unsafe { (self.group_start)() };
        if begun != SUCCESS {
            return begun;
        }
        let made = calls.find(|&code| code != SUCCESS);
        // SAFETY: the group was begun above.
        let ended = unsafe { (self.group_end)() };
        made.unwrap_or(ended)
    }

    /// Returns an error if the call `name` has returned a `code` other than success.
    pub fn check(&self, code: c_int, name: &str) -> Result<(), String> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: `ncclGetErrorString` returns a static text for any code.
        let text = unsafe { CStr::from_ptr((self.error_string)(code)) };
        Err(format!("{name}: {} (error {code})", text.to_string_lossy()))
    }
}

/// Formats the number that `ncclGetVersion` returns. The minor and the patch version have two decimal digits
/// each. Before 2.9, the minor version has one digit.
fn named(number: c_int) -> String {
    let major = if number < 10_000 { 1000 } else { 10_000 };
    format!("{}.{}.{}", number / major, number % major / 100, number % 100)
}

/// Returns the `ncclDataType_t` of values.
pub fn datatype(element: Element) -> c_int {
    match element {
        Element::Byte => 1,
        Element::F16 => 6,
        Element::F32 => 7,
        Element::F64 => 8,
        Element::Bf16 => 9,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_named_as_their_releases() {
        assert_eq!(
            (named(2_708), named(21_805), named(23_004)),
            ("2.7.8".into(), "2.18.5".into(), "2.30.4".into())
        );
    }
}
