//! Compile errors that suggest what to write instead of operators and methods of other languages and libraries that
//! Rust or shardax does not have. Nothing here can be called: each item needs a trait that no type implements, and the
//! trait's message is the error.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::ops::Index;

use super::Array;

/// Carries the bounds of brackets and methods. If the operand had them, the compiler would print its own message.
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

/// Defines methods of other libraries, each with the suggestion of what to write instead.
macro_rules! methods {
    ($($name:ident $trait:ident $instead:literal;)*) => {
        $(
            #[doc(hidden)]
            #[diagnostic::on_unimplemented(message = $instead, label = "not a method of arrays")]
            pub trait $trait<T> {}
        )*

        #[doc(hidden)]
        impl Array {
            $(
                pub fn $name<T>(&self, _: T) -> Array
                where
                    Operator: $trait<T>,
                {
                    self.clone()
                }
            )*
        }
    };
}

/// Like [`methods`], for methods without arguments. The lifetime defers the check of the bound to the call.
macro_rules! methods_without_arguments {
    ($($name:ident $trait:ident $instead:literal;)*) => {
        $(
            #[doc(hidden)]
            #[diagnostic::on_unimplemented(message = $instead, label = "not a method of arrays")]
            pub trait $trait {}
        )*

        #[doc(hidden)]
        impl Array {
            $(
                #[allow(clippy::len_without_is_empty)]
                pub fn $name(&self) -> Array
                where
                    for<'a> &'a Operator: $trait,
                {
                    self.clone()
                }
            )*
        }
    };
}

/// Defines constructors of other libraries, each with the suggestion of what to write instead. The traits have a function,
/// because a constructor has no array that it could return.
macro_rules! constructors {
    ($($name:ident $trait:ident $instead:literal;)*) => {
        $(
            #[doc(hidden)]
            #[diagnostic::on_unimplemented(message = $instead, label = "not a constructor of arrays")]
            pub trait $trait<T> {
                fn construct() -> Array;
            }
        )*

        #[doc(hidden)]
        #[allow(clippy::new_ret_no_self)]
        impl Array {
            $(
                pub fn $name<T>(_: T) -> Array
                where
                    Operator: $trait<T>,
                {
                    <Operator as $trait<T>>::construct()
                }
            )*
        }
    };
}

methods! {
    powi Powi "`Array` has no method `powi`: write `x.pow(2)`";
    powf Powf "`Array` has no method `powf`: write `x.pow(0.5)`";
    softmax Softmax "`Array` has no method `softmax`: write `nn::softmax(&x, axes)`";
    log_softmax LogSoftmax "`Array` has no method `log_softmax`: write `nn::log_softmax(&x, axes)`";
    unsqueeze Unsqueeze "`Array` has no method `unsqueeze`: write `x.expand_dims(axis)`";
    permute Permute "`Array` has no method `permute`: write `x.transpose([1, 0])`";
    mm Mm "`Array` has no method `mm`: write `x.matmul(&y)`";
    bmm Bmm "`Array` has no method `bmm`: write `x.matmul(&y)`, which also multiplies batches";
    to_dtype ToDtype "`Array` has no method `to_dtype`: write `x.astype(DType::F32)`";
    slice Slice "`Array` has no method `slice`: write `x.get((.., 1..3))`, or `x.get(s![..; 2])` for steps";
    narrow Narrow "`Array` has no method `narrow`: write `x.get((.., start..start + length))`";
    select Select "`Array` has no method `select`: write `x.get(i)`, or `x.get((.., i))` for another axis";
    index_select IndexSelect "`Array` has no method `index_select`: write `x.take(indices, axis)`";
    index_axis IndexAxis "`Array` has no method `index_axis`: write `x.get(i)`, or `x.get((.., i))` for another axis";
    sum_axis SumAxis "`Array` has no method `sum_axis`: write `x.sum(axis)`";
    mean_axis MeanAxis "`Array` has no method `mean_axis`: write `x.mean(axis)`";
    masked_fill MaskedFill "`Array` has no method `masked_fill`: write `where_(mask, value, &x)`";
    mapv Mapv "`Array` has no method `mapv`: write the operations on the array, such as `x.exp() + 1`; they apply to each element";
    broadcast_as BroadcastAs "`Array` has no method `broadcast_as`: write `x.broadcast_to(shape)`";
    into_shape IntoShapeMethod "`Array` has no method `into_shape`: write `x.reshape(shape)`";
}

methods_without_arguments! {
    norm Norm "`Array` has no method `norm`: write `linalg::norm(&x, 2, ..)`";
    relu Relu "`Array` has no method `relu`: write `nn::relu(&x)`";
    sigmoid Sigmoid "`Array` has no method `sigmoid`: write `nn::sigmoid(&x)`";
    gelu Gelu "`Array` has no method `gelu`: write `nn::gelu(&x)`";
    detach Detach "`Array` has no method `detach`: write `stop_gradient(x)`";
    backward Backward "`Array` has no method `backward`: write the loss as a function and differentiate it: `grad(loss).call(w)?`";
    dims Dims "`Array` has no method `dims`: write `x.shape()`";
    len Len "`Array` has no method `len`: write `x.shape()[0]` for the number of rows, or `x.size()` for the number of elements";
    numel Numel "`Array` has no method `numel`: write `x.size()`";
    sum_all SumAll "`Array` has no method `sum_all`: write `x.sum(..)`";
    mean_all MeanAll "`Array` has no method `mean_all`: write `x.mean(..)`";
    to_vec1 ToVec1 "`Array` has no method `to_vec1`: write `x.to_vec::<f32>()?`";
    to_vec2 ToVec2 "`Array` has no method `to_vec2`: write `x.to_vec::<f32>()?`, whose rows are `chunks(x.shape()[1])`";
    to_scalar ToScalar "`Array` has no method `to_scalar`: write `x.item::<f32>()?`";
    tolist Tolist "`Array` has no method `tolist`: write `x.to_vec::<f32>()?`";
    numpy Numpy "`Array` has no method `numpy`: write `x.to_vec::<f32>()?`, or `x.view::<f32>()?` without a copy";
    contiguous Contiguous "`Array` has no method `contiguous`: arrays need none, because XLA chooses their layouts";
}

constructors! {
    zeros Zeros "`Array` has no constructor `zeros`: write `zeros([2, 3])`";
    ones Ones "`Array` has no constructor `ones`: write `ones([2, 3])`";
    eye Eye "`Array` has no constructor `eye`: write `eye(3)`";
    arange Arange "`Array` has no constructor `arange`: write `arange(0..10)`";
    rand Rand "`Array` has no constructor `rand`: write `random::uniform(&key, [2, 3])` with a key, `random::key(0)`";
    randn Randn "`Array` has no constructor `randn`: write `random::normal(&key, [2, 3])` with a key, `random::key(0)`";
    new New "`Array` has no constructor `new`: write `array([1.0, 2.0])`, or `Array::from_slice(&numbers, &[2, 3])?` with a shape";
    from_data FromData "`Array` has no constructor `from_data`: write `array([1.0, 2.0])`, or `Array::from_slice(&numbers, &[2, 3])?` with a shape";
}
