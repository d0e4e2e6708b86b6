//! Indexing.

use super::*;

fn tokens(spec: PartitionSpec) -> Array {
    let values: Vec<i32> = (0..24).map(|i| i * 5 % 16).collect();
    device_put(&array(values).reshape([4, 6]), spec).unwrap()
}

#[test]
fn auto_gather_out_sharding() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let table = num(&[16, 8], 0.3, 0.0, P![None, "y"]);
    let tok = tokens(P!["x"]);
    fn f(table: Array, tok: Array) -> Array {
        table.at(&tok).out_sharding(P!["x", None, None]).get()
    }
    let out = jit(f).call((&table, &tok))?;
    assert_eq!(typed(&out), "float32[4@x,6,8]");
    let (t, want) = (host(&table), tok.to_vec::<i32>()?);
    same(&out, &want.iter().flat_map(|r| t[*r as usize * 8..][..8].to_vec()).collect::<Vec<_>>());
    assert_eq!(typed(&f(table.clone(), tok.clone())), "float32[4@x,6,8]");
    fn rows(table: Array, tok: Array) -> Array {
        table.at((&tok, ..)).out_sharding(P!["x", None, None]).get()
    }
    assert_eq!(typed(&jit(rows).call((&table, &tok))?), "float32[4@x,6,8]");
    fn entries(table: Array, tok: Array) -> Array {
        table.at((&tok, 2)).out_sharding(P!["x", None]).get()
    }
    let third = jit(entries).call((&table, &tok))?;
    assert_eq!(typed(&third), "float32[4@x,6]");
    same(&third, &want.iter().map(|r| t[*r as usize * 8 + 2]).collect::<Vec<_>>());
    // The gradient of a row is the sum over the tokens that read it.
    let g = jit(grad(move |table: Array, tok: Array| f(table, tok).sin().sum(..))).call((&table, &tok))?;
    assert_eq!(typed(&g), "float32[16,8@y]");
    fn times(row: usize, want: &[i32]) -> f32 {
        want.iter().filter(|r| **r as usize == row).count() as f32
    }
    same(&g, &t.iter().enumerate().map(|(i, v)| times(i / 8, &want) * v.cos()).collect::<Vec<_>>());
    Ok(())
}

#[test]
fn indices_sharded_gather_error() {
    let (_, _mesh) = mesh(4);
    let text = rejected(&num(&[16, 8], 0.3, 0.0, P![None, "y"]).get(&tokens(P!["x"])));
    assert!(
        text.contains("the sharding of the result cannot be inferred") && text.contains("float32[16,8@y]"),
        "{text}"
    );
    assert!(text.contains("`x.at(index).out_sharding(spec).get()`"), "{text}");
    // An index of an entire dimension works if other dimensions are split.
    assert_eq!(typed(&num(&[16, 8], 0.3, 0.0, P![None, "y"]).get(&tokens(P![]))), "float32[4,6,8@y]");
}

#[test]
fn dynamic_slice() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", "y"]);
    assert_eq!(typed(&x.get((2..6, ..))), "float32[4@x,8@y]");
    let text = rejected(&x.get(0));
    assert!(text.contains("out dim (1) is not divisible by mesh axes (2) with spec (x)"), "{text}");
    let g = jit(grad(|x: Array| x.get((2..6, ..)).sin().sum(..))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,8@y]");
    Ok(())
}

#[test]
fn scatter_of_whole_dimensions() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P![None, "y"]);
    let indices = array([1, 3]);
    let out = jit(|x: Array, indices: Array| x.at(&indices).add(1.0)).call((&x, &indices))?;
    assert_eq!(typed(&out), "float32[8,8@y]");
    assert_eq!(host(&out)[8], 9.0);
    let text = rejected(&ramp(&[8, 8], P!["x"]).at(&indices).add(1.0));
    assert!(text.contains("out_sharding(spec).set(value)"), "{text}");
    let out = ramp(&[8, 8], P!["x"]).at(&indices).out_sharding(P!["x"]).add(1.0);
    assert_eq!(typed(&out), "float32[8@x,8]");
    assert_eq!(host(&out)[8], 9.0);
    Ok(())
}

#[test]
fn conv_general_dilated() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, k) = (num(&[8, 4, 16], 0.1, 0.0, P!["x"]), num(&[2, 4, 3], 0.2, 0.0, P![]));
    fn f(x: Array, k: Array) -> Array {
        lax::conv(&x, &k, &[1], lax::Padding::Same)
    }
    let out = jit(f).call((&x, &k))?;
    assert_eq!(typed(&out), "float32[8@x,2,16]");
    let g = grad(move |x: Array, k: Array| f(x, k).sin().sum(..)).argnums((Arg::<0>, Arg::<1>));
    let (gx, gk) = jit(g).call((&x, &k))?;
    assert_eq!((typed(&gx), typed(&gk)), (typed(&x), typed(&k)));
    let text = rejected(&f(num(&[8, 4, 16], 0.1, 0.0, P![None, "y"]), k));
    assert!(text.contains("the kernel and the input's features must not be sharded"), "{text}");
    Ok(())
}

#[test]
fn linalg_of_split_batches() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let a = num(&[4, 3, 3], 1.3, 0.0, P!["x"]);
    assert_eq!(typed(&linalg::det(&a)), "float32[4@x]");
    let text = rejected(&linalg::det(&num(&[4, 4], 1.3, 0.0, P!["x"])));
    assert!(text.contains("must not be sharded"), "{text}");
    Ok(())
}

#[test]
fn dynamic_update_slice() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, update) = (ramp(&[16], P!["x"]), ramp(&[8], P!["x"]));
    fn f(x: Array, update: Array) -> Array {
        let y = lax::dynamic_update_slice(&x, &update, &[Array::from(3)]);
        assert_eq!(y.type_name(), "float32[16@x]");
        y
    }
    let out = jit(f).call((&x, &update))?;
    assert_eq!(typed(&out), "float32[16@x]");
    let want: Vec<f32> = (0..16).map(|i| if (3..11).contains(&i) { i - 3 } else { i } as f32).collect();
    assert_eq!(host(&out), want);
    let g = || grad(move |x: Array, update: Array| (f(x, update) * 2).sum(..)).argnums((Arg::<0>, Arg::<1>));
    let (gx, gu) = jit(g()).call((&x, &update))?;
    assert_eq!((typed(&gx), typed(&gu)), ("float32[16@x]".into(), "float32[8@x]".into()));
    assert_eq!(host(&gx)[2..12], [2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0]);
    assert_eq!(host(&gu), [2.0; 8]);
    assert_eq!(typed(&g().call((&x, &update))?.0), "float32[16@x]");
    let text = rejected(&lax::dynamic_update_slice(&x, &ramp(&[8], P!["y"]), &[Array::from(3)]));
    assert!(text.contains("float32[16@x]") && text.contains("float32[8@y]"), "{text}");
    Ok(())
}

#[test]
fn dynamic_update_slice_transpose() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, y, z) = (ramp(&[8], P![]), ramp(&[4], P![]), ramp(&[8], P!["x"]));
    fn f(x: Array, y: Array, z: Array) -> Array {
        let w = lax::dynamic_update_slice(&x, &y, &[Array::from(1)]) + z;
        assert_eq!(w.type_name(), "float32[8@x]");
        w.sum(..)
    }
    let (gx, gy, gz) = jit(grad(f).argnums((Arg::<0>, Arg::<1>, Arg::<2>))).call((&x, &y, &z))?;
    assert_eq!((typed(&gx), typed(&gy), typed(&gz)), ("float32[8]".into(), "float32[4]".into(), "float32[8@x]".into()));
    assert_eq!(host(&gx), [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
    assert_eq!((host(&gy), host(&gz)), (vec![1.0; 4], vec![1.0; 8]));
    Ok(())
}

#[test]
fn at_add_lower_to_scatter_add() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, ids) = (zeros([2, 10]), array([1, 3, 7, 10]));
    let want: Vec<f32> = (0..20).map(|i| if [1, 3, 7].contains(&(i % 10)) { 5.0 } else { 0.0 }).collect();
    fn f(x: Array, ids: Array) -> Array {
        x.at((.., &ids)).add(5.0)
    }
    assert_eq!(typed(&f(x.clone(), ids.clone())), "float32[2,10]");
    let split = reshard(x, P!["x", None]);
    assert_eq!(typed(&f(split.clone(), ids.clone())), "float32[2@x,10]");
    assert_eq!(host(&jit(f).call((&split, &ids))?), want);
    fn to(x: Array, ids: Array) -> Array {
        x.at((.., &ids)).out_sharding(P!["x", None]).add(5.0)
    }
    let out = jit(to).call((&split, &reshard(ids, P!["x"])))?;
    assert_eq!((typed(&out), host(&out)), ("float32[2@x,10]".into(), want));
    Ok(())
}

#[test]
fn scatter_sharding_rule() -> Result<()> {
    let (_, _mesh) = mesh(2);
    type Update = fn(Array, Array, Array) -> Array;
    // Every kind of update has the same rule: the result is sharded like the operand.
    let updates: [Update; 6] = [
        |x, i, v| x.at(&i).set(v),
        |x, i, v| x.at(&i).add(v),
        |x, i, v| x.at(&i).unique_indices().multiply(v),
        |x, i, v| x.at(&i).min(v),
        |x, i, v| x.at(&i).max(v),
        |x, i, v| lax::dynamic_update_slice(&x, &v.expand_dims(0), &[i, Array::from(0)]),
    ];
    let specs = [(P!["x", None, "y"], P!["x", "y"]), (P!["x", None, None], P!["x", None])];
    for (s, (of_operand, of_update)) in specs.into_iter().enumerate() {
        let operand = num(&[2, 10, 8], 0.3, 0.0, of_operand);
        let indices = device_put(&array([2, 3]), P!["x"])?;
        let values = num(&[2, 8], 0.7, 1.0, of_update);
        // A slice has each update with one of the shardings.
        for (n, update) in updates.into_iter().enumerate().skip(s % one_of(2)).step_by(one_of(2)) {
            let out = jit(vmap(update)).call((&operand, &indices, &values))?;
            assert_eq!(typed(&out), typed(&operand), "update {n}");
            fn on_one_device(x: &Array) -> Array {
                device_put(x, &devices().unwrap()[0]).unwrap()
            }
            let plain = {
                let _none = shardax::set_mesh(None)?;
                vmap(update).call((&on_one_device(&operand), &on_one_device(&indices), &on_one_device(&values)))?
            };
            assert_eq!(host(&out), host(&plain), "update {n}");
            let g = grad(move |x: Array, i: Array, v: Array| vmap(update).call((x, i, v)).map(|y| y.sum(..)));
            let (gx, gv) = jit(g.argnums((Arg::<0>, Arg::<2>))).call((&operand, &indices, &values))?;
            assert_eq!((typed(&gx), typed(&gv)), (typed(&operand), typed(&values)), "update {n}");
        }
    }
    Ok(())
}

#[test]
fn linalg_slogdet_and_solve() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let a = num(&[8, 4, 4], 1.3, 0.0, P![]) + eye(4) * 3;
    let split = reshard(a.clone(), P!["x"]);
    let b = num(&[8, 4], 0.7, 0.0, P![]);
    let (sign, log) = jit(|a: Array| linalg::slogdet(&a)).call(&split)?;
    assert_eq!((typed(&sign), typed(&log)), ("float32[8@x]".into(), "float32[8@x]".into()));
    same(&log, &host(&linalg::slogdet(&a).1));
    let (_, mapped) = vmap(|a: Array| linalg::slogdet(&a)).call(&split)?;
    assert_eq!(typed(&mapped), "float32[8@x]");
    same(&mapped, &host(&log));
    let solved = vmap(|a: Array, b: Array| linalg::solve(&a, &b)).call((&split, &reshard(b.clone(), P!["x"])))?;
    assert_eq!(typed(&solved), "float32[8@x,4]");
    let column = b.expand_dims(-1);
    same(&solved, &host(&linalg::solve(&a, &column)));
    let solved = linalg::solve(&split, reshard(column, P!["x"]));
    assert_eq!(typed(&solved), "float32[8@x,4,1]");
    Ok(())
}

#[test]
fn linalg_of_split_batches_has_the_values_of_one_device() -> Result<()> {
    let (_, _mesh) = mesh(4);
    // A batch of positive definite matrices, because some functions need them.
    let a = num(&[4, 3, 3], 1.3, 0.0, P![]);
    let a = a.matmul(a.mt()) + eye(3);
    let split = reshard(a.clone(), P!["x"]);
    type Part = fn(&Array) -> Array;
    let parts: [(&str, Part, &str); 10] = [
        ("cholesky", |a| linalg::cholesky(a), "float32[4@x,3,3]"),
        ("inv", |a| linalg::inv(a), "float32[4@x,3,3]"),
        ("det", |a| linalg::det(a), "float32[4@x]"),
        ("qr", |a| linalg::qr(a).1, "float32[4@x,3,3]"),
        ("eigh", |a| linalg::eigh(a).0, "float32[4@x,3]"),
        ("svd", |a| linalg::svd(a).1, "float32[4@x,3]"),
        ("expm", |a| shardax::scipy::linalg::expm(a), "float32[4@x,3,3]"),
        ("pinv", |a| linalg::pinv(a), "float32[4@x,3,3]"),
        ("matrix_power", |a| linalg::matrix_power(a, 3), "float32[4@x,3,3]"),
        ("solve", |a| linalg::solve(a, a), "float32[4@x,3,3]"),
    ];
    for (name, part, want) in parts.into_iter().step_by(one_of(4)) {
        let out = jit(move |a: Array| part(&a)).call(&split)?;
        assert_eq!(typed(&out), want, "{name}");
        same(&out, &host(&part(&a)));
        let g = jit(grad(move |a: Array| part(&a).sum(..))).call(&split)?;
        assert_eq!(typed(&g), "float32[4@x,3,3]", "gradient of {name}");
    }
    Ok(())
}

#[test]
fn pooling_of_split_dimensions() -> Result<()> {
    let (_, _mesh) = mesh(4);
    // Windows that overlap are padded to a size that the axis does not divide: their dimensions are whole.
    for (window, spec, want) in
        [(2, P!["x", "y", None, None], "float32[4@x,4@y,4,2]"), (3, P!["x", None, None, None], "float32[4@x,4,4,2]")]
    {
        let x = num(&[4, 8, 8, 2], 1.7, 0.0, spec);
        let pool = move |x: Array| {
            let window = lax::Window::new([1, window, window, 1]).strides([1, 2, 2, 1]).padding(lax::Padding::Same);
            lax::reduce_window_max(&x, window)
        };
        let out = jit(pool).call(&x)?;
        assert_eq!(typed(&out), want);
        let (value, g) = jit(value_and_grad(move |x: Array| pool(x).sin().sum(..))).call(&x)?;
        assert_eq!(typed(&g), typed(&x));
        let plain = {
            let _none = shardax::set_mesh(None)?;
            let replicated = device_put(&x, &devices()?[0])?;
            value_and_grad(move |x: Array| pool(x).sin().sum(..)).call(&replicated)?
        };
        near(value.item::<f32>()?.into(), plain.0.item::<f32>()?.into(), 1e-5);
        same(&g, &host(&plain.1));
    }
    Ok(())
}

#[test]
fn index_update() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P!["x", None]) + 1.0;
    let (at, values) = (array([0, 2, 4]), array([10.0f32, 20.0, 30.0]));
    type Update = fn(&shardax::At, &Array) -> Array;
    let updates: [Update; 8] = [
        |at, v| at.set(v),
        |at, v| at.add(v),
        |at, v| at.subtract(v),
        |at, v| at.multiply(v),
        |at, v| at.divide(v),
        |at, v| at.power(v / 10.0),
        |at, v| at.min(v),
        |at, v| at.max(v),
    ];
    for (n, update) in updates.into_iter().enumerate() {
        let f = move |x: Array, at: Array, v: Array| update(&x.at((&at, 0)).out_sharding(P!["x", None]), &v);
        let out = jit(f).call((&x, &at, &values))?;
        assert_eq!(typed(&out), "float32[8@x,8]", "update {n}");
        let _none = shardax::set_mesh(None)?;
        let want = update(&whole(&x).at((&whole(&at), 0)), &whole(&values));
        same(&out, &host(&want));
    }
    Ok(())
}

/// Updates of a part by a function of its index, the array and the values.
type BlockUpdate = (&'static str, fn(&Array, &Array) -> Array);

#[test]
fn blocks_of_split_arrays_updated_with_values_that_are_not_split() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let rows: [BlockUpdate; 5] = [
        ("row", |x, _| x.at(0).set(7.0)),
        ("row of values", |x, v| x.at(-1).set(v)),
        ("rows", |x, v| x.at(2..4).set(v)),
        ("added", |x, v| x.at(1..3).add(v)),
        ("largest", |x, _| x.at(5).max(20.0)),
    ];
    let columns: [BlockUpdate; 3] = [
        ("column", |x, _| x.at((.., 0)).set(7.0)),
        ("column of values", |x, v| x.at((.., 3)).set(v)),
        ("columns", |x, v| x.at((.., 2..4)).multiply(v.expand_dims(1))),
    ];
    let all: [BlockUpdate; 4] = [
        ("all", |x, _| x.at(..).set(7.0)),
        ("all of values", |x, v| x.at(..).set(v)),
        ("both dimensions", |x, v| x.at((.., ..)).set(v)),
        ("all added", |x, v| x.at(..).add(v)),
    ];
    let split_columns = [P![None, "x"], P![None, "y"], P![None, ("y", "x")]];
    let split_rows = [P!["x", None], P![("x", "y"), None]];
    let both = [P!["x", "y"], P!["y", None], P![None, "x"]];
    let groups = [(&rows[..], &split_columns[..]), (&columns[..], &split_rows[..]), (&all[..], &both[..])];
    for (updates, specs) in groups {
        for ((name, update), spec) in updates.iter().flat_map(|u| specs.iter().map(move |s| (*u, s))) {
            let (x, v) = (ramp(&[8, 8], spec.clone()), ramp(&[8], P![]) + 1.0);
            let type_of_x = typed(&x);
            let loss = move |x: Array, v: Array| (update(&x, &v).square() * &x).sum(..);
            let results = [update(&x, &v), jit(move |x: Array, v: Array| update(&x, &v)).call((&x, &v))?];
            let (of_x, of_v) = grad(loss).argnums((Arg::<0>, Arg::<1>)).call((&x, &v))?;
            assert_eq!(typed(&of_x), type_of_x, "{name} of {spec}");
            let (x, v) = (whole(&x), whole(&v));
            let _none = shardax::set_mesh(None)?;
            let expected = update(&x, &v);
            for result in results {
                assert_eq!(typed(&result), type_of_x, "{name} of {spec}");
                same(&result, &host(&expected));
            }
            let (expected_of_x, expected_of_v) = grad(loss).argnums((Arg::<0>, Arg::<1>)).call((&x, &v))?;
            same(&of_x, &host(&expected_of_x));
            same(&of_v, &host(&expected_of_v));
        }
    }
    Ok(())
}

#[test]
fn blocks_updated_with_values_that_are_split_otherwise_are_rejected() {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8, 8], P![None, "x"]);
    assert!(rejected(&x.at(0).set(ramp(&[8], P!["y"]))).contains("same sharding"));
    let addends = device_put(&ones([8, 8]), P![None, None].unreduced(["x"])).unwrap();
    for update in [addends.at(..).set(2.0), addends.at(0).set(2.0)] {
        assert!(rejected(&update).contains("{U:x}"));
    }
}

#[test]
fn updates_of_entire_varying_values_stay_varying() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let f = shard_map(
        |x: Array| {
            let replaced = x.at(..).set(2.0);
            assert_eq!(replaced.type_name(), "float32[2]{V:x}");
            // The carry has the type of the updated value, which differs between devices.
            let (carry, _) = scan_n(|c: Array| Ok::<_, shardax::Error>((c.at(..).set(3.0), ())), x, 2)?;
            Ok::<_, shardax::Error>(carry)
        },
        None,
    );
    same(&f.out_specs(P!["x"]).call(ramp(&[4], P!["x"]))?, &[3.0; 4]);
    Ok(())
}
