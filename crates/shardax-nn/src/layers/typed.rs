//! Shardings in the types of results, where those of an input and of parameters do not determine them.
//!
//! Over mesh axes of type `Explicit`, a product whose contracted dimensions are both split is ambiguous, and one that
//! would name an axis twice is illegal. Layers decide: the input keeps its axes, and the parameters' features keep those
//! that the input leaves free. So a model needs no annotations, and its rules alone choose the parallelism.

use shardax::lax::DotOptions;
use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::sharding::{DimSpec, Sharding, Typed};

/// The sharding of a result whose dimensions have these `labels`: each is split as the input's dimension of this label, or
/// else as the parameter's, without axes that the input keeps. Also tells whether the types do not determine it.
fn merged<L: PartialEq>(
    (x, of_x): (&Typed, &[L]),
    (kernel, of_kernel): (&Typed, &[L]),
    labels: &[L],
) -> (PartitionSpec, bool) {
    let entry = |typed: &Typed, own: &[L], label: &L| {
        own.iter().position(|l| l == label).and_then(|d| typed.dims().get(d).cloned()).unwrap_or_default()
    };
    let kept: Vec<DimSpec> = labels.iter().map(|label| entry(x, of_x, label)).collect();
    let taken: Vec<AxisName> = kept.iter().flat_map(|dim| dim.axes().iter().copied()).collect();
    let mut repeats = false;
    let dims = kept.into_iter().zip(labels).map(|(dim, label)| {
        let other = entry(kernel, of_kernel, label);
        if dim != DimSpec::None {
            return dim;
        }
        let free: Vec<AxisName> = other.axes().iter().copied().filter(|axis| !taken.contains(axis)).collect();
        repeats |= free.len() != other.axes().len();
        if free.is_empty() { DimSpec::None } else { DimSpec::Axes(free.into_iter().collect()) }
    });
    let spec = PartitionSpec::new(dims.collect::<Vec<_>>());
    let summed = |label: &&L| !labels.contains(label) && of_kernel.contains(label);
    let both = |label: &L| [entry(x, of_x, label), entry(kernel, of_kernel, label)].iter().all(|e| *e != DimSpec::None);
    let ambiguous = repeats || of_x.iter().filter(summed).any(both);
    (spec, ambiguous)
}

/// The types of a sound input and a sound parameter, where both have shardings.
fn both(x: &Array, kernel: &Array) -> Option<(Typed, Typed)> {
    (x.check().is_ok() && kernel.check().is_ok()).then_some(())?;
    Some((x.aval().sharding()?.clone(), kernel.aval().sharding()?.clone()))
}

/// Options of the product of `x` and `kernel`, whose dimensions and those of the result have these labels: with
/// `out_sharding` where the types do not determine it.
pub(super) fn of_product<L: PartialEq>(
    options: DotOptions,
    (x, of_x): (&Array, &[L]),
    (kernel, of_kernel): (&Array, &[L]),
    labels: &[L],
) -> DotOptions {
    let Some((a, b)) = both(x, kernel).filter(|_| (of_x.len(), of_kernel.len()) == (x.ndim(), kernel.ndim())) else {
        return options;
    };
    match merged((&a, of_x), (&b, of_kernel), labels) {
        (spec, true) => options.out_sharding(spec),
        _ => options,
    }
}

/// Options of `x.dot(kernel)` for a matrix `kernel`.
pub(super) fn of_dot(options: DotOptions, x: &Array, kernel: &Array) -> DotOptions {
    if x.ndim() == 0 || kernel.ndim() != 2 {
        return options;
    }
    let n = x.ndim();
    let of_x: Vec<usize> = (0..n).collect();
    let out: Vec<usize> = (0..n - 1).chain([n]).collect();
    of_product(options, (x, &of_x), (kernel, &[n - 1, n]), &out)
}

/// The sharding of a channels-last convolution of `x`: its batch and spatial dimensions keep their axes. `None` where the
/// types determine it.
pub(super) fn of_convolution(x: &Array, kernel: &Array) -> Option<PartitionSpec> {
    let (a, b) = both(x, kernel)?;
    let n = a.rank();
    if n < 2 || b.rank() != n || (b.is_replicated() && a.dims()[n - 1] == DimSpec::None) {
        return None;
    }
    // The kernel is `[spatial, in, out]`; its spatial dimensions are none of the result's.
    let of_x: Vec<usize> = (0..n).collect();
    let of_kernel: Vec<usize> = (0..n - 2).map(|d| 2 * n + d).chain([n - 1, n]).collect();
    let out: Vec<usize> = (0..n - 1).chain([n]).collect();
    Some(merged((&a, &of_x), (&b, &of_kernel), &out).0)
}

/// The sharding of the rows of a table that `indices` choose. `None` where the types determine it.
pub(super) fn of_rows(table: &Array, indices: &Array) -> Option<PartitionSpec> {
    let table_type = table.aval().sharding().filter(|_| table.check().is_ok() && table.ndim() == 2).cloned()?;
    indices.check().ok()?;
    let indices_type =
        indices.aval().sharding().cloned().unwrap_or_else(|| Typed::replicated(table_type.mesh(), indices.ndim()));
    if table_type.dims()[0] == DimSpec::None && indices_type.is_replicated() {
        return None;
    }
    let n = indices_type.rank();
    let of_indices: Vec<usize> = (0..n).collect();
    let out: Vec<usize> = (0..=n).collect();
    Some(merged((&indices_type, &of_indices), (&table_type, &[n + 1, n]), &out).0)
}

/// A parameter of the last dimensions of `y`, for an elementwise operation whose result is sharded as `y` is.
pub(super) fn beside(parameter: Array, y: &Array) -> Array {
    let Some((own, of)) = both(&parameter, y).filter(|(own, of)| own.rank() <= of.rank()) else { return parameter };
    let last = || of.dims()[of.rank() - own.rank()..].iter();
    if own.dims().iter().zip(last()).all(|(p, e)| *p == DimSpec::None || p == e) {
        return parameter;
    }
    let sizes = parameter.shape().iter().zip(&y.shape()[of.rank() - own.rank()..]);
    let dims = last().zip(sizes).map(|(e, (m, n))| if m == n { e.clone() } else { DimSpec::None });
    let spec = PartitionSpec::new(dims.collect::<Vec<_>>()).reduced(own.reduced().iter());
    reshard(parameter, Typed::of_spec(own.mesh(), &spec, own.rank()))
}

/// `x`, whole on every device.
pub(crate) fn whole(x: &Array) -> Array {
    match x.aval().sharding().filter(|typed| x.check().is_ok() && !typed.is_replicated()) {
        Some(typed) => reshard(x.clone(), Typed::replicated(typed.mesh(), x.ndim())),
        None => x.clone(),
    }
}

/// The layers of a stack, which a loop takes one after the other: their first dimension whole, the others as they are.
pub(super) fn in_turn<T: Tree>(layers: T) -> Result<T> {
    let each = |x: Array| {
        let aval = x.aval();
        let split = |of: &&Typed| x.check().is_ok() && of.dims().first().is_some_and(|first| *first != DimSpec::None);
        let Some(of) = aval.sharding().filter(split) else { return x };
        let dims = [DimSpec::None].into_iter().chain(of.dims()[1..].iter().cloned());
        let spec = PartitionSpec::new(dims).unreduced(of.unreduced().iter()).reduced(of.reduced().iter());
        resharded_to(x.clone(), &Typed::of_spec(of.mesh(), &spec, x.ndim()), &x)
    };
    tree::map(each, layers)
}

/// The first carry of a loop over the steps of `x`, `[steps, batch, features]`, whose batch is split as that of `x`.
pub(super) fn carry_of(carry: Array, x: &Array) -> Array {
    let aval = x.aval();
    let Some(of) = aval.sharding().filter(|of| carry.check().is_ok() && carry.ndim() + 2 > of.rank()) else {
        return carry;
    };
    let spec = PartitionSpec::new(of.dims()[1..of.rank() - 1].to_vec());
    let to = Typed::of_spec(of.mesh(), &spec, carry.ndim());
    resharded_to(carry, &to, x)
}

/// `x` with the sharding in the type of `like`, where that has one.
pub(crate) fn resharded_as(x: Array, like: &Array) -> Array {
    let aval = like.aval();
    let Some(want) = aval.sharding().filter(|want| want.rank() == x.ndim() && like.check().is_ok()) else { return x };
    match x.check().is_ok() && x.aval().sharding() != Some(want) {
        true => resharded_to(x, want, like),
        false => x,
    }
}

/// `x`, whose last `count` dimensions are split as those of `like`.
pub(super) fn ending_as(x: Array, like: &Array, count: usize) -> Array {
    let aval = like.aval();
    let Some(of) = aval.sharding().filter(|of| like.check().is_ok() && count <= of.rank().min(x.ndim())) else {
        return x;
    };
    let whole = std::iter::repeat_n(DimSpec::None, x.ndim() - count);
    let spec = PartitionSpec::new(whole.chain(of.dims()[of.rank() - count..].iter().cloned()));
    let to = Typed::of_spec(of.mesh(), &spec, x.ndim());
    resharded_to(x, &to, like)
}

/// `x` as an argument of a `shard_map` over these axes: its first dimensions as `spec` says, and the others split over the
/// other axes alone.
pub(crate) fn entering(x: Array, spec: &PartitionSpec, manual: &[AxisName]) -> Array {
    let aval = x.aval();
    let Some(own) = aval.sharding().filter(|_| x.check().is_ok()) else { return x };
    let free = own.dims().iter().map(|dim| dim.axes().iter().filter(|axis| !manual.contains(axis)).copied().collect());
    let dims = spec.dims().iter().cloned().chain(free.skip(spec.len()));
    let to = Typed::of_spec(own.mesh(), &PartitionSpec::new(dims), own.rank());
    if to == *own { x } else { resharded_to(x.clone(), &to, &x) }
}

/// `x` with this sharding, on the devices of `like` where that is concrete: a type does not know them.
fn resharded_to(x: Array, to: &Typed, like: &Array) -> Array {
    match like.sharding().ok().as_ref().and_then(Sharding::as_named) {
        Some(named) => reshard(x, NamedSharding::new(named.mesh(), to.spec())),
        None => reshard(x, to),
    }
}
