//! `--census`: the time of each function in several ways and at three sizes, next to the same expression in JAX
//! (`bench/census.py`).

mod rows;
mod ways;

use std::collections::HashSet;
use std::fs::{File, OpenOptions, create_dir_all, read_to_string};
use std::io::Write;
use std::path::Path;

use shardax::prelude::*;

use crate::clock::{Timing, measure_for, now};
use crate::data::uniform;
use ways::Way;

/// The arrays that a function is called with. Elements are uniform from -1 to 1 if not stated otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A vector.
    Line,
    /// A vector of numbers from 0.1 to 1.9.
    Positive,
    /// Two vectors.
    Lines,
    /// A vector of integers from 0 to 999.
    Integers,
    /// A matrix.
    Matrix,
    /// Two square matrices, small enough to multiply.
    Product,
    /// Two square matrices of bfloat16.
    Product16,
    /// Two square matrices of int8.
    Product8,
    /// A square matrix, small enough to decompose.
    Square,
    /// A symmetric, positive definite matrix.
    Definite,
    /// A square matrix and a vector.
    System,
    /// A batch of small square matrices.
    Batch,
    /// A batch of small symmetric, positive definite matrices.
    DefiniteBatch,
    /// Channels-last images, and filters of 3 × 3.
    Images,
    /// A batch of sequences of features, and a square matrix of weights.
    Sequences,
    /// A key.
    Key,
}

/// A function in shardax, and as a Python expression of `x` and `y`.
pub struct Row {
    pub expression: &'static str,
    pub kind: Kind,
    pub function: fn(&[Array]) -> Array,
}

/// The sizes: tiny, one that fits a core's cache, and 100 MB.
pub const SIZES: [&str; 3] = ["tiny", "cached", "large"];

/// The elements of vectors, and the sides of matrices, products, decompositions, and of small matrices with their batch, by size.
const LINES: [usize; 3] = [64, 1 << 15, 25_000_000];
const MATRICES: [usize; 3] = [8, 181, 5000];
const PRODUCTS: [usize; 3] = [8, 128, 1024];
const SQUARES: [usize; 3] = [4, 48, 256];
const BATCHES: [[usize; 2]; 3] = [[4, 3], [500, 8], [2500, 16]];
/// The number of images, their side, and their channels.
const IMAGES: [[usize; 3]; 3] = [[1, 8, 4], [8, 16, 16], [32, 64, 64]];
/// The number of sequences, their length, and their features.
const SEQUENCES: [[usize; 3]; 3] = [[1, 4, 8], [4, 64, 64], [8, 512, 256]];

/// A batch of positive definite matrices.
fn definite(shape: &[usize]) -> Result<Array> {
    let x = uniform(shape, 0)?;
    Ok(x.matmul(x.mt()) + eye(shape[shape.len() - 1]))
}

/// Two matrices of this dtype. Integers need a scale, because random numbers are below 1.
fn factors(shape: [usize; 2], dtype: DType, scale: f32) -> Result<Vec<Array>> {
    (0..2).map(|seed| Ok((uniform(&shape, seed)? * scale).astype(dtype))).collect()
}

impl Kind {
    fn arrays(self, size: usize) -> Result<Vec<Array>> {
        // Elements are small enough that no operation overflows, and differ, so that nothing is computed at compile time.
        let (line, matrix) = ([LINES[size]], [MATRICES[size]; 2]);
        let (product, square, [count, side]) = ([PRODUCTS[size]; 2], [SQUARES[size]; 2], BATCHES[size]);

        Ok(match self {
            Kind::Line => vec![uniform(&line, 0)?],
            Kind::Positive => vec![uniform(&line, 0)? * 0.9 + 1.0],
            Kind::Lines => vec![uniform(&line, 0)?, uniform(&line, 1)?],
            Kind::Integers => vec![(uniform(&line, 0)?.abs() * 1000.0).astype(DType::I32)],
            Kind::Matrix => vec![uniform(&matrix, 0)?],
            Kind::Product => factors(product, DType::F32, 1.0)?,
            Kind::Product16 => factors(product, DType::Bf16, 1.0)?,
            Kind::Product8 => factors(product, DType::I8, 100.0)?,
            Kind::Square => vec![uniform(&square, 0)?],
            Kind::Definite => vec![definite(&square)?],
            Kind::System => vec![uniform(&square, 0)?, uniform(&square[..1], 1)?],
            Kind::Batch => vec![uniform(&[count, side, side], 0)?],
            Kind::DefiniteBatch => vec![definite(&[count, side, side])?],
            Kind::Images => {
                let [count, side, channels] = IMAGES[size];
                let filters = uniform(&[3, 3, channels, channels], 1)? * 0.1;
                vec![uniform(&[count, side, side, channels], 0)?, filters]
            }
            Kind::Sequences => {
                let [count, length, features] = SEQUENCES[size];
                vec![uniform(&[count, length, features], 0)?, uniform(&[features; 2], 1)? * 0.1]
            }
            Kind::Key => vec![random::key(0)],
        })
    }
}

/// Measures all rows that the folder's file does not have yet, and adds each to it.
pub fn run(folder: &Path, filter: &str) -> std::result::Result<(), Box<dyn std::error::Error>> {
    create_dir_all(folder)?;
    let path = folder.join("shardax.tsv");
    // A row is appended when it has been measured, so that you can interrupt the census and start it again.
    let measured: HashSet<String> = if path.exists() {
        read_to_string(&path)?.lines().map(|line| key(line).to_owned()).collect()
    } else {
        HashSet::new()
    };
    let mut file: File = OpenOptions::new().create(true).append(true).open(&path)?;
    for row in rows::rows().iter().filter(|row| row.expression.contains(filter)) {
        for (way, size) in Way::of(row.kind) {
            let name = format!("{}\t{:?}\t{}\t{}", row.expression, row.kind, way.name(), SIZES[size]);
            if measured.contains(&name) {
                continue;
            }
            let times = match measure_row(row, way, size) {
                Ok((first_us, timing)) => format!("{:.2}\t{first_us:.0}", timing.median_us),
                // A function that fails is a row too, because the table would not show otherwise that it is missing.
                Err(error) => format!("error: {}", error.to_string().replace(['\n', '\t'], " ")),
            };
            writeln!(file, "{name}\t{times}")?;
            eprintln!("{name}\t{times}");
        }
    }
    Ok(())
}

/// The expression, the kind, the way and the size of a line.
fn key(line: &str) -> &str {
    let end = line.match_indices('\t').nth(3).map_or(line.len(), |(at, _)| at);
    &line[..end]
}

/// The time of the first call, and of later ones.
fn measure_row(row: &Row, way: Way, size: usize) -> Result<(f64, Timing)> {
    let arrays = way.converted(row.kind.arrays(size)?);
    block_until_ready(arrays.clone())?;
    let call = way.function(row.function);
    let start = now();
    block_until_ready(call(&arrays)?)?;
    let first_call = now() - start;
    Ok((first_call.as_secs_f64() * 1e6, measure_for(0.1, || block_until_ready(call(&arrays)?))?))
}
