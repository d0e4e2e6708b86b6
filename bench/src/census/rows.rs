//! The functions of the census.

use shardax::prelude::*;
use shardax::scipy::special;
use shardax::{fft, image, linalg, nn, numpy, scipy};

use super::{Kind, Row};

/// Functions of one array that have one name in JAX and here.
macro_rules! same_names {
    ($rows:ident, $kind:ident, $python:literal, $module:path { $($name:ident)* }) => {{
        use $module as module;
        $( $rows.push(Row {
            expression: concat!($python, ".", stringify!($name), "(x)"),
            kind: Kind::$kind,
            function: |x| module::$name(&x[0]),
        }); )*
    }};
}

/// Other functions, each with its Python expression.
macro_rules! others {
    ($rows:ident, $kind:ident { $($expression:literal => $function:expr;)* }) => {
        $( $rows.push(Row { expression: $expression, kind: Kind::$kind, function: $function }); )*
    };
}

/// All rows.
pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    elementwise(&mut rows);
    reductions(&mut rows);
    orders_and_moves(&mut rows);
    products(&mut rows);
    decompositions(&mut rows);
    layers(&mut rows);
    others!(rows, Key {
        "jax.random.uniform(x, (1 << 20,))" => |x| random::uniform(&x[0], 1 << 20);
        "jax.random.normal(x, (1 << 20,))" => |x| random::normal(&x[0], 1 << 20);
        "jax.random.permutation(x, 1 << 20)" => |x| random::permutation(&x[0], 1 << 20);
    });
    rows
}

fn elementwise(rows: &mut Vec<Row>) {
    // The text of a row is the expression that Python evaluates for JAX.
    same_names!(rows, Line, "jnp", numpy {
        abs sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arctanh exp exp2 expm1 cbrt square sign floor ceil trunc rint
        sinc signbit isnan isfinite isinf negative degrees radians nan_to_num
    });
    same_names!(rows, Positive, "jnp", numpy { log log2 log10 log1p sqrt reciprocal });
    same_names!(rows, Line, "jax.nn", nn { relu silu sigmoid softplus selu log_sigmoid soft_sign relu6 hard_tanh });
    same_names!(rows, Line, "jax.scipy.special", special { erf erfc erfinv expit i0 i0e i1 ndtr log_ndtr });
    same_names!(rows, Positive, "jax.scipy.special", special { gammaln digamma entr exp1 });
    others!(rows, Line {
        "jax.nn.gelu(x)" => |x| nn::gelu(&x[0]);
        "jax.nn.softmax(x)" => |x| nn::softmax(&x[0], -1);
        "jax.nn.log_softmax(x)" => |x| nn::log_softmax(&x[0], -1);
        "jnp.clip(x, -0.5, 0.5)" => |x| x[0].clip(-0.5, 0.5);
        "x ** 3" => |x| x[0].pow(3);
    });
    others!(rows, Lines {
        "x + y" => |x| &x[0] + &x[1];
        "x * y" => |x| &x[0] * &x[1];
        "x / y" => |x| &x[0] / &x[1];
        "jnp.abs(x) ** y" => |x| x[0].abs().pow(&x[1]);
        "jnp.arctan2(x, y)" => |x| numpy::arctan2(&x[0], &x[1]);
        "jnp.maximum(x, y)" => |x| x[0].maximum(&x[1]);
        "jnp.logaddexp(x, y)" => |x| numpy::logaddexp(&x[0], &x[1]);
        "jnp.hypot(x, y)" => |x| numpy::hypot(&x[0], &x[1]);
        "jnp.where(x < y, x, y)" => |x| where_(x[0].less(&x[1]), &x[0], &x[1]);
        "jnp.remainder(x, y)" => |x| &x[0] % &x[1];
        "jnp.floor_divide(x, y)" => |x| numpy::floor_divide(&x[0], &x[1]);
        "jnp.dot(x, y)" => |x| x[0].dot(&x[1]);
    });
}

fn reductions(rows: &mut Vec<Row>) {
    // Over all elements, and over each axis of a matrix, because XLA's loops differ.
    others!(rows, Line {
        "jnp.sum(x)" => |x| x[0].sum(..);
        "jnp.max(x)" => |x| x[0].max(..);
        "jnp.argmax(x)" => |x| x[0].argmax(-1);
        "jnp.cumsum(x)" => |x| x[0].cumsum(-1);
    });
    others!(rows, Matrix {
        "jnp.sum(x, 0)" => |x| x[0].sum(0);
        "jnp.sum(x, 1)" => |x| x[0].sum(1);
        "jnp.mean(x, 0)" => |x| x[0].mean(0);
        "jnp.var(x, 0)" => |x| x[0].var(0);
        "jnp.var(x, 1)" => |x| x[0].var(1);
        "jnp.std(x)" => |x| x[0].std(..);
        "jnp.max(x, 0)" => |x| x[0].max(0);
        "jnp.max(x, 1)" => |x| x[0].max(1);
        "jnp.min(x, 1)" => |x| x[0].min(1);
        "jnp.prod(x, 1)" => |x| x[0].prod(1);
        "jnp.argmax(x, 0)" => |x| x[0].argmax(0);
        "jnp.argmin(x, 1)" => |x| x[0].argmin(1);
        "jnp.any(x > 0.5, 1)" => |x| x[0].greater(0.5).any(1);
        "jax.nn.logsumexp(x, 1)" => |x| nn::logsumexp(&x[0], 1);
        "jax.nn.softmax(x, 0)" => |x| nn::softmax(&x[0], 0);
        "jnp.cumsum(x, 0)" => |x| x[0].cumsum(0);
        "jnp.cumsum(x, 1)" => |x| x[0].cumsum(1);
        "jnp.cumprod(x, 0)" => |x| x[0].cumprod(0);
        "jax.lax.cummax(x, 0)" => |x| x[0].cummax(0);
        "jax.lax.cumlogsumexp(x, 0)" => |x| lax::cumlogsumexp(&x[0], 0);
    });
}

fn orders_and_moves(rows: &mut Vec<Row>) {
    others!(rows, Line {
        "jnp.sort(x)" => |x| x[0].sort(-1);
        "jnp.argsort(x)" => |x| x[0].argsort(-1);
        "jnp.median(x)" => |x| numpy::median(&x[0], ..);
        "jnp.flip(x)" => |x| x[0].flip(-1);
        "jnp.roll(x, 5)" => |x| numpy::roll(&x[0], 5, -1);
        "jnp.diff(x)" => |x| numpy::diff(&x[0], 1, -1);
        "jnp.histogram(x, 20)[0]" => |x| numpy::histogram(&x[0], 20).0;
    });
    others!(rows, Integers {
        "jnp.sort(x)" => |x| x[0].sort(-1);
        "jnp.unique(x, size=1000)" => |x| numpy::unique(&x[0], 1000);
        "jnp.bincount(x, length=1000)" => |x| numpy::bincount(&x[0], 1000);
        "jnp.cumsum(x)" => |x| x[0].cumsum(-1);
        "jnp.sum(x)" => |x| x[0].sum(..);
        "x // 7" => |x| numpy::floor_divide(&x[0], 7);
        "x % 7" => |x| &x[0] % 7;
        "jax.nn.one_hot(x[:32], 1000)" => |x| nn::one_hot(lax::slice_in_dim(&x[0], 0, 32, 0), 1000);
    });
    others!(rows, Matrix {
        "x.T + 0" => |x| x[0].t() + 0;
        "jnp.sort(x, 0)" => |x| x[0].sort(0);
        "jnp.sort(x, 1)" => |x| x[0].sort(1);
        "jnp.argsort(x, 0)" => |x| x[0].argsort(0);
        "jnp.argsort(x, 1)" => |x| x[0].argsort(1);
        "jax.lax.top_k(x, 5)[0]" => |x| lax::top_k(&x[0], 5).0;
        "jnp.median(x, 1)" => |x| numpy::median(&x[0], 1);
        "jnp.concatenate([x, x], 1)" => |x| concatenate([&x[0], &x[0]], 1);
        "jnp.tril(x)" => |x| x[0].tril(0);
        "jnp.repeat(x, 2, 0)" => |x| numpy::repeat(&x[0], 2, 0);
        "jnp.tile(x, (1, 2))" => |x| numpy::tile(&x[0], &[1, 2]);
        "x[::2, ::2]" => |x| x[0].at(s![..; 2, ..; 2]).get();
    });
}

fn products(rows: &mut Vec<Row>) {
    // Transposed operands have rows of their own, because XLA can choose another kernel for them.
    others!(rows, Product {
        "x @ y" => |x| x[0].matmul(&x[1]);
        "x.T @ y" => |x| x[0].t().matmul(&x[1]);
        "x @ y.T" => |x| x[0].matmul(x[1].t());
        "x @ y[0]" => |x| x[0].matmul(x[1].at(0).get());
        "jnp.kron(x[:8, :8], y[:32, :32])" => |x| {
            numpy::kron(corner(&x[0], 8), corner(&x[1], 32))
        };
    });
    others!(rows, Product16 {
        "x @ y" => |x| x[0].matmul(&x[1]);
        "x.T @ y" => |x| x[0].t().matmul(&x[1]);
        "x @ y.T" => |x| x[0].matmul(x[1].t());
    });
    others!(rows, Product8 {
        "jnp.matmul(x, y, preferred_element_type=jnp.int32)" => |x| int32().matmul(&x[0], &x[1]);
        "jnp.matmul(x.T, y, preferred_element_type=jnp.int32)" => |x| int32().matmul(&x[0].t(), &x[1]);
        "jnp.matmul(x, y.T, preferred_element_type=jnp.int32)" => |x| int32().matmul(&x[0], &x[1].t());
    });
    same_names!(rows, Line, "jnp.fft", fft { fft rfft });
}

/// The first `n` rows and columns of a matrix, or as many as it has.
fn corner(x: &Array, n: usize) -> Array {
    let rows = lax::slice_in_dim(x, 0, n.min(x.shape()[0]), 0);
    lax::slice_in_dim(&rows, 0, n.min(x.shape()[1]), 1)
}

/// The computations of the layers of networks.
fn layers(rows: &mut Vec<Row>) {
    // JAX's expressions use only `jax` and `jnp`, so that the census needs no Flax.
    others!(rows, Images {
        "jax.lax.conv_general_dilated(x, y, (1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))" => |x| convolution(x, 1);
        "jax.lax.conv_general_dilated(x, y, (2, 2), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC'))" => |x| convolution(x, 2);
        "jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID')" => |x| nn::max_pool(&x[0], [2, 2], [2, 2]);
        "jax.lax.reduce_window(x, 0.0, jax.lax.add, (1, 3, 3, 1), (1, 1, 1, 1), 'SAME') / 9" => |x| {
            nn::Pool::new([3, 3]).padding(lax::Padding::Same).avg(&x[0])
        };
        "jax.nn.standardize(x, (0, 1, 2))" => |x| nn::standardize(&x[0], [0, 1, 2]);
        "jax.image.resize(x, (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3]), 'bilinear')" => |x| {
            let [n, height, width, channels] = [0, 1, 2, 3].map(|axis| x[0].shape()[axis]);
            image::resize(&x[0], [n, 2 * height, 2 * width, channels], image::ResizeMethod::Linear)
        };
        "jnp.mean(x, (1, 2))" => |x| x[0].mean([1, 2]);
        "jnp.transpose(x, (0, 3, 1, 2)) + 0" => |x| x[0].transpose([0, 3, 1, 2]) + 0;
        "jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))" => |x| numpy::pad(&x[0], [(0, 0), (1, 1), (1, 1), (0, 0)], numpy::PadMode::Constant(0.0));
    });
    others!(rows, Sequences {
        "jax.nn.standardize(x)" => |x| nn::standardize(&x[0], -1);
        "x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)" => |x| &x[0] * (x[0].square().mean_keepdims(-1) + 1e-6).rsqrt();
        "jax.nn.gelu(x @ y)" => |x| nn::gelu(x[0].matmul(&x[1]));
        "jax.nn.silu(x @ y) * (x @ y.T)" => |x| nn::silu(x[0].matmul(&x[1])) * x[0].matmul(x[1].t());
        "jnp.einsum('bld,bmd->blm', x, x)" => |x| einsum("bld,bmd->blm", &[&x[0], &x[0]]);
        "jax.nn.dot_product_attention(*3 * (x.reshape(*x.shape[:2], 4, -1),), is_causal=True)" => |x| {
            let heads = x[0].reshape([x[0].shape()[0], x[0].shape()[1], 4, x[0].shape()[2] / 4]);
            shardax_nn::AttentionOptions::new().is_causal(true).dot_product_attention(&heads, &heads, &heads)
        };
        "-jnp.mean(jax.nn.log_softmax(x @ y)[..., 0])" => |x| -nn::log_softmax(x[0].matmul(&x[1]), -1).get((.., .., 0)).mean(..);
        "y[(jnp.abs(x[..., 0]) * 4).astype(int)]" => |x| x[1].get((x[0].get((.., .., 0)).abs() * 4).astype(DType::I32));
        "jax.ops.segment_sum(x[0], (jnp.abs(x[0, :, 0]) * 4).astype(int), 4)" => |x| {
            let row = x[0].get(0);
            numpy::segment_sum(&row, (row.get((.., 0)).abs() * 4).astype(DType::I32), 4)
        };
        "jnp.abs(x[:, :, None] - y).sum(-1)" => |x| (x[0].expand_dims(2) - &x[1]).abs().sum(-1);
        "jax.lax.scan(lambda h, x: 2 * (jnp.tanh(x + h @ y),), 0 * x[:, 0], jnp.swapaxes(x, 0, 1))[1]" => |x| {
            let weights = x[1].clone();
            scan(move |h: Array, x: Array| {
                let h = (x + h.matmul(&weights)).tanh();
                Ok((h.clone(), h))
            }, x[0].get((.., 0)) * 0, x[0].swapaxes(0, 1)).map_or_else(|error| Array::from_error(error, &x[0]), |(_, states)| states)
        };
        "jax.vmap(jnp.convolve, (0, None))(x[..., 0], y[0])" => |x| {
            let kernel = x[1].get(0);
            let convolved = vmap(move |row: Array| numpy::convolve(row, &kernel, numpy::ConvolveMode::Full));
            convolved.call(x[0].get((.., .., 0))).unwrap_or_else(|error| Array::from_error(error, &x[0]))
        };
    });
}

fn convolution(x: &[Array], stride: usize) -> Array {
    let options = lax::ConvOptions::new().dimension_numbers("NHWC", "HWIO", "NHWC");
    lax::conv_general_dilated(&x[0], &x[1], [stride, stride], lax::Padding::Same, options)
}

fn int32() -> lax::DotOptions {
    lax::DotOptions::new().preferred_element_type(DType::I32)
}

fn decompositions(rows: &mut Vec<Row>) {
    same_names!(rows, Square, "jnp.linalg", linalg { det inv pinv });
    others!(rows, Square {
        "jnp.linalg.qr(x)[0]" => |x| linalg::qr(&x[0]).0;
        "jnp.linalg.svd(x)[0]" => |x| linalg::svd(&x[0]).0;
        "jnp.linalg.slogdet(x)[1]" => |x| linalg::slogdet(&x[0]).1;
        "jax.scipy.linalg.expm(x)" => |x| scipy::linalg::expm(&x[0]);
    });
    others!(rows, Definite {
        "jnp.linalg.cholesky(x)" => |x| linalg::cholesky(&x[0]);
        "jnp.linalg.eigh(x)[1]" => |x| linalg::eigh(&x[0]).1;
    });
    others!(rows, System { "jnp.linalg.solve(x, y)" => |x| linalg::solve(&x[0], &x[1]); });
    others!(rows, Batch {
        "jnp.linalg.inv(x)" => |x| linalg::inv(&x[0]);
        "jnp.linalg.det(x)" => |x| linalg::det(&x[0]);
        "jnp.linalg.qr(x)[0]" => |x| linalg::qr(&x[0]).0;
        "jnp.linalg.svd(x)[0]" => |x| linalg::svd(&x[0]).0;
        "x @ x" => |x| x[0].matmul(&x[0]);
    });
    others!(rows, DefiniteBatch {
        "jnp.linalg.cholesky(x)" => |x| linalg::cholesky(&x[0]);
        "jnp.linalg.eigh(x)[1]" => |x| linalg::eigh(&x[0]).1;
    });
}
