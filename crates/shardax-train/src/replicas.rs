//! Comparison of replicas on several devices.

use shardax::error::Result;
use shardax::prelude::*;

/// Returns true if all replicas of every array's shards have the same bits. They must agree, because devices would
/// train different models otherwise. For example, they differ after a data-parallel step that does not average its
/// gradients. Waits for the values.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax_train::replicas_identical;
/// # shardax::config::set_num_cpu_devices(8).ok();
///
/// // The replication check, which would reject this function, is turned off.
/// let drift = pmap(|w: Array, x: Array| w + x).in_axes((None, 0)).out_axes(None).check_replication(false);
/// assert!(!replicas_identical(&drift.call((zeros(3), arange(0..8)))?)?);
///
/// let mean = pmap(|w: Array, x: Array| w + pmean(x, "i")).axis_name("i").in_axes((None, 0)).out_axes(None);
/// assert!(replicas_identical(&mean.call((zeros(3), arange(0..8)))?)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if an array is traced, was deleted or failed.
pub fn replicas_identical<T: Tree>(tree: &T) -> Result<bool> {
    Ok(diverged(tree)?.is_none())
}

/// The key path of the first array whose copies differ.
pub(crate) fn diverged<T: Tree>(tree: &T) -> Result<Option<String>> {
    for (path, leaf) in tree::leaves_with_path(tree) {
        let shards = leaf.addressable_shards()?;
        for copy in shards.iter().filter(|shard| shard.replica_id > 0) {
            let reference = shards.iter().find(|shard| shard.index == copy.index).unwrap_or(copy);
            if reference.data.to_bytes()? != copy.data.to_bytes()? {
                return Ok(Some(path));
            }
        }
    }
    Ok(None)
}
