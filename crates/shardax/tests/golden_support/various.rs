//! Functions without a family of their own.

use shardax::MapOptions;
use shardax::lax::{self, ConvOptions, Padding, TopKOptions, Window};
use shardax::nn::OneHotOptions;
use shardax::prelude::*;
use shardax::scipy::linalg as sl;

use super::conv::{padding, sizes};
use super::{Case, Fun, many, one, two};

fn adjoint(x: &Array) -> Array {
    conj(&x.mt())
}

pub fn function(case: &Case) -> Option<Fun> {
    let (k, axis) = (case.param("k").as_u64().unwrap_or(0) as usize, case.param("axis").as_i64().unwrap_or(-1) as i32);
    let largest = TopKOptions::new().axis(axis);
    let pair = |(x, y): (Array, Array)| Ok(vec![x, y]);
    let bits = case.ints("bits");
    let (places, unique) = (case.axes("places"), case.flag("unique"));
    let at = move |x: &Array| -> Result<shardax::At> {
        let at = x.at(Array::from_slice(&places, &[places.len()])?);
        Ok(if unique { at.unique_indices() } else { at })
    };
    match case.op.as_str() {
        "svdvals" => one(|x| linalg::svdvals(x)),
        "svd_weighted" => one(|x| {
            let (u, s, vh) = linalg::svd(x);
            (u * (arange(0..s.shape()[s.ndim() - 1] as i32) + 1).astype(x.dtype())).matmul(vh)
        }),
        "svd_full" => many(|xs| {
            let (u, s, vh) = linalg::svd_full(&xs[0]);
            let k = s.shape()[0] as i64;
            let product = (u.get((.., ..k)) * s.expand_dims(-2)).matmul(vh.get(..k));
            Ok(vec![u.matmul(adjoint(&u)).abs(), vh.matmul(adjoint(&vh)).abs(), product])
        }),
        "pinv" => one(|x| linalg::pinv(x)),
        "matrix_rank" => one(|x| linalg::matrix_rank(x)),
        "lstsq" => many(|xs| {
            let (x, residuals, rank, _) = linalg::lstsq(&xs[0], &xs[1]);
            Ok(vec![x, residuals, rank])
        }),
        "cho_solve" => two(|l, b| sl::cho_solve(l, b)),
        "block_diag" => many(|xs| Ok(vec![sl::block_diag(xs)])),
        "toeplitz" => two(|c, r| sl::toeplitz(c, r)),
        "toeplitz_symmetric" => one(|c| sl::toeplitz_symmetric(c)),
        "expm" => one(|x| sl::expm(x)),
        "top_k" => many(move |xs| pair(largest.top_k(&xs[0], k))),
        "approx_max_k" => many(move |xs| pair(largest.approx_max_k(&xs[0], k))),
        "approx_min_k" => many(move |xs| pair(largest.approx_min_k(&xs[0], k))),
        "reduce_precision" => one(move |x| lax::reduce_precision(x, bits[0] as u32, bits[1] as u32)),
        "conv_general_dilated_patches" => {
            let (filter, strides) = (sizes(case, "filter")?, sizes(case, "strides")?);
            let pads = padding(case.param("padding"));
            one(move |x| lax::conv_general_dilated_patches(x, &filter, &strides, pads.clone(), ConvOptions::new()))
        }
        "at_divide" => many(move |xs| Ok(vec![at(&xs[0])?.divide(&xs[1])])),
        "at_power" => many(move |xs| Ok(vec![at(&xs[0])?.power(&xs[1])])),
        "at_apply" => one(|x| x.at(&array([2, 0])).apply(|x| x.sin())),
        "reduce" => one(|x| lax::reduce(x, 0.0, |a, b| &a + &b + &a * &b, [0, 2])),
        "reduce_window" => one(|x| {
            let window = Window::new([2, 3]).strides([1, 2]).padding(Padding::Same);
            lax::reduce_window(x, 1.0, |a, b| a * b, window)
        }),
        "one_hot" => {
            let options = OneHotOptions::new().axis(axis).dtype(case.dtype("dtype")?);
            one(move |x| options.one_hot(x, k))
        }
        "map_batch_size" => many(|xs| {
            let sums: Array = MapOptions::default().batch_size(3).map(|x: Array| x.sin().sum(..), xs[0].clone())?;
            Ok(vec![sums])
        }),
        "fori_unroll" => many(|xs| {
            let step = |i, x: Array| x * 1.5 + i;
            Ok(vec![ScanOptions::default().unroll(2).fori_loop(0, 5, step, xs[0].clone())?])
        }),
        _ => None,
    }
}
