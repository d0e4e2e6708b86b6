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
    let put = device_put(&data, &NamedSharding::new(&mesh, u(&["x"])))?;
    assert_eq!(typed(&put), "float32[8]{U:x}");
    let text = put.to_vec::<f32>().unwrap_err().to_string();
    assert!(text.contains("float32[8]{U:x} has no values yet"), "{text}");
    assert_eq!(host(&reshard(put, P![])), host(&x));
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
    // Returned and summed by another program.
    let parts = jit(move |a: Array, b: Array| product(&a, &b)).call((&a, &b))?;
    assert_eq!(typed(&parts), "float32[8@x,8]{U:y}");
    same(&reshard(parts, P!["x"]), &want.iter().map(|v| v / 2.0).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn dot_general_unreduced_error() {
    let (_, _mesh) = mesh(4);
    let at = |spec| ramp(&[8, 8], spec);
    let to = |spec: PartitionSpec| DotOptions::new().out_sharding(spec);
    let text = refused(&to(u(&["x", "y"])).matmul(at(P![None, "y"]), at(P!["y", None])));
    assert!(text.contains("unreduced axes of out_sharding must be those of the contracting dimensions"), "{text}");
    let text = refused(&to(u(&["y"])).matmul(at(P![None, "y"]), at(P![])));
    assert!(text.contains("sharded identically"), "{text}");
    let text = refused(&at(u(&["x"])).matmul(at(P![])));
    assert!(text.contains("unreduced operands are not supported") && text.contains("float32[8,8]{U:x}"), "{text}");
    let text = refused(&(at(u(&["x"])) + at(u(&["y"]))));
    assert!(text.contains("float32[8,8]{U:x}, float32[8,8]{U:y}"), "{text}");
    for wrong in [
        at(u(&["x"])) + at(P![]),
        at(u(&["x"])) + 1.0,
        at(u(&["x"])).max(0),
        at(u(&["x"])) * 2.0,
        at(u(&["x"])).sin(),
        at(u(&["x"])) - at(u(&["x"])),
    ] {
        assert!(refused(&wrong).contains("reshard(x"), "{}", refused(&wrong));
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
    let text = shard_map(|x: Array| x, None).out_specs(u(&["x"])).call(&x).unwrap_err().to_string();
    assert!(text.contains("unreduced or reduced axes, which are not supported"), "{text}");
    Ok(())
}

#[test]
fn mul_reduced_error() {
    let (_, _mesh) = mesh(4);
    let (r, split) = (ramp(&[8, 8], P![].reduced(["x"])), ramp(&[8, 8], P!["x"]));
    assert_eq!(typed(&r), "float32[8,8]{R:x}");
    for wrong in [&r * &split, &split * &r, &r * ramp(&[8, 8], P![])] {
        let text = refused(&wrong);
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
    let f = |w: Array, x: Array| x.matmul(w.sin()).sum(..);
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
    Ok(())
}
