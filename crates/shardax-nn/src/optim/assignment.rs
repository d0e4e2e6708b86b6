//! The linear assignment problem (`optax.assignment`).

use shardax::prelude::*;

use crate::check::value_error;

/// Returns the rows and the columns of the assignment with the least sum of costs, two arrays `[min(n, m)]` of int32.
///
/// `cost` is `[n, m]`. The assignment has `min(n, m)` pairs, and each row and each column is in at most one of them. The
/// rows are in ascending order, as in SciPy. The function takes `O(min(n, m)² max(n, m))` steps, and runs inside of
/// `jit` and `vmap`. If there is an assignment without costs of infinity or NaN, the result is such an assignment. The Hungarian algorithm in the
/// form with potentials is described in [Jonker and Volgenant, 1987](https://doi.org/10.1007/BF02278710).
///
/// ```
/// use shardax_nn::optim::assignment::hungarian_algorithm;
/// use shardax_nn::prelude::*;
/// let cost = array([[8, 4, 7], [5, 2, 3], [9, 6, 7], [9, 4, 8]]);
/// let (rows, columns) = hungarian_algorithm(&cost)?;
/// assert_eq!(rows.to_vec::<i32>()?, [0, 1, 3]);
/// assert_eq!(columns.to_vec::<i32>()?, [0, 2, 1]);
/// assert_eq!(cost.get((&rows, &columns)).sum(..).item::<i32>()?, 15);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if `cost` is not a matrix of real numbers.
#[track_caller]
pub fn hungarian_algorithm(cost: impl ArrayLike) -> Result<(Array, Array)> {
    let cost = cost.into_array();
    let &[n, m] = cost.shape() else {
        return value_error(format!(
            "hungarian_algorithm: the costs must be a matrix, got the shape {:?}",
            cost.shape()
        ));
    };
    if cost.dtype().is_complex() {
        return value_error(format!("hungarian_algorithm: the costs must be real numbers, got {}", cost.dtype()));
    }
    // Sums of small integers and of half precision are exact in float32.
    let dtype = if cost.dtype().byte_size() == 8 { DType::F64 } else { DType::F32 };
    let cost = stop_gradient(cost.astype(dtype));
    if n == 0 || m == 0 {
        return Ok((zeros_dtype([0], DType::I32), zeros_dtype([0], DType::I32)));
    }
    if n <= m {
        let columns = column_of_each_row(&cost)?;
        return Ok((arange(0..n as i32), columns));
    }
    let rows = column_of_each_row(&cost.t())?;
    let order = rows.argsort(0).astype(DType::I32);
    Ok((rows.get(&order), order))
}

/// The potentials of rows and columns, and the row that is assigned to each column. Rows and columns count from 1: column 0
/// holds the row that is being assigned, and row 0 means that a column is free.
type Assigned = (Array, Array, Array);

/// Assigns a column to each row of `cost`, `[n, m]`, where `n` is at most `m`.
fn column_of_each_row(cost: &Array) -> Result<Array> {
    let (n, m, dtype) = (cost.shape()[0], cost.shape()[1], cost.dtype());
    // Row 0 and column 0 have costs too, so that indices need no shift. They are never read.
    let cost = zeros_dtype([n + 1, m + 1], dtype).at((1.., 1..)).set(cost);
    let start = (zeros_dtype([n + 1], dtype), zeros_dtype([m + 1], dtype), zeros_dtype([m + 1], DType::I32));
    let (_, _, rows) =
        fori_loop(1, n as i32 + 1, |row: Array, assigned: Assigned| assign_row(&cost, row, assigned), start)?;
    // Free columns write to the element of row 0.
    let columns = zeros_dtype([n + 1], DType::I32).at(rows).set(arange(0..m as i32 + 1));
    Ok(columns.get(1..) - 1)
}

/// Assigns a column to `row`, by the shortest path from the row to a free column.
fn assign_row(cost: &Array, row: Array, (u, v, rows): Assigned) -> Result<Assigned> {
    let (columns, dtype) = (rows.shape()[0], v.dtype());
    let rows = rows.at(0).set(row);
    let infinite = full_dtype([columns], f64::INFINITY, dtype);
    let search = (zeros_dtype([columns], DType::Bool), infinite, zeros_dtype([columns], DType::I32));
    let (u, v, (_, _, before), column) = while_loop(
        |(_, _, _, column): Path| rows.get(column).not_equal(0),
        |path: Path| extend_path(cost, &rows, path),
        (u, v, search, Array::from(0)),
    )?;
    // Each column of the path passes its row to the column after it.
    let (rows, ..) = while_loop(
        |(_, column): (Array, Array)| column.not_equal(0),
        |(rows, column): (Array, Array)| {
            let previous = before.get(&column);
            (rows.at(column).set(rows.get(&previous)), previous)
        },
        (rows, column),
    )?;
    Ok((u, v, rows))
}

/// The potentials, the search, and the last column of the path. The search consists of the visited columns, the distance to
/// each column, and the column before it.
type Path = (Array, Array, (Array, Array, Array), Array);

/// Visits the last column, and continues with the nearest column that was not visited.
fn extend_path(cost: &Array, rows: &Array, (u, v, (visited, distance, before), column): Path) -> Result<Path> {
    let dtype = v.dtype();
    let visited = visited.at(&column).set(true);
    let row = rows.get(&column);
    let reduced = cost.get(&row) - u.get(&row) - &v;
    let is_nearer = reduced.less(&distance) & visited.logical_not();
    let distance = where_(&is_nearer, reduced, distance);
    let before = where_(is_nearer, column, before);
    // A column at an infinite distance is still nearer than one that was visited, so each step visits another column and
    // the search ends at a free one.
    let largest = if dtype == DType::F64 { f64::MAX } else { f32::MAX.into() };
    let open = where_(&visited, f64::INFINITY, minimum(&distance, largest)).astype(dtype);
    let next = open.argmin(0).astype(DType::I32);
    let least = open.min(0);
    let delta = where_(least.less(largest), &least, 0).astype(dtype);
    // Rows of visited columns differ, so each row is changed once.
    let u = u.at(rows).add(where_(&visited, &delta, 0).astype(dtype));
    let v = v - where_(&visited, &delta, 0);
    let distance = where_(&visited, &distance, &distance - &delta);
    Ok((u, v.astype(dtype), (visited, distance.astype(dtype), before), next))
}
