//! Shared libraries that are loaded at run time, and tables of their functions.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// A shared library, which stays loaded until the process exits.
pub(super) struct Library {
    handle: NonNull<c_void>,
    name: &'static CStr,
}

impl Library {
    /// Loads the library.
    ///
    /// # Errors
    /// The loader's message, which begins with the library's name.
    pub fn open(name: &'static CStr) -> Result<Self, String> {
        // SAFETY: the name ends with a zero byte. Initialisers of the driver and of NCCL run here;
        // they have no preconditions.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Self { handle, name }),
            None => {
                Err(last_error().unwrap_or_else(|| format!("{} cannot be loaded", name.to_string_lossy())))
            }
        }
    }

    /// The address of a function.
    ///
    /// # Errors
    /// If the library has none of this name.
    pub fn symbol(&self, name: &'static CStr) -> Result<NonNull<c_void>, String> {
        // SAFETY: the handle is that of a library that is never closed, and the name ends with a
        // zero byte.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        let missing = || format!("{} has no {}", self.name.to_string_lossy(), name.to_string_lossy());
        NonNull::new(address).ok_or_else(missing)
    }
}

/// The loader's message about the last failure on this thread.
fn last_error() -> Option<String> {
    // SAFETY: returns null or a text that is valid until this thread calls the loader again.
    let message = unsafe { libc::dlerror() };
    // SAFETY: as above; it is copied before that.
    (!message.is_null()).then(|| unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned())
}

/// Declares a table of a library's functions, and how to fill it.
macro_rules! functions {
    ($table:ident { $($field:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)* }) => {
        pub(super) struct $table {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// Looks up all functions.
            ///
            /// # Safety
            /// The declarations are those of the library's header.
            unsafe fn of(library: &$crate::collective::nccl::load::Library) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        let address = library.symbol($symbol)?.as_ptr();
                        // SAFETY: the address of a function of this type, as the caller promises.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}
pub(super) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_or_function_that_is_missing_is_named() {
        let missing = Library::open(c"libmpiburn-none.so.7").err().expect("there is no such library");
        assert!(missing.starts_with("libmpiburn-none.so.7"), "{missing}");
        let library = Library::open(c"libc.so.6").expect("the C library");
        assert!(library.symbol(c"getpid").is_ok());
        assert_eq!(library.symbol(c"mpiburn_none").unwrap_err(), "libc.so.6 has no mpiburn_none");
    }
}
