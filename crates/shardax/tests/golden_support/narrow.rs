//! Elements of 8 bits and fewer.

use serde_json::Value;
use shardax::lax::DotOptions;
use shardax::nn::{BlockScaleConfig, scaled_dot_general, scaled_matmul};
use shardax::prelude::*;

use super::{Case, Fun, convert, many};

pub fn function(case: &Case) -> Option<Fun> {
    let to = case.dtype("to");
    match case.op.as_str() {
        "operations" => {
            let names: Vec<String> =
                case.param("functions").as_array()?.iter().filter_map(Value::as_str).map(str::to_owned).collect();
            many(move |xs| {
                let result_of =
                    |name: &String| operation(name, &xs[0], &xs[1]).unwrap_or_else(|| panic!("operation {name}"));
                Ok(names.iter().map(result_of).collect())
            })
        }
        "dot" => many(move |xs| Ok(vec![DotOptions::new().preferred_element_type(to).dot(&xs[0], &xs[1])])),
        "scaled_matmul" => many(|xs| Ok(vec![scaled_matmul(&xs[0], &xs[1], &xs[2], &xs[3], None)])),
        "scaled_dot_general" => {
            let make = if case.text("mode") == "mxfp8" { BlockScaleConfig::mxfp8 } else { BlockScaleConfig::nvfp4 };
            many(move |xs| {
                let configs = Some([make(), make(), make()]);
                Ok(vec![scaled_dot_general(&xs[0], &xs[1], (&[2], &[0]), (&[], &[]), to, configs)])
            })
        }
        _ => convert::function(case),
    }
}

fn operation(name: &str, x: &Array, y: &Array) -> Option<Array> {
    // Operations that types of 8 and fewer bits support.
    Some(match name {
        "add" => x + y,
        "subtract" => x - y,
        "multiply" => x * y,
        "maximum" => x.maximum(y),
        "less" => x.less(y),
        "equal" => x.equal(y),
        "concatenate" => concatenate(&[x.clone(), y.clone()], 0),
        "where" => where_(x.greater(y), x, y),
        "transpose" => x.t(),
        "max" => x.max(..),
        "min_0" => x.min(0),
        "sort" => x.sort(-1),
        "cumsum" => x.cumsum(0),
        "get" => x.get((1, array([3, 0]))),
        "at_set" => x.at(0).set(y.get(1)),
        "plus_one" => x + 1,
        "dot_t" => x.matmul(y.t()),
        "negative" => -x,
        "divide" => x / (y * y + 1),
        "sum" => x.sum(..),
        "mean" => x.mean(0),
        "abs" => x.abs(),
        "exp" => x.exp(),
        "tanh" => x.tanh(),
        "sqrt" => (x * x).sqrt(),
        "floor" => x.floor(),
        "isnan" => x.isnan(),
        _ => return None,
    })
}
