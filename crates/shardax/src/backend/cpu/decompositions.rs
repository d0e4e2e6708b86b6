//! Rules that compute matrix decompositions with kernels in Rust.

use super::kernels::decompositions::{CHOLESKY, EIGH, LU, QR, SVD, lower};
use crate::backend::rules::{Lowered, Rules};
use crate::core::lower::{Lowering, Platform, Value};
use crate::core::program::Aval;
use crate::ops::primitive::cholesky::Cholesky;
use crate::ops::primitive::eigh::{Eigh, nan_unless_finite};
use crate::ops::primitive::lu::Lu;
use crate::ops::primitive::qr::Qr;
use crate::ops::primitive::svd::Svd;

pub(super) fn add(rules: &mut Rules) {
    const CPU: Platform = Platform::Cpu;
    rules.add(CPU, |_: &Cholesky, cx, args, outs| lower(CHOLESKY, true, cx, args, outs));
    rules.add(CPU, |qr: &Qr, cx, args, outs| lower(QR, qr.full, cx, args, outs));
    rules.add(CPU, |svd: &Svd, cx, args, outs| lower(SVD, svd.full, cx, args, outs));
    rules.add(CPU, |_: &Lu, cx, args, outs| lower(LU, true, cx, args, outs));
    rules.add(CPU, eigh);
}

fn eigh(_: &Eigh, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if outs[1].shape.last().is_some_and(|n| *n < 2) {
        return Ok(None);
    }
    match lower(EIGH, true, cx, args, outs)? {
        Some(found) => nan_unless_finite(cx, args[0], &found).map(Some),
        None => Ok(None),
    }
}
