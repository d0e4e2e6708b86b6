//! Singular value decompositions of matrices of f32 with many more rows than columns, or the other way round, by their Gram matrices in f64.
//!
//! The eigenvectors of the small matrix `aᵀ a` and products take less time than reflections of the entire matrix. The condition of the Gram
//! matrix is the square of the condition of `a`, so that half of the digits of f64 can be lost, which are more than f32 has.

use faer::Side;
use faer::linalg::solvers::SelfAdjointEigen;

use crate::View;
use crate::matmul::matmul;
use crate::real::Real;

/// The minimum quotient of the longer and the shorter side.
const MIN_RATIO: usize = 2;

/// The smallest number of columns: below, `faer` takes as long.
const MIN_SIDE: usize = 8;

/// The largest condition of a matrix. The errors of the results are the errors of f64 times its square.
const MAX_CONDITION: f64 = 1e4;

/// Returns `true` for matrices of these sizes.
pub(crate) fn applies<T: Real>([long, short]: [usize; 2]) -> bool {
    size_of::<T>() == size_of::<f32>() && short >= MIN_SIDE && long / MIN_RATIO >= short
}

/// Computes the singular value decomposition with as many columns of `u` and rows of `vt` as singular values `s`. Returns `false`, and
/// writes nothing, if the condition is too large or an element is not finite.
pub(crate) fn svd<T: Real>(a: &[T], [m, n]: [usize; 2], [u, s, vt]: [&mut [T]; 3]) -> bool {
    let (is_tall, short) = (m > n, m.min(n));
    let wide: Vec<f64> = a.iter().map(|x| x.widen()).collect();
    let gram = gram(&wide, [m, n]);
    if !gram.iter().all(|x| x.is_finite()) {
        return false;
    }
    let matrix = faer::MatRef::from_row_major_slice(&gram, short, short);
    let Ok(eigen) = SelfAdjointEigen::new(matrix, Side::Lower) else { return false };
    // In ascending order, so that the last one is the largest.
    let (vectors, squares) = (eigen.U(), eigen.S().column_vector());
    let is_regular = squares[0] * MAX_CONDITION * MAX_CONDITION > squares[short - 1] && squares[0] > 0.0;
    if !is_regular {
        return false;
    }
    let mut factors = vec![0.0; short * short];
    for (i, value) in s.iter_mut().enumerate() {
        let column = short - 1 - i;
        let root = squares[column].sqrt();
        *value = T::narrow(root);
        for j in 0..short {
            let element = vectors[(j, column)];
            factors[j * short + i] = element / root;
            match is_tall {
                true => vt[i * n + j] = T::narrow(element),
                false => u[j * short + i] = T::narrow(element),
            }
        }
    }
    let sides = [short, short];
    match is_tall {
        true => narrow(&products([&wide, &factors], [[m, n], sides], [2, 1], m * n), u),
        false => narrow(&products([&factors, &wide], [sides, [m, n]], [1, 1], m * n), vt),
    }
    true
}

/// The product of a matrix with its transpose, or the other way round: the smaller one of both.
pub(crate) fn gram(wide: &[f64], [m, n]: [usize; 2]) -> Vec<f64> {
    let summed = if m > n { 1 } else { 2 };
    products([wide, wide], [[m, n], [m, n]], [summed, summed], m.min(n) * m.min(n))
}

/// The product of two matrices in row order, whose dimensions 1 or 2 are summed over.
fn products(
    [a, b]: [&[f64]; 2],
    [[m, n], [rows, columns]]: [[usize; 2]; 2],
    contracted: [usize; 2],
    size: usize,
) -> Vec<f64> {
    let mut products = vec![0.0; size];
    if let (Ok(a), Ok(b)) = (View::new(&[1, m, n], a), View::new(&[1, rows, columns], b)) {
        let result = matmul(a, b, contracted, &mut products, 1);
        debug_assert!(result.is_ok());
    }
    products
}

fn narrow<T: Real>(from: &[f64], to: &mut [T]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = T::narrow(*from));
}
