//! Quantized weights on the host, in the common form that all file formats are converted to.

/// A quantized matrix. An element is `scale * integer - minimum`, with the scale and the minimum of its group.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Groups {
    /// The shape of the array. The size of a group divides its last dimension.
    pub shape: Vec<usize>,
    /// The number of elements in a group.
    pub group: usize,
    pub integers: Integers,
    pub values: Vec<i8>,
    /// One scale for each group.
    pub scales: Vec<f32>,
    /// One minimum for each group. Empty if all minima are zero.
    pub minima: Vec<f32>,
    /// The stored position of each element of a row, if the elements of a group are not neighbors in the row.
    pub order: Option<Vec<i32>>,
}

/// The range of the integers.
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
    /// Creates groups without values and reserves memory for the values of this shape.
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

    /// Dequantizes the elements to float32.
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

    /// Selects rows, in the given order, as a matrix. All dimensions except the last one count as rows.
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

    /// Concatenates the rows of several matrices. Returns `None` if their forms differ.
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

    /// Returns the number of groups in a row.
    pub fn groups_per_row(&self) -> usize {
        self.shape.last().copied().unwrap_or(0) / self.group.max(1)
    }
}

/// Selects rows of `width` elements each.
fn select<T: Copy>(values: &[T], rows: &[usize], width: usize) -> Vec<T> {
    rows.iter().flat_map(|row| &values[row * width..(row + 1) * width]).copied().collect()
}
