//! Shared libraries that are loaded at run time, and tables of their functions.

use libloading::Library;

/// Loads a shared library. The library stays loaded until the process exits.
///
/// # Errors
/// The loader's message, which begins with the library's name.
pub fn open(name: &str) -> Result<&'static Library, String> {
    // SAFETY: initialisers of the driver and of NCCL run here; they have no preconditions.
    let library = unsafe { Library::new(name) }.map_err(|error| error.to_string())?;
    Ok(Box::leak(Box::new(library)))
}

/// Declares a table of a library's functions, and a function that looks them up.
macro_rules! functions {
    ($table:ident { $($field:ident: $symbol:literal ($($argument:ty),*) -> $result:ty;)* }) => {
        pub struct $table {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// Looks up all functions.
            ///
            /// # Safety
            /// The declarations match the library's header.
            unsafe fn from_library(library: &'static libloading::Library) -> Result<Self, String> {
                Ok(Self {
                    $($field: {
                        // SAFETY: the symbol is a function of this type, as the caller promises.
                        let found = unsafe { library.get($symbol.to_bytes_with_nul()) };
                        *found.map_err(|error| error.to_string())?
                    },)*
                })
            }
        }
    };
}
pub(crate) use functions;

#[cfg(test)]
mod tests {
    use super::*;

    functions!(Known { pid: c"getpid" () -> i32; });
    functions!(Unknown { none: c"mpiburn_none" () -> i32; });

    #[test]
    fn a_library_or_function_that_is_missing_is_named() {
        let missing = open("libmpiburn-none.so.7").expect_err("there is no such library");
        assert!(missing.starts_with("libmpiburn-none.so.7: cannot open shared object file"), "{missing}");
        let library = open("libc.so.6").expect("the C library");
        // SAFETY: getpid has this type; the other function does not exist.
        let (known, unknown) = unsafe { (Known::from_library(library), Unknown::from_library(library)) };
        // SAFETY: getpid has no preconditions.
        assert_eq!(unsafe { (known.expect("getpid").pid)() }, std::process::id() as i32);
        let missing = unknown.map(|table| table.none).expect_err("no such function");
        assert!(missing.contains("libc.so.6") && missing.contains("mpiburn_none"), "{missing}");
    }
}
