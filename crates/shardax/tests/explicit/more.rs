//! Creation, random numbers, vectorization of what the other files show once, stages.

use super::*;
use shardax::lax::DotOptions;

#[test]
fn jnp_zeros_out_sharding() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    let named = NamedSharding::new(&mesh, P!["x", "y"]);
    let spec = || out_sharding(P!["x", "y"], || zeros([8, 8]));
    let sharding = {
        let named = named.clone();
        move || out_sharding(named.clone(), || zeros([8, 8]))
    };
    for made in [spec(), sharding(), jit(spec).call(())?, jit(sharding).call(())?] {
        assert_eq!((typed(&made), host(&made)), ("float32[8@x,8@y]".into(), vec![0.0; 64]));
        assert_eq!(made.sharding()?.as_named(), Some(&named));
    }
    assert_eq!(typed(&full_sharded([8, 8], array(0.0f32), P!["x", "y"])), "float32[8@x,8@y]");
    let named = NamedSharding::new(&mesh, P!["x"]);
    assert_eq!(typed(&jit(move || full_sharded([8, 8], 1.0, named.clone())).call(())?), "float32[8@x,8]~");
    Ok(())
}

#[test]
fn no_op_broadcast_except_for_sharding_change() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[4, 8], P![]);
    let f = |x: Array| x.broadcast_to_sharded([4, 8], P!["x", "y"]);
    assert_eq!(typed(&jit(f).call(&x)?), "float32[4@x,8@y]");
    let g = jit(grad(move |x: Array| f(x).sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[4,8]");
    same(&g, &[1.0; 32]);
    Ok(())
}

#[test]
fn reshape() -> Result<()> {
    let (_, _mesh) = mesh(4);
    // A shape, its spec, the new shape, the sharding that is asked for, and the type.
    type Case = (&'static [usize], PartitionSpec, &'static [usize], Option<PartitionSpec>, &'static str);
    let last = || P![None, None, "y"];
    let cases: [Case; 13] = [
        (&[4, 6, 8], last(), &[24, 8], None, "float32[24,8@y]"),
        (&[4, 6, 8], last(), &[1, 4, 6, 8], None, "float32[1,4,6,8@y]"),
        (&[4, 6, 8], last(), &[4, 6, 8, 1], None, "float32[4,6,8@y,1]"),
        (&[4, 6, 8], P!["x"], &[4, 48], None, "float32[4@x,48]"),
        (&[8, 6], P!["x"], &[48], None, "float32[48@x]"),
        (&[8, 6], P!["x"], &[2, 4, 6], None, "float32[2@x,4,6]"),
        (&[8, 8], P!["x", "y"], &[8, 1, 8], None, "float32[8@x,1,8@y]"),
        (&[2, 4, 4], P!["x", "y"], &[8, 4], None, "float32[8@(x,y),4]"),
        (&[8, 8], P![], &[4, 16], None, "float32[4,16]"),
        (&[8, 8], P!["x", "y"], &[64], Some(P!["x"]), "float32[64@x]"),
        (&[8, 8], P!["x", "y"], &[4, 16], Some(P!["y", "x"]), "float32[4@y,16@x]"),
        (&[4, 6, 8], last(), &[8, 24], Some(P!["x", "y"]), "float32[8@x,24@y]"),
        (&[8, 8], P![], &[4, 16], Some(P!["x", "y"]), "float32[4@x,16@y]"),
    ];
    for (shape, spec, new, asked, want) in cases {
        let x = ramp(shape, spec);
        let f = move |x: Array| match &asked {
            Some(spec) => x.reshape_sharded(new, spec.clone()),
            None => x.reshape(new),
        };
        let out = jit(f.clone()).call(&x)?;
        assert_eq!(typed(&out), want);
        same(&out, &host(&x));
        let g = jit(grad(move |x: Array| f(x).sin().sum(..))).call(&x)?;
        assert_eq!(typed(&g), typed(&x), "gradient of {want}");
        same(&g, &host(&x).iter().map(|v| v.cos()).collect::<Vec<_>>());
    }
    Ok(())
}

#[test]
fn concat_vmap() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, y) = (ramp(&[8, 4, 3, 2], P!["x", "y"]), ramp(&[2], P![]));
    let one = |x: Array, y: Array| {
        assert_eq!((x.type_name(), y.type_name()), ("float32[2]".into(), "float32[2]".into()));
        concatenate(&[x, y], 0)
    };
    let two = move |x: Array, y: Array| vmap(one).in_axes((0, None)).call((x, y));
    let three = move |x: Array, y: Array| vmap(two).in_axes((0, None)).call((x, y));
    let f = vmap(three).in_axes((0, None));
    let out = jit(move |x: Array, y: Array| f.call((x, y))).call((&x, &y))?;
    assert_eq!(typed(&out), "float32[8@x,4@y,3,4]");
    assert_eq!(host(&out)[4..12], [2.0, 3.0, 0.0, 1.0, 4.0, 5.0, 0.0, 1.0]);
    Ok(())
}

#[test]
fn where_vmap() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", None]);
    let f = vmap(|x: Array| where_(x.greater(3), &x, 0));
    let out = jit(f).call(&x)?;
    assert_eq!(typed(&out), "float32[8@x,8]");
    assert_eq!(host(&out)[..6], [0.0, 0.0, 0.0, 0.0, 4.0, 5.0]);
    Ok(())
}

#[test]
fn explicit_ctx_vmap_over_auto_axes() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[16, 4], P![("x", "y")]);
    let f = vmap(|x: Array| auto_axes(|x: Array| x.cumsum(0)).out_sharding(P![]).call(x));
    assert_eq!(typed(&jit(f).call(&x)?), "float32[16@(x,y),4]");
    Ok(())
}

#[test]
fn vmap_grad_sharded_gather() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let rows = [1, 1, 3, 5, 7, 0, 2, 2];
    let (x, at) = (num(&[8, 8], 0.3, 0.0, P!["x", None]), device_put(&array(rows), P!["x"])?);
    let f = value_and_grad(|x: Array, at: Array| x.at(&at).out_sharding(P![]).get().sin());
    let (v, g) = jit(vmap(move |x: Array, at: Array| f.call((x, at)))).call((&x, &at))?;
    assert_eq!((typed(&v), typed(&g)), ("float32[8@x]".into(), "float32[8@x,8]".into()));
    let x = host(&x);
    let chosen = |row: usize| x[row * 8 + rows[row] as usize];
    same(&v, &(0..8).map(|row| chosen(row).sin()).collect::<Vec<_>>());
    let slope = |n: usize| if n % 8 == rows[n / 8] as usize { chosen(n / 8).cos() } else { 0.0 };
    same(&g, &(0..64).map(slope).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn jacrev_sharded_broadcast() -> Result<()> {
    let (_, _mesh) = mesh(4);
    for (spec, to, want) in [
        (P!["x"], P!["y", "x"], "float32[4,8,8@x]"),
        (P!["x"], P![None, "x"], "float32[4,8,8@x]"),
        (P![], P!["y", "x"], "float32[4,8,8]"),
    ] {
        let j = jit(jacrev(move |x: Array| x.broadcast_to_sharded([4, 8], to.clone()))).call(&ramp(&[8], spec))?;
        assert_eq!(typed(&j), want);
        same(&j, &host(&device_put(&eye(8), P![])?).repeat(4));
    }
    let j = jit(jacrev(|x: Array| x.sin())).call(&ramp(&[8], P!["x"]))?;
    assert_eq!(j.type_name(), "float32[8,8@x]");
    near(host(&j)[9].into(), f64::from(1f32.cos()), 1e-5);
    Ok(())
}

#[test]
fn random_functions() -> Result<()> {
    use shardax::random;
    let (_, _mesh) = mesh(4);
    let key = || random::key(1);
    let draws: [(&str, &dyn Fn() -> Array, PartitionSpec, &str); 6] = [
        ("bits", &|| random::bits(key(), [8, 8]).astype(DType::F32), P!["x", "y"], "float32[8@x,8@y]"),
        ("uniform", &|| random::uniform(key(), [8, 8]), P!["x", "y"], "float32[8@x,8@y]"),
        ("normal", &|| random::normal(key(), [8, 8]), P!["x", "y"], "float32[8@x,8@y]"),
        ("gumbel", &|| random::gumbel(key(), [8, 8]), P![None, "y"], "float32[8,8@y]"),
        ("randint", &|| random::randint(key(), [8, 8], 0, 9).astype(DType::F32), P!["x"], "float32[8@x,8]"),
        ("permutation", &|| random::permutation(key(), 8).astype(DType::F32), P!["y"], "float32[8@y]"),
    ];
    for (name, draw, spec, want) in draws {
        let (eager, whole) = (out_sharding(spec, draw), draw());
        assert_eq!(typed(&eager), want, "{name}");
        assert!(whole.sharding()?.is_fully_replicated(), "{name}");
        assert_eq!(host(&eager), host(&whole), "{name}");
    }
    let f = jit(|| out_sharding(P!["x", "y"], || random::normal(random::key(1), [8, 8])));
    assert_eq!(typed(&f.call(())?), "float32[8@x,8@y]");
    same(&f.call(())?, &host(&random::normal(key(), [8, 8])));
    Ok(())
}

#[test]
fn lax_map() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[6, 8], P![None, "x"]);
    let double = |x: Array| {
        assert_eq!(x.type_name(), "float32[8@x]");
        x * 2
    };
    let out = jit(move |x: Array| lax::map(double, x)).call(&x)?;
    assert_eq!(typed(&out), "float32[6,8@x]");
    same(&out, &host(&(&x * 2)));
    // In batches of two, as `batch_size` in JAX: a vmap in each step.
    let pairs = move |x: Array| {
        let rows: Array = lax::map(|x: Array| vmap(double).call(x), x.reshape([3, 2, 8]))?;
        Ok::<_, shardax::Error>(rows.reshape([6, 8]))
    };
    let out = jit(pairs).call(&x)?;
    assert_eq!(typed(&out), "float32[6,8@x]");
    same(&out, &host(&(&x * 2)));
    Ok(())
}

#[test]
fn topk_and_tile_and_unstack() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 4], P!["x", None]);
    assert_eq!(typed(&lax::top_k(&x, 2).0), "float32[8@x,2]");
    assert!(rejected(&lax::top_k(&ramp(&[8, 4], P![None, "y"]), 2).0).contains("dimension 1 must not be sharded"));
    assert_eq!(typed(&tile(&x, &[1, 2])), "float32[8@x,8]");
    Ok(())
}

#[test]
fn bitcast_convert_type() {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 4], P!["x", None]);
    let bytes = lax::bitcast_convert_type(&x, DType::U8);
    assert_eq!(typed(&bytes), "uint8[8@x,4,4]");
    assert_eq!(typed(&lax::bitcast_convert_type(&x, DType::U32)), "uint32[8@x,4]");
    let back = lax::bitcast_convert_type(&bytes, DType::F32);
    assert_eq!((typed(&back), host(&back)), (typed(&x), host(&x)));
    // The bytes of one number on several devices: JAX drops the axis and gathers.
    let split = reshard(bytes, P![None, None, "y"]);
    let text = rejected(&lax::bitcast_convert_type(&split, DType::F32));
    assert!(text.contains("uint8[8,4,4@y]") && text.contains("help:"), "{text}");
}

#[test]
fn eval_shape_and_stages() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let out = eval_shape(|x: Array| x.sum(0), &x)?;
    assert_eq!(out.type_name(), "float32[8@y]");
    let f = jit(|x: Array| x.sin());
    let compiled = f.lower(&x)?.compile()?;
    assert_eq!(typed(&compiled.call(&x)?), "float32[8@x,8@y]");
    let text = compiled.call(&ramp(&[8, 8], P!["y", "x"])).unwrap_err().to_string();
    assert!(text.contains("float32[8@") || text.contains("sharding"), "{text}");
    Ok(())
}

#[test]
fn use_abstract_mesh_override() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let other = AbstractMesh::new([("a", 4), ("b", 2)]).with_axis_types([AxisType::Explicit; 2])?;
    let f = move |x: Array| {
        let y = use_abstract_mesh(&other, || reshard(x, P!["a", "b"]) * 2)?;
        assert_eq!(y.type_name(), "float32[8@a,8@b]");
        Ok::<_, shardax::Error>(reshard(y, P!["y", None]).sum(..))
    };
    near(jit(f.clone()).call(&x)?.item::<f32>()?.into(), 4032.0, 1e-6);
    assert_eq!(typed(&jit(grad(f)).call(&x)?), "float32[8@x,8@y]");
    let small = AbstractMesh::new([("a", 4)]);
    let text = use_abstract_mesh(&small, || ()).unwrap_err().to_string();
    assert!(
        text.contains("cannot change the size of the mesh") && text.contains(&mesh.abstract_mesh().to_string()),
        "{text}"
    );
    Ok(())
}

#[test]
fn intermediate_einsum() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let at = |spec| num(&[8, 8], 0.1, 0.0, spec);
    let to = DotOptions::new().out_sharding(P![None, "x"]);
    let operands = [at(P!["x", "y"]), at(P!["y", "x"]), at(P!["x", "y"])];
    let f = move |[a, b, c]: [Array; 3]| to.einsum("ij,jk,kl->il", &[&a, &b, &c]);
    let out = jit(f).call(operands.clone())?;
    assert_eq!(typed(&out), "float32[8,8@x]");
    let _none = shardax::set_mesh(None)?;
    let [a, b, c] = operands.map(|x| whole(&x));
    same(&out, &host(&a.matmul(b).matmul(c)));
    Ok(())
}

#[test]
fn types_of_programs_for_other_axes_cost_nothing() {
    setup();
    let _mesh = set_mesh(&make_mesh([("x", 8)]).unwrap().auto()).unwrap();
    let x = device_put(&array([1.0f32; 8]), P!["x"]).unwrap();
    assert!(x.aval().sharding().is_none() && (x * 2).aval().sharding().is_none());
}
