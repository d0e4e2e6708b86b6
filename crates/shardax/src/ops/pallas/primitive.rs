//! The primitive of a kernel on its grid.

use super::call::{CompilerParams, CostEstimate};
use super::spec::BlockDim;
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, BatchAxis, Dims, Outputs, Primitive, Tangents, ThreadState};
use crate::core::program::trace::trace;
use crate::core::program::{Aval, Flops, Program};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::interpret::eval::eval;
use crate::interpret::higher_order::{bind_checked, zeros};
use crate::ops::control_flow::each;
use crate::ops::state::Swap;
use crate::ops::state::discharge::accesses;
use crate::sharding::DimSpec;

/// A kernel. Operands are the prefetched ones and the inputs. Its refs are those of the operands, of the results, and of
/// the scratch memory, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub name: String,
    /// Without inputs and outputs: it reads and writes its refs.
    pub program: Program,
    pub grid: Vec<usize>,
    /// The number of first dimensions of the grid that `vmap` added, which the kernel does not see.
    pub vmapped: usize,
    /// The types of the prefetched operands, which index maps may read.
    pub scalars: Vec<Aval>,
    /// Those of the inputs and of the outputs.
    pub blocks: Vec<Block>,
    pub outs: Vec<Aval>,
    pub scratch: Vec<Aval>,
    /// Pairs of an operand and the output that starts with its value.
    pub aliases: Vec<(usize, usize)>,
    pub cost: Option<CostEstimate>,
    pub params: CompilerParams,
    /// It is a loop on every platform.
    pub interpret: bool,
}

/// The blocks of an array.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Block {
    pub dims: Vec<BlockDim>,
    /// The type of the array.
    pub array: Aval,
    /// The index map: from the position in the grid to the index of the block in each dimension. Its refs are those of the
    /// prefetched operands.
    pub index: Program,
}

impl Block {
    /// The type of the ref.
    pub fn ref_aval(&self) -> Aval {
        let seen = self.dims.iter().filter(|dim| !matches!(dim, BlockDim::Squeezed));
        self.array.with_shape(seen.map(|dim| dim.size()).collect::<crate::shape::Shape>())
    }

    /// The block with one more dimension of the grid, the first, and of an array that has an entry for each of its
    /// positions in a first dimension, if it is `batched`.
    fn with_axis(&self, size: usize, batched: bool) -> Result<Block> {
        let inner: Vec<Aval> = self.index.in_avals().cloned().collect();
        let types: Vec<Aval> = std::iter::once(Aval::scalar(DType::I32)).chain(inner).collect();
        let index = trace(&types, |ids| {
            let index = eval(&self.index, &ids[1..])?;
            Ok(ids[..usize::from(batched)].iter().cloned().chain(index).collect())
        })?;
        let mut block = Block { index: index.program, ..self.clone() };
        if batched {
            block.dims.insert(0, BlockDim::Squeezed);
            block.array = block.array.with_dim(0, size, DimSpec::None);
        }
        Ok(block)
    }
}

impl Kernel {
    /// The number of positions of the grid.
    pub fn steps(&self) -> usize {
        self.grid.iter().fold(1, |a, b| a.saturating_mul(*b))
    }

    /// The number of prefetched operands.
    pub fn prefetch(&self) -> usize {
        self.scalars.len()
    }

    /// The number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.blocks.len() - self.outs.len()
    }

    /// Marks the refs that the kernel writes.
    pub fn written(&self) -> Vec<bool> {
        let mut written = vec![false; self.prefetch() + self.blocks.len() + self.scratch.len()];
        self.program.for_each_distinct_eqn(&mut |eqn| {
            if let Some(swap) = eqn.primitive.as_any().downcast_ref::<Swap>() {
                written.get_mut(swap.access.number).into_iter().for_each(|written| *written = true);
            }
        });
        written
    }

    /// Returns `true` if it has effects besides those on its refs.
    fn has_other_effects(&self) -> bool {
        let mut found = false;
        self.program.for_each_distinct_eqn(&mut |eqn| {
            let primitive = &*eqn.primitive;
            found |= primitive.programs().is_empty() && primitive.has_effects() && !accesses(primitive);
        });
        found
    }
}

impl Primitive for Kernel {
    fn name(&self) -> &'static str {
        "pallas_call"
    }

    fn output_count(&self) -> usize {
        self.outs.len()
    }

    fn programs(&self) -> Vec<&Program> {
        vec![&self.program]
    }

    fn print_params(&self) -> String {
        let blocks: Vec<_> = self.blocks.iter().map(|block| format!("{:?}", block.dims)).collect();
        format!("name={} grid={:?} blocks=[{}]", self.name, self.grid, blocks.join(", "))
    }

    fn has_effects(&self) -> bool {
        self.has_other_effects()
    }

    fn accepts_keys(&self) -> bool {
        false
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        let inputs = &self.blocks[..self.num_inputs()];
        if args.len() != self.prefetch() + inputs.len() {
            return Err(err!(Type, "pallas_call {} takes {} operands, got {}", self.name, inputs.len(), args.len()));
        }
        for (arg, block) in args[self.prefetch()..].iter().zip(inputs) {
            if (arg.dtype, &arg.shape) != (block.array.dtype, &block.array.shape) {
                return Err(err!(
                    Type,
                    "pallas_call {} needs an operand of type {}, got {arg}",
                    self.name,
                    block.array
                ));
            }
        }
        Ok(self.outs.iter().cloned().collect())
    }

    fn flops(&self, _args: &[Aval], _outs: &[Aval]) -> Flops {
        match self.cost {
            Some(cost) => Flops { elementwise: cost.transcendentals as f64, ..Flops::of_matmuls(cost.flops as f64) },
            None => self.program.flops() * self.steps() as f64,
        }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        cx.expand(args, |args| self.run(args))
    }

    fn thread_state(&self, _thread: &dyn ThreadState, args: &[Array], _state: &mut Vec<Array>) -> Result<Outputs> {
        if self.has_other_effects() {
            return Err(err!(
                NotImplemented,
                "checks and ordered effects inside of the kernel {} are not supported",
                self.name
            ));
        }
        bind_checked(self.clone(), args)
    }

    fn jvp(&self, _args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Err(err!(NotImplemented, "pallas_call {} has no derivative: a kernel is not differentiated", self.name).help(
            "wrap the function that calls it in `custom_vjp`, with another kernel or plain operations for the gradient",
        ))
    }

    /// The batch is one more dimension of the grid.
    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let batched = vec![Some(0); self.outs.len()];
        if axis.size == 0 {
            let empty = self.outs.iter().map(|out| zeros(&out.with_dim(0, 0, DimSpec::None)));
            return Ok((empty.collect(), batched));
        }
        // The index maps of all entries share their operands.
        if dims[..self.prefetch()].iter().any(Option::is_some) {
            return Ok((each(self.clone(), args, dims, axis.size)?, batched));
        }
        // An output that starts with an operand needs one for each entry.
        let is_batched = |i: usize| dims[i].is_some() || self.aliases.iter().any(|(input, _)| *input == i);
        let operand = |i: usize| if is_batched(i) { axis.moved(&args[i], dims[i], 0) } else { args[i].clone() };
        let operands: Vec<Array> = (0..args.len()).map(operand).collect();
        let block = |(i, block): (usize, &Block)| {
            block.with_axis(axis.size, i >= self.num_inputs() || is_batched(self.prefetch() + i))
        };
        let this = Kernel {
            grid: [&[axis.size], self.grid.as_slice()].concat(),
            vmapped: self.vmapped + 1,
            blocks: self.blocks.iter().enumerate().map(block).collect::<Result<_>>()?,
            outs: self.outs.iter().map(|out| out.with_dim(0, axis.size, DimSpec::None)).collect(),
            cost: self.cost.map(|cost| cost.times(axis.size as u64)),
            ..self.clone()
        };
        Ok((bind_checked(this, &operands)?, batched))
    }
}
