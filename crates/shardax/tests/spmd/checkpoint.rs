//! `checkpoint` by itself, in loops, and inside and around `pmap` and `shard_map`.

use shardax::prelude::*;
use shardax::program::Program;

use crate::common::quick::setup;
use crate::{close, noise};

fn count(program: &Program, name: &str) -> usize {
    let mut n = 0;
    program.for_each_eqn(&mut |eqn| n += (eqn.primitive.name() == name) as usize);
    n
}

fn layer(w: Array, x: Array) -> Array {
    (x.dot(&w)).sin().tanh()
}

#[test]
fn derivatives_are_the_same() -> Result<()> {
    setup();
    let (w, x) = (noise([4, 4]), noise([3, 4]));
    fn plain(w: Array, x: Array) -> Array {
        layer(w.clone(), layer(w, x)).square().sum(..)
    }
    fn saved(w: Array, x: Array) -> Result<Array> {
        let f = checkpoint(layer);
        Ok(f.call((w.clone(), f.call((w, x))?))?.square().sum(..))
    }
    let argnums = (Arg::<0>, Arg::<1>);
    let (v, (gw, gx)) = value_and_grad(saved).argnums(argnums).call((&w, &x))?;
    let (pv, (pw, px)) = value_and_grad(plain).argnums(argnums).call((&w, &x))?;
    close(&v, &pv);
    close(&gw, &pw);
    close(&gx, &px);
    close(&jit(grad(saved)).call((&w, &x))?, &pw);
    close(
        &jvp(saved, (&w, &x), (ones_like(&w), ones_like(&x)))?.1,
        &jvp(plain, (&w, &x), (ones_like(&w), ones_like(&x)))?.1,
    );
    let (_, push) = linearize(saved, (&w, &x))?;
    close(&push.call((ones_like(&w), ones_like(&x)))?, &jvp(plain, (&w, &x), (ones_like(&w), ones_like(&x)))?.1);
    fn twice(f: &dyn Fn(Array, Array) -> Result<Array>, x: &Array, w: &Array) -> Result<Array> {
        let slope = |w: Array| grad(|w: Array| f(w, x.clone())).call(w);
        grad(|w: Array| -> Result<Array> { Ok(slope(w)?.square().sum(..)) }).call(w)
    }
    close(&twice(&saved, &x, &w)?, &twice(&|w, x| Ok(plain(w, x)), &x, &w)?);
    fn hvp(f: &dyn Fn(Array, Array) -> Result<Array>, x: &Array, w: &Array) -> Result<Array> {
        Ok(jvp(|w: Array| grad(|w: Array| f(w, x.clone())).call(w), w, ones_like(w))?.1)
    }
    close(&hvp(&saved, &x, &w)?, &hvp(&|w, x| Ok(plain(w, x)), &x, &w)?);
    let xs = noise([5, 3, 4]);
    close(
        &vmap(grad(saved)).in_axes((None, 0)).call((&w, &xs))?,
        &vmap(grad(plain)).in_axes((None, 0)).call((&w, &xs))?,
    );
    fn batched(f: &dyn Fn(Array, Array) -> Result<Array>, xs: &Array, w: &Array) -> Result<Array> {
        let total = |w: Array| -> Result<Array> { Ok(vmap(|x: Array| f(w.clone(), x)).call(xs)?.sum(..)) };
        grad(total).call(w)
    }
    close(&batched(&saved, &xs, &w)?, &batched(&|w, x| Ok(plain(w, x)), &xs, &w)?);
    // Outside of any transformation it is the function itself.
    close(&checkpoint(layer).call((&w, &x))?, &layer(w, x));
    Ok(())
}

/// It is computed again: its sines occur twice, and behind a barrier.
#[test]
fn checkpointed_functions_are_recomputed() -> Result<()> {
    setup();
    fn f(x: Array) -> Result<Array> {
        Ok(checkpoint(|x: Array| x.sin().sin().sin()).call(x)?.sum(..))
    }
    let g = make_program(grad(f), noise(3))?;
    let plain = make_program(grad(|x: Array| x.sin().sin().sin().sum(..)), noise(3))?;
    assert_eq!((count(&g, "optimization_barrier"), count(&plain, "optimization_barrier")), (1, 0), "{g}");
    assert!(count(&g, "sin") > count(&plain, "sin"), "{g}");
    // Only the operand of each layer is stored for the backward pass.
    let deep = |save: bool| {
        move |w: Array, x: Array| -> Result<Array> {
            fn step(x: Array, w: Array, save: bool) -> Result<(Array, ())> {
                let y = if save { checkpoint(layer).call((w, x))? } else { layer(w, x) };
                Ok((y, ()))
            }
            Ok(scan(|x: Array, w: Array| step(x, w, save), x, w)?.0.sum(..))
        }
    };
    let (w, x) = (noise([6, 8, 8]), noise([64, 8]));
    close(&grad(deep(true)).call((&w, &x))?, &grad(deep(false)).call((&w, &x))?);
    let memory = |save: bool| -> Result<usize> {
        Ok(jit(grad(deep(save))).lower((&w, &x))?.compile()?.memory_analysis()?.temporaries as usize)
    };
    assert!(memory(true)? < memory(false)?);
    Ok(())
}

/// JAX: `test_remat_of_pmap`.
#[test]
fn checkpoint_inside_and_around_pmap() -> Result<()> {
    setup();
    let (w, x) = (noise([4, 4]), noise([8, 3, 4]));
    fn mapped(w: Array, x: Array) -> Result<Array> {
        pmap(layer).in_axes((None, 0)).call((w, x))
    }
    fn around(w: Array, x: Array) -> Result<Array> {
        Ok(checkpoint(mapped).call((w, x))?.sum(..))
    }
    let inside =
        |w: Array, x: Array| -> Result<Array> { Ok(pmap(checkpoint(layer)).in_axes((None, 0)).call((w, x))?.sum(..)) };
    fn plain(w: Array, x: Array) -> Result<Array> {
        Ok(mapped(w, x)?.sum(..))
    }
    let want = grad(plain).call((&w, &x))?;
    close(&grad(around).call((&w, &x))?, &want);
    close(&grad(inside).call((&w, &x))?, &want);
    close(&jit(grad(inside)).call((&w, &x))?, &want);
    Ok(())
}

/// JAX: `testAxisIndexRemat`.
#[test]
fn axis_index_in_recomputed_values() -> Result<()> {
    setup();
    fn f(k: Array) -> Array {
        random::bernoulli(&random::fold_in(&k, axis_index("i")), 0.5, [4])
    }
    let keys = random::split(&random::key(0), 8);
    let (a, b) = (pmap(checkpoint(f)).axis_name("i").call(&keys)?, pmap(f).axis_name("i").call(&keys)?);
    assert_eq!(a.to_vec::<bool>()?, b.to_vec::<bool>()?);
    Ok(())
}

/// JAX: `test_grad_remat`.
#[test]
fn checkpoint_inside_and_around_shard_map() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?;
    let (w, x) = (noise([4, 4]), noise([8, 4]));
    for check in [true, false] {
        fn body(w: Array, x: Array) -> Array {
            psum(layer(w, x).sum(0), "i")
        }
        fn inside(w: Array, x: Array, mesh: &Mesh, check: bool) -> Result<Array> {
            let f = shard_map(checkpoint(body), mesh).in_specs((P![], P!["i"])).out_specs(P![]).check_vma(check);
            Ok(f.call((w, x))?.square().sum(..))
        }
        fn plain(w: Array, x: Array, mesh: &Mesh, check: bool) -> Result<Array> {
            let f = shard_map(body, mesh).in_specs((P![], P!["i"])).out_specs(P![]).check_vma(check);
            Ok(f.call((w, x))?.square().sum(..))
        }
        fn around(w: Array, x: Array, mesh: &Mesh, check: bool) -> Result<Array> {
            checkpoint(|w: Array, x: Array| plain(w, x, mesh, check)).call((w, x))
        }
        let argnums = (Arg::<0>, Arg::<1>);
        let want = grad(|w: Array, x: Array| layer(w, x).sum(0).square().sum(..)).argnums(argnums).call((&w, &x))?;
        for got in [
            grad(|w: Array, x: Array| plain(w, x, &mesh, check)).argnums(argnums).call((&w, &x))?,
            grad(|w: Array, x: Array| inside(w, x, &mesh, check)).argnums(argnums).call((&w, &x))?,
            grad(|w: Array, x: Array| around(w, x, &mesh, check)).argnums(argnums).call((&w, &x))?,
            jit(grad(|w: Array, x: Array| inside(w, x, &mesh, check)).argnums(argnums)).call((&w, &x))?,
        ] {
            close(&got.0, &want.0);
            close(&got.1, &want.1);
        }
        // Inside of the body, where types track what varies.
        fn local(w: Array, x: Array) -> Result<Array> {
            checkpoint(layer).call((w, x)).map(|y| psum(y.sum(..), "i"))
        }
        let slope =
            shard_map(grad(local), &mesh).in_specs((P![], P!["i"])).out_specs(P![]).check_vma(check).call((&w, &x));
        fn reference(w: Array, x: Array) -> Array {
            psum(layer(w, x).sum(..), "i")
        }
        let want = shard_map(grad(reference), &mesh).in_specs((P![], P!["i"])).out_specs(P![]).check_vma(check);
        close(&slope?, &want.call((&w, &x))?);
    }
    Ok(())
}
