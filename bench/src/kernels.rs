//! Times of the CPU kernels and of XLA for single operations: `backend/cpu/kernels/limits.rs` says from which size on the
//! kernels are used.

use std::process::{Command, Stdio};

use shardax::prelude::*;
use shardax::{Error, ErrorKind};

use crate::clock::{Timing, measure};
use crate::data::uniform;

const ROUNDS: usize = 3;

#[derive(Clone, Copy)]
enum Pass {
    Forward,
    Input,
    Filter,
}

enum Operation {
    /// Batch, rows, columns, contracted elements; whether the left and the right operand are transposed.
    Matmul([usize; 4], [bool; 2], DType),
    /// Images, their height and width, input and output features, the kernel's height and width, stride, groups.
    Conv([usize; 7], Pass),
}

use Operation::{Conv, Matmul};
use Pass::{Filter, Forward, Input};

const N: [bool; 2] = [false, false];
const TA: [bool; 2] = [true, false];
const TB: [bool; 2] = [false, true];

const OPERATIONS: &[Operation] = &[
    Matmul([1, 512, 1024, 784], N, DType::F32),
    Matmul([1, 512, 1024, 1024], TB, DType::F32),
    Matmul([1, 784, 1024, 512], TA, DType::F32),
    Matmul([1, 64, 1024, 784], N, DType::F32),
    Matmul([1, 64, 1024, 1024], TB, DType::F32),
    Matmul([1, 1024, 1024, 64], TA, DType::F32),
    Matmul([1, 64, 512, 512], N, DType::F32),
    Matmul([1, 2048, 1024, 256], N, DType::F32),
    Matmul([1, 2048, 256, 1024], N, DType::F32),
    Matmul([1, 256, 1024, 2048], TA, DType::F32),
    Matmul([1, 2048, 2048, 2048], N, DType::F32),
    Matmul([64, 256, 256, 32], TB, DType::F32),
    Matmul([64, 256, 32, 256], N, DType::F32),
    Matmul([64, 256, 32, 256], TA, DType::F32),
    Matmul([1, 512, 16, 512], N, DType::F32),
    Matmul([1, 16, 512, 512], N, DType::F32),
    Matmul([1, 8, 1024, 1024], N, DType::F32),
    Matmul([1, 128, 128, 64], N, DType::F32),
    Matmul([1, 128, 128, 128], TA, DType::F32),
    Matmul([1, 1024, 1024, 1024], N, DType::F64),
    Matmul([1, 1024, 1024, 1024], N, DType::Bf16),
    Matmul([1, 1024, 1024, 1024], TA, DType::Bf16),
    Matmul([1, 1024, 1024, 1024], TB, DType::Bf16),
    Matmul([1, 2048, 2048, 2048], N, DType::Bf16),
    Matmul([1, 512, 1024, 1024], N, DType::Bf16),
    Matmul([1, 16, 1024, 1024], N, DType::Bf16),
    Matmul([32, 256, 256, 64], TB, DType::Bf16),
    Matmul([32, 256, 64, 256], N, DType::Bf16),
    Matmul([1, 128, 128, 128], N, DType::Bf16),
    Matmul([1, 64, 64, 64], N, DType::Bf16),
    Matmul([1000, 16, 16, 16], N, DType::Bf16),
    Matmul([1, 1024, 1024, 1024], N, DType::F16),
    Matmul([1, 1024, 1024, 1024], TB, DType::F16),
    Matmul([1, 128, 128, 128], N, DType::F16),
    Matmul([1, 512, 512, 512], N, DType::I8),
    Matmul([1, 1024, 1024, 1024], N, DType::I8),
    Matmul([1, 512, 512, 512], TA, DType::I8),
    Matmul([1, 512, 512, 512], TB, DType::I8),
    Matmul([1, 2048, 2048, 2048], N, DType::I8),
    Matmul([32, 256, 256, 64], TB, DType::I8),
    Matmul([1, 64, 64, 64], N, DType::I8),
    Matmul([1, 16, 16, 16], N, DType::I8),
    Matmul([1000, 16, 16, 16], N, DType::I8),
    Matmul([1, 1, 1024, 1024], N, DType::I8),
    Conv([32, 32, 64, 64, 3, 1, 1], Forward),
    Conv([32, 32, 64, 64, 3, 1, 1], Input),
    Conv([32, 32, 64, 64, 3, 1, 1], Filter),
    Conv([32, 16, 128, 128, 3, 1, 1], Forward),
    Conv([32, 16, 128, 128, 3, 1, 1], Filter),
    Conv([32, 8, 256, 256, 3, 1, 1], Forward),
    Conv([32, 8, 256, 256, 3, 1, 1], Filter),
    Conv([32, 4, 512, 512, 3, 1, 1], Forward),
    Conv([32, 4, 512, 512, 3, 1, 1], Filter),
    Conv([32, 32, 64, 128, 3, 2, 1], Forward),
    Conv([32, 32, 64, 128, 3, 2, 1], Input),
    Conv([32, 32, 64, 128, 3, 2, 1], Filter),
    Conv([32, 32, 64, 128, 1, 2, 1], Forward),
    Conv([32, 32, 64, 128, 1, 2, 1], Filter),
    Conv([32, 32, 64, 64, 1, 1, 1], Forward),
    Conv([32, 32, 64, 64, 1, 1, 1], Filter),
    Conv([128, 32, 3, 32, 3, 1, 1], Forward),
    Conv([128, 32, 3, 32, 3, 1, 1], Filter),
    Conv([16, 16, 32, 64, 3, 1, 1], Forward),
    Conv([16, 16, 32, 64, 3, 1, 1], Filter),
    Conv([2, 8, 16, 16, 3, 1, 1], Forward),
    Conv([2, 8, 16, 16, 3, 1, 1], Filter),
    Conv([32, 32, 64, 64, 3, 1, 64], Forward),
    Conv([32, 32, 64, 64, 3, 1, 64], Input),
    Conv([32, 32, 64, 64, 3, 1, 64], Filter),
    Conv([32, 16, 64, 64, 3, 1, 4], Forward),
];

impl Operation {
    fn name(&self) -> String {
        match self {
            Matmul([batch, m, n, k], [ta, tb], dtype) => {
                let lhs_transposed = if *ta { " left transposed" } else { "" };
                let right = if *tb { " right transposed" } else { "" };
                let batch = if *batch > 1 { format!("{batch} × ") } else { String::new() };
                format!("matmul {batch}{m} × {n} × {k} {dtype}{lhs_transposed}{right}")
            }
            Conv([images, size, inputs, outputs, kernel, stride, groups], pass) => {
                let pass = match pass {
                    Forward => "forward",
                    Input => "input gradient",
                    Filter => "filter gradient",
                };
                format!("{pass} {images} × {size}², {inputs} → {outputs}, {kernel}×{kernel} /{stride}, groups {groups}")
            }
        }
    }

    fn measure(&self) -> Result<Timing> {
        match *self {
            Matmul([batch, m, n, k], [ta, tb], dtype) => {
                let is_int8 = dtype == DType::I8;
                let scale = if is_int8 { 100.0 } else { 1.0 };
                let x = (uniform(&operand_shape(batch, ta, m, k), 0)? * scale).astype(dtype);
                let y = (uniform(&operand_shape(batch, tb, k, n), 1)? * scale).astype(dtype);
                let contract = ([if ta { 1 } else { 2 }], [if tb { 2 } else { 1 }]);
                let f = jit(move |x: Array, y: Array| {
                    lax::dot_general(&x, &y, (&contract.0, &contract.1), (&[0], &[0]), is_int8.then_some(DType::I32))
                });
                measure(|| block_until_ready(f.call((&x, &y))?))
            }
            Conv([images, size, inputs, outputs, kernel, stride, groups], pass) => {
                let x = uniform(&[images, size, size, inputs], 0)?;
                let w = uniform(&[kernel, kernel, inputs / groups, outputs], 1)?;
                let options = lax::ConvOptions::new().channels_last(2).feature_group_count(groups);
                let f = move |x: Array, w: Array| {
                    lax::conv_general_dilated(x, w, [stride, stride], lax::Padding::Same, options.clone())
                };
                let side = size.div_ceil(stride);
                let ct = uniform(&[images, side, side, outputs], 2)?;
                let loss = move |x: Array, w: Array, ct: Array| (f(x, w) * ct).sum(..);
                match pass {
                    Forward => {
                        // The convolution's value is the gradient with respect to its weights.
                        let f = jit(grad(loss).argnums(Arg::<2>));
                        measure(|| block_until_ready(f.call((&x, &w, &ct))?))
                    }
                    Input => {
                        let f = jit(grad(loss).argnums(Arg::<0>));
                        measure(|| block_until_ready(f.call((&x, &w, &ct))?))
                    }
                    Filter => {
                        let f = jit(grad(loss).argnums(Arg::<1>));
                        measure(|| block_until_ready(f.call((&x, &w, &ct))?))
                    }
                }
            }
        }
    }
}

/// The shape of an operand of a matmul, which has its columns first if it is transposed.
fn operand_shape(batch: usize, is_transposed: bool, rows: usize, columns: usize) -> [usize; 3] {
    if is_transposed { [batch, columns, rows] } else { [batch, rows, columns] }
}

/// Prints the time of one operation in µs.
pub fn child(number: usize) -> Result<()> {
    let operation = OPERATIONS.get(number).ok_or_else(|| failed("there is no such operation"))?;
    println!("{}", operation.measure()?.median_us);
    Ok(())
}

/// Prints a table: each operation by XLA and by the kernels, medians of interleaved rounds.
pub fn run(filter: &str) -> Result<()> {
    println!("| operation | XLA ms | kernels ms | kernels / XLA |\n|---|--:|--:|--:|");
    for (number, operation) in OPERATIONS.iter().enumerate().filter(|(_, op)| op.name().contains(filter)) {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            for (way, times) in ["xla", "all"].iter().zip(&mut times) {
                times.push(spawn(number, way)? / 1e3);
            }
        }
        let [xla, kernels] = times.map(|times| Timing::of(times).median_us);
        println!("| {} | {xla:.2} | {kernels:.2} | {:.2} |", operation.name(), kernels / xla);
    }
    Ok(())
}

fn spawn(number: usize, way: &str) -> Result<f64> {
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.arg("--kernel").arg(number.to_string()).env("SHARDAX_CPU_KERNELS", way).stderr(Stdio::inherit());
    let text = String::from_utf8(command.output().map_err(failed)?.stdout).map_err(failed)?;
    text.trim().parse().map_err(failed)
}

fn failed(why: impl ToString) -> Error {
    Error::new(ErrorKind::Runtime, why.to_string())
}
