//! Sorting and its relatives.

use shardax::lax::{self, TopKOptions};
use shardax::numpy as np;
use shardax::prelude::*;

use super::{Case, Fun, many, one, two};

/// A function whose results are values and their indices.
fn pair(f: impl Fn(&Array) -> (Array, Array) + 'static) -> Option<Fun> {
    many(move |xs| {
        let (values, indices) = f(&xs[0]);
        Ok(vec![values, indices])
    })
}

pub fn function(case: &Case) -> Option<Fun> {
    // Options of sorts; a case without them uses the defaults.
    let axis = case.param("axis").as_i64().map(|a| a as i32);
    let keys = case.param("num_keys").as_u64();
    let descending = case.flag("descending");
    match case.op.as_str() {
        "sort" if keys.is_some() => {
            let (axis, keys) = (axis?, keys? as usize);
            many(move |xs| lax::sort(xs, axis, keys))
        }
        "sort" if descending => one(|x| x.sort_descending(-1)),
        "sort" => one(move |x| match axis {
            Some(axis) => x.sort(axis),
            None => x.sort(..),
        }),
        "argsort" if descending => one(|x| x.argsort_descending(-1)),
        "argsort" => one(move |x| match axis {
            Some(axis) => x.argsort(axis),
            None => x.argsort(..),
        }),
        "top_k" if axis.is_none() => {
            let k = case.int("k") as usize;
            pair(move |x| lax::top_k(x, k))
        }
        "top_k" | "approx_max_k" | "approx_min_k" => {
            let (k, options) = (case.int("k") as usize, TopKOptions::new().axis(axis?));
            match case.op.as_str() {
                "top_k" => pair(move |x| options.top_k(x, k)),
                "approx_max_k" => pair(move |x| options.approx_max_k(x, k)),
                _ => pair(move |x| options.approx_min_k(x, k)),
            }
        }
        "top_k_of" => {
            let (k, axis) = (case.int("k") as usize, axis?);
            let mode = if case.text("mode") == "smallest" { np::TopKMode::Smallest } else { np::TopKMode::Largest };
            pair(move |x| np::top_k(x, k, axis, mode))
        }
        "median" => one(|x| {
            let sorted = x.sort(1);
            sorted.get((.., sorted.shape()[1] / 2))
        }),
        "searchsorted" => two(|x, v| x.searchsorted(v)),
        "one_hot" => one(|x| {
            let n = x.shape()[1];
            x.argmax(-1).expand_dims(-1).equal(arange(0..n as i32)).astype(DType::F32)
        }),
        _ => None,
    }
}
