//! Fused attention, which does not store the scores of all queries and keys. The gradient recomputes them from each
//! query's logsumexp ([Dao et al. 2022](https://arxiv.org/abs/2205.14135)).
//!
//! Its portable form is a loop over blocks if the scores would not fit in memory ([`blockwise`]), otherwise plain
//! operations ([`unfused`]). `backend` has kernels for platforms.
//!
//! Queries are `[..., queries, heads, depth]`, keys and values `[..., keys, key heads, depth]`, where each key head
//! serves several query heads. Per-query values of the softmax are `[..., heads, queries]`, in float32.

pub(crate) mod blockwise;
pub(crate) mod derivative;
mod operands;
pub(crate) mod unfused;

use smallvec::{SmallVec, smallvec};

pub use self::operands::{Operands, PresentOperands};
use self::unfused::Block;
use crate::choice::{Choice, NamedOption};
use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::primitive::{Avals, BatchAxis, Dims, Outputs, Primitive, ShardingRule, Tangents, TypedOuts, bind};
use crate::core::program::{Aval, Flops};
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::precision::{self, Precision};
use crate::shape::Shape;
use crate::sharding::{DimSpec, NamedSharding, PartitionSpec, Typed};

/// The score of a masked key: JAX's value, which is finite so that the softmax and its gradient are finite.
pub const HIDDEN: f64 = -0.7 * f32::MAX as f64;

/// The implementation of attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Implementation {
    /// XLA operations, with the scores of all queries and keys in memory.
    Xla,
    /// cuDNN's kernels on NVIDIA GPUs; fails if they do not support the operands. Other platforms choose automatically.
    Cudnn,
    /// Flash attention on TPUs: a kernel that JAX exported for these shapes, otherwise a kernel in Rust; fails if
    /// neither supports the operands. On CPU, it is a loop over the blocks of the kernel, for tests. GPUs choose
    /// automatically.
    Flash,
    /// A loop over blocks of keys, with a running maximum and sum. It needs the memory of only one block of scores, but
    /// more time.
    Blockwise,
}

impl NamedOption for Implementation {
    const KIND: &'static str = "implementation";
    const NAMES: &'static [(&'static str, Self)] = &[
        ("xla", Implementation::Xla),
        ("cudnn", Implementation::Cudnn),
        ("flash", Implementation::Flash),
        ("blockwise", Implementation::Blockwise),
    ];
}

/// The range of keys around a query's position that the query attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// The number of keys before the query's position.
    pub before: usize,
    /// The number of keys after the query's position.
    pub after: usize,
}

/// Larger than every position.
const UNBOUNDED: usize = i32::MAX as usize / 2;

impl Window {
    /// Every key.
    pub const ALL: Window = Window { before: usize::MAX, after: usize::MAX };

    /// Returns the limits of the differences of positions, or `None` for a side without limit.
    pub(crate) fn limits(self) -> [Option<i32>; 2] {
        [self.before, self.after].map(|n| (n < UNBOUNDED).then_some(n as i32))
    }
}

/// The options of attention.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attention {
    /// The factor of the dot products, as bits of an f64.
    scale: u64,
    /// The limit of the scores (`cap * tanh(scores / cap)`), as bits of an f64.
    soft_cap: Option<u64>,
    pub(crate) window: Window,
    pub(crate) present: PresentOperands,
    pub(crate) precision: Precision,
    pub(crate) implementation: Option<Implementation>,
    /// The sharding of the queries and of the result, if it is known.
    pub(crate) sharding: Option<NamedSharding>,
    /// `true` if the results include the numbers from which a gradient recomputes the weights.
    pub(crate) residual: bool,
}

impl Default for Attention {
    fn default() -> Self {
        Attention {
            scale: 1f64.to_bits(),
            soft_cap: None,
            window: Window::ALL,
            present: PresentOperands::default(),
            precision: Precision::Default,
            implementation: None,
            sharding: None,
            residual: false,
        }
    }
}

impl Attention {
    /// Sets the factor of the dot products of queries and keys. Default 1.
    pub fn scale(self, scale: f64) -> Self {
        Attention { scale: scale.to_bits(), ..self }
    }

    /// Limits scores to between `-cap` and `cap`.
    pub fn soft_cap(self, cap: Option<f64>) -> Self {
        Attention { soft_cap: cap.map(f64::to_bits), ..self }
    }

    /// Sets the window. Default [`Window::ALL`].
    pub fn window(self, window: Window) -> Self {
        Attention { window, ..self }
    }

    /// Sets the precision of matmuls on accelerators. `None` selects
    /// [`default_matmul_precision`](crate::default_matmul_precision).
    ///
    /// # Errors
    /// Returns an error for a text that names no precision.
    pub fn precision(self, precision: Option<Choice<Precision>>) -> Result<Self> {
        let precision = precision::resolved(precision, "dot_product_attention")?.unwrap_or_default();
        Ok(Attention { precision, ..self })
    }

    /// Sets the implementation; `None` chooses by platform and size.
    pub fn implementation(self, implementation: Option<Implementation>) -> Self {
        Attention { implementation, ..self }
    }

    /// Sets the sharding of the queries and of the result.
    pub fn sharding(self, sharding: Option<NamedSharding>) -> Self {
        Attention { sharding, ..self }
    }

    /// Returns the output. A query without any visible key attends to all keys equally.
    #[track_caller]
    pub fn apply(&self, operands: &Operands) -> Array {
        let args = operands.flat();
        bind(Attention { present: operands.present(), residual: false, ..self.clone() }, &args)[0].clone()
    }

    /// Returns the output, a reference score for each query (usually its largest score), and the sum of the
    /// exponentials of the query's scores relative to the reference. No gradient flows through the reference.
    #[track_caller]
    pub fn with_residual(&self, operands: &Operands) -> [Array; 3] {
        let args = operands.flat();
        let outs = bind(Attention { present: operands.present(), residual: true, ..self.clone() }, &args);
        [outs[0].clone(), outs[1].clone(), outs[2].clone()]
    }

    pub(crate) fn factor(&self) -> f64 {
        f64::from_bits(self.scale)
    }

    pub(crate) fn cap(&self) -> Option<f64> {
        self.soft_cap.map(f64::from_bits)
    }

    fn print(&self) -> String {
        let [before, after] = [self.window.before, self.window.after]
            .map(|n| if n >= UNBOUNDED { "all".to_owned() } else { n.to_string() });
        let mut text = format!("before={before} after={after}");
        if self.factor() != 1.0 {
            text.push_str(&format!(" scale={}", self.factor()));
        }
        if let Some(cap) = self.cap() {
            text.push_str(&format!(" soft_cap={cap}"));
        }
        if self.precision != Precision::Default {
            text.push_str(&format!(" precision={:?}", self.precision));
        }
        if let Some(implementation) = self.implementation {
            text.push_str(&format!(" implementation={implementation:?}"));
        }
        text + &self.present.print()
    }

    /// Returns this attention for a batch, whose mapped dimension is the first one of all operands.
    fn batched(&self, axis: &BatchAxis) -> Self {
        let sharding = self.sharding.as_ref().map(|sharding| {
            let batch = match axis.spmd_names.as_slice() {
                [] => DimSpec::None,
                names => DimSpec::Axes(names.iter().copied().collect()),
            };
            let spec = PartitionSpec::new(std::iter::once(batch).chain(sharding.spec().dims().iter().cloned()));
            NamedSharding::new(sharding.mesh(), spec)
        });
        Attention { sharding, ..self.clone() }
    }

    /// Returns the types of the results, or an error if the types of the operands do not match.
    fn outputs(&self, args: &[Aval]) -> Result<Avals> {
        if args.len() < self.present.count() {
            return Err(err!(Type, "attention takes {} operands, got {}", self.present.count(), args.len()));
        }
        let [q, k, v] = [&args[0], &args[1], &args[2]];
        let rank = q.rank();
        // The ranks are compared first, because the other conditions index the shapes.
        let fits = matches!(q.dtype, DType::F32 | DType::Bf16 | DType::F16)
            && [q, k, v].iter().all(|x| {
                x.rank() == rank && rank >= 3 && x.dtype == q.dtype && x.shape[..rank - 3] == q.shape[..rank - 3]
            })
            && k.shape[rank - 3..rank - 1] == v.shape[rank - 3..rank - 1]
            && depth(q) == depth(k)
            && k.shape[rank - 3] > 0
            && k.shape[rank - 2] > 0
            && q.shape[rank - 2].is_multiple_of(k.shape[rank - 2]);
        if !fits {
            return Err(err!(Type, "attention got incompatible queries {q}, keys {k} and values {v}")
                .help("pass floats of one dtype: [..., queries, heads, depth], and keys and values [..., keys, key heads, depth], where the heads are a multiple of the key heads"));
        }
        self.present.check(args)?;
        let mut shape = q.shape.clone();
        shape[rank - 1] = depth(v);
        let y = Aval::new(q.dtype, shape);
        Ok(if self.residual { smallvec![y, per_query_aval(q), per_query_aval(q)] } else { smallvec![y] })
    }
}

fn shape_of(batch: &[usize], last: [usize; 2]) -> Shape {
    batch.iter().copied().chain(last).collect()
}

/// Returns the type of a per-query value of the softmax.
pub(crate) fn per_query_aval(q: &Aval) -> Aval {
    let (batch, last) = q.shape.split_at(q.rank() - 3);
    Aval::new(DType::F32, shape_of(batch, [last[1], last[0]]))
}

/// Counts the operations that multiply every query with every key, for `depths` numbers per key.
fn products(args: &[Aval], depths: usize) -> f64 {
    let (q, k) = (&args[0], &args[1]);
    let [queries, keys] = [q, k].map(|x| x.shape[x.rank() - 3] as f64);
    let rows = q.shape[..q.rank() - 3].iter().product::<usize>() * q.shape[q.rank() - 2];
    2.0 * rows as f64 * queries * keys * depths as f64
}

fn depth(aval: &Aval) -> usize {
    aval.shape.last().copied().unwrap_or(0)
}

/// Adds a batch dimension as the first one of every operand. An unbatched mask or bias is broadcast over the batch.
fn with_batch(
    primitive: impl Primitive + 'static,
    repeated: &[usize],
    axis: &BatchAxis,
    args: &[Array],
    dims: &[Option<usize>],
) -> Result<(Outputs, Dims)> {
    let outs = bind(
        primitive,
        &args
            .iter()
            .zip(dims)
            .enumerate()
            .map(|(i, (x, dim))| match dim {
                None if repeated.contains(&i) => x.expand_dims(0),
                dim => axis.moved(x, *dim, 0),
            })
            .collect::<Vec<_>>(),
    );
    let dims = vec![Some(0); outs.len()];
    Ok((outs, dims))
}

/// The sharding rule of attention and its derivatives. Each result is sharded like the operand of the given index, or,
/// for `None`, like a per-query value. Keys and depths must not be sharded.
fn sharding_of(rule: &ShardingRule<'_>, like: impl IntoIterator<Item = Option<usize>>) -> Result<TypedOuts> {
    // A device needs all keys of its queries, and entire depths.
    let rank = rule.args()[0].rank();
    rule.check_unsharded(0, [rank - 1])?;
    for operand in [1, 2] {
        rule.check_unsharded(operand, [rank - 3, rank - 1])?;
        for d in (0..rank - 3).chain([rank - 2]) {
            let (of_queries, other) = (rule.entry(0, d), rule.entry(operand, d));
            if other != of_queries && other != DimSpec::None {
                return Err(rule.error(
                    format_args!(
                        "the batch dimensions and heads of queries, keys and values must be sharded alike, got {}",
                        rule.types()
                    ),
                    "reshard them to one sharding with `reshard(x, spec)`",
                ));
            }
        }
    }
    Ok(like
        .into_iter()
        .map(|like| {
            let dims: SmallVec<[DimSpec; 4]> = match like {
                Some(i) => (0..rule.args()[i].rank()).map(|d| rule.entry(i, d)).collect(),
                None => (0..rank - 3).chain([rank - 2, rank - 3]).map(|d| rule.entry(0, d)).collect(),
            };
            Typed::from_dims(rule.mesh(), dims)
        })
        .collect())
}

impl Primitive for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn print_params(&self) -> String {
        self.print()
    }

    fn output_count(&self) -> usize {
        if self.residual { 3 } else { 1 }
    }

    fn infer(&self, args: &[Aval]) -> Result<Avals> {
        self.outputs(args)
    }

    /// Counts the unfused implementation: a maximum, a difference, an exponential, a sum and a quotient per score.
    fn flops(&self, args: &[Aval], _outs: &[Aval]) -> Flops {
        let elements = 5.0 * products(args, 1) / 2.0;
        Flops { elementwise: elements, ..Flops::from_matmuls(products(args, depth(&args[0]) + depth(&args[2]))) }
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Result<Vec<Value>> {
        let in_blocks = blockwise::applies(self, cx, args);
        let mut results = cx.expand(args, |args| {
            let x = Operands::of(self.present, args);
            if in_blocks { blockwise::forward(self, &x) } else { Ok(Block::all(self, x).forward()) }
        })?;
        results.truncate(outs.len());
        Ok(results)
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        let with_residuals = Attention { residual: true, ..self.clone() };
        let outs = bind(with_residuals.clone(), args);
        let [y, max, sum] = [&outs[0], &outs[1], &outs[2]].map(Array::clone);
        let operand_tangents =
            [0, 1, 2].map(|i| tangents[i].clone().unwrap_or_else(|| Array::zeros_of(&args[i].aval())));
        let of_bias = if self.present.bias { tangents[PresentOperands::BIAS].clone() } else { None };
        let primitive = derivative::AttentionTangent { of: with_residuals, bias: of_bias.is_some() };
        let softmax = [y.clone(), max.clone(), sum.clone()];
        let operands: Vec<Array> = args.iter().cloned().chain(softmax).chain(operand_tangents).chain(of_bias).collect();
        let mut tangents = bind(primitive, &operands).into_iter();
        let (of_y, of_sum) = (tangents.next(), tangents.next());
        Ok(if self.residual { (smallvec![y, max, sum], vec![of_y, None, of_sum]) } else { (smallvec![y], vec![of_y]) })
    }

    fn batch(&self, axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        with_batch(self.batched(axis), &self.present.broadcast(), axis, args, dims)
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        sharding_of(rule, [Some(0), None, None].into_iter().take(self.output_count()))
    }
}
