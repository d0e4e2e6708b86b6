//! Parts that several encoders share: a transformer block that normalizes its inputs, and the patches of images.

use shardax_nn::prelude::*;

use super::{KeyMap, Layout, attention};
use crate::error::value_error;
use crate::shardings::reshard_like;
use crate::{Activation, Mlp};

/// The sizes of an [`EncoderBlock`].
#[derive(Clone, Debug)]
pub(super) struct BlockSizes {
    pub features: usize,
    pub hidden: usize,
    pub heads: usize,
    pub epsilon: f64,
    pub activation: Activation,
    pub is_gated: bool,
    pub is_causal: bool,
    pub qkv_bias: bool,
    /// True if learned factors scale the outputs of attention and MLP.
    pub has_scales: bool,
}

/// A transformer block that normalizes its inputs.
#[derive(Module, Clone, Debug)]
pub(super) struct EncoderBlock {
    norm: LayerNorm,
    pub attention: MultiHeadAttention,
    /// `[features]`: the factors for the output of attention.
    attention_scale: Option<Array>,
    mlp_norm: LayerNorm,
    mlp: Mlp,
    /// `[features]`: the factors for the output of the MLP.
    mlp_scale: Option<Array>,
    /// `[distances, heads]`: the scores of distances between patches, if each block has them.
    pub distances: Option<Array>,
}

/// The places of patches, which attention of an [`EncoderBlock`] depends on.
#[derive(Clone, Copy, Default)]
pub(super) struct Places<'a> {
    /// `[length, depth]`: the angles that rotate queries and keys.
    pub angles: Option<&'a Array>,
    /// `[length, length]`: the rows of tables of distances.
    pub distances: Option<&'a Array>,
    /// `[heads, length, length]`: numbers that all blocks add to their scores.
    pub bias: Option<&'a Array>,
}

impl EncoderBlock {
    #[track_caller]
    pub fn new(sizes: &BlockSizes, rngs: &mut Rngs) -> EncoderBlock {
        let BlockSizes { features, hidden, heads, epsilon, activation, is_gated, .. } = *sizes;
        let mut attention = attention(heads, features).is_causal(sizes.is_causal).build(rngs);
        if !sizes.qkv_bias {
            remove_input_biases(&mut attention);
        }
        EncoderBlock {
            norm: LayerNorm::builder(features).epsilon(epsilon).build(rngs),
            attention,
            attention_scale: first_scale(sizes, rngs),
            mlp_norm: LayerNorm::builder(features).epsilon(epsilon).build(rngs),
            mlp: Mlp::new(features, hidden, activation, is_gated, true, rngs),
            mlp_scale: first_scale(sizes, rngs),
            distances: None,
        }
    }

    /// Applies the block to `x`, `[batch, length, features]`. The result has the same shape.
    #[track_caller]
    pub fn forward(&self, x: Array) -> Array {
        self.forward_at(x, Places::default())
    }

    /// Applies the block to patches at these places.
    #[track_caller]
    pub fn forward_at(&self, x: Array, places: Places<'_>) -> Array {
        let normed = self.norm.forward(&x);
        let own_bias = self.distances.as_ref().zip(places.distances).map(|(table, rows)| scores_of(table, rows));
        let bias = own_bias.into_iter().chain(places.bias.cloned()).reduce(|sum, bias| sum + bias);
        let attended = match (places.angles, &self.attention.key, &self.attention.value) {
            (Some(angles), Some(key), Some(value)) => {
                let [query, key] = [&self.attention.query, key].map(|layer| rotated(layer.forward(&normed), angles));
                self.attention.out.forward(dot_product_attention(query, key, value.forward(&normed)))
            }
            _ => {
                let options = bias.into_iter().fold(AttentionOptions::new(), AttentionOptions::bias);
                self.attention.attend(&normed, &normed, &normed, options)
            }
        };
        let x = &x + scale_if_present(&self.attention_scale, attended);
        &x + scale_if_present(&self.mlp_scale, self.mlp.forward(self.mlp_norm.forward(&x)))
    }
}

/// Returns the scores of a table `[distances, heads]` for its rows `[length, length]`: `[heads, length, length]`.
pub(super) fn scores_of(table: &Array, rows: &Array) -> Array {
    table.take(rows, 0).transpose([2, 0, 1])
}

/// Returns the number of distances of patches in a grid with one learned entry.
pub(super) fn distance_count(grid: usize) -> usize {
    let span = grid.saturating_mul(2).saturating_sub(1);
    span.saturating_mul(span).saturating_add(3)
}

/// Returns the rows of a table of distances, `[1 + patches, 1 + patches]`, for a grid of patches after one learned entry. The
/// table has all distances of rows and columns, and then the distances from the entry, to the entry, and of the entry to itself.
pub(super) fn grid_distances(grid: usize) -> Result<Array> {
    let (patches, span, count) = (grid * grid, 2 * grid - 1, distance_count(grid));
    let mut rows = vec![count - 3; patches + 1];
    rows[0] = count - 1;
    for query in 0..patches {
        rows.push(count - 2);
        rows.extend((0..patches).map(|key| {
            let down = query / grid + grid - 1 - key / grid;
            let right = query % grid + grid - 1 - key % grid;
            down * span + right
        }));
    }
    let rows = rows.into_iter().map(|row| row as i32).collect::<Vec<i32>>();
    Array::from_vec(rows, &[patches + 1, patches + 1])
}

/// Rotates pairs of features, one from each half of a head, by angles `[length, depth]`.
fn rotated(x: Array, angles: &Array) -> Array {
    let half = x.shape()[x.ndim() - 1] / 2;
    let swapped = concatenate(&[-x.get((Ellipsis, half..)), x.get((Ellipsis, ..half))], -1);
    let angles = angles.expand_dims(-2);
    let (cos, sin) = (angles.cos().astype(x.dtype()), angles.sin().astype(x.dtype()));
    x * cos + swapped * sin
}

/// Returns the angles of patches in a grid, `[entries + patches, depth]`. A quarter of a head's features rotates by the row and
/// another one by the column, both between -1 and 1, and the other half has the same angles. The entries before the patches do
/// not rotate.
pub(super) fn grid_angles(grid: [usize; 2], entries: usize, depth: usize, base: f64) -> Result<Array> {
    let speed_exponents = (0..depth / 4).map(|index| -4.0 * index as f64 / depth as f64);
    let speeds: Vec<f64> = speed_exponents.map(|exponent| std::f64::consts::TAU * base.powf(exponent)).collect();
    let mut angles = vec![0.0f32; entries * depth];
    for patch in 0..grid[0] * grid[1] {
        let centers = [center(patch / grid[1], grid[0]), center(patch % grid[1], grid[1])];
        let half = centers.iter().flat_map(|center| speeds.iter().map(move |speed| (center * speed) as f32));
        let half: Vec<f32> = half.collect();
        angles.extend(half.repeat(2));
    }
    Array::from_vec(angles, &[entries + grid[0] * grid[1], depth])
}

/// Returns the center of an interval, of `count` equal intervals from -1 to 1.
fn center(index: usize, count: usize) -> f64 {
    (2 * index + 1) as f64 / count as f64 - 1.0
}

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
    interpolation: Option<Interpolation>,
}

/// The interpolation of learned positions to a grid of another size, by the weights of PyTorch's `interpolate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Interpolation {
    /// Bicubic, without an antialiasing filter.
    Bicubic,
    /// Bicubic, with an antialiasing filter.
    FilteredBicubic,
    /// Bilinear, with an antialiasing filter.
    FilteredLinear,
    /// Bilinear, without an antialiasing filter.
    Linear,
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
        let table = self.positions.as_ref().map(|table| self.positions_of(table, [rows, columns], features));
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
    fn positions_of(&self, table: &Array, grid: [usize; 2], features: usize) -> Result<Array> {
        let positions = table.reshape([-1, features as i32]);
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
        let table = positions.get(entries..).reshape([learned, learned, features]);
        let table = interpolation.of_table(&table, grid)?;
        Ok(concatenate(&[positions.get(..entries).astype(DType::F32), table], 0))
    }
}

impl Interpolation {
    /// Interpolates a table of positions, `[rows, columns, features]`, to another grid. The result is `[rows * columns, features]`.
    pub fn of_table(self, table: &Array, grid: [usize; 2]) -> Result<Array> {
        let &[rows, columns, features] = table.shape() else { return Ok(table.clone()) };
        let weights = match self {
            Interpolation::Bicubic => bicubic_weights,
            Interpolation::FilteredBicubic => filtered_weights,
            Interpolation::FilteredLinear => linear_weights,
            Interpolation::Linear => bilinear_weights,
        };
        let [down, right] = [weights(rows, grid[0])?, weights(columns, grid[1])?];
        let table = table.astype(DType::F32);
        Ok(einsum("ia,jb,abf->ijf", &[&down, &right, &table]).reshape([-1, features as i32]))
    }
}

/// Returns the weights `[to, from]` of linear interpolation without antialiasing, as in PyTorch's `interpolate`. Entries at the border
/// are repeated.
pub(super) fn bilinear_weights(from: usize, to: usize) -> Result<Array> {
    let mut weights = vec![0.0f32; to * from];
    for row in 0..to {
        let center = ((row as f64 + 0.5) * from as f64 / to as f64 - 0.5).max(0.0);
        let (first, share) = ((center as usize).min(from - 1), center.fract());
        weights[row * from + first] += (1.0 - share) as f32;
        weights[row * from + (first + 1).min(from - 1)] += share as f32;
    }
    Array::from_vec(weights, &[to, from])
}

/// Repeats entries for each image of `patches`, `[batch, patches, features]`. The result has the shape `[batch,
/// entries, features]`.
fn for_each_image(entries: &Array, patches: &Array) -> Array {
    let (batch, features) = (patches.shape()[0], patches.shape()[2]);
    let entries = entries.astype(patches.dtype()).reshape([1, -1, features as i32]);
    let count = entries.shape()[1];
    reshard_like(entries.broadcast_to([batch, count, features]), patches)
}

/// Returns the weights `[to, from]` of bicubic interpolation with antialiasing, as in PyTorch's `interpolate`. The
/// filter is as wide as a new entry, and its cubic function is smoother than the one without antialiasing.
fn filtered_weights(from: usize, to: usize) -> Result<Array> {
    let mut weights = vec![0.0f32; to * from];
    let scale = from as f64 / to as f64;
    let width = scale.max(1.0);
    for row in 0..to {
        let center = scale * (row as f64 + 0.5);
        let first = (center - 2.0 * width + 0.5).max(0.0) as usize;
        let end = ((center + 2.0 * width + 0.5) as usize).min(from);
        let cubic: Vec<f64> = (first..end).map(|column| smooth_cubic((column as f64 - center + 0.5) / width)).collect();
        let sum: f64 = cubic.iter().sum();
        for (column, weight) in (first..end).zip(cubic) {
            weights[row * from + column] = (weight / sum) as f32;
        }
    }
    Array::from_vec(weights, &[to, from])
}

/// Returns the weights `[to, from]` of linear interpolation with antialiasing, as in PyTorch's `interpolate`. The filter is as wide
/// as a new entry.
pub(super) fn linear_weights(from: usize, to: usize) -> Result<Array> {
    let scale = from as f64 / to as f64;
    let width = scale.max(1.0);
    let mut weights = Vec::with_capacity(to * from);
    for row in 0..to {
        let center = scale * (row as f64 + 0.5) - 0.5;
        let heights = (0..from).map(|column| (1.0 - (column as f64 - center).abs() / width).max(0.0));
        let sum: f64 = heights.clone().sum();
        weights.extend(heights.map(|height| (height / sum) as f32));
    }
    Array::from_vec(weights, &[to, from])
}

/// The cubic function of interpolation with antialiasing, at a distance from the center.
fn smooth_cubic(distance: f64) -> f64 {
    match distance.abs() {
        t if t < 1.0 => (1.5 * t - 2.5) * t * t + 1.0,
        t if t < 2.0 => ((-0.5 * t + 2.5) * t - 4.0) * t + 2.0,
        _ => 0.0,
    }
}

/// Returns the weights `[to, from]` of bicubic interpolation, as in PyTorch's `interpolate`. Entries at the border are
/// repeated.
fn bicubic_weights(from: usize, to: usize) -> Result<Array> {
    let mut weights = vec![0.0f32; to * from];
    for row in 0..to {
        let center = (row as f64 + 0.5) * from as f64 / to as f64 - 0.5;
        let (first, t) = (center.floor() as i64, center - center.floor());
        for (offset, weight) in
            [(-1, cubic_far(1.0 + t)), (0, cubic_near(t)), (1, cubic_near(1.0 - t)), (2, cubic_far(2.0 - t))]
        {
            let column = (first + offset).clamp(0, from as i64 - 1) as usize;
            weights[row * from + column] += weight as f32;
        }
    }
    Array::from_vec(weights, &[to, from])
}

/// Returns the names of [`Patches`] at a key path: the convolution, the learned entry, and the positions.
pub(super) fn patch_keys(path: &str, [conv, class, positions]: &[String; 3]) -> KeyMap {
    KeyMap::new().conv(&format!("{path}.conv"), conv).array(format!("{path}.class"), class, Layout::Same).array(
        format!("{path}.positions"),
        positions,
        Layout::Same,
    )
}

/// Returns the names of blocks at a key path: queries, keys, values and outputs of attention, the norms, and the MLP.
pub(super) fn block_keys(path: &str, attention: &[String; 4], norms: &[String; 2], mlp: &[String; 2]) -> KeyMap {
    let layers = ["query", "key", "value", "out"].iter().zip(attention);
    let keys =
        layers.fold(KeyMap::new(), |keys, (layer, name)| keys.linear(&format!("{path}.attention.{layer}"), name));
    keys.norm(&format!("{path}.norm"), &norms[0])
        .norm(&format!("{path}.mlp_norm"), &norms[1])
        .linear(&format!("{path}.mlp.up"), &mlp[0])
        .linear(&format!("{path}.mlp.down"), &mlp[1])
}

/// The initial value of the learned factors of a block.
fn first_scale(sizes: &BlockSizes, rngs: &Rngs) -> Option<Array> {
    sizes.has_scales.then(|| ones_dtype([sizes.features], rngs.policy().param_dtype))
}

fn scale_if_present(scale: &Option<Array>, y: Array) -> Array {
    match scale {
        Some(scale) => &y * scale.astype(y.dtype()),
        None => y,
    }
}

pub(super) fn small_normal(shape: &[usize], rngs: &mut Rngs) -> Array {
    (random::normal_dtype(rngs.params(), shape, DType::F32) * 0.02).astype(rngs.policy().param_dtype)
}

/// The parameter of cubic interpolation in PyTorch.
const CUBIC_SHARPNESS: f64 = -0.75;

/// Returns the weight of a point at a distance of at most 1.
fn cubic_near(t: f64) -> f64 {
    ((CUBIC_SHARPNESS + 2.0) * t - (CUBIC_SHARPNESS + 3.0)) * t * t + 1.0
}

/// Returns the weight of a point at a distance between 1 and 2.
fn cubic_far(t: f64) -> f64 {
    ((CUBIC_SHARPNESS * t - 5.0 * CUBIC_SHARPNESS) * t + 8.0 * CUBIC_SHARPNESS) * t - 4.0 * CUBIC_SHARPNESS
}

/// Removes the biases of queries, keys and values.
pub(crate) fn remove_input_biases(attention: &mut MultiHeadAttention) {
    let layers = std::iter::once(&mut attention.query).chain(&mut attention.key).chain(&mut attention.value);
    layers.for_each(|layer| layer.bias = None);
}
