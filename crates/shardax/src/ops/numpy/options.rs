//! The pattern of options: a struct `…Options` with a setter for each option, and one method for each function that accepts the
//! options, with the name of the function.

/// Declares a struct of options. Each option has a type, a default, and the argument of the setter with its conversion.
macro_rules! options {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$of:meta])* $field:ident: $t:ty = $default:expr, |$v:ident: $arg:ty| $value:expr;)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        #[must_use = "options do nothing until a method with a function's name is called"]
        pub struct $name {
            $(pub(crate) $field: $t,)*
        }

        impl Default for $name {
            fn default() -> Self {
                $name { $($field: $default,)* }
            }
        }

        impl $name {
            /// Returns the defaults, which are JAX's.
            pub fn new() -> Self {
                $name::default()
            }

            $(
                $(#[$of])*
                pub fn $field(mut self, $v: $arg) -> Self {
                    self.$field = $value;
                    self
                }
            )*
        }
    };
}

pub(crate) use options;
