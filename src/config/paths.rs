//! Paths in a configuration, which `run.json` has to hold.

use std::path::{Path, PathBuf};

use super::ConfigError;

/// `path`, if it is UTF-8: JSON has no other text.
pub(super) fn utf8(option: &'static str, path: &Path) -> Result<PathBuf, ConfigError> {
    match path.to_str() {
        Some(_) => Ok(path.to_owned()),
        None => Err(ConfigError::new(
            option,
            path.display(),
            "is not UTF-8, and results are JSON: choose another name",
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn bytes_that_are_no_text_are_refused_by_option() {
        let path = Path::new(OsStr::from_bytes(b"data\xff"));
        let error = utf8("data-root", path).unwrap_err().to_string();
        assert!(error.starts_with("--data-root data") && error.contains("is not UTF-8"), "{error}");
        assert_eq!(utf8("init", Path::new("ä")).unwrap(), Path::new("ä"));
    }
}
