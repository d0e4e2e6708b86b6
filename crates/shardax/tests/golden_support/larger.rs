//! Programs of the sizes from which kernels and other forms of operations are used; the reference cases are smaller.

use shardax::lax::{self, ConvOptions, Padding};
use shardax::linalg;
use shardax::nn::{max_pool, softmax};
use shardax::numpy as np;
use shardax::prelude::*;

use super::texts::Sized;

type Types = Vec<(Vec<usize>, DType)>;

fn types<const N: usize>(shapes: [&[usize]; N], dtype: DType) -> Types {
    shapes.iter().map(|shape| (shape.to_vec(), dtype)).collect()
}

/// A convolution with features last.
fn conv(x: &[Array], strides: &[usize], dilation: usize, groups: usize) -> Result<Vec<Array>> {
    let options = ConvOptions::new()
        .dimension_numbers("NHWC", "HWIO", "NHWC")
        .rhs_dilation([dilation, dilation])
        .feature_group_count(groups);
    Ok(vec![lax::conv_general_dilated(&x[0], &x[1], strides, Padding::Same, options)])
}

fn matmul(x: &[Array]) -> Result<Vec<Array>> {
    Ok(vec![np::matmul(&x[0], &x[1])])
}

pub fn programs() -> Vec<Sized> {
    let mut programs: Vec<Sized> = Vec::new();
    // Sizes at which the plugin and this crate's kernels use other code than for small operands.
    for (dtype, names) in [
        (DType::F32, ["matmul_f32", "matvec_f32", "few_rows_f32", "batched_f32", "transposed_f32"]),
        (DType::F64, ["matmul_f64", "matvec_f64", "few_rows_f64", "batched_f64", "transposed_f64"]),
        (DType::Bf16, ["matmul_bf16", "matvec_bf16", "few_rows_bf16", "batched_bf16", "transposed_bf16"]),
        (DType::F16, ["matmul_f16", "matvec_f16", "few_rows_f16", "batched_f16", "transposed_f16"]),
        (DType::I8, ["matmul_i8", "matvec_i8", "few_rows_i8", "batched_i8", "transposed_i8"]),
        (DType::F8E4M3Fn, ["matmul_f8", "matvec_f8", "few_rows_f8", "batched_f8", "transposed_f8"]),
        (DType::Complex64, ["matmul_c64", "matvec_c64", "few_rows_c64", "batched_c64", "transposed_c64"]),
    ] {
        programs.extend([
            (names[0], types([&[256, 512], &[512, 256]], dtype), matmul as fn(&[Array]) -> Result<Vec<Array>>),
            (names[1], types([&[512, 2048], &[2048]], dtype), matmul),
            (names[2], types([&[4, 1024], &[1024, 512]], dtype), matmul),
            (names[3], types([&[8, 128, 128], &[8, 128, 64]], dtype), matmul),
            (names[4], types([&[256, 512], &[256, 512]], dtype), |x| Ok(vec![np::matmul(&x[0], &x[1].mt())])),
        ]);
    }
    programs.push(("few_rows_of_int8", vec![(vec![4, 512], DType::F32), (vec![512, 512], DType::I8)], |x| {
        Ok(vec![np::matmul(&x[0], &x[1].astype(DType::F32))])
    }));
    for (dtype, names) in [
        (
            DType::F32,
            ["conv_f32", "conv_strided_f32", "conv_dilated_f32", "conv_few_f32", "depthwise_f32", "conv_1x1_f32"],
        ),
        (
            DType::Bf16,
            ["conv_bf16", "conv_strided_bf16", "conv_dilated_bf16", "conv_few_bf16", "depthwise_bf16", "conv_1x1_bf16"],
        ),
        (
            DType::F64,
            ["conv_f64", "conv_strided_f64", "conv_dilated_f64", "conv_few_f64", "depthwise_f64", "conv_1x1_f64"],
        ),
    ] {
        let image: &[usize] = &[8, 32, 32, 64];
        programs.extend([
            (names[0], types([image, &[3, 3, 64, 64]], dtype), (|x| conv(x, &[1, 1], 1, 1)) as fn(&[Array]) -> _),
            (names[1], types([image, &[3, 3, 64, 128]], dtype), |x| conv(x, &[2, 2], 1, 1)),
            (names[2], types([image, &[3, 3, 64, 64]], dtype), |x| conv(x, &[1, 1], 2, 1)),
            (names[3], types([&[8, 32, 32, 3], &[3, 3, 3, 32]], dtype), |x| conv(x, &[1, 1], 1, 1)),
            (names[4], types([image, &[3, 3, 1, 64]], dtype), |x| conv(x, &[1, 1], 1, 64)),
            (names[5], types([image, &[1, 1, 64, 128]], dtype), |x| conv(x, &[1, 1], 1, 1)),
        ]);
    }
    for (dtype, names) in [
        (DType::F32, ["cholesky_f32", "qr_f32", "eigh_f32", "svd_f32", "solve_f32", "inverse_f32"]),
        (DType::F64, ["cholesky_f64", "qr_f64", "eigh_f64", "svd_f64", "solve_f64", "inverse_f64"]),
    ] {
        let matrix: &[usize] = &[2, 32, 32];
        programs.extend([
            (names[0], types([matrix], dtype), (|x| Ok(vec![linalg::cholesky(&x[0])])) as fn(&[Array]) -> _),
            (names[1], types([matrix], dtype), |x| Ok(<[Array; 2]>::from(linalg::qr(&x[0])).to_vec())),
            (names[2], types([matrix], dtype), |x| Ok(<[Array; 2]>::from(linalg::eigh(&x[0])).to_vec())),
            (names[3], types([matrix], dtype), |x| Ok(vec![linalg::svdvals(&x[0])])),
            (names[4], types([matrix, matrix], dtype), |x| Ok(vec![linalg::solve(&x[0], &x[1])])),
            (names[5], types([matrix], dtype), |x| Ok(vec![linalg::inv(&x[0])])),
        ]);
    }
    programs.extend([
        ("column_sums", types([&[512, 256]], DType::F32), (|x| Ok(vec![x[0].sum(0)])) as fn(&[Array]) -> _),
        ("row_sums", types([&[512, 256]], DType::F32), |x| Ok(vec![x[0].sum(1)])),
        ("sum", types([&[512, 256]], DType::F32), |x| Ok(vec![x[0].sum(..), x[0].max(..), x[0].mean(..)])),
        ("softmax", types([&[128, 1024]], DType::F32), |x| Ok(vec![softmax(&x[0], -1)])),
        ("max_pool", types([&[8, 32, 32, 16]], DType::F32), |x| Ok(vec![max_pool(&x[0], [2, 2], [2, 2])])),
        ("cumsum", types([&[64, 1024]], DType::F32), |x| Ok(vec![np::cumsum(&x[0], 1), np::cumsum(&x[0], 0)])),
        ("deep_sums", types([&[128, 128]; 6], DType::F32), |x| {
            let mut sum = x[0].clone();
            let mut results = Vec::new();
            for y in &x[1..] {
                sum = &sum + y.tanh();
                results.push((&sum * &sum).sum(1));
            }
            Ok(results)
        }),
    ]);
    programs
}
