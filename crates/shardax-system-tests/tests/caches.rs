//! Caches of compiled programs: their contents, their lifetime, and the reports about them. Caches and the warning hook
//! are the process's: the tests here run one after the other.

#[path = "../../shardax/tests/common/mod.rs"]
mod common;

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use common::{resident_mib, setup};
use shardax::prelude::*;
use shardax::{Counts, clear_caches, count};

static SAID: OnceLock<Mutex<Vec<String>>> = OnceLock::new();

/// One test at a time, with nothing said yet.
fn start() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    setup();
    SAID.get_or_init(|| {
        config::set_warning_hook(|text| {
            SAID.get().into_iter().for_each(|all| all.lock().expect("texts").push(text.to_owned()));
        });
        Mutex::default()
    });
    said();
    guard
}

/// The warnings since the last call.
fn said() -> Vec<String> {
    SAID.get().map(|all| std::mem::take(&mut *all.lock().expect("texts"))).unwrap_or_default()
}

fn compilations<R>(f: impl FnOnce() -> Result<R>) -> Result<u64> {
    let (result, counts) = count(f);
    result.map(|_| counts.compilations)
}

fn decayed(w: Array, lr: f32) -> Array {
    w * lr
}

#[test]
fn the_eighth_compilation_for_plain_numbers_warns_once() -> Result<()> {
    let _one = start();
    let w = ones(4);
    let line = line!() + 3;
    let mut lr = 1.0;
    for i in 1..=20 {
        let _ = jit(decayed).call((&w, lr))?;
        let texts = said();
        if i == 8 {
            let [text] = texts.as_slice() else { panic!("{texts:?}") };
            assert!(
                text.contains("decayed was compiled 8 times for arguments that differ only in plain numbers"),
                "{text}"
            );
            assert!(text.contains("argument[1] was 0.53"), "{text}");
            assert!(text.contains("as an `Array`"), "{text}");
            assert!(text.contains(&format!("caches.rs:{line}:")), "{text}");
        } else {
            assert!(texts.is_empty(), "{i}: {texts:?}");
        }
        lr *= 0.9;
    }
    // Other shapes are compiled for other reasons.
    for n in 5..20 {
        let _ = jit(decayed).call((ones(n), 1.0))?;
    }
    assert!(said().is_empty());
    Ok(())
}

#[test]
fn a_number_for_an_array_is_data() -> Result<()> {
    let _one = start();
    let step = jit(|w: Array, lr: Array| w - lr);
    let w = ones(4);
    let _ = step.call((&w, 0.5))?;
    let again = compilations(|| {
        for i in 0..20 {
            let _ = step.call((&w, 1.0 / i as f64))?;
        }
        Ok(())
    })?;
    assert_eq!((again, said()), (0, Vec::new()));
    Ok(())
}

fn scaled(x: Vec<Array>, by: i32) -> Array {
    &x[0] * by
}

#[test]
fn misses_are_explained() -> Result<()> {
    let _one = start();
    let (two, three) = (ones(2), ones(3));
    let integers = array([1, 2, 3]);
    let split = device_put(&ones(8), &NamedSharding::new(&make_mesh([("i", 8)])?.auto(), P!["i"]))?;
    let eight = ones(8);
    config::set_explain_cache_misses(true);
    let mut reports = Vec::new();
    let mut call = |x: Vec<Array>, by: i32| -> Result<()> {
        said();
        let _ = jit(scaled).call((x, by))?;
        reports.push(said().join("\n"));
        Ok(())
    };
    // Each call differs from the one before in one property, which its report must name. The last two calls are a
    // hit, and a call after the reports were turned off.
    call(vec![two.clone()], 1)?;
    call(vec![three.clone()], 1)?;
    call(vec![integers], 1)?;
    call(vec![three.clone(), two.clone()], 1)?;
    call(vec![three.clone()], 5)?;
    call(vec![eight], 5)?;
    call(vec![split], 5)?;
    call(vec![two], 1)?;
    config::set_explain_cache_misses(false);
    call(vec![ones(99)], 1)?;
    fn assert_report(i: usize, part: &str, reports: &[String]) {
        assert!(reports[i].contains(part), "{i}: {}", reports[i])
    }
    assert_report(0, "TRACING CACHE MISS at ", &reports);
    assert_report(0, "caches.rs:", &reports);
    assert_report(0, "never seen function:\n    scaled", &reports);
    assert_report(1, "different input types:\n  * at argument[0][0], now float32[3] and before float32[2]", &reports);
    assert_report(2, "now int32[3] and before float32", &reports);
    assert_report(3, "different input pytree", &reports);
    assert_report(4, "different plain numbers:\n  * at argument[1], now 5 and before 1", &reports);
    assert_report(6, "different input shardings:\n  * at argument[0][0], now NamedSharding(", &reports);
    assert!(reports[7].is_empty() && reports[8].is_empty(), "{reports:?}");
    Ok(())
}

#[test]
fn compilations_are_logged() -> Result<()> {
    let _one = start();
    let x = ones([3, 7]);
    config::set_log_compiles(true);
    let _ = jit(|x: Array| x.sum(0)).call(&x)?;
    config::set_log_compiles(false);
    let texts = said();
    let [traced, lowered, compiling, compiled] = texts.as_slice() else { panic!("{texts:?}") };
    assert!(traced.starts_with("Finished tracing lambda in "), "{traced}");
    assert!(lowered.starts_with("Finished program to MLIR module conversion lambda in "), "{lowered}");
    assert_eq!(compiling, "Compiling lambda with global shapes and types [float32[3,7]]");
    assert!(compiled.starts_with("Finished XLA compilation of lambda in "), "{compiled}");
    Ok(())
}

#[test]
fn traces_lowerings_and_compilations_are_counted() -> Result<()> {
    let _one = start();
    let f = jit(|x: Array| x.sin() + 0.25);
    let (x, y) = (ones(13), ones(14));
    let once = Counts { traces: 1, lowerings: 1, compilations: 1 };
    assert_eq!(count(|| f.call(&x)).1, once);
    // By turns: each is found by its hash.
    for x in [&x, &y, &x, &y, &x] {
        let (_, counts) = count(|| f.call(x));
        assert!(counts == Counts::default() || counts == once, "{counts:?}");
    }
    assert_eq!(count(|| (f.call(&x), f.call(&y))).1, Counts::default());
    assert_eq!(count(|| f.lower(&x)).1, Counts { compilations: 0, ..once });
    assert_eq!(count(|| (&x * 2.5, &x * 2.5)).1.compilations, 1, "an operation by itself is a program");
    Ok(())
}

#[test]
fn a_function_traced_too_often_fails() -> Result<()> {
    let _one = start();
    let f = jit(assert_max_traces(|x: Array| x * 2, 2));
    let _ = f.call(ones(2))?;
    let _ = f.call(ones(3))?;
    let _ = f.call(ones(2))?;
    let error = f.call(ones(4)).err().expect("the third trace");
    assert!(error.message().contains("Function 'lambda' is traced > 2 times"), "{error}");
    let _ = f.call(ones(3))?;
    Ok(())
}

#[test]
fn programs_go_with_the_last_function_that_uses_them() -> Result<()> {
    let _one = start();
    let x = ones(17);
    let by = array(3.5f32);
    let make = || {
        let by = by.clone();
        jit(move |x: Array| x * &by)
    };
    let first = make();
    assert_eq!(compilations(|| first.call(&x))?, 1);
    assert_eq!(compilations(|| make().call(&x))?, 0, "another that lives has it");
    drop(first);
    assert_eq!(compilations(|| make().call(&x))?, 1, "it went with the first");
    // A function that captures nothing does not go.
    let plain = || jit(|x: Array| x * 3.25);
    assert_eq!(compilations(|| plain().call(&x))?, 1);
    assert_eq!(compilations(|| plain().call(&x))?, 0);
    Ok(())
}

#[test]
fn clear_caches_reaches_every_program() -> Result<()> {
    let _one = start();
    let f = jit(|x: Array| x - 7.5);
    let p = pmap(|x: Array| x - 7.25);
    let (x, y) = (ones(19), ones([8, 19]));
    let compile_all = || -> Result<()> {
        let _ = f.call(&x)?;
        let _ = p.call(&y)?;
        (&x - 7.0).check()?;
        let _ = grad(|x: Array| (x - 6.5).sum(..)).call(&x)?;
        Ok(())
    };
    assert_eq!(compilations(compile_all)?, 4);
    assert_eq!(compilations(compile_all)?, 0);
    clear_caches();
    assert_eq!(compilations(compile_all)?, 4);
    assert_eq!(compilations(compile_all)?, 0);
    Ok(())
}

#[test]
fn the_programs_not_used_for_longest_make_room() -> Result<()> {
    let _one = start();
    let arrays: Vec<Array> = (1..60).map(ones).collect();
    clear_caches();
    config::set_max_compiled_programs(16)?;
    let f = jit(|x: Array| x * 1.75);
    let bounded = || -> Result<()> {
        for x in &arrays {
            let _ = f.call(x)?;
            // Used all the time.
            let _ = f.call(&arrays[0])?;
        }
        assert_eq!(compilations(|| f.call(&arrays[0]))?, 0);
        assert_eq!(compilations(|| f.call(&arrays[58]))?, 0);
        assert_eq!(compilations(|| f.call(&arrays[1]))?, 1);
        let again = compilations(|| arrays.iter().rev().try_for_each(|x| f.call(x).map(drop)))?;
        assert!((43..58).contains(&again), "{again}");
        Ok(())
    };
    let result = bounded();
    config::set_max_compiled_programs(4096)?;
    assert!(config::set_max_compiled_programs(0).is_err());
    result?;

    // The limit of bytes leaves only the newest program.
    let (x, y) = (ones(101), ones(102));
    config::set_max_compiled_bytes(1);
    let _ = f.call(&x)?;
    let newest = compilations(|| f.call(&x))?;
    let _ = f.call(&y)?;
    let older = compilations(|| f.call(&x))?;
    config::update("max_compiled_bytes", "2147483648")?;
    assert_eq!((newest, older), (0, 1));
    Ok(())
}

#[test]
fn a_gradient_outside_of_jit_is_traced_once() -> Result<()> {
    let _one = start();
    let x = array([1.0f32, 2.0, 3.0]);
    fn plain(x: &Array) -> Result<Array> {
        grad(|x: Array| (&x * &x * 1.5).sum(..)).call(x)
    }
    assert_eq!(count(|| plain(&x)).1.traces, 1);
    let (result, counts) = count(|| plain(&x));
    assert_eq!((result?.to_vec::<f32>()?, counts), (vec![3.0, 6.0, 9.0], Counts::default()));

    // A function that reads a value is traced for each value.
    let branches =
        |x: Array| -> Result<Array> { Ok(if x.sum(..).item::<f32>()? > 0.0 { x.sum(..) } else { x.sum(..) * -2 }) };
    for (sign, slope) in [(1.0f32, 1.0f32), (-1.0, -2.0), (1.0, 1.0)] {
        assert_eq!(grad(branches).call(&x * sign)?.to_vec::<f32>()?, [slope; 3]);
    }

    // A function that captures is traced for each captured value, but its compiled program is found again.
    fn captured(by: f32, x: &Array) -> Result<Array> {
        let by = array(by);
        grad(move |x: Array| (x * &by).sum(..)).call(x)
    }
    assert_eq!(captured(2.0, &x)?.to_vec::<f32>()?, [2.0; 3]);
    let (result, counts) = count(|| captured(5.0, &x));
    assert_eq!((result?.to_vec::<f32>()?, counts.traces, counts.compilations), (vec![5.0; 3], 1, 0));
    Ok(())
}

/// Only the first call is traced and compiled. Later calls return the values of their own arguments.
fn once(name: &str, call: &dyn Fn(f32) -> Result<Vec<f32>>, want: &dyn Fn(f32) -> Vec<f32>) -> Result<()> {
    assert_eq!(call(1.0)?, want(1.0), "{name}");
    let (result, counts) = count(|| call(2.0));
    assert_eq!((result?, counts), (want(2.0), Counts::default()), "{name}");
    Ok(())
}

#[test]
fn transformations_outside_of_jit_are_traced_once() -> Result<()> {
    let _one = start();
    let mesh = make_mesh([("x", 8)])?;
    fn x(v: f32) -> Result<Array> {
        Array::from_vec(vec![v; 8], &[8])
    }
    once("vmap", &|v| vmap(|x: Array| x * 3 + 0.125).call(x(v)?)?.to_vec(), &|v| vec![v * 3.0 + 0.125; 8])?;
    once("jvp", &|v| jvp(|x: Array| &x * &x * 1.25, x(v)?, x(1.0)?)?.1.to_vec(), &|v| vec![2.5 * v; 8])?;
    once(
        "shard_map",
        &|v| shard_map(|x: Array| psum(x * 0.5, "x"), &mesh).in_specs(P!["x"]).out_specs(P![]).call(x(v)?)?.to_vec(),
        &|v| vec![v * 4.0],
    )?;
    fn vjp_of(v: f32) -> Result<Vec<f32>> {
        let (y, back) = vjp(|x: Array| &x * &x * 0.75, x(v)?)?;
        let mut values = back.call(&y)?.0.to_vec::<f32>()?;
        values.push(back.call(x(1.0)?)?.0.to_vec::<f32>()?[0]);
        Ok(values)
    }
    once("vjp", &vjp_of, &|v| [vec![1.125 * v * v * v; 8], vec![1.5 * v]].concat())?;
    fn linear(v: f32) -> Result<Vec<f32>> {
        linearize(|x: Array| &x * &x * 0.5, x(v)?)?.1.call(x(3.0)?)?.to_vec()
    }
    once("linearize", &linear, &|v| vec![3.0 * v; 8])?;
    fn aux(v: f32) -> Result<Vec<f32>> {
        let (_, back, aux) = shardax::vjp_has_aux(|x: Array| (&x * &x, x.sum(..)), x(v)?)?;
        Ok([back.call(x(1.0)?)?.0.to_vec::<f32>()?, aux.to_vec()?].concat())
    }
    once("vjp_has_aux", &aux, &|v| [vec![2.0 * v; 8], vec![8.0 * v]].concat())?;
    // Transformations of transformations, and Jacobians.
    fn slopes(v: f32) -> Result<Vec<f32>> {
        vmap(grad(|x: Array| &x * &x * &x)).call(x(v)?)?.to_vec()
    }
    once("vmap of grad", &slopes, &|v| vec![3.0 * v * v; 8])?;
    fn jit_inside(v: f32) -> Result<Vec<f32>> {
        grad(jit(|x: Array| (&x * &x).sum(..))).call(x(v)?)?.to_vec()
    }
    once("grad of jit", &jit_inside, &|v| vec![2.0 * v; 8])?;
    fn rows(v: f32) -> Result<Vec<f32>> {
        shardax::jacrev(|x: Array| x.sum(..).square()).call(x(v)?)?.to_vec()
    }
    once("jacrev", &rows, &|v| vec![16.0 * v; 8])?;

    // Other options are another function.
    fn by(axis: i32) -> Result<Array> {
        vmap(|x: Array| x.sum(..)).in_axes(axis).call(ones([2, 3]))
    }
    assert_eq!((by(0)?.shape(), by(1)?.shape(), by(0)?.shape()), (&[2][..], &[3][..], &[2][..]));
    // A function that reads a value is traced for each value.
    fn reads(x: Array) -> Result<Array> {
        Ok(if x.item::<f32>()? > 0.0 { x * 1 } else { x * -1 })
    }
    for v in [3.0f32, -3.0, 3.0] {
        assert_eq!(jvp(reads, v, 1.0f32)?.1.item::<f32>()?, v.signum());
        assert_eq!(vjp(reads, v)?.1.call(1.0f32)?.0.item::<f32>()?, v.signum());
    }
    // A function that captures is traced for each captured value.
    for by in [2.0f32, 5.0] {
        let by = array(by);
        let (_, back) = vjp(move |x: Array| x * &by, 1.0f32)?;
        let slope = back.call(1.0f32)?.0.item::<f32>()?;
        assert!(slope == 2.0 || slope == 5.0);
    }
    Ok(())
}

/// Two meshes with the same axes over different devices.
fn two_meshes() -> Result<[Mesh; 2]> {
    let devices = devices()?;
    Ok([Mesh::new(devices[..4].to_vec(), [("x", 4)])?, Mesh::new(devices[4..8].to_vec(), [("x", 4)])?])
}

/// Calls a function on an array of ones over a mesh, with this context mesh.
fn call_on(f: &Jit<impl Fn(Array) -> Result<Array> + 'static>, mesh: &Mesh) -> Result<Vec<f32>> {
    let _context = set_mesh(mesh)?;
    let x = device_put(&ones(4), &NamedSharding::new(mesh, P!["x"]))?;
    f.call(x)?.to_vec()
}

#[test]
fn inner_functions_serve_all_meshes_with_the_same_axes() -> Result<()> {
    let _one = start();
    let double = jit(|x: Array| x * 2.0);
    let f = jit(move |x: Array| double.call(x));
    let [first, second] = two_meshes()?;
    let (result, counts) = count(|| call_on(&f, &first));
    assert_eq!((result?, counts.traces), (vec![2.0; 4], 1));
    let (result, counts) = count(|| call_on(&f, &second));
    assert_eq!((result?, counts.traces), (vec![2.0; 4], 0));
    // As in JAX, the program is lowered once, and compiled for each mesh.
    assert_eq!((counts.lowerings, counts.compilations), (0, 1));
    Ok(())
}

/// JAX: a call at top level finds the trace that a call inside of another function made.
#[test]
fn functions_traced_inside_another_are_not_traced_again() -> Result<()> {
    let _one = start();
    let traces = Arc::new(AtomicUsize::new(0));
    let counter = traces.clone();
    let double = Arc::new(jit(move |(x, unused): (Array, Array)| {
        counter.fetch_add(1, Ordering::Relaxed);
        (x * 2.0, unused.shape()[0] as i32)
    }));
    let inner = double.clone();
    let outer = jit(move |x: Array| -> Result<Array> { Ok(inner.call((x + 1.0, zeros(7)))?.0) });
    assert_eq!(outer.call(ones(3))?.to_vec::<f32>()?, [4.0; 3]);
    let (result, counts) = count(|| double.call((ones(3), zeros(7))));
    let (doubled, size) = result?;
    assert_eq!((doubled.to_vec::<f32>()?, size, counts.traces), (vec![2.0; 3], 7, 0));
    assert_eq!(traces.load(Ordering::Relaxed), 1);
    // Other types, and another default, are other traces.
    assert_eq!(double.call((ones(3), zeros(5)))?.1, 5);
    assert_eq!(double.call((arange(0..3), zeros(7)))?.0.to_vec::<f32>()?, [0.0, 2.0, 4.0]);
    assert_eq!(traces.load(Ordering::Relaxed), 3);
    Ok(())
}

/// The second outer function finds the inner trace in the cache. It depends on the devices nevertheless.
#[test]
fn inner_functions_that_ask_for_the_devices_are_traced_for_each_mesh() -> Result<()> {
    let _one = start();
    let by_device = Arc::new(jit(|x: Array| x * get_mesh().map_or(-1.0, |mesh| mesh.devices()[0].id() as f32)));
    let outer = || {
        let inner = by_device.clone();
        jit(move |x: Array| inner.call(x))
    };
    let meshes = two_meshes()?;
    for f in [outer(), outer()] {
        for (mesh, id) in meshes.iter().zip([0.0, 4.0]).chain(meshes.iter().zip([0.0, 4.0])) {
            assert_eq!(call_on(&f, mesh)?, [id; 4]);
        }
    }
    Ok(())
}

#[test]
fn other_devices_need_no_new_trace() -> Result<()> {
    let _one = start();
    let (devices, scale) = (devices()?, array(1.5f32));
    let f = jit(move |x: Array| (x * &scale).sum(..));
    fn on(i: usize, devices: &[Device]) -> Result<Array> {
        device_put(&ones(6), &devices[i])
    }
    let first = Counts { traces: 1, lowerings: 1, compilations: 1 };
    assert_eq!(count(|| f.call(on(1, &devices)?)).1, first);
    for i in 2..5 {
        let (result, counts) = count(|| f.call(on(i, &devices)?));
        let result = result?;
        assert_eq!((result.item::<f32>()?, result.devices()?[0].id()), (9.0, i));
        assert_eq!(counts, Counts { traces: 0, lowerings: 0, ..first }, "device {i}");
    }
    // Sharded over the half of the devices, then over the others.
    fn half(range: std::ops::Range<usize>, devices: &[Device]) -> Result<Array> {
        let mesh = Mesh::new(devices[range].to_vec(), [("x", 4)])?;
        device_put(&ones(8), &NamedSharding::new(&mesh, P!["x"]))
    }
    assert_eq!(count(|| f.call(half(0..4, &devices)?)).1.traces, 1);
    let (result, counts) = count(|| f.call(half(4..8, &devices)?));
    assert_eq!((result?.item::<f32>()?, counts.traces), (12.0, 0));
    // A function that uses the mesh of its arguments is traced for each mesh. A new type is traced too.
    let abstract_mesh = AbstractMesh::new([("x", 4)]);
    let summed = shard_map(|x: Array| psum(x.sum(..), "x"), &abstract_mesh).in_specs(P!["x"]).out_specs(P![]);
    let g = jit(summed);
    for range in [0..4, 4..8] {
        let (result, counts) = count(|| g.call(half(range, &devices)?));
        assert_eq!((result?.item::<f32>()?, counts.traces), (8.0, 1));
    }
    assert_eq!(count(|| f.call(ones(7))).1.traces, 1);
    Ok(())
}

#[test]
fn threads_that_ask_for_one_program_compile_it_once() -> Result<()> {
    let _one = start();
    let compiled = std::sync::atomic::AtomicU64::new(0);
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|threads| {
        fn run(barrier: &std::sync::Barrier, compiled: &std::sync::atomic::AtomicU64) -> Result<f32> {
            // Each has a function of its own; their programs are equal.
            let power = 7;
            barrier.wait();
            let f = jit(move |x: Array| x.pow(power).cos().sum(..) * 0.0 + 3.0);
            let (result, counts) = count(|| f.call(ones([17, 3])));
            barrier.wait();
            compiled.fetch_add(counts.compilations, std::sync::atomic::Ordering::Relaxed);
            result?.item()
        }
        let handles: Vec<_> = (0..8).map(|_| threads.spawn(|| run(&barrier, &compiled))).collect();
        handles.into_iter().for_each(|thread| assert_eq!(thread.join().expect("no panic").expect("a sum"), 3.0));
    });
    // Beside it there are the constants of the arguments, which come from the host.
    assert_eq!(compiled.into_inner(), 1);
    Ok(())
}

/// The program that `memory_is_flat_over_many_shapes` runs in a process of its own.
#[test]
#[ignore = "run by another test"]
fn serves_many_shapes() -> Result<()> {
    setup();
    config::set_max_compiled_programs(16)?;
    let shapes: usize = std::env::var("SHARDAX_TEST_SHAPES").ok().and_then(|n| n.parse().ok()).unwrap_or(120);
    let serve = jit(|x: Array| (x.sin() * 2 + 1).sum(..));
    let mut sizes = Vec::new();
    for n in 1..=shapes {
        serve.call(ones(n))?.item::<f32>()?;
        if n % (shapes / 6) == 0 {
            sizes.push(resident_mib());
        }
    }
    println!("resident {sizes:?}");
    Ok(())
}

/// A service that is called with ever new shapes. `SHARDAX_TEST_SHAPES=10000` makes it so many.
#[test]
fn memory_is_flat_over_many_shapes() -> std::io::Result<()> {
    let out = Command::new(std::env::current_exe()?)
        .args(["--exact", "serves_many_shapes", "--ignored", "--nocapture"])
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let list = text.split("resident [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    let sizes: Vec<usize> = list.split(", ").filter_map(|size| size.parse().ok()).collect();
    // All six are taken with the cache full: remains of a program show six times.
    assert!(sizes.len() == 6 && sizes[5] <= sizes[1] + 8, "MiB after each sixth: {sizes:?}");
    Ok(())
}

/// Outside of `jit`, a function of several operations is compiled once as one program, whose results equal the results
/// of `jit`.
#[test]
fn functions_of_several_operations_are_one_program() -> Result<()> {
    let _one = start();
    use shardax::nn;
    // A shape that no other test has, so that nothing is compiled yet.
    let x = (arange(0..77).reshape([7, 11]) - 38).astype(DType::F32) / 8;
    let functions: [(&str, fn(&Array) -> Array); 17] = [
        ("standardize", |x| nn::standardize(x, -1)),
        ("selu", |x| nn::selu(x)),
        ("elu", |x| nn::elu(x, 0.5)),
        ("celu", |x| nn::celu(x, 0.5)),
        ("leaky_relu", |x| nn::leaky_relu(x, 0.5)),
        ("hard_tanh", |x| nn::hard_tanh(x)),
        ("gelu", |x| nn::gelu(x)),
        ("silu", |x| nn::silu(x)),
        ("log_sigmoid", |x| nn::log_sigmoid(x)),
        ("mish", |x| nn::mish(x)),
        ("log_softmax", |x| nn::log_softmax(x, -1)),
        ("logsumexp", |x| nn::logsumexp(x, -1)),
        ("var", |x| x.var(0)),
        ("std", |x| x.std_ddof(1, 1)),
        ("tril", |x| x.tril(-1)),
        ("trunc", |x| shardax::numpy::trunc(x)),
        ("floor_divide", |x| shardax::numpy::floor_divide(x, 0.75) + x % 0.5),
    ];
    for (name, function) in functions {
        let (result, counts) = count(|| function(&x));
        // The last case is a sum of two functions.
        let expected = if name == "floor_divide" { 3 } else { 1 };
        assert_eq!(counts.compilations, expected, "{name}");
        let again = count(|| function(&x));
        assert_eq!(again.1, Counts::default(), "{name}");
        let compiled = jit(move |x: Array| function(&x)).call(&x)?;
        assert!(allclose(&result, &compiled, 1e-6, 1e-6)? && result.type_name() == compiled.type_name(), "{name}");
    }
    Ok(())
}
