//! Half precision and wide complex numbers in every function, many of them a case, and in large sums.

use shardax::prelude::*;
use shardax::{linalg, nn};

use super::{Case, Fun, edges, many};

pub fn function(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "each" => {
            let functions = names(case).iter().map(|op| edges::named(op)).collect::<Option<Vec<Fun>>>()?;
            many(move |xs| functions.iter().map(|f| Ok(f(xs)?.swap_remove(0))).collect())
        }
        "rows" => {
            let names = names(case);
            many(move |xs| names.iter().map(|op| row_function(op, &xs[0])).collect())
        }
        "large" => {
            let dtype = case.dtype("dtype")?;
            many(move |xs| large(&xs[0], dtype))
        }
        _ => None,
    }
}

fn names(case: &Case) -> Vec<String> {
    let ops = case.param("ops").as_array().into_iter().flatten();
    ops.filter_map(|op| op.as_str().map(str::to_owned)).collect()
}

fn row_function(op: &str, x: &Array) -> Result<Array> {
    Ok(match op {
        "norm" => linalg::norm(x, 2, 1),
        _ => edges::row(op, x).unwrap_or_else(|| panic!("no function {op}")),
    })
}

/// Returns about sixteen elements of an array.
fn sample(y: Array) -> shardax::Result<Array> {
    let step = (y.size() / 16).max(1);
    let places: Vec<i32> = (0..y.size()).step_by(step).map(|i| i as i32).collect();
    Ok::<_, shardax::Error>(y.ravel().get(&Array::from_slice(&places, &[places.len()])?))
}

/// 120,000 numbers of about a hundredth, from a key.
fn large(key: &Array, dtype: DType) -> Result<Vec<Array>> {
    // Sums of many small numbers, which half precision gets wrong unless it accumulates in float32.
    let x = (random::uniform(key, &[120_000]) * 0.02).astype(dtype);
    let rows = x.reshape([4, -1]);
    let near_one = (random::uniform(key, &[1000]) * 0.008 + 1).astype(dtype);
    fn wide(y: Array) -> Array {
        y.astype(DType::F32)
    }
    let slope_of_prod = grad(move |x: Array| wide(x.prod(..))).call(&near_one)?;
    let slope_of_logsumexp = grad(move |x: Array| wide(x.logsumexp(..))).call(x.reshape([8, -1]).get(0))?;
    let slope_of_var = grad(move |x: Array| wide(x.var(..))).call(&x)?;
    Ok(vec![
        x.sum(..),
        rows.sum(1),
        rows.t().sum(0),
        x.mean(..) * 64,
        x.var(..) * 4096,
        x.std(..) * 64,
        linalg::norm(&x * 16, 2, 0),
        linalg::norm(&x, 1, 0),
        rows.logsumexp(1),
        sample(nn::softmax(&rows, 1))? * 16384,
        sample(nn::log_softmax(&rows, 1))?,
        near_one.prod(..),
        x.dot(ones_like(&x)),
        rows.matmul(ones_like(&rows).t()),
        einsum("ij,ij->i", &[&rows, &ones_like(&rows)]),
        sample(slope_of_prod)?,
        sample(slope_of_logsumexp)? * 16384,
        sample(slope_of_var)? * f64::from(1 << 20),
    ])
}
