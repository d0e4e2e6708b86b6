//! Special functions and the normal distribution.

use shardax::scipy::special as sp;
use shardax::scipy::stats::norm;

use super::{Case, Fun, many, one, three, two};

pub fn function(case: &Case) -> Option<Fun> {
    // The names are SciPy's.
    match case.op.as_str() {
        "logit" => one(|x| sp::logit(x)),
        "expit" => one(|x| sp::expit(x)),
        "entr" => one(|x| sp::entr(x)),
        "ndtr" => one(|x| sp::ndtr(x)),
        "log_ndtr" => one(|x| sp::log_ndtr(x)),
        "ndtri" => one(|x| sp::ndtri(x)),
        "i0" => one(|x| sp::i0(x)),
        "i0e" => one(|x| sp::i0e(x)),
        "i1" => one(|x| sp::i1(x)),
        "i1e" => one(|x| sp::i1e(x)),
        "gammaln" => one(|x| sp::gammaln(x)),
        "digamma" => one(|x| sp::digamma(x)),
        "gamma" => one(|x| sp::gamma(x)),
        "gammasgn" => one(|x| sp::gammasgn(x)),
        "factorial" => one(|x| sp::factorial(x)),
        "erf" => one(|x| sp::erf(x)),
        "erfc" => one(|x| sp::erfc(x)),
        "erfcinv" => one(|x| sp::erfcinv(x)),
        "erfinv" => one(|x| sp::erfinv(x)),
        "multigammaln" => {
            let d = case.int("d") as u32;
            one(move |x| sp::multigammaln(x, d))
        }
        "xlogy" => two(|x, y| sp::xlogy(x, y)),
        "xlog1py" => two(|x, y| sp::xlog1py(x, y)),
        "rel_entr" => two(|x, y| sp::rel_entr(x, y)),
        "kl_div" => two(|x, y| sp::kl_div(x, y)),
        "gammainc" => two(|a, x| sp::gammainc(a, x)),
        "gammaincc" => two(|a, x| sp::gammaincc(a, x)),
        "beta" => two(|a, b| sp::beta(a, b)),
        "betaln" => two(|a, b| sp::betaln(a, b)),
        "zeta" => two(|s, q| sp::zeta(s, q)),
        "polygamma" => two(|n, x| sp::polygamma(n, x)),
        "sph_harm_y" => {
            let n_max = case.int("n_max") as usize;
            many(move |x| Ok(vec![sp::sph_harm_y(&x[0], &x[1], &x[2], &x[3], n_max)]))
        }
        "betainc" => three(|a, b, x| sp::betainc(a, b, x)),
        "norm_logpdf" => three(|x, m, s| norm::logpdf(x, m, s)),
        "norm_pdf" => three(|x, m, s| norm::pdf(x, m, s)),
        "norm_cdf" => three(|x, m, s| norm::cdf(x, m, s)),
        "norm_logcdf" => three(|x, m, s| norm::logcdf(x, m, s)),
        "norm_sf" => three(|x, m, s| norm::sf(x, m, s)),
        "norm_logsf" => three(|x, m, s| norm::logsf(x, m, s)),
        "norm_ppf" => three(|x, m, s| norm::ppf(x, m, s)),
        "norm_isf" => three(|x, m, s| norm::isf(x, m, s)),
        _ => None,
    }
}
