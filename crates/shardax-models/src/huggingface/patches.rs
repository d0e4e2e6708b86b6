//! Parts that vision transformers share: patches of images, learned entries next to them, and their positions.

use shardax_nn::prelude::*;

use super::encoder::small_normal;
use super::interpolation::Interpolation;
use super::{KeyMap, Layout};
use crate::error::value_error;
use crate::shardings::reshard_like;

/// The embeddings of an image: its patches, and learned entries before them.
#[derive(Module, Clone, Debug)]
pub(super) struct Patches {
    conv: Conv,
    /// The learned entry before the patches, if there is one.
    class: Option<Array>,
    /// The second learned entry, if there is one.
    distillation: Option<Array>,
    /// The learned entries without positions after the first one, if there are any.
    registers: Option<Array>,
    /// The learned positions of the entries and the patches. `None` if attention rotates queries and keys instead.
    positions: Option<Array>,
    /// The entry that replaces patches during training. It is only stored because the files contain it.
    mask: Option<Array>,
    /// The interpolation of positions for images of other sizes. Without an interpolation such images are errors.
    #[tree(static)]
    pub interpolation: Option<Interpolation>,
}

/// The sizes of [`Patches`].
#[derive(Clone, Debug)]
pub(super) struct PatchSizes {
    pub channels: usize,
    pub features: usize,
    pub image: usize,
    pub patch: usize,
    pub conv_bias: bool,
    /// True if there is a learned entry before the patches.
    pub has_class: bool,
    /// True if there is a second learned entry, which has a position.
    pub has_distillation: bool,
    /// The number of learned entries without positions.
    pub registers: usize,
    /// True if the arrays in files have no dimensions for batch and position.
    pub is_flat: bool,
    pub has_mask: bool,
    /// True if files store the entry of masked patches with dimensions for the batch and the position.
    pub has_mask_dims: bool,
    /// True if there are learned positions.
    pub has_positions: bool,
    pub interpolation: Option<Interpolation>,
}

impl Patches {
    /// Creates the parameters. The size of the patches must divide the size of the images.
    pub fn new(sizes: &PatchSizes, rngs: &mut Rngs) -> Result<Patches> {
        let PatchSizes { channels, features, image, patch, .. } = *sizes;
        if patch == 0 || !image.is_multiple_of(patch) {
            let message = format!("patch_size ({patch}) does not divide image_size ({image})");
            return Err(value_error(message, "set patch_size to a positive number that divides image_size"));
        }
        let conv = Conv::builder(channels, features, [patch, patch]).strides([patch, patch]);
        let conv = conv.padding(Padding::Valid).use_bias(sizes.conv_bias).build(rngs);
        let count = usize::from(sizes.has_class) + usize::from(sizes.has_distillation) + (image / patch).pow(2);
        // Some files store the entries without the dimensions for batch and position.
        let class_shape = if sizes.is_flat { vec![features] } else { vec![1, 1, features] };
        let class = sizes.has_class.then(|| small_normal(&class_shape, rngs));
        let distillation = sizes.has_distillation.then(|| small_normal(&[1, 1, features], rngs));
        let registers = (sizes.registers > 0).then(|| small_normal(&[1, sizes.registers, features], rngs));
        let table_shape = if sizes.is_flat { vec![count, features] } else { vec![1, count, features] };
        let positions = sizes.has_positions.then(|| small_normal(&table_shape, rngs));
        let mask_shape = if sizes.has_mask_dims { vec![1, 1, features] } else { vec![1, features] };
        let mask = sizes.has_mask.then(|| small_normal(&mask_shape, rngs));
        Ok(Patches { conv, class, distillation, registers, positions, mask, interpolation: sizes.interpolation })
    }

    /// Returns an error if the rows or columns of images, `[batch, rows, columns, channels]`, are not multiples of the size of a
    /// patch. [`forward`](Patches::forward) does not read the remaining rows and columns.
    pub fn check_size(&self, images: &Array) -> Result<()> {
        images.check()?;
        let (Some(patch), &[_, rows, columns, _]) = (self.conv.kernel.shape().first(), images.shape()) else {
            return Ok(());
        };
        if rows.is_multiple_of(*patch) && columns.is_multiple_of(*patch) {
            return Ok(());
        }
        let message = format!("images of {rows} by {columns} pixels do not consist of patches of {patch} by {patch}");
        Err(value_error(message, "resize the images to multiples of the size of a patch"))
    }

    /// Computes `[batch, entries + patches, features]` from images `[batch, rows, columns, channels]`.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike) -> Array {
        let x = self.conv.forward(images);
        let (rows, columns, features) = match (x.check(), x.shape()) {
            (Ok(()), &[_, rows, columns, features]) => (rows, columns, features),
            _ => return x,
        };
        if rows == 0 || columns == 0 {
            let patch = self.conv.kernel.shape()[0];
            let error =
                value_error(format!("images are less than a patch of {patch} by {patch}"), "pass larger images");
            return Array::from_error(error, &x);
        }
        let table = self.positions.as_ref().map(|table| self.positions_of(table, [rows, columns]));
        let positions = match table.transpose() {
            Ok(positions) => positions.map(|positions| positions.astype(x.dtype())),
            Err(error) => return Array::from_error(error, &x),
        };
        let add_positions = |x: Array| match &positions {
            Some(positions) => x + positions,
            None => x,
        };
        let patches = x.reshape([x.shape()[0] as i32, -1, features as i32]);
        let Some(class) = &self.class else { return add_positions(patches) };
        let mut parts = vec![for_each_image(class, &patches)];
        parts.extend(self.distillation.as_ref().map(|entry| for_each_image(entry, &patches)));
        parts.push(patches.clone());
        let x = add_positions(concatenate(&parts, 1));
        match &self.registers {
            Some(entries) => concatenate(&[x.get((.., ..1)), for_each_image(entries, &patches), x.get((.., 1..))], 1),
            None => x,
        }
    }

    /// Returns the positions for a grid of patches, `[1 + patches, features]`.
    fn positions_of(&self, table: &Array, grid: [usize; 2]) -> Result<Array> {
        let positions = table.reshape([-1, table.shape()[table.ndim() - 1] as i32]);
        let entries = usize::from(self.class.is_some()) + usize::from(self.distillation.is_some());
        let learned = (positions.shape()[0] - entries).isqrt();
        if grid == [learned; 2] {
            return Ok(positions);
        }
        let Some(interpolation) = self.interpolation else {
            let message =
                format!("images of {grid:?} patches do not fit the model, which has {learned} by {learned} patches");
            return Err(value_error(message, "resize the images to `image_size` of the configuration"));
        };
        interpolated(&positions, interpolation, entries, [[learned; 2], grid])
    }
}

/// Interpolates a table of positions, `[entries + patches + more entries, features]`, from a grid of patches to another one. There are
/// `entries` entries before the patches.
pub(super) fn interpolated(
    table: &Array,
    interpolation: Interpolation,
    entries: usize,
    [[rows, columns], grid]: [[usize; 2]; 2],
) -> Result<Array> {
    let (table, end) = (table.astype(DType::F32), entries + rows * columns);
    let patches = table.get(entries..end).reshape([rows as i32, columns as i32, -1]);
    let patches = interpolation.of_table(&patches, grid)?;
    Ok(concatenate(&[table.get(..entries), patches, table.get(end..)], 0))
}

/// Repeats entries for each image of `patches`, `[batch, patches, features]`. The result has the shape `[batch,
/// entries, features]`.
pub(super) fn for_each_image(entries: &Array, patches: &Array) -> Array {
    let (batch, features) = (patches.shape()[0], patches.shape()[2]);
    let entries = entries.astype(patches.dtype()).reshape([1, -1, features as i32]);
    let count = entries.shape()[1];
    reshard_like(entries.broadcast_to([batch, count, features]), patches)
}

/// Returns the names of [`Patches`] at a key path: the convolution, the learned entry, and the positions.
pub(super) fn patch_keys(path: &str, [conv, class, positions]: &[String; 3]) -> KeyMap {
    KeyMap::new().conv(&format!("{path}.conv"), conv).array(format!("{path}.class"), class, Layout::Same).array(
        format!("{path}.positions"),
        positions,
        Layout::Same,
    )
}
