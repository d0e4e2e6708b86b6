//! Which axes a function works on, and how a reduction goes over them.

use std::ops::RangeFull;

use smallvec::SmallVec;

use super::{convert, where_};
use crate::core::array::Array;
use crate::dtype::{DType, Scalar};
use crate::error::{Result, err};
use crate::ops::lax;
use crate::ops::operators::ArrayLike;
use crate::shape::normalize_axis;

/// Which axes: `..` for all, one number, or several. Negative axes count from the end.
pub trait IntoAxes {
    /// The axes as written; `None` for all.
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>>;
}

impl IntoAxes for RangeFull {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        None
    }
}

impl IntoAxes for i32 {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        Some(smallvec::smallvec![self])
    }
}

impl<const N: usize> IntoAxes for [i32; N] {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        Some(self.into_iter().collect())
    }
}

impl IntoAxes for &[i32] {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        Some(self.into())
    }
}

impl IntoAxes for Option<&[i32]> {
    fn into_axes(self) -> Option<SmallVec<[i32; 4]>> {
        self.map(Into::into)
    }
}

/// The axes, counted from the front and sorted.
pub(crate) fn normalize_axes(axes: impl IntoAxes, rank: usize) -> Result<SmallVec<[usize; 4]>> {
    let Some(axes) = axes.into_axes() else { return Ok((0..rank).collect()) };
    let mut out: SmallVec<[usize; 4]> =
        axes.iter().map(|&a| normalize_axis(a as isize, rank)).collect::<Result<_>>()?;
    out.sort_unstable();
    if out.windows(2).any(|w| w[0] == w[1]) {
        return Err(err!(Value, "axes {:?} name one axis twice", axes.as_slice())
            .help("name each axis once; negative axes count from the end"));
    }
    Ok(out)
}

/// The axes of a reduction with its options; see [`over`].
#[derive(Clone, Debug, Default)]
pub struct Over {
    axes: Option<SmallVec<[i32; 4]>>,
    keepdims: bool,
    mask: Option<Array>,
    initial: Option<Array>,
    dtype: Option<DType>,
}

/// Axes to reduce, with options: what [`Array::sum`] and its kin take in the place of axes alone.
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
    /// Whether the reduced axes stay, of size 1, so that the result lines up with the operand.
    pub fn keepdims(mut self, keepdims: bool) -> Over {
        self.keepdims = keepdims;
        self
    }

    /// Which elements count: booleans that are broadcast to the operand's shape (JAX's `where`). The largest and smallest
    /// elements need an [`initial`](Over::initial) value beside it.
    pub fn mask(mut self, mask: impl ArrayLike) -> Over {
        self.mask = Some(mask.into_array());
        self
    }

    /// The value that the reduction begins with, of sums, products and extremes; it is converted to their dtype.
    pub fn initial(mut self, initial: impl ArrayLike) -> Over {
        self.initial = Some(initial.into_array());
        self
    }

    /// The dtype that the elements are converted to first, of sums, products, means and variances.
    pub fn dtype(mut self, dtype: DType) -> Over {
        self.dtype = Some(dtype);
        self
    }
}

impl Over {
    pub(super) fn has_dtype(&self) -> bool {
        self.dtype.is_some()
    }
}

/// What a reduction goes over: axes, or [`over`] axes with options.
pub trait IntoReduction {
    /// The axes, and the options.
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

/// Which options a reduction has besides `keepdims` and `mask`.
#[derive(Clone, Copy)]
pub(super) enum Options {
    InitialAndDType,
    Initial,
    DType,
    None,
}

/// A reduction of one array: its axes are counted from the front and sorted, its options are ones that it has.
pub(super) struct Reduction {
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
        let unknown = [("initial", over.initial.is_some() && !initial), ("dtype", over.dtype.is_some() && !dtype)];
        if let Some((option, _)) = unknown.into_iter().find(|(_, unknown)| *unknown) {
            return Err(err!(Type, "{name} got an unexpected keyword argument '{option}' (TypeError)")
                .help("leave the option out: apply it to the operand or to the result"));
        }
        let masked = over.mask.iter().try_for_each(|mask| {
            mask.check()?;
            if mask.dtype() == DType::Bool {
                return Ok(());
            }
            Err(err!(Type, "{name} needs a mask of booleans, got {}", mask.type_name())
                .help("compare it: `mask.not_equal(0)`"))
        });
        masked?;
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

    /// The axes, as functions take them.
    pub fn signed(&self) -> SmallVec<[i32; 4]> {
        self.axes.iter().map(|&a| a as i32).collect()
    }

    pub fn is_masked(&self) -> bool {
        self.over.mask.is_some()
    }

    /// The same reduction with the axes kept and nothing else asked, of elements that are masked already or are to be.
    pub fn inner(&self) -> Over {
        Over { mask: self.over.mask.clone(), ..over(self.signed().as_slice()).keepdims(true) }
    }

    /// The operand in the dtype that is asked for.
    pub fn typed(&self, x: &Array) -> Array {
        self.over.dtype.map_or_else(|| x.clone(), |dtype| x.astype(dtype))
    }

    /// The operand with `fill` in the place of what does not count.
    pub fn masked(&self, x: &Array, fill: impl ArrayLike) -> Array {
        match &self.over.mask {
            Some(mask) => where_(mask.broadcast_to(x.shape()), x, convert(&fill.into_array(), x.dtype(), true)),
            None => x.clone(),
        }
    }

    /// The value to begin with, in the dtype of `y`.
    pub fn initial(&self, y: &Array) -> Option<Array> {
        self.over.initial.as_ref().map(|initial| convert(initial, y.dtype(), y.weak_type()))
    }

    /// How many elements count for each result: a number, or an array where they are masked.
    pub fn count(&self, x: &Array) -> Array {
        match &self.over.mask {
            Some(mask) => {
                let ones = convert(&mask.broadcast_to(x.shape()), DType::F32, true);
                lax::reduce_with(&ones, crate::ops::primitive::reduce::Reducer::Sum, &self.axes)
            }
            None => {
                let count: usize = self.axes.iter().map(|&a| x.shape()[a]).product();
                Array::literal(Scalar::float(count as f64), DType::F32, true)
            }
        }
    }

    /// The result of reducing `x`, in its shape.
    pub fn shaped(&self, x: &Array, y: Array) -> Array {
        if !self.over.keepdims || y.error().is_some() {
            return y;
        }
        let mut shape = x.shape_owned();
        self.axes.iter().for_each(|&a| shape[a] = 1);
        lax::reshape(&y, &shape)
    }
}
