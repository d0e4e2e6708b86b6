//! Convolutions over an image with zeros between its elements (base dilation), for example gradients of strided
//! convolutions with respect to the image. They are divided into phases, and each phase is a convolution of the image
//! without zeros.
//!
//! Outputs whose distance is a multiple of the base dilation use the same elements of the filter. For example, a base
//! dilation of 2 along two dimensions has four phases, which use 1, 2, 2 and 4 elements of a filter of 3 × 3. Nothing is
//! multiplied with the zeros ([`gaps`](crate::gaps) has the exception).

use std::borrow::Cow;
use std::ops::Range;

use crate::SPATIAL;
use crate::filter_window::Window;
use crate::patches::Patches;

/// The outputs whose indices have the same remainders, and the elements that they are computed from.
pub(crate) struct Phase<'a> {
    /// The patches of the image without zeros.
    pub patches: Patches<'a>,
    /// The filter's elements that are multiplied with the image: `[positions and features, outputs]`.
    pub filter: Cow<'a, [f32]>,
    dims: [Dim; SPATIAL],
}

/// A phase along one dimension.
#[derive(Clone, Copy)]
struct Dim {
    /// The first output, and the distance between outputs.
    first: usize,
    step: usize,
    /// The number of all outputs, and the number of the phase's outputs.
    all: usize,
    outputs: usize,
    /// The first element of the filter that is multiplied with the image, the distance between such elements, and their
    /// number.
    element: usize,
    apart: usize,
    elements: usize,
    /// The window without base dilation.
    stride: usize,
    dilation: usize,
    low: i64,
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The number of indices `first`, `first + step`, … below `end`.
pub(crate) fn count(first: usize, step: usize, end: usize) -> usize {
    end.saturating_sub(first).div_ceil(step)
}

impl Dim {
    /// The phases along dimension `d` of outputs in an image with this base dilation.
    fn all(of: &Window, base: usize, d: usize) -> impl Iterator<Item = Dim> {
        let (outputs, elements) = (of.window[d], of.positions[d]);
        let (between_outputs, between_elements) = (of.dilation[d], of.stride[d]);
        let low = of.low[d];
        let (outputs_gcd, elements_gcd) = (gcd(between_outputs, base), gcd(between_elements, base));
        let (step, apart) = (base / outputs_gcd, base / elements_gcd);
        (0..step.min(outputs)).map(move |first| {
            // These indices cannot overflow: `Window::check` has checked the largest one.
            let mut indices = (0..elements.min(apart))
                .map(|element| (element, (first * between_outputs + element * between_elements) as i64 - low));
            let met = indices.find(|(_, index)| index % base as i64 == 0);
            let element = met.map_or(elements, |(element, _)| element);
            Dim {
                first,
                step,
                all: outputs,
                outputs: count(first, step, outputs),
                element,
                apart,
                elements: count(element, apart, elements),
                stride: between_elements / elements_gcd,
                dilation: between_outputs / outputs_gcd,
                low: met.map_or(0, |(_, index)| -index / base as i64),
            }
        })
    }

    /// The elements of the filter that the phase uses.
    fn filter_elements(self) -> impl Iterator<Item = usize> {
        (0..self.elements).map(move |i| self.element + i * self.apart)
    }

    /// The number of outputs of the phase before the output `end`.
    fn before(&self, end: usize) -> usize {
        count(self.first, self.step, end)
    }

    fn contains(&self, output: usize) -> bool {
        output % self.step == self.first
    }
}

impl<'a> Phase<'a> {
    /// Divides a convolution; `filter` is `[positions, features, outputs]`, and none is empty.
    pub fn all(of: &Patches<'a>, base: [usize; SPATIAL], filter: &'a [f32]) -> Vec<Phase<'a>> {
        if base == [1; SPATIAL] {
            let dims = std::array::from_fn(|d| Dim::all(&of.of, 1, d).next());
            let [Some(a), Some(b), Some(c)] = dims else { return Vec::new() };
            return vec![Phase { patches: *of, filter: Cow::Borrowed(filter), dims: [a, b, c] }];
        }
        let [depths, rows, columns]: [Vec<Dim>; SPATIAL] =
            std::array::from_fn(|d| Dim::all(&of.of, base[d], d).collect());
        let mut phases = Vec::with_capacity(depths.len() * rows.len() * columns.len());
        for depth in depths {
            for row in &rows {
                phases.extend(columns.iter().map(|column| Phase::new(of, [depth, *row, *column], filter)));
            }
        }
        phases
    }

    fn new(of: &Patches<'a>, dims: [Dim; SPATIAL], filter: &[f32]) -> Self {
        let [a, b, c] = dims;
        let [_, height, width] = of.of.positions;
        let size = filter.len() / of.of.positions.iter().product::<usize>();

        let mut part = Vec::with_capacity(dims.iter().map(|d| d.elements).product::<usize>() * size);
        for (a, b) in a.filter_elements().flat_map(|a| b.filter_elements().map(move |b| (a, b))) {
            for element in c.filter_elements().map(|c| (a * height + b) * width + c) {
                part.extend_from_slice(&filter[element * size..(element + 1) * size]);
            }
        }
        let window = Window {
            stride: dims.map(|d| d.stride),
            dilation: dims.map(|d| d.dilation),
            low: dims.map(|d| d.low),
            operand: of.of.operand,
            window: dims.map(|d| d.outputs),
            positions: dims.map(|d| d.elements),
        };
        Phase { patches: Patches { of: window, ..*of }, filter: Cow::Owned(part), dims }
    }

    /// Divides a convolution whose image is read in another way than by patches.
    pub fn of_window(of: Window, base: [usize; SPATIAL], filter: &'a [f32]) -> Vec<Phase<'a>> {
        Phase::all(&Patches { of, x: &[], features: 0 }, base, filter)
    }

    /// The phase's first output along each dimension, and the distance of its outputs.
    pub fn steps(&self) -> [[usize; 2]; SPATIAL] {
        self.dims.map(|d| [d.first, d.step])
    }

    /// The patches of the phase among these lines of all outputs.
    pub fn patches_in(&self, lines: &Range<usize>) -> Range<usize> {
        self.lines_before(lines.start) * self.dims[2].outputs..self.lines_before(lines.end) * self.dims[2].outputs
    }

    /// The number of lines of the phase among the first lines of all outputs.
    fn lines_before(&self, line: usize) -> usize {
        let [a, b, _] = self.dims;
        let (image, depth, row) = (line / (a.all * b.all), line / b.all % a.all, line % b.all);
        let in_depth = if a.contains(depth) { b.before(row) } else { 0 };
        (image * a.outputs + a.before(depth)) * b.outputs + in_depth
    }

    /// The place of a patch among all outputs.
    pub fn place(&self, patch: usize) -> usize {
        let [a, b, c] = self.dims;
        let (line, column) = (patch / c.outputs, patch % c.outputs);
        let (image, depth, row) = (line / (a.outputs * b.outputs), line / b.outputs % a.outputs, line % b.outputs);
        let line = (image * a.all + a.first + depth * a.step) * b.all + b.first + row * b.step;
        line * c.all + c.first + column * c.step
    }
}
