//! Cases whose size is the depth of nesting: functions, loops and trees inside of each other.

use std::sync::Arc;

use shardax::control_flow::custom_vjp;
use shardax::prelude::*;

use super::cases::{Phases, row};

type Shared = Arc<dyn Fn(Array) -> Result<Array> + Send + Sync>;

/// A construct around a function.
type Around = fn(Shared) -> Shared;

fn in_scan(inner: Shared) -> Shared {
    Arc::new(move |x: Array| {
        let inner = inner.clone();
        Ok(scan(move |x: Array, y: Array| -> Result<_> { Ok((inner(x + y)?, ())) }, x, ones([2]))?.0)
    })
}

fn in_while(inner: Shared) -> Shared {
    Arc::new(move |x: Array| {
        let inner = inner.clone();
        Ok(while_loop(
            |(i, _): (Array, Array)| i.less(2),
            move |(i, x): (Array, Array)| -> Result<(Array, Array)> { Ok((i + 1, inner(x.sin())?)) },
            (Array::from(0), x),
        )?
        .1)
    })
}

fn in_cond(inner: Shared) -> Shared {
    Arc::new(move |x: Array| {
        let inner = inner.clone();
        cond(x.sum(..).greater(0.0), move |x: Array| inner(x.sin()), |x: Array| x * 2.0, x)
    })
}

fn in_checkpoint(inner: Shared) -> Shared {
    Arc::new(move |x: Array| {
        let inner = inner.clone();
        shardax::checkpoint(move |x: Array| -> Result<Array> { inner(x.sin()) }).call(x)
    })
}

fn in_vmap(inner: Shared) -> Shared {
    Arc::new(move |x: Array| {
        let inner = inner.clone();
        Ok(vmap(move |x: Array| inner(x)).call(stack([&x, &(&x * 2.0)], 0))?.sum(0))
    })
}

fn in_custom(inner: Shared) -> Shared {
    Arc::new(move |x: Array| {
        let (f, forward) = (inner.clone(), inner.clone());
        let f = custom_vjp(move |x: Array| f(x)).defvjp(
            move |x: Array| -> Result<(Array, Array)> { Ok((forward(x.clone())?, x)) },
            |x: Array, ct: Array| (ct * x.cos(),),
        );
        f.call(x)
    })
}

/// Two calls of a compiled function.
fn in_jit(inner: Shared) -> Shared {
    let f = jit(move |x: Array| inner(x));
    Arc::new(move |x: Array| Ok(f.call(&x)? + f.call(x + 1.0)?))
}

const SCAN: (&str, Around) = ("scan", in_scan);
const WHILE: (&str, Around) = ("while", in_while);
const COND: (&str, Around) = ("cond", in_cond);
const CHECKPOINT: (&str, Around) = ("checkpoint", in_checkpoint);
const VMAP: (&str, Around) = ("vmap", in_vmap);
const CUSTOM: (&str, Around) = ("custom_vjp", in_custom);
const JIT: (&str, Around) = ("jit", in_jit);

/// A function in `depth` constructs, which alternate.
fn nested(around: &[Around], depth: usize) -> Shared {
    let mut f: Shared = Arc::new(|x: Array| Ok(x.sin()));
    for around in around.iter().cycle().take(depth) {
        f = around(f);
    }
    f
}

fn trace_nested(f: Shared, phases: &mut Phases) -> Result<()> {
    phases.time("trace", || make_program(move |x: Array| f(x), row()))?;
    Ok(())
}

fn gradient_of(f: Shared) -> impl Function<(Array,), Output = Array> {
    grad(move |x: Array| -> Result<Array> { Ok(f(x)?.sum(..)) })
}

fn batch_of(f: Shared) -> impl Function<(Array,), Output = Array> {
    vmap(move |x: Array| f(x))
}

fn rows() -> Array {
    shape_dtype_struct([8, 4], DType::F32)
}

pub fn nested_cond(depth: usize, phases: &mut Phases) -> Result<()> {
    let f = nested(&[in_cond], depth);
    trace_nested(f.clone(), phases)?;
    phases.time("gradient", || make_program(gradient_of(f), row()))?;
    let inner = nested(&[in_cond], depth - 1);
    let args = (shape_dtype_struct((), DType::Bool), rows());
    // All branches of inner conditionals run, because their predicates are batched.
    if depth <= 12 {
        phases.time("batch", || {
            make_program(
                vmap(move |flag: Array, x: Array| {
                    let inner = inner.clone();
                    cond(flag, move |x: Array| inner(x), |x: Array| x, x)
                })
                .in_axes((None, 0)),
                args,
            )
        })?;
    }
    Ok(())
}

pub fn nested_scan(depth: usize, phases: &mut Phases) -> Result<()> {
    let f = nested(&[in_scan], depth);
    trace_nested(f.clone(), phases)?;
    phases.time("gradient", || make_program(gradient_of(f.clone()), row()))?;
    phases.time("batch", || make_program(batch_of(f), rows()))?;
    Ok(())
}

pub fn nested_while(depth: usize, phases: &mut Phases) -> Result<()> {
    let f = nested(&[in_while], depth);
    trace_nested(f.clone(), phases)?;
    let tangent = f.clone();
    phases.time("forward mode", || {
        make_program(
            move |x: Array| {
                let f = tangent.clone();
                jvp(move |x: Array| f(x), &x, &x)
            },
            row(),
        )
    })?;
    phases.time("batch", || make_program(batch_of(f), rows()))?;
    Ok(())
}

pub fn nested_jit(depth: usize, phases: &mut Phases) -> Result<()> {
    let f = nested(&[in_jit], depth);
    trace_nested(f.clone(), phases)?;
    phases.time("gradient", || make_program(gradient_of(f.clone()), row()))?;
    phases.time("batch", || make_program(batch_of(f.clone()), rows()))?;
    let gradient = jit(gradient_of(f.clone()));
    let lowered = phases.time("lower", || jit(move |x: Array| f(x)).lower(row()))?;
    phases.count("characters", lowered.as_text().len());
    phases.count("characters of the gradient", gradient.lower(row())?.as_text().len());
    Ok(())
}

pub fn nested_vmap(depth: usize, phases: &mut Phases) -> Result<()> {
    let mut f: Shared = Arc::new(|x: Array| Ok(x.sin() * 2.0));
    for _ in 0..depth {
        let inner = f;
        f = Arc::new(move |x: Array| {
            let inner = inner.clone();
            vmap(move |x: Array| inner(x)).call(x)
        });
    }
    let x = || shape_dtype_struct(vec![2; depth], DType::F32);
    let f = move |x: Array| f(x);
    phases.time("trace", || make_program(f.clone(), x()))?;
    phases.time("lower", || jit(f).lower(x()))?;
    Ok(())
}

pub fn nested_checkpoint(depth: usize, phases: &mut Phases) -> Result<()> {
    let f = nested(&[in_checkpoint], depth);
    phases.time("gradient", || make_program(gradient_of(f), row()))?;
    Ok(())
}

pub fn nested_custom(depth: usize, phases: &mut Phases) -> Result<()> {
    let f = nested(&[in_custom], depth);
    phases.time("gradient", || make_program(gradient_of(f), row()))?;
    Ok(())
}

/// The pairs of constructs, each in the other in turn.
pub const PAIRS: &[&str] = &[
    "scan, cond",
    "scan, checkpoint",
    "scan, vmap",
    "scan, custom_vjp",
    "scan, jit",
    "cond, checkpoint",
    "cond, vmap",
    "cond, custom_vjp",
    "cond, jit",
    "checkpoint, vmap",
    "checkpoint, custom_vjp",
    "checkpoint, jit",
    "vmap, custom_vjp",
    "vmap, jit",
    "custom_vjp, jit",
];

pub fn nested_pairs(depth: usize, phases: &mut Phases) -> Result<()> {
    let kinds = [SCAN, COND, CHECKPOINT, VMAP, CUSTOM, JIT];
    let mut names = PAIRS.iter();
    for (i, (_, outer)) in kinds.iter().enumerate() {
        for ((_, inner), name) in kinds[i + 1..].iter().zip(&mut names) {
            let f = nested(&[*outer, *inner], depth);
            phases.time(name, || make_program(gradient_of(f), row()))?;
        }
    }
    Ok(())
}

pub fn nested_kinds(depth: usize, phases: &mut Phases) -> Result<()> {
    let kinds = [SCAN, COND, CHECKPOINT, VMAP, CUSTOM, JIT].map(|(_, around)| around);
    let f = nested(&kinds, depth);
    trace_nested(f.clone(), phases)?;
    phases.time("gradient", || make_program(gradient_of(f.clone()), row()))?;
    let loops = nested(&[SCAN, COND, CHECKPOINT, VMAP, WHILE, JIT].map(|(_, around)| around), depth);
    phases.time("batch", || make_program(batch_of(loops), rows()))?;
    phases.time("lower", || jit(move |x: Array| f(x)).lower(row()))?;
    Ok(())
}

/// A derivative of this order of a function.
fn derivative(order: usize, around: Around) -> Shared {
    let mut f: Shared = Arc::new(|x: Array| Ok((x.sin() * x.exp()).tanh()));
    for _ in 0..order {
        f = around(f);
    }
    f
}

fn in_grad(inner: Shared) -> Shared {
    Arc::new(move |x: Array| {
        let inner = inner.clone();
        grad(move |x: Array| inner(x)).call(x)
    })
}

fn in_jvp(inner: Shared) -> Shared {
    Arc::new(move |x: Array| {
        let inner = inner.clone();
        Ok(jvp(move |x: Array| inner(x), &x, ones(()))?.1)
    })
}

pub fn derivatives(order: usize, phases: &mut Phases) -> Result<()> {
    let x = || shape_dtype_struct((), DType::F32);
    let (reverse, forward) = (derivative(order, in_grad), derivative(order, in_jvp));
    phases.time("forward mode", || make_program(move |x: Array| forward(x), x()))?;
    let f = move |x: Array| reverse(x);
    phases.time("trace", || make_program(f.clone(), x()))?;
    let lowered = jit(f).lower(x())?;
    phases.time("compile", || lowered.compile())?;
    Ok(())
}
