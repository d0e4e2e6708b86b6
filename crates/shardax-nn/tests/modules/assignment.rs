//! Assignments of rows to columns, compared with all assignments of small matrices.

use shardax_nn::optim::assignment::hungarian_algorithm;
use shardax_nn::prelude::*;

use super::setup;

/// The least sum of costs of the rows from `row`, if these columns are taken.
fn least(cost: &[Vec<f64>], row: usize, taken: &mut Vec<bool>) -> f64 {
    let Some(costs) = cost.get(row) else { return 0.0 };
    let mut best = f64::INFINITY;
    for (column, cost_of_pair) in costs.iter().enumerate() {
        if !taken[column] {
            taken[column] = true;
            best = best.min(cost_of_pair + least(cost, row + 1, taken));
            taken[column] = false;
        }
    }
    best
}

/// Checks that the pairs are an assignment, and that no assignment costs less.
fn check(cost: &Array) -> Result<()> {
    let (rows, columns) = hungarian_algorithm(cost)?;
    let (rows, columns) = (rows.to_vec::<i32>()?, columns.to_vec::<i32>()?);
    let [n, m] = [cost.shape()[0], cost.shape()[1]];
    assert_eq!(rows.len(), n.min(m));
    assert!(rows.windows(2).all(|pair| pair[0] < pair[1]), "{rows:?}");
    let mut sorted = columns.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), columns.len(), "{columns:?}");

    let wide = cost.astype(DType::F64);
    let values: Vec<f64> = wide.to_vec()?;
    let found: f64 = rows.iter().zip(&columns).map(|(row, column)| values[*row as usize * m + *column as usize]).sum();
    let oriented: Array = if n <= m { wide } else { wide.t() };
    let width = n.max(m);
    let matrix: Vec<Vec<f64>> = oriented.to_vec::<f64>()?.chunks(width).map(<[f64]>::to_vec).collect();
    let wanted = least(&matrix, 0, &mut vec![false; width]);
    assert!(found == wanted || (found - wanted).abs() < 1e-5, "found {found}, the least is {wanted}: {cost}");
    Ok(())
}

#[test]
fn assignments_have_the_least_cost() -> Result<()> {
    setup();
    for (seed, shape) in [[1, 1], [1, 5], [4, 1], [3, 3], [4, 6], [6, 4], [5, 5]].into_iter().enumerate() {
        let key = random::key(seed as u32);
        check(&random::uniform(&key, shape))?;
        // Equal costs, and costs below 0.
        check(&random::randint(&key, shape, -2, 3))?;
        // A fifth of the pairs is forbidden.
        let allowed = random::uniform(&random::key(9), shape).greater(0.2);
        check(&where_(allowed, random::uniform(&key, shape), f64::INFINITY))?;
    }
    check(&random::uniform(&random::key(3), [4, 4]).astype(DType::Bf16))?;
    Ok(())
}

#[test]
fn assignments_of_costs_that_are_not_finite_or_missing_are_complete() -> Result<()> {
    setup();
    for cost in [full([3, 4], f32::INFINITY), full([3, 3], f32::NAN)] {
        let (_, columns) = hungarian_algorithm(cost)?;
        let mut columns = columns.to_vec::<i32>()?;
        columns.sort_unstable();
        columns.dedup();
        assert_eq!(columns.len(), 3);
    }
    assert_eq!(hungarian_algorithm(zeros([0, 3]))?.0.shape(), [0]);
    let message = hungarian_algorithm(ones([3])).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(message.contains("must be a matrix, got the shape [3]"), "{message}");
    Ok(())
}

#[test]
fn a_batch_of_assignments_compiles() -> Result<()> {
    setup();
    let costs = random::uniform(&random::key(0), [3, 4, 5]);
    let (_, columns) = jit(vmap(|cost: Array| hungarian_algorithm(cost))).call(&costs)?;
    for i in 0..3 {
        assert_eq!(columns.get(i).to_vec::<i32>()?, hungarian_algorithm(costs.get(i))?.1.to_vec::<i32>()?);
    }
    Ok(())
}

/// The cost of an assignment has a gradient with respect to its pairs, as in the losses of models that detect objects.
#[test]
fn costs_of_an_assignment_have_gradients() -> Result<()> {
    setup();
    let loss = |cost: Array| -> Result<Array> {
        let (rows, columns) = hungarian_algorithm(&cost)?;
        Ok(cost.get((rows, columns)).sum(..))
    };
    let gradient = jit(grad(loss)).call(array([[4.0f32, 1.0, 3.0], [2.0, 0.0, 5.0]]))?;
    assert_eq!(gradient.to_vec::<f32>()?, [0.0, 1.0, 0.0, 1.0, 0.0, 0.0]);
    Ok(())
}
