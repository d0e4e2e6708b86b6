//! Contractions.

use shardax::prelude::*;
use shardax::{lax, numpy as np};

use super::read::ints;
use super::{Case, Fun, many, two};

pub fn function(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "dot_general" => {
            let pair = |name: &str| {
                let of = |i: usize| ints(&case.param(name)[i]).iter().map(|&d| d as usize).collect::<Vec<_>>();
                (of(0), of(1))
            };
            let (contract, batch, preferred) = (pair("contracting"), pair("batch"), case.dtype("preferred"));
            two(move |x, y| lax::dot_general(x, y, (&contract.0, &contract.1), (&batch.0, &batch.1), preferred))
        }
        "dot" => two(|x, y| np::dot(x, y)),
        "matmul" => two(|x, y| np::matmul(x, y)),
        "outer" => two(|x, y| np::outer(x, y)),
        "inner" => two(|x, y| np::inner(x, y)),
        "vdot" => two(|x, y| np::vdot(x, y)),
        "tensordot" => {
            let axes = case.int("axes") as usize;
            two(move |x, y| np::tensordot(x, y, axes))
        }
        "einsum" => {
            let spec = case.text("spec").to_owned();
            many(move |xs| Ok(vec![np::einsum(&spec, &xs.iter().collect::<Vec<&Array>>())]))
        }
        _ => None,
    }
}
