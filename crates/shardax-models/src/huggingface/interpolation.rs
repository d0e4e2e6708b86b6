//! Interpolation of images and of learned positions, by the weights of PyTorch's `interpolate`.

use shardax_nn::prelude::*;

/// The interpolation of learned positions to a grid of another size, by the weights of PyTorch's `interpolate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Interpolation {
    /// Bicubic, without an antialiasing filter.
    Bicubic,
    /// Bicubic, with an antialiasing filter.
    FilteredBicubic,
    /// Bilinear, with an antialiasing filter.
    FilteredLinear,
    /// Bilinear, without an antialiasing filter.
    Linear,
}

impl Interpolation {
    /// Interpolates a table of positions, `[rows, columns, features]`, to another grid. The result is `[rows * columns, features]`.
    pub fn of_table(self, table: &Array, grid: [usize; 2]) -> Result<Array> {
        let &[rows, columns, features] = table.shape() else { return Ok(table.clone()) };
        let weights = match self {
            Interpolation::Bicubic => bicubic_weights,
            Interpolation::FilteredBicubic => filtered_weights,
            Interpolation::FilteredLinear => linear_weights,
            Interpolation::Linear => bilinear_weights,
        };
        let [down, right] = [weights(rows, grid[0])?, weights(columns, grid[1])?];
        let table = table.astype(DType::F32);
        Ok(einsum("ia,jb,abf->ijf", &[&down, &right, &table]).reshape([-1, features as i32]))
    }
}

/// Returns the weights `[to, from]` of linear interpolation without antialiasing, as in PyTorch's `interpolate`. Entries at the border
/// are repeated.
pub(super) fn bilinear_weights(from: usize, to: usize) -> Result<Array> {
    let mut weights = vec![0.0f32; to * from];
    for row in 0..to {
        let center = ((row as f64 + 0.5) * from as f64 / to as f64 - 0.5).max(0.0);
        let (first, share) = ((center as usize).min(from - 1), center.fract());
        weights[row * from + first] += (1.0 - share) as f32;
        weights[row * from + (first + 1).min(from - 1)] += share as f32;
    }
    Array::from_vec(weights, &[to, from])
}

/// Returns the weights `[to, from]` of bicubic interpolation with antialiasing, as in PyTorch's `interpolate`. The
/// filter is as wide as a new entry, and its cubic function is smoother than the one without antialiasing.
fn filtered_weights(from: usize, to: usize) -> Result<Array> {
    let mut weights = vec![0.0f32; to * from];
    let scale = from as f64 / to as f64;
    let width = scale.max(1.0);
    for row in 0..to {
        let center = scale * (row as f64 + 0.5);
        let first = (center - 2.0 * width + 0.5).max(0.0) as usize;
        let end = ((center + 2.0 * width + 0.5) as usize).min(from);
        let cubic: Vec<f64> = (first..end).map(|column| smooth_cubic((column as f64 - center + 0.5) / width)).collect();
        let sum: f64 = cubic.iter().sum();
        for (column, weight) in (first..end).zip(cubic) {
            weights[row * from + column] = (weight / sum) as f32;
        }
    }
    Array::from_vec(weights, &[to, from])
}

/// Returns the weights `[to, from]` of linear interpolation with antialiasing, as in PyTorch's `interpolate`. The filter is as wide
/// as a new entry.
pub(super) fn linear_weights(from: usize, to: usize) -> Result<Array> {
    let scale = from as f64 / to as f64;
    let width = scale.max(1.0);
    let mut weights = Vec::with_capacity(to * from);
    for row in 0..to {
        let center = scale * (row as f64 + 0.5) - 0.5;
        let heights = (0..from).map(|column| (1.0 - (column as f64 - center).abs() / width).max(0.0));
        let sum: f64 = heights.clone().sum();
        weights.extend(heights.map(|height| (height / sum) as f32));
    }
    Array::from_vec(weights, &[to, from])
}

/// The cubic function of interpolation with antialiasing, at a distance from the center.
fn smooth_cubic(distance: f64) -> f64 {
    match distance.abs() {
        t if t < 1.0 => (1.5 * t - 2.5) * t * t + 1.0,
        t if t < 2.0 => ((-0.5 * t + 2.5) * t - 4.0) * t + 2.0,
        _ => 0.0,
    }
}

/// Returns the weights `[to, from]` of bicubic interpolation, as in PyTorch's `interpolate`. Entries at the border are
/// repeated.
fn bicubic_weights(from: usize, to: usize) -> Result<Array> {
    cubic_weights([from, to], |row| (row as f64 + 0.5) * from as f64 / to as f64 - 0.5)
}

/// Returns the weights `[to, from]` of bicubic interpolation between the centers of the first and the last entry, as in PyTorch's
/// `interpolate` with `align_corners`.
pub(super) fn cubic_corner_weights(from: usize, to: usize) -> Result<Array> {
    cubic_weights([from, to], |row| row as f64 * from.saturating_sub(1) as f64 / to.saturating_sub(1).max(1) as f64)
}

/// Returns the weights `[to, from]` of bicubic interpolation at the places that `center` computes.
fn cubic_weights([from, to]: [usize; 2], center: impl Fn(usize) -> f64) -> Result<Array> {
    let mut weights = vec![0.0f32; to * from];
    for row in 0..to {
        let center = center(row);
        let (first, t) = (center.floor() as i64, center - center.floor());
        for (offset, weight) in
            [(-1, cubic_far(1.0 + t)), (0, cubic_near(t)), (1, cubic_near(1.0 - t)), (2, cubic_far(2.0 - t))]
        {
            let column = (first + offset).clamp(0, from as i64 - 1) as usize;
            weights[row * from + column] += weight as f32;
        }
    }
    Array::from_vec(weights, &[to, from])
}

/// The parameter of cubic interpolation in PyTorch.
const CUBIC_SHARPNESS: f64 = -0.75;

/// Returns the weight of a point at a distance of at most 1.
fn cubic_near(t: f64) -> f64 {
    ((CUBIC_SHARPNESS + 2.0) * t - (CUBIC_SHARPNESS + 3.0)) * t * t + 1.0
}

/// Returns the weight of a point at a distance between 1 and 2.
fn cubic_far(t: f64) -> f64 {
    ((CUBIC_SHARPNESS * t - 5.0 * CUBIC_SHARPNESS) * t + 8.0 * CUBIC_SHARPNESS) * t - 4.0 * CUBIC_SHARPNESS
}

/// Returns the weights `[to, from]` of linear interpolation between the centers of the first and the last entry, as in PyTorch's
/// `interpolate` with `align_corners`.
pub(super) fn corner_weights(from: usize, to: usize) -> Result<Array> {
    let mut weights = vec![0.0f32; to * from];
    for row in 0..to {
        let place = row as f64 * (from - 1) as f64 / (to - 1).max(1) as f64;
        let first = (place as usize).min(from - 1);
        let share = place - first as f64;
        weights[row * from + first] = (1.0 - share) as f32;
        if share > 0.0 {
            weights[row * from + (first + 1).min(from - 1)] += share as f32;
        }
    }
    Array::from_vec(weights, &[to, from])
}

/// Interpolates the rows and columns of `[batch, rows, columns, features]` by weights that `weights` computes.
pub(super) fn resized(x: Array, size: [usize; 2], weights: impl Fn(usize, usize) -> Result<Array>) -> Result<Array> {
    let &[_, rows, columns, _] = x.shape() else { return Ok(x) };
    if [rows, columns] == size {
        return Ok(x);
    }
    let [down, right] = [weights(rows, size[0])?, weights(columns, size[1])?];
    Ok(einsum("ia,jb,nabf->nijf", &[&down.astype(x.dtype()), &right.astype(x.dtype()), &x]))
}
