//! Shardings in the types of results that the types of inputs and parameters do not determine.
//!
//! Over mesh axes of type `Explicit`, a product whose contracted dimensions are both split is ambiguous, and a product that
//! would name an axis twice is illegal. Layers resolve both: the input keeps its axes, and the parameters' features keep the
//! axes that the input does not use. Therefore a model needs no annotations, and only its rules choose the parallelism.

use shardax::lax::DotOptions;
use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::sharding::{DimSpec, Sharding, Typed};

/// Returns the sharding of a result whose dimensions have these `labels`. Each dimension is split like the input's dimension
/// with this label, or otherwise like the parameter's, without the axes that the input uses. Also returns true if the types
/// do not determine this sharding.
fn join_shardings<L: PartialEq>(
    (x, x_labels): (&Typed, &[L]),
    (kernel, kernel_labels): (&Typed, &[L]),
    labels: &[L],
) -> (PartitionSpec, bool) {
    let x_dims: Vec<DimSpec> = labels.iter().map(|label| dim_with_label(x, x_labels, label)).collect();
    let x_axes: Vec<AxisName> = x_dims.iter().flat_map(|dim| dim.axes().iter().copied()).collect();
    let mut repeats_an_axis = false;
    let dims = x_dims.into_iter().zip(labels).map(|(x_dim, label)| {
        let kernel_dim = dim_with_label(kernel, kernel_labels, label);
        if x_dim != DimSpec::None {
            return x_dim;
        }
        let free: Vec<AxisName> = kernel_dim.axes().iter().copied().filter(|axis| !x_axes.contains(axis)).collect();
        repeats_an_axis |= free.len() != kernel_dim.axes().len();
        if free.is_empty() { DimSpec::None } else { DimSpec::Axes(free.into_iter().collect()) }
    });
    let spec = PartitionSpec::new(dims.collect::<Vec<_>>());
    // A contracted dimension that is split in both operands could be summed in several ways.
    let mut contracted = x_labels.iter().filter(|label| !labels.contains(label) && kernel_labels.contains(label));
    let splits_a_sum = contracted.any(|label| {
        dim_with_label(x, x_labels, label) != DimSpec::None
            && dim_with_label(kernel, kernel_labels, label) != DimSpec::None
    });
    (spec, repeats_an_axis || splits_a_sum)
}

/// Returns how the dimension with this label is split.
fn dim_with_label<L: PartialEq>(typed: &Typed, labels: &[L], label: &L) -> DimSpec {
    labels.iter().position(|l| l == label).and_then(|d| typed.dims().get(d).cloned()).unwrap_or_default()
}

/// Returns the shardings in the types of two arrays, if neither is an error and both types have one.
fn shardings(x: &Array, kernel: &Array) -> Option<(Typed, Typed)> {
    (x.check().is_ok() && kernel.check().is_ok()).then_some(())?;
    Some((x.aval().sharding()?.clone(), kernel.aval().sharding()?.clone()))
}

/// Returns the options of a product of `x` and `kernel`, whose dimensions have these labels, with `out_sharding` if the types
/// do not determine the sharding of the result.
pub(super) fn sharding_for_product<L: PartialEq>(
    options: DotOptions,
    (x, x_labels): (&Array, &[L]),
    (kernel, kernel_labels): (&Array, &[L]),
    labels: &[L],
) -> DotOptions {
    if (x_labels.len(), kernel_labels.len()) != (x.ndim(), kernel.ndim()) {
        return options;
    }
    let Some((x_sharding, kernel_sharding)) = shardings(x, kernel) else { return options };
    match join_shardings((&x_sharding, x_labels), (&kernel_sharding, kernel_labels), labels) {
        (spec, true) => options.out_sharding(spec),
        _ => options,
    }
}

/// Returns the options of `x.dot(kernel)` for a matrix `kernel`.
pub(super) fn sharding_for_dot(options: DotOptions, x: &Array, kernel: &Array) -> DotOptions {
    if x.ndim() == 0 || kernel.ndim() != 2 {
        return options;
    }
    let n = x.ndim();
    let x_labels: Vec<usize> = (0..n).collect();
    let labels: Vec<usize> = (0..n - 1).chain([n]).collect();
    sharding_for_product(options, (x, &x_labels), (kernel, &[n - 1, n]), &labels)
}

/// Returns the sharding of a channels-last convolution of `x`, whose batch and spatial dimensions keep their axes; `None` if
/// the types determine it.
pub(super) fn sharding_for_convolution(x: &Array, kernel: &Array) -> Option<PartitionSpec> {
    let (x, kernel) = shardings(x, kernel)?;
    let n = x.rank();
    if n < 2 || kernel.rank() != n || (kernel.is_replicated() && x.dims()[n - 1] == DimSpec::None) {
        return None;
    }
    // The kernel is `[spatial, in, out]`. Its spatial dimensions have labels that the result does not have.
    let x_labels: Vec<usize> = (0..n).collect();
    let kernel_labels: Vec<usize> = (0..n - 2).map(|d| 2 * n + d).chain([n - 1, n]).collect();
    let labels: Vec<usize> = (0..n - 1).chain([n]).collect();
    Some(join_shardings((&x, &x_labels), (&kernel, &kernel_labels), &labels).0)
}

/// Returns the sharding of the rows of a table that `indices` choose; `None` if the types determine it.
pub(super) fn sharding_for_rows(table: &Array, indices: &Array) -> Option<PartitionSpec> {
    let table_type = table.aval().sharding().filter(|_| table.check().is_ok() && table.ndim() == 2).cloned()?;
    indices.check().ok()?;
    let indices_type =
        indices.aval().sharding().cloned().unwrap_or_else(|| Typed::replicated(table_type.mesh(), indices.ndim()));
    if table_type.dims()[0] == DimSpec::None && indices_type.is_replicated() {
        return None;
    }
    let n = indices_type.rank();
    let index_labels: Vec<usize> = (0..n).collect();
    let labels: Vec<usize> = (0..=n).collect();
    Some(join_shardings((&indices_type, &index_labels), (&table_type, &[n + 1, n]), &labels).0)
}

/// Reshards a parameter of the last dimensions of `y`, for an elementwise operation whose result is sharded like `y`.
pub(super) fn align_with(parameter: Array, y: &Array) -> Array {
    let Some((typed, y_typed)) = shardings(&parameter, y).filter(|(typed, y_typed)| typed.rank() <= y_typed.rank())
    else {
        return parameter;
    };
    let leading = y_typed.rank() - typed.rank();
    let y_dims = &y_typed.dims()[leading..];
    if typed.dims().iter().zip(y_dims).all(|(dim, y_dim)| *dim == DimSpec::None || dim == y_dim) {
        return parameter;
    }
    let sizes = parameter.shape().iter().zip(&y.shape()[leading..]);
    // A dimension of size 1 is broadcast, so it cannot be split.
    let dims = y_dims.iter().zip(sizes).map(|(y_dim, (m, n))| if m == n { y_dim.clone() } else { DimSpec::None });
    let spec = PartitionSpec::new(dims.collect::<Vec<_>>()).reduced(typed.reduced().iter());
    reshard(parameter, Typed::from_spec(typed.mesh(), &spec, typed.rank()))
}

/// Gathers the positions of keys or values `[..., length, heads, depth]`, because a device needs all keys of its queries.
pub(crate) fn gather_positions(x: Array) -> Array {
    gather_dim(x, 3)
}

/// Gathers the heads of `x`, `[..., length, heads, depth]`, for functions of several heads.
pub(crate) fn gather_heads(x: Array) -> Array {
    gather_dim(x, 2)
}

/// Gathers the dimension `from_end`, counted from the last one, which is 1.
fn gather_dim(x: Array, from_end: usize) -> Array {
    let aval = x.aval();
    let Some(typed) = aval.sharding().filter(|typed| x.check().is_ok() && typed.rank() >= from_end) else { return x };
    let dim = typed.rank() - from_end;
    if typed.dims()[dim] == DimSpec::None {
        return x;
    }
    let mut dims = typed.dims().to_vec();
    dims[dim] = DimSpec::None;
    let spec = PartitionSpec::new(dims).unreduced(typed.unreduced().iter()).reduced(typed.reduced().iter());
    reshard_to(x.clone(), &Typed::from_spec(typed.mesh(), &spec, typed.rank()), &x)
}

/// Replicates `x` on every device.
pub(crate) fn replicated(x: &Array) -> Array {
    match x.aval().sharding().filter(|typed| x.check().is_ok() && !typed.is_replicated()) {
        Some(typed) => reshard(x.clone(), Typed::replicated(typed.mesh(), x.ndim())),
        None => x.clone(),
    }
}

/// Prepares the layers of a stack for a loop that uses one after the other: their first dimension must not be split, and the
/// other dimensions do not change.
pub(super) fn for_loop_over_layers<T: Tree>(layers: T) -> Result<T> {
    tree::map(
        |x: Array| {
            let aval = x.aval();
            let Some(typed) = aval.sharding().filter(|typed| x.check().is_ok() && splits_first_dim(typed)) else {
                return x;
            };
            let dims = [DimSpec::None].into_iter().chain(typed.dims()[1..].iter().cloned());
            let spec = PartitionSpec::new(dims).unreduced(typed.unreduced().iter()).reduced(typed.reduced().iter());
            reshard_to(x.clone(), &Typed::from_spec(typed.mesh(), &spec, x.ndim()), &x)
        },
        layers,
    )
}

fn splits_first_dim(typed: &Typed) -> bool {
    typed.dims().first().is_some_and(|dim| *dim != DimSpec::None)
}

/// Reshards the first carry of a loop over the steps of `x`, `[steps, batch, features]`: its batch is split like the batch of
/// `x`.
pub(super) fn align_carry(carry: Array, x: &Array) -> Array {
    let aval = x.aval();
    let Some(typed) = aval.sharding().filter(|typed| carry.check().is_ok() && carry.ndim() + 2 > typed.rank()) else {
        return carry;
    };
    let spec = PartitionSpec::new(typed.dims()[1..typed.rank() - 1].to_vec());
    let target = Typed::from_spec(typed.mesh(), &spec, carry.ndim());
    reshard_to(carry, &target, x)
}

/// Reshards `x` to the sharding in the type of `like`, if it has one.
pub(crate) fn reshard_like(x: Array, like: &Array) -> Array {
    let aval = like.aval();
    let Some(target) = aval.sharding().filter(|typed| typed.rank() == x.ndim() && like.check().is_ok()) else {
        return x;
    };
    if x.check().is_ok() && x.aval().sharding() != Some(target) { reshard_to(x, target, like) } else { x }
}

/// Splits the last `count` dimensions of `x` like the last dimensions of `like`, and no others.
pub(super) fn split_last_dims_like(x: Array, like: &Array, count: usize) -> Array {
    let aval = like.aval();
    let Some(typed) = aval.sharding().filter(|typed| like.check().is_ok() && count <= typed.rank().min(x.ndim()))
    else {
        return x;
    };
    let leading = std::iter::repeat_n(DimSpec::None, x.ndim() - count);
    let spec = PartitionSpec::new(leading.chain(typed.dims()[typed.rank() - count..].iter().cloned()));
    let target = Typed::from_spec(typed.mesh(), &spec, x.ndim());
    reshard_to(x, &target, like)
}

/// Reshards `x` for a `shard_map` over the axes `manual`: its first dimensions as `spec` says, and the other dimensions only
/// over the other axes.
pub(crate) fn enter_shard_map(x: Array, spec: &PartitionSpec, manual: &[AxisName]) -> Array {
    let aval = x.aval();
    let Some(typed) = aval.sharding().filter(|_| x.check().is_ok()) else { return x };
    let free =
        typed.dims().iter().map(|dim| dim.axes().iter().filter(|axis| !manual.contains(axis)).copied().collect());
    let dims = spec.dims().iter().cloned().chain(free.skip(spec.len()));
    let target = Typed::from_spec(typed.mesh(), &PartitionSpec::new(dims), typed.rank());
    if target == *typed { x } else { reshard_to(x.clone(), &target, &x) }
}

/// Reshards `x`. If `like` is concrete, the result is on its devices, because a type does not know devices.
fn reshard_to(x: Array, target: &Typed, like: &Array) -> Array {
    match like.sharding().ok().as_ref().and_then(Sharding::as_named) {
        Some(named) => reshard(x, NamedSharding::new(named.mesh(), target.spec())),
        None => reshard(x, target),
    }
}
