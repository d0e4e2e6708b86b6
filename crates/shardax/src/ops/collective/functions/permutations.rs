//! Collectives that move entire values between participants.

use super::{all_to_all, on_leaves};
use crate::core::tree::IntoTree;
use crate::error::err;
use crate::ops::collective::gather::AllGather;
use crate::ops::collective::permute::Ppermute;
use crate::shape::{AxisNumber, IntoAxisNames};

/// A source and a target: a pair of indices or a reference to a pair.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a source with a target",
    label = "not a pair of participants",
    note = "pairs are `(source, target)` of `usize`: `ppermute(x, \"i\", [(0, 1), (1, 0)])`"
)]
pub trait SourceTarget {
    /// Returns the pair of source and target.
    fn source_target(self) -> (usize, usize);
}

impl SourceTarget for (usize, usize) {
    fn source_target(self) -> (usize, usize) {
        self
    }
}

impl SourceTarget for &(usize, usize) {
    fn source_target(self) -> (usize, usize) {
        *self
    }
}

/// Sends each participant's value from the first index of a pair to the second. Participants that receive no value get
/// zeros.
///
/// ```text
/// device      0   1   2   3   4   5   6   7
/// x          10  11  12  13  14  15  16  17
/// ppermute    0  10  11  12  13  14  15  16
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let ahead = pmap(|x: Array| ppermute(x, "i", (0..7).zip(1..8))).axis_name("i");
/// assert_eq!(ahead.call(arange(10..18))?.to_vec::<i32>()?, [0, 10, 11, 12, 13, 14, 15, 16]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn ppermute<T: IntoTree>(
    x: T,
    axis: impl IntoAxisNames,
    perm: impl IntoIterator<Item = impl SourceTarget>,
) -> T::Tree {
    let perm: Vec<(usize, usize)> = perm.into_iter().map(SourceTarget::source_target).collect();
    on_leaves(x.into_tree(), axis, "ppermute", |x, axes| {
        axes.no_groups("ppermute")?;
        let (sources, targets): (Vec<usize>, Vec<usize>) = perm.iter().copied().unzip();
        if !are_unique(sources) || !are_unique(targets) {
            return Err(err!(Value, "ppermute sources and destinations must be unique, got {perm:?}")
                .help("each participant sends to at most one, and receives from at most one"));
        }
        if let Some(p) = perm.iter().find(|p| p.0 >= axes.size || p.1 >= axes.size) {
            return Err(err!(
                Value,
                "ppermute pair {p:?} is out of range: the axes {:?} have {} participants",
                axes.names,
                axes.size
            )
            .help("indices run from 0 to the number of participants"));
        }
        Ok(Ppermute { axes: axes.clone(), perm: perm.clone() }.apply(x))
    })
}

fn are_unique(mut numbers: Vec<usize>) -> bool {
    numbers.sort_unstable();
    numbers.windows(2).all(|w| w[0] != w[1])
}

/// Sends each participant's value `shift` positions ahead in a ring. Negative shifts send it back.
///
/// ```text
/// device           0  1  2  3  4  5  6  7
/// x                0  1  2  3  4  5  6  7
/// pshift by 1      7  0  1  2  3  4  5  6
/// pshift by -2     2  3  4  5  6  7  0  1
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let round = pmap(|x: Array| (pshift(x.clone(), "i", 1), pshift(x, "i", -2))).axis_name("i");
/// let (next, back) = round.call(arange(0..8))?;
/// assert_eq!(next.to_vec::<i32>()?, [7, 0, 1, 2, 3, 4, 5, 6]);
/// assert_eq!(back.to_vec::<i32>()?, [2, 3, 4, 5, 6, 7, 0, 1]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pshift<T: IntoTree>(x: T, axis: impl IntoAxisNames, shift: i32) -> T::Tree {
    on_leaves(x.into_tree(), axis, "pshift", |x, axes| {
        axes.no_groups("pshift")?;
        let perm = (0..axes.size).map(|source| {
            let target = (source as i128 + i128::from(shift)).rem_euclid(axes.size as i128);
            (source, target as usize)
        });
        Ok(Ppermute { axes: axes.clone(), perm: perm.collect() }.apply(x))
    })
}

/// Permutes values: participant `i` receives the value of participant `perm[i]`, where `perm` must be a permutation of
/// all indices.
///
/// ```text
/// device                     0   1   2
/// x                         10  11  12
/// pshuffle by [2, 0, 1]     12  10  11
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| pshuffle(x, "i", [2, 0, 1])).axis_name("i");
/// assert_eq!(f.call(array([10, 11, 12]))?.to_vec::<i32>()?, [12, 10, 11]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pshuffle<T: IntoTree>(x: T, axis: impl IntoAxisNames, perm: impl AsRef<[usize]>) -> T::Tree {
    let perm = perm.as_ref();
    on_leaves(x.into_tree(), axis, "pshuffle", |x, axes| {
        axes.no_groups("pshuffle")?;
        let mut sorted = perm.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..axes.size) {
            return Err(err!(Value, "`perm` does not represent a permutation: {perm:?}")
                .help(format!("list each of the {} indices once", axes.size)));
        }
        let perm = perm.iter().enumerate().map(|(to, &from)| (from, to)).collect();
        Ok(Ppermute { axes: axes.clone(), perm }.apply(x))
    })
}

/// Exchanges the mapped axis with dimension `dim`, which must have the same size: [`all_to_all`] that splits and stacks
/// at the same dimension.
///
/// ```text
/// device            0       1
/// x            [1, 2]  [3, 4]
/// pswapaxes    [1, 3]  [2, 4]
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| pswapaxes(x, "i", 0)).axis_name("i");
/// assert_eq!(f.call(array([[1, 2], [3, 4]]))?.to_vec::<i32>()?, [1, 3, 2, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pswapaxes<T: IntoTree>(x: T, axis: impl IntoAxisNames, dim: impl AxisNumber) -> T::Tree {
    let dim = dim.axis_number();
    all_to_all(x, axis, dim, dim)
}

/// Broadcasts the value of participant `source` to all participants.
///
/// ```text
/// device               0   1   2
/// x                   10  11  12
/// pbroadcast from 1   11  11  11
/// ```
///
/// ```
/// # use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let f = pmap(|x: Array| pbroadcast(x, "i", 1)).axis_name("i");
/// assert_eq!(f.call(array([10, 11, 12]))?.to_vec::<i32>()?, [11, 11, 11]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "the result is a new tree; the argument is unchanged"]
#[track_caller]
pub fn pbroadcast<T: IntoTree>(x: T, axis: impl IntoAxisNames, source: usize) -> T::Tree {
    on_leaves(x.into_tree(), axis, "pbroadcast", |x, axes| {
        let size = axes.even_size("pbroadcast")?;
        if source >= size {
            return Err(err!(
                Value,
                "pbroadcast source {source} is out of range: the axes {:?} have {size} participants",
                axes.names
            )
            .help("indices run from 0 to the number of participants"));
        }
        // A gather preserves the bits of every dtype; a masked sum would lose -0.0.
        let gathered = AllGather { axes: axes.clone(), dim: 0, invariant: true }.apply(&x.expand_dims(0));
        Ok(crate::ops::lax::slice_in_dim(&gathered, source, source + 1, 0).squeeze(0))
    })
}
