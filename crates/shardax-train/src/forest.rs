//! Lists of trees, such as the metrics of many steps, as one tree.

use shardax::prelude::*;
use shardax::tree::Flat;
use shardax::{Error, ErrorKind};

/// Stacks equal trees: each array of the result has those of all trees along a new first dimension
/// (`flax.training.common_utils.stack_forest`).
///
/// ```
/// use shardax::prelude::*;
/// use shardax_train::stack_forest;
/// let forest = [(array(1.0f32), ones([2])), (array(2.0f32), ones([2]))];
/// let (losses, others) = stack_forest(&forest)?;
/// assert_eq!((losses.to_vec::<f32>()?, others.shape()), (vec![1.0, 2.0], &[2, 2][..]));
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails without trees, and for trees of different structures or shapes.
#[track_caller]
pub fn stack_forest<T: Tree>(forest: &[T]) -> Result<T> {
    let flat: Vec<Flat> = forest.iter().map(Flat::of).collect();
    let fail = |what: String| Error::new(ErrorKind::Value, what).help("stack trees of one structure");
    let first = flat.first().ok_or_else(|| fail("stack_forest of no trees".to_owned()))?;
    if let Some(odd) = flat.iter().position(|tree| tree.def != first.def) {
        return Err(fail(format!("stack_forest: tree {odd} has another structure than the first")));
    }
    let column = |i: usize| flat.iter().map(|tree| tree.leaves[i].clone()).collect::<Vec<_>>();
    let leaves: Vec<Array> = (0..first.leaves.len()).map(|i| stack(&column(i), 0)).collect();
    leaves.iter().try_for_each(Array::check)?;
    tree::unflatten(&first.def, &leaves)
}

/// The metrics of many steps of a [`pmap`]ped function, which are the same on all devices, as one tree on the host's default
/// device: those of the first device, stacked (`flax.training.common_utils.get_metrics`).
///
/// ```
/// use shardax::prelude::*;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// let step = pmap(|x: Array| pmean(x, "i")).axis_name("i");
/// let metrics = [step.call(arange(0.0f32..8.0))?, step.call(ones([8]))?];
/// assert_eq!(shardax_train::get_metrics(&metrics)?.to_vec::<f32>()?, [3.5, 1.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Fails as [`stack_forest`] does.
#[track_caller]
pub fn get_metrics<T: Tree>(device_metrics: &[T]) -> Result<T> {
    let of_host = |tree: &T| device_get(&unreplicate(tree)?);
    stack_forest(&device_metrics.iter().map(of_host).collect::<Result<Vec<_>>>()?)
}
