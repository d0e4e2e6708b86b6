//! General matrix multiplication: contraction and batch dimensions.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{add_tangents, dot_algorithm};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{
    BatchAxis, Dims, Operand, Outputs, PartialAxes, Primitive, ShardingRule, Tangents, TypedOuts,
};
use crate::core::program::trace::bind1;
use crate::core::program::{Aval, Flops};
use crate::dtype::{Category, DType, Format};
use crate::error::{Result, err};
use crate::precision::Precision;
use crate::shape::{AxisSet, Shape, sizes_are_open};
use crate::sharding::{DimSpec, PartitionSpec, Typed};

type Ints = SmallVec<[usize; 4]>;

/// `dot_general`: the result has the batch dimensions, then the free dimensions of `lhs`, then the free dimensions of `rhs`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DotGeneral {
    pub lhs_contract: Ints,
    pub rhs_contract: Ints,
    pub lhs_batch: Ints,
    pub rhs_batch: Ints,
    /// The dtype of the result, if not the operands'.
    pub preferred: Option<DType>,
    pub precision: Option<Precision>,
    /// The requested sharding of the result.
    pub out: Option<Arc<Typed>>,
    /// `true` if most elements of `rhs` are 0, as of the weights of an interpolation. Results are the same, but platforms can skip the
    /// zeros.
    pub is_rhs_sparse: bool,
}

pub(crate) fn free(rank: usize, contract: &[usize], batch: &[usize]) -> Vec<usize> {
    (0..rank).filter(|d| !contract.contains(d) && !batch.contains(d)).collect()
}

/// Half the number of real operations of a multiply-add in this dtype.
pub(super) fn parts(dtype: DType) -> f64 {
    if dtype.is_complex() { 4.0 } else { 1.0 }
}

/// The accumulation dtype for such operands: the preferred one, if it can hold their products.
pub(super) fn accumulated_in(name: &str, operand: &Aval, preferred: Option<DType>) -> Result<DType> {
    let Some(preferred) = preferred else { return Ok(operand.dtype) };
    let (from, to) = (operand.dtype.category(), preferred.category());
    // A kind accumulates in itself; integers also in floats, and unsigned integers also in signed ones.
    let kind = match from {
        Category::Bool => true,
        Category::Unsigned => to >= Category::Unsigned,
        Category::Signed => matches!(to, Category::Signed | Category::Float),
        other => to == other,
    };
    if !kind {
        return Err(err!(
            Type,
            "{name} of {operand}: Input type is incompatible with `preferred_element_type` {preferred}"
        )
        .help("integers can accumulate in integers of the same kind or in floating point, other dtypes only in their own kind"));
    }
    if preferred.byte_size() < operand.dtype.byte_size() {
        return Err(err!(
            Type,
            "{name} of {operand}: `preferred_element_type` {preferred} must not be narrower than the original type"
        )
        .help("convert the operands, or the result, with `astype`"));
    }
    Ok(preferred)
}

/// The operand whose dtype a product has by default. For operands of two float8 dtypes, it is the dtype with the larger
/// numbers.
fn wider<'a>(l: &'a Aval, r: &'a Aval) -> &'a Aval {
    if largest_number(r) > largest_number(l) { r } else { l }
}

fn largest_number(x: &Aval) -> f64 {
    Format::of(x.dtype).map_or(0.0, Format::max)
}

/// The spec of these dimensions.
fn spec_of_dims(typed: &Typed, dims: &[usize]) -> PartitionSpec {
    PartitionSpec::new(dims.iter().map(|&d| typed.dims()[d].clone()))
}

/// The positions for an operand with an additional dimension `d`.
fn shifted(dims: &[usize], d: usize) -> Ints {
    dims.iter().map(|&i| if i >= d { i + 1 } else { i }).collect()
}

/// The positions for an operand with an additional first dimension, which comes first.
fn prepended(dims: &[usize]) -> Ints {
    std::iter::once(0).chain(dims.iter().map(|i| i + 1)).collect()
}

fn are_distinct(a: &[usize], b: &[usize]) -> bool {
    let mut dims: Ints = a.iter().chain(b).copied().collect();
    dims.sort_unstable();
    dims.windows(2).all(|w| w[0] != w[1])
}

fn list(dims: &[usize]) -> String {
    dims.iter().map(|d| d.to_string()).collect::<Vec<_>>().join(", ")
}

impl DotGeneral {
    fn sharding(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        // The result has the shardings of the batch dimensions and of the free dimensions. If both operands are split along a
        // contracted dimension, the program must say where to sum.
        let (l, r) = (rule.arg(0), rule.arg(1));
        let (left, right) = (spec_of_dims(&l, &self.lhs_contract), spec_of_dims(&r, &self.rhs_contract));
        let contracted = left.dims().iter().zip(right.dims());
        let sharded_on_both_sides: Vec<_> =
            contracted.filter(|(a, b)| **a != DimSpec::None && **b != DimSpec::None).collect();
        if !l.unreduced().is_empty() || !r.unreduced().is_empty() {
            return Err(rule.error(
                format_args!("unreduced operands are not supported, got {}", rule.types()),
                "sum them with `reshard(x, P![..])` first",
            ));
        }
        if let Some(out) = &self.out {
            return requested_sharding(rule, out, [&left, &right]);
        }
        let mut dims = self.batch_entries(rule, [&l, &r])?;
        if sharded_on_both_sides.iter().any(|(a, b)| a != b) {
            return Err(rule.error(
                format_args!(
                    "contracting dimensions need to have consistent sharding, got lhs_contracting_spec={left} and rhs_contracting_spec={right} for operands of type {}",
                    rule.types()
                ),
                "reshard them to one sharding with `reshard(x, spec)`, or state the result's: `DotOptions::new().out_sharding(spec)`",
            ));
        }
        if !sharded_on_both_sides.is_empty() {
            return Err(rule.error(
                format_args!(
                    "contracting dimensions are sharded and it is ambiguous how the output should be sharded, got lhs_contracting_spec={left} and rhs_contracting_spec={right} for operands of type {}",
                    rule.types()
                ),
                "state the sharding of the result: `DotOptions::new().out_sharding(spec).matmul(&x, &y)`, or let the compiler choose, with a mesh of `make_mesh(axes)?.auto()`",
            ));
        }
        dims.extend(free(l.rank(), &self.lhs_contract, &self.lhs_batch).into_iter().map(|d| l.dims()[d].clone()));
        dims.extend(free(r.rank(), &self.rhs_contract, &self.rhs_batch).into_iter().map(|d| r.dims()[d].clone()));
        // A batch dimension that is split only in `rhs` stays split, unless another dimension has the axis.
        for (k, &j) in self.rhs_batch.iter().enumerate() {
            let entry = &r.dims()[j];
            let is_used = entry.axes().iter().any(|axis| dims.iter().any(|d| d.axes().contains(axis)));
            if dims[k] == DimSpec::None && !is_used {
                dims[k] = entry.clone();
            }
        }
        rule.dims(dims)
    }

    /// Returns the entries of the batch dimensions. Fails if both operands split one of them, but over different axes.
    fn batch_entries(&self, rule: &ShardingRule<'_>, [l, r]: [&Typed; 2]) -> Result<SmallVec<[DimSpec; 4]>> {
        let pairs = self.lhs_batch.iter().zip(&self.rhs_batch).map(|(&i, &j)| (&l.dims()[i], &r.dims()[j]));
        let mut entries = SmallVec::new();
        for (a, b) in pairs {
            if a != b && *a != DimSpec::None && *b != DimSpec::None {
                return Err(rule.error(
                    format_args!(
                        "batch dimensions need to have consistent sharding, got lhs_batch_spec={} and rhs_batch_spec={} for operands of type {}",
                        spec_of_dims(l, &self.lhs_batch),
                        spec_of_dims(r, &self.rhs_batch),
                        rule.types()
                    ),
                    "reshard them to one sharding with `reshard(x, spec)`",
                ));
            }
            entries.push(a.clone());
        }
        Ok(entries)
    }

    /// The attributes in StableHLO: the roles of the dimensions, and the precision.
    pub(crate) fn attributes(&self) -> String {
        format!(
            "dot_dimension_numbers = #stablehlo.dot<lhs_batching_dimensions = [{}], rhs_batching_dimensions = [{}], lhs_contracting_dimensions = [{}], rhs_contracting_dimensions = [{}]>, {}",
            list(&self.lhs_batch),
            list(&self.rhs_batch),
            list(&self.lhs_contract),
            list(&self.rhs_contract),
            Precision::config(self.precision)
        )
    }

    #[track_caller]
    pub fn apply(&self, lhs: &Array, rhs: &Array) -> Array {
        bind1(self.clone(), &[lhs.clone(), rhs.clone()])
    }

    /// The cotangent of one operand: the cotangent contracted over the other operand's free dimensions, `dA = dC Bᵀ`
    /// and `dB = Aᵀ dC`, or `dBᵀ = dCᵀ A` if that transposes less before the multiplication.
    fn operand_ct(&self, ct: &Array, other_operand: &Array, this: &Aval, is_lhs: bool) -> Array {
        let (this_contract, this_batch, other_contract, other_batch) = if is_lhs {
            (&self.lhs_contract, &self.lhs_batch, &self.rhs_contract, &self.rhs_batch)
        } else {
            (&self.rhs_contract, &self.rhs_batch, &self.lhs_contract, &self.lhs_batch)
        };
        let batch = self.lhs_batch.len();
        let this_free = free(this.rank(), this_contract, this_batch);
        let other_free = free(other_operand.ndim(), other_contract, other_batch);
        // In the cotangent, the free dimensions of `lhs` come before the free dimensions of `rhs`.
        let other_start = if is_lhs { batch + this_free.len() } else { batch };
        // If the result is wider than the operands, so are computations from its cotangent.
        let other_operand =
            &if other_operand.dtype() == ct.dtype() { other_operand.clone() } else { other_operand.astype(ct.dtype()) };
        let (of_ct, ct_batch): (Ints, Ints) =
            ((other_start..other_start + other_free.len()).collect(), (0..batch).collect());
        // The result is [batch, free of this, contracted of other in its order], or the latter two the other way round.
        let mut contracted: Vec<usize> = (0..this_contract.len()).collect();
        contracted.sort_by_key(|&i| other_contract[i]);
        let contracted = contracted.iter().map(|&i| this_contract[i]);
        // Transposing the smaller operand is cheaper. With symbolic sizes, programs must not depend on a comparison.
        let ct_first = is_lhs || !sizes_are_open() && ct.size() < other_operand.size();
        let order: Vec<usize> = if ct_first {
            this_batch.iter().copied().chain(this_free).chain(contracted).collect()
        } else {
            this_batch.iter().copied().chain(contracted).chain(this_free).collect()
        };
        // The cotangent has the operand's sharding.
        let typed = ct.aval_ref().and_then(Aval::sharding);
        let sharding = match this.sharding() {
            Some(this) => typed.map(|_| this.cotangent()),
            None => typed.map(|typed| Typed::replicated(typed.mesh(), this.rank())),
        };
        let out = sharding.map(|typed| Arc::new(typed.with_dims(order.iter().map(|&d| typed.dims()[d].clone()))));
        let other_free: Ints = other_free.iter().copied().collect();
        let (ct, other_operand) = ((ct, &of_ct, &ct_batch), (other_operand, &other_free, other_batch));
        let (lhs, rhs) = if ct_first { (ct, other_operand) } else { (other_operand, ct) };
        let dot = DotGeneral {
            lhs_contract: lhs.1.clone(),
            rhs_contract: rhs.1.clone(),
            lhs_batch: lhs.2.clone(),
            rhs_batch: rhs.2.clone(),
            preferred: None,
            precision: self.precision,
            out,
            // The cotangent of `lhs` is a product with the same matrix.
            is_rhs_sparse: self.is_rhs_sparse && is_lhs,
        };
        let out = dot.apply(lhs.0, rhs.0);
        let out = if out.dtype() == this.dtype { out } else { out.astype(this.dtype) };
        // Brings the dimensions into the operand's order.
        let mut permutation = vec![0; order.len()];
        for (i, &d) in order.iter().enumerate() {
            permutation[d] = i;
        }
        crate::ops::lax::transpose(&out, &permutation)
    }
}

impl Primitive for DotGeneral {
    fn name(&self) -> &'static str {
        "dot_general"
    }

    fn print_params(&self) -> String {
        let mut text = format!(
            "dimension_numbers=(({:?},{:?}),({:?},{:?}))",
            self.lhs_contract, self.rhs_contract, self.lhs_batch, self.rhs_batch
        );
        if let Some(d) = self.preferred {
            text.push_str(&format!(" preferred_element_type={d}"));
        }
        if let Some(p) = self.precision {
            text.push_str(&format!(" precision={p:?}"));
        }
        if let Some(out) = &self.out {
            text.push_str(&format!(" out_sharding={}", out.spec()));
        }
        text
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (l, r) = (&args[0], &args[1]);
        if l.dtype != r.dtype && !(l.dtype.is_float8() && r.dtype.is_float8()) {
            return Err(err!(Type, "dot_general requires arguments to have the same dtypes, got {l} and {r}")
                .help("convert one of them with `astype`, or use `dot`, which promotes"));
        }
        let in_range = self.lhs_contract.iter().chain(&self.lhs_batch).all(|&d| d < l.rank())
            && self.rhs_contract.iter().chain(&self.rhs_batch).all(|&d| d < r.rank())
            && self.lhs_contract.len() == self.rhs_contract.len()
            && self.lhs_batch.len() == self.rhs_batch.len();
        if !in_range {
            return Err(err!(
                Index,
                "dot_general dimension numbers {} are out of range for {l} and {r}",
                self.print_params()
            )
            .help("pass dimensions of the operands, as many on the left as on the right"));
        }
        // Shapes are compared only after the numbers of dimensions have been checked, because they index the shapes.
        if !are_distinct(&self.lhs_contract, &self.lhs_batch) || !are_distinct(&self.rhs_contract, &self.rhs_batch) {
            return Err(err!(
                Value,
                "dot_general contracting and batch dimensions must be distinct, got {} for {l} and {r}",
                self.print_params()
            )
            .help("name each dimension of an operand at most once"));
        }
        for (what, a, b) in
            [("contracting", &self.lhs_contract, &self.rhs_contract), ("batch", &self.lhs_batch, &self.rhs_batch)]
        {
            if a.iter().zip(b).any(|(&i, &j)| l.shape[i] != r.shape[j]) {
                let l_sizes: Vec<usize> = a.iter().map(|&i| l.shape[i]).collect();
                let r_sizes: Vec<usize> = b.iter().map(|&i| r.shape[i]).collect();
                return Err(err!(
                    Type,
                    "dot_general requires {what} dimensions to have equal shapes, got {l_sizes:?} and {r_sizes:?} (operands {l} and {r})"
                )
                .help("for a matrix product the last dimension of the left operand must equal the second to last of the right"));
            }
        }
        let mut shape: Shape = self.lhs_batch.iter().map(|&d| l.shape[d]).collect();
        shape.extend(free(l.rank(), &self.lhs_contract, &self.lhs_batch).into_iter().map(|d| l.shape[d]));
        shape.extend(free(r.rank(), &self.rhs_contract, &self.rhs_batch).into_iter().map(|d| r.shape[d]));
        let dtype = accumulated_in("dot_general", wider(l, r), self.preferred)?;
        Ok(smallvec![Aval { weak: l.weak && r.weak && dtype == l.dtype, ..Aval::new(dtype, shape) }])
    }

    /// A multiply-add for each element of the result and of the contracted dimensions.
    fn flops(&self, args: &[Aval], outs: &[Aval]) -> Flops {
        let contracted: f64 = self.lhs_contract.iter().map(|&d| args[0].shape[d] as f64).product();
        Flops::from_matmuls(2.0 * contracted * outs[0].size() as f64 * parts(args[0].dtype))
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        self.sharding(rule)
    }

    fn partial_rule(&self, _rule: &ShardingRule<'_>) -> Result<PartialAxes> {
        Ok(Default::default())
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        if let Some(Precision::Algorithm(preset)) = self.precision {
            return Ok(vec![dot_algorithm::lower(self, preset, cx, args, &outs[0])?]);
        }
        let product = cx.op("stablehlo.dot_general", args, &self.attributes(), &outs[0]);
        // The partitioner returns wrong rows if the result is needed with rows split over another axis than the operands'.
        // The barrier before another split would also keep the partitioner from leaving the addends unsummed.
        let is_unreduced = outs[0].sharding().is_some_and(|sharding| !sharding.unreduced().is_empty());
        let follows_operands = !self.lhs_batch.is_empty() && !is_unreduced && cx.has_quirk("products-that-change-axes");
        Ok(vec![if follows_operands { cx.split_as_operands(product) } else { product }])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = self.apply(&args[0], &args[1]);
        let l = tangents[0].as_ref().map(|t| self.apply(t, &args[1]));
        let r = tangents[1].as_ref().map(|t| self.apply(&args[0], t));
        Ok((smallvec![out], vec![add_tangents(l, r)]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None, None]) };
        match (&args[0], &args[1]) {
            (Operand::Linear(l), Operand::NonLinear(r)) => Ok(vec![Some(self.operand_ct(ct, r, l, true)), None]),
            (Operand::NonLinear(l), Operand::Linear(r)) => Ok(vec![None, Some(self.operand_ct(ct, l, r, false))]),
            _ => Err(err!(NotImplemented, "transpose of a product of two linear values")
                .help("the function is not linear: use `vjp`, or capture one of the two factors")),
        }
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        // A dimension that both operands are batched over becomes a batch dimension; otherwise it is a free one.
        match (dims[0], dims[1]) {
            (Some(_), Some(_)) => {
                let l = axis.moved(&args[0], dims[0], 0);
                let r = axis.moved(&args[1], dims[1], 0);
                let out = DotGeneral {
                    lhs_contract: shifted(&self.lhs_contract, 0),
                    rhs_contract: shifted(&self.rhs_contract, 0),
                    lhs_batch: prepended(&self.lhs_batch),
                    rhs_batch: prepended(&self.rhs_batch),
                    preferred: self.preferred,
                    precision: self.precision,
                    out: axis.out(&self.out, 0)?,
                    is_rhs_sparse: self.is_rhs_sparse,
                };
                Ok((smallvec![out.apply(&l, &r)], vec![Some(0)]))
            }
            (Some(d), None) => {
                let out = DotGeneral {
                    lhs_contract: shifted(&self.lhs_contract, d),
                    lhs_batch: shifted(&self.lhs_batch, d),
                    ..self.clone()
                };
                let free = free(args[0].ndim(), &out.lhs_contract, &out.lhs_batch);
                let position = free.iter().position(|&f| f == d).unwrap_or(0) + self.lhs_batch.len();
                let out = DotGeneral { out: axis.out(&self.out, position)?, ..out };
                Ok((smallvec![out.apply(&args[0], &args[1])], vec![Some(position)]))
            }
            (None, d) => {
                let d = d.unwrap_or(0);
                let out = DotGeneral {
                    rhs_contract: shifted(&self.rhs_contract, d),
                    rhs_batch: shifted(&self.rhs_batch, d),
                    ..self.clone()
                };
                let lhs_free = free(args[0].ndim(), &out.lhs_contract, &out.lhs_batch).len();
                let rhs_free = free(args[1].ndim(), &out.rhs_contract, &out.rhs_batch);
                let position = rhs_free.iter().position(|&f| f == d).unwrap_or(0) + self.lhs_batch.len() + lhs_free;
                let out = DotGeneral { out: axis.out(&self.out, position)?, ..out };
                Ok((smallvec![out.apply(&args[0], &args[1])], vec![Some(position)]))
            }
        }
    }
}

/// Returns the requested sharding of a product whose contracting dimensions have these specs.
fn requested_sharding(rule: &ShardingRule<'_>, out: &Typed, [left, right]: [&PartitionSpec; 2]) -> Result<TypedOuts> {
    let summed: AxisSet = left.all_axes().collect();
    if !out.unreduced().is_empty() && (left != right || *out.unreduced() != summed) {
        let problem = match left == right {
            false => "unreduced axes need contracting dimensions that are sharded identically",
            true => "unreduced axes of out_sharding must be those of the contracting dimensions",
        };
        return Err(rule.error(
            format_args!(
                "{problem}: got out_sharding {}, lhs_contracting_spec={left} and rhs_contracting_spec={right} for operands of type {}",
                out.spec(),
                rule.types()
            ),
            "name in `unreduced` exactly the axes that both contracting dimensions are split over",
        ));
    }
    rule.requested(out)
}
