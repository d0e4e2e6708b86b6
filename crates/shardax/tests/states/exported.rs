//! Exported functions on devices in another order, and on more of them.

use shardax::export::{ExportOptions, export};

use super::*;

/// The mesh x:8 with its devices in reverse order.
fn reversed() -> Result<Mesh> {
    let mut all = devices()?;
    all.reverse();
    Mesh::new(all, [("x", 8)])
}

/// Asserts that an array is close to these numbers.
fn assert_near(have: Array, want: &[f32]) {
    assert!(allclose(have, array(want.to_vec()), 1e-5, 1e-5).unwrap())
}

#[test]
fn functions_for_many_devices_run_where_their_arguments_are() -> Result<()> {
    setup();
    let first = make_mesh([("x", 8)])?.auto();
    fn rows(mesh: &Mesh) -> NamedSharding {
        NamedSharding::new(mesh, P!["x"])
    }
    let x = device_put(&array([0.5f32; 16]), &rows(&first))?;
    let f = ExportOptions::new().vjp_order(2).export(|x: Array| x.sin().sum(..), &x)?;
    let x = device_put(&array((0..16).map(|i| i as f32).collect::<Vec<_>>()), &rows(&reversed()?))?;
    let (sum, slope) = (host(&x.sin().sum(..)), host(&x.cos()));
    let call = |x: Array| f.call(x);
    assert_near(call(x.clone())?.reshape([1]), &sum);
    assert_near(jit(call).call(&x)?.reshape([1]), &sum);
    assert_near(grad(call).call(&x)?, &slope);
    assert_near(jit(grad(call)).call(&x)?, &slope);
    let (value, back) = vjp(call, &x)?;
    assert_near(value.reshape([1]), &sum);
    assert_near(back.call(array(1.0f32))?.0, &slope);
    let twice = grad(|x: Array| Ok(grad(call).call(x)?.sum(..))).call(&x)?;
    assert_near(twice, &host(&-x.sin()));
    Ok(())
}

#[test]
fn functions_for_one_device_gather_arrays_of_many() -> Result<()> {
    setup();
    let f = export(|x: Array| x.sin(), ones([16]))?;
    for mesh in [make_mesh([("x", 8)])?.auto(), make_mesh([("x", 8)])?] {
        let x = device_put(&array([0.5f32; 16]), &NamedSharding::new(&mesh, P!["x"]))?;
        let want = [0.5f32.sin(); 16];
        assert!(allclose(f.call(&x)?, array(want), 1e-6, 1e-6)?);
        assert!(allclose(jit(|x: Array| f.call(x)).call(&x)?, array(want), 1e-6, 1e-6)?);
    }
    Ok(())
}
