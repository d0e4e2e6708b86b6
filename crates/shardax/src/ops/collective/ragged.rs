//! `ragged_all_to_all`, which sends slices of different sizes to all devices of an axis.

use super::functions::{all_gather, axis_index, axis_size};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::lax::{self, GatherScatterMode};
use crate::ops::select::where_;
use crate::shape::IntoAxisNames;

/// The slices of the operand that [`ragged_all_to_all`] sends: integer arrays with one entry for each device.
#[derive(Clone, Debug)]
pub struct RaggedSlices<'a> {
    /// The first row of each slice in the operand.
    pub input_offsets: &'a Array,
    /// The number of rows of each slice.
    pub send_sizes: &'a Array,
    /// The first row of each slice in the output of the receiving device.
    pub output_offsets: &'a Array,
    /// The number of rows received from each device.
    pub recv_sizes: &'a Array,
}

/// Sends a slice of the rows of `operand` to each device of an axis. Returns `output` with the received rows written at
/// their offsets; its other rows are unchanged.
///
/// Every device gathers the operands of all devices, because not every platform has this collective.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::RaggedSlices;
/// # shardax::config::set_num_cpu_devices(8).ok();
/// // Device 0 sends its first row to itself, and two to device 1; device 1 sends one row to each.
/// let f = |x: Array, from: Array, sizes: Array, to: Array, received: Array| {
///     let slices = RaggedSlices { input_offsets: &from, send_sizes: &sizes, output_offsets: &to, recv_sizes: &received };
///     ragged_all_to_all(x, zeros([4]), slices, "i")
/// };
/// let y = vmap(f).axis_name("i").call((
///     array([[1.0f32, 2.0, 3.0], [4.0, 5.0, 0.0]]),
///     array([[0, 1], [0, 1]]),
///     array([[1, 2], [1, 1]]),
///     array([[0, 0], [1, 2]]),
///     array([[1, 1], [2, 1]]),
/// ))?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 4.0, 0.0, 0.0, 2.0, 3.0, 5.0, 0.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error if the arrays differ in type, or if an index array does not have one entry for each
/// device.
#[track_caller]
pub fn ragged_all_to_all(operand: Array, output: Array, slices: RaggedSlices<'_>, axis: impl IntoAxisNames) -> Array {
    or_failed(&output, || exchange(&operand, &output, &slices, axis))
}

fn exchange(operand: &Array, output: &Array, slices: &RaggedSlices<'_>, axis: impl IntoAxisNames) -> Result<Array> {
    operand.check()?;
    output.check()?;
    if axis.groups().is_some() {
        return Err(err!(NotImplemented, "ragged_all_to_all does not support axis_index_groups")
            .help("exchange over entire axes of the mesh"));
    }
    let names = axis.into_axis_names();
    let size = axis_size(&names[..])?;
    let [from, sizes, to] = [slices.input_offsets, slices.send_sizes, slices.output_offsets];
    for index in [from, sizes, to, slices.recv_sizes] {
        index.check()?;
        if index.shape() != [size] || !index.dtype().is_integer() {
            return Err(err!(
                Value,
                "ragged_all_to_all over {size} devices takes {size} integers in each array of slices, got {}",
                index.type_name()
            )
            .help("pass arrays of integers with one element for each device"));
        }
    }
    if operand.ndim() == 0
        || operand.dtype() != output.dtype()
        || operand.shape()[1..] != output.shape()[output.ndim().min(1)..]
    {
        return Err(err!(
            Value,
            "ragged_all_to_all of {} into {}: they may differ only in the number of rows",
            operand.type_name(),
            output.type_name()
        )
        .help("pass an output of the operand's dtype, whose rows have its shape"));
    }
    let [operand_rows, output_rows] = [operand, output].map(|x| x.shape().first().copied().unwrap_or(0));
    if operand_rows == 0 || output_rows == 0 {
        return Ok(output.clone());
    }
    let receiver = axis_index(&names[..]);
    let operands = all_gather(operand.clone(), &names[..], 0);
    // Selects the entries that each device has for this one.
    let [from, sizes, to] =
        [from, sizes, to].map(|index| all_gather(index.astype(DType::I32), &names[..], 0).take(&receiver, 1));
    let row = lax::iota(DType::I32, &[output_rows], 0);
    let mut result = output.clone();
    for sender in 0..size as i32 {
        let row_in_slice = &row - to.get(sender);
        let is_sent = row_in_slice.greater_equal(0) & row_in_slice.less(sizes.get(sender));
        let source_row = (row_in_slice + from.get(sender)).clip(0, operand_rows as i32 - 1);
        let sent = operands.get(sender).take_mode(&source_row, 0, GatherScatterMode::PromiseInBounds);
        let shape: Vec<usize> = std::iter::once(output_rows).chain(std::iter::repeat_n(1, output.ndim() - 1)).collect();
        result = where_(is_sent.reshape(&shape), sent, result);
    }
    Ok(result)
}
