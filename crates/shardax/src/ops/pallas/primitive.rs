//! The primitive `pallas_call`: a kernel with its grid.

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

/// A kernel with its grid and blocks. The operands are the prefetched operands, then the inputs. The kernel's refs are the
/// operands, the results, and the scratch memory, in this order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Kernel {
    pub name: String,
    /// The kernel as a program without inputs and outputs, because it reads and writes refs instead.
    pub program: Program,
    pub grid: Vec<usize>,
    /// The number of leading dimensions of the grid that `vmap` added. The kernel does not see them.
    pub vmapped: usize,
    /// The types of the prefetched operands, which index maps can read.
    pub scalars: Vec<Aval>,
    /// The blocks of the inputs, then the blocks of the outputs.
    pub blocks: Vec<Block>,
    pub outs: Vec<Aval>,
    pub scratch: Vec<Aval>,
    /// Pairs of an operand and the output that starts with its value.
    pub aliases: Vec<(usize, usize)>,
    pub cost: Option<CostEstimate>,
    pub params: CompilerParams,
    /// Compiles the kernel to a loop on every platform.
    pub interpret: bool,
}

/// The division of an array into blocks, with an index map.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Block {
    pub dims: Vec<BlockDim>,
    /// The type of the array.
    pub array: Aval,
    /// The index map. It receives the position in the grid and returns the index of the block in each dimension. Its refs
    /// are the prefetched operands.
    pub index: Program,
}

impl Block {
    /// Returns the type of the ref that the kernel sees.
    pub fn ref_aval(&self) -> Aval {
        let dims = self.dims.iter().filter(|dim| !matches!(dim, BlockDim::Squeezed));
        self.array.with_shape(dims.map(|dim| dim.size()).collect::<crate::shape::Shape>())
    }

    /// Adds a leading dimension of this size to the grid. If `batched`, the array also gets a leading dimension, which the
    /// new grid index selects from.
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
    /// Returns the number of positions of the grid.
    pub fn steps(&self) -> usize {
        self.grid.iter().fold(1, |a, b| a.saturating_mul(*b))
    }

    /// Returns the number of prefetched operands.
    pub fn prefetch(&self) -> usize {
        self.scalars.len()
    }

    /// Returns the number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.blocks.len() - self.outs.len()
    }

    /// Returns one flag for each ref: whether the kernel writes it.
    pub fn written(&self) -> Vec<bool> {
        let mut written = vec![false; self.prefetch() + self.blocks.len() + self.scratch.len()];
        self.program.for_each_distinct_eqn(&mut |eqn| {
            if let Some(swap) = eqn.primitive.as_any().downcast_ref::<Swap>() {
                written.get_mut(swap.access.number).into_iter().for_each(|written| *written = true);
            }
        });
        written
    }

    /// Returns `true` if the kernel has effects besides reads and writes of its refs.
    fn has_other_effects(&self) -> bool {
        let mut has_effects = false;
        self.program.for_each_distinct_eqn(&mut |eqn| {
            let primitive = &*eqn.primitive;
            has_effects |= primitive.programs().is_empty() && primitive.has_effects() && !accesses(primitive);
        });
        has_effects
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
                    "pallas_call {} expects an operand of type {}, got {arg}",
                    self.name,
                    block.array
                ));
            }
        }
        Ok(self.outs.iter().cloned().collect())
    }

    fn flops(&self, _args: &[Aval], _outs: &[Aval]) -> Flops {
        match self.cost {
            Some(cost) => Flops { elementwise: cost.transcendentals as f64, ..Flops::from_matmuls(cost.flops as f64) },
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
            )
            .help("check the operands before the call and the results after it"));
        }
        bind_checked(self.clone(), args)
    }

    fn jvp(&self, _args: &[Array], _tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Err(err!(NotImplemented, "pallas_call {} has no derivative, because kernels are not differentiated", self.name).help(
            "wrap the function that calls it in `custom_vjp`, with another kernel or plain operations for the gradient",
        ))
    }

    /// Makes the batch a leading dimension of the grid.
    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let batched = vec![Some(0); self.outs.len()];
        if axis.size == 0 {
            let empty = self.outs.iter().map(|out| zeros(&out.with_dim(0, 0, DimSpec::None)));
            return Ok((empty.collect(), batched));
        }
        // Index maps read the prefetched operands, and a kernel has one index map for all entries of the batch. If these
        // operands differ between entries, the kernel must run once for each entry.
        if dims[..self.prefetch()].iter().any(Option::is_some) {
            return Ok((each(self.clone(), args, dims, axis.size)?, batched));
        }
        let mut operands = Vec::with_capacity(args.len());
        let mut is_batched = Vec::with_capacity(args.len());
        for (i, (arg, &dim)) in args.iter().zip(dims).enumerate() {
            // An output that starts with an operand needs a copy of the operand for each entry.
            let batched = dim.is_some() || self.aliases.iter().any(|(input, _)| *input == i);
            operands.push(if batched { axis.moved(arg, dim, 0) } else { arg.clone() });
            is_batched.push(batched);
        }
        let mut blocks = Vec::with_capacity(self.blocks.len());
        for (i, block) in self.blocks.iter().enumerate() {
            let is_output = i >= self.num_inputs();
            blocks.push(block.with_axis(axis.size, is_output || is_batched[self.prefetch() + i])?);
        }
        let kernel = Kernel {
            grid: [&[axis.size], self.grid.as_slice()].concat(),
            vmapped: self.vmapped + 1,
            blocks,
            outs: self.outs.iter().map(|out| out.with_dim(0, axis.size, DimSpec::None)).collect(),
            cost: self.cost.map(|cost| cost.times(axis.size as u64)),
            ..self.clone()
        };
        Ok((bind_checked(kernel, &operands)?, batched))
    }
}
