//! Windowed reductions and pooling.

use shardax::lax::{self, Padding, Window};
use shardax::nn::Pool;

use super::conv::{padding, sizes};
use super::{Case, Fun, one};

pub fn function(case: &Case) -> Option<Fun> {
    // The one case with a function as the reduction.
    if case.name == "reduce_window_f32" {
        let window = Window::new([2, 3]).strides([1, 2]).padding(Padding::Same);
        return one(move |x| lax::reduce_window(x, 1.0, |a, b| a * b, window.clone()));
    }
    let size = sizes(case, "window")?;
    let strides = sizes(case, "strides");
    let pads = case.param("padding");
    if case.op == "reduce_window" {
        let mut window = Window::new(size).padding(padding(pads));
        if let Some(s) = strides {
            window = window.strides(s);
        }
        if let Some(d) = sizes(case, "base_dilation") {
            window = window.base_dilation(d);
        }
        if let Some(d) = sizes(case, "window_dilation") {
            window = window.window_dilation(d);
        }
        return match case.text("kind") {
            "max" => one(move |x| lax::reduce_window_max(x, window.clone())),
            "min" => one(move |x| lax::reduce_window_min(x, window.clone())),
            "sum" => one(move |x| lax::reduce_window_sum(x, window.clone())),
            _ => None,
        };
    }
    let mut pool = Pool::new(size);
    if let Some(s) = strides {
        pool = pool.strides(s);
    }
    if !pads.is_null() {
        pool = pool.padding(padding(pads));
    }
    if let Some(count) = case.param("count_include_pad").as_bool() {
        pool = pool.count_include_pad(count);
    }
    match case.op.as_str() {
        "avg_pool" => one(move |x| pool.avg(x)),
        "max_pool" => one(move |x| pool.max(x)),
        _ => None,
    }
}
