//! Random keys from paths, as in Flax Linen.

use sha1::{Digest, Sha1};
use shardax::prelude::*;
use shardax::random::RandomKey;

/// Returns the key that a module of Flax Linen draws: `key` folded with a hash of the module's path and of a count.
///
/// Linen derives keys from the names of modules, so that the first weights of a layer do not depend on the other layers.
/// `path` has the names from the outermost submodule to the module, without the module that `init` is called on. `count` is 1
/// for the first key that the module draws, in most layers the kernel's, 2 for the next key, and so on.
///
/// ```
/// use shardax::nn::initializers::lecun_normal;
/// use shardax_nn::prelude::*;
/// // params["Dense_0"]["kernel"] of an nn.Dense(2) in the compact module Mlp, after Mlp().init(jax.random.key(0), x)
/// let key = linen_key(random::key(0), &["Dense_0"], 1);
/// let kernel = lecun_normal().init(&key, &[3, 4], DType::F32);
/// assert_eq!(kernel.get((0, 0)).item::<f32>()?, -0.95366687);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn linen_key(key: impl RandomKey, path: &[&str], count: u32) -> Array {
    let mut hash = Sha1::new();
    path.iter().for_each(|name| hash.update(name.as_bytes()));
    // The count is hashed in as many bytes as it needs, the highest first.
    let bytes = count.to_be_bytes();
    hash.update(&bytes[count.leading_zeros() as usize / 8..]);
    let digest = hash.finalize();
    random::fold_in(key, u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]))
}
