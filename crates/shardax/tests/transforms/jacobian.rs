//! Jacobians and Hessians of trees. (JAX's `jacfwd`, `jacrev` and `hessian` return the same shapes for the same
//! functions.)

use shardax::prelude::*;

use crate::{close, message, noise, numbers};

#[derive(Tree, Clone)]
struct Params {
    w: Array,
    b: Array,
}

fn params() -> Params {
    Params { w: noise([3, 2]), b: noise([3]) }
}

fn layer(p: Params, x: Array) -> Array {
    (p.w.dot(x) + p.b).tanh()
}

#[test]
fn a_tree_of_parameters_in_both_modes() -> Result<()> {
    let (p, x) = (params(), noise([2]));
    let (forward, reverse) = (jacfwd(layer).call((&p, &x))?, jacrev(layer).call((&p, &x))?);
    assert_eq!((forward.w.shape(), forward.b.shape()), (&[3, 3, 2][..], &[3, 3][..]));
    close(&forward.w, &reverse.w);
    close(&forward.b, &reverse.b);
    // Each row is a gradient.
    for i in 0..3 {
        let row = grad(move |p: Params, x: Array| layer(p, x).get(i)).call((&p, &x))?;
        close(&reverse.w.get(i), &row.w);
        close(&reverse.b.get(i), &row.b);
    }
    Ok(())
}

#[test]
fn several_arguments_in_any_order() -> Result<()> {
    let (p, x) = (params(), noise([2]));
    let (by_x, by_p) = jacrev(layer).argnums((Arg::<1>, Arg::<0>)).call((&p, &x))?;
    assert_eq!((by_x.shape(), by_p.w.shape()), (&[3, 2][..], &[3, 3, 2][..]));
    let (again, _) = jacfwd(layer).argnums((Arg::<1>, Arg::<0>)).call((&p, &x))?;
    close(&again, &by_x);
    close(&jacfwd(layer).argnums(Arg::<1>).call((&p, &x))?, &by_x);
    close(&jit(jacrev(layer).argnums(Arg::<1>)).call((&p, &x))?, &by_x);
    Ok(())
}

#[test]
fn results_that_are_trees() -> Result<()> {
    fn f(x: Array) -> (Vec<Array>, Array) {
        (vec![&x * 2, x.square()], x.sum(..))
    }
    let x = noise([2]);
    let (list, sum) = jacfwd(f).call(&x)?;
    close(&list[0], &(eye(2) * 2));
    close(&list[1], &(eye(2) * (&x * 2)));
    assert_eq!((list.len(), numbers(&sum)), (2, vec![1.0, 1.0]));
    let (again, _) = jacrev(f).call(&x)?;
    close(&again[1], &list[1]);
    // A struct of results: the parts are found by their key paths.
    fn split(x: Array) -> Params {
        Params { w: x.square(), b: x.sum(..) }
    }
    let rows = jit(jacrev(split)).call(&x)?;
    close(rows.get(".w")?, &list[1]);
    assert_eq!(rows.iter().map(|(path, _)| path).collect::<Vec<_>>(), [".w", ".b"]);
    assert!(message(rows.get(".c")).contains("no leaf at the key path \".c\": its leaves are [\".w\", \".b\"]"));
    Ok(())
}

#[test]
fn aux_passes_through() -> Result<()> {
    fn f(p: Params, x: Array) -> (Array, (Array, Array)) {
        (layer(p, x.clone()), (x.sum(..), array([7])))
    }
    let (p, x) = (params(), noise([2]));
    for (rows, (sum, seven)) in [jacfwd(f).has_aux().call((&p, &x))?, jacrev(f).has_aux().call((&p, &x))?] {
        close(&rows.w, &jacfwd(layer).call((&p, &x))?.w);
        close(&sum, &x.sum(..));
        assert_eq!(seven.to_vec::<i32>()?, [7]);
    }
    fn loss(x: Array) -> (Array, i32) {
        ((&x * &x * &x).sum(..), x.size() as i32)
    }
    let (second, size) = hessian(loss).has_aux().call(&x)?;
    close(&second, &(eye(2) * (&x * 6)));
    assert_eq!(size, 2);
    Ok(())
}

#[test]
fn second_derivatives_of_trees() -> Result<()> {
    fn loss((w, b): (Array, Array), x: Array) -> Array {
        (w.dot(x) + b).sum(..).square()
    }
    let (w, b, x) = (noise([3, 2]), noise([3]), noise([2]));
    let ((ww, wb), (bw, bb)) = hessian(loss).call(((w.clone(), b.clone()), &x))?;
    let shapes = [ww.shape(), wb.shape(), bw.shape(), bb.shape()];
    assert_eq!(shapes, [&[3, 2, 3, 2][..], &[3, 2, 3], &[3, 3, 2], &[3, 3]]);
    close(&bb, &(ones([3, 3]) * 2));
    close(&wb.transpose([2, 0, 1]), &bw);
    // By another argument.
    let by_x = hessian(loss).argnums(Arg::<1>).call(((w.clone(), b.clone()), &x))?;
    let s = w.sum(0);
    close(&by_x, &(outer(&s, &s) * 2));
    // A struct: its blocks are found by their paths.
    let blocks = hessian(|p: Params, x: Array| layer(p, x).sum(..)).call((params(), &x))?;
    assert_eq!(blocks.get(".w")?.b.shape(), [3, 2, 3]);
    Ok(())
}

#[test]
fn inside_other_transformations() -> Result<()> {
    fn f(x: Array) -> Array {
        x.sin()
    }
    let xs = noise([4, 3]);
    let rows = vmap(jacrev(f)).call(&xs)?;
    assert_eq!(rows.shape(), [4, 3, 3]);
    close(&rows.get(2), &jacfwd(f).call(xs.get(2))?);
    let trace = grad(|x: Array| -> Result<Array> { Ok(jacfwd(f).call(x)?.trace()) }).call(xs.get(0))?;
    close(&trace, &-xs.get(0).sin());
    Ok(())
}

#[test]
fn jacobians_reject_integers() -> Result<()> {
    let text = message(jacrev(|x: Array| x.argmax(0)).call(noise([2])));
    assert!(text.contains("jacrev requires real- or complex-valued outputs, but got int32[]"), "{text}");
    let text = message(jacfwd(|x: Array| x * 2.0).call(array([1, 2])));
    assert!(text.contains("jacfwd requires real- or complex-valued inputs, but got int32[2]"), "{text}");
    // As in JAX, forward mode returns float0 for integers.
    assert_eq!(jacfwd(|x: Array| x.argmax(0)).call(noise([2]))?.type_name(), "float0[2]");
    assert_eq!(jacrev(|x: Array| x * 2).call(zeros([0]))?.shape(), [0, 0]);
    Ok(())
}
