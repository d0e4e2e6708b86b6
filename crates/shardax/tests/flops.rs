//! The floating-point operations of programs, against formulas.

mod common;
use common::setup;
use shardax::Function;
use shardax::prelude::*;
use shardax::program::Flops;

fn flops<Args: Tree, F: Function<Args>>(f: F, args: impl shardax::function::IntoArgs<Args>) -> Result<Flops> {
    Ok(jit(f).lower(args)?.program().flops())
}

fn float(shape: &[usize]) -> Array {
    shape_dtype_struct(shape, DType::F32)
}

#[test]
fn products_are_counted_exactly() -> Result<()> {
    setup();
    let (b, m, k, n) = (3.0, 4.0, 5.0, 6.0);
    let shapes = (float(&[3, 4, 5]), float(&[3, 5, 6]));
    fn dot(x: Array, y: Array) -> Array {
        einsum("bmk,bkn->bmn", &[&x, &y])
    }
    assert_eq!(flops(dot, shapes.clone())?.matmuls, 2.0 * b * m * k * n);
    // Both cotangents are products of the same size.
    fn loss(x: Array, y: Array) -> Array {
        dot(x, y).square().sum(..)
    }
    let gradients = grad(loss).argnums((Arg::<0>, Arg::<1>));
    assert_eq!(flops(gradients, shapes)?.matmuls, 3.0 * 2.0 * b * m * k * n);
    // Of complex numbers four products each.
    let z = shape_dtype_struct([2, 2], DType::Complex64);
    assert_eq!(flops(|z: Array| z.dot(&z), z)?.matmuls, 4.0 * 16.0);
    Ok(())
}

#[test]
fn convolutions_and_their_gradients() -> Result<()> {
    setup();
    // With strides of 2, the gradient convolves a dilated operand. Only its actual elements count.
    let conv =
        |x: Array, w: Array| lax::conv_general_dilated(x, w, [2, 2], lax::Padding::Same, lax::ConvOptions::new());
    let args = (float(&[2, 3, 8, 8]), float(&[16, 3, 2, 2]));
    let once = 2.0 * (2 * 16 * 4 * 4) as f64 * (3 * 2 * 2) as f64;
    assert_eq!(flops(conv, args.clone())?.matmuls, once);
    let loss = move |x: Array, w: Array| conv(x, w).square().sum(..);
    assert_eq!(flops(grad(loss).argnums((Arg::<0>, Arg::<1>)), args)?.matmuls, 3.0 * once);
    Ok(())
}

#[test]
fn loops_branches_and_devices() -> Result<()> {
    setup();
    let (w, x) = (float(&[7, 8, 8]), float(&[4, 8]));
    fn layers(w: Array, x: Array) -> Result<Array> {
        Ok(scan(|x: Array, w: Array| -> Result<(Array, ())> { Ok((x.dot(w), ())) }, x, w)?.0)
    }
    // A scan counts its body for each step, a branch the more expensive side, a loop of unknown length one run, and
    // `shard_map` the work of all devices.
    let once = 2.0 * 4.0 * 8.0 * 8.0;
    assert_eq!(flops(layers, (w, x.clone()))?.matmuls, 7.0 * once);

    fn branches(p: Array, x: Array, w: Array) -> Result<Array> {
        cond(p, |(x, w): (Array, Array)| x.dot(&w).dot(w), |(x, _): (Array, Array)| x, (x, w))
    }
    let choice = shape_dtype_struct((), DType::Bool);
    assert_eq!(flops(branches, (choice, x.clone(), float(&[8, 8])))?.matmuls, 2.0 * once);

    fn until(x: Array, w: Array) -> Result<(Array, Array)> {
        while_loop(|(x, _): (Array, Array)| x.sum(..).less(1e3), |(x, w): (Array, Array)| (x.dot(&w), w), (x, w))
    }
    let counted = flops(until, (x, float(&[8, 8])))?;
    assert_eq!((counted.matmuls, counted.unbounded_loops), (once, 1));

    let mesh = make_mesh([("i", 8)])?;
    let per_device = shard_map(|x: Array, w: Array| x.dot(w), &mesh).in_specs((P!["i"], P![])).out_specs(P!["i"]);
    assert_eq!(flops(per_device, (float(&[32, 8]), float(&[8, 8])))?.matmuls, 8.0 * once);
    Ok(())
}

#[test]
fn flops_that_checkpoint_repeats_are_reported() -> Result<()> {
    setup();
    fn layer(x: Array, w: Array) -> Array {
        x.dot(w).tanh()
    }
    let loss = |again: bool| {
        move |w: Array, x: Array| -> Result<Array> {
            fn step(x: Array, w: Array, again: bool) -> Result<(Array, ())> {
                Ok((if again { checkpoint(layer).call((x, w))? } else { layer(x, w) }, ()))
            }
            Ok(scan(|x: Array, w: Array| step(x, w, again), x, w)?.0.square().sum(..))
        }
    };
    fn args() -> (Array, Array) {
        (float(&[5, 8, 8]), float(&[4, 8]))
    }
    let once = 5.0 * 2.0 * 4.0 * 8.0 * 8.0;
    let with_policy = flops(grad(loss(false)), args())?;
    let recomputed = flops(grad(loss(true)), args())?;
    assert_eq!((with_policy.matmuls, with_policy.recomputed), (3.0 * once, 0.0));
    assert_eq!((recomputed.matmuls, recomputed.recomputed), (4.0 * once, once));
    assert_eq!(recomputed.model(), with_policy.matmuls);
    Ok(())
}

#[test]
fn decompositions_and_elementwise() -> Result<()> {
    setup();
    let n = 16.0;
    let spd = float(&[3, 16, 16]);
    assert_eq!(flops(|x: Array| linalg::cholesky(x), &spd)?.matmuls, 3.0 * n * n * n / 3.0);
    let x = float(&[10, 10]);
    assert_eq!(flops(|x: Array| (x.exp() + 1.0).sum(..), &x)?.elementwise, 300.0);
    let ints = shape_dtype_struct([10], DType::I32);
    assert_eq!(flops(|x: Array| x + 1, ints)?, Flops::default());
    Ok(())
}
