//! The cases: programs of one size, for everything that can grow.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::time::{ClockId, clock_gettime};
use shardax::function::IntoArgs;
use shardax::prelude::*;
use shardax::{Error, ErrorKind, live_arrays};

use super::nesting::{
    PAIRS, derivatives, nested_checkpoint, nested_cond, nested_custom, nested_jit, nested_kinds, nested_pairs,
    nested_scan, nested_vmap, nested_while,
};
use super::storage::{cache_files, checkpoint_arrays, checkpoint_steps, examples, log_lines, packed_arrays, shards};

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

/// The name under which a process returns its peak memory in MiB, next to its phases.
pub const PEAK: &str = "peak MiB";

/// The measured costs of a case.
#[derive(Default)]
pub struct Phases(BTreeMap<&'static str, f64>);

impl Phases {
    /// Measures the CPU time of `f`.
    pub fn time<R>(&mut self, phase: &'static str, f: impl FnOnce() -> Result<R>) -> Result<R> {
        let start = cpu_ms();
        let result = f()?;
        self.0.insert(phase, cpu_ms() - start);
        Ok(result)
    }

    /// Measures the least CPU time of several calls.
    pub fn repeat<R>(&mut self, phase: &'static str, calls: usize, mut f: impl FnMut() -> Result<R>) -> Result<()> {
        let mut least = f64::INFINITY;
        for _ in 0..calls {
            let start = cpu_ms();
            f()?;
            least = least.min(cpu_ms() - start);
        }
        self.0.insert(phase, least);
        Ok(())
    }

    pub fn count(&mut self, phase: &'static str, count: usize) {
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
    phases.count(PEAK, crate::peak_mib().round() as usize);
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
    case!(donated, "donated leaves", &[10, 100, 1000], &["lower", "compile", "call"], true),
    case!(tree_depth, "depth of a tree", &[10, 100, 1000], &["flatten", "map", "lower", "call"], false),
    case!(arguments, "arguments of a call", &[100, 1000, 10_000], &["lower", "call"], true),
    case!(added_arguments, "arguments that are added", &[30, 100, 300, 1000], &["compile", "call"], true),
    case!(results, "results of a chain", &[30, 100, 300, 1000], &["compile", "call"], true),
    case!(operations, "operations", &[100, 1000, 10_000], &["trace", "print", "gradient", "batch", "lower"], true),
    case!(compiled_operations, "operations, compiled", &[30, 100, 300, 1000], &["function", "gradient"], true),
    case!(exported, "operations, exported", &[100, 1000, 10_000], &["export", "serialize", "deserialize"], true),
    case!(eager_gradient, "operations of a gradient outside jit", &[30, 300, 3000], &["first call", "call"], true),
    case!(eager_operations, "operations outside jit", &[1000, 10_000, 100_000], &["calls"], true),
    case!(captures, "captured arrays", &[10, 100, 1000], PROGRAM, true),
    case!(constants, "constants", &[10, 100, 1000], &["trace", "lower", "compile"], true),
    case!(carries, "carries of a scan", &[10, 100, 1000], &["trace", "gradient", "lower"], true),
    case!(branches, "branches of a switch", &[4, 32, 256], &["trace", "gradient", "lower"], true),
    case!(constant_bytes, "bytes of a captured array", &[1_000_000, 10_000_000, 100_000_000], PROGRAM, true),
    case!(checks, "checks", &[10, 100, 1000], &["trace", "lower"], false),
    case!(callbacks, "ordered callbacks", &[10, 100, 1000], &["trace", "lower", "call"], false),
    case!(writes, "writes of a ref", &[10, 100, 1000], &["trace", "lower"], false),
    case!(nested_cond, "depth of cond in cond", &[2, 6, 12, 18], &["trace", "gradient", "batch"], true),
    case!(nested_scan, "depth of scan in scan", &[1, 2, 4, 8], &["trace", "gradient", "batch"], true),
    case!(nested_while, "depth of while in while", &[1, 2, 4, 8], &["trace", "forward mode", "batch"], true),
    case!(
        nested_jit,
        "depth of jit in jit, two calls",
        &[4, 8, 12, 18],
        &["trace", "gradient", "batch", "lower", "characters", "characters of the gradient"],
        true
    ),
    case!(nested_vmap, "depth of vmap in vmap", &[1, 2, 4, 8], &["trace", "lower"], true),
    case!(nested_checkpoint, "depth of checkpoint in checkpoint", &[1, 2, 4, 8], &["gradient"], true),
    case!(nested_custom, "depth of custom_vjp in custom_vjp", &[1, 2, 4, 8], &["gradient"], true),
    case!(nested_pairs, "depth of two constructs in each other", &[2, 4, 8, 16], PAIRS, true),
    case!(
        nested_kinds,
        "depth of six constructs in each other",
        &[3, 6, 12],
        &["trace", "gradient", "batch", "lower"],
        true
    ),
    case!(derivatives, "order of a derivative", &[1, 2, 3, 4, 5, 6], &["trace", "forward mode", "compile"], true),
    case!(jacobian, "rows of a Jacobian", &[10, 100, 1000], &["first call", "call"], true),
    case!(hessian, "rows of a Hessian", &[10, 100, 1000], &["first call", "call"], true),
    case!(shapes, "shapes that a function meets", &[10, 100, 1000], &["calls"], true),
    case!(functions, "functions made and dropped", &[10, 100, 1000], &["calls"], true),
    case!(calls, "calls", &[1000, 10_000, 100_000], &["calls"], true),
    case!(threads, "threads that call a function, 1,000 calls each", &[1, 8, 64, 512], &["calls"], false),
    case!(devices, "devices of pmap", &[8, 64, 512], &["first call", "call"], true),
    case!(devices_auto, "devices of pmap, on an Auto mesh", &[8, 64, 512], &["first call", "call"], false),
    case!(mapped_arrays, "arrays of pmap on 8 devices", &[10, 100, 1000], &["first call", "call"], true),
    case!(meshes, "meshes of a function", &[10, 100, 1000], &["make", "calls"], true),
    case!(mesh_axes, "axes of a mesh", &[1, 3, 6, 9], &["make", "lower", "compile", "call"], true),
    case!(shards, "shards", &[8, 64, 512], &["put", "read", "replicate", "save", "restore"], false),
    case!(alive, "arrays alive", &[1000, 10_000, 100_000], &["make", "list", "drop"], true),
    case!(rank, "rank of an array", &[2, 4, 8, 16], &["lower", "compile"], true),
    case!(elements, "elements of (a * x).sum(), sort", &[1_000_000, 10_000_000, 100_000_000], &["sum", "sort"], true),
    case!(printed, "elements of a printed array", &[1_000_000, 10_000_000, 100_000_000], &["print"], true),
    case!(to_host, "bytes read by the host", &[1_000_000, 10_000_000, 100_000_000], &["to_vec", "to_bytes"], true),
    case!(pieces, "pieces of split outside jit", &[10, 100, 1000], &["first call", "call"], true),
    case!(stacked, "arrays of stack outside jit", &[10, 100, 1000], &["first call", "call"], true),
    case!(updates, "updates of elements outside jit", &[10, 100, 1000], &["first call", "call"], true),
    case!(powers, "exponents outside jit", &[10, 100, 500], &["first call", "call"], true),
    case!(einsum_operands, "operands of einsum", &[2, 6, 12, 24], &["trace"], true),
    case!(checkpoint_arrays, "arrays of a checkpoint", &[100, 1000, 10_000], &["save", "restore"], false),
    case!(checkpoint_steps, "steps of checkpoints", &[10, 100, 1000], &["save", "list", "open", "restore"], false),
    case!(packed_arrays, "arrays of to_bytes", &[1000, 10_000, 100_000], &["to_bytes", "from_bytes"], false),
    case!(log_lines, "lines of a log", &[1000, 10_000, 100_000], &["write", "read", "continue"], false),
    case!(cache_files, "files of the cache on disk", &[10, 100, 1000], &["compile", "find"], false),
    case!(examples, "examples", &[100_000, 1_000_000, 10_000_000], &["first batch", "1,000 batches", "seek"], false),
    case!(error_characters, "leaves in an error of vmap", &[100, 1000, 10_000], &["characters"], true),
    case!(
        error_texts,
        "leaves in errors, characters",
        &[10, 100, 1000],
        &["structure", "scan", "cond", "checkpoint", "sharding"],
        false
    ),
];

pub fn row() -> Array {
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
    // AdamW on many small parameters: the work for each leaf is small, so the cost of a leaf is visible.
    let state = || vec![ones([4]); n];
    program(
        |parameters: Vec<Array>, gradients: Vec<Array>, first: Vec<Array>, second: Vec<Array>| {
            let mut updated = (Vec::new(), Vec::new(), Vec::new());
            for (((p, g), m), v) in parameters.iter().zip(&gradients).zip(&first).zip(&second) {
                let m = m * 0.9 + g * 0.1;
                let v = v * 0.999 + g * g * 0.001;
                updated.0.push(p - (&m / (v.sqrt() + 1e-8) + p * 0.01) * 1e-3);
                updated.1.push(m);
                updated.2.push(v);
            }
            updated
        },
        (state(), state(), state(), state()),
        phases,
    )
}

fn donated(n: usize, phases: &mut Phases) -> Result<()> {
    let f = jit(|xs: Vec<Array>| xs.iter().map(|x| x * 2.0).collect::<Vec<_>>()).donate_argnums(0);
    let lowered = phases.time("lower", || f.lower(vec![row(); n]))?;
    phases.time("compile", || lowered.compile())?;
    let mut xs: Vec<Array> = (0..n).map(|i| ones([4]) * i as f32).collect();
    xs = block_until_ready(f.call(xs)?)?;
    phases.repeat("call", 5, || {
        xs = block_until_ready(f.call(std::mem::take(&mut xs))?)?;
        Ok(())
    })
}

#[derive(Clone, Tree)]
enum Nested {
    Inner(Array),
    Outer(Array, Box<Nested>),
}

fn tree_depth(n: usize, phases: &mut Phases) -> Result<()> {
    let tree = (0..n).fold(Nested::Inner(ones([4])), |tree, _| Nested::Outer(ones([4]), Box::new(tree)));
    phases.time("flatten", || Ok(shardax::tree::leaves(&tree).len()))?;
    phases.time("map", || shardax::tree::map(|x: Array| x, tree.clone()))?;
    let f = jit(|tree: Nested| match tree {
        Nested::Inner(x) | Nested::Outer(x, _) => x + 1.0,
    });
    phases.time("lower", || f.lower(tree.clone()))?;
    let _ = f.call(&tree)?;
    phases.repeat("call", 5, || block_until_ready(f.call(&tree)?))
}

fn added_arguments(n: usize, phases: &mut Phases) -> Result<()> {
    let f = jit(|xs: Vec<Array>| xs.iter().fold(zeros([4]), |sum, x| sum + x));
    let lowered = f.lower(vec![row(); n])?;
    phases.time("compile", || lowered.compile())?;
    let xs = vec![ones([4]); n];
    let _ = f.call(&xs)?;
    phases.repeat("call", 5, || block_until_ready(f.call(&xs)?))
}

fn results(n: usize, phases: &mut Phases) -> Result<()> {
    let f = jit(move |x: Array| {
        (0..n)
            .scan(x, |x: &mut Array, _: usize| {
                let next = x.sin();
                Some(std::mem::replace(x, next).cos())
            })
            .collect::<Vec<_>>()
    });
    let lowered = f.lower(row())?;
    phases.time("compile", || lowered.compile())?;
    let x = ones([4]);
    let _ = f.call(&x)?;
    phases.repeat("call", 5, || block_until_ready(f.call(&x)?))
}

fn exported(n: usize, phases: &mut Phases) -> Result<()> {
    let exported = phases.time("export", || shardax::export::export(jit(chain(n)), row()))?;
    let bytes = phases.time("serialize", || exported.serialize())?;
    phases.time("deserialize", || shardax::export::Exported::<(Array,), Array>::deserialize(&bytes)).map(drop)
}

fn constants(n: usize, phases: &mut Phases) -> Result<()> {
    let f = move |x: Array| (0..n).fold(x, |x, i| x * array([i as f32, 1.0, 2.0, 3.0]) + 1.0);
    phases.time("trace", || make_program(f, row()))?;
    let lowered = phases.time("lower", || jit(f).lower(row()))?;
    phases.time("compile", || lowered.compile()).map(drop)
}

fn checks(n: usize, phases: &mut Phases) -> Result<()> {
    let f = move |x: Array| -> Result<Array> {
        (0..n).try_fold(x, |x, _| {
            shardax::check!(x.get(0).greater(0.0), "not positive")?;
            Ok(x.sin())
        })
    };
    let f = move || shardax::checkify(f);
    phases.time("trace", || make_program(f(), row()))?;
    phases.time("lower", || jit(f()).lower(row())).map(drop)
}

fn callbacks(n: usize, phases: &mut Phases) -> Result<()> {
    let f = move |x: Array| -> Result<Array> {
        (0..n).try_fold(x, |x, _| {
            shardax::debug::callback_ordered(|_| Ok(()), &x)?;
            Ok(x.sin())
        })
    };
    phases.time("trace", || make_program(f, row()))?;
    let f = jit(f);
    phases.time("lower", || f.lower(row()))?;
    let x = ones([4]);
    let _ = block_until_ready(f.call(&x)?)?;
    phases.repeat("call", 3, || block_until_ready(f.call(&x)?))
}

fn writes(n: usize, phases: &mut Phases) -> Result<()> {
    let f = move |x: Array| -> Result<Array> {
        let sum = shardax::new_ref(zeros([4]))?;
        (0..n).try_for_each(|i| sum.add(&x * i as f32))?;
        Ok(sum.freeze())
    };
    phases.time("trace", || make_program(f, row()))?;
    phases.time("lower", || jit(f).lower(row())).map(drop)
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
    let program = phases.time("trace", || make_program(chain(n), row()))?;
    phases.time("print", || Ok(program.to_string().len()))?;
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
        Ok(scan(|xs: Vec<Array>, x: Array| (xs.iter().map(|y| y * 2.0 + &x).collect::<Vec<_>>(), ()), xs, ones([3]))?.0)
    };
    phases.time("trace", || make_program(f, vec![row(); n]))?;
    phases.time("gradient", || {
        make_program(
            grad(move |xs: Vec<Array>| -> Result<Array> {
                Ok(f(xs)?.iter().fold(zeros(()), |sum, x| sum + x.sum(..)))
            }),
            vec![row(); n],
        )
    })?;
    phases.time("lower", || jit(f).lower(vec![row(); n]))?;
    Ok(())
}

fn branches(n: usize, phases: &mut Phases) -> Result<()> {
    let f = move |index: Array, x: Array| -> Result<Array> {
        let branches: Vec<_> = (0..n).map(|i| move |x: Array| x.sin() * i as f32).collect();
        switch(index, branches, x)
    };
    phases.time("trace", || make_program(f, (branch_index(), row())))?;
    phases.time("gradient", || {
        make_program(
            grad(move |x: Array, index: Array| -> Result<Array> { Ok(f(index, x)?.sum(..)) }),
            (row(), branch_index()),
        )
    })?;
    phases.time("lower", || jit(f).lower((branch_index(), row())))?;
    Ok(())
}

/// The type of the index of a branch.
fn branch_index() -> Array {
    shape_dtype_struct((), DType::I32)
}

fn constant_bytes(n: usize, phases: &mut Phases) -> Result<()> {
    let captured = ones([n / 4]);
    program(move |x: Array| (&captured * x).sum(..), ones(()), phases)
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

fn meshes(n: usize, phases: &mut Phases) -> Result<()> {
    shardax::config::set_num_cpu_devices(8)?;
    let meshes =
        phases.time("make", || (0..n).map(|i| make_mesh([(format!("x{i}"), 8)])).collect::<Result<Vec<_>>>())?;
    let f = jit(|x: Array| x * 2.0 + 1.0);
    phases.time("calls", || {
        meshes.iter().enumerate().try_for_each(|(i, mesh)| {
            let name = format!("x{i}");
            let x = device_put(&ones([8, 4]), NamedSharding::new(&mesh.auto(), P![name.as_str()]))?;
            block_until_ready(f.call(x)?).map(drop)
        })
    })
}

fn mesh_axes(n: usize, phases: &mut Phases) -> Result<()> {
    let count = 1 << n;
    shardax::config::set_num_cpu_devices(count)?;
    let names: Vec<String> = (0..n).map(|i| format!("x{i}")).collect();
    let mesh = phases.time("make", || make_mesh(names.iter().map(|name| (name.as_str(), 2)).collect::<Vec<_>>()))?;
    let spec = PartitionSpec::new(names.iter().map(String::as_str));
    let x = device_put(&ones(vec![2; n]), NamedSharding::new(&mesh.auto(), spec))?;
    let f = jit(|x: Array| (&x * 2.0).sum(..) + x);
    let lowered = phases.time("lower", || f.lower(&x))?;
    phases.time("compile", || lowered.compile())?;
    let _ = block_until_ready(f.call(&x)?)?;
    phases.repeat("call", 3, || block_until_ready(f.call(&x)?))
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

fn elements(n: usize, phases: &mut Phases) -> Result<()> {
    let (x, f) = (block_until_ready(arange(0.0f32..n as f32))?, jit(|a: Array, x: Array| (a * x).sum(..)));
    let _ = block_until_ready(f.call((&x, 2.0))?)?;
    phases.repeat("sum", 3, || block_until_ready(f.call((&x, 2.0))?))?;
    let shuffled = block_until_ready((&x * 7919.0).sin())?;
    let sorted = jit(|x: Array| x.sort(-1));
    if n <= 10_000_000 {
        let _ = block_until_ready(sorted.call(&shuffled)?)?;
        let _ = phases.time("sort", || block_until_ready(sorted.call(&shuffled)?))?;
    }
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

fn stacked(n: usize, phases: &mut Phases) -> Result<()> {
    let xs: Vec<Array> = (0..n).map(|i| ones([4]) * i as f32).collect();
    let _ = phases.time("first call", || block_until_ready(stack(&xs, 0)))?;
    phases.repeat("call", 3, || block_until_ready(stack(&xs, 0)))
}

fn updates(n: usize, phases: &mut Phases) -> Result<()> {
    let _ = phases.time("first call", || update_each(n))?;
    phases.repeat("call", 3, || update_each(n))
}

/// Sets each of `n` elements by an update of its own.
fn update_each(n: usize) -> Result<Array> {
    block_until_ready((0..n).fold(zeros([n]), |x, i| x.at(i).set(1.0)))
}

/// The name of a dimension in the text of an einsum.
fn letter(dimension: usize) -> char {
    char::from(b'a' + dimension as u8)
}

fn einsum_operands(n: usize, phases: &mut Phases) -> Result<()> {
    let pairs: Vec<String> = (0..n).map(|i| format!("{}{}", letter(i), letter(i + 1))).collect();
    let spec = format!("{}->a{}", pairs.join(","), letter(n));
    phases
        .time("trace", || {
            make_program(
                move |xs: Vec<Array>| einsum(&spec, &xs.iter().collect::<Vec<_>>()),
                vec![shape_dtype_struct([8, 8], DType::F32); n],
            )
        })
        .map(drop)
}

fn powers(n: usize, phases: &mut Phases) -> Result<()> {
    let x = ones([4]);
    phases.time("first call", || first_powers(&x, n))?;
    phases.repeat("call", 3, || first_powers(&x, n))
}

/// Computes the powers 0 to `n - 1` of `x`.
fn first_powers(x: &Array, n: usize) -> Result<Vec<Array>> {
    block_until_ready((0..n as i32).map(|i| x.pow(i)).collect())
}

fn error_characters(n: usize, phases: &mut Phases) -> Result<()> {
    let mut xs = vec![ones([4]); n];
    xs[n / 2] = ones([3]);
    let error = vmap(|xs: Vec<Array>| xs).call(xs).err();
    phases.count("characters", error.map_or(0, |error| error.to_string().len()));
    Ok(())
}

/// The lengths of errors that name one of many leaves.
fn error_texts(n: usize, phases: &mut Phases) -> Result<()> {
    fn length<T>(result: Result<T>) -> usize {
        result.err().map_or(0, |error| error.to_string().len())
    }
    shardax::config::set_num_cpu_devices(8)?;
    let xs = || vec![ones([4]); n];
    // Only one leaf is wrong. The length of an error's text must not grow with the number of the others.
    let mut other_arguments = xs();
    other_arguments[n / 2] = ones([3]);
    phases.count("structure", length(shardax::tree::map2(|x, y| x + y, xs(), vec![ones([4]); n + 1])));
    let changed = other_arguments.clone();
    phases.count("scan", length(scan(move |_: Vec<Array>, _: Array| (changed.clone(), ()), xs(), ones([2]))));
    let changed = other_arguments.clone();
    phases.count("cond", length(cond(array(true), |xs: Vec<Array>| xs, move |_: Vec<Array>| changed.clone(), xs())));
    let folder = std::env::temp_dir().join(format!("shardax-growth-error-{}", std::process::id()));
    shardax_train::checkpoint::save(&folder, &xs())?;
    phases.count("checkpoint", length(shardax_train::checkpoint::restore(&folder, &other_arguments)));
    let _ = std::fs::remove_dir_all(&folder);
    let sharding = NamedSharding::new(&make_mesh([("x", 8)])?.auto(), P!["x"]);
    phases.count("sharding", length(device_put(&xs(), &sharding)));
    Ok(())
}
