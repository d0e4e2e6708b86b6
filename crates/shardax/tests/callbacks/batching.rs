//! `custom_vmap` and `sequential_vmap`. Values are JAX 0.10.2's for the same functions.

use std::sync::{Arc, Mutex};

use crate::common::quick::setup;
use shardax::prelude::*;

type Seen = Arc<Mutex<Vec<(usize, Vec<bool>, Vec<Vec<usize>>)>>>;

/// `x * y`, ten times that under `vmap`, so that the rule can be told from the function.
fn times(seen: &Seen) -> impl Fn(Array, Array) -> Result<Array> + Clone + use<> {
    let recorder = seen.clone();
    let rule = move |size: usize, batched: &[bool], (x, y): (Array, Array)| {
        let shapes = vec![x.shape().to_vec(), y.shape().to_vec()];
        recorder.lock().expect("no panic").push((size, batched.to_vec(), shapes));
        Ok((x * y * 10, true))
    };
    let f = Arc::new(custom_vmap(|x: Array, y: Array| x * y).def_vmap(rule));
    move |x, y| f.call((x, y))
}

fn x() -> Array {
    arange(0..3).astype(DType::F32)
}

fn values(y: Result<Array>) -> Result<Vec<f32>> {
    y?.to_vec::<f32>()
}

#[test]
fn the_rule_is_used_under_vmap_alone() -> Result<()> {
    setup();
    let log = Seen::default();
    let f = times(&log);
    assert_eq!(values(f(1.0f32.into(), 2.0f32.into()))?, [2.0]);
    assert_eq!(values(jit(f.clone()).call((1.0f32, 2.0f32)))?, [2.0]);
    assert_eq!(log.lock().expect("no panic").len(), 0);
    assert_eq!(values(vmap(f.clone()).call((x(), x())))?, [0.0, 10.0, 40.0]);
    assert_eq!(values(jit(vmap(f.clone())).call((x(), x())))?, [0.0, 10.0, 40.0]);
    assert_eq!(values(vmap(f.clone()).in_axes((0, None)).call((x(), 2.0f32)))?, [0.0, 20.0, 40.0]);
    let entries = std::mem::take(&mut *log.lock().expect("no panic"));
    assert_eq!(entries[0], (3, vec![true, true], vec![vec![3], vec![3]]));
    assert_eq!(entries[2], (3, vec![true, false], vec![vec![3], vec![]]));
    // The batch is in front, whichever axis it was.
    let g = f.clone();
    let columns = vmap(move |x: Array| g(x, 1.0f32.into())).in_axes((1,));
    assert_eq!(columns.call(ones([2, 3]))?.shape(), [3, 2]);
    assert_eq!(log.lock().expect("no panic").pop().map(|(n, _, shapes)| (n, shapes[0].clone())), Some((3, vec![3, 2])));
    // The outer map maps what the rule does.
    let g = f.clone();
    let combined = vmap(vmap(move |x: Array, y: Array| g(x, y)));
    assert_eq!(values(combined.call((ones([2, 3]), ones([2, 3]))))?, [10.0; 6]);
    let g = f.clone();
    let looped = vmap(move |x: Array| {
        Ok::<_, shardax::Error>(scan_n(|c: Array| Ok::<_, shardax::Error>((g(c, 2.0f32.into())?, ())), x, 2)?.0)
    });
    assert_eq!(values(looped.call(x()))?, [0.0, 400.0, 800.0]);
    Ok(())
}

#[test]
fn derivatives_use_the_rules_derivative() -> Result<()> {
    setup();
    let f = times(&Seen::default());
    let (y, t) = jvp(f.clone(), (1.0f32, 2.0f32), (1.0f32, 1.0f32))?;
    assert_eq!((y.item::<f32>()?, t.item::<f32>()?), (2.0, 3.0));
    let g = f.clone();
    let (y, t) = vmap(move |x: Array, y: Array| jvp(g.clone(), (x.clone(), y.clone()), (x, y))).call((x(), x()))?;
    assert_eq!((y.to_vec::<f32>()?, t.to_vec::<f32>()?), (vec![0.0, 10.0, 40.0], vec![0.0, 20.0, 80.0]));
    let (y, t) = jvp(vmap(f.clone()), (x(), x()), (x(), x()))?;
    assert_eq!((y.to_vec::<f32>()?, t.to_vec::<f32>()?), (vec![0.0, 10.0, 40.0], vec![0.0, 20.0, 80.0]));
    // Only the tangent is batched.
    let g = f.clone();
    let pushed = vmap(move |t: Array| Ok::<_, shardax::Error>(jvp(g.clone(), (3.0f32, 2.0f32), (t.clone(), t))?.1));
    assert_eq!(values(pushed.call(x()))?, [0.0, 50.0, 100.0]);
    let g = f.clone();
    let total = grad(move |x: Array, y: Array| Ok::<_, shardax::Error>(vmap(g.clone()).call((x, y))?.sum(..)));
    assert_eq!(values(total.call((x(), x())))?, [0.0, 10.0, 20.0]);
    let text = grad(f).call((1.0f32, 2.0f32)).err().map(|e| e.message().to_owned()).unwrap_or_default();
    assert!(text.starts_with("Linearization failed to produce known values for all output primals"), "{text}");
    Ok(())
}

/// The message of an error.
fn message_of(y: Result<Array>) -> String {
    y.err().map(|e| e.message().to_owned()).unwrap_or_default()
}

#[test]
fn rules_that_do_not_fit_are_errors() -> Result<()> {
    setup();
    let two = custom_vmap(|x: Array| (x.clone(), x))
        .def_vmap(|_, _, (x,): (Array,)| Ok(((x * 3, Array::from(7.0f32)), [true, false])));
    let (y, z) = vmap(move |x: Array| two.call(x)).out_axes((0, None)).call(x())?;
    assert_eq!((y.to_vec::<f32>()?, z.to_vec::<f32>()?), (vec![0.0, 3.0, 6.0], vec![7.0]));
    let flags = custom_vmap(|x: Array| x).def_vmap(|_, _, (x,): (Array,)| Ok((x, [true, false])));
    let message = message_of(vmap(move |x: Array| flags.call(x)).call(x()));
    assert!(message.starts_with("structure of output value and output batching specification"), "{message}");
    let short = custom_vmap(|x: Array| x).def_vmap(|_, _, (x,): (Array,)| Ok((x.get(s![..2]), true)));
    let message = message_of(vmap(move |x: Array| short.call(x)).call(x()));
    assert!(message.contains("expected float32[3] but got float32[2]"), "{message}");
    let captured = vmap(|x: Array| {
        let z = x.clone();
        let f = custom_vmap(move |y: Array| y * &z).def_vmap(|_, _, (y,): (Array,)| Ok((y, true)));
        f.call(x)
    });
    let message = message_of(captured.call(x()));
    assert!(message.contains("captured a value of the function being mapped"), "{message}");
    Ok(())
}

#[test]
fn sequential_maps_are_loops() -> Result<()> {
    setup();
    let f = || {
        let f = sequential_vmap(|x: Array, y: Array| x.sin() * y);
        move |x: Array, y: Array| f.call((x, y))
    };
    let want: Vec<f32> = [0.0f32, 1.0, 2.0].iter().map(|x| x.sin() * 2.0).collect();
    assert_eq!(values(vmap(f()).in_axes((0, None)).call((x(), 2.0f32)))?, want);
    let program = make_program(vmap(f()).in_axes((0, None)), (x(), 2.0f32))?.to_string();
    assert!(program.contains("scan[") && program.contains("custom_vmap_call["), "{program}");
    let nested = make_program(vmap(vmap(f())), (ones([2, 3]), ones([2, 3])))?.to_string();
    assert_eq!(nested.matches("scan[").count(), 2, "{nested}");
    assert_eq!(values(vmap(vmap(f())).call((ones([2, 3]), ones([2, 3]))))?, [1.0f32.sin(); 6]);
    Ok(())
}
