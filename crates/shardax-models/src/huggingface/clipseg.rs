//! CLIPSeg, which finds what a text or an image describes in another image.

use shardax_nn::prelude::*;

use super::bert::EncoderLayer;
use super::clip::{Clip, ClipConfig, keys as clip_keys, towers};
use super::interpolation::Interpolation;
use super::vision::Upsample;
use super::{Config, KeyMap, Layout, Pretrained, attention, check_type};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::{Activation, Mlp};

/// The architecture of a [`ClipSeg`].
#[derive(Clone, Debug, PartialEq)]
pub struct ClipSegConfig {
    /// The encoders of texts and of images.
    pub clip: ClipConfig,
    /// The blocks of the encoder of images, counted from 0, whose outputs are read.
    pub layers: Vec<usize>,
    /// The features of the decoder.
    pub features: usize,
    /// The number of attention heads of the decoder.
    pub heads: usize,
    /// The features inside an MLP of the decoder.
    pub hidden: usize,
    /// The block of the decoder that reads the description.
    pub described_block: usize,
    /// True if several layers compute pixels, instead of one.
    pub has_pixel_layers: bool,
}

/// CLIPSeg ([Lüddecke and Ecker 2021](https://arxiv.org/abs/2112.10003)). The model type is `clipseg`. Images are squares of any
/// size.
#[derive(Module, Clone, Debug)]
pub struct ClipSeg {
    /// The encoders of texts and of images.
    pub clip: Clip,
    factor: Linear,
    shift: Linear,
    reductions: Vec<Linear>,
    blocks: Vec<EncoderLayer>,
    pixels: Pixels,
    described_block: usize,
    #[tree(static)]
    layers: Vec<usize>,
}

/// The layers that compute pixels from patches.
#[derive(Module, Clone, Debug)]
struct Pixels {
    conv: Option<Conv>,
    upsamples: Vec<Upsample>,
}

impl Pretrained for ClipSeg {
    type Architecture = ClipSegConfig;

    fn read(config: &Config) -> Result<(ClipSegConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "clipseg")?;
        match fields.class()?.unwrap_or("ForImageSegmentation") {
            name if name.ends_with("ForImageSegmentation") => {}
            other => return Err(fields.error(format!("the class {other:?} of `architectures` is not supported"))),
        }
        let parts = [
            ("text_config", "text_config_dict", "clipseg_text_model"),
            ("vision_config", "vision_config_dict", "clipseg_vision_model"),
        ];
        // If the older fields are present, they contain all fields of an encoder.
        let [text, vision] =
            parts.map(
                |(name, older, kind)| {
                    if fields.has(older) { fields.model(older, kind) } else { fields.model(name, kind) }
                },
            );
        let (text, vision) = (text?, vision?);
        fields.skip(&["text_config", "text_config_dict", "vision_config", "vision_config_dict"]);
        // Older configurations have this number, and mean the largest token.
        let end_token = Some(text.natural("eos_token_id")? as i32).filter(|end| *end != 2);
        let clip = ClipConfig { end_token, ..towers(&fields, &text, &vision)? };
        let count = clip.vision.num_hidden_layers;
        let numbers = fields.numbers("extract_layers")?;
        let layer = |number: &f64| (0..count).find(|layer| *layer as f64 == *number);
        let layers: Option<Vec<usize>> = numbers.iter().map(layer).collect();
        let is_increasing = |layers: &Vec<usize>| layers.windows(2).all(|pair| pair[0] < pair[1]) && !layers.is_empty();
        let message = format!("`extract_layers` is {numbers:?}, but must be increasing layers of the {count} layers");
        let read = ClipSegConfig {
            layers: layers.filter(is_increasing).ok_or_else(|| fields.error(message))?,
            features: fields.size("reduce_dim")?,
            heads: fields.size("decoder_num_attention_heads")?,
            hidden: fields.size("decoder_intermediate_size")?,
            described_block: fields.natural("conditional_layer")?,
            has_pixel_layers: fields.flag("use_complex_transposed_convolution")?,
            clip,
        };
        fields.divides(("decoder_num_attention_heads", read.heads), ("reduce_dim", read.features))?;
        if read.has_pixel_layers && (!read.clip.patch_size.is_multiple_of(4) || read.features < 2) {
            return Err(fields.error("`patch_size` must be a multiple of 4, and `reduce_dim` at least 2"));
        }
        if read.described_block >= read.layers.len() {
            let message = format!("`conditional_layer` is {}, but there are fewer layers", read.described_block);
            return Err(fields.error(message));
        }
        // The class always has ReLU.
        fields.skip(&["decoder_hidden_act", "decoder_attention_dropout"]);
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &ClipSegConfig, rngs: &mut Rngs) -> Result<Self> {
        let (features, vision) = (config.features, &config.clip.vision);
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(vision.layer_norm_eps).build(rngs);
        let clip = Clip::make(&config.clip, rngs)?.with_interpolation(Interpolation::Bicubic);
        let description = config.clip.projection_dim;
        let reductions = config.layers.iter().map(|_| Linear::new(vision.hidden_size, features, rngs)).collect();
        let blocks = config.layers.iter().map(|_| EncoderLayer {
            attention: Some(attention(config.heads, features).build(rngs)),
            norm: norm(rngs),
            mlp: Mlp::new(features, config.hidden, Activation::Relu, false, true, rngs),
            mlp_norm: norm(rngs),
            global: None,
            conv: None,
        });
        let blocks = blocks.collect();
        let patch = config.clip.patch_size;
        let pixels = match config.has_pixel_layers {
            true => Pixels {
                conv: Some(Conv::builder(features, features, [3, 3]).padding(vec![(1, 1); 2]).build(rngs)),
                upsamples: vec![
                    Upsample::new([features, features / 2], patch / 4, rngs),
                    Upsample::new([features / 2, 1], patch / 4, rngs),
                ],
            },
            false => Pixels { conv: None, upsamples: vec![Upsample::new([features, 1], patch, rngs)] },
        };
        Ok(ClipSeg {
            clip,
            factor: Linear::new(description, features, rngs),
            shift: Linear::new(description, features, rngs),
            reductions,
            blocks,
            pixels,
            described_block: config.described_block,
            layers: config.layers.clone(),
        })
    }

    fn extents(config: &ClipSegConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (layers, mut matrices) = Clip::extents(&config.clip);
        let features = config.features;
        matrices.push(("reduction", config.clip.vision.hidden_size.max(config.clip.projection_dim), features));
        matrices.push(("MLP kernel of the decoder", features, config.hidden.max(features.saturating_mul(9))));
        let patch = config.clip.patch_size.saturating_mul(config.clip.patch_size);
        matrices.push(("kernel of pixels", features.saturating_mul(features), patch));
        (layers.saturating_add(config.layers.len()), matrices)
    }
}

/// Returns the names of the arrays.
fn keys(config: &ClipSegConfig) -> KeyMap {
    let layer = "decoder.layers.*";
    let keys = clip_keys()
        .inside("clip.", "clip.")
        .linear("factor", "decoder.film_mul")
        .linear("shift", "decoder.film_add")
        .linear("reductions[*]", "decoder.reduces.*")
        .norm("blocks[*].norm", &format!("{layer}.layer_norm1"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.layer_norm2"))
        .linear("blocks[*].mlp.up", &format!("{layer}.mlp.fc1"))
        .linear("blocks[*].mlp.down", &format!("{layer}.mlp.fc2"));
    let parts = [("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj")];
    let keys = parts.into_iter().fold(keys, |keys, (part, name)| {
        keys.linear(&format!("blocks[*].attention.{part}"), &format!("{layer}.self_attn.{name}"))
    });
    let name = "decoder.transposed_convolution";
    if config.has_pixel_layers {
        let keys = keys.conv("pixels.conv", &format!("{name}.0"));
        upsample_keys(upsample_keys(keys, 0, &format!("{name}.2")), 1, &format!("{name}.4"))
    } else {
        upsample_keys(keys, 0, name)
    }
}

/// Adds the names of a layer that enlarges the mask.
fn upsample_keys(keys: KeyMap, index: usize, name: &str) -> KeyMap {
    let path = format!("pixels.upsamples[{index}]");
    keys.array(format!("{path}.kernel"), format!("{name}.weight"), Layout::Same).array(
        format!("{path}.bias"),
        format!("{name}.bias"),
        Layout::Same,
    )
}

impl ClipSeg {
    /// Computes logits of pixels, `[batch, rows, columns]`, from the tokens of a text for each image, `[batch, length]`, and images,
    /// `[batch, rows, columns, channels]`. Pixels that belong to what the text describes have larger logits.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, images: impl ArrayLike) -> Array {
        self.find(self.clip.text_features(tokens), images)
    }

    /// Computes these logits from features of descriptions, `[batch, features]`, which are features of texts or of images, see
    /// [`Clip::text_features`] and [`Clip::image_features`].
    #[track_caller]
    pub fn find(&self, description: impl ArrayLike, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let (description, images) = (description.into_array(), images.into_array());
        if let Err(error) = description.check().and_then(|()| check_images(&description, &images)) {
            return Array::from_error(error, &images);
        }
        let side = self.clip.image_side();
        let x = side.patches.forward(&images);
        if x.check().is_err() {
            return x;
        }
        let mut outputs = Vec::new();
        let mut x = side.first_norm.forward(x);
        for (layer, block) in side.blocks.iter().enumerate() {
            x = block.forward(x);
            if self.layers.contains(&layer) {
                outputs.push(x.clone());
            }
        }
        let mut sum: Option<Array> = None;
        let layers = outputs.iter().rev().zip(self.reductions.iter().zip(&self.blocks));
        for (index, (output, (reduction, block))) in layers.enumerate() {
            let mut x = reduction.forward(output);
            if let Some(before) = sum {
                x = x + before;
            }
            if index == self.described_block {
                let [factor, shift] =
                    [&self.factor, &self.shift].map(|layer| layer.forward(&description).expand_dims(1));
                x = factor * x + shift;
            }
            sum = Some(block.forward(x, AttentionOptions::new(), false));
        }
        let Some(x) = sum else { return images };
        let &[batch, length, features] = x.shape() else { return x };
        let grid = (length - 1).isqrt();
        let x = x.get((.., 1..)).reshape([batch, grid, grid, features]);
        let x = self.pixels.conv.iter().fold(x, |x, conv| relu(conv.forward(x)));
        let last = self.pixels.upsamples.len().saturating_sub(1);
        let x = self.pixels.upsamples.iter().enumerate().fold(x, |x, (index, layer)| {
            let x = layer.forward(x);
            if index == last { x } else { relu(x) }
        });
        x.squeeze(-1)
    }
}

/// Returns an error unless there is a description for each image, and images are squares.
fn check_images(description: &Array, images: &Array) -> Result<()> {
    images.check()?;
    let (&[count, _], &[batch, rows, columns, _]) = (description.shape(), images.shape()) else {
        let shapes = format!("{:?} and {:?}", description.shape(), images.shape());
        let message = format!("ClipSeg: descriptions and images of the shapes {shapes}");
        return Err(value_error(message, "pass a text for each image, and images as [batch, rows, columns, channels]"));
    };
    if count != batch {
        let message = format!("ClipSeg: {count} descriptions for {batch} images");
        return Err(value_error(message, "repeat an image for each of its texts"));
    }
    if rows != columns {
        let message = format!("ClipSeg: images of {rows} by {columns} pixels are no squares");
        return Err(value_error(message, "scale the images, for example to 352 by 352 pixels"));
    }
    Ok(())
}
