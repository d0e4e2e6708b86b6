//! Calls of LAPACK, which JAX lowers linear algebra to on CPU. They are read as this library's operations, because the
//! plugin does not contain jaxlib's functions.

use std::sync::Arc;

use super::damaged;
use crate::core::array::Array;
use crate::core::lower::imported::private_functions;
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::{Result, err};
use crate::export::ExportOptions;
use crate::linalg;
use crate::ops::constants::eye_offset_dtype;
use crate::ops::lax;
use crate::ops::primitive::lu::Lu;
use crate::ops::primitive::matrix::adjoint;
use crate::ops::primitive::triangular_solve::{Op, TriangularSolve};
use crate::runtime::aot::shape_dtype_struct;

/// One call: the function, its configuration, and the types of its results.
pub(super) struct Call {
    pub routine: String,
    pub config: Vec<(String, i64)>,
    pub operands: Vec<Aval>,
    pub results: Vec<Aval>,
}

/// The routine of a target such as `lapack_spotrf_ffi`, without its element type.
pub(super) fn routine(target: &str) -> Option<&str> {
    let named = target.strip_prefix("lapack_").or_else(|| target.strip_prefix("blas_"))?.strip_suffix("_ffi")?;
    named.strip_prefix(['s', 'd', 'c', 'z'])
}

/// The element types of the arrays that a routine takes and returns.
pub(super) fn dtype(element: &str) -> Option<DType> {
    Some(match element {
        "f32" => DType::F32,
        "f64" => DType::F64,
        "complex<f32>" => DType::Complex64,
        "complex<f64>" => DType::Complex128,
        "i32" => DType::I32,
        _ => return None,
    })
}

/// The Hermitian matrix that is stored as one triangle of `a`.
fn hermitian(a: &Array, lower: bool) -> Array {
    if lower { a.tril(0) + adjoint(&a.tril(-1)) } else { a.triu(0) + adjoint(&a.triu(1)) }
}

/// The `n` by `n` matrix with the elements of `v` on the diagonal `k`.
fn band(v: &Array, n: usize, k: i32) -> Array {
    let mut config = vec![(0, 0, 0); v.ndim()];
    if let (Some(last), Some(have)) = (config.last_mut(), v.shape().last()) {
        let missing = n as i64 - *have as i64;
        *last = if k < 0 { (missing, 0, 0) } else { (0, missing, 0) };
    }
    let rows = lax::pad(v, &Array::zeros_of(&Aval::scalar(v.dtype())), &config).expand_dims(-1);
    rows * eye_offset_dtype(n, n, k, DType::F32).astype(v.dtype())
}

impl Call {
    /// A letter parameter of LAPACK, such as `L` for the lower triangle.
    fn letter(&self, name: &str) -> Option<char> {
        let (_, code) = self.config.iter().find(|(key, _)| key == name)?;
        char::from_u32(u32::try_from(*code).ok()?)
    }

    /// Writes the functions of the call under names that begin with `prefix`, and returns the operands that the first
    /// function, `<prefix>main`, takes.
    pub fn text(self, prefix: &str) -> Result<(String, Vec<usize>)> {
        // Checks the numbers of arrays first, because `apply` indexes them.
        let counts = (self.operands.len(), self.results.len());
        let fits = match self.routine.as_str() {
            "potrf" => counts == (1, 2),
            "trsm" => counts == (2, 1),
            "getrf" | "syevd" | "heevd" => counts == (1, 3),
            "gesdd" | "gesvd" => counts == (1, 5),
            "gtsv" => counts == (4, 5),
            _ => true,
        };
        let matrices = self.operands.first().is_some_and(|aval| aval.rank() >= 2 || self.routine == "gtsv");
        if !fits || !matrices {
            return Err(damaged(format!("its program calls {} with other arrays: {:?}", self.routine, self.operands)));
        }
        let results = self.results.clone();
        let args = self.operands.iter().map(|aval| shape_dtype_struct(&aval.shape[..], aval.dtype)).collect();
        let exported = ExportOptions::new().platforms(["cpu"]).exchanged(
            &move |args: Vec<Array>| self.apply(&args),
            args,
            0,
            &mut Vec::new(),
        )?;
        let outs = &exported.out_avals;
        if !results.iter().zip(outs).all(|(a, b)| (a.dtype, &a.shape) == (b.dtype, &b.shape)) {
            return Err(damaged(format!("its program takes {results:?} of a call that gives {outs:?}")));
        }
        let text: Option<&Arc<str>> = exported.texts.get("cpu").filter(|_| exported.captures.is_empty());
        let text =
            text.ok_or_else(|| err!(Runtime, "internal error: a decomposition was not lowered; please report this"))?;
        Ok((private_functions(text, prefix)?, exported.kept))
    }

    fn zeros(&self, result: usize) -> Array {
        Array::zeros_of(&self.results[result])
    }

    fn apply(&self, x: &[Array]) -> Result<Vec<Array>> {
        let lower = self.letter("uplo") == Some('L');
        Ok(match self.routine.as_str() {
            "potrf" => {
                let l = lax::cholesky(&hermitian(&x[0], lower));
                // A failure is NaN in shardax, and a number other than 0 in LAPACK.
                let failed = l.not_equal(&l).astype(DType::I32).max([-2, -1]);
                vec![if lower { l } else { adjoint(&l) }, failed.astype(self.results[1].dtype)]
            }
            "trsm" => {
                let op = match self.letter("trans_x") {
                    Some('T') => Op::Transpose,
                    Some('C') => Op::Adjoint,
                    _ => Op::Plain,
                };
                let solve = TriangularSolve {
                    left_side: self.letter("side") == Some('L'),
                    lower,
                    op,
                    unit_diagonal: self.letter("diag") == Some('U'),
                };
                vec![solve.apply(&x[0], &x[1])]
            }
            "getrf" => {
                // LAPACK counts pivots from 1.
                let outputs = Lu.apply(&x[0]);
                vec![outputs[0].clone(), &outputs[1] + 1, self.zeros(2)]
            }
            "gesdd" | "gesvd" => {
                let (u, s, vt) = match self.letter("mode") {
                    Some('A') => linalg::svd_full(&x[0]),
                    Some('S') => linalg::svd(&x[0]),
                    _ => (self.zeros(2), linalg::svdvals(&x[0]), self.zeros(3)),
                };
                vec![self.zeros(0), s, u, vt, self.zeros(4)]
            }
            "syevd" | "heevd" => {
                let (w, v) = linalg::eigh(hermitian(&x[0], lower));
                vec![v, w, self.zeros(2)]
            }
            "gtsv" => {
                let (below, diagonal, above) = (&x[0], &x[1], &x[2]);
                let n = *diagonal.shape().last().unwrap_or(&0);
                let a = band(below, n, -1) + band(diagonal, n, 0) + band(above, n, 1);
                let solved = linalg::solve(a, &x[3]);
                vec![below.clone(), diagonal.clone(), above.clone(), solved, self.zeros(4)]
            }
            name => {
                return Err(err!(NotImplemented, "the program calls LAPACK's {name}, which is not read").help(
                    "export a function of `cholesky`, `lu`, `qr`, `svd`, `eigh`, `triangular_solve` or `tridiagonal_solve`",
                ));
            }
        })
    }
}
