//! Arguments, made and placed before the clock starts.

use shardax::prelude::*;

/// Numbers from -1 to 1.
pub fn uniform(shape: &[usize], seed: u64) -> Result<Array> {
    let mut random = fastrand::Rng::with_seed(seed);
    let size = shape.iter().product();
    Array::from_vec((0..size).map(|_| random.f32() * 2.0 - 1.0).collect(), shape)
}

/// What is trained on, from 0 to 1: JAX draws the same.
pub fn images(shape: impl IntoShape) -> Array {
    random::uniform(random::key(0), shape)
}

/// Its labels, of ten classes in turn.
pub fn labels(shape: &[usize]) -> Result<Array> {
    let size: usize = shape.iter().product();
    Array::from_vec((0..size as i32).map(|i| i % 10).collect(), shape)
}

/// The first `n` of this process's devices in a row.
pub fn line(n: usize, axis: &str) -> Result<Mesh> {
    Mesh::new(local_devices()?.into_iter().take(n).collect(), [(axis, n)])
}

/// `tree` split along axis 0 over the devices of `mesh`.
pub fn split<T: Tree>(tree: T, mesh: &Mesh, axis: &str) -> Result<T> {
    device_put(&tree, NamedSharding::new(mesh, P![axis]))
}

/// `tree` whole on every device of `mesh`.
pub fn replicated<T: Tree>(tree: T, mesh: &Mesh) -> Result<T> {
    device_put(&tree, NamedSharding::new(mesh, P![]))
}
