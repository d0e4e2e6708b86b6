//! Warnings about donations that have no effect or cost memory. The hook is the process's, so this is a file of
//! its own.

mod common;

use std::process::Command;
use std::sync::{Mutex, OnceLock};

use common::setup;
use shardax::prelude::*;

fn all() -> &'static Mutex<Vec<String>> {
    static ALL: OnceLock<Mutex<Vec<String>>> = OnceLock::new();
    ALL.get_or_init(|| {
        config::set_warning_hook(|text| all().lock().expect("warnings").push(text.to_owned()));
        Mutex::default()
    })
}

/// The warnings so far that name this function.
fn warnings_of(function: &str) -> Vec<String> {
    let word = |text: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == function);
    all().lock().expect("warnings").iter().filter(|text| word(text)).cloned().collect()
}

fn start() {
    setup();
    all();
}

fn total(x: Array) -> Array {
    x.sum(..)
}

#[test]
fn donations_in_vain() -> Result<()> {
    start();
    let f = jit(total).donate_argnums([0]);
    let line = line!() + 2;
    for _ in 0..3 {
        let _ = f.call(ones(8))?;
    }
    // Once for each compilation.
    let messages = warnings_of("total");
    let [text] = messages.as_slice() else { panic!("{messages:?}") };
    assert!(text.starts_with("Some donated buffers were not usable: float32[8] (argument[0] of total)."), "{text}");
    assert!(text.contains(&format!("{}:{line}:", file!())), "{text}");
    assert!(
        text.contains(
            "help: only a result of the same shape, dtype, sharding and layout in memory can reuse donated memory"
        ),
        "{text}"
    );
    let _ = f.call(ones([8, 2]))?;
    assert_eq!(warnings_of("total").len(), 2);
    f.lower(ones(5))?;
    assert!(warnings_of("total")[2].contains("float32[5]"));
    Ok(())
}

fn rows(x: Array) -> Array {
    x.sum(0)
}

fn both((x, y): (Array, Array), z: Array) -> Array {
    x + y + z.sum(..)
}

fn second(_: Array, y: Array) -> Array {
    y + 1
}

#[test]
fn the_conditions_of_jax() -> Result<()> {
    start();
    let sharding = NamedSharding::new(&make_mesh([("i", 8)])?.auto(), P!["i"]);
    let x = device_put(&ones([8, 4]), &sharding)?;
    let _ = pmap(rows).donate_argnums([0]).call(&x)?;
    let messages = warnings_of("pmap_rows");
    assert!(
        messages.len() == 1 && messages[0].contains("not usable: float32[8,4] (argument[0] of pmap_rows)"),
        "{messages:?}"
    );
    // Of two donated arguments of a type one result takes one.
    let _ = jit(both).donate_argnums([0, 1]).call(((ones(4), ones(4)), ones(3)))?;
    let messages = warnings_of("both");
    let text = "not usable: float32[4], float32[3] (argument[0][1], argument[1] of both)";
    assert!(messages.len() == 1 && messages[0].contains(text), "{messages:?}");
    // What the program does not take at all is not spoken of.
    let _ = jit(second).donate_argnums([0]).call((ones(3), ones(4)))?;
    assert!(warnings_of("second").is_empty());
    Ok(())
}

fn elsewhere(x: Array) -> Array {
    x + 1
}

#[test]
fn results_on_other_devices_do_not_use_donated_buffers() -> Result<()> {
    start();
    let mesh = make_mesh([("i", 8)])?.auto();
    let (split, whole) = (NamedSharding::new(&mesh, P!["i"]), NamedSharding::new(&mesh, P![]));
    let x = device_put(&arange(0..8), &split)?;
    let _ = jit(elsewhere).donate_argnums([0]).out_shardings(&whole).call(&x)?;
    assert!(warnings_of("elsewhere")[0].contains("Some donated buffers were not usable: int32[8]"));
    assert!(!x.is_deleted());
    // Without `out_shardings` the compiler chooses the sharding of the result, and may reuse the memory.
    let _ = jit(elsewhere).donate_argnums([0]).call(&x)?;
    assert_eq!(warnings_of("elsewhere").len(), 1);
    Ok(())
}

fn step(x: Array) -> Array {
    x + 1
}

fn counted(count: Array) -> Array {
    count + 1
}

fn placed(x: Array) -> Array {
    x * 2
}

#[test]
fn donations_that_are_moved_first() -> Result<()> {
    start();
    let f = pmap(step).donate_argnums([0]);
    let x = ones([8, 4]);
    let _ = f.call(&x)?;
    assert!(x.is_deleted());
    let _ = f.call(ones([8, 4]))?;
    let messages = warnings_of("pmap_step");
    let [text] = messages.as_slice() else { panic!("once: {messages:?}") };
    for words in [
        "Donated pmap argument required resharding. This causes a brief 2x memory spike before the original is freed.",
        "of type float32[8,4], was at SingleDeviceSharding(device=CpuDevice(id=0)), and is taken at NamedSharding(",
        "device_put",
        file!(),
    ] {
        assert!(text.contains(words), "{words:?} is not in {text}");
    }
    let sharding = NamedSharding::new(&make_mesh([("i", 8)])?.auto(), P!["i"]);
    let f = jit(step).in_shardings(&sharding).out_shardings(&sharding).donate_argnums([0]);
    let _ = f.call(ones(16))?;
    assert!(warnings_of("step").iter().any(|text| text.starts_with("Donated jit argument required resharding.")));

    // The copy of a scalar costs nothing.
    let f = jit(counted).out_shardings(&NamedSharding::new(&make_mesh([("i", 8)])?.auto(), P![])).donate_argnums(0);
    let _ = f.call(array(0))?;
    assert!(warnings_of("counted").is_empty());

    // Placed before the call, whatever the axis is called, there is nothing to say.
    let f = pmap(placed).donate_argnums([0]);
    let x = device_put(&ones([8, 4]), &sharding)?;
    let _ = f.call(f.call(&x)?)?;
    assert!(x.is_deleted());
    assert!(warnings_of("pmap_placed").is_empty());
    Ok(())
}

#[test]
#[ignore = "run by another test"]
fn on_standard_error() -> Result<()> {
    setup();
    let _ = jit(total).donate_argnums([0]).call(ones(8))?;
    Ok(())
}

#[test]
fn without_a_hook_warnings_are_lines_on_standard_error() -> std::io::Result<()> {
    let out = Command::new(std::env::current_exe()?)
        .args(["--exact", "on_standard_error", "--ignored", "--nocapture"])
        .output()?;
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{text}");
    assert!(text.contains("shardax: warning: Some donated buffers were not usable: float32[8]"), "{text}");
    Ok(())
}

fn loss(w: Array, x: Array) -> Array {
    (x * w).sin().sum(..)
}

/// A step that reduces the loss for the report, but not the gradients.
fn forgetful(axis: &'static str) -> impl Fn(Array, Array) -> Result<(Array, Array)> {
    move |w, x| {
        let (value, g) = value_and_grad(loss).call((&w, &x))?;
        Ok((w - g * 0.1, pmean(value, axis)))
    }
}

/// Said once for each compilation, not for each call; and not where it is meant, or where something is reduced.
fn assert_no_warnings(axis: &str) {
    assert_eq!(warnings_of(axis), Vec::<String>::new())
}

#[test]
fn gradients_that_nothing_reduces() -> Result<()> {
    start();
    let (w, x) = (ones([8, 3]), arange(0..24).astype(DType::F32).reshape([8, 3]));
    let line = line!() + 1;
    let (diverged, _) = pmap(forgetful("lonely")).axis_name("lonely").call((&w, &x))?;
    let messages = warnings_of("lonely");
    let [text] = messages.as_slice() else { panic!("{messages:?}") };
    assert!(
        text.contains("takes gradients, and argument[0], if it is equal on all devices, comes back different on each"),
        "{text}"
    );
    assert!(text.contains("`let grads = pmean(grads, \"lonely\")`"), "{text}");
    assert!(text.contains(&format!("{}:{line}:", file!())), "{text}");
    assert!(!allclose(diverged.get(0), diverged.get(1), 1e-6, 1e-6)?);

    // No warning: the caller turned the check off, the gradients are reduced, or there are none.
    let intended = pmap(forgetful("meant")).axis_name("meant").check_replication(false);
    let _ = intended.call((&w, &x))?;
    assert_no_warnings("meant");
    fn reduced(w: Array, x: Array) -> Result<Array> {
        Ok(&w - pmean(grad(loss).call((&w, x))?, "reduced") * 0.1)
    }
    let _ = pmap(reduced).axis_name("reduced").call((&w, &x))?;
    assert_no_warnings("reduced");
    let _ = pmap(grad(|x: Array| x.sin().sum(..))).call(&x)?;
    let _ = pmap(|w: Array, x: Array| w * x).axis_name("forward").call((&w, &x))?;
    assert_no_warnings("forward");
    let _ = pmap(|w: Array, x: Array| grad(|w: Array| loss(w, x.clone()).square()).call(w).map(|g| g.sum(..)))
        .axis_name("others")
        .call((&w, &x))?;
    assert_no_warnings("others");
    Ok(())
}

/// The default axis has no name, so nothing can reduce over it: a step that takes gradients drifts apart.
#[test]
fn gradients_that_nothing_can_reduce() -> Result<()> {
    start();
    fn take_warnings() -> Vec<String> {
        let list = all().lock().expect("warnings");
        list.iter().filter(|text| text.contains("name the axis, `.axis_name(\"batch\")`")).cloned().collect::<Vec<_>>()
    }
    fn step(w: Array, x: Array) -> Result<Array> {
        Ok(&w - grad(loss).call((&w, x))? * 0.1)
    }
    let (w, x) = (ones([8, 3]), arange(0..24).astype(DType::F32).reshape([8, 3]));
    let _ = pmap(step).check_replication(false).call((&w, &x))?;
    let _ = pmap(grad(loss)).call((&w, &x))?;
    assert_eq!(take_warnings(), Vec::<String>::new());
    let line = line!() + 1;
    let _ = pmap(step).call((&w, &x))?;
    let take_warnings = take_warnings();
    let [text] = take_warnings.as_slice() else { panic!("{take_warnings:?}") };
    assert!(text.contains("argument[0], if it is equal on all devices, comes back different on each"), "{text}");
    assert!(text.contains("`let grads = pmean(grads, \"batch\")`"), "{text}");
    assert!(text.contains(&format!("{}:{line}:", file!())), "{text}");
    Ok(())
}

/// The warnings about arrays of this shape.
fn warnings_for(shape: &str) -> Vec<String> {
    let list = all().lock().expect("warnings");
    list.iter().filter(|text| text.contains(shape)).cloned().collect::<Vec<_>>()
}

#[test]
fn failed_results_that_nothing_reads() -> Result<()> {
    start();
    let line = line!() + 1;
    let failed = ones(301) + ones(302);
    let copy = (&failed * 2).sum(..);
    drop(failed);
    assert!(warnings_for("float32[301]").is_empty(), "a copy is still there");
    drop(copy);
    let warnings = warnings_for("float32[301]");
    let [text] = warnings.as_slice() else { panic!("{warnings:?}") };
    assert!(
        text.starts_with("an operation failed, and nothing read its result: value error: add got incompatible shapes"),
        "{text}"
    );
    assert!(text.contains(&format!("{}:{line}:", file!())), "{text}");

    // Printing must not fail, so the program continues.
    let printed = ones(303) + ones(304);
    assert!(format!("{printed}").starts_with("<value error: add got incompatible shapes"));
    drop(printed);
    assert_eq!(warnings_for("float32[303]").len(), 1);

    // What a call or a read returns is known.
    assert!((ones(305) + ones(306)).to_vec::<f32>().is_err());
    assert!((ones(305) + ones(307)).check().is_err());
    assert!((ones(305) + ones(308)).error().is_some());
    assert!(
        jit(|x: Array| {
            let _ = &x + ones(309);
            x
        })
        .call(ones(305))
        .is_err()
    );
    assert!(jit(|x: Array| x * 2).call(ones(305) + ones(310)).is_err());
    assert_eq!(warnings_for("float32[305]"), Vec::<String>::new());
    Ok(())
}
