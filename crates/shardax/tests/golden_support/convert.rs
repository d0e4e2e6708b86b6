//! Conversions between dtypes.

use serde_json::Value;
use shardax::lax;

use super::{Case, Fun, dtype, many, one};

pub fn function(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "convert" => {
            let targets: Vec<_> =
                case.param("targets").as_array()?.iter().filter_map(Value::as_str).map(dtype).collect();
            many(move |xs| Ok(targets.iter().map(|&t| xs[0].astype(t)).collect()))
        }
        "bitcast_convert_type" => {
            let target = case.dtype("target")?;
            one(move |x| lax::bitcast_convert_type(x, target))
        }
        _ => None,
    }
}
