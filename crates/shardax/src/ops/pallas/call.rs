//! `pallas_call`: the function that runs a kernel on a grid.

use std::panic::Location;

use super::kernel::{is_in_kernel, on_grid};
use super::primitive::{Block, Kernel};
use super::spec::BlockSpec;
use crate::core::array::Array;
use crate::core::function::{IntoOutput, function_name};
use crate::core::primitive::Outputs;
use crate::core::program::trace::{Traced, trace};
use crate::core::program::{Aval, Program};
use crate::core::tree::{Flat, Tree};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::interpret::eval::eval;
use crate::interpret::flat::types_of;
use crate::interpret::higher_order::bind_checked;
use crate::ops::operators::ArrayLike;
use crate::ops::promotion::convert;
use crate::ops::state::{Ref, with_refs};
use crate::sharding::context::with_abstract_mesh;
use crate::source;

/// Cost of a kernel, for the compiler's schedule and [`Program::flops`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CostEstimate {
    /// Floating-point operations of all positions of the grid together.
    pub flops: u64,
    /// Evaluations of transcendental functions, for example exponentials.
    pub transcendentals: u64,
    /// Bytes read and written.
    pub bytes_accessed: u64,
}

/// Parameters of the compiler for GPUs. The defaults are the defaults of Pallas: four warps and three stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CompilerParams {
    /// The number of warps (32 threads each) that run one position of the grid: a power of two, at most 32.
    pub num_warps: usize,
    /// The number of iterations of a loop whose loads are in flight at the same time, between 1 and 16.
    pub num_stages: usize,
}

impl Default for CompilerParams {
    fn default() -> Self {
        CompilerParams { num_warps: 4, num_stages: 3 }
    }
}

impl CompilerParams {
    fn check(self) -> Result<()> {
        let CompilerParams { num_warps, num_stages } = self;
        if !num_warps.is_power_of_two() || num_warps > 32 || !(1..=16).contains(&num_stages) {
            return Err(err!(
                Value,
                "num_warps must be a power of two up to 32, and num_stages between 1 and 16, got {num_warps} and {num_stages}"
            )
            .help("`CompilerParams::default()` has 4 warps and 3 stages"));
        }
        Ok(())
    }
}

impl CostEstimate {
    /// The cost of `count` calls.
    pub(super) fn times(self, count: u64) -> Self {
        CostEstimate {
            flops: self.flops.saturating_mul(count),
            transcendentals: self.transcendentals.saturating_mul(count),
            bytes_accessed: self.bytes_accessed.saturating_mul(count),
        }
    }
}

/// A kernel with its grid and specs; see [`pallas_call`].
#[derive(Clone, Debug)]
#[must_use = "a kernel does nothing until it is called"]
pub struct PallasCall<K, T> {
    kernel: K,
    /// The number of refs that the kernel takes.
    num_refs: usize,
    out_shape: T,
    grid: Vec<usize>,
    in_specs: Option<Vec<BlockSpec>>,
    out_specs: Option<Vec<BlockSpec>>,
    scratch: Vec<Result<Aval>>,
    num_scalar_prefetch: usize,
    aliases: Vec<(usize, usize)>,
    cost: Option<CostEstimate>,
    params: CompilerParams,
    name: String,
    interpret: bool,
}

/// Makes a function that runs `kernel` at each position of a grid.
///
/// `kernel` takes an array of refs: the operands, the results, and the scratch memory, in this order. It returns nothing
/// or a `Result`. `out_shape` is a tree of [`shape_dtype_struct`](crate::shape_dtype_struct)s, which are the types of the
/// results. If you set no grid, the kernel runs once; if you set no specs, its refs are entire arrays.
///
/// Positions run one after the other, the last dimension of the grid fastest, so that a block which several positions write
/// can be an accumulator. Memory that was never written is uninitialized. On CPU it reads as NaN or as the lowest integer,
/// and so does the part of a block beyond the end of the array.
///
/// A kernel becomes a loop on CPU, a Triton kernel on GPUs, where positions run at the same time, and a Mosaic kernel on
/// TPUs. GPUs and TPUs support fewer operations and block sizes; for the others, lowering fails with an error that names
/// the fix. [Fused kernels](https://github.com/shardax/shardax/blob/main/docs/kernels.md) lists the kernels that have run on
/// hardware. [`interpret`](PallasCall::interpret) selects the loop on every platform.
///
/// [`vmap`](crate::vmap()) adds a dimension to the grid. A kernel has no derivative: wrap the function that calls it in
/// [`custom_vjp`](crate::custom_vjp()) instead.
///
/// ```
/// # use shardax::experimental::pallas::{self as pl, BlockSpec};
/// # use shardax::prelude::*;
/// // Products of blocks, summed over the last dimension of the grid.
/// let matmul = pl::pallas_call(
///     |[x, y, o, sum]| {
///         let k = pl::program_id(2);
///         pl::when(k.equal(0), || sum.set(0.0))?;
///         sum.add(pl::dot(&x.get(), &y.get()))?;
///         pl::when(k.equal(pl::num_programs(2) - 1), || o.set(sum.get().astype(o.dtype())))
///     },
///     shape_dtype_struct([64, 32], DType::Bf16),
/// )
/// .grid([2, 2, 3])
/// .in_specs([BlockSpec::new([32, 16], |[i, _, k]| [i, k]), BlockSpec::new([16, 16], |[_, j, k]| [k, j])])
/// .out_specs([BlockSpec::new([32, 16], |[i, j, _]| [i, j])])
/// .scratch_shapes([shape_dtype_struct([32, 16], DType::F32)]);
/// let ones = |shape| full_dtype(shape, 1, DType::Bf16);
/// let z = matmul.call([ones([64, 48]), ones([48, 32])])?;
/// assert_eq!(z.astype(DType::F32).max(..).item::<f32>()?, 48.0);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn pallas_call<const N: usize, K, R, T>(kernel: K, out_shape: T) -> PallasCall<impl Fn(&[Ref]) -> Result<()>, T>
where
    K: Fn([Ref; N]) -> R,
    R: IntoOutput<Output = ()>,
    T: Tree,
{
    PallasCall::new(
        N,
        move |refs: &[Ref]| match <[Ref; N]>::try_from(refs.to_vec()) {
            Ok(refs) => kernel(refs).into_output(),
            Err(refs) => {
                Err(err!(Runtime, "internal error: a kernel of {N} refs received {}; please report this", refs.len()))
            }
        },
        out_shape,
        function_name::<K>(),
    )
}

impl<K: Fn(&[Ref]) -> Result<()>, T: Tree> PallasCall<K, T> {
    /// Like [`pallas_call`], for a kernel whose number of refs is known only at run time.
    pub(crate) fn new(num_refs: usize, kernel: K, out_shape: T, name: &str) -> Self {
        PallasCall {
            kernel,
            num_refs,
            out_shape,
            grid: Vec::new(),
            in_specs: None,
            out_specs: None,
            scratch: Vec::new(),
            num_scalar_prefetch: 0,
            aliases: Vec::new(),
            cost: None,
            params: CompilerParams::default(),
            name: name.to_owned(),
            interpret: false,
        }
    }

    /// Sets the sizes of the grid. By default there is no grid, and the kernel runs once.
    pub fn grid(mut self, grid: impl IntoIterator<Item = usize>) -> Self {
        self.grid = grid.into_iter().collect();
        self
    }

    /// Sets the specs of the operands that are not prefetched. By default, blocks are entire arrays.
    pub fn in_specs(mut self, specs: impl IntoIterator<Item = BlockSpec>) -> Self {
        self.in_specs = Some(specs.into_iter().collect());
        self
    }

    /// Sets the specs of the results. By default, blocks are entire arrays.
    pub fn out_specs(mut self, specs: impl IntoIterator<Item = BlockSpec>) -> Self {
        self.out_specs = Some(specs.into_iter().collect());
        self
    }

    /// Sets the types of scratch memory, which keeps its contents from one position of the grid to the next.
    pub fn scratch_shapes(mut self, shapes: impl IntoIterator<Item = Array>) -> Self {
        let shapes = shapes.into_iter();
        self.scratch = shapes.map(|x| x.error().map_or(Ok(type_in_kernel(x.aval())), |e| Err(e.clone()))).collect();
        self
    }

    /// Like [`scratch_shapes`](Self::scratch_shapes), but with abstract values.
    pub(crate) fn scratch(mut self, types: impl IntoIterator<Item = Aval>) -> Self {
        self.scratch = types.into_iter().map(Ok).collect();
        self
    }

    /// Prefetches the first `count` operands. Every position sees them entirely, and index maps can read them
    /// ([`BlockSpec::prefetched`]). They have no spec.
    pub fn num_scalar_prefetch(mut self, count: usize) -> Self {
        self.num_scalar_prefetch = count;
        self
    }

    /// Sets pairs of an operand and a result that starts with the operand's value, for example `[(0, 0)]`.
    pub fn input_output_aliases(mut self, aliases: impl IntoIterator<Item = (usize, usize)>) -> Self {
        self.aliases = aliases.into_iter().collect();
        self
    }

    /// Sets the cost of the kernel. By default it is the cost of the kernel's operations times the size of the grid.
    pub fn cost_estimate(mut self, cost: CostEstimate) -> Self {
        self.cost = Some(cost);
        self
    }

    /// Sets the parameters of the compiler for GPUs; other platforms ignore them.
    ///
    /// ```
    /// use shardax::experimental::pallas::{self as pl, CompilerParams};
    /// use shardax::prelude::*;
    ///
    /// let copy = pl::pallas_call(|[x, o]| o.set(x.get()), shape_dtype_struct([256], DType::F32));
    /// let y = copy.compiler_params(CompilerParams { num_warps: 8, num_stages: 2 }).call([ones([256])])?;
    /// assert_eq!(y.sum(..).item::<f32>()?, 256.0);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn compiler_params(mut self, params: CompilerParams) -> Self {
        self.params = params;
        self
    }

    /// Sets the name in programs and errors. By default it is the name of the kernel function.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets whether to compile the kernel to a loop on every platform, as on CPU. By default it is `false`.
    pub fn interpret(mut self, interpret: bool) -> Self {
        self.interpret = interpret;
        self
    }

    /// Applies the kernel to these operands.
    ///
    /// # Errors
    /// Returns an error if the specs do not fit the grid, the operands or the results, or if the kernel fails.
    #[track_caller]
    pub fn call<A: ArrayLike>(&self, operands: impl IntoIterator<Item = A>) -> Result<T> {
        let location = Location::caller();
        let _line = source::enter_at(location);
        let operands: Vec<Array> = operands.into_iter().map(ArrayLike::into_array).collect();
        self.call_arrays(operands).map_err(|e| e.at(location))
    }

    fn call_arrays(&self, operands: Vec<Array>) -> Result<T> {
        operands.iter().try_for_each(Array::check)?;
        let operands: Vec<Array> = operands.iter().map(|x| convert(x, x.dtype(), false)).collect();
        let out_shape = Flat::of(&self.out_shape);
        let outs: Vec<Aval> = types_of(&out_shape)?.into_iter().map(type_in_kernel).collect();
        Flat { leaves: self.bind(&operands, outs)?.into_iter().collect(), def: out_shape.def }.build()
    }

    /// Applies the kernel to these operands and returns results of the types `outs`.
    pub(crate) fn bind(&self, operands: &[Array], outs: Vec<Aval>) -> Result<Outputs> {
        bind_checked(self.trace_kernel(operands, outs)?, operands)
    }

    /// Traces the kernel and its index maps for operands of these types. All checks come before tracing, so that the kernel
    /// function sees only refs that fit.
    fn trace_kernel(&self, operands: &[Array], outs: Vec<Aval>) -> Result<Kernel> {
        if is_in_kernel() {
            return Err(err!(NotImplemented, "pallas_call {} was called in a kernel", self.name)
                .help("call the other kernel before or after this one"));
        }
        // The refs are the prefetched scalars, the blocks of operands and results, and the scratch memory.
        let prefetch = self.num_scalar_prefetch;
        if prefetch > operands.len() {
            return Err(err!(Value, "num_scalar_prefetch is {prefetch}, but there are {} operands", operands.len())
                .help("prefetch at most as many operands as you pass"));
        }
        let scratch: Vec<Aval> = self.scratch.iter().cloned().collect::<Result<_>>()?;
        let mut scalars: Vec<Aval> = operands.iter().map(|x| type_in_kernel(x.aval())).collect();
        let inputs = scalars.split_off(prefetch);
        let count = operands.len() + outs.len() + scratch.len();
        if count != self.num_refs {
            return Err(err!(
                Type,
                "the kernel {} takes {} refs, but there are {} operands, {} results and {} scratch shapes",
                self.name,
                self.num_refs,
                operands.len(),
                outs.len(),
                scratch.len()
            )
            .help("a kernel takes a ref for each operand, each result and each scratch shape, in this order"));
        }
        self.check_aliases(operands, &outs)?;
        self.params.check()?;

        let inputs = self.blocks("input", &self.in_specs, &inputs, &scalars)?;
        let results = self.blocks("output", &self.out_specs, &outs, &scalars)?;
        let blocks: Vec<Block> = inputs.into_iter().chain(results).collect();
        let refs: Vec<Aval> =
            scalars.iter().cloned().chain(blocks.iter().map(Block::ref_aval)).chain(scratch.iter().cloned()).collect();
        let program = trace_closed(format!("the kernel {}", self.name), &[], &refs, |_, refs| {
            on_grid(&self.grid, || (self.kernel)(refs)).map(|()| Vec::new())
        })?;
        Ok(Kernel {
            name: self.name.clone(),
            program,
            grid: self.grid.clone(),
            vmapped: 0,
            scalars,
            blocks,
            outs,
            scratch,
            aliases: self.aliases.clone(),
            cost: self.cost,
            params: self.params,
            interpret: self.interpret,
        })
    }

    /// Returns the blocks of arrays of these types. `what` names the arrays in errors.
    fn blocks(
        &self,
        what: &str,
        specs: &Option<Vec<BlockSpec>>,
        arrays: &[Aval],
        scalars: &[Aval],
    ) -> Result<Vec<Block>> {
        let entire_arrays = vec![BlockSpec::full(); if specs.is_some() { 0 } else { arrays.len() }];
        let specs = specs.as_ref().unwrap_or(&entire_arrays);
        if specs.len() != arrays.len() {
            let function = if what == "input" { "in_specs" } else { "out_specs" };
            return Err(err!(Value, "{function} has {} specs, but there are {} {what}s", specs.len(), arrays.len())
                .help(format!("pass one `BlockSpec` for each {what}; `BlockSpec::full()` selects the entire array")));
        }
        let mut blocks = Vec::with_capacity(arrays.len());
        for (i, (spec, array)) in specs.iter().zip(arrays).enumerate() {
            let block = self
                .block(spec, array, scalars)
                .map_err(|e| e.context(format!("pallas_call {}, {what} {i}", self.name)).at(spec.location))?;
            blocks.push(block);
        }
        Ok(blocks)
    }

    /// Checks a spec against an array of this type, and traces its index map.
    fn block(&self, spec: &BlockSpec, array: &Aval, scalars: &[Aval]) -> Result<Block> {
        let dims = spec.dims(&array.shape)?;
        let ids = vec![Aval::scalar(DType::I32); self.grid.len()];
        let index = trace_closed("the index map".into(), &ids, scalars, |ids, refs| spec.index(ids, refs, dims.len()))?;
        Ok(Block { dims, array: array.clone(), index })
    }

    fn check_aliases(&self, operands: &[Array], outs: &[Aval]) -> Result<()> {
        for (i, &(input, output)) in self.aliases.iter().enumerate() {
            let (Some(operand), Some(result)) = (operands.get(input), outs.get(output)) else {
                return Err(err!(
                    Value,
                    "input_output_aliases ({input}, {output}): there are {} operands and {} results",
                    operands.len(),
                    outs.len()
                )
                .help("pass the index of an operand and the index of a result, both counted from 0"));
            };
            if (operand.dtype(), operand.shape()) != (result.dtype, result.shape.as_slice()) {
                return Err(err!(
                    Value,
                    "input_output_aliases ({input}, {output}): the operand has type {}, and the result {result}",
                    operand.type_name()
                )
                .help("an operand and its aliased result must have the same type"));
            }
            if self.aliases[..i].iter().any(|other| other.0 == input || other.1 == output) {
                return Err(err!(Value, "input_output_aliases: {:?} name an operand or a result twice", self.aliases)
                    .help("pair each operand with one result, and each result with one operand"));
            }
        }
        Ok(())
    }
}

/// Returns the type that an array has in a kernel, which knows neither shardings nor weak types.
fn type_in_kernel(aval: Aval) -> Aval {
    Aval::new(aval.dtype, aval.shape)
}

/// Traces a function of arguments and refs of these types. The function can capture numbers, which become literals, but no
/// arrays. `what` names it in errors.
fn trace_closed(
    what: String,
    args: &[Aval],
    refs: &[Aval],
    f: impl FnOnce(&[Array], &[Ref]) -> Result<Vec<Array>>,
) -> Result<Program> {
    // A kernel runs on one device, so that it has no mesh even where its caller has one.
    let Traced { program, captures } =
        with_abstract_mesh(None, || trace(args, |args| with_refs(refs, |refs| f(args, refs))))?;
    if let Some(array) = captures.iter().find(|x| captured_number(x).is_none()) {
        return Err(err!(Value, "{what} captures an array of type {}", array.type_name())
            .help("pass it as an operand, because a kernel can use only its refs and numbers"));
    }
    if captures.is_empty() {
        return Ok(program.simplified());
    }
    let numbers: Vec<Array> = captures.iter().filter_map(captured_number).collect();
    let traced = with_abstract_mesh(None, || trace(args, |args| eval(&program, &[&numbers[..], args].concat())))?;
    Ok(traced.program.simplified())
}

/// Returns a captured scalar as a literal, if its value is known while the kernel is traced.
fn captured_number(x: &Array) -> Option<Array> {
    let value = if x.ndim() == 0 && !x.is_traced() { x.to_scalars().ok()?.pop() } else { None };
    Some(Array::literal(value?, x.dtype(), false))
}
