//! The cases, and the ways in which each function is called with them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};

use shardax::prelude::*;

use super::table::{Call, Case, TABLE};
use crate::common::quick::{is_complete, one_of};

const SHAPES: [&[usize]; 8] = [&[], &[3], &[0], &[2, 3], &[3, 0], &[1, 1], &[3, 3], &[2, 3, 3]];

/// An axis, a size and a number.
const PARAMETERS: [(i32, usize, f64); 7] = [
    (0, 1, 0.5),
    (-1, 0, -1.0),
    (2, 3, f64::NAN),
    (-2, 2, -0.0),
    (i32::MIN, usize::MAX, f64::INFINITY),
    (i32::MAX, 1 << 40, 1e300),
    // More than a byte counts.
    (7, 300, -1e-300),
];

/// A call that takes longer than this will not end.
const PATIENCE: Duration = Duration::from_secs(180);

/// Returns true if every case is asked for, and not a slice that `cargo test` has the time for.
fn all() -> bool {
    std::env::var("SHARDAX_TEST_CENSUS").is_ok_and(|value| value == "all")
}

/// Returns true if the slice has this case of this function: one of `every`, another one for each function. `every`
/// shares no factor with the number of types, shapes or parameters, so that each of them occurs.
fn chosen(case: usize, function: usize, every: usize) -> bool {
    all() || (case + 7 * function).is_multiple_of(every)
}

/// The slice has one of so many cases: more if all slices are complete.
fn every() -> usize {
    if is_complete() { 13 } else { 73 }
}

/// The number of cases of each function where all are asked for.
const ROUNDS: usize = 12;

/// Plain numbers, in the place of a dtype.
const WEAK: [DType; 3] = [DType::I32, DType::F32, DType::Complex64];

#[derive(Clone, Copy)]
struct Type {
    dtype: DType,
    weak: bool,
}

fn types() -> Vec<Type> {
    // Of the narrow ones a float and an integer, where not all is asked for: their kinds share all rules.
    fn chosen(dtype: &DType) -> bool {
        all() || [DType::F8E4M3Fn, DType::I4].contains(dtype) || !is_narrow(*dtype)
    }
    let strong = DType::ALL.into_iter().filter(chosen).map(|dtype| Type { dtype, weak: false });
    strong.chain(WEAK.into_iter().map(|dtype| Type { dtype, weak: true })).collect()
}

fn is_narrow(dtype: DType) -> bool {
    dtype.bits() < 8 || dtype.bits() == 8 && dtype.is_float()
}

thread_local! {
    static MADE: RefCell<HashMap<(DType, bool, Vec<usize>), Array>> = RefCell::default();
}

/// The array of this type and shape, made once.
fn array_of(ty: Type, shape: &[usize]) -> Array {
    let key = (ty.dtype, ty.weak, shape.to_vec());
    if let Some(made) = MADE.with_borrow(|made| made.get(&key).cloned()) {
        return made;
    }
    let array = new_array(ty, shape);
    MADE.with_borrow_mut(|made| made.insert(key, array.clone()));
    array
}

/// Elements that are not all alike, and among which are large ones.
fn new_array(ty: Type, shape: &[usize]) -> Array {
    if ty.weak {
        let number = match ty.dtype {
            DType::I32 => Array::from(3),
            DType::F32 => Array::from(0.5),
            _ => num_complex::Complex::new(1.0, 2.0).into(),
        };
        return if shape.is_empty() { number } else { number.broadcast_to(shape) };
    }
    // One conversion a dtype, of as many elements as the largest shape has.
    const MOST: usize = 18;
    let count: usize = shape.iter().product();
    if shape == [MOST] {
        let numbers: Vec<f64> = (0..MOST).map(|i| [1.0, 0.0, -2.5, 1e30, 3.0][i % 5]).collect();
        return Array::from_slice(&numbers, shape).expect("an array").astype(ty.dtype);
    }
    let bytes = array_of(ty, &[MOST]).to_bytes().expect("bytes");
    Array::from_bytes(&bytes[..count * ty.dtype.byte_size()], ty.dtype, shape).expect("an array")
}

/// The operands and parameters of one of all cases, which `number` counts.
fn case(ty: Type, shape: &[usize], number: usize) -> Case {
    let (i, n, f) = PARAMETERS[number % PARAMETERS.len()];
    let other_type = types()[number * 7 % types().len()];
    let y = if number.is_multiple_of(2) {
        array_of(ty, shape)
    } else {
        array_of(other_type, SHAPES[number % SHAPES.len()])
    };
    let places: DType = [DType::I32, DType::I64, DType::U8, DType::U32, DType::I8, DType::U64][number % 6];
    let place: &[usize] = [&[] as &[usize], &[2], shape][number % 3];
    Case {
        x: array_of(ty, shape),
        y,
        mask: array_of(Type { dtype: DType::Bool, weak: false }, shape),
        places: array_of(Type { dtype: places, weak: false }, place),
        key: random::key(0),
        dtype: other_type.dtype,
        i,
        n,
        f,
    }
}

/// Returns the case with these arrays instead of its own. They are traced, or have only types.
fn with_arrays(case: &Case, [x, y, mask, places, key]: [Array; 5]) -> Case {
    Case { x, y, mask, places, key, ..case.clone() }
}

fn arrays(case: &Case) -> (Array, Array, Array, Array, Array) {
    (case.x.clone(), case.y.clone(), case.mask.clone(), case.places.clone(), case.key.clone())
}

fn describe(name: &str, case: &Case) -> String {
    let Case { x, y, places, dtype, i, n, f, .. } = case;
    let weak = if x.weak_type() { " weak" } else { "" };
    format!(
        "{name}(x = {}{weak}, y = {}, places = {}, {dtype}, {i}, {n}, {f})",
        x.type_name(),
        y.type_name(),
        places.type_name()
    )
}

/// The calls and their faults. A watchdog knows the current call, so that it can name a call that does not end.
struct Calls {
    now: std::sync::Arc<Mutex<Option<(String, Instant)>>>,
    failures: Vec<String>,
    count: usize,
    slowest: (Duration, String),
}

thread_local! {
    static COUNTED: Cell<bool> = const { Cell::new(false) };
}

/// Panics of the functions under test are counted, not printed.
fn silence_counted_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !COUNTED.get() {
                print(info);
            }
        }));
    });
}

impl Calls {
    fn new() -> Self {
        silence_counted_panics();
        let current = std::sync::Arc::new(Mutex::new(None::<(String, Instant)>));
        let watched = std::sync::Arc::downgrade(&current);
        std::thread::spawn(move || {
            while let Some(current) = watched.upgrade() {
                if let Some((what, since)) = &*current.lock().expect("a call")
                    && since.elapsed() > PATIENCE
                {
                    // Not by `eprintln`, which is kept for a report that will not come.
                    let _ = writeln!(std::io::stderr(), "does not end: {what}");
                    std::process::abort();
                }
                drop(current);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Calls { now: current, failures: Vec::new(), count: 0, slowest: Default::default() }
    }

    fn call<R>(&mut self, what: &dyn Fn() -> String, f: impl FnOnce() -> R) -> Option<R> {
        self.count += 1;
        let start = Instant::now();
        *self.now.lock().expect("a call") = Some((what(), start));
        COUNTED.set(true);
        let out = catch_unwind(AssertUnwindSafe(f));
        COUNTED.set(false);
        *self.now.lock().expect("a call") = None;
        if start.elapsed() > self.slowest.0 {
            self.slowest = (start.elapsed(), what());
        }
        match out {
            Ok(out) => Some(out),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default();
                self.failures.push(format!("{} panicked: {text}", what()));
                None
            }
        }
    }

    /// One line a function, with its first failure.
    fn report(mut self) {
        let count = self.failures.len();
        self.failures.dedup_by_key(|line| line.split('(').next().map(str::to_owned));
        assert!(count == 0, "{count} of {} calls failed:\n{}", self.count, self.failures.join("\n"));
        println!("{} calls of {} functions, the slowest {:?}", self.count, TABLE.len(), self.slowest);
    }
}

/// Each function with each type, shape and set of parameters, recorded and not run.
pub fn traced() {
    let (mut calls, every) = (Calls::new(), every());
    let mut number = 0;
    for ty in types() {
        for (s, shape) in SHAPES.iter().enumerate() {
            for p in 0..PARAMETERS.len() {
                let case = case(ty, shape, p + PARAMETERS.len() * s);
                number += 1;
                for (function, (name, call)) in TABLE.iter().enumerate() {
                    if chosen(number, function, every) {
                        let _ = calls.call(&|| describe(name, &case), || traced_types(&case, *call));
                    }
                }
            }
        }
    }
    calls.report();
}

/// The types of a function's results, each of which must be of a size that can be addressed.
fn traced_types(case: &Case, call: Call) -> Result<Vec<(Vec<usize>, DType, bool)>> {
    let failures = Mutex::new(Vec::new());
    eval_shape(
        |x: Array, y: Array, mask: Array, places: Array, key: Array| -> Result<()> {
            let results = call(&with_arrays(case, [x, y, mask, places, key]))?;
            *failures.lock().expect("types") =
                results.iter().map(|y| (y.shape().to_vec(), y.dtype(), y.weak_type())).collect();
            Ok(())
        },
        arrays(case),
    )?;
    Ok(failures.into_inner().expect("types"))
}

/// A scalar to be differentiated: the sum of all results that are floating point.
fn total(results: &[Array]) -> Result<Array> {
    let mut sum = array(0.0f32);
    for y in results.iter().filter(|y| y.dtype().is_inexact()) {
        sum = sum + y.real().astype(DType::F32).sum(..);
    }
    sum.check().map(|()| sum)
}

/// Each function differentiated and mapped over an axis.
pub fn transformed() {
    let (mut calls, every) = (Calls::new(), every());
    fn strong(dtype: DType) -> Type {
        Type { dtype, weak: false }
    }
    let mut number = 0;
    for ty in
        [strong(DType::F32), strong(DType::Bf16), strong(DType::Complex128), strong(DType::I8), strong(DType::Bool)]
    {
        for (s, shape) in SHAPES.iter().enumerate() {
            // A third of the parameters for each shape, because all combinations would take minutes.
            for p in (0..PARAMETERS.len()).filter(|p| (p + s).is_multiple_of(3)) {
                let case = case(ty, shape, p + PARAMETERS.len() * s);
                number += 1;
                for (function, (name, call)) in TABLE.iter().enumerate() {
                    if !chosen(number, function, every) {
                        continue;
                    }
                    let run = |x: Array| call(&Case { x, ..case.clone() });
                    if ty.dtype.is_float() {
                        let slope = || eval_shape(grad(|x: Array| total(&run(x)?)), &case.x).map(|_| ());
                        calls.call(&|| format!("grad of {}", describe(name, &case)), slope);
                    }
                    let rows = shape_dtype_struct([&[2], *shape].concat(), ty.dtype);
                    let mapped = || eval_shape(vmap(|x: Array| -> Result<Array> { total(&run(x)?) }), rows).map(|_| ());
                    calls.call(&|| format!("vmap of {}", describe(name, &case)), mapped);
                }
            }
        }
    }
    calls.report();
}

/// A few cases of every sixteenth function (in complete runs of every one), run: the results have the types that were
/// traced, and as many bytes as those say.
pub fn executed() {
    let mut calls = Calls::new();
    let types = types();
    // What does not fit in memory is rejected at once; what nearly does would be made.
    fn sane(p: usize) -> bool {
        PARAMETERS[p].1 <= 3 || PARAMETERS[p].1 == usize::MAX
    }
    let every = if all() { 1 } else { one_of(16) };
    for (number, (name, call)) in TABLE.iter().enumerate().step_by(every) {
        for round in 0..if all() { ROUNDS } else { 1 } {
            let k = number * 5 + round * 11;
            let (ty, shape) = (types[k % types.len()], SHAPES[(k / 3 + round) % SHAPES.len()]);
            let p = (0..PARAMETERS.len()).map(|p| (p + k) % PARAMETERS.len()).find(|p| sane(*p)).unwrap_or(0);
            let case = case(ty, shape, p + PARAMETERS.len() * k);
            let context = || format!("{} while it is traced", describe(name, &case));
            let Some(traced) = calls.call(&context, || traced_types(&case, *call)) else { continue };
            let ran = calls.call(&|| describe(name, &case), || {
                let results = call(&case)?;
                results
                    .iter()
                    .map(|y| Ok((y.shape().to_vec(), y.dtype(), y.weak_type(), y.to_bytes()?.len())))
                    .collect()
            });
            let Some(ran): Option<Result<Vec<_>>> = ran else { continue };
            match (traced, ran) {
                (Ok(traced), Ok(ran)) => {
                    let types: Vec<_> =
                        ran.iter().map(|(shape, dtype, weak, _)| (shape.clone(), *dtype, *weak)).collect();
                    if types != traced {
                        calls.failures.push(format!("{} is {types:?}, traced {traced:?}", describe(name, &case)));
                    }
                    let odd = ran.iter().find(|r| r.3 != r.0.iter().product::<usize>() * r.1.byte_size());
                    if let Some(odd) = odd {
                        calls.failures.push(format!("{} has the bytes of {odd:?}", describe(name, &case)));
                    }
                }
                // What needs values fails while it is traced.
                (Err(_), _) => {}
                // That memory is short is known when it is asked for.
                (Ok(_), Err(error)) if error.to_string().contains("no memory for an array") => {}
                (Ok(_), Err(error)) => {
                    calls.failures.push(format!("{} fails only when it runs: {error}", describe(name, &case)))
                }
            }
        }
    }
    calls.report();
}
