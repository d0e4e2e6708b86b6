//! Matrices of binomial coefficients, and of other numbers that are computed on the host.

use crate::choice::{IntoChoice, NamedOption};
use crate::core::array::Array;
use crate::core::program::trace::or_failed;
use crate::dtype::DType;
use crate::error::err;
use crate::ops::numpy::zeros_dtype;

/// The form of a matrix of [`pascal`] or [`invpascal`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PascalKind {
    /// The symmetric matrix of `binomial(i + j, i)`.
    #[default]
    Symmetric,
    /// The lower triangular matrix of `binomial(i, j)`.
    Lower,
    /// The upper triangular matrix of `binomial(j, i)`.
    Upper,
}

/// JAX's names.
impl NamedOption for PascalKind {
    const KIND: &'static str = "kind";
    const NAMES: &'static [(&'static str, Self)] =
        &[("symmetric", PascalKind::Symmetric), ("lower", PascalKind::Lower), ("upper", PascalKind::Upper)];
}

/// The number of ways to choose `k` of `n`, exact below 2⁵³.
fn binomial(n: usize, k: usize) -> f64 {
    if k > n {
        return 0.0;
    }
    // Each product of consecutive factors is a binomial coefficient, so each quotient is exact.
    (1..=k.min(n - k)).fold(1.0, |product, i| product * (n + 1 - i) as f64 / i as f64)
}

/// -1 for odd numbers.
fn alternating_sign(i: usize) -> f64 {
    if i.is_multiple_of(2) { 1.0 } else { -1.0 }
}

/// The largest matrix of binomial coefficients. Most of its entries are infinite in float32, the first from 131 rows on, and each
/// entry takes as many steps as there are rows.
const MAX_BINOMIAL_ROWS: usize = 512;

/// The largest matrix whose entries take one step each, which limits the constants of a program.
const MAX_ROWS: usize = 4096;

/// A float32 matrix `[rows, columns]` of these entries, which are rounded once, or an error beyond `max` columns.
#[track_caller]
fn matrix([rows, columns]: [usize; 2], max: usize, entry: impl Fn(usize, usize) -> f64) -> Array {
    let like = zeros_dtype([1, 1], DType::F32);
    or_failed(&like, || {
        if columns > max {
            return Err(err!(Value, "the host computes this matrix up to a size of {max}, got {columns}")
                .help(format!("pass a size of at most {max}")));
        }
        let entries: Vec<f32> = (0..rows * columns).map(|i| entry(i / columns, i % columns) as f32).collect();
        Array::from_slice(&entries, &[rows, columns])
    })
}

/// Returns the kind, or a failed array for a text that names none.
#[track_caller]
fn known_kind(function: &str, kind: impl IntoChoice<PascalKind>) -> std::result::Result<PascalKind, Array> {
    let kind = kind.into_choice();
    kind.value(function).map_err(|error| or_failed(&zeros_dtype([1, 1], DType::F32), || Err(error)))
}

/// Returns Pascal's matrix of binomial coefficients, `[n, n]` in float32.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::{PascalKind, pascal};
/// assert_eq!(pascal(3, PascalKind::Symmetric).to_vec::<f32>()?, [1.0, 1.0, 1.0, 1.0, 2.0, 3.0, 1.0, 3.0, 6.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for `n` above 512.
#[track_caller]
pub fn pascal(n: usize, kind: impl IntoChoice<PascalKind>) -> Array {
    let kind = match known_kind("pascal", kind) {
        Ok(kind) => kind,
        Err(failed) => return failed,
    };
    matrix([n, n], MAX_BINOMIAL_ROWS, |i, j| match kind {
        PascalKind::Symmetric => binomial(i + j, i),
        PascalKind::Lower => binomial(i, j),
        PascalKind::Upper => binomial(j, i),
    })
}

/// Returns the inverse of [`pascal`], `[n, n]` in float32, whose entries are integers.
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::{PascalKind, invpascal, pascal};
/// let product = pascal(4, PascalKind::Symmetric).matmul(invpascal(4, PascalKind::Symmetric));
/// assert!(allclose(product, eye(4), 0.0, 1e-4)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for `n` above 512.
#[track_caller]
pub fn invpascal(n: usize, kind: impl IntoChoice<PascalKind>) -> Array {
    let kind = match known_kind("invpascal", kind) {
        Ok(kind) => kind,
        Err(failed) => return failed,
    };
    // The symmetric matrix is a product of triangular matrices, so it reads each coefficient many times.
    let size = if kind == PascalKind::Symmetric { n.min(MAX_BINOMIAL_ROWS) } else { 0 };
    let coefficients: Vec<Vec<f64>> = (0..size).map(|k| (0..=k).map(|i| binomial(k, i)).collect()).collect();
    matrix([n, n], MAX_BINOMIAL_ROWS, |i, j| match kind {
        PascalKind::Symmetric => {
            let products = coefficients[i.max(j)..].iter().map(|row| row[i] * row[j]);
            alternating_sign(i + j) * products.sum::<f64>()
        }
        PascalKind::Lower => alternating_sign(i + j) * binomial(i, j),
        PascalKind::Upper => alternating_sign(i + j) * binomial(j, i),
    })
}

/// Returns the inverse of [`hilbert`](super::hilbert()), `[n, n]` in float32, whose entries are integers
/// ([Choi, Tricks or treats with the Hilbert matrix](https://doi.org/10.2307/2975779)).
///
/// ```
/// # use shardax::prelude::*;
/// use shardax::scipy::linalg::invhilbert;
/// assert_eq!(invhilbert(2).to_vec::<f32>()?, [4.0, -6.0, -6.0, 12.0]);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for `n` above 512.
#[track_caller]
pub fn invhilbert(n: usize) -> Array {
    matrix([n, n], MAX_BINOMIAL_ROWS, |i, j| {
        let factors = [(n + i, n - j - 1), (n + j, n - i - 1), (i + j, i), (i + j, i)];
        let product: f64 = factors.into_iter().map(|(n, k)| binomial(n, k)).product();
        alternating_sign(i + j) * (i + j + 1) as f64 * product
    })
}

/// Returns Helmert's matrix in float32. Its rows are orthonormal, and each row compares an element with the mean of the
/// elements before it. It has `n - 1` rows, and if `full`, an additional first row of `1 / √n`.
///
/// ```
/// # use shardax::prelude::*;
/// let h = shardax::scipy::linalg::helmert(4, true);
/// assert!(allclose(h.matmul(h.t()), eye(4), 0.0, 1e-6)?);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// The result carries an error for `n` of 0 or above 4096.
#[track_caller]
pub fn helmert(n: usize, full: bool) -> Array {
    if n == 0 {
        let e = err!(Value, "helmert needs a positive size, got 0").help("pass the number of elements to compare");
        return Array::from_result(Err(e), &zeros_dtype([1, 1], DType::F32));
    }
    // Row 0 of the full matrix is the mean; row `i` compares element `i`.
    let first = usize::from(!full);
    matrix([n - first, n], MAX_ROWS, |row, j| match row + first {
        0 => (n as f64).sqrt().recip(),
        i if j < i => ((i * (i + 1)) as f64).sqrt().recip(),
        i if j == i => -(i as f64 / (i + 1) as f64).sqrt(),
        _ => 0.0,
    })
}
