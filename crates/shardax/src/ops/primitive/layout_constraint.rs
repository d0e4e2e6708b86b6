//! `with_layout_constraint`: the layout in memory of a value inside a program.

use smallvec::{SmallVec, smallvec};

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::prefix::{IntoPrefix, Prefix};
use crate::core::primitive::{BatchAxis, Dims, Operand, Outputs, Primitive, ShardingRule, Tangents, TypedOuts};
use crate::core::program::Aval;
use crate::core::program::trace::bind1;
use crate::core::tree::{Flat, IntoTree};
use crate::error::{Result, err};
use crate::sharding::Layout;
use crate::sharding::layout::KnownLayout;
use crate::source;

/// Constrains the layout of a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LayoutConstraint {
    pub layout: KnownLayout,
}

impl LayoutConstraint {
    #[track_caller]
    pub fn apply(&self, x: &Array) -> Array {
        bind1(self.clone(), std::slice::from_ref(x))
    }
}

/// Gives `v` a layout in memory: the names of its dimensions, the fastest varying first.
pub(crate) fn constrained(cx: &mut Lowering, v: Value, minor_to_major: &str) -> Value {
    let aval = cx.aval(v);
    let rank = aval.rank();
    // For a partitioned value, the partitioner would gather all shards, to no effect.
    if rank == 0 || (!cx.is_local() && cx.has_quirk("layout-constraint-gathers-shards")) {
        return v;
    }
    // XLA accepts an operand with any layout, whatever is written here.
    let dims: Vec<String> = (0..rank).map(|dim| dim.to_string()).collect();
    let [operand_layouts, result_layouts] =
        [&dims.join(", "), minor_to_major].map(|order| format!("[dense<[{order}]> : tensor<{rank}xindex>]"));
    let attrs = format!(
        "call_target_name = \"LayoutConstraint\", backend_config = \"\", operand_layouts = {operand_layouts}, result_layouts = {result_layouts}"
    );
    cx.op("stablehlo.custom_call", &[v], &attrs, &aval)
}

impl Primitive for LayoutConstraint {
    fn name(&self) -> &'static str {
        "layout_constraint"
    }

    fn layout(&self) -> Option<KnownLayout> {
        Some(self.layout)
    }

    fn print_params(&self) -> String {
        format!("layout={}", self.layout.get())
    }

    fn accepts_keys(&self) -> bool {
        true
    }

    fn infer(&self, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
        let layout = self.layout.get();
        layout.check(&args[0].shape).map_err(|e| {
            e.context(format!(
                "One of with_layout_constraint arguments is incompatible with its layout annotation {layout}"
            ))
        })?;
        Ok(smallvec![args[0].clone()])
    }

    fn sharding_rule(&self, rule: &ShardingRule<'_>) -> Result<TypedOuts> {
        rule.like(0)
    }

    fn lower(&self, cx: &mut Lowering, args: &[Value], _outs: &[Aval]) -> Result<Vec<Value>> {
        Ok(vec![constrained(cx, args[0], &self.layout.get().minor_to_major())])
    }

    fn jvp(&self, args: &[Array], tangents: &[Option<Array>]) -> Result<(Outputs, Tangents)> {
        Ok((smallvec![self.apply(&args[0])], vec![tangents[0].as_ref().map(|t| self.apply(t))]))
    }

    fn transpose(&self, cts: &[Option<Array>], _args: &[Operand]) -> Result<Tangents> {
        Ok(vec![cts[0].as_ref().map(|ct| self.apply(ct))])
    }

    fn batch(&self, _axis: &BatchAxis, args: &[Array], dims: &[Option<usize>]) -> Result<(Outputs, Dims)> {
        let Some(batched) = dims[0] else { return Ok((smallvec![self.apply(&args[0])], dims.to_vec())) };
        // The examples are consecutive in memory, each with its own layout.
        let inner = self.layout.get();
        let moved = inner.major_to_minor().iter().map(|&dim| dim + usize::from(dim >= batched));
        let order: Vec<usize> = std::iter::once(batched).chain(moved).collect();
        let layout = Layout::new(order)
            .with_tiling(inner.tiling().to_vec())
            .with_sub_byte_element_size_in_bits(inner.sub_byte_element_size_in_bits());
        let constraint = LayoutConstraint { layout: KnownLayout::new(&layout) };
        Ok((smallvec![constraint.apply(&args[0])], dims.to_vec()))
    }
}

/// Constrains the layouts of a tree's arrays to `layouts`: one [`Layout`], or a tree of them.
///
/// Inside a compiled program, the compiler gives the value this layout; it can have others before and
/// after. A result of the program that is the constrained value itself keeps the layout. Only the order of
/// the dimensions is constrained; tiles are the compiler's choice. Constrain a value that the compiler partitions
/// inside of a [`shard_map`](crate::shard_map): outside of one XLA gathers it on GPUs, as in JAX, and on CPU the
/// constraint has no effect. Gradients have the layouts of their values, and under `vmap` the examples are
/// consecutive in memory.
///
/// If the layout does not name each dimension exactly once, the result is an array that carries the error.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::Layout;
/// let f = jit(|x: Array| with_layout_constraint(x * 2.0, Layout::new([1, 0])));
/// let y = f.call(ones([2, 3]))?;
/// assert_eq!(y.format()?.layout(), Some(&Layout::new([1, 0])));
/// assert_eq!(y.to_vec::<f32>()?, [2.0; 6]);
/// # Ok::<(), shardax::Error>(())
/// ```
#[track_caller]
pub fn with_layout_constraint<T: IntoTree>(x: T, layouts: impl IntoPrefix<Layout>) -> T::Tree {
    let _line = source::enter();
    let x = x.into_tree();
    let flat = Flat::of(&x);
    let layouts = layouts.into_prefix();
    let leaves = match layouts.resolve(&flat.def, "with_layout_constraint layouts") {
        Ok(all) => flat.leaves.iter().zip(&all).map(|(leaf, layout)| constrain(leaf, layout)).collect(),
        Err(e) => flat.leaves.iter().map(|leaf| Array::from_result(Err(e.clone()), leaf)).collect(),
    };
    Flat { leaves, def: flat.def }.build().unwrap_or(x)
}

#[track_caller]
pub(crate) fn constrain(x: &Array, layout: &Layout) -> Array {
    if x.is_number() && layout.major_to_minor().is_empty() {
        return x.clone();
    }
    let tiled = x.concrete_ref().is_some() && !layout.tiling().is_empty();
    let result = if tiled {
        Err(err!(Value, "with_layout_constraint of an array with values cannot have tiles, got {layout}")
            .help("place it with `device_put(x, Format::new(layout, &sharding))`"))
    } else {
        Ok(LayoutConstraint { layout: KnownLayout::new(layout) }.apply(x))
    };
    Array::from_result(result, x)
}

impl IntoPrefix<Layout> for Layout {
    fn into_prefix(self) -> Prefix<Layout> {
        Prefix::Leaf(self)
    }
}

impl IntoPrefix<Layout> for &Layout {
    fn into_prefix(self) -> Prefix<Layout> {
        Prefix::Leaf(self.clone())
    }
}
