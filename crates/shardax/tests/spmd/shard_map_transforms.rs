//! `shard_map` differentiated, batched, checked, and with axes left to the compiler. `JAX:` names the case of JAX's tests that a test follows.

use shardax::ErrorKind;
use shardax::prelude::*;

use crate::common::quick::setup;
use crate::{close, message, noise, numbers, ramp};

pub(crate) fn mesh42() -> Result<Mesh> {
    setup();
    make_mesh([("i", 4), ("j", 2)]).map(|mesh| mesh.auto())
}

pub(crate) fn mesh8() -> Result<Mesh> {
    setup();
    make_mesh([("i", 8)]).map(|mesh| mesh.auto())
}

#[test]
fn functions_without_arguments() -> Result<()> {
    let mesh = mesh42()?;
    fn f() -> Array {
        arange(0..4) + axis_index(("i", "j"))
    }
    let want: Vec<i32> = (0..8).flat_map(|d| (0..4).map(move |k| d + k)).collect();
    let mapped = || shard_map(f, &mesh).in_specs(None).out_specs(P![("i", "j")]);
    assert_eq!(mapped().call(())?.to_vec::<i32>()?, want);
    assert_eq!(jit(mapped()).call(())?.to_vec::<i32>()?, want);
    assert_eq!(jit(|| arange(0..3) * 2).call(())?.to_vec::<i32>()?, [0, 2, 4]);
    assert!(message(pmap(|| ones(3)).call(())).contains("at least one argument with a mapped axis"));
    assert!(message(vmap(|| ones(3)).call(())).contains("at least one non-None value in in_axes"));
    assert_eq!(vmap(|| ones(3)).axis_size(2).call(())?.shape(), [2, 3]);
    Ok(())
}

/// JAX: `test_axis_index`.
#[test]
fn axis_index_along_two_axes_without_arguments() -> Result<()> {
    let mesh = mesh42()?;
    fn position() -> Array {
        stack(&[axis_index("i"), axis_index("j")], 0)
    }
    let y = shard_map(position, &mesh).in_specs(None).out_specs(P![("i", "j")]).call(())?;
    assert_eq!(y.to_vec::<i32>()?, [0, 0, 0, 1, 1, 0, 1, 1, 2, 0, 2, 1, 3, 0, 3, 1]);
    Ok(())
}

/// JAX: `test_process_env_traces`.
#[test]
fn captured_outer_values_differentiate() -> Result<()> {
    let mesh = mesh42()?;
    fn g(x: Array, mesh: &Mesh) -> Result<Array> {
        let y = (x * 3).sum(..);
        shard_map(|x: Array| x * 2 * &y, mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(ramp(8))
    }
    close(&jvp(|x: Array| g(x, &mesh), ramp(8), ones(8))?.1, &(ramp(8) * 48));
    fn total(x: Array, mesh: &Mesh) -> Result<Array> {
        Ok(g(x, mesh)?.square().sum(..))
    }
    let s = ramp(8).square().sum(..).to_f64()?;
    close(&grad(|x: Array| total(x, &mesh)).call(ramp(8))?, &(ones(8) * (2.0 * 4.0 * s * 9.0 * 28.0)));
    Ok(())
}

/// JAX: `test_post_process`.
#[test]
fn shard_map_linearizes_through_captures() -> Result<()> {
    let mesh = mesh42()?;
    fn f(x: Array, mesh: &Mesh) -> Result<Array> {
        shard_map(|y: Array| y.sin() * x.sin().sum(..), mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(ramp(8))
    }
    let x = ramp(8);
    let (_, push) = linearize(|x: Array| f(x, &mesh), &x)?;
    close(&push.call(&x)?, &(x.sin() * (x.cos() * &x).sum(..)));
    Ok(())
}

/// JAX: `test_vmap_basic_axis_name_reuse_mesh_name`.
#[test]
fn vmap_reuses_the_name_of_a_mesh_axis() -> Result<()> {
    let mesh = mesh42()?;
    let g = |x: Array| shard_map(|x: Array| x * 2, &mesh).in_specs(P!["j"]).out_specs(P!["j"]).call(x);
    close(&vmap(g).axis_name("i").call(ramp([8, 8]))?, &(ramp([8, 8]) * 2));
    close(&vmap(g).axis_name("k").call(ramp([8, 8]))?, &(ramp([8, 8]) * 2));
    close(&jit(vmap(vmap(g))).call(ramp([2, 3, 8]))?, &(ramp([2, 3, 8]) * 2));
    Ok(())
}

/// JAX: `test_vmap_of_grad_spmd_axis_name`.
#[test]
fn gradients_of_a_batch_split_over_the_mesh() -> Result<()> {
    let mesh = mesh42()?;
    fn f(x: Array, mesh: &Mesh) -> Result<Array> {
        shard_map(|x: Array| x.sum(..).sin(), mesh).in_specs(P!["j"]).out_specs(P![]).check_vma(false).call(x)
    }
    let x = ramp([4, 4]);
    let placed = device_put(&x, NamedSharding::new(&mesh, P!["i", "j"]))?;
    close(
        &vmap(grad(|x: Array| f(x, &mesh))).spmd_axis_name("i").call(&placed)?,
        &vmap(grad(|x: Array| f(x, &mesh))).call(&x)?,
    );
    // Devices along "i" hold different entries, whose gradients are not summed.
    fn linear(x: Array, mesh: &Mesh) -> Result<Array> {
        shard_map(|x: Array| psum(x.sum(..), "j"), mesh).in_specs(P!["j"]).out_specs(P![]).check_vma(false).call(x)
    }
    close(&vmap(grad(|x: Array| linear(x, &mesh))).spmd_axis_name("i").call(&placed)?, &ones([4, 4]));
    let expected =
        |x: Array| shard_map(|x: Array| x.sum(..), &mesh).in_specs(P![]).out_specs(P![]).check_vma(false).call(x);
    close(&vmap(grad(expected)).spmd_axis_name("i").call(&placed)?, &ones([4, 4]));
    Ok(())
}

/// JAX: `test_vmap_spmd_axis_name_pair`.
#[test]
fn spmd_axis_name_of_two_mesh_axes() -> Result<()> {
    let mesh = mesh42()?;
    let f = vmap(shard_map(|x: Array| x, &mesh).in_specs(P![]).out_specs(P![])).spmd_axis_name(("i", "j"));
    let text = make_program(f, ramp([8, 4]))?.to_string();
    assert_eq!(text.matches("P(('i', 'j'),)").count(), 2, "{text}");
    let f = || vmap(shard_map(|x: Array| x * 2, &mesh).in_specs(P![]).out_specs(P![]));
    close(&f().spmd_axis_name(["i", "j"]).call(ramp([8, 4]))?, &(ramp([8, 4]) * 2));
    let text = message(f().spmd_axis_name("q").call(ramp([8, 4])));
    assert!(text.contains("q is not found in mesh"), "{text}");
    Ok(())
}

/// Arguments that are not batched keep their specs, and get none for the batch.
///
/// JAX: `test_vmap_shmap_spmd_axis_name_scalar`.
#[test]
fn unbatched_arguments_keep_their_specs() -> Result<()> {
    let mesh = mesh42()?;
    let f = shard_map(|x: Array, y: Array| x * y, &mesh).in_specs((P!["j"], P![])).out_specs(P!["j"]);
    let y = jit(vmap(f).in_axes((0, None)).spmd_axis_name("i")).call((ramp([4, 4]), 3.0f32))?;
    close(&y, &(ramp([4, 4]) * 3));
    assert_eq!(y.sharding()?.spec()?, &P!["i", "j"]);
    let constant = shard_map(|_: Array| ones(2), &mesh).in_specs(P!["j"]).out_specs(P!["j"]);
    assert_eq!(vmap(constant).spmd_axis_name("i").call(ramp([4, 4]))?.shape(), [4, 4]);
    Ok(())
}

/// `spmd_axis_name` comes first in the constraints inside.
#[test]
fn spmd_axis_name_of_constraints() -> Result<()> {
    let mesh = mesh42()?;
    let inner = NamedSharding::new(&mesh, P!["j"]);
    let f = |x: Array| with_sharding_constraint(x * 2, &inner);
    let y = jit(vmap(f).spmd_axis_name("i")).call(ramp([8, 4]))?;
    assert_eq!(y.sharding()?.spec()?, &P!["i", "j"]);
    let y = jit(vmap(f).in_axes(1).out_axes(1).spmd_axis_name("i")).call(ramp([4, 8]))?;
    assert_eq!(y.sharding()?.spec()?, &P!["j", "i"]);
    let text = message(jit(vmap(f).spmd_axis_name("j")).call(ramp([8, 4])));
    assert!(text.contains("spmd_axis_name") && text.contains("'j'"), "{text}");
    Ok(())
}

/// JAX: `test_psum_transpose_non_zero_cts`.
#[test]
fn one_of_two_results_differentiated() -> Result<()> {
    let mesh = mesh8()?;
    fn f1(x: Array, mesh: &Mesh) -> Result<(Array, Array)> {
        shard_map(|x: Array| (x.clone(), psum(x, "i")), mesh).in_specs(P!["i"]).out_specs((P!["i"], P![])).call(x)
    }
    fn f2(x: Array, mesh: &Mesh) -> Result<Array> {
        Ok(f1(x, mesh)?.0.sum(..))
    }
    close(&grad(|x: Array| f2(x, &mesh)).call(ramp(16))?, &ones(16));
    close(&jit(grad(|x: Array| f2(x, &mesh))).call(ramp(16))?, &ones(16));
    fn f3(x: Array, mesh: &Mesh) -> Result<Array> {
        Ok(f1(x, mesh)?.1.sum(..))
    }
    close(&grad(|x: Array| f3(x, &mesh)).call(ramp(16))?, &ones(16));
    Ok(())
}

/// JAX: `test_vma_out_specs_error_check`.
#[test]
fn out_specs_error_names_the_missing_axes() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 2), ("z", 2)])?.auto();
    let f = shard_map(|x: Array| x * 2, &mesh).in_specs(P!["x", "y", "z"]).out_specs(P!["x"]);
    let text = message(f.call(ramp([4, 2, 2])));
    assert!(text.contains("P('x',)") && text.contains("{y, z}"), "{text}");
    Ok(())
}

/// JAX: `test_while_rep_rule`.
#[test]
fn varying_axes_of_a_loop_carry() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 2)])?.auto();
    // The carry is turned around: in the end every part may vary as much as any.
    fn turn(x: Array, y: Array, z: Array) -> Result<Vec<Array>> {
        let carry = (Array::from(0), (pcast(x.sum(..), ("x", "y")), pcast(y.sum(..), "y"), z.sum(..)));
        fn body((i, (a, b, c)): (Array, (Array, Array, Array))) -> (Array, (Array, Array, Array)) {
            (i + 1, (b, c, a))
        }
        let (_, (a, b, c)) = while_loop(|(i, _): (Array, (Array, Array, Array))| i.less(5), body, carry)?;
        Ok(vec![a.expand_dims(0), b.expand_dims(0), c.expand_dims(0)])
    }
    fn args() -> (Array, Array, Array) {
        (ramp(4), ramp(4), ramp(4))
    }
    let specs = (P![], P!["x"], P![("x", "y")]);
    let mapped = |out: PartitionSpec| shard_map(turn, &mesh).in_specs(specs.clone()).out_specs(out).call(args());
    assert_eq!(mapped(P![("x", "y")])?.len(), 3);
    for spec in [P!["x"], P!["y"], P![]] {
        assert!(message(mapped(spec)).contains("require replication"));
    }
    fn keep(x: Array, y: Array, z: Array) -> Result<Vec<Array>> {
        let carry = (Array::from(0), vec![x.sum(..), y.sum(..), z.sum(..)]);
        fn body((i, rest): (Array, Vec<Array>)) -> (Array, Vec<Array>) {
            (i + 1, rest)
        }
        let (_, rest) = while_loop(|(i, _): (Array, Vec<Array>)| i.less(1), body, carry)?;
        Ok(rest.iter().map(|x| x.expand_dims(0)).collect())
    }
    let mapped = |out: [PartitionSpec; 3]| shard_map(keep, &mesh).in_specs(specs.clone()).out_specs(out).call(args());
    mapped([P![], P!["x"], P![("x", "y")]])?;
    assert!(message(mapped([P![], P![], P![("x", "y")]])).contains("require replication"));
    Ok(())
}

/// JAX: `test_cond_rep_rule`.
#[test]
fn varying_axes_of_a_cond_result() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 2)])?.auto();
    type F = fn(Array, Array) -> Result<Array>;
    let mapped = |f: F, out: PartitionSpec| {
        shard_map(f, &mesh).in_specs((P!["x"], P!["y"])).out_specs(out).call((ramp(4), ramp(4)))
    };
    let plain: F = |x, y| cond(true, |(x, _): (Array, Array)| x, |(x, _)| x + 1, (x, y));
    let _ = mapped(plain, P!["x"])?;
    assert!(message(mapped(plain, P![])).contains("require replication"));
    let combined: F = |x, y| cond(true, |(x, _): (Array, Array)| pcast(x, "y"), |(_, y)| pcast(y, "x"), (x, y));
    let _ = mapped(combined, P![("x", "y")])?;
    assert!(message(mapped(combined, P!["x"])).contains("require replication"));
    let by_x: F = |x, y| cond(x.greater(0).any(..), |(x, _): (Array, Array)| x, |(x, _)| x + 1, (x, y));
    let _ = mapped(by_x, P!["x"])?;
    assert!(message(mapped(by_x, P![])).contains("require replication"));
    // What the predicate varies over, the result does.
    let by_y: F = |x, y| cond(y.greater(0).any(..), |(x, _): (Array, Array)| x, |(x, _)| x + 1, (x, y));
    let _ = mapped(by_y, P![("x", "y")])?;
    assert!(message(mapped(by_y, P!["x"])).contains("require replication"));
    let switched: F =
        |x, y| switch(Array::from(1), (|(x, _): (Array, Array)| x, |(x, _): (Array, Array)| x + 1), (x, y));
    let _ = mapped(switched, P!["x"])?;
    Ok(())
}

/// JAX: `test_cond_pvary_errors`.
#[test]
fn branches_that_vary_over_different_axes_are_an_error() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 2)])?.auto();
    fn f(x: Array, y: Array) -> Result<Array> {
        cond(true, |(x, _): (Array, Array)| x, |(_, y)| y, (x, y))
    }
    let f = shard_map(f, &mesh).in_specs((P!["x"], P!["y"])).out_specs(P![("x", "y")]);
    let error = f.call((ramp(4), ramp(4))).err().expect("they vary over different axes");
    assert_eq!(error.kind(), ErrorKind::Type);
    assert!(error.to_string().contains("pcast(..., ('y',), to='varying')"), "{error}");
    Ok(())
}

/// JAX: `test_scan_pvary_errors2`.
#[test]
fn permuted_scan_carry_names_the_cast() -> Result<()> {
    let mesh = mesh42()?;
    fn f(cast: bool, mesh: &Mesh) -> Result<Vec<Array>> {
        let body = move |x: Array, y: Array, z: Array| -> Result<Vec<Array>> {
            let (x, y) = if cast { (pcast(x, "j"), pcast(y, ("i", "j"))) } else { (x, y) };
            fn step((a, b, c): (Array, Array, Array), _: Array) -> ((Array, Array, Array), ()) {
                ((c, a, b), ())
            }
            let ((a, b, c), ()) = scan(step, (x, y, z), zeros(2))?;
            Ok(vec![a, b, c])
        };
        let specs = (P!["i"], P![], P![("i", "j")]);
        shard_map(body, mesh).in_specs(specs).out_specs(P![("i", "j")]).call((ramp(4), ramp(1), ramp(8)))
    }
    let text = message(f(false, &mesh));
    assert!(text.contains("pcast") && text.contains("'j'"), "{text}");
    f(true, &mesh)?;
    Ok(())
}

/// Numbers of several distributions.
fn draw(k: Array) -> Vec<Array> {
    vec![
        random::normal(&k, [4]),
        random::uniform(&k, [4]),
        random::bernoulli(&k, 0.5, [4]).astype(DType::F32),
        random::randint(&k, [4], 0, 9).astype(DType::F32),
        random::permutation(&k, 4).astype(DType::F32),
        random::gumbel(&k, [4]),
        random::exponential(&k, [4]),
        random::categorical(&k, &zeros([4, 3]), -1).astype(DType::F32),
        random::ChoiceOptions::new().p(&array([0.2f32, 0.3, 0.5])).choice(&k, 3, [4]).astype(DType::F32),
        random::truncated_normal(&k, -1.0f32, 1.0f32, [4]),
    ]
}

/// Keys that differ from device to device, and keys that do not, with every kind of draw.
///
/// JAX: `test_random_normal_rules`.
#[test]
fn draws_with_equal_and_different_keys() -> Result<()> {
    let mesh = mesh8()?;
    let keys = random::split(&random::key(1), 8);
    for check in [true, false] {
        fn draw_local(k: Array) -> Vec<Array> {
            draw(k.squeeze(0))
        }
        let f = shard_map(draw_local, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).check_vma(check);
        for (a, b) in f.call(&keys)?.iter().zip(vmap(draw).call(&keys)?) {
            close(a, &b.reshape(32));
        }
        let same = shard_map(draw, &mesh).in_specs(P![]).out_specs(P![]).check_vma(check);
        for (a, b) in same.call(random::key(1))?.iter().zip(draw(random::key(1))) {
            close(a, &b);
        }
    }
    // Sharded draws do not depend on how they are split.
    let sharded = jit(|k: Array| random::normal(&k, [64])).out_shardings(NamedSharding::new(&mesh, P!["i"]));
    close(&sharded.call(random::key(2))?, &random::normal(&random::key(2), [64]));
    Ok(())
}

/// JAX: `test_check_rep_failure_inside_rule`.
#[test]
fn gradient_of_a_captured_value_sums_over_devices() -> Result<()> {
    let mesh = mesh42()?;
    fn loss(w: Array, x: Array, mesh: &Mesh) -> Result<Array> {
        shard_map(|x: Array| psum((&w * x).square().sum(..), "i"), mesh).in_specs(P!["i"]).out_specs(P![]).call(x)
    }
    let want = 2.0 * 3.0 * 140.0;
    assert_eq!(numbers(&grad(|w: Array, x: Array| loss(w, x, &mesh)).call((3.0, ramp(8)))?), [want]);
    assert_eq!(numbers(&grad(jit(|w: Array, x: Array| loss(w, x, &mesh))).call((3.0, ramp(8)))?), [want]);
    Ok(())
}

/// JAX: `test_post_process_partial_eval_with_scalar_res`.
#[test]
fn captured_scalar_differentiates() -> Result<()> {
    let mesh = mesh42()?;
    fn f(x: Array, mesh: &Mesh) -> Result<Array> {
        shard_map(|| x.sin(), mesh).in_specs(P![]).out_specs(P![]).call(())
    }
    close(&grad(|x: Array| f(x, &mesh)).call(2.0)?, &array(2.0f32).cos());
    Ok(())
}

/// JAX: `test_shmap_close_over_unused_params`.
#[test]
fn gradient_of_unused_captures() -> Result<()> {
    let mesh = mesh42()?;
    let params = device_put(&ramp([4, 8]), NamedSharding::new(&mesh, P![]))?;
    for check in [true, false] {
        fn update(p: Array, batch: Array, mesh: &Mesh, check: bool) -> Result<(Array, Array)> {
            let step = |b: Array| value_and_grad(|_: Array, b: Array| b.sum(..)).call((p.clone(), b));
            let step = move |b: Array| -> Result<(Array, Array)> { step(b).map(|(v, g)| (v.expand_dims(0), g)) };
            shard_map(step, mesh).in_specs(P!["i"]).out_specs((P!["i"], P![])).check_vma(check).call(batch)
        }
        let (v, g) = jit(|p: Array, batch: Array| update(p, batch, &mesh, check)).call((&params, &params))?;
        close(&v, &ramp([4, 8]).sum(1));
        close(&g, &zeros([4, 8]));
    }
    Ok(())
}

/// JAX: `test_partial_auto_error_wsc_manual`.
#[test]
fn sharding_constraint_on_a_manual_axis_is_an_error() -> Result<()> {
    let mesh = mesh42()?;
    let sharding = NamedSharding::new(&mesh, P!["i", "j"]);
    fn g(x: Array, sharding: &NamedSharding) -> Array {
        with_sharding_constraint(x.clone(), sharding) * x
    }
    for names in [&["i"][..], &["i", "j"][..]] {
        let f = shard_map(|x: Array| g(x, &sharding), &mesh)
            .in_specs(P!["i"])
            .out_specs(P!["i"])
            .check_vma(false)
            .axis_names(names);
        assert!(message(jit(f).call(ramp([4, 8]))).contains("manual"));
    }
    let wrong = shard_map(|x: Array| x, &mesh).in_specs(P!["i", "j"]).out_specs(P!["i"]).axis_names("i");
    assert!(message(wrong.call(ramp([4, 8]))).contains("in_specs P('i', 'j') refers to 'j'"));
    Ok(())
}

/// JAX: `test_axis_size_1_partial_auto`.
#[test]
fn manual_axis_of_size_one() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 1), ("j", 2), ("k", 4)])?.auto();
    let f = shard_map(|x: Array| &x * &x, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).axis_names("i");
    let v = device_put(&ramp([4, 8]), NamedSharding::new(&mesh, P!["i", "j"]))?;
    close(&jit(f).call(&v)?, &(ramp([4, 8]).square()));
    let mesh = make_mesh([("i", 1), ("j", 2)])?.auto();
    let index = shard_map(|| axis_index("i").reshape([1, 1]), &mesh).in_specs(None).out_specs(P!["i"]).axis_names("i");
    assert_eq!(jit(index).call(())?.to_vec::<i32>()?, [0]);
    Ok(())
}

/// JAX: `test_partial_auto_of_pjit`.
#[test]
fn compiled_function_with_shardings_inside_partially_manual() -> Result<()> {
    let mesh = mesh42()?;
    fn h(mesh: &Mesh) -> Result<Array> {
        Ok(jit(|| zeros(())).out_shardings(NamedSharding::new(mesh, P![])).call(())?.reshape(1))
    }
    let f = shard_map(|| h(&mesh), &mesh).in_specs(None).out_specs(P!["i"]).check_vma(false).axis_names("i");
    close(&jit(f).call(())?, &zeros(4));
    Ok(())
}

/// JAX: `test_partial_auto_ppermute`.
#[test]
fn ppermute_beside_an_automatic_axis() -> Result<()> {
    let mesh = mesh42()?;
    let split = NamedSharding::new(&mesh, P!["j"]);
    fn g(x: Array, split: &NamedSharding) -> Array {
        ppermute(with_sharding_constraint(x, split), "i", [(0, 1), (1, 2), (2, 3), (3, 0)])
    }
    let f =
        shard_map(|x: Array| g(x, &split), &mesh).in_specs(P!["i"]).out_specs(P!["i"]).check_vma(false).axis_names("i");
    assert_eq!(numbers(&jit(f).call(ramp(8))?), [6.0, 7.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    Ok(())
}

/// Every collective over a manual axis, while the compiler splits another one.
#[test]
fn partial_auto_collectives() -> Result<()> {
    let mesh = mesh42()?;
    fn collectives(x: Array) -> Vec<Array> {
        vec![
            psum(x.clone(), "i"),
            pmax(x.clone(), "i"),
            pmin(x.clone(), "i"),
            all_gather_tiled(x.clone(), "i", 0).sum_keepdims(0).broadcast_to(x.shape()),
            psum_scatter_tiled(concatenate(&[x.clone(), x.clone()], 0), "i", 0),
            all_to_all_tiled(x.clone(), "i", 0, 0),
            ppermute(x.clone(), "i", [(0, 2), (1, 0)]),
            &x * axis_index("i"),
        ]
    }
    let x = noise([16, 6]);
    for check in [true, false] {
        let f = |axes: &[&str]| {
            let f = shard_map(collectives, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).check_vma(check);
            jit(f.axis_names(axes)).call(&x)
        };
        // Whether `j` is manual or left to the compiler must not change any result.
        for (part, whole) in f(&["i"])?.iter().zip(f(&["i", "j"])?) {
            close(part, &whole);
        }
    }
    Ok(())
}

/// Values split over the compiler's axes stay split, inside and outside.
#[test]
fn blocks_stay_split_over_free_axes() -> Result<()> {
    let mesh = mesh42()?;
    let x = device_put(&noise([8, 6, 2]), NamedSharding::new(&mesh, P!["i", None, "j"]))?;
    fn f(x: Array) -> Array {
        ppermute(x.sin(), "i", [(0, 1), (1, 2), (2, 3), (3, 0)])
    }
    let f = shard_map(f, &mesh).axis_names("i").in_specs(P!["i"]).out_specs(P!["i"]);
    let compiled = jit(move |x: Array| -> Result<Array> { Ok(f.call(x)? * 2) }).lower(&x)?.compile()?;
    let sent = compiled.collectives()?;
    assert_eq!((sent.count_of(CollectiveKind::CollectivePermute), sent.count(), sent.bytes()), (1, 1, 4 * 2 * 6));
    let y = compiled.call(&x)?;
    assert_eq!(y.sharding()?.spec()?.trimmed(), P!["i", None, "j"]);
    close(&y.get(2..), &(x.sin() * 2).get(..6));
    Ok(())
}

/// JAX: `test_partially_sharded_dim_with_auto`.
#[test]
fn dimension_split_over_manual_and_automatic_axes() -> Result<()> {
    let mesh = mesh42()?;
    let split = NamedSharding::new(&mesh, P![("i", "j")]);
    fn f(x: Array, split: &NamedSharding, mesh: &Mesh) -> Result<Array> {
        let x = with_sharding_constraint(x, split);
        let g = shard_map(|x: Array| x.sum(..).expand_dims(0), mesh).in_specs(P!["i"]).out_specs(P!["i"]);
        g.check_vma(false).axis_names("i").call(x)
    }
    assert_eq!(numbers(&jit(|x: Array| f(x, &split, &mesh)).call(ramp(8))?), [1.0, 5.0, 9.0, 13.0]);
    Ok(())
}

/// JAX: `test_nested_shmap_innermost_no_axis_names`.
#[test]
fn innermost_shard_map_takes_the_remaining_axes() -> Result<()> {
    let mesh = mesh42()?;
    let _context = set_mesh(&make_mesh([("i", 4), ("j", 2), ("k", 1)])?.auto())?;
    fn h(x: Array) -> Result<Array> {
        shard_map(|x: Array| x * 2, None).in_specs(P![]).out_specs(P![]).call(x)
    }
    fn g(x: Array) -> Result<Array> {
        shard_map(h, None).in_specs(P![]).out_specs(P![]).axis_names("j").call(x)
    }
    let f = jit(shard_map(g, None).in_specs(P![]).out_specs(P![]).axis_names("i"));
    close(&f.call(ones(4))?, &(ones(4) * 2));
    let _ = mesh;
    Ok(())
}
