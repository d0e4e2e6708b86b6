//! Convolutions.

use serde_json::Value;
use shardax::lax::{self, ConvOptions, Padding};
use shardax::numpy as np;

use super::{Case, Fun, one, two};

fn pair_of(p: &Value) -> Option<(i64, i64)> {
    Some((p[0].as_i64()?, p[1].as_i64()?))
}

/// A padding among the parameters: `"SAME"`, `"VALID"` or pairs.
pub fn padding(value: &Value) -> Padding {
    match value.as_str() {
        Some("SAME") => Padding::Same,
        Some(_) => Padding::Valid,
        None => Padding::Explicit(value.as_array().into_iter().flatten().filter_map(pair_of).collect()),
    }
}

/// A list of sizes among the parameters; `None` where it has none of this name.
pub fn sizes(case: &Case, name: &str) -> Option<Vec<usize>> {
    case.param(name).as_array().map(|l| l.iter().filter_map(|v| Some(v.as_u64()? as usize)).collect())
}

fn text_of(v: &Value) -> String {
    v.as_str().unwrap_or_default().to_owned()
}

fn options(case: &Case) -> ConvOptions {
    let mut options = ConvOptions::new();
    if let Some([lhs, rhs, out]) = case.param("layout").as_array().map(Vec::as_slice) {
        options = options.dimension_numbers(&text_of(lhs), &text_of(rhs), &text_of(out));
    }
    if let Some(d) = sizes(case, "lhs_dilation") {
        options = options.lhs_dilation(d);
    }
    if let Some(d) = sizes(case, "rhs_dilation") {
        options = options.rhs_dilation(d);
    }
    if let Some(n) = case.param("feature_group_count").as_u64() {
        options = options.feature_group_count(n as usize);
    }
    if let Some(n) = case.param("batch_group_count").as_u64() {
        options = options.batch_group_count(n as usize);
    }
    if let Some(d) = case.dtype("preferred") {
        options = options.preferred_element_type(d);
    }
    options
}

pub fn function(case: &Case) -> Option<Fun> {
    let strides = sizes(case, "strides").unwrap_or_default();
    let pads = padding(case.param("padding"));
    let options = options(case);
    match case.op.as_str() {
        "conv_general_dilated" => {
            two(move |x, k| lax::conv_general_dilated(x, k, &strides, pads.clone(), options.clone()))
        }
        "conv_transpose" => two(move |x, k| lax::conv_transpose(x, k, &strides, pads.clone(), options.clone())),
        "conv_general_dilated_patches" => {
            let filter = sizes(case, "filter")?;
            one(move |x| lax::conv_general_dilated_patches(x, &filter, &strides, pads.clone(), options.clone()))
        }
        "convolve" => two(|x, k| np::convolve(x, k, np::ConvolveMode::Full)),
        _ => None,
    }
}
