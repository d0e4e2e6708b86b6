//! The inverse error function of float32 on CPU.
//!
//! XLA (xla-cpu-pjrt 0.0.1) computes it from its slow `log1p(-x²)`, where the rounded square loses digits next to 1.

use crate::core::array::Array;
use crate::core::lower::{Lowering, Value};
use crate::core::program::Aval;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::primitive::unary::{ABS, LOG, SQRT};
use crate::ops::select::where_;

/// The range of w = -log(1 - x²) in which the quotient erfinv(x) / x is a polynomial of w - 2. Above it, the quotient is a
/// polynomial of √w - 3.
const MAX_FIRST_RANGE: f64 = 4.0;

/// The coefficients of both polynomials, interpolated at Chebyshev nodes.
const COEFFICIENTS: [[f64; 2]; 10] = [
    [1.3772152115148184, 2.8329767971714737],
    [0.24976816317771086, 1.0016752173346106],
    [-0.001968139880559625, 0.009445631215016119],
    [-0.0016924650318350355, -0.007640840649132124],
    [0.000215925716705764, 0.005682986421821245],
    [7.872193414705759e-06, -0.003582383473176948],
    [-4.8639315165604975e-06, 0.0014982816493865983],
    [2.155955685614988e-07, -8.378063819144988e-05],
    [6.581608747076365e-08, -0.0003222659840179485],
    [0.0, 0.00013418958588548336],
];

/// Lowers the inverse error function of float32, and of half precision, which is computed in float32.
pub(super) fn lower(cx: &mut Lowering, args: &[Value], out: &Aval) -> Result<Vec<Value>> {
    let dtype = out.dtype;
    cx.expand(args, |args| Ok(vec![erf_inv(&args[0].astype(DType::F32)).astype(dtype)]))
}

fn erf_inv(x: &Array) -> Array {
    // Both factors are accurate next to 1 and -1, unlike the difference 1 - x².
    let w = -LOG.apply(&((1 - x) * (1 + x)));
    let is_near = w.less(MAX_FIRST_RANGE);
    let t = where_(&is_near, &w - MAX_FIRST_RANGE / 2.0, SQRT.apply(&w) - 3);
    let quotient = COEFFICIENTS
        .iter()
        .rev()
        .fold(&t * 0, |sum, [near, far]| sum * &t + where_(&is_near, Array::from(*near), *far).astype(DType::F32));
    where_(ABS.apply(x).equal(1), x * f64::INFINITY, x * quotient)
}
