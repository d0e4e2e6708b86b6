//! Reference cases: programs whose results are compared with JAX's, within tolerances of the platform.

use shardax::error::{Error, ErrorKind, Result};
use shardax::lax::{ConvOptions, Padding, conv_general_dilated, population_count};
use shardax::prelude::*;
use shardax::scipy::special::{digamma, gammaln};
use shardax_nn::dot_product_attention;

/// `name = value value …`, written by `tools/golden/doctor.py`.
const VALUES: &str = include_str!("reference.txt");

/// The largest error of a result, relative to values above 1: on CPU, on GPUs, on TPUs.
#[derive(Clone, Copy)]
pub struct Tolerance([f64; 3]);

/// Integers, and floats that are moved but not computed.
const EXACT: Tolerance = Tolerance([0.0, 0.0, 0.0]);
/// Elementwise functions and sums.
pub const ELEMENTWISE: Tolerance = Tolerance([1e-5, 2e-5, 2e-4]);
/// Products of float32, which GPUs can round to TF32 and TPUs to bfloat16.
pub const PRODUCT: Tolerance = Tolerance([1e-5, 5e-3, 5e-2]);
/// Decompositions.
const LINALG: Tolerance = Tolerance([1e-4, 1e-3, 1e-2]);
/// Results in bfloat16.
const HALF: Tolerance = Tolerance([1e-2, 2e-2, 5e-2]);

impl Tolerance {
    /// The tolerance on this process's devices.
    pub fn here(self) -> Result<f64> {
        let [cpu, gpu, tpu] = self.0;
        let devices = local_devices()?;
        Ok(match devices.first().map(|device| device.platform().to_lowercase()).as_deref() {
            Some("cpu") | None => cpu,
            Some("tpu") => tpu,
            Some(_) => gpu,
        })
    }
}

/// A program of two arrays, whose first results are compared.
struct Case {
    name: &'static str,
    tolerance: Tolerance,
    shapes: [&'static [usize]; 2],
    run: fn(Array, Array) -> Result<Array>,
}

/// The cases of one subject, which run in one process.
#[derive(Clone, Copy)]
pub struct Cases(&'static [Case]);

const fn case(
    name: &'static str,
    tolerance: Tolerance,
    shapes: [&'static [usize]; 2],
    run: fn(Array, Array) -> Result<Array>,
) -> Case {
    Case { name, tolerance, shapes, run }
}

const M: &[usize] = &[8, 8];
const V: &[usize] = &[24];

/// Elementwise functions, reductions, random numbers and loops.
pub const FUNCTIONS: Cases = Cases(&[
    case("exp", ELEMENTWISE, [V, &[]], |x, _| Ok(x.exp())),
    case("log", ELEMENTWISE, [V, &[]], |x, _| Ok((x.abs() + 0.1).log())),
    case("tanh", ELEMENTWISE, [V, &[]], |x, _| Ok(x.tanh())),
    case("sin", ELEMENTWISE, [V, &[]], |x, _| Ok((x * 10).sin())),
    case("erf", ELEMENTWISE, [V, &[]], |x, _| Ok(shardax::scipy::special::erf(x))),
    case("lgamma", ELEMENTWISE, [V, &[]], |x, _| Ok(gammaln(x.abs() + 0.5))),
    case("digamma", ELEMENTWISE, [V, &[]], |x, _| Ok(digamma(x.abs() + 0.5))),
    case("pow", ELEMENTWISE, [V, V], |x, y| Ok((x.abs() + 0.5).pow(y))),
    case("atan2", ELEMENTWISE, [V, V], |x, y| Ok(arctan2(x, y))),
    case("int_division", EXACT, [V, V], |x, y| {
        Ok(floor_divide((x * 100).astype(DType::I32), (y * 5).astype(DType::I32) * 2 + 1))
    }),
    case("bits", EXACT, [V, &[]], |x, _| Ok(population_count(&lax::bitcast_convert_type(&x, DType::U32)))),
    case("bfloat16", HALF, [V, V], |x, y| Ok(x.astype(DType::Bf16) * y.astype(DType::Bf16) + 1)),
    case("softmax", ELEMENTWISE, [&[3, 8], &[]], |x, _| Ok(shardax::nn::softmax(x, -1))),
    case("layer_norm_grad", ELEMENTWISE, [M, &[8]], |x, scale| {
        grad(move |x: Array| layer_norm(&x, &scale).sin().sum(..)).call(x)
    }),
    case("sum", ELEMENTWISE, [&[40, 24], &[]], |x, _| Ok(x.sum(0))),
    case("max", EXACT, [&[40, 24], &[]], |x, _| Ok(x.max(0))),
    case("cumsum", ELEMENTWISE, [V, &[]], |x, _| Ok(x.cumsum(0))),
    case("sort", EXACT, [V, &[]], |x, _| Ok(x.sort(0))),
    case("argsort", EXACT, [V, &[]], |x, _| Ok(x.argsort(0))),
    case("top_k", EXACT, [V, &[]], |x, _| Ok(lax::top_k(&x, 5).0)),
    case("take", EXACT, [&[10, 4], &[6]], |x, y| Ok(x.take((y + 2).astype(DType::I32), 0))),
    case("scatter_add", ELEMENTWISE, [V, V], |x, y| Ok(zeros(4).at(&(y + 2).astype(DType::I32)).add(x))),
    case("while", ELEMENTWISE, [V, &[]], |x, _| {
        Ok(while_loop(
            |(i, _): (Array, Array)| less(i, 6),
            |(i, x): (Array, Array)| (i + 1, (&x + 2 / &x) / 2),
            (array(0), x.abs() + 1),
        )?
        .1)
    }),
    case("uniform", EXACT, [&[], &[]], |_, _| Ok(random::uniform(random::key(3), 24))),
    case("normal", ELEMENTWISE, [&[], &[]], |_, _| Ok(random::normal(random::key(4), 24))),
    case("permutation", EXACT, [&[], &[]], |_, _| Ok(random::permutation(random::key(5), 24))),
]);

/// Products, convolutions and decompositions.
pub const PRODUCTS: Cases = Cases(&[
    case("matmul", PRODUCT, [&[8, 32], &[32, 8]], |x, y| Ok(x.matmul(y))),
    case("matmul_bf16", HALF, [&[8, 32], &[32, 8]], |x, y| Ok(x.astype(DType::Bf16).matmul(y.astype(DType::Bf16)))),
    case("einsum", PRODUCT, [&[4, 3, 5], &[4, 5, 2]], |x, y| Ok(einsum("bij,bjk->bik", &[&x, &y]))),
    case("matmul_grad", PRODUCT, [M, M], |x, y| grad(move |x: Array| x.matmul(&y).tanh().sum(..)).call(x)),
    case("conv", PRODUCT, [&[1, 6, 6, 3], &[3, 3, 3, 4]], |x, w| Ok(conv(&x, &w))),
    case("conv_strided", PRODUCT, [&[1, 7, 7, 3], &[3, 3, 3, 4]], |x, w| {
        Ok(conv_general_dilated(x, w, [2, 2], Padding::Valid, ConvOptions::new().channels_last(2)))
    }),
    case("conv_groups", PRODUCT, [&[1, 6, 6, 4], &[3, 3, 2, 4]], |x, w| {
        let options = ConvOptions::new().channels_last(2).feature_group_count(2).rhs_dilation([2, 2]);
        Ok(conv_general_dilated(x, w, [1, 1], Padding::Same, options))
    }),
    case("conv_grad", PRODUCT, [&[1, 6, 6, 3], &[3, 3, 3, 4]], |x, w| {
        grad(move |w: Array| conv(&x, &w).tanh().sum(..)).call(w)
    }),
    case("attention", PRODUCT, [&[1, 5, 2, 4]; 2], |x, y| Ok(dot_product_attention(x, &y, &y))),
    case("attention_grad", PRODUCT, [&[1, 5, 2, 4]; 2], |x, y| {
        grad(move |x: Array| dot_product_attention(x, &y, &y).sin().sum(..)).call(x)
    }),
    case("scan_grad", PRODUCT, [&[6, 4], &[4, 4]], |x, w| grad(move |w: Array| recurrent(&x, &w)).call(w)),
    case("rfft", PRODUCT, [&[16], &[]], |x, _| Ok(shardax::fft::rfft(x).abs())),
    case("cholesky", LINALG, [&[12, 4], &[]], |x, _| Ok(linalg::cholesky(positive(&x)))),
    case("solve", LINALG, [M, &[8, 2]], |x, y| Ok(linalg::solve(positive(&x), y))),
    case("singular_values", LINALG, [&[8, 5], &[]], |x, _| Ok(linalg::svdvals(x))),
    case("eigenvalues", LINALG, [&[12, 4], &[]], |x, _| Ok(linalg::eigvalsh(positive(&x)))),
    case("qr", LINALG, [&[8, 5], &[]], |x, _| Ok(linalg::qr(x).1.abs())),
]);

fn conv(x: &Array, w: &Array) -> Array {
    conv_general_dilated(x, w, [1, 1], Padding::Same, ConvOptions::new().channels_last(2))
}

fn layer_norm(x: &Array, scale: &Array) -> Array {
    (x - x.mean_keepdims(-1)) / (x.var_keepdims(-1) + 1e-5).sqrt() * scale
}

/// A symmetric matrix with positive eigenvalues.
fn positive(x: &Array) -> Array {
    x.t().matmul(x) + 2 * eye(x.shape()[1])
}

fn recurrent(x: &Array, w: &Array) -> Result<Array> {
    let (_, sums) = scan(
        |h: Array, x: Array| {
            let h = (h.matmul(w) + x).tanh();
            (h.clone(), h.sum(..))
        },
        zeros(4),
        x.clone(),
    )?;
    Ok(sums.sum(..))
}

/// Numbers between -2 and 2, as in `tools/golden/doctor.py`.
fn numbers(seed: usize, shape: &[usize]) -> Result<Array> {
    let numbers = (0..shape.iter().product::<usize>())
        .map(|i| (((i * 7919 + seed * 104_729 + 17) % 1009) as f64 / 252.25 - 2.0) as f32);
    Array::from_vec(numbers.collect(), shape)
}

fn expected(name: &str) -> Result<Vec<f64>> {
    let line = VALUES.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
    let values = line.and_then(|line| {
        line.split(' ').map(|value| value.parse::<f32>().map(f64::from).ok()).collect::<Option<Vec<f64>>>()
    });
    values.ok_or_else(|| Error::new(ErrorKind::Check, format!("there are no reference values for {name}")))
}

impl Case {
    /// The largest error.
    fn error(&self) -> Result<f64> {
        let run = self.run;
        let program = jit(move |x: Array, y: Array| run(x, y).map(|x| x.astype(DType::F32)));
        let (x, y) = (numbers(0, self.shapes[0])?, numbers(1, self.shapes[1])?);
        let (got, want) = (program.call((x, y))?.to_vec::<f32>()?, expected(self.name)?);
        if got.len() < want.len() {
            return Err(Error::new(
                ErrorKind::Check,
                format!("{} results instead of at least {}", got.len(), want.len()),
            ));
        }
        super::checks::check_close(&got, want, self.tolerance.here()?)
    }
}

impl Cases {
    /// Runs all cases.
    ///
    /// # Errors
    /// Returns an error if a case fails or differs from JAX's values, and names all such cases.
    pub fn run(self) -> Result<String> {
        let (mut worst, mut wrong) = ((0.0, "all"), Vec::new());
        for case in self.0 {
            match case.error() {
                Ok(error) if error > worst.0 => worst = (error, case.name),
                Ok(_) => {}
                Err(error) => wrong.push(format!("{}: {error}", case.name)),
            }
        }
        let (error, name) = worst;
        let summary = format!("{} of {} cases agree with JAX", self.0.len() - wrong.len(), self.0.len());
        if wrong.is_empty() {
            Ok(format!("{summary}, largest error {error:.1e} ({name})"))
        } else {
            Err(Error::new(ErrorKind::Check, format!("{summary}\n{}", wrong.join("\n"))))
        }
    }
}
