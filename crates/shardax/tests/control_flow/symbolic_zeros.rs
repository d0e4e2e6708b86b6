//! Rules that receive which tangents and cotangents are zero: as in JAX 0.10.2, with its derivatives.

use std::sync::{Arc, Mutex};

use shardax::Arg;
use shardax::control_flow::CustomVjpPrimal as Primal;
use shardax::prelude::*;

use crate::close;
use crate::common::quick::setup;

/// The flags that a rule got, in order; reading removes them.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<[bool; 2]>>>);

impl Received {
    fn push(&self, flags: [bool; 2]) {
        self.0.lock().expect("no panic").push(flags);
    }
    fn take(&self) -> Vec<[bool; 2]> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

#[test]
fn tangents_that_are_zero() -> Result<()> {
    setup();
    let received = Received::default();
    let recorder = received.clone();
    fn wave(x: &Array, y: &Array) -> (Array, Array) {
        (x * y.sin(), x.clone())
    }
    let f = custom_jvp(move |x: Array, y: Array| wave(&x, &y)).symbolic_zeros().defjvp(
        move |(x, y): (Array, Array), (dx, dy): (Option<Array>, Option<Array>)| {
            recorder.push([dx.is_none(), dy.is_none()]);
            let terms = [dx.as_ref().map(|dx| dx * y.sin()), dy.map(|dy| &x * y.cos() * dy)];
            let slope = terms.into_iter().flatten().reduce(|a, b| a + b).expect("one is differentiated");
            (wave(&x, &y), (slope, dx.unwrap_or(zeros_like(&x))))
        },
    );
    let f = |x: Array, y: Array| -> Result<Array> { Ok(f.call((x, y))?.0) };
    let (x, y) = (array(2.0f32), array(0.5f32));
    let (of_x, of_y) = ([false, true], [true, false]);

    close(&grad(f).call((&x, &y))?, &[0.47942555]);
    assert_eq!(received.take(), [of_x]);
    close(&grad(f).argnums(Arg::<1>).call((&x, &y))?, &[1.7551651]);
    assert_eq!(received.take(), [of_y]);
    let _ = grad(f).argnums((Arg::<0>, Arg::<1>)).call((&x, &y))?;
    assert_eq!(received.take(), [[false; 2]]);
    close(&jvp(|x| f(x, y.clone()), &x, ones(()))?.1, &[0.47942555]);
    assert_eq!(received.take(), [of_x]);
    close(&jit(grad(f)).call((&x, &y))?, &[0.47942555]);
    assert_eq!(received.take(), [of_x]);

    // Under `vmap`, in a compiled function, in a loop, and twice.
    let pair = stack(&[&x, &x], 0);
    close(&vmap(grad(f)).in_axes((0, None)).call((&pair, &y))?, &[0.47942555; 2]);
    assert_eq!(received.take(), [of_x]);
    let sum = |x: Array| -> Result<Array> { Ok(vmap(f).in_axes((0, None)).call((x, &y))?.sum(..)) };
    close(&grad(sum).call(&pair)?, &[0.47942555; 2]);
    assert_eq!(received.take(), [of_x]);
    close(&grad(jit(f)).call((&x, &y))?, &[0.47942555]);
    assert_eq!(received.take(), [of_x]);
    close(&grad(|x: Array| fori_loop(0, 2, |_: Array, c: Array| f(c, y.clone()), x)).call(&x)?, &[0.22984886]);
    assert_eq!(received.take(), [of_x]);
    let second = grad(grad(f).argnums(Arg::<1>)).argnums(Arg::<1>);
    close(&second.call((&x, &y))?, &[-0.9588511]);
    assert!(received.take().iter().all(|flags| *flags == of_y));
    Ok(())
}

#[test]
fn cotangents_that_are_zero() -> Result<()> {
    setup();
    let received = Received::default();
    let (forward, backward) = (received.clone(), received.clone());
    let h = custom_vjp(|x: Array, y: Array| (&x * &y, x + y)).symbolic_zeros().defvjp(
        move |x: Primal, y: Primal| {
            forward.push([x.perturbed, y.perturbed]);
            ((&x.value * &y.value, &x.value + &y.value), (x.value, y.value))
        },
        move |(x, y): (Array, Array), (a, b): (Option<Array>, Option<Array>)| {
            backward.push([a.is_none(), b.is_none()]);
            let [a, b] = [a, b].map(|ct| ct.unwrap_or(zeros_like(&x)));
            (&a * y + &b, a * x + b)
        },
    );
    let product = |x: Array, y: Array| -> Result<Array> { Ok(h.call((x, y))?.0) };
    let sum = |x: Array, y: Array| -> Result<Array> { Ok(h.call((x, y))?.1) };
    let (x, y) = (array(2.0f32), array(0.5f32));
    let first = [[true, false], [false, true]];

    // The first pair of flags says which primals are perturbed, the second which cotangents are zero.
    close(&grad(product).call((&x, &y))?, &[0.5]);
    assert_eq!(received.take(), first);
    close(&grad(sum).argnums(Arg::<1>).call((&x, &y))?, &[1.0]);
    assert_eq!(received.take(), [[false, true], [true, false]]);
    let with_both = |x: Array, y: Array| -> Result<Array> {
        let (a, b) = h.call((x, y))?;
        Ok(a + b)
    };
    let (dx, dy) = grad(with_both).argnums((Arg::<0>, Arg::<1>)).call((&x, &y))?;
    close(&stack(&[dx, dy], 0), &[1.5, 3.0]);
    assert_eq!(received.take(), [[true; 2], [false; 2]]);
    close(&jit(grad(product)).call((&x, &y))?, &[0.5]);
    assert_eq!(received.take(), first);

    // The flags are the same if the rule is batched, in both orders of the transformations.
    let pair = stack(&[&x, &x], 0);
    close(&vmap(grad(product)).in_axes((0, None)).call((&pair, &y))?, &[0.5; 2]);
    assert_eq!(received.take(), first);
    let mapped = |x: Array| -> Result<Array> { Ok(vmap(product).in_axes((0, None)).call((x, &y))?.sum(..)) };
    close(&grad(mapped).call(&pair)?, &[0.5; 2]);
    assert_eq!(received.take(), first);
    Ok(())
}

/// In structs, tangents are found by key path; a rule without a tangent returns zeros.
#[test]
fn tangents_of_structs() -> Result<()> {
    #[derive(Tree, Clone)]
    struct Point {
        x: Array,
        n: Array,
    }

    setup();
    let scaled = custom_jvp(|p: Point| p.x * p.n).symbolic_zeros().defjvp(
        |(p,): (Point,), (dp,): (shardax::tree::Composed<Point, Option<Array>>,)| -> Result<(Array, Array)> {
            let dx = dp.get(".x")?.clone();
            assert!(dp.get(".n")?.is_none(), "integers have no tangent");
            Ok((&p.x * &p.n, dx.map_or(zeros_like(&p.x), |dx| dx * p.n)))
        },
    );
    let slope = grad(|x: Array| scaled.call(Point { x, n: array(3) })).call(2.0f32)?;
    close(&slope, &[3.0]);
    Ok(())
}
