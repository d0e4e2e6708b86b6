//! Arguments, created before the clock starts.

use shardax::prelude::*;

/// Uniform random numbers between -1 and 1.
pub fn uniform(shape: &[usize], seed: u64) -> Result<Array> {
    let mut random = fastrand::Rng::with_seed(seed);
    let size = shape.iter().product();
    Array::from_vec((0..size).map(|_| random.f32() * 2.0 - 1.0).collect(), shape)
}

/// Training images with values between 0 and 1, which the JAX benchmark uses too.
pub fn images(shape: impl IntoShape) -> Array {
    random::uniform(random::key(0), shape)
}

/// Labels: the ten classes in turn.
pub fn labels(shape: &[usize]) -> Result<Array> {
    let size: usize = shape.iter().product();
    Array::from_vec((0..size as i32).map(|i| i % 10).collect(), shape)
}

/// A mesh of the first `n` devices of this process.
pub fn line(n: usize, axis: &str) -> Result<Mesh> {
    Mesh::new(local_devices()?.into_iter().take(n).collect(), [(axis, n)])
}

/// Splits `tree` along axis 0 over the devices of `mesh`.
pub fn split<T: Tree>(tree: T, mesh: &Mesh, axis: &str) -> Result<T> {
    device_put(&tree, NamedSharding::new(mesh, P![axis]))
}

/// Replicates `tree` on all devices of `mesh`.
pub fn replicated<T: Tree>(tree: T, mesh: &Mesh) -> Result<T> {
    device_put(&tree, NamedSharding::new(mesh, P![]))
}
