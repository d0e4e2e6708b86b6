//! Every function on every kind of small array: what it cannot do is an error at the user's line, and what it says it can
//! do it does. Nothing panics.

use std::panic::{AssertUnwindSafe, catch_unwind};

use shardax::prelude::*;
use shardax::{Error, nn};

use crate::common::quick::one_of;

/// Arrays of every kind of dtype, and of shapes with and without elements.
fn arrays() -> Vec<Array> {
    let shapes: [&[usize]; 7] = [&[], &[0], &[1], &[3], &[2, 3], &[0, 3], &[2, 1, 3]];
    let dtypes = [DType::Bool, DType::I32, DType::U8, DType::F32, DType::Bf16, DType::Complex64];
    let mut out = vec![Array::from(2), Array::from(0.5)];
    for shape in shapes {
        for dtype in dtypes {
            out.push((ones_dtype(shape, DType::I32)).astype(dtype));
        }
    }
    out.extend([random::key(0), random::split(random::key(0), 3)]);
    out
}

type Call = Box<dyn Fn(&Array, &Array) -> Result<Array>>;

struct Named {
    name: &'static str,
    takes_two: bool,
    call: Call,
}

macro_rules! functions {
    ($two:literal: $($name:literal $call:expr;)*) => {
        vec![$({
            let f: fn(&Array, &Array) -> Result<Array> = $call;
            Named { name: $name, takes_two: $two, call: Box::new(f) }
        }),*]
    };
}

fn of_one() -> Vec<Named> {
    macro_rules! plain {
        ($($name:ident)*) => {
            vec![$(Named { name: stringify!($name), takes_two: false, call: Box::new(|x, _| Ok(x.$name())) }),*]
        };
    }
    plain! {
        negative abs sign square exp exp2 expm1 log log2 log10 log1p sqrt rsqrt cbrt sin cos tan arcsin arccos arctan
        sinh cosh tanh arcsinh arccosh arctanh logistic erf erfc erf_inv lgamma digamma floor ceil round trunc isfinite isnan
        isinf bitwise_not logical_not population_count clz real imag conj ravel t mt
    }
}

fn of_axis() -> Vec<Named> {
    macro_rules! along {
        ($($name:ident)*) => {
            (-3..=3).flat_map(|axis: i32| -> Vec<Named> {
                vec![$(Named { name: stringify!($name), takes_two: false, call: Box::new(move |x, _| Ok(x.$name(axis))) }),*]
            }).collect()
        };
    }
    along! {
        sum prod mean var std max min all any argmax argmin logsumexp sort argsort sort_descending argsort_descending cumsum
        cumprod cummax cummin flip squeeze expand_dims flatten_from
    }
}

fn of_one_more() -> Vec<Named> {
    // The flag says whether the function has a second operand.
    functions! { false:
        "softmax" |x, _| Ok(nn::softmax(x, -1));
        "one_hot" |x, _| Ok(nn::one_hot(x, 3));
        "roll" |x, _| Ok(x.roll(i64::MIN, 0));
        "split" |x, _| Ok(x.split(3, -1)?.swap_remove(0));
        "fold_in" |x, _| Ok(random::fold_in(&random::key(0), x));
        "key" |x, _| Ok(random::key(x));
        "jacfwd" |x, _| jacfwd(|x: Array| x.sin()).call(x);
        "jacrev" |x, _| jacrev(|x: Array| x.sin()).call(x);
        "relu" |x, _| Ok(nn::relu(x));
        "gelu" |x, _| Ok(nn::gelu(x));
        "silu" |x, _| Ok(nn::silu(x));
        "softplus" |x, _| Ok(nn::softplus(x));
        "elu" |x, _| Ok(nn::elu(x, 1.0));
        "leaky_relu" |x, _| Ok(nn::leaky_relu(x, 0.1));
        "glu" |x, _| Ok(nn::glu(x, -1));
        "log_softmax" |x, _| Ok(nn::log_softmax(x, 0));
        "max_pool" |x, _| Ok(nn::max_pool(x, [2], [2]));
        "avg_pool" |x, _| Ok(nn::avg_pool(x, [1], [1]));
        "conv" |x, _| Ok(nn::conv(x, ones([1, 3, 2]), [1], nn_padding()));
        "normal" |x, _| Ok(random::normal(x, [3]));
        "split key" |x, _| Ok(random::split(x, 2));
        "categorical" |x, _| Ok(random::categorical(&random::key(0), x, -1));
        "permutation" |x, _| Ok(random::permutation(&random::key(0), x));
        "choice" |x, _| Ok(random::choice(&random::key(0), x, [2]));
        "bernoulli" |x, _| Ok(random::bernoulli(&random::key(0), x, [2, 3]));
        "randint" |x, _| Ok(random::randint(&random::key(0), [3], 0, x));
        "truncated_normal" |x, _| Ok(random::truncated_normal(&random::key(0), x, 2, [3]));
        "top_k" |x, _| Ok(lax::top_k(x, 2).0);
        "dynamic_slice_in_dim" |x, _| Ok(lax::dynamic_slice_in_dim(x, 1, 1, 0));
        "associative_scan" |x, _| associative_scan(|a: Array, b: Array| a + b, x.clone());
        "while_loop" |x, _| while_loop(|x: Array| x.less(9).all(..), |x| x + 4, x.clone());
        "hessian" |x, _| hessian(|x: Array| (&x * &x).sum(..)).call(x);
        "unstack" |x, _| Ok(x.iter().next().unwrap_or_else(|| x.clone()));
    }
}

fn nn_padding() -> lax::Padding {
    lax::Padding::Same
}

fn of_two() -> Vec<Named> {
    // The flag says whether the function has a second operand.
    functions! { true:
        "add" |x, y| Ok(x + y);
        "subtract" |x, y| Ok(x - y);
        "multiply" |x, y| Ok(x * y);
        "divide" |x, y| Ok(x / y);
        "remainder" |x, y| Ok(x % y);
        "floor_divide" |x, y| Ok(floor_divide(x, y));
        "fmod" |x, y| Ok(fmod(x, y));
        "power" |x, y| Ok(x.pow(y));
        "arctan2" |x, y| Ok(arctan2(x, y));
        "maximum" |x, y| Ok(x.maximum(y));
        "minimum" |x, y| Ok(x.minimum(y));
        "and" |x, y| Ok(x & y);
        "or" |x, y| Ok(x | y);
        "xor" |x, y| Ok(x ^ y);
        "shl" |x, y| Ok(x << y);
        "shr" |x, y| Ok(x >> y);
        "equal" |x, y| Ok(x.equal(y));
        "less" |x, y| Ok(x.less(y));
        "where" |x, y| Ok(where_(x, y, x));
        "clip" |x, y| Ok(x.clip(y, y));
        "complex" |x, y| Ok(complex(x, y));
        "dot" |x, y| Ok(x.dot(y));
        "matmul" |x, y| Ok(x.matmul(y));
        "outer" |x, y| Ok(outer(x, y));
        "concatenate" |x, y| Ok(concatenate(&[x.clone(), y.clone()], 0));
        "stack" |x, y| Ok(stack(&[x.clone(), y.clone()], -1));
        "broadcast_to" |x, y| Ok(x.broadcast_to(y.shape()));
        "reshape" |x, y| Ok(x.reshape(y.shape()));
        "get" |x, y| Ok(x.get(y));
        "set" |x, y| Ok(x.at(0).set(y));
        "add at" |x, y| Ok(x.at(y).add(1));
        "take" |x, y| Ok(x.take(y, 0));
        "take_along_axis" |x, y| Ok(x.take_along_axis(y, 0));
        "searchsorted" |x, y| Ok(x.searchsorted(y));
        "full_like" |x, y| Ok(full_like(x, y));
        "cond" |x, y| cond(x, |y: Array| y, |y: Array| -y, y.clone());
        "scan" |x, y| Ok(scan(|c: Array, x: Array| (c + x, ()), y.clone(), x.clone())?.0);
        "fori_loop" |x, y| fori_loop(0, x, |i, y: Array| y + i, y.clone());
        "vmap" |x, y| vmap(|x: Array, y: Array| x * y).call((x, y));
        "grad" |x, y| grad(|x: Array, y: Array| (x * y).sum(..)).call((x, y));
        "jvp" |x, y| Ok(jvp(|x: Array| x.sin(), x, y)?.1);
    }
}

/// The fault of `f`'s error, run as `how`; `None` for a good one.
fn problem(how: &str, f: impl FnOnce() -> Result<Array>) -> Option<String> {
    let error: Error = match catch_unwind(AssertUnwindSafe(f)) {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            return Some(format!(
                "{how}: panics: {}",
                text.or(panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default()
            ));
        }
        Ok(Ok(_)) => return None,
        Ok(Err(error)) => error,
    };
    if error.kind() == shardax::ErrorKind::Runtime {
        return Some(format!("{how}: {error}"));
    }
    if error.location().is_none_or(|l| !l.file().contains("tests/errors/grid.rs")) {
        return Some(format!("{how}: not at the user's line: {error}"));
    }
    if error.help_text().is_none() {
        return Some(format!("{how}: no help: {error}"));
    }
    None
}

/// The fault of `f`'s trace; every operation it records must be at the user's line.
fn traced(f: &impl Fn(Array, Array) -> Result<Array>, x: &Array, y: &Array) -> Option<String> {
    let mut strange = None;
    let problem = problem("traced", || {
        make_program(f, (x, y))?.for_each_eqn(&mut |eqn| {
            if !eqn.source.file().contains("tests/errors/grid.rs") {
                strange
                    .get_or_insert_with(|| format!("traced: {} is recorded at {}", eqn.primitive.name(), eqn.source));
            }
        });
        Ok(y.clone())
    });
    problem.or(strange)
}

#[test]
fn every_function_on_every_kind_of_array() {
    crate::common::quick::setup();
    let arrays = arrays();
    let mut problems: std::collections::BTreeMap<String, String> = Default::default();
    let mut note = |name: &str, x: &Array, y: &Array, p: Option<String>| {
        if let Some(p) = p {
            let head: String = p.lines().next().unwrap_or_default().chars().take(60).collect();
            problems
                .entry(format!("{name}: {head}"))
                .or_insert_with(|| format!("{name}({}, {}): {p}", x.type_name(), y.type_name()));
        }
    };
    let mut count = 0;
    let scalar = Array::from(1);
    for (number, f) in of_one().iter().chain(&of_one_more()).chain(&of_axis()).chain(&of_two()).enumerate() {
        let second_arguments = if f.takes_two { arrays.as_slice() } else { std::slice::from_ref(&scalar) };
        // Functions of two arrays have 2,000 pairs. Of these, the slices of different functions have different ones, and each has
        // every array as first and as second argument.
        let every = if f.takes_two { one_of(14) } else { 1 };
        let pairs = arrays.iter().flat_map(|x| second_arguments.iter().map(move |y| (x, y)));
        for (x, y) in pairs.skip(number % every).step_by(every) {
            count += 1;
            note(f.name, x, y, traced(&|x: Array, y: Array| (f.call)(&x, &y), x, y));
        }
        // Compiling takes its time: a few are run.
        for x in [ones([2, 3]), arange(0..3)] {
            note(f.name, &x, &scalar, problem("at once", || block_until_ready((f.call)(&x, &scalar)?)));
        }
    }
    println!("{count} calls");
    let problems_found: Vec<String> = problems.into_values().collect();
    assert!(problems_found.is_empty(), "{} problems\n{}", problems_found.len(), problems_found.join("\n"));
}
