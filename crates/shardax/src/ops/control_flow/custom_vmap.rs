//! `custom_vmap` and `sequential_vmap`, which define functions with custom batching.

use std::marker::PhantomData;
use std::panic::Location;
use std::sync::Arc;

use crate::core::array::Array;
use crate::core::function::Function;
use crate::core::program::trace::is_tracing;
use crate::core::tree::{Flat, Tree, TreeDef, same_structure};
use crate::error::{Result, err};
use crate::interpret::flat::{flat_fn, record};
use crate::ops::primitive::custom_jvp::RuleId;
use crate::ops::primitive::custom_vmap::{BatchFn, CustomVmap as Primitive, VmapRule};
use crate::ops::state::check_unwritten;

/// A function with a custom batching rule; see [`custom_vmap`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct CustomVmap<F, Args, R = ()> {
    f: F,
    rule: Arc<R>,
    args: PhantomData<fn(Args)>,
}

/// Defines a custom batching rule for `vmap`. Set it with [`def_vmap`](CustomVmap::def_vmap).
///
/// The rule receives the size of the batch, a flag for each array of the arguments (`true` if the array is batched
/// along its first dimension), and the arguments. It returns the result and flags for the arrays of the result that are
/// batched along their first dimension: one `bool` for all of them, or a list with one for each.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::custom_vmap;
/// // A matrix product of a batch of vectors, as one product of matrices.
/// let times = custom_vmap(|w: Array, x: Array| w.dot(x)).def_vmap(|_size, batched, (w, x): (Array, Array)| match batched {
///     [false, true] => Ok((x.dot(w.t()), true)),
///     _ => Ok((w.dot(x.expand_dims(-1)).squeeze(-1), true)),
/// });
/// let rows = vmap(move |w: Array, x: Array| times.call((w, x))).in_axes((None, 0));
/// assert_eq!(rows.call((ones([2, 3]), ones([4, 3])))?.shape(), [4, 2]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// Forward mode differentiates the function, or the rule under `vmap`. Reverse mode fails unless the function is mapped
/// first. The rule can capture concrete arrays, but you must pass values of the mapped function as arguments.
pub fn custom_vmap<Args: Tree, F: Function<Args>>(f: F) -> CustomVmap<F, Args> {
    CustomVmap { f, rule: Arc::new(()), args: PhantomData }
}

/// Flags for the batched arrays of a result: one `bool` or a list.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say which results are batched",
    label = "neither a `bool` nor a list of `bool`",
    note = "a rule returns the result with one `bool` for all of its arrays, or a list with one for each: `Ok((y, true))`"
)]
pub trait IntoBatched {
    /// Returns a flag for each of `count` arrays.
    fn into_batched(self, count: usize) -> Vec<bool>;
}

impl IntoBatched for bool {
    fn into_batched(self, count: usize) -> Vec<bool> {
        vec![self; count]
    }
}

impl IntoBatched for Vec<bool> {
    fn into_batched(self, _count: usize) -> Vec<bool> {
        self
    }
}

impl<const N: usize> IntoBatched for [bool; N] {
    fn into_batched(self, _count: usize) -> Vec<bool> {
        self.to_vec()
    }
}

impl<F: Function<Args>, Args: Tree> CustomVmap<F, Args> {
    /// Sets the rule.
    pub fn def_vmap<R, B: IntoBatched>(self, rule: R) -> CustomVmap<F, Args, (R, PhantomData<fn() -> B>)>
    where
        R: Fn(usize, &[bool], Args) -> Result<(F::Output, B)> + Send + Sync + 'static,
    {
        CustomVmap { f: self.f, rule: Arc::new((rule, PhantomData)), args: PhantomData }
    }
}

impl<F, Args, R, B> Function<Args> for CustomVmap<F, Args, (R, PhantomData<fn() -> B>)>
where
    F: Function<Args>,
    Args: Tree,
    R: Fn(usize, &[bool], Args) -> Result<(F::Output, B)> + Send + Sync + 'static,
    B: IntoBatched + 'static,
{
    type Output = F::Output;

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        if !is_tracing() {
            return self.f.apply(args);
        }
        let flat = Flat::from_arguments(&args);
        let id = RuleId::of(&self.rule, &flat.def);
        let out = record(&flat, &flat_fn(&self.f), Location::caller(), |program, num_consts, out_def| {
            check_unwritten(&program, "custom_vmap")?;
            let (rule, def, out_def) = (self.rule.clone(), flat.def.clone(), out_def.clone());
            let rule: Arc<BatchFn> = Arc::new(move |size: usize, batched: &[bool], args: &[Array]| {
                let args = Flat { leaves: args.into(), def: def.clone() }.build::<Args>()?;
                let (out, flags) = (rule.0)(size, batched, args)?;
                check_batched(&out_def, Flat::of(&out), flags)
            });
            Ok(Arc::new(Primitive { program, num_consts, rule: VmapRule::Custom(id, rule) }))
        })?;
        out.build()
    }
}

/// Checks the result of a rule and its flags, and returns its arrays with a flag for each.
fn check_batched(def: &TreeDef, out: Flat, flags: impl IntoBatched) -> Result<(Vec<Array>, Vec<bool>)> {
    same_structure(def, &out.def).map_err(|e| {
        e.context(
            "structure of output returned by custom vmap rule does not match that of original custom-vmapped function",
        )
    })?;
    let flags = flags.into_batched(out.leaves.len());
    if flags.len() != out.leaves.len() {
        return Err(err!(
            Value,
            "structure of output value and output batching specification returned by custom vmap rule do not match: \
             there are {} arrays but {} flags",
            out.leaves.len(),
            flags.len()
        )
        .help("return one `bool` for all arrays of the result, or one for each"));
    }
    Ok((out.leaves.into_vec(), flags))
}

/// A function that `vmap` calls for one entry at a time; see [`sequential_vmap`].
#[must_use = "a transformed function does nothing until it is called"]
pub struct SequentialVmap<F, Args> {
    f: F,
    args: PhantomData<fn(Args)>,
}

/// Makes `vmap` loop over the batch, for a function that cannot be batched or that would need too much memory at once.
///
/// ```
/// # use shardax::prelude::*;
/// # use shardax::control_flow::sequential_vmap;
/// let f = sequential_vmap(|x: Array| x.sin());
/// let y = vmap(move |x: Array| f.call(x)).call(array([0.0f32, 1.0, 2.0]))?;
/// assert_eq!(y.shape(), [3]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn sequential_vmap<Args: Tree, F: Function<Args>>(f: F) -> SequentialVmap<F, Args> {
    SequentialVmap { f, args: PhantomData }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for SequentialVmap<F, Args> {
    type Output = F::Output;

    #[track_caller]
    fn apply(&self, args: Args) -> Result<F::Output> {
        if !is_tracing() {
            return self.f.apply(args);
        }
        let flat = Flat::from_arguments(&args);
        let out = record(&flat, &flat_fn(&self.f), Location::caller(), |program, num_consts, _| {
            check_unwritten(&program, "sequential_vmap")?;
            Ok(Arc::new(Primitive { program, num_consts, rule: VmapRule::Sequential }))
        })?;
        out.build()
    }
}
