//! Rules that compute matrix decompositions with kernels in Rust.

use super::kernels::decompositions::{CHOLESKY, EIGH, EIGVALSH, LU, QR, SVD, SVDVALS, lower, lower_values};
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
    rules.add(CPU, svd);
    rules.add(CPU, |_: &Lu, cx, args, outs| lower(LU, true, cx, args, outs));
    rules.add(CPU, eigh);
}

fn svd(svd: &Svd, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    match cx.is_unread(0) && cx.is_unread(2) {
        true => lower_values(SVDVALS, cx, args, outs),
        false => lower(SVD, svd.full, cx, args, outs),
    }
}

fn eigh(_: &Eigh, cx: &mut Lowering, args: &[Value], outs: &[Aval]) -> Lowered {
    if outs[1].shape.last().is_some_and(|n| *n < 2) {
        return Ok(None);
    }
    let results = match cx.is_unread(0) {
        true => lower_values(EIGVALSH, cx, args, outs)?,
        false => lower(EIGH, true, cx, args, outs)?,
    };
    match results {
        Some(found) => nan_unless_finite(cx, args[0], &found).map(Some),
        None => Ok(None),
    }
}
