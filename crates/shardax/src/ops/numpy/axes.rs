//! The axes and options of reductions.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{convert, where_};
use crate::core::array::Array;
use crate::core::sharding_like::ShardingLike;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::reduce::{Reducer, accumulator};
use crate::ops::promotion::to_inexact;
use crate::shape::Shape;
pub(crate) use crate::shape::normalize_axes;
use crate::shape::normalize_axis;
pub use crate::shape::{AxisNumber, IntoAxes};
use crate::sharding::Typed;

/// The axes of a reduction with its options; see [`over`].
#[derive(Clone, Debug, Default)]
pub struct Over {
    axes: Option<SmallVec<[i32; 4]>>,
    keepdims: bool,
    mask: Option<Array>,
    initial: Option<Array>,
    dtype: Option<DType>,
    out_sharding: Option<ShardingLike>,
}

/// Axes to reduce, with options: an alternative to plain axes in [`Array::sum`] and the other reductions.
///
/// ```
/// # use shardax::prelude::*;
/// let x = array([[1.0f32, 2.0], [3.0, 4.0]]);
/// assert_eq!(x.sum(over(1).keepdims(true)).shape(), [2, 1]);
/// assert_eq!(x.mean(over(..).mask(x.greater(1))).item::<f32>()?, 3.0);
/// assert_eq!(x.max(over(0).initial(3.5)).to_vec::<f32>()?, [3.5, 4.0]);
/// assert_eq!(x.sum(over(..).dtype(DType::I32)).item::<i32>()?, 10);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn over(axes: impl IntoAxes) -> Over {
    Over { axes: axes.into_axes(), ..Over::default() }
}

impl Over {
    /// Sets whether the reduced axes are kept with size 1, so that the result broadcasts against the operand.
    pub fn keepdims(mut self, keepdims: bool) -> Over {
        self.keepdims = keepdims;
        self
    }

    /// Selects the elements to reduce: booleans that broadcast to the operand's shape (JAX's `where`). Maxima and
    /// minima also need an [`initial`](Over::initial) value.
    pub fn mask(mut self, mask: impl ArrayLike) -> Over {
        self.mask = Some(mask.into_array());
        self
    }

    /// Sets the initial value of sums, products, maxima and minima. It is converted to the dtype of the result.
    pub fn initial(mut self, initial: impl ArrayLike) -> Over {
        self.initial = Some(initial.into_array());
        self
    }

    /// Sets the dtype to which the elements of sums, products, means and variances are converted first.
    pub fn dtype(mut self, dtype: DType) -> Over {
        self.dtype = Some(dtype);
        self
    }

    /// Sets the sharding in the type of a sum, maximum or minimum, over mesh axes of type
    /// [`Explicit`](crate::AxisType::Explicit). Mesh axes that split the reduced dimensions can be unreduced in it. For
    /// a maximum or minimum, the spec must then have the corresponding
    /// [`unreduced_kind`](crate::PartitionSpec::unreduced_kind).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// # shardax::config::set_num_cpu_devices(8).ok();
    /// let mesh = make_mesh([("x", 8)])?;
    /// let _mesh = set_mesh(&mesh)?;
    /// let x = reshard(ones([16, 4]), P!["x", None]);
    /// let parts = x.sum(over(0).out_sharding(P![].unreduced(["x"])));
    /// assert_eq!(parts.type_name(), "float32[4]{U:x}");
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn out_sharding(mut self, sharding: impl Into<ShardingLike>) -> Over {
        self.out_sharding = Some(sharding.into());
        self
    }
}

impl Over {
    pub(super) fn has_dtype(&self) -> bool {
        self.dtype.is_some()
    }

    pub(super) fn has_initial(&self) -> bool {
        self.initial.is_some()
    }

    /// Returns the axis if exactly one is reduced.
    pub(super) fn single_axis(&self) -> Option<i32> {
        self.axes.as_deref().filter(|axes| axes.len() == 1).map(|axes| axes[0])
    }

    /// Selects the elements that both `mask` and the mask set before select. `mask` has the shape of the operand.
    pub(super) fn and_mask(self, mask: &Array) -> Over {
        let combined = match &self.mask {
            Some(earlier) if earlier.dtype() == DType::Bool => mask & earlier.broadcast_to(mask.shape()),
            // The reduction rejects masks of other dtypes, with its name.
            Some(earlier) => earlier.clone(),
            None => mask.clone(),
        };
        self.mask(combined)
    }

    /// Fails if an option is set that the function `name` does not have.
    pub(super) fn check(&self, name: &str, x: &Array, options: Options) -> Result<()> {
        Reduction::new(name, x, self.clone(), options).map(drop)
    }
}

/// The axes of a function whose only option is `keepdims`.
pub(crate) struct KeptAxes {
    /// The axes in the order in which they were named.
    pub axes: SmallVec<[usize; 4]>,
    /// Is true if no axes were named.
    pub all: bool,
    keepdims: bool,
}

impl KeptAxes {
    /// Returns an error if another option than `keepdims` is set, or if an axis is out of range.
    pub fn new(name: &str, x: &Array, axes: impl IntoReduction) -> Result<Self> {
        let over = axes.into_reduction();
        over.check(name, x, Options::None)?;
        if over.mask.is_some() {
            return Err(err!(Type, "`{name}` does not have the option `mask`").help(
                "select the elements first, or replace the others by NaN and call the function that ignores NaN",
            ));
        }
        let axes = match &over.axes {
            None => (0..x.ndim()).collect(),
            Some(axes) => axes.iter().map(|&a| normalize_axis(a as isize, x.ndim())).collect::<Result<_>>()?,
        };
        Ok(KeptAxes { axes, all: over.axes.is_none(), keepdims: over.keepdims })
    }

    /// Like [`new`](Self::new) for axes in ascending order. Also returns an error if an axis is named twice.
    pub fn sorted(name: &str, x: &Array, axes: impl IntoReduction) -> Result<Self> {
        let over = axes.into_reduction();
        let axes = normalize_axes(over.axes.as_deref(), x.ndim());
        Ok(KeptAxes { axes: axes?, ..KeptAxes::new(name, x, over)? })
    }

    /// Inserts the reduced axes of `x` into the result with size 1 if they are kept. The first `leading` dimensions of the
    /// result do not come from `x`.
    pub fn insert(&self, x: &Array, out: Array, leading: usize) -> Array {
        if !self.keepdims {
            return out;
        }
        let mut shape = out.shape()[..leading].to_vec();
        shape.extend(x.shape().iter().enumerate().map(|(d, &n)| if self.axes.contains(&d) { 1 } else { n }));
        lax::reshape(&out, &shape)
    }
}

/// Axes, or [`over`] axes with options.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not name axes to reduce",
    label = "not axes",
    note = "write `..` for all axes, a number for one, such as `0` or `-1`, or several: `[0, 1]`",
    note = "options are set on `over(axes)`: `x.sum(over(1).keepdims(true))`",
    note = "the larger and the smaller of two arrays or numbers are `maximum(&x, 0.0)` and `minimum(&x, &y)`"
)]
pub trait IntoReduction {
    /// Returns the axes with options.
    fn into_reduction(self) -> Over;
}

impl<A: IntoAxes> IntoReduction for A {
    fn into_reduction(self) -> Over {
        over(self)
    }
}

impl IntoReduction for Over {
    fn into_reduction(self) -> Over {
        self
    }
}

/// The options that a reduction supports, besides `keepdims` and `mask`.
#[derive(Clone, Copy)]
pub(crate) enum Options {
    InitialAndDType,
    Initial,
    DType,
    None,
}

/// A reduction of one array, after checks: the axes are sorted and counted from the front, and the options are supported.
pub(crate) struct Reduction {
    pub axes: SmallVec<[usize; 4]>,
    over: Over,
}

impl Reduction {
    pub fn new(name: &str, x: &Array, over: Over, options: Options) -> Result<Self> {
        x.check()?;
        let (initial, dtype) = match options {
            Options::InitialAndDType => (true, true),
            Options::Initial => (true, false),
            Options::DType => (false, true),
            Options::None => (false, false),
        };
        // NumPy's reductions accept different options, so unknown ones are rejected by name.
        let unknown = [
            ("initial", over.initial.is_some() && !initial),
            ("dtype", over.dtype.is_some() && !dtype),
            ("out_sharding", over.out_sharding.is_some() && !["sum", "max", "min"].contains(&name)),
        ];
        if let Some((option, _)) = unknown.into_iter().find(|(_, unknown)| *unknown) {
            return Err(err!(Type, "`{name}` does not have the option `{option}`")
                .help("remove the option, and apply its effect to the operand or to the result"));
        }
        over.mask.iter().try_for_each(|mask| {
            mask.check()?;
            if mask.dtype() == DType::Bool {
                return Ok(());
            }
            Err(err!(Type, "{name} needs a boolean mask, got {}", mask.type_name())
                .help("compare the mask with 0: `mask.not_equal(0)`"))
        })?;
        over.initial.iter().try_for_each(|initial| {
            initial.check()?;
            if initial.ndim() == 0 {
                return Ok(());
            }
            Err(err!(Value, "{name} needs an initial value that is a scalar, got {}", initial.type_name())
                .help("combine the result with an array afterwards"))
        })?;
        Ok(Reduction { axes: normalize_axes(over.axes.as_deref(), x.ndim())?, over })
    }

    /// A reduction over these axes, without options.
    pub fn over_axes(axes: &[usize]) -> Self {
        let signed: SmallVec<[i32; 4]> = axes.iter().map(|&axis| axis as i32).collect();
        Reduction { axes: axes.into(), over: over(signed.as_slice()) }
    }

    /// Returns the axes as signed integers.
    pub fn signed(&self) -> SmallVec<[i32; 4]> {
        self.axes.iter().map(|&a| a as i32).collect()
    }

    /// Returns the mask, broadcast to the shape of the operand.
    pub fn mask(&self, x: &Array) -> Option<Array> {
        self.over.mask.as_ref().map(|mask| mask.broadcast_to(x.shape()))
    }

    pub fn is_masked(&self) -> bool {
        self.over.mask.is_some()
    }

    /// This reduction with `keepdims` and the mask, but no other option.
    pub fn inner(&self) -> Over {
        Over { mask: self.over.mask.clone(), ..over(self.signed().as_slice()).keepdims(true) }
    }

    /// Converts the operand to the requested dtype.
    pub fn typed(&self, x: &Array) -> Array {
        self.over.dtype.map_or_else(|| x.clone(), |dtype| x.astype(dtype))
    }

    /// Returns the requested sharding of the result, before the axes of `keepdims` are inserted.
    pub fn out(&self, x: &Array) -> Result<Option<Arc<Typed>>> {
        let Some(like) = &self.over.out_sharding else { return Ok(None) };
        let dims = x.shape().iter().enumerate().filter(|(d, _)| self.over.keepdims || !self.axes.contains(d));
        let shape: Shape = dims.map(|(d, n)| if self.axes.contains(&d) { 1 } else { *n }).collect();
        let out = like.out_sharding("out_sharding", &shape, &[x])?;
        let inserted_axes = if self.over.keepdims { &self.axes[..] } else { &[] };
        Ok(out.map(|out| Arc::new(inserted_axes.iter().rev().fold(out, |out, d| out.removed(*d)))))
    }

    /// Replaces masked-out elements by `fill`.
    pub fn masked(&self, x: &Array, fill: impl ArrayLike) -> Array {
        match &self.over.mask {
            Some(mask) => where_(mask.broadcast_to(x.shape()), x, convert(&fill.into_array(), x.dtype(), true)),
            None => x.clone(),
        }
    }

    /// Returns the initial value, in the dtype of `y`.
    pub fn initial(&self, y: &Array) -> Option<Array> {
        self.over.initial.as_ref().map(|initial| convert(initial, y.dtype(), y.weak_type()))
    }

    /// Returns the number of elements of each result: a number, or an array if the elements are masked. They are counted as
    /// integers, because a sum of floats is inexact from 2^24 in float32.
    pub fn count(&self, x: &Array) -> Array {
        match &self.over.mask {
            Some(mask) => {
                let ones = convert(&mask.broadcast_to(x.shape()), DType::for_indices(&[x.size()]), false);
                lax::reduce_with(&ones, Reducer::Sum, &self.axes).astype(accumulator(to_inexact(x.dtype())).real())
            }
            None => {
                let count: usize = self.axes.iter().map(|&a| x.shape()[a]).product();
                Array::literal(Scalar::float(count as f64), DType::F32, true)
            }
        }
    }

    /// Inserts the axes of `keepdims` into `y`, the result of reducing `x`.
    pub fn shaped(&self, x: &Array, y: Array) -> Array {
        if !self.over.keepdims || y.error().is_some() {
            return y;
        }
        let mut y_dims = 0..y.ndim();
        let dims: Vec<Option<usize>> =
            (0..x.ndim()).map(|d| if self.axes.contains(&d) { None } else { y_dims.next() }).collect();
        lax::with_dims(&y, &dims)
    }
}
