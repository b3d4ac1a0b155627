//! What our modules share with Burn's: fields, conversions and how they are shown.

/// A configuration with the fields of Burn's: the structure, conversions, and `init` by Burn's, if it is declared.
macro_rules! config {
    (
        $(#[$meta:meta])*
        pub struct $name:ident of $burns:ty { $($fields:tt)* }
        $($(#[$init:meta])* pub fn init(&self $(, $device:ident: $type:ty)?) -> $module:ident;)?
    ) => {
        $(#[$meta])*
        #[derive(burn::config::Config, Debug)]
        pub struct $name {
            $($fields)*
        }

        $crate::nn::convert::converts!($name of $burns { $($fields)* });

        $(
            impl $name {
                $(#[$init])*
                pub fn init(&self $(, $device: $type)?) -> $module {
                    <$burns>::from(self.clone()).init($($device)?).into()
                }
            }
        )?
    };
}

/// A module with the fields of Burn's: the structure, conversions, and Burn's display. After `and`, fields that Burn's
/// does not have, whose default is as Burn computes.
macro_rules! module {
    (
        $(#[$meta:meta])* pub struct $name:ident of $burns:ty { $($fields:tt)* }
        $(and { $($(#[$own_meta:meta])* pub $own:ident: $type:ty),* $(,)? })?
    ) => {
        $(#[$meta])*
        #[derive(burn::module::Module, Debug)]
        #[module(custom_display)]
        pub struct $name {
            $($fields)*
            $($($(#[$own_meta])* pub $own: $type,)*)?
        }

        $crate::nn::convert::converts!($name of $burns { $($fields)* } $(and { $($own),* })?);
        $crate::nn::convert::shown_as_burns!($name of $burns);
    };
}

/// `From` in both directions between our type and Burn's of the same public fields; `each` is before fields that are
/// a `Vec`, and `maybe` before those that are an `Option`, of what is converted as well; `and` before fields that
/// Burn's does not have.
macro_rules! converts {
    (
        $name:ident of $burns:ty { $($(#[$meta:meta])* $vis:vis $field:ident $(: $type:ty)?),* $(,)? }
        $(and { $($own:ident),* })?
        $(each { $($list:ident),* })? $(maybe { $($option:ident),* })?
    ) => {
        impl From<$burns> for $name {
            fn from(burns: $burns) -> Self {
                Self {
                    $($($list: burns.$list.into_iter().map(Into::into).collect(),)*)?
                    $($($option: burns.$option.map(Into::into),)*)?
                    $($($own: Default::default(),)*)?
                    $($field: burns.$field.into()),*
                }
            }
        }

        impl From<$name> for $burns {
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

/// `From` in both directions between our enum and Burn's of the same variants, and from the value of a variant.
macro_rules! variants {
    ($name:ident of $burns:ty { $($variant:ident $(($value:ident: $type:ty))?),* $(,)? }) => {
        $($(
            impl From<$type> for $name {
                fn from($value: $type) -> Self {
                    Self::$variant($value)
                }
            }
        )?)*

        impl From<$burns> for $name {
            fn from(burns: $burns) -> Self {
                type Burns = $burns;
                match burns {
                    $(Burns::$variant $(($value))? => Self::$variant $(($value.into()))?,)*
                    other => unreachable!("Burn 0.22.1 has no other variant: {other:?}"),
                }
            }
        }

        impl From<$name> for $burns {
            fn from(ours: $name) -> Self {
                match ours {
                    $($name::$variant $(($value))? => Self::$variant $(($value.into()))?,)*
                }
            }
        }
    };
}

/// The module is shown as Burn's.
macro_rules! shown_as_burns {
    ($name:ident of $burns:ty) => {
        impl burn::module::ModuleDisplay for $name {
            fn custom_settings(&self) -> Option<burn::module::DisplaySettings> {
                <$burns>::from(self.clone()).custom_settings()
            }

            fn custom_content(&self, content: burn::module::Content) -> Option<burn::module::Content> {
                <$burns>::from(self.clone()).custom_content(content)
            }
        }
    };
}

pub(super) use {config, converts, module, shown_as_burns, variants};
