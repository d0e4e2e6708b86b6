//! Choosing between values.

use shardax::prelude::*;
use shardax::{lax, numpy as np};

use super::{Case, Fun, many, one, three, two};

pub fn function(case: &Case) -> Option<Fun> {
    match (case.op.as_str(), case.name.as_str()) {
        ("select", _) => three(|p, x, y| lax::select(p, x, y)),
        ("select_n", _) => many(|xs| Ok(vec![lax::select_n(&xs[0], &xs[1..])])),
        ("where", "where_f32_plain") => two(|p, x| where_(p, x, 0)),
        ("where", "where_f32_double_where") => one(|x| where_(x.greater(0), where_(x.greater(0), x, 1.0).log(), 0.0)),
        ("where", "where_f32_nan_leak") => one(|x| where_(x.greater(0), x.log(), 0.0)),
        ("where", _) => three(|p, x, y| where_(p, x, y)),
        ("clamp", _) => three(|lo, x, hi| lax::clamp(lo, x, hi)),
        ("clip", _) => {
            let (lo, hi) = (case.param("min").as_f64()?, case.param("max").as_f64());
            match hi {
                Some(hi) => one(move |x| x.clip(lo, hi)),
                None => one(move |x| np::maximum(x, lo)),
            }
        }
        _ => None,
    }
}
