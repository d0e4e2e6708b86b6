//! Functions of `nn`, and the normal distribution.

use super::*;

table! {
    "nn::attention" => |c| {
        let mask = (c.n % 2 == 0).then_some(&c.y);
        let window = nn::attention::Window { before: c.n, after: c.n };
        let options = nn::attention::Attention::default().window(window);
        let attend = |k: &Array, v: &Array| {
            let operands = nn::attention::Operands::new(&c.x, k, v);
            let added = nn::attention::Operands { mask: mask.cloned(), bias: Some(c.y.clone()), ..operands.clone() };
            [nn::attention::attention(&options, &operands), nn::attention::attention(&options, &added)].concat()
        };
        [attend(&c.y, &c.x), attend(&c.x, &c.x)].concat()
    };
    "nn::avg_pool" => |c| nn::avg_pool(&c.x, [c.n], [1]);
    "nn::celu" => |c| nn::celu(&c.x, c.f);
    "nn::constant" => |c| init::constant(c.f).init(&c.key, &[2, 2], c.dtype);
    "nn::conv" => |c| same!(c; nn::conv(&c.x, &c.y, [c.n], c.padding()), nn::conv(&c.x, &c.x, [1], c.padding()));
    "nn::delta_orthogonal" => |c| init::delta_orthogonal(c.f).init(&c.key, &[c.n.min(5), 2, 3], c.dtype);
    "nn::elu" => |c| nn::elu(&c.x, c.f);
    "nn::gelu" => |c| nn::gelu(&c.x);
    "nn::gelu_exact" => |c| nn::gelu_exact(&c.x);
    "nn::scaled_dot_general" => |c| {
        let config = if c.i < 0 { nn::BlockScaleConfig::mxfp8() } else { nn::BlockScaleConfig::nvfp4().global_scale(&c.y) };
        let configs = [config.clone(), config.clone(), config];
        nn::scaled_dot_general(&c.x, &c.y, (&[c.n], &[0]), (&[], &[]), Some(c.dtype), Some(configs))
    };
    "nn::scaled_matmul" => |c| nn::scaled_matmul(&c.x, &c.y, &c.x, &c.y, Some(c.dtype));
    "nn::glorot_normal" => |c| init::glorot_normal().init(&c.key, &[c.n], c.dtype);
    "nn::glorot_uniform" => |c| init::glorot_uniform().init(&c.key, c.x.shape(), c.dtype);
    "nn::glu" => |c| nn::glu(&c.x, c.i);
    "nn::hard_sigmoid" => |c| nn::hard_sigmoid(&c.x);
    "nn::hard_silu" => |c| nn::hard_silu(&c.x);
    "nn::hard_tanh" => |c| nn::hard_tanh(&c.x);
    "nn::he_normal" => |c| init::he_normal().axes(c.i, c.i).init(&c.key, c.x.shape(), c.dtype);
    "nn::he_uniform" => |c| init::he_uniform().init(&c.x, &[2, 2], c.dtype);
    "nn::leaky_relu" => |c| nn::leaky_relu(&c.x, c.f);
    "nn::lecun_normal" => |c| init::lecun_normal().init(&c.key, &[c.n, c.n, 0], c.dtype);
    "nn::lecun_uniform" => |c| init::lecun_uniform().init(&c.key, c.y.shape(), c.dtype);
    "nn::log1mexp" => |c| nn::log1mexp(&c.x);
    "nn::log_sigmoid" => |c| nn::log_sigmoid(&c.x);
    "nn::log_softmax" => |c| nn::log_softmax(&c.x, c.i);
    "nn::logmeanexp" => |c| same!(c; nn::logmeanexp(&c.x, c.i), nn::logmeanexp(&c.x, over(..).mask(&c.mask)));
    "nn::max_pool" => |c| nn::max_pool(&c.x, [1], [c.n]);
    "nn::min_pool" => |c| nn::min_pool(&c.x, [2], [c.n]);
    "nn::mish" => |c| nn::mish(&c.x);
    "nn::normal" => |c| init::normal(c.f).init(&c.key, c.x.shape(), c.dtype);
    "nn::one_hot" => |c| same!(c;
        nn::one_hot(&c.x, c.n),
        nn::OneHotOptions::new().axis(c.i).dtype(c.dtype).one_hot(&c.x, c.n)
    );
    "nn::ones" => |c| init::ones().init(&c.key, &[c.n], c.dtype);
    "nn::orthogonal" => |c| same!(c;
        init::orthogonal(c.f).axes(0, c.i).init(&c.key, c.x.shape(), c.dtype),
        init::orthogonal(c.f).init(&c.key, &[c.n, 2], c.dtype)
    );
    "nn::relu" => |c| nn::relu(&c.x);
    "nn::relu6" => |c| nn::relu6(&c.x);
    "nn::selu" => |c| nn::selu(&c.x);
    "nn::sigmoid" => |c| nn::sigmoid(&c.x);
    "nn::silu" => |c| nn::silu(&c.x);
    "nn::soft_sign" => |c| nn::soft_sign(&c.x);
    "nn::softmax" => |c| same!(c; nn::softmax(&c.x, c.i), nn::softmax(&c.x, ..));
    "nn::softplus" => |c| nn::softplus(&c.x);
    "nn::sparse_plus" => |c| nn::sparse_plus(&c.x);
    "nn::sparse_sigmoid" => |c| nn::sparse_sigmoid(&c.x);
    "nn::squareplus" => |c| nn::squareplus(&c.x, c.f);
    "nn::standardize" => |c| same!(c;
        nn::standardize(&c.x, c.i),
        nn::StandardizeOptions::new().mean(&c.y).epsilon(c.f).standardize(&c.x, over(..).mask(&c.mask))
    );
    "nn::truncated_normal" => |c| init::truncated_normal(c.f).init(&c.key, c.x.shape(), c.dtype);
    "nn::uniform" => |c| init::uniform(c.f).init(&c.key, c.x.shape(), c.dtype);
    "nn::variance_scaling" => |c| {
        init::variance_scaling(c.f, init::Fan::Avg, init::Distribution::Uniform).axes(c.i, -1).init(&c.key, c.x.shape(), c.dtype)
    };
    "nn::zeros" => |c| init::zeros().init(&c.key, &[c.n], c.dtype);
    "norm::cdf" => |c| norm::cdf(&c.x, &c.y, c.f);
    "norm::isf" => |c| norm::isf(&c.x, &c.y, c.f);
    "norm::logcdf" => |c| norm::logcdf(&c.x, &c.y, c.f);
    "norm::logpdf" => |c| norm::logpdf(&c.x, &c.y, c.f);
    "norm::logsf" => |c| norm::logsf(&c.x, &c.y, c.f);
    "norm::pdf" => |c| norm::pdf(&c.x, &c.y, c.f);
    "norm::ppf" => |c| norm::ppf(&c.x, &c.y, c.f);
    "norm::sf" => |c| norm::sf(&c.x, &c.y, c.f);
}
