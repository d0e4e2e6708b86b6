//! `jit`: a function compiled as one program for each structure, type and sharding of its arguments.

use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};

use crate::compiler_options::{CompilerOption, CompilerOptions};
use crate::core::argnums::check_argnums;
use crate::core::array::Array;
use crate::core::function::{Function, IntoArgnums, IntoArgs, function_name, identity_of};
use crate::core::prefix::{IntoPrefix, Prefix};
use crate::core::program::trace::{bind, check_usable, is_recording, is_tracing, scoped};
use crate::core::sharding_like::{RequestedSharding, ShardingLike};
use crate::core::tree::{Flat, Tree, TreeDef};
use crate::dependence::recorded;
use crate::error::{AtCaller, Result, err};
use crate::interpret::flat::{FlatFn, avals_of, flat_fn, trace_flat};
use crate::interpret::higher_order::marked;
use crate::ops::collective::constraint::constrain;
use crate::ops::primitive::call::Call;
use crate::runtime::aot::lower::LowerOptions;
use crate::runtime::aot::{self, Lowered, LoweredFn, Traced};
use crate::runtime::dispatch::{self, Cache};
use crate::runtime::implicit_jit::is_jit_disabled;
use crate::runtime::inner_traces::{InnerKey, InnerTrace, InnerTraces};
use crate::source;

/// A compiled function; see [`jit`].
///
/// The type names the function and the tuple of its arguments, by default one array. You can store one in a struct as
/// `Jit<fn(Array) -> Array>`:
///
/// ```
/// # use shardax::prelude::*;
/// struct Model {
///     predict: Jit<fn(Array) -> Array>,
///     step: Jit<fn(Array, Array) -> Result<Array>, (Array, Array)>,
/// }
/// let model = Model { predict: jit(|x: Array| x * 2), step: jit(|w: Array, g: Array| Ok(w - g * 0.1)) };
/// assert_eq!(model.predict.call(2.0f32)?.item::<f32>()?, 4.0);
/// assert_eq!(model.step.call((1.0f32, 1.0f32))?.item::<f32>()?, 0.9);
/// # Ok::<(), shardax::Error>(())
/// ```
#[must_use = "a transformed function does nothing until it is called"]
pub struct Jit<F, Args = (Array,)> {
    f: F,
    options: Options,
    cache: OnceLock<Arc<Cache>>,
    args: PhantomData<fn(Args)>,
}

/// Shardings of arguments or results; `None` leaves a part open.
type Shardings = Prefix<Option<ShardingLike>>;

/// The stage at which a call of a compiled function inside another one is replaced by the function's operations.
///
/// Only [`Inline::JaxEarly`] is observable. With every other variant the caller's program contains a call, and lowering
/// writes the function once or in place, whichever is shorter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Inline {
    /// While the caller is traced.
    JaxEarly,
    /// While the caller is lowered.
    JaxLate,
    /// Early in XLA's compilation.
    XlaEarly,
    /// Late in XLA's compilation.
    XlaLate,
    /// The libraries choose.
    #[default]
    Auto,
}

impl From<bool> for Inline {
    fn from(inline: bool) -> Self {
        if inline { Inline::JaxEarly } else { Inline::Auto }
    }
}

#[derive(Clone, Hash)]
pub(crate) struct Options {
    pub name: &'static str,
    donate_argnums: Vec<i32>,
    static_argnums: Vec<i32>,
    in_shardings: Shardings,
    out_shardings: Shardings,
    keep_unused: bool,
    inline: Inline,
    compiler_options: CompilerOptions,
}

/// Compiles `f` as one program. It is traced once for each structure, type and sharding of its arguments.
///
/// Compile as much as you can at once, such as an entire training step: XLA fuses the operations of one program, and each
/// call of a program has an overhead. A new shape is a new program, so you should pad data to a few sizes. While the
/// function is traced its arguments have no values: you cannot print them or use them in an `if`; use
/// [`debug_print!`](crate::debug_print) and [`cond`](crate::control_flow::cond) instead. Create the `Jit` once and reuse
/// it, because dropping it drops its programs (this does not matter for functions that capture nothing).
///
/// The program runs on the devices of the committed arguments, which must all be on the same devices; other arguments
/// are moved there. Over several devices the compiler decides how values are split, and inserts the communication.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array, y: Array| (x * y).sum(..));
/// assert_eq!(f.call((array([1.0f32, 2.0]), 3.0))?.item::<f32>()?, 9.0);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// As an attribute, `jit` compiles the function that it annotates, and you call this function like any other. Options
/// are methods of [`Jit`]; `donate` and `static_args` name arguments. You pass the function to other transformations by
/// its name, or as `train_step {}` if its argument types cannot be inferred.
///
/// ```
/// # use shardax::prelude::*;
/// #[jit(donate = [w])]
/// fn train_step(w: Array, x: Array) -> Result<Array> {
///     let slope = grad(|w: Array| (&w * &x).square().mean(..)).call(&w)?;
///     Ok(w - slope * 0.1)
/// }
///
/// let x = array([1.0f32, 2.0]);
/// let w = train_step(ones(2), &x)?;
/// assert!(w.get(1).item::<f32>()? < 1.0);
/// assert!(train_step::lower((&w, &x))?.as_text().contains("stablehlo.multiply"));
/// # Ok::<(), shardax::Error>(())
/// ```
pub fn jit<Args: Tree, F: Function<Args>>(f: F) -> Jit<F, Args> {
    Jit { options: Options::new(function_name::<F>()), f, cache: OnceLock::new(), args: PhantomData }
}

impl<F, Args> Jit<F, Args> {
    fn with(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(&mut self.options);
        // Programs in the cache were compiled with the previous options.
        self.cache = OnceLock::new();
        self
    }

    /// Sets the arguments, by position (negative from the last), whose memory the result can reuse. You cannot use them
    /// afterwards. You should donate the parameters and the optimizer's state of a training step, because otherwise
    /// both versions of them are in memory during the step.
    ///
    /// A result of the same type and sharding can reuse the memory. If there is no such result, nothing is donated and
    /// a warning is issued. Another warning is issued when an argument had to be moved before it could be donated
    /// ([`config::set_warning_hook`](crate::config::set_warning_hook)).
    pub fn donate_argnums(self, argnums: impl IntoArgnums) -> Self {
        let argnums = argnums.into_argnums();
        self.with(|o| o.donate_argnums = argnums)
    }

    /// Sets the arguments, by position (negative from the last), that are part of the compiled program, which is traced
    /// again for each of their values.
    ///
    /// Types decide which arguments are static: plain numbers and [`Static`](crate::Static) values are. This method
    /// checks that the arguments contain nothing else.
    pub fn static_argnums(self, argnums: impl IntoArgnums) -> Self {
        let argnums = argnums.into_argnums();
        self.with(|o| o.static_argnums = argnums)
    }

    /// Sets the sharding of each argument, or of parts of one: a sharding, a tree of them, or `None` to leave it open.
    ///
    /// Uncommitted arrays are placed accordingly; a committed array with another sharding is an error. A
    /// [`Format`](crate::Format) also sets the layout in memory, or leaves it to the compiler
    /// ([`Layout::AUTO`](crate::Layout::AUTO)). Layouts apply to entire programs, so they are ignored inside another
    /// compiled function.
    pub fn in_shardings(self, shardings: impl IntoPrefix<Option<ShardingLike>>) -> Self {
        self.with(|o| o.in_shardings = shardings.into_prefix())
    }

    /// Sets the sharding of each result, or of parts of one; `None` leaves it to the compiler. A
    /// [`Format`](crate::Format) also sets the layout in memory, which is the device's default otherwise.
    pub fn out_shardings(self, shardings: impl IntoPrefix<Option<ShardingLike>>) -> Self {
        self.with(|o| o.out_shardings = shardings.into_prefix())
    }

    /// Sets whether the program keeps unused arguments. By default they are dropped.
    pub fn keep_unused(self, keep: bool) -> Self {
        self.with(|o| o.keep_unused = keep)
    }

    /// Sets XLA options, by name, for this function's programs (JAX's `compiler_options`). They override the options of
    /// [`config::set_compiler_options`](crate::config::set_compiler_options). Names that begin with `xla_cpu_`,
    /// `xla_gpu_` or `xla_tpu_` are left out on other platforms; a name unknown to XLA is an error of the compilation.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let f = jit(|x: Array| x.exp() + 1).compiler_options([("xla_gpu_enable_latency_hiding_scheduler", true)]);
    /// assert_eq!(f.call(array([0.0f32]))?.to_vec::<f32>()?, [2.0]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn compiler_options<Name: Into<String>, Value: Into<CompilerOption>>(
        self,
        options: impl IntoIterator<Item = (Name, Value)>,
    ) -> Self {
        self.with(|o| o.compiler_options = options.into_iter().collect())
    }

    /// Sets when calls by other compiled functions are replaced by the operations of this one: `true` is
    /// [`Inline::JaxEarly`], `false` [`Inline::Auto`].
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// use shardax::Inline;
    /// let f = jit(|x: Array| x.sin() * 2).inline(Inline::JaxEarly);
    /// assert!(!make_program(|x: Array| f.call(x), ones([2]))?.to_string().contains("jit["));
    /// # Ok::<(), shardax::Error>(())
    /// ```
    pub fn inline(self, inline: impl Into<Inline>) -> Self {
        self.with(|o| o.inline = inline.into())
    }
}

/// `.jit()` on every function that can be compiled: a closure, a mapped or a transformed function.
///
/// ```
/// # use shardax::prelude::*;
/// let dots = vmap(|x: Array, y: Array| x.dot(y)).in_axes((0, None)).jit();
/// assert_eq!(dots.call((ones([3, 2]), array([1.0f32, 2.0])))?.to_vec::<f32>()?, [3.0; 3]);
/// let slope = grad(|x: Array| x.square().sum(..)).jit();
/// assert_eq!(slope.call(array([1.0f32, 2.0]))?.to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
pub trait IntoJit<Args: Tree>: Function<Args> + Sized {
    /// Returns [`jit`] of the function.
    fn jit(self) -> Jit<Self, Args> {
        jit(self)
    }
}

impl<Args: Tree, F: Function<Args>> IntoJit<Args> for F {}

impl<F: Function<Args>, Args: Tree> Jit<F, Args> {
    /// Traces the function for arguments of these types. The result prints the program (JAX's
    /// `jax.jit(f).trace(x).jaxpr`), and its `lower()` continues with the next stage.
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let f = jit(|x: Array, y: Array| x.sin() * y);
    /// let traced = f.trace((ones(3), 2.0f32))?;
    /// println!("{traced}");
    /// assert!(traced.jaxpr().to_string().contains("sin"));
    /// assert_eq!(traced.lower()?.compile()?.call((zeros(3), 2.0f32))?.to_vec::<f32>()?, [0.0; 3]);
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error in the same cases as [`lower`](Jit::lower).
    #[track_caller]
    pub fn trace<A: IntoArgs<Args>>(&self, args: A) -> Result<Traced<Args, F::Output>> {
        let _line = source::enter();
        let flat = Flat::from_arguments(&args.into_args());
        self.options.lower(&flat, &flat_fn(&self.f), None).map(Traced::new).at_caller()
    }

    /// Computes the types of the results without running the function; see [`eval_shape`](crate::eval_shape).
    ///
    /// ```
    /// # use shardax::prelude::*;
    /// let f = jit(|x: Array, y: Array| 2 * x + y);
    /// let x = shape_dtype_struct((2, 3), DType::I32);
    /// assert_eq!(f.eval_shape((&x, &x))?.aval().to_string(), "int32[2,3]");
    /// # Ok::<(), shardax::Error>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the function fails while it is traced.
    #[track_caller]
    pub fn eval_shape<A: IntoArgs<Args>>(&self, args: A) -> Result<F::Output> {
        aot::eval_shape(self, args)
    }

    /// Traces and lowers the function for arguments of these types. You can pass
    /// [`shape_dtype_struct`](crate::shape_dtype_struct)s instead of arrays.
    ///
    /// # Errors
    /// Returns an error if the function fails while it is traced, or if a sharding does not fit an argument or a
    /// result.
    #[track_caller]
    pub fn lower<A: IntoArgs<Args>>(&self, args: A) -> Result<Lowered<Args, F::Output>> {
        let _line = source::enter();
        let flat = Flat::from_arguments(&args.into_args());
        self.options.lower(&flat, &flat_fn(&self.f), None).and_then(Lowered::new).at_caller()
    }
}

/// Lowers a function like `jit` without options.
#[track_caller]
pub(crate) fn lower<Args: Tree, F: Function<Args>>(
    f: &F,
    args: Args,
    name: &'static str,
) -> Result<Lowered<Args, F::Output>> {
    let _line = source::enter();
    Options::new(name).lower(&Flat::from_arguments(&args), &flat_fn(f), None).and_then(Lowered::new).at_caller()
}

impl<F: Function<Args>, Args: Tree> Function<Args> for Jit<F, Args> {
    type Output = F::Output;

    fn identity(&self) -> Option<u64> {
        identity_of::<Self>(&self.options, self.f.identity())
    }

    fn apply(&self, args: Args) -> Result<F::Output> {
        // Without `jit`, operations run one by one, so that a debugger can step through the function.
        if is_jit_disabled() {
            return scoped(|| self.f.apply(args));
        }
        let flat = Flat::from_arguments(&args);
        let f = flat_fn(&self.f);
        let cache = self.options.cache(&self.cache, self.f.identity());
        if is_tracing() {
            return self.options.inside(&flat, &f, &cache.inner)?.build();
        }
        cache.call(self.options.name, &flat, &|flat| self.options.lower(flat, &f, Some(cache))?.load())
    }
}

/// You can transform a compiled function by reference, and continue to use it.
///
/// ```
/// # use shardax::prelude::*;
/// let f = jit(|x: Array| x.square().sum(..));
/// assert_eq!(grad(&f).call(array([1.0f32, 2.0]))?.to_vec::<f32>()?, [2.0, 4.0]);
/// assert_eq!(f.call(array([1.0f32, 2.0]))?.item::<f32>()?, 5.0);
/// # Ok::<(), shardax::Error>(())
/// ```
impl<F: Function<Args>, Args: Tree> Function<Args> for &Jit<F, Args> {
    type Output = F::Output;

    fn identity(&self) -> Option<u64> {
        (**self).identity()
    }

    fn apply(&self, args: Args) -> Result<F::Output> {
        (**self).apply(args)
    }
}

impl Options {
    pub fn new(name: &'static str) -> Self {
        Options {
            name,
            donate_argnums: Vec::new(),
            static_argnums: Vec::new(),
            in_shardings: Prefix::Leaf(None),
            out_shardings: Prefix::Leaf(None),
            keep_unused: false,
            inline: Inline::Auto,
            compiler_options: CompilerOptions::default(),
        }
    }

    fn cache<'a>(&self, cache: &'a OnceLock<Arc<Cache>>, identity: Option<u64>) -> &'a Arc<Cache> {
        cache.get_or_init(|| dispatch::shared(identity, ("jit", self)))
    }

    /// Marks the donated leaves.
    fn check_argnums(&self, def: &TreeDef) -> Result<Vec<bool>> {
        check_argnums(def, (&self.static_argnums, "static_argnums"), &self.donate_argnums)
    }

    /// Traces the function and decides its placement.
    pub fn lower(&self, flat: &Flat, f: FlatFn<'_>, cache: Option<&Cache>) -> Result<LoweredFn> {
        // Traces inside of other functions contain the requested shardings, and no unused arguments.
        let has_other_options = self.keep_unused
            || !matches!((&self.in_shardings, &self.out_shardings), (Prefix::Leaf(None), Prefix::Leaf(None)));
        let options = LowerOptions {
            function: self.name,
            program: self.name.to_owned(),
            donated: self.check_argnums(&flat.def)?,
            keep_unused: self.keep_unused,
            compiler_options: self.compiler_options.clone(),
            in_shardings: resolve(&self.in_shardings, &flat.def, "jit in_shardings")?,
            captured: None,
            out_shardings: &|def, _| resolve(&self.out_shardings, def, "jit out_shardings"),
            traces: cache.map(|cache| &cache.traces),
            inner: cache.filter(|_| !has_other_options).map(|cache| &cache.inner),
        };
        options.lower(flat, f)
    }

    /// Applies the function in the trace in effect: as one call, or operation by operation.
    fn inside(&self, flat: &Flat, f: FlatFn<'_>, traces: &InnerTraces) -> Result<Flat> {
        self.check_argnums(&flat.def)?;
        if !self.compiler_options.is_empty() {
            let names: Vec<&str> = self.compiler_options.names().collect();
            return Err(err!(
                Value,
                "`compiler_options` can only be passed to top-level `jit`. Got {} for jit with name={}",
                names.join(", "),
                self.name
            )
            .help("options apply to an entire program: pass them to the outermost `jit`"));
        }
        let constrained = |flat: &Flat| -> Result<Flat> {
            let leaves = constrain(flat, &self.in_shardings, "jit in_shardings")?;
            let out = f(&Flat { leaves, def: flat.def.clone() })?;
            let leaves = constrain(&out, &self.out_shardings, "jit out_shardings")?;
            Ok(Flat { leaves, def: out.def })
        };
        // A call could not be transposed if only some of its operands depend on tangents, so it is inlined.
        if self.inline == Inline::JaxEarly || !is_recording() {
            return scoped(|| constrained(flat));
        }
        let key = InnerKey::new(&flat.def, avals_of(flat)?);
        let (trace, captures) = match traces.find(&key) {
            Some(trace) => (trace, Vec::new()),
            None => {
                let (result, dependence) = recorded(|| trace_flat(&flat.def, key.avals(), &constrained));
                let (traced, out_def) = result?;
                let mut program = traced.program.simplified();
                let used = program.used_inputs();
                program.inputs = marked(&program.inputs, &used);
                let call = Arc::new(Call { name: self.name.to_owned(), program: program.into() });
                let trace = Arc::new(InnerTrace { key, call, used, out_def, dependence });
                // A captured value may belong to the calling trace, which ends, so a trace with captures is not cached.
                if traced.captures.is_empty() && !dependence.argument_meshes {
                    traces.insert(trace.clone());
                }
                (trace, traced.captures)
            }
        };
        let args: Vec<Array> = captures.iter().chain(&flat.leaves).cloned().collect();
        let leaves = bind(trace.call.clone(), &marked(&args, &trace.used));
        leaves.iter().try_for_each(check_usable)?;
        Ok(Flat { leaves: leaves.into_iter().collect(), def: trace.out_def.clone() })
    }
}

/// The requested sharding of each leaf.
fn resolve(shardings: &Shardings, def: &TreeDef, what: &str) -> Result<Vec<RequestedSharding>> {
    let resolved = shardings.resolve(def, what)?;
    resolved
        .iter()
        .map(|like| {
            let Some(like) = like else { return Ok(RequestedSharding::default()) };
            let requested = like.requested(what)?;
            requested.sharding.iter().try_for_each(|sharding| sharding.check_constrained(what))?;
            Ok(requested)
        })
        .collect()
}
