//! Contractions.

use shardax::lax::{self, DotOptions, Precision, RaggedDotDimensionNumbers};
use shardax::numpy as np;
use shardax::prelude::*;

use super::read::ints;
use super::{Case, Fun, many, three, two};

pub fn function(case: &Case) -> Option<Fun> {
    // A case without these parameters uses the defaults.
    let precision = Precision::from_name(case.text("precision")).ok();
    let options = DotOptions::new().precision(precision).preferred_element_type(case.dtype("preferred"));
    match case.op.as_str() {
        "dot_general" => {
            fn pair(name: &str, case: &Case) -> (Vec<usize>, Vec<usize>) {
                fn dimensions(i: usize, case: &Case, name: &str) -> Vec<usize> {
                    ints(&case.param(name)[i]).iter().map(|&d| d as usize).collect::<Vec<_>>()
                }
                (dimensions(0, case, name), dimensions(1, case, name))
            }
            let (contract, batch, preferred) =
                (pair("contracting", case), pair("batch", case), case.dtype("preferred"));
            two(move |x, y| lax::dot_general(x, y, (&contract.0, &contract.1), (&batch.0, &batch.1), preferred))
        }
        "ragged_dot_general" => {
            let dims = |name: &str, i: usize| -> Vec<usize> {
                ints(&case.param(name)[i]).iter().map(|&d| d as usize).collect()
            };
            let dims = RaggedDotDimensionNumbers {
                lhs_contracting: dims("contracting", 0),
                rhs_contracting: dims("contracting", 1),
                lhs_batch: dims("batch", 0),
                rhs_batch: dims("batch", 1),
                lhs_ragged_dimension: case.int("ragged") as usize,
                rhs_group_dimension: case.ints("group").first().map(|&d| d as usize),
            };
            three(move |x, y, sizes| lax::ragged_dot_general(x, y, sizes, &dims))
        }
        "dot" if precision.is_some() => two(move |x, y| options.dot(x, y)),
        "dot" => two(|x, y| np::dot(x, y)),
        "matmul" if precision.is_some() => two(move |x, y| options.matmul(x, y)),
        "matmul" => two(|x, y| np::matmul(x, y)),
        "outer" => two(|x, y| np::outer(x, y)),
        "inner" if precision.is_some() => two(move |x, y| options.inner(x, y)),
        "inner" => two(|x, y| np::inner(x, y)),
        "vdot" if precision.is_some() => two(move |x, y| options.vdot(x, y)),
        "vdot" => two(|x, y| np::vdot(x, y)),
        "tensordot" => {
            let axes = case.int("axes") as usize;
            two(move |x, y| match precision {
                Some(_) => options.tensordot(x, y, axes),
                None => np::tensordot(x, y, axes),
            })
        }
        "einsum" => {
            let spec = case.text("spec").to_owned();
            many(move |xs| {
                let xs: Vec<&Array> = xs.iter().collect();
                Ok(vec![if precision.is_some() { options.einsum(&spec, &xs) } else { np::einsum(&spec, &xs) }])
            })
        }
        _ => None,
    }
}
