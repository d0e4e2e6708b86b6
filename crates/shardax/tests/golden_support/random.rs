//! Random numbers and initializers.

use shardax::nn::initializers;
use shardax::prelude::*;

use super::{Case, Fun, many, one};

/// The function with typed keys for JAX's words; functions of `distributions` receive the words themselves.
pub fn function(case: &Case) -> Option<Fun> {
    let f = with_keys(case)?;
    Some(Box::new(move |xs| {
        let mut xs = xs.to_vec();
        if let Some(key) = xs.first_mut().filter(|x| x.dtype() == DType::U32) {
            *key = random::wrap_key_data(&*key);
        }
        fn words(x: Array) -> Array {
            if x.dtype().is_key() { random::key_data(x) } else { x }
        }
        Ok(f(&xs)?.into_iter().map(words).collect())
    }))
}

fn with_keys(case: &Case) -> Option<Fun> {
    // Parameters that several distributions share.
    fn sizes(name: &str, case: &Case) -> Vec<usize> {
        case.ints(name).into_iter().map(|i| i as usize).collect()
    }
    let shape = sizes("shape", case);
    let dtype = case.dtype("dtype").unwrap_or(DType::F32);
    fn number(name: &str, case: &Case) -> Option<f64> {
        case.param(name).as_f64()
    }
    let axis = case.param("axis").as_i64().unwrap_or(-1) as i32;
    fn key(f: Box<dyn Fn(&Array) -> Array>) -> Option<Box<dyn Fn(&[Array]) -> Result<Vec<Array>>>> {
        one(move |k| f(k))
    }
    match (case.op.as_str(), case.doc()) {
        ("key", _) => {
            let seeds = case.ints("seeds");
            many(move |_| Ok(vec![stack(&seeds.iter().map(|&s| random::key(s)).collect::<Vec<_>>(), 0)]))
        }
        ("bits", doc) if doc.starts_with("bits(fold_in") => one(|k| random::bits(&random::fold_in(k, 5), [4])),
        ("bits", _) => one(move |k| random::bits_dtype(k, shape.clone(), dtype)),
        ("split", doc) if doc.starts_with("split(split") => one(|k| random::split(&random::split(k, 2).get(1), 2)),
        ("split", _) => {
            let num = case.param("num").as_u64().map(|n| vec![n as usize]).unwrap_or_else(|| sizes("num", case));
            one(move |k| random::split(k, num.clone()))
        }
        ("fold_in", _) => match case.param("data").as_i64() {
            Some(data) => one(move |k| random::fold_in(k, data)),
            None => many(|xs| Ok(vec![random::fold_in(&xs[0], &xs[1])])),
        },
        ("clone", _) => one(|k| random::clone(k)),
        ("uniform", _) => match (number("minval", case), number("maxval", case)) {
            (Some(min), Some(max)) => one(move |k| random::uniform_dtype(k, shape.clone(), dtype, min, max)),
            _ if case.count("ins") == 3 => {
                many(move |xs| Ok(vec![random::uniform_dtype(&xs[0], shape.clone(), dtype, &xs[1], &xs[2])]))
            }
            _ => one(move |k| random::uniform(k, shape.clone())),
        },
        ("normal", doc) if doc.starts_with("normal(key, [1001])") => one(|k| random::normal(k, [1001]).get(-5..)),
        ("normal", _) if case.name.starts_with("normal_vmapped_keys") => one(|k| {
            let drawn = vmap(|k: Array| random::normal(&k, [2])).call(random::split(k, 3));
            drawn.expect("random numbers from a batch of keys")
        }),
        ("normal", _) => one(move |k| random::normal_dtype(k, shape.clone(), dtype)),
        ("truncated_normal", _) => {
            let (low, high) = (number("lower", case)?, number("upper", case)?);
            one(move |k| random::truncated_normal_dtype(k, low, high, shape.clone(), dtype))
        }
        ("gumbel", _) => key(Box::new(move |k| random::gumbel_dtype(k, shape.clone(), dtype))),
        ("exponential", _) => key(Box::new(move |k| random::exponential_dtype(k, shape.clone(), dtype))),
        ("laplace", _) => key(Box::new(move |k| random::laplace_dtype(k, shape.clone(), dtype))),
        ("logistic", _) => key(Box::new(move |k| random::logistic_dtype(k, shape.clone(), dtype))),
        ("cauchy", _) => key(Box::new(move |k| random::cauchy_dtype(k, shape.clone(), dtype))),
        ("rademacher", _) => key(Box::new(move |k| random::rademacher_dtype(k, shape.clone(), dtype))),
        ("randint", _) => match (case.param("minval").as_i64(), case.param("maxval").as_i64()) {
            (Some(min), Some(max)) => one(move |k| random::randint_dtype(k, shape.clone(), min, max, dtype)),
            _ => many(move |xs| Ok(vec![random::randint_dtype(&xs[0], shape.clone(), &xs[1], &xs[2], dtype)])),
        },
        ("permutation", doc) if doc.starts_with("permutation(key, 3000)") => {
            one(|k| random::permutation(k, 3000).get(..8))
        }
        ("permutation", _) if case.count("ins") == 1 => {
            let n = case.int("n") as usize;
            one(move |k| random::permutation(k, n))
        }
        ("permutation", _) => {
            let (axis, independent) = (axis.max(0), case.flag("independent"));
            many(move |xs| {
                Ok(vec![
                    random::PermutationOptions::new().axis(axis).independent(independent).permutation(&xs[0], &xs[1]),
                ])
            })
        }
        ("bernoulli", _) => match number("p", case) {
            Some(p) => one(move |k| random::bernoulli(k, p, shape.clone())),
            None => many(|xs| Ok(vec![random::bernoulli(&xs[0], &xs[1], xs[1].shape())])),
        },
        ("categorical", _) => {
            let shape = (!shape.is_empty()).then_some(shape);
            many(move |xs| Ok(vec![random::categorical_shape(&xs[0], &xs[1], axis, shape.as_deref())]))
        }
        ("choice", _) => {
            let replace = case.flag("replace");
            let p = case.doc().contains("p is in/1");
            match case.param("a").as_u64() {
                Some(a) if p => many(move |xs| {
                    Ok(vec![random::ChoiceOptions::new().replace(replace).p(&xs[1]).choice(
                        &xs[0],
                        a as usize,
                        shape.clone(),
                    )])
                }),
                Some(a) => {
                    one(move |k| random::ChoiceOptions::new().replace(replace).choice(k, a as usize, shape.clone()))
                }
                None => many(move |xs| {
                    Ok(vec![random::ChoiceOptions::new().replace(replace).choice(&xs[0], &xs[1], shape.clone())])
                }),
            }
        }
        (op, _) => {
            let result = match op.strip_prefix("initializers.")? {
                "lecun_normal" => initializers::lecun_normal(),
                "lecun_uniform" => initializers::lecun_uniform(),
                "he_normal" => initializers::he_normal(),
                "he_uniform" => initializers::he_uniform(),
                "glorot_normal" => initializers::glorot_normal(),
                "glorot_uniform" => initializers::glorot_uniform(),
                "normal" => initializers::normal(0.02),
                "uniform" => initializers::uniform(0.05),
                "orthogonal" => initializers::orthogonal(1.0),
                "truncated_normal" => initializers::truncated_normal(0.02),
                _ => return None,
            };
            one(move |k| result.init(k, &shape, dtype))
        }
    }
}
