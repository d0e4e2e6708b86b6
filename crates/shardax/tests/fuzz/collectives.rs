//! Collectives as steps of random programs.

use serde_json::Value;
use shardax::prelude::*;
use shardax::shape::AxisName;
use shardax::sharding::DimSpec;

use crate::golden_support::read::ints;
use crate::golden_support::{Case, Fun, one};

/// The spec of lists of axes, one for each dimension.
pub fn spec_of(dims: &Value) -> PartitionSpec {
    fn split(names: &Value) -> DimSpec {
        DimSpec::Axes(names.as_array().into_iter().flatten().filter_map(|n| n.as_str()).map(AxisName::new).collect())
    }
    PartitionSpec::new(dims.as_array().into_iter().flatten().map(split).collect::<Vec<_>>())
}

pub fn function(case: &Case) -> Option<Fun> {
    if case.op == "reshard" {
        let spec = spec_of(case.param("spec"));
        return one(move |x| reshard(x.clone(), &spec));
    }
    // Cases name one axis or a list of axes.
    let axes: Vec<AxisName> = match case.param("axis") {
        Value::String(name) => vec![AxisName::new(name)],
        names => names.as_array()?.iter().filter_map(Value::as_str).map(AxisName::new).collect(),
    };
    let dim = case.param("dim").as_i64().unwrap_or(0) as i32;
    match case.op.as_str() {
        "psum" => one(move |x| psum(x.clone(), axes.as_slice())),
        "pmean" => one(move |x| pmean(x.clone(), axes.as_slice())),
        "pmax" => one(move |x| pmax(x.clone(), axes.as_slice())),
        "pmin" => one(move |x| pmin(x.clone(), axes.as_slice())),
        "axis_index" => one(move |_| axis_index(axes.as_slice())),
        "all_gather" => one(move |x| all_gather(x.clone(), axes.as_slice(), dim)),
        "all_gather_tiled" => one(move |x| all_gather_tiled(x.clone(), axes.as_slice(), dim)),
        "psum_scatter_tiled" => one(move |x| psum_scatter_tiled(x.clone(), axes.as_slice(), dim)),
        "all_to_all_tiled" => {
            let (split, concat) = (case.axis("split"), case.axis("concat"));
            one(move |x| all_to_all_tiled(x.clone(), axes.as_slice(), split, concat))
        }
        "ppermute" => {
            let pairs: Vec<(usize, usize)> =
                case.param("perm").as_array()?.iter().map(|p| (ints(p)[0] as usize, ints(p)[1] as usize)).collect();
            one(move |x| ppermute(x.clone(), axes.as_slice(), &pairs))
        }
        _ => None,
    }
}
