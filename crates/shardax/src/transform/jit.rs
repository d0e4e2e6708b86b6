//! `jit`: a function compiled as one program for each kind of arguments.

use std::marker::PhantomData;
use std::sync::Arc;

use super::dispatch::{self, Built, Cache};
use super::staged::{FlatFn, avals_of, flat_fn, is_jit_disabled, trace_flat};
use crate::error::{Result, bail};
use crate::function::Function;
use crate::program::Program;
use crate::program::trace::{Traced, is_tracing};
use crate::runtime::eager;
use crate::runtime::placement::Place;
use crate::spmd::context::with_arguments;
use crate::tree::{Flat, Tree, TreeDef};

/// A compiled function; see [`jit`].
pub struct Jit<F, Args> {
    f: F,
    name: &'static str,
    donate_argnums: Vec<usize>,
    cache: std::sync::OnceLock<Arc<Cache>>,
    args: PhantomData<fn(Args)>,
}

/// Compiles `f` as one program. It is traced once for each structure, type and sharding of its arguments.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array, y: Array| (x * y).sum(..));
/// assert_eq!(f.call((array([1.0f32, 2.0]), 3.0))?.item::<f32>()?, 9.0);
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn jit<Args: Tree, F: Function<Args>>(f: F) -> Jit<F, Args> {
    Jit { f, name: function_name::<F>(), donate_argnums: Vec::new(), cache: Default::default(), args: PhantomData }
}

/// The name of a function, for programs and errors.
pub(crate) fn function_name<F>() -> &'static str {
    let full = std::any::type_name::<F>();
    let plain = full.split('<').next().unwrap_or(full);
    match plain.rsplit("::").find(|part| !part.starts_with('{')) {
        Some(name) if !plain.contains("{{closure}}") => name,
        _ => "lambda",
    }
}

impl<F, Args> Jit<F, Args> {
    /// The arguments, by position, whose memory the result may take over. They cannot be used afterwards.
    pub fn donate_argnums<const N: usize>(mut self, argnums: [usize; N]) -> Self {
        self.donate_argnums = argnums.to_vec();
        self.cache = Default::default();
        self
    }
}

impl<F: Function<Args>, Args: Tree> Function<Args> for Jit<F, Args> {
    type Output = F::Output;

    fn apply(&self, args: Args) -> Result<F::Output> {
        if is_tracing() || is_jit_disabled() {
            return self.f.apply(args);
        }
        let flat = Flat::of(&args);
        let cache = self.cache.get_or_init(|| dispatch::shared::<F>(("jit", &self.donate_argnums)));
        let f = flat_fn(&self.f);
        cache.call(&flat, &|flat| build(self.name, flat, &self.donate_argnums, &f))?.build()
    }
}

/// Which leaves of a tuple of arguments belong to these positions.
pub(crate) fn leaves_of(def: &TreeDef, argnums: &[usize], what: &str) -> Result<Vec<bool>> {
    let children = def.root_children().unwrap_or_default();
    if let Some(bad) = argnums.iter().find(|a| **a >= children.len()) {
        bail!(Value, "{what} names argument {bad}, but the function takes {} arguments", children.len());
    }
    Ok(children
        .iter()
        .enumerate()
        .flat_map(|(i, (_, def))| std::iter::repeat_n(argnums.contains(&i), def.leaf_count()))
        .collect())
}

fn build(name: &str, flat: &Flat, donate_argnums: &[usize], f: FlatFn<'_>) -> Result<Built> {
    let donated = leaves_of(&flat.def, donate_argnums, "donate_argnums")?;
    let (traced, out_def) = with_arguments(&flat.leaves, || trace_flat(&flat.def, &avals_of(flat)?, f))?;
    let pruned = Pruned::new(&traced)?;
    let args: Vec<_> = pruned
        .captures
        .iter()
        .cloned()
        .map(Ok)
        .chain(pruned.kept.iter().map(|&i| flat.leaves[i].concrete()))
        .collect::<Result<_>>()?;
    let mut request = eager::request(name.to_owned(), pruned.program, &args)?;
    for (at, &i) in pruned.kept.iter().enumerate() {
        request.donated[pruned.captures.len() + at] = donated[i];
    }
    let committed = args.iter().any(|a| a.committed) || matches!(request.place, Place::Mesh(_));
    Ok(Built { loaded: request.load()?, captures: pruned.captures, kept: pruned.kept, out_def, committed })
}

/// A traced function without the equations and inputs that nothing depends on.
pub(crate) struct Pruned {
    pub program: Program,
    pub captures: Vec<Arc<crate::array::Concrete>>,
    /// The arguments that are left.
    pub kept: Vec<usize>,
}

impl Pruned {
    pub fn new(traced: &Traced) -> Result<Self> {
        let mut program = traced.program.simplified();
        let used = program.used_inputs();
        let count = traced.captures.len();
        let captures = traced.captures.iter().zip(&used).filter(|(_, u)| **u).map(|(c, _)| c.concrete());
        let captures = captures.collect::<Result<Vec<_>>>()?;
        let kept = used[count..].iter().enumerate().filter(|(_, u)| **u).map(|(i, _)| i).collect();
        let mut flags = used.iter();
        program.inputs.retain(|_| *flags.next().unwrap_or(&true));
        Ok(Pruned { program, captures, kept })
    }
}
