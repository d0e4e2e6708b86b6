//! Arrays on the host, and their layouts in files.

use shardax::sharding::Sharding;
use shardax_nn::prelude::*;

/// The layout of an array in a file, compared with the layout in the model. You do not need to describe dimensions that
/// the model splits or joins, such as attention heads, because arrays are reshaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// The layout of the model.
    Same,
    /// The layout of the model after a dimension of size 1.
    Row,
    /// The layout of the model before a dimension of size 1.
    Column,
    /// The layout of PyTorch's convolutions of single positions, `[out, in, 1]`, for a linear layer of the model.
    PointConvolution,
    /// The last dimension comes first, as in PyTorch's `Linear`: `[out, in]`.
    Transposed,
    /// The rows of `count` matrices one after the other: `[count * in, out]` for `[count, in, out]`, or `[count * out, in]` if
    /// each matrix is transposed.
    JoinedMatrices {
        /// The number of matrices.
        count: usize,
        /// True if each matrix is transposed.
        transposed: bool,
    },
    /// The layout of PyTorch's convolutions, `[out, in, spatial dimensions]`.
    Convolution,
    /// One of several equal parts of the last dimension, for example of a single matrix for queries, keys and values.
    Part {
        /// The index of the part.
        index: usize,
        /// The number of parts.
        of: usize,
    },
    /// The rows `start..end` of a matrix with `of` rows, transposed, for example a part of a `Linear` of PyTorch.
    Rows {
        /// The first row.
        start: usize,
        /// The end of the rows, exclusive.
        end: usize,
        /// The number of rows of the array in the file.
        of: usize,
    },
    /// The first rows of an array. The model does not have the others, so that you cannot save it.
    FirstRows {
        /// The number of rows of the model.
        rows: usize,
        /// The number of rows of the array in the file.
        of: usize,
    },
    /// The rows `start..end` of each of `groups` equal groups of rows, transposed. A single matrix for queries, keys
    /// and values has this layout if its rows are grouped by head.
    GroupedRows {
        /// The number of groups.
        groups: usize,
        /// The first row of a group.
        start: usize,
        /// The end of the rows in a group, exclusive.
        end: usize,
    },
    /// Every `of`-th entry of the last dimension, starting with `index`.
    Interleaved {
        /// The first entry.
        index: usize,
        /// The distance between two entries.
        of: usize,
    },
}

impl Layout {
    /// Returns the layout of `count` rows of a matrix with `of` rows.
    pub(super) fn rows(start: usize, count: usize, of: usize) -> Layout {
        Layout::Rows { start, end: start.saturating_add(count), of }
    }

    /// Returns the layout of `count` rows in each of `groups` equal groups of rows.
    pub(super) fn rows_of_groups(groups: usize, start: usize, count: usize) -> Layout {
        Layout::GroupedRows { groups, start, end: start.saturating_add(count) }
    }

    /// Returns the number of contiguous bytes of a part in an array that joins parts in this layout.
    fn contiguous_bytes(&self, part: &Raw) -> usize {
        match self {
            Layout::Rows { .. } => part.bytes.len(),
            Layout::GroupedRows { groups, .. } => part.bytes.len() / groups,
            Layout::Interleaved { .. } => part.dtype.byte_size(),
            _ => part.shape.last().map_or(0, |last| last * part.dtype.byte_size()),
        }
    }

    /// Returns the layout for one of several matrices of equal size that a file stores as one.
    pub(crate) fn nth_rows(index: usize, size: usize, parts: usize) -> Layout {
        Layout::Rows {
            start: size.saturating_mul(index),
            end: size.saturating_mul(index + 1),
            of: size.saturating_mul(parts),
        }
    }
}

/// Values on the host, in row-major order.
#[derive(Clone)]
pub(crate) struct Raw {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Raw {
    /// Copies the values of an array to the host.
    pub fn of(array: &Array) -> Result<Raw> {
        Ok(Raw { dtype: array.dtype(), shape: array.shape().to_vec(), bytes: array.to_bytes()? })
    }

    /// Creates an array of float32 numbers.
    pub fn of_f32(shape: Vec<usize>, values: &[f32]) -> Raw {
        let bytes = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Raw { dtype: DType::F32, shape, bytes }
    }

    /// Copies values that are stored with these strides, in elements. The data ends with the last value.
    pub fn strided(dtype: DType, shape: Vec<usize>, strides: &[usize], stored: Vec<u8>) -> Raw {
        let size = dtype.byte_size();
        let count: usize = shape.iter().product();
        let strides: Vec<usize> = strides.iter().map(|stride| stride * size).collect();
        let mut dense = vec![size; shape.len()];
        for d in (1..shape.len()).rev() {
            dense[d - 1] = dense[d] * shape[d];
        }
        let is_dense = shape.iter().zip(strides.iter().zip(&dense)).all(|(size, (a, b))| *size == 1 || a == b);
        if is_dense || count == 0 {
            return Raw { dtype, shape, bytes: stored };
        }
        let mut bytes = Vec::with_capacity(count * size);
        gather(&stored, &shape, &strides, size, &mut bytes);
        Raw { dtype, shape, bytes }
    }

    /// Reorders the entries of the first dimension.
    pub fn select_rows(&self, rows: &[usize]) -> Raw {
        let size = self.bytes.len() / self.shape.first().copied().unwrap_or(1).max(1);
        let bytes = rows.iter().flat_map(|row| &self.bytes[row * size..(row + 1) * size]).copied().collect();
        let entry_shape = self.shape.get(1..).unwrap_or_default();
        Raw { dtype: self.dtype, shape: [&[rows.len()], entry_shape].concat(), bytes }
    }

    /// Subtracts a number. Returns `None` unless the values are in float32.
    pub fn minus(&self, number: f32) -> Option<Raw> {
        let values = self.bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]) - number);
        (self.dtype == DType::F32).then(|| Raw::of_f32(self.shape.clone(), &values.collect::<Vec<_>>()))
    }

    /// Swaps the last two dimensions. Returns `None` for fewer dimensions.
    pub fn last_two_swapped(&self) -> Option<Raw> {
        let mut order: Vec<usize> = (0..self.shape.len()).collect();
        let second_last = order.len().checked_sub(2)?;
        order.swap(second_last, second_last + 1);
        self.transposed(&order)
    }

    /// Creates an array on the default device, or with the sharding. Every process must have all values.
    pub fn to_array(&self, to: Option<Sharding>) -> Result<Array> {
        match to {
            Some(sharding) => Array::from_bytes_on(&self.bytes, self.dtype, &self.shape, sharding),
            None => Array::from_bytes(&self.bytes, self.dtype, &self.shape),
        }
    }

    /// Converts the values of a file to the layout of the model. Returns `None` if the shape does not fit.
    pub fn read_as(self, layout: Layout) -> Option<Raw> {
        let rank = self.shape.len();
        let backwards: Vec<usize> = (0..rank).rev().collect();
        match layout {
            Layout::Same | Layout::Row | Layout::Column => Some(self),
            Layout::Transposed | Layout::PointConvolution => self.transposed(&backwards),
            Layout::JoinedMatrices { count, transposed } => {
                let (rows, rest) = self.shape.split_first()?;
                let height = rows.checked_div(count).filter(|height| height * count == *rows)?;
                let shape = [&[count, height], rest].concat();
                let matrices = self.reshaped(&shape);
                if transposed { matrices.last_two_swapped() } else { Some(matrices) }
            }
            Layout::Convolution if rank >= 2 => self.transposed(&(2..rank).chain([1, 0]).collect::<Vec<_>>()),
            Layout::Convolution => None,
            Layout::Part { index, of } => self.part(index, of),
            Layout::Rows { start, end, of } => self.rows(start, end, of)?.transposed(&backwards),
            Layout::FirstRows { rows, of } => self.rows(0, rows, of),
            Layout::GroupedRows { groups, start, end } => {
                let (count, rest) = self.shape.split_first()?;
                let of = count.checked_div(groups).filter(|of| of * groups == *count)?;
                let row = self.bytes.len().checked_div(*count)?;
                if start > end || end > of {
                    return None;
                }
                let bytes = (0..groups)
                    .map(|group| self.bytes.get((group * of + start) * row..(group * of + end) * row))
                    .collect::<Option<Vec<_>>>()?
                    .concat();
                let shape = [&[groups * (end - start)], rest].concat();
                Raw { dtype: self.dtype, shape, bytes }.transposed(&backwards)
            }
            // Neighboring columns belong to different parts, so the parts are separated first.
            Layout::Interleaved { index, of } => {
                let last = *self.shape.last()?;
                let count = last.checked_div(of).filter(|count| count * of == last && index < of)?;
                let split = [&self.shape[..rank - 1], &[count, of]].concat();
                let forward: Vec<usize> = std::iter::once(rank).chain(0..rank).collect();
                let apart = self.reshaped(&split).transposed(&forward)?;
                let part = apart.bytes.len() / of;
                let shape = apart.shape[1..].to_vec();
                Some(Raw { dtype: apart.dtype, shape, bytes: apart.bytes[index * part..(index + 1) * part].to_vec() })
            }
        }
    }

    /// Converts the values of a model to the layout of a file. If the file's array has several parts, the result is one
    /// of them.
    pub fn written_as(self, layout: Layout) -> Option<Raw> {
        let rank = self.shape.len();
        let backwards: Vec<usize> = (0..rank).rev().collect();
        match layout {
            Layout::Row => {
                let shape = [&[1], &self.shape[..]].concat();
                Some(self.reshaped(&shape))
            }
            Layout::Column => Some(self.before_one()),
            Layout::PointConvolution => Some(self.transposed(&backwards)?.before_one()),
            Layout::Same | Layout::Part { .. } | Layout::Interleaved { .. } => Some(self),
            Layout::Transposed | Layout::Rows { .. } | Layout::GroupedRows { .. } => self.transposed(&backwards),
            Layout::JoinedMatrices { transposed, .. } if rank == 3 => {
                let matrices = if transposed { self.last_two_swapped()? } else { self };
                let shape = [matrices.shape[0] * matrices.shape[1], matrices.shape[2]];
                Some(matrices.reshaped(&shape))
            }
            Layout::JoinedMatrices { .. } => None,
            Layout::Convolution if rank >= 2 => {
                self.transposed(&[rank - 1, rank - 2].into_iter().chain(0..rank - 2).collect::<Vec<_>>())
            }
            Layout::Convolution | Layout::FirstRows { .. } => None,
        }
    }

    /// Adds a last dimension of size 1.
    fn before_one(self) -> Raw {
        let shape = [&self.shape[..], &[1]].concat();
        self.reshaped(&shape)
    }

    /// Joins the parts of an array along the first or the last dimension.
    pub fn joined(mut parts: Vec<(Layout, Raw)>) -> Option<Raw> {
        parts.sort_by_key(|(layout, _)| match layout {
            Layout::Part { index, .. } => *index,
            Layout::Rows { start, .. } | Layout::GroupedRows { start, .. } => *start,
            Layout::Interleaved { index, .. } => *index,
            _ => 0,
        });
        let (layout, first) = parts.first()?;
        if parts.len() == 1 {
            return Some(first.clone());
        }
        let along_rows = matches!(layout, Layout::Rows { .. } | Layout::GroupedRows { .. });
        let (dtype, mut shape) = (first.dtype, first.shape.clone());
        let axis = if along_rows { 0 } else { shape.len().checked_sub(1)? };
        shape[axis] = parts.iter().map(|(_, raw)| raw.shape.get(axis).copied().unwrap_or(0)).sum();
        let rows = first.bytes.len().checked_div(layout.contiguous_bytes(first))?;
        let mut bytes = Vec::new();
        for i in 0..rows {
            for (_, raw) in &parts {
                let size = layout.contiguous_bytes(raw);
                bytes.extend_from_slice(&raw.bytes[i * size..(i + 1) * size]);
            }
        }
        Some(Raw { dtype, shape, bytes })
    }

    /// Joins arrays along the first dimension. Returns `None` if their other dimensions or dtypes differ.
    pub fn with_joined_rows(parts: Vec<Raw>) -> Option<Raw> {
        let Raw { dtype, shape, .. } = parts.first()?.clone();
        if parts.len() == 1 {
            return parts.into_iter().next();
        }
        let entry_shape = shape.get(1..)?;
        let is_alike = parts.iter().all(|part| part.dtype == dtype && part.shape.get(1..) == Some(entry_shape));
        let count = parts.iter().map(|part| part.shape.first().copied().unwrap_or(0)).sum();
        let shape = [&[count], entry_shape].concat();
        is_alike.then(|| Raw { dtype, shape, bytes: parts.into_iter().flat_map(|part| part.bytes).collect() })
    }

    /// Returns the entries of the first dimension.
    pub fn entries(self) -> Vec<Raw> {
        let Some((count, rest)) = self.shape.split_first() else { return vec![self] };
        let size = self.bytes.len().checked_div(*count).unwrap_or(0);
        self.bytes
            .chunks(size.max(1))
            .map(|bytes: &[u8]| Raw { dtype: self.dtype, shape: rest.to_vec(), bytes: bytes.to_vec() })
            .collect()
    }

    /// Stacks entries along a new first dimension. Returns `None` if their shapes or dtypes differ.
    pub fn stacked(entries: Vec<Raw>) -> Option<Raw> {
        let Raw { dtype, shape, .. } = entries.first()?.clone();
        let is_alike = entries.iter().all(|entry| entry.dtype == dtype && entry.shape == shape);
        let shape = [&[entries.len()], &shape[..]].concat();
        is_alike.then(|| Raw { dtype, shape, bytes: entries.into_iter().flat_map(|entry| entry.bytes).collect() })
    }

    /// Reshapes the values. The number of elements must not change.
    pub fn reshaped(self, shape: &[usize]) -> Raw {
        Raw { shape: shape.to_vec(), ..self }
    }

    /// Transposes the dimensions to this order.
    fn transposed(&self, order: &[usize]) -> Option<Raw> {
        let size = self.dtype.byte_size();
        let mut strides = vec![size; order.len()];
        for d in (1..order.len()).rev() {
            strides[d - 1] = strides[d].checked_mul(self.shape[d])?;
        }
        let shape: Vec<usize> = order.iter().map(|d| self.shape[*d]).collect();
        let strides: Vec<usize> = order.iter().map(|d| strides[*d]).collect();
        let mut bytes = Vec::with_capacity(self.bytes.len());
        if !self.bytes.is_empty() {
            gather(&self.bytes, &shape, &strides, size, &mut bytes);
        }
        Some(Raw { dtype: self.dtype, shape, bytes })
    }

    /// Returns one of several equal parts of the last dimension.
    fn part(&self, index: usize, of: usize) -> Option<Raw> {
        let (last, before) = self.shape.split_last()?;
        if of == 0 || index >= of || !last.is_multiple_of(of) {
            return None;
        }
        let part = last / of;
        let (row, size) = (last * self.dtype.byte_size(), part * self.dtype.byte_size());
        let rows = self.bytes.chunks_exact(row.max(1));
        let bytes: Vec<u8> = rows.flat_map(|row| &row[index * size..(index + 1) * size]).copied().collect();
        Some(Raw { dtype: self.dtype, shape: [before, &[part]].concat(), bytes })
    }

    /// Selects entries of the first dimension.
    fn rows(&self, start: usize, end: usize, of: usize) -> Option<Raw> {
        let (count, rest) = self.shape.split_first()?;
        if *count != of || start > end || end > of || of == 0 {
            return None;
        }
        let row = self.bytes.len() / of;
        let bytes = self.bytes.get(start * row..end * row)?.to_vec();
        Some(Raw { dtype: self.dtype, shape: [&[end - start], rest].concat(), bytes })
    }
}

/// Returns `true` if the shapes are equal after some dimensions of one are split into several dimensions of the other.
pub(super) fn splits(a: &[usize], b: &[usize]) -> bool {
    let (mut a, mut b) = (a.iter().copied().filter(|d| *d != 1), b.iter().copied().filter(|d| *d != 1));
    loop {
        let is_split = match (a.next(), b.next()) {
            (None, None) => return true,
            (Some(left), Some(right)) if left < right => product_reaches(left, right, &mut a),
            (Some(left), Some(right)) => product_reaches(right, left, &mut b),
            _ => false,
        };
        if !is_split {
            return false;
        }
    }
}

/// Returns `true` if the product of some leading dimensions of `first` is `dim`. Otherwise the reshape would join parts
/// of several dimensions, which a transposed matrix does not allow.
fn product_reaches(first: usize, dim: usize, others: &mut impl Iterator<Item = usize>) -> bool {
    let mut product = first;
    while product < dim {
        match others.next().and_then(|other| product.checked_mul(other)) {
            Some(larger) => product = larger,
            None => return false,
        }
    }
    product == dim
}

/// Copies elements of `size` bytes with these strides to row-major order.
fn gather(bytes: &[u8], shape: &[usize], strides: &[usize], size: usize, out: &mut Vec<u8>) {
    match (shape, strides) {
        ([count, shape @ ..], [stride, strides @ ..]) => {
            for at in 0..*count {
                gather(&bytes[at * stride..], shape, strides, size, out);
            }
        }
        _ => out.extend_from_slice(&bytes[..size]),
    }
}
