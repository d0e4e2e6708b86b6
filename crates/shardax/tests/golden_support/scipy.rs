//! Solvers, signals, cosine transforms, matrices and further special functions.

use shardax::control_flow::{custom_root, fori_loop};
use shardax::fft::{FftNorm, FftOptions};
use shardax::prelude::*;
use shardax::scipy::linalg::{self as la, AssumeA, DftScale, PascalKind, PolarSide, Trans};
use shardax::scipy::signal::{self, Average, Boundary, ConvolveMode, Scaling, SpectralOptions, Trend};
use shardax::scipy::sparse::linalg::IterativeSolve;
use shardax::scipy::{integrate, special as sp};

use super::numpy_options::convolve_mode;
use super::{Case, Fun, many, one, two};

fn trans(case: &Case) -> Trans {
    match case.int("trans") {
        0 => Trans::No,
        1 => Trans::Transpose,
        _ => Trans::Adjoint,
    }
}

fn pascal_kind(name: &str) -> PascalKind {
    match name {
        "symmetric" => PascalKind::Symmetric,
        "lower" => PascalKind::Lower,
        _ => PascalKind::Upper,
    }
}

fn solver(case: &Case) -> Option<Fun> {
    // `slopes` differentiates the solver that the case names.
    let name = case.op.clone();
    let name = if name == "slopes" { case.text("of").to_owned() } else { name };
    let tol = case.param("tol").as_f64()?;
    let jacobi = case.param("jacobi").as_bool().unwrap_or(false);
    let (maxiter, restart) = (case.param("maxiter").as_u64(), case.param("restart").as_u64());
    many(move |xs| {
        let (a, b) = (xs[0].clone(), xs[1].clone());
        let d = a.diagonal(0, 0, 1);
        let m = move |x: Array| x / &d;
        let mut options = IterativeSolve::new().tol(tol);
        if jacobi {
            options = options.preconditioner(&m);
        }
        if let Some(n) = maxiter {
            options = options.maxiter(n as usize);
        }
        if let Some(n) = restart {
            options = options.restart(n as usize);
        }
        let matvec = |x: Array| a.matmul(x);
        let x = match name.as_str() {
            "cg" => options.cg(matvec, b)?,
            "bicgstab" => options.bicgstab(matvec, b)?,
            _ => options.gmres(matvec, b)?,
        };
        Ok(vec![x])
    })
}

fn root(a: &Array, b: &Array) -> Result<Array> {
    let f = |x: Array| x.pow(3) + a * &x - b;
    let newton = |f: &dyn Fn(Array) -> Result<Array>, x0: Array| {
        fori_loop(0, 40, |_, x: Array| -> Result<Array> { Ok(&x - f(x.clone())? / (x.square() * 3 + a)) }, x0)
    };
    custom_root(f, ones_like(a * b), newton, |g, y: Array| Ok(&y / g(ones_like(&y))?))
}

pub fn function(case: &Case) -> Option<Fun> {
    // The names are SciPy's.
    match case.op.as_str() {
        "expi" => one(|x| sp::expi(x)),
        "exp1" => one(|x| sp::exp1(x)),
        "spence" => one(|x| sp::spence(x)),
        "erfcx" => one(|x| sp::erfcx(x)),
        "dawsn" => one(|x| sp::dawsn(x)),
        "sici" => many(|x| Ok([sp::sici(&x[0])].into_iter().flat_map(|(s, c)| [s, c]).collect())),
        "fresnel" => many(|x| Ok([sp::fresnel(&x[0])].into_iter().flat_map(|(s, c)| [s, c]).collect())),
        "bessel_jn" => {
            let (v, n_iter) = (case.param("v").as_u64()? as usize, case.param("n_iter").as_u64()? as usize);
            one(move |z| sp::bessel_jn(z, v, n_iter))
        }
        "owens_t" => two(|h, a| sp::owens_t(h, a)),
        "expn" => two(|n, x| sp::expn(n, x)),
        "comb" => {
            let repetition = case.flag("repetition");
            two(move |n, k| sp::comb(n, k, repetition))
        }
        "poch" => two(|z, m| sp::poch(z, m)),
        "loggamma" => one(|x| sp::loggamma(x)),
        "boxcox" => two(|x, l| sp::boxcox(x, l)),
        "boxcox1p" => two(|x, l| sp::boxcox1p(x, l)),
        "bernoulli" => {
            let n = case.int("n") as usize;
            many(move |_| Ok(vec![sp::bernoulli(n)]))
        }
        "dct" | "idct" | "dctn" | "idctn" => {
            let mut options = FftOptions::new();
            if case.param("norm").as_str().is_some() {
                options = options.norm(FftNorm::Ortho);
            }
            if let Some(n) = case.param("n").as_u64() {
                options = options.n(n as usize).axis(case.axis("axis"));
            }
            match case.op.as_str() {
                "dct" => one(move |x| options.dct(x)),
                "idct" => one(move |x| options.idct(x)),
                "dctn" => one(move |x| options.dctn(x)),
                _ => one(move |x| options.idctn(x)),
            }
        }
        "convolve" | "correlate" | "convolve2d" | "correlate2d" | "fftconvolve" => {
            let mode = match case.text("mode") {
                "full" => ConvolveMode::Full,
                "same" => ConvolveMode::Same,
                _ => ConvolveMode::Valid,
            };
            match case.op.as_str() {
                "convolve" => two(move |x, y| signal::convolve(x, y, mode)),
                "correlate" => two(move |x, y| signal::correlate(x, y, mode)),
                "convolve2d" => two(move |x, y| signal::convolve2d(x, y, mode)),
                "correlate2d" => two(move |x, y| signal::correlate2d(x, y, mode)),
                _ if case.param("axes").is_null() => two(move |x, y| signal::fftconvolve(x, y, mode, ..)),
                _ => {
                    let axes = case.axes("axes");
                    two(move |x, y| signal::fftconvolve(x, y, mode, axes.as_slice()))
                }
            }
        }
        "detrend" => {
            let trend = match case.text("trend") {
                "constant" => Trend::Constant,
                "linear" => Trend::Linear,
                _ => Trend::Broken(vec![4, 7]),
            };
            one(move |x| signal::detrend(x, 0, trend.clone()))
        }
        "stft" | "istft" | "welch" | "csd" => spectra(case),
        "trapezoid" => two(|y, x| integrate::trapezoid(y, x, 0)),
        "cg" | "bicgstab" | "gmres" => solver(case),
        "root" => many(|xs| Ok(vec![root(&xs[0], &xs[1])?])),
        "slopes" if case.text("of") == "root" => {
            many(|xs| Ok(vec![grad(|b: Array| Ok(root(&xs[0], &b)?.sum(..))).call(&xs[1])?]))
        }
        "slopes" => {
            let solve = solver(case)?;
            many(move |xs| {
                let sum = |b: Array| Ok(solve(&[xs[0].clone(), b])?[0].sin().sum(..));
                Ok(vec![grad(sum).call(&xs[1])?])
            })
        }
        "solve" => {
            let assume = match case.text("assume_a") {
                "pos" => AssumeA::Pos,
                "sym" => AssumeA::Sym,
                "her" => AssumeA::Her,
                _ => AssumeA::Gen,
            };
            two(move |a, b| la::solve((a + a.t()) / 2, b, assume))
        }
        "solve_triangular" => {
            let (trans, lower, unit) = (trans(case), case.flag("lower"), case.flag("unit_diagonal"));
            two(move |a, b| la::solve_triangular(a, b, trans, lower, unit))
        }
        "lu_solve" => {
            let trans = trans(case);
            two(move |a, b| la::lu_solve(la::lu_factor(a), b, trans))
        }
        "lu_factor" => many(|xs| {
            let (lu, pivots) = la::lu_factor(&xs[0]);
            Ok(vec![lu, pivots])
        }),
        "hilbert" => {
            let n = case.int("n") as usize;
            many(move |_| Ok(vec![la::hilbert(n)]))
        }
        "dft" => {
            let n = case.int("n") as usize;
            let scale = match case.param("scale").as_str() {
                Some("sqrtn") => DftScale::Sqrtn,
                Some(_) => DftScale::N,
                None => DftScale::None,
            };
            many(move |_| Ok(vec![la::dft(n, scale)]))
        }
        "hadamard" => many(|_| Ok(vec![la::hadamard(8, DType::I32)])),
        "circulant" => one(|x| la::circulant(x)),
        "hankel" => two(|c, r| la::hankel(c, r)),
        "companion" => one(|x| la::companion(x)),
        "fiedler" => one(|x| la::fiedler(x)),
        "leslie" => two(|f, s| la::leslie(f, s)),
        "toeplitz" => two(|c, r| la::toeplitz(c, r)),
        "fiedler_companion" => one(|x| la::fiedler_companion(x)),
        "convolution_matrix" => {
            let (n, mode) = (case.int("n") as usize, convolve_mode(case.text("mode")));
            one(move |x| la::convolution_matrix(x, n, mode))
        }
        "pascal" | "invpascal" => {
            let (n, kind) = (case.int("n") as usize, pascal_kind(case.text("kind")));
            let matrix = if case.op == "pascal" { la::pascal } else { la::invpascal };
            many(move |_| Ok(vec![matrix(n, kind)]))
        }
        "invhilbert" => {
            let n = case.int("n") as usize;
            many(move |_| Ok(vec![la::invhilbert(n)]))
        }
        "helmert" => {
            let (n, full) = (case.int("n") as usize, case.flag("full"));
            many(move |_| Ok(vec![la::helmert(n, full)]))
        }
        "eigh_tridiagonal" => two(|d, e| la::eigh_tridiagonal(d, e)),
        "polar" => {
            let side = if case.text("side") == "left" { PolarSide::Left } else { PolarSide::Right };
            many(move |xs| {
                let (u, p) = la::polar(&xs[0], side);
                Ok(vec![u, p])
            })
        }
        _ => None,
    }
}

/// The spectra of segments, with the options of a case.
fn spectra(case: &Case) -> Option<Fun> {
    let mut options = SpectralOptions::new();
    // Options that the case does not mention keep their defaults.
    for (name, value) in case.meta["params"].as_object().into_iter().flatten() {
        let n = value.as_u64().unwrap_or(0) as usize;
        options = match (name.as_str(), value.as_str()) {
            ("nperseg", _) => options.nperseg(n),
            ("noverlap", _) => options.noverlap(n),
            ("nfft", _) => options.nfft(n),
            ("fs", _) => options.fs(value.as_f64().unwrap_or(1.0)),
            ("axis", _) => options.axis(n as i32),
            ("return_onesided", _) => options.return_onesided(false),
            ("detrend", Some(_)) => options.detrend(Some(Trend::Linear)),
            ("detrend", _) => options.detrend(None),
            ("boundary", Some("odd")) => options.boundary(Some(Boundary::Odd)),
            ("boundary", Some(_)) => options.boundary(Some(Boundary::Even)),
            ("boundary", _) => options.boundary(None),
            ("scaling", _) => options.scaling(Scaling::Spectrum),
            ("average", _) => options.average(Average::Median),
            other => panic!("{other:?}"),
        };
    }
    match case.op.as_str() {
        "stft" => many(move |xs| options.stft(&xs[0]).map(|(f, t, z)| vec![f, t, z])),
        "istft" => many(move |xs| options.istft(&xs[0]).map(|(t, x)| vec![t, x])),
        "csd" => many(move |xs| options.csd(&xs[0], &xs[1]).map(|(f, p)| vec![f, p])),
        _ => many(move |xs| options.welch(&xs[0]).map(|(f, p)| vec![f, p])),
    }
}
