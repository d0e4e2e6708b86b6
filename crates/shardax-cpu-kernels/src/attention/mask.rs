//! Masks of attention.

use ndarray::{ArrayView2, ArrayViewD, Axis, IxDyn};

use crate::{Result, ShapeError, View};

/// The mask of all heads.
pub(super) struct Mask<'a> {
    /// The mask, and the shape of all scores, `[..., heads, queries, keys]`, to which it broadcasts.
    view: Option<ArrayViewD<'a, u8>>,
    scores: Vec<usize>,
}

impl<'a> Mask<'a> {
    /// Checks a mask for queries of these dimensions, and `keys` keys.
    pub fn new(mask: Option<View<'a, u8>>, q: &[usize], keys: usize) -> Result<Self> {
        let [batch @ .., queries, heads, _] = q else {
            return Err(ShapeError(format!("the queries have too few dimensions: {q:?}")));
        };
        let scores = [batch, &[*heads, *queries, keys]].concat();
        let view = mask.map(|mask| ArrayViewD::from_shape(IxDyn(mask.shape()), mask.data())).transpose()?;
        if let Some(mask) = view.as_ref().filter(|mask| mask.broadcast(&scores[..]).is_none()) {
            return Err(ShapeError(format!("a mask of {:?} for scores of {scores:?}", mask.shape())));
        }
        Ok(Mask { view, scores })
    }

    /// The mask of one head of an example, `[queries, keys]`.
    pub fn of(&self, example: usize, head: usize) -> Option<ArrayView2<'_, u8>> {
        let mut view = self.view.as_ref()?.broadcast(&self.scores[..])?;
        let batch = &self.scores[..self.scores.len() - 3];
        let (mut place, mut rest) = (vec![0; batch.len()], example);
        for (place, size) in place.iter_mut().zip(batch).rev() {
            (*place, rest) = (rest % size, rest / size);
        }
        for at in place.into_iter().chain([head]) {
            view = view.index_axis_move(Axis(0), at);
        }
        view.into_dimensionality().ok()
    }
}
