//! Sorts that the CPU kernels compute for XLA. JAX 0.10.2 returns the expected orders.

use shardax::control_flow;
use shardax::numpy::{histogram, interp, lexsort, median};

use super::common::child;
use super::common::quick::one_of;
use super::*;

const VARIABLE: &str = "SHARDAX_CPU_KERNELS";

fn integers(x: &Array) -> Vec<i64> {
    x.astype(DType::I64).to_vec::<i64>().expect("values")
}

/// Ties, both zeros, infinities, and NaNs of both signs.
fn odd() -> Array {
    array([1.0f32, f32::NAN, -0.0, 0.0, -2.0, f32::INFINITY, 1.0, f32::NEG_INFINITY, -f32::NAN, -0.0])
}

/// Run in a process of its own, where the CPU kernels compute them whatever the build.
#[test]
#[ignore = "the test below runs it"]
fn in_a_process_with_cpu_kernels() -> Result<()> {
    common::quick::setup();
    let text = jit(|x: Array| x.argsort(-1)).lower(odd())?.as_text().to_string();
    assert!(text.contains("@shardax_sort(") || text.contains("\"shardax_sort\""), "{text}");
    for dtype in [DType::F16, DType::Bf16, DType::F32, DType::F64].into_iter().step_by(one_of(3)) {
        let x = odd().astype(dtype);
        assert_eq!(integers(&x.argsort(-1)), [7, 4, 2, 3, 9, 0, 6, 5, 1, 8], "{dtype}");
        assert_eq!(integers(&x.argsort_descending(-1)), [1, 8, 5, 0, 6, 2, 3, 9, 4, 7], "{dtype}");
        let sorted = floats(&x.sort(-1));
        assert_eq!(sorted[..8], [f64::NEG_INFINITY, -2.0, 0.0, 0.0, 0.0, 1.0, 1.0, f64::INFINITY], "{dtype}");
        assert!(sorted[8].is_nan() && sorted[9].is_nan(), "{dtype}");
    }
    // Two keys along a dimension in the middle, and a payload.
    let numbers = arange(0..24);
    let a = (&numbers * 7 % 5).reshape([2, 4, 3]);
    let b = (&numbers * 11 % 3).astype(DType::F32).reshape([2, 4, 3]);
    let operands = [a.clone(), b.clone(), numbers.reshape([2, 4, 3])];
    let sorted = lax::sort(&operands, 1, 2)?;
    assert_eq!(integers(&sorted[0]), [0, 0, 0, 1, 2, 1, 2, 3, 2, 3, 4, 4, 0, 1, 0, 1, 2, 1, 2, 3, 3, 4, 4, 4]);
    let order = [0, 10, 5, 3, 1, 8, 6, 4, 11, 9, 7, 2, 15, 13, 20, 18, 16, 23, 21, 19, 14, 12, 22, 17];
    assert_eq!(integers(&sorted[2]), order);
    // The same for each example, in a loop, and with keys of 64 bits.
    let mapped = vmap(|a: Array, b: Array, c: Array| lax::sort(&[a, b, c], 0, 2)).call((
        &operands[0],
        &operands[1],
        &operands[2],
    ))?;
    assert_eq!(integers(&mapped[2]), order);
    let columns = <(Array, Array, Array)>::from(operands.clone());
    let looped: Vec<Array> =
        control_flow::map(|(a, b, c): (Array, Array, Array)| lax::sort(&[a, b, c], 0, 2), columns)?;
    assert_eq!(integers(&looped[2]), order);
    let wide = [a.astype(DType::I64), b.astype(DType::Bool), operands[2].clone()];
    let sorted = lax::sort(&wide, 1, 1)?;
    assert_eq!(integers(&sorted[0]), [0, 0, 0, 1, 2, 1, 2, 3, 2, 3, 4, 4, 0, 1, 0, 1, 2, 1, 2, 3, 3, 4, 4, 4]);
    assert_eq!(integers(&sorted[2]), integers(&wide[2].take_along_axis(&a.argsort(1), 1)));
    // Keys that fit no integer with the index, and complex ones, are XLA's.
    let sorted = lax::sort(&[a.astype(DType::I64), b.astype(DType::F64), operands[2].clone()], 1, 2)?;
    assert_eq!(integers(&sorted[2]), order);
    // Functions that sort.
    let key = random::key(0);
    assert_eq!(integers(&random::permutation(&key, 12)), [0, 1, 8, 5, 6, 4, 3, 10, 2, 7, 11, 9]);
    assert_eq!(integers(&lexsort([array([1, 2, 1, 0]), array([1, 0, 1, 0])], -1)), [3, 1, 0, 2]);
    let rows = array([[3.0, 1.0, 2.0], [5.0, 4.0, 9.0]]);
    assert_eq!(floats(&median(&rows, 1)), [2.0, 5.0]);
    // The derivative follows the elements.
    let weights = array([1.0f32, 2.0, 3.0]);
    let slope = grad(|x: Array| (x.sort(-1) * &weights).sum(..)).call(array([3.0f32, 1.0, 2.0]))?;
    assert_eq!(floats(&slope), [3.0, 1.0, 2.0]);
    // Integers of every width, along the first dimension.
    let dtypes = [DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32, DType::I64, DType::U64];
    for dtype in dtypes.into_iter().step_by(one_of(3)) {
        let x = array([[3, 1], [1, 9], [2, 0]]).astype(dtype);
        assert_eq!(integers(&x.sort(0)), [1, 0, 2, 1, 3, 9], "{dtype}");
    }
    assert_eq!(integers(&array([[3, -1], [-1, 9]]).astype(DType::I8).sort(0)), [-1, -1, 3, 9]);
    assert_eq!(integers(&array([true, false, true]).argsort(0)), [1, 0, 2]);
    assert_eq!(ones([3, 0]).argsort(-1).shape(), [3, 0]);
    long_rows()?;
    largest()?;
    searches()
}

/// The largest elements, in JAX's order: -0 is less than 0, and NaNs have a sign.
fn largest() -> Result<()> {
    let text = jit(|x: Array| lax::top_k(&x, 2).1).lower(odd())?.as_text().to_string();
    assert!(text.contains("shardax_top_k"), "{text}");
    let order = [1, 5, 0, 6, 3, 2, 9, 4, 7, 8];
    for dtype in [DType::F16, DType::Bf16, DType::F32, DType::F64].into_iter().skip(one_of(2) - 1).step_by(one_of(2)) {
        let x = odd().astype(dtype);
        let (elements, indices) = lax::top_k(&x, 10);
        assert_eq!(integers(&indices), order, "{dtype}");
        assert_eq!(elements.dtype(), dtype);
        assert_eq!(floats(&elements)[1..8], floats(&x.get(indices.get(1..8))), "{dtype}");
        assert_eq!(integers(&lax::top_k(&stack([&x, &x], 0).expand_dims(1), 3).1), [1, 5, 0, 1, 5, 0], "{dtype}");
    }
    let x = arange(400).astype(DType::F32) * 37 % 211;
    let rows = vmap(|x: Array| lax::top_k(&x, 7)).call(x.reshape([2, 200]))?;
    let expected = x.reshape([2, 200]).argsort_descending(-1).get((.., ..7));
    assert_eq!(integers(&rows.1), integers(&expected));
    assert_eq!(lax::top_k(&zeros([0, 4]), 2).0.shape(), [0, 2]);
    let slope =
        grad(|x: Array| (lax::top_k(&x, 2).0 * array([1.0f32, 2.0])).sum(..)).call(array([3.0f32, 1.0, 2.0]))?;
    assert_eq!(floats(&slope), [1.0, 0.0, 2.0]);
    Ok(())
}

/// Rows that are sorted by the digits of their keys.
fn long_rows() -> Result<()> {
    let x = (arange(3000) * 7919 % 1009 - 500).reshape([2, 1500]);
    for dtype in [DType::F32, DType::F64, DType::I16, DType::I32, DType::I64].into_iter().step_by(one_of(2)) {
        let x = x.astype(dtype);
        let (order, sorted) = (x.argsort(-1), x.sort(-1));
        assert_eq!(floats(&x.take_along_axis(&order, 1)), floats(&sorted), "{dtype}");
        let (next, before) = (sorted.get((.., 1..)), sorted.get((.., ..-1)));
        let is_stable = order.get((.., 1..)).greater(order.get((.., ..-1))) | next.greater(&before);
        assert!((next.greater_equal(&before) & is_stable).all(..).item::<bool>()?, "{dtype}");
    }
    // JAX's permutation.
    let permuted = random::permutation(random::key(5), 2000);
    assert_eq!(integers(&permuted.get(..8)), [1745, 1879, 716, 1217, 48, 240, 1245, 238]);
    Ok(())
}

/// Searches compared with counts of all elements.
fn searches() -> Result<()> {
    let text = jit(|x: Array| x.searchsorted(&x)).lower(odd())?.as_text().to_string();
    assert!(text.contains("shardax_search_sorted"), "{text}");
    let values = concatenate([odd(), array([0.5f32, 1e-40, -3.0])], 0);
    let dtypes = [DType::F16, DType::Bf16, DType::F32, DType::F64, DType::I8, DType::U16, DType::I64, DType::U32];
    for dtype in dtypes.into_iter().skip(one_of(2) - 1).step_by(one_of(3)) {
        let (sorted, values) = if dtype.is_float() {
            (odd().astype(dtype).sort(-1), values.astype(dtype))
        } else {
            (array([0, 3, 3, 9]).astype(dtype), arange(0..11).astype(dtype))
        };
        let [less, at_most] = [sorted.searchsorted(&values), sorted.searchsorted_right(&values)];
        let pair =
            |x: &Array| if dtype.is_float() { (x.astype(DType::F32), x.not_equal(x)) } else { (x.clone(), x.less(0)) };
        let ((a, a_nan), (b, b_nan)) = (pair(&sorted.expand_dims(0)), pair(&values.expand_dims(1)));
        let is_less = a.less(&b) | (&b_nan & a_nan.logical_not());
        let is_greater = b.less(&a) | (&a_nan & b_nan.logical_not());
        assert_eq!(integers(&less), integers(&is_less.astype(DType::I32).sum(1)), "{dtype}");
        assert_eq!(integers(&at_most), integers(&is_greater.logical_not().astype(DType::I32).sum(1)), "{dtype}");
    }
    // Several values for one array, one array for each example, and sizes 0 and 1.
    let rows = array([[1.0f32, 2.0, 4.0], [0.0, 3.0, 3.5]]);
    fn search(x: Array, v: Array) -> Array {
        x.searchsorted_right(v)
    }
    assert_eq!(integers(&vmap(search).call((&rows, &rows))?), [1, 2, 3, 1, 2, 3]);
    assert_eq!(integers(&vmap(search).in_axes((0, None)).call((&rows, array([3.0f32, 9.0])))?), [2, 3, 2, 3]);
    assert_eq!(integers(&vmap(search).in_axes((None, 1)).call((rows.get(0), &rows))?), [1, 0, 2, 2, 3, 2]);
    assert_eq!(ones([3]).searchsorted(zeros([0])).shape(), [0]);
    assert_eq!(integers(&zeros([0]).searchsorted(array([1.0f32]))), [0]);
    assert_eq!(integers(&array([2]).searchsorted(2)), [0]);
    // Functions that search.
    assert_eq!(floats(&histogram(array([0.0f32, 0.2, 0.9, 1.0, 0.45]), 4).0), [2.0, 1.0, 0.0, 2.0]);
    let slope = grad(|x: Array| interp(&x, array([0.0f32, 1.0, 3.0]), array([0.0f32, 2.0, 8.0])).sum(..));
    assert_eq!(floats(&slope.call(array([0.5f32, 2.0, 9.0]))?), [2.0, 3.0, 0.0]);
    Ok(())
}

#[test]
fn sorts_by_cpu_kernels() {
    let mut command = child::command("sorts::in_a_process_with_cpu_kernels");
    child::run(command.env(VARIABLE, "all"));
}
