//! Lists of trees, such as the metrics of many steps, as one tree.

use shardax::prelude::*;
use shardax::tree::Flat;
use shardax::{Error, ErrorKind};

/// Stacks trees of the same structure. Each array of the result stacks the arrays of all trees along a new first
/// dimension (`flax.training.common_utils.stack_forest`).
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
/// # Errors
/// Returns an error without trees, and if the trees differ in structure or shapes.
#[track_caller]
pub fn stack_forest<T: Tree>(forest: &[T]) -> Result<T> {
    let flat: Vec<Flat> = forest.iter().map(Flat::of).collect();
    let differing = flat.iter().position(|tree| tree.def != flat[0].def);
    let first_tree = match (flat.first(), differing) {
        (Some(first_tree), None) => first_tree,
        (_, differing) => {
            let message = match differing {
                Some(tree) => format!("stack_forest: tree {tree} has another structure than the first"),
                None => "stack_forest of no trees".to_owned(),
            };
            return Err(Error::new(ErrorKind::Value, message).help("pass trees of the same structure"));
        }
    };
    let leaves = (0..first_tree.leaves.len()).map(|i| {
        let column: Vec<Array> = flat.iter().map(|tree| tree.leaves[i].clone()).collect();
        stack(&column, 0)
    });
    let leaves: Vec<Array> = leaves.collect();
    leaves.iter().try_for_each(Array::check)?;
    tree::unflatten(&first_tree.def, &leaves)
}

/// Stacks the metrics of many steps of a [`pmap`](pmap())ped function as one tree on the default device
/// (`flax.training.common_utils.get_metrics`). The metrics must be the same on all devices, because only the first
/// device's are read.
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
/// # Errors
/// Returns the errors of [`stack_forest`].
#[track_caller]
pub fn get_metrics<T: Tree>(device_metrics: &[T]) -> Result<T> {
    let metrics = device_metrics.iter().map(|tree| device_get(&unreplicate(tree)?));
    stack_forest(&metrics.collect::<Result<Vec<_>>>()?)
}
