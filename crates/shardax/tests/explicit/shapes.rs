//! Shapes: reshape, transpose, broadcast, slices, joins, and operations along dimensions that are not split.

use super::*;

#[test]
fn lax_transpose_rule() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[4, 8, 2], P!["x", "y"]);
    assert_eq!(typed(&x.transpose(&[1, 2, 0])), "float32[8@y,2,4@x]");
    let g = jit(grad(|x: Array| (x.transpose(&[1, 2, 0]).sin()).sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[4@x,8@y,2]");
    Ok(())
}

#[test]
fn squeeze() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 1, 4], P!["x", None, "y"]);
    assert_eq!(typed(&x.squeeze(1)), "float32[8@x,4@y]");
    assert_eq!(typed(&jit(grad(|x: Array| x.squeeze(1).sin().sum(..))).call(&x)?), "float32[8@x,1,4@y]");
    assert_eq!(typed(&x.expand_dims(0)), "float32[1,8@x,1,4@y]");
    Ok(())
}

#[test]
fn broadcast_in_dim() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[4, 8], P!["x", "y"]);
    for (at, want) in
        [(0, "float32[1,4@x,8@y]"), (1, "float32[4@x,1,8@y]"), (2, "float32[4@x,8@y,1]"), (-1, "float32[4@x,8@y,1]")]
    {
        assert_eq!(typed(&x.expand_dims(at)), want);
        assert_eq!(typed(&jit(move |x: Array| x.expand_dims(at)).call(&x)?), want);
    }
    assert_eq!(typed(&x.broadcast_to([3, 4, 8])), "float32[3,4@x,8@y]");
    Ok(())
}

#[test]
fn reshape_split_one_dim_multi_axes() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8], P![("x", "y")]);
    assert_eq!(typed(&x.reshape([2, 4])), "float32[2@x,4@y]");
    assert_eq!(typed(&ramp(&[16], P![("x", "y")]).reshape([8, 2])), "float32[8@(x,y),2]");
    assert_eq!(typed(&ramp(&[8], P!["y"]).reshape([4, 2])), "float32[4@y,2]");
    fn f(x: Array) -> Array {
        x.reshape([2, 4]).sin().sum(..)
    }
    let g = jit(grad(f)).call(&x)?;
    assert_eq!(typed(&g), "float32[8@(x,y)]");
    same(&g, &host(&x).iter().map(|v| v.cos()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn reshape_merge_one_dim_multi_axes() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[2, 4], P!["x", "y"]);
    assert_eq!(typed(&x.reshape([8])), "float32[8@(x,y)]");
    assert_eq!(typed(&ramp(&[8, 6], P!["x"]).reshape([48])), "float32[48@x]");
    let g = jit(grad(|x: Array| x.reshape([8]).sin().sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[2@x,4@y]");
    // The values stay in their order, also where devices exchange parts.
    let moved = ramp(&[4, 4], P!["x", "y"]).reshape([16]);
    assert_eq!(typed(&moved), "float32[16@(x,y)]");
    same(&moved, &(0..16).map(|i| i as f32).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn reshape_split_merge_error() {
    let (_, _mesh) = mesh(4);
    for (x, shape) in [
        (ramp(&[6, 8], P![None, "y"]), &[48][..]),
        (ramp(&[8], P!["y"]), &[2, 4]),
        (ramp(&[8], P![("x", "y")]), &[4, 2]),
        (ramp(&[8, 6], P!["x"]), &[6, 8]),
    ] {
        let text = rejected(&x.reshape(shape));
        assert!(
            text.contains("the sharding of the result cannot be inferred") && text.contains(&x.type_name()),
            "{text}"
        );
        assert!(text.contains("reshape_sharded(shape, spec)"), "{text}");
    }
    assert_eq!(typed(&ramp(&[6, 8], P![]).reshape([48])), "float32[48]");
}

#[test]
fn split() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let parts = jit(|x: Array| x.split(2, 1)).call(&x)?;
    assert_eq!(typed(&parts[0]), "float32[8@x,4@y]");
    assert_eq!(host(&parts[1])[..5], [4.0, 5.0, 6.0, 7.0, 12.0]);
    let g = jit(grad(|x: Array| {
        let parts = x.split(2, 1)?;
        Ok::<_, shardax::Error>(parts[0].sum(..) + parts[1].sum(..) * 2)
    }));
    let g = g.call(&x)?;
    assert_eq!((typed(&g), host(&g)[3], host(&g)[4]), ("float32[8@x,8@y]".into(), 1.0, 2.0));
    let text = jit(|x: Array| x.split_at(&[1], 0)).call(&x).unwrap_err().to_string();
    assert!(text.contains("out dim (1) is not divisible by mesh axes (2) with spec (x)"), "{text}");
    let text = rejected(&lax::slice(&x, &[0, 0], &[8, 6], None));
    assert!(text.contains("out dim (6) is not divisible by mesh axes (4) with spec (y)"), "{text}");
    assert!(text.contains("float32[8@x,8@y]") && text.contains("[8, 6]"), "{text}");
    Ok(())
}

#[test]
fn pad() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8], P!["x"]);
    fn wider(x: Array) -> Array {
        lax::pad(&x, &Array::from(0.0f32), &[(2, 2, 0)])
    }
    let out = jit(wider).call(&x)?;
    assert_eq!(typed(&out), "float32[12@x]");
    assert_eq!(host(&out)[..4], [0.0, 0.0, 0.0, 1.0]);
    let g = jit(grad(move |x: Array| wider(x).sin().sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x]");
    same(&g, &(0..8).map(|i| (i as f32).cos()).collect::<Vec<_>>());
    let padded = lax::pad(&ramp(&[2, 8], P![None, "x"]), &Array::from(0.0f32), &[(0, 0, 0), (2, 2, 0)]);
    assert_eq!(typed(&padded), "float32[2,12@x]");
    for (amount, size) in [((0, 3, 0), 11), ((1, 0, 0), 9), ((0, 0, 1), 15)] {
        let text = rejected(&lax::pad(&x, &Array::from(0.0f32), &[amount]));
        assert!(text.contains(&format!("out dim ({size}) is not divisible by mesh axes (2) with spec (x)")), "{text}");
    }
    Ok(())
}

#[test]
fn concatenate_of_one_sharding() {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[4, 8], P![None, "y"]);
    assert_eq!(typed(&concatenate(&[x.clone(), x.clone()], 0)), "float32[8,8@y]");
    assert_eq!(typed(&stack(&[x.clone(), x.clone()], 0)), "float32[2,4,8@y]");
    let text = rejected(&concatenate(&[x.clone(), ramp(&[4, 8], P!["x"])], 0));
    assert!(text.contains("operands must have the same sharding, got float32[4,8@y] and float32[4@x,8]"), "{text}");
}

#[test]
fn tile() -> Result<()> {
    let (_, _mesh) = mesh(2);
    let x = ramp(&[32, 64], P!["x", None]);
    fn f(x: Array) -> Array {
        shardax::numpy::tile(&x, &[1, 2])
    }
    let out = jit(f).call(&x)?;
    assert_eq!(typed(&out), "float32[32@x,128]");
    assert_eq!(host(&out)[64..66], [0.0, 1.0]);
    let g = jit(grad(move |x: Array| f(x).sum(..))).call(&x)?;
    assert_eq!((typed(&g), host(&g)[5]), ("float32[32@x,64]".into(), 2.0));
    let text = jit(f).call(&ramp(&[32, 64], P!["x", "y"])).unwrap_err().to_string();
    assert!(text.contains("tile: dimension 1 of an operand of type float32[32@x,64@y] cannot be sharded"), "{text}");
    assert!(text.contains("tiling is non-trivial") && text.contains("reshard(x, spec)"), "{text}");
    Ok(())
}

#[test]
fn unstack() -> Result<()> {
    let (_, _mesh) = mesh(2);
    fn f(x: Array) -> Result<[Array; 2]> {
        x.unstack::<2>()
    }
    let x = ramp(&[2, 32, 64], P![None, "x", None]);
    let [first, second] = jit(f).call(&x)?;
    assert_eq!((typed(&first), typed(&second)), ("float32[32@x,64]".into(), "float32[32@x,64]".into()));
    assert_eq!(host(&second)[0], 2048.0);
    fn sums(x: Array) -> Result<Array> {
        f(x).map(|[a, b]| a.sum(..) + b.sum(..) * 2)
    }
    let g = jit(grad(sums)).call(&x)?;
    assert_eq!(typed(&g), "float32[2,32@x,64]");
    assert_eq!((host(&g)[0], host(&g)[2048]), (1.0, 2.0));
    let text = jit(f).call(&ramp(&[2, 32, 64], P!["x", None, None])).unwrap_err().to_string();
    assert!(text.contains("unstack: the operand cannot be sharded on the unstacking axis"), "{text}");
    assert!(text.contains("float32[2@x,32,64]") && text.contains("reshard(x, spec)"), "{text}");
    Ok(())
}

#[test]
fn no_op_broadcast_except_for_sharding_change() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[4, 8], P![]);
    fn f(x: Array) -> Array {
        x.broadcast_to_sharded([4, 8], P!["x", "y"])
    }
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
    fn last() -> PartitionSpec {
        P![None, None, "y"]
    }
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
    fn combined(x: Array, y: Array) -> Array {
        assert_eq!((x.type_name(), y.type_name()), ("float32[2]".into(), "float32[2]".into()));
        concatenate(&[x, y], 0)
    }
    fn two(x: Array, y: Array) -> Result<Array> {
        vmap(combined).in_axes((0, None)).call((x, y))
    }
    fn three(x: Array, y: Array) -> Result<Array> {
        vmap(two).in_axes((0, None)).call((x, y))
    }
    let f = vmap(three).in_axes((0, None));
    let out = jit(move |x: Array, y: Array| f.call((x, y))).call((&x, &y))?;
    assert_eq!(typed(&out), "float32[8@x,4@y,3,4]");
    assert_eq!(host(&out)[4..12], [2.0, 3.0, 0.0, 1.0, 4.0, 5.0, 0.0, 1.0]);
    Ok(())
}

#[test]
fn top_k_and_tile_of_split_rows() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 4], P!["x", None]);
    assert_eq!(typed(&lax::top_k(&x, 2).0), "float32[8@x,2]");
    assert!(rejected(&lax::top_k(&ramp(&[8, 4], P![None, "y"]), 2).0).contains("dimension 1 must not be sharded"));
    assert_eq!(typed(&shardax::numpy::tile(&x, &[1, 2])), "float32[8@x,8]");
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
fn operations_keep_shardings_of_other_dimensions() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = num(&[8, 4, 2], 0.3, 0.0, P!["x", None, None]);
    // The operations work along the last dimensions; the first one stays split.
    type Part = fn(&Array) -> Array;
    let parts: [(&str, Part, &str); 12] = [
        ("triu", |x| triu(x, 1), "float32[8@x,4,2]"),
        ("tril", |x| tril(x, 0), "float32[8@x,4,2]"),
        ("roll", |x| roll(x, 1, 1), "float32[8@x,4,2]"),
        ("repeat", |x| repeat(x, 3, -1), "float32[8@x,4,6]"),
        ("flip", |x| flip(x, 1), "float32[8@x,4,2]"),
        ("diff", |x| diff(x, 1, 1), "float32[8@x,3,2]"),
        ("median", |x| median(x, 1), "float32[8@x,2]"),
        ("var", |x| x.var(1), "float32[8@x,2]"),
        ("logsumexp", |x| shardax::scipy::special::logsumexp(x, 1), "float32[8@x,2]"),
        ("softmax", |x| shardax::nn::softmax(x, 1), "float32[8@x,4,2]"),
        ("pad", |x| shardax::numpy::pad(x, &[(0, 0), (1, 1), (0, 0)], PadMode::Reflect), "float32[8@x,6,2]"),
        ("take_along_axis", |x| x.take_along_axis(argsort(x, 1), 1), "float32[8@x,4,2]"),
    ];
    for (name, part, want) in parts.into_iter().step_by(one_of(3)) {
        let out = jit(move |x: Array| part(&x)).call(&x)?;
        assert_eq!(typed(&out), want, "{name}");
        let g = jit(grad(move |x: Array| part(&x).sin().sum(..))).call(&x)?;
        assert_eq!(typed(&g), "float32[8@x,4,2]", "gradient of {name}");
        let _none = shardax::set_mesh(None)?;
        let unsharded = whole(&x);
        same(&out, &host(&part(&unsharded)));
        same(&g, &host(&grad(move |x: Array| part(&x).sin().sum(..)).call(&unsharded)?));
    }
    Ok(())
}
