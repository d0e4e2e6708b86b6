//! Moving elements about.

use shardax::array::{Ellipsis, NewAxis, Slice};
use shardax::prelude::*;
use shardax::{lax, numpy as np};

use super::read::ints;
use super::{Case, Fun, many, one, two};

pub fn function(case: &Case) -> Option<Fun> {
    // A list of sizes among the parameters.
    fn sizes(name: &str, case: &Case) -> Vec<usize> {
        case.ints(name).into_iter().map(|d| d as usize).collect::<Vec<_>>()
    }
    match case.op.as_str() {
        "reshape" => {
            let shape = case.ints("shape");
            one(move |x| x.reshape(shape.as_slice()))
        }
        "ravel_f32" => one(|x| x.ravel()),
        "transpose" => {
            let permutation = case.axes("permutation");
            one(move |x| x.transpose(&permutation))
        }
        "swapaxes_f32" => {
            let (a, b) = (case.axis("axis1"), case.axis("axis2"));
            one(move |x| x.swapaxes(a, b))
        }
        "moveaxis_f32" => {
            let (a, b) = (case.axis("source"), case.axis("destination"));
            one(move |x| x.moveaxis(a, b))
        }
        "broadcast_in_dim" => {
            let (shape, dims) = (sizes("shape", case), sizes("dims", case));
            one(move |x| lax::broadcast_in_dim(x, &shape, &dims))
        }
        "broadcast_to_f32" => {
            let shape = case.ints("shape");
            one(move |x| x.broadcast_to(shape.as_slice()))
        }
        "squeeze_f32" => one(|x| x.squeeze(..)),
        "squeeze" => {
            let axes = case.axes("axes");
            one(move |x| x.squeeze(axes.as_slice()))
        }
        "expand_dims_f32" => {
            let axes = case.axes("axes");
            one(move |x| x.expand_dims(axes.as_slice()))
        }
        "slice" => {
            let (start, limit) = (sizes("start", case), sizes("limit", case));
            let strides = (!case.param("strides").is_null()).then(|| sizes("strides", case));
            one(move |x| lax::slice(x, &start, &limit, strides.as_deref()))
        }
        "slice_in_dim_f32" => one(|x| x.get((.., Slice::new(1, -1, 2)))),
        "getitem" => getitem(case),
        "dynamic_slice" => {
            let sizes = sizes("sizes", case);
            many(move |xs| Ok(vec![lax::dynamic_slice(&xs[0], &xs[1..], &sizes)]))
        }
        "dynamic_update_slice" => many(|xs| Ok(vec![lax::dynamic_update_slice(&xs[0], &xs[1], &xs[2..])])),
        "dynamic_index_in_dim" => {
            let axis = case.axis("axis");
            two(move |x, i| lax::dynamic_index_in_dim(x, i, axis).squeeze(axis))
        }
        "dynamic_update_index_in_dim" => {
            let axis = case.axis("axis");
            many(move |xs| Ok(vec![lax::dynamic_update_index_in_dim(&xs[0], &xs[1], &xs[2], axis)]))
        }
        "pad" => pad(case),
        "concatenate" => {
            let axis = case.axis("axis");
            many(move |xs| Ok(vec![np::concatenate(xs, axis)]))
        }
        "stack" => {
            let axis = case.axis("axis");
            many(move |xs| Ok(vec![np::stack(xs, axis)]))
        }
        "split" => {
            let (axis, parts, places) = (case.axis("axis"), case.param("sections").as_u64(), sizes("indices", case));
            many(move |xs| match parts {
                Some(parts) => xs[0].split(parts as usize, axis),
                None => xs[0].split_at(&places, axis),
            })
        }
        "rev_f32" => {
            let axes = sizes("axes", case);
            one(move |x| lax::rev(x, &axes))
        }
        "flip_f32" => {
            let axis = case.axis("axis");
            one(move |x| x.flip(axis))
        }
        "roll_f32" => {
            let (shift, axis) = (case.int("shift"), case.axis("axis"));
            one(move |x| x.roll(shift, axis))
        }
        "roll" => match (case.param("shift").as_i64(), case.ints("shift"), case.axes("axis")) {
            (Some(shift), ..) => one(move |x| x.roll(shift, ..)),
            (None, shifts, axes) => {
                one(move |x| shifts.iter().zip(&axes).fold(x.clone(), |x, (&shift, &axis)| x.roll(shift, axis)))
            }
        },
        "tile_f32" => {
            let reps = sizes("reps", case);
            one(move |x| np::tile(x, &reps))
        }
        "repeat_f32" => {
            let (repeats, axis) = (case.int("repeats") as usize, case.axis("axis"));
            one(move |x| np::repeat(x, repeats, axis))
        }
        "tril_f32" => one(|x| x.tril(0)),
        "triu" => {
            let k = case.axis("k");
            one(move |x| x.triu(k))
        }
        "diagonal_f32" => one(|x| x.diagonal(0, 0, 1)),
        "diag_f32" => one(|x| np::diag(x, 0)),
        "trace_f32" => one(|x| x.trace()),
        "meshgrid" => many(|xs| Ok(np::meshgrid(xs))),
        _ => creation(case),
    }
}

/// Indices are written only in `doc`.
fn getitem(case: &Case) -> Option<Fun> {
    match case.name.strip_prefix("getitem_f32_")? {
        "negative_step" => one(|x| x.get(Slice::new(None, None, -1))),
        "negative_bounds" => one(|x| x.get(-3..-1)),
        "step_minus_2" => one(|x| x.get((.., Slice::new(4, 0, -2)))),
        "integer" => one(|x| x.get(1)),
        "negative_integer" => one(|x| x.get((-1, .., NewAxis))),
        "ellipsis" => one(|x| x.get((Ellipsis, 0))),
        "beyond_the_end" => one(|x| x.get(2..100)),
        _ => None,
    }
}

fn pad(case: &Case) -> Option<Fun> {
    fn rows(name: &str, case: &Case) -> Vec<Vec<i64>> {
        case.param(name).as_array().into_iter().flatten().map(ints).collect()
    }
    let mode = match case.text("mode") {
        "edge" => np::PadMode::Edge,
        "reflect" => np::PadMode::Reflect,
        "wrap" => np::PadMode::Wrap,
        _ => {
            let config: Vec<_> = rows("config", case).iter().map(|c| (c[0], c[1], c[2])).collect();
            return two(move |x, v| lax::pad(x, v, &config));
        }
    };
    let widths: Vec<_> = rows("widths", case).iter().map(|w| (w[0] as usize, w[1] as usize)).collect();
    one(move |x| np::pad(x, &widths, mode))
}

/// Arrays out of nothing.
fn creation(case: &Case) -> Option<Fun> {
    fn number(name: &str, case: &Case) -> f64 {
        case.param(name).as_f64().unwrap_or_default()
    }
    // These functions have no operands, so they are compared as constants.
    let function: Box<dyn Fn() -> Array> = match case.op.as_str() {
        "iota" => {
            let (dtype, shape, axis) = (case.dtype("dtype")?, case.ints("shape"), case.int("axis") as usize);
            Box::new(move || lax::broadcasted_iota(dtype, shape.as_slice(), axis))
        }
        "arange" => {
            let numbers: Vec<f64> = case.param("arguments").as_array()?.iter().filter_map(|n| n.as_f64()).collect();
            match (numbers.as_slice(), case.name.as_str()) {
                (&[end], "arange_u8") => Box::new(move || np::arange(0..end as u8)),
                (&[start, end, step], "arange_f32") => {
                    Box::new(move || np::arange_step(start as f32..end as f32, step))
                }
                (&[start, end], _) => Box::new(move || np::arange(start as i32..end as i32)),
                (&[start, end, step], _) => Box::new(move || np::arange_step(start as i32..end as i32, step)),
                _ => return None,
            }
        }
        "linspace" => {
            let (start, stop, num) = (number("start", case), number("stop", case), case.int("num") as usize);
            if case.flag("endpoint") {
                Box::new(move || np::linspace(start, stop, num))
            } else {
                Box::new(move || np::linspace(start, stop, num + 1).get(..-1))
            }
        }
        "eye" => {
            let (rows, columns, k) = (case.int("rows") as usize, case.int("columns") as usize, case.axis("k"));
            Box::new(move || np::eye_offset(rows, columns, k))
        }
        _ => return None,
    };
    many(move |_| Ok(vec![function()]))
}
