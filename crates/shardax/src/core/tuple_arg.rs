//! Tuples in which some elements are references, or numbers instead of arrays, as arguments that are tuples of values:
//! `while_loop(cond, body, (x, 0))`, `step.call((params, (&inputs, &labels)))`.

use super::array::Array;
use super::function::IntoArg;

/// Numbers that are passed for arrays.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no plain number",
    label = "not a number that can be passed for an array",
    note = "pass an array, a reference to one, or a number such as `0` or `1.5`"
)]
pub trait PlainNumber {}

macro_rules! plain_numbers {
    ($($t:ty)*) => {$(impl PlainNumber for $t {})*};
}

plain_numbers!(bool i8 i16 i32 i64 u8 u16 u32 u64 usize f32 f64);

// Each element is a value, a reference or a number, and there is an implementation for each combination: a blanket implementation
// would overlap with that of `T` for `T`. Therefore the tuple of values alone, marked `unchanged`, has none here. Tuples are short,
// because the number of combinations is a power of three.
macro_rules! mixed_tuples {
    ($(($($t:ident $v:ident),+))*) => {
        $(mixed_tuples! { unchanged [$($t $v)+] [] [] [] [] })*
    };
    ($mark:ident [$t:ident $v:ident $($rest:tt)*] [$($generic:tt)*] [$($given:tt)*] [$($wanted:tt)*] [$($name:ident)*]) => {
        mixed_tuples! { $mark [$($rest)*] [$($generic)* $t,] [$($given)* $t,] [$($wanted)* $t,] [$($name)* $v] }
        mixed_tuples! { changed [$($rest)*] [$($generic)* $t: Clone,] [$($given)* &$t,] [$($wanted)* $t,] [$($name)* $v] }
        mixed_tuples! {
            changed [$($rest)*] [$($generic)* $t: PlainNumber + IntoArg<Array>,] [$($given)* $t,] [$($wanted)* Array,] [$($name)* $v]
        }
    };
    (unchanged [] $generics:tt $given:tt $wanted:tt $names:tt) => {};
    (changed [] [$($generic:tt)*] [$($given:tt)*] [$($wanted:tt)*] [$($name:ident)*]) => {
        impl<$($generic)*> IntoArg<($($wanted)*)> for ($($given)*) {
            fn into_arg(self) -> ($($wanted)*) {
                let ($($name,)*) = self;
                ($($name.into_arg(),)*)
            }
        }
    };
}

mixed_tuples! {
    (A a, B b)
    (A a, B b, C c)
    (A a, B b, C c, D d)
}

// A single argument in a tuple, as JAX writes arguments of `jvp`. The derive of `Tree` implements this for structs.
macro_rules! single_tuples {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<$($t),+> IntoArg<($($t,)+)> for (($($t,)+),) {
            fn into_arg(self) -> ($($t,)+) {
                self.0
            }
        }

        impl<$($t: Clone),+> IntoArg<($($t,)+)> for (&($($t,)+),) {
            fn into_arg(self) -> ($($t,)+) {
                self.0.clone()
            }
        }
    )*};
}

crate::tuples::each!(single_tuples);

impl<T> IntoArg<Vec<T>> for (Vec<T>,) {
    fn into_arg(self) -> Vec<T> {
        self.0
    }
}

impl<T: Clone> IntoArg<Vec<T>> for (&Vec<T>,) {
    fn into_arg(self) -> Vec<T> {
        self.0.clone()
    }
}
