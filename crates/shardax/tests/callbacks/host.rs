//! Functions of the host in programs, under every transformation.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::quick::setup;
use shardax::prelude::*;
use shardax::{HostCallback, debug};

fn vector(n: usize) -> Array {
    shape_dtype_struct([n], DType::F32)
}

/// `x * 2 + 1`, of any shape, on the host; it counts its calls.
fn affine(result: Array, calls: &Arc<AtomicUsize>) -> HostCallback<Array> {
    let calls = calls.clone();
    pure_callback(
        move |args, results| {
            calls.fetch_add(1, Ordering::SeqCst);
            results[0].write(args[0].values::<f32>()?.map(|x| x * 2.0 + 1.0))
        },
        result,
    )
}

#[test]
fn a_pure_callback_runs_at_once_and_in_programs() -> Result<()> {
    setup();
    let calls = Arc::new(AtomicUsize::new(0));
    let f = affine(vector(3), &calls);
    assert_eq!(f.call(array([1.0f32, 2.0, 3.0]))?.to_vec::<f32>()?, [3.0, 5.0, 7.0]);
    let g = jit(move |x: Array| -> Result<Array> { Ok(f.call(&x * 10)? + x) });
    for _ in 0..3 {
        assert_eq!(g.call(array([1.0f32, 2.0, 3.0]))?.to_vec::<f32>()?, [22.0, 43.0, 64.0]);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    Ok(())
}

/// Whatever layout the compiler would like, the function sees rows.
#[test]
fn arguments_and_results_are_row_major() -> Result<()> {
    setup();
    let callback = pure_callback(
        |args, results| {
            assert_eq!((args[0].shape(), args[0].dtype()), (&[3, 2][..], DType::F32));
            results[0].write(args[0].to_vec::<f32>()?)?;
            results[1].write([args[0].to_vec::<f32>()?.len() as i32])
        },
        (shape_dtype_struct([3, 2], DType::F32), shape_dtype_struct([1], DType::I32)),
    );
    let f = jit(move |x: Array| -> Result<(Array, Array)> {
        let (y, n) = callback.call(x.dot(array([[1.0f32, 0.0, 0.0], [0.0, 1.0, 0.0]])).t())?;
        Ok((y.t(), n))
    });
    let (y, n) = f.call(array([[1.0f32, 2.0], [3.0, 4.0]]))?;
    assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0, 0.0, 3.0, 4.0, 0.0]);
    assert_eq!(n.to_vec::<i32>()?, [6]);
    Ok(())
}

fn error_text(r: Result<Vec<f32>>) -> String {
    r.err().map(|e| e.to_string()).unwrap_or_default()
}

#[test]
fn errors_and_panics_are_errors_of_the_call() -> Result<()> {
    setup();
    let _failures = crate::failures();
    // A callback that fails, one that panics, and three that write too few or too many elements.
    let cases: [(HostCallback<Array>, &str); 5] = [
        (pure_callback(|args, _| args[0].to_vec::<i32>().map(drop), vector(2)), "float32[2], cannot be read as int32"),
        (pure_callback(|_, _| panic!("not {}", "again"), vector(2)), "not again"),
        (pure_callback(|_, _| Ok(()), vector(2)), "left its result 0 unwritten"),
        (pure_callback(|_, r| r[0].write([1.0f32]), vector(2)), "has 2 elements, but 1 were written"),
        (pure_callback(|_, r| r[0].write([1.0f32; 3]), vector(2)), "has 2 elements, but more were written"),
    ];
    for (f, phrase) in cases {
        let eager = error_text(f.call(ones([2])).and_then(|y| y.to_vec::<f32>()));
        assert!(eager.contains(phrase), "{eager}");
        let compiled = error_text(jit(move |x: Array| f.call(x)).call(ones([2])).and_then(|y| y.to_vec::<f32>()));
        assert!(compiled.contains(phrase), "{compiled}");
    }
    assert_eq!(jit(|x: Array| x + 1).call(ones([2]))?.to_vec::<f32>()?, [2.0; 2]);
    Ok(())
}

#[test]
fn vmap_calls_by_its_method() -> Result<()> {
    setup();
    let xs = arange(0..6).astype(DType::F32).reshape([3, 2]);
    let want: Vec<f32> = (0..6).map(|x| x as f32 * 2.0 + 1.0).collect();
    for (method, count) in [(VmapMethod::Sequential, 3), (VmapMethod::ExpandDims, 1), (VmapMethod::BroadcastAll, 1)] {
        let calls = Arc::new(AtomicUsize::new(0));
        let f = affine(vector(2), &calls).vmap_method(method);
        assert_eq!(jit(vmap(move |x: Array| f.call(x))).call(&xs)?.to_vec::<f32>()?, want, "{method:?}");
        assert_eq!(calls.load(Ordering::SeqCst), count, "{method:?}");
    }
    // What an argument that is not batched looks like.
    for (method, shapes) in [
        (VmapMethod::Sequential, [vec![2], vec![]]),
        (VmapMethod::ExpandDims, [vec![3, 2], vec![1]]),
        (VmapMethod::BroadcastAll, [vec![3, 2], vec![3]]),
    ] {
        let log = Arc::new(Mutex::new([vec![], vec![]]));
        let note = log.clone();
        let f = pure_callback(
            move |args, results| {
                *note.lock().expect("no panic") = [args[0].shape().to_vec(), args[1].shape().to_vec()];
                results[0].write(args[0].to_vec::<f32>()?)
            },
            vector(2),
        )
        .vmap_method(method);
        let mapped = vmap(move |x: Array, y: Array| f.call((x, y))).in_axes((0, None));
        assert_eq!(mapped.call((&xs, 7.0f32))?.to_vec::<f32>()?, xs.to_vec::<f32>()?);
        assert_eq!(*log.lock().expect("no panic"), shapes, "{method:?}");
    }
    let f = affine(vector(2), &Arc::default());
    let error = vmap(move |x: Array| f.call(x)).call(&xs).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("vmap is only supported for pure_callback with a vmap method"), "{error}");
    Ok(())
}

#[test]
fn gradients_come_from_custom_rules_alone() -> Result<()> {
    setup();
    let f = affine(shape_dtype_struct((), DType::F32), &Arc::default());
    let g = f.clone();
    let error = grad(move |x: Array| g.call(x)).call(1.0f32).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("pure callbacks cannot be differentiated"), "{error}");
    let i = io_callback(|_, r| r[0].write([0.0f32]), shape_dtype_struct((), DType::F32));
    let error = grad(move |x: Array| i.call(x)).call(1.0f32).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("IO callbacks cannot be differentiated"), "{error}");
    let h = f.clone();
    let error = grad(move |x: Array| Ok::<_, shardax::Error>(f.call(stop_gradient(x.clone()))? * x)).call(3.0f32)?;
    assert_eq!(error.item::<f32>()?, 7.0);
    let smooth = custom_jvp(move |x: Array| h.call(x)).defjvp(|(x,): (Array,), (t,): (Array,)| (x * 2 + 1, t * 2));
    assert_eq!(grad(smooth).call(3.0f32)?.item::<f32>()?, 2.0);
    Ok(())
}

/// In a program over several devices it is called with the whole, once where it has effects; in a `shard_map` each device calls
/// it with its block.
#[test]
fn several_devices_call_it_with_the_whole_or_each_with_its_block() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let x = arange(0..16).astype(DType::F32);
    let want: Vec<f32> = (0..16).map(|x| x as f32 * 2.0 + 1.0).collect();
    let split = device_put(&x, &NamedSharding::new(&mesh, P!["i"]))?;
    let calls = Arc::new(AtomicUsize::new(0));
    let f = affine(vector(16), &calls);
    assert_eq!(jit(move |x: Array| f.call(x)).call(&split)?.to_vec::<f32>()?, want);
    // A device whose block nobody waits for may call after this point: each part has a count of its own.
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let f = io_callback(
        move |args, results| {
            count.fetch_add(1, Ordering::SeqCst);
            results[0].write(args[0].values::<f32>()?.map(|x| x * 2.0 + 1.0))
        },
        vector(16),
    );
    let g = jit(move |x: Array| Ok::<_, shardax::Error>(f.call(&x)? * 2 + x));
    let doubled: Vec<f32> = (0..16).map(|x| x as f32 * 5.0 + 2.0).collect();
    assert_eq!(g.call(&split)?.to_vec::<f32>()?, doubled);
    assert_eq!(calls.swap(0, Ordering::SeqCst), 1);
    let f = affine(vector(2), &calls);
    let blocks = shard_map(move |x: Array| f.call(x), &mesh).in_specs((P!["i"],)).out_specs(P!["i"]);
    assert_eq!(blocks.call(&x)?.to_vec::<f32>()?, want);
    assert_eq!(calls.load(Ordering::SeqCst), 8);
    Ok(())
}

/// Effects happen though nothing depends on them, and as often as they are asked for.
#[test]
fn effects_are_kept_in_loops_branches_and_batches() -> Result<()> {
    setup();
    let log: Arc<Mutex<Vec<f32>>> = Arc::default();
    let note = log.clone();
    let show = io_callback(
        move |args, _| {
            note.lock().expect("no panic").push(args[0].item::<f32>()?);
            Ok(())
        },
        (),
    );
    // Unordered callbacks may run in any order, so the values are sorted.
    fn take(log: &Arc<Mutex<Vec<f32>>>) -> Vec<f32> {
        let mut entries = std::mem::take(&mut *log.lock().expect("no panic"));
        entries.sort_by(f32::total_cmp);
        entries
    }
    let callback = show.clone();
    // Two equal calls are two effects, although the compiler merges equal operations.
    let doubled = jit(move |x: Array| -> Result<Array> {
        callback.call(&x)?;
        callback.call(&x)?;
        Ok(x * 2)
    });
    doubled.call(3.0f32)?.item::<f32>()?;
    assert_eq!(take(&log), [3.0, 3.0]);
    let callback = show.clone();
    // Once for each iteration of a loop.
    let looped = jit(move |x: Array| {
        fori_loop(
            0,
            4,
            |i: Array, x: Array| -> Result<Array> {
                callback.call(i.astype(DType::F32))?;
                Ok(x + 1)
            },
            x,
        )
    });
    assert_eq!(looped.call(0.0f32)?.item::<f32>()?, 4.0);
    assert_eq!(take(&log), [0.0, 1.0, 2.0, 3.0]);
    let callback = show.clone();
    // Only in the branch that is taken.
    let branch = jit(move |x: Array| -> Result<Array> {
        fn shown(x: Array, callback: &HostCallback<()>) -> Result<Array> {
            callback.call(&x)?;
            Ok(x)
        }
        cond(x.greater(0), |x: Array| shown(x, &callback), |x: Array| -x, x)
    });
    assert_eq!((branch.call(2.0f32)?.item::<f32>()?, branch.call(-2.0f32)?.item::<f32>()?), (2.0, 2.0));
    assert_eq!(take(&log), [2.0]);
    let callback = show.clone();
    // Once for each entry of a batch.
    let batch = jit(vmap(move |x: Array| -> Result<Array> {
        callback.call(&x)?;
        Ok(x + 1)
    }));
    assert_eq!(batch.call(array([5.0f32, 6.0, 7.0]))?.to_vec::<f32>()?, [6.0, 7.0, 8.0]);
    assert_eq!(take(&log), [5.0, 6.0, 7.0]);
    Ok(())
}

/// Debugging changes nothing: values are shown once under `grad`, and the gradient is the function's.
#[test]
fn debug_callbacks_see_values_under_grad() -> Result<()> {
    setup();
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = log.clone();
    let f = move |x: Array| -> Result<Array> {
        let note = note.clone();
        debug::callback(
            move |args| {
                note.lock().expect("no panic").push(args[0].to_string());
                Ok(())
            },
            &x * 3,
        )?;
        Ok(x.square().sum(..))
    };
    for round in 1..3 {
        // First without `jit`, then compiled.
        let g = if round == 1 {
            grad(f.clone()).call(array([1.0f32, 2.0]))?
        } else {
            jit(grad(f.clone())).call(array([1.0f32, 2.0]))?
        };
        assert_eq!(g.to_vec::<f32>()?, [2.0, 4.0]);
        assert_eq!(*log.lock().expect("no panic"), vec!["[3. 6.]"; round]);
    }
    Ok(())
}

/// The program may be gone before it has run: the function is not.
#[test]
fn a_function_outlives_the_program_that_calls_it() -> Result<()> {
    setup();
    let live = Arc::new(AtomicUsize::new(0));
    let mut callbacks = Vec::new();
    for i in 0..20 {
        let count = live.clone();
        let slow = pure_callback(
            move |args, results| {
                std::thread::sleep(std::time::Duration::from_millis(5));
                count.fetch_add(1, Ordering::SeqCst);
                results[0].write(args[0].to_vec::<f32>()?)
            },
            vector(1000),
        );
        callbacks.push(jit(move |x: Array| slow.call(x + i)).call(zeros([1000]))?);
        shardax::clear_caches();
    }
    for (i, y) in callbacks.iter().enumerate() {
        assert_eq!(y.to_vec::<f32>()?, [i as f32; 1000]);
    }
    assert_eq!(live.load(Ordering::SeqCst), 20);
    Ok(())
}

/// A program that the compiler splits makes a call with effects once, with the whole, and every device has its results to
/// the bit.
#[test]
fn effects_happen_once_in_programs_over_devices() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?;
    let split = device_put(&arange(0..16), &NamedSharding::new(&mesh, P!["i"]))?;
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    fn take(log: &Arc<Mutex<Vec<String>>>) -> Vec<String> {
        std::mem::take(&mut *log.lock().expect("no panic"))
    }
    let note = log.clone();
    let shown = jit(move |x: Array| -> Result<Array> {
        let note = note.clone();
        debug::callback(
            move |args| {
                note.lock().expect("no panic").push(args[0].to_string());
                Ok(())
            },
            &x,
        )?;
        Ok(x + 1)
    });
    assert_eq!(shown.call(&split)?.to_vec::<i32>()?, (1..17).collect::<Vec<i32>>());
    assert_eq!(take(&log), ["[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15]"]);
    let odd = [-0.0f32, f32::NAN, f32::NEG_INFINITY, 1e-45];
    fn write_result(r: &mut [shardax::HostResult<'_>], odd: [f32; 4]) -> Result<()> {
        r[0].write(odd)?;
        r[1].write([true, false])?;
        r[2].write([half::bf16::from_f32(-0.0)])?;
        r[3].write([num_complex::Complex::new(-0.0f32, 2.0)])?;
        r[4].write([i64::MIN])
    }
    let types = (
        shape_dtype_struct([4], DType::F32),
        shape_dtype_struct([2], DType::Bool),
        shape_dtype_struct([1], DType::Bf16),
        shape_dtype_struct([1], DType::Complex64),
        shape_dtype_struct([1], DType::I64),
    );
    for ordered in [false, true] {
        let f = io_callback(move |_, r| write_result(r, odd), types.clone());
        let f = if ordered { f.ordered() } else { f };
        let (a, b, c, d, e) = jit(move |x: Array| f.call(x)).call(&split)?;
        assert_eq!(a.to_vec::<f32>()?.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), odd.map(f32::to_bits));
        assert_eq!(b.to_vec::<bool>()?, [true, false]);
        assert_eq!(c.to_vec::<half::bf16>()?[0].to_bits(), half::bf16::from_f32(-0.0).to_bits());
        assert_eq!(d.to_vec::<num_complex::Complex<f32>>()?[0].re.to_bits(), (-0.0f32).to_bits());
        assert_eq!(e.to_vec::<i64>()?, [i64::MIN]);
    }
    // In a loop, as often as it runs.
    let note = log.clone();
    let count = io_callback(
        move |args, _| {
            note.lock().expect("no panic").push(args[0].to_string());
            Ok(())
        },
        (),
    )
    .ordered();
    let looped = jit(move |x: Array| fori_loop(0, 3, |i: Array, x: Array| count.call(i).map(|()| x + 1), x));
    assert_eq!(looped.call(&split)?.to_vec::<i32>()?, (3..19).collect::<Vec<i32>>());
    assert_eq!(take(&log), ["0", "1", "2"]);
    Ok(())
}

#[test]
fn effects_barrier_waits_for_programs_without_results() -> Result<()> {
    setup();
    let _failures = crate::failures();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = calls.clone();
    let slow = io_callback(
        move |_, _| {
            std::thread::sleep(std::time::Duration::from_millis(50));
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        },
        (),
    );
    let tell = jit(move |x: Array| slow.call(x));
    for i in 0..4 {
        tell.call(i as f32)?;
    }
    shardax::effects_barrier()?;
    assert_eq!(calls.load(Ordering::SeqCst), 4);

    let failing =
        jit(|x: Array| io_callback(|_, _| Err(shardax::Error::new(shardax::ErrorKind::Value, "no")), ()).call(x));
    failing.call(1.0f32)?;
    let error = shardax::effects_barrier().err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("no"), "{error}");
    shardax::effects_barrier()?;

    // Inside of a host function it would wait for itself.
    let inside = Arc::new(Mutex::new(None));
    let recorder = inside.clone();
    let nested = io_callback(
        move |_, _| {
            *recorder.lock().unwrap() = Some(shardax::effects_barrier().is_err());
            Ok(())
        },
        (),
    );
    jit(move |x: Array| nested.call(x)).call(1.0f32)?;
    shardax::effects_barrier()?;
    assert_eq!(*inside.lock().unwrap(), Some(true));
    Ok(())
}

/// The error of a call, or of reading its result.
fn error_of(call: Result<Array>) -> String {
    call.and_then(|y| y.to_vec::<f32>()).unwrap_err().to_string()
}

#[test]
fn functions_are_called_by_name() -> Result<()> {
    use shardax::ffi::{Attributes, ffi_call, register_ffi_target};
    setup();
    let _failures = crate::failures();
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    register_ffi_target("test.scale", |args, results, attributes| {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let (by, of) = (attributes.float("by")?, attributes.text("of")?);
        assert_eq!(of, "all");
        results[0].write(args[0].values::<f32>()?.map(|x| x * by as f32))
    })?;
    let again = register_ffi_target("test.scale", |_, _, _| Ok(())).unwrap_err().to_string();
    assert!(again.contains("the FFI target \"test.scale\" is registered for cpu already"), "{again}");

    fn scaled(x: Array, by: f64) -> Result<Array> {
        let like = shape_dtype_struct(x.shape(), x.dtype());
        ffi_call("test.scale", like)
            .attribute("by", by)
            .attribute("of", "all")
            .vmap_method(VmapMethod::ExpandDims)
            .call(x)
    }
    let x = array([1.0f32, 2.0]);
    assert_eq!(scaled(x.clone(), 3.0)?.to_vec::<f32>()?, [3.0, 6.0]);
    assert_eq!(jit(move |x: Array| scaled(x, 4.0)).call(&x)?.to_vec::<f32>()?, [4.0, 8.0]);
    let before = CALLS.load(Ordering::SeqCst);
    let rows = ones([5, 2]);
    let mapped = jit(vmap(move |x: Array| scaled(x, 2.0)));
    assert_eq!(mapped.call(&rows)?.to_vec::<f32>()?, [2.0; 10]);
    assert_eq!(CALLS.load(Ordering::SeqCst), before + 1);
    // A call whose results are unused is left out, unless it has a side effect.
    for has in [false, true] {
        let before = CALLS.load(Ordering::SeqCst);
        let unused = jit(move |x: Array| {
            let call =
                ffi_call("test.scale", shape_dtype_struct([2], DType::F32)).attribute("by", 1).attribute("by", 1.0);
            call.attribute("of", "all").has_side_effect(has).call(&x).map(|_| x)
        });
        unused.call(&x)?.block_until_ready()?;
        shardax::effects_barrier()?;
        assert_eq!(CALLS.load(Ordering::SeqCst) - before, usize::from(has));
    }

    let f = jit(|x: Array| ffi_call("test.nowhere", shape_dtype_struct([2], DType::F32)).call(x));
    let message = error_of(f.call(&x));
    assert!(
        message.contains("no function is registered as the FFI target \"test.nowhere\"") && message.contains("host.rs"),
        "{message}"
    );
    let message = error_of(ffi_call("test.scale", shape_dtype_struct([2], DType::F32)).attribute("of", "all").call(&x));
    assert!(message.contains("the attribute \"by\" of an FFI call must be a floating point number"), "{message}");
    assert!(message.contains("of = Text(\"all\")") && message.contains("test.scale"), "{message}");
    let message = error_of(grad(move |x: Array| scaled(x, 2.0).map(|y| y.sum(..))).call(&x));
    assert!(message.contains("the FFI call to test.scale cannot be differentiated"), "{message}");
    let nested = Attributes::new().with("inner", Attributes::new().with("on", true)).with("sizes", vec![1i64, 2]);
    assert_eq!((nested.ints("sizes")?, nested.iter().count()), (&[1, 2][..], 2));
    assert!(nested.bool("on").is_err());
    Ok(())
}
