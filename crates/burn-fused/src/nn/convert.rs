//! What our modules share with Burn's: conversions and how they are shown.

/// `From` in both directions between our type and Burn's of the same name and public fields; `each` is before
/// fields that are a `Vec`, and `maybe` before those that are an `Option`, of what is converted as well.
macro_rules! converts {
    ($name:ident of $($burn:ident)::+ { $($field:ident),* $(,)? } $(each { $($list:ident),* })? $(maybe { $($option:ident),* })?) => {
        impl From<$($burn)::+> for $name {
            fn from(burns: $($burn)::+) -> Self {
                Self {
                    $($($list: burns.$list.into_iter().map(Into::into).collect(),)*)?
                    $($($option: burns.$option.map(Into::into),)*)?
                    $($field: burns.$field.into()),*
                }
            }
        }

        impl From<$name> for $($burn)::+ {
            fn from(ours: $name) -> Self {
                Self {
                    $($($list: ours.$list.into_iter().map(Into::into).collect(),)*)?
                    $($($option: ours.$option.map(Into::into),)*)?
                    $($field: ours.$field.into()),*
                }
            }
        }
    };
}

/// A module is shown as Burn's is.
macro_rules! shown_as_burns {
    ($name:ident of $($burn:ident)::+) => {
        impl burn::module::ModuleDisplay for $name {
            fn custom_settings(&self) -> Option<burn::module::DisplaySettings> {
                <$($burn)::+>::from(self.clone()).custom_settings()
            }

            fn custom_content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                <$($burn)::+>::from(self.clone()).custom_content(content)
            }
        }
    };
}

pub(super) use {converts, shown_as_burns};
