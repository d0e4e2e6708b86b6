//! Operators on arrays, references to arrays and plain numbers.

use std::{iter, ops};

use super::elementwise;
use crate::core::array::Array;
use crate::core::function::IntoArg;
use crate::default_dtype;
use crate::dtype::{DType, Element, Scalar};

/// Operands of operations: arrays, and plain Rust numbers, which are weakly typed.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an array or a number",
    label = "not an operand",
    note = "operands are `Array`, `&Array` and plain numbers; host data becomes an array by `array(data)`",
    note = "a call of a transformed function, or of a host function of `pure_callback` or `io_callback`, returns a `Result`: write `f.call(x)?`"
)]
pub trait ArrayLike {
    /// Converts the operand to an array; a plain number becomes a weakly typed scalar.
    fn into_array(self) -> Array;
}

impl ArrayLike for Array {
    fn into_array(self) -> Array {
        self
    }
}

impl ArrayLike for &Array {
    fn into_array(self) -> Array {
        self.clone()
    }
}

/// An element of `&[&a, &b]`.
impl ArrayLike for &&Array {
    fn into_array(self) -> Array {
        (*self).clone()
    }
}

/// Operands of functions of several arrays, such as [`concatenate`](crate::numpy::concatenate): arrays and plain numbers in an
/// array, a slice, a `Vec`, an iterator or a tuple. `Form` is inferred; it distinguishes tuples from what can be iterated
/// over.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a list of arrays",
    label = "not arrays and numbers in a list",
    note = "write `[&x, &y]`, `(&x, &y)`, or a `Vec` or an iterator of arrays"
)]
pub trait IntoArrays<Form> {
    /// Returns the arrays, in order.
    fn into_arrays(self) -> Vec<Array>;
}

/// The form of lists and iterators.
#[doc(hidden)]
pub struct Iterated;

impl<I: IntoIterator<Item: ArrayLike>> IntoArrays<Iterated> for I {
    fn into_arrays(self) -> Vec<Array> {
        self.into_iter().map(ArrayLike::into_array).collect()
    }
}

macro_rules! tuples_into_arrays {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<$($t: ArrayLike),+> IntoArrays<($($t,)+)> for ($($t,)+) {
            fn into_arrays(self) -> Vec<Array> {
                vec![$(self.$i.into_array()),+]
            }
        }
    )*};
}

crate::tuples::each!(tuples_into_arrays);

/// A single argument in a tuple.
impl<X: ArrayLike> IntoArg<Array> for (X,) {
    fn into_arg(self) -> Array {
        self.0.into_array()
    }
}

macro_rules! number_operands {
    ($($t:ty => $dtype:ident),*) => {$(
        impl ArrayLike for $t {
            fn into_array(self) -> Array {
                Array::literal(Element::to_scalar(self), default_dtype::for_number(DType::$dtype), true)
            }
        }

        impl From<$t> for Array {
            /// A weakly typed scalar.
            fn from(value: $t) -> Array {
                value.into_array()
            }
        }
    )*};
}

// A plain number takes the other operand's width; alone it has 32 bits for each part, or the default's 64, as in JAX.
number_operands!(
    i8 => I32, i16 => I32, i32 => I32, i64 => I32, u8 => I32, u16 => I32, u32 => I32, u64 => I32,
    f32 => F32, f64 => F32, num_complex::Complex<f32> => Complex64, num_complex::Complex<f64> => Complex64
);

impl ArrayLike for usize {
    fn into_array(self) -> Array {
        Array::literal(Scalar::Int(self as i128), DType::I32, true)
    }
}

impl From<usize> for Array {
    /// A weakly typed scalar.
    fn from(value: usize) -> Array {
        value.into_array()
    }
}

impl ArrayLike for bool {
    fn into_array(self) -> Array {
        Array::literal(Scalar::Bool(self), DType::Bool, false)
    }
}

impl From<bool> for Array {
    fn from(value: bool) -> Array {
        value.into_array()
    }
}

impl From<&Array> for Array {
    fn from(a: &Array) -> Array {
        a.clone()
    }
}

macro_rules! binary_operators {
    ($($trait:ident $method:ident $assign_trait:ident $assign:ident => $f:path;)*) => {$(
        impl<R: ArrayLike> ops::$trait<R> for Array {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: R) -> Array {
                $f(self, rhs)
            }
        }

        impl<R: ArrayLike> ops::$trait<R> for &Array {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: R) -> Array {
                $f(self, rhs)
            }
        }

        impl<R: ArrayLike> ops::$assign_trait<R> for Array {
            #[track_caller]
            fn $assign(&mut self, rhs: R) {
                *self = $f(&*self, rhs);
            }
        }

        number_on_the_left!($trait $method $f: i32 f64);
    )*};
}

// Only the default types of Rust's literals, because with several types Rust could not infer `(1.0 - &x).sqrt()`.
macro_rules! number_on_the_left {
    ($trait:ident $method:ident $f:path: $($t:ty)*) => {$(
        impl ops::$trait<Array> for $t {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: Array) -> Array {
                $f(self, rhs)
            }
        }

        impl ops::$trait<&Array> for $t {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: &Array) -> Array {
                $f(self, rhs)
            }
        }
    )*};
}

binary_operators! {
    Add add AddAssign add_assign => elementwise::add;
    Sub sub SubAssign sub_assign => elementwise::subtract;
    Mul mul MulAssign mul_assign => elementwise::multiply;
    Div div DivAssign div_assign => elementwise::divide;
    Rem rem RemAssign rem_assign => elementwise::remainder;
    BitAnd bitand BitAndAssign bitand_assign => elementwise::bitwise_and;
    BitOr bitor BitOrAssign bitor_assign => elementwise::bitwise_or;
    BitXor bitxor BitXorAssign bitxor_assign => elementwise::bitwise_xor;
    Shl shl ShlAssign shl_assign => elementwise::left_shift;
    Shr shr ShrAssign shr_assign => elementwise::right_shift;
}

impl ops::Neg for Array {
    type Output = Array;
    #[track_caller]
    fn neg(self) -> Array {
        elementwise::negative(&self)
    }
}

impl ops::Neg for &Array {
    type Output = Array;
    #[track_caller]
    fn neg(self) -> Array {
        elementwise::negative(self)
    }
}

impl ops::Not for Array {
    type Output = Array;
    #[track_caller]
    fn not(self) -> Array {
        elementwise::bitwise_not(&self)
    }
}

impl ops::Not for &Array {
    type Output = Array;
    #[track_caller]
    fn not(self) -> Array {
        elementwise::bitwise_not(self)
    }
}

macro_rules! folds {
    ($($trait:ident $method:ident $initial:literal $f:path;)*) => {$(
        impl iter::$trait for Array {
            #[track_caller]
            fn $method<I: Iterator<Item = Array>>(arrays: I) -> Array {
                arrays.reduce(|a, b| $f(a, b)).unwrap_or_else(|| $initial.into_array())
            }
        }

        impl<'a> iter::$trait<&'a Array> for Array {
            #[track_caller]
            fn $method<I: Iterator<Item = &'a Array>>(arrays: I) -> Array {
                arrays.cloned().$method()
            }
        }
    )*};
}

// Of no arrays the neutral number, which takes any dtype and shape.
folds! {
    Sum sum 0 elementwise::add;
    Product product 1 elementwise::multiply;
}
