//! Sums of numbers at the places of the largest or smallest element of windows, as in gradients of pooling.
//!
//! XLA (xla-cpu-pjrt 0.0.1) visits one element after the other, with a call of a function for each comparison. Here the elements of a
//! row of windows are compared together, because the elements that they meet at one place of the windows are next to each other once the
//! columns of a row are ordered by their remainder modulo the stride.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use crate::filter_window::{SPATIAL, Window};
use crate::per_type::per_type;
use crate::tasks::run_tasks;
use crate::view::check;
use crate::{FilterWindow, Result, ShapeError, View};

/// The number of windows that are computed together, so that their elements and places stay in the first-level cache.
const BLOCK: usize = 512;

/// The number of windows of the longest vector. Rows are longer by as many elements, so that all windows are computed in whole vectors.
const LANES: usize = 16;

/// The place of padding, beyond all sums.
const NO_PLACE: usize = 1 << 31;

/// The minimum number of elements of a thread.
const MIN_ELEMENTS_PER_THREAD: usize = 1 << 15;

/// The element of a window that [`select_and_scatter_add`] selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// The first largest element.
    Max,
    /// The first smallest element.
    Min,
}

per_type!(SelectAndScatterAdd for [f32, f64] {
    fn select_and_scatter_add(
        of: &FilterWindow,
        window: [usize; SPATIAL],
        selection: Selection,
        operands: [View<'_, Self>; 2],
        sums: &mut [Self],
        threads: usize
    ) = select_and_scatter_add_of;
});

mod sealed {
    use pulp::Simd;

    use super::Selection;

    pub trait Sealed: super::SelectAndScatterAdd + Copy + Default + Send + Sync + std::ops::AddAssign {
        /// An integer of the same size, so that a comparison of elements selects among integers too.
        type Place: Copy + Default + Send + Sync;
        const INFINITY: Self;
        const NEG_INFINITY: Self;
        fn place(place: usize) -> Self::Place;
        fn index(place: Self::Place) -> usize;

        /// Writes the place of the selected element of each window, in whole vectors. An element of the windows is the position of the first
        /// window's element in `rows`, and its place. The vectors are explicit, because the compiler would update places in memory with a mask,
        /// which takes AMD processors ten times as long.
        fn select<S: Simd>(
            simd: S,
            selection: Selection,
            rows: &[Self],
            elements: &[(usize, Self::Place)],
            places: &mut [Self::Place],
        );
    }
}

use sealed::Sealed;

/// An element of the arrays of [`select_and_scatter_add`]: f32 or f64.
pub trait Selectable: Sealed {}

macro_rules! selectable {
    ($($t:ident $place:ident $vector:ident $as_simd:ident $as_mut_places:ident $splat:ident $max:ident $min:ident $select:ident $select_places:ident;)*) => { $(
        impl Selectable for $t {}

        impl Sealed for $t {
            type Place = $place;
            const INFINITY: $t = $t::INFINITY;
            const NEG_INFINITY: $t = $t::NEG_INFINITY;

            #[inline(always)]
            fn place(place: usize) -> $place {
                place as $place
            }

            #[inline(always)]
            fn index(place: $place) -> usize {
                place as usize
            }

            #[inline(always)]
            fn select<S: Simd>(
                simd: S,
                selection: Selection,
                rows: &[$t],
                elements: &[(usize, $place)],
                places: &mut [$place],
            ) {
                let Some(((first, first_place), elements)) = elements.split_first() else { return };
                let lanes = size_of::<S::$vector>() / size_of::<$t>();
                for (i, places) in S::$as_mut_places(places).0.iter_mut().enumerate() {
                    let (mut best, mut place) = (S::$as_simd(&rows[first + i * lanes..][..lanes]).0[0], simd.$splat(*first_place));
                    for (start, element_place) in elements {
                        let x = S::$as_simd(&rows[start + i * lanes..][..lanes]).0[0];
                        let is_kept = match selection {
                            Selection::Max => simd.$max(best, x),
                            Selection::Min => simd.$min(best, x),
                        };
                        best = simd.$select(is_kept, best, x);
                        place = simd.$select_places(is_kept, place, simd.$splat(*element_place));
                    }
                    *places = place;
                }
            }
        }
    )* };
}
selectable! {
    f32 u32 f32s as_simd_f32s as_mut_simd_u32s splat_u32s greater_than_or_equal_f32s less_than_or_equal_f32s select_f32s select_u32s;
    f64 u64 f64s as_simd_f64s as_mut_simd_u64s splat_u64s greater_than_or_equal_f64s less_than_or_equal_f64s select_f64s select_u64s;
}

/// Adds the source of each window to the sum at the place of the window's largest or smallest element; all other sums are 0.
/// `operands` are the elements and the sources. Elements are `[images, depth, height, width, features]`, as are the sums, and sources are
/// `[images, positions.., features]` with the positions of `of`. `window` is the size of the windows. Padding is the worst element, and
/// sources whose place is padding are dropped. A comparison with NaN selects the later element.
///
/// Sums are computed in the order of the windows. Allocates the rows under one window for each thread. Threads compute different images.
///
/// ```
/// use shardax_cpu_kernels::{FilterWindow, Selection, View, select_and_scatter_add};
///
/// let windows = FilterWindow { stride: [1; 3], dilation: [1; 3], low: [0; 3], positions: [1, 1, 3] };
/// let elements = View::new(&[1, 1, 1, 5, 1], &[1.0f32, 5.0, 2.0, 4.0, 3.0])?;
/// let sources = View::new(&[1, 1, 1, 3, 1], &[1.0f32, 2.0, 4.0])?;
/// let mut sums = [0.0; 5];
/// select_and_scatter_add(&windows, [1, 1, 3], Selection::Max, [elements, sources], &mut sums, 1)?;
/// assert_eq!(sums, [0.0, 3.0, 0.0, 4.0, 0.0]);
/// # Ok::<(), shardax_cpu_kernels::ShapeError>(())
/// ```
///
/// # Errors
/// Returns an error if the shapes do not fit, or if an image or its windows extend over 2³¹ elements or more.
pub fn select_and_scatter_add<T: Selectable>(
    of: &FilterWindow,
    window: [usize; SPATIAL],
    selection: Selection,
    operands: [View<'_, T>; 2],
    sums: &mut [T],
    threads: usize,
) -> Result<()> {
    T::select_and_scatter_add(of, window, selection, operands, sums, threads)
}

fn select_and_scatter_add_of<T: Selectable>(
    of: &FilterWindow,
    window: [usize; SPATIAL],
    selection: Selection,
    [x, source]: [View<'_, T>; 2],
    sums: &mut [T],
    threads: usize,
) -> Result<()> {
    let [images, a, b, c, features] = x.dims("the elements")?;
    let [source_images, i, j, k, source_features] = source.dims("the sources")?;
    let of = of.sized([a, b, c], window)?;
    check("the images of the sources", source_images, images)?;
    check("the features of the sources", source_features, features)?;
    [i, j, k]
        .iter()
        .zip(of.positions)
        .try_for_each(|(n, windows)| check("the windows along a dimension", *n, windows))?;
    check("the sums", sums.len(), x.data().len())?;
    if source.data().is_empty() || window.contains(&0) || sums.is_empty() {
        sums.fill(T::default());
        return Ok(());
    }
    let layout = Layout::new(of, features)?;
    let (sums_len, size, positions) = (sums.len(), sums.len() / images, source.data().len() / images);
    let tasks = x.data().chunks_exact(size).zip(source.data().chunks_exact(positions)).zip(sums.chunks_exact_mut(size));
    run_tasks(
        tasks.collect(),
        threads.min(sums_len / MIN_ELEMENTS_PER_THREAD),
        || Scratch::new(&layout),
        |scratch, ((x, source), sums)| {
            Arch::new().dispatch(Image { layout: &layout, selection, x, source, sums, scratch });
        },
    );
    Ok(())
}

/// The positions of elements of the windows in an image.
struct Layout {
    of: Window,
    features: usize,
    /// The remainders of the columns under windows modulo the stride, each once.
    phases: Vec<usize>,
    /// The number of columns of a phase.
    phase_columns: usize,
    /// For each element along the width of a window, the position of its column for the first window, in a row ordered by phases.
    starts: Vec<usize>,
    /// The position of the first element of each window of a row, relative to the first one, by window and feature.
    spread: Vec<usize>,
    /// The windows of a row, in parts whose elements along the width have the same places or are padding.
    parts: Vec<Range<usize>>,
    /// The number of rows under a window, with the rows between them.
    ring: usize,
}

impl Layout {
    fn new(of: Window, features: usize) -> Result<Self> {
        let extent = [0, 1, 2].map(|d| (of.positions[d] - 1) * of.stride[d] + (of.window[d] - 1) * of.dilation[d] + 1);
        let is_small = [extent, of.operand].iter().all(|image| {
            let size = image.iter().try_fold(features, |n, &d| n.checked_mul(d));
            size.is_some_and(|size| size < NO_PLACE)
        });
        if !is_small {
            return Err(ShapeError(format!("the windows extend over {extent:?} of {features} features")));
        }
        let (stride, dilation, windows) = (of.stride[2], of.dilation[2], of.positions[2]);
        let columns = (0..of.window[2]).map(|k| k * dilation);
        let mut phases: Vec<usize> = columns.clone().map(|column| column % stride).collect();
        phases.sort_unstable();
        phases.dedup();
        let phase_columns = windows + (of.window[2] - 1) * dilation / stride;
        let starts = columns.map(|column| {
            let phase = phases.partition_point(|phase| *phase < column % stride);
            (phase * phase_columns + column / stride) * features
        });
        let starts = starts.collect();
        let spread = (0..windows).flat_map(|w| (0..features).map(move |f| w * stride * features + f)).collect();
        // Windows at the edges are parts of their own.
        let is_inside = |w: &usize| of.meets(2, 0, *w).is_some() && of.meets(2, of.window[2] - 1, *w).is_some();
        let first = (0..windows).find(is_inside).unwrap_or(windows);
        let end = (first..windows).rfind(is_inside).map_or(first, |last| last + 1);
        let block = (BLOCK / features).max(1);
        let inside = (first..end).step_by(block).map(|w| w..(w + block).min(end));
        let parts = (0..first).map(|w| w..w + 1).chain(inside).chain((end..windows).map(|w| w..w + 1)).collect();
        let ring = (of.window[1] - 1) * of.dilation[1] + 1;
        Ok(Layout { of, features, phases, phase_columns, starts, spread, parts, ring })
    }

    /// The number of elements of a row ordered by phases.
    fn row_size(&self) -> usize {
        self.phases.len() * self.phase_columns * self.features
    }

    /// Orders the columns of a row by phases. A missing row, and missing columns, are `padding`.
    #[inline(always)]
    fn order<T: Copy>(&self, row: Option<&[T]>, padding: T, out: &mut [T]) {
        let Some(row) = row else { return out.fill(padding) };
        let (stride, features, low) = (self.of.stride[2], self.features, self.of.low[2]);
        for (&phase, out) in self.phases.iter().zip(out.chunks_exact_mut(self.phase_columns * features)) {
            // Column `i` of the phase is column `i * stride + shift` of the row.
            let shift = (phase as i64).saturating_sub(low);
            let before = (shift.min(0).unsigned_abs() as usize).div_ceil(stride).min(self.phase_columns);
            let start = ((before * stride) as i64).saturating_add(shift);
            let start = usize::try_from(start).ok().and_then(|start| start.checked_mul(features));
            let columns = start.and_then(|start| row.get(start..)).unwrap_or_default();
            let (padded, out) = out.split_at_mut(before * features);
            padded.fill(padding);
            let found = (columns.len() / features).div_ceil(stride) * features;
            let (out, after) = out.split_at_mut(found.min(out.len()));
            after.fill(padding);
            match (stride, features) {
                (1, _) => out.copy_from_slice(&columns[..out.len()]),
                (_, 1) => out.iter_mut().zip(columns.iter().step_by(stride)).for_each(|(out, x)| *out = *x),
                _ => out
                    .chunks_exact_mut(features)
                    .zip(columns.chunks(stride * features))
                    .for_each(|(out, x)| out.copy_from_slice(&x[..features])),
            }
        }
    }
}

/// The memory of a thread.
struct Scratch<T: Selectable> {
    /// The rows under a window, ordered by phases. Row `r` of a plane is in the slot of its remainder modulo [`Layout::ring`].
    rows: Vec<T>,
    /// For each slot, the number of its row, plus 1.
    loaded: Vec<usize>,
    places: Vec<T::Place>,
}

impl<T: Selectable> Scratch<T> {
    fn new(layout: &Layout) -> Self {
        let slots = layout.of.window[0] * layout.ring;
        let windows = layout.parts.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
        Scratch {
            rows: vec![T::default(); slots * layout.row_size() + LANES],
            loaded: vec![0; slots],
            places: vec![T::Place::default(); windows * layout.features + LANES],
        }
    }
}

struct Image<'a, T: Selectable> {
    layout: &'a Layout,
    selection: Selection,
    x: &'a [T],
    source: &'a [T],
    sums: &'a mut [T],
    scratch: &'a mut Scratch<T>,
}

impl<T: Selectable> WithSimd for Image<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Image { layout, selection, x, source, sums, scratch } = self;
        let padding = match selection {
            Selection::Max => T::NEG_INFINITY,
            Selection::Min => T::INFINITY,
        };
        let (of, features, row_size) = (&layout.of, layout.features, layout.row_size());
        let Scratch { rows, loaded, places } = scratch;
        let row = of.operand[2] * features;
        let plane = of.operand[1] * row;
        sums.fill(T::default());
        // The rows under a window: their positions in the scratch memory, and their places relative to the window's first element.
        let mut lines: Vec<(usize, Option<usize>)> = Vec::with_capacity(of.window[0] * of.window[1]);
        let mut elements = Vec::with_capacity(lines.capacity() * of.window[2]);
        for (line, source) in source.chunks_exact(of.positions[2] * features).enumerate() {
            let position = [line / of.positions[1], line % of.positions[1]];
            if position[1] == 0 {
                loaded.fill(0);
            }
            lines.clear();
            for (kd, kh) in (0..of.window[0]).flat_map(|kd| (0..of.window[1]).map(move |kh| (kd, kh))) {
                let number = position[1] * of.stride[1] + kh * of.dilation[1];
                let slot = kd * layout.ring + number % layout.ring;
                let found = of.meets(0, kd, position[0]).zip(of.meets(1, kh, position[1]));
                lines.push((slot * row_size, found.map(|_| kd * of.dilation[0] * plane + kh * of.dilation[1] * row)));
                if loaded[slot] != number + 1 {
                    loaded[slot] = number + 1;
                    let found = found.map(|(a, b)| &x[a * plane + b * row..][..row]);
                    layout.order(found, padding, &mut rows[slot * row_size..][..row_size]);
                }
            }
            // The first window can begin in the padding before the image, so that its position is negative.
            let first = [(0, plane), (1, row)].map(|(d, size)| {
                ((position[d] * of.stride[d]) as i64).wrapping_sub(of.low[d]).wrapping_mul(size as i64)
            });
            let first = first[0].wrapping_add(first[1]).wrapping_sub(of.low[2].wrapping_mul(features as i64)) as usize;
            for part in &layout.parts {
                elements.clear();
                for (start, place) in &lines {
                    for (kw, column) in layout.starts.iter().enumerate() {
                        let place = place.filter(|_| of.meets(2, kw, part.start).is_some());
                        let place = place.map_or(NO_PLACE, |place| place + kw * of.dilation[2] * features);
                        elements.push((start + column + part.start * features, T::place(place)));
                    }
                }
                let windows = part.start * features..part.end * features;
                T::select(simd, selection, rows, &elements, &mut places[..windows.len().next_multiple_of(LANES)]);
                let sources = source[windows.clone()].iter().zip(&layout.spread[windows]);
                for ((source, spread), place) in sources.zip(places.iter()) {
                    let place = T::index(*place);
                    let sum = sums.get_mut(first.wrapping_add(spread + place));
                    if let Some(sum) = sum.filter(|_| place != NO_PLACE) {
                        *sum += *source;
                    }
                }
            }
        }
    }
}
