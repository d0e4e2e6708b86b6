//! New arrays with a requested sharding: ranges, random numbers, one-hot encodings, counts.

use shardax::random;

use super::*;

/// The elements of `f`'s result on one device, without a mesh.
fn plain(f: impl FnOnce() -> Array) -> Vec<f32> {
    let _none = set_mesh(None).unwrap();
    f().astype(DType::F32).to_vec::<f32>().unwrap()
}

#[test]
fn broadcasted_iota_with_sharding() -> Result<()> {
    let (_, _mesh) = mesh(2);
    let x = device_put(&arange(0..4), P!["x"])?;
    let hot = jit(|x: Array| shardax::nn::one_hot(&x, 4)).call(&x)?;
    assert_eq!(typed(&hot), "float32[4@x,4]");
    same(&hot, &host(&eye(4)));
    let result = jit(|x: Array| {
        let x = x * 2;
        (x, out_sharding(P!["x", "y"], || lax::broadcasted_iota(DType::I32, [8, 2], 0)))
    });
    let (_, result) = result.call(&x)?;
    assert_eq!(typed(&result), "int32[8@x,2@y]");
    assert_eq!(result.to_vec::<i32>()?, [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]);
    Ok(())
}

/// A function that creates an array, the requested sharding, and the expected type.
type Made = (&'static str, fn() -> Array, PartitionSpec, &'static str);

#[test]
fn arrays_created_with_a_sharding_equal_one_device() -> Result<()> {
    let (_, _mesh) = mesh(4);
    // A generator must not draw other numbers because its result is sharded.
    fn key() -> Array {
        random::key(3)
    }
    let makers: Vec<Made> = vec![
        ("arange", || arange(0..16), P!["y"], "int32[16@y]"),
        ("arange_step", || arange_step(0.0f32..4.0, 0.25), P!["y"], "float32[16@y]"),
        ("linspace", || linspace(0.0, 1.0, 16), P![("x", "y")], "float32[16@(x,y)]"),
        ("eye", || eye(8), P!["x", "y"], "float32[8@x,8@y]"),
        ("zeros", || zeros([8, 4]), P!["x"], "float32[8@x,4]"),
        ("full", || full([8, 4], array(2.5f32)), P![None, "y"], "float32[8,4@y]"),
        ("one_hot", || shardax::nn::one_hot(arange(0..8), 4), P!["x", "y"], "float32[8@x,4@y]"),
        ("repeat", || repeat(arange(0..4), 4, ..), P!["y"], "int32[16@y]"),
        (
            "segment_sum",
            || shardax::numpy::segment_sum(arange(0..8), floor_divide(arange(0..8), 2), 4),
            P!["y"],
            "int32[4@y]",
        ),
        ("bits", || random::bits(key(), [8, 4]).astype(DType::I32), P!["x", "y"], "int32[8@x,4@y]"),
        ("uniform", || random::uniform(key(), [8, 8]), P!["x", "y"], "float32[8@x,8@y]"),
        ("normal", || random::normal(key(), [8, 8]), P![None, ("y", "x")], "float32[8,8@(y,x)]"),
        ("gumbel", || random::gumbel(key(), [8]), P!["x"], "float32[8@x]"),
        ("randint", || random::randint(key(), [8, 4], 0, 100), P!["x", "y"], "int32[8@x,4@y]"),
        ("permutation", || random::permutation(key(), 16), P!["y"], "int32[16@y]"),
        ("bernoulli", || random::bernoulli(key(), 0.3, [8, 4]).astype(DType::F32), P!["x"], "float32[8@x,4]"),
        ("truncated_normal", || random::truncated_normal(key(), -1.0, 1.0, [8]), P!["x"], "float32[8@x]"),
        ("gamma", || random::gamma(key(), 2.0, [8]), P!["x"], "float32[8@x]"),
        ("categorical", || random::categorical(key(), &zeros([8, 4]), -1), P!["x"], "int32[8@x]"),
    ];
    for (name, make, spec, want) in makers.into_iter().step_by(one_of(3)) {
        let bits: Vec<u32> = plain(|| jit(make).call(()).unwrap()).iter().map(|v| v.to_bits()).collect();
        let eager = out_sharding(spec.clone(), make);
        assert_eq!(typed(&eager), want, "{name}");
        let requested_spec = spec.clone();
        let traced = jit(move || out_sharding(requested_spec.clone(), make)).call(())?;
        assert_eq!(typed(&traced), want, "{name}");
        for made in [eager, traced] {
            assert!(!made.sharding()?.is_fully_replicated(), "{name}");
            let have: Vec<u32> = host(&made.astype(DType::F32)).iter().map(|v| v.to_bits()).collect();
            assert_eq!(have, bits, "{name} as {want}");
        }
    }
    Ok(())
}

#[test]
fn each_device_draws_its_part() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let draw = jit(|| out_sharding(P!["x", "y"], || random::bits(random::key(0), [64, 64])));
    let text = draw.lower(())?.compile()?.as_text()?;
    assert!(text.contains("[32,16]") && !text.contains("[64,64]"), "{text}");
    assert_eq!(draw.lower(())?.compile()?.collectives()?.count(), 0);
    Ok(())
}

#[test]
fn out_sharding_of_functions_of_arrays() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, at) = (ramp(&[8, 4], P!["x"]), device_put(&array([0, 1, 1, 3, 0, 0, 2, 1]), P!["x"])?);
    let f = {
        let (x, at) = (x.clone(), at.clone());
        move || out_sharding(P![None, "y"], || shardax::numpy::segment_sum(&x, &at, 4))
    };
    let want =
        plain(|| shardax::numpy::segment_sum(array(host(&x)).reshape([8, 4]), array([0, 1, 1, 3, 0, 0, 2, 1]), 4));
    assert_eq!(typed(&f()), "float32[4,4@y]");
    same(&f(), &want);
    fn g(x: Array, at: Array) -> Array {
        out_sharding(P![None, "y"], || shardax::numpy::segment_sum(&x, &at, 4))
    }
    let traced = jit(g).call((&x, &at))?;
    assert_eq!(typed(&traced), "float32[4,4@y]");
    same(&traced, &want);
    // The gradient has the sharding of the array.
    let d = jit(grad(move |x: Array, at: Array| (g(x, at) * 2).sum(..))).call((&x, &at))?;
    assert_eq!((typed(&d), host(&d)), ("float32[8@x,4]".into(), vec![2.0; 32]));
    Ok(())
}

/// Functions whose `out_sharding` is an argument in JAX, and an option of the call here.
#[test]
fn functions_of_split_arrays() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, w) = (num(&[8, 4], 0.3, 0.0, P!["x"]), num(&[2, 4, 8], 0.2, 0.0, P![None, None, "y"]));
    let groups = array([3, 5]);
    let ragged = out_sharding(P!["x", "y"], || lax::ragged_dot(&x, &w, &groups));
    assert_eq!(typed(&ragged), "float32[8@x,8@y]");
    let quarters = out_sharding(P!["y"], || percentile(&x, 25.0, 0));
    assert_eq!(typed(&quarters), "float32[4@y]");
    let flat = out_sharding(P!["y"], || x.ravel());
    assert_eq!(typed(&flat), "float32[32@y]");
    let product = lax::DotOptions::new().out_sharding(P!["x"]).tensordot(&x, w.get(0), 1);
    assert_eq!(typed(&product), "float32[8@x,8]");
    let _none = set_mesh(None)?;
    let (x, w) = (whole(&x), whole(&w));
    same(&ragged, &host(&lax::ragged_dot(&x, &w, &groups)));
    same(&quarters, &host(&percentile(&x, 25.0, 0)));
    same(&flat, &host(&x));
    same(&product, &host(&x.matmul(w.get(0))));
    Ok(())
}

#[test]
fn makers_without_a_mesh_or_with_other_axes_are_rejected() -> Result<()> {
    setup();
    let text = rejected(&out_sharding(P!["x"], || zeros(8)));
    assert!(
        text.contains("out_sharding requires a non-empty mesh in context") && text.contains("set_mesh(&mesh)"),
        "{text}"
    );
    let mesh = make_mesh([("x", 2), ("y", 4)])?.with_axis_types([AxisType::Explicit, AxisType::Auto])?;
    // A mesh that the sharding names needs no context.
    assert_eq!(typed(&out_sharding(NamedSharding::new(&mesh, P!["x"]), || zeros(8))), "float32[8@x]");
    let _mesh = set_mesh(&mesh)?;
    let text = rejected(&out_sharding(P!["y"], || zeros(8)));
    assert!(text.contains("out_sharding can only refer to axes that are Explicit") && text.contains("'y'"), "{text}");
    let text = rejected(&out_sharding(P!["x"], || zeros(7)));
    assert!(text.contains("array axis 0 is partitioned 2 times") && text.contains("creation.rs:"), "{text}");
    Ok(())
}

#[test]
fn manual_mode_mix_random() -> Result<()> {
    let (_, _mesh) = mesh(2);
    let keys = reshard(random::split(random::key(0), 2), P!["x"]);
    fn draw(key: &Array) -> Array {
        random::normal(key, [1, 4])
    }
    fn of_device(key: Array) -> Array {
        let key = key.squeeze(0);
        out_sharding(P![None, "y"], || draw(&key))
    }
    let f = jit(move |keys: Array| shard_map(of_device, None).axis_names("x").out_specs(P!["x"]).call(keys));
    let out = f.call(&keys)?;
    assert_eq!(typed(&out), "float32[2@x,4@y]");
    let rows = plain(|| {
        let keys = random::split(random::key(0), 2);
        concatenate(&[draw(&keys.get(0)), draw(&keys.get(1))], 0)
    });
    assert_eq!(host(&out), rows);
    Ok(())
}

#[test]
fn bincount() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let a = out_sharding(P!["x"], || ones_dtype(4, DType::I32));
    let count = |spec: PartitionSpec| jit(move |a: Array| bincount_sharded(a, 2, spec.clone()));
    let replicated_x = count(P![]).call(&a)?;
    assert_eq!((typed(&replicated_x), replicated_x.to_vec::<i32>()?), ("int32[2]".into(), vec![0, 4]));
    let f = count(P![].unreduced(["x"]));
    let apart = f.call(&a)?;
    assert_eq!(typed(&apart), "int32[2]{U:x}");
    for shard in apart.addressable_shards()? {
        assert_eq!(shard.data.to_vec::<i32>()?, [0, 2]);
    }
    assert_eq!(f.lower(&a)?.compile()?.collectives()?.count(), 0);
    assert_eq!(reshard(apart, P![]).to_vec::<i32>()?, [0, 4]);
    let text = rejected(&bincount_sharded(&a, 2, P!["x"]));
    assert!(text.contains("only be fully replicated or fully unreduced") && text.contains("int32[4@x]"), "{text}");
    // Whole input, and axes that do not split it.
    let replicated_x = reshard(a, P![]);
    let apart = bincount_sharded(&replicated_x, 2, P![].unreduced(["x", "y"]));
    assert_eq!(reshard(apart, P![]).to_vec::<i32>()?, [0, 4]);
    Ok(())
}

/// The types are JAX 0.12.0.1's, on a mesh of 2x4 CPU devices. JAX 0.12.0.1 reads the spec at the wrong position if the
/// axis of the classes is not the last, so that it rejects the third case.
#[test]
fn one_hot_with_sharding() -> Result<()> {
    let (_, _mesh) = mesh(4);
    // The spec of the result has an entry for the new axis of the classes, wherever it is inserted.
    fn hot(axis: i32, spec: PartitionSpec, x: &Array) -> Array {
        shardax::nn::OneHotOptions::new().axis(axis).out_sharding(spec).one_hot(x, 4)
    }
    let x = reshard(array([0, 1, 2, 3, 3, 2, 1, 0]), P!["x"]);
    let square = reshard(zeros([4, 8]).astype(DType::I32), P!["x", "y"]);
    let cases = [
        (&x, -1, P!["x", "y"], "float32[8@x,4@y]"),
        (&x, -1, P!["x", None], "float32[8@x,4]"),
        (&x, 0, P!["y", "x"], "float32[4@y,8@x]"),
        (&square, -1, P!["x", "y", None], "float32[4@x,8@y,4]"),
    ];
    for (labels, axis, spec, want) in cases.into_iter().skip(one_of(2) - 1).step_by(one_of(2)) {
        let unsharded = plain(|| shardax::nn::OneHotOptions::new().axis(axis).one_hot(whole(labels), 4));
        let (labels, asked) = (labels.clone(), spec.clone());
        let traced = jit(move |x: Array| hot(axis, asked.clone(), &x)).call(&labels)?;
        for result in [hot(axis, spec, &labels), traced] {
            assert_eq!(typed(&result), want);
            assert_eq!(host(&result), unsharded, "{want}");
        }
    }
    assert_eq!(typed(&hot(-1, P!["y"], &array(3))), "float32[4@y]");
    for spec in [P![None, "y"], P!["y", "x"], P![("x", "y"), None], P![None, None]] {
        let text = rejected(&hot(-1, spec, &x));
        assert!(
            text.contains("the input part of the spec in out_sharding should match the spec of the labels"),
            "{text}"
        );
    }
    let text = rejected(&shardax::nn::OneHotOptions::new().out_sharding(P!["x", "y"]).one_hot(&x, 6));
    assert!(text.contains("partitioned 4 times") && text.contains("size 6"), "{text}");
    Ok(())
}

/// As in JAX 0.12.0.1, the edges have the same sharding as the counts, so split counts are rejected.
#[test]
fn histogram_with_sharding() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let options = shardax::numpy::HistogramOptions::new();
    let x = reshard(linspace(0.0, 1.0, 16), P!["x"]);
    let (counts, edges) = {
        let x = linspace(0.0, 1.0, 16);
        let _none = set_mesh(None)?;
        let (counts, edges) = options.histogram(whole(&x), 8);
        (host(&counts), host(&edges))
    };
    let cases = [(P![None], "float32[8]"), (P!["x"], "float32[8@x]"), (P![("x", "y")], "float32[8@(x,y)]")];
    for (spec, want) in cases.into_iter().skip(one_of(3) - 1).step_by(one_of(3)) {
        let sharded = options.clone().out_sharding(spec);
        let traced = jit({
            let sharded = sharded.clone();
            move |x: Array| sharded.histogram(x, 8)
        });
        for (count, edge) in [sharded.histogram(&x, 8), traced.call(&x)?] {
            assert_eq!((typed(&count), typed(&edge)), (want.to_owned(), "float32[9]".to_owned()));
            assert_eq!((host(&count), host(&edge)), (counts.clone(), edges.clone()));
        }
        assert_eq!(typed(&sharded.weights(&x).histogram(&x, 8).0), want);
    }
    Ok(())
}

#[test]
fn jnp_zeros_out_sharding() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    let named = NamedSharding::new(&mesh, P!["x", "y"]);
    fn spec() -> Array {
        out_sharding(P!["x", "y"], || zeros([8, 8]))
    }
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
fn random_functions() -> Result<()> {
    use shardax::random;
    let (_, _mesh) = mesh(4);
    fn key() -> Array {
        random::key(1)
    }
    let draws: [(&str, &dyn Fn() -> Array, PartitionSpec, &str); 6] = [
        ("bits", &|| random::bits(key(), [8, 8]).astype(DType::F32), P!["x", "y"], "float32[8@x,8@y]"),
        ("uniform", &|| random::uniform(key(), [8, 8]), P!["x", "y"], "float32[8@x,8@y]"),
        ("normal", &|| random::normal(key(), [8, 8]), P!["x", "y"], "float32[8@x,8@y]"),
        ("gumbel", &|| random::gumbel(key(), [8, 8]), P![None, "y"], "float32[8,8@y]"),
        ("randint", &|| random::randint(key(), [8, 8], 0, 9).astype(DType::F32), P!["x"], "float32[8@x,8]"),
        ("permutation", &|| random::permutation(key(), 8).astype(DType::F32), P!["y"], "float32[8@y]"),
    ];
    for (name, draw, spec, want) in draws.into_iter().step_by(one_of(2)) {
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
