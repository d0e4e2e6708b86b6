//! Convolutions with a window of 3 × 3 by Winograd's algorithm F(2 × 2, 3 × 3), and gradients of their filters.
//!
//! A tile of 2 × 2 outputs needs 16 multiplications for each pair of features instead of 36. With the matrices B, G and A
//! of the source, a tile of 4 × 4 elements `d` has the outputs `Aᵀ ((G g Gᵀ) ⊙ (Bᵀ d B)) A`. The products ⊙ are summed over
//! features, so they are 16 matmuls of tiles and features with features and outputs. The gradient with respect to the
//! filter `g`, for the cotangent `y`, is `Gᵀ ((Bᵀ d B)ᵀ ⊙ (A y Aᵀ)) G`, summed over tiles, which is again 16 matmuls.
//!
//! Source: [Lavin and Gray 2015](https://arxiv.org/abs/1509.09308).

use std::array::from_fn;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ndarray::{ArrayView2, ArrayViewMut2};
use pulp::{Arch, Simd, WithSimd};

use crate::filter_window::{Operands, Window};
use crate::patches::Patches;
use crate::product::{Before, product};
use crate::scratch::Scratch;
use crate::tasks::run_tasks;
use crate::{FilterWindow, Result, SPATIAL, View, convolution, filter_gradient};

/// The number of elements in the largest register. The numbers of features and of outputs must be multiples of it.
const LANES: usize = 16;

/// The number of elements in a tile, and therefore the number of matmuls.
const POINTS: usize = 16;

/// Limits on the tiles that are multiplied together: at most `TILES` tiles and at most `ELEMENTS` transformed elements, but
/// at least `MIN_TILES` tiles.
const TILES: usize = 128;
const MIN_TILES: usize = 32;
const ELEMENTS: usize = 1 << 20;

/// Stride between the matrices of consecutive points, padded so that the matrices do not share a cache set.
fn apart(rows: usize, columns: usize) -> usize {
    rows * columns + 5 * LANES
}

/// The number of parts into which the sums of small filters are divided, because otherwise only one thread could work.
const PARTS: usize = 4;

/// Computes a convolution like [`convolution`](crate::convolution()), with 16 multiplications instead of 36 if it has a window
/// of 3 × 3 elements without strides and dilations, and multiples of 16 features and outputs.
///
/// On random inputs, the RMS error is 0.8 to 1.3 times the RMS error of sums of products. It is relative to the largest
/// element of a tile of 4 × 4 elements, instead of a window of 3 × 3. If a result is not finite, the results around it are
/// computed as sums of products instead.
///
/// Each thread allocates 2²⁰ elements, or 32 tiles of features and outputs. The call allocates as many for filters.
///
/// ```
/// use shardax_cpu_kernels::{FilterWindow, View, winograd_convolution};
///
/// // 16 features, and each filter sums over all of them.
/// let window = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0, 1, 1], positions: [1, 3, 3] };
/// let x = [1.0; 4 * 4 * 16];
/// let filter = [0.5; 9 * 16 * 16];
/// let mut sums = [0.0; 4 * 4 * 16];
/// let (x, filter) = (View::new(&[1, 1, 4, 4, 16], &x)?, View::new(&[1, 3, 3, 16, 16], &filter)?);
/// winograd_convolution(&window, x, filter, [1, 4, 4], &mut sums, 1)?;
/// // A corner meets four elements, an edge six.
/// assert_eq!((sums[0], sums[16]), (32.0, 48.0));
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not agree with this description.
pub fn winograd_convolution(
    of: &FilterWindow,
    x: View<'_, f32>,
    filter: View<'_, f32>,
    size: [usize; SPATIAL],
    out: &mut [f32],
    threads: usize,
) -> Result<()> {
    let Some(sums) = convolution::Kernel::new(of, [1; SPATIAL], x, filter, size, out)? else { return Ok(()) };
    match sums.patches().and_then(|patches| Tiles::new(patches, sums.outputs)) {
        Some(tiles) => tiles.convolution(filter.data(), &sums, out, threads.max(1)),
        None => sums.run(out, threads.max(1)),
    }
    Ok(())
}

/// Computes the gradient of a convolution with respect to its filter like [`filter_gradient`](crate::filter_gradient()), with
/// 16 multiplications instead of 36 for the convolutions of [`winograd_convolution`].
///
/// If an element of the result is not finite, all elements are computed as sums of products instead.
///
/// Each thread allocates 2²⁰ elements, or 32 tiles of features and outputs, and as many for the result.
///
/// # Errors
/// Returns an error if the shapes do not agree with this description.
pub fn winograd_filter_gradient(
    of: &FilterWindow,
    x: View<'_, f32>,
    window: View<'_, f32>,
    out: &mut [f32],
    threads: usize,
) -> Result<()> {
    let Some(sums) = filter_gradient::Kernel::new(of, x, window, out)? else { return Ok(()) };
    let Operands { window, outputs, .. } = sums.0;
    if let Some(tiles) = Tiles::new(&sums.0.patches(), outputs) {
        tiles.filter_gradient(window, out, threads.max(1));
        if is_finite(out) {
            return Ok(());
        }
    }
    sums.run(out, threads.max(1));
    Ok(())
}

/// Returns `true` if a convolution with this window, of this size and these numbers of features and outputs, needs fewer
/// multiplications with the algorithm of [`winograd_convolution`].
pub fn is_winograd(of: &FilterWindow, size: [usize; SPATIAL], features: usize, outputs: usize) -> bool {
    let [depth, height, width] = size;
    let covered = height.div_ceil(2).saturating_mul(width.div_ceil(2)).saturating_mul(POINTS);
    of.positions == [1, 3, 3]
        && depth == 1
        && height > 0
        && width > 0
        && of.low[0] == 0
        && [of.stride[1], of.stride[2], of.dilation[1], of.dilation[2]] == [1; 4]
        && covered <= height.saturating_mul(width).saturating_mul(9) / 4 * 3
        && [features, outputs].iter().all(|n| *n > 0 && n % LANES == 0)
}

/// The tiles of a convolution. Rows of tiles are numbered through all images.
struct Tiles<'a> {
    of: Window,
    x: &'a [f32],
    features: usize,
    outputs: usize,
    /// The rows of tiles in an image, and the tiles in a row.
    rows: usize,
    columns: usize,
    /// The number of all rows.
    all: usize,
    /// The number of rows that are multiplied together.
    together: usize,
}

impl<'a> Tiles<'a> {
    /// Returns `None` if tiles do not save multiplications.
    fn new(patches: &Patches<'a>, outputs: usize) -> Option<Self> {
        let (of, features) = (patches.of, patches.features);
        let window = FilterWindow { stride: of.stride, dilation: of.dilation, low: of.low, positions: of.positions };
        if !is_winograd(&window, of.window, features, outputs) || of.operand[0] != 1 {
            return None;
        }
        let [_, height, width] = of.operand;
        let images = patches.x.len() / (height * width * features);
        let (rows, columns) = (of.window[1].div_ceil(2), of.window[2].div_ceil(2));
        let tiles = (ELEMENTS / (POINTS * (features + outputs))).clamp(MIN_TILES, TILES);
        let together = (tiles / columns).max(1);
        Some(Tiles { of, x: patches.x, features, outputs, rows, columns, all: images * rows, together })
    }

    /// The number of outputs that are computed together, so that their filters have about as many elements as the tiles.
    fn outputs_together(&self) -> usize {
        (ELEMENTS / (POINTS * self.features) / LANES * LANES).clamp(4 * LANES, (4 * LANES).max(self.outputs))
    }

    /// The line of outputs, in all images, at which a row of tiles begins.
    fn line(&self, row: usize) -> usize {
        row / self.rows * self.of.window[1] + 2 * (row % self.rows)
    }

    /// The outputs of some rows of tiles.
    fn positions(&self, rows: &Range<usize>) -> Range<usize> {
        self.line(rows.start) * self.of.window[2]..self.line(rows.end) * self.of.window[2]
    }

    /// The blocks of rows that are multiplied together.
    fn blocks(&self) -> impl Iterator<Item = Range<usize>> {
        let blocks = (0..self.all).step_by(self.together);
        blocks.map(|start| start..(start + self.together).min(self.all))
    }

    fn convolution(&self, filter: &[f32], sums: &convolution::Kernel<'_>, out: &mut [f32], threads: usize) {
        let together = self.outputs_together();
        let mut filters = Scratch::new(POINTS * apart(self.features, together.min(self.outputs)));
        for first in (0..self.outputs).step_by(together) {
            let outputs = first..(first + together).min(self.outputs);
            let filters = &mut filters[..POINTS * apart(self.features, outputs.len())];
            self.transform_filter(filter, &outputs, filters);
            // Each block of rows is a task with a part of the result of its own, so that threads need no lock.
            let (filters, mut unassigned, mut tasks) = (&*filters, &mut *out, Vec::new());
            for rows in self.blocks() {
                let (block, following) = unassigned.split_at_mut(self.positions(&rows).len() * self.outputs);
                unassigned = following;
                tasks.push((rows, block));
            }
            run_tasks(
                tasks,
                threads,
                || self.scratch(outputs.len()),
                |[images, products], (rows, out)| {
                    let tiles = rows.len() * self.columns;
                    let images = &mut images[..POINTS * apart(tiles, self.features)];
                    let products = &mut products[..POINTS * apart(tiles, outputs.len())];
                    self.transform_images(&rows, images);
                    for point in 0..POINTS {
                        let images = matrix(images, point, tiles, self.features);
                        let filters = matrix(filters, point, self.features, outputs.len());
                        let products = matrix_mut(products, point, tiles, outputs.len());
                        let (Ok(images), Ok(filters), Ok(mut products)) = (images, filters, products) else { return };
                        product(&images, &filters, Before::Ignored, &mut products);
                    }
                    self.transform_products(products, &rows, &outputs, out);
                    if outputs.end == self.outputs && !is_finite(out) {
                        sums.compute_rows(self.positions(&rows), out);
                    }
                },
            );
        }
    }

    /// Allocates the memory of a thread for the transformed images, and for as many tiles of `outputs` outputs.
    fn scratch(&self, outputs: usize) -> [Scratch; 2] {
        let tiles = self.together * self.columns;
        [self.features, outputs].map(|columns| Scratch::new(POINTS * apart(tiles, columns)))
    }

    fn filter_gradient(&self, window: &[f32], out: &mut [f32], threads: usize) {
        let blocks: Vec<Range<usize>> = self.blocks().collect();
        // The sums of a small filter are divided into parts of the blocks. The number of parts depends only on the shapes, so
        // that the result has equal bits for any number of threads. A larger filter is divided by outputs, which changes no
        // sum.
        let is_small = POINTS * self.features * self.outputs <= ELEMENTS / 4 && blocks.len() >= 2 * PARTS;
        let (parts, each) = if is_small {
            (PARTS, self.outputs)
        } else {
            (1, self.outputs.div_ceil(threads).next_multiple_of(LANES).min(self.outputs_together()))
        };
        let mut tasks = Vec::new();
        for first in (0..self.outputs).step_by(each) {
            let outputs = first..(first + each).min(self.outputs);
            tasks.extend(blocks.chunks(blocks.len().div_ceil(parts)).enumerate().map(|part| (outputs.clone(), part)));
        }
        let (out, partial_sums) = (Mutex::new(out), Mutex::new(Vec::new()));
        run_tasks(
            tasks,
            threads,
            || self.scratch(each),
            |[images, windows], (outputs, (part, blocks))| {
                let mut sums = Scratch::new(POINTS * apart(self.features, outputs.len()));
                for (i, rows) in blocks.iter().enumerate() {
                    let tiles = rows.len() * self.columns;
                    let images = &mut images[..POINTS * apart(tiles, self.features)];
                    let windows = &mut windows[..POINTS * apart(tiles, outputs.len())];
                    self.transform_images(rows, images);
                    self.transform_window(window, rows, &outputs, windows);
                    let before = if i == 0 { Before::Ignored } else { Before::Added };
                    for point in 0..POINTS {
                        let images = matrix(images, point, tiles, self.features);
                        let windows = matrix(windows, point, tiles, outputs.len());
                        let sums = matrix_mut(&mut sums, point, self.features, outputs.len());
                        let (Ok(images), Ok(windows), Ok(mut sums)) = (images, windows, sums) else { return };
                        product(&images.t(), &windows, before, &mut sums);
                    }
                }
                if is_small {
                    partial_sums.lock().unwrap_or_else(PoisonError::into_inner).push((part, sums));
                } else {
                    self.transform_sums(&sums, &outputs, &mut out.lock().unwrap_or_else(PoisonError::into_inner));
                }
            },
        );
        // Tasks end in any order, but the parts must be added in their order, because the order changes the rounding.
        let mut partial_sums = partial_sums.into_inner().unwrap_or_else(PoisonError::into_inner);
        partial_sums.sort_unstable_by_key(|(part, _)| *part);
        let total = partial_sums.into_iter().map(|(_, sums)| sums).reduce(|mut total, sums| {
            total.iter_mut().zip(sums.iter()).for_each(|(total, sum)| *total += sum);
            total
        });
        if let Some(total) = total {
            self.transform_sums(&total, &(0..self.outputs), out.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// `G g Gᵀ` of the filters of some outputs.
    fn transform_filter(&self, filter: &[f32], outputs: &Range<usize>, to: &mut [f32]) {
        let target = points(self.features, outputs.len());
        transform::<Filter, 3, 4>(filter, self.filter_places(outputs), to, target, self.features, outputs.len());
    }

    /// `Bᵀ d B` of the tiles of some rows.
    fn transform_images(&self, rows: &Range<usize>, to: &mut [f32]) {
        let [_, height, width] = self.of.operand;
        let tiles = rows.len() * self.columns;
        transform::<Image, 4, 4>(
            self.x,
            |tile| {
                let (row, column) = (rows.start + tile / self.columns, tile % self.columns);
                let image = row / self.rows;
                let lines = from_fn(|i| Some(image * height + self.of.meets(1, i, 2 * (row % self.rows))?));
                let places: [Option<usize>; 4] = from_fn(|j| self.of.meets(2, j, 2 * column));
                lines.map(|line: Option<usize>| places.map(|place| Some((line? * width + place?) * self.features)))
            },
            to,
            points(tiles, self.features),
            tiles,
            self.features,
        );
    }

    /// `A y Aᵀ` of the tiles of some rows and outputs. `window` has the elements of all rows and outputs.
    fn transform_window(&self, window: &[f32], rows: &Range<usize>, outputs: &Range<usize>, to: &mut [f32]) {
        let tiles = rows.len() * self.columns;
        let source = self.places(rows, outputs, 0);
        transform::<Cotangent, 2, 4>(window, source, to, points(tiles, outputs.len()), tiles, outputs.len());
    }

    /// `Aᵀ m A` of the tiles of some rows and outputs, into the elements of `rows`.
    fn transform_products(&self, products: &[f32], rows: &Range<usize>, outputs: &Range<usize>, out: &mut [f32]) {
        let tiles = rows.len() * self.columns;
        let target = self.places(rows, outputs, self.positions(rows).start * self.outputs);
        transform::<Products, 4, 2>(products, points(tiles, outputs.len()), out, target, tiles, outputs.len());
    }

    /// `Gᵀ s G` of some outputs.
    fn transform_sums(&self, sums: &[f32], outputs: &Range<usize>, out: &mut [f32]) {
        let source = points(self.features, outputs.len());
        transform::<Sums, 4, 3>(sums, source, out, self.filter_places(outputs), self.features, outputs.len());
    }

    /// Returns a function that computes the start of each element of a feature's filters.
    fn filter_places(&self, outputs: &Range<usize>) -> impl Fn(usize) -> Places<3> {
        move |feature| {
            from_fn(|i| from_fn(|j| Some(((3 * i + j) * self.features + feature) * self.outputs + outputs.start)))
        }
    }

    /// Returns a function that computes the start of each output of a tile, counted from `start`. An output outside of the
    /// image is `None`.
    fn places(&self, rows: &Range<usize>, outputs: &Range<usize>, start: usize) -> impl Fn(usize) -> Places<2> {
        let [_, height, width] = self.of.window;
        move |tile| {
            let (row, column) = (rows.start + tile / self.columns, 2 * (tile % self.columns));
            let (first, line) = (2 * (row % self.rows), self.line(row));
            from_fn(|i| {
                from_fn(|j| {
                    let is_inside = first + i < height && column + j < width;
                    is_inside.then(|| ((line + i) * width + column + j) * self.outputs + outputs.start - start)
                })
            })
        }
    }
}

/// The matrix of a point.
fn matrix(
    of: &[f32],
    point: usize,
    rows: usize,
    columns: usize,
) -> std::result::Result<ArrayView2<'_, f32>, ndarray::ShapeError> {
    ArrayView2::from_shape((rows, columns), &of[point * apart(rows, columns)..][..rows * columns])
}

fn matrix_mut(
    of: &mut [f32],
    point: usize,
    rows: usize,
    columns: usize,
) -> std::result::Result<ArrayViewMut2<'_, f32>, ndarray::ShapeError> {
    ArrayViewMut2::from_shape((rows, columns), &mut of[point * apart(rows, columns)..][..rows * columns])
}

fn is_finite(x: &[f32]) -> bool {
    // A block has no early exit, so that its loop is vectorized.
    x.chunks(1024).all(|block| block.iter().fold(true, |all, x| all & x.is_finite()))
}

/// The start of each element of a tile, or `None` for an element that is 0.
type Places<const N: usize> = [[Option<usize>; N]; N];

/// Returns a function that computes the start of each element of a tile in the matrices `[tiles, features]` of all points.
fn points(tiles: usize, features: usize) -> impl Fn(usize) -> Places<4> {
    move |tile| from_fn(|i| from_fn(|j| Some((4 * i + j) * apart(tiles, features) + tile * features)))
}

/// Transforms tiles with this number of features. Reads the elements at `source` and writes the elements at `target`.
fn transform<T: Matrix<N, M>, const N: usize, const M: usize>(
    from: &[f32],
    source: impl Fn(usize) -> Places<N>,
    to: &mut [f32],
    target: impl Fn(usize) -> Places<M>,
    tiles: usize,
    features: usize,
) {
    let arch = Arch::new();
    for tile in 0..tiles {
        let (source, target) = (source(tile), target(tile));
        arch.dispatch(Transform::<T, N, M> { from, source, to, target, features, by: PhantomData });
    }
}

/// The transformation of a tile.
struct Transform<'a, T, const N: usize, const M: usize> {
    from: &'a [f32],
    source: Places<N>,
    to: &'a mut [f32],
    target: Places<M>,
    features: usize,
    by: PhantomData<T>,
}

impl<T: Matrix<N, M>, const N: usize, const M: usize> WithSimd for Transform<'_, T, N, M> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let zero = simd.splat_f32s(0.0);
        for feature in (0..self.features).step_by(S::F32_LANES) {
            // The matrix is applied to the columns of the tile, and then to the rows of the result.
            let mut tile = [[zero; N]; N];
            for (tile, source) in tile.iter_mut().flatten().zip(self.source.iter().flatten()) {
                if let Some(place) = source {
                    *tile = S::as_simd_f32s(&self.from[place + feature..][..S::F32_LANES]).0[0];
                }
            }
            let mut columns = [[zero; N]; M];
            for j in 0..N {
                let mut column = [zero; N];
                (0..N).for_each(|i| column[i] = tile[i][j]);
                let column = T::apply(simd, column);
                (0..M).for_each(|i| columns[i][j] = column[i]);
            }
            for (row, target) in columns.into_iter().zip(&self.target) {
                let row = T::apply(simd, row);
                for (element, target) in row.into_iter().zip(target) {
                    if let Some(place) = target {
                        S::as_mut_simd_f32s(&mut self.to[place + feature..][..S::F32_LANES]).0[0] = element;
                    }
                }
            }
        }
    }
}

/// A matrix of the algorithm, which is applied to the columns of a tile, then to the rows.
trait Matrix<const N: usize, const M: usize> {
    fn apply<S: Simd>(simd: S, column: [S::f32s; N]) -> [S::f32s; M];
}

/// `Bᵀ`, of an image.
struct Image;
/// `G`, of a filter.
struct Filter;
/// `A`, of the cotangent of outputs.
struct Cotangent;
/// `Aᵀ`, of products.
struct Products;
/// `Gᵀ`, of sums of products with the cotangent.
struct Sums;

impl Matrix<4, 4> for Image {
    #[inline(always)]
    fn apply<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; 4]) -> [S::f32s; 4] {
        [simd.sub_f32s(a, c), simd.add_f32s(b, c), simd.sub_f32s(c, b), simd.sub_f32s(b, d)]
    }
}

impl Matrix<3, 4> for Filter {
    #[inline(always)]
    fn apply<S: Simd>(simd: S, [a, b, c]: [S::f32s; 3]) -> [S::f32s; 4] {
        let (half, ends) = (simd.splat_f32s(0.5), simd.add_f32s(a, c));
        let middle = [simd.add_f32s(ends, b), simd.sub_f32s(ends, b)];
        [a, simd.mul_f32s(half, middle[0]), simd.mul_f32s(half, middle[1]), c]
    }
}

impl Matrix<2, 4> for Cotangent {
    #[inline(always)]
    fn apply<S: Simd>(simd: S, [a, b]: [S::f32s; 2]) -> [S::f32s; 4] {
        [a, simd.add_f32s(a, b), simd.sub_f32s(a, b), simd.neg_f32s(b)]
    }
}

impl Matrix<4, 2> for Products {
    #[inline(always)]
    fn apply<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; 4]) -> [S::f32s; 2] {
        [simd.add_f32s(simd.add_f32s(a, b), c), simd.sub_f32s(simd.sub_f32s(b, c), d)]
    }
}

impl Matrix<4, 3> for Sums {
    #[inline(always)]
    fn apply<S: Simd>(simd: S, [a, b, c, d]: [S::f32s; 4]) -> [S::f32s; 3] {
        let half = simd.splat_f32s(0.5);
        let even = simd.mul_f32s(half, simd.add_f32s(b, c));
        [simd.add_f32s(a, even), simd.mul_f32s(half, simd.sub_f32s(b, c)), simd.add_f32s(even, d)]
    }
}
