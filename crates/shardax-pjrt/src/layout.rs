//! Memory layouts of arrays.

use crate::error::{Error, Result};
use crate::raw::TiledLayout;
use crate::sharding::axes::sizes;

/// A memory layout: the order of an array's dimensions, and tiles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Layout {
    /// The dimensions, from the fastest to the slowest varying.
    pub minor_to_major: Vec<i64>,
    /// Tiles, and tiles of tiles: sizes of the last dimensions, as in XLA's `T(8,128)(2,1)`. Empty if the layout is not
    /// tiled.
    pub tiles: Vec<Vec<i64>>,
    /// The bits of an element if they are fewer than 8, otherwise 0.
    pub element_bits: i64,
}

impl Layout {
    /// Returns true if the layout is dense and row-major: the last dimension varies fastest.
    pub fn is_row_major(&self) -> bool {
        self.tiles.is_empty() && self.minor_to_major.windows(2).all(|pair| pair[0] > pair[1])
    }

    /// Copies a layout of the plugin.
    ///
    /// # Safety
    /// The lists have their stated lengths.
    pub(crate) unsafe fn from_raw(raw: &TiledLayout) -> Layout {
        // SAFETY: promised by the caller; the sizes of the tiles add up to the list of their dimensions.
        unsafe {
            let sizes = crate::api::slice(raw.tile_dim_sizes, raw.num_tiles);
            let mut dims = crate::api::slice(raw.tile_dims, sizes.iter().sum());
            Layout {
                minor_to_major: crate::api::slice(raw.minor_to_major, raw.minor_to_major_size).to_vec(),
                tiles: sizes
                    .iter()
                    .map(|&size: &usize| {
                        let (these, rest) = dims.split_at(size);
                        dims = rest;
                        these.to_vec()
                    })
                    .collect(),
                element_bits: 0,
            }
        }
    }

    /// Copies data in this layout to `out`, row-major. The layout must not be tiled.
    ///
    /// # Errors
    /// Returns an error if the layout is tiled or has another rank than `dims`, or the lengths of `data` and `out` do
    /// not match.
    pub(crate) fn to_rows(&self, dims: &[i64], element: usize, data: &[u8], out: &mut [u8]) -> Result<()> {
        let sizes = sizes(dims);
        let bytes = sizes.iter().fold(element, |product, &size| product.saturating_mul(size));
        let mut strides = vec![0; dims.len()];
        let mut stride = element;
        for &dim in &self.minor_to_major {
            let dim = usize::try_from(dim).map_err(|_| self.unfit(dims))?;
            *strides.get_mut(dim).ok_or_else(|| self.unfit(dims))? = stride;
            stride = stride.saturating_mul(sizes[dim]);
        }
        if !self.tiles.is_empty()
            || self.minor_to_major.len() != dims.len()
            || data.len() != bytes
            || out.len() != bytes
        {
            return Err(self.unfit(dims));
        }
        let mut index = vec![0; dims.len()];
        let mut offset = 0;
        for target in out.chunks_exact_mut(element.max(1)) {
            target.copy_from_slice(&data[offset..offset + element]);
            // The next element in row-major order.
            for dim in (0..dims.len()).rev() {
                index[dim] += 1;
                offset += strides[dim];
                if index[dim] < sizes[dim] {
                    break;
                }
                offset -= strides[dim] * index[dim];
                index[dim] = 0;
            }
        }
        Ok(())
    }

    fn unfit(&self, dims: &[i64]) -> Error {
        Error::invalid_argument(format!(
            "an array of shape {dims:?} cannot be read from memory in the order of {self:?}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(minor_to_major: &[i64]) -> Layout {
        Layout { minor_to_major: minor_to_major.to_vec(), ..Layout::default() }
    }

    #[test]
    fn elements_are_put_in_order() {
        // 2 × 3, column-major.
        let mut out = [0; 6];
        layout(&[0, 1]).to_rows(&[2, 3], 1, &[0, 3, 1, 4, 2, 5], &mut out).expect("it fits");
        assert_eq!(out, [0, 1, 2, 3, 4, 5]);
        layout(&[1, 0]).to_rows(&[2, 3], 1, &[0, 1, 2, 3, 4, 5], &mut out).expect("it fits");
        assert_eq!(out, [0, 1, 2, 3, 4, 5]);
        // Elements of two bytes, and an empty array.
        let mut wide = [0; 8];
        layout(&[0, 1]).to_rows(&[2, 2], 2, &[0, 0, 2, 2, 1, 1, 3, 3], &mut wide).expect("it fits");
        assert_eq!(wide, [0, 0, 1, 1, 2, 2, 3, 3]);
        layout(&[0, 1]).to_rows(&[0, 2], 4, &[], &mut []).expect("it fits");
        layout(&[]).to_rows(&[], 1, &[7], &mut out[..1]).expect("it fits");
        assert_eq!(out[0], 7);
        for wrong in [layout(&[0]), layout(&[0, 2]), layout(&[0, 1, 2])] {
            assert!(wrong.to_rows(&[2, 3], 1, &[0; 6], &mut out).is_err());
        }
        let tiled = Layout { tiles: vec![vec![2]], ..layout(&[1, 0]) };
        assert!(tiled.to_rows(&[2, 3], 1, &[0; 6], &mut out).is_err() && !tiled.is_row_major());
        assert!(layout(&[2, 1, 0]).is_row_major() && !layout(&[2, 0, 1]).is_row_major() && layout(&[]).is_row_major());
    }
}
