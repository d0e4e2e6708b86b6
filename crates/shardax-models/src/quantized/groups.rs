//! Weights of few bits on the host, in the one form that all formats of files are read into.

/// Rows of integers in groups: an element is `scale * integer - minimum`, with the scale and the minimum of its group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Groups {
    /// The shape of the array. Groups divide its last dimension.
    pub shape: Vec<usize>,
    /// The number of elements of a group.
    pub group: usize,
    pub integers: Integers,
    pub values: Vec<i8>,
    /// One for each group.
    pub scales: Vec<f32>,
    /// One for each group, or none at all.
    pub minima: Vec<f32>,
    /// The position among the stored elements of each element of a row, where groups are not of neighbours.
    pub order: Option<Vec<i32>>,
}

/// The integers' range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Integers {
    /// -8 to 7.
    Signed4,
    /// 0 to 15.
    Unsigned4,
    /// -128 to 127.
    Signed8,
}

impl Groups {
    /// Groups without values, with room for as many as the shape has.
    pub fn with_capacity(shape: &[usize], group: usize, integers: Integers, has_minima: bool) -> Groups {
        let elements: usize = shape.iter().product();
        let count = elements / group.max(1);
        Groups {
            shape: shape.to_vec(),
            group,
            integers,
            values: Vec::with_capacity(elements),
            scales: Vec::with_capacity(count),
            minima: Vec::with_capacity(if has_minima { count } else { 0 }),
            order: None,
        }
    }

    /// The elements in float32.
    pub fn widened(&self) -> Vec<f32> {
        let mut stored = Vec::with_capacity(self.values.len());
        for (i, group) in self.values.chunks(self.group.max(1)).enumerate() {
            let (scale, minimum) = (self.scales[i], self.minima.get(i).copied().unwrap_or(0.0));
            stored.extend(group.iter().map(|value| scale * f32::from(*value) - minimum));
        }
        match &self.order {
            None => stored,
            Some(order) => {
                let rows = stored.chunks(order.len().max(1));
                rows.flat_map(|row| order.iter().map(|position| row[*position as usize])).collect()
            }
        }
    }

    /// The rows of these numbers, in this order, as a matrix. All dimensions but the last count rows.
    pub fn select_rows(&self, rows: &[usize]) -> Groups {
        let width = self.shape.last().copied().unwrap_or(1);
        let per_row = width / self.group.max(1);
        Groups {
            shape: vec![rows.len(), width],
            group: self.group,
            integers: self.integers,
            values: select(&self.values, rows, width),
            scales: select(&self.scales, rows, per_row),
            minima: if self.minima.is_empty() { Vec::new() } else { select(&self.minima, rows, per_row) },
            order: self.order.clone(),
        }
    }

    /// The rows of several matrices, one after the other; `None` if they differ in form.
    pub fn stacked(matrices: &[Groups]) -> Option<Groups> {
        let mut result = matrices.first()?.clone();
        for next in &matrices[1..] {
            let is_alike = next.shape == matrices[0].shape
                && (next.group, next.integers) == (result.group, result.integers)
                && next.minima.is_empty() == result.minima.is_empty()
                && next.order.is_none()
                && result.order.is_none();
            if !is_alike {
                return None;
            }
            result.values.extend_from_slice(&next.values);
            result.scales.extend_from_slice(&next.scales);
            result.minima.extend_from_slice(&next.minima);
        }
        result.shape[0] *= matrices.len();
        Some(result)
    }

    /// The number of groups of a row.
    pub fn groups_per_row(&self) -> usize {
        self.shape.last().copied().unwrap_or(0) / self.group.max(1)
    }
}

/// Rows of `width` elements each.
fn select<T: Copy>(values: &[T], rows: &[usize], width: usize) -> Vec<T> {
    rows.iter().flat_map(|row| &values[row * width..(row + 1) * width]).copied().collect()
}
