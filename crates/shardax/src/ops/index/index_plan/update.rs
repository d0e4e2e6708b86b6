//! Updates of the indexed part of an array.

use super::{Entry, Options, Plan, column, cut_starts, is_movable, number, read_block, starts_of};
use crate::core::array::Array;
use crate::core::program::trace::bind1;
use crate::dtype::{DType, promote};
use crate::error::{Result, bail, err};
use crate::ops::index::{IndexItem, Strided};
use crate::ops::lax;
use crate::ops::primitive::binary::{ADD, MAX, MIN, MUL};
use crate::ops::primitive::composite::composite1;
use crate::ops::primitive::dynamic_slice::DynamicUpdateSlice;
use crate::ops::primitive::gather::GatherScatterMode;
use crate::ops::primitive::reshard::covering_like;
use crate::ops::primitive::scatter::{Scatter, ScatterDimensionNumbers, ScatterKind};
use crate::ops::promotion::convert;

/// Returns `x` with `value` combined into the indexed part.
pub(crate) fn update(
    x: &Array,
    items: &[IndexItem],
    kind: ScatterKind,
    value: &Array,
    options: &Options,
) -> Result<Array> {
    let (plan, places) = Plan::new(x, items)?;
    let value = fit_value(x, value, &plan.result_shape())?;
    if plan.result_shape().contains(&0) || plan.empty_axis(x.shape()).is_some() {
        return Ok(x.clone());
    }
    // An index without arrays and strides is a block, which needs no scatter.
    let mut args = vec![x.clone(), value];
    args.extend(places);
    let is_block =
        args.len() == 2 && plan.entries.iter().all(|e| !matches!(e, Entry::Part { part, .. } if part.step != 1));
    if !is_block {
        return composite1("scatter", (plan, kind, *options), &args, |(plan, kind, options), args| {
            let value = args[1].broadcast_to(plan.result_shape());
            plan.scatter(&args[0], *kind, &value, &args[2..], options).map(|x| vec![x])
        });
    }
    let (start, sizes) = plan.bounds(x.shape());
    let starts = cut_starts(x.shape(), &start, &sizes);
    if is_movable(x, &args) {
        args.extend(starts);
        return composite1("update_block", (plan.within_bounds(), kind, sizes), &args, |(plan, kind, sizes), args| {
            let (starts, _) = starts_of(args[0].shape(), sizes, &args[2..]);
            let value = args[1].broadcast_to(plan.result_shape());
            Ok(vec![update_block(&args[0], &starts, sizes, *kind, &value)])
        });
    }
    composite1("update_block_at", (plan, kind, start, sizes), &args, |(plan, kind, start, sizes), args| {
        let shape = args[0].shape();
        let literals = cut_starts(shape, start, sizes);
        let value = args[1].broadcast_to(plan.result_shape());
        Ok(vec![update_block(&args[0], &starts_of(shape, sizes, &literals).0, sizes, *kind, &value)])
    })
}

/// Converts the value to the array's dtype. The value must broadcast to the shape.
fn fit_value(x: &Array, value: &Array, shape: &[usize]) -> Result<Array> {
    // The array keeps its type, even if it is weak.
    value.check()?;
    let common = promote((x.dtype(), false), (value.dtype(), value.weak_type()));
    value.check_fits(x.dtype())?;
    if !common.is_ok_and(|(common, _)| common == x.dtype()) {
        return Err(err!(
            Type,
            "scatter inputs have incompatible types: cannot safely cast value from dtype {} to the array's dtype {}",
            value.type_name(),
            x.dtype()
        )
        .help(format!(
            "convert the value with `astype(DType::{:?})`, or the array to a wider dtype first",
            x.dtype()
        )));
    }
    // As in JAX, an empty part fits any value.
    let fits = shape.contains(&0)
        || value.ndim() <= shape.len()
            && value.shape().iter().zip(&shape[shape.len() - value.ndim()..]).all(|(&n, &m)| n == m || n == 1);
    if !fits {
        return Err(err!(
            Value,
            "Incompatible shapes for broadcasting: an update of shape {:?} for a place of shape {shape:?}",
            value.shape()
        )
        .help("the update must broadcast to the shape of `x.get(index)`"));
    }
    Ok(convert(value, x.dtype(), x.weak_type()))
}

/// Updates a single block, without a scatter.
fn update_block(x: &Array, starts: &[Array], sizes: &[usize], kind: ScatterKind, value: &Array) -> Array {
    let value = covering_like(&lax::reshape(value, sizes), x);
    let block = match kind {
        ScatterKind::Set => value,
        ScatterKind::Add => ADD.apply(&read_block(x, starts, sizes), &value),
        ScatterKind::Mul => MUL.apply(&read_block(x, starts, sizes), &value),
        ScatterKind::Min => MIN.apply(&read_block(x, starts, sizes), &value),
        ScatterKind::Max => MAX.apply(&read_block(x, starts, sizes), &value),
    };
    // An update that says less than the array, for example one that is equal on all devices of a `shard_map`, needs the
    // operation for the array's type.
    if sizes == x.shape() && block.aval() == x.aval() {
        return block;
    }
    let operands: Vec<Array> = [x, &block].into_iter().chain(starts).cloned().collect();
    bind1(DynamicUpdateSlice, &operands)
}

/// A dimension of an update, without new axes.
#[derive(Clone, Copy)]
enum UpdateDim {
    /// A dimension of the block, with this size.
    Block(usize),
    /// A window along a block of the operand.
    Window(usize),
    /// Strided elements of an axis. Each element has a separate position.
    Strided(Strided),
}

impl UpdateDim {
    fn is_window(&self) -> bool {
        matches!(self, UpdateDim::Window(_))
    }

    fn size(&self) -> usize {
        match *self {
            UpdateDim::Block(n) | UpdateDim::Window(n) => n,
            UpdateDim::Strided(part) => part.len,
        }
    }
}

impl Plan {
    /// The dimensions of the update, in the order of the entries.
    fn update_dims(&self) -> Vec<UpdateDim> {
        self.layout(
            || self.block.iter().map(|&n| UpdateDim::Block(n)).collect(),
            |entry| match entry {
                Entry::Part { part, .. } if part.step == 1 => Some(UpdateDim::Window(part.len)),
                Entry::Part { part, .. } => Some(UpdateDim::Strided(*part)),
                _ => None,
            },
        )
    }

    fn scatter(&self, x: &Array, kind: ScatterKind, value: &Array, raw: &[Array], options: &Options) -> Result<Array> {
        let numbers = self.places(x.shape(), raw);
        let dtype = numbers.first().map_or(DType::for_indices(x.shape()), Array::dtype);
        let dims = self.update_dims();
        let shape: Vec<usize> = dims.iter().map(UpdateDim::size).collect();
        // The rows of the index matrix cover all dimensions except windows.
        let rows: Vec<usize> = (0..dims.len()).filter(|&i| !dims[i].is_window()).map(|i| shape[i]).collect();
        let mut row_dims = dims.iter().filter(|d| !d.is_window()).enumerate();
        let block_dims: Vec<usize> =
            row_dims.clone().filter(|(_, d)| matches!(d, UpdateDim::Block(_))).map(|(i, _)| i).collect();
        let mut strided_dims = row_dims.by_ref().filter(|(_, d)| matches!(d, UpdateDim::Strided(_))).map(|(i, _)| i);

        // A column for each axis that is not updated in full: the start of a window, or the positions of its elements.
        let mut places = numbers.iter();
        let (mut columns, mut mapped, mut inserted) = (Vec::new(), Vec::new(), Vec::new());
        for entry in &self.entries {
            let (axis, component, component_dims) = match *entry {
                Entry::New => continue,
                Entry::Part { axis, part } if part.step == 1 && part.len == x.shape()[axis] => continue,
                Entry::Part { axis, part } if part.step == 1 => {
                    mapped.push(axis);
                    columns.push(column(&number(part.start as i64, dtype), &rows, &[]));
                    continue;
                }
                Entry::Part { axis, part } => {
                    let i = lax::iota(dtype, &[part.len], 0);
                    let row_dim = strided_dims.next().into_iter().collect::<Vec<_>>();
                    (axis, i * number(part.step, dtype) + number(part.start as i64, dtype), row_dim)
                }
                Entry::Fixed { axis, at } => (axis, number(at as i64, dtype), Vec::new()),
                Entry::Places { axis } => {
                    let Some(p) = places.next() else {
                        bail!(Runtime, "internal error: index operands missing after tracing; please report this")
                    };
                    (axis, p.clone(), block_dims.clone())
                }
            };
            mapped.push(axis);
            inserted.push(axis);
            columns.push(column(&component, &rows, &component_dims));
        }
        let scatter = Scatter {
            kind,
            dims: ScatterDimensionNumbers {
                update_window_dims: (0..dims.len()).filter(|&i| dims[i].is_window()).collect(),
                inserted_window_dims: inserted,
                scatter_dims_to_operand_dims: mapped,
                ..ScatterDimensionNumbers::default()
            },
            mode: options.mode.unwrap_or(GatherScatterMode::FillOrDrop),
            unique_indices: options.unique || raw.is_empty(),
            indices_are_sorted: options.sorted,
        };
        let indices = lax::concatenate(&columns, rows.len());
        Ok(scatter.apply(x, &indices, &lax::reshape(value, &shape)))
    }
}
