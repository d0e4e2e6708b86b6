//! The results of each collective. `JAX:` names the case of JAX's tests that a test follows.

use shardax::prelude::*;

use crate::common::quick::{one_of, setup};
use crate::common::values::ints;

fn ramp(shape: impl IntoShape + Clone) -> Array {
    let n: i64 = shape.clone().into_dims().iter().product();
    arange(0..n as i32).reshape(shape)
}

fn mapped(f: impl Fn(Array) -> Array, x: &Array) -> Result<Array> {
    pmap(f).axis_name("i").call(x)
}

/// JAX: `testGather`.
#[test]
fn all_gather_stacks_along_axis_0() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    let y = mapped(|x| all_gather(x, "i", 0), &x)?;
    assert_eq!(ints(&y), ints(&x.broadcast_to([8, 8, 4])));
    Ok(())
}

/// JAX: `testGatherNegativeAxis`.
#[test]
fn all_gather_stacks_along_the_last_axis() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    let y = mapped(|x| all_gather(x, "i", -1), &x)?;
    assert_eq!(ints(&y), ints(&x.t().broadcast_to([8, 4, 8])));
    Ok(())
}

/// JAX: `testGatherTiled`.
#[test]
fn all_gather_tiled_concatenates() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    let y = mapped(|x| all_gather_tiled(x, "i", 0), &x)?;
    assert_eq!((y.shape(), ints(&y)), (&[8, 32][..], ints(&x.reshape([1, 32]).broadcast_to([8, 32]))));
    Ok(())
}

/// JAX: `testReduceScatterTiled`.
#[test]
fn psum_scatter_tiled_returns_each_part_of_the_sum() -> Result<()> {
    setup();
    let x = ramp([8, 16]);
    let y = mapped(|x| psum_scatter_tiled(x, "i", 0), &x)?;
    assert_eq!((y.shape(), ints(&y)), (&[8, 2][..], ints(&x.sum(0))));
    Ok(())
}

/// JAX: `testReduceScatterNegativeScatterDimension`.
#[test]
fn psum_scatter_takes_a_negative_dimension() -> Result<()> {
    setup();
    let x = ramp([8, 3, 8]);
    let a = mapped(|x| psum_scatter(x, "i", -1), &x)?;
    let b = mapped(|x| psum_scatter(x, "i", 1), &x)?;
    assert_eq!(ints(&a), ints(&b));
    assert_eq!(ints(&a), ints(&x.sum(0).t()));
    Ok(())
}

/// JAX: `testReduceScatterReplicaGroupsTiled`.
#[test]
fn psum_scatter_within_even_and_odd_devices() -> Result<()> {
    setup();
    let x = ramp([8, 8]);
    let y = mapped(|x| psum_scatter_tiled(x, axis_index_groups("i", [[0, 2, 4, 6], [1, 3, 5, 7]]), 0), &x)?;
    let x = ints(&x);
    for device in 0..8usize {
        let members: Vec<usize> = (0..8).filter(|d| d % 2 == device % 2).collect();
        for k in 0..2 {
            let column = (device / 2) * 2 + k;
            let want: i32 = members.iter().map(|m| x[m * 8 + column]).sum();
            assert_eq!(ints(&y)[device * 2 + k], want);
        }
    }
    Ok(())
}

/// JAX: `testPsumUnevenReplicaGroups`.
#[test]
fn psum_over_groups_of_different_sizes() -> Result<()> {
    setup();
    let y = mapped(|x| psum(x, axis_index_groups("i", [vec![0, 1], vec![2, 3, 4, 5, 6, 7]])), &arange(0..8))?;
    assert_eq!(ints(&y), [1, 1, 27, 27, 27, 27, 27, 27]);
    let mean = mapped(|x| pmean(x, axis_index_groups("i", [vec![0, 1], vec![2, 3, 4, 5, 6, 7]])), &arange(0..8))?;
    assert_eq!(mean.to_vec::<f32>()?, [0.5, 0.5, 4.5, 4.5, 4.5, 4.5, 4.5, 4.5]);
    Ok(())
}

/// JAX: `testPsumConstantReplicaGroups`.
#[test]
fn psum_of_a_constant_multiplies_by_the_group_size() -> Result<()> {
    setup();
    let y = mapped(
        |x| x * psum(Array::from(3), axis_index_groups("i", [[0, 2, 4, 6], [1, 3, 5, 7]])),
        &ones(8).astype(DType::I32),
    )?;
    assert_eq!(ints(&y), [12; 8]);
    Ok(())
}

/// JAX: `testAllToAll`.
#[test]
fn all_to_all_over_every_pair_of_axes() -> Result<()> {
    setup();
    for split in 0..3 {
        // A slice has each of the axes once in both roles.
        for concat in (0..3).cycle().skip(split as usize).step_by(one_of(3)).take(3 / one_of(3)) {
            let x = ramp([8, 8, 8, 8]);
            let y = mapped(move |x| all_to_all(x, "i", split, concat), &x)?;
            // The mapped axis and the split one change places; then the new one stands at `concat`.
            let want = x.swapaxes(0, split + 1).moveaxis(split + 1, concat + 1);
            assert_eq!(ints(&y), ints(&want), "split {split} concat {concat}");
        }
    }
    Ok(())
}

/// JAX: `testAllToAllReplicaGroups`.
#[test]
fn all_to_all_stays_inside_groups() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    let y = mapped(|x| all_to_all(x, axis_index_groups("i", [[0, 2, 4, 6], [1, 3, 5, 7]]), 0, 0), &x)?;
    let x = ints(&x);
    for device in 0..8usize {
        for k in 0..4usize {
            let from = 2 * k + device % 2;
            assert_eq!(ints(&y)[device * 4 + k], x[from * 4 + device / 2]);
        }
    }
    Ok(())
}

/// JAX: `testPswapaxes`.
#[test]
fn pswapaxes_exchanges_the_mapped_axis() -> Result<()> {
    setup();
    let x = ramp([8, 3, 8, 5]);
    let y = mapped(|x| pswapaxes(x, "i", 1), &x)?;
    assert_eq!(ints(&y), ints(&x.swapaxes(0, 2)));
    Ok(())
}

/// JAX: `testCollectivePermute`.
#[test]
fn ppermute_in_a_ring_rolls_the_rows() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    let y = mapped(|x| ppermute(x, "i", (0..8).map(|i| (i, (i + 1) % 8)).collect::<Vec<_>>()), &x)?;
    let want = concatenate(&[x.split(8, 0)?[7].clone(), shardax::lax::slice_in_dim(&x, 0, 7, 0)], 0);
    assert_eq!(ints(&y), ints(&want));
    Ok(())
}

/// JAX: `testCollectivePermuteCyclicWithPShuffle`.
#[test]
fn pshuffle_in_a_ring_rolls_the_rows() -> Result<()> {
    setup();
    let y = mapped(|x| pshuffle(x, "i", [7, 0, 1, 2, 3, 4, 5, 6]), &arange(0..8))?;
    assert_eq!(ints(&y), [7, 0, 1, 2, 3, 4, 5, 6]);
    Ok(())
}

/// JAX: `testPShuffleWithBadPerm`.
#[test]
fn pshuffle_requires_a_permutation() {
    setup();
    let text = mapped(|x| pshuffle(x, "i", [1, 1, 2, 3, 4, 5, 6, 7]), &arange(0..8)).err().expect("bad").to_string();
    assert!(text.contains("`perm` does not represent a permutation: [1, 1, 2, 3, 4, 5, 6, 7]"), "{text}");
}

/// A cellular automaton cut over the devices, which exchange the cells at their edges.
///
/// JAX: `testRule30`.
#[test]
fn rule_30_exchanges_edges() -> Result<()> {
    setup();
    let (n, width, steps) = (8usize, 4usize, 6);
    let step = pmap(|cells: Array| {
        let last = shardax::lax::slice_in_dim(&cells, 3, 4, 0);
        let first = shardax::lax::slice_in_dim(&cells, 0, 1, 0);
        let left = ppermute(last, "i", (0..8).map(|i| (i, (i + 1) % 8)).collect::<Vec<_>>());
        let right = ppermute(first, "i", (0..8).map(|i| ((i + 1) % 8, i)).collect::<Vec<_>>());
        let extended = concatenate(&[left, cells, right], 0);
        fn part(k: usize, extended: &Array) -> Array {
            shardax::lax::slice_in_dim(extended, k, k + 4, 0)
        }
        part(0, &extended) ^ (part(1, &extended) | part(2, &extended))
    })
    .axis_name("i");
    let mut host = vec![false; n * width];
    host[n * width / 2] = true;
    let mut cells = array(host.clone()).reshape([n, width]);
    for _ in 0..steps {
        cells = step.call(&cells)?;
        let m = host.len();
        host = (0..m).map(|i| host[(i + m - 1) % m] ^ (host[i] | host[(i + 1) % m])).collect();
        assert_eq!(cells.to_vec::<bool>()?, host);
    }
    Ok(())
}

/// JAX: `testCollectiveConstant`.
#[test]
fn axis_size_is_the_number_of_devices() -> Result<()> {
    setup();
    let f = pmap(|x: Array| -> Result<Array> { Ok(x * 0 + axis_size("i")?) }).axis_name("i");
    assert_eq!(ints(&f.call(arange(0..8))?), [8; 8]);
    Ok(())
}

/// JAX: `testCollectiveBroadcast`.
#[test]
fn pbroadcast_copies_one_device_to_all() -> Result<()> {
    setup();
    let x = ramp([8, 4]);
    let y = mapped(|x| pbroadcast(x, "i", 2), &x)?;
    assert_eq!(ints(&y), ints(&shardax::lax::slice_in_dim(&x, 2, 3, 0).broadcast_to([8, 4])));
    Ok(())
}

/// JAX: `testCollectivesWithVmap`.
#[test]
fn reductions_over_pmap_and_vmap_axes_in_either_nesting() -> Result<()> {
    setup();
    let x = ramp([8, 3, 2]);
    fn body(x: Array) -> Array {
        psum(x.clone(), ("i", "j")) + psum(x.clone(), "j") - psum(x.clone(), "i")
            + axis_index("i") * 10
            + axis_index("j")
    }
    let inner_vmap = pmap(vmap(body).axis_name("j")).axis_name("i").call(&x)?;
    let both_vmap = vmap(vmap(body).axis_name("j")).axis_name("i").call(&x)?;
    let outer_vmap = vmap(pmap(body).axis_name("i")).in_axes(1).out_axes(1).axis_name("j").call(&x)?;
    assert_eq!(ints(&inner_vmap), ints(&both_vmap));
    assert_eq!(ints(&outer_vmap), ints(&both_vmap));
    Ok(())
}

/// JAX: `testPPermuteAgreesWithVmap`.
#[test]
fn ppermute_under_vmap_equals_pmap() -> Result<()> {
    setup();
    let x = ramp([3, 2]);
    fn body(x: Array) -> Array {
        ppermute(x, "i", [(0, 1), (1, 2), (2, 0)])
    }
    assert_eq!(ints(&pmap(body).axis_name("i").call(&x)?), ints(&vmap(body).axis_name("i").call(&x)?));
    Ok(())
}

/// JAX: `test_all_gather`.
#[test]
fn all_gather_over_one_and_two_mesh_axes() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?;
    let x = ramp([8, 8]);
    for check in [true, false] {
        let single_axis =
            shard_map(|x: Array| all_gather_tiled(x, "j", 1), &mesh).in_specs(P!["i", "j"]).out_specs(P!["i", "j"]);
        let y = jit(single_axis.check_vma(check)).call(&x)?;
        assert_eq!(y.shape(), [8, 16]);
        let two_axes = shard_map(|x: Array| all_gather_tiled(x, ("i", "j"), 0), &mesh)
            .in_specs(P![("i", "j")])
            .out_specs(P![("i", "j")]);
        let y = jit(two_axes.check_vma(check)).call(&x)?;
        assert_eq!(ints(&y), ints(&concatenate(&vec![x.clone(); 8], 0)));
    }
    Ok(())
}

/// JAX: `test_matmul_reduce_scatter`.
#[test]
fn matmul_then_psum_scatter_is_the_whole_matmul() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?;
    let (a, b) = (ramp([8, 8]), ramp([8, 4]));
    let f = shard_map(|a: Array, b: Array| psum_scatter_tiled(a.dot(b), "j", 0), &mesh)
        .in_specs((P!["i", "j"], P!["j", None]))
        .out_specs(P![("i", "j"), None]);
    assert_eq!(ints(&jit(f).call((&a, &b))?), ints(&a.dot(&b)));
    Ok(())
}

/// JAX: `test_axis_index_twoaxes`.
#[test]
fn axis_index_over_two_axes_is_row_major() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 4), ("j", 2)])?;
    let f =
        shard_map(|x: Array| x * 0 + axis_index(("i", "j")), &mesh).in_specs(P![("i", "j")]).out_specs(P![("i", "j")]);
    assert_eq!(ints(&jit(f).call(arange(0..8))?), [0, 1, 2, 3, 4, 5, 6, 7]);
    Ok(())
}

/// JAX: `test_ppermute_different_axis_order_error`.
#[test]
fn ppermute_with_axes_out_of_mesh_order() -> Result<()> {
    setup();
    // JAX rejects tuples that are not in the order of the mesh. Here the first name is major.
    let mesh = make_mesh([("i", 4), ("j", 2)])?;
    let f = shard_map(|x: Array| ppermute(x, ("j", "i"), [(0, 1)]), &mesh)
        .in_specs(P![("j", "i")])
        .out_specs(P![("j", "i")]);
    assert_eq!(ints(&jit(f).call(arange(1..9))?), [0, 1, 0, 0, 0, 0, 0, 0]);
    Ok(())
}

#[derive(Tree, Clone)]
struct WithRate {
    x: Array,
    rate: f32,
}

/// JAX: `psum(1, "i")` is the size of the axis, a Python number.
#[test]
fn psum_of_a_rust_number_is_a_multiple() -> Result<()> {
    setup();
    let x = ones(8);
    assert_eq!(mapped(|x| x * psum(1, "i"), &x)?.to_vec::<f32>()?, [8.0; 8]);
    assert_eq!(vmap(|x: Array| x * psum(0.5, "i")).axis_name("i").call(&x)?.to_vec::<f32>()?, [4.0; 8]);
    let pair = mapped(
        |x| {
            let (sum, count) = psum((x, 1), "i");
            sum / count
        },
        &ramp(8).astype(f32),
    )?;
    assert_eq!(pair.to_vec::<f32>()?, [3.5; 8]);
    let unchanged = |x: Array| x * pmean(3, "i") * pmax(2.0, "i");
    assert_eq!(mapped(unchanged, &x)?.to_vec::<f32>()?, [6.0; 8]);
    // A number in a struct is configuration.
    let rate = |x: Array| {
        let summed = psum(WithRate { x, rate: 0.5 }, "i");
        summed.x * summed.rate
    };
    assert_eq!(mapped(rate, &x)?.to_vec::<f32>()?, [4.0; 8]);
    Ok(())
}
