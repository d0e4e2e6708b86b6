//! `pmap`: axes, devices, results, errors. Names that begin with `test_` are those of JAX's own cases.

use std::collections::BTreeMap;

use shardax::ErrorKind;
use shardax::prelude::*;

use crate::common::setup;
use crate::{close, message, numbers, ramp};

#[test]
fn test_basic() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    let y = pmap(|x: Array| &x - psum(x.clone(), "i")).axis_name("i").call(&x)?;
    assert_eq!(numbers(&y), numbers(&(&x - x.sum(0))));
    Ok(())
}

#[test]
fn test_default_device_ordering() -> Result<()> {
    setup();
    let y = pmap(|x: Array| x).call(arange(0..8))?;
    assert_eq!(y.devices()?, devices()?);
    Ok(())
}

#[test]
fn test_mismatched_axis_sizes() {
    setup();
    let f = pmap(|x: Array, y: Array| x + y);
    let text = message(f.call((ones([8, 2]), ones([4, 2]))));
    assert!(text.contains("inconsistent sizes") && text.contains('8') && text.contains('4'), "{text}");
}

#[test]
fn test_device_count_error() -> Result<()> {
    setup();
    let error = pmap(|x: Array| x).call(ones([9, 1])).err().expect("too many slices");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.to_string().contains("requires 9 logical devices"), "{error}");
    let nested = pmap(|x: Array| pmap(|y: Array| y).call(x)).call(ones([2, 2]));
    assert!(message(nested).contains("should match the mesh passed to shard_map"));
    Ok(())
}

#[test]
fn test_in_axes_py_tree_prefix_mismatch_error() {
    setup();
    let f = pmap(|x: (Array, Array)| x.0 + x.1).in_axes((((0, 0), 0),));
    let text = message(f.call((ones(8), ones(8))));
    assert!(text.contains("pmap in_axes[0][0]"), "{text}");
}

#[test]
fn test_out_axes_py_tree_prefix_mismatch_error() {
    setup();
    let f = pmap(|x: Array| (x.clone(), x)).out_axes((0, 0, 0));
    let text = message(f.call(ones(8)));
    assert!(text.contains("pmap out_axes") && text.contains("3 entries") && text.contains('2'), "{text}");
}

#[test]
fn test_pmap_in_axes_basic() -> Result<()> {
    setup();
    let (x, y) = (ramp([3, 8]), ramp([2, 3, 8]));
    let z = pmap(|x: Array, y: Array| &y * x.sum(..)).in_axes((1, 2)).call((&x, &y))?;
    let want = y.transpose(&[2, 0, 1]) * x.sum(0).reshape([8, 1, 1]);
    assert_eq!(numbers(&z), numbers(&want));
    Ok(())
}

#[test]
fn test_pmap_out_axes_basic() -> Result<()> {
    setup();
    let x = ramp([8, 2, 3]);
    let (a, b) = pmap(|x: Array| (x.clone(), psum(x, "i"))).axis_name("i").out_axes((2, None)).call(&x)?;
    assert_eq!(numbers(&a), numbers(&x.moveaxis(0, 2)));
    assert_eq!(numbers(&b), numbers(&x.sum(0)));
    assert!(b.is_fully_replicated());
    // Negative axes count from the end.
    let c = pmap(|x: Array| x).in_axes(-1).out_axes(-1).call(x.moveaxis(0, 2))?;
    assert_eq!((c.shape(), numbers(&c)), (&[2, 3, 8][..], numbers(&x.moveaxis(0, 2))));
    Ok(())
}

#[test]
fn test_pmap_array_in_axes_out_axes() -> Result<()> {
    setup();
    let f = pmap(|x: Array, y: Array| {
        assert_eq!(y.shape(), [8, 2]);
        (x + y.sum(..), y)
    })
    .in_axes((0, None))
    .out_axes((0, None));
    let (a, b) = f.call((ramp([8, 2]), ramp([8, 2])))?;
    assert_eq!((a.shape(), b.shape()), (&[8, 2][..], &[8, 2][..]));
    Ok(())
}

#[test]
fn test_trees() -> Result<()> {
    setup();
    type Dict = BTreeMap<String, Array>;
    let tree: Dict = [("a".to_owned(), ramp(8)), ("b".to_owned(), ramp([8, 2]))].into();
    let out = pmap(|t: Dict| psum(t, "i")).axis_name("i").call(&tree)?;
    assert_eq!(numbers(&out["a"]), [28.0; 8]);
    assert_eq!(numbers(&out["b"]), numbers(&tree["b"].sum_keepdims(0).broadcast_to([8, 2])));
    Ok(())
}

#[test]
fn test_pmap_constant() -> Result<()> {
    setup();
    let constant = ramp(4);
    let traces = std::sync::atomic::AtomicUsize::new(0);
    let f = pmap(|x: Array| {
        traces.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        x + &constant
    });
    let first = f.call(ramp([8, 4]))?;
    f.call(ramp([8, 4]))?;
    assert_eq!(numbers(&first), numbers(&(ramp([8, 4]) + &constant)));
    assert_eq!(traces.load(std::sync::atomic::Ordering::SeqCst), 1);
    Ok(())
}

#[test]
fn test_wrapped() -> Result<()> {
    setup();
    let f = pmap(|x: Array| x + 1);
    assert_eq!(f.wrapped()(ones(2)).shape(), [2]);
    Ok(())
}

#[test]
fn test_pmap_static_argnums() -> Result<()> {
    setup();
    fn double(x: Array) -> Array {
        x * 2
    }
    let f = pmap(|x: Array, g: Static<fn(Array) -> Array>| (g.0)(x)).in_axes((0, None));
    let y = f.call((ramp(8), Static(double as fn(Array) -> Array)))?;
    assert_eq!(numbers(&y), numbers(&(ramp(8) * 2)));
    Ok(())
}

#[test]
fn test_static_argnum_on_method() -> Result<()> {
    setup();
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct Scale(i32);
    impl Scale {
        fn apply(&self, x: Array) -> Array {
            x * self.0
        }
    }
    let f = pmap(|this: Static<Scale>, x: Array| this.apply(x));
    assert_eq!(f.call((Static(Scale(3)), arange(0..8)))?.to_vec::<i32>()?[7], 21);
    assert_eq!(f.call((Static(Scale(4)), arange(0..8)))?.to_vec::<i32>()?[7], 28);
    Ok(())
}

#[test]
fn test_no_devices_error() {
    setup();
    let text = message(pmap(|x: Array| x).devices(Vec::new()).call(ones(8)));
    assert!(text.contains("'devices' argument to pmap must be non-empty, or None."), "{text}");
}

#[test]
fn test_one_device() -> Result<()> {
    setup();
    for device in devices()?.iter().take(2) {
        let y = pmap(|x: Array| x * 2).devices(vec![device.clone()]).call(ramp([1, 3]))?;
        assert_eq!(y.devices()?, std::slice::from_ref(device));
        assert_eq!(numbers(&y), [0.0, 2.0, 4.0]);
    }
    Ok(())
}

#[test]
fn test_pmap_array_devices_mismatch() -> Result<()> {
    setup();
    let mut reversed = devices()?;
    reversed.reverse();
    let mesh = Mesh::new(reversed, [("x", 8)])?;
    let x = device_put(&ramp([8, 2]), &NamedSharding::new(&mesh, P!["x"]))?;
    let y = pmap(|x: Array| x + 1).call(&x)?;
    assert_eq!(numbers(&y), numbers(&(ramp([8, 2]) + 1)));
    Ok(())
}

#[test]
fn test_axis_name_shadowing_with_vmap() -> Result<()> {
    setup();
    // The innermost binding of the name is meant.
    let f = pmap(|x: Array| vmap(|y: Array| psum(y, "i")).axis_name("i").call(x)).axis_name("i");
    let y = f.call(ramp([8, 3]))?;
    assert_eq!(numbers(&y), numbers(&ramp([8, 3]).sum_keepdims(1).broadcast_to([8, 3])));
    let g = vmap(pmap(|y: Array| psum(y, "i")).axis_name("i")).axis_name("i");
    let z = g.call(ramp([3, 8]))?;
    assert_eq!(numbers(&z), numbers(&ramp([3, 8]).sum_keepdims(1).broadcast_to([3, 8])));
    Ok(())
}

#[test]
fn test_same_out_sharding_id() -> Result<()> {
    setup();
    let f = pmap(|x: Array| x + 1);
    let a = f.call(ramp([8, 2]))?;
    let b = f.call(&a)?;
    assert_eq!(a.sharding()?, b.sharding()?);
    // One object, not only equal: the comparison on the next call is one of pointers.
    let (a, b) = (a.sharding()?, b.sharding()?);
    let same = a.as_named().zip(b.as_named()).map(|(a, b)| std::ptr::eq(a.mesh().devices(), b.mesh().devices()));
    assert_eq!(same, Some(true));
    Ok(())
}

#[test]
fn test_jit_pmap_composition() -> Result<()> {
    setup();
    let f = |x: Array| &x - psum(x.clone(), "i");
    let x = ramp([8, 4]);
    let want = numbers(&(&x - x.sum(0)));
    assert_eq!(numbers(&jit(pmap(f).axis_name("i")).call(&x)?), want);
    assert_eq!(numbers(&pmap(jit(f)).axis_name("i").call(&x)?), want);
    Ok(())
}

#[test]
fn test_vmap_of_pmap_non_leading_axis() -> Result<()> {
    setup();
    let x = ramp([8, 2, 3]);
    let y = vmap(pmap(|x: Array| x)).in_axes(2).out_axes(2).call(&x)?;
    assert_eq!((y.shape(), numbers(&y)), (x.shape(), numbers(&x)));
    Ok(())
}

#[test]
fn test_grad_of_psum() -> Result<()> {
    setup();
    let f = |x: Array| -> Result<Array> {
        Ok(pmap(|x: Array| psum(x.sin(), "i") * &x).axis_name("i").call(x)?.square().sum(..))
    };
    let g = move |x: Array| -> Result<Array> { Ok(grad(f).call(x)?.square().sum(..)) };
    let x = ramp(8) / 10.0 + 0.1;
    let exact = grad(g).call(&x)?;
    let d = (&x * 5.0).cos();
    let numeric = (g(&x + &d * 1e-2)?.to_f64()? - g(&x - &d * 1e-2)?.to_f64()?) / 2e-2;
    let along = (exact * d).sum(..).to_f64()?;
    assert!((numeric - along).abs() < 1e-2 * along.abs(), "{numeric} and {along}");
    Ok(())
}

#[test]
fn test_axis_index_in_initial_style() -> Result<()> {
    setup();
    let f = pmap(|x: Array| -> Result<Array> {
        let (total, _) = shardax::scan(
            |carry: Array, x: Array| (carry + &x * axis_index("i"), x),
            &x * 0,
            stack(&[x.clone(), x.clone()], 0),
        )?;
        Ok(total)
    })
    .axis_name("i");
    assert_eq!(f.call(ones(8))?.to_f64_vec()?, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
    Ok(())
}

#[test]
fn test_arrays() -> Result<()> {
    setup();
    let y = pmap(|x: Array| x + 1).call(ramp([8, 2]))?;
    assert_eq!(numbers(&pmap(|x: Array| x * 2).call(&y)?), numbers(&((ramp([8, 2]) + 1) * 2)));
    assert_eq!(numbers(&jit(|x: Array| x * 2).call(&y)?), numbers(&((ramp([8, 2]) + 1) * 2)));
    let mut reversed = devices()?;
    reversed.reverse();
    let z = pmap(|x: Array| x * 3).devices(reversed.clone()).call(&y)?;
    assert_eq!(z.devices()?, reversed);
    assert_eq!(numbers(&z), numbers(&((ramp([8, 2]) + 1) * 3)));
    Ok(())
}

#[test]
fn test_delete_is_idempotent() -> Result<()> {
    setup();
    let y = pmap(|x: Array| x + 1).call(ramp([8, 2]))?;
    y.delete()?;
    y.delete()?;
    let error = y.to_bytes().err().expect("deleted");
    assert_eq!(error.kind(), ErrorKind::Deleted);
    assert!(error.to_string().contains("Array has been deleted with shape=float32[8,2]"), "{error}");
    assert!((&y + 1).to_bytes().is_err());
    Ok(())
}

#[test]
fn test_int_arg_with_in_axes_none() -> Result<()> {
    setup();
    let f = pmap(|x: Array, n: Array| x * n).in_axes((0, None));
    assert_eq!(f.call((arange(0..8), 3))?.to_vec::<i32>()?[7], 21);
    Ok(())
}

#[test]
fn test_psum_on_boolean_dtype() -> Result<()> {
    setup();
    let x = arange(0..8).less(3);
    let total = pmap(|x: Array| psum(x, "i")).axis_name("i").call(&x)?;
    assert_eq!(total.to_vec::<i32>()?, [3; 8]);
    let mean = pmap(|x: Array| pmean(x, "i")).axis_name("i").call(&x)?;
    assert_eq!(mean.to_vec::<f32>()?, [0.375; 8]);
    Ok(())
}

#[test]
fn test_prng_key() -> Result<()> {
    setup();
    let keys = shardax::random::split(&shardax::random::key(0), 8);
    let out = pmap(|k: Array| k).call(&keys)?;
    assert_eq!((out.dtype(), out.to_bytes()?), (keys.dtype(), keys.to_bytes()?));
    Ok(())
}

#[test]
fn test_float0_dtype_input() -> Result<()> {
    setup();
    let zeros = Array::from_bytes(&[0; 16], DType::Float0, &[8, 2])?;
    let out = pmap(|x: Array, z: Array| {
        assert_eq!(z.dtype(), DType::Float0);
        x * 2
    })
    .call((ramp([8, 2]), &zeros))?;
    assert_eq!(numbers(&out), numbers(&(ramp([8, 2]) * 2)));
    Ok(())
}

/// Random numbers on every device are those of its key.
#[test]
fn test_pmap_of_prng_key() -> Result<()> {
    setup();
    let keys = random::split(&random::key(7), 8);
    let draw = |k: Array| {
        let k = random::fold_in(&k, 3);
        (random::normal(&k, [4]), random::randint(&k, [4], 0, 100), random::permutation(&k, 6))
    };
    let (a, b, c) = pmap(draw).call(&keys)?;
    let (x, y, z) = vmap(draw).call(&keys)?;
    close(&a, &x);
    assert_eq!(b.to_vec::<i32>()?, y.to_vec::<i32>()?);
    assert_eq!(c.to_vec::<i32>()?, z.to_vec::<i32>()?);
    let here = |k: Array| random::bernoulli(&random::fold_in(&k, axis_index("i")), 0.5, [16]);
    let coins = pmap(here).axis_name("i").in_axes(None).call(random::key(0));
    assert!(message(coins).contains("at least one argument with a mapped axis"));
    let coins = pmap(here).axis_name("i").call(&keys)?;
    assert_eq!(coins.to_vec::<bool>()?, vmap(here).axis_name("i").call(&keys)?.to_vec::<bool>()?);
    Ok(())
}

#[test]
fn test_pmap_dict_out_axes() -> Result<()> {
    setup();
    type Dict = BTreeMap<String, Array>;
    let dict = |x: &Array| -> Dict { [("a".to_owned(), x.clone()), ("b".to_owned(), x * 2)].into() };
    let y = pmap(move |x: Array| dict(&x)).out_axes([0, 1]).call(ramp([8, 3]))?;
    close(&y["a"], &ramp([8, 3]));
    close(&y["b"], &(ramp([8, 3]) * 2).t());
    let text = message(pmap(move |x: Array| dict(&x)).out_axes([0, 0, 0]).call(ramp([8, 3])));
    assert!(text.contains("pmap out_axes tree prefix error"), "{text}");
    Ok(())
}
