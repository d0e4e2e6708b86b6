//! Windowed reductions: maximum, minimum and sum of a window that moves over an array.

use crate::core::array::Array;
use crate::error::{Result, err};
use crate::ops::operators::ArrayLike;
use crate::ops::primitive::reduce::Reducer;
use crate::ops::primitive::reduce_window::ReduceWindow;
use crate::ops::primitive::window::WindowDim;
use crate::shape::IntoSizes;

use super::conv::{Padding, extent};

/// The shape of a window, and how it moves over an array. Each setting has one number for each dimension of the array.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::lax::{self, Padding, Window};
/// let x = array([1, 5, 2, 4, 3]);
/// let y = lax::reduce_window_max(&x, Window::new([3]).padding(Padding::Same));
/// assert_eq!(y.to_vec::<i32>()?, [5, 5, 5, 4, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    dimensions: Vec<usize>,
    strides: Option<Vec<usize>>,
    padding: Padding,
    base_dilation: Option<Vec<usize>>,
    window_dilation: Option<Vec<usize>>,
}

impl<const N: usize> From<[usize; N]> for Window {
    fn from(dimensions: [usize; N]) -> Self {
        Window::new(dimensions)
    }
}

impl Window {
    /// Creates a window of these sizes, with stride 1 and no padding.
    pub fn new(dimensions: impl IntoSizes) -> Self {
        Window {
            dimensions: dimensions.into_sizes(),
            strides: None,
            padding: Padding::Valid,
            base_dilation: None,
            window_dilation: None,
        }
    }

    /// Sets the strides. Default 1.
    pub fn strides(mut self, strides: impl IntoSizes) -> Self {
        self.strides = Some(strides.into_sizes_of(self.dimensions.len()));
        self
    }

    /// Sets the padding of the operand. Padding does not change a result, because it consists of neutral elements such as 0 for a
    /// sum. Default [`Padding::Valid`].
    pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
        self.padding = padding.into();
        self
    }

    /// Sets the distance between the operand's elements. Default 1.
    pub fn base_dilation(mut self, dilation: impl IntoSizes) -> Self {
        self.base_dilation = Some(dilation.into_sizes_of(self.dimensions.len()));
        self
    }

    /// Sets the distance between the window's elements. Default 1.
    pub fn window_dilation(mut self, dilation: impl IntoSizes) -> Self {
        self.window_dilation = Some(dilation.into_sizes_of(self.dimensions.len()));
        self
    }

    pub(super) fn primitive(&self, name: &str, x: &Array, reducer: Reducer) -> Result<ReduceWindow> {
        x.check()?;
        let rank = x.ndim();
        let ones = vec![1; rank];
        let strides = self.strides.as_ref().unwrap_or(&ones);
        let base = self.base_dilation.as_ref().unwrap_or(&ones);
        let dilation = self.window_dilation.as_ref().unwrap_or(&ones);
        for (argument, values) in [
            ("window dimensions", &self.dimensions),
            ("window strides", strides),
            ("base dilation", base),
            ("window dilation", dilation),
        ] {
            if values.len() != rank {
                return Err(err!(Value, "{name} of {} needs {rank} {argument}, one for each dimension, got {values:?}", x.type_name()).help("pass one value for each dimension of the array; `nn::max_pool` only requires values for the spatial dimensions"));
            }
        }
        // As in JAX, `Padding::Same` counts the dilation of the window, but not the dilation of the array.
        let extents: Vec<usize> = self.dimensions.iter().zip(dilation).map(|(&n, &by)| extent(n, by)).collect();
        let pads = self.padding.resolve(name, x.shape(), &extents, strides)?;
        let dims = (0..rank).map(|i| WindowDim {
            stride: strides[i],
            low: pads[i].0,
            high: pads[i].1,
            base_dilation: base[i],
            window_dilation: dilation[i],
        });
        Ok(ReduceWindow { reducer, window: self.dimensions.as_slice().into(), dims: dims.collect() })
    }
}

/// Reduces each window of `x`, and returns the error of an invalid window as an array.
#[track_caller]
pub(crate) fn pooled(name: &str, x: &Array, window: &Window, reducer: Reducer) -> Array {
    match window.primitive(name, x, reducer) {
        Ok(primitive) => primitive.apply(x),
        Err(error) => Array::from_result(Err(error), x),
    }
}

/// Returns the maximum of the elements in the window, for each position of the window.
///
/// If several elements are equal, only the first of them has a gradient.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::reduce_window_max(array([1, 5, 2, 4]), [2]).to_vec::<i32>()?, [5, 5, 4]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn reduce_window_max(x: impl ArrayLike, window: impl Into<Window>) -> Array {
    pooled("reduce_window_max", &x.into_array(), &window.into(), Reducer::Max)
}

/// Returns the minimum of the elements in the window, for each position of the window.
///
/// If several elements are equal, only the first of them has a gradient.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::reduce_window_min(array([1, 5, 2, 4]), [2]).to_vec::<i32>()?, [1, 2, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn reduce_window_min(x: impl ArrayLike, window: impl Into<Window>) -> Array {
    pooled("reduce_window_min", &x.into_array(), &window.into(), Reducer::Min)
}

/// Returns the sum of the elements in the window, for each position of the window.
///
/// ```
/// # use shardax::prelude::*;
/// assert_eq!(lax::reduce_window_sum(array([1, 5, 2, 4]), [2]).to_vec::<i32>()?, [6, 7, 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn reduce_window_sum(x: impl ArrayLike, window: impl Into<Window>) -> Array {
    pooled("reduce_window_sum", &x.into_array(), &window.into(), Reducer::Sum)
}
