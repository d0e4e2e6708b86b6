//! Compile errors that suggest what to write instead of operators and methods of other languages and libraries that
//! Rust or shardax does not have. Nothing here can be called: each item needs a trait that no type implements, and the
//! trait's message is the error.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ops::Index;

use super::Array;

mod constructors;
mod methods;

/// Carries the bounds of brackets, methods and unfinished functions. If the operand had them, the compiler would print its own message.
#[doc(hidden)]
pub struct Operator;

/// Carries the bound of comparisons with a `T`.
#[doc(hidden)]
pub struct Compared<T>(PhantomData<T>);

/// One of two types that implement the trait of comparisons. With fewer of them, the compiler would report that arrays
/// have no such operator, without the reason.
#[doc(hidden)]
pub enum Nothing {}

/// See [`Nothing`].
#[doc(hidden)]
pub enum Nobody {}

impl ComparesByOperator for Compared<Nothing> {}
impl ComparesByOperator for Compared<Nobody> {}

#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "arrays are compared by methods, not by operators",
    label = "an operator returns one `bool`, and the comparison of arrays is an array of them",
    note = "elementwise: `x.equal(y)`, `x.not_equal(y)`, `x.greater(y)`, `x.greater_equal(y)`, `x.less(y)`, `x.less_equal(y)`",
    note = "one answer for entire arrays: `array_equal(&x, &y).item::<bool>()?`, `allclose(&x, &y, 1e-5, 1e-8)?`; for a number, `x.item::<f32>()? > 0.0`",
    note = "a choice by a value that is traced: `where_(x.greater(0), a, b)` or `cond`"
)]
pub trait ComparesByOperator {}

#[doc(hidden)]
impl<T> PartialEq<T> for Array
where
    Compared<T>: ComparesByOperator,
{
    fn eq(&self, _: &T) -> bool {
        false
    }
}

#[doc(hidden)]
impl<T> PartialOrd<T> for Array
where
    Compared<T>: ComparesByOperator,
{
    fn partial_cmp(&self, _: &T) -> Option<Ordering> {
        None
    }
}

#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "arrays are indexed by `get`, not by brackets",
    label = "brackets return a reference into memory of the host",
    note = "`x.get(0)`, `x.get((.., 1..3))`, `x.get(s![..; 2])`; to read elements on the host `x.to_vec::<f32>()?`",
    note = "to write, `x.at(0).set(value)` returns a new array"
)]
pub trait IndexesByBrackets<I> {}

#[doc(hidden)]
impl<I> Index<I> for Array
where
    Operator: IndexesByBrackets<I>,
{
    type Output = Array;
    fn index(&self, _: I) -> &Array {
        self
    }
}

#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "an array is no number: read its element by `x.item::<f32>()?`",
    label = "reading an element can fail, so `into` and `from` do not do it",
    note = "all elements: `x.to_vec::<f32>()?`; another dtype on the device: `x.astype(DType::F32)`"
)]
pub trait ReadsByInto {}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        #[doc(hidden)]
        impl From<Array> for $number
        where
            for<'a> &'a Operator: ReadsByInto,
        {
            fn from(_: Array) -> $number {
                <$number>::default()
            }
        }
    )*};
}

numbers! { f32 f64 i32 i64 usize bool }

#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "an array is no `Vec`: read its elements by `x.to_vec::<f32>()?`",
    label = "reading elements can fail, so `into` and `from` do not do it",
    note = "rows as `Vec`s: `x.to_vec::<f32>()?.chunks(columns).map(<[f32]>::to_vec).collect::<Vec<_>>()`"
)]
pub trait ReadsVecByInto {}

#[doc(hidden)]
impl<T> From<Array> for Vec<T>
where
    for<'a> &'a Operator: ReadsVecByInto,
{
    fn from(_: Array) -> Vec<T> {
        Vec::new()
    }
}
