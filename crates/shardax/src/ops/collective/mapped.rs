//! Collectives over an axis mapped by `vmap`, combined with other axes or with groups.

use smallvec::smallvec;

use super::axes::Axes;
use super::permute::{AxisIndex, Ppermute};
use crate::core::array::{Array, array};
use crate::core::primitive::{BatchAxis, Dims, Outputs, Primitive};
use crate::core::program::Aval;
use crate::core::program::trace::{Traced, bind1, trace};
use crate::error::{Result, err};
use crate::interpret::batching::{batch_eval, move_batch};
use crate::ops::lax;
use crate::sharding::axis_env;

/// Batches a collective by tracing `f`, which expresses it with simpler operations.
pub(crate) fn rewritten(
    axis: &BatchAxis,
    args: &[Array],
    dims: &[Option<usize>],
    f: impl FnOnce(&Array) -> Result<Array>,
) -> Result<(Outputs, Dims)> {
    let mut aval = args[0].aval();
    if let Some(d) = dims[0] {
        aval.shape.remove(d);
    }
    let Traced { program, captures } = trace(&[aval], |x| Ok(vec![f(&x[0])?]))?;
    let args: Vec<Array> = captures.iter().chain(args).cloned().collect();
    let dims: Dims = std::iter::repeat_n(None, captures.len()).chain(dims.iter().copied()).collect();
    let (outs, dims) = batch_eval(&program, axis, &args, &dims)?;
    Ok((outs.into(), dims))
}

/// Batches a collective within groups of the mapped axis, by treating the members of each group as an axis.
pub(crate) fn groups<P: Primitive>(
    axes: &Axes,
    operation: &str,
    axis: &BatchAxis,
    args: &[Array],
    dims: &[Option<usize>],
    collective: impl Fn(Axes) -> P,
) -> Result<(Outputs, Dims)> {
    let groups = axes.groups.as_deref().unwrap_or_default();
    if axes.names.len() > 1 {
        return Err(err!(
            NotImplemented,
            "{operation} does not support axis_index_groups over {:?} where vmap maps only one of the axes",
            axes.names
        )
        .help("map the axes by one pmap or shard_map, or use groups of one axis"));
    }
    let x = axis.moved(&args[0], dims[0], 0);
    let mut parts = Vec::new();
    for group in groups {
        let group_axes = Axes { size: group.len(), groups: None, ..axes.clone() };
        let members = BatchAxis { size: group.len(), ..axis.clone() };
        let (outs, dims) = collective(group_axes).batch(&members, &[rows(&x, group.iter().copied())], &[Some(0)])?;
        parts.push(move_batch(&outs[0], dims[0], 0, group.len()));
    }
    // Restores the order of the axis.
    let mut places = vec![0; axis.size];
    groups.iter().flatten().enumerate().for_each(|(place, &member)| places[member] = place);
    Ok((smallvec![rows(&lax::concatenate(&parts, 0), places)], vec![Some(0)]))
}

/// Selects rows of an array.
fn rows(x: &Array, places: impl IntoIterator<Item = usize>) -> Array {
    let places: Vec<i32> = places.into_iter().map(|p| p as i32).collect();
    x.take(array(places), 0)
}

/// Batches `ppermute` over several axes, including the mapped one, by computing which values each row sends to each other row.
pub(crate) fn permute(
    axes: &Axes,
    perm: &[(usize, usize)],
    axis: &BatchAxis,
    args: &[Array],
    dims: &[Option<usize>],
) -> Result<(Outputs, Dims)> {
    let x = axis.moved(&args[0], dims[0], 0);
    let Some(rest) = axes.without(axis) else {
        return Err(err!(Runtime, "internal error: ppermute over several axes has only one axis; please report this"));
    };
    let after = axes.names.iter().skip_while(|n| Some(**n) != axis.name).skip(1);
    let stride: usize = after.map(|&n| Ok(axis_env::lookup(n, "ppermute")?.size)).product::<Result<_>>()?;
    let me = bind1(AxisIndex { axes: rest.clone() }, &[]);
    let received = (0..axis.size).map(|to| {
        let mut sum: Option<Array> = None;
        for from in 0..axis.size {
            let pairs: Vec<_> = perm
                .iter()
                .map(|&(s, d)| (split_index(s, axis.size, stride), split_index(d, axis.size, stride)))
                .filter(|(s, d)| (s.0, d.0) == (from, to))
                .map(|(s, d)| (s.1, d.1))
                .collect();
            if pairs.is_empty() {
                continue;
            }
            // `ppermute` fills devices that receive nothing with zeros, so they must keep what another row sent.
            let mut receives = vec![false; rest.size];
            pairs.iter().for_each(|(_, d)| receives[*d] = true);
            let sent = Ppermute { axes: rest.clone(), perm: pairs }.apply(&lax::slice_in_dim(&x, from, from + 1, 0));
            sum = Some(match sum {
                None => sent,
                Some(others) => crate::ops::select::where_(array(receives).take(&me, 0), sent, others),
            });
        }
        sum.unwrap_or_else(|| Array::zeros_of(&zeros_type(&lax::slice_in_dim(&x, 0, 1, 0))))
    });
    Ok((smallvec![lax::concatenate(&received.collect::<Vec<_>>(), 0)], vec![Some(0)]))
}

fn zeros_type(x: &Array) -> Aval {
    x.aval().strip_weak_type()
}

/// Splits an index into the index along the mapped axis, which has this size and stride, and the index along the others.
fn split_index(index: usize, size: usize, stride: usize) -> (usize, usize) {
    (index / stride % size, index / stride / size * stride + index % stride)
}
