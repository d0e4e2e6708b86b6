//! Attributes that transform a function: `#[jit]`, `#[pmap]`, `#[vmap]`, `#[checkpoint]`, `#[custom_vjp]`, `#[custom_jvp]`.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};

use common::setup;
use shardax::prelude::*;

#[derive(Tree, Clone)]
struct Line {
    w: Array,
    b: Array,
}

static TRACES: AtomicUsize = AtomicUsize::new(0);

/// A step of gradient descent.
#[jit(donate = [line])]
fn train_step(line: Line, (x, y): (Array, Array)) -> Result<(Line, Array)> {
    TRACES.fetch_add(1, Ordering::Relaxed);
    let loss = |line: Line| (&x * &line.w + &line.b - &y).square().mean(..);
    let (loss, gradient) = value_and_grad(loss).call(line.clone())?;
    Ok((tree::map2(|p, g| p - g * 0.1, line, gradient)?, loss))
}

#[jit]
fn double(x: Array) -> Array {
    x * 2
}

#[jit(static_args = [n], keep_unused = true)]
fn power(x: Array, n: Static<i32>) -> Array {
    x.pow(n.0)
}

#[pmap(axis_name = "batch", in_axes = (None, 0), out_axes = None)]
fn total(scale: Array, x: Array) -> Array {
    psum(x.sum(..) * scale, "batch")
}

#[vmap(in_axes = (None, 0))]
fn scaled(scale: Array, x: Array) -> Array {
    assert_eq!(x.ndim(), 0, "one example at a time");
    scale * x
}

#[checkpoint]
fn wave(x: Array) -> Array {
    x.sin().sin()
}

#[custom_vjp(fwd = clipped_fwd, bwd = clipped_bwd)]
fn clipped(x: Array) -> Array {
    x * 3
}

fn clipped_fwd(x: Array) -> (Array, ()) {
    (x * 3, ())
}

fn clipped_bwd((): (), g: Array) -> (Array,) {
    (g.clip(-1.0, 1.0),)
}

#[custom_jvp(rule = rounded_jvp)]
fn rounded(x: Array) -> Array {
    x.round()
}

fn rounded_jvp((x,): (Array,), (t,): (Array,)) -> (Array, Array) {
    (x.round(), t)
}

#[test]
fn jit_attribute_compiles_once_and_donates() -> Result<()> {
    setup();
    let mut line = Line { w: array(0.0f32), b: array(0.0f32) };
    let data = (array([0.0f32, 1.0, 2.0]), array([1.0f32, 3.0, 5.0]));
    let mut loss = array(f32::INFINITY);
    for _ in 0..100 {
        let before = line.w.clone();
        (line, loss) = train_step(line, &data)?;
        assert!(before.is_deleted());
    }
    assert!(loss.item::<f32>()? < 1e-2);
    assert_eq!(TRACES.load(Ordering::Relaxed), 1);
    Ok(())
}

#[test]
fn jit_attribute_names_programs_and_lowers() -> Result<()> {
    setup();
    assert_eq!(double(2.0f32)?.item::<f32>()?, 4.0);
    let lowered = double::lower(shape_dtype_struct(3, DType::F32))?;
    assert!(lowered.as_text().contains("module @double"), "{}", lowered.as_text());
    assert_eq!(lowered.compile()?.call(array([1.0f32, 2.0, 3.0]))?.to_vec::<f32>()?, [2.0, 4.0, 6.0]);
    assert_eq!(power(3.0f32, Static(2))?.item::<f32>()?, 9.0);
    let error = double(array([[1.0f32]]).reshape(3)).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains("attributes.rs"), "{error}");
    Ok(())
}

#[test]
fn attributes_nest_in_other_transformations() -> Result<()> {
    setup();
    assert_eq!(grad(double {}).call(5.0f32)?.item::<f32>()?, 2.0);
    assert_eq!(vmap(double).call(array([1.0f32, 2.0]))?.to_vec::<f32>()?, [2.0, 4.0]);
    let twice = jit(|x: Array| double(double(x)?));
    assert_eq!(twice.call(1.0f32)?.item::<f32>()?, 4.0);
    assert_eq!(scaled(2.0f32, array([1.0f32, 3.0]))?.to_vec::<f32>()?, [2.0, 6.0]);
    let (plain, again) = (grad(|x: Array| x.sin().sin()).call(1.0f32)?, grad(wave {}).call(1.0f32)?);
    assert_eq!(plain.item::<f32>()?, again.item::<f32>()?);
    Ok(())
}

#[test]
fn custom_rules_are_used() -> Result<()> {
    setup();
    assert_eq!(clipped(2.0f32)?.item::<f32>()?, 6.0);
    assert_eq!(grad(|x: Array| Ok(clipped(x)? * 5)).call(2.0f32)?.item::<f32>()?, 1.0);
    assert_eq!(grad(rounded {}).call(2.4f32)?.item::<f32>()?, 1.0);
    Ok(())
}

#[test]
fn pmap_attribute_maps_over_devices() -> Result<()> {
    setup();
    let x = ones([device_count(), 2]);
    assert_eq!(total(3.0f32, &x)?.item::<f32>()?, 6.0 * device_count() as f32);
    assert!(total::lower((3.0f32, &x))?.as_text().contains("total"));
    Ok(())
}

#[vmap(in_axes = [0, None])]
fn scaled_rows(x: Array, scale: Array) -> Array {
    x.sum(..) * scale
}

/// JAX accepts a list, whose elements Rust would require to have one type.
#[test]
fn vmap_in_axes_as_a_list_with_none() -> Result<()> {
    setup();
    assert_eq!(scaled_rows(ones([2, 3]), 2.0f32)?.to_vec::<f32>()?, [6.0, 6.0]);
    Ok(())
}
