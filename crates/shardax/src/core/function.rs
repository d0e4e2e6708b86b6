//! Functions that can be transformed: closures of every arity, and the transformed functions.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::array::Array;
use super::tree::Tree;
use crate::error::{AtCaller, Error, Result, err};
use crate::shape::AxisNumber;
use crate::source;

/// A function from a tuple of trees to a tree.
///
/// Implemented for closures and functions of up to sixteen arguments that return a tree or a `Result` of one, and for
/// every transformed function. Therefore you can nest transformations in any order.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a function that can be transformed, of the arguments `{Args}`",
    label = "not a function of arrays and trees",
    note = "it takes its arguments by value (`|x: Array|`, not `|x: &Array|`), up to sixteen, and returns a tree or a `Result` of one",
    note = "closures say their arguments' types: `|x: Array, y: Array| x + y`",
    note = "a struct or an enum of arrays needs `#[derive(Tree, Clone)]`",
    note = "the keys of a `HashMap` or a `BTreeMap` are of an owned type, such as `String`",
    note = "an argument that is configuration is `Static`, such as `|x: Array, mode: Static<String>|`, or the closure captures it"
)]
pub trait Function<Args: Tree> {
    /// The return type, without the `Result`.
    type Output: Tree;

    /// Applies the function to concrete or traced arguments.
    #[track_caller]
    fn apply(&self, args: Args) -> Result<Self::Output>;

    /// A hash that identifies a function without captures by its type. A transformation adds its options. Functions
    /// with equal identities share their compiled programs.
    #[doc(hidden)]
    fn identity(&self) -> Option<u64> {
        (size_of_val(self) == 0).then(|| hash_of(typeid::of::<Self>()))
    }

    /// Applies the function. Arguments can be values or references, and plain numbers where arrays are expected.
    ///
    /// A single argument is passed bare: `f.call(&x)`. Several arguments are passed as a tuple: `f.call((&x, 1.0))`. A
    /// function without arguments is called as `f.call(())`.
    #[track_caller]
    fn call<A: IntoArgs<Args>>(&self, args: A) -> Result<Self::Output>
    where
        Self: Sized,
    {
        let _line = source::enter();
        self.apply(args.into_args()).at_caller()
    }
}

fn hash_of(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// The identity of a transformation of type `T`, from its options and the identity of its function.
pub(crate) fn identity_of<T>(options: impl Hash, function: Option<u64>) -> Option<u64> {
    function.map(|function| hash_of((typeid::of::<T>(), options, function)))
}

/// The name of a function, for programs and errors. A transformed function has the name of the inner function.
pub(crate) fn function_name<F>() -> &'static str {
    name_in_type(std::any::type_name::<F>())
}

fn name_in_type(of: &'static str) -> &'static str {
    let mut name = of.trim_start_matches('&');
    while let Some((transformed, inner)) = name.split_once('<')
        && transformed.starts_with("shardax::")
    {
        name = inner.trim_start_matches('&');
    }
    // A trait method: `<Type as Trait>::method`.
    if name.starts_with('<') {
        let mut depth = 0;
        let end = name.find(|c| {
            depth += i32::from(c == '<') - i32::from(c == '>');
            depth == 0
        });
        name = &name[end.map_or(0, |end| end + 1)..];
    }
    let path = name.split(['<', '>', ',', '(']).next().unwrap_or(name);
    match path.rsplit("::").next() {
        Some(last) if !last.is_empty() && last != "fn" && !last.starts_with('{') => last,
        _ => "lambda",
    }
}

/// The return types of functions that can be transformed: a tree, or a `Result` of one.
pub trait IntoOutput {
    /// The tree.
    type Output: Tree;
    /// The tree, or the function's error.
    fn into_output(self) -> Result<Self::Output>;
}

impl<T: Tree> IntoOutput for T {
    type Output = T;
    fn into_output(self) -> Result<T> {
        Ok(self)
    }
}

impl<T: Tree> IntoOutput for Result<T> {
    type Output = T;
    fn into_output(self) -> Result<T> {
        self
    }
}

/// Types accepted for an argument of type `T`: the value, a reference to it, or a number for an array. The elements of a tuple
/// of up to four can each have any of these forms, as in `while_loop(cond, body, (&x, 0))`. A single array may be in a tuple, as
/// JAX writes `jvp(f, (x,), (dx,))`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be passed for an argument of type `{T}`",
    label = "expected `{T}`, `&{T}`, or a number for an array"
)]
pub trait IntoArg<T> {
    /// The argument as an owned value of type `T`.
    fn into_arg(self) -> T;
}

impl<T> IntoArg<T> for T {
    fn into_arg(self) -> T {
        self
    }
}

impl<T: Clone> IntoArg<T> for &T {
    fn into_arg(self) -> T {
        self.clone()
    }
}

macro_rules! numbers_into_arg {
    ($($t:ty)*) => {$(
        impl IntoArg<Array> for $t {
            fn into_arg(self) -> Array {
                self.into()
            }
        }
    )*};
}

numbers_into_arg!(bool i8 i16 i32 i64 u8 u16 u32 u64 usize f32 f64);

/// Types accepted for the arguments `Args`: a bare argument for a function of one argument, otherwise a tuple.
#[diagnostic::on_unimplemented(
    message = "the function takes the arguments `{Args}`, and the call passes `{Self}`",
    label = "pass several arguments as one tuple, and a single argument without a tuple",
    note = "several arguments are one tuple, `f.call((&x, 1.0))`, a single one is bare, `f.call(&x)`, and none is `f.call(())`"
)]
pub trait IntoArgs<Args> {
    /// The arguments as a tuple.
    fn into_args(self) -> Args;
}

impl<A, T: IntoArg<A>> IntoArgs<(A,)> for T {
    fn into_args(self) -> (A,) {
        (self.into_arg(),)
    }
}

/// Positions of arguments: a number, or several as a tuple, an array, a slice or a `Vec`. Negative positions count from the
/// last argument.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name positions of arguments",
    label = "not positions of arguments",
    note = "positions are integers from 0: `0`, `(0, 1)`, or `[0, 1]`"
)]
pub trait IntoArgnums {
    /// The positions. Negative ones are not resolved.
    fn into_argnums(self) -> Vec<i32>;
}

impl<T: AxisNumber> IntoArgnums for T {
    fn into_argnums(self) -> Vec<i32> {
        vec![self.axis_number()]
    }
}

impl<T: AxisNumber, const N: usize> IntoArgnums for [T; N] {
    fn into_argnums(self) -> Vec<i32> {
        self.map(T::axis_number).to_vec()
    }
}

impl<T: AxisNumber> IntoArgnums for &[T] {
    fn into_argnums(self) -> Vec<i32> {
        self.iter().map(|n| n.axis_number()).collect()
    }
}

impl<T: AxisNumber> IntoArgnums for Vec<T> {
    fn into_argnums(self) -> Vec<i32> {
        self.as_slice().into_argnums()
    }
}

impl IntoArgnums for () {
    fn into_argnums(self) -> Vec<i32> {
        Vec::new()
    }
}

macro_rules! tuples_into_argnums {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<$($t: AxisNumber),+> IntoArgnums for ($($t,)+) {
            fn into_argnums(self) -> Vec<i32> {
                vec![$(self.$i.axis_number()),+]
            }
        }
    )*};
}

crate::tuples::each!(tuples_into_argnums);

/// The arguments of a function. The position `N` in the type selects one of them.
#[diagnostic::on_unimplemented(
    message = "the function has no argument `{N}`",
    label = "the arguments have fewer positions",
    note = "positions count from zero: `grad(f).argnums(1)` differentiates the second argument"
)]
pub trait ArgAt<const N: usize> {
    /// The argument's type.
    type Arg: Tree;
    /// The argument.
    fn arg(&self) -> &Self::Arg;
    /// Returns the arguments with this one replaced.
    fn with_arg(self, arg: Self::Arg) -> Self;
}

/// The position of an argument as a type: `Arg::<1>`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arg<const N: usize>;

/// The arguments to differentiate with respect to: `Arg::<1>`, or `(Arg::<0>, Arg::<2>)` for several. If all arguments
/// have one type, you can also pass numbers: `1`, `-1` for the last, or `(0, 2)`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not select arguments of `{Args}`",
    label = "not positions of these arguments",
    note = "the position is part of the type: `.argnums(Arg::<1>)`, or `.argnums((Arg::<0>, Arg::<2>))` for several",
    note = "numbers, `.argnums(1)` or `.argnums((0, 2))`, are accepted if all arguments have one type"
)]
pub trait Argnums<Args>: Copy + Send + Sync + 'static {
    /// The type of the gradient: the type of the argument, or a tuple of types for several arguments.
    type Gradient: Tree;
    /// The positions of the arguments. Fails for a number that is out of range.
    fn positions(&self) -> Result<Vec<usize>>;
    /// The selected arguments.
    fn of(&self, args: &Args) -> Result<Self::Gradient>;
}

impl<Args: ArgAt<N>, const N: usize> Argnums<Args> for Arg<N> {
    type Gradient = Args::Arg;
    fn positions(&self) -> Result<Vec<usize>> {
        Ok(vec![N])
    }
    fn of(&self, args: &Args) -> Result<Args::Arg> {
        Ok(args.arg().clone())
    }
}

/// Arguments of one type, so that a number can select one of them.
#[diagnostic::on_unimplemented(
    message = "a number does not select one of the arguments `{Self}`, whose types differ",
    label = "the position must be part of the type",
    note = "write `.argnums(Arg::<1>)`, or `.argnums((Arg::<0>, Arg::<2>))` for several"
)]
pub trait SameArgs {
    /// The type of each argument.
    type Arg: Tree;
    /// The number of arguments.
    const COUNT: usize;
    /// The argument at a position.
    fn at(&self, position: usize) -> Option<&Self::Arg>;
}

/// Converts a position that can be negative.
fn position_of(argnum: i32, count: usize) -> Result<usize> {
    let from_front = i64::from(argnum) + if argnum < 0 { count as i64 } else { 0 };
    usize::try_from(from_front).ok().filter(|&position| position < count).ok_or_else(|| out_of_bounds(argnum, count))
}

fn out_of_bounds(argnum: i32, count: usize) -> Error {
    err!(Value, "argnums {argnum} is out of bounds for a function of {count} arguments")
        .help("positions count from 0, negative ones from the last")
}

/// Returns a clone of the argument at a position that can be negative.
fn argument<Args: SameArgs>(args: &Args, argnum: i32) -> Result<Args::Arg> {
    let position = position_of(argnum, Args::COUNT)?;
    args.at(position).cloned().ok_or_else(|| out_of_bounds(argnum, Args::COUNT))
}

impl<Args: SameArgs> Argnums<Args> for i32 {
    type Gradient = Args::Arg;
    fn positions(&self) -> Result<Vec<usize>> {
        Ok(vec![position_of(*self, Args::COUNT)?])
    }
    fn of(&self, args: &Args) -> Result<Args::Arg> {
        argument(args, *self)
    }
}

/// The type of all arguments, in place of the type of one.
macro_rules! same_type {
    ($t:ident) => {
        A
    };
}

macro_rules! same_args {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<A: Tree> SameArgs for ($(same_type!($t),)+) {
            type Arg = A;
            const COUNT: usize = [$($i),+].len();
            fn at(&self, position: usize) -> Option<&A> {
                [$(&self.$i),+].get(position).copied()
            }
        }
    )*};
}

crate::tuples::each!(same_args);

macro_rules! argnums_tuples {
    ($(($($n:ident $i:tt),+))*) => {$(
        impl<Args: $(ArgAt<$n> +)+, $(const $n: usize),+> Argnums<Args> for ($(Arg<$n>,)+) {
            type Gradient = ($(<Args as ArgAt<$n>>::Arg,)+);
            fn positions(&self) -> Result<Vec<usize>> {
                Ok(vec![$($n),+])
            }
            fn of(&self, args: &Args) -> Result<Self::Gradient> {
                Ok(($(ArgAt::<$n>::arg(args).clone(),)+))
            }
        }
    )*};
}

crate::tuples::each!(argnums_tuples);

/// The type of all numbers of a tuple.
macro_rules! number_type {
    ($t:ident) => {
        i32
    };
}

macro_rules! argnums_numbers {
    ($(($($n:ident $i:tt),+))*) => {$(
        impl<Args: SameArgs> Argnums<Args> for ($(number_type!($n),)+) {
            type Gradient = ($(same_argument!(Args, $n),)+);
            fn positions(&self) -> Result<Vec<usize>> {
                Ok(vec![$(position_of(self.$i, Args::COUNT)?),+])
            }
            fn of(&self, args: &Args) -> Result<Self::Gradient> {
                Ok(($(argument(args, self.$i)?,)+))
            }
        }
    )*};
}

/// The type of the arguments, once for each number of a tuple.
macro_rules! same_argument {
    ($args:ident, $n:ident) => {
        <$args as SameArgs>::Arg
    };
}

crate::tuples::each!(argnums_numbers);

macro_rules! functions_of_tuples {
    ($(($($t:ident $i:tt),+))*) => {$(
        impl<Func, Out, $($t: Tree),+> Function<($($t,)+)> for Func
        where
            Func: Fn($($t),+) -> Out,
            Out: IntoOutput,
        {
            type Output = Out::Output;
            fn apply(&self, args: ($($t,)+)) -> Result<Self::Output> {
                self($(args.$i),+).into_output()
            }
        }
    )*};
}

crate::tuples::each!(functions_of_tuples);

// Each type is paired with the type of the value that is converted to it. A single argument is converted by itself.
macro_rules! tuples_into_args {
    ($(($($t:ident $i:tt),+))*) => {
        $(tuples_into_args! { [] [SA SB SC SD SE SF SG SH SI SJ SK SL SM SN SO SP] $($t $i)+ })*
    };
    ([$($pair:tt)*] [$s:ident $($sources:ident)*] $t:ident $i:tt $($rest:tt)*) => {
        tuples_into_args! { [$($pair)* ($t $s $i)] [$($sources)*] $($rest)* }
    };
    ([$single:tt] $sources:tt) => {};
    ([$(($t:ident $s:ident $i:tt))+] $sources:tt) => {
        impl<$($t,)+ $($s: IntoArg<$t>),+> IntoArgs<($($t,)+)> for ($($s,)+) {
            fn into_args(self) -> ($($t,)+) {
                ($(self.$i.into_arg(),)+)
            }
        }
    };
}

crate::tuples::each!(tuples_into_args);

macro_rules! argument_positions {
    (@each ($($pick:ident $i:tt),+) $types:tt) => {
        $(argument_positions! { @one $i $pick $types })+
    };
    (@one $i:tt $pick:ident ($($t:ident $position:tt),+)) => {
        impl<$($t: Tree),+> ArgAt<$i> for ($($t,)+) {
            type Arg = $pick;
            fn arg(&self) -> &$pick {
                &self.$i
            }
            fn with_arg(mut self, arg: $pick) -> Self {
                self.$i = arg;
                self
            }
        }
    };
    ($($tuple:tt)*) => {
        $(argument_positions! { @each $tuple $tuple })*
    };
}

crate::tuples::each!(argument_positions);

impl<Func, Out> Function<()> for Func
where
    Func: Fn() -> Out,
    Out: IntoOutput,
{
    type Output = Out::Output;
    fn apply(&self, (): ()) -> Result<Self::Output> {
        self().into_output()
    }
}

impl IntoArgs<()> for () {
    fn into_args(self) {}
}
