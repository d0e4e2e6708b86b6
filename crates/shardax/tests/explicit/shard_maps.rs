//! `shard_map` of values whose types have shardings.

use super::*;

#[test]
fn shard_map_full_manual() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (a, b) = (ramp(&[8, 8], P!["x", "y"]), ramp(&[8, 8], P!["x", "y"]));
    fn f(a: Array, b: Array) -> Array {
        assert_eq!(a.type_name(), "float32[4,2]{V:x,y}");
        assert_eq!(get_abstract_mesh().map(|m| m.axis_types().to_vec()), Some(vec![AxisType::Manual; 2]));
        a * b
    }
    fn mapped(a: Array, b: Array) -> Result<Array> {
        shard_map(f, None).out_specs(P!["x", "y"]).call((a * 2, b))
    }
    let out = jit(mapped).call((&a, &b))?;
    assert_eq!(typed(&out), "float32[8@x,8@y]");
    assert_eq!(host(&out)[3], 18.0);
    let g = jit(grad(move |a: Array, b: Array| Ok::<_, shardax::Error>(mapped(a, b)?.sum(..)))).call((&a, &b))?;
    assert_eq!(typed(&g), "float32[8@x,8@y]");
    let wrong = shard_map(f, None).in_specs((P!["y"], P!["x", "y"])).out_specs(P!["x", "y"]).call((&a, &b));
    let text = wrong.unwrap_err().to_string();
    assert!(
        text.contains("in_specs passed to shard_map: P('y',) does not match the specs of the input: P('x', 'y')"),
        "{text}"
    );
    assert!(text.contains("float32[8@x,8@y]") && text.contains("reshard(x, spec)"), "{text}");
    Ok(())
}

#[test]
fn shard_map_dot() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (a, b) = (num(&[8, 4], 0.1, 0.0, P!["x", "y"]), num(&[4, 8], 0.2, 0.0, P!["x", "y"]));
    fn f(a: Array, b: Array) -> Array {
        let a = all_gather_tiled(a, "y", 1);
        let b = all_gather_tiled(b, "x", 0);
        a.matmul(b)
    }
    let out = jit(move |a: Array, b: Array| shard_map(f, None).out_specs(P!["x", "y"]).call((a, b))).call((&a, &b))?;
    assert_eq!(typed(&out), "float32[8@x,8@y]");
    let (ha, hb) = (host(&a), host(&b));
    near(host(&out)[9].into(), (0..4).map(|k| f64::from(ha[4 + k] * hb[k * 8 + 1])).sum(), 1e-4);
    Ok(())
}

#[test]
fn part_of_the_axes() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let x = num(&[8, 8], 0.3, 0.0, P!["x", "y"]);
    fn part(x: Array) -> Result<Array> {
        fn inner(a: Array) -> Array {
            assert_eq!(a.type_name(), "float32[4,8@y]{V:x}");
            psum(a.sin(), "x")
        }
        shard_map(inner, None).axis_names("x").out_specs(P![]).call(x)
    }
    let out = jit(part).call(&x)?;
    assert_eq!(typed(&out), "float32[4,8@y]");
    near(total(&out), 0.029377, 1e-2);
    fn joined(x: Array) -> Result<Array> {
        shard_map(|a: Array| a * 2, None).axis_names("x").out_specs(P!["x"]).call(x)
    }
    assert_eq!(typed(&jit(joined).call(&x)?), "float32[8@x,8@y]");
    let g = jit(grad(move |x: Array| Ok::<_, shardax::Error>(joined(x)?.sum(..)))).call(&x)?;
    assert_eq!(typed(&g), "float32[8@x,8@y]");
    same(&g, &[2.0; 64]);
    let over_both = ramp(&[8], P![("x", "y")]);
    let text = jit(|x: Array| shard_map(|a: Array| a * 2, None).axis_names("y").out_specs(P!["y"]).call(x));
    let text = text.call(&over_both).unwrap_err().to_string();
    assert!(text.contains("Invalid spec"), "{text}");
    Ok(())
}

#[test]
fn captured_values_and_modes_are_rejected_inside() {
    let (_, _mesh) = mesh(4);
    let x = ramp(&[8], P!["x"]);
    // A captured array has no spec, so its shard inside is undefined.
    let outer = x.clone();
    let f = move |x: Array| {
        shard_map(
            {
                let outer = outer.clone();
                move |a: Array| a + outer.sum(..)
            },
            None,
        )
        .out_specs(P!["x"])
        .call(x)
    };
    let text = jit(f).call(&x).unwrap_err().to_string();
    assert!(
        text.contains("the mesh of an operand of type float32[8@x]")
            && text.contains("pass it to the mapped function as an argument"),
        "{text}"
    );
    let f = |x: Array| {
        shard_map(|a: Array| auto_axes(|a: Array| a * 2).out_sharding(P![]).call(a), None).out_specs(P!["x"]).call(x)
    };
    let text = jit(f).call(&x).unwrap_err().to_string();
    assert!(text.contains("auto_axes cannot change the type of axis 'x', which is Manual"), "{text}");
}

#[test]
fn experts() -> Result<()> {
    let (_, _mesh) = mesh(4);
    let (x, we) = (num(&[8, 4], 0.3, 0.0, P!["x"]), num(&[4, 4, 4], 0.2, 0.0, P!["y", None, None]));
    // The gate is replicated, the experts are split over `y`, and the tokens over `x`.
    let gate = num(&[4, 4], 0.5, 0.0, P![]);
    fn moe(x: Array, we: Array, gate: Array) -> Result<Array> {
        let pr = shardax::nn::softmax(&x.matmul(gate), -1);
        assert_eq!(pr.type_name(), "float32[8@x,4]");
        fn experts(x: Array, we: Array, pr: Array) -> Array {
            assert_eq!((x.type_name(), we.type_name()), ("float32[4,4]{V:x}".into(), "float32[1,4,4]{V:y}".into()));
            let i = axis_index("y");
            let y = einsum("nd,edf->nf", &[&(x * lax::dynamic_slice_in_dim(&pr, &i, 1, 1)), &we]);
            psum(y, "y")
        }
        shard_map(experts, None).out_specs(P!["x", None]).call((x, we, pr))
    }
    let y = jit(moe).call((&x, &we, &gate))?;
    assert_eq!(typed(&y), "float32[8@x,4]");
    for (have, want) in host(&y).iter().zip([-0.109475, -0.089671, -0.066293, -0.040272]) {
        near((*have).into(), want, 1e-4);
    }
    near(total(&y), -4.570611, 1e-4);
    fn loss(x: Array, we: Array, gate: Array) -> Result<Array> {
        let y = moe(x, we, gate)?;
        Ok::<_, shardax::Error>((&y * &y).sum(..))
    }
    let (gx, gw, gg) = jit(grad(loss).argnums((Arg::<0>, Arg::<1>, Arg::<2>))).call((&x, &we, &gate))?;
    assert_eq!((typed(&gx), typed(&gw), typed(&gg)), (typed(&x), typed(&we), typed(&gate)));
    near(absolute(&gx), 10.85014, 1e-4);
    near(absolute(&gw), 9.21374, 1e-4);
    near(absolute(&gg), 62.24579, 1e-4);
    Ok(())
}
