//! Functions of small arrays applied to arrays with more dimensions: `vectorize` and `apply_along_axis`.

use std::marker::PhantomData;

use super::vmap::vmap;
use crate::core::array::Array;
use crate::core::function::Function;
use crate::core::program::trace::at_caller;
use crate::core::tree::{Flat, Tree};
use crate::error::{Result, err};
use crate::ops::numpy::{IntoAxes, IntoAxis, normalize_axes, with_axis};
use crate::ops::operators::ArrayLike;
use crate::shape::broadcast_shapes;

/// A function whose leading dimensions broadcast; see [`vectorize`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct Vectorize<F, Args> {
    f: F,
    signature: Option<Signature>,
    args: PhantomData<fn(Args)>,
}

/// The names of the core dimensions of each argument and result.
type Signature = (Vec<Vec<String>>, Vec<Vec<String>>);

/// Turns a function of small arrays into a function whose arguments have additional leading dimensions, which broadcast
/// together. Without a [`signature`](Vectorize::signature) the small arrays are scalars.
///
/// The returned function fails for arguments that do not fit the signature, and for leading dimensions that do not
/// broadcast.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::vectorize;
/// let matvec = vectorize(|m: Array, v: Array| m.matmul(v)).signature("(n,m),(m)->(n)")?;
/// let y = matvec.call((ones([4, 1, 2, 3]), ones([5, 3])))?;
/// assert_eq!(y.shape(), [4, 5, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn vectorize<Args: Tree, F: Function<Args>>(f: F) -> Vectorize<F, Args> {
    Vectorize { f, signature: None, args: PhantomData }
}

/// Reads one side of a signature: the names of the core dimensions of each array.
fn core_dimensions(text: &str) -> Option<Vec<Vec<String>>> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let inside = text.strip_prefix('(')?.strip_suffix(')')?;
    let arrays = inside.split("),(").map(|array| {
        let names = array.split(',').filter(|_| !array.is_empty());
        names.map(|name| is_dimension_name(name).then(|| name.to_owned())).collect()
    });
    arrays.collect()
}

fn is_dimension_name(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

impl<F, Args> Vectorize<F, Args> {
    /// Returns the names of the core dimensions: `(n,m),(m)->(n)`. Dimensions with the same name must have the same
    /// size.
    ///
    /// # Errors
    /// Returns an error for text that is not a signature.
    #[track_caller]
    pub fn signature(mut self, signature: &str) -> Result<Self> {
        let sides = signature
            .split_once("->")
            .and_then(|(inputs, outputs)| Some((core_dimensions(inputs)?, core_dimensions(outputs)?)));
        self.signature = Some(sides.ok_or_else(|| {
            err!(Value, "not a valid gufunc signature: {signature:?}")
                .help("name the dimensions of each argument and result in parentheses: `(n,m),(m)->(n)`")
        })?);
        Ok(self)
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for Vectorize<F, Args> {
    type Output = F::Output;

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        let flat = Flat::from_arguments(&args);
        let cores: Vec<usize> = match &self.signature {
            None => vec![0; flat.leaves.len()],
            Some((inputs, _)) if inputs.len() == flat.leaves.len() => {
                check_cores(inputs, &flat.leaves)?;
                inputs.iter().map(Vec::len).collect()
            }
            Some((inputs, _)) => {
                return Err(err!(
                    Type,
                    "wrong number of positional arguments: expected {}, got {}",
                    inputs.len(),
                    flat.leaves.len()
                )
                .help("pass an array for each part of the signature"));
            }
        };
        let leads: Vec<Vec<usize>> =
            flat.leaves.iter().zip(&cores).map(|(x, core)| x.shape()[..x.ndim() - core].to_vec()).collect();
        let Some(shape) = broadcast_shapes(&leads.iter().map(Vec::as_slice).collect::<Vec<_>>()) else {
            return Err(err!(Value, "vectorize got leading dimensions that do not broadcast: {leads:?}")
                .help("from the last dimension backwards, sizes must be equal or 1"));
        };
        if shape.is_empty() {
            return self.f.apply(args);
        }
        // Merges all leading dimensions into one.
        let count: usize = shape.iter().product();
        let leaves = flat
            .leaves
            .iter()
            .zip(&cores)
            .map(|(x, core)| {
                let core_shape = &x.shape()[x.ndim() - core..];
                let broadcast = x.broadcast_to([&shape[..], core_shape].concat());
                broadcast.reshape([&[count], core_shape].concat())
            })
            .collect();
        let mapped = vmap(Applied { f: |args: Args| self.f.apply(args), args: PhantomData }).axis_size(count);
        let out = mapped.apply(Flat { leaves, def: flat.def }.build()?)?;
        let mut out = Flat::of(&out);
        for leaf in &mut out.leaves {
            *leaf = leaf.reshape([&shape[..], &leaf.shape()[1..]].concat());
        }
        out.build()
    }
}

/// A closure of a tuple of arguments as a function.
struct Applied<F, Args> {
    f: F,
    args: PhantomData<fn(Args)>,
}

impl<Args: Tree, Out: Tree, F: Fn(Args) -> Result<Out>> Function<Args> for Applied<F, Args> {
    type Output = Out;
    fn apply(&self, args: Args) -> Result<Out> {
        (self.f)(args)
    }
}

/// Fails if an argument has too few dimensions, or if a name has two sizes.
fn check_cores(inputs: &[Vec<String>], args: &[Array]) -> Result<()> {
    let mut sizes: Vec<(&str, usize)> = Vec::new();
    for (names, x) in inputs.iter().zip(args) {
        x.check()?;
        if x.ndim() < names.len() {
            return Err(err!(
                Value,
                "input {} does not have enough dimensions for the core dimensions {names:?}",
                x.type_name()
            )
            .help("pass at least the dimensions of the signature"));
        }
        for (name, &size) in names.iter().zip(&x.shape()[x.ndim() - names.len()..]) {
            match sizes.iter().find(|(known, _)| known == name) {
                Some((_, known)) if *known != size => {
                    return Err(err!(Value, "inconsistent size for core dimension {name:?}: {known} vs {size}")
                        .help("dimensions with the same name must have the same size"));
                }
                Some(_) => {}
                None => sizes.push((name, size)),
            }
        }
    }
    Ok(())
}

/// Applies `f` to every vector along `axis` (with `..`, to the flat array). The dimensions of the result replace the
/// axis.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::apply_along_axis;
/// let ends = apply_along_axis(|v: Array| stack([v.get(0), v.get(-1)], 0), arange(0..6).reshape([2, 3]), 1)?;
/// assert_eq!(ends.to_vec::<i32>()?, [0, 2, 3, 5]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `axis` is out of bounds for `x`.
#[track_caller]
pub fn apply_along_axis(f: impl Fn(Array) -> Array, x: impl ArrayLike, axis: impl IntoAxis) -> Result<Array> {
    let x = x.into_array();
    at_caller(|| {
        let (x, axis) = with_axis(&x, axis)?;
        let lines = x.moveaxis(axis as i32, -1);
        let last_dim = lines.ndim() - 1;
        let applied = vectorize(|v: Array| f(v)).signature("(n)->()")?;
        let out = applied.apply((lines,))?;
        // The dimensions of the result are last; move them to the position of the axis.
        let out_dims: Vec<i32> = (last_dim as i32..out.ndim() as i32).collect();
        let to: Vec<i32> = (0..out_dims.len() as i32).map(|d| axis as i32 + d).collect();
        Ok(out.moveaxis(out_dims.as_slice(), to.as_slice()))
    })
}

/// Applies `f`, which reduces an axis, over each of these axes, in order. If `f` removes the axis, an axis of size 1 takes its place,
/// so that the result has as many dimensions as `x`.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::numpy::apply_over_axes;
/// let sums = apply_over_axes(|x: Array, axis| x.sum(axis), ones([2, 3, 4]), [0, 2])?;
/// assert_eq!((sums.shape(), sums.to_vec::<f32>()?), (&[1, 3, 1][..], vec![8.0; 3]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an axis is out of bounds for `x`, or if `f` returns an array with more or fewer dimensions.
#[track_caller]
pub fn apply_over_axes(f: impl Fn(Array, i32) -> Array, x: impl ArrayLike, axes: impl IntoAxes) -> Result<Array> {
    let mut x = x.into_array();
    at_caller(|| {
        for axis in normalize_axes(axes, x.ndim())? {
            let reduced = f(x.clone(), axis as i32);
            reduced.check()?;
            let reduced = if reduced.ndim() + 1 == x.ndim() { reduced.expand_dims(axis as i32) } else { reduced };
            if reduced.ndim() != x.ndim() {
                return Err(err!(Value, "apply_over_axes: f maps {} to {}", x.type_name(), reduced.type_name())
                    .help("f must keep the axis that it reduces, or remove it"));
            }
            x = reduced;
        }
        Ok(x)
    })
}
