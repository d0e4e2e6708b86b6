//! `vmap` of trees, of nothing, and along any axis.

use std::collections::BTreeMap;

use shardax::prelude::*;

use crate::common::quick::setup;
use crate::{close, message, noise, numbers, ramp};

#[test]
fn axes_of_every_kind() -> Result<()> {
    setup();
    let x = noise([2, 3, 4]);
    for (i, o) in [(0, 0), (-1, 0), (1, -1), (-3, -2), (2, 1)] {
        let y = vmap(|x: Array| x * 2).in_axes([i]).out_axes(o).call(&x)?;
        close(&y.moveaxis(o, 0), &(x.moveaxis(i, 0) * 2));
    }
    type Dict = BTreeMap<String, Array>;
    let dict: Dict = [("b".to_owned(), ramp([3, 2])), ("a".to_owned(), ramp(3))].into();
    let f = vmap(|d: Dict, n: Option<Array>, (): ()| (&d["a"] + d["b"].sum(..), n, ()));
    let (y, none, ()) = f.call((&dict, None::<Array>, ()))?;
    assert!(none.is_none());
    close(&y, &(ramp(3) + ramp([3, 2]).sum(1)));
    // The keys of a map are in order: "a" comes first.
    let f = vmap(|d: Dict| &d["a"] + &d["b"]).in_axes(([Some(0), None],));
    assert_eq!(f.call(&dict)?.shape(), [3, 3, 2]);
    Ok(())
}

#[test]
fn results_that_do_not_depend_on_the_axis() -> Result<()> {
    setup();
    let f = vmap(|_: Array| (ones(2), ())).out_axes((1, 0));
    assert_eq!(f.call(ramp(3))?.0.shape(), [2, 3]);
    let f = vmap(|x: Array| (ones(2), psum(x, "i"))).axis_name("i").out_axes(None);
    let (a, b) = f.call(ramp(3))?;
    assert_eq!((a.shape(), numbers(&b)), (&[2][..], vec![3.0]));
    vmap(|_: Array| ()).call(ramp(3))?;
    assert!(message(vmap(|x: (), _: ()| x).call(((), ()))).contains("at least one non-None value in in_axes"));
    Ok(())
}

/// The innermost axis of a name is meant.
#[test]
fn shadowed_names() -> Result<()> {
    setup();
    fn inner(x: Array) -> Result<Array> {
        vmap(|x: Array| psum(x, "i") * axis_index("i")).axis_name("i").call(x)
    }
    let y = vmap(inner).axis_name("i").call(ramp([2, 3]))?;
    close(&y, &(ramp([2, 3]).sum_keepdims(1) * ramp(3)));
    fn after(x: Array) -> Result<Array> {
        let y = vmap(|x: Array| psum(x, "i")).axis_name("i").out_axes(None).call(&x)?;
        Ok(y + psum(x, "i"))
    }
    let y = vmap(after).axis_name("i").call(ramp([2, 3]))?;
    close(&y, &(ramp([2, 3]).sum_keepdims(1) + ramp([2, 3]).sum_keepdims(0)));
    Ok(())
}

/// Collectives of values that are not batched.
#[test]
fn constants_under_collectives() -> Result<()> {
    setup();
    fn f(x: Array, w: Array) -> Result<Vec<Array>> {
        Ok(vec![
            psum(&w * 2, "i") + &x * 0,
            pmean(&w * 2, "i") + &x * 0,
            pmax(&w * 2, "i") + &x * 0,
            all_gather(&w * 2, "i", 0).sum(0) + &x * 0,
            psum_scatter(w.broadcast_to([4, 2]) * 2, "i", 0) + &x * 0,
            all_to_all(w.broadcast_to([4, 2]) * 2, "i", 0, 0).sum(0) + &x * 0,
            ppermute(&w * 2, "i", [(0, 1), (1, 0)]) + &x * 0,
            pbroadcast(&w * 2, "i", 1) + &x * 0,
            psum(Array::from(1), "i") + axis_size("i")? as i32 + x,
        ])
    }
    let (x, w) = (noise([4, 2]), ramp(2));
    // `vmap` and `pmap` treat the unbatched value as equal on all members of the axis.
    let batched = vmap(f).in_axes((0, None)).axis_name("i").call((&x, &w))?;
    let devices = pmap(f).in_axes((0, None)).axis_name("i").call((&x, &w))?;
    batched.iter().zip(&devices).for_each(|(a, b)| close(a, b));
    fn total(x: Array, w: Array) -> Result<Array> {
        Ok(vmap(f)
            .in_axes((0, None))
            .axis_name("i")
            .call((x, w))?
            .iter()
            .map(|y| y.sin().sum(..))
            .fold(zeros(()), |a, b| a + b))
    }
    fn mapped(x: Array, w: Array) -> Result<Array> {
        Ok(pmap(f)
            .in_axes((0, None))
            .axis_name("i")
            .call((x, w))?
            .iter()
            .map(|y| y.sin().sum(..))
            .fold(zeros(()), |a, b| a + b))
    }
    let slope = grad(total).argnums(Arg::<1>).call((&x, &w))?;
    close(&grad(mapped).argnums(Arg::<1>).call((&x, &w))?, &slope);
    Ok(())
}

/// Many batching rules read an entry, or divide by the number of entries.
#[test]
fn batches_without_entries() -> Result<()> {
    setup();
    let (x, i) = (zeros([0, 4]), zeros_dtype(0, DType::I32));
    let at = |f: fn(Array, Array) -> Array| vmap(f).call((&x, &i));
    let of = |f: fn(Array) -> Array| vmap(f).call(&x);
    let cases = [
        (at(|x, i| x.get(i))?, &[0][..]),
        (at(|x, i| x.at(i).set(1.0))?, &[0, 4]),
        (at(|x, i| x.at(stack([&i, &(&i + 1)], 0)).add(1.0))?, &[0, 4]),
        (at(|x, i| lax::dynamic_slice(&x, &[i], &[2]))?, &[0, 2]),
        (at(|x, i| lax::dynamic_update_slice(&x, ones(2), &[i]))?, &[0, 4]),
        (of(|x| x.take_along_axis(x.argsort(0), 0))?, &[0, 4]),
        (of(|x| shardax::numpy::convolve(&x, ones(2), shardax::numpy::ConvolveMode::Full))?, &[0, 5]),
        (of(|x| nn::max_pool(x.reshape([1, 4, 1]), [2], [2]))?, &[0, 1, 2, 1]),
        (of(|x| lax::top_k(&x, 2).0)?, &[0, 2]),
        (vmap(|i: Array| random::normal(random::key(i.astype(DType::U32)), 3)).call(&i)?, &[0, 3]),
        (vmap(grad(|x: Array| x.get(0).sin() * x.at(1).set(2.0).sum(..))).call(&x)?, &[0, 4]),
        (grad(|x: Array| Ok::<_, Error>(vmap(|x: Array| x.get(0).sin()).call(x)?.sum(..))).call(&x)?, &[0, 4]),
        (vmap(|x: Array| vmap(|y: Array| y.at(0).set(1.0)).call(x)).call(zeros([2, 0, 4]))?, &[2, 0, 4]),
    ];
    for (i, (result, shape)) in cases.into_iter().enumerate() {
        assert_eq!((result.shape(), result.to_vec::<f32>()?.len()), (shape, 0), "case {i}");
    }
    // A collective over the batch is the same for all entries, so it has a value without entries too.
    let sum = vmap(|x: Array| psum(x, "batch")).axis_name("batch").out_axes(None).call(&x)?;
    assert_eq!(sum.to_vec::<f32>()?, [0.0; 4]);
    Ok(())
}
