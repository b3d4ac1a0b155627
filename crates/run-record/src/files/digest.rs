//! SHA-256 digests as text.

use std::fmt::Write;

use sha2::{Digest, Sha256};

/// Placeholder of a digest in a file while the digest is computed.
pub const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// `digest` in hexadecimal, in `sha256sum`'s format.
pub fn hex(digest: impl AsRef<[u8]>) -> String {
    let digest = digest.as_ref();
    digest.iter().fold(String::with_capacity(2 * digest.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// SHA-256 of `bytes`, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(Sha256::digest(bytes))
}

/// SHA-256 of `values` as little-endian f32, in hexadecimal.
pub fn sha256_of_f32(values: &[f32]) -> String {
    sha256(bytemuck::cast_slice(values))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-2, appendix B.1.
    #[test]
    fn the_digest_of_abc_is_that_of_the_standard() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), expected);
        assert_eq!(hex([0, 10, 255]), "000aff");
    }
}
