//! Sets whose size follows from the values.

use shardax::numpy::{intersect1d, setdiff1d, setxor1d, unique_counts, unique_inverse};
use shardax::prelude::*;

use super::common::quick::setup;

#[test]
fn sets_of_values() -> Result<()> {
    setup();
    let (x, y) = (array([5, 1, 5, 3]), array([3, 9, 3, 1]));
    assert_eq!(intersect1d(&x, &y).to_vec::<i32>()?, [1, 3]);
    assert_eq!(setxor1d(&x, &y).to_vec::<i32>()?, [5, 9]);
    assert_eq!(setdiff1d(&x, &y).to_vec::<i32>()?, [5]);
    let none = array([0i32; 0]);
    assert_eq!(intersect1d(&x, &none).size(), 0);
    assert_eq!(setxor1d(&none, &none).size(), 0);
    assert_eq!(setdiff1d(&x, &none).to_vec::<i32>()?, [1, 3, 5]);
    // Promoted, as by JAX.
    assert_eq!(intersect1d(array([1, 2]), array([2.0f32, 7.5])).to_vec::<f32>()?, [2.0]);
    let (values, counts) = unique_counts(&x, None);
    assert_eq!((values.to_vec::<i32>()?, counts.to_vec::<i32>()?), (vec![1, 3, 5], vec![1, 1, 2]));
    let (values, inverse) = unique_inverse(array([[2, 1], [1, 2]]), None);
    assert_eq!((values.size(), inverse.shape()), (2, &[2, 2][..]));
    // Inside of `jit` their size is unknown.
    let error = jit(|x: Array| intersect1d(&x, &x)).call(&x).unwrap_err().to_string();
    assert!(error.contains("size"), "{error}");
    Ok(())
}
