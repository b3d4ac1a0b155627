//! The macro `named!` gives the variants of an enum their names in command lines and files.

/// Implements `ALL`, `name`, `Display` and `FromStr` for an enum, from the names of its variants.
macro_rules! named {
    ($type:ident, $what:literal: $($variant:ident = $name:literal),+) => {
        impl $type {
            /// All values, in the order of declaration.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// Returns the name of this value in command lines and files.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = Self::ALL.into_iter().find(|value| value.name() == text);
                found.ok_or_else(|| {
                    let [names @ .., last] = &[$($name),+];
                    format!("unknown {} {text:.60}: choose {} or {last}", $what, names.join(", "))
                })
            }
        }
    };
}
pub(crate) use named;
