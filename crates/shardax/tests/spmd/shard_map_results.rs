//! `shard_map`: errors, placement, results, captures, transposes, groups. `JAX:` names the case of JAX's tests that a test follows.

use shardax::ErrorKind;
use shardax::prelude::*;

use crate::common::quick::{one_of, setup};
use crate::shard_map_transforms::{mesh8, mesh42};
use crate::{close, message, noise, numbers, ramp};

/// JAX: `test_dynamic_slice_transpose`.
#[test]
fn gradients_of_slices_in_shard_map() -> Result<()> {
    let mesh = mesh42()?;
    fn f(x: Array, mesh: &Mesh) -> Result<Array> {
        fn body(x: Array) -> Array {
            lax::dynamic_slice_in_dim(&x, array(1), 2, 0)
        }
        shard_map(body, mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(x)
    }
    assert_eq!(numbers(&jit(|x: Array| f(x, &mesh)).call(ramp(16))?), [1.0, 2.0, 5.0, 6.0, 9.0, 10.0, 13.0, 14.0]);
    let g = grad(|x: Array| -> Result<Array> { Ok(f(x, &mesh)?.sum(..)) });
    assert_eq!(numbers(&g.call(ramp(16))?), [0.0, 1.0, 1.0, 0.0].repeat(4));
    Ok(())
}

#[test]
fn errors_of_in_specs_none() -> Result<()> {
    let mesh = mesh42()?;
    fn static_and(spec: PartitionSpec, x: Array, mesh: &Mesh) -> Result<()> {
        shard_map(|_: Static<&'static str>, _: Array| (), mesh)
            .in_specs((None, Some(spec)))
            .out_specs(None)
            .call((Static("object"), x))
    }
    assert!(message(static_and(P!["i"], ramp([2, 2]), &mesh)).contains("divisible"));
    assert!(message(static_and(P!["i", "j"], ramp(4), &mesh)).contains("rank"));
    static_and(P!["i"], ramp(4), &mesh)
}

/// JAX: `test_shmap_empty_mesh_error`.
#[test]
fn mesh_without_axes_is_an_error() -> Result<()> {
    setup();
    let error = Mesh::new(vec![devices()?[0].clone()], Vec::<(&str, usize)>::new())
        .and_then(|mesh| shard_map(|x: Array| x, &mesh).in_specs(P![]).out_specs(P![]).call(ramp(8)))
        .err()
        .expect("no devices");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.to_string().contains("non-empty mesh"), "{error}");
    Ok(())
}

/// JAX: `test_axis_index_unmapped`.
#[test]
fn axis_index_beside_a_batch() -> Result<()> {
    let mesh = mesh8()?;
    let f = vmap(|_: Array| axis_index("i"));
    let y = jit(shard_map(f, &mesh).in_specs(P![]).out_specs(P![]).check_vma(false)).call(arange(0..8))?;
    assert_eq!(y.to_vec::<i32>()?, [0; 8]);
    Ok(())
}

/// JAX: `test_vmap_shmap_psum`.
#[test]
fn vmap_of_psum_in_shard_map() -> Result<()> {
    let mesh = mesh42()?;
    let x = device_put(&ramp([4, 8]), NamedSharding::new(&mesh, P!["i", "j"]))?;
    let f = || vmap(shard_map(|x: Array| psum(x, "j"), &mesh).in_specs(P!["j"]).out_specs(P![]));
    let want = ramp([4, 2, 4]).sum(1);
    close(&f().call(&x)?, &want);
    close(&jit(f()).call(&x)?, &want);
    Ok(())
}

/// JAX: `test_split_with_unused_result_in_shardmap`.
#[test]
fn gradient_of_one_part_of_a_split() -> Result<()> {
    let mesh = mesh42()?;
    let x = device_put(&ones(8), NamedSharding::new(&mesh, P!["i"]))?;
    fn g(x: Array, mesh: &Mesh) -> Result<Array> {
        fn f(x: Array) -> Result<Array> {
            Ok(x.split(2, 0)?[0].clone())
        }
        Ok(shard_map(f, mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(x)?.mean(..) * 0.1)
    }
    let got = jit(grad(|x: Array| g(x, &mesh))).call(&x)?;
    assert!(numbers(&got).chunks(2).all(|c| c[0] > 0.02 && c[1] == 0.0));
    Ok(())
}

/// JAX: `test_shmap_primal_type_match_ct_type`.
#[test]
fn gradients_have_the_sharding_of_their_arguments() -> Result<()> {
    let mesh = mesh8()?;
    let x = device_put(&ramp(8), NamedSharding::new(&mesh, P!["i"]))?;
    fn f(x: Array, mesh: &Mesh) -> Result<Array> {
        shard_map(|x: Array| x * 2, mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(x)
    }
    assert_eq!(jit(|x: Array| f(x, &mesh)).call(&x)?.sharding()?.spec()?, &P!["i"]);
    let g = jit(grad(|x: Array| -> Result<Array> { Ok(f(x, &mesh)?.sum(..)) })).call(&x)?;
    assert_eq!(g.sharding()?.spec()?, &P!["i"]);
    Ok(())
}

/// JAX: `test_smap_replicated_sharded`.
#[test]
fn smap_returns_replicated_and_split_results() -> Result<()> {
    let mesh = mesh8()?;
    let _context = set_mesh(&mesh)?;
    let f = smap(|x: Array, y: Array| (x * 2, y * 2), "i").in_axes((None, 0)).out_axes((None, 0));
    let (a, b) = f.call((ramp(8), ramp(8)))?;
    close(&a, &(ramp(8) * 2));
    close(&b, &(ramp(8) * 2));
    assert!(a.is_fully_replicated());
    assert_eq!(b.sharding()?.spec()?, &P!["i"]);
    let g = smap(|x: Array, y: Array| x + y, "i").in_axes((None, 0)).out_axes(0);
    assert_eq!(g.call((ramp(4), ramp(32)))?.shape(), [32]);
    Ok(())
}

/// JAX: `test_smap_nested_psum`.
#[test]
fn psum_inside_nested_smaps() -> Result<()> {
    let mesh = mesh42()?;
    let _context = set_mesh(&mesh)?;
    fn g(x: Array) -> Array {
        assert_eq!(x.vma().to_string(), "{i, j}");
        let y = psum(x, "j");
        assert_eq!(y.vma().to_string(), "{i}");
        y
    }
    fn f(x: Array) -> Result<Array> {
        smap(g, "j").in_axes(0).out_axes(None).call(x.sin())
    }
    for f in
        [smap(f, "i").in_axes(0).out_axes(0).call(ramp(8))?, jit(smap(f, "i").in_axes(0).out_axes(0)).call(ramp(8))?]
    {
        close(&f, &ramp([4, 2]).sin().sum(1));
    }
    Ok(())
}

/// JAX: `test_device_put`.
#[test]
fn device_put_inside_shard_map_is_an_error() -> Result<()> {
    let mesh = mesh42()?;
    let first = devices()?[0].clone();
    let f = |x: Array| -> Result<Array> { Ok(x + device_put(&Array::from(1), &first)?) };
    let f = shard_map(f, &mesh).in_specs(P!["i"]).out_specs(P!["i"]);
    let text = message(f.call(ramp(32)));
    assert!(text.contains("device"), "{text}");
    Ok(())
}

/// JAX: `test_multiple_result_primitive_with_none_sharding`.
#[test]
fn primitive_with_several_results_of_a_whole_argument() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 2)])?.auto();
    let x = arange(0..20).reshape([2, 10]);
    let f = shard_map(|x: Array| x.reshape([4, 5]).split(4, 0), &mesh).in_specs(None).out_specs(P!["i"]);
    let y = f.call(&x)?;
    assert_eq!((y.len(), y[0].shape()), (4, &[2, 5][..]));
    Ok(())
}

/// Outputs that are nothing, absent, or the same on all devices.
#[test]
fn outputs_of_every_kind() -> Result<()> {
    let mesh = mesh8()?;
    shard_map(|_: Array| (), &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(ramp(8))?;
    let f = shard_map(|x: Array| (None::<Array>, Some(psum(x, "i")), ones(2), ()), &mesh);
    let (a, b, c, ()) = f.in_specs(P!["i"]).out_specs(P![]).call(ramp(8))?;
    assert!(a.is_none());
    assert_eq!(b.map(|b| numbers(&b)), Some(vec![28.0]));
    close(&c, &ones(2));
    // Said to be the same, joined though it is the same, and both.
    fn both_sums(x: Array) -> (Array, Array) {
        (psum(x.clone(), "i"), psum(x, "i"))
    }
    let (a, b) = shard_map(both_sums, &mesh).in_specs(P!["i"]).out_specs((P!["i"], P![])).call(ramp(8))?;
    assert_eq!((numbers(&a), numbers(&b)), (vec![28.0; 8], vec![28.0]));
    Ok(())
}

/// Captured arrays: from anywhere, traced or not, of any placement that leaves them whole.
#[test]
fn captures() -> Result<()> {
    let mesh = mesh42()?;
    let placed = [
        ramp(2),
        device_put(&ramp(2), NamedSharding::new(&mesh, P![]))?,
        device_put(&ramp(2), NamedSharding::new(&mesh, P!["j"]))?,
        device_put(&ramp(2), NamedSharding::new(&mesh.explicit(), P![]))?,
    ];
    for w in placed {
        for check in [true, false] {
            let f = shard_map(|x: Array| x * &w, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).check_vma(check);
            close(&f.call(ones(8))?, &concatenate(&vec![ramp(2); 4], 0));
            close(&jit(f).call(ones(8))?, &concatenate(&vec![ramp(2); 4], 0));
            let loss = |w: Array| -> Result<Array> {
                let f = shard_map(|x: Array| x * &w, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).check_vma(check);
                Ok(f.call(ramp(8))?.sum(..))
            };
            close(&grad(loss).call(&w)?, &ramp([4, 2]).sum(0));
            close(&jit(grad(loss)).call(&w)?, &ramp([4, 2]).sum(0));
            close(&vmap(loss).call(stack(&[w.clone(), &w * 2], 0))?, &array([16.0f32, 32.0]));
        }
    }
    Ok(())
}

/// The table of transposes, each collective in a checked body against the same on one device.
#[test]
fn transposes() -> Result<()> {
    let mesh = mesh8()?;
    type F = fn(Array) -> Array;
    let table: [(&str, F, PartitionSpec); 9] = [
        ("psum", |x| psum(x.sin(), "i"), P![]),
        ("psum, cast", |x| pcast(psum(x.sin(), "i"), "i") * x, P!["i"]),
        ("pmean", |x| pmean(x.sin(), "i"), P![]),
        ("all_gather_tiled", |x| all_gather_tiled(x.sin(), "i", 0), P!["i"]),
        ("all_gather_invariant", |x| all_gather_invariant(x.sin(), "i", 0), P![]),
        ("psum_scatter_tiled", |x| psum_scatter_tiled(concatenate(&vec![x.sin(); 4], 0), "i", 0), P!["i"]),
        ("ppermute", |x| ppermute(x.sin(), "i", [(0, 1), (1, 0), (3, 4)]), P!["i"]),
        ("all_to_all_tiled", |x| all_to_all_tiled(concatenate(&vec![x.sin(); 4], 0), "i", 0, 0), P!["i"]),
        ("pmax", |x| pmax(x.sin(), "i"), P![]),
    ];
    for (i, (name, body, out)) in table.into_iter().enumerate() {
        // A slice has each with or without the check.
        for check in [true, false].into_iter().skip(i % one_of(2)).step_by(one_of(2)) {
            fn weighted(y: Array) -> Array {
                let n = y.size() as i32;
                (y.ravel() * (ramp(n) * 0.71).cos()).sum(..)
            }
            let f = |x: Array| -> Result<Array> {
                let y = shard_map(body, &mesh).in_specs(P!["i"]).out_specs(out.clone()).check_vma(check).call(x)?;
                Ok(weighted(y))
            };
            let x = noise(16);
            let d = (ramp(16) * 0.3).cos();
            // Reverse mode against finite differences, and forward mode against reverse mode.
            let exact = (grad(f).call(&x)? * &d).sum(..).to_f64()?;
            let numeric = (f(&x + &d * 1e-2)?.to_f64()? - f(&x - &d * 1e-2)?.to_f64()?) / 2e-2;
            assert!((exact - numeric).abs() < 1e-2 * (1.0 + exact.abs()), "{name} {check}: {exact} and {numeric}");
            let forward = jvp(f, &x, &d)?.1.to_f64()?;
            assert!((exact - forward).abs() < 1e-3 * (1.0 + exact.abs()), "{name} {check}: {exact} and {forward}");
        }
    }
    Ok(())
}

/// Mapped axes say nothing in types: `vmap` inside a checked map, with collectives over both axes.
#[test]
fn vmap_inside_a_checked_map() -> Result<()> {
    let mesh = mesh8()?;
    type F = fn(Array) -> Array;
    let bodies: [F; 5] = [
        |x| psum(x.sin(), ("i", "k")) * &x,
        |x| pmean(x.sin(), "k") * &x,
        |x| all_gather(x.sin(), ("k", "i"), 0).sum(0) * &x,
        |x| ppermute(x.sin(), "k", [(0, 1), (1, 0)]) * axis_index(("i", "k")),
        |x| x.sin() * axis_index("k"),
    ];
    let x = noise([8, 2, 3]);
    for body in bodies {
        let loss = move |x: Array| body(x).square().sum(..);
        let value = |check: bool| {
            let f = move |x: Array| vmap(body).axis_name("k").in_axes(1).out_axes(1).call(x.reshape([3, 2]));
            let x = x.transpose(&[0, 2, 1]).reshape([24, 2]);
            shard_map(f, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).check_vma(check).call(x)
        };
        let want = vmap(vmap(body).axis_name("k")).axis_name("i").call(&x)?;
        close(&value(true)?, &want.transpose(&[0, 2, 1]).reshape([24, 2]));
        close(&value(false)?, &value(true)?);
        // The gradient inside, in a loop whose carry it is.
        let step = |x: Array| -> Result<Array> {
            let f = |x: Array| vmap(grad(loss)).axis_name("k").call(x);
            let start = f(x.clone())?;
            Ok(scan(|c: Array, _: Array| -> Result<(Array, ())> { Ok((f(c)? * 0.01, ())) }, start, zeros(2))?.0)
        };
        let f = |x: Array| step(x.squeeze(0)).map(|y| y.expand_dims(0));
        let got = shard_map(f, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).check_vma(false).call(&x)?;
        close(&got, &vmap(step).axis_name("i").call(&x)?);
        let _ = shard_map(f, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(&x)?;
    }
    Ok(())
}

/// Groups, of one axis or of several together, in a map that checks.
///
/// JAX: `test_all_gather_with_axis_index_groups`.
#[test]
fn all_gather_within_groups_of_two_axes() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 2), ("z", 2)])?.auto();
    let x = ramp([8, 8]);
    fn gather(x: Array) -> Array {
        all_gather_tiled(x, axis_index_groups(("y", "z"), [[0, 1], [2, 3]]), -1)
    }
    let f = shard_map(gather, &mesh).in_specs(P!["x", ("y", "z")]).out_specs(P!["x", ("y", "z")]);
    let y = jit(f).call(&x)?;
    assert_eq!(y.shape(), [8, 16]);
    let halves: Vec<Array> = x.split(2, 1)?.iter().flat_map(|half| [half.clone(), half.clone()]).collect();
    close(&y, &concatenate(&halves, 1));
    Ok(())
}

/// JAX: `test_reduce_scatter_with_axis_index_groups`.
#[test]
fn psum_scatter_within_groups_of_three_axes() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 2), ("z", 2)])?.auto();
    let x = ramp([8, 8]);
    let names = ("x", "y", "z");
    let scatter = move |x: Array| psum_scatter_tiled(x, axis_index_groups(names, [[0, 2, 4, 6], [1, 3, 5, 7]]), 0);
    let y = jit(shard_map(scatter, &mesh).in_specs(P![None, names]).out_specs(P![None, names])).call(&x)?;
    let even = x.reshape([8, 4, 2]).sum(1);
    let want: Vec<f64> = (0..16)
        .map(|at| {
            let (row, device) = (at / 8, at % 8);
            numbers(&even)[(device / 2 * 2 + row) * 2 + device % 2]
        })
        .collect();
    assert_eq!(numbers(&y), want);
    Ok(())
}

#[test]
fn sums_in_groups_are_checked() -> Result<()> {
    let mesh = mesh8()?;
    fn groups() -> Grouped {
        axis_index_groups("i", [[0, 1, 2, 3], [4, 5, 6, 7]])
    }
    fn f(x: Array) -> Array {
        (psum(x.sin(), groups()) * &x).square()
    }
    let mapped = |check: bool, out: PartitionSpec| {
        move |x: Array| -> Result<Array> {
            let mesh = make_mesh([("i", 8)])?.auto();
            Ok(shard_map(f, &mesh).in_specs(P!["i"]).out_specs(out.clone()).check_vma(check).call(x)?.sum(..))
        }
    };
    let text = message(mapped(true, P![])(noise(8)));
    assert!(text.contains("require replication"), "{text}");
    fn plain(x: Array) -> Result<Array> {
        Ok(vmap(f).axis_name("i").call(x)?.sum(..))
    }
    for check in [true, false] {
        close(&grad(mapped(check, P!["i"])).call(noise(8))?, &grad(plain).call(noise(8))?);
    }
    let _ = mesh;
    Ok(())
}

/// The pairs of a rotation by one device.
fn to_next(n: usize) -> Vec<(usize, usize)> {
    (0..n).map(|j| (j, (j + 1) % n)).collect::<Vec<_>>()
}

/// JAX: `test_collective_permute_with_multiple_axis_names`.
#[test]
fn ppermute_over_pairs_of_axes() -> Result<()> {
    setup();
    let mesh = make_mesh([("x", 2), ("y", 2), ("z", 2)])?.auto();
    let x = ramp([4, 16]);
    fn f(x: Array) -> Result<(Array, Array)> {
        assert_eq!(axis_size(("x", "y"))?, 4);
        Ok((ppermute(x.clone(), ("x", "y"), to_next(4)), ppermute(x, ("y", "z"), to_next(4))))
    }
    fn spec() -> PartitionSpec {
        P!["x", ("y", "z")]
    }
    let (c, d) = jit(shard_map(f, &mesh).in_specs(spec()).out_specs(spec())).call(&x)?;
    let x = device_put(&x, NamedSharding::new(&mesh, spec()))?;
    for i in 0..8 {
        close(&x.addressable_data(i)?, &c.addressable_data((i + 2) % 8)?);
        close(&x.addressable_data(i)?, &d.addressable_data(4 * (i / 4) + (i + 1) % 4)?);
    }
    Ok(())
}
