//! Arrays whose positions and counts do not fit int32, and of many dimensions.
//!
//! Arrays of 2 to 4 GiB are created one after the other, and only with `SHARDAX_TEST_LARGE=1`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::table::{Case, TABLE};
use super::*;
use crate::common::quick::one_of;

/// Elements of int8 arrays.
const SIZES: [usize; 4] = [(1 << 31) - 1, 1 << 31, (1 << 31) + 1, 1 << 32];

/// The positions of nonzero elements of an array that are known to be few.
fn nonzero_places(x: &Array) -> Result<Vec<(usize, i8)>> {
    x.with_bytes(|bytes| {
        let found = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
        found.map(|(place, byte)| (place, *byte as i8)).take(8).collect()
    })
}

fn one(x: &Array) -> i64 {
    x.to_f64().unwrap() as i64
}

type Check = fn(&Array, i64, bool) -> Result<()>;

/// Runs `f` eagerly or compiled.
fn run<T: Tree>(compiled: bool, f: impl Fn(Array) -> T, x: &Array) -> Result<T> {
    if compiled { jit(f).call(x) } else { Ok(f(x.clone())) }
}

/// Operations on zeros of `n` elements with a 3 at the last position and a 1 at position 5.
const CHECKS: &[(&str, Check)] = &[
    ("at(-1)", |x, n, c| writes(run(c, |x| x.at(-1).set(7), x)?, &[(5, 1), (n - 1, 7)])),
    ("at(n - 1)", |x, n, c| writes(run(c, move |x| x.at(n - 1).add(4), x)?, &[(5, 1), (n - 1, 7)])),
    ("at(n - 1..)", |x, n, c| writes(run(c, move |x| x.at(n - 1..).set(7), x)?, &[(5, 1), (n - 1, 7)])),
    ("at(5)", |x, n, c| writes(run(c, |x| x.at(5).set(7), x)?, &[(5, 7), (n - 1, 3)])),
    ("at(array)", |x, n, c| {
        writes(run(c, move |x| x.at(&array([n - 1, -2])).set(7), x)?, &[(5, 1), (n - 2, 7), (n - 1, 7)])
    }),
    ("at(strided)", |x, n, c| {
        let step = n / 2 - 1;
        writes(run(c, move |x| x.at(s![1..;step]).set(7), x)?, &strided(n, step))
    }),
    ("get", |x, n, c| {
        let f = move |x: Array| {
            (x.get(-1), x.get(n - 1..), x.get(&array([n - 1])), x.get(&array(-1)), x.get(s![n - 1..;-1]).get(0))
        };
        let (a, b, d, e, f) = run(c, f, x)?;
        assert_eq!([one(&a), one(&b), one(&d), one(&e), one(&f)], [3; 5]);
        Ok(())
    }),
    ("take", |x, n, c| {
        let (a, b) = run(c, move |x| (x.take(array([n - 1]), 0), x.take(-1, 0)), x)?;
        assert_eq!([one(&a), one(&b)], [3, 3]);
        Ok(())
    }),
    ("dynamic_slice", |x, n, c| {
        let f = move |x: Array| lax::dynamic_slice(&x, &[array(n - 1)], &[1]);
        assert_eq!(one(&run(c, f, x)?), 3);
        Ok(())
    }),
    ("dynamic_update_slice", |x, n, c| {
        let f = move |x: Array| lax::dynamic_update_slice(&x, &array([7i8]), &[array(n - 1)]);
        writes(run(c, f, x)?, &[(5, 1), (n - 1, 7)])
    }),
    ("argmax", |x, n, c| {
        let (a, b) = run(c, |x| (x.argmax(0), (-x).argmin(..)), x)?;
        assert_eq!([one(&a), one(&b)], [n - 1, n - 1]);
        Ok(())
    }),
    ("count_nonzero", |x, n, c| {
        fn f(x: Array) -> (Array, Array) {
            (shardax::numpy::count_nonzero(x.equal(0), ..), x.less(9).sum(..))
        }
        let (a, b) = run(c, f, x)?;
        assert_eq!([one(&a), one(&b)], [n - 2, n]);
        Ok(())
    }),
    ("sum", |x, _, c| {
        assert_eq!(one(&run(c, |x| x.sum(..), x)?), 4);
        Ok(())
    }),
    ("any, all, max, min", |x, _, c| {
        let (a, b, d, e) = run(c, |x| (x.any(..), x.all(..), x.max(..), x.min(..)), x)?;
        fn truth(x: &Array) -> i64 {
            i64::from(x.item::<bool>().unwrap())
        }
        assert_eq!([truth(&a), truth(&b), one(&d), one(&e)], [1, 0, 3, 0]);
        Ok(())
    }),
    ("searchsorted", |x, n, c| {
        // Sorted but for position 5, which the search does not visit.
        fn f(x: Array) -> (Array, Array) {
            (x.searchsorted(array([2i8, 4])), x.searchsorted_right(array(0i8)))
        }
        let (a, b) = run(c, f, x)?;
        assert_eq!((a.to_f64_vec()?, one(&b)), (vec![(n - 1) as f64, n as f64], n - 1));
        Ok(())
    }),
    ("roll", |x, n, c| writes(run(c, |x| roll(&x, 1, 0), x)?, &[(0, 3), (6, 1)].map(|(p, v)| (p % n, v)))),
    ("flip", |x, n, c| writes(run(c, |x| flip(&x, 0), x)?, &[(0, 3), (n - 6, 1)])),
    ("ref", |x, n, c| {
        let f = move |x: Array| -> Result<Array> {
            let r = new_ref(&x)?;
            r.at(n - 1).set(7)?;
            Ok(r.freeze())
        };
        let y = if c { jit(f).call(x)? } else { f(x.clone())? };
        writes(y, &[(5, 1), (n - 1, 7)])
    }),
    ("scatter", |x, n, c| {
        let f = move |x: Array| x.at(&array([n - 1, n + 3])).mode(lax::GatherScatterMode::FillOrDrop).set(7);
        writes(run(c, f, x)?, &[(5, 1), (n - 1, 7)])
    }),
    ("concatenate, pad", |x, n, c| {
        fn f(x: Array) -> Array {
            concatenate(&[x.get(6..), array([9i8])], 0)
        }
        writes(run(c, f, x)?, &[(n - 7, 3), (n - 6, 9)])
    }),
    ("sort", |x, n, c| writes(run(c, |x| sort(&x, 0), x)?, &[(n - 2, 1), (n - 1, 3)])),
    ("cumsum", |x, n, c| {
        let y = run(c, |x| x.cumsum(0), x)?;
        assert_eq!([4, n - 2, n - 1].map(|place| one(&y.get(place))), [0, 1, 4]);
        Ok(())
    }),
    ("cummax", |x, n, c| {
        let y = run(c, |x| lax::cummax(&x, 0), x)?;
        assert_eq!([4, n - 2, n - 1].map(|place| one(&y.get(place))), [0, 1, 3]);
        Ok(())
    }),
    ("reshape", |x, n, c| {
        let rows = if n % 2 == 0 { 2 } else { 1 };
        let y = run(c, move |x| x.reshape([rows, n / rows]).get((-1, -1)), x)?;
        assert_eq!(one(&y), 3);
        Ok(())
    }),
];

fn strided(n: i64, step: i64) -> Vec<(i64, i8)> {
    let mut all: Vec<(i64, i8)> = (1..n).step_by(step as usize).map(|place| (place, 7)).collect();
    for kept in [(5, 1), (n - 1, 3)] {
        if !all.iter().any(|(place, _)| *place == kept.0) {
            all.push(kept);
        }
    }
    all.sort();
    all
}

fn writes(y: Array, want: &[(i64, i8)]) -> Result<()> {
    y.check()?;
    let want: Vec<(usize, i8)> = want.iter().map(|(place, value)| (*place as usize, *value)).collect();
    assert_eq!(nonzero_places(&y)?, want);
    Ok(())
}

#[test]
fn arrays_of_more_elements_than_int32_counts() {
    setup();
    if std::env::var_os("SHARDAX_TEST_LARGE").is_none() {
        eprintln!("arrays of 2 to 4 GiB are skipped: set SHARDAX_TEST_LARGE=1");
        return;
    }
    let only = std::env::var("SHARDAX_TEST_LARGE_ONLY").unwrap_or_default();
    let mut failures = Vec::new();
    let mut count = 0;
    for n in SIZES {
        let mut values = vec![0i8; n];
        (values[5], values[n - 1]) = (1, 3);
        let x = Array::from_vec(values, &[n]).unwrap();
        for (name, check) in CHECKS {
            for compiled in [false, true] {
                let what = format!("{name} of {n}{}", if compiled { ", compiled" } else { "" });
                if !what.contains(&only) {
                    continue;
                }
                count += 1;
                eprintln!("{what}");
                match catch_unwind(AssertUnwindSafe(|| check(&x, n as i64, compiled))) {
                    Ok(Ok(())) => {}
                    // An error must say what fits.
                    Ok(Err(error)) if error.to_string().contains("int32") => eprintln!("  {error}"),
                    Ok(Err(error)) => failures.push(format!("{what}: {error}")),
                    Err(panic) => {
                        let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                        failures.push(format!("{what}: {text}"));
                    }
                }
            }
        }
    }
    eprintln!("large arrays: {count} checks");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Starts and positions that the dtype of an index could not compare with a dimension of a large array, traced and not run.
#[test]
fn positions_of_large_arrays_are_int64() -> Result<()> {
    setup();
    let n: usize = (1 << 31) + 1;
    let text = |f: fn(Array) -> Array| {
        jit(f).lower(shape_dtype_struct(&[n], DType::I8)).map(|lowered| lowered.as_text().to_owned())
    };
    type F = fn(Array) -> Array;
    let functions: [F; 11] = [
        |x| x.at(-1).set(7),
        |x| x.at(5).set(7),
        |x| x.at(s![1..;5]).set(7),
        |x| x.get(&array([5, 7])),
        |x| x.at(&array([5, 7])).set(7),
        |x| x.argmax(0),
        |x| x.equal(0).sum(..),
        |x| x.searchsorted(array(3i8)),
        |x| isin(array([3i8]), x),
        |x| interp(array([3.0f32]), x.astype(DType::F32), x.astype(DType::F32)),
        |x| concatenate(&[x.clone(), x], 0).searchsorted(array(3i8)),
    ];
    for (i, f) in functions.into_iter().enumerate() {
        let text = text(f)?;
        assert!(text.contains("i64>"), "function {i}: {text}");
        // The last position, cut to 32 bits.
        assert!(!text.contains("dense<-214748364"), "function {i}: {text}");
        // Bisection begins with the largest power of two, which was negative in int32.
        let steps = text.lines().filter(|line| line.contains("stablehlo.compare")).count();
        assert!(i < 7 || steps > 32, "function {i}: {steps} comparisons");
        let int32 = text.lines().find(|line| line.contains("tensor<i32>") && !line.contains("convert"));
        assert!(int32.is_none(), "function {i}: {int32:?}");
    }
    Ok(())
}

/// Positions in the flattened image or grid, whose sizes fit int32.
#[test]
fn positions_in_large_images_are_int64() -> Result<()> {
    use shardax::scipy::interpolate::{GridMethod, RegularGridInterpolator};
    use shardax::scipy::ndimage::{Boundary, map_coordinates};
    setup();
    type F = fn(Array, Array) -> Result<Array>;
    fn interpolated(image: Array, x: Array, method: GridMethod) -> Result<Array> {
        let grid = image.shape().iter().map(|&n| arange(0..n as i32).astype(DType::F32)).collect::<Vec<_>>();
        Ok(RegularGridInterpolator::new(grid, image)?.method(method).call(stack([&x, &x], -1)))
    }
    let functions: [(F, DType); 4] = [
        (|image, x| Ok(map_coordinates(image, [&x, &x], 0, Boundary::Nearest)), DType::I8),
        (|image, x| Ok(map_coordinates(image, [&x, &x], 1, Boundary::Constant(0.0))), DType::I8),
        (|image, x| interpolated(image, x, GridMethod::Nearest), DType::F32),
        (|image, x| interpolated(image, x, GridMethod::Linear), DType::F32),
    ];
    for (i, (f, dtype)) in functions.into_iter().enumerate() {
        let args = (shape_dtype_struct(&[1 << 16, (1 << 15) + 1], dtype), shape_dtype_struct(&[3], DType::F32));
        let text = jit(f).lower(args)?.as_text().to_owned();
        let read = |line: &&str| line.contains("stablehlo.gather") && line.contains("2147549184x");
        let gathers: Vec<&str> = text.lines().filter(read).collect();
        assert!(!gathers.is_empty() && gathers.iter().all(|line| line.contains("xi64>")), "function {i}: {gathers:?}");
    }
    Ok(())
}

/// Functions whose programs list all coefficients; collectives list the indices of a mapped axis.
const UNROLLED: [&str; 3] = ["linalg::poly", "numpy::polyder", "numpy::polyint"];

/// Every function of the table, traced for arrays of more elements than int32 counts: its program numbers no elements in int32.
#[test]
fn functions_number_large_arrays_in_int64() {
    setup();
    let n: usize = (1 << 31) + 1;
    let only = std::env::var("SHARDAX_TEST_LARGE_ONLY").ok();
    let every = if std::env::var_os("SHARDAX_TEST_LARGE").is_some() || only.is_some() { 1 } else { 7 * one_of(4) };
    let (mut count, mut failures) = (0, Vec::new());
    for (t, (name, call)) in TABLE.iter().enumerate() {
        if only.as_ref().map_or(!t.is_multiple_of(every), |only| !name.contains(only)) {
            continue;
        }
        if UNROLLED.contains(name) || name.starts_with("spmd::") {
            continue;
        }
        for dtype in [DType::I8, DType::F32] {
            let f = move |x: Array, y: Array, mask: Array| {
                let (places, key) = (array([0, 1]), random::key(0));
                call(&Case { x, y, mask, places, key, dtype: DType::F32, i: 0, n: 2, f: 0.5 })
            };
            let [x, y, mask] = [dtype, dtype, DType::Bool].map(|dtype| shape_dtype_struct(&[n], dtype));
            // Only the text is examined, because arrays of this size do not fit in memory.
            let lower = || jit(f).lower((x, y, mask)).map(|lowered| lowered.as_text().to_owned());
            let text = match catch_unwind(AssertUnwindSafe(lower)) {
                Ok(Ok(text)) => text,
                Ok(Err(_)) => continue,
                Err(_) => {
                    failures.push(format!("{name} of {dtype} panicked"));
                    continue;
                }
            };
            count += 1;
            let numbers = |line: &&str| line.contains("stablehlo.iota") && line.contains(&format!("{n}xi32>"));
            let counts =
                |line: &&str| line.contains("stablehlo.reduce(") && line.contains(&format!("(tensor<{n}xi32>"));
            if let Some(line) = text.lines().find(|line| numbers(line) || counts(line)) {
                failures.push(format!("{name} of {dtype}: {}", line.trim()));
            }
        }
    }
    eprintln!("positions of large arrays: {count} programs");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// The ranks of the slice that `cargo test` runs; with `SHARDAX_TEST_RANKS=all` all.
const RANKS: [usize; 3] = [0, 15, 32];

/// Operands of this rank.
fn case_of_rank(rank: usize) -> Case {
    let shape: Vec<usize> = (0..rank).map(|d| if d + 2 >= rank { 2 } else { 1 }).collect();
    let size = shape.iter().product();
    let numbers: Vec<f32> = (0..size).map(|i| 0.25 + i as f32 * 0.5).collect();
    fn of(values: Vec<f32>, shape: &[usize]) -> Array {
        Array::from_slice(&values, shape).unwrap()
    }
    let (x, y) = (of(numbers.clone(), &shape), of(numbers.iter().rev().copied().collect(), &shape));
    let (mask, places) = (x.greater(0.6), array([0, 1]));
    Case { x, y, mask, places, key: random::key(0), dtype: DType::F32, i: -1, n: 2, f: 0.5 }
}

/// Each function at each rank: what a matrix has, where dimensions of size 1 are before it, or an error that is the user's.
#[test]
fn functions_at_every_rank() {
    setup();
    let all = std::env::var("SHARDAX_TEST_RANKS").is_ok_and(|value| value == "all");
    let only = std::env::var("SHARDAX_TEST_RANKS_ONLY").ok();
    let ranks: Vec<usize> = if all || only.is_some() { (0..=32).collect() } else { RANKS.to_vec() };
    let every = if all || only.is_some() { 1 } else { 83 * one_of(2) };
    let (mut count, mut failures) = (0, Vec::new());
    for (r, rank) in ranks.iter().enumerate() {
        for (t, (name, call)) in TABLE.iter().enumerate() {
            // A plain run calls one of 166 pairs, chosen so that all functions and all ranks occur.
            let is_chosen = only.as_ref().is_none_or(|only| name.contains(only)) && (t + 7 * r).is_multiple_of(every);
            if !is_chosen {
                continue;
            }
            let run = |rank: usize, compiled: bool| {
                let case = case_of_rank(rank);
                let f = |x: Array| call(&Case { x, ..case.clone() });
                let run = || if compiled { jit(f).call(&case.x) } else { f(case.x.clone()) };
                fn values(ys: Vec<Array>) -> Result<Vec<(Vec<usize>, Vec<u8>)>> {
                    ys.iter().map(|y| Ok((y.shape().to_vec(), y.to_bytes()?))).collect()
                }
                let ended = catch_unwind(AssertUnwindSafe(|| run().and_then(values)));
                ended.unwrap_or_else(|_| Err(shardax::Error::new(shardax::error::ErrorKind::Runtime, "panicked")))
            };
            type Values = Vec<(Vec<usize>, Vec<u8>)>;
            let (eager, compiled): (Result<Values>, Result<Values>) = (run(*rank, false), run(*rank, true));
            count += 1;
            for result in [&eager, &compiled] {
                if let Err(error) = result
                    && error.kind() == shardax::error::ErrorKind::Runtime
                {
                    failures.push(format!("{name} at rank {rank}: {error}"));
                }
            }
            if let (Ok(eager), Ok(compiled)) = (&eager, &compiled)
                && eager.iter().map(|y| &y.0).ne(compiled.iter().map(|y| &y.0))
            {
                failures.push(format!("{name} at rank {rank} is of other shapes when it is compiled"));
            }
        }
    }
    eprintln!("ranks: {count} calls");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Averages of ranks add two positions, whose sum exceeds int32 in arrays of half as many elements.
#[test]
fn ranks_of_large_arrays_are_counted_in_int64() -> Result<()> {
    use shardax::scipy::stats;
    setup();
    for n in [(1 << 30) + 1, (1usize << 31) + 1] {
        let f = jit(|x: Array| -> Result<(Array, stats::ModeResult)> {
            Ok((stats::rankdata(&x, stats::RankMethod::Average, 0), stats::mode(&x, 0)?))
        });
        let text = f.lower(shape_dtype_struct(&[n], DType::I8))?.as_text().to_owned();
        let sum = text.lines().find(|line| line.contains("stablehlo.add") && line.contains(&format!("{n}xi64>")));
        assert!(sum.is_some(), "{text}");
        assert!(!text.contains("dense<-214748364"), "{text}");
    }
    Ok(())
}
