//! The window of a convolution or a windowed reduction along one dimension.

use std::fmt::Write as _;

use crate::core::lower::{Lowering, Value, ints};
use crate::core::program::Aval;
use crate::dtype::Scalar;
use crate::error::{Result, bail, err};

/// A window along one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct WindowDim {
    pub stride: usize,
    /// The padding before the dimension. A negative number cuts elements.
    pub low: i64,
    pub high: i64,
    /// The distance between the operand's elements.
    pub base_dilation: usize,
    /// The distance between the window's elements.
    pub window_dilation: usize,
}

/// Pads the operand with zeros for the padding and base dilation of these dimensions.
pub(crate) fn pad(cx: &mut Lowering, x: Value, dims: impl Iterator<Item = (usize, WindowDim)>) -> Value {
    let mut config = vec![(0, 0, 0); cx.shape(x).len()];
    for (d, w) in dims {
        config[d] = (w.low, w.high, w.base_dilation as i64 - 1);
    }
    let zero = cx.constant(Scalar::Int(0), &Aval::scalar(cx.dtype(x)));
    cx.pad(x, zero, &config)
}

/// The maximum size.
const MAX_SIZE: usize = u32::MAX as usize;

/// Returns the extent of `n` elements with distance `by`, in a type that no size can overflow.
fn dilate(n: usize, by: usize) -> i128 {
    if n == 0 { 0 } else { (n as i128 - 1).saturating_mul(by as i128).saturating_add(1) }
}

impl WindowDim {
    pub fn new(stride: usize) -> Self {
        WindowDim { stride, low: 0, high: 0, base_dilation: 1, window_dilation: 1 }
    }

    /// Returns the number of positions of a window of `window` elements over `n` elements.
    pub fn positions(&self, name: &str, n: usize, window: usize) -> Result<usize> {
        if self.stride == 0 || self.base_dilation == 0 || self.window_dilation == 0 || window == 0 {
            return Err(err!(
                Value,
                "{name} takes positive windows, strides and dilations, got size {window}, stride {}, base dilation {} and window dilation {}",
                self.stride,
                self.base_dilation,
                self.window_dilation
            )
            .help("sizes, strides and dilations of a window are positive"));
        }
        if let Some(large) =
            [window, self.stride, self.base_dilation, self.window_dilation].into_iter().find(|&v| v > MAX_SIZE)
        {
            bail!(Value, "{name} got a window with the size, stride or dilation {large}, which is too large");
        }
        // 128 bits cannot overflow, because the factors are at most `MAX_SIZE`.
        let padded = dilate(n, self.base_dilation) + self.low as i128 + self.high as i128;
        let span = dilate(window, self.window_dilation);
        let count = if padded < span { 0 } else { (padded - span) / self.stride as i128 + 1 };
        if count > MAX_SIZE as i128 {
            bail!(Value, "{name} gives a dimension of size {count}, which is too large");
        }
        Ok(count as usize)
    }

    /// Fails if negative padding cuts more elements off than a dimension of `n` elements has. A convolution is an error then, and a
    /// windowed reduction has no positions.
    pub fn check_padding(&self, name: &str, n: usize) -> Result<()> {
        match dilate(n, self.base_dilation) + self.low as i128 + self.high as i128 {
            0.. => Ok(()),
            _ => Err(err!(
                Value,
                "{name} got padding ({}, {}) for a dimension of size {n}: it removes more elements than there are",
                self.low,
                self.high
            )
            .help("negative padding cuts elements off; make it smaller")),
        }
    }

    /// Returns the window that maps the result's cotangent back to the operand. It moves over the result, whose
    /// elements are a stride apart, with one position per element of the operand. `count` is the result's size.
    pub fn to_operand(self, n: usize, window: usize, count: usize) -> WindowDim {
        // Element `p` of the dilated operand was at the window's element `k` for position `o` if p + low = o * stride +
        // k * window_dilation. With the window reversed, `o` begins span - 1 - low before `p`.
        let span = dilate(window, self.window_dilation);
        let high = dilate(n, self.base_dilation) - dilate(count, self.stride) + self.low as i128;
        WindowDim {
            stride: self.base_dilation,
            low: (span - 1 - self.low as i128) as i64,
            high: high as i64,
            base_dilation: self.stride,
            window_dilation: self.window_dilation,
        }
    }

    /// Returns the window that maps the result's cotangent to the window's elements. The cotangent, whose elements are
    /// a stride apart, becomes the window, with one position per element of the old window.
    pub fn to_window(self, n: usize, window: usize, count: usize) -> WindowDim {
        let span = dilate(window, self.window_dilation) + dilate(count, self.stride) - 1;
        WindowDim {
            stride: self.window_dilation,
            low: self.low,
            high: (span - dilate(n, self.base_dilation) - self.low as i128) as i64,
            base_dilation: self.base_dilation,
            window_dilation: self.stride,
        }
    }
}

/// Formats the padding of all dimensions as an attribute: `dense<[[1, 1], [0, 2]]> : tensor<2x2xi64>`.
pub(crate) fn padding_attr(dims: &[WindowDim]) -> String {
    let mut text = String::from("dense<");
    if !dims.is_empty() {
        let rows: Vec<_> = dims.iter().map(|d| format!("[{}, {}]", d.low, d.high)).collect();
        let _ = write!(text, "[{}]", rows.join(", "));
    }
    let _ = write!(text, "> : tensor<{}x2xi64>", dims.len());
    text
}

/// Formats the window for a printed program, without defaults.
pub(crate) fn print(dims: &[WindowDim], window_name: &str, base_name: &str) -> String {
    let mut text = format!(
        "window_strides=({}) padding=({})",
        joined(dims, |d| d.stride.to_string()),
        joined(dims, |d| format!("({},{})", d.low, d.high))
    );
    if dims.iter().any(|d| d.base_dilation != 1) {
        let _ = write!(text, " {base_name}=({})", joined(dims, |d| d.base_dilation.to_string()));
    }
    if dims.iter().any(|d| d.window_dilation != 1) {
        let _ = write!(text, " {window_name}=({})", joined(dims, |d| d.window_dilation.to_string()));
    }
    text
}

fn joined(dims: &[WindowDim], print: impl Fn(&WindowDim) -> String) -> String {
    dims.iter().map(print).collect::<Vec<_>>().join(",")
}

/// Returns one number of each dimension's window, as an attribute.
pub(crate) fn column(dims: &[WindowDim], number: impl Fn(&WindowDim) -> usize) -> String {
    ints(&dims.iter().map(number).collect::<Vec<_>>())
}
