//! Runs a kernel as a loop over its grid. Each step cuts the blocks out of the arrays, runs the kernel as a function of the
//! values of its blocks, and writes the changed blocks back.

use super::kernel::ProgramId;
use super::primitive::{Block, Kernel};
use super::spec::BlockDim;
use crate::core::array::Array;
use crate::core::primitive::Primitive;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::ops::control_flow::fori_loop;
use crate::ops::lax;
use crate::ops::promotion::convert;
use crate::ops::state::discharge::Discharge;
use crate::ops::state::{number, uninitialized};
use crate::shape::Shape;

impl Kernel {
    /// Runs the kernel on these operands and returns its results.
    pub fn run(&self, args: &[Array]) -> Result<Vec<Array>> {
        let (scalars, inputs) = args.split_at(self.prefetch());
        let steps = self.steps();
        if i32::try_from(steps).is_err() {
            return Err(err!(
                Value,
                "pallas_call {} has a grid of {steps} positions; at most {} are possible, because int32 counts them",
                self.name,
                i32::MAX
            )
            .help("use larger blocks, so that the grid has fewer positions"));
        }
        let outputs = self.outs.iter().enumerate().map(|(i, aval)| self.initial_output(i, aval, args));
        let arrays: Vec<Array> = inputs.iter().cloned().chain(outputs).collect();
        let padded = self.blocks.iter().zip(&arrays).map(|(block, array)| block.padded(array));
        let initial: Vec<Array> =
            scalars.iter().cloned().chain(padded).chain(self.scratch.iter().map(uninitialized)).collect();
        // The loop carries only the arrays that the kernel writes; all others are constants, so that XLA copies nothing.
        let written = self.written();
        let changing: Vec<usize> = (0..initial.len()).filter(|&i| written[i]).collect();
        let step = |i: Array, changed: Vec<Array>| -> Result<Vec<Array>> {
            self.step(&self.position(&i), &replaced(&initial, &changing, changed), &changing)
        };
        let carry: Vec<Array> = changing.iter().map(|&i| initial[i].clone()).collect();
        let carry = match steps {
            1 => step(number(0), carry)?,
            _ => fori_loop(0, steps, step, carry)?,
        };
        let arrays = replaced(&initial, &changing, carry);
        let outs = &arrays[self.prefetch() + self.num_inputs()..];
        Ok(self.blocks[self.num_inputs()..].iter().zip(outs).map(|(block, out)| block.without_padding(out)).collect())
    }

    /// Returns the value that output `i` has before the first step: the aliased operand, or uninitialized memory.
    fn initial_output(&self, i: usize, aval: &Aval, args: &[Array]) -> Array {
        match self.aliases.iter().find(|(_, output)| *output == i) {
            Some((input, _)) => args[*input].clone(),
            None => uninitialized(aval),
        }
    }

    /// Returns the position in the grid of a step, one index for each dimension of the grid.
    fn position(&self, step: &Array) -> Vec<Array> {
        let step = convert(step, DType::I32, false);
        let mut stride = self.steps();
        let mut position = Vec::with_capacity(self.grid.len());
        for &size in &self.grid {
            stride /= size.max(1);
            // The first index needs no remainder, and the last needs no quotient.
            let quotient = if stride == 1 { step.clone() } else { lax::div(&step, &number(stride)) };
            let index = if stride * size == self.steps() { quotient } else { lax::rem(&quotient, &number(size)) };
            position.push(index);
        }
        position
    }

    /// Runs the kernel at one position of the grid, and returns the new values of the `changing` arrays.
    fn step(&self, position: &[Array], arrays: &[Array], changing: &[usize]) -> Result<Vec<Array>> {
        // The kernel does not see the first dimensions of the grid, which `vmap` added.
        let discharge = Discharge(&|primitive: &dyn Primitive| {
            let id = primitive.as_any().downcast_ref::<ProgramId>()?;
            position.get(self.vmapped + id.axis).cloned()
        });
        let starts: Vec<Vec<Array>> = self
            .blocks
            .iter()
            .map(|block| {
                let index = discharge.eval(&block.index, position, &mut arrays[..self.prefetch()].to_vec())?;
                Ok(block.starts(&index))
            })
            .collect::<Result<_>>()?;
        let mut refs = arrays.to_vec();
        for ((block, starts), array) in self.blocks.iter().zip(&starts).zip(&mut refs[self.prefetch()..]) {
            *array = block.cut(array, starts);
        }
        discharge.eval(&self.program, &[], &mut refs)?;
        let mut changed = Vec::with_capacity(changing.len());
        for &i in changing {
            // Prefetched operands come before the blocks and scratch memory after them; the kernel sees both as they are.
            let block = i.checked_sub(self.prefetch()).and_then(|b| Some((self.blocks.get(b)?, &starts[b])));
            changed.push(match block {
                Some((block, starts)) => block.paste(&arrays[i], &refs[i], starts),
                None => refs[i].clone(),
            });
        }
        Ok(changed)
    }
}

/// Returns `arrays` with the arrays at `indices` replaced by `values`.
fn replaced(arrays: &[Array], indices: &[usize], values: Vec<Array>) -> Vec<Array> {
    let mut arrays = arrays.to_vec();
    indices.iter().zip(values).for_each(|(&i, value)| arrays[i] = value);
    arrays
}

impl Block {
    /// Returns the number of entries of a block in each dimension of the array.
    fn sizes(&self) -> Shape {
        self.dims.iter().map(|dim| dim.size()).collect()
    }

    /// Adds the spec's padding to the array, and then extends each dimension to a multiple of the block.
    fn padded(&self, array: &Array) -> Array {
        let widths: Vec<_> =
            self.dims.iter().zip(&self.array.shape).map(|(dim, &size)| padding_width(dim, size)).collect();
        if widths.iter().all(|width| *width == (0, 0, 0)) {
            array.clone()
        } else {
            lax::pad(array, &uninitialized(&Aval::scalar(array.dtype())), &widths)
        }
    }

    /// Undoes [`padded`](Self::padded).
    fn without_padding(&self, array: &Array) -> Array {
        if array.shape() == self.array.shape.as_slice() {
            return array.clone();
        }
        let starts: Vec<usize> = self.dims.iter().map(|dim| dim.padding().0).collect();
        let limits: Vec<usize> = starts.iter().zip(&self.array.shape).map(|(start, size)| start + size).collect();
        lax::slice(array, &starts, &limits, None)
    }

    /// Returns the array index of the block's first entry in each dimension.
    fn starts(&self, index: &[Array]) -> Vec<Array> {
        self.dims.iter().zip(index).map(|(dim, index)| block_start(dim, index)).collect()
    }

    /// Returns `true` if the block is the entire array, so that nothing needs to be cut.
    fn is_whole(&self, array: &Array) -> bool {
        self.sizes().as_slice() == array.shape()
    }

    /// Cuts the block out of the array, and drops its squeezed dimensions.
    fn cut(&self, array: &Array, starts: &[Array]) -> Array {
        let block = if self.is_whole(array) { array.clone() } else { lax::dynamic_slice(array, starts, &self.sizes()) };
        block.reshape(&self.ref_aval().shape)
    }

    /// Writes a block into the array.
    fn paste(&self, array: &Array, block: &Array, starts: &[Array]) -> Array {
        let block = block.reshape(self.sizes());
        if self.is_whole(array) { block } else { lax::dynamic_update_slice(array, &block, starts) }
    }
}

/// Returns the entries to add before, after and between the `size` entries of a dimension.
fn padding_width(dim: &BlockDim, size: usize) -> (i64, i64, i64) {
    let (low, high) = dim.padding();
    let padded_size = low + size + high;
    (low as i64, (high + padded_size.next_multiple_of(dim.size()) - padded_size) as i64, 0)
}

/// Returns the first entry of a block in one dimension. `Blocked` dimensions count blocks, all others count entries.
fn block_start(dim: &BlockDim, index: &Array) -> Array {
    let index = convert(index, DType::I32, false);
    match dim {
        BlockDim::Blocked(size) => index * number(*size),
        _ => index,
    }
}
