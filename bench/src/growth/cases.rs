//! The cases: programs of one size, for everything that can grow.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use shardax::function::IntoArgs;
use shardax::prelude::*;
use shardax::{Error, ErrorKind, live_arrays};
use shardax_train::checkpoint;
use shardax_train::serialization;

/// Something that grows.
pub struct Case {
    pub name: &'static str,
    /// The quantity that the size counts.
    pub grows: &'static str,
    pub sizes: &'static [usize],
    /// The phases, in the order of the table.
    pub phases: &'static [&'static str],
    /// `true` if `jax_growth.py` has it.
    pub in_jax: bool,
    run: fn(usize, &mut Phases) -> Result<()>,
}

/// The measured costs of a case.
#[derive(Default)]
struct Phases(BTreeMap<&'static str, f64>);

impl Phases {
    /// Measures the CPU time of `f`.
    fn time<R>(&mut self, phase: &'static str, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let start = cpu_ms();
        let result = f()?;
        self.0.insert(phase, cpu_ms() - start);
        Ok(result)
    }

    /// Measures the least CPU time of several calls.
    fn repeat<R>(&mut self, phase: &'static str, calls: usize, mut f: impl FnMut() -> Result<R>) -> Result<()> {
        let mut least = f64::INFINITY;
        for _ in 0..calls {
            let start = cpu_ms();
            f()?;
            least = least.min(cpu_ms() - start);
        }
        self.0.insert(phase, least);
        Ok(())
    }

    fn count(&mut self, phase: &'static str, count: usize) {
        self.0.insert(phase, count as f64);
    }
}

/// The CPU time of all threads of this process, in ms.
fn cpu_ms() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 * 1e3 + time.tv_nsec as f64 / 1e6
}

/// Runs a case at one size in this process, and prints its costs as JSON.
pub fn child(name: &str, size: usize) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let case = CASES.iter().find(|case| case.name == name).ok_or_else(|| format!("no case is named {name:?}"))?;
    let mut phases = Phases::default();
    (case.run)(size, &mut phases)?;
    println!("{}", serde_json::to_string(&phases.0)?);
    Ok(())
}

/// The phases of a function that is traced, lowered, compiled and called.
const PROGRAM: &[&str] = &["trace", "lower", "compile", "call"];

macro_rules! case {
    ($name:ident, $grows:literal, $sizes:expr, $phases:expr, $in_jax:literal) => {
        Case { name: stringify!($name), grows: $grows, sizes: $sizes, phases: $phases, in_jax: $in_jax, run: $name }
    };
}

pub const CASES: &[Case] = &[
    case!(leaves, "leaves of AdamW", &[10, 100, 1000], PROGRAM, true),
    case!(arguments, "arguments of a call", &[100, 1000, 10_000], &["lower", "call"], true),
    case!(operations, "operations", &[100, 1000, 10_000], &["trace", "gradient", "batch", "lower"], true),
    case!(compiled_operations, "operations, compiled", &[30, 100, 300, 1000], &["function", "gradient"], true),
    case!(eager_gradient, "operations of a gradient outside jit", &[30, 300, 3000], &["first call", "call"], true),
    case!(eager_operations, "operations outside jit", &[1000, 10_000, 100_000], &["calls"], true),
    case!(captures, "captured arrays", &[10, 100, 1000], PROGRAM, true),
    case!(carries, "carries of a scan", &[10, 100, 1000], &["trace", "gradient", "lower"], true),
    case!(branches, "branches of a switch", &[4, 32, 256], &["trace", "gradient", "lower"], true),
    case!(constant_bytes, "bytes of a captured array", &[1_000_000, 10_000_000, 100_000_000], PROGRAM, true),
    case!(nested_cond, "depth of cond in cond", &[2, 6, 12, 18], &["trace", "gradient", "batch"], true),
    case!(nested_scan, "depth of scan in scan", &[1, 2, 4, 8], &["trace", "gradient", "batch"], true),
    case!(nested_jit, "depth of jit in jit, two calls", &[4, 8, 12, 18], &["trace", "lower", "characters"], true),
    case!(nested_vmap, "depth of vmap in vmap", &[1, 2, 4, 8], &["trace", "lower"], true),
    case!(nested_checkpoint, "depth of checkpoint in checkpoint", &[1, 2, 4, 8], &["gradient"], true),
    case!(derivatives, "order of a derivative", &[1, 2, 3, 4, 5, 6], &["trace", "compile"], true),
    case!(jacobian, "rows of a Jacobian", &[10, 100, 1000], &["first call", "call"], true),
    case!(hessian, "rows of a Hessian", &[10, 100, 1000], &["first call", "call"], true),
    case!(shapes, "shapes that a function meets", &[10, 100, 1000], &["calls"], true),
    case!(functions, "functions made and dropped", &[10, 100, 1000], &["calls"], true),
    case!(calls, "calls", &[1000, 10_000, 100_000], &["calls"], true),
    case!(threads, "threads that call a function, 1,000 calls each", &[1, 8, 64], &["calls"], false),
    case!(devices, "devices of pmap", &[8, 64, 512], &["first call", "call"], true),
    case!(devices_auto, "devices of pmap, on an Auto mesh", &[8, 64, 512], &["first call", "call"], false),
    case!(mapped_arrays, "arrays of pmap on 8 devices", &[10, 100, 1000], &["first call", "call"], true),
    case!(alive, "arrays alive", &[1000, 10_000, 100_000], &["make", "list", "drop"], true),
    case!(rank, "rank of an array", &[2, 4, 8, 16], &["lower", "compile"], true),
    case!(printed, "elements of a printed array", &[1_000_000, 10_000_000, 100_000_000], &["print"], true),
    case!(to_host, "bytes read by the host", &[1_000_000, 10_000_000, 100_000_000], &["to_vec", "to_bytes"], true),
    case!(pieces, "pieces of split outside jit", &[10, 100, 1000], &["first call", "call"], true),
    case!(powers, "exponents outside jit", &[10, 100, 500], &["first call", "call"], true),
    case!(checkpoint_arrays, "arrays of a checkpoint", &[100, 1000, 10_000], &["save", "restore"], false),
    case!(packed_arrays, "arrays of serialization::to_bytes", &[1000, 10_000, 100_000], &["to_bytes"], false),
    case!(error_characters, "leaves in an error of vmap", &[100, 1000, 10_000], &["characters"], true),
];

fn row() -> Array {
    shape_dtype_struct([4], DType::F32)
}

/// Traces, lowers, compiles and calls a function.
fn program<Args, F, A>(f: F, args: A, phases: &mut Phases) -> Result<()>
where
    Args: Tree,
    F: Function<Args> + Clone,
    A: IntoArgs<Args> + Clone,
{
    phases.time("trace", || make_program(f.clone(), args.clone()))?;
    let f = jit(f);
    let lowered = phases.time("lower", || f.lower(args.clone()))?;
    phases.time("compile", || lowered.compile())?;
    let _ = block_until_ready(f.call(args.clone())?)?;
    phases.repeat("call", 5, || block_until_ready(f.call(args.clone())?))
}

fn leaves(n: usize, phases: &mut Phases) -> Result<()> {
    let state = || vec![ones([4]); n];
    let step = |parameters: Vec<Array>, gradients: Vec<Array>, first: Vec<Array>, second: Vec<Array>| {
        let mut updated = (Vec::new(), Vec::new(), Vec::new());
        for (((p, g), m), v) in parameters.iter().zip(&gradients).zip(&first).zip(&second) {
            let m = m * 0.9 + g * 0.1;
            let v = v * 0.999 + g * g * 0.001;
            updated.0.push(p - (&m / (v.sqrt() + 1e-8) + p * 0.01) * 1e-3);
            updated.1.push(m);
            updated.2.push(v);
        }
        updated
    };
    program(step, (state(), state(), state(), state()), phases)
}

fn arguments(n: usize, phases: &mut Phases) -> Result<()> {
    let (f, xs) = (jit(|xs: Vec<Array>| &xs[0] + 1.0), vec![ones([4]); n]);
    phases.time("lower", || f.lower(vec![row(); n]))?;
    let _ = f.call(&xs)?;
    phases.repeat("call", 5, || block_until_ready(f.call(&xs)?))
}

fn chain(n: usize) -> impl Fn(Array) -> Array + Clone + Send + Sync + 'static {
    move |x: Array| (0..n).fold(x, |x, _| x.sin())
}

fn summed_chain(n: usize) -> impl Fn(Array) -> Array + Clone + Send + Sync + 'static {
    let f = chain(n);
    move |x: Array| f(x).sum(..)
}

fn operations(n: usize, phases: &mut Phases) -> Result<()> {
    phases.time("trace", || make_program(chain(n), row()))?;
    phases.time("gradient", || make_program(grad(summed_chain(n)), row()))?;
    phases.time("batch", || make_program(vmap(chain(n)), shape_dtype_struct([8, 4], DType::F32)))?;
    phases.time("lower", || jit(chain(n)).lower(row()))?;
    Ok(())
}

fn compiled_operations(n: usize, phases: &mut Phases) -> Result<()> {
    let lowered = jit(chain(n)).lower(row())?;
    phases.time("function", || lowered.compile())?;
    let lowered = jit(grad(summed_chain(n))).lower(row())?;
    phases.time("gradient", || lowered.compile())?;
    Ok(())
}

fn eager_gradient(n: usize, phases: &mut Phases) -> Result<()> {
    let (f, x) = (grad(summed_chain(n)), ones([4]));
    let _ = phases.time("first call", || block_until_ready(f.call(&x)?))?;
    phases.repeat("call", 3, || block_until_ready(f.call(&x)?))
}

fn eager_operations(n: usize, phases: &mut Phases) -> Result<()> {
    let x = ones([4]);
    let _ = x.sin();
    let _ = phases.time("calls", || block_until_ready(chain(n)(x)))?;
    Ok(())
}

fn captures(n: usize, phases: &mut Phases) -> Result<()> {
    let captured: Arc<Vec<Array>> = Arc::new((0..n).map(|i| ones([4]) * i as f32).collect());
    program(move |x: Array| captured.iter().fold(x, |x, c| x + c), ones([4]), phases)
}

fn carries(n: usize, phases: &mut Phases) -> Result<()> {
    let f = |xs: Vec<Array>| -> Result<Vec<Array>> {
        let step = |xs: Vec<Array>, x: Array| (xs.iter().map(|y| y * 2.0 + &x).collect::<Vec<_>>(), ());
        Ok(scan(step, xs, ones([3]))?.0)
    };
    let loss = move |xs: Vec<Array>| -> Result<Array> { Ok(f(xs)?.iter().fold(zeros(()), |sum, x| sum + x.sum(..))) };
    phases.time("trace", || make_program(f, vec![row(); n]))?;
    phases.time("gradient", || make_program(grad(loss), vec![row(); n]))?;
    phases.time("lower", || jit(f).lower(vec![row(); n]))?;
    Ok(())
}

fn branches(n: usize, phases: &mut Phases) -> Result<()> {
    let f = move |index: Array, x: Array| -> Result<Array> {
        let branches: Vec<_> = (0..n).map(|i| move |x: Array| x.sin() * i as f32).collect();
        switch(index, branches, x)
    };
    let loss = move |x: Array, index: Array| -> Result<Array> { Ok(f(index, x)?.sum(..)) };
    let index = || shape_dtype_struct((), DType::I32);
    phases.time("trace", || make_program(f, (index(), row())))?;
    phases.time("gradient", || make_program(grad(loss), (row(), index())))?;
    phases.time("lower", || jit(f).lower((index(), row())))?;
    Ok(())
}

fn constant_bytes(n: usize, phases: &mut Phases) -> Result<()> {
    let captured = ones([n / 4]);
    program(move |x: Array| (&captured * x).sum(..), ones(()), phases)
}

fn nested_cond(depth: usize, phases: &mut Phases) -> Result<()> {
    fn nested(depth: usize, x: Array) -> Result<Array> {
        if depth == 0 {
            return Ok(x.sin());
        }
        cond(x.sum(..).greater(0.0), move |x: Array| nested(depth - 1, x.sin()), |x: Array| x * 2.0, x)
    }
    let f = move |x: Array| nested(depth, x);
    let loss = move |x: Array| -> Result<Array> { Ok(nested(depth, x)?.sum(..)) };
    phases.time("trace", || make_program(f, row()))?;
    phases.time("gradient", || make_program(grad(loss), row()))?;
    let of_flag = move |flag: Array, x: Array| cond(flag, move |x: Array| nested(depth - 1, x), |x: Array| x, x);
    let batched = vmap(of_flag).in_axes((None, 0));
    let args = (shape_dtype_struct((), DType::Bool), shape_dtype_struct([8, 4], DType::F32));
    // All branches of inner conditionals run where their predicates are batched.
    if depth <= 12 {
        phases.time("batch", || make_program(batched, args))?;
    }
    Ok(())
}

fn nested_scan(depth: usize, phases: &mut Phases) -> Result<()> {
    fn nested(depth: usize, x: Array) -> Result<Array> {
        if depth == 0 {
            return Ok(x.sin());
        }
        Ok(scan(move |x: Array, y: Array| -> Result<_> { Ok((nested(depth - 1, x + y)?, ())) }, x, ones([2]))?.0)
    }
    let f = move |x: Array| nested(depth, x);
    let loss = move |x: Array| -> Result<Array> { Ok(nested(depth, x)?.sum(..)) };
    phases.time("trace", || make_program(f, row()))?;
    phases.time("gradient", || make_program(grad(loss), row()))?;
    phases.time("batch", || make_program(vmap(f), shape_dtype_struct([8, 4], DType::F32)))?;
    Ok(())
}

type Shared = Arc<dyn Fn(Array) -> Result<Array> + Send + Sync>;

fn jitted(f: impl Fn(Array) -> Result<Array> + Send + Sync + 'static) -> Shared {
    let f = jit(f);
    Arc::new(move |x: Array| f.call(x))
}

fn nested_jit(depth: usize, phases: &mut Phases) -> Result<()> {
    let mut f = jitted(|x: Array| Ok(x.sin()));
    for _ in 1..depth {
        let inner = f;
        f = jitted(move |x: Array| Ok(inner(x.clone())? + inner(x + 1.0)?));
    }
    let f = move |x: Array| f(x);
    phases.time("trace", || make_program(f.clone(), row()))?;
    let lowered = phases.time("lower", || jit(f).lower(row()))?;
    phases.count("characters", lowered.as_text().len());
    Ok(())
}

fn nested_vmap(depth: usize, phases: &mut Phases) -> Result<()> {
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

fn nested_checkpoint(depth: usize, phases: &mut Phases) -> Result<()> {
    let mut f: Shared = Arc::new(|x: Array| Ok(x.sin()));
    for _ in 0..depth {
        let inner = f;
        f = Arc::new(move |x: Array| {
            let inner = inner.clone();
            shardax::checkpoint(move |x: Array| -> Result<Array> { inner(x.sin()) }).call(x)
        });
    }
    phases.time("gradient", || make_program(grad(move |x: Array| -> Result<Array> { Ok(f(x)?.sum(..)) }), row()))?;
    Ok(())
}

fn derivatives(order: usize, phases: &mut Phases) -> Result<()> {
    let mut f: Shared = Arc::new(|x: Array| Ok((x.sin() * x.exp()).tanh()));
    for _ in 0..order {
        let inner = f;
        f = Arc::new(move |x: Array| {
            let inner = inner.clone();
            grad(move |x: Array| inner(x)).call(x)
        });
    }
    let f = move |x: Array| f(x);
    let x = || shape_dtype_struct((), DType::F32);
    phases.time("trace", || make_program(f.clone(), x()))?;
    let lowered = jit(f).lower(x())?;
    phases.time("compile", || lowered.compile())?;
    Ok(())
}

fn jacobian(n: usize, phases: &mut Phases) -> Result<()> {
    let (f, x) = (jit(jacrev(|x: Array| x.sin() * x.sum(..))), ones([n]));
    let _ = phases.time("first call", || block_until_ready(f.call(&x)?))?;
    phases.repeat("call", 3, || block_until_ready(f.call(&x)?))
}

fn hessian(n: usize, phases: &mut Phases) -> Result<()> {
    let (f, x) = (jit(shardax::hessian(|x: Array| (x.sin() * x.sum(..)).sum(..))), ones([n]));
    let _ = phases.time("first call", || block_until_ready(f.call(&x)?))?;
    phases.repeat("call", 3, || block_until_ready(f.call(&x)?))
}

fn shapes(n: usize, phases: &mut Phases) -> Result<()> {
    let f = jit(|x: Array| x.sin() + 1.0);
    let xs: Vec<Array> = (1..=n).map(|size| Array::from_slice(&vec![1.0f32; size], &[size])).collect::<Result<_>>()?;
    phases.time("calls", || xs.iter().try_for_each(|x| block_until_ready(f.call(x)?).map(drop)))
}

fn functions(n: usize, phases: &mut Phases) -> Result<()> {
    let x = ones([4]);
    phases.time("calls", || {
        (0..n).try_for_each(|i| {
            let captured = i as f32;
            block_until_ready(jit(move |x: Array| x.sin() + captured).call(&x)?).map(drop)
        })
    })
}

fn calls(n: usize, phases: &mut Phases) -> Result<()> {
    let (f, x) = (jit(|x: Array| x * 2.0 + 1.0), ones([4]));
    let _ = f.call(&x)?;
    phases.time("calls", || (0..n).try_for_each(|_| f.call(&x).map(drop)))
}

fn threads(n: usize, phases: &mut Phases) -> Result<()> {
    let (f, x) = (jit(|x: Array| x * 2.0 + 1.0), ones([4]));
    let _ = f.call(&x)?;
    phases.time("calls", || {
        std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..n).map(|_| scope.spawn(|| (0..1000).try_for_each(|_| f.call(&x).map(drop)))).collect();
            threads.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Runtime, "a thread panicked".to_owned())))
            })
        })
    })
}

fn on_devices(n: usize, mesh: fn(&Mesh) -> Mesh, phases: &mut Phases) -> Result<()> {
    shardax::config::set_num_cpu_devices(n)?;
    let mesh = mesh(&make_mesh([("x", n)])?);
    let x = device_put(&ones([n, 4]), NamedSharding::new(&mesh, P!["x"]))?;
    let f = pmap(|x: Array| x * 2.0 + 100.0);
    let _ = phases.time("first call", || block_until_ready(f.call(&x)?))?;
    phases.repeat("call", 20, || block_until_ready(f.call(&x)?))
}

fn devices(n: usize, phases: &mut Phases) -> Result<()> {
    on_devices(n, Mesh::clone, phases)
}

fn devices_auto(n: usize, phases: &mut Phases) -> Result<()> {
    on_devices(n, Mesh::auto, phases)
}

fn mapped_arrays(n: usize, phases: &mut Phases) -> Result<()> {
    shardax::config::set_num_cpu_devices(8)?;
    let sharding = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    let xs = device_put(&vec![ones([8, 4]); n], &sharding)?;
    let f = pmap(|xs: Vec<Array>| xs.iter().map(|x| x + 1.0).collect::<Vec<_>>());
    phases.time("first call", || block_until_ready(f.call(&xs)?))?;
    phases.repeat("call", 5, || block_until_ready(f.call(&xs)?))
}

fn alive(n: usize, phases: &mut Phases) -> Result<()> {
    let all =
        phases.time("make", || (0..n).map(|i| Array::from_slice(&[i as f32], &[1])).collect::<Result<Vec<_>>>())?;
    phases.time("list", || Ok(live_arrays().len()))?;
    phases.time("drop", || {
        drop(all);
        Ok(())
    })
}

fn rank(n: usize, phases: &mut Phases) -> Result<()> {
    let reversed: Vec<i32> = (0..n as i32).rev().collect();
    let f = jit(move |x: Array| x.transpose(&reversed) + x.sum(0));
    let mut shape = vec![1; n];
    shape[0] = 2;
    let lowered = phases.time("lower", || f.lower(shape_dtype_struct(shape, DType::F32)))?;
    phases.time("compile", || lowered.compile())?;
    Ok(())
}

fn printed(n: usize, phases: &mut Phases) -> Result<()> {
    let x = block_until_ready(arange(0.0f32..n as f32))?;
    phases.repeat("print", 3, || Ok(x.to_string().len()))
}

fn to_host(n: usize, phases: &mut Phases) -> Result<()> {
    let x = block_until_ready(ones([n]).astype(DType::U8))?;
    phases.repeat("to_vec", 3, || x.to_vec::<u8>())?;
    phases.repeat("to_bytes", 3, || x.to_bytes())
}

fn pieces(n: usize, phases: &mut Phases) -> Result<()> {
    let x = block_until_ready(arange(0.0f32..(4 * n) as f32))?;
    phases.time("first call", || block_until_ready(x.split(n, 0)?))?;
    phases.repeat("call", 3, || block_until_ready(x.split(n, 0)?))
}

fn powers(n: usize, phases: &mut Phases) -> Result<()> {
    let x = ones([4]);
    let all = || block_until_ready((0..n as i32).map(|i| x.pow(i)).collect::<Vec<_>>());
    phases.time("first call", all)?;
    phases.repeat("call", 3, all)
}

fn many(n: usize) -> Result<Vec<Array>> {
    (0..n).map(|i| Array::from_slice(&[i as f32; 4], &[4])).collect()
}

fn checkpoint_arrays(n: usize, phases: &mut Phases) -> Result<()> {
    let (tree, path) = (many(n)?, std::env::temp_dir().join(format!("shardax-growth-{}", std::process::id())));
    phases.time("save", || checkpoint::save(&path, &tree))?;
    let restored = phases.time("restore", || checkpoint::restore(&path, &tree));
    let _ = std::fs::remove_dir_all(&path);
    restored.map(drop)
}

fn packed_arrays(n: usize, phases: &mut Phases) -> Result<()> {
    let tree = many(n)?;
    phases.time("to_bytes", || serialization::to_bytes(&tree))?;
    Ok(())
}

fn error_characters(n: usize, phases: &mut Phases) -> Result<()> {
    let mut xs = vec![ones([4]); n];
    xs[n / 2] = ones([3]);
    let error = vmap(|xs: Vec<Array>| xs).call(xs).err();
    phases.count("characters", error.map_or(0, |error| error.to_string().len()));
    Ok(())
}
