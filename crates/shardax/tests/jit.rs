//! `jit` with shardings, static arguments and donation; sharding constraints.

mod common;

use common::setup;
use common::values::{assert_says, error};
use shardax::ErrorKind;
use shardax::prelude::*;

fn float_range(n: i32) -> Array {
    arange(0..n).astype(DType::F32)
}

fn mesh() -> Result<Mesh> {
    setup();
    make_mesh([("i", 8)]).map(|mesh| mesh.auto())
}

fn split(mesh: &Mesh, spec: PartitionSpec) -> NamedSharding {
    NamedSharding::new(mesh, spec)
}

fn step(p: Params, x: Array) -> Array {
    (x.clone() + p.w).sum(..) + p.b
}

#[derive(Tree, Clone)]
struct Params {
    w: Array,
    b: Array,
}

#[test]
fn incompatible_devices() -> Result<()> {
    let mesh = mesh()?;
    let p = Params { w: device_put(&float_range(100), &devices()?[0])?, b: zeros(()) };
    let two = make_mesh([("i", 2)])?.auto();
    let x = device_put(&float_range(100), split(&two, P!["i"]))?;
    let wrong = error(jit(step).call((&p, &x)));
    assert_eq!(wrong.kind(), ErrorKind::Value);
    assert_says(
        &wrong,
        &[
            "Received incompatible devices for jitted computation. Got argument[0].w of step with shape float32[100] and with device ids [0] on platform CPU and argument[1] of step with shape float32[100] and with device ids [0, 1] on platform CPU",
            "device_put(x, sharding)",
        ],
    );

    // The same devices in another order.
    let mut reversed = devices()?;
    reversed.reverse();
    let reversed = Mesh::new(reversed, [("i", 8)])?;
    let x = device_put(&float_range(16), split(&mesh, P!["i"]))?;
    let y = device_put(&float_range(16), split(&reversed, P!["i"]))?;
    let wrong = error(jit(|x: Array, y: Array| x + y).call((&x, &y)));
    assert_says(&wrong, &["argument[1] of lambda with shape float32[16] and with device ids [7, 6, 5, 4, 3, 2, 1, 0]"]);
    // Also when the operation is run at once.
    assert_says(&error((&x + &y).check()), &["argument[1] of add"]);

    // What was captured, asked for, or inside.
    let wrong = error(jit(move |x: Array| x + &y).call(&x));
    assert_says(&wrong, &["Got a captured array of lambda with shape float32[16]"]);
    let wrong = error(jit(|x: Array| x + 1).out_shardings(split(&reversed, P![])).call(&x));
    assert_says(&wrong, &["and explicit output sharding with device ids [7, 6, 5, 4, 3, 2, 1, 0] on platform CPU"]);
    let to = split(&reversed, P!["i"]);
    let wrong = error(jit(move |x: Array| with_sharding_constraint(x, &to) + 1).call(&x));
    assert_says(&wrong, &["and sharding_constraint inside jit with device ids [7, 6, 5", "tests/jit.rs:"]);
    let inner = shard_map(|x: Array| psum(x, "i"), &reversed).in_specs(P!["i"]).out_specs(P![]);
    assert_says(&error(jit(inner).call(&x)), &["and shard_map inside jit with device ids [7, 6, 5"]);
    // As an argument of a transformation.
    let p = Params { w: device_put(&float_range(16), &devices()?[0])?, b: zeros(()) };
    let wrong = error(grad(|p: Params, x: Array| (p.w * x).sum(..)).call((&p, &x)));
    assert_says(&wrong, &["argument[0].w", "argument[1]"]);

    // Uncommitted arrays go with the others.
    assert_eq!(jit(|x: Array, y: Array| x + y).call((&x, float_range(16)))?.sharding()?, x.sharding()?);
    Ok(())
}

#[test]
fn shardings_are_kept() -> Result<()> {
    let mesh = mesh()?;
    let x = device_put(&float_range(16), split(&mesh, P!["i"]))?;
    let y = jit(|x: Array| x * 2 + 1).call(&x)?;
    assert_eq!(y.sharding()?, x.sharding()?);
    assert!(y.committed());
    let mean = jit(|x: Array| x.mean(..)).call(&y)?;
    assert_eq!(mean.item::<f32>()?, 16.0);
    assert!(mean.is_fully_replicated() && mean.devices()?.len() == 8);

    // Nothing is committed that was not.
    let free = jit(|x: Array| x * 2).call(float_range(4))?;
    assert!(!free.committed());
    assert!(jit(|x: Array| x * 2).call(device_put(&float_range(4), &devices()?[3])?)?.committed());
    assert_eq!(
        jit(|x: Array| x * 2).call(device_put(&float_range(4), &devices()?[3])?)?.devices()?,
        [devices()?[3].clone()]
    );
    Ok(())
}

#[test]
fn in_and_out_shardings() -> Result<()> {
    let mesh = mesh()?;
    let (rows, whole) = (split(&mesh, P!["i"]), split(&mesh, P![]));
    let p = Params { w: float_range(16), b: ones(()) };
    let f = jit(|p: Params, x: Array| (p.w * &x + p.b, x.sum(..)))
        .in_shardings(((rows.clone(), None), whole.clone()))
        .out_shardings((&rows, None));
    let (y, total) = f.call((&p, float_range(16)))?;
    assert_eq!(y.sharding()?, rows.clone().into());
    assert_eq!((y.get(3).item::<f32>()?, total.item::<f32>()?), (10.0, 120.0));
    assert!(y.committed() && total.committed());
    let compiled = f.lower((&p, float_range(16)))?.compile()?;
    let shardings = compiled.input_shardings();
    let shardings: Vec<_> =
        shardings.iter().map(|(path, s)| (path, s.as_ref().map(|s| s.is_fully_replicated()))).collect();
    assert_eq!(shardings, [("[0].w".into(), Some(false)), ("[0].b".into(), Some(true)), ("[1]".into(), Some(true))]);

    // A committed array with another sharding.
    let wrong = error(f.call((&p, device_put(&float_range(16), &rows)?)));
    assert_eq!(wrong.kind(), ErrorKind::Value);
    assert_says(
        &wrong,
        &[
            "Sharding passed to jit does not match the sharding on the respective arg. Got jit sharding: NamedSharding(mesh=Mesh('i': 8, axis_types=(Auto,)), spec=P())",
            "arg sharding: NamedSharding(mesh=Mesh('i': 8, axis_types=(Auto,)), spec=P('i',)) for argument[1] of lambda with shape float32[16]",
        ],
    );
    // An array with an equivalent sharding on other devices is copied.
    let (y, _) = f.call((&p, device_put(&float_range(16), &devices()?[2])?))?;
    assert_eq!(y.get(3).item::<f32>()?, 10.0);

    let wrong = error(jit(|x: Array| x).in_shardings(&rows).call(float_range(9)));
    assert_eq!(wrong.kind(), ErrorKind::Indivisible);
    assert_says(
        &wrong,
        &[
            "argument[0] of lambda with shape float32[9]",
            "axis 0 is partitioned 8 times, but the dimension size is 9 (full shape: [9], per-dimension tiling factors: [8])",
        ],
    );
    let wrong = error(jit(|x: Array| (x.get(..6), x)).out_shardings((&rows, None)).call(float_range(8)));
    assert_eq!(wrong.kind(), ErrorKind::Indivisible);
    assert_says(&wrong, &["output[0] of lambda with shape float32[6]"]);
    let wrong = error(jit(|x: Array| x).in_shardings(((&rows, &rows),)).call(float_range(8)));
    assert_says(&wrong, &["jit in_shardings[0] has 2 entries"]);
    let wrong = error(jit(|x: Array| x).out_shardings((&rows, &rows)).call(float_range(8)));
    assert_says(&wrong, &["jit out_shardings has 2 entries"]);
    let wrong = error(jit(|x: Array| x).in_shardings(split(&mesh, P!["q"])).call(float_range(8)));
    assert_says(&wrong, &["Resource axis: q of P('q',) is not found in mesh"]);
    let wrong = error(jit(|x: Array| x).in_shardings(split(&mesh, P![None, "i"])).call(float_range(8)));
    assert_says(&wrong, &["only valid for values of rank at least 2, but was applied to a value of rank 1"]);

    // One device.
    let third = devices()?[3].clone();
    let y = jit(|x: Array| x + 1).in_shardings(&third).call(float_range(2))?;
    assert_eq!((y.devices()?, y.committed()), (vec![third], true));
    Ok(())
}

/// The spec of an array's sharding.
fn spec_text(y: Array) -> Result<String> {
    Ok::<_, shardax::Error>(y.sharding()?.spec()?.to_string())
}

/// The compiler's choice is read back, also where it is none that an array can have.
#[test]
fn result_shardings() -> Result<()> {
    let mesh = mesh()?;
    let x = device_put(&float_range(64).reshape([8, 8]), split(&mesh, P!["i"]))?;
    assert_eq!(spec_text(jit(|x: Array| x.swapaxes(0, 1)).call(&x)?)?, "P(None, 'i')");
    assert_eq!(spec_text(jit(|x: Array| x.reshape(64)).call(&x)?)?, "P('i',)");
    assert_eq!(spec_text(jit(|x: Array| x.sum(1)).call(&x)?)?, "P('i',)");
    assert_eq!(spec_text(jit(|x: Array| x.sum(0)).call(&x)?)?, "P()");
    for n in [1, 2, 3, 4, 6, 7] {
        let y = jit(move |x: Array| x.get(..n) * 2).call(&x)?;
        assert_eq!((y.shape(), y.is_fully_replicated()), (&[n as usize, 8][..], true));
        assert_eq!(y.to_vec::<f32>()?[n as usize * 8 - 1], (n as f32 * 8.0 - 1.0) * 2.0);
    }
    let grid = make_mesh([("a", 4), ("b", 2)])?.auto();
    let y = device_put(&float_range(64).reshape([8, 8]), split(&grid, P!["a", "b"]))?;
    assert_eq!(spec_text(jit(|x: Array| x.swapaxes(0, 1)).call(&y)?)?, "P('b', 'a')");
    assert!(!spec_text(jit(|x: Array| x.reshape(64)).call(&y)?)?.is_empty());
    // Two meshes over the same devices.
    let sum = jit(|x: Array, y: Array| x + y).call((&x, &y))?;
    assert_eq!(sum.to_vec::<f32>()?[63], 126.0);
    // A mesh of one device.
    let other_mesh = make_mesh([("i", 1)])?.auto();
    let x = device_put(&float_range(4), split(&other_mesh, P!["i"]))?;
    let y = jit(|x: Array| x * 2).call(&x)?;
    assert_eq!((y.to_vec::<f32>()?, y.devices()?.len()), (vec![0.0, 2.0, 4.0, 6.0], 1));
    let y = jit(|x: Array| x * 2).out_shardings(split(&other_mesh, P!["i"])).call(float_range(4))?;
    assert_eq!(y.sharding()?, split(&other_mesh, P!["i"]).into());
    Ok(())
}

#[test]
fn constraints() -> Result<()> {
    let mesh = mesh()?;
    let (rows, whole) = (split(&mesh, P!["i"]), split(&mesh, P![]));
    let x = float_range(16);
    // What is constrained first decides where uncommitted arguments go.
    let to = rows.clone();
    let f = jit(move |x: Array| with_sharding_constraint(x, &to) * 2);
    let y = f.call(&x)?;
    assert_eq!((y.sharding()?, y.committed()), (rows.clone().into(), true));
    assert_eq!(f.lower(&x)?.compile()?.input_shardings().leaves()[0], Some(rows.clone().into()));

    // On trees, with a part left open.
    let (r, w) = (rows.clone(), whole.clone());
    let f = jit(move |p: Params| with_sharding_constraint(p, (&r, &w)));
    let p = f.call(Params { w: x.clone(), b: x.clone() })?;
    assert_eq!((p.w.sharding()?, p.b.sharding()?), (rows.clone().into(), whole.clone().into()));
    let r = rows.clone();
    let p = jit(move |p: Params| with_sharding_constraint(p, (&r, None))).call(p)?;
    assert_eq!(p.b.sharding()?, whole.clone().into());

    // A spec over the context mesh; a dimension left to the compiler.
    {
        let _mesh = set_mesh(&mesh)?;
        let y = jit(|x: Array| with_sharding_constraint(x.reshape([8, 2]), P!["i"])).call(&x)?;
        assert_eq!(y.sharding()?.spec()?, &P!["i"]);
        let open = P![shardax::sharding::DimSpec::Unconstrained, None];
        let x = device_put(&float_range(16).reshape([8, 2]), &rows)?;
        let y = jit(move |x: Array| with_sharding_constraint(x, &open)).call(&x)?;
        assert_eq!(y.sharding()?.spec()?, &P!["i"]);
    }

    // At once.
    assert_eq!(with_sharding_constraint(x.clone(), &rows).sharding()?, rows.clone().into());
    let elsewhere = device_put(&x, &devices()?[1])?;
    assert_says(
        &error(with_sharding_constraint(elsewhere, &rows).check()),
        &["Received incompatible devices", "argument[0] of sharding_constraint"],
    );
    assert_eq!(error(with_sharding_constraint(float_range(9), &rows).check()).kind(), ErrorKind::Indivisible);

    // Inside, an uneven split is computed with, and the result is whole.
    let to = rows.clone();
    let y = jit(move |x: Array| with_sharding_constraint(x * 2, &to)).call(float_range(9))?;
    assert_eq!((y.to_vec::<f32>()?[8], y.is_fully_replicated()), (16.0, true));

    // Specs that do not fit.
    let to = split(&mesh, P![None, "i"]);
    let wrong = error(jit(move |x: Array| with_sharding_constraint(x, &to)).call(&x));
    assert_says(
        &wrong,
        &[
            "One of with_sharding_constraint arguments is incompatible with its sharding annotation",
            "rank at least 2",
            "tests/jit.rs:",
        ],
    );
    let to = split(&mesh, P!["q"]);
    let wrong = error(jit(move |x: Array| with_sharding_constraint(x, &to)).call(&x));
    assert_says(&wrong, &["Resource axis: q of P('q',) is not found in mesh", "tests/jit.rs:"]);
    let wrong = error(with_sharding_constraint(vec![x.clone()], [&rows, &rows])[0].check());
    assert_says(&wrong, &["with_sharding_constraint has 2 entries"]);
    let wrong = error(with_sharding_constraint(x.clone(), P!["i"]).check());
    assert_says(&wrong, &["requires a non-empty mesh in context"]);
    Ok(())
}

#[test]
fn constraints_are_transformed() -> Result<()> {
    let mesh = mesh()?;
    let grid = make_mesh([("a", 4), ("b", 2)])?.auto();
    let rows = split(&mesh, P!["i"]);
    let x = float_range(16);
    let to = rows.clone();
    let square = move |x: Array| with_sharding_constraint(&x * &x, &to);
    let f = square.clone();
    assert_eq!(grad(move |x: Array| f(x).sum(..)).call(&x)?.to_vec::<f32>()?, (&x * 2).to_vec::<f32>()?);
    let f = square.clone();
    let (_, tangent) = jvp(f, &x, ones(16))?;
    assert_eq!((tangent.to_vec::<f32>()?, tangent.sharding()?), ((&x * 2).to_vec::<f32>()?, rows.clone().into()));
    let f = square.clone();
    let hessian = hessian(move |x: Array| f(x).sum(..)).call(float_range(8))?;
    assert_eq!(hessian.to_vec::<f32>()?, (eye(8) * 2).to_vec::<f32>()?);

    // A batch gets a dimension that is open, or the axis that is named.
    let batch = float_range(64).reshape([4, 16]);
    let f = square.clone();
    assert_eq!(vmap(f).call(&batch)?.to_vec::<f32>()?, (&batch * &batch).to_vec::<f32>()?);
    let inner = split(&grid, P!["b"]);
    let f =
        jit(vmap(move |x: Array| with_sharding_constraint(&x * &x, &inner)).spmd_axis_name("a").in_axes(1).out_axes(1));
    let y = f.call(batch.swapaxes(0, 1))?;
    assert_eq!(y.sharding()?.spec()?, &P!["b", "a"]);
    assert_eq!(y.to_vec::<f32>()?, (&batch * &batch).swapaxes(0, 1).to_vec::<f32>()?);
    let inner = split(&grid, P!["a"]);
    let clash = vmap(move |x: Array| with_sharding_constraint(x, &inner)).spmd_axis_name("a");
    assert_says(
        &error(clash.call(&batch)),
        &["vmap spmd_axis_name 'a' cannot appear in with_sharding_constraint spec, but got spec P('a',)"],
    );

    // Inside of shard_map, only the axes that the compiler partitions.
    let to = split(&grid, P!["a"]);
    let manual =
        shard_map(move |x: Array| with_sharding_constraint(x, &to), &grid).in_specs(P!["a"]).out_specs(P!["a"]);
    assert_says(&error(manual.call(&x)), &["Axis: a of P('a',) is also found in manual_axes: {a, b}"]);
    let to = split(&grid, P!["b"]);
    let partial = shard_map(move |x: Array| with_sharding_constraint(x * 2, &to), &grid)
        .axis_names("a")
        .in_specs(P!["a"])
        .out_specs(P!["a"]);
    assert_eq!(jit(partial).call(&x)?.to_vec::<f32>()?, (&x * 2).to_vec::<f32>()?);
    Ok(())
}

#[test]
fn donation() -> Result<()> {
    let mesh = mesh()?;
    let rows = split(&mesh, P!["i"]);
    let f = jit(|x: Array, y: Array| x + y).donate_argnums([0]);
    // On one device and on eight; the result takes the memory.
    for to in [shardax::Sharding::from(&devices()?[0]), shardax::Sharding::from(&rows)] {
        let x = device_put(&float_range(1024), &to)?;
        let y = device_put(&float_range(1024), &to)?;
        let z = f.call((&x, &y))?;
        assert_eq!(z.to_vec::<f32>()?[5], 10.0);
        assert!(x.is_deleted() && !y.is_deleted());
        let wrong = error(f.call((&x, &y)));
        assert_eq!(wrong.kind(), ErrorKind::Deleted);
        assert_says(&wrong, &["Array has been deleted with shape=float32[1024]", "donated to `lambda`"]);
        assert_eq!(error((&x + 1).check()).kind(), ErrorKind::Deleted);
        assert_eq!(error(x.to_vec::<f32>()).kind(), ErrorKind::Deleted);
        // Twice in one call.
        let wrong = error(f.call((&z, &z)));
        let phrase =
            "previously donated in the same call to Execute(): argument[0] and argument[1] of lambda are the same";
        assert_says(&wrong, &[phrase]);
        let compiled = f.lower((&z, &y))?.compile()?;
        assert_says(&error(compiled.call((&z, &z))), &[phrase]);
        assert!(!z.is_deleted());
        assert_eq!(z.to_vec::<f32>()?[5], 10.0);
        // XLA still runs.
        assert_eq!(f.call((&z, &y))?.to_vec::<f32>()?[5], 15.0);
    }
    // Without a result of the same type nothing is donated.
    let x = device_put(&float_range(1024), &rows)?;
    assert_eq!(jit(|x: Array| x.sum(..)).donate_argnums([0]).call(&x)?.item::<f32>()?, 523776.0);
    assert!(!x.is_deleted());
    // A nested call donates nothing.
    let inner = jit(|x: Array| x + 1).donate_argnums([0]);
    assert_eq!(jit(move |x: Array| -> Result<Array> { Ok(inner.call(&x)? + x) }).call(&x)?.get(1).item::<f32>()?, 3.0);
    assert!(!x.is_deleted());
    assert_says(
        &error(jit(|x: Array| x).donate_argnums([1]).call(&x)),
        &["donate_argnums names argument 1", "only accepts 1 positional arguments"],
    );
    Ok(())
}

#[test]
fn static_arguments() -> Result<()> {
    setup();
    let traced = std::sync::atomic::AtomicUsize::new(0);
    fn count(traced: &std::sync::atomic::AtomicUsize) -> usize {
        traced.load(std::sync::atomic::Ordering::Relaxed)
    }
    let f = jit(|x: Array, power: u32, name: Static<&'static str>| {
        traced.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let y = (0..power).fold(ones(()), |y, _| y * &x);
        if *name == "half" { y / 2 } else { y }
    })
    .static_argnums([1, 2]);
    // Another value of an array needs no trace, another static value does.
    assert_eq!(f.call((3.0f32, 2u32, Static("whole")))?.item::<f32>()?, 9.0);
    assert_eq!(f.call((4.0f32, 2u32, Static("whole")))?.item::<f32>()?, 16.0);
    assert_eq!(count(&traced), 1);
    assert_eq!(f.call((4.0f32, 3u32, Static("half")))?.item::<f32>()?, 32.0);
    assert_eq!(count(&traced), 2);

    let x = float_range(2);
    let wrong = error(jit(|x: Array, y: Vec<Array>| x + &y[0]).static_argnums([1]).call((&x, vec![x.clone()])));
    assert_eq!(wrong.kind(), ErrorKind::Value);
    assert_says(
        &wrong,
        &[
            "Non-hashable static arguments are not supported",
            "argument 1, which holds an array (argument[1][0])",
            "`Static`",
        ],
    );
    let conflicting = jit(|x: Array, n: i32| x + n).static_argnums([1]).donate_argnums([1]);
    assert_says(&error(conflicting.call((&x, 1))), &["static_argnums and donate_argnums cannot intersect"]);
    let beyond = jit(|x: Array| x).static_argnums([5]);
    assert_says(&error(beyond.call(&x)), &["static_argnums names argument 5", "only accepts 1 positional arguments"]);
    let wrong = error(pmap(|x: Array, y: Array| x + y).static_broadcasted_argnums([1]).call((&x, &x)));
    assert_says(&wrong, &["static_broadcasted_argnums names argument 1, which holds an array"]);
    Ok(())
}

/// Returns true if the arrays are equal up to rounding.
fn close(a: Array, b: Array) -> Result<bool> {
    allclose(a, b, 1e-6, 1e-6)
}

#[test]
fn nested_in_other_transformations() -> Result<()> {
    let mesh = mesh()?;
    let f = jit(|x: Array| x.sin() * 2);
    let x = float_range(8);
    let program = jit(|x: Array| f.call(x)).lower(&x)?.program().to_string();
    assert!(program.contains("jit[name=lambda"), "{program}");
    let g = jit(|x: Array| x.sin() * 2).inline(true);
    let program = jit(|x: Array| g.call(x)).lower(&x)?.program().to_string();
    assert!(!program.contains("jit[name"), "{program}");

    let g = jit(grad(|x: Array| -> Result<Array> { Ok(f.call(x)?.sum(..)) }));
    assert!(close(g.call(&x)?, x.cos() * 2)?);
    assert!(close(grad(|x: Array| -> Result<Array> { Ok(f.call(x)?.sum(..)) }).call(&x)?, x.cos() * 2)?);
    assert!(close(jit(vmap(&|x: Array| f.call(x))).call(&x)?, x.sin() * 2)?);
    assert!(close(vmap(|x: Array| grad(|x: Array| f.call(x)).call(x)).call(&x)?, x.cos() * 2)?);
    let second = grad(|x: Array| -> Result<Array> {
        Ok(grad(|x: Array| -> Result<Array> { Ok(f.call(x)?.sum(..)) }).call(x)?.sum(..))
    });
    assert!(close(second.call(&x)?, x.sin() * -2)?);
    // In a loop and in a mapped function.
    let looped = jit(|x: Array| fori_loop(0, 3, |_, x| f.call(x), x));
    assert!(close(looped.call(&x)?, ((x.sin() * 2).sin() * 2).sin() * 2)?);
    let mapped =
        shard_map(|x: Array| -> Result<Array> { Ok(psum(f.call(x)?, "i")) }, &mesh).in_specs(P!["i"]).out_specs(P![]);
    assert!(close(mapped.call(&x)?, (x.sin() * 2).sum(..).reshape(1))?);

    // Shardings of an inner jit are constraints.
    let rows = split(&mesh, P!["i"]);
    let inner = jit(|x: Array| x * 2).out_shardings(&rows);
    let outer = jit(|x: Array| inner.call(x));
    assert_eq!(outer.call(&x)?.sharding()?, rows.clone().into());
    let inner = jit(|x: Array| x * 2).in_shardings(&rows);
    assert_eq!(jit(|x: Array| inner.call(x)).call(&x)?.sharding()?, rows.into());
    Ok(())
}

/// A function that uses the context mesh is compiled for each mesh.
#[test]
fn the_context_mesh_is_part_of_the_key() -> Result<()> {
    setup();
    let f = jit(|x: Array| with_sharding_constraint(x, P!["i"]));
    let x = float_range(8);
    for n in [8, 4, 2] {
        let mesh = make_mesh([("i", n)])?.auto();
        let _mesh = set_mesh(&mesh)?;
        assert_eq!(f.call(&x)?.devices()?.len(), n);
    }
    Ok(())
}

/// The compiler can partition a program in any way. The numbers are the same, and its choice can be read.
#[test]
fn any_sharding_computes_the_same() -> Result<()> {
    setup();
    let mesh = make_mesh([("a", 4), ("b", 2)])?.auto();
    let x = (float_range(256).reshape([8, 8, 4]) / 7).sin();
    type Unary = fn(Array) -> Array;
    let functions: [(&str, Unary); 9] = [
        ("sum", |x| x.sum(1)),
        ("transpose", |x| x.swapaxes(0, 2)),
        ("flatten", |x| x.reshape(256)),
        ("join", |x| x.reshape([4, 16, 4])),
        ("slice", |x| x.get((1..7, .., 1..))),
        ("reverse", |x| x.get(s![..;-1, ..]).cumsum(0)),
        ("dot", |x| x.get(0).dot(x.get(1).t())),
        ("softmax", |x| (&x - x.max(2).expand_dims(2)).exp()),
        ("concatenate", |x| concatenate(&[x.clone(), x * 2], 1)),
    ];
    let specs = [P!["a"], P![None, "b"], P!["b", "a"], P![("a", "b")], P![("b", "a"), None, None], P!["b", None, "a"]];
    for (name, f) in functions {
        let expected = jit(f).call(&x)?.to_vec::<f32>()?;
        for spec in &specs {
            let x = device_put(&x, split(&mesh, spec.clone()))?;
            let y = jit(f).call(&x)?;
            let close = y.to_vec::<f32>()?.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(close, "{name} of an array split by {spec} gives {y}");
            // Each shard is the part of the whole that its index says.
            for shard in y.addressable_shards()? {
                let ranges: Vec<_> = shard.index.iter().map(|r| (r.end - r.start) as i64).collect();
                assert_eq!(shard.data.shape().iter().map(|&d| d as i64).collect::<Vec<_>>(), ranges, "{name} {spec}");
            }
        }
    }
    Ok(())
}

#[test]
fn shard_map_and_pmap_inside_and_beside_jit() -> Result<()> {
    let mesh = mesh()?;
    let f = || shard_map(|x: Array| psum(x.sum(..), "i"), &mesh).in_specs(P!["i"]).out_specs(P![]);
    let x = float_range(64).reshape([8, 8]);
    assert_eq!((f().call(&x)?.item::<f32>()?, jit(f()).call(&x)?.item::<f32>()?), (2016.0, 2016.0));
    // Split otherwise over the same devices: the compiler moves it. Over other devices: an error.
    let columns = device_put(&x, split(&mesh, P![None, "i"]))?;
    assert_eq!(jit(f()).call(&columns)?.item::<f32>()?, 2016.0);
    let elsewhere = device_put(&x, &devices()?[0])?;
    assert_says(&error(jit(f()).call(&elsewhere)), &["Received incompatible devices for jitted computation"]);
    assert_says(&error(f().call(&elsewhere)), &["Received incompatible devices for jitted computation"]);

    // What pmap returns is an array like any other.
    let y = pmap(|x: Array| x * 2).call(&x)?;
    let z = jit(|y: Array| y + 1).call(&y)?;
    assert_eq!((z.sharding()?.spec()?, z.get((3, 2)).item::<f32>()?), (&P!["unnamed axis of pmap"], 53.0));
    assert_eq!(jit(|y: Array| y.mean(..)).call(&y)?.item::<f32>()?, 63.0);
    Ok(())
}

#[test]
fn a_function_called_many_times_inside_another_is_traced_once() -> Result<()> {
    setup();
    let traces = std::sync::atomic::AtomicUsize::new(0);
    fn traced(traces: &std::sync::atomic::AtomicUsize) -> usize {
        traces.swap(0, std::sync::atomic::Ordering::Relaxed)
    }
    let layer = jit(|x: Array, w: Array| {
        traces.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        (x.dot(w)).tanh()
    });
    let layers = |mut x: Array, w: Array| -> Result<Array> {
        for _ in 0..10 {
            x = layer.call((x, &w))?;
        }
        Ok(x)
    };
    let (x, w) = (float_range(4).reshape([2, 2]), eye(2) * 0.5);
    let expected = jit(layers).call((&x, &w))?;
    assert_eq!(traced(&traces), 1);
    assert!(allclose(&expected, layers(x.clone(), w.clone())?, 1e-6, 0.0)?);
    assert_eq!(traced(&traces), 0, "outside of a trace it is compiled from the same trace");

    // Other types, names of axes, and precisions are other traces.
    let _ = jit(layers).call((x.astype(DType::Bf16), w.astype(DType::Bf16)))?;
    assert_eq!(traced(&traces), 1);
    make_program(layers, (&x, &w))?;
    assert_eq!(traced(&traces), 0);
    let _ = jit(vmap(layers).in_axes((0, None))).call((stack_of(&x), &w))?;
    assert_eq!(traced(&traces), 0, "the entries of a batch have the type of the whole before");
    let _ = jit(vmap(layers).in_axes((0, None)).axis_name("batch")).call((stack_of(&x), &w))?;
    assert_eq!(traced(&traces), 1);
    Ok(())
}

fn stack_of(x: &Array) -> Array {
    stack([x, x], 0)
}

#[test]
fn a_function_that_captures_a_traced_array_is_traced_for_each() -> Result<()> {
    setup();
    fn outer(x: Array, scale: Array) -> Result<Array> {
        let scaled = jit(move |x: Array| x * &scale);
        Ok(scaled.call(&x)? + scaled.call(&x)?)
    }
    let f = jit(outer);
    assert_eq!(f.call((array([1.0f32, 2.0]), array(3.0f32)))?.to_vec::<f32>()?, [6.0, 12.0]);
    assert_eq!(
        grad(|x: Array, s: Array| f.call((x, s)).map(|y| y.sum(..))).call((array([1.0f32]), 5.0))?.item::<f32>()?,
        10.0
    );
    // A concrete array that another trace captured under the same name.
    let shared = jit(|x: Array| psum(x, "i"));
    let sums = |x: Array| shared.call(x);
    let (short, long) = (zeros([2, 3]) + 1, zeros([4, 3]) + 1);
    let mapped = |x: &Array| jit(vmap(sums).axis_name("i")).call(x)?.to_vec::<f32>();
    assert_eq!((mapped(&short)?[0], mapped(&long)?[0]), (2.0, 4.0));
    Ok(())
}
