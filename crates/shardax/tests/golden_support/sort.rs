//! Sorting and its relatives.

use shardax::prelude::*;
use shardax::{lax, numpy as np};

use super::{Case, Fun, many, one, two};

pub fn function(case: &Case) -> Option<Fun> {
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
        "top_k" => {
            let k = case.int("k") as usize;
            many(move |xs| {
                let (values, indices) = lax::top_k(&xs[0], k);
                Ok(vec![values, indices])
            })
        }
        "top_k_of" => {
            let (k, axis) = (case.int("k") as usize, axis?);
            let mode = if case.text("mode") == "smallest" { np::TopKMode::Smallest } else { np::TopKMode::Largest };
            many(move |xs| {
                let (values, indices) = np::top_k(&xs[0], k, axis, mode);
                Ok(vec![values, indices])
            })
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
