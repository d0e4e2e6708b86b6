//! Functions of NumPy that call other functions.

use shardax::numpy as np;
use shardax::prelude::*;

use super::{Case, Fun, many, one, two};

pub fn function(case: &Case) -> Option<Fun> {
    // Parameters that several functions share.
    let size = |name: &str| case.param(name).as_u64().map(|n| n as usize);
    let axes = case.param("axes").is_array().then(|| case.axes("axes"));
    let reduction = |f: fn(&Array, Option<&[i32]>) -> Array| {
        let axes = axes.clone();
        one(move |x| f(x, axes.as_deref()))
    };
    let axis = case.param("axis").as_i64().map(|a| a as i32);
    let q = case.param("q").as_f64();
    fn pair((x, y): (Array, Array)) -> Result<Vec<Array>> {
        Ok(vec![x, y])
    }
    fn stacked(f: fn(&[Array]) -> Array) -> Option<Box<dyn Fn(&[Array]) -> Result<Vec<Array>>>> {
        many(move |xs| Ok(vec![f(xs)]))
    }
    match case.op.as_str() {
        "logical_and" => two(|x, y| np::logical_and(x, y)),
        "logical_or" => two(|x, y| np::logical_or(x, y)),
        "logical_xor" => two(|x, y| np::logical_xor(x, y)),
        "isclose" => two(|x, y| np::isclose(x, y, 1e-5, 1e-8)),
        "array_equal" => two(|x, y| np::array_equal(x, y)),
        "count_nonzero" => reduction(|x, axes| np::count_nonzero(x, axes)),
        "nan_to_num" => one(|x| np::nan_to_num(x)),
        "isin" => two(|x, y| np::isin(x, y)),
        "atleast_1d" => one(|x| np::atleast_1d(x)),
        "atleast_2d" => one(|x| np::atleast_2d(x)),
        "atleast_3d" => one(|x| np::atleast_3d(x)),
        "hstack" => stacked(|xs| np::hstack(xs)),
        "vstack" => stacked(|xs| np::vstack(xs)),
        "dstack" => stacked(|xs| np::dstack(xs)),
        "column_stack" => stacked(|xs| np::column_stack(xs)),
        "append" => two(move |x, y| match axis {
            Some(axis) => np::append(x, y, axis),
            None => np::append(x, y, ..),
        }),
        "average" => {
            let axes = axes.clone();
            two(move |x, w| np::average(x, w, axes.as_deref()))
        }
        "ptp" => reduction(|x, axes| np::ptp(x, axes)),
        "quantile" => {
            let axes = axes.clone();
            one(move |x| np::quantile(x, q.unwrap_or(f64::NAN), axes.as_deref()))
        }
        "quantile_of" => two(|x, q| np::quantile(x, q, 0)),
        "percentile" => {
            let axes = axes.clone();
            one(move |x| np::percentile(x, q.unwrap_or(f64::NAN), axes.as_deref()))
        }
        "median" => reduction(|x, axes| np::median(x, axes)),
        "nansum" => reduction(|x, axes| np::nansum(x, axes)),
        "nanprod" => reduction(|x, axes| np::nanprod(x, axes)),
        "nanmean" => reduction(|x, axes| np::nanmean(x, axes)),
        "nanvar" => reduction(|x, axes| np::nanvar(x, axes)),
        "nanstd" => reduction(|x, axes| np::nanstd(x, axes)),
        "nanmax" => reduction(|x, axes| np::nanmax(x, axes)),
        "nanmin" => reduction(|x, axes| np::nanmin(x, axes)),
        "bincount" => {
            let length = size("length")?;
            one(move |x| np::bincount(x, length))
        }
        "histogram" => {
            let bins = size("bins")?;
            many(move |xs| pair(np::histogram(&xs[0], bins)))
        }
        "digitize" => two(|x, y| np::digitize(x, y)),
        "searchsorted_right" => two(|a, v| a.searchsorted_right(v)),
        "diff" => {
            let (n, axis) = (size("n")?, axis?);
            one(move |x| np::diff(x, n, axis))
        }
        "trapezoid" => {
            let (dx, axis) = (case.param("dx").as_f64()?, axis?);
            one(move |y| np::trapezoid(y, dx, axis))
        }
        "interp" => many(|xs| Ok(vec![np::interp(&xs[0], &xs[1], &xs[2])])),
        "cov" => one(|x| np::cov(x)),
        "flatnonzero" => {
            let size = size("size")?;
            one(move |x| np::flatnonzero(x, size))
        }
        "nonzero" => {
            let size = size("size")?;
            many(move |xs| Ok(np::nonzero(&xs[0], size)))
        }
        "argwhere" => {
            let size = size("size")?;
            one(move |x| np::argwhere(x, size))
        }
        "unravel_index" => {
            let shape: Vec<usize> = case.ints("shape").iter().map(|&n| n as usize).collect();
            many(move |xs| Ok(np::unravel_index(&xs[0], &shape)))
        }
        "unique" => {
            let size = size("size")?;
            one(move |x| np::unique(x, size))
        }
        "cross" => two(|x, y| np::cross(x, y)),
        "kron" => two(|x, y| np::kron(x, y)),
        "hypot" => two(|x, y| np::hypot(x, y)),
        op if op.starts_with("segment_") => {
            let f: fn(&Array, &Array, usize) -> Array = match op {
                "segment_sum" => |x, ids, n| np::segment_sum(x, ids, n),
                "segment_prod" => |x, ids, n| np::segment_prod(x, ids, n),
                "segment_max" => |x, ids, n| np::segment_max(x, ids, n),
                _ => |x, ids, n| np::segment_min(x, ids, n),
            };
            let n = size("n")?;
            two(move |x, ids| f(x, ids, n))
        }
        "full" => one(|x| np::full([2, 3], x)),
        "full_dtype" => one(|x| np::full_dtype([2, 3], x, DType::I8)),
        op => {
            let (n, m, k) = (size("n")?, size("m").unwrap_or(0), case.param("k").as_i64().unwrap_or(0) as i32);
            match op {
                "tril_indices" => many(move |_| pair(np::tril_indices(n, k))),
                "triu_indices" => many(move |_| pair(np::triu_indices(n, k))),
                "diag_indices" => many(move |_| pair(np::diag_indices(n))),
                "tri" => many(move |_| Ok(vec![np::tri(n, m, k)])),
                "logspace" => many(move |_| Ok(vec![np::logspace(-1.0, 2.0, n)])),
                "geomspace" => many(move |_| Ok(vec![np::geomspace(0.5, 64.0, n)])),
                _ => None,
            }
        }
    }
}
