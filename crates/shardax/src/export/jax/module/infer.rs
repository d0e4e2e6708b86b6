//! Inference of the shapes of an operation's results from the shapes of its operands.

use super::refine::{called, unread};
use super::*;

impl<'a> Writer<'a> {
    /// The shapes of results.
    pub(super) fn inferred(&self, op: &Operation<'a>) -> Result<Vec<Vec<i64>>> {
        // JAX's programs use these operations with symbolic sizes; StableHLO specifies the shapes.
        Ok(match called(op) {
            "abs"
            | "add"
            | "and"
            | "atan2"
            | "bitcast_convert"
            | "cbrt"
            | "ceil"
            | "cholesky"
            | "collective_permute"
            | "compare"
            | "complex"
            | "convert"
            | "cosine"
            | "count_leading_zeros"
            | "divide"
            | "dynamic_update_slice"
            | "exponential"
            | "exponential_minus_one"
            | "floor"
            | "imag"
            | "is_finite"
            | "log"
            | "log_plus_one"
            | "logistic"
            | "map"
            | "maximum"
            | "minimum"
            | "multiply"
            | "negate"
            | "not"
            | "or"
            | "popcnt"
            | "power"
            | "real"
            | "reduce_precision"
            | "remainder"
            | "reverse"
            | "round_nearest_afz"
            | "round_nearest_even"
            | "rsqrt"
            | "select_and_scatter"
            | "sharding_constraint"
            | "shift_left"
            | "shift_right_arithmetic"
            | "shift_right_logical"
            | "sign"
            | "sine"
            | "sqrt"
            | "subtract"
            | "tan"
            | "tanh"
            | "batch_norm_inference"
            | "xor" => vec![self.shape(op, 0)?],
            "all_reduce" | "optimization_barrier" | "scatter" | "sort" | "while" => {
                (0..op.results.len()).map(|i| self.shape(op, i)).collect::<Result<_>>()?
            }
            "clamp" | "select" | "triangular_solve" => vec![self.shape(op, 1)?],
            "transpose" => {
                let operand = self.shape(op, 0)?;
                let transposed = self.dims(op, "permutation")?.into_iter().map(|dim| at(&operand, dim).copied());
                vec![transposed.collect::<Result<_>>()?]
            }
            "concatenate" => {
                let (mut first, dim) = (self.shape(op, 0)?, self.number(op, "dimension")?);
                at(&first, dim)?;
                for operand in 1..op.operands.len() {
                    first[dim] = first[dim].saturating_add(*at(&self.shape(op, operand)?, dim)?);
                }
                vec![first]
            }
            "slice" => self.sliced(op)?,
            "pad" => self.padded(op)?,
            "dot_general" => self.contracted(op)?,
            "reduce" => {
                let reduced = self.dims(op, "dimensions")?;
                (0..op.results.len()).map(|i| Ok(remove_dims(&self.shape(op, i)?, &reduced))).collect::<Result<_>>()?
            }
            "reduce_window" => self.reduced_in_windows(op)?,
            "gather" => self.gathered(op)?,
            "convolution" => self.convolved(op)?,
            "fft" => {
                let (mut sizes, lengths) = (self.shape(op, 0)?, self.numbers(op, "fft_length")?);
                if let (Some(last), Some(length), Attribute::Choice(_, kind)) =
                    (sizes.last_mut(), lengths.last(), self.dictionary.attribute_named(&op.named, "fft_type")?)
                {
                    match *kind {
                        "RFFT" => *last = length / 2 + 1,
                        "IRFFT" => *last = *length,
                        _ => {}
                    }
                }
                vec![sizes]
            }
            _ => return Err(unread(op)),
        })
    }

    /// The shape of a slice.
    fn sliced(&self, op: &Operation<'a>) -> Result<Vec<Vec<i64>>> {
        let (begin, end, step) =
            (self.numbers(op, "start_indices")?, self.numbers(op, "limit_indices")?, self.numbers(op, "strides")?);
        let sizes = begin.iter().zip(&end).zip(&step);
        Ok(vec![
            sizes
                .map(|((begin, end), step)| {
                    end.saturating_sub(*begin).saturating_add(step.saturating_sub(1)) / step.max(&1)
                })
                .collect(),
        ])
    }

    /// The shape of a padded array.
    fn padded(&self, op: &Operation<'a>) -> Result<Vec<Vec<i64>>> {
        let names = ["edge_padding_low", "edge_padding_high", "interior_padding"];
        let [low, high, inner] = names.map(|name| self.numbers(op, name));
        let padding = low?.into_iter().zip(high?).zip(inner?);
        let padded = self.shape(op, 0)?.into_iter().zip(padding);
        Ok(vec![
            padded
                .map(|(size, ((low, high), inner))| {
                    let gaps = size.saturating_sub(1).max(0).saturating_mul(inner);
                    size.saturating_add(gaps).saturating_add(low).saturating_add(high)
                })
                .collect(),
        ])
    }

    /// The shape of a product: the batches, then the other dimensions of both operands.
    fn contracted(&self, op: &Operation<'a>) -> Result<Vec<Vec<i64>>> {
        let (a, b) = (self.shape(op, 0)?, self.shape(op, 1)?);
        let (batch, of_a) = (self.dims(op, "lhs_batching_dimensions")?, self.dims(op, "lhs_contracting_dimensions")?);
        let (same, of_b) = (self.dims(op, "rhs_batching_dimensions")?, self.dims(op, "rhs_contracting_dimensions")?);
        let batches = batch.iter().map(|&dim| at(&a, dim).copied()).collect::<Result<Vec<_>>>()?;
        Ok(vec![[batches, remove_dims(&a, &[batch, of_a].concat()), remove_dims(&b, &[same, of_b].concat())].concat()])
    }

    /// The shapes of reductions in windows.
    fn reduced_in_windows(&self, op: &Operation<'a>) -> Result<Vec<Vec<i64>>> {
        let names = ["window_dimensions", "window_strides", "base_dilations", "window_dilations", "padding"];
        let [window, strides, base, dilations, padding] = names.map(|name| self.numbers(op, name));
        let (window, strides, base, dilations, padding) = (window?, strides?, base?, dilations?, padding?);
        let operand = self.shape(op, 0)?;
        let sizes = operand.iter().enumerate().map(|(dim, &size)| {
            let [low, high] = [2 * dim, 2 * dim + 1].map(|i| at(&padding, i).copied());
            let moved = dilated(size, *at(&base, dim)?).saturating_add(low?).saturating_add(high?);
            windows(moved, dilated(*at(&window, dim)?, *at(&dilations, dim)?), *at(&strides, dim)?)
        });
        Ok(vec![sizes.collect::<Result<_>>()?; op.results.len()])
    }

    /// The shape of gathered slices: the dimensions of the indices and of the slices, merged.
    fn gathered(&self, op: &Operation<'a>) -> Result<Vec<Vec<i64>>> {
        let (mut batch, slices) = (self.shape(op, 1)?, self.numbers(op, "slice_sizes")?);
        let vector = self.number(op, "index_vector_dim")?;
        if vector < batch.len() {
            batch.remove(vector);
        }
        let removed = [self.dims(op, "collapsed_slice_dims")?, self.dims(op, "operand_batching_dims")?].concat();
        let offsets = self.dims(op, "offset_dims")?;
        let mut sizes = slices.into_iter().enumerate().filter(|(dim, _)| !removed.contains(dim)).map(|(_, size)| size);
        let mut batch = batch.into_iter();
        let rank = batch.len() + offsets.len();
        let shape = (0..rank).map(|dim| if offsets.contains(&dim) { sizes.next() } else { batch.next() });
        Ok(vec![shape.collect::<Option<_>>().ok_or_else(|| unread(op))?])
    }

    /// The shape of a convolution's result.
    fn convolved(&self, op: &Operation<'a>) -> Result<Vec<Vec<i64>>> {
        let (image, kernel) = (self.shape(op, 0)?, self.shape(op, 1)?);
        let (from, by, to) = (
            self.dims(op, "input_spatial_dimensions")?,
            self.dims(op, "kernel_spatial_dimensions")?,
            self.dims(op, "output_spatial_dimensions")?,
        );
        let names = ["lhs_dilation", "rhs_dilation", "window_strides", "padding"];
        let [base, dilations, strides, padding] = names.map(|name| self.numbers(op, name));
        let (base, dilations, strides, padding) = (base?, dilations?, strides?, padding?);
        let mut out = vec![0; image.len()];
        let groups = *at(&self.numbers(op, "batch_group_count")?, 0)?;
        let batch = *at(&image, self.number(op, "input_batch_dimension")?)? / groups.max(1);
        let features = *at(&kernel, self.number(op, "kernel_output_feature_dimension")?)?;
        // A damaged file may number dimensions that the result does not have.
        *out.get_mut(self.number(op, "output_batch_dimension")?).ok_or_else(|| unread(op))? = batch;
        *out.get_mut(self.number(op, "output_feature_dimension")?).ok_or_else(|| unread(op))? = features;
        for (i, &dim) in to.iter().enumerate() {
            let (size, window) = (*at(&image, *at(&from, i)?)?, *at(&kernel, *at(&by, i)?)?);
            let (low, high) = (*at(&padding, 2 * i)?, *at(&padding, 2 * i + 1)?);
            let moved = dilated(size, *at(&base, i)?).saturating_add(low).saturating_add(high);
            let size = windows(moved, dilated(window, *at(&dilations, i)?), *at(&strides, i)?)?;
            *out.get_mut(dim).ok_or_else(|| unread(op))? = size;
        }
        Ok(vec![out])
    }
}

/// The sizes of the other dimensions.
fn remove_dims(shape: &[i64], dims: &[usize]) -> Vec<i64> {
    shape.iter().enumerate().filter(|(dim, _)| !dims.contains(dim)).map(|(_, size)| *size).collect()
}

/// A size with gaps between its elements.
fn dilated(size: i64, by: i64) -> i64 {
    if size == 0 { 0 } else { size.saturating_sub(1).saturating_mul(by).saturating_add(1) }
}

/// The number of positions of a window.
fn windows(size: i64, window: i64, stride: i64) -> Result<i64> {
    match size.checked_sub(window).zip(size.checked_sub(window).and_then(|left| left.checked_div(stride))) {
        Some((left, steps)) => Ok(if left < 0 { 0 } else { steps.saturating_add(1) }),
        None => Err(damaged(format!("its program has windows of {window} in {size}"))),
    }
}
