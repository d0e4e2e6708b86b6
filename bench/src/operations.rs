//! Benchmarks of single operations on one device. Most of them reorder, look up or factorize.

use shardax::experimental::sparse::BCOO;
use shardax::prelude::*;
use shardax::scipy::fft::dct;
use shardax::{nn, numpy};

use crate::clock::{Timing, measure};
use crate::data::uniform;

/// Measures a function of arrays of these shapes.
fn of(shapes: &[&[usize]], f: impl Fn(&[Array]) -> Array + Send + Sync + 'static) -> Result<Timing> {
    let xs = shapes.iter().zip(0..).map(|(shape, seed)| uniform(shape, seed)).collect::<Result<Vec<Array>>>()?;
    let f = jit(move |xs: Vec<Array>| f(&xs));
    measure(|| block_until_ready(f.call(xs.clone())?))
}

const LONG: &[usize] = &[16 << 20];

pub fn cumsum_16m() -> Result<Timing> {
    of(&[LONG], |x| x[0].cumsum(0))
}

pub fn sort_16m() -> Result<Timing> {
    of(&[LONG], |x| numpy::sort(&x[0], 0))
}

pub fn argsort_16m() -> Result<Timing> {
    of(&[LONG], |x| numpy::argsort(&x[0], 0))
}

pub fn top_k_16m() -> Result<Timing> {
    of(&[LONG], |x| lax::top_k(&x[0], 64).0)
}

pub fn normal_16m() -> Result<Timing> {
    let f = jit(|key: Array| random::normal(key, LONG));
    let key = random::key(0);
    measure(|| block_until_ready(f.call(&key)?))
}

/// A million rows of 16 numbers, at places that repeat.
fn rows() -> Array {
    arange(0..1 << 20) * 7919 % (1 << 18)
}

pub fn gather_1m() -> Result<Timing> {
    let (table, rows) = (uniform(&[1 << 18, 16], 0)?, rows());
    let f = jit(|table: Array, rows: Array| table.at(rows).get());
    measure(|| block_until_ready(f.call((&table, &rows))?))
}

pub fn scatter_add_1m() -> Result<Timing> {
    let (table, rows, x) = (uniform(&[1 << 18, 16], 0)?, rows(), uniform(&[1 << 20, 16], 1)?);
    let f = jit(|table: Array, rows: Array, x: Array| table.at(rows).add(x));
    measure(|| block_until_ready(f.call((&table, &rows, &x))?))
}

pub fn einsum_scores() -> Result<Timing> {
    of(&[&[8, 16, 256, 64], &[8, 16, 256, 64]], |x| numpy::einsum("bhqd,bhkd->bhqk", &[&x[0], &x[1]]))
}

pub fn fft_1m() -> Result<Timing> {
    of(&[&[1 << 20]], |x| numpy::abs(&shardax::fft::fft(&x[0])))
}

pub fn dct_1m() -> Result<Timing> {
    of(&[&[1024, 1024]], |x| dct(&x[0]))
}

/// `x xᵀ / n + 1` of 512 rows: positive definite.
fn definite(x: &Array) -> Array {
    x.matmul(x.t()) / 512 + eye(512)
}

pub fn cholesky_512() -> Result<Timing> {
    of(&[&[512, 512]], |x| linalg::cholesky(definite(&x[0])))
}

pub fn qr_512() -> Result<Timing> {
    of(&[&[512, 512]], |x| linalg::qr(&x[0]).1)
}

pub fn svd_512() -> Result<Timing> {
    of(&[&[512, 512]], |x| linalg::svd(&x[0]).1)
}

pub fn eigh_512() -> Result<Timing> {
    of(&[&[512, 512]], |x| linalg::eigh(definite(&x[0])).0)
}

pub fn bcoo_matmul() -> Result<Timing> {
    let (dense, x) = (uniform(&[4096, 4096], 0)?, uniform(&[4096, 64], 1)?);
    let sparse = BCOO::fromdense(where_(dense.abs().less(0.01), &dense, 0), None)?;
    let f = jit(|a: BCOO, x: Array| a.matmul(x));
    measure(|| block_until_ready(f.call((&sparse, &x))?))
}

const IMAGES: &[usize] = &[32, 32, 32, 64];

pub fn max_pool_grad() -> Result<Timing> {
    of(&[IMAGES], move |x| {
        grad(|x: Array| nn::max_pool(&x, [2, 2], [2, 2]).square().sum(..))
            .call(&x[0])
            .unwrap_or_else(|error| panic!("{error}"))
    })
}

pub fn avg_pool_3x3() -> Result<Timing> {
    of(&[IMAGES], |x| nn::Pool::new([3, 3]).padding(lax::Padding::Same).avg(&x[0]))
}

/// A convolution to 64 features in groups, with holes in the kernel, or transposed.
pub fn conv(groups: usize, dilation: usize, transposed: bool) -> Result<Timing> {
    let numbers = lax::ConvOptions::new().dimension_numbers("NHWC", "HWIO", "NHWC");
    of(&[IMAGES, &[3, 3, 64 / groups, 64]], move |x| {
        if transposed {
            lax::conv_transpose(&x[0], &x[1], [2, 2], lax::Padding::Same, numbers.clone())
        } else {
            let options = numbers.clone().feature_group_count(groups).rhs_dilation([dilation, dilation]);
            lax::conv_general_dilated(&x[0], &x[1], [1, 1], lax::Padding::Same, options)
        }
    })
}
