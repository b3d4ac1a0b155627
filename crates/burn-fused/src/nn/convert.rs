//! Macros for types that have the same fields as a type of Burn: modules and configurations. The macros
//! define the structure, the conversions from and to Burn's type, and the display of Burn's type.

/// Defines a configuration with the fields of Burn's configuration: the structure, the conversions, and, if
/// declared, an `init` that calls the `init` of Burn's configuration.
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

/// Defines a module with the fields of Burn's module: the structure, the conversions, and the display of
/// Burn's module. After `and` come fields that Burn's module does not have. With the default values of these
/// fields, the module must compute the same as Burn's module.
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

/// Implements `From` in both directions between a type and Burn's type with the same public fields. After
/// `each` come fields that are a `Vec` of values to convert, after `maybe` fields that are an `Option` of
/// such a value, and after `and` fields that Burn's type does not have.
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

/// Implements `From` in both directions between an enum and Burn's enum with the same variants, and from the
/// value of each variant.
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

/// Displays a module as Burn's module is displayed.
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
