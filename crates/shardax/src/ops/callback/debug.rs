//! What shows values while a program runs: `debug::callback` and [`debug_print!`](crate::debug_print).

use super::primitive::Kind;
use super::{HostArg, HostCallback, IntoOperands, text};
use crate::core::array::Array;
use crate::error::Result;

/// Calls a function of the host with these arrays, for what it shows or notes.
///
/// It is called as often as its line is reached while the program runs, also where nothing depends on it, in no order
/// between calls that do not depend on each other: under `vmap` once for each entry of the batch, under `grad` with the
/// values, inside a `shard_map` by each device with its own block. A program that the compiler splits over several devices
/// cannot call it. Where arrays have their values it is called at once.
///
/// Fails as [`pure_callback`](crate::pure_callback) does: a debug callback's error is the error of the results of the
/// program that it stands in.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array| -> Result<Array> {
///     shardax::debug::callback(|args| { println!("norm {}", args[0]); Ok(()) }, x.square().sum(..))?;
///     Ok(x * 2)
/// });
/// f.call(array([3.0f32, 4.0]))?;
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn callback<F>(f: F, operands: impl IntoOperands) -> Result<()>
where
    F: Fn(&[HostArg<'_>]) -> Result<()> + Send + Sync + 'static,
{
    HostCallback::new(move |args: &[HostArg<'_>], _: &mut [_]| f(args), &(), Kind::Debug).call(operands)
}

/// [`callback`] whose calls keep their order, as [`HostCallback::ordered`] says; under `vmap` they come entry by entry. A program for
/// several devices cannot call it.
#[track_caller]
pub fn callback_ordered<F>(f: F, operands: impl IntoOperands) -> Result<()>
where
    F: Fn(&[HostArg<'_>]) -> Result<()> + Send + Sync + 'static,
{
    HostCallback::new(move |args: &[HostArg<'_>], _: &mut [_]| f(args), &(), Kind::Debug).ordered().call(operands)
}

/// What stands for a value in [`debug_print!`](crate::debug_print): its name, and the array.
#[doc(hidden)]
pub type Named = (&'static str, Array);

/// The line with its values; for [`debug_print!`](crate::debug_print).
#[doc(hidden)]
#[track_caller]
pub fn print(format: &'static str, ordered: bool, values: Vec<Named>) {
    let (names, arrays): (Vec<&'static str>, Vec<Array>) = values.into_iter().unzip();
    let shown = {
        let line = move |args: &[HostArg<'_>]| {
            println!("{}", text::fill(format, |place| Some(args.get(place.among(&names)?)?.to_string())));
            Ok(())
        };
        if ordered { callback_ordered(line, arrays) } else { callback(line, arrays) }
    };
    if let Err(error) = shown {
        // The enclosing call returns it where there is one.
        crate::core::program::trace::record_error(&error);
        eprintln!("debug_print!({format:?}): {error}");
    }
}

/// Prints a line with values whenever it is reached while the program runs; see [`debug::callback`](crate::debug::callback).
///
/// `{}` stands for the next value, `{0}` for one by its position, `{name}` for one that is given as `name = value` or is
/// a variable of that name. Values are arrays, printed as NumPy prints them, or plain numbers.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array| {
///     let y = x.sin();
///     debug_print!("sin of {} is {y}, its square {square}", x, y, square = &y * &y);
///     y
/// });
/// f.call(array([0.0f32, 1.0]))?;
/// # Ok::<(), shardax::Error>(())
/// ```
#[macro_export]
macro_rules! debug_print {
    ($format:literal $(, $($values:tt)*)?) => {
        $crate::debug::print($format, false, $crate::debug_print!(@values [] $($($values)*)?))
    };
    (@values [$($done:expr,)*]) => { ::std::vec![$($done),*] };
    (@values [$($done:expr,)*] $name:ident = $value:expr $(, $($rest:tt)*)?) => {
        $crate::debug_print!(@values [$($done,)* (stringify!($name), $crate::Array::from(($value).clone())),] $($($rest)*)?)
    };
    (@values [$($done:expr,)*] $value:expr $(, $($rest:tt)*)?) => {
        $crate::debug_print!(@values [$($done,)* (stringify!($value), $crate::Array::from(($value).clone())),] $($($rest)*)?)
    };
}

/// [`debug_print!`](crate::debug_print) whose lines keep their order, as [`debug::callback_ordered`](crate::debug::callback_ordered) does.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|n: Array| {
///     fori_loop(0, 3, |i: Array, n: Array| { shardax::debug_print_ordered!("step {i}", i); n }, n)
/// });
/// f.call(0i32)?;
/// # Ok::<(), shardax::Error>(())
/// ```
#[macro_export]
macro_rules! debug_print_ordered {
    ($format:literal $(, $($values:tt)*)?) => {
        $crate::debug::print($format, true, $crate::debug_print!(@values [] $($($values)*)?))
    };
}
