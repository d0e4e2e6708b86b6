//! Type promotion, from `promotion.json`.
//!
//! JAX has two modes. shardax has one: arrays keep the dtype that they were made with, 64 bits included, as with
//! `jax_enable_x64`; plain numbers, and results without a dtype of their own, have 32 bits, as without it. So pairs of arrays
//! are compared with the table of the 64-bit mode, and so is all that has operands of 64 bits; a weak result, having the
//! width of a plain number, is narrowed. What has a plain number, and functions of one array, are compared with the
//! 32-bit mode.

use std::cell::RefCell;

use serde_json::Value;
use shardax::dtype::{Category, promote};
use shardax::prelude::*;
use shardax::{nn, numpy as np};

use super::{dtype, golden_dir};

/// A dtype and whether it is weak.
type Type = (DType, bool);

const WEAK: [(&str, DType); 3] = [("i*", DType::I32), ("f*", DType::F32), ("c*", DType::Complex64)];

/// The type that an operand's name stands for.
fn type_named(name: &str) -> Type {
    match WEAK.iter().find(|(weak, _)| *weak == name) {
        Some((_, dtype)) => (*dtype, true),
        None => (dtype(name), false),
    }
}

/// Deliberate differences: the results' types of a function of these types, and the reason.
fn different(function: &str, operands: &[&str]) -> Option<(Option<Vec<Type>>, &'static str)> {
    // Groups of functions that share a reason.
    let named = |names: &str| names.split(' ').any(|name| name == function);
    fn has_any(category: &[Category], operands: &[&str]) -> bool {
        operands.iter().any(|name| category.contains(&type_named(name).0.category()))
    }
    let (first, second) = (type_named(operands[0]), type_named(operands[operands.len() - 1]));
    let exact = matches!(first.0.category(), Category::Signed | Category::Unsigned);
    let narrow = |name: &&str| ["i8", "i16", "u8", "u16"].contains(name);
    let ordered = "argmax argmin max min maximum minimum less relu relu6 elu celu selu leaky_relu hard_tanh hard_sigmoid \
                   softmax log_softmax lax_clamp lax_cummax lax_cumlogsumexp \
                   lax_reduce_window_max max_pool searchsorted top_k";
    let stored = match function {
        "at_set_array" => Some(second),
        "at_set" | "at_add" => Some((DType::I32, true)),
        _ => None,
    };
    if stored.is_some_and(|value| !promote((first.0, false), value).is_ok_and(|(dtype, _)| dtype == first.0)) {
        return Some((None, "JAX warns that it will reject an update that is wider than the array"));
    }
    fn result(dtype: DType, weak: bool, why: &str) -> Option<(Option<Vec<(DType, bool)>>, &str)> {
        Some((Some(vec![(dtype, weak)]), why))
    }
    match function {
        _ if ordered.split_whitespace().any(|name| name == function) && has_any(&[Category::Complex], operands) => {
            Some((None, "complex numbers have no order"))
        }
        _ if named("argmax argmin argsort") && first.0.byte_size() >= 8 => {
            result(DType::I32, false, "indices have 32 bits")
        }
        "one_hot" => result(DType::F32, false, "float32, as is said"),
        _ if named("isnan isfinite equal less") => result(DType::Bool, false, "a boolean is never weak"),
        "lax_clamp" if first.1 => result(first.0, true, "the bounds are plain numbers here"),
        "lax_cumlogsumexp" if exact => Some((None, "JAX returns integers")),
        "lax_cummax" if first.0 == DType::Bool => result(DType::Bool, false, "booleans have an order"),
        _ if named("diagonal dynamic_update_slice") && first.1 => result(first.0, true, "parts have the array's type"),
        "top_k" if first.1 => Some((Some(vec![first, (DType::I32, false)]), "indices do not give way")),
        "around_1" | "around_minus_1" if first.1 && first.0.is_inexact() => {
            result(first.0, true, "rounding keeps the type")
        }
        _ if named("matmul dot inner vdot") && operands.iter().any(narrow) && operands.contains(&"i*") => {
            let (dtype, weak) = promote(first, second).ok()?;
            result(dtype, weak, "JAX rejects a narrow integer with a plain one")
        }
        "logaddexp" if operands.contains(&"c*") && operands.iter().any(|name| ["i64", "u64"].contains(name)) => {
            result(DType::Complex64, false, "a plain number has 32 bits")
        }
        "quarter_to_the" if first.0.is_integer() => {
            result(DType::F32, first.1, "a plain number has 32 bits, and to a plain power it stays plain")
        }
        "power" if first.1 && first.0.is_inexact() && second.0.is_integer() && !second.1 => {
            result(first.0, false, "a plain number has 32 bits")
        }
        _ => None,
    }
}

/// Integers that JAX rejects are converted to floats, as by `exp`.
fn as_exp(function: &str, operand: &str) -> bool {
    ["sigmoid", "silu", "glu"].contains(&function) && type_named(operand).0.category() < Category::Float
}

/// An array of this type.
fn operand(name: &str, shape: &[usize]) -> Array {
    match WEAK.iter().find(|(weak, _)| *weak == name) {
        Some((_, DType::I32)) => Array::from(1).broadcast_to(shape),
        Some((_, DType::F32)) => Array::from(1.0).broadcast_to(shape),
        Some(_) => np::complex(1.0, 0.0).broadcast_to(shape),
        None => ones_dtype(shape, dtype(name)),
    }
}

/// The results of a function, after checking that none of them failed.
trait Results {
    fn results(self) -> Result<Vec<Array>>;
}

impl Results for Array {
    fn results(self) -> Result<Vec<Array>> {
        self.check().map(|()| vec![self])
    }
}

impl Results for (Array, Array) {
    fn results(self) -> Result<Vec<Array>> {
        vec![self.0, self.1].results()
    }
}

impl Results for Vec<Array> {
    fn results(self) -> Result<Vec<Array>> {
        self.iter().try_for_each(Array::check).map(|()| self)
    }
}

impl<R: Results> Results for Result<R> {
    fn results(self) -> Result<Vec<Array>> {
        self.and_then(R::results)
    }
}

/// The functions whose result's type is compared: names as in `promotion.json`.
macro_rules! functions {
    (fn $table:ident($($x:ident),*); $($name:ident => $call:expr;)*) => {
        fn $table(name: &str, $($x: &Array),*) -> Option<Result<Vec<Array>>> {
            match name {
                $(stringify!($name) => Some(Results::results($call)),)*
                _ => None,
            }
        }
    };
}

functions! {
    fn of_one(x);
    sum => x.sum(..);
    prod => x.prod(..);
    cumsum => x.cumsum(..);
    cumprod => x.cumprod(..);
    mean => x.mean(..);
    var => x.var(..);
    std => x.std(..);
    max => x.max(..);
    min => x.min(..);
    argmax => x.argmax(..);
    argmin => x.argmin(..);
    all => x.all(..);
    any => x.any(..);
    negative => -x;
    abs => x.abs();
    sign => x.sign();
    square => x.square();
    reciprocal => x.reciprocal();
    exp => x.exp();
    exp2 => x.exp2();
    expm1 => x.expm1();
    log => x.log();
    log2 => x.log2();
    log10 => x.log10();
    log1p => x.log1p();
    sqrt => x.sqrt();
    cbrt => x.cbrt();
    sin => x.sin();
    cos => x.cos();
    tan => x.tan();
    arcsin => x.arcsin();
    arccos => x.arccos();
    arctan => x.arctan();
    sinh => x.sinh();
    cosh => x.cosh();
    tanh => x.tanh();
    arcsinh => x.arcsinh();
    arccosh => x.arccosh();
    arctanh => x.arctanh();
    floor => x.floor();
    ceil => x.ceil();
    round => x.round();
    trunc => x.trunc();
    isfinite => x.isfinite();
    isnan => x.isnan();
    isinf => x.isinf();
    bitwise_not => x.bitwise_not();
    logical_not => x.logical_not();
    real => x.real();
    imag => x.imag();
    conj => x.conj();
    zeros_like => zeros_like(x);
    ones_like => ones_like(x);
    sort => x.sort(0);
    argsort => x.argsort(0);
    ravel => x.ravel();
    population_count => x.population_count();
    clz => x.clz();
    erf => x.erf();
    erfc => x.erfc();
    erf_inv => x.erf_inv();
    lgamma => x.lgamma();
    digamma => x.digamma();
    logistic => x.logistic();
    relu => nn::relu(x);
    relu6 => nn::relu6(x);
    gelu => nn::gelu(x);
    gelu_exact => nn::gelu_exact(x);
    silu => nn::silu(x);
    sigmoid => nn::sigmoid(x);
    log_sigmoid => nn::log_sigmoid(x);
    softplus => nn::softplus(x);
    soft_sign => nn::soft_sign(x);
    hard_tanh => nn::hard_tanh(x);
    hard_sigmoid => nn::hard_sigmoid(x);
    selu => nn::selu(x);
    mish => nn::mish(x);
    elu => nn::elu(x, 1.0);
    celu => nn::celu(x, 1.0);
    leaky_relu => nn::leaky_relu(x, 0.01);
    glu => nn::glu(x, 0);
    softmax => nn::softmax(x, -1);
    log_softmax => nn::log_softmax(x, -1);
    logsumexp => x.logsumexp(..);
    clip => x.clip(0, 1);
    clip_float => x.clip(0.5, 1.5);
    lax_clamp => lax::clamp(0, x, 1);
    lax_cumsum => lax::cumsum(x, 0);
    lax_cummax => lax::cummax(x, 0);
    lax_cumlogsumexp => lax::cumlogsumexp(x, 0);
    top_k => lax::top_k(x, 1);
    around_1 => np::around(x, 1);
    around_minus_1 => np::around(x, -1);
    flip => x.flip(0);
    roll => x.roll(1, 0);
    reshape => x.reshape([2, 1]);
    transpose => x.t();
    broadcast_to => x.broadcast_to([3, 2]);
    squeeze => x.expand_dims(0).squeeze(0);
    take => x.take([0], 0);
    get => x.get(0);
    get_slice => x.get(..1);
    get_array => x.get([0, 1]);
    at_set => x.at(0).set(1);
    at_add => x.at(0).add(1);
    at_get_fill => x.at([5]).fill_value(0).get();
    take_along_axis => x.take_along_axis(&array([0]), 0);
    dynamic_slice => lax::dynamic_slice(x, &[array(0)], &[1]);
    dynamic_update_slice => lax::dynamic_update_slice(x, &x.get(..1), &[array(0)]);
    dynamic_index_in_dim => lax::dynamic_index_in_dim(x, 0, 0);
    pad => np::pad(x, &[(1, 1)], np::PadMode::Constant(0.0));
    pad_edge => np::pad(x, &[(1, 1)], np::PadMode::Edge);
    tile => np::tile(x, &[2]);
    repeat => np::repeat(x, 2, 0);
    diag => np::diag(x, 0);
    split => x.split(2, 0);
    concatenate => concatenate(&[x.clone(), x.clone()], 0);
    stack => stack(&[x.clone(), x.clone()], 0);
    full_like => np::full_like(x, 1);
    one_hot => nn::one_hot(x, 2);
    lax_rev => lax::rev(x, &[0]);
    lax_sort => lax::sort(std::slice::from_ref(x), 0, 1);
    plus_int => x + 1;
    plus_float => x + 1.5;
    int_pow => x.pow(2);
    float_pow => x.pow(0.5);
    quarter_to_the => np::power(0.25, x);
    two_to_the => np::power(2, x);
    where_int => np::where_(true, x, 0);
    lax_reduce_window_max => lax::reduce_window_max(x, [2]);
    scan_sum => scan(|c: Array, v: Array| (&c + v, c), x.get(0), x.clone());
    fori_loop => fori_loop(0, 3, |_, c: Array| c, x.clone());
    cond => cond(true, |v: Array| v, |v: Array| v, x.clone());
    stop_gradient => stop_gradient(x.clone());
    det => linalg::det(x);
    slogdet => linalg::slogdet(x);
    cholesky => linalg::cholesky(x);
    qr => linalg::qr(x);
    eigh => linalg::eigh(x);
    inv => linalg::inv(x);
    norm => linalg::norm(x, linalg::NormOrder::default(), ..);
    matrix_power => linalg::matrix_power(x, 2);
    solve => linalg::solve(x, x);
    trace => x.trace();
    tril => x.tril(0);
    diagonal => x.diagonal(0, 0, 1);
    einsum => np::einsum("ij,jk->ik", &[x, x]);
    max_pool => lax::reduce_window_max(x, [2, 2]);
}

functions! {
    fn of_two(x, y);
    add => x + y;
    subtract => x - y;
    multiply => x * y;
    divide => x / y;
    floor_divide => np::floor_divide(x, y);
    remainder => np::remainder(x, y);
    fmod => np::fmod(x, y);
    power => np::power(x, y);
    maximum => x.maximum(y);
    minimum => x.minimum(y);
    arctan2 => np::arctan2(x, y);
    logaddexp => np::logaddexp(x, y);
    nextafter => np::nextafter(x, y);
    bitwise_and => x & y;
    bitwise_or => x | y;
    bitwise_xor => x ^ y;
    left_shift => x << y;
    right_shift => x >> y;
    equal => x.equal(y);
    less => x.less(y);
    dot => x.dot(y);
    matmul => x.matmul(y);
    inner => np::inner(x, y);
    outer => np::outer(x, y);
    vdot => np::vdot(x, y);
    searchsorted => x.searchsorted(y);
    where => np::where_(true, x, y);
    concatenate_two => concatenate(&[x.clone(), y.clone()], 0);
    at_set_array => x.at(..).set(y);
    clip_array => x.clip(y, y);
}

/// A random function's dtype argument.
fn random_of(name: &str, dtype: DType) -> Option<Result<Vec<Array>>> {
    let key = random::key(0);
    let result = match name {
        "bits_dtype" => random::bits_dtype(&key, 2, dtype),
        "uniform_dtype" => random::uniform_dtype(&key, 2, dtype, 0.0, 1.0),
        "normal_dtype" => random::normal_dtype(&key, 2, dtype),
        "truncated_normal_dtype" => random::truncated_normal_dtype(&key, -1, 1, 2, dtype),
        "gumbel_dtype" => random::gumbel_dtype(&key, 2, dtype),
        "exponential_dtype" => random::exponential_dtype(&key, 2, dtype),
        "laplace_dtype" => random::laplace_dtype(&key, 2, dtype),
        "logistic_dtype" => random::logistic_dtype(&key, 2, dtype),
        "cauchy_dtype" => random::cauchy_dtype(&key, 2, dtype),
        "rademacher_dtype" => random::rademacher_dtype(&key, 2, dtype),
        "randint_dtype" => random::randint_dtype(&key, 2, 0, 5, dtype),
        "orthogonal_dtype" => random::orthogonal_dtype(&key, [2, 2], (), dtype),
        _ => return None,
    };
    Some(result.results())
}

/// The types of results; nothing where the call is rejected. Nothing is computed.
fn types_of(f: impl Fn() -> Option<Result<Vec<Array>>>) -> Option<Vec<Type>> {
    let observed = RefCell::new(None);
    let traced = eval_shape(
        |x: Array| -> Result<Array> {
            let results = f().expect("a function of this name")?;
            *observed.borrow_mut() = Some(results.iter().map(|y| (y.dtype(), y.weak_type())).collect());
            Ok(x)
        },
        zeros(1),
    );
    traced.ok().and_then(|_| observed.into_inner())
}

/// The dtype of 32 bits for a dtype of 64 bits.
fn with_32_bits(d: DType) -> DType {
    match d {
        DType::I64 => DType::I32,
        DType::F64 => DType::F32,
        DType::Complex128 => DType::Complex64,
        d => d,
    }
}

/// JAX's types, in shardax's widths.
fn wanted(entry: &Value) -> Option<Vec<Type>> {
    fn type_of(entry: &Value) -> Option<Type> {
        let (name, weak) = (entry[0].as_str()?, entry[1].as_bool()?);
        Some(if weak { (with_32_bits(dtype(name)), true) } else { (dtype(name), false) })
    }
    if entry.get(0)?.is_array() { entry.as_array()?.iter().map(type_of).collect() } else { Some(vec![type_of(entry)?]) }
}

/// A uint32 with a signed integer is an int64, as in the 64-bit mode.
fn is_signed(name: &str) -> bool {
    ["i8", "i16", "i32"].contains(&name)
}

pub fn check() {
    let text = std::fs::read_to_string(golden_dir().join("promotion.json")).expect("promotion.json");
    let tables: Value = serde_json::from_str(&text).expect("promotion.json");
    let types: Vec<&str> = tables["x64"]["types"].as_array().expect("types").iter().filter_map(Value::as_str).collect();
    let mode = |operands: &[&str]| {
        let narrow = operands.iter().all(|name| tables["x32"]["functions"]["sum"].get(name).is_some());
        let wide = operands.contains(&"u32") && operands.iter().any(|name| is_signed(name));
        if narrow && !wide { "x32" } else { "x64" }
    };
    let mut failures = Vec::new();
    let mut compare = |function: &str, operands: &[&str], got: Option<Vec<Type>>, want: &Value| {
        let want = different(function, operands).map_or_else(|| wanted(want), |(want, _)| want);
        if got != want {
            failures.push(format!("{function} of {}: got {got:?}, want {want:?}", operands.join(" and ")));
        }
    };
    let functions = |kind: &str| tables["x64"][kind].as_object().expect("functions").keys();
    for f in functions("functions") {
        let matrix = tables["x64"]["matrices"].as_array().expect("names").iter().any(|m| m == f);
        let shape: &[usize] = if matrix { &[2, 2] } else { &[2] };
        for a in &types {
            let jax = if as_exp(f, a) { "exp" } else { f };
            compare(f, &[a], types_of(|| of_one(f, &operand(a, shape))), &tables[mode(&[a])]["functions"][jax][a]);
        }
    }
    for f in functions("functions_of_two") {
        for a in &types {
            for b in &types {
                let got = types_of(|| of_two(f, &operand(a, &[2]), &operand(b, &[2])));
                compare(f, &[a, b], got, &tables[mode(&[a, b])]["functions_of_two"][f][a][b]);
            }
        }
    }
    for f in functions("random") {
        for a in types.iter().filter(|a| !a.ends_with('*')) {
            compare(f, &[a], types_of(|| random_of(f, dtype(a))), &tables[mode(&[a])]["random"][f][a]);
        }
    }
    // Elements of 8 bits and fewer, with everything.
    for (a, row) in tables["narrow"].as_object().expect("a table") {
        for (b, want) in row.as_object().expect("a row") {
            let want = wanted(want).map(|types| types[0]);
            for (x, y) in [(a, b), (b, a)] {
                let got = promote(type_named(x), type_named(y)).ok();
                if got != want {
                    failures.push(format!("{x} and {y}: got {got:?}, want {want:?}"));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures in promotion:\n{}", failures.len(), failures.join("\n"));
}
