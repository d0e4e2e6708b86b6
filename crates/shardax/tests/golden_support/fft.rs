//! Discrete Fourier transforms.

use shardax::fft::{self, FftNorm, FftOptions};
use shardax::prelude::*;

use super::{Case, Fun, many, one};

pub fn function(case: &Case) -> Option<Fun> {
    // The length of the transform and the sample spacing, if the case has them.
    let (n, d) = (case.param("n").as_u64().map(|n| n as usize), case.param("d").as_f64().unwrap_or(1.0));
    let axes = case.param("axes").is_array().then(|| case.axes("axes"));
    match case.op.as_str() {
        "fftfreq" => return many(move |_| Ok(vec![fft::fftfreq(n.unwrap_or(0), d)])),
        "rfftfreq" => return many(move |_| Ok(vec![fft::rfftfreq(n.unwrap_or(0), d)])),
        "fftshift" => return one(move |x| fft::fftshift(x, axes.as_deref())),
        "ifftshift" => return one(move |x| fft::ifftshift(x, axes.as_deref())),
        _ => {}
    }
    let mut options = FftOptions::new().norm(match case.text("norm") {
        "ortho" => FftNorm::Ortho,
        "forward" => FftNorm::Forward,
        _ => FftNorm::Backward,
    });
    if let Some(n) = n {
        options = options.n(n);
    }
    if let Some(axis) = case.param("axis").as_i64() {
        options = options.axis(axis as i32);
    }
    if let Some(axes) = axes {
        options = options.axes(axes);
    }
    if case.param("s").is_array() {
        options = options.s(case.ints("s").iter().map(|&n| n as usize).collect::<Vec<_>>());
    }
    let f: fn(&FftOptions, &Array) -> Array = match case.op.as_str() {
        "fft" => |o, x| o.fft(x),
        "ifft" => |o, x| o.ifft(x),
        "rfft" => |o, x| o.rfft(x),
        "irfft" => |o, x| o.irfft(x),
        "hfft" => |o, x| o.hfft(x),
        "ihfft" => |o, x| o.ihfft(x),
        "fft2" => |o, x| o.fft2(x),
        "ifft2" => |o, x| o.ifft2(x),
        "rfft2" => |o, x| o.rfft2(x),
        "irfft2" => |o, x| o.irfft2(x),
        "fftn" => |o, x| o.fftn(x),
        "ifftn" => |o, x| o.ifftn(x),
        "rfftn" => |o, x| o.rfftn(x),
        "irfftn" => |o, x| o.irfftn(x),
        _ => return None,
    };
    one(move |x| f(&options, x))
}
