//! What is kept of compiled programs, for how long, and how one sees it. Caches and the warning hook are the process's:
//! the tests here run one after the other.

mod common;

use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use common::setup;
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

/// What was said since this was asked last.
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
        jit(decayed).call((&w, lr))?;
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
        jit(decayed).call((ones(n), 1.0))?;
    }
    assert!(said().is_empty());
    Ok(())
}

#[test]
fn a_number_for_an_array_is_data() -> Result<()> {
    let _one = start();
    let step = jit(|w: Array, lr: Array| w - lr);
    let w = ones(4);
    step.call((&w, 0.5))?;
    let again = compilations(|| {
        for i in 0..20 {
            step.call((&w, 1.0 / i as f64))?;
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
    let whole = array([1, 2, 3]);
    let split = device_put(&ones(8), &NamedSharding::new(&make_mesh([("i", 8)])?, P!["i"]))?;
    let eight = ones(8);
    config::set_explain_cache_misses(true);
    let mut told = Vec::new();
    let mut call = |x: Vec<Array>, by: i32| -> Result<()> {
        said();
        jit(scaled).call((x, by))?;
        told.push(said().join("\n"));
        Ok(())
    };
    call(vec![two.clone()], 1)?;
    call(vec![three.clone()], 1)?;
    call(vec![whole], 1)?;
    call(vec![three.clone(), two.clone()], 1)?;
    call(vec![three.clone()], 5)?;
    call(vec![eight], 5)?;
    call(vec![split], 5)?;
    call(vec![two], 1)?;
    config::set_explain_cache_misses(false);
    call(vec![ones(99)], 1)?;
    let at = |i: usize, part: &str| assert!(told[i].contains(part), "{i}: {}", told[i]);
    at(0, "TRACING CACHE MISS at ");
    at(0, "caches.rs:");
    at(0, "never seen function:\n    scaled");
    at(1, "different input types:\n  * at argument[0][0], now float32[3] and before float32[2]");
    at(2, "now int32[3] and before float32");
    at(3, "different input pytree");
    at(4, "different plain numbers:\n  * at argument[1], now 5 and before 1");
    at(6, "different input shardings:\n  * at argument[0][0], now NamedSharding(");
    assert!(told[7].is_empty() && told[8].is_empty(), "{told:?}");
    Ok(())
}

#[test]
fn compilations_are_logged() -> Result<()> {
    let _one = start();
    let x = ones([3, 7]);
    config::set_log_compiles(true);
    jit(|x: Array| x.sum(0)).call(&x)?;
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
    f.call(ones(2))?;
    f.call(ones(3))?;
    f.call(ones(2))?;
    let error = f.call(ones(4)).err().expect("the third trace");
    assert!(error.message().contains("Function 'lambda' is traced > 2 times"), "{error}");
    f.call(ones(3))?;
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
    let all = || -> Result<()> {
        f.call(&x)?;
        p.call(&y)?;
        (&x - 7.0).check()?;
        grad(|x: Array| (x - 6.5).sum(..)).call(&x)?;
        Ok(())
    };
    assert_eq!(compilations(all)?, 4);
    assert_eq!(compilations(all)?, 0);
    clear_caches();
    assert_eq!(compilations(all)?, 4);
    assert_eq!(compilations(all)?, 0);
    Ok(())
}

#[test]
fn the_programs_not_used_for_longest_make_room() -> Result<()> {
    let _one = start();
    let all: Vec<Array> = (1..60).map(ones).collect();
    clear_caches();
    config::set_max_compiled_programs(16)?;
    let f = jit(|x: Array| x * 1.75);
    let bounded = || -> Result<()> {
        for x in &all {
            f.call(x)?;
            // Used all the time.
            f.call(&all[0])?;
        }
        assert_eq!(compilations(|| f.call(&all[0]))?, 0);
        assert_eq!(compilations(|| f.call(&all[58]))?, 0);
        assert_eq!(compilations(|| f.call(&all[1]))?, 1);
        let again = compilations(|| all.iter().rev().try_for_each(|x| f.call(x).map(drop)))?;
        assert!((43..58).contains(&again), "{again}");
        Ok(())
    };
    let result = bounded();
    config::set_max_compiled_programs(4096)?;
    assert!(config::set_max_compiled_programs(0).is_err());
    result?;

    // By bytes: the newest alone.
    let (x, y) = (ones(101), ones(102));
    config::set_max_compiled_bytes(1);
    f.call(&x)?;
    let newest = compilations(|| f.call(&x))?;
    f.call(&y)?;
    let older = compilations(|| f.call(&x))?;
    config::update("max_compiled_bytes", "2147483648")?;
    assert_eq!((newest, older), (0, 1));
    Ok(())
}

#[test]
fn a_gradient_outside_of_jit_is_traced_once() -> Result<()> {
    let _one = start();
    let x = array([1.0f32, 2.0, 3.0]);
    let plain = || grad(|x: Array| (&x * &x * 1.5).sum(..)).call(&x);
    assert_eq!(count(plain).1.traces, 1);
    let (result, counts) = count(plain);
    assert_eq!((result?.to_vec::<f32>()?, counts), (vec![3.0, 6.0, 9.0], Counts::default()));

    // One that reads a value is what it is for that value.
    let branches =
        |x: Array| -> Result<Array> { Ok(if x.sum(..).item::<f32>()? > 0.0 { x.sum(..) } else { x.sum(..) * -2 }) };
    for (sign, slope) in [(1.0f32, 1.0f32), (-1.0, -2.0), (1.0, 1.0)] {
        assert_eq!(grad(branches).call(&x * sign)?.to_vec::<f32>()?, [slope; 3]);
    }

    // One that captures is what it captured; the program is found again.
    let captured = |by: f32| {
        let by = array(by);
        grad(move |x: Array| (x * &by).sum(..)).call(&x)
    };
    assert_eq!(captured(2.0)?.to_vec::<f32>()?, [2.0; 3]);
    let (result, counts) = count(|| captured(5.0));
    assert_eq!((result?.to_vec::<f32>()?, counts.traces, counts.compilations), (vec![5.0; 3], 1, 0));
    Ok(())
}

/// Resident memory in MiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.trim().trim_end_matches(" kB").trim().parse::<usize>().unwrap_or(0) / 1024
}

/// What `memory_is_flat_over_many_shapes` runs in a process of its own.
#[test]
#[ignore = "run by another test"]
fn serves_many_shapes() -> Result<()> {
    setup();
    config::set_max_compiled_programs(32)?;
    let shapes: usize = std::env::var("SHARDAX_SHAPES").ok().and_then(|n| n.parse().ok()).unwrap_or(240);
    let serve = jit(|x: Array| (x.sin() * 2 + 1).sum(..));
    let mut sizes = Vec::new();
    for n in 1..=shapes {
        serve.call(ones(n))?.item::<f32>()?;
        if n % (shapes / 6) == 0 {
            sizes.push(resident());
        }
    }
    println!("resident {sizes:?}");
    Ok(())
}

/// A service that is called with ever new shapes. `SHARDAX_SHAPES=10000` makes it so many.
#[test]
fn memory_is_flat_over_many_shapes() -> std::io::Result<()> {
    let out = Command::new(std::env::current_exe()?)
        .args(["--exact", "serves_many_shapes", "--ignored", "--nocapture"])
        .output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let list = text.split("resident [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or_default();
    let sizes: Vec<usize> = list.split(", ").filter_map(|size| size.parse().ok()).collect();
    // All six are taken with the cache full: what is left of a program shows six times.
    assert!(sizes.len() == 6 && sizes[5] <= sizes[1] + 8, "MiB after each sixth: {sizes:?}");
    Ok(())
}
