//! `pmap`: axes, devices, results, errors. `JAX:` names the case of JAX's tests that a test follows.

use std::collections::BTreeMap;

use shardax::ErrorKind;
use shardax::prelude::*;

use crate::common::quick::setup;
use crate::{close, message, numbers, ramp};

/// JAX: `testBasic`.
#[test]
fn pmap_subtracts_the_sum_over_devices() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    let y = pmap(|x: Array| &x - psum(x.clone(), "i")).axis_name("i").call(&x)?;
    assert_eq!(numbers(&y), numbers(&(&x - x.sum(0))));
    Ok(())
}

/// JAX: `testDefaultDeviceOrdering`.
#[test]
fn results_of_pmap_are_in_device_order() -> Result<()> {
    setup();
    let y = pmap(|x: Array| x).call(arange(0..8))?;
    assert_eq!(y.devices()?, devices()?);
    Ok(())
}

/// JAX: `testMismatchedAxisSizes`.
#[test]
fn arguments_of_different_mapped_sizes_are_an_error() {
    setup();
    let f = pmap(|x: Array, y: Array| x + y);
    let text = message(f.call((ones([8, 2]), ones([4, 2]))));
    assert!(text.contains("inconsistent sizes") && text.contains('8') && text.contains('4'), "{text}");
}

/// JAX: `testDeviceCountError`.
#[test]
fn more_slices_than_devices_are_an_error() -> Result<()> {
    setup();
    let error = pmap(|x: Array| x).call(ones([9, 1])).err().expect("too many slices");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.to_string().contains("requires 9 logical devices"), "{error}");
    let nested = pmap(|x: Array| pmap(|y: Array| y).call(x)).call(ones([2, 2]));
    assert!(message(nested).contains("should match the mesh passed to shard_map"));
    Ok(())
}

/// JAX: `testInAxesPyTreePrefixMismatchError`.
#[test]
fn in_axes_of_another_structure_name_the_place() {
    setup();
    let f = pmap(|x: (Array, Array)| x.0 + x.1).in_axes((((0, 0), 0),));
    let text = message(f.call((ones(8), ones(8))));
    assert!(text.contains("pmap in_axes[0][0]"), "{text}");
}

/// JAX: `testOutAxesPyTreePrefixMismatchError`.
#[test]
fn out_axes_of_another_structure_are_an_error() {
    setup();
    let f = pmap(|x: Array| (x.clone(), x)).out_axes((0, 0, 0));
    let text = message(f.call(ones(8)));
    assert!(text.contains("pmap out_axes") && text.contains("3 entries") && text.contains('2'), "{text}");
}

/// JAX: `testPmapInAxesBasic`.
#[test]
fn in_axes_map_axes_1_and_2() -> Result<()> {
    setup();
    let (x, y) = (ramp([3, 8]), ramp([2, 3, 8]));
    let z = pmap(|x: Array, y: Array| &y * x.sum(..)).in_axes((1, 2)).call((&x, &y))?;
    let want = y.transpose(&[2, 0, 1]) * x.sum(0).reshape([8, 1, 1]);
    assert_eq!(numbers(&z), numbers(&want));
    Ok(())
}

/// JAX: `testPmapOutAxesBasic`.
#[test]
fn out_axes_stack_along_axis_2_or_replicate() -> Result<()> {
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

/// JAX: `test_pmap_array_in_axes_out_axes`.
#[test]
fn in_axes_none_keeps_the_shape_inside() -> Result<()> {
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

/// JAX: `testTrees`.
#[test]
fn collectives_over_maps_of_arrays() -> Result<()> {
    setup();
    type Dict = BTreeMap<String, Array>;
    let tree: Dict = [("a".to_owned(), ramp(8)), ("b".to_owned(), ramp([8, 2]))].into();
    let out = pmap(|t: Dict| psum(t, "i")).axis_name("i").call(&tree)?;
    assert_eq!(numbers(&out["a"]), [28.0; 8]);
    assert_eq!(numbers(&out["b"]), numbers(&tree["b"].sum_keepdims(0).broadcast_to([8, 2])));
    Ok(())
}

/// JAX: `testPmapConstant`.
#[test]
fn captured_array_does_not_compile_again() -> Result<()> {
    setup();
    let constant = ramp(4);
    let traces = std::sync::atomic::AtomicUsize::new(0);
    let f = pmap(|x: Array| {
        traces.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        x + &constant
    });
    let first = f.call(ramp([8, 4]))?;
    let _ = f.call(ramp([8, 4]))?;
    assert_eq!(numbers(&first), numbers(&(ramp([8, 4]) + &constant)));
    assert_eq!(traces.load(std::sync::atomic::Ordering::SeqCst), 1);
    Ok(())
}

/// JAX: `test_wrapped`.
#[test]
fn pmap_returns_the_function_it_wraps() -> Result<()> {
    setup();
    let f = pmap(|x: Array| x + 1);
    assert_eq!(f.wrapped()(ones(2)).shape(), [2]);
    Ok(())
}

/// JAX: `testPmapStaticArgnums`.
#[test]
fn function_as_static_argument_of_pmap() -> Result<()> {
    setup();
    fn double(x: Array) -> Array {
        x * 2
    }
    let f = pmap(|x: Array, g: Static<fn(Array) -> Array>| (g.0)(x)).in_axes((0, None));
    let y = f.call((ramp(8), Static(double as fn(Array) -> Array)))?;
    assert_eq!(numbers(&y), numbers(&(ramp(8) * 2)));
    Ok(())
}

/// JAX: `test_static_argnum_on_method`.
#[test]
fn self_of_a_method_as_static_argument() -> Result<()> {
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

/// JAX: `testNoDevicesError`.
#[test]
fn empty_device_list_is_an_error() {
    setup();
    let text = message(pmap(|x: Array| x).devices(Vec::new()).call(ones(8)));
    assert!(text.contains("'devices' argument to pmap must be non-empty, or None."), "{text}");
}

/// JAX: `testOneDevice`.
#[test]
fn pmap_on_each_single_device() -> Result<()> {
    setup();
    for device in devices()?.iter().take(2) {
        let y = pmap(|x: Array| x * 2).devices(vec![device.clone()]).call(ramp([1, 3]))?;
        assert_eq!(y.devices()?, std::slice::from_ref(device));
        assert_eq!(numbers(&y), [0.0, 2.0, 4.0]);
    }
    Ok(())
}

/// JAX: `test_pmap_array_devices_mismatch`.
#[test]
fn argument_on_reversed_devices_keeps_its_values() -> Result<()> {
    setup();
    let mut reversed = devices()?;
    reversed.reverse();
    let mesh = Mesh::new(reversed, [("x", 8)])?;
    let x = device_put(&ramp([8, 2]), &NamedSharding::new(&mesh, P!["x"]))?;
    let y = pmap(|x: Array| x + 1).call(&x)?;
    assert_eq!(numbers(&y), numbers(&(ramp([8, 2]) + 1)));
    Ok(())
}

/// JAX: `test_axis_name_shadowing_with_vmap`.
#[test]
fn vmap_shadows_the_axis_name_of_pmap() -> Result<()> {
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

/// JAX: `test_same_out_sharding_id`.
#[test]
fn chained_calls_share_one_sharding_object() -> Result<()> {
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

/// JAX: `testJitPmapComposition`.
#[test]
fn jit_of_pmap_equals_pmap_of_jit() -> Result<()> {
    setup();
    fn f(x: Array) -> Array {
        &x - psum(x.clone(), "i")
    }
    let x = ramp([8, 4]);
    let want = numbers(&(&x - x.sum(0)));
    assert_eq!(numbers(&jit(pmap(f).axis_name("i")).call(&x)?), want);
    assert_eq!(numbers(&pmap(jit(f)).axis_name("i").call(&x)?), want);
    Ok(())
}

/// JAX: `testVmapOfPmapNonLeadingAxis`.
#[test]
fn vmap_of_pmap_over_axis_2() -> Result<()> {
    setup();
    let x = ramp([8, 2, 3]);
    let y = vmap(pmap(|x: Array| x)).in_axes(2).out_axes(2).call(&x)?;
    assert_eq!((y.shape(), numbers(&y)), (x.shape(), numbers(&x)));
    Ok(())
}

/// JAX: `testGradOfPsum`.
#[test]
fn second_derivative_through_psum() -> Result<()> {
    setup();
    fn f(x: Array) -> Result<Array> {
        Ok(pmap(|x: Array| psum(x.sin(), "i") * &x).axis_name("i").call(x)?.square().sum(..))
    }
    fn g(x: Array) -> Result<Array> {
        Ok(grad(f).call(x)?.square().sum(..))
    }
    let x = ramp(8) / 10.0 + 0.1;
    let exact = grad(g).call(&x)?;
    let d = (&x * 5.0).cos();
    let numeric = (g(&x + &d * 1e-2)?.to_f64()? - g(&x - &d * 1e-2)?.to_f64()?) / 2e-2;
    let along = (exact * d).sum(..).to_f64()?;
    assert!((numeric - along).abs() < 1e-2 * along.abs(), "{numeric} and {along}");
    Ok(())
}

/// JAX: `testAxisIndexInInitialStyle`.
#[test]
fn axis_index_inside_scan() -> Result<()> {
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

/// JAX: `testArrays`.
#[test]
fn pmap_results_feed_pmap_jit_and_other_device_orders() -> Result<()> {
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

/// JAX: `test_delete_is_idempotent`.
#[test]
fn deleting_twice_is_allowed_and_reading_is_an_error() -> Result<()> {
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

/// JAX: `test_int_arg_with_in_axes_none`.
#[test]
fn unmapped_plain_integer() -> Result<()> {
    setup();
    let f = pmap(|x: Array, n: Array| x * n).in_axes((0, None));
    assert_eq!(f.call((arange(0..8), 3))?.to_vec::<i32>()?[7], 21);
    Ok(())
}

/// JAX: `testPsumOnBooleanDtype`.
#[test]
fn psum_of_booleans_counts() -> Result<()> {
    setup();
    let x = arange(0..8).less(3);
    let total = pmap(|x: Array| psum(x, "i")).axis_name("i").call(&x)?;
    assert_eq!(total.to_vec::<i32>()?, [3; 8]);
    let mean = pmap(|x: Array| pmean(x, "i")).axis_name("i").call(&x)?;
    assert_eq!(mean.to_vec::<f32>()?, [0.375; 8]);
    Ok(())
}

/// JAX: `test_prng_key`.
#[test]
fn random_keys_pass_through_pmap() -> Result<()> {
    setup();
    let keys = shardax::random::split(&shardax::random::key(0), 8);
    let out = pmap(|k: Array| k).call(&keys)?;
    assert_eq!((out.dtype(), out.to_bytes()?), (keys.dtype(), keys.to_bytes()?));
    Ok(())
}

/// JAX: `test_float0_dtype_input`.
#[test]
fn pmap_takes_float0() -> Result<()> {
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

/// Each device has the random numbers of its key.
///
/// JAX: `test_pmap_of_prng_key`.
#[test]
fn each_device_draws_with_its_own_key() -> Result<()> {
    setup();
    let keys = random::split(&random::key(7), 8);
    fn draw(k: Array) -> (Array, Array, Array) {
        let k = random::fold_in(&k, 3);
        (random::normal(&k, [4]), random::randint(&k, [4], 0, 100), random::permutation(&k, 6))
    }
    let (a, b, c) = pmap(draw).call(&keys)?;
    let (x, y, z) = vmap(draw).call(&keys)?;
    close(&a, &x);
    assert_eq!(b.to_vec::<i32>()?, y.to_vec::<i32>()?);
    assert_eq!(c.to_vec::<i32>()?, z.to_vec::<i32>()?);
    fn dropout(k: Array) -> Array {
        random::bernoulli(&random::fold_in(&k, axis_index("i")), 0.5, [16])
    }
    let coins = pmap(dropout).axis_name("i").in_axes(None).call(random::key(0));
    assert!(message(coins).contains("at least one argument with a mapped axis"));
    let coins = pmap(dropout).axis_name("i").call(&keys)?;
    assert_eq!(coins.to_vec::<bool>()?, vmap(dropout).axis_name("i").call(&keys)?.to_vec::<bool>()?);
    Ok(())
}

/// JAX: `testPmapDictOutAxes`.
#[test]
fn out_axes_for_entries_of_a_map() -> Result<()> {
    setup();
    type Dict = BTreeMap<String, Array>;
    fn dict(x: &Array) -> Dict {
        [("a".to_owned(), x.clone()), ("b".to_owned(), x * 2)].into()
    }
    let y = pmap(move |x: Array| dict(&x)).out_axes([0, 1]).call(ramp([8, 3]))?;
    close(&y["a"], &ramp([8, 3]));
    close(&y["b"], &(ramp([8, 3]) * 2).t());
    let text = message(pmap(move |x: Array| dict(&x)).out_axes([0, 0, 0]).call(ramp([8, 3])));
    assert!(text.contains("pmap out_axes tree prefix error"), "{text}");
    Ok(())
}
