//! Printing values while a program runs: [`debug_print!`](crate::debug_print) and `debug::callback`.

use super::primitive::Kind;
use super::{HostArg, HostCallback, IntoOperands, text};
use crate::core::array::Array;
use crate::error::Result;

/// Calls a host function with these arrays, to print or record them.
///
/// The function is called each time the running program reaches its line, even if nothing depends on it. Independent
/// calls run in no particular order. Under `vmap` it is called once for each entry of the batch, under `grad` with the
/// primal values, and inside a `shard_map` by each device with the device's shard. A program that the compiler
/// partitions over several devices cannot call it. With concrete arrays outside of a trace, it is called immediately.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array| -> Result<Array> {
///     shardax::debug::callback(|args| { println!("norm {}", args[0]); Ok(()) }, x.square().sum(..))?;
///     Ok(x * 2)
/// });
/// let _ = f.call(array([3.0f32, 4.0]))?;
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns the errors of [`pure_callback`](crate::pure_callback). If the callback fails, the results of the program
/// that contains it carry the error.
#[track_caller]
pub fn callback<F>(f: F, operands: impl IntoOperands) -> Result<()>
where
    F: Fn(&[HostArg<'_>]) -> Result<()> + Send + Sync + 'static,
{
    HostCallback::new(move |args: &[HostArg<'_>], _: &mut [_]| f(args), &(), Kind::Debug).call(operands)
}

/// Calls a host function like [`callback`], but in the order of the program, as with [`HostCallback::ordered`]. Under `vmap`
/// it is called for one entry of the batch after the other. You cannot use it in a program for several devices.
///
/// # Errors
/// Returns an error if an operand carries an error. An error of the host function is returned when you read a
/// result of the program, or by [`effects_barrier`](crate::effects_barrier).
#[track_caller]
pub fn callback_ordered<F>(f: F, operands: impl IntoOperands) -> Result<()>
where
    F: Fn(&[HostArg<'_>]) -> Result<()> + Send + Sync + 'static,
{
    HostCallback::new(move |args: &[HostArg<'_>], _: &mut [_]| f(args), &(), Kind::Debug).ordered().call(operands)
}

/// A name and an array to print with [`debug_print!`](crate::debug_print).
#[doc(hidden)]
pub type Named = (&'static str, Array);

/// Prints the line with its values, for [`debug_print!`](crate::debug_print).
#[doc(hidden)]
#[track_caller]
pub fn print(format: &'static str, ordered: bool, values: Vec<Named>) {
    let (names, arrays): (Vec<&'static str>, Vec<Array>) = values.into_iter().unzip();
    let shown = {
        if ordered {
            callback_ordered(move |args| print_line(format, &names, args), arrays)
        } else {
            callback(move |args| print_line(format, &names, args), arrays)
        }
    };
    if let Err(error) = shown {
        // The enclosing traced call, if any, returns the error.
        crate::core::program::trace::record_error(&error);
        eprintln!("debug_print!({format:?}): {error}");
    }
}

/// Prints a line with values each time it is reached while the program runs; see
/// [`debug::callback`](crate::debug::callback).
///
/// `{}` is the next value, `{0}` a value by its position, `{name}` a value passed as `name = value` or a variable of
/// that name. Values are arrays, printed like in NumPy, or plain numbers.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array| {
///     let y = x.sin();
///     debug_print!("sin of {} is {y}, its square {square}", x, y, square = &y * &y);
///     y
/// });
/// let _ = f.call(array([0.0f32, 1.0]))?;
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

/// Like [`debug_print!`](crate::debug_print), but lines keep their order, as with
/// [`debug::callback_ordered`](crate::debug::callback_ordered).
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|n: Array| {
///     fori_loop(0, 3, |i: Array, n: Array| { shardax::debug_print_ordered!("step {i}", i); n }, n)
/// });
/// let _ = f.call(0i32)?;
/// # Ok::<(), shardax::Error>(())
/// ```
#[macro_export]
macro_rules! debug_print_ordered {
    ($format:literal $(, $($values:tt)*)?) => {
        $crate::debug::print($format, true, $crate::debug_print!(@values [] $($($values)*)?))
    };
}

fn print_line(format: &str, names: &[&str], args: &[HostArg<'_>]) -> Result<()> {
    println!("{}", text::fill(format, |place| Some(args.get(place.among(names)?)?.to_string())));
    Ok(())
}
