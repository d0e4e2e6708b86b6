//! Functions that this crate compiles for each type.
//!
//! A generic function is compiled in the crate that calls it. Without optimization there, for example in a debug build that optimizes its
//! dependencies, a kernel would be 10 to 50 times slower.

/// Declares a trait with functions, and implements it for each type by generic functions. Public functions call the trait's.
macro_rules! per_type {
    ($trait:ident for [$($type:ty),*] $functions:tt) => {
        per_type!(@declare $trait $functions);
        $( per_type!(@implement $trait for $type as $functions); )*
    };
    (@declare $trait:ident { $(fn $name:ident($($arg:ident: $arg_type:ty),*) = $generic:ident;)* }) => {
        pub trait $trait: Sized {
            $(
                #[doc(hidden)]
                fn $name($($arg: $arg_type),*) -> crate::Result<()>;
            )*
        }
    };
    (@implement $trait:ident for $type:ty as { $(fn $name:ident($($arg:ident: $arg_type:ty),*) = $generic:ident;)* }) => {
        impl $trait for $type {
            $(
                fn $name($($arg: $arg_type),*) -> crate::Result<()> {
                    $generic($($arg),*)
                }
            )*
        }
    };
}
pub(crate) use per_type;
