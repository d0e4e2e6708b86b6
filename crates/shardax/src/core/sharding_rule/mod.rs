//! Sharding rules. They compute the shardings in the types of results from the shardings of operands.
//!
//! They run only if an operand, or the context mesh, has an axis of type `Explicit`.

mod assign;

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

pub(crate) use self::assign::{agrees, assign, check_context};
use super::program::Aval;
use crate::error::{Error, Result, err};
use crate::shape::{AxisName, AxisSet};
use crate::sharding::typed::entry;
use crate::sharding::{AbstractMesh, DimSpec, Typed, UnreducedKind};

/// The shardings of an operation's results.
pub type TypedOuts = SmallVec<[Typed; 1]>;
/// The unreduced and the reduced axes of a result.
pub type PartialAxes = (AxisSet, AxisSet);

/// The input of a sharding rule: the operand types, and the result types before shardings are assigned.
///
/// Its methods are the usual rules. Each returns the shardings of all results.
#[derive(Debug)]
pub struct ShardingRule<'a> {
    name: &'a str,
    mesh: AbstractMesh,
    args: &'a [Aval],
    outs: &'a [Aval],
}

const REPLICATE: &str =
    "gather the dimension first with `reshard(x, spec)`, or compute in `auto_axes(f).out_sharding(spec)`";

/// The sharding of an elementwise operation on operands of one shape. Each dimension has the entry of the operands that
/// split it. `None` if two such entries differ.
pub(crate) fn joined<'t>(
    mesh: &AbstractMesh,
    rank: usize,
    operands: impl Iterator<Item = &'t Typed> + Clone,
) -> Option<Typed> {
    let mut dims: SmallVec<[DimSpec; 4]> = SmallVec::new();
    for d in 0..rank {
        let mut entries = operands.clone().map(|t| &t.dims()[d]).filter(|entry| **entry != DimSpec::None);
        let common = entries.next().cloned().unwrap_or_default();
        if entries.any(|entry| *entry != common) {
            return None;
        }
        dims.push(common);
    }
    Some(Typed::from_dims(mesh, dims))
}

impl<'a> ShardingRule<'a> {
    /// Returns the mesh of the operands, or the context mesh if no operand has one.
    pub fn mesh(&self) -> &AbstractMesh {
        &self.mesh
    }

    /// Returns the operands' types.
    pub fn args(&self) -> &'a [Aval] {
        self.args
    }

    /// Returns the results' types, without their shardings.
    pub fn outs(&self) -> &'a [Aval] {
        self.outs
    }

    /// Returns the sharding of operand `i`. An operand without a sharding counts as replicated.
    pub fn arg(&self, i: usize) -> Typed {
        typed(&self.mesh, &self.args[i])
    }

    /// Returns the entry of a dimension of operand `i`.
    pub fn entry(&self, i: usize, dim: usize) -> DimSpec {
        self.args[i].sharding().map_or(DimSpec::None, |t| t.dims()[dim].clone())
    }

    /// Creates an error about the shardings of operands.
    pub fn error(&self, message: impl std::fmt::Display, help: &str) -> Error {
        err!(Sharding, "{}: {message}", self.name).help(help)
    }

    /// Returns the operands' types, for errors.
    pub fn types(&self) -> String {
        self.args.iter().map(Aval::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Rejects explicit shardings with an error that names `auto_axes`.
    pub fn reject(&self) -> Error {
        err!(
            NotImplemented,
            "sharding rule for '{}' is not implemented, for operands of type {}",
            self.name,
            self.types()
        )
        .help("compute it in `auto_axes(f).out_sharding(spec)`, where the compiler chooses shardings")
    }

    /// Rejects operands with unreduced or reduced axes.
    pub fn reject_partial(&self) -> Error {
        self.error(
            format_args!("operands with unreduced or reduced axes are not supported, got {}", self.types()),
            "sum unreduced operands, and drop `reduced`, with `reshard(x, P![..])` first",
        )
    }

    /// Returns one result with these entries.
    ///
    /// # Errors
    /// This method never fails. It returns a `Result` so that it can be the last expression of a rule.
    pub fn dims(&self, dims: impl IntoIterator<Item = DimSpec>) -> Result<TypedOuts> {
        Ok(smallvec![Typed::from_dims(&self.mesh, dims.into_iter().collect())])
    }

    /// Replicated results.
    ///
    /// # Errors
    /// This method never fails. It returns a `Result` so that it can be the last expression of a rule.
    pub fn replicated(&self) -> Result<TypedOuts> {
        Ok(self.outs.iter().map(|out| Typed::replicated(&self.mesh, out.rank())).collect())
    }

    /// Returns the shardings already in the results' types, for primitives that wrap a program.
    ///
    /// # Errors
    /// This method never fails. It returns a `Result` so that it can be the last expression of a rule.
    pub fn from_results(&self) -> Result<TypedOuts> {
        Ok(self.outs.iter().map(|out| typed(&self.mesh, out)).collect())
    }

    /// Returns the sharding of operand `i` for every result.
    ///
    /// # Errors
    /// This method never fails. It returns a `Result` so that it can be the last expression of a rule.
    pub fn like(&self, i: usize) -> Result<TypedOuts> {
        let typed = self.arg(i).without_partial();
        Ok(smallvec![typed; self.outs.len()])
    }

    /// Returns the sharding of elementwise operations. In each dimension the operands that split it must have equal
    /// entries, and others can leave it unsplit.
    ///
    /// # Errors
    /// Returns an error if two operands are split differently along one dimension.
    pub fn join(&self) -> Result<TypedOuts> {
        let rank = self.outs[0].rank();
        // Operands of another rank are numbers, which fit any sharding.
        let shardings = self.args.iter().filter(|a| a.rank() == rank).filter_map(Aval::sharding);
        match joined(&self.mesh, rank, shardings.clone()) {
            Some(typed) => Ok(smallvec![typed; self.outs.len()]),
            None => {
                let specs: Vec<String> = shardings.map(|t| t.spec().to_string()).collect();
                Err(self.error(
                    format_args!(
                        "got incompatible shardings for broadcasting: {}, for operands of type {}",
                        specs.join(" and "),
                        self.types()
                    ),
                    "reshard the operands to one sharding with `reshard(x, spec)`",
                ))
            }
        }
    }

    /// Returns the sharding of operand 0 without these dimensions.
    ///
    /// # Errors
    /// This method never fails. It returns a `Result` so that it can be the last expression of a rule.
    pub fn drop(&self, dims: &[usize]) -> Result<TypedOuts> {
        let typed = self.arg(0);
        let entries = (0..typed.rank()).filter(|d| !dims.contains(d)).map(|d| typed.dims()[d].clone());
        let entries = Typed::from_dims(&self.mesh, entries.collect());
        Ok(smallvec![entries; self.outs.len()])
    }

    /// Returns the sharding of operand 0 with permuted dimensions: dimension `permutation[i]` becomes dimension `i`.
    ///
    /// # Errors
    /// This method never fails. It returns a `Result` so that it can be the last expression of a rule.
    pub fn moved(&self, permutation: &[usize]) -> Result<TypedOuts> {
        self.dims(permutation.iter().map(|&d| self.entry(0, d)))
    }

    /// Returns the sharding of operand 0, if the sizes of some dimensions change.
    ///
    /// # Errors
    /// Returns an error if the axes of such a dimension do not divide its new size.
    pub fn resized(&self) -> Result<TypedOuts> {
        let typed = self.arg(0);
        let (from, to) = (&self.args[0], &self.outs[0]);
        for d in 0..from.rank().min(to.rank()) {
            let parts = typed.parts(d);
            if from.shape[d] != to.shape[d] && to.shape[d] % parts != 0 {
                return Err(self.error(
                    format_args!(
                        "on sharded dims where out dim ({}) is not divisible by mesh axes ({parts}) with spec ({}) is not implemented. Got operand type {from} and out shape {:?}",
                        to.shape[d],
                        typed.dims()[d].axes().iter().map(|n| n.as_str()).collect::<Vec<_>>().join(","),
                        to.shape.as_slice()
                    ),
                    REPLICATE,
                ));
            }
        }
        self.like(0)
    }

    /// Checks that these dimensions of operand `i` are not split.
    ///
    /// # Errors
    /// Returns an error if one of these dimensions of operand `i` is split.
    pub fn check_unsharded(&self, i: usize, dims: impl IntoIterator<Item = usize>) -> Result<()> {
        for d in dims {
            if self.entry(i, d) != DimSpec::None {
                return Err(self.error(
                    format_args!("dimension {d} must not be sharded, and is in operand {i} of type {}", self.args[i]),
                    REPLICATE,
                ));
            }
        }
        Ok(())
    }

    /// Returns the rule of operations on the last `k` dimensions of each operand. These dimensions must not be split,
    /// and the operands must split the others alike.
    ///
    /// # Errors
    /// Returns an error if one of the last `k` dimensions is split, or if two operands split a batch dimension
    /// differently.
    pub fn batch_only(&self, k: usize) -> Result<TypedOuts> {
        for (i, arg) in self.args.iter().enumerate().filter(|(_, arg)| arg.rank() >= k) {
            self.check_unsharded(i, arg.rank() - k..arg.rank())?;
        }
        let batch = self.batches(|_| k)?;
        let mut shardings = TypedOuts::new();
        for out in self.outs {
            let dims = (0..out.rank()).map(|d| batch.get(d).cloned().unwrap_or_default()).collect();
            shardings.push(Typed::from_dims(&self.mesh, dims));
        }
        Ok(shardings)
    }

    /// Like [`batch_only`](Self::batch_only), if the last `unbatched[i]` dimensions of operand `i` do not belong to the
    /// batch. The result is like operand `like`, whose last dimension can be split.
    ///
    /// # Errors
    /// Returns an error if a dimension that does not belong to the batch is split, because the operation would need
    /// its other parts, or if the operands split the batch differently.
    pub fn check_batches(&self, unbatched: &[usize], like: usize) -> Result<TypedOuts> {
        let last_dim = self.args[like].rank().saturating_sub(1);
        for (i, (arg, unbatched)) in self.args.iter().zip(unbatched).enumerate() {
            let batch_rank = arg.rank().saturating_sub(*unbatched);
            self.check_unsharded(i, (batch_rank..arg.rank()).filter(|d| i != like || *d != last_dim))?;
        }
        let batch = self.batches(|i| unbatched[i])?;
        let core_entries = (batch.len()..self.args[like].rank()).map(|d| self.entry(like, d));
        self.dims(batch.iter().cloned().chain(core_entries))
    }

    /// Returns the entries of the batch dimensions, which are all dimensions of operand `i` except the last
    /// `unbatched(i)`. An operand can leave a dimension unsplit that others split.
    ///
    /// # Errors
    /// Returns an error if two operands split a batch dimension over different axes. You can reshard one of them
    /// first.
    pub fn batches(&self, unbatched: impl Fn(usize) -> usize) -> Result<SmallVec<[DimSpec; 4]>> {
        let mut batch: SmallVec<[DimSpec; 4]> = SmallVec::new();
        for (i, arg) in self.args.iter().enumerate() {
            let batch_rank = arg.rank().saturating_sub(unbatched(i));
            batch.resize(batch.len().max(batch_rank), DimSpec::None);
            for (d, known) in batch.iter_mut().enumerate().take(batch_rank) {
                let entry = self.entry(i, d);
                if *known != DimSpec::None && entry != DimSpec::None && *known != entry {
                    return Err(self.error(
                        format_args!("batch dimensions must be sharded alike, got {}", self.types()),
                        "reshard the operands to one sharding with `reshard(x, spec)`",
                    ));
                }
                if entry != DimSpec::None {
                    *known = entry;
                }
            }
        }
        Ok(batch)
    }

    /// Returns the common sharding of these operands. Ignores numbers and operands without a sharding.
    ///
    /// # Errors
    /// Returns an error that names both types if two of the operands are sharded differently.
    pub fn common(&self, operands: Range<usize>, what: &str) -> Result<Typed> {
        let rank = self.args[operands.clone()].iter().map(Aval::rank).max().unwrap_or(0);
        let mut sharded = self.args[operands].iter().filter(|a| a.sharding().is_some() && (a.rank() > 0 || rank == 0));
        let Some(operand) = sharded.next() else { return Ok(Typed::replicated(&self.mesh, rank)) };
        if let Some(other) = sharded.find(|a| a.sharding() != operand.sharding()) {
            return Err(self.error(
                format_args!("{what} must have the same sharding, got {operand} and {other}"),
                "reshard the operands to one sharding with `reshard(x, spec)`",
            ));
        }
        Ok(typed(&self.mesh, operand).without_partial())
    }

    /// Returns one result with the requested sharding.
    ///
    /// # Errors
    /// Returns an error if the sharding is over another mesh than the context's or the operands'.
    pub fn requested(&self, out: &Typed) -> Result<TypedOuts> {
        if *out.mesh() != self.mesh {
            return Err(err!(
                Value,
                "{}: the mesh of out_sharding is {}, and that of the context or of the operands {}",
                self.name,
                out.mesh(),
                self.mesh
            )
            .help("pass only the PartitionSpec, which is then over the context mesh"));
        }
        Ok(smallvec![out.clone()])
    }

    /// Returns the sharding of operand 0 after a reshape. Dimensions that are kept, split or merged keep their axes if
    /// no element has to move to another device.
    ///
    /// # Errors
    /// Returns an error if elements would have to move between devices. You can pass an `out_sharding` to request
    /// this.
    pub fn reshaped(&self, shape: &[usize]) -> Result<TypedOuts> {
        let typed = self.arg(0);
        let from = &self.args[0].shape;
        let mut out: SmallVec<[DimSpec; 4]> = smallvec![DimSpec::None; shape.len()];
        if typed.dims().iter().all(|entry| *entry == DimSpec::None) {
            return self.dims(out);
        }
        if from.contains(&0) {
            // There are no elements to move, so leading and trailing dimensions that do not change keep their entries.
            let leading = from.iter().zip(shape).take_while(|(old, new)| old == new).count();
            let trailing = from.iter().rev().zip(shape.iter().rev()).take_while(|(old, new)| old == new).count();
            let (old_end, new_end) = (from.len() - trailing, shape.len() - trailing);
            out[..leading].clone_from_slice(&typed.dims()[..leading]);
            out[new_end..].clone_from_slice(&typed.dims()[old_end..]);
            return self.dims(out);
        }
        // Pair runs of dimensions with as many elements on both sides. Dimensions of size 1 are in no run.
        let old: Vec<usize> = (0..from.len()).filter(|&d| from[d] != 1).collect();
        let new: Vec<usize> = (0..shape.len()).filter(|&d| shape[d] != 1).collect();
        let (mut i, mut j) = (0, 0);
        while i < old.len() && j < new.len() {
            keep_ones(typed.dims(), &mut out, ones_before(&old, i, from.len()), ones_before(&new, j, shape.len()));
            let (first_old, first_new) = (i, j);
            let (mut a, mut b) = (from[old[i]], shape[new[j]]);
            while a != b {
                if a < b { (i, a) = (i + 1, a * from[old[i + 1]]) } else { (j, b) = (j + 1, b * shape[new[j + 1]]) }
            }
            (i, j) = (i + 1, j + 1);
            let (olds, news) = (&old[first_old..i], &new[first_new..j]);
            let mut entries = olds.iter().map(|&d| &typed.dims()[d]);
            match (olds, news) {
                ([o], [n]) => out[*n] = typed.dims()[*o].clone(),
                _ if entries.clone().all(|entry| *entry == DimSpec::None) => {}
                ([o], news) => self.split_axes(typed.dims()[*o].axes(), shape, news, &mut out)?,
                (_, [n]) => {
                    out[*n] = entry(entries.clone().flat_map(|entry| entry.axes().iter().copied()));
                    // An axis after an unsplit dimension would require moving data.
                    if entries.any(|entry| *entry == DimSpec::None) && entries.any(|entry| *entry != DimSpec::None) {
                        return Err(self.reshape_error(shape));
                    }
                }
                _ => return Err(self.reshape_error(shape)),
            }
        }
        keep_ones(typed.dims(), &mut out, ones_before(&old, i, from.len()), ones_before(&new, j, shape.len()));
        self.dims(out)
    }

    /// Distributes the axes of a dimension over the dimensions `parts` that it is split into, outermost first.
    fn split_axes(&self, mut axes: &[AxisName], shape: &[usize], parts: &[usize], out: &mut [DimSpec]) -> Result<()> {
        for &n in parts {
            let mut part_size = shape[n];
            let mut part_axes: SmallVec<[_; 2]> = SmallVec::new();
            while let Some((&axis, inner_axes)) = axes.split_first() {
                let size = self.mesh.axis_size(axis).unwrap_or(1);
                if !part_size.is_multiple_of(size) {
                    break;
                }
                part_axes.push(axis);
                (part_size, axes) = (part_size / size, inner_axes);
            }
            out[n] = entry(part_axes);
            // Inner dimensions can be split only if the outer ones are split in full.
            if !axes.is_empty() && part_size != 1 {
                return Err(self.reshape_error(shape));
            }
        }
        if axes.is_empty() { Ok(()) } else { Err(self.reshape_error(shape)) }
    }

    fn reshape_error(&self, shape: &[usize]) -> Error {
        self.error(
            format_args!(
                "the sharding of the result cannot be inferred: operand of type {} to new sizes {shape:?}",
                self.args[0]
            ),
            "pass the sharding with `x.reshape_sharded(shape, spec)`, or gather dimensions first with \
             `reshard(x, spec)`",
        )
    }

    /// The operation that combines the unreduced operands. Fails if operands differ in it, or if it is not a sum and
    /// `accepts` rejects it.
    fn kind_of_operands(&self, accepts: impl FnOnce(UnreducedKind) -> bool) -> Result<UnreducedKind> {
        let mut kinds =
            self.args.iter().filter_map(Aval::sharding).filter(|t| !t.unreduced().is_empty()).map(Typed::kind);
        let Some(kind) = kinds.next() else { return Ok(UnreducedKind::Sum) };
        if kinds.any(|other| other != kind) {
            return Err(self.error(
                format_args!("unreduced operands must have the same unreduced_kind, got {}", self.types()),
                "combine the operands with `reshard(x, P![..])` first",
            ));
        }
        if kind != UnreducedKind::Sum && !accepts(kind) {
            return Err(self.error(
                format_args!(
                    "operands with the unreduced_kind {} are not supported, got {}",
                    kind.name(),
                    self.types()
                ),
                "combine them with `reshard(x, P![..])` first, or inside of `shard_map` with `pmax` or `pmin`",
            ));
        }
        Ok(kind)
    }

    /// Returns the unreduced and reduced axes of a product. If one operand is unreduced over the axes over which the
    /// other is reduced, the result stays unreduced over them.
    ///
    /// # Errors
    /// Returns an error if the operands are unreduced or reduced over axes that do not match in a product.
    pub fn product_partial(&self) -> Result<PartialAxes> {
        let (a, b) = (self.arg(0), self.arg(1));
        match () {
            () if is_partial_product(&a, &b) => Ok((a.unreduced().clone(), AxisSet::default())),
            () if is_partial_product(&b, &a) => Ok((b.unreduced().clone(), AxisSet::default())),
            () => self.keep_reduced(),
        }
    }

    /// Returns the unreduced and reduced axes of operations that move or add elements. All operands must have the same
    /// axes, and the result keeps them.
    ///
    /// # Errors
    /// Returns an error if the operands are unreduced or reduced over different axes.
    pub fn keep_partial(&self) -> Result<PartialAxes> {
        self.keep_partial_of(self.args)
    }

    /// Like [`keep_partial`](Self::keep_partial), for the operands in `args`, which hold values. The other operands are
    /// indices, which are not part of a sum.
    ///
    /// # Errors
    /// Returns an error if these operands are unreduced or reduced over different axes.
    pub fn keep_partial_of(&self, args: &[Aval]) -> Result<PartialAxes> {
        let mut common_axes: Option<PartialAxes> = None;
        // Numbers are skipped, because devices have no different addends or cotangents of them.
        for arg in args.iter().filter(|a| a.rank() > 0 || a.sharding().is_some_and(Typed::is_partial)) {
            let partial_axes =
                arg.sharding().map_or_else(Default::default, |t| (t.unreduced().clone(), t.reduced().clone()));
            match &common_axes {
                Some(other) if *other != partial_axes => {
                    return Err(self.error(
                        format_args!("operands must be unreduced and reduced over the same axes, got {}", self.types()),
                        "reshard the operands to the same unreduced and reduced axes with `reshard(x, spec)`, or inside of `shard_map` with `pcast_to`",
                    ));
                }
                _ => common_axes = Some(partial_axes),
            }
        }
        let common_axes = common_axes.unwrap_or_default();
        // A number next to addends would be added once per addend.
        if !common_axes.0.is_empty() && args.iter().any(|a| !a.sharding().is_some_and(Typed::is_partial)) {
            return Err(self.error(
                format_args!("a number does not go with unreduced operands, got {}", self.types()),
                "sum them with `reshard(x, P![..])` first",
            ));
        }
        Ok(common_axes)
    }

    /// Returns the unreduced and reduced axes of operand 0.
    ///
    /// # Errors
    /// This method never fails. It returns a `Result` so that it can be the last expression of a rule.
    pub fn keep_partial_of_first(&self) -> Result<PartialAxes> {
        let typed = self.arg(0);
        Ok((typed.unreduced().clone(), typed.reduced().clone()))
    }

    /// Like [`keep_partial`](Self::keep_partial), for operations that are not additive. Operands can be reduced, but
    /// not unreduced.
    ///
    /// # Errors
    /// Returns an error if an operand is unreduced, or if the operands are reduced over different axes.
    pub fn keep_reduced(&self) -> Result<PartialAxes> {
        self.keep_reduced_of(self.args)
    }

    /// Like [`keep_reduced`](Self::keep_reduced), for the operands in `args`, which hold values.
    ///
    /// # Errors
    /// Returns an error if one of these operands is unreduced, or if they are reduced over different axes.
    pub fn keep_reduced_of(&self, args: &[Aval]) -> Result<PartialAxes> {
        if args.iter().filter_map(Aval::sharding).any(|t| !t.unreduced().is_empty()) {
            return Err(self.error(
                format_args!("unreduced operands are not supported, got {}", self.types()),
                "sum them with `reshard(x, P![..])` first",
            ));
        }
        let (_, reduced) = self.keep_partial_of(args)?;
        Ok((AxisSet::default(), reduced))
    }
}

/// Returns `true` if the product of addends over the axes of `a` and of values reduced over the same axes in `b` is
/// again an addend on each device.
fn is_partial_product(a: &Typed, b: &Typed) -> bool {
    !a.unreduced().is_empty() && a.unreduced() == b.reduced() && b.unreduced().is_empty()
}

/// Returns the dimensions of size 1 before the dimension `dims[index]`, where `dims` lists the other dimensions.
fn ones_before(dims: &[usize], index: usize, rank: usize) -> Range<usize> {
    let end = dims.get(index).copied().unwrap_or(rank);
    index.checked_sub(1).map_or(0, |before| dims[before] + 1)..end
}

/// Copies the entries of dimensions of size 1, which can be split over axes of size 1. They stay in order before the
/// run that follows.
fn keep_ones(dims: &[DimSpec], out: &mut [DimSpec], old: Range<usize>, new: Range<usize>) {
    for (o, n) in old.zip(new) {
        out[n] = dims[o].clone();
    }
}

fn typed(mesh: &AbstractMesh, aval: &Aval) -> Typed {
    aval.sharding().cloned().unwrap_or_else(|| Typed::replicated(mesh, aval.rank()))
}
