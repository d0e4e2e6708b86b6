//! Transformations of control flow in each other, and control flow in control flow.

use shardax::Arg;
use shardax::prelude::*;

use crate::common::quick::setup;
use crate::{check_gradient, close, same};

/// A small recurrent network: the weights are captured by the step.
fn rnn(w: &Array, h: Array, xs: Array) -> Result<(Array, Array)> {
    fn step(h: Array, x: Array, w: &Array) -> (Array, Array) {
        let h = (w.dot(h) + x).tanh();
        (h.clone(), h)
    }
    scan(|h: Array, x: Array| step(h, x, w), h, xs)
}

fn rnn_loss(w: Array, h: Array, xs: Array) -> Result<Array> {
    let (h, ys) = rnn(&w, h, xs)?;
    Ok(h.sum(..) + (ys.square() * 0.5).sum(..))
}

fn rnn_inputs() -> (Array, Array, Array) {
    let w = array([[0.5f32, -0.3, 0.2], [0.1, 0.4, -0.6], [-0.2, 0.7, 0.3]]);
    let h = array([0.1f32, -0.2, 0.3]);
    let xs = array([[0.3f32, 0.1, -0.5], [-0.7, 0.2, 0.4], [0.6, -0.1, 0.2], [0.05, 0.9, -0.3]]);
    (w, h, xs)
}

#[test]
fn gradients_of_scan() -> Result<()> {
    setup();
    let (w, h, xs) = rnn_inputs();
    check_gradient(|w| rnn_loss(w, h.clone(), xs.clone()), &w)?;
    check_gradient(|h| rnn_loss(w.clone(), h, xs.clone()), &h)?;
    check_gradient(|xs| rnn_loss(w.clone(), h.clone(), xs), &xs)?;
    let gradients = grad(rnn_loss).argnums((Arg::<0>, Arg::<1>, Arg::<2>));
    let (gw, gh, gx) = gradients.call((&w, &h, &xs))?;
    // The same steps, written out.
    fn unrolled(w: Array, mut h: Array, xs: Array) -> Result<Array> {
        let mut sum = Array::from(0.0);
        for x in xs.split(4, 0)? {
            h = (w.dot(h) + x.reshape(3)).tanh();
            sum += (h.square() * 0.5).sum(..);
        }
        Ok(h.sum(..) + sum)
    }
    let (uw, uh, ux) = grad(unrolled).argnums((Arg::<0>, Arg::<1>, Arg::<2>)).call((&w, &h, &xs))?;
    same(&gw, &uw);
    same(&gh, &uh);
    same(&gx, &ux);
    let (jw, _, jx) = jit(gradients).call((&w, &h, &xs))?;
    same(&jw, &uw);
    same(&jx, &ux);
    Ok(())
}

#[test]
fn second_derivatives_of_scan() -> Result<()> {
    setup();
    let (w, h, xs) = rnn_inputs();
    // The gradient's length, differentiated again.
    fn steepness(w: Array, h: &Array, xs: &Array) -> Result<Array> {
        Ok(grad(|w: Array| rnn_loss(w, h.clone(), xs.clone())).call(w)?.square().sum(..))
    }
    check_gradient(|w: Array| steepness(w, &h, &xs), &w)?;
    fn of_h(h: Array, w: &Array, xs: &Array) -> Result<Array> {
        rnn_loss(w.clone(), h, xs.clone())
    }
    let forward_over_reverse = hessian(|h: Array| of_h(h, &w, &xs)).call(&h)?;
    let reverse_over_forward = shardax::jacrev(shardax::jacfwd(|h: Array| of_h(h, &w, &xs))).call(&h)?;
    same(&forward_over_reverse, &reverse_over_forward);
    same(&forward_over_reverse, &forward_over_reverse.t());
    Ok(())
}

#[test]
fn vmap_and_grad_of_scan_commute() -> Result<()> {
    setup();
    let (w, h, xs) = rnn_inputs();
    let hs = stack(&[h.clone(), &h * 2, -&h], 0);
    let per_example = vmap(grad(rnn_loss)).in_axes((None, 0, None)).call((&w, &hs, &xs))?;
    assert_eq!(per_example.shape(), [3, 3, 3]);
    for (i, h) in hs.split(3, 0)?.into_iter().enumerate() {
        let single = grad(rnn_loss).call((&w, h.reshape(3), &xs))?;
        same(&per_example.split(3, 0)?[i].squeeze(0), &single);
    }
    let total =
        |w: Array| -> Result<Array> { Ok(vmap(rnn_loss).in_axes((None, 0, None)).call((w, &hs, &xs))?.sum(..)) };
    same(&grad(total).call(&w)?, &per_example.sum(0));
    Ok(())
}

#[test]
fn scans_in_scans_capture_from_both() -> Result<()> {
    setup();
    let rows = array([[0.3f32, -0.1, 0.5], [0.2, 0.8, -0.4]]);
    fn f(a: Array, rows: Array) -> Result<Array> {
        fn outer(c: Array, row: Array, a: &Array) -> Result<(Array, Array)> {
            let scale = (&c * a).sin();
            let inner = |s: Array, x: Array| {
                let s = &s * &scale + &x * a + row.sum(..);
                (s.clone(), s * x)
            };
            let (s, ys) = scan(inner, c.clone(), row.clone())?;
            Ok((s + c, ys))
        }
        let (c, ys) = scan(|c: Array, row: Array| outer(c, row, &a), Array::from(0.1), rows)?;
        Ok(c + ys.sum(..))
    }
    check_gradient(|a| f(a, rows.clone()), &array(0.7f32))?;
    check_gradient(|rows| f(array(0.7f32), rows), &rows)?;
    check_gradient(|a| grad(|a: Array| f(a, rows.clone())).call(a), &array(0.7f32))?;
    Ok(())
}

#[test]
fn branches_with_weights() -> Result<()> {
    setup();
    let xs = array([0.5f32, -0.4, 1.2, -0.9]);
    fn f(w: Array, xs: Array) -> Result<Array> {
        fn step(c: Array, x: Array, w: &Array) -> Result<(Array, Array)> {
            let c = cond(x.greater(0), |c: Array| (c * w).sin() * &x, |c| (c - &x * w * w).exp() * 0.1, c)?;
            let y = switch(
                (&c * 10).astype(DType::I32),
                (|c: Array| &c * &c, |c: Array| c * 2, |c: Array| c.cos()),
                c.clone(),
            )?;
            Ok((c, y))
        }
        let (c, ys) = scan(|c: Array, x: Array| step(c, x, &w), Array::from(0.5), xs)?;
        Ok(c + ys.sum(..))
    }
    let w = array(0.8f32);
    check_gradient(|w| f(w, xs.clone()), &w)?;
    check_gradient(|xs| f(w.clone(), xs), &xs)?;
    let tangent = jvp(|w: Array| f(w, xs.clone()), &w, 1.0f32)?.1;
    same(&tangent, &grad(|w: Array| f(w, xs.clone())).call(&w)?);
    // Each example its own branches.
    let ws = array([0.8f32, -0.3]);
    let batched = vmap(grad(f)).in_axes((0, None)).call((&ws, &xs))?;
    fn for_weight(w: f32, xs: &Array) -> Result<f64> {
        grad(f).call((w, xs))?.to_f64()
    }
    close(&batched, &[for_weight(0.8, &xs)?, for_weight(-0.3, &xs)?]);
    Ok(())
}

#[test]
fn branches_that_keep_different_things() -> Result<()> {
    setup();
    // One branch needs two matrices, one a vector and a scalar, one nothing, for the derivative.
    fn f(i: Array, x: Array) -> Result<Array> {
        let branches = (
            |x: Array| (x.sin() * x.exp()).reshape([2, 1]).matmul(x.cos().reshape([1, 2])).sum(..),
            |x: Array| x.tanh().sum(..) * x.sum(..).sin(),
            |x: Array| x.sum(..) * 3,
        );
        switch(i, branches, x)
    }
    let x = array([0.4f32, -0.7]);
    for i in 0..3 {
        check_gradient(|x| f(Array::from(i), x), &x)?;
        check_gradient(|x| Ok(grad(|x: Array| f(Array::from(i), x)).call(x)?.square().sum(..)), &x)?;
    }
    let indices = array([2, 0, 1]);
    let per_index = vmap(grad(f).argnums(Arg::<1>)).in_axes((0, None)).call((&indices, &x))?;
    let rows = per_index.split(3, 0)?;
    for (row, i) in rows.iter().zip([2, 0, 1]) {
        same(&row.reshape(2), &grad(f).argnums(Arg::<1>).call((i, &x))?);
    }
    Ok(())
}

/// Iterates the logistic map while `x` is below the bound.
fn logistic_steps(x: Array, bound: Array) -> Result<(Array, Array)> {
    let going = |(n, x): (Array, Array)| x.less(&bound) & n.less(50);
    while_loop(going, |(n, x): (Array, Array)| (n + 1, 3.7 * &x * (1 - &x)), (Array::from(0), x))
}

#[test]
fn while_with_a_predicate_for_each_example() -> Result<()> {
    setup();
    let xs = array([0.1f32, 0.95, 0.02, 0.4]);
    let (counts, ends) = vmap(logistic_steps).in_axes((0, None)).call((&xs, 0.9f32))?;
    let (jit_counts, _) = jit(vmap(logistic_steps).in_axes((0, None))).call((&xs, 0.9f32))?;
    same(&counts, &jit_counts);
    for (i, x) in xs.to_vec::<f32>()?.into_iter().enumerate() {
        let (count, end) = logistic_steps(array(x), array(0.9f32))?;
        assert_eq!(counts.to_f64_vec()?[i], count.to_f64()?);
        close(&end, &[ends.to_f64_vec()?[i]]);
    }
    // Derivatives per example, forward.
    let slopes =
        vmap(|x: Array| -> Result<Array> { Ok(jvp(|x: Array| logistic_steps(x, array(0.9f32)), x, 1.0f32)?.1.1) });
    let slope = jvp(|x: Array| logistic_steps(x, array(0.9f32)), 0.1f32, 1.0f32)?.1.1;
    close(&slope, &slopes.call(&xs)?.to_f64_vec()?[..1]);
    Ok(())
}

#[test]
fn linearized_loops_push_tangents_forward() -> Result<()> {
    setup();
    let (w, h, xs) = rnn_inputs();
    fn of_w(w: Array, h: &Array, xs: &Array) -> Result<Array> {
        rnn_loss(w, h.clone(), xs.clone())
    }
    fn growing(x: Array) -> Result<Array> {
        while_loop(|x: Array| x.less(100), |x| &x * &x + 1, x)
    }
    let (value, map) = linearize(|w: Array| of_w(w, &h, &xs), &w)?;
    same(&value, &of_w(w.clone(), &h, &xs)?);
    same(&map.call(w.cos())?, &jvp(|w: Array| of_w(w, &h, &xs), &w, w.cos())?.1);
    let (value, map) = linearize(growing, 1.5f32)?;
    same(&value, &growing(array(1.5f32))?);
    same(&map.call(2.0f32)?, &jvp(growing, 1.5f32, 2.0f32)?.1);
    Ok(())
}

#[test]
fn while_that_no_gradient_flows_through() -> Result<()> {
    setup();
    fn f(x: Array) -> Result<Array> {
        let n = while_loop(|n: Array| n.less(5), |n| n + 1, Array::from(0))?;
        // The predicate depends on x, the result does not.
        let m = while_loop(|m: Array| m.less(&x), |m| m + 1, Array::from(0))?;
        Ok(x * n.astype(DType::F32) + m)
    }
    close(&grad(f).call(2.5f32)?, &[5.0]);
    Ok(())
}

#[test]
fn fori_loops_differentiate() -> Result<()> {
    setup();
    fn newton(a: Array) -> Result<Array> {
        fori_loop(0, 12, |_, x: Array| 0.5 * (&x + &a / &x), Array::from(1.0))
    }
    close(&grad(newton).call(4.0f32)?, &[0.25]);
    close(&grad(grad(newton)).call(4.0f32)?, &[-1.0 / 32.0]);
    fn dynamic(n: Array, a: Array) -> Result<Array> {
        fori_loop(0, n, |_, x: Array| 0.5 * (&x + &a / &x), Array::from(1.0))
    }
    let slope = jvp(|a: Array| dynamic(array(12), a), 4.0f32, 1.0f32)?.1;
    close(&slope, &[0.25]);
    // Bounds for each example.
    let roots = vmap(dynamic).in_axes((0, None)).call((array([0, 1, 12]), 4.0f32))?;
    close(&roots, &[1.0, 2.5, 2.0]);
    close(&fori_loop(5, 2, |_, x: Array| x + 1, Array::from(3.0))?, &[3.0]);
    Ok(())
}

#[test]
fn options_of_scan() -> Result<()> {
    setup();
    let xs = arange(0..7).astype(DType::F32) * 0.3 - 1.0;
    fn step(c: Array, x: Array) -> (Array, Array) {
        (&c * 0.7 + &x, c.sin() * x)
    }
    for reverse in [false, true] {
        let plain = ScanOptions::new().reverse(reverse);
        fn f(options: ScanOptions, xs: Array) -> Result<Array> {
            let (c, ys) = options.scan(step, Array::from(0.2), xs)?;
            Ok(concatenate(&[c.reshape(1), ys], 0))
        }
        let loss =
            |options: ScanOptions| grad(move |xs: Array| -> Result<Array> { Ok(f(options, xs)?.square().sum(..)) });
        let want = f(plain, xs.clone())?;
        let slope = loss(plain).call(&xs)?;
        for unroll in [2, 3, 100] {
            let options = plain.unroll(unroll);
            same(&f(options, xs.clone())?, &want);
            same(&loss(options).call(&xs)?, &slope);
        }
    }
    Ok(())
}

#[test]
fn any_tree_may_be_carried_and_stacked() -> Result<()> {
    setup();
    let xs = (arange(0..3), vec![array([true, false, true]), array([[1i8, 2], [3, 4], [5, 6]])]);
    let step = |(n, any): (Array, Option<Array>), (i, v): (Array, Vec<Array>)| -> Result<_> {
        let any = any.map(|a| a | &v[0]);
        Ok(((n + &i, any), (v[1].clone(), v[0].clone(), i)))
    };
    let ((n, any), (a, b, c)) = scan(step, (array(10), Some(array(false))), xs.clone())?;
    assert_eq!((n.item::<i32>()?, any.map(|a| a.item::<bool>()).transpose()?), (13, Some(true)));
    assert_eq!((a.shape(), a.dtype()), (&[3, 2][..], DType::I8));
    assert_eq!(a.to_vec::<i8>()?, [1, 2, 3, 4, 5, 6]);
    assert_eq!(b.to_vec::<bool>()?, [true, false, true]);
    assert_eq!(c.to_vec::<i32>()?, [0, 1, 2]);
    let nothing = scan(|c: Array, x: Array| (c, (x.clone(), x.sum(..))), array(1.0f32), zeros([0, 4]))?;
    assert_eq!((nothing.1.0.shape(), nothing.1.1.shape()), (&[0, 4][..], &[0][..]));
    Ok(())
}

#[test]
fn associative_scans() -> Result<()> {
    setup();
    let x = arange(1..14).astype(DType::F32) / 5.0;
    for n in [1usize, 2, 3, 8, 13] {
        let x = x.split(13, 0)?[..n].to_vec();
        let x = concatenate(&x, 0);
        let values = x.to_f64_vec()?;
        let sums: Vec<f64> = (0..n).map(|i| values[..=i].iter().sum()).collect();
        let prefixes = jit(|x: Array| associative_scan(|a: Array, b: Array| a + b, x));
        close(&prefixes.call(&x)?, &sums);
        let from_end: Vec<f64> = (0..n).map(|i| values[i..].iter().sum()).collect();
        let suffixes = jit(|x: Array| {
            AssociativeScanOptions::new().reverse(true).axis(-1).associative_scan(|a: Array, b: Array| a + b, x)
        });
        close(&suffixes.call(&x)?, &from_end);
    }
    // A linear recurrence h' = a h + b along axis 1, as compositions of affine maps.
    let (a, b) = (array([[0.5f32, 0.3, -0.2], [1.0, 2.0, 3.0]]), array([[1.0f32, 2.0, 3.0], [0.1, 0.2, 0.3]]));
    fn compose((a1, b1): (Array, Array), (a2, b2): (Array, Array)) -> (Array, Array) {
        (a1 * &a2, a2 * b1 + b2)
    }
    let (_, h) = AssociativeScanOptions::new().axis(1).associative_scan(compose, (a.clone(), b.clone()))?;
    let (_, want) = scan(
        |h: Array, (a, b): (Array, Array)| {
            let h = a * h + b;
            (h.clone(), h)
        },
        zeros(2),
        (a.t(), b.t()),
    )?;
    same(&h, &want.t());
    let empty = associative_scan(|a: Array, b: Array| a + b, zeros([0, 2]))?;
    assert_eq!(empty.shape(), [0, 2]);
    Ok(())
}

/// sin(x) y, with a rule that doubles the one derivative and triples the other.
fn odd(x: Array, y: Array) -> Result<Array> {
    custom_vjp(|x: Array, y: Array| x.sin() * y)
        .defvjp(
            |x: Array, y: Array| (x.sin() * &y, (x, y)),
            |(x, y): (Array, Array), ct: Array| (2 * x.cos() * y * &ct, 3 * x.sin() * ct),
        )
        .call((x, y))
}

#[test]
fn custom_vjp_under_vmap_keeps_its_rule() -> Result<()> {
    setup();
    let xs = array([0.3f32, -0.5, 1.1]);
    let y = array(0.7f32);
    // grad of vmap: the argument that the examples share gets the sum.
    fn f(xs: Array, y: Array) -> Result<Array> {
        Ok(vmap(odd).in_axes((0, None)).call((xs, y))?.sum(..))
    }
    let (gx, gy) = grad(f).argnums((Arg::<0>, Arg::<1>)).call((&xs, &y))?;
    same(&gx, &(xs.cos() * 2 * &y));
    same(&gy, &(xs.sin().sum(..) * 3));
    // vmap of grad, vmap of vmap of grad, grad of vmap of vmap.
    let per_row = vmap(grad(odd)).in_axes((0, None)).call((&xs, &y))?;
    same(&per_row, &gx);
    let ys = array([0.7f32, 2.0]);
    fn twice(xs: Array, ys: Array) -> Result<Array> {
        fn inner(x: Array, ys: Array) -> Result<Array> {
            vmap(odd).in_axes((None, 0)).call((x, ys))
        }
        Ok(vmap(inner).in_axes((0, None)).call((xs, ys))?.sum(..))
    }
    let (gx, gy) = grad(twice).argnums((Arg::<0>, Arg::<1>)).call((&xs, &ys))?;
    same(&gx, &(xs.cos() * 2 * ys.sum(..)));
    same(&gy, &(ones(2) * xs.sin().sum(..) * 3));
    // In a scan, under jit.
    fn in_scan(xs: Array, y: Array) -> Result<Array> {
        Ok(scan(|c: Array, x| -> Result<(Array, ())> { Ok((c + odd(x, y.clone())?, ())) }, Array::from(0.0), xs)?.0)
    }
    let (gx, gy) = jit(grad(in_scan).argnums((Arg::<0>, Arg::<1>))).call((&xs, &y))?;
    same(&gx, &(xs.cos() * 2 * &y));
    same(&gy, &(xs.sin().sum(..) * 3));
    Ok(())
}

#[test]
fn custom_jvp_under_vmap_keeps_its_rule() -> Result<()> {
    setup();
    fn odd(x: Array, y: Array) -> Result<Array> {
        custom_jvp(|x: Array, y: Array| x.sin() * y)
            .defjvp(|(x, y): (Array, Array), (dx, dy): (Array, Array)| {
                (x.sin() * &y, 2 * x.cos() * y * dx + 3 * x.sin() * dy)
            })
            .call((x, y))
    }
    let xs = array([0.3f32, -0.5, 1.1]);
    fn f(xs: Array, y: Array) -> Result<Array> {
        Ok(vmap(odd).in_axes((0, None)).call((xs, y))?.sum(..))
    }
    let (gx, gy) = grad(f).argnums((Arg::<0>, Arg::<1>)).call((&xs, 0.7f32))?;
    same(&gx, &(xs.cos() * 2 * 0.7));
    same(&gy, &(xs.sin().sum(..) * 3));
    let tangent = jvp(f, (&xs, 0.7f32), (ones(3), 0.0f32))?.1;
    same(&tangent, &gx.sum(..));
    Ok(())
}

#[test]
fn rules_with_integers_and_structures() -> Result<()> {
    setup();
    // Multiplies by an integer; the rule is wrong on purpose.
    fn f(x: Array, n: Array) -> Result<(Array, Array)> {
        custom_jvp(|x: Array, n: Array| (x * n.astype(DType::F32), n))
            .defjvp(|(x, n): (Array, Array), (dx, dn): (Array, Array)| ((x * n.astype(DType::F32), n), (dx * 100, dn)))
            .call((x, n))
    }
    let g = grad(|x: Array, n: Array| -> Result<Array> { Ok(f(x, n)?.0) });
    close(&g.call((2.0f32, 3))?, &[100.0]);
    fn h(x: Array, n: Array) -> Result<Array> {
        custom_vjp(|x: Array, n: Array| x * n.astype(DType::F32))
            .defvjp(
                |x: Array, n: Array| (x * n.astype(DType::F32), (Static("kept"), n)),
                |(kept, n): (Static<&'static str>, Array), ct: Array| {
                    assert_eq!(*kept, "kept");
                    (ct * 7 * n.astype(DType::F32), n)
                },
            )
            .call((x, n))
    }
    close(&grad(h).call((2.0f32, 3))?, &[21.0]);
    Ok(())
}

#[test]
fn custom_functions_of_plain_values_just_run() -> Result<()> {
    setup();
    close(&odd(array(1.0f32), array(2.0f32))?, &[2.0 * 1f64.sin()]);
    close(&jit(odd).call((1.0f32, 2.0f32))?, &[2.0 * 1f64.sin()]);
    // The rule is not linear in the argument that it ignores, so only the value is compared.
    let never = custom_jvp(|x: Array| x * 2).defjvp(|_: (Array,), _: (Array,)| -> Result<(Array, Array)> {
        Err(shardax::Error::new(shardax::ErrorKind::Value, "asked"))
    });
    close(&jit(|x: Array| never.call(x)).call(3.0f32)?, &[6.0]);
    let gradient = grad(|x: Array| never.call(x)).call(3.0f32);
    assert!(gradient.err().is_some_and(|e| e.message() == "asked"));
    Ok(())
}

#[test]
fn a_rule_may_return_a_constant_tangent() -> Result<()> {
    setup();
    // Rounding has no gradient. It precedes a function that has only a reverse rule.
    fn rounded(x: Array) -> Result<Array> {
        custom_jvp(|x: Array| x.round()).defjvp(|(x,): (Array,), (t,): (Array,)| (x.round(), zeros_like(&t))).call(x)
    }
    fn step(c: Array, (): ()) -> Result<(Array, Array)> {
        let y = odd(rounded(&c * 3)?, array(2.0f32))?;
        Ok((c * 0.5 + &y, y))
    }
    fn f(x: Array) -> Result<Array> {
        let (c, ys) = ScanOptions::new().length(2).scan(step, x, ())?;
        Ok(c + ys.sum(..))
    }
    close(&grad(f).call(0.4f32)?, &[0.25]);
    Ok(())
}

fn tan_twice(x: Array) -> Result<Array> {
    Ok(scan_n(|c: Array| (c.tan(), ()), x, 2)?.0)
}

fn tan_in_fori_loop(x: Array) -> Result<Array> {
    fori_loop(0, 3, |i, c: Array| (c * 0.5).tan() + i, x)
}

/// The function with a rule that differentiates it by `jvp`, and doubles the tangent. One loop computes both results.
fn doubled_rule(f: fn(Array) -> Result<Array>, x: Array) -> Result<Array> {
    let rule = move |(x,): (Array,), (t,): (Array,)| -> Result<(Array, Array)> {
        let (y, t) = jvp::<(Array,), _>(f, x, t)?;
        Ok((y, t * 2))
    };
    custom_jvp(f).defjvp(rule).call(x)
}

/// The function with a rule whose second loop is not linear in all that it carries.
fn rule_with_two_loops(x: Array) -> Result<Array> {
    fn step((c, t): (Array, Array)) -> ((Array, Array), ()) {
        ((c.tan(), t * c), ())
    }
    fn rule((x,): (Array,), (t,): (Array,)) -> Result<(Array, Array)> {
        let (_, t) = scan_n(step, (x.clone(), t), 2)?.0;
        Ok((tan_twice(x)?, t * 2))
    }
    custom_jvp(tan_twice).defjvp(rule).call(x)
}

#[test]
fn rules_of_custom_jvp_differentiate_loops() -> Result<()> {
    setup();
    let x = array(0.3f32);
    // The derivatives of the same functions in JAX 0.12.
    for (f, first, second) in
        [(tan_twice as fn(Array) -> Result<Array>, 2.4152086, 3.185727), (tan_in_fori_loop, 0.3486885, 0.119693)]
    {
        let g = move |x: Array| doubled_rule(f, x);
        same(&g(x.clone())?, &f(x.clone())?);
        same(&value_and_grad(g).call(&x)?.0, &f(x.clone())?);
        close(&grad(g).call(&x)?, &[first]);
        close(&jit(grad(g)).call(&x)?, &[first]);
        close(&grad(grad(g)).call(&x)?, &[second]);
    }
    close(&grad(rule_with_two_loops).call(&x)?, &[0.18560176]);
    Ok(())
}

/// A loop whose number of steps is only known when it runs, so that it has no reverse mode.
fn sin_in_dynamic_loop(x: Array, steps: &Array) -> Result<Array> {
    fori_loop(0, steps.clone(), |_: Array, c: Array| c.sin(), x)
}

#[test]
fn loops_without_cotangents_are_not_transposed() -> Result<()> {
    setup();
    let steps = array(3);
    let xs = array([1.0f32, 2.0]);
    // Nothing uses the last carry, but each step depends on it and on the scanned array.
    let squares = |xs: Array| -> Result<Array> {
        let step =
            |c: Array, x: Array| -> Result<(Array, Array)> { Ok((sin_in_dynamic_loop(c + &x, &steps)?, x.square())) };
        let (c, ys) = scan(step, array(0.5f32), xs)?;
        Ok(ys.sum(..) + stop_gradient(c))
    };
    close(&grad(squares).call(&xs)?, &[2.0, 4.0]);
    close(&jit(grad(squares)).call(&xs)?, &[2.0, 4.0]);
    let chosen = |xs: Array| switch(array(0), (squares, |xs: Array| -> Result<Array> { Ok(xs.sum(..)) }), xs);
    close(&grad(chosen).call(&xs)?, &[2.0, 4.0]);
    let rows = array([[1.0f32, 2.0], [3.0, 4.0]]);
    close(&vmap(grad(squares)).call(&rows)?, &[2.0, 4.0, 6.0, 8.0]);
    // The first carry needs the second only through a compiled function that does not use it.
    let two_carries = |xs: Array| -> Result<Array> {
        let step = |_: Array, (a, b): (Array, Array)| -> Result<(Array, Array)> {
            let (a, b) = jit(|a: Array, b: Array| (a.sin(), b + a)).call((a, b))?;
            Ok((a, sin_in_dynamic_loop(b, &steps)?))
        };
        Ok(fori_loop(0, 3, step, (xs.get(0), xs.get(1)))?.0)
    };
    close(&grad(two_carries).call(&xs)?, &[0.26450825, 0.0]);
    // A loop whose cotangent is needed is still an error.
    let needed = grad(|x: Array| sin_in_dynamic_loop(x, &steps)).call(0.5f32);
    assert!(needed.is_err_and(|e| e.to_string().contains("Reverse-mode differentiation does not work")));
    Ok(())
}

/// With JAX's results under `jit`.
#[test]
fn tangents_of_custom_vjp_that_nothing_uses() -> Result<()> {
    setup();
    fn sin(x: Array) -> Result<Array> {
        custom_vjp(|x: Array| x.sin()).defvjp(|x: Array| (x.sin(), x), |x: Array, ct: Array| (ct * x.cos(),)).call(x)
    }
    fn double_if_positive(x: Array) -> Result<Array> {
        Ok(&x * 2 + sin(x)?.greater(0))
    }
    fn of_pair(x: Array) -> Result<(Array, Array)> {
        Ok((&x * 2, sin(x)?))
    }
    fn scanned(x: Array) -> Result<Array> {
        let step = |c: Array, v: Array| -> Result<(Array, Array)> { Ok((c + &v, sin(v)?.greater(0))) };
        Ok(scan(step, x.clone(), ones(2) * x)?.0)
    }
    let x = array(1.0f32);
    close(&jvp(double_if_positive, &x, &x)?.1, &[2.0]);
    close(&jit(|x: Array| jvp(double_if_positive, &x, &x)).call(&x)?.1, &[2.0]);
    close(&linearize(double_if_positive, &x)?.1.call(&x)?, &[2.0]);
    close(&jvp(scanned, &x, &x)?.1, &[3.0]);
    let first = |x: Array| -> Result<Array> { Ok(jvp(jit(of_pair), &x, &x)?.1.0) };
    close(&jit(first).call(&x)?, &[2.0]);
    close(&jvp(first, &x, &x)?.1, &[2.0]);
    close(&hessian(|x: Array| -> Result<Array> { Ok(x.square() + sin(x)?.greater(0)) }).call(&x)?, &[2.0]);
    let used = jit(|x: Array| jvp(of_pair, &x, &x)).call(&x);
    assert!(used.is_err_and(|e| e.to_string().contains("can't apply forward-mode differentiation")));
    Ok(())
}
