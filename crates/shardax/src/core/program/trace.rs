//! Tracing. Applying a primitive records an equation in the innermost trace, or runs the primitive if there is no
//! trace.
//!
//! Each thread has a stack of traces. A *recording* trace records every operation while it is on top. A *linear* trace,
//! used by reverse mode, records only operations that depend on its inputs (tangents) and passes all others to the
//! trace below. This alone separates the linear part of a function from the non-linear part (partial evaluation).

use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use smallvec::SmallVec;

use super::{Atom, Aval, Eqn, Program, Var};
use crate::core::array::{Array, Repr, Tracer};
use crate::core::primitive::{Outputs, Primitive};
use crate::core::sharding_rule::assign;
use crate::dependence::{Dependence, depend_on};
use crate::error::{Error, Result, bail, err};
use crate::local::{Stack, StackKey};
use crate::scope;
use crate::shape::AxisSet;
use crate::sharding::context::{abstract_mesh_of_trace, adopts};
use crate::source;
pub(crate) use crate::source::with_source;
use crate::stack::grow;

// The traces under construction, innermost last. Operations find the innermost one here, because they have no argument
// for it.
thread_local! {
    static STACK: Stack<Frame> = const { Stack::new() };
}

/// The maximum number of nested traces. It is small enough that dropping a program of this depth does not overflow any
/// stack.
const MAX_DEPTH: usize = 2000;

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// A trace under construction.
struct Frame {
    id: u64,
    linear: bool,
    program: Program,
    captures: Vec<Array>,
    capture_vars: HashMap<(u64, usize), Var>,
    error: Option<Error>,
    /// The variables of the arguments, and their concrete values, if any.
    args: Vec<Var>,
    known: Option<Rc<dyn ConcreteInputs>>,
    /// The number of named scopes when the trace began.
    depth: usize,
    /// The pass to apply to the finished program, if an operation inside requested one.
    finish: Option<Finish>,
}

/// A pass over a finished trace. It must keep captures, arguments and outputs.
pub(crate) type Finish = fn(Traced) -> Result<Traced>;

/// The concrete arguments of a function that is traced for eager execution. With them, traced values can be evaluated
/// eagerly.
pub(crate) trait ConcreteInputs {
    /// Evaluates the trace so far. `None` if an argument of an enclosing function is abstract.
    ///
    /// Fails for a value that differs between devices.
    fn value(&self, so_far: Traced) -> Result<Option<Array>>;

    /// The value on each device as pairs of coordinates and shard, if each device has a separate shard.
    fn per_device(&self, _so_far: Traced) -> Result<Option<Vec<(String, Array)>>> {
        Ok(None)
    }
}

/// A traced function and the arrays it captured: the program's inputs are the captures, then the arguments.
#[derive(Clone)]
pub(crate) struct Traced {
    pub program: Program,
    pub captures: Vec<Array>,
}

impl Frame {
    fn new(linear: bool) -> Self {
        Frame {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            linear,
            program: Program::default(),
            captures: Vec::new(),
            capture_vars: HashMap::new(),
            error: None,
            args: Vec::new(),
            known: None,
            depth: scope::depth(),
            finish: None,
        }
    }

    fn new_var(&mut self, aval: Aval) -> Var {
        self.program.avals.push(aval);
        Var(self.program.avals.len() as u32 - 1)
    }

    fn tracer(&self, var: Var) -> Array {
        let aval = self.program.aval_of(var).clone();
        Array(Repr::Traced(Arc::new(Tracer { trace: self.id, var, aval, sharding: None })))
    }

    /// The operand for `array` in this trace. Arrays from outside of the trace become captures.
    fn atom(&mut self, array: &Array) -> Atom {
        let key = match &array.0 {
            Repr::Literal(l) => return Atom::Literal { value: l.value, dtype: l.dtype, weak: l.weak },
            Repr::Traced(t) if t.trace == self.id => return Atom::Var(t.var),
            Repr::Traced(t) => (t.trace, t.var.index()),
            Repr::Concrete(c) => (0, Arc::as_ptr(c) as usize),
            Repr::Error(_) => (0, 0),
        };
        if let Some(&var) = self.capture_vars.get(&key) {
            return Atom::Var(var);
        }
        let aval = array.aval();
        let var = self.new_var(if adopts() { aval.with_sharding(None) } else { aval });
        self.captures.push(array.clone());
        self.capture_vars.insert(key, var);
        self.program.inputs.push(var);
        Atom::Var(var)
    }
}

/// Pops the frames that a trace pushed, even if the traced function panics.
struct FrameGuard(usize);

impl FrameGuard {
    fn push(frame: Frame) -> Result<Self> {
        STACK.with_borrow_mut(|stack| {
            if stack.len() >= MAX_DEPTH {
                return Err(err!(
                    Value,
                    "maximum recursion depth exceeded: {MAX_DEPTH} functions are being traced inside each other (RecursionError)"
                )
                .help("end the recursion, or repeat the function with `scan` or `fori_loop`"));
            }
            live().insert(frame.id);
            stack.push(frame);
            Ok(FrameGuard(stack.len()))
        })
    }

    fn pop(self) -> Result<Frame> {
        let frame = STACK.with_borrow_mut(|stack| stack.pop());
        if let Some(frame) = &frame {
            scope::truncate(frame.depth);
            live().remove(&frame.id);
        }
        frame.ok_or_else(|| err!(Leak, "the stack of traces is empty"))
    }
}

impl Drop for FrameGuard {
    fn drop(&mut self) {
        let dropped: Vec<Frame> =
            STACK.with_borrow_mut(|stack| stack.drain(self.0.saturating_sub(1).min(stack.len())..).collect());
        dropped.iter().rev().for_each(|frame| {
            scope::truncate(frame.depth);
            live().remove(&frame.id);
        });
    }
}

/// Returns `true` if `array` is a value of a linear trace: a tangent, or computed from one.
pub(crate) fn is_linear(array: &Array) -> bool {
    let Repr::Traced(t) = &array.0 else { return false };
    STACK.with_borrow(|stack| stack.iter().any(|f| f.linear && f.id == t.trace))
}

/// Returns `true` if a function is being traced on this thread.
pub(crate) fn is_tracing() -> bool {
    STACK.with_borrow(|stack| !stack.is_empty())
}

/// Returns `true` if the innermost trace records every operation, not only operations that depend on tangents.
pub(crate) fn is_recording() -> bool {
    STACK.with_borrow(|stack| stack.last().is_some_and(|frame| !frame.linear))
}

/// Returns `true` if `trace` is still being recorded on this thread.
pub(crate) fn is_live(trace: u64) -> bool {
    STACK.with_borrow(|stack| stack.iter().any(|f| f.id == trace))
}

/// Sets the pass to apply to the innermost recording trace when it ends. Returns the trace, or `None` if there is none.
pub(crate) fn finish_with(finish: Finish) -> Option<u64> {
    STACK.with_borrow_mut(|stack| {
        let frame = stack.iter_mut().rev().find(|frame| !frame.linear)?;
        frame.finish = Some(finish);
        Some(frame.id)
    })
}

/// The innermost recording trace.
pub(crate) fn recording_trace() -> Option<u64> {
    STACK.with_borrow(|stack| stack.iter().rev().find(|frame| !frame.linear).map(|frame| frame.id))
}

/// The active traces of all threads. The set is global, so that an array of another thread's trace is distinguished
/// from an array of a finished trace.
static LIVE: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<u64>> {
    LIVE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Returns `true` if `trace` is being recorded on any thread.
fn is_live_on_any_thread(trace: u64) -> bool {
    live().contains(&trace)
}

/// Records an error in the innermost trace, so that the enclosing call returns it even if the value is unused.
pub(crate) fn record_error(error: &Error) {
    STACK.with_borrow_mut(|stack| {
        if let Some(frame) = stack.last_mut() {
            frame.error.get_or_insert_with(|| error.clone());
        }
    });
}

/// Creates a failed array and records the error. Outside of all traces no enclosing call returns the error, so the user
/// must read the array to see it.
pub(crate) fn fail(error: Error, aval: Aval) -> Array {
    record_error(&error);
    let is_recorded = STACK.with_borrow(|stack| !stack.is_empty());
    Array::failed(if is_recorded { error } else { error.carried() }, aval)
}

/// Runs `f`, a function called in the current trace, and keeps errors of `f` separate. If the enclosing function
/// handles such an error, it does not fail.
pub(crate) fn scoped<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let before = swap_error(None);
    let out = f();
    match swap_error(before) {
        Some(inside) => out.and(Err(inside)),
        None => out,
    }
}

/// Replaces the error of the current trace and returns the previous one.
fn swap_error(error: Option<Error>) -> Option<Error> {
    STACK.with_borrow_mut(|stack| stack.last_mut().and_then(|frame| std::mem::replace(&mut frame.error, error)))
}

/// Runs `f`. Equations that it records are attributed to the caller's line, or to the user's line that led there.
#[track_caller]
pub(crate) fn at_caller<R>(f: impl FnOnce() -> R) -> R {
    let _line = source::enter();
    f()
}

/// Runs `f` like [`at_caller`]. An error becomes an array of the type of `like` that carries it.
#[track_caller]
pub(crate) fn or_failed(like: &Array, f: impl FnOnce() -> Result<Array>) -> Array {
    let result = at_caller(f);
    Array::from_result(result, like)
}

/// Returns `true` if an operation on `args` is executed eagerly instead of recorded.
pub(crate) fn runs_now(args: &[Array]) -> bool {
    !args.iter().any(Array::is_traced) && STACK.with_borrow(|stack| stack.iter().all(|frame| frame.linear))
}

/// Traces `f` on inputs of these types into a program.
pub(crate) fn trace(avals: &[Aval], f: impl FnOnce(&[Array]) -> Result<Vec<Array>>) -> Result<Traced> {
    trace_with_concrete(None, avals, f)
}

/// Like [`trace`], with optional concrete inputs whose values can be read during tracing.
pub(crate) fn trace_with_concrete(
    known: Option<Rc<dyn ConcreteInputs>>,
    avals: &[Aval],
    f: impl FnOnce(&[Array]) -> Result<Vec<Array>>,
) -> Result<Traced> {
    trace_in(Frame { known, ..Frame::new(false) }, avals, Box::new(f))
}

/// Returns the trace so far of the function that `tracer` belongs to, as a function of its captures and arguments that
/// returns this value, together with the concrete arguments. `None` if the arguments are abstract.
pub(crate) fn traced_so_far(tracer: &Tracer) -> Option<(Traced, Rc<dyn ConcreteInputs>)> {
    let (traced, finish, concrete) = STACK.with_borrow(|stack| {
        let frame = stack.iter().find(|f| f.id == tracer.trace)?;
        let concrete = frame.known.clone()?;
        depend_on(Dependence { values: true, ..Dependence::default() });
        let mut program = frame.program.clone();
        program.inputs.extend(&frame.args);
        program.outputs = vec![Atom::Var(tracer.var)];
        Some((Traced { program, captures: frame.captures.clone() }, frame.finish, concrete))
    })?;
    // If the pass fails here, it fails again with its error when the trace ends.
    let traced = finish.and_then(|finish| finish(traced.clone()).ok()).unwrap_or(traced);
    Some((traced, concrete))
}

/// Returns `true` if the outermost traced function of this thread runs eagerly with known arguments, outside of `jit`.
pub(crate) fn runs_at_once() -> bool {
    STACK.with_borrow(|stack| stack.first().is_some_and(|frame| frame.known.is_some()))
}

/// Runs `f` with a linear trace on top, and passes inputs of these types to it. The returned program records operations
/// on these inputs. All other operations go to the traces below.
pub(crate) fn trace_linear(avals: &[Aval], f: impl FnOnce(&[Array]) -> Result<Vec<Array>>) -> Result<Traced> {
    trace_in(Frame::new(true), avals, Box::new(f))
}

/// A function to trace. It is boxed, because generic code would be compiled again for each function of a user.
pub(crate) type Body<'a> = Box<dyn FnOnce(&[Array]) -> Result<Vec<Array>> + 'a>;

fn trace_in(mut frame: Frame, avals: &[Aval], f: Body<'_>) -> Result<Traced> {
    let args: Vec<Var> = avals.iter().map(|aval| frame.new_var(aval.clone())).collect();
    frame.args = args.clone();
    let inputs: Vec<Array> = args.iter().map(|&v| frame.tracer(v)).collect();
    let guard = FrameGuard::push(frame)?;

    let outputs = catch_unwind(AssertUnwindSafe(|| grow(|| f(&inputs))));
    let recorded = STACK.with_borrow(|stack| stack.get(guard.0 - 1).and_then(|f| f.error.clone()));
    let outputs = match (outputs, recorded) {
        // The returned error is the recorded one with context added.
        (Ok(Err(error)), Some(recorded)) if error.message().ends_with(recorded.message()) => return Err(error),
        // A panic after a recorded error is a consequence of it (for example, an index into the shape of an invalid
        // array). Therefore the user needs to see the error.
        (outputs, Some(error)) => {
            outputs.err().map(shardax_pjrt::panic_text);
            return Err(error);
        }
        (Err(panic), None) => {
            drop(guard);
            resume_unwind(panic)
        }
        (Ok(outputs), None) => outputs?,
    };
    for array in &outputs {
        check_usable(array)?;
    }
    let outputs: Vec<Atom> = STACK.with_borrow_mut(|stack| match stack.last_mut() {
        Some(frame) => outputs.iter().map(|a| frame.atom(a)).collect(),
        None => Vec::new(),
    });
    let mut frame = guard.pop()?;
    frame.program.outputs = outputs;
    // During tracing captures were appended to the inputs, so the arguments follow them.
    frame.program.inputs.extend(args);
    let traced = Traced { program: frame.program, captures: frame.captures };
    match frame.finish {
        Some(finish) => finish(traced),
        None => Ok(traced),
    }
}

/// Applies a primitive at the caller's line. If it fails, the results carry the error.
#[track_caller]
pub(crate) fn bind(primitive: Arc<dyn Primitive>, args: &[Array]) -> Outputs {
    bind_at(primitive, args, Location::caller())
}

/// Applies a primitive with one result.
#[track_caller]
pub(crate) fn bind1(primitive: impl Primitive + 'static, args: &[Array]) -> Array {
    first(bind_at(Arc::new(primitive), args, Location::caller()))
}

pub(crate) fn first(mut outputs: Outputs) -> Array {
    outputs.swap_remove(0)
}

pub(crate) fn bind_at(primitive: Arc<dyn Primitive>, args: &[Array], location: &'static Location<'static>) -> Outputs {
    let location = source::user_line(location).unwrap_or(location);
    let count = primitive.output_count();
    match try_bind(primitive, args, location) {
        Ok(outputs) => outputs,
        Err(error) => {
            let error = error.at(location);
            let aval = args.first().map(|a| a.aval()).unwrap_or_else(|| Aval::scalar(crate::dtype::DType::F32));
            SmallVec::from_elem(fail(error, aval), count)
        }
    }
}

/// Fails for an array that cannot be an operand, because it carries an error, was deleted, or belongs to a finished
/// trace.
pub(crate) fn check_usable(array: &Array) -> Result<()> {
    match &array.0 {
        Repr::Error(e) => {
            e.0.mark_read();
            Err(e.0.clone())
        }
        Repr::Traced(t) if t.is_only_type() => Err(t.has_no_values()),
        Repr::Traced(t) if !is_live(t.trace) && is_live_on_any_thread(t.trace) => Err(err!(
            Leak,
            "a traced array of type {} was used on another thread than the one that its function is being traced on (UnexpectedTracerError)",
            t.aval
        )
        .help("a function is traced on one thread: compute with its arrays there, and give other threads concrete arrays")),
        Repr::Traced(t) if !is_live(t.trace) => Err(err!(
            Leak,
            "a traced array of type {} was used after the function that it was traced in had returned (UnexpectedTracerError)",
            t.aval
        )
        .help("return the array from the function instead of storing it outside; outside, only its value exists")),
        Repr::Concrete(c) => c.check_alive(),
        _ => Ok(()),
    }
}

/// Fails if an operand is a random key and the primitive does not accept keys.
pub(crate) fn check_keys(primitive: &dyn Primitive, args: &[Aval]) -> Result<()> {
    match args.iter().find(|aval| aval.dtype.is_key()) {
        Some(key) if !primitive.accepts_keys() => {
            Err(err!(Type, "{} does not accept dtype {}, got {key}", primitive.name(), key.dtype).help(
                "pass keys to the functions of `random`; `random::key_data` reads their words, as uint32 of [..., 2]",
            ))
        }
        _ => Ok(()),
    }
}

/// Infers the result types. Fails if their sizes cannot be addressed.
pub(crate) fn infer(primitive: &dyn Primitive, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
    check_keys(primitive, args)?;
    let mut outs = primitive.infer(args).map_err(Error::anywhere)?;
    if outs.len() != primitive.output_count() {
        bail!(
            Type,
            "the primitive '{}' has {} results, but its `infer` gave {} types",
            primitive.name(),
            primitive.output_count(),
            outs.len()
        );
    }
    if let Some(key) = outs.iter().find(|aval| aval.dtype.is_key() && !primitive.accepts_keys()) {
        return Err(err!(Type, "{} cannot create random keys, but one result has type {key}", primitive.name()).help(
            "create keys with `random::key` or `random::split`, or from uint32 words with `random::wrap_key_data`",
        ));
    }
    assign(primitive, args, &mut outs).map_err(Error::anywhere)?;
    for out in &outs {
        out.byte_size().map_err(|e| e.context(primitive.name()))?;
    }
    Ok(outs)
}

fn try_bind(primitive: Arc<dyn Primitive>, args: &[Array], location: &'static Location<'static>) -> Result<Outputs> {
    for arg in args {
        check_usable(arg)?;
    }
    // The trace that records the operation: the innermost recording trace, or the trace of a linear operand.
    let target = STACK.with_borrow(|stack| {
        stack.iter().rposition(|frame| {
            !frame.linear || args.iter().any(|a| matches!(&a.0, Repr::Traced(t) if t.trace == frame.id))
        })
    });
    let Some(target) = target else {
        if args.iter().any(|a| matches!(a.0, Repr::Traced(_))) {
            bail!(Leak, "a traced array met an operation outside its trace");
        }
        let _line = source::enter_at(location);
        return primitive.run(args);
    };

    let mut args: SmallVec<[Array; 3]> = args.iter().cloned().collect();
    if primitive.casts_operands() {
        cast_operands(&mut args)?;
    }
    let avals: SmallVec<[Aval; 3]> = args.iter().map(|a| a.aval()).collect();
    let mut outs = infer(primitive.as_ref(), &avals)?;
    if crate::sharding::axis_env::any_checked() {
        let vmas: SmallVec<[AxisSet; 3]> = avals.iter().map(|a| a.vma.clone()).collect();
        for (out, vma) in outs.iter_mut().zip(primitive.vary(&vmas)?) {
            out.vma = vma;
        }
    }

    STACK.with_borrow_mut(|stack| {
        let frame = &mut stack[target];
        let inputs = args.iter().map(|a| frame.atom(a)).collect();
        let outputs: SmallVec<[Var; 1]> = outs.into_iter().map(|aval| frame.new_var(aval)).collect();
        let arrays = outputs.iter().map(|&v| frame.tracer(v)).collect();
        let scope = scope::since(frame.depth);
        let mesh = abstract_mesh_of_trace();
        frame.program.eqns.push(Eqn { primitive, inputs, outputs, source: location, scope, mesh });
        Ok(arrays)
    })
}

/// Casts all operands to vary over the union of their axes. Numbers need no cast. Fails for unreduced operands.
fn cast_operands(args: &mut [Array]) -> Result<()> {
    let mut union = AxisSet::default();
    for arg in args.iter() {
        if let Repr::Traced(t) = &arg.0
            && !t.aval.vma.is_empty()
        {
            union = union.union(&t.aval.vma);
        }
    }
    if union.is_empty() {
        return Ok(());
    }
    for arg in args.iter_mut() {
        if !matches!(arg.0, Repr::Literal(_)) && arg.vma() != union {
            *arg = arg.varying_over(&union);
            check_usable(arg)?;
        }
    }
    Ok(())
}
