//! The points, boxes and masks that select objects.

use shardax_nn::prelude::*;

use super::Sam;
use crate::error::value_error;

/// The points, boxes and masks that select objects for a [`Sam`].
#[derive(Clone, Debug, Default)]
pub struct SamPrompts {
    pub(super) points: Option<(Array, Array)>,
    pub(super) boxes: Option<Array>,
    pub(super) masks: Option<Array>,
    pub(super) is_single: bool,
}

impl SamPrompts {
    /// Creates prompts without points, boxes and masks.
    pub fn new() -> Self {
        SamPrompts::default()
    }

    /// Sets points, `[batch, objects, points, 2]`, each a column and a row of the image, and their labels, integers `[batch, objects,
    /// points]`: 1 for points of the object, 0 for other points, and -10 for padding.
    pub fn points(mut self, points: impl ArrayLike, labels: impl ArrayLike) -> Self {
        self.points = Some((points.into_array(), labels.into_array()));
        self
    }

    /// Sets a box for each object, `[batch, objects, 4]`: the left column, the upper row, the right column and the lower row.
    pub fn boxes(mut self, boxes: impl ArrayLike) -> Self {
        self.boxes = Some(boxes.into_array());
        self
    }

    /// Sets logits of masks of earlier calls, `[batch, rows, columns]`, with a quarter of the size of the image.
    pub fn masks(mut self, masks: impl ArrayLike) -> Self {
        self.masks = Some(masks.into_array());
        self
    }

    /// Requests a single mask for each object instead of several ones.
    pub fn single_mask(mut self) -> Self {
        self.is_single = true;
        self
    }
}

impl Sam {
    /// Returns the entries of points and boxes, `[batch, objects, entries, features]`, if there are any.
    pub(super) fn entries(&self, prompts: &SamPrompts, batch: usize) -> Result<Option<Array>> {
        let mut parts = Vec::new();
        if let Some((points, labels)) = &prompts.points {
            points.check()?;
            labels.check()?;
            let shape = points.shape();
            if points.ndim() != 4 || shape[0] != batch || shape[3] != 2 || labels.shape() != &shape[..3] {
                let message = format!(
                    "Sam: points and labels have the shapes {shape:?} and {:?}, not [{batch}, objects, points, 2] and [{batch}, objects, points]",
                    labels.shape()
                );
                return Err(value_error(message, "pass a point as a column and a row, and a label for each point"));
            }
            parts.push(self.point_entries(points, labels, prompts.boxes.is_none()));
        }
        if let Some(boxes) = &prompts.boxes {
            boxes.check()?;
            let objects = parts.first().map(|entries: &Array| entries.shape()[1]);
            let &[boxes_batch, count, 4] = boxes.shape() else { return Err(wrong_boxes(boxes, batch)) };
            if boxes_batch != batch || objects.is_some_and(|objects| objects != count) {
                return Err(wrong_boxes(boxes, batch));
            }
            let corners = self.wave_features(&(boxes.astype(DType::F32).reshape([batch, count, 2, 2]) + 0.5));
            let kinds = concatenate(&[&self.points[2].embedding, &self.points[3].embedding], 0);
            parts.push(corners + kinds.astype(DType::F32));
        }
        Ok(if parts.is_empty() { None } else { Some(concatenate(&parts, 2)) })
    }

    /// Returns the entries of points, and of a point that is none if there are no boxes.
    fn point_entries(&self, points: &Array, labels: &Array, has_padding: bool) -> Array {
        let (points, labels) = (points.astype(DType::F32) + 0.5, labels.astype(DType::I32));
        let (points, labels) = if has_padding {
            let mut shape = points.shape().to_vec();
            shape[2] = 1;
            let none = zeros_dtype(&shape[..], DType::F32);
            let no_label = full(&shape[..3], -1);
            (concatenate(&[points, none], 2), concatenate(&[labels, no_label], 2))
        } else {
            (points, labels)
        };
        let labels = labels.expand_dims(-1);
        let entry = |table: &Embed| table.embedding.reshape([1, 1, 1, -1]).astype(DType::F32);
        let x = self.wave_features(&points);
        let x = where_(labels.equal(-1), entry(&self.no_point), x);
        let x = where_(labels.equal(-10), 0.0, x);
        let outside = where_(labels.equal(0), entry(&self.points[0]), 0.0);
        let inside = where_(labels.equal(1), entry(&self.points[1]), 0.0);
        x + outside + inside
    }

    /// Returns the features of pixels, `[..., features]`, from their columns and rows, `[..., 2]`.
    fn wave_features(&self, pixels: &Array) -> Array {
        self.waves_of(pixels / self.image_size as f64)
    }

    /// Returns the features of places between 0 and 1.
    fn waves_of(&self, places: Array) -> Array {
        let turns = (places * 2.0 - 1.0).dot(self.waves.astype(DType::F32)) * std::f64::consts::TAU;
        concatenate(&[turns.sin(), turns.cos()], -1)
    }

    /// Returns the features of the places of patches, `[patches, features]`.
    pub(super) fn image_places(&self, grid: usize) -> Array {
        let centers = (arange(0..grid as i32).astype(DType::F32) + 0.5) / grid as f64;
        let (columns, rows) = (tile(&centers, [grid]), repeat(&centers, grid, 0));
        self.waves_of(stack(&[columns, rows], -1))
    }

    /// Returns the features of masks, `[batch, rows, columns, features]`.
    pub(super) fn mask_features(&self, masks: &Array, shape: [usize; 3]) -> Result<Array> {
        masks.check()?;
        let [batch, rows, columns] = shape;
        if masks.shape() != [batch, 4 * rows, 4 * columns] {
            let expected = [batch, 4 * rows, 4 * columns];
            let message = format!("Sam: masks have the shape {:?}, not {expected:?}", masks.shape());
            return Err(value_error(message, "pass a mask for each image, with a quarter of its size"));
        }
        let [first, second, last] = &self.mask_convs;
        let x = self.mask_act.apply(self.mask_norms[0].forward(first.forward(masks.expand_dims(-1))));
        let x = self.mask_act.apply(self.mask_norms[1].forward(second.forward(x)));
        Ok(last.forward(x))
    }
}

/// Returns the error for boxes of another shape.
fn wrong_boxes(boxes: &Array, batch: usize) -> Error {
    let message = format!("Sam: boxes have the shape {:?}, not [{batch}, objects, 4]", boxes.shape());
    value_error(message, "pass a box for each object, as many as there are objects with points")
}
