//! Products of some rows by the tile registers of AMX. The integers are multiplied as bf16, which has all integers of 8
//! bits, with rows that are divided into three numbers of bf16, whose sum is the number of f32. Therefore no digit is lost, and
//! the sums of each group are multiplied with its scale in f32, as for few rows (`few.rs`).

use std::ops::Range;

use ndarray::{ArrayViewMut2, Axis};
use pulp::{Arch, Simd, WithSimd, bytemuck};

use super::group_products::{Groups, Line, PARTS, SIDE, add, configure, widen};
use super::words::{Lanes, Unit};
use super::{GroupedMatrix, Packed};
use crate::low_precision::tile_registers::{Configured, TileRegisters, tile_registers};
use crate::prefetch::prefetch;
use crate::scratch::Scratch;
use crate::tasks::run_tasks;

/// The minimum number of rows. `few.rs` is as fast for four rows, and takes twice as long for five.
const MIN_ROWS: usize = 5;

/// The maximum number of words of rows that are multiplied at once, which threads keep between calls.
const MAX_ROW_WORDS: usize = 1 << 20;

/// The approximate number of elements of a part of each column. A part of 16 rows stays in the first cache while it is multiplied with
/// the columns of a task.
const DEPTH: usize = 256;

/// The maximum number of panels of [`SIDE`] columns in a task.
const PANELS: usize = 8;

/// Returns the permission to use the registers, if they multiply this number of rows faster.
pub(super) fn registers_for(rows: usize) -> Option<TileRegisters> {
    tile_registers().filter(|_| rows >= MIN_ROWS)
}

/// Multiplies rows with a matrix.
pub(super) fn multiply<U: Unit>(
    registers: TileRegisters,
    lhs: &[f32],
    packed: Packed<'_, U>,
    mut out: ArrayViewMut2<'_, f32>,
    threads: usize,
) {
    let steps = Steps::of(packed.matrix.shape);
    let words_of_tile = PARTS * SIDE * steps.depth() / 2;
    let chunk = (MAX_ROW_WORDS / words_of_tile).max(1) * SIDE;
    for (lhs, out) in lhs.chunks(chunk * steps.depth()).zip(out.axis_chunks_iter_mut(Axis(0), chunk)) {
        let rows = Rows::new(lhs, steps, packed.matrix.minima.is_some());
        multiply_chunk(registers, &rows, packed, out, threads);
    }
}

/// The division of groups into steps, which fill a register.
#[derive(Clone, Copy)]
struct Steps {
    groups: usize,
    /// The steps of a group.
    per_group: usize,
    /// The pairs of elements of a step.
    pairs: usize,
}

impl Steps {
    fn of([_, groups, size]: [usize; 3]) -> Steps {
        let pairs = if size.is_multiple_of(2 * SIDE) { SIDE } else { SIDE / 2 };
        Steps { groups, per_group: size / (2 * pairs), pairs }
    }

    /// The elements of a row.
    fn depth(self) -> usize {
        2 * self.pairs * self.per_group * self.groups
    }

    /// The groups whose products are added at once.
    fn groups_of_part(self) -> usize {
        DEPTH.div_ceil(2 * self.pairs * self.per_group).min(self.groups)
    }

    /// The lines that this number of groups takes in a panel of columns, or in one part of a tile of rows.
    fn lines(self, groups: usize) -> usize {
        groups * self.per_group * self.pairs
    }
}

/// Rows of the left operand, as parts of bf16.
struct Rows {
    steps: Steps,
    memory: Scratch,
    /// For each tile of [`SIDE`] rows the sums of its groups, if the matrix has minima.
    sums: Vec<Lanes>,
}

impl Rows {
    fn new(lhs: &[f32], steps: Steps, has_minima: bool) -> Rows {
        let tiles = lhs.len().div_ceil(SIDE * steps.depth());
        let mut memory = Scratch::new((tiles * PARTS * steps.lines(steps.groups) + 1) * SIDE);
        let lines = lines_mut(&mut memory);
        let mut sums = Vec::new();
        for (rows, lines) in
            lhs.chunks(SIDE * steps.depth()).zip(lines.chunks_exact_mut(PARTS * steps.lines(steps.groups)))
        {
            Arch::new().dispatch(Divide { rows, steps, lines });
            if has_minima {
                add_sums(rows, steps, &mut sums);
            }
        }
        Rows { steps, memory, sums }
    }

    /// The parts of some groups of each tile, and the sums of these groups.
    fn tiles(&self, groups: Range<usize>) -> impl Iterator<Item = (&[Line], &[Lanes])> {
        let all = PARTS * self.steps.lines(self.steps.groups);
        let part = PARTS * self.steps.lines(groups.start)..PARTS * self.steps.lines(groups.end);
        let tiles = lines(&self.memory).chunks_exact(all);
        tiles.enumerate().map(move |(tile, lines)| {
            let first = tile * self.steps.groups;
            let sums = self.sums.get(first + groups.start..first + groups.end).unwrap_or_default();
            (&lines[part.clone()], sums)
        })
    }
}

/// Appends the sums of the groups of a tile's rows.
fn add_sums(rows: &[f32], steps: Steps, sums: &mut Vec<Lanes>) {
    let first = sums.len();
    sums.resize(first + steps.groups, [0.0; SIDE]);
    for (row, elements) in rows.chunks_exact(steps.depth()).enumerate() {
        for (sums, group) in sums[first..].iter_mut().zip(elements.chunks_exact(steps.depth() / steps.groups)) {
            sums[row] = group.iter().sum();
        }
    }
}

/// The words of scratch memory from the beginning of a line on.
fn lines_mut(memory: &mut [f32]) -> &mut [Line] {
    let start = line_start(memory);
    bytemuck::cast_slice_mut(&mut memory[start..]).as_chunks_mut().0
}

fn lines(memory: &[f32]) -> &[Line] {
    bytemuck::cast_slice(&memory[line_start(memory)..]).as_chunks().0
}

/// The number of words before the beginning of a line. Scratch memory is allocated with one more line, so that all lines fit.
fn line_start(memory: &[f32]) -> usize {
    memory.as_ptr().align_offset(size_of::<Line>()).min(SIDE)
}

/// Divides rows into parts.
struct Divide<'a> {
    rows: &'a [f32],
    steps: Steps,
    lines: &'a mut [Line],
}

impl WithSimd for Divide<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Divide { rows, steps: Steps { pairs, .. }, lines } = self;
        let count = rows.len() / self.steps.depth();
        for (step, lines) in lines.chunks_exact_mut(PARTS * pairs).enumerate() {
            if count < SIDE {
                lines.fill([0; SIDE]);
            }
            for (row, elements) in rows.chunks_exact(self.steps.depth()).enumerate() {
                let elements = &elements[step * 2 * pairs..(step + 1) * 2 * pairs];
                let mut words = [[0; PARTS]; SIDE];
                for (words, pair) in words.iter_mut().zip(elements.as_chunks().0) {
                    *words = pair_words(*pair);
                }
                for (pair, words) in words[..pairs].iter().enumerate() {
                    for (part, word) in words.iter().enumerate() {
                        lines[part * pairs + pair][row] = *word;
                    }
                }
            }
        }
    }
}

/// The words of a pair of numbers for each part. The parts have eight digits each, so that no digit is lost above 2⁻¹⁰².
#[inline(always)]
fn pair_words([first, second]: [f32; 2]) -> [u32; PARTS] {
    let ([mut first, mut second], mut words) = ([first + 0.0, second + 0.0], [0; PARTS]);
    for word in &mut words {
        let [low, high] = [first, second].map(|number| number.to_bits() & 0xffff_0000);
        *word = low >> 16 | high;
        first = after(first, low);
        second = after(second, high);
    }
    words
}

/// The rest of a number without its first digits: zero for an infinite number.
#[inline(always)]
fn after(number: f32, digits: u32) -> f32 {
    if number.is_infinite() { 0.0 } else { number - f32::from_bits(digits) }
}

/// Multiplies tiles of rows with all columns.
fn multiply_chunk<U: Unit>(
    registers: TileRegisters,
    rows: &Rows,
    packed: Packed<'_, U>,
    mut out: ArrayViewMut2<'_, f32>,
    threads: usize,
) {
    let (count, columns) = out.dim();
    let panels = columns.div_ceil(2 * threads * SIDE).clamp(1, PANELS);
    let parts = out.axis_chunks_iter_mut(Axis(1), panels * SIDE).enumerate();
    let mut tasks: Vec<_> = parts.map(|(index, out)| (index * panels * SIDE, out)).collect();
    // `run_tasks` starts with the last task, and the matrix should be read in order.
    tasks.reverse();
    run_tasks(
        tasks,
        threads,
        || (configure(registers, rows.steps.pairs), Buffers::new(rows.steps, panels, count.div_ceil(SIDE))),
        |(configured, buffers), (start, out)| {
            let columns = start..start + out.ncols();
            buffers.sums.as_flattened_mut().as_flattened_mut().fill(0.0);
            Arch::new().dispatch(WidenNumbers { matrix: packed.matrix, columns: columns.clone(), buffers });
            for first in (0..rows.steps.groups).step_by(rows.steps.groups_of_part()) {
                let groups = first..(first + rows.steps.groups_of_part()).min(rows.steps.groups);
                add_part(configured, rows, packed, columns.clone(), groups, buffers);
            }
            Arch::new().dispatch(Write { sums: &buffers.sums, out });
        },
    );
}

/// Adds the products of all rows with some groups of a task's columns to the sums.
fn add_part<U: Unit>(
    configured: &Configured,
    rows: &Rows,
    packed: Packed<'_, U>,
    columns: Range<usize>,
    groups: Range<usize>,
    buffers: &mut Buffers,
) {
    let (steps, panels) = (rows.steps, columns.len().div_ceil(SIDE));
    for panel in 0..panels {
        let start = columns.start + panel * SIDE;
        let columns = start..(start + SIDE).min(columns.end);
        widen_panel(configured, packed, columns, groups.clone(), panel, &mut buffers.columns);
    }
    let panels_of_columns = lines(&buffers.columns).chunks_exact(steps.lines(groups.len()));
    let tiles = rows.tiles(groups.clone()).zip(buffers.sums.chunks_exact_mut(panels));
    for ((rows, sums_of_rows), sums) in tiles {
        for (panel, (columns, sums)) in panels_of_columns.clone().zip(sums).enumerate() {
            let numbers = panel * SIDE * steps.groups + groups.start..;
            let products = Groups {
                columns,
                rows,
                pairs: steps.pairs,
                steps: steps.per_group,
                count: groups.len(),
                scales: &buffers.scales[numbers.clone()],
                stride: steps.groups,
                minima: packed.matrix.minima.map(|_| (&buffers.minima[numbers], sums_of_rows)),
            };
            add(configured, products, sums);
        }
    }
}

/// The memory of a thread for a task: a part of its columns, and the sums.
struct Buffers {
    columns: Scratch,
    scales: Vec<f32>,
    minima: Vec<f32>,
    /// For each tile of rows and each panel of columns a vector for each column.
    sums: Vec<[Lanes; SIDE]>,
}

impl Buffers {
    fn new(steps: Steps, panels: usize, tiles: usize) -> Buffers {
        let numbers = vec![0.0; panels * SIDE * steps.groups];
        Buffers {
            columns: Scratch::new((panels * steps.lines(steps.groups_of_part()) + 1) * SIDE),
            scales: numbers.clone(),
            minima: numbers,
            sums: vec![[[0.0; SIDE]; SIDE]; tiles * panels],
        }
    }
}

/// Widens the scales and minima of all groups of a task's columns.
struct WidenNumbers<'a, 'b> {
    matrix: GroupedMatrix<'a>,
    columns: Range<usize>,
    buffers: &'b mut Buffers,
}

impl WithSimd for WidenNumbers<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let groups = self.matrix.shape[1];
        let numbers = self.columns.start * groups..self.columns.end * groups;
        self.matrix.scales.widen(numbers.clone(), &mut self.buffers.scales[..numbers.len()]);
        if let Some(minima) = self.matrix.minima {
            minima.widen(numbers.clone(), &mut self.buffers.minima[..numbers.len()]);
        }
    }
}

/// Writes the sums of a task, which have a vector for each column.
struct Write<'a, 'b> {
    sums: &'b [[Lanes; SIDE]],
    out: ArrayViewMut2<'a, f32>,
}

impl WithSimd for Write<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        let panels = self.out.ncols().div_ceil(SIDE);
        for (sums, mut out) in self.sums.chunks_exact(panels).zip(self.out.axis_chunks_iter_mut(Axis(0), SIDE)) {
            for (row, mut out) in out.rows_mut().into_iter().enumerate() {
                let Some(out) = out.as_slice_mut() else { continue };
                for (out, sums) in out.chunks_mut(SIDE).zip(sums) {
                    let numbers: Lanes = std::array::from_fn(|column| sums[column][row]);
                    out.copy_from_slice(&numbers[..out.len()]);
                }
            }
        }
    }
}

/// Widens some groups of the columns of a panel.
fn widen_panel<U: Unit>(
    configured: &Configured,
    packed: Packed<'_, U>,
    columns: Range<usize>,
    groups: Range<usize>,
    panel: usize,
    memory: &mut Scratch,
) {
    let steps = Steps::of(packed.matrix.shape);
    let lines = steps.lines(groups.len());
    let lines = &mut lines_mut(memory)[panel * lines..(panel + 1) * lines];
    if columns.len() < SIDE {
        lines.fill([0; SIDE]);
    }
    let bytes_of_group = 2 * steps.pairs * steps.per_group * U::BITS / 8;
    for (index, column) in columns.enumerate() {
        let bytes = packed.row(column).as_flattened();
        let range = groups.start * bytes_of_group..groups.end * bytes_of_group;
        // The same part of a column of the next panel.
        let ahead = SIDE * bytes.len() + range.start;
        (ahead..ahead + range.len()).step_by(size_of::<Line>()).for_each(|byte| prefetch(bytes, byte));
        let bytes = &bytes[range];
        widen::<U>(configured, bytes, steps.pairs, index, lines);
    }
}
