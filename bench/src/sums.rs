//! `--sums`: the error of each operation that adds many elements, next to float64, and its time (`bench/sums.py` has JAX's).

use std::collections::HashSet;
use std::fs::{OpenOptions, create_dir_all, read_to_string};
use std::io::Write;
use std::path::Path;

use shardax::linalg::{NormOrder, norm};
use shardax::nn::softmax;
use shardax::prelude::*;

use crate::clock::measure_for;
use crate::data::images;

type Producer = fn(&Array) -> Array;

/// A reduction of all elements, of the first axis or of the last one.
type Reduction = fn(&Array, &[i32]) -> Array;

const PRODUCERS: [(&str, Producer); 6] = [
    ("none", |x| x.clone()),
    ("square", |x| x.square()),
    ("exp", |x| x.exp()),
    ("where", |x| where_(x.greater(0.25), x, 0)),
    ("matmul", |x| x.reshape([-1, 16]).matmul(full([16, 16], 0.125)).reshape(x.shape())),
    ("cast", |x| x.astype(DType::Bf16).astype(DType::F32)),
];

const REDUCTIONS: [(&str, Reduction); 8] = [
    ("sum", |x, axes| x.sum(axes)),
    ("mean", |x, axes| x.mean(axes)),
    ("var", |x, axes| x.var(axes)),
    ("std", |x, axes| x.std(axes)),
    ("norm", |x, axes| norm(x.reshape([-1, x.shape()[x.ndim() - 1] as isize]), NormOrder::Default, &last(x, axes)[..])),
    ("logsumexp", |x, axes| x.logsumexp(axes)),
    ("softmax", |x, axes| softmax(x, axes)),
    ("dot", |x, axes| if axes.len() == x.ndim() { x.reshape([-1]).dot(x.reshape([-1])) } else { (x * x).sum(axes) }),
];

const SHAPES: [&[usize]; 10] = [
    &[1 << 24],
    &[1 << 26],
    &[4096, 4096],
    &[65536, 256],
    &[16, 1 << 20],
    &[1009, 16656],
    &[256, 256, 256],
    &[64, 64, 64, 64],
    &[16, 16, 32, 32, 64],
    &[48, 7, 7, 48, 7, 48],
];

/// The axes of the rows of a norm: all of a matrix, or its last one.
fn last(x: &Array, axes: &[i32]) -> Vec<i32> {
    if axes.len() == x.ndim() { vec![0, 1] } else { vec![1] }
}

fn axes_of(shape: &[usize]) -> Vec<(&'static str, Vec<i32>)> {
    let rank = shape.len() as i32;
    let mut axes = vec![("all", (0..rank).collect())];
    if rank > 1 {
        axes.extend([("first", vec![0]), ("last", vec![rank - 1])]);
    }
    axes
}

/// Measures all rows that the folder's file does not have yet, and adds each to it.
pub fn run(folder: &Path, filter: &str) -> std::result::Result<(), Box<dyn std::error::Error>> {
    create_dir_all(folder)?;
    let path = folder.join("shardax.tsv");
    let text = if path.exists() { read_to_string(&path)? } else { String::new() };
    let measured: HashSet<String> =
        text.lines().map(|line| line.split('\t').take(4).collect::<Vec<_>>().join("\t")).collect();
    let mut file = OpenOptions::new().create(true).append(true).open(&path)?;
    for shape in SHAPES {
        let x = images(shape);
        for (reduction_name, reduction) in REDUCTIONS {
            for (producer_name, producer) in PRODUCERS {
                for (axes_name, axes) in axes_of(shape) {
                    let name = format!("{reduction_name}\t{producer_name}\t{shape:?}\t{axes_name}");
                    // The norm is of rows, so the first axis would repeat the last one.
                    let is_defined = reduction_name != "norm" || axes_name != "first";
                    if measured.contains(&name) || !name.contains(filter) || !is_defined {
                        continue;
                    }
                    let (error, median_us) = measure_row(&x, producer, reduction, &axes)?;
                    writeln!(file, "{name}\t{error:.2e}\t{median_us:.0}")?;
                    eprintln!("{name}\t{error:.2e}\t{median_us:.0}");
                }
            }
        }
    }
    Ok(())
}

/// The largest error, relative to the result in float64, and the median time in µs.
fn measure_row(x: &Array, producer: Producer, reduction: Reduction, axes: &[i32]) -> Result<(f64, f64)> {
    let (axes, wide_axes) = (axes.to_vec(), axes.to_vec());
    let reduced = jit(move |x: Array| reduction(&producer(&x), &axes));
    let error = jit(move |x: Array, result: Array| {
        let expected = reduction(&producer(&x).astype(DType::F64), &wide_axes);
        ((result.astype(DType::F64) - &expected) / expected).abs().max(..)
    });
    let error = error.call((x, reduced.call(x)?))?.item::<f64>()?;
    let timing = measure_for(0.05, || block_until_ready(reduced.call(x)?))?;
    Ok((error, timing.median_us))
}
