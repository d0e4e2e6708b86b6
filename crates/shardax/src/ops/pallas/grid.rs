//! A kernel as a loop over its grid: each step cuts the blocks out of the arrays, runs the kernel as a function of their
//! values, and writes back those that it changed.

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
    /// The results for these operands.
    pub fn run(&self, args: &[Array]) -> Result<Vec<Array>> {
        let (scalars, inputs) = args.split_at(self.prefetch());
        let steps = self.steps();
        if i32::try_from(steps).is_err() {
            return Err(err!(
                Value,
                "pallas_call {} has a grid of {steps} positions: they are counted in int32",
                self.name
            )
            .help("use larger blocks, so that the grid has fewer positions"));
        }
        let output = |(i, aval): (usize, &Aval)| match self.aliases.iter().find(|(_, output)| *output == i) {
            Some((input, _)) => args[*input].clone(),
            None => uninitialized(aval),
        };
        let outputs = self.outs.iter().enumerate().map(output);
        let arrays: Vec<Array> = inputs.iter().cloned().chain(outputs).collect();
        let blocks = self.blocks.iter().zip(&arrays).map(|(block, array)| block.padded(array));
        let all: Vec<Array> =
            scalars.iter().cloned().chain(blocks).chain(self.scratch.iter().map(uninitialized)).collect();
        // Only what the kernel writes changes from step to step.
        let written = self.written();
        let changing: Vec<usize> = (0..all.len()).filter(|&i| written[i]).collect();
        let with = |changed: Vec<Array>| {
            let mut all = all.clone();
            changing.iter().zip(changed).for_each(|(&i, array)| all[i] = array);
            all
        };
        let step = |i: Array, changed: Vec<Array>| -> Result<Vec<Array>> {
            self.step(&self.position(&i), &with(changed), &changing)
        };
        let start: Vec<Array> = changing.iter().map(|&i| all[i].clone()).collect();
        let end = match steps {
            1 => step(number(0), start)?,
            _ => fori_loop(0, steps, step, start)?,
        };
        let end = with(end);
        let outs = &end[self.prefetch() + self.num_inputs()..];
        Ok(self.blocks[self.num_inputs()..].iter().zip(outs).map(|(block, out)| block.without_padding(out)).collect())
    }

    /// The position in the grid of this step.
    fn position(&self, step: &Array) -> Vec<Array> {
        let step = convert(step, DType::I32, false);
        let mut stride = self.steps();
        let index = |&size: &usize| {
            stride /= size.max(1);
            // The first index needs no remainder, the last no quotient.
            let quotient = if stride == 1 { step.clone() } else { lax::div(&step, &number(stride)) };
            if stride * size == self.steps() { quotient } else { lax::rem(&quotient, &number(size)) }
        };
        self.grid.iter().map(index).collect()
    }

    /// The arrays of these numbers after one step.
    fn step(&self, position: &[Array], all: &[Array], changing: &[usize]) -> Result<Vec<Array>> {
        let program_id = |primitive: &dyn Primitive| {
            let id = primitive.as_any().downcast_ref::<ProgramId>()?;
            position.get(self.vmapped + id.axis).cloned()
        };
        let discharge = Discharge(&program_id);
        let starts: Vec<Vec<Array>> = self
            .blocks
            .iter()
            .map(|block| {
                let index = discharge.eval(&block.index, position, &mut all[..self.prefetch()].to_vec())?;
                Ok(block.starts(&index))
            })
            .collect::<Result<_>>()?;
        let mut refs = all.to_vec();
        for ((block, starts), array) in self.blocks.iter().zip(&starts).zip(&mut refs[self.prefetch()..]) {
            *array = block.cut(array, starts);
        }
        discharge.eval(&self.program, &[], &mut refs)?;
        let new =
            |&i: &usize| match i.checked_sub(self.prefetch()).and_then(|b| Some((self.blocks.get(b)?, &starts[b]))) {
                Some((block, starts)) => block.pasted(&all[i], &refs[i], starts),
                None => refs[i].clone(),
            };
        Ok(changing.iter().map(new).collect())
    }
}

impl Block {
    fn sizes(&self) -> Shape {
        self.dims.iter().map(|dim| dim.size()).collect()
    }

    /// The array with its padding, and with as many entries more that its blocks divide it.
    fn padded(&self, array: &Array) -> Array {
        let width = |(dim, &size): (&BlockDim, &usize)| {
            let (low, high) = dim.padding();
            let all = low + size + high;
            (low as i64, (high + all.next_multiple_of(dim.size()) - all) as i64, 0)
        };
        let widths: Vec<_> = self.dims.iter().zip(&self.array.shape).map(width).collect();
        match widths.iter().all(|width| *width == (0, 0, 0)) {
            true => array.clone(),
            false => lax::pad(array, &uninitialized(&Aval::scalar(array.dtype())), &widths),
        }
    }

    fn without_padding(&self, array: &Array) -> Array {
        if array.shape() == self.array.shape.as_slice() {
            return array.clone();
        }
        let starts: Vec<usize> = self.dims.iter().map(|dim| dim.padding().0).collect();
        let limits: Vec<usize> = starts.iter().zip(&self.array.shape).map(|(start, size)| start + size).collect();
        lax::slice(array, &starts, &limits, None)
    }

    /// The first entries of the block of this index.
    fn starts(&self, index: &[Array]) -> Vec<Array> {
        let start = |(dim, index): (&BlockDim, &Array)| {
            let index = convert(index, DType::I32, false);
            match dim {
                BlockDim::Blocked(size) => index * number(*size),
                _ => index,
            }
        };
        self.dims.iter().zip(index).map(start).collect()
    }

    fn is_whole(&self, array: &Array) -> bool {
        self.sizes().as_slice() == array.shape()
    }

    /// The block of the array, without squeezed dimensions.
    fn cut(&self, array: &Array, starts: &[Array]) -> Array {
        let block = if self.is_whole(array) { array.clone() } else { lax::dynamic_slice(array, starts, &self.sizes()) };
        block.reshape(&self.ref_aval().shape)
    }

    /// The array with a block replaced.
    fn pasted(&self, array: &Array, block: &Array, starts: &[Array]) -> Array {
        let block = block.reshape(self.sizes());
        if self.is_whole(array) { block } else { lax::dynamic_update_slice(array, &block, starts) }
    }
}
