//! Gradients of maxima and minima of windows. XLA (xla-cpu-pjrt 0.0.1) visits one element after the other, and the portable form reads the
//! operand and adds up the result once for each element of the window.

use shardax_cpu_kernels::{self as kernels, FilterWindow, SPATIAL, Selectable, Selection};
use shardax_pjrt::ElementType;
use shardax_pjrt::ffi::{Arg, CallFrame, Ret};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::filter_window::{DILATION, LOW, STRIDE, read, spatial};
use super::{call, convert, is_enabled, is_worth, limits, number, numbers_mut, reshape, sizes, view, widened};
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::ops::primitive::reduce::Reducer;
use crate::ops::primitive::reduce_window::ReduceWindow;
use crate::ops::primitive::window::WindowDim;
use crate::shape::{Shape, size};

pub(super) const TARGET: &str = "shardax_select_and_scatter_add";

/// The attributes of a call, next to the attributes of its windows.
const WINDOW: [&str; SPATIAL] = ["window_0", "window_1", "window_2"];
const IS_MIN: &str = "min";

/// Lowers the sums of `source` at places of `operand` to a kernel, if it is worthwhile.
pub(crate) fn lower(of: &ReduceWindow, cx: &mut Lowering, [source, operand]: [Value; 2], out: &Aval) -> Option<Value> {
    let dtype = widened(out.dtype);
    let windows = cx.shape(source).clone();
    let work = size(&windows).saturating_mul(of.count());
    let is_large = is_worth(work, limits::SELECT_AND_SCATTER) && is_worth(of.count(), limits::SELECTION_WINDOW);
    if !matches!(dtype, DType::F32 | DType::F64) || !is_large {
        return None;
    }
    let spatial = spatial_dims(of)?;
    if !is_bounded(of, &windows, out) || !is_enabled(cx) {
        return None;
    }
    // The kernel computes three spatial dimensions, of which the first ones can be missing.
    let shape_of = |shape: &[usize]| {
        let mut dims = vec![size(&shape[..spatial.start])];
        dims.extend(std::iter::repeat_n(1, SPATIAL - spatial.len()));
        dims.extend(&shape[spatial.clone()]);
        dims.push(size(&shape[spatial.end..]));
        dims
    };
    let (x_shape, source_shape) = (shape_of(&out.shape), shape_of(&windows));
    let mut numbers = vec![(IS_MIN, i64::from(of.reducer == Reducer::Min))];
    for d in 0..SPATIAL {
        let dim = (d + spatial.len()).checked_sub(SPATIAL).map(|d| d + spatial.start);
        let (window, moves) = dim.map_or((1, WindowDim::new(1)), |dim| (of.window[dim], of.dims[dim]));
        numbers.extend([
            (WINDOW[d], window as i64),
            (STRIDE[d], moves.stride as i64),
            (DILATION[d], moves.window_dilation as i64),
            (LOW[d], moves.low),
        ]);
    }
    let operands = [(operand, &x_shape), (source, &source_shape)].map(|(v, shape)| {
        let v = convert(cx, v, dtype);
        reshape(cx, v, shape)
    });
    let sums = call(cx, TARGET, &operands, &numbers, &[Aval::new(dtype, Shape::from_slice(&x_shape))])[0];
    let sums = convert(cx, sums, out.dtype);
    Some(reshape(cx, sums, &out.shape))
}

/// The dimensions from the first to the last one that windows extend or move along. `None` if there are too many, or if the operand's elements are
/// apart.
fn spatial_dims(of: &ReduceWindow) -> Option<std::ops::Range<usize>> {
    let is_spatial = |d: &usize| of.window[*d] != 1 || of.dims[*d] != WindowDim::new(1);
    let start = (0..of.window.len()).find(is_spatial)?;
    let end = (0..of.window.len()).rfind(is_spatial)? + 1;
    let is_dilated = of.dims.iter().any(|d| d.base_dilation != 1);
    (end - start <= SPATIAL && !is_dilated).then_some(start..end)
}

/// Returns `true` if the padded operand is not much larger than the operand: a kernel allocates it.
fn is_bounded(of: &ReduceWindow, windows: &[usize], out: &Aval) -> bool {
    let extents = windows.iter().zip(&of.window).zip(&of.dims).map(|((&n, &window), d)| {
        let elements = (window as u64 - 1).checked_mul(d.window_dilation as u64)?;
        let moves = (n as u64).saturating_sub(1).checked_mul(d.stride as u64)?;
        elements.checked_add(moves)?.checked_add(1)
    });
    let padded = extents.into_iter().try_fold(1u64, |size, extent| size.checked_mul(extent?));
    let limit = (out.size() as u64).saturating_mul(limits::PADDED_WINDOWS).min(i32::MAX as u64);
    padded.is_some_and(|padded| padded <= limit)
}

/// Handles a call.
pub(super) fn handle(frame: &mut CallFrame<'_>) -> Result<(), String> {
    let mut of = read(frame)?;
    let mut window = [1; SPATIAL];
    for (window, name) in window.iter_mut().zip(WINDOW) {
        *window = number(frame, name)?;
    }
    let selection = if number(frame, IS_MIN)? == 0 { Selection::Max } else { Selection::Min };
    let threads = number(frame, "threads")?;
    let (args, results) = frame.split();
    let ([x, source], [sums]) = (args, results) else { return Err("not two operands and a result".into()) };
    of.positions = spatial(&sizes(source.dims), 1)?;
    match sums.ty {
        ElementType::F32 => add::<f32>(&of, window, selection, [x, source], sums, threads),
        ElementType::F64 => add::<f64>(&of, window, selection, [x, source], sums, threads),
        other => Err(format!("elements of {other:?}")),
    }
}

fn add<T: Selectable + FromBytes + IntoBytes + Immutable>(
    of: &FilterWindow,
    window: [usize; SPATIAL],
    selection: Selection,
    [x, source]: [&Arg<'_>; 2],
    sums: &mut Ret<'_>,
    threads: usize,
) -> Result<(), String> {
    let (x_shape, source_shape) = (sizes(x.dims), sizes(source.dims));
    let operands = [view::<T>(x, &x_shape)?, view::<T>(source, &source_shape)?];
    Ok(kernels::select_and_scatter_add(of, window, selection, operands, numbers_mut(sums)?, threads)?)
}
