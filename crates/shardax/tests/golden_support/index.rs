//! Reading and writing at computed positions.

use shardax::array::IndexItem;
use shardax::lax::{GatherDimensionNumbers, GatherScatterMode, gather};
use shardax::prelude::*;

use super::{Case, Fun, many, one, three, two};

fn mode(case: &Case) -> GatherScatterMode {
    match case.text("mode") {
        "clip" => GatherScatterMode::Clip,
        _ => GatherScatterMode::FillOrDrop,
    }
}

/// Selects the constant positions `places` of an array.
fn at_places(case: &Case) -> impl Fn(&Array) -> shardax::At + 'static {
    let (places, is_unique) = (case.axes("places"), case.flag("unique"));
    move |x| {
        let target = x.at(array(places.clone()));
        if is_unique { target.unique_indices() } else { target }
    }
}

pub fn function(case: &Case) -> Option<Fun> {
    let indexed = case.text("mode").to_owned();
    let mode = mode(case);
    let axis = case.param("axis").as_i64().map(|a| a as i32);
    fn usizes(name: &str, case: &Case) -> Vec<usize> {
        case.ints(name).into_iter().map(|i| i as usize).collect()
    }
    match (case.op.as_str(), case.doc()) {
        // The remainder is taken before.
        ("take", _) if indexed == "wrap" => two(move |x, i| {
            let axis = axis.unwrap_or(0);
            x.take(i % x.shape()[axis as usize], axis)
        }),
        ("take", _) => two(move |x, i| match axis {
            Some(axis) => {
                // JAX's `take` with mode "clip" clamps negative indices to 0, too.
                let clip = mode == GatherScatterMode::Clip;
                x.take_mode(if clip { maximum(i, 0) } else { i.clone() }, axis, mode)
            }
            None => x.take_mode(i, .., mode),
        }),
        ("take_along_axis", doc) if doc.starts_with("take_along_axis") => {
            two(|x, i| x.take_along_axis(&i.expand_dims(-1), -1))
        }
        ("take_along_axis", _) => two(move |x, i| x.take_along_axis(i, axis.unwrap_or(0))),
        ("getitem", "x[:, i]") => two(|x, i| x.get((.., i))),
        ("getitem", "x[i, j]") => three(|x, i, j| x.get((i, j))),
        ("getitem", "x[i[:, None], j]") => three(|x, i, j| x.get((i.get((.., NewAxis)), j))),
        ("getitem", "x[i, ..., 1:]") => two(|x, i| x.get((i, Ellipsis, 1..))),
        ("getitem", doc) if doc.starts_with("x[i, :, j]") => three(|x, i, j| x.get((i, .., j))),
        ("getitem", doc) if doc.starts_with("x[i]") => two(|x, i| x.get(i)),
        ("gather", _) => {
            let dims = GatherDimensionNumbers {
                offset_dims: usizes("offset_dims", case),
                collapsed_slice_dims: usizes("collapsed_slice_dims", case),
                start_index_map: usizes("start_index_map", case),
                ..GatherDimensionNumbers::default()
            };
            let sizes = usizes("slice_sizes", case);
            two(move |x, i| gather(x, i, dims.clone(), &sizes, mode))
        }
        ("at_get", _) => two(|x, i| x.at(i).fill_value(-1).get()),
        ("bincount", _) => {
            let length = case.int("length") as usize;
            one(move |i| shardax::numpy::bincount(i, length))
        }
        ("at_divide", _) => {
            let place = at_places(case);
            two(move |x, v| place(x).divide(v))
        }
        ("at_power", _) => {
            let place = at_places(case);
            two(move |x, v| place(x).power(v))
        }
        ("at_apply", _) => one(|x| x.at(&array([2, 0])).apply(|x| x.sin())),
        (op, doc) => {
            let op = op.strip_prefix("at_")?.to_owned();
            let unique = op == "multiply";
            let update = move |x: &Array, index: Vec<IndexItem>, u: Array| {
                let place = if indexed.is_empty() { x.at(index) } else { x.at(index).mode(mode) };
                let place = if unique { place.unique_indices() } else { place };
                match op.as_str() {
                    "set" => place.set(u),
                    "add" => place.add(u),
                    "multiply" => place.multiply(u),
                    "min" => place.min(u),
                    _ => place.max(u),
                }
            };
            if doc.starts_with("x.at[1, 2]") {
                return one(move |x| update(x, s![1, 2], Array::from(7)));
            }
            if doc.starts_with("x.at[1:3, ::2]") {
                return two(move |x, u| update(x, s![1..3, ..; 2], u.clone()));
            }
            if doc.starts_with("zeros") {
                return two(move |u, i| update(&zeros([3, 2]), s![i], u.clone()));
            }
            if doc.starts_with("x.at[i, j]") {
                return many(move |a| Ok(vec![update(&a[0], s![&a[1], &a[2]], a[3].clone())]));
            }
            if doc.starts_with("x.at[:, i]") {
                return three(move |x, i, u| update(x, s![.., i], u.clone()));
            }
            three(move |x, i, u| update(x, s![i], u.clone()))
        }
    }
}
