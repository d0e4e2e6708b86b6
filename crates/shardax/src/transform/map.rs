//! `map` with a batch size.

use std::ops::Range;

use crate::core::array::Array;
use crate::core::function::{Function, IntoArg, IntoOutput};
use crate::core::tree::{Flat, Tree, same_structure};
use crate::error::{AtCaller, Result, err};
use crate::ops::control_flow;
use crate::ops::lax;
use crate::source;

use super::vmap;

/// Options of [`lax::map`](crate::lax::map).
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::MapOptions;
/// let squares = MapOptions::new().batch_size(4).map(|x: Array| &x * &x, arange(0..10))?;
/// assert_eq!(squares.to_vec::<i32>()?, [0, 1, 4, 9, 16, 25, 36, 49, 64, 81]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct MapOptions {
    batch_size: Option<usize>,
}

impl MapOptions {
    /// Returns a map that computes one slice at a time.
    pub fn new() -> Self {
        MapOptions::default()
    }

    /// Sets the number of slices computed at once, as by [`vmap`](crate::vmap()). More slices need proportionally more
    /// memory. The remainder is computed last. Default 1.
    pub fn batch_size(mut self, batch_size: usize) -> Self {
        self.batch_size = Some(batch_size);
        self
    }

    /// Like [`lax::map`](crate::lax::map).
    ///
    /// # Errors
    /// Returns an error for a batch size of 0, and for arrays without a common leading size.
    #[track_caller]
    pub fn map<X, Y, R>(&self, f: impl Fn(X) -> R, xs: impl IntoArg<X>) -> Result<Y>
    where
        X: Tree,
        Y: Tree,
        R: IntoOutput<Output = Y>,
    {
        let _line = source::enter();
        let xs = xs.into_arg();
        let Some(batch) = self.batch_size else { return control_flow::map(f, xs) };
        self.batched(&f, xs, batch).at_caller()
    }

    fn batched<X, Y, R>(&self, f: &dyn Fn(X) -> R, xs: X, batch: usize) -> Result<Y>
    where
        X: Tree,
        Y: Tree,
        R: IntoOutput<Output = Y>,
    {
        if batch == 0 {
            return Err(err!(Value, "map batch_size must be at least 1, got 0")
                .help("leave `batch_size` out to map one element at a time"));
        }
        let flat = Flat::of(&xs);
        flat.leaves.iter().try_for_each(Array::check)?;
        let lengths: Vec<Option<usize>> = flat.leaves.iter().map(|x| x.shape().first().copied()).collect();
        let Some(n) = lengths.first().copied().flatten().filter(|n| lengths.iter().all(|m| *m == Some(*n))) else {
            let types: Vec<String> = flat.leaves.iter().map(Array::type_name).collect();
            return Err(err!(Value, "map got arrays without a common leading size: {}", types.join(", "))
                .help("the first dimension of each array must have one slice for each call"));
        };
        // Maps all complete batches in one loop, and the remaining elements after it.
        let complete = n - n % batch;
        let vectorized = vmap(|x: X| f(x).into_output());
        if complete == 0 || n == batch {
            return vectorized.apply((xs,));
        }
        let rows: X = slice_leaves(&flat, 0..complete, &[complete / batch, batch]).build()?;
        let out: Y = control_flow::map(|rows: X| vectorized.apply((rows,)), rows)?;
        let out = Flat::of(&out);
        let mut leaves: Vec<Array> =
            out.leaves.iter().map(|y| lax::reshape(y, &[&[complete], &y.shape()[2..]].concat())).collect();
        if complete < n {
            let remainder = slice_leaves(&flat, complete..n, &[n - complete]).build()?;
            let remainder = Flat::of(&vectorized.apply((remainder,))?);
            same_structure(&out.def, &remainder.def)?;
            leaves = leaves
                .iter()
                .zip(&remainder.leaves)
                .map(|(a, b)| lax::concatenate(&[a.clone(), b.clone()], 0))
                .collect();
        }
        Flat { leaves: leaves.into_iter().collect(), def: out.def }.build()
    }
}

/// Slices the first dimension of all leaves, and reshapes it to `lead`.
fn slice_leaves(flat: &Flat, range: Range<usize>, lead: &[usize]) -> Flat {
    let leaves = flat.leaves.iter().map(|x| {
        let slices = lax::slice_in_dim(x, range.start, range.end, 0);
        lax::reshape(&slices, &[lead, &x.shape()[1..]].concat())
    });
    Flat { leaves: leaves.collect(), def: flat.def.clone() }
}
