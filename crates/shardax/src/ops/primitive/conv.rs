//! General convolution: any rank, layout, stride, padding, dilation and grouping.

use std::fmt::Write as _;

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::add_tangents;
use super::dot::accumulated_in;
use super::slices::Reverse;
use super::unary::{IMAG, REAL};
use super::window::{self, WindowDim};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value, bools};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::trace::{bind1, infer};
use crate::core::program::{Aval, Flops};
use crate::dtype::DType;
use crate::error::{Result, bail, err};
use crate::interpret::batching::move_batch;
use crate::ops::auto_axes::with_auto_axes;
use crate::ops::lax::complex;
use crate::precision::Precision;
use crate::shape::{Shape, size};
use crate::sharding::{DimSpec, Typed};

/// The dimension numbers of an array: batch and feature (of a kernel: output and input feature), then the
/// spatial ones.
pub(crate) type Spec = SmallVec<[usize; 5]>;

/// `conv_general_dilated`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConvGeneralDilated {
    /// One entry per spatial dimension.
    pub window: SmallVec<[WindowDim; 2]>,
    pub lhs: Spec,
    pub rhs: Spec,
    pub out: Spec,
    pub feature_group_count: usize,
    pub batch_group_count: usize,
    /// The dtype of the result, if not the operands'.
    pub preferred: Option<DType>,
    pub precision: Option<Precision>,
    /// The requested sharding of the result.
    pub out_sharding: Option<Arc<Typed>>,
}

/// The spec with its first two entries exchanged.
fn swapped(spec: &Spec) -> Spec {
    let mut spec = spec.clone();
    spec.swap(0, 1);
    spec
}

/// Merges axis `axis` into dimension `dim` of the other axes, which consists of `outer` groups: it is inserted between
/// the groups and their contents.
fn fold(x: &Array, axis: usize, dim: usize, outer: usize) -> Array {
    let count = x.shape()[axis];
    let mut shape: Shape = x.shape().into();
    shape.remove(axis);
    let merged = {
        let mut merged = shape.clone();
        merged[dim] *= count;
        merged
    };
    let placed = if outer == 1 {
        move_batch(x, Some(axis), dim, count)
    } else {
        shape[dim] /= outer;
        shape.insert(dim, outer);
        shape.insert(0, count);
        move_batch(x, Some(axis), 0, count).reshape(shape.as_slice()).moveaxis(0, dim as i32 + 1)
    };
    placed.reshape(merged.as_slice())
}

/// The inverse of [`fold`]: the array with the `count` entries on a separate axis, and the position of that axis.
fn unfold(x: &Array, dim: usize, outer: usize, count: usize) -> (Array, usize) {
    let mut shape: Shape = x.shape().into();
    shape[dim] /= count;
    let inner = shape[dim] / outer;
    if outer == 1 {
        shape.insert(dim, count);
        return (x.reshape(shape.as_slice()), dim);
    }
    let mut split = shape.clone();
    split[dim] = inner;
    split.insert(dim, count);
    split.insert(dim, outer);
    shape.insert(0, count);
    (x.reshape(split.as_slice()).moveaxis(dim as i32 + 1, 0).reshape(shape.as_slice()), 0)
}

/// The dimensions of an array in order: the names of its first two, and the numbers of the spatial ones.
fn layout_text(spec: &Spec, names: [&str; 2]) -> String {
    let mut parts = vec![String::new(); spec.len()];
    for (i, &d) in spec.iter().enumerate() {
        parts[d] = if i < 2 { names[i].to_owned() } else { (i - 2).to_string() };
    }
    parts.join(", ")
}

/// The sharding of the cotangent of `operand` that is computed from `ct`.
fn cotangent_sharding(ct: &Array, operand: &Aval) -> Option<Arc<Typed>> {
    let typed = ct.aval_ref()?.sharding()?;
    Some(operand.cotangent().sharding.unwrap_or_else(|| Arc::new(Typed::replicated(typed.mesh(), operand.rank()))))
}

impl ConvGeneralDilated {
    #[track_caller]
    pub fn apply(&self, lhs: &Array, rhs: &Array) -> Array {
        bind1(self.clone(), &[lhs.clone(), rhs.clone()])
    }

    /// A convolution of complex numbers as four of their real and imaginary parts.
    pub(crate) fn by_real_parts(&self, lhs: &Array, rhs: &Array) -> Array {
        let conv = ConvGeneralDilated { preferred: self.preferred.map(DType::real), ..self.clone() };
        let ([lr, li], [rr, ri]) = ([REAL, IMAG].map(|part| part.apply(lhs)), [REAL, IMAG].map(|part| part.apply(rhs)));
        let out = conv.apply(&lr, &rr) - conv.apply(&li, &ri);
        complex(&out, &(conv.apply(&lr, &ri) + conv.apply(&li, &rr)))
    }

    /// The windows of the spatial dimensions, mapped by `f` with the operand's, kernel's and result's sizes.
    fn moved(
        &self,
        lhs: &[usize],
        rhs: &[usize],
        out: &[usize],
        f: fn(WindowDim, usize, usize, usize) -> WindowDim,
    ) -> SmallVec<[WindowDim; 2]> {
        let sizes = self.lhs[2..].iter().zip(&self.rhs[2..]).zip(&self.out[2..]);
        self.window.iter().zip(sizes).map(|(w, ((&l, &r), &o))| f(*w, lhs[l], rhs[r], out[o])).collect()
    }

    fn sharding(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        if let Some(out) = &self.out_sharding {
            return rule.requested(out);
        }
        let (x, kernel) = (rule.arg(0), rule.arg(1));
        if !kernel.is_replicated() || x.dims()[self.lhs[1]] != DimSpec::None {
            return Err(rule.error(
                format_args!(
                    "the kernel and the input's features must not be sharded, got operands of type {}",
                    rule.types()
                ),
                "gather them with `reshard(x, spec)`, or compute in `auto_axes(f).out_sharding(spec)`",
            ));
        }
        // The batch and each spatial dimension keep their axes, wherever they are in the result.
        let mut dims: SmallVec<[DimSpec; 4]> = smallvec![DimSpec::None; x.rank()];
        for (&from, &to) in self.lhs.iter().zip(&self.out).enumerate().filter(|(i, _)| *i != 1).map(|(_, dims)| dims) {
            let parts = x.parts(from);
            let size = rule.outs()[0].shape[to];
            if !size.is_multiple_of(parts) {
                return Err(rule.error(
                    format_args!(
                        "on sharded dims where out dim ({size}) is not divisible by mesh axes ({parts}) is not implemented. Got operand type {}",
                        rule.args()[0]
                    ),
                    "gather the dimension first with `reshard(x, spec)`",
                ));
            }
            dims[to] = x.dims()[from].clone();
        }
        rule.dims(dims)
    }

    /// The cotangent of `lhs`: convolve the cotangent with the kernel reversed and its features exchanged.
    fn lhs_ct(&self, ct: &Array, lhs: &Aval, rhs: &Array) -> Array {
        let long = self.rhs[2..].iter().copied().filter(|&d| rhs.shape()[d] > 1).collect::<SmallVec<_>>();
        let mut kernel =
            if long.is_empty() { rhs.clone() } else { bind1(Reverse { dims: long }, std::slice::from_ref(rhs)) };
        let groups = self.feature_group_count.max(self.batch_group_count);
        if groups > 1 {
            // The groups of the output features become groups of the new output features, which are the old input features.
            let (split, axis) = unfold(&kernel, self.rhs[0], 1, groups);
            kernel = fold(&split, axis, self.rhs[1], 1);
        }
        let transposed = ConvGeneralDilated {
            window: self.moved(&lhs.shape, rhs.shape(), ct.shape(), WindowDim::to_operand),
            lhs: self.out.clone(),
            rhs: swapped(&self.rhs),
            out: self.lhs.clone(),
            feature_group_count: groups,
            batch_group_count: 1,
            preferred: None,
            precision: self.precision,
            out_sharding: cotangent_sharding(ct, lhs).filter(|_| self.batch_group_count == 1),
        };
        let out = transposed.apply(ct, &kernel);
        if self.batch_group_count == 1 {
            return out;
        }
        let (split, axis) = unfold(&out, self.lhs[1], 1, groups);
        fold(&split, axis, self.lhs[0], 1)
    }

    /// The convolution of a batch of `n`, and the dimension of the batch in the result.
    fn batched(&self, n: usize, args: &[Array], dims: &[Option<usize>]) -> (Array, Option<usize>) {
        let (groups, batch_groups) = (self.feature_group_count, self.batch_group_count);
        let (out, at) = match (dims[0], dims[1]) {
            // Batched inputs and one kernel: a larger batch.
            (Some(l), None) => {
                let out = self.apply(&fold(&args[0], l, self.lhs[0], batch_groups), &args[1]);
                unfold(&out, self.out[0], 1, n)
            }
            // Batched kernels and one input: more output features.
            (None, Some(r)) => {
                let outer = groups.max(batch_groups);
                let out = self.apply(&args[0], &fold(&args[1], r, self.rhs[0], outer));
                unfold(&out, self.out[1], outer, n)
            }
            // Both batched: one group per entry.
            (Some(l), Some(r)) => {
                let (into, conv) = if batch_groups > 1 {
                    (self.lhs[0], ConvGeneralDilated { batch_group_count: batch_groups * n, ..self.clone() })
                } else {
                    (self.lhs[1], ConvGeneralDilated { feature_group_count: groups * n, ..self.clone() })
                };
                let out = conv.apply(&fold(&args[0], l, into, 1), &fold(&args[1], r, self.rhs[0], 1));
                unfold(&out, self.out[1], 1, n)
            }
            (None, None) => return (self.apply(&args[0], &args[1]), None),
        };
        (out, Some(at))
    }

    /// The convolution of a batch that is split over `Explicit` axes, unless the rule for a larger batch covers it.
    ///
    /// A requested sharding is the sharding of one entry. Kernels of a batch become groups of features, which must not be
    /// split, so that the compiler chooses how these are computed.
    fn batched_explicitly(
        &self,
        axis: &BatchAxis,
        args: &[Array],
        dims: &[Option<usize>],
    ) -> Result<Option<(Array, Option<usize>)>> {
        let is_larger_batch = dims[1].is_none() && self.batch_group_count == 1;
        if is_larger_batch && self.out_sharding.is_none() {
            return Ok(None);
        }
        let entries: Vec<Aval> = args
            .iter()
            .zip(dims)
            .map(|(x, dim)| dim.map_or_else(|| x.aval(), |dim| x.aval().without_dim(dim)))
            .collect();
        let entry = infer(self, &entries)?.swap_remove(0);
        let Some(typed) = entry.sharding() else { return Ok(None) };
        let batch = axis.inserted(typed, 0)?;
        let plain = ConvGeneralDilated { out_sharding: None, ..self.clone() };
        if is_larger_batch {
            let mut merged: SmallVec<[DimSpec; 4]> = typed.dims().into();
            let axes = axis.explicit.axes().iter().chain(merged[self.out[0]].axes()).copied();
            merged[self.out[0]] = axes.collect();
            let out_sharding = Some(Arc::new(typed.with_dims(merged)));
            return Ok(Some(ConvGeneralDilated { out_sharding, ..plain }.batched(axis.size, args, dims)));
        }
        let like = entry.with_dim(0, axis.size, DimSpec::None).with_sharding(Some(batch));
        let out = with_auto_axes(&[&args[0], &args[1]], &like, |args| {
            let (out, at) = plain.batched(axis.size, args, dims);
            Ok(at.map_or_else(|| out.clone(), |at| move_batch(&out, Some(at), 0, axis.size)))
        })?;
        Ok(Some((out, Some(0))))
    }

    /// The cotangent of `rhs`: `lhs` convolved with the cotangent. Batch and features are exchanged, so that the
    /// convolution sums over the batch. Feature groups become batch groups, and vice versa.
    fn rhs_ct(&self, ct: &Array, lhs: &Array, rhs: &Aval) -> Array {
        ConvGeneralDilated {
            window: self.moved(lhs.shape(), &rhs.shape, ct.shape(), WindowDim::to_window),
            lhs: swapped(&self.lhs),
            rhs: swapped(&self.out),
            out: swapped(&self.rhs),
            feature_group_count: self.batch_group_count,
            batch_group_count: self.feature_group_count,
            preferred: None,
            precision: self.precision,
            out_sharding: cotangent_sharding(ct, rhs),
        }
        .apply(lhs, ct)
    }

    /// Writes the convolution without workarounds.
    pub(crate) fn write(&self, cx: &mut Lowering, args: &[Value], out: &Aval) -> Value {
        let attrs = format!(
            "window_strides = {}, padding = {}, lhs_dilation = {}, rhs_dilation = {}, window_reversal = {}, dimension_numbers = #stablehlo.conv<{}>, feature_group_count = {} : i64, batch_group_count = {} : i64, {}",
            window::column(&self.window, |w| w.stride),
            window::padding_attr(&self.window),
            window::column(&self.window, |w| w.base_dilation),
            window::column(&self.window, |w| w.window_dilation),
            bools(&vec![false; self.window.len()]),
            self.layout(),
            self.feature_group_count,
            self.batch_group_count,
            Precision::config(self.precision)
        );
        cx.op("stablehlo.convolution", args, &attrs, out)
    }

    /// `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`
    fn layout(&self) -> String {
        let (lhs, rhs) = (layout_text(&self.lhs, ["b", "f"]), layout_text(&self.rhs, ["o", "i"]));
        format!("[{lhs}]x[{rhs}]->[{}]", layout_text(&self.out, ["b", "f"]))
    }
}

impl Primitive for ConvGeneralDilated {
    fn name(&self) -> &'static str {
        "conv_general_dilated"
    }

    fn print_params(&self) -> String {
        let mut text = window::print(&self.window, "rhs_dilation", "lhs_dilation");
        let _ = write!(text, " dimension_numbers={}", self.layout().replace(", ", ","));
        for (name, count) in
            [("feature_group_count", self.feature_group_count), ("batch_group_count", self.batch_group_count)]
        {
            if count != 1 {
                let _ = write!(text, " {name}={count}");
            }
        }
        if let Some(d) = self.preferred {
            let _ = write!(text, " preferred_element_type={d}");
        }
        text
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let (l, r) = (&args[0], &args[1]);
        let rank = self.window.len() + 2;
        if l.dtype != r.dtype {
            return Err(err!(Type, "conv_general_dilated requires arguments to have the same dtypes, got {l} and {r}")
                .help("convert one of them with `astype`"));
        }
        if l.dtype == DType::Bool {
            bail!(Type, "conv_general_dilated does not accept dtype bool, got {l} and {r}");
        }
        if l.rank() != rank || r.rank() != rank {
            return Err(err!(
                Value,
                "conv_general_dilated with {} spatial dimensions needs operands of rank {rank}, got {l} and {r}",
                self.window.len()
            )
            .help("an input has a batch and a feature dimension in addition to the spatial dimensions, a kernel an input and an output feature dimension"));
        }
        let (batch, features) = (l.shape[self.lhs[0]], l.shape[self.lhs[1]]);
        let (out_features, in_features) = (r.shape[self.rhs[0]], r.shape[self.rhs[1]]);
        // The checks are JAX's, in its order, so that the errors are the same.
        let (groups, batch_groups) = (self.feature_group_count, self.batch_group_count);
        if groups == 0 || batch_groups == 0 || (groups > 1 && batch_groups > 1) {
            return Err(err!(
                Value,
                "conv_general_dilated cannot combine feature_group_count {groups} and batch_group_count {batch_groups}"
            )
            .help("both counts must be positive, and at most one of them can be greater than 1"));
        }
        if features % groups != 0 || features / groups != in_features {
            return Err(err!(
                Value,
                "conv_general_dilated lhs feature dimension size divided by feature_group_count must equal the rhs input feature dimension size, but {features} / {groups} != {in_features} (lhs {l}, rhs {r}, dimension numbers {})",
                self.layout()
            )
            .help("the kernel's input features are the input's features (of one group); check that the layouts say which dimension is which"));
        }
        for (what, count) in [("feature_group_count", groups), ("batch_group_count", batch_groups)] {
            if out_features % count != 0 {
                bail!(
                    Value,
                    "conv_general_dilated rhs output feature dimension size must be a multiple of {what}, but {out_features} is not a multiple of {count} (rhs {r})"
                );
            }
        }
        if batch % batch_groups != 0 {
            bail!(
                Value,
                "conv_general_dilated lhs batch dimension size must be a multiple of batch_group_count, but {batch} is not a multiple of {batch_groups} (lhs {l})"
            );
        }
        let mut shape: Shape = smallvec![0; rank];
        shape[self.out[0]] = batch / batch_groups;
        shape[self.out[1]] = out_features;
        for (i, w) in self.window.iter().enumerate() {
            w.check_padding(self.name(), l.shape[self.lhs[i + 2]])?;
            shape[self.out[i + 2]] = w.positions(self.name(), l.shape[self.lhs[i + 2]], r.shape[self.rhs[i + 2]])?;
        }
        let dtype = accumulated_in("conv_general_dilated", l, self.preferred)?;
        Ok(smallvec![Aval { weak: l.weak && r.weak, ..Aval::new(dtype, shape) }.strip_weak_type()])
    }

    /// A multiply-add for each element of the result, of the kernel's window and of its input features.
    /// Padding and gaps of a dilated operand count, but not gaps of a dilated window.
    fn flops(&self, args: &[Aval], outs: &[Aval]) -> Flops {
        let window_elements: f64 = self.rhs[1..].iter().map(|&d| args[1].shape[d] as f64).product();
        // A dilated operand has one element per this many positions.
        let gaps: f64 = self.window.iter().map(|w| w.base_dilation as f64).product();
        Flops::from_matmuls(2.0 * window_elements * outs[0].size() as f64 / gaps * super::dot::parts(args[0].dtype))
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        self.sharding(rule)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        // The partitioner's convolution is wrong if spatial dimensions are split, and for feature or batch groups.
        if !cx.has_quirk("split-convolutions") {
            return Ok(vec![self.write(cx, args, &outs[0])]);
        }
        let is_grouped = self.feature_group_count > 1 || self.batch_group_count > 1;
        let first_unsplit = if is_grouped { 0 } else { 2 };
        let args = [
            cx.with_replicated_dims(args[0], &self.lhs[first_unsplit..]),
            cx.with_replicated_dims(args[1], &self.rhs[first_unsplit..]),
        ];
        let out = self.write(cx, &args, &outs[0]);
        Ok(vec![cx.with_replicated_dims(out, &self.out[first_unsplit..])])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let out = self.apply(&args[0], &args[1]);
        let l = tangents[0].as_ref().map(|t| self.apply(t, &args[1]));
        let r = tangents[1].as_ref().map(|t| self.apply(&args[0], t));
        Ok((smallvec![out], vec![add_tangents(l, r)]))
    }

    fn transpose(&self, cts: &[Option<Array>], args: &[Operand]) -> Result<Tangents> {
        let Some(ct) = &cts[0] else { return Ok(vec![None, None]) };
        let (l, r) = (args[0].aval(), args[1].aval());
        let is_empty = ct.size() == 0;
        let ct = ct.astype(l.dtype);
        match (&args[0], &args[1]) {
            (Operand::Linear(_), Operand::NonLinear(rhs)) => {
                let lhs_ct = if is_empty || size(&l.shape) == 0 {
                    Array::zeros_of(&l.strip_weak_type())
                } else {
                    self.lhs_ct(&ct, &l, rhs)
                };
                Ok(vec![Some(lhs_ct), None])
            }
            (Operand::NonLinear(lhs), Operand::Linear(_)) => {
                let rhs_ct = if is_empty || size(&r.shape) == 0 {
                    Array::zeros_of(&r.strip_weak_type())
                } else {
                    self.rhs_ct(&ct, lhs, &r)
                };
                Ok(vec![None, Some(rhs_ct)])
            }
            _ => Err(err!(NotImplemented, "transpose of a convolution of two linear values")),
        }
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let over_explicit =
            if axis.explicit.axes().is_empty() { None } else { self.batched_explicitly(axis, args, dims)? };
        let (out, at) = match over_explicit {
            Some(out) => out,
            None => self.batched(axis.size, args, dims),
        };
        Ok((smallvec![out], vec![at]))
    }
}
