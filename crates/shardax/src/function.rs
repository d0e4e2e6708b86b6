//! Functions that can be transformed: closures by arity, and transformed functions themselves.

use crate::array::Array;
use crate::error::{AtCaller, Result};
use crate::source;
use crate::tree::Tree;

/// A function from a tuple of trees to a tree.
///
/// Implemented for closures and functions of up to eight arguments that return a tree or a `Result` of one, and
/// for every transformed function, so that transformations nest in any order.
pub trait Function<Args: Tree> {
    type Output: Tree;

    /// Applies the function to arguments that are concrete or traced.
    #[track_caller]
    fn apply(&self, args: Args) -> Result<Self::Output>;

    /// Applies the function. Arguments may be values or references, and plain numbers where arrays are expected.
    ///
    /// A function of one argument takes it bare: `f.call(&x)`; of several, as a tuple: `f.call((&x, 1.0))`; of none, `f.call(())`.
    #[track_caller]
    fn call<A: IntoArgs<Args>>(&self, args: A) -> Result<Self::Output>
    where
        Self: Sized,
    {
        let _line = source::enter();
        self.apply(args.into_args()).at_caller()
    }
}

/// What a transformable function may return: a tree, or a `Result` of one.
pub trait IntoOutput {
    type Output: Tree;
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

/// What may stand for an argument of type `T`: the value, a reference to it, or a number for an array.
pub trait IntoArg<T> {
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

/// What may stand for the arguments `Args`: the bare argument of a function of one, else a tuple.
pub trait IntoArgs<Args> {
    fn into_args(self) -> Args;
}

impl<A, T: IntoArg<A>> IntoArgs<(A,)> for T {
    fn into_args(self) -> (A,) {
        (self.into_arg(),)
    }
}

/// Positions of arguments: one or several, negative ones from the last.
pub trait IntoArgnums {
    fn into_argnums(self) -> Vec<i32>;
}

impl IntoArgnums for i32 {
    fn into_argnums(self) -> Vec<i32> {
        vec![self]
    }
}

impl<const N: usize> IntoArgnums for [i32; N] {
    fn into_argnums(self) -> Vec<i32> {
        self.to_vec()
    }
}

impl IntoArgnums for Vec<i32> {
    fn into_argnums(self) -> Vec<i32> {
        self
    }
}

/// The arguments of a function as a type: selects one by its position.
pub trait ArgAt<const N: usize> {
    type Arg: Tree;
    fn arg(&self) -> &Self::Arg;
    /// The same arguments with this one replaced.
    fn with_arg(self, arg: Self::Arg) -> Self;
}

macro_rules! arities {
    ($(($($t:ident $v:ident $s:ident),+))*) => {$(
        impl<Func, Out, $($t: Tree),+> Function<($($t,)+)> for Func
        where
            Func: Fn($($t),+) -> Out,
            Out: IntoOutput,
        {
            type Output = Out::Output;
            fn apply(&self, ($($v,)+): ($($t,)+)) -> Result<Self::Output> {
                self($($v),+).into_output()
            }
        }
    )*};
}

macro_rules! tuples_into_args {
    ($(($($t:ident $v:ident $s:ident),+))*) => {$(
        impl<$($t,)+ $($s: IntoArg<$t>),+> IntoArgs<($($t,)+)> for ($($s,)+) {
            fn into_args(self) -> ($($t,)+) {
                let ($($v,)+) = self;
                ($($v.into_arg(),)+)
            }
        }
    )*};
}

macro_rules! arg_at {
    ($($n:literal $i:tt $pick:ident ($($t:ident),+);)*) => {$(
        impl<$($t: Tree),+> ArgAt<$n> for ($($t,)+) {
            type Arg = $pick;
            fn arg(&self) -> &$pick {
                &self.$i
            }
            fn with_arg(mut self, arg: $pick) -> Self {
                self.$i = arg;
                self
            }
        }
    )*};
}

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

arities! {
    (A a SA)
    (A a SA, B b SB)
    (A a SA, B b SB, C c SC)
    (A a SA, B b SB, C c SC, D d SD)
    (A a SA, B b SB, C c SC, D d SD, E e SE)
    (A a SA, B b SB, C c SC, D d SD, E e SE, F f SF)
    (A a SA, B b SB, C c SC, D d SD, E e SE, F f SF, G g SG)
    (A a SA, B b SB, C c SC, D d SD, E e SE, F f SF, G g SG, H h SH)
}

tuples_into_args! {
    (A a SA, B b SB)
    (A a SA, B b SB, C c SC)
    (A a SA, B b SB, C c SC, D d SD)
    (A a SA, B b SB, C c SC, D d SD, E e SE)
    (A a SA, B b SB, C c SC, D d SD, E e SE, F f SF)
    (A a SA, B b SB, C c SC, D d SD, E e SE, F f SF, G g SG)
    (A a SA, B b SB, C c SC, D d SD, E e SE, F f SF, G g SG, H h SH)
}

arg_at! {
    0 0 A (A);
    0 0 A (A, B); 1 1 B (A, B);
    0 0 A (A, B, C); 1 1 B (A, B, C); 2 2 C (A, B, C);
    0 0 A (A, B, C, D); 1 1 B (A, B, C, D); 2 2 C (A, B, C, D); 3 3 D (A, B, C, D);
    0 0 A (A, B, C, D, E); 1 1 B (A, B, C, D, E); 2 2 C (A, B, C, D, E); 3 3 D (A, B, C, D, E); 4 4 E (A, B, C, D, E);
    0 0 A (A, B, C, D, E, F); 1 1 B (A, B, C, D, E, F); 2 2 C (A, B, C, D, E, F); 3 3 D (A, B, C, D, E, F);
    4 4 E (A, B, C, D, E, F); 5 5 F (A, B, C, D, E, F);
    0 0 A (A, B, C, D, E, F, G); 1 1 B (A, B, C, D, E, F, G); 2 2 C (A, B, C, D, E, F, G);
    3 3 D (A, B, C, D, E, F, G); 4 4 E (A, B, C, D, E, F, G); 5 5 F (A, B, C, D, E, F, G); 6 6 G (A, B, C, D, E, F, G);
    0 0 A (A, B, C, D, E, F, G, H); 1 1 B (A, B, C, D, E, F, G, H); 2 2 C (A, B, C, D, E, F, G, H);
    3 3 D (A, B, C, D, E, F, G, H); 4 4 E (A, B, C, D, E, F, G, H); 5 5 F (A, B, C, D, E, F, G, H);
    6 6 G (A, B, C, D, E, F, G, H); 7 7 H (A, B, C, D, E, F, G, H);
}
