//! The sweep: the largest error of each function and of its derivatives, in each dtype.

use shardax::Function as _;
use shardax::prelude::*;

use super::functions::{FUNCTIONS, Function};
use super::known::is_known;
use super::measure::Limits;
use super::page;
use super::quick::{eight_devices, one_of};
use super::values::{File, Values};

/// Results that are wrong by more than this part of themselves fail.
const LARGEST_RELATIVE: f64 = 1e-3;

/// The largest error of a function, of its first or of its second derivatives.
#[derive(Clone, Default)]
pub struct Worst {
    pub units: f64,
    arguments: Vec<f64>,
    result: f64,
    value: f64,
    /// The number of results that are wrong by more than [`LARGEST_RELATIVE`].
    wrong: usize,
}

/// The function, its first derivatives and its second ones, of all arguments. A derivative that is not implemented is missing.
fn differentiate(f: Function, args: &[Array], partials: &[usize]) -> Result<Vec<Option<Array>>> {
    let of_operand = |operand: usize| {
        let args = args.to_vec();
        move |x: Array| {
            let mut args = args.clone();
            args[operand] = x;
            f(&args).sum(..)
        }
    };
    let mut results = vec![Some(f(args))];
    for &operand in partials {
        results.push(Some(grad(of_operand(operand)).call(args[operand].clone())?));
    }
    for &operand in partials {
        let slope = |x: Array| Ok(grad(of_operand(operand)).call(x)?.sum(..));
        results.push(match grad(slope).call(args[operand].clone()) {
            Err(error) if error.kind() == ErrorKind::NotImplemented => None,
            curve => Some(curve?),
        });
    }
    Ok(results)
}

/// The largest errors of a function and of its first and second derivatives; none for derivatives that are not implemented.
fn worst(name: &str, f: Function, values: &Values, dtype: DType) -> [Option<Worst>; 3] {
    let limits = Limits::of(dtype);
    let columns: Vec<usize> =
        (0..values.rows[0].len()).filter(|&i| values.arguments.iter().all(|x| limits.has(x[i]))).collect();
    fn column_of(x: &[f64], columns: &[usize], dtype: DType) -> Array {
        array(columns.iter().map(|&i| x[i]).collect::<Vec<_>>()).astype(dtype)
    }
    let args: Vec<Array> = values.arguments.iter().map(|x: &Vec<f64>| column_of(x, &columns, dtype)).collect();
    let partials = values.partials();
    let count = partials.len();
    let results = jit(move |args: Vec<Array>| differentiate(f, &args, &partials)).call(args);
    let results = results.unwrap_or_else(|error| panic!("{name} in {dtype}: {error}"));
    let mut orders = [const { None }; 3];
    for (row, result) in results.iter().enumerate() {
        let Some(result) = result else { continue };
        let result = result.to_f64_vec().expect("values");
        // The rows of the same operand: the function, its derivative, and the derivative of that.
        let order = if row == 0 { 0 } else { 1 + (row - 1) / count };
        let lower: Vec<usize> = (0..order).map(|lower| if lower == 0 { 0 } else { row - count }).collect();
        let worst = orders[order].get_or_insert_with(Worst::default);
        for (&result, &i) in result.iter().zip(&columns) {
            let value = values.rows[row][i];
            // A derivative is compared where the function, and the derivative before it, are representable.
            let is_beyond = order > 0 && value.abs() > limits.largest;
            if value.is_nan() || is_beyond || !lower.iter().all(|&row| limits.represents(values.rows[row][i])) {
                continue;
            }
            let units = limits.units(result, value);
            worst.wrong += usize::from(units * limits.epsilon > LARGEST_RELATIVE);
            if units > worst.units {
                let arguments = values.arguments.iter().map(|x| x[i]).collect();
                *worst = Worst { units, arguments, result, value, wrong: worst.wrong };
            }
        }
    }
    orders
}

/// Compares one function of 32 with its true values; with `SHARDAX_TEST_ACCURACY=all` all, with names (separated by commas)
/// these. `SHARDAX_TEST_ACCURACY=write` compares all and writes the table of docs/accuracy.md.
#[test]
fn functions_and_slopes_are_accurate() {
    eight_devices();
    let file = File::open();
    let selection = std::env::var("SHARDAX_TEST_ACCURACY").unwrap_or_default();
    // By default a slice of the functions, otherwise all, or the named ones.
    let is_selected = |index: usize, name: &str| match selection.as_str() {
        "" => index.is_multiple_of(one_of(32)),
        "all" | "write" => true,
        names => names.split(',').any(|part| part == name),
    };
    let (mut failures, mut rows, mut points) = (Vec::new(), Vec::new(), 0);
    for (_, (name, _, f)) in FUNCTIONS.iter().enumerate().filter(|(index, (name, ..))| is_selected(*index, name)) {
        let values = file.function(name);
        points += values.rows.len() * values.rows[0].len();
        let by_dtype = [DType::F32, DType::F64].map(|dtype| {
            let orders = worst(name, *f, &values, dtype);
            for (order, worst) in orders.iter().enumerate() {
                let Some(worst) = worst else { continue };
                println!("{name} {dtype} order {order}: {:.3e} at {:?}", worst.units, worst.arguments);
                if worst.wrong > 0 && !is_known(name, order) {
                    failures.push(format!(
                        "{name}, order {order}, {dtype}: {} wrong, the largest error at {:?}: got {:e}, the true value is {:e}",
                        worst.wrong, worst.arguments, worst.result, worst.value
                    ));
                }
            }
            orders
        });
        rows.push((*name, by_dtype));
    }
    println!("{} functions, {points} values in each dtype", rows.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    if selection == "write" {
        page::write(&rows);
    }
}

#[test]
fn every_function_has_true_values() {
    let mut names: Vec<_> = FUNCTIONS.iter().map(|(name, ..)| name.to_string()).collect();
    names.sort();
    assert_eq!(names, File::open().names(), "tests/accuracy/functions.rs and tools/golden/functions.py differ");
}
