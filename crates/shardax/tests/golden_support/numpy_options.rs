//! Functions of NumPy with their options.

use shardax::lax::DotOptions;
use shardax::nn::{self, StandardizeOptions, initializers};
use shardax::numpy::{
    self as np, ArrayEqualOptions, CompressOptions, ConvolveMode, CovOptions, CumulativeSumOptions, HistogramOptions,
    IndexMode, Indexing, LinspaceOptions, LogsumexpOptions, MeshgridOptions, NanToNumOptions, NonzeroOptions,
    PadOptions, ReflectType, RepeatOptions, TraceOptions, UniqueOptions,
};
use shardax::prelude::*;

use super::{Case, Fun, many, one, three, two};

const WIDTHS: [(usize, usize); 2] = [(2, 1), (0, 4)];

fn mode(name: &str) -> PadMode {
    match name {
        "edge" => PadMode::Edge,
        "reflect" | "reflect_odd" | "reflect_one" => PadMode::Reflect,
        "symmetric" | "symmetric_odd" => PadMode::Symmetric,
        "wrap" => PadMode::Wrap,
        "linear_ramp" => PadMode::LinearRamp,
        "maximum" => PadMode::Maximum,
        "minimum" => PadMode::Minimum,
        "median" => PadMode::Median,
        _ => PadMode::Mean,
    }
}

fn pair((x, y): (Array, Array)) -> Result<Vec<Array>> {
    Ok(vec![x, y])
}

/// The gradient of the sum of the function's sines.
fn curvature(f: impl Fn(Array) -> Array + Copy + 'static) -> Option<Fun> {
    many(move |xs| Ok(vec![grad(move |x: Array| f(x).sin().sum(..)).call(&xs[0])?]))
}

fn unique(options: UniqueOptions, x: &Array, size: usize) -> Result<Vec<Array>> {
    let result = options.unique_all(x, size);
    Ok(vec![result.values, result.indices, result.inverse_indices, result.counts])
}

pub fn function(case: &Case) -> Option<Fun> {
    padding(case).or_else(|| shapes(case)).or_else(|| elements(case)).or_else(|| sets(case)).or_else(|| more(case))
}

fn padding(case: &Case) -> Option<Fun> {
    // Each name is a combination of options in the generator of the reference cases.
    let options = PadOptions::new();
    let constant = PadMode::Constant(0.0);
    match case.op.as_str() {
        "pad_reflect_odd" | "pad_symmetric_odd" => {
            let mode = mode(&case.op[4..]);
            one(move |x| PadOptions::new().reflect_type(ReflectType::Odd).pad(x, [(5, 1), (0, 9)], mode))
        }
        "pad_reflect_one" => one(|x| PadOptions::new().reflect_type(ReflectType::Odd).pad(x, 2, PadMode::Reflect)),
        "pad_stat_length" => one(|x| PadOptions::new().stat_length([(1, 2), (3, 9)]).pad(x, 2, PadMode::Mean)),
        "pad_end_values" => {
            let options = options.end_values(array([[1.0f32, -2.0], [3.0, 4.0]]));
            one(move |x| options.pad(x, [(2, 3), (1, 2)], PadMode::LinearRamp))
        }
        "pad_constant_pair" | "pad_constant_traced" => {
            two(move |x, v| PadOptions::new().constant_values(v).pad(x, 1, constant))
        }
        "pad_constant_pairs" => {
            two(move |x, v| PadOptions::new().constant_values(v).pad(x, [(1, 2), (2, 0)], constant))
        }
        op => {
            let mode = mode(op.strip_prefix("pad_")?);
            one(move |x| np::pad(x, WIDTHS, mode))
        }
    }
}

fn shapes(case: &Case) -> Option<Fun> {
    // Each name is a combination of options in the generator of the reference cases.
    let line = LinspaceOptions::new;
    let (k, m) = (case.param("k").as_i64().unwrap_or(0) as i32, case.param("m").as_u64().unwrap_or(0) as usize);
    fn grid(options: MeshgridOptions) -> Option<Box<dyn Fn(&[Array]) -> Result<Vec<Array>>>> {
        many(move |xs| Ok(options.meshgrid(xs)))
    }
    match case.op.as_str() {
        "linspace_arrays" => two(|a, b| np::linspace(a, b, 5)),
        "linspace_axis" => two(move |a, b| line().axis(-1).linspace(a, b, 4)),
        "linspace_open" => two(move |a, b| line().endpoint(false).linspace(a, b, 4)),
        "linspace_one" => two(|a, b| np::linspace(a, b, 1)),
        "linspace_i32" => two(move |a, b| line().dtype(DType::I32).linspace(a, b, 7)),
        "linspace_bf16" => two(move |a, b| line().dtype(DType::Bf16).linspace(a, b, 9)),
        "linspace_ints" | "linspace_c64" => two(|a, b| np::linspace(a, b, 4)),
        "logspace_base" => two(move |a, b| line().base(2.0).logspace(a, b, 4)),
        "logspace_open" => two(move |a, b| line().endpoint(false).axis(1).logspace(a, b, 3)),
        "geomspace_arrays" => two(move |a, b| line().axis(-1).geomspace(a, b, 4)),
        "repeat_counts" => one(|x| np::repeat(x, array([2, 0, 3]), 1)),
        "repeat_total" => two(|x, n| RepeatOptions::new().total_repeat_length(7).repeat(x, n, 0)),
        "repeat_cut" => two(|x, n| RepeatOptions::new().total_repeat_length(4).repeat(x, n, ..)),
        "repeat_scalar" => two(|x, n| RepeatOptions::new().total_repeat_length(5).repeat(x, n, 0)),
        "roll_traced" => two(|x, n| np::roll(x, n, 1)),
        "roll_flat" => two(|x, n| x.roll(n, ..)),
        "roll_axes" => two(|x, n| x.roll(n, [0, 1])),
        "roll_static" => one(|x| x.roll([1, -6, 2], [0, 1, 0])),
        "roll_shared" => two(|x, n| x.roll(n, [0, -1])),
        "moveaxis_two" => one(|x| np::moveaxis(x, [0, -1], [1, 0])),
        "collapse" => one(|x| lax::collapse(x, 1, 3)),
        "collapse_last" => one(|x| lax::collapse(x, -2, None)),
        "rollaxis" => one(|x| np::rollaxis(x, 2, 1)),
        "rot90" => one(move |x| np::rot90(x, k, (1, 2))),
        "meshgrid_xy" => many(|xs| Ok(np::meshgrid(xs))),
        "meshgrid_ij" => grid(MeshgridOptions::new().indexing(Indexing::Ij)),
        "meshgrid_sparse" => grid(MeshgridOptions::new().sparse(true)),
        "meshgrid_sparse_ij" => grid(MeshgridOptions::new().sparse(true).indexing(Indexing::Ij)),
        "mgrid" => one(|x| x + np::mgrid([0..2, 5..8])),
        "ogrid" => many(|xs| Ok(np::ogrid([0..2, 5..8]).iter().map(|a| &xs[0] * a).collect())),
        "indices" => one(|x| x + np::indices(&[2, 3])),
        "ix_" => many(|xs| Ok(np::ix_(xs))),
        "ravel_multi_clip" => many(|xs| Ok(vec![np::ravel_multi_index(xs, &[3, 4], IndexMode::Clip)])),
        "ravel_multi_wrap" => many(|xs| Ok(vec![np::ravel_multi_index(xs, &[3, 4], IndexMode::Wrap)])),
        "choose_clip" => many(|xs| Ok(vec![np::choose(&xs[0], &xs[1..], IndexMode::Clip)])),
        "choose_wrap" => many(|xs| Ok(vec![np::choose(&xs[0], &xs[1..], IndexMode::Wrap)])),
        "triangles_from" => many(|xs| {
            fn element((i, j): (Array, Array), xs: &[Array]) -> Array {
                xs[0].get((&i, &j))
            }
            Ok(vec![element(np::tril_indices_from(&xs[0], 1), xs), element(np::triu_indices_from(&xs[0], -1), xs)])
        }),
        "diag_indices_from" => one(|x| {
            let indices = np::diag_indices_from(x);
            x.get((&indices[0], &indices[1], &indices[2]))
        }),
        "polynomial" => many(|xs| {
            Ok(vec![match xs {
                [x] if x.dtype() == DType::I32 => lax::polynomial(x, [1, -2, 5]),
                [x] => lax::polynomial(x, [1.0, -2.0, 0.5, 3.0]),
                [x, coefficients @ ..] => lax::polynomial(x, coefficients),
                [] => zeros([0]),
            }])
        }),
        "polynomial_curvature" => curvature(|x| lax::polynomial(x, [1.0, -2.0, 0.5, 3.0])),
        "minmax" => {
            let name = case.name.clone();
            many(move |xs| {
                let over = match name.as_str() {
                    "minmax_f32" => np::over(1),
                    "minmax_initial" => np::over(0).initial(2),
                    _ => np::over(..),
                };
                pair(np::minmax(&xs[0], over))
            })
        }
        "block" => many(|xs| Ok(vec![np::block([[&xs[0], &xs[1]], [&xs[2], &xs[3]]])])),
        "block_cubes" => two(|a, b| np::block([[a, b], [b, a]])),
        "broadcast_arrays" => many(|xs| np::broadcast_arrays(xs)),
        "array_split" => many(|xs| np::array_split(&xs[0], 3, 1)),
        "delete" => one(|x| np::delete(x, [0, -1, 0], 1)),
        "delete_flat" => one(|x| np::delete(x, 3, ..)),
        "insert" => two(|x, v| np::insert(x, [0, 3, -1], v, 1)),
        "insert_one" => two(|x, v| np::insert(x, 1, v, 0)),
        "insert_flat" => two(|x, v| np::insert(x, 5, v, ..)),
        "select" => many(|xs| Ok(vec![np::select(&xs[..2], &xs[2..], 7)])),
        "resize" => one(|x| np::resize(x, [3, 5])),
        "fill_diagonal" => two(|x, v| np::fill_diagonal(x, v)),
        "put_along_axis" => three(|x, i, v| np::put_along_axis(x, i, v, 1)),
        "diagflat" => one(|x| np::diagflat(x, -1)),
        "hanning" => one(move |x| x * np::hanning(m)),
        "hamming" => one(move |x| x * np::hamming(m)),
        "blackman" => one(move |x| x * np::blackman(m)),
        "bartlett" => one(move |x| x * np::bartlett(m)),
        "kaiser" => one(|b| np::kaiser(7, b)),
        _ => None,
    }
}

fn elements(case: &Case) -> Option<Fun> {
    // Each name is a combination of options in the generator of the reference cases.
    match case.op.as_str() {
        "nan_to_num_values" => one(|x| NanToNumOptions::new().nan(2.5).posinf(7).neginf(-8).nan_to_num(x)),
        "nan_to_num_traced" => two(|x, n| NanToNumOptions::new().nan(n).nan_to_num(x)),
        "nan_to_num_c64" => one(|x| NanToNumOptions::new().nan(1.0).posinf(2.0).nan_to_num(x)),
        "array_equal_nan" => two(|x, y| ArrayEqualOptions::new().equal_nan(true).array_equal(x, y)),
        "array_equiv" => two(|x, y| np::array_equiv(x, y)),
        "isposinf" => one(|x| np::isposinf(x)),
        "isneginf" => one(|x| np::isneginf(x)),
        "signbit" => one(|x| np::signbit(x)),
        "isreal" => one(|x| np::isreal(x)),
        "iscomplex" => one(|x| np::iscomplex(x)),
        "fmax" => two(|x, y| np::fmax(x, y)),
        "fmin" => two(|x, y| np::fmin(x, y)),
        "divmod" => many(|xs| pair(np::divmod(&xs[0], &xs[1]))),
        "float_power" => two(|x, y| np::float_power(x, y)),
        "heaviside" => two(|x, y| np::heaviside(x, y)),
        "sinc" => one(|x| np::sinc(x)),
        "sinc_second" => curvature(|x| np::sinc(x)),
        "logaddexp2" => two(|x, y| np::logaddexp2(x, y)),
        "degrees" => one(|x| np::degrees(x)),
        "radians" => one(|x| np::radians(x)),
        "fabs" => one(|x| np::fabs(x)),
        "positive" => one(|x| np::positive(x)),
        "rint" => one(|x| np::rint(x)),
        "angle" => one(|x| np::angle(x)),
        "copysign" => two(|x, y| np::copysign(x, y)),
        "modf" => many(|xs| pair(np::modf(&xs[0]))),
        "frexp" => many(|xs| pair(np::frexp(&xs[0]))),
        "ldexp" => two(|x, y| np::ldexp(x, y)),
        "gcd" => two(|x, y| np::gcd(x, y)),
        "lcm" => two(|x, y| np::lcm(x, y)),
        "hard_silu" => one(|x| nn::hard_silu(x)),
        "sparse_plus" => one(|x| nn::sparse_plus(x)),
        "sparse_sigmoid" => one(|x| nn::sparse_sigmoid(x)),
        "squareplus" => one(|x| nn::squareplus(x, 4.0)),
        "squareplus_second" => curvature(|x| nn::squareplus(x, 4.0)),
        "log1mexp" => one(|x| nn::log1mexp(x)),
        "standardize" => one(|x| nn::standardize(x, -1)),
        "standardize_given" => {
            three(|x, m, v| StandardizeOptions::new().mean(m).variance(v).epsilon(0.1).standardize(x, 0))
        }
        "logmeanexp" => one(|x| nn::logmeanexp(x, 1)),
        "logmeanexp_where" => two(|x, m| nn::logmeanexp(x, over(1).mask(m).keepdims(true))),
        "softmax_where" => two(|x, m| nn::softmax(x, over(1).mask(m))),
        "log_softmax_where" => two(|x, m| nn::log_softmax(x, over(1).mask(m))),
        _ => None,
    }
}

fn with_fill_value(value: i32) -> NonzeroOptions {
    NonzeroOptions::new().fill_value(value)
}

fn sets(case: &Case) -> Option<Fun> {
    // Sets have a fixed size in programs; smaller ones are filled.
    let size = if case.name == "unique_all_i32" {
        5
    } else if case.name == "unique_all_long" {
        12
    } else {
        9
    };
    match case.op.as_str() {
        "nonzero_fill" => many(move |xs| Ok(with_fill_value(-7).nonzero(&xs[0], 14))),
        "nonzero_fills" => many(|xs| Ok(NonzeroOptions::new().fill_value(array([-7, 9])).nonzero(&xs[0], 14))),
        "flatnonzero_fill" => one(move |x| with_fill_value(99).flatnonzero(x, 14)),
        "argwhere_fill" => one(move |x| with_fill_value(-1).argwhere(x, 14)),
        "unique_fill" => one(|x| UniqueOptions::new().fill_value(-1).unique(x, 14)),
        "unique_all" => many(move |xs| {
            let result = np::unique_all(&xs[0], size);
            Ok(vec![result.values, result.indices, result.inverse_indices, result.counts])
        }),
        "unique_rows" => many(|xs| unique(UniqueOptions::new().axis(0), &xs[0], 4)),
        "unique_columns" => one(|x| UniqueOptions::new().axis(1).fill_value(0).unique(x, 3)),
        "unique_nan" => one(|x| UniqueOptions::new().equal_nan(false).unique(x, 9)),
        "lexsort" => many(|xs| Ok(vec![np::lexsort(xs, -1)])),
        "union1d" => two(|a, b| np::union1d(a, b, 9)),
        "compress" => two(|c, x| CompressOptions::new().size(3).fill_value(-5).compress(c, x, 1)),
        "extract" => two(|c, x| CompressOptions::new().size(6).extract(c, x)),
        _ => None,
    }
}

/// The mode of this name.
pub fn convolve_mode(name: &str) -> ConvolveMode {
    match name {
        "full" => ConvolveMode::Full,
        "same" => ConvolveMode::Same,
        _ => ConvolveMode::Valid,
    }
}

fn more(case: &Case) -> Option<Fun> {
    fn initial() -> CumulativeSumOptions {
        CumulativeSumOptions::new().include_initial(true)
    }
    match case.op.as_str() {
        "histogram_range" => many(|xs| pair(HistogramOptions::new().range(-1.0, 1.5).histogram(&xs[0], 5))),
        "histogram_weights" => many(|xs| pair(HistogramOptions::new().weights(&xs[1]).histogram(&xs[0], 4))),
        "histogram_density" => many(|xs| pair(HistogramOptions::new().density(true).histogram(&xs[0], 4))),
        "histogram_edges" => many(|xs| pair(np::histogram(&xs[0], &xs[1]))),
        "histogram_bin_edges" => one(|x| np::histogram_bin_edges(x, 3)),
        "cov_columns" => one(|x| CovOptions::new().rowvar(false).bias(true).cov(x)),
        "cov_y" => two(|x, y| CovOptions::new().y(y).ddof(0).cov(x)),
        "cov_weights" => three(|x, f, a| CovOptions::new().fweights(f).aweights(a).cov(x)),
        "cov_fweights" => two(|x, f| CovOptions::new().fweights(f).cov(x)),
        "corrcoef" => one(|x| np::corrcoef(x)),
        "trace_offset" => one(|x| TraceOptions::new().offset(1).axes(1, 2).trace(x)),
        "trace_dtype" => one(|x| TraceOptions::new().offset(-1).dtype(DType::F32).trace(x)),
        "cumulative_sum" => one(move |x| initial().cumulative_sum(x, 1)),
        "cumulative_prod" => one(move |x| initial().cumulative_prod(x, 1)),
        "nancumsum" => one(|x| np::nancumsum(x, 1)),
        "nancumprod" => one(|x| np::nancumprod(x, 1)),
        "nanargmax" => one(|x| np::nanargmax(x, 1)),
        "nanargmin" => one(|x| np::nanargmin(x, 1)),
        "logsumexp_b" => two(|x, b| LogsumexpOptions::new().b(b).logsumexp(x, 1)),
        "logsumexp_sign" => many(|xs| pair(LogsumexpOptions::new().b(&xs[1]).return_sign(&xs[0], 0))),
        "logsumexp_where" => two(|x, m| np::logsumexp(x, over(1).mask(m))),
        "polyval" | "polyval_long" => two(|p, x| np::polyval(p, x)),
        "polyval_second" => curvature(|x| np::polyval(array([1.0f32, -2.0, 0.5, 3.0]), x)),
        "polyadd" => two(|p, q| np::polyadd(p, q)),
        "polysub" => two(|p, q| np::polysub(p, q)),
        "polymul" => two(|p, q| np::polymul(p, q)),
        "polydiv" => many(|xs| pair(np::polydiv(&xs[0], &xs[1]))),
        "polyder" => one(|p| np::polyder(p, 2)),
        "polyint" => two(|p, k| np::polyint(p, 2, k)),
        "vander" => one(|x| np::vander(x, 4)),
        "gradient" => two(|x, h| np::gradient(x, h, 1)),
        "ediff1d" => one(|x| np::ediff1d(x, 9.0, array([1.0f32, 2.0]))),
        "unwrap" => one(|x| np::unwrap(x, std::f64::consts::TAU, -1)),
        "unwrap_period" => one(|x| np::unwrap(x, 6, 0)),
        "vectorize" => many(|xs| {
            let matvec = np::vectorize(|m: Array, v: Array| m.matmul(v)).signature("(n,m),(m)->(n)")?;
            Ok(vec![matvec.call((&xs[0], &xs[1]))?])
        }),
        "vectorize_scalars" => many(|xs| {
            let product = np::vectorize(|x: Array, y: Array| x.sin() * y);
            Ok(vec![product.call((&xs[0], &xs[1]))?])
        }),
        "apply_along_axis" => many(|xs| {
            fn ends(v: Array) -> Array {
                np::stack([v.sum(..), v.get(0)], 0)
            }
            Ok(vec![np::apply_along_axis(ends, &xs[0], 1)?])
        }),
        // Functions of other modules that have options.
        "multinomial" => three(|key, n, p| random::multinomial(key, n, p)),
        "delta_orthogonal" => {
            let shape: Vec<usize> = case.ints("shape").iter().map(|&d| d as usize).collect();
            one(move |key| initializers::delta_orthogonal(0.5).init(key, &shape, DType::F32))
        }
        "ragged_dot" => {
            let wide = DotOptions::new().preferred_element_type(DType::F32);
            three(move |x, y, n| wide.ragged_dot(x, y, n))
        }
        "vecdot" => two(|x, y| np::vecdot(x, y)),
        "matvec" => two(|x, y| np::matvec(x, y)),
        "vecmat" => two(|x, y| np::vecmat(x, y)),
        op => {
            let (name, mode) = op.split_once('_')?;
            let mode = convolve_mode(mode);
            match name {
                "convolve" => two(move |x, y| np::convolve(x, y, mode)),
                "correlate" => two(move |x, y| np::correlate(x, y, mode)),
                _ => None,
            }
        }
    }
}
