//! `shard_map`: specs, collectives, meshes, nesting. `JAX:` names the case of JAX's tests that a test follows.

use shardax::ErrorKind;
use shardax::prelude::*;
use shardax::program::Program;

use crate::common::quick::setup;
use crate::{close, message};

pub(crate) fn ramp(shape: impl IntoShape + Clone) -> Array {
    let n: i64 = shape.clone().into_dims().iter().product();
    (arange(0..n as i32).astype(DType::F32) / 10.0 + 0.1).reshape(shape)
}

/// The number of times that a primitive is applied, inner programs included.
fn count(program: &Program, name: &str) -> usize {
    let mut n = 0;
    program.for_each_eqn(&mut |eqn| n += (eqn.primitive.name() == name) as usize);
    n
}

pub(crate) fn mesh42() -> Result<Mesh> {
    setup();
    make_mesh([("i", 4), ("j", 2)]).map(|mesh| mesh.auto())
}

/// JAX: `test_with_static_arg`.
#[test]
fn shard_map_passes_static_tuples() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array, axes: Static<[i32; 2]>| x.sum(axes.0), &mesh)
        .in_specs((P!["i"], None))
        .out_specs(P![])
        .check_vma(false);
    assert_eq!(f.call((ones([4, 3]), Static([0, 1])))?.shape(), [0usize; 0]);
    Ok(())
}

/// JAX: `test_in_spec_none`.
#[test]
fn in_specs_none_passes_values_other_than_arrays() -> Result<()> {
    let mesh = mesh42()?;
    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct Config {
        name: String,
        scale: i32,
    }
    let f = shard_map(|c: Static<Config>, x: Array| x * c.scale, &mesh).in_specs((None, P!["i"])).out_specs(P!["i"]);
    let y = f.call((Static(Config { name: "double".into(), scale: 2 }), ramp([8, 2])))?;
    close(&y, &(ramp([8, 2]) * 2));
    Ok(())
}

/// JAX: `test_in_specs_none_error`.
#[test]
fn scalars_take_empty_specs() -> Result<()> {
    let mesh = mesh42()?;
    fn body(x: Array) -> Array {
        psum(x, "i")
    }
    close(&shard_map(body, &mesh).in_specs(None).out_specs(P![]).call(3.0)?, &array(12.0f32));
    close(&shard_map(body, &mesh).in_specs((None,)).out_specs(P![]).call(3.0)?, &array(12.0f32));
    close(&shard_map(body, &mesh).in_specs(P![]).out_specs(P![]).call(3.0)?, &array(12.0f32));
    Ok(())
}

/// JAX: `test_tree_prefix_error`.
#[test]
fn specs_of_another_structure_name_the_place() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: (Array, Array)| x.0, &mesh).in_specs(([P!["i"], P!["i"], P!["i"]],)).out_specs(P!["i"]);
    let text = message(f.call((ramp([4, 2]), ramp([4, 2]))));
    assert!(text.contains("shard_map in_specs[0]"), "{text}");
    Ok(())
}

/// JAX: `test_rank_errors`.
#[test]
fn specs_longer_than_the_rank_are_an_error() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array| x, &mesh).in_specs(P!["i", "j"]).out_specs(P!["i", "j"]);
    let text = message(f.call(ramp(8)));
    assert!(text.contains("in_specs entry which is too long") && text.contains("float32[8]"), "{text}");
    let f = shard_map(|x: Array| x.sum(..), &mesh).in_specs(P!["i"]).out_specs(P!["i"]);
    let text = message(f.call(ramp(8)));
    assert!(text.contains("out_specs entry which is too long") && text.contains("P![]"), "{text}");
    Ok(())
}

/// JAX: `test_no_mesh_context_error`.
#[test]
fn shard_map_without_any_mesh_is_an_error() {
    setup();
    let f = shard_map(|x: Array| x, None).in_specs(P![]).out_specs(P![]);
    let error = f.call(ramp(8)).err().expect("no mesh");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.to_string().contains("The context mesh cannot be empty. Use `set_mesh(mesh)`"), "{error}");
}

/// JAX: `test_psum_not_under_shmap_error`.
#[test]
fn psum_outside_of_a_map_is_an_error_with_advice() {
    setup();
    let error = jit(|x: Array| psum(x, "i")).call(ramp(8)).err().expect("unbound");
    assert_eq!(error.kind(), ErrorKind::Name);
    let text = error.to_string();
    assert!(text.contains("Found an unbound axis name: i. To fix this, please call psum under"), "{text}");
    assert!(text.contains(file!()), "{text}");
}

/// JAX: `test_returned_out_sharding`.
#[test]
fn result_has_the_sharding_of_out_specs() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array| x, &mesh).in_specs(P!["i", "j"]).out_specs(P!["i", "j"]);
    let y = f.call(ramp([8, 2]))?;
    assert_eq!(y.sharding()?, Sharding::from(NamedSharding::new(&mesh, P!["i", "j"])));
    Ok(())
}

/// JAX: `test_eager_repr`.
#[test]
fn eager_shard_map_prints_the_shard_of_each_device() -> Result<()> {
    let mesh = mesh42()?;
    let text = std::sync::Mutex::new(String::new());
    let _ = shard_map(
        |x: Array| {
            *text.lock().expect("text") = x.to_string();
            x
        },
        &mesh,
    )
    .in_specs(P!["i"])
    .out_specs(P!["i"])
    .call(arange(0..4))?;
    let text = text.into_inner().expect("text");
    assert!(text.contains("On devices at mesh coordinates (i=0):\n[0]"), "{text}");
    assert!(text.contains("On devices at mesh coordinates (i=3):\n[3]"), "{text}");
    Ok(())
}

/// JAX: `test_eager_control_flow`.
#[test]
fn eager_shard_map_branches_on_replicated_values() -> Result<()> {
    let mesh = mesh42()?;
    fn body(x: Array) -> Result<Array> {
        // The sum is the same everywhere and its value is known: a plain `if` works.
        let total = psum(x.sum(..), "i");
        if total.item::<i32>()? > 5 { Ok(x * 2) } else { Ok(x) }
    }
    let f = shard_map(body, &mesh).in_specs(P!["i"]).out_specs(P!["i"]);
    assert_eq!(f.call(arange(0..4))?.to_vec::<i32>()?, [0, 2, 4, 6]);
    assert_eq!(f.call(arange(0..4) * 0)?.to_vec::<i32>()?, [0; 4]);
    let varying =
        shard_map(|x: Array| -> Result<Array> { if x.item::<i32>()? > 0 { Ok(x) } else { Ok(x * 2) } }, &mesh)
            .in_specs(P!["i"])
            .out_specs(P!["i"]);
    assert!(message(varying.call(arange(0..4))).contains("TracerBoolConversionError"));
    assert!(message(jit(f).call(arange(0..4))).contains("ConcretizationTypeError"));
    Ok(())
}

/// JAX: `test_disable_jit`.
#[test]
fn shard_map_with_jit_disabled() -> Result<()> {
    let mesh = mesh42()?;
    let f = jit(shard_map(|x: Array| psum(x, "i"), &mesh).in_specs(P!["i"]).out_specs(P![]));
    let _eager = disable_jit();
    assert_eq!(f.call(arange(0..4))?.to_vec::<i32>()?, [6]);
    Ok(())
}

/// JAX: `test_replication_checker_eager`.
#[test]
fn eager_replication_check_of_out_specs() -> Result<()> {
    let mesh = mesh42()?;
    let bad = shard_map(|x: Array| x * 2, &mesh).in_specs(P!["i"]).out_specs(P![]);
    let text = message(bad.call(ramp(8)));
    assert!(text.contains("out_specs which require replication which can't be statically inferred given the mesh"));
    assert!(text.contains("may vary over {i}"), "{text}");
    let good = shard_map(|x: Array| psum(x * 2, "i"), &mesh).in_specs(P!["i"]).out_specs(P![]);
    assert_eq!(good.call(ramp(8))?.shape(), [2]);
    Ok(())
}

/// JAX: `test_replication_checker_jit`.
#[test]
fn replication_check_of_out_specs_under_jit() -> Result<()> {
    let mesh = mesh42()?;
    let bad = jit(shard_map(|x: Array| x * 2, &mesh).in_specs(P!["i"]).out_specs(P![]));
    assert!(message(bad.call(ramp(8))).contains("require replication"));
    let unchecked = jit(shard_map(|x: Array| x * 2, &mesh).in_specs(P!["i"]).out_specs(P![]).check_vma(false));
    assert_eq!(unchecked.call(ramp(8))?.shape(), [2]);
    Ok(())
}

/// JAX: `test_get_check_rep`.
#[test]
fn psum_removes_the_axes_it_sums_over() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(
        |x: Array| {
            assert_eq!(x.vma().to_string(), "{i, j}");
            let y = psum(x, "i");
            assert_eq!(y.vma().to_string(), "{j}");
            let z = psum(y, "j");
            assert_eq!(z.vma().to_string(), "{}");
            z
        },
        &mesh,
    )
    .in_specs(P!["i", "j"])
    .out_specs(P![]);
    let _ = f.call(ramp([4, 2]))?;
    Ok(())
}

/// JAX: `test_mul_with_vma_in_types`.
#[test]
fn replicated_factor_is_cast_to_varying() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array| x * ramp(2), &mesh).in_specs(P!["i"]).out_specs(P!["i"]);
    let program = make_program(f, ramp(8))?;
    assert_eq!(count(&program, "pcast"), 1, "{program}");
    Ok(())
}

/// JAX: `test_pmax_vma_in_types`.
#[test]
fn operand_of_pmax_is_cast_to_varying() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array| pmax(x, "i"), &mesh).in_specs(P![]).out_specs(P![]);
    let program = make_program(f, ramp(8))?;
    assert_eq!((count(&program, "pcast"), count(&program, "pmax")), (1, 1), "{program}");
    Ok(())
}

/// JAX: `test_all_gather_invariant_basic`.
#[test]
fn all_gather_invariant_is_replicated_and_has_a_gradient() -> Result<()> {
    let mesh = mesh42()?;
    let f = || {
        shard_map(
            |x: Array| {
                let y = all_gather_invariant(x, "i", 0);
                assert!(y.vma().is_empty());
                y
            },
            &mesh,
        )
        .in_specs(P!["i"])
        .out_specs(P![])
    };
    close(&jit(f()).call(ramp(8))?, &ramp(8));
    let g = grad(|x: Array| -> Result<Array> { Ok((f().call(x)? * ramp(8)).sum(..)) });
    close(&g.call(ramp(8))?, &ramp(8));
    Ok(())
}

/// JAX: `test_repeated_psum_allowed`.
#[test]
fn psum_of_psum_multiplies_again() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array| psum(psum(x, "i"), "i"), &mesh).in_specs(P!["i"]).out_specs(P![]);
    close(&f.call(ramp(4))?, &(ramp(4).sum_keepdims(0) * 4));
    Ok(())
}

/// JAX: `test_scan_pvary_errors`.
#[test]
fn scan_carry_that_starts_to_vary_names_the_cast() -> Result<()> {
    let mesh = mesh42()?;
    let f = |cast: bool| {
        shard_map(
            move |x: Array| -> Result<Array> {
                let init = if cast { pcast(zeros(2), "i") } else { zeros(2) };
                Ok(shardax::scan(|c: Array, y: Array| (c + &y, y), init, x)?.0)
            },
            &mesh,
        )
        .in_specs(P![None, "i"])
        .out_specs(P!["i"])
    };
    let text = message(f(false).call(ramp([3, 8])));
    assert!(text.contains("pcast"), "{text}");
    close(&f(true).call(ramp([3, 8]))?, &ramp([3, 8]).sum(0));
    Ok(())
}

/// JAX: `test_scan_rep_rule`.
#[test]
fn scan_carries_varying_axes() -> Result<()> {
    let mesh = mesh42()?;
    let f = |spec: PartitionSpec| {
        shard_map(
            |x: Array, y: Array| -> Result<Array> {
                let init = pcast(psum(x, "i"), "j");
                Ok(shardax::scan(|c: Array, y: Array| (&c + psum(y.sum(..), "i"), c), init, y)?.0)
            },
            &mesh,
        )
        .in_specs((P!["i"], P![None, ("i", "j")]))
        .out_specs(spec)
    };
    let text = message(f(P![]).call((ramp(4), ramp([3, 8]))));
    assert!(text.contains("require replication") && text.contains("{j}"), "{text}");
    assert_eq!(f(P!["j"]).call((ramp(4), ramp([3, 8])))?.shape(), [2]);
    Ok(())
}

/// JAX: `test_pvary_eager`.
#[test]
fn pcast_works_inside_and_fails_outside() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array| pcast(x, "i"), &mesh).in_specs(P![]).out_specs(P!["i"]);
    assert_eq!(f.call(ramp(2))?.shape(), [8]);
    assert_eq!(pcast(ramp(2), "i").error().map(|e| e.kind()), Some(ErrorKind::Name));
    let twice = shard_map(|x: Array| pcast(pcast(x, "i"), "i"), &mesh).in_specs(P![]).out_specs(P!["i"]);
    assert!(message(twice.call(ramp(2))).contains("Unsupported pcast from=varying, to='varying'"));
    Ok(())
}

/// The program of a function's gradient with a cotangent given.
fn transposed(f: impl Function<(Array,), Output = Array>, x: &Array) -> Result<Program> {
    make_program(
        |x: Array| -> Result<Array> { grad(|x: Array| -> Result<Array> { Ok(f.apply((x,))?.sum(..)) }).call(x) },
        x,
    )
}

/// JAX: `test_fanout_specs_transpose_to_psum`.
#[test]
fn replicated_input_transposes_to_psum() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array| x, &mesh).in_specs(P![]).out_specs(P!["i"]);
    let program = transposed(f, &ramp(1))?;
    assert_eq!(count(&program, "psum_invariant"), 1, "{program}");
    Ok(())
}

/// JAX: `test_fanin_psum_transposes_to_fanout`.
#[test]
fn psum_transposes_to_a_cast() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array| psum(x, "i"), &mesh).in_specs(P!["i"]).out_specs(P![]);
    let program = transposed(f, &ramp(4))?;
    // The only psum belongs to the value, because its transpose is a cast.
    assert_eq!(count(&program.clone(), "psum_invariant"), 1, "{program}");
    assert!(count(&program, "pcast") >= 1, "{program}");
    Ok(())
}

/// JAX: `test_psum_with_implicit_fanout_self_transposes`.
#[test]
fn psum_returned_split_transposes_to_psum_and_cast() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array| psum(x, "i"), &mesh).in_specs(P!["i"]).out_specs(P!["i"]);
    let x = ramp(4);
    close(&grad(|x: Array| -> Result<Array> { Ok(f.apply((x,))?.sum(..)) }).call(&x)?, &full_like(&x, 4.0));
    Ok(())
}

/// JAX: `test_reverse_mode_ad`.
#[test]
fn both_modes_with_captured_constants() -> Result<()> {
    let mesh = mesh42()?;
    let constant = ramp([2, 2]);
    let f = shard_map(|x: Array| (x * &constant).sin(), &mesh).in_specs(P!["i", "j"]).out_specs(P!["i", "j"]);
    let x = ramp([8, 4]);
    let tiled = concatenate(&vec![concatenate(&[constant.clone(), constant.clone()], 1); 4], 0);
    let (y, dy) = jvp(|x: Array| f.apply((x,)), &x, ones_like(&x))?;
    close(&y, &(&x * &tiled).sin());
    close(&dy, &((&x * &tiled).cos() * &tiled));
    let g = grad(|x: Array| -> Result<Array> { Ok(f.apply((x,))?.sum(..)) }).call(&x)?;
    close(&g, &((&x * &tiled).cos() * &tiled));
    Ok(())
}

/// JAX: `test_vmap_spmd_axis_name`.
#[test]
fn spmd_axis_name_splits_the_batch() -> Result<()> {
    let mesh = mesh42()?;
    let f = vmap(shard_map(|x: Array| x, &mesh).in_specs(P!["i"]).out_specs(P!["i"])).spmd_axis_name("j");
    let program = make_program(f, ramp([4, 8]))?;
    let text = program.to_string();
    assert_eq!(text.matches("P('j', 'i')").count(), 2, "{text}");
    Ok(())
}

/// JAX: `test_vmap_spmd_axis_name_error`.
#[test]
fn spmd_axis_name_used_by_a_spec_is_an_error() -> Result<()> {
    let mesh = mesh42()?;
    let f =
        |ins, outs| vmap(shard_map(|x: Array| psum(x, "i"), &mesh).in_specs(ins).out_specs(outs)).spmd_axis_name("i");
    assert!(
        message(f(P!["i"], P![]).call(ramp([4, 8])))
            .contains("vmap spmd_axis_name cannot appear in shard_map in_specs")
    );
    assert!(
        message(f(P![], P!["i"]).call(ramp([4, 8])))
            .contains("vmap spmd_axis_name cannot appear in shard_map out_specs")
    );
    Ok(())
}

/// JAX: `test_partial_auto`.
#[test]
fn partially_manual_shard_map() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(
        |x: Array| {
            assert_eq!(x.shape(), [2, 8]);
            psum(&x * &x, "i").sum(..)
        },
        &mesh,
    )
    .axis_names("i")
    .in_specs(P!["i"])
    .out_specs(P![]);
    let x = device_put(&ramp([8, 8]), NamedSharding::new(&mesh, P!["i", "j"]))?;
    let f = jit(f);
    close(&f.call(&x)?, &(ramp([8, 8]).square().sum(..)));
    close(&grad(|x: Array| f.apply((x,))).call(&x)?, &(ramp([8, 8]) * 2));
    Ok(())
}

/// JAX: `test_partial_auto_mismatch_mesh_error`.
#[test]
fn other_mesh_inside_partially_manual_is_an_error() -> Result<()> {
    let mesh = mesh42()?;
    let other_mesh = make_mesh([("i", 2), ("j", 4)])?.auto();
    let inner = move |x: Array| {
        shard_map(|x: Array| x, &other_mesh).axis_names("j").in_specs(P!["j"]).out_specs(P!["j"]).call(x)
    };
    let f = shard_map(inner, &mesh).axis_names("i").in_specs(P!["i"]).out_specs(P!["i"]);
    assert!(message(f.call(ramp([8, 8]))).contains("should match the mesh passed to shard_map"));
    Ok(())
}

/// JAX: `test_nested_partial_auto`.
#[test]
fn nested_partially_manual_takes_the_context_mesh() -> Result<()> {
    let mesh = mesh42()?;
    fn inner(x: Array) -> Result<Array> {
        shard_map(
            |x: Array| {
                assert_eq!(x.shape(), [2, 4]);
                x.sin()
            },
            None,
        )
        .axis_names("j")
        .in_specs(P![None, "j"])
        .out_specs(P![None, "j"])
        .call(x)
    }
    let f = jit(shard_map(inner, &mesh).axis_names("i").in_specs(P!["i"]).out_specs(P!["i"]));
    close(&f.call(ramp([8, 8]))?, &ramp([8, 8]).sin());
    let g = grad(|x: Array| -> Result<Array> { Ok(f.apply((x,))?.sum(..)) }).call(ramp([8, 8]))?;
    close(&g, &ramp([8, 8]).cos());
    Ok(())
}

/// JAX: `test_smap_auto_error`.
#[test]
fn smap_without_in_axes() -> Result<()> {
    let mesh = mesh42()?;
    let _context = set_mesh(&mesh)?;
    let error = smap(|x: Array| x, "i").out_axes(0).call(ramp(8)).err().expect("no in_axes");
    assert_eq!(error.kind(), ErrorKind::Type);
    assert!(error.to_string().contains("in_axes") && error.to_string().contains("Auto"), "{error}");
    Ok(())
}

/// JAX: `test_shard_map_abstract_mesh`.
#[test]
fn abstract_mesh_takes_devices_from_arguments() -> Result<()> {
    let mesh = mesh42()?;
    let shape = AbstractMesh::new([("i", 4), ("j", 2)]);
    let x = device_put(&ramp([8, 2]), NamedSharding::new(&mesh, P!["i", "j"]))?;
    let f = || shard_map(|x: Array| x.sin(), &shape).in_specs(P!["i", "j"]).out_specs(P!["i", "j"]);
    for y in [f().call(&x)?, jit(f()).call(&x)?] {
        close(&y, &ramp([8, 2]).sin());
        assert_eq!(y.sharding()?, Sharding::from(NamedSharding::new(&mesh, P!["i", "j"])));
    }
    Ok(())
}

/// JAX: `test_shmap_abstract_mesh_errors`.
#[test]
fn abstract_mesh_without_devices_is_an_error() -> Result<()> {
    setup();
    let shape = AbstractMesh::new([("i", 4), ("j", 2)]);
    let f = || shard_map(|x: Array| x, &shape).in_specs(P!["i"]).out_specs(P!["i"]);
    for result in [f().call(ramp(8)), jit(f()).call(ramp(8))] {
        let error = result.err().expect("no argument says which devices");
        assert_eq!(error.kind(), ErrorKind::Value);
        assert!(error.to_string().contains("abstract mesh"), "{error}");
    }
    Ok(())
}

#[test]
fn test_close_over_explicit_sharded_input_error() -> Result<()> {
    let mesh = mesh42()?.with_axis_types([AxisType::Explicit, AxisType::Explicit])?;
    let _mesh = set_mesh(&mesh)?;
    let x = device_put(&arange(0..8), P!["i"])?;
    let outer = x.clone();
    let f = shard_map(move |y: Array| y + outer.sum(..), None).out_specs(P!["i"]);
    let error = jit(f).call(&x).expect_err("a captured array keeps the mesh outside");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.to_string().contains("the mesh of an operand of type int32[8@i]"), "{error}");
    Ok(())
}
