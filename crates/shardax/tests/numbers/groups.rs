//! Products of groups of elements and of blocks with scales. The numbers are from JAX 0.12.

use shardax::lax::{DotOptions, RaggedDotDimensionNumbers, ScaledDotOptions};
use shardax::prelude::*;

use super::common::quick::setup;

fn dims(contract: (&[usize], &[usize]), batch: bool, ragged: usize, group: Option<usize>) -> RaggedDotDimensionNumbers {
    let of_batch = |dim: usize| if batch { vec![dim] } else { vec![] };
    RaggedDotDimensionNumbers {
        lhs_contracting: contract.0.to_vec(),
        rhs_contracting: contract.1.to_vec(),
        lhs_batch: of_batch(0),
        // In the right operand the groups come first, if there are some.
        rhs_batch: of_batch(usize::from(group.is_some())),
        lhs_ragged_dimension: ragged,
        rhs_group_dimension: group,
    }
}

fn operands() -> [Array; 3] {
    let x = arange(0..12).astype(DType::F32).reshape([2, 3, 2]);
    [x.clone(), arange(0..16).astype(DType::F32).reshape([2, 2, 2, 2]) - 5, x - 4]
}

#[test]
fn ragged_dot_general_equals_jax() -> Result<()> {
    setup();
    let [x, w, y] = operands();
    let matrices = arange(0..4).astype(DType::F32).reshape([2, 2, 1]) - 1;
    let rows = dims((&[2], &[2]), true, 1, Some(0));
    let sizes = array([[1, 2], [2, 1]]);
    let cases: [(Array, &[usize], &[f32]); 6] = [
        (
            lax::ragged_dot_general(&x, &w, &sizes, &rows),
            &[2, 3, 2],
            &[-3.0, -2.0, 21.0, 26.0, 37.0, 46.0, 1.0, 14.0, 1.0, 18.0, 169.0, 190.0],
        ),
        // Rows after the last group are zero.
        (
            lax::ragged_dot_general(&x, &w, array([1u8, 1]), &rows),
            &[2, 3, 2],
            &[-3.0, -2.0, 21.0, 26.0, 0.0, 0.0, 1.0, 14.0, 137.0, 154.0, 0.0, 0.0],
        ),
        (
            lax::ragged_dot_general(&x, &y, array([[2, 1, 0], [0, 1, 1]]), &dims((&[1], &[1]), true, 1, None)),
            &[3, 2, 2, 2],
            &[
                -4.0, -2.0, -10.0, -6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0, 5.0, 12.0, 18.0, 14.0, 21.0, 0.0, 0.0, 0.0,
                0.0, 32.0, 40.0, 36.0, 45.0,
            ],
        ),
        (
            lax::ragged_dot_general(&x, &y, array([1, 1]), &dims((&[1], &[1]), true, 0, None)),
            &[2, 2, 2],
            &[-4.0, 2.0, -10.0, -1.0, 104.0, 128.0, 116.0, 143.0],
        ),
        // The sizes differ between the entries of another dimension of the result.
        (
            lax::ragged_dot_general(&x, &matrices, array([[1, 2], [3, 0]]), &dims((&[2], &[1]), false, 1, Some(0))),
            &[2, 3, 1],
            &[0.0, 8.0, 14.0, -6.0, -8.0, -10.0],
        ),
        // The ragged dimension is the second contracting one, so the sizes differ between the entries of the first.
        (
            lax::ragged_dot_general(&x, &y, array([[1, 0], [0, 1], [1, 1]]), &dims((&[1, 0], &[1, 0]), false, 0, None)),
            &[2, 2, 2],
            &[0.0, 4.0, -4.0, 2.0, 56.0, 68.0, 60.0, 74.0],
        ),
    ];
    for (i, (product, shape, expected)) in cases.into_iter().enumerate() {
        assert_eq!((product.shape(), product.to_vec::<f32>()?.as_slice()), (shape, expected), "case {i}");
    }

    let squares = |x: Array, w: Array| {
        lax::ragged_dot_general(x, w, array([[1, 2], [2, 1]]), &dims((&[2], &[2]), true, 1, Some(0))).square().sum(..)
    };
    let (by_x, by_w) = jit(grad(squares).argnums((Arg::<0>, Arg::<1>))).call((&x, &w))?;
    let expected = [46.0f32, 26.0, 334.0, 522.0, 590.0, 922.0, -2.0, 58.0, -2.0, 74.0, 5406.0, 6842.0];
    assert_eq!(by_x.to_vec::<f32>()?, expected);
    assert_eq!(by_w.get((1, 1)).to_vec::<f32>()?, [3380.0, 3800.0, 3718.0, 4180.0]);
    let mapped = vmap(|x: Array, sizes: Array| {
        let dims = dims((&[1], &[1]), false, 0, Some(0));
        DotOptions::new().ragged_dot_general(x, operands()[1].get((.., 0)), sizes, &dims)
    });
    let each = mapped.call((&x, array([[1, 2], [2, 1]])))?;
    assert_eq!(each.get(0).to_vec::<f32>()?, [-3.0, -2.0, 21.0, 26.0, 37.0, 46.0]);
    Ok(())
}

#[test]
fn ragged_dot_general_rejects_dimensions_that_do_not_fit() {
    setup();
    let [x, w, y] = operands();
    let contracting = dims((&[1], &[1]), true, 1, None);
    let group =
        |group| RaggedDotDimensionNumbers { rhs_group_dimension: group, ..dims((&[2], &[2]), true, 1, Some(0)) };
    let sizes = array([1, 2]);
    for (product, words) in [
        (lax::ragged_dot_general(&x, &w, &sizes, &group(None)), "needs a group dimension"),
        (lax::ragged_dot_general(&x, &w, &sizes, &group(Some(2))), "also a contracting or batch"),
        (lax::ragged_dot_general(&x, &w, &sizes, &group(Some(4))), "no dimension 4"),
        (lax::ragged_dot_general(&x, &w, array([1, 1, 1]), &group(Some(0))), "each of the 3 groups"),
        (lax::ragged_dot_general(&x, &w, array([[1, 2]]), &group(Some(0))), "group_sizes of [2, 2]"),
        (lax::ragged_dot_general(&x, &w, array([1.0f32, 2.0]), &group(Some(0))), "integer group_sizes"),
        (lax::ragged_dot_general(&x, &w, 3, &group(Some(0))), "at least one dimension"),
        (
            lax::ragged_dot_general(
                &x,
                &y,
                &sizes,
                &RaggedDotDimensionNumbers { rhs_group_dimension: Some(2), ..contracting },
            ),
            "no group dimension",
        ),
    ] {
        let text = product.to_vec::<f32>().expect_err("dimensions that do not fit").to_string();
        assert!(text.contains(words) && text.contains("help:"), "{text}");
    }
}

#[test]
fn scaled_dot_equals_jax() -> Result<()> {
    setup();
    let x = (arange(0..16).reshape([2, 8]) - 7).astype(DType::F8E4M3Fn);
    let y = (arange(0..24).reshape([8, 3]) - 11).astype(DType::F8E5M2);
    let scales = array([[0.5f32, 2.0, 1.0, 4.0], [1.0, 0.25, 8.0, 1.0]]);
    let options = ScaledDotOptions::new()
        .lhs_scale(scales.astype(DType::F8E8M0Fnu))
        .rhs_scale(array([[1.0f32, 2.0, 0.5], [4.0, 1.0, 1.0]]).astype(DType::F8E8M0Fnu))
        .preferred_element_type(DType::F32);
    assert_eq!(options.scaled_dot(&x, &y).to_vec::<f32>()?, [-24.0, 160.0, -15.0, 1410.25, 416.0, 548.875]);
    let narrow = ScaledDotOptions::new().lhs_scale(&scales).scaled_dot(&x, &y);
    assert_eq!((narrow.dtype(), narrow.to_f64_vec()?), (DType::Bf16, vec![93.0, 56.0, 23.0, 328.0, 444.0, 536.0]));
    let options = ScaledDotOptions::new()
        .rhs_scale(full([1, 3, 2], 0.3f32))
        .dimension_numbers((&[2], &[2]), (&[0], &[0]))
        .preferred_element_type(DType::F32);
    let product = options.scaled_dot(x.expand_dims(0), y.t().expand_dims(0));
    let expected = [44.214_844f32, 33.6875, 23.460_938, 32.183_594, 45.718_75, 52.335_938];
    assert!(allclose(&product, array(expected).reshape([1, 2, 3]), 1e-6, 0.0)?, "{product}");

    for (product, words) in [
        (lax::scaled_dot(&x, &y, ones([2, 3]), ones([4, 3])), "do not divide"),
        (lax::scaled_dot(&x, &y, ones([2, 8]), ones([4, 3])), "do not divide"),
        (lax::scaled_dot(ones(2), ones(2), ones(1), ones(1)), "1 dimensions"),
        (lax::scaled_dot(x.astype(DType::Complex64), &y, ones([2, 4]), ones([4, 3])), "real operands"),
    ] {
        let text = product.to_f64_vec().expect_err("scales that do not fit").to_string();
        assert!(text.contains(words) && text.contains("help:"), "{text}");
    }
    Ok(())
}
