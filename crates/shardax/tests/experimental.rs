//! Sparse arrays and differential equations: errors of what does not fit, and use inside of transformations.

mod common;

use common::quick::setup;
use shardax::experimental::ode::{OdeintOptions, odeint};
use shardax::experimental::sparse::{self, BCOO, BCSR, FromdenseOptions, bcoo_dot_general, bcoo_sum_duplicates};
use shardax::prelude::*;

fn matrix() -> Result<BCOO> {
    BCOO::fromdense(array([[0.0f32, 2.0, 0.0], [1.0, 0.0, 4.0]]), None)
}

/// The error has these words, and a fix.
#[track_caller]
fn rejected<T>(made: Result<T>, words: &str) {
    let text = match made {
        Ok(_) => panic!("no error with {words:?}"),
        Err(e) => e.to_string(),
    };
    assert!(text.contains(words), "{text}");
}

#[test]
fn sparse_arrays_of_parts_that_do_not_fit() -> Result<()> {
    setup();
    let data = array([1.0f32, 2.0]);
    rejected(BCOO::new(&data, array([0, 1]), [2]), "cannot have indices int32[2]");
    rejected(BCOO::new(&data, array([[0.5f32], [1.0]]), [2]), "cannot have indices float32[2,1]");
    rejected(BCOO::new(&data, array([[0], [1], [2]]), [2]), "pass data of shape [3]");
    rejected(BCOO::new(&data, array([[0, 0], [1, 0]]), [2]), "[nse, n_sparse]");
    rejected(BCOO::new(&data, array([[0], [1]]), [usize::MAX]), "too many");
    rejected(BCSR::new(&data, array([0, 1]), array([0, 1]), [2, 2]), "indptr int32[2]");
    rejected(BCSR::new(&data, array([0, 1]), array([0, 1, 2]), [usize::MAX, 2]), "indptr int32[3]");
    rejected(BCSR::from_bcoo(&BCOO::new(&data, array([[0], [1]]), [2])?), "both of whose dimensions are sparse");
    rejected(FromdenseOptions::new().n_dense(3).fromdense(ones([2, 2]), None), "n_dense=3");
    rejected(FromdenseOptions::new().index_dtype(DType::F32).fromdense(ones(2), None), "choose an integer dtype");
    rejected(FromdenseOptions::new().index_dtype(DType::I8).fromdense(ones(300), usize::MAX), "too large");
    Ok(())
}

#[test]
fn the_number_of_elements_is_given_inside_of_jit() -> Result<()> {
    setup();
    rejected(jit(|x: Array| BCOO::fromdense(x, None)).call(ones(3)), "statically specified");
    rejected(jit(|m: BCOO| m.sum_duplicates(None)).call(matrix()?), "statically specified");
    let twice = jit(|x: Array| Ok(&BCOO::fromdense(x, 4)? * 2)).call(array([0.0f32, 3.0, 0.0]))?;
    assert_eq!(twice.todense().to_vec::<f32>()?, [0.0, 6.0, 0.0]);
    assert_eq!(twice.indices.to_vec::<i32>()?, [1, 3, 3, 3]);
    Ok(())
}

#[test]
fn operations_that_do_not_fit_carry_errors() -> Result<()> {
    setup();
    let m = matrix()?;
    rejected(m.transpose(&[0]), "name each dimension only once");
    rejected(m.transpose(&[0, 0]), "name one twice");
    rejected(m.sum(&[2]), "out of bounds");
    rejected(m.matmul(ones(2)).to_vec::<f32>(), "contracting dimensions must have the same sizes");
    rejected(m.matmul(1.0).to_vec::<f32>(), "neither can be a scalar");
    rejected(sparse::matmul(&m, m.t()?).to_vec::<f32>(), "two sparse arrays");
    rejected(bcoo_dot_general(&m, ones(3), (&[1, 1], &[0, 0])).to_vec::<f32>(), "each once");
    rejected(bcoo_dot_general(&m, ones(3), (&[7], &[0])).to_vec::<f32>(), "[7]");
    rejected((&m * ones([2, 2])).data.to_vec::<f32>(), "broadcasts to the sparse array's shape");
    rejected((&m + &BCOO::fromdense(ones(3), None)?).data.to_vec::<f32>(), "must have the same shape");
    let rows = FromdenseOptions::new().n_dense(1).fromdense(ones([2, 3]), None)?;
    rejected(rows.t(), "the sparse dimensions before the dense ones");
    rejected(rows.matmul(ones(3)).to_vec::<f32>(), "dense dimension 1");
    Ok(())
}

#[test]
fn empty_sparse_arrays() -> Result<()> {
    setup();
    let none = BCOO::fromdense(zeros([2, 3]), None)?;
    assert_eq!(none.nse(), 0);
    assert_eq!(none.matmul(ones(3)).to_vec::<f32>()?, [0.0; 2]);
    assert_eq!(none.sort_indices()?.sum_duplicates(None)?.nse(), 0);
    assert_eq!(bcoo_sum_duplicates(&none, 2)?.indices.to_vec::<i32>()?, [2, 3, 2, 3]);
    assert_eq!(BCSR::from_bcoo(&none)?.indptr.to_vec::<i32>()?, [0, 0, 0]);
    let scalar = BCOO::fromdense(array(3.0f32), None)?;
    assert_eq!((scalar.n_sparse(), scalar.todense().item::<f32>()?), (0, 3.0));
    let flat = BCOO::fromdense(zeros([0, 3]), None)?;
    assert_eq!(flat.todense().shape(), [0, 3]);
    Ok(())
}

#[test]
fn sparse_arrays_in_transformations() -> Result<()> {
    setup();
    let m = matrix()?;
    // Each example has data of its own, at the same indices.
    let many = vmap(|data: Array, x: Array| Ok(BCOO::new(data, &m.indices, [2, 3])?.matmul(x)));
    let x = array([[1.0f32, 0.0, 0.0], [0.0, 1.0, 1.0]]);
    let y = many.call((stack([&m.data, &(&m.data * 2)], 0), &x))?;
    assert_eq!(y.to_vec::<f32>()?, [0.0, 1.0, 4.0, 8.0]);
    let (value, slope) = jit(sparse::value_and_grad(|x: Array, m: BCOO| m.matmul(x).sum(..)).argnums(Arg::<1>))
        .call((array([1.0f32, 2.0, 3.0]), &m))?;
    assert_eq!(value.item::<f32>()?, 17.0);
    assert_eq!(slope.data.to_vec::<f32>()?, [2.0, 1.0, 3.0]);
    let of_dense = grad(|x: Array, m: BCOO| m.matmul(x).sum(..)).call((ones(3), &m))?;
    assert_eq!(of_dense.to_vec::<f32>()?, [1.0, 2.0, 4.0]);
    Ok(())
}

#[test]
fn equations_that_do_not_fit() -> Result<()> {
    setup();
    let times = array([0.0f32, 1.0]);
    fn still(y: Array, _t: Array, (): ()) -> Array {
        y * 0
    }
    rejected(odeint(still, ones(2), array([0, 1]), ()), "t must be an array of floats, but got int32[2]");
    rejected(odeint(still, ones(2), array(1.0f32), ()), "vector of ascending times");
    rejected(odeint(still, ones(2), zeros([0]), ()), "vector of ascending times");
    rejected(odeint(|y: Array, _t: Array, ()| y.sum(..), ones(2), &times, ()), "got float32[] for float32[2]");
    rejected(odeint(|_y: Array, _t: Array, ()| zeros(3), ones(2), &times, ()), "return the derivative");
    let without_steps = OdeintOptions::new().mxstep(0).odeint(still, ones(2), array([0.5f32]), ())?;
    assert_eq!(without_steps.to_vec::<f32>()?, [1.0, 1.0]);
    // Plain numbers of the host: a solution of float64.
    let y = odeint(|y: Array, _t: Array, ()| -y, array([1.0]), array([0.0, 1.0]), ())?;
    assert!((y.to_vec::<f64>()?[1] - (-1.0f64).exp()).abs() < 1e-7);
    fn decay(y: Array, _t: Array, steps: Array) -> Array {
        -(y * steps)
    }
    let slope = grad(|y: Array| Ok(odeint(decay, y, array([0.0f32, 1.0]), array(2))?.get(-1))).call(1.0f32)?;
    assert!((slope.item::<f32>()? - (-2.0f32).exp()).abs() < 1e-4);
    Ok(())
}
