//! Special functions.

use super::*;

table! {
    "special::bernoulli" => |c| special::bernoulli(c.n.min(64));
    "special::bessel_jn" => |c| special::bessel_jn(&c.x, 2, 20);
    "special::beta" => |c| special::beta(&c.x, &c.y);
    "special::betainc" => |c| special::betainc(&c.x, &c.y, c.f);
    "special::betaln" => |c| special::betaln(&c.x, &c.y);
    "special::boxcox" => |c| special::boxcox(&c.x, &c.y);
    "special::boxcox1p" => |c| special::boxcox1p(&c.x, &c.y);
    "special::comb" => |c| special::comb(&c.x, &c.y, c.i > 0);
    "special::dawsn" => |c| special::dawsn(&c.x);
    "special::digamma" => |c| special::digamma(&c.x);
    "special::entr" => |c| special::entr(&c.x);
    "special::erf" => |c| special::erf(&c.x);
    "special::erfc" => |c| special::erfc(&c.x);
    "special::erfcx" => |c| special::erfcx(&c.x);
    "special::erfcinv" => |c| special::erfcinv(&c.x);
    "special::erfinv" => |c| special::erfinv(&c.x);
    "special::exp1" => |c| special::exp1(&c.x);
    "special::expi" => |c| special::expi(&c.x);
    "special::expit" => |c| special::expit(&c.x);
    "special::expn" => |c| special::expn(&c.x, &c.y);
    "special::factorial" => |c| special::factorial(&c.x);
    "special::fresnel" => |c| same!(c; special::fresnel(&c.x).0, special::fresnel(&c.x).1);
    "special::gamma" => |c| special::gamma(&c.x);
    "special::gammainc" => |c| special::gammainc(&c.x, &c.y);
    "special::gammaincc" => |c| special::gammaincc(&c.x, &c.y);
    "special::gammaln" => |c| special::gammaln(&c.x);
    "special::gammasgn" => |c| special::gammasgn(&c.x);
    "special::i0" => |c| special::i0(&c.x);
    "special::i0e" => |c| special::i0e(&c.x);
    "special::i1" => |c| special::i1(&c.x);
    "special::i1e" => |c| special::i1e(&c.x);
    "special::kl_div" => |c| special::kl_div(&c.x, &c.y);
    "special::log_ndtr" => |c| special::log_ndtr(&c.x);
    "special::loggamma" => |c| special::loggamma(&c.x);
    "special::logit" => |c| special::logit(&c.x);
    "special::logsumexp" => |c| special::logsumexp(&c.x, c.i);
    "special::multigammaln" => |c| special::multigammaln(&c.x, c.n.min(100) as u32);
    "special::ndtr" => |c| special::ndtr(&c.x);
    "special::ndtri" => |c| special::ndtri(&c.x);
    "special::owens_t" => |c| special::owens_t(&c.x, &c.y);
    "special::poch" => |c| special::poch(&c.x, &c.y);
    "special::polygamma" => |c| special::polygamma(&c.x, &c.y);
    "special::rel_entr" => |c| special::rel_entr(&c.x, &c.y);
    "special::sici" => |c| same!(c; special::sici(&c.x).0, special::sici(&c.x).1);
    "special::spence" => |c| special::spence(&c.x);
    "special::sph_harm_y" => |c| special::sph_harm_y(&c.places, c.i, &c.x, &c.y, c.n.min(9));
    "special::xlog1py" => |c| special::xlog1py(&c.x, &c.y);
    "special::xlogy" => |c| special::xlogy(&c.x, &c.y);
    "special::zeta" => |c| special::zeta(&c.x, &c.y);
}
