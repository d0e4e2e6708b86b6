//! Functions of operands of two dtypes, weakly typed or not: without `jit`, several are one program whose operands have lost their
//! weak types. The result is the same as under `jit`, and has the same type.
//!
//! `cargo test` runs a slice; `SHARDAX_TEST_MIXED_EVERY=1` runs all, and `=8+3` the fourth of eight parts.

use super::sweep::{case, operands, part_of};
use super::table::TABLE;
use super::*;
use crate::common::quick::one_of;

/// `cargo test` runs one of so many combinations. It shares no factor with the number of pairs.
const EVERY: usize = 401;

/// The dtypes of `x` and `y`; `true` if they are weakly typed.
const PAIRS: [[(DType, bool); 2]; 12] = [
    [(DType::Bf16, false), (DType::F32, true)],
    [(DType::F32, true), (DType::Bf16, false)],
    [(DType::F16, false), (DType::I32, true)],
    [(DType::I32, true), (DType::F16, false)],
    [(DType::Bf16, false), (DType::F32, false)],
    [(DType::F16, false), (DType::Bf16, false)],
    [(DType::I32, false), (DType::F32, true)],
    [(DType::I8, false), (DType::I32, true)],
    [(DType::F32, true), (DType::I32, true)],
    [(DType::Bool, false), (DType::F32, true)],
    [(DType::U8, false), (DType::Bf16, false)],
    [(DType::F32, true), (DType::F32, false)],
];

fn is_close(a: f64, b: f64, dtype: DType) -> bool {
    // Programs round half precision at other places.
    let tolerance = if dtype.is_inexact() && dtype.bits() <= 16 { 0.05 } else { 2e-5 };
    a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * (1.0 + b.abs())
}

fn compare(name: &str, eager: &Array, jitted: &Array) -> Option<String> {
    fn words(x: &Array) -> Array {
        if x.dtype().is_key() { random::key_data(x) } else { x.clone() }
    }
    let [eager, jitted] = [eager, jitted].map(words);
    let types = [&eager, &jitted].map(|x| (x.type_name(), x.weak_type()));
    if types[0] != types[1] {
        return Some(format!("{name}: {:?} without jit, {:?} with it", types[0], types[1]));
    }
    let (Ok(a), Ok(b)) = (eager.to_f64_vec(), jitted.to_f64_vec()) else {
        return Some(format!("{name}: cannot be read"));
    };
    let differs = a.iter().zip(&b).any(|(a, b)| !is_close(*a, *b, eager.dtype()));
    differs.then(|| format!("{name}: {a:?} without jit, {b:?} with it"))
}

#[test]
fn functions_of_mixed_dtypes_are_the_same_without_jit() {
    setup();
    let requested = std::env::var("SHARDAX_TEST_MIXED_EVERY").ok();
    let (every, part) = requested.as_deref().and_then(part_of).unwrap_or((EVERY * one_of(8), 0));
    let (mut equal, mut errors, mut failures) = (0, 0, Vec::new());
    for (p, pair) in PAIRS.iter().enumerate() {
        let mut xs = operands([4, 8], DType::F32);
        for (x, (dtype, weak)) in xs.iter_mut().zip(pair) {
            *x = (&*x * 4.0f32).astype(*dtype).with_weak_type(*weak);
        }
        for (t, (name, call)) in TABLE.iter().enumerate() {
            if (t * 31 + p * 7) % every != part {
                continue;
            }
            let path = format!("{name} of {pair:?}");
            let eager = call(&case(&xs, 0)).and_then(|ys| ys.iter().try_for_each(Array::check).map(|()| ys));
            let jitted = jit(|xs: Vec<Array>| call(&case(&xs, 0))).call(xs.clone());
            match (eager, jitted) {
                (Ok(eager), Ok(jitted)) => {
                    equal += 1;
                    let found = eager.iter().zip(&jitted).filter_map(|(a, b)| compare(&path, a, b));
                    failures.extend(found.inspect(|failure| eprintln!("failure {failure}")));
                }
                (Err(error), Ok(_)) => failures.push(format!("{path}: without jit {error}")),
                // Functions that read values are not traced.
                (_, Err(_)) => errors += 1,
            }
        }
    }
    eprintln!("functions of mixed dtypes: {equal} compared, {errors} rejected");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}
