//! Unreduced and reduced axes.

use super::*;
use shardax::lax::DotOptions;

fn u(axes: &[&'static str]) -> PartitionSpec {
    P![].unreduced(axes.iter().copied())
}

fn shards(x: &Array) -> Vec<Vec<f32>> {
    x.addressable_shards().unwrap().iter().map(|s| s.data.to_vec::<f32>().unwrap()).collect()
}

#[test]
fn identity_jit_out_unreduced() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    let data = array((0..8).map(|i| i as f32).collect::<Vec<_>>());
    let x = device_put(&data, P![])?;
    let f = jit(|x: Array| reshard(x, u(&["x"])));
    let out = f.call(&x)?;
    assert_eq!(typed(&out), "float32[8]{U:x}");
    assert_eq!(shards(&out)[0], host(&x));
    assert_eq!(shards(&out)[7], [0.0; 8]);
    // Each device keeps its part.
    let out = f.call(&device_put(&data, P!["x"])?)?;
    assert_eq!(shards(&out)[0], [0.0, 1.0, 2.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(shards(&out)[7], [0.0, 0.0, 0.0, 0.0, 4.0, 5.0, 6.0, 7.0]);
    let unreduced = device_put(&data, &NamedSharding::new(&mesh, u(&["x"])))?;
    assert_eq!(typed(&unreduced), "float32[8]{U:x}");
    for read in [unreduced.to_vec::<f32>().map(drop), unreduced.copy_to_host_async()] {
        let text = read.unwrap_err().to_string();
        assert!(text.contains("float32[8]{U:x} has no values yet"), "{text}");
    }
    assert_eq!(host(&reshard(unreduced, P![])), host(&x));
    Ok(())
}

/// A product of batches was summed over the devices and then taken for an addend of each of them.
#[test]
fn products_of_batches_are_summed_once() -> Result<()> {
    let (_, _mesh) = mesh(2);
    let options = |batch: Option<&'static str>| DotOptions::new().out_sharding(P![batch, None, None].unreduced(["x"]));
    for (batch, dtype) in [(None, DType::F32), (Some("y"), DType::F32), (None, DType::Bf16)] {
        let rows = device_put(&ones_dtype([8, 8, 4], dtype), P![batch, None, "x"])?;
        let columns = device_put(&ones_dtype([8, 4, 8], dtype), P![batch, "x", None])?;
        let product = move |a: Array, b: Array| options(batch).matmul(a, b);
        for found in [product(rows.clone(), columns.clone()), jit(product).call((&rows, &columns))?] {
            assert!(typed(&found).ends_with("{U:x}"), "{}", typed(&found));
            let sum = reshard(found, P![]).astype(DType::F32);
            assert_eq!(host(&sum), [4.0; 512], "{batch:?} {dtype}");
        }
    }
    // A batch that vmap adds is one too.
    let square = |x: Array| {
        let (rows, columns) = (reshard(x.clone(), P![None, "x"]), reshard(x, P!["x", None]));
        reshard(DotOptions::new().out_sharding(P![None, None].unreduced(["x"])).matmul(rows, columns), P![None, None])
    };
    assert_eq!(host(&vmap(square).call(ones([3, 4, 4]))?), [4.0; 48]);
    Ok(())
}

#[test]
fn sharded_unreduced_roundtrip() -> Result<()> {
    let (_, _mesh) = mesh(4);
    for (from, to) in [
        (P!["x"], u(&["x"])),
        (P!["y"], u(&["y"])),
        (P![("x", "y")], u(&["x", "y"])),
        (P![("x", "y")], P!["x"].unreduced(["y"])),
        (P![], u(&["x", "y"])),
        (P!["x"], P!["x"].unreduced(["y"])),
        (P!["x", "y"], P!["x"].unreduced(["y"])),
        (P![None, ("y", "x")], P![None, "y"].unreduced(["x"])),
        // Addends over one axis become addends over another.
        (u(&["x"]), u(&["y"])),
        (P!["x"].unreduced(["y"]), P!["y"].unreduced(["x"])),
    ] {
        let x = ramp(&[8, 8], P![]);
        let (a, b) = (from.clone(), to.clone());
        let f = move |x: Array| {
            let x = reshard(x, a.clone());
            reshard(reshard(x, b.clone()), a.clone())
        };
        let g = move |x: Array| reshard(f(x), P![]);
        assert_eq!(host(&jit(g.clone()).call(&x)?), host(&x), "{from} to {to} in one program");
        let y = reshard(reshard(x.clone(), from.clone()), to.clone());
        assert_eq!(host(&reshard(y, P![])), host(&x), "{from} to {to}");
        let d = jit(grad(move |x: Array| (g(x) * 3).sum(..))).call(&x)?;
        assert_eq!((host(&d), typed(&d)), (vec![3.0; 64], "float32[8,8]".into()), "{from} to {to}");
    }
    Ok(())
}

/// The derivative of `2 sin(x)`.
fn slope(x: f32) -> f32 {
    2.0 * x.cos()
}

#[test]
fn unreduced_einsum_add_basic() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (a, b) = (num(&[8, 8], 0.1, 0.0, P!["x", "y"]), num(&[8, 8], 0.2, 1.0, P!["y", None]));
    let product =
        |a: &Array, b: &Array| DotOptions::new().out_sharding(P!["x"].unreduced(["y"])).einsum("ij,jk->ik", &[a, b]);
    let f = move |a: Array, b: Array| {
        let sum = product(&a, &b) + product(&a, &b);
        assert_eq!(sum.type_name(), "float32[8@x,8]{U:y}");
        reshard(sum, P!["x"])
    };
    let out = jit(f).call((&a, &b))?;
    let (ha, hb) = (host(&a), host(&b));
    let want: Vec<f32> = (0..64).map(|i| (0..8).map(|k| 2.0 * ha[i / 8 * 8 + k] * hb[k * 8 + i % 8]).sum()).collect();
    same(&out, &want);
    let text = jit(f).lower((&a, &b))?.compile()?.as_text()?;
    assert_eq!(text.matches(" all-reduce(").count(), 1, "{text}");
    // The cotangents of the addends are reduced, so that no gradient of a product is summed twice.
    let g = jit(grad(move |a: Array, b: Array| f(a, b).sin().sum(..)).argnums((Arg::<0>, Arg::<1>)));
    let (ga, gb) = g.call((&a, &b))?;
    assert_eq!((typed(&ga), typed(&gb)), (typed(&a), typed(&b)));
    fn expected_at(i: usize, k: usize, want: &[f32], hb: &[f32]) -> f32 {
        (0..8).map(|j| slope(want[i * 8 + j]) * hb[k * 8 + j]).sum::<f32>()
    }
    same(&ga, &(0..64).map(|n| expected_at(n / 8, n % 8, &want, &hb)).collect::<Vec<_>>());
    // Returned and summed by another program.
    let parts = jit(move |a: Array, b: Array| product(&a, &b)).call((&a, &b))?;
    assert_eq!(typed(&parts), "float32[8@x,8]{U:y}");
    same(&reshard(parts, P!["x"]), &want.iter().map(|v| v / 2.0).collect::<Vec<_>>());
    Ok(())
}

fn dot_with_out_sharding(spec: PartitionSpec) -> DotOptions {
    DotOptions::new().out_sharding(spec)
}

#[test]
fn dot_general_unreduced_error() {
    let (_, _mesh) = mesh(4);
    fn with_spec(spec: PartitionSpec) -> Array {
        ramp(&[8, 8], spec)
    }
    let text =
        rejected(&dot_with_out_sharding(u(&["x", "y"])).matmul(with_spec(P![None, "y"]), with_spec(P!["y", None])));
    assert!(text.contains("unreduced axes of out_sharding must be those of the contracting dimensions"), "{text}");
    let text = rejected(&dot_with_out_sharding(u(&["y"])).matmul(with_spec(P![None, "y"]), with_spec(P![])));
    assert!(text.contains("sharded identically"), "{text}");
    let text = rejected(&with_spec(u(&["x"])).matmul(with_spec(P![])));
    assert!(text.contains("unreduced operands are not supported") && text.contains("float32[8,8]{U:x}"), "{text}");
    let text = rejected(&(with_spec(u(&["x"])) + with_spec(u(&["y"]))));
    assert!(text.contains("float32[8,8]{U:x}, float32[8,8]{U:y}"), "{text}");
    for wrong in [
        with_spec(u(&["x"])) + with_spec(P![]),
        with_spec(u(&["x"])) + 1.0,
        with_spec(u(&["x"])).max(0),
        with_spec(u(&["x"])) * 2.0,
        with_spec(u(&["x"])).sin(),
        with_spec(u(&["x"])) - with_spec(P![]),
    ] {
        assert!(rejected(&wrong).contains("reshard(x"), "{}", rejected(&wrong));
    }
}

#[test]
fn shardings_of_programs_do_not_change_sums() -> Result<()> {
    let (mesh, _guard) = mesh(4);
    let x = ramp(&[8], P![]);
    let out = NamedSharding::new(&mesh, u(&["x"]));
    let text = jit(|x: Array| x * 2).out_shardings(out.clone()).call(&x).unwrap_err().to_string();
    assert!(text.contains("the sums over its unreduced axes differ"), "{text}");
    let text = jit(|x: Array| x * 2).in_shardings(out).call(&x).unwrap_err().to_string();
    assert!(text.contains("the sums over its unreduced axes differ"), "{text}");
    // Host data has no addends.
    let data = array([1.0f32; 8]);
    let f = jit(|x: Array| x).in_shardings(NamedSharding::new(&mesh, u(&["x"])));
    let text = f.call(&data).unwrap_err().to_string();
    assert!(text.contains("has no addends") && text.contains("reshard(x, spec)"), "{text}");
    Ok(())
}

#[test]
fn mul_reduced_error() {
    let (_, _mesh) = mesh(4);
    let (r, split) = (ramp(&[8, 8], P![].reduced(["x"])), ramp(&[8, 8], P!["x"]));
    assert_eq!(typed(&r), "float32[8,8]{R:x}");
    for wrong in [&r * &split, &split * &r, &r * ramp(&[8, 8], P![])] {
        let text = rejected(&wrong);
        assert!(
            text.contains("operands must be unreduced and reduced over the same axes") && text.contains("{R:x}"),
            "{text}"
        );
    }
    assert_eq!(typed(&(&r * 2.0)), "float32[8,8]{R:x}");
    assert_eq!(typed(&r.sin()), "float32[8,8]{R:x}");
    assert_eq!(typed(&r.reshape([64])), "float32[64]{R:x}");
}

#[test]
fn reduced_sin_fwd_mul_bwd() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, w) = (num(&[8, 8], 0.1, 0.0, P!["x"]), num(&[8, 8], 0.2, 0.0, P![].reduced(["x"])));
    fn f(w: Array, x: Array) -> Array {
        x.matmul(w.sin()).sum(..)
    }
    let g = jit(grad(f)).call((&w, &x))?;
    assert_eq!(typed(&g), "float32[8,8]{U:x}");
    let plain = jit(grad(f)).call((&num(&[8, 8], 0.2, 0.0, P![]), &x))?;
    same(&reshard(g, P![]), &host(&plain));
    Ok(())
}

#[test]
fn minibatch_scan_unreduced() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let w = num(&[4, 4], 0.3, 0.0, P![].reduced(["x"]));
    let xs = num(&[3, 8, 4], 0.1, 0.0, P![None, "x", None]);
    let f = |w: Array, xs: Array| {
        let step = move |acc: Array, xb: Array| {
            let g = grad(move |w: Array| xb.matmul(w).tanh().sum(..)).call(&w)?;
            assert_eq!((g.type_name(), acc.type_name()), ("float32[4,4]{U:x}".into(), "float32[4,4]{U:x}".into()));
            Ok((acc + g, ()))
        };
        let (acc, ()) = shardax::scan(step, reshard(zeros([4, 4]), u(&["x"])), xs)?;
        Ok::<_, shardax::Error>(reshard(acc, P![]))
    };
    let out = jit(f).call((&w, &xs))?;
    assert_eq!(typed(&out), "float32[4,4]");
    for (have, want) in host(&out).iter().zip([2.409525, 2.705405, 3.280572, 4.051619]) {
        near((*have).into(), want, 1e-4);
    }
    near(total(&out), 50.49733, 1e-4);
    let text = jit(f).lower((&w, &xs))?.compile()?.as_text()?;
    assert_eq!(text.matches(" all-reduce(").count(), 1, "{text}");
    // The same of a layer with a rule of its own.
    let layer = || {
        fn back((x, y, w): (Array, Array, Array), ct: Array) -> (Array, Array) {
            let slope = ct * (1.0 - &y * &y);
            let over = DotOptions::new().out_sharding(P![].unreduced(["x"]));
            (slope.matmul(reshard(w, P![]).t()), over.einsum("nd,nf->df", &[&x, &slope]))
        }
        fn ahead(x: Array, w: Array) -> (Array, (Array, Array, Array)) {
            let y = x.matmul(&w).tanh();
            (y.clone(), (x, y, w))
        }
        custom_vjp(|x: Array, w: Array| x.matmul(w).tanh()).defvjp(ahead, back)
    };
    let f = move |w: Array, xs: Array| {
        let step = move |acc: Array, xb: Array| {
            let loss = |w: Array| layer().call((xb.clone(), w)).map(|y| y.sum(..));
            Ok((acc + grad(loss).call(&w)?, ()))
        };
        let (acc, ()) = shardax::scan(step, reshard(zeros([4, 4]), u(&["x"])), xs)?;
        Ok::<_, shardax::Error>(reshard(acc, P![]))
    };
    same(&jit(f).call((&w, &xs))?, &host(&out));
    Ok(())
}

#[test]
fn unreduced_output_from_jit() -> Result<()> {
    setup();
    for (sizes, x_spec, y_spec, out_spec, shard) in [
        ((2, 2), P!["x", "y"], P!["y", None], P!["x", None].unreduced(["y"]), [4, 8]),
        ((2, 2), P![None, "x"], P!["x", None], P![None, None].unreduced(["x"]), [8, 8]),
        ((2, 2), P![None, ("x", "y")], P![("x", "y"), None], P![None, None].unreduced(["x", "y"]), [8, 8]),
        ((2, 1), P!["x", "y"], P!["y", None], P!["x", None].unreduced(["y"]), [4, 8]),
    ] {
        let mesh = make_mesh([("x", sizes.0), ("y", sizes.1)])?.with_axis_types([AxisType::Explicit; 2])?;
        let _mesh = shardax::set_mesh(&mesh)?;
        let (a, b) = (num(&[8, 4], 0.3, 0.0, x_spec), num(&[4, 8], 0.7, 0.0, y_spec));
        let to = DotOptions::new().out_sharding(out_spec.clone());
        let out = jit(move |a: Array, b: Array| to.einsum("xy,yz->xz", &[&a, &b])).call((&a, &b))?;
        assert_eq!(out.sharding()?.as_named(), Some(&NamedSharding::new(&mesh, out_spec)));
        for part in out.addressable_shards()? {
            assert_eq!(part.data.shape(), shard);
        }
        let want = DotOptions::new().out_sharding(P!["x", None]).matmul(&a, &b);
        let sum = reshard(out, P!["x", None]);
        assert_eq!(typed(&sum), "float32[8@x,8]");
        same(&sum, &host(&want));
    }
    Ok(())
}

#[test]
fn one_input_reduced_another_replicated() {
    let (_, _mesh) = mesh(2);
    let (a, b) = (ramp(&[4, 2], P!["x", None].reduced(["y"])), ramp(&[4, 2], P!["x", None]));
    type Join = fn(Array, Array) -> Array;
    let joins: [Join; 2] = [|a, b| (a * b).sum(..), |a, b| (a + b).sum(..)];
    for join in joins {
        let text = jit(join).call((&a, &b)).unwrap_err().to_string();
        assert!(text.contains("operands must be unreduced and reduced over the same axes"), "{text}");
        assert!(text.contains("float32[4@x,2]{R:y}, float32[4@x,2]"), "{text}");
        let text = jit(shard_map(join, None).out_specs(P![])).call((&a, &b)).unwrap_err().to_string();
        assert!(text.contains("float32[2,2]{V:x, R:y}, float32[2,2]{V:x}") && text.contains("`pcast_to`"), "{text}");
    }
}

#[test]
fn reduced_at_get_out_sharding() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let table = num(&[16, 8], 0.3, 0.0, P![None, None].reduced(["x"]));
    let indices = device_put(&array((0..16).map(|i| i * 5 % 16).collect::<Vec<i32>>()).reshape([4, 4]), P!["x", None])?;
    fn f(table: Array, indices: Array) -> Array {
        table.at(&indices).out_sharding(P!["x", None, None]).get()
    }
    let out = jit(f).call((&table, &indices))?;
    assert_eq!(typed(&out), "float32[4@x,4,8]");
    let (h, ids) = (host(&table), indices.to_vec::<i32>()?);
    same(&out, &ids.iter().flat_map(|r| h[*r as usize * 8..][..8].to_vec()).collect::<Vec<_>>());
    let g = jit(grad(move |table: Array, indices: Array| (f(table, indices) * 3).sum(..))).call((&table, &indices))?;
    assert_eq!(typed(&g), "float32[16,8]{U:x}");
    assert_eq!(host(&reshard(g, P![])), vec![3.0; 128]);
    Ok(())
}

#[test]
fn concat_reduced_split_unreduced() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[2, 4], P!["x"]);
    fn f(x: Array, a: Array, b: Array) -> Array {
        x.matmul(concatenate(&[a, b], 1)).sin().sum(..)
    }
    let g = jit(grad(f).argnums((Arg::<0>, Arg::<1>, Arg::<2>)));
    fn w(spec: PartitionSpec) -> (Array, Array) {
        (num(&[4, 8], 0.1, 0.0, spec.clone()), num(&[4, 8], 0.2, 0.0, spec))
    }
    let (a, b) = w(P![].reduced(["x"]));
    let (gx, ga, gb) = g.call((&x, &a, &b))?;
    assert_eq!(typed(&gx), "float32[2@x,4]");
    assert_eq!((typed(&ga), typed(&gb)), ("float32[4,8]{U:x}".into(), "float32[4,8]{U:x}".into()));
    let (a, b) = w(P![]);
    let (px, pa, pb) = g.call((&x, &a, &b))?;
    same(&gx, &host(&px));
    same(&reshard(ga, P![]), &host(&pa));
    same(&reshard(gb, P![]), &host(&pb));
    Ok(())
}

#[test]
fn reshape_reduced_fwd_unreduced_bwd() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8], P![].reduced(["x", "y"]));
    fn f(x: Array) -> Array {
        x.reshape([4, 2])
    }
    assert_eq!(typed(&jit(f).call(&x)?), "float32[4,2]{R:(x,y)}");
    let g = jit(grad(move |x: Array| (f(x).sin()).sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[8]{U:(x,y)}");
    same(&reshard(g, P![]), &(0..8).map(|i| (i as f32).cos()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn reduced_mul_scalar_fwd() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = device_put(&arange(0..4), P![].reduced(["x"]))?;
    let out = jit(|x: Array| x * 2).call(&x)?;
    assert_eq!((typed(&out), out.to_vec::<i32>()?), ("int32[4]{R:x}".into(), vec![0, 2, 4, 6]));
    let replicated = device_put(&arange(0..4), P![])?;
    let text = jit(|x: Array, y: Array| x * y).call((&x, &replicated)).unwrap_err().to_string();
    assert!(text.contains("reduced over the same axes") && text.contains("int32[4]{R:x}, int32[4]"), "{text}");
    Ok(())
}

#[test]
fn maps_over_all_axes_take_and_return_addends() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let apart = shard_map(|a: Array| a.sum(0), None).out_specs(P!["y"].unreduced(["x"]));
    let sums = jit(apart).call(&x)?;
    assert_eq!(typed(&sums), "float32[8@y]{U:x}");
    // The parts equal the parts of JAX 0.10.2.
    assert_eq!(shards(&sums)[..2], [vec![48.0, 52.0], vec![56.0, 60.0]]);
    assert_eq!(shards(&sums)[4], [176.0, 180.0]);
    let want: Vec<f32> = (0..8).map(|i| 224.0 + 8.0 * i as f32).collect();
    same(&reshard(sums.clone(), P!["y"]), &want);
    let total = shard_map(|a: Array| psum(a, "x"), None).out_specs(P!["y"]);
    let joined = jit(move |u: Array| total.call(u));
    assert_eq!(typed(&joined.call(&sums)?), "float32[8@y]");
    same(&joined.call(&sums)?, &want);
    // The gradient of a sum is the gradient of each addend.
    let g = jit(grad(move |u: Array| joined.call(u).map(|y| (y * 3).sum(..)))).call(&sums)?;
    assert_eq!((typed(&g), host(&g)), ("float32[8@y]{R:x}".into(), vec![3.0; 8]));
    Ok(())
}

#[test]
fn maps_of_reduced_arguments_have_unreduced_gradients() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (r, x) = (ramp(&[8], P!["y"].reduced(["x"])), ramp(&[8, 8], P!["x", "y"]));
    fn f(r: Array, x: Array) -> Result<Array> {
        shard_map(|r: Array, x: Array| psum((r * x).sum(..), ("x", "y")), None).out_specs(P![]).call((r, x))
    }
    near(jit(f).call((&r, &x))?.item::<f32>()?.into(), 7392.0, 1e-5);
    let g = jit(grad(f).argnums((Arg::<0>, Arg::<1>)));
    let (gr, gx) = g.call((&r, &x))?;
    assert_eq!((typed(&gr), typed(&gx)), ("float32[8@y]{U:x}".into(), "float32[8@x,8@y]".into()));
    same(&reshard(gr, P!["y"]), &(0..8).map(|i| 224.0 + 8.0 * i as f32).collect::<Vec<_>>());
    let text = g.lower((&r, &x))?.compile()?.as_text()?;
    assert_eq!(text.matches(" all-reduce(").count(), 0, "{text}");
    Ok(())
}

#[test]
fn maps_over_part_of_the_axes_reject_addends() {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    let f = shard_map(|a: Array| a.sum(0), None).axis_names("x").out_specs(P![].unreduced(["x"]));
    let text = f.call(&x).unwrap_err().to_string();
    assert!(text.contains("can only be in out_specs where shard_map is over all axes of the mesh"), "{text}");
    let f = shard_map(|a: Array| a, None).axis_names("x").out_specs(P![]);
    let text = f.call(&ramp(&[8], u(&["x"]))).unwrap_err().to_string();
    assert!(text.contains("float32[8]{U:x}") && text.contains("only supported where it is over all axes"), "{text}");
    let f = shard_map(|a: Array| psum(a, "x"), None).in_specs(P!["y"].unreduced(["x"])).out_specs(P!["y"]);
    let text = f.call(&ramp(&[8], P!["y"])).unwrap_err().to_string();
    assert!(text.contains("does not match the specs of the input: P('y',)"), "{text}");
}

#[test]
fn custom_rules_of_reduced_arguments() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let w = num(&[8], 0.3, 0.0, P![].reduced(["x"]));
    let rules = |scale: f32| {
        custom_vjp(|w: Array| w.sin())
            .defvjp(|w: Array| (w.sin(), w), move |w: Array, ct: Array| (ct * (w.cos() * scale),))
    };
    let x = num(&[8, 8], 0.1, 0.0, P!["x"]);
    let f = move |w: Array, x: Array| rules(2.0).call(w).map(|w| x.matmul(w).sum(..));
    let g = jit(grad(f)).call((&w, &x))?;
    assert_eq!(typed(&g), "float32[8]{U:x}");
    let plain = jit(grad(|w: Array, x: Array| x.matmul(w.sin()).sum(..))).call((&num(&[8], 0.3, 0.0, P![]), &x))?;
    same(&reshard(g, P![]), &host(&plain).iter().map(|v| 2.0 * v).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn sums_that_stay_addends() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = num(&[8, 8], 0.3, 0.0, P!["x", "y"]);
    for (axes, keep, spec, want, whole) in [
        (0, false, P!["y"].unreduced(["x"]), "float32[8@y]{U:x}", P!["y"]),
        (1, false, P!["x"].unreduced(["y"]), "float32[8@x]{U:y}", P!["x"]),
        (1, true, P!["x", None].unreduced(["y"]), "float32[8@x,1]{U:y}", P!["x", None]),
        // Summed over the devices, and split otherwise.
        (0, false, P!["x"], "float32[8@x]", P!["x"]),
    ] {
        let options = over(axes).keepdims(keep).out_sharding(spec);
        let plain = over(axes).keepdims(keep);
        let requested = options.clone();
        let f = jit(move |x: Array| x.sum(requested.clone()));
        let sums = f.call(&x)?;
        assert_eq!(typed(&sums), want);
        same(&reshard(sums, whole.clone()), &host(&x.sum(plain)));
        if want.contains('U') {
            assert_eq!(f.lower(&x)?.compile()?.collectives()?.count(), 0, "{want}");
        }
        let g = jit(grad(move |x: Array| (reshard(x.sum(options.clone()), whole.clone()) * 3).sum(..))).call(&x)?;
        assert_eq!((typed(&g), host(&g)), ("float32[8@x,8@y]".into(), vec![3.0; 64]), "{want}");
    }
    Ok(())
}

/// XLA's partitioner can apply only some operations to addends, because the others would count a sum once for each
/// device.
#[test]
fn unreduced_operations_equal_reduced_operands() -> Result<()> {
    let (_, _mesh) = mesh(4);
    // Operations that are linear in the value, one of each family.
    type Part = fn(Array) -> Array;
    let parts: [(&str, Part); 18] = [
        ("add", |x| &x + &x),
        ("neg", |x| -x),
        ("mul", |x| &x * reduced_as(&x, ramp(&[4, 4], P![]))),
        ("div", |x| &x / reduced_as(&x, ramp(&[4, 4], P![]) + 1.0)),
        ("transpose", |x| x.t()),
        ("reshape", |x| x.reshape([16])),
        ("expand_dims", |x| x.expand_dims(1)),
        ("broadcast", |x| x.broadcast_to([2, 4, 4])),
        ("convert", |x| x.astype(DType::F64).astype(DType::F32)),
        ("slice", |x| x.get((1..3, ..))),
        ("pad", |x| lax::pad(&x, &Array::from(0.0f32), &[(1, 0, 0), (0, 1, 1)])),
        ("concatenate", |x| concatenate(&[x.clone(), x], 1)),
        ("rev", |x| x.flip(0)),
        ("dynamic_slice", |x| lax::dynamic_slice_in_dim(&x, &Array::from(1), 2, 0)),
        ("dynamic_update_slice", |x| {
            lax::dynamic_update_slice(&x, &x.get((0..2, ..)), &[Array::from(1), Array::from(0)])
        }),
        ("gather", |x| x.at(&array([2, 0])).mode(lax::GatherScatterMode::Clip).get()),
        ("sum", |x| x.sum(1)),
        ("select", |x| where_(Array::from(true), &x, &-&x)),
    ];
    for (a, axes) in [&["x"][..], &["x", "y"], &["y"]].into_iter().enumerate() {
        let replicated = num(&[4, 4], 0.7, 0.3, P![]);
        // A slice has each operation over some of the axes.
        for (name, part) in parts.into_iter().skip(a % one_of(3)).step_by(one_of(3)) {
            let f = jit(move |x: Array| {
                let y = part(reshard(x, u(axes)));
                assert!(y.type_name().contains("{U:"), "{name}: {}", y.type_name());
                reshard(y, P![])
            });
            let want = part_of(part, name, &replicated);
            same(&f.call(&replicated)?, &want);
        }
    }
    Ok(())
}

/// The operation of a value; the factor of a product is reduced only if the other factor is unreduced.
fn part_of(part: fn(Array) -> Array, name: &str, x: &Array) -> Vec<f32> {
    match name {
        "mul" => host(&(x * ramp(&[4, 4], P![]))),
        "div" => host(&(x / (ramp(&[4, 4], P![]) + 1.0))),
        _ => host(&part(x.clone())),
    }
}

/// `y`, reduced over the axes that `x` is unreduced over.
fn reduced_as(x: &Array, y: Array) -> Array {
    let over: Vec<_> = x.aval().sharding().map(|typed| typed.unreduced().iter().collect()).unwrap_or_default();
    reshard(y, P![].reduced(over))
}
