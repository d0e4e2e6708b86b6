//! Tracing: applying a primitive records an equation in the innermost trace, or runs it when there is none.
//!
//! Traces form a stack, one per thread. A *staging* trace records everything that is asked while it is on
//! top. A *linear* trace, used by reverse mode, records only what depends on its own inputs (tangents) and
//! lets everything else through to the trace below: that alone separates the linear part of a function from
//! the part that is known (partial evaluation).

use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use smallvec::SmallVec;

use super::{Atom, Aval, Eqn, Program, Var};
use crate::core::array::{Array, Repr, Tracer};
use crate::core::primitive::{Outputs, Primitive};
use crate::error::{Error, Result, bail, err};
use crate::local::{Stack, StackKey};
use crate::scope;
use crate::shape::AxisSet;
use crate::source;
pub(crate) use crate::source::with_source;
use crate::stack::grow;

thread_local! {
    static STACK: Stack<Frame> = const { Stack::new() };
    static READ: Cell<u64> = const { Cell::new(0) };
}

/// How many functions may be traced inside each other. A program of programs so deep is still taken apart on any stack.
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
    /// The variables of the arguments, and what stands for them where they are known.
    args: Vec<Var>,
    known: Option<Rc<dyn ConcreteInputs>>,
    /// How many names were in effect when it began.
    depth: usize,
}

/// What the arguments of a function are while it is traced only to be run at once: what has been computed so far can
/// then be computed in truth.
pub(crate) trait ConcreteInputs {
    /// The result of what has been traced so far. `None` where an argument of an enclosing function is not known.
    ///
    /// Fails for a value that differs from device to device.
    fn value(&self, so_far: Traced) -> Result<Option<Array>>;

    /// What the devices have of it, where each has a block of its own: its coordinates, and the block.
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

    /// The operand that stands for `array` in this trace; arrays from outside become captures.
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
        let var = self.new_var(array.aval());
        self.captures.push(array.clone());
        self.capture_vars.insert(key, var);
        self.program.inputs.push(var);
        Atom::Var(var)
    }
}

/// Pops the frames that a trace pushed, also when the traced function panics.
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

/// Whether `array` is a value of a linear trace: a tangent, or computed from one.
pub(crate) fn is_linear(array: &Array) -> bool {
    let Repr::Traced(t) = &array.0 else { return false };
    STACK.with_borrow(|stack| stack.iter().any(|f| f.linear && f.id == t.trace))
}

/// Whether a function is being traced on this thread.
pub(crate) fn is_tracing() -> bool {
    STACK.with_borrow(|stack| !stack.is_empty())
}

/// Whether the innermost trace records everything that is asked, and not only what depends on tangents.
pub(crate) fn is_recording() -> bool {
    STACK.with_borrow(|stack| stack.last().is_some_and(|frame| !frame.linear))
}

/// Whether `trace` is still being recorded on this thread.
fn is_live(trace: u64) -> bool {
    STACK.with_borrow(|stack| stack.iter().any(|f| f.id == trace))
}

/// The traces that are being recorded, on all threads.
static LIVE: Mutex<BTreeSet<u64>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<u64>> {
    LIVE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Whether `trace` is being recorded, on whichever thread.
fn lives_elsewhere(trace: u64) -> bool {
    live().contains(&trace)
}

/// Records an error of the innermost trace, so that the enclosing call returns it even where the value is unused.
pub(crate) fn record_error(error: &Error) {
    STACK.with_borrow_mut(|stack| {
        if let Some(frame) = stack.last_mut() {
            frame.error.get_or_insert_with(|| error.clone());
        }
    });
}

/// Runs `f`, a function called in the trace in effect, so that what fails inside is its failure: the enclosing
/// function does not fail too if it handles the error.
pub(crate) fn scoped<R>(f: impl FnOnce() -> Result<R>) -> Result<R> {
    let swap = |error: Option<Error>| {
        STACK.with_borrow_mut(|stack| stack.last_mut().and_then(|frame| std::mem::replace(&mut frame.error, error)))
    };
    let before = swap(None);
    let out = f();
    match swap(before) {
        Some(inside) => out.and(Err(inside)),
        None => out,
    }
}

/// Runs `f` with the equations it makes attributed to the caller's line, or to the user's line that led there.
#[track_caller]
pub(crate) fn at_caller<R>(f: impl FnOnce() -> R) -> R {
    let _line = source::enter();
    f()
}

/// Whether an operation on `args` runs at once, rather than being recorded.
pub(crate) fn runs_now(args: &[Array]) -> bool {
    !args.iter().any(Array::is_traced) && STACK.with_borrow(|stack| stack.iter().all(|frame| frame.linear))
}

/// Traces `f` on inputs of these types into a program.
pub(crate) fn trace(avals: &[Aval], f: impl FnOnce(&[Array]) -> Result<Vec<Array>>) -> Result<Traced> {
    trace_with_concrete(None, avals, f)
}

/// The same, with what its inputs are where that is known: their values can then be read while it is traced.
pub(crate) fn trace_with_concrete(
    known: Option<Rc<dyn ConcreteInputs>>,
    avals: &[Aval],
    f: impl FnOnce(&[Array]) -> Result<Vec<Array>>,
) -> Result<Traced> {
    trace_in(Frame { known, ..Frame::new(false) }, avals, f)
}

/// What has been traced so far of the function that `tracer` belongs to, as a function of its captures and arguments
/// with that value as its result; and what those are. `None` where the arguments are not known.
pub(crate) fn so_far(tracer: &Tracer) -> Option<(Traced, Rc<dyn ConcreteInputs>)> {
    STACK.with_borrow(|stack| {
        let frame = stack.iter().find(|f| f.id == tracer.trace)?;
        let known = frame.known.clone()?;
        READ.set(READ.get() + 1);
        let mut program = frame.program.clone();
        program.inputs.extend(&frame.args);
        program.outputs = vec![Atom::Var(tracer.var)];
        Some((Traced { program, captures: frame.captures.clone() }, known))
    })
}

/// How often a value was read on this thread while its function was traced: what is traced then depends on it.
pub(crate) fn values_read() -> u64 {
    READ.get()
}

/// Runs `f` with a linear trace on top, whose inputs (of these types) are passed to it: operations on them
/// are recorded in the returned program, all others where they would be without it.
pub(crate) fn trace_linear(avals: &[Aval], f: impl FnOnce(&[Array]) -> Result<Vec<Array>>) -> Result<Traced> {
    trace_in(Frame::new(true), avals, f)
}

fn trace_in(mut frame: Frame, avals: &[Aval], f: impl FnOnce(&[Array]) -> Result<Vec<Array>>) -> Result<Traced> {
    let args: Vec<Var> = avals.iter().map(|aval| frame.new_var(aval.clone())).collect();
    frame.args = args.clone();
    let inputs: Vec<Array> = args.iter().map(|&v| frame.tracer(v)).collect();
    let guard = FrameGuard::push(frame)?;

    let outputs = catch_unwind(AssertUnwindSafe(|| grow(|| f(&inputs))));
    let recorded = STACK.with_borrow(|stack| stack.get(guard.0 - 1).and_then(|f| f.error.clone()));
    let outputs = match (outputs, recorded) {
        // The recorded error, with more said about it on the way.
        (Ok(Err(error)), Some(recorded)) if error.message().ends_with(recorded.message()) => return Err(error),
        // A panic that follows a recorded error is its consequence (an index into the shape of an array that
        // could not be made, say): the error is what the user needs to see.
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
    // Captures were appended to the inputs as they came.
    frame.program.inputs.extend(args);
    Ok(Traced { program: frame.program, captures: frame.captures })
}

/// Applies a primitive at the caller's line. A failure gives arrays that carry the error.
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
            record_error(&error);
            let aval = args.first().map(|a| a.aval()).unwrap_or_else(|| Aval::scalar(crate::dtype::DType::F32));
            SmallVec::from_elem(Array::failed(error, aval), count)
        }
    }
}

/// An error for an array that cannot be an operand: one that failed, was deleted, or belongs to a finished trace.
pub(crate) fn check_usable(array: &Array) -> Result<()> {
    match &array.0 {
        Repr::Error(e) => Err(e.0.clone()),
        Repr::Traced(t) if t.is_only_type() => Err(t.has_no_values()),
        Repr::Traced(t) if !is_live(t.trace) && lives_elsewhere(t.trace) => Err(err!(
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

/// The types of the results, which must be of a size that can be addressed.
pub(crate) fn infer(primitive: &dyn Primitive, args: &[Aval]) -> Result<SmallVec<[Aval; 1]>> {
    let outs = primitive.infer(args).map_err(Error::anywhere)?;
    if outs.len() != primitive.output_count() {
        bail!(
            Type,
            "the primitive '{}' has {} results, but its `infer` gave {} types",
            primitive.name(),
            primitive.output_count(),
            outs.len()
        );
    }
    for out in &outs {
        out.byte_size().map_err(|e| e.context(primitive.name()))?;
    }
    Ok(outs)
}

fn try_bind(primitive: Arc<dyn Primitive>, args: &[Array], location: &'static Location<'static>) -> Result<Outputs> {
    for arg in args {
        check_usable(arg)?;
    }
    // The trace that records it: the innermost that stages, or that a linear operand belongs to.
    let target = STACK.with_borrow(|stack| {
        stack.iter().rposition(|frame| {
            !frame.linear || args.iter().any(|a| matches!(&a.0, Repr::Traced(t) if t.trace == frame.id))
        })
    });
    let Some(target) = target else {
        if args.iter().any(|a| matches!(a.0, Repr::Traced(_))) {
            bail!(Leak, "a traced array met an operation outside its trace");
        }
        return primitive.run(args);
    };

    let mut args: SmallVec<[Array; 3]> = args.iter().cloned().collect();
    if primitive.casts_operands() {
        cast_operands(&mut args);
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
        frame.program.eqns.push(Eqn { primitive, inputs, outputs, source: location, scope });
        Ok(arrays)
    })
}

/// Makes all operands vary over the union of their axes. Numbers need no cast.
fn cast_operands(args: &mut [Array]) {
    let mut union = AxisSet::default();
    for arg in args.iter() {
        if let Repr::Traced(t) = &arg.0
            && !t.aval.vma.is_empty()
        {
            union = union.union(&t.aval.vma);
        }
    }
    if union.is_empty() {
        return;
    }
    for arg in args.iter_mut() {
        if !matches!(arg.0, Repr::Literal(_)) && arg.vma() != union {
            *arg = arg.varying_over(&union);
        }
    }
}
