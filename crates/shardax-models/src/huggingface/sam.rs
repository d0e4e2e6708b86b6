//! Segment Anything (SAM), which segments what points or boxes select in an image.

use shardax_nn::prelude::*;

use super::config::Fields;
use super::depth::Upsample;
use super::{Config, KeyMap, Layout, Pretrained, attention, check_type, remove_input_biases};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::reshard_like;
use crate::{Activation, Mlp};

/// The architecture of a [`Sam`].
#[derive(Clone, Debug, PartialEq)]
pub struct SamConfig {
    /// The rows and columns of an image.
    pub image_size: usize,
    /// The rows and columns of a patch. They must divide the rows and columns of an image.
    pub patch_size: usize,
    /// The number of color channels.
    pub num_channels: usize,
    /// The features of a patch.
    pub hidden_size: usize,
    /// The features inside an MLP of the encoder.
    pub mlp_dim: usize,
    /// The rows and columns of patches in the window of each block of the encoder; 0 if patches attend to all patches.
    pub windows: Vec<usize>,
    /// The number of attention heads of the encoder.
    pub num_attention_heads: usize,
    /// True if the projections to queries, keys and values have biases.
    pub qkv_bias: bool,
    /// True if learned positions are added to the patches.
    pub use_abs_pos: bool,
    /// True if attention of the encoder adds learned scores of distances.
    pub use_rel_pos: bool,
    /// The activation of the MLPs of the encoder.
    pub hidden_act: Activation,
    /// Added to the variance in the norms of the encoder.
    pub layer_norm_eps: f64,
    /// The features of an image and of prompts.
    pub output_channels: usize,
    /// The number of random waves of each half of the positions. Twice this number is `output_channels`.
    pub num_pos_feats: usize,
    /// The features inside of the convolutions that read masks.
    pub mask_input_channels: usize,
    /// The activation of these convolutions.
    pub mask_act: Activation,
    /// Added to the variance in the norms of these convolutions.
    pub mask_norm_eps: f64,
    /// The decoder of masks.
    pub decoder: SamDecoderConfig,
}

/// The decoder of a [`Sam`].
#[derive(Clone, Debug, PartialEq)]
pub struct SamDecoderConfig {
    /// The number of blocks.
    pub num_hidden_layers: usize,
    /// The number of attention heads.
    pub num_attention_heads: usize,
    /// The features inside an MLP.
    pub mlp_dim: usize,
    /// The activation of the MLPs.
    pub hidden_act: Activation,
    /// The factor by which attention between prompts and images has less features.
    pub attention_downsample_rate: usize,
    /// The number of masks of a prompt.
    pub num_multimask_outputs: usize,
    /// The number of layers that compute scores of masks.
    pub iou_head_depth: usize,
    /// The features between these layers.
    pub iou_head_hidden_dim: usize,
    /// Added to the variance in norms of blocks.
    pub layer_norm_eps: f64,
}

/// SAM ([Kirillov et al. 2023](https://arxiv.org/abs/2304.02643)). The model type is `sam`.
///
/// Images have the size of the configuration, `[batch, rows, columns, channels]`. Dimensions are named `embed`, `heads` and `mlp`, see
/// [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct Sam {
    patches: Conv,
    /// `[1, rows, columns, features]`
    positions: Option<Array>,
    blocks: Vec<ImageBlock>,
    neck: [Conv; 2],
    neck_norms: [LayerNorm; 2],
    /// `[2, waves]`: the waves of positions.
    waves: Array,
    /// The entries of points outside and inside of an object, and of the corners of boxes.
    points: Vec<Embed>,
    no_point: Embed,
    no_mask: Embed,
    mask_convs: [Conv; 3],
    mask_norms: [LayerNorm; 2],
    score_token: Embed,
    mask_tokens: Embed,
    two_way: Vec<TwoWay>,
    last_attention: MultiHeadAttention,
    last_norm: LayerNorm,
    upsample: [Upsample; 2],
    upsample_norm: LayerNorm,
    mask_heads: Vec<FeedForward>,
    score_head: FeedForward,
    #[tree(static)]
    mask_act: Activation,
    image_size: usize,
}

/// A block of the encoder.
#[derive(Module, Clone, Debug)]
struct ImageBlock {
    norm: LayerNorm,
    attention: MultiHeadAttention,
    /// `[distances, features of a head]`: tables for rows and columns.
    distances: Option<[Array; 2]>,
    mlp_norm: LayerNorm,
    mlp: Mlp,
    #[tree(static)]
    window: usize,
}

/// A block in which prompts attend to each other and to the image, and then the image to the prompts.
#[derive(Module, Clone, Debug)]
struct TwoWay {
    attention: MultiHeadAttention,
    norm: LayerNorm,
    to_image: MultiHeadAttention,
    to_image_norm: LayerNorm,
    mlp: Mlp,
    mlp_norm: LayerNorm,
    to_prompts: MultiHeadAttention,
    to_prompts_norm: LayerNorm,
}

/// Linear layers with ReLU between them.
#[derive(Module, Clone, Debug)]
struct FeedForward {
    first: Linear,
    middle: Vec<Linear>,
    last: Linear,
}

/// The points, boxes and masks that select objects for a [`Sam`].
#[derive(Clone, Debug, Default)]
pub struct SamPrompts {
    points: Option<(Array, Array)>,
    boxes: Option<Array>,
    masks: Option<Array>,
    is_single: bool,
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

/// Added to the variance in the norms of the neck and of larger features.
const EPSILON: f64 = 1e-6;
/// Added to the variance in the norm after the last attention.
const LAST_EPSILON: f64 = 1e-5;
/// The kinds of points.
const POINT_KINDS: usize = 4;
/// The largest number of masks of a prompt and of layers of a head.
const MAX_LAYERS: usize = 1000;

impl Pretrained for Sam {
    type Architecture = SamConfig;

    fn read(config: &Config) -> Result<(SamConfig, KeyMap)> {
        let fields = config.fields();
        check_type(&fields, "sam")?;
        let list = fields.list_opt("architectures")?;
        if let Some(name) = list.and_then(|list| list.first()).and_then(|name| name.as_str())
            && name != "SamModel"
        {
            return Err(fields.error(format!("the class {name:?} of `architectures` is not supported")));
        }
        let vision = fields.model("vision_config", "sam_vision_model")?;
        let prompts = fields.model("prompt_encoder_config", "sam_prompt_encoder")?;
        let decoder = fields.model("mask_decoder_config", "sam_mask_decoder")?;
        let features = vision.size("hidden_size")?;
        let read = SamConfig {
            image_size: vision.size("image_size")?,
            patch_size: vision.size("patch_size")?,
            num_channels: vision.size("num_channels")?,
            hidden_size: features,
            mlp_dim: mlp_size(&vision, features)?,
            windows: windows(&vision)?,
            num_attention_heads: vision.size("num_attention_heads")?,
            qkv_bias: vision.flag("qkv_bias")?,
            use_abs_pos: vision.flag("use_abs_pos")?,
            use_rel_pos: vision.flag("use_rel_pos")?,
            hidden_act: vision.activation("hidden_act")?,
            layer_norm_eps: vision.number("layer_norm_eps")?,
            output_channels: vision.size("output_channels")?,
            num_pos_feats: vision.size("num_pos_feats")?,
            mask_input_channels: prompts.size("mask_input_channels")?,
            mask_act: prompts.activation("hidden_act")?,
            mask_norm_eps: prompts.number("layer_norm_eps")?,
            decoder: SamDecoderConfig {
                num_hidden_layers: decoder.layers("num_hidden_layers")?,
                num_attention_heads: decoder.size("num_attention_heads")?,
                mlp_dim: decoder.size("mlp_dim")?,
                hidden_act: decoder.activation("hidden_act")?,
                attention_downsample_rate: decoder.size("attention_downsample_rate")?,
                num_multimask_outputs: decoder.size("num_multimask_outputs")?,
                iou_head_depth: decoder.size("iou_head_depth")?,
                iou_head_hidden_dim: decoder.size("iou_head_hidden_dim")?,
                layer_norm_eps: decoder.number("layer_norm_eps")?,
            },
        };
        check(&read, [&vision, &prompts, &decoder])?;
        for part in [&vision, &prompts, &decoder] {
            part.finish()?;
        }
        fields.skip(&["tie_word_embeddings"]);
        fields.finish()?;
        let keys = keys(&read);
        Ok((read, keys))
    }

    fn make(config: &SamConfig, rngs: &mut Rngs) -> Result<Self> {
        let (features, outputs, dtype) = (config.hidden_size, config.output_channels, rngs.policy().param_dtype);
        let grid = config.image_size / config.patch_size;
        let patch = [config.patch_size; 2];
        let patches = Conv::builder(config.num_channels, features, patch).strides(patch).padding(Padding::Valid);
        let conv = |[before, after]: [usize; 2], size: usize, stride: usize, rngs: &mut Rngs| {
            let conv = Conv::builder(before, after, [size; 2]).strides([stride; 2]).padding(Padding::Valid);
            conv.build(rngs)
        };
        let around = Padding::Explicit(vec![(1, 1); 2]);
        let norm =
            |features: usize, epsilon: f64, rngs: &mut Rngs| LayerNorm::builder(features).epsilon(epsilon).build(rngs);
        let (masks, decoder) = (config.mask_input_channels, &config.decoder);
        let [quarter, eighth] = [outputs / 4, outputs / 8];
        let mask_count = decoder.num_multimask_outputs + 1;
        let head = |rngs: &mut Rngs| FeedForward::new([outputs, outputs, eighth], 3, rngs);
        Ok(Sam {
            patches: patches.build(rngs),
            positions: config.use_abs_pos.then(|| zeros_dtype([1, grid, grid, features], dtype)),
            blocks: config.windows.iter().map(|window| ImageBlock::new(config, *window, rngs)).collect(),
            neck: [
                Conv::builder(features, outputs, [1, 1]).use_bias(false).build(rngs),
                Conv::builder(outputs, outputs, [3, 3]).use_bias(false).padding(around).build(rngs),
            ],
            neck_norms: [norm(outputs, EPSILON, rngs), norm(outputs, EPSILON, rngs)],
            waves: zeros_dtype([2, config.num_pos_feats], dtype),
            points: (0..POINT_KINDS).map(|_| Embed::new(1, outputs, rngs)).collect(),
            no_point: Embed::new(1, outputs, rngs),
            no_mask: Embed::new(1, outputs, rngs),
            mask_convs: [
                conv([1, masks / 4], 2, 2, rngs),
                conv([masks / 4, masks], 2, 2, rngs),
                conv([masks, outputs], 1, 1, rngs),
            ],
            mask_norms: [norm(masks / 4, config.mask_norm_eps, rngs), norm(masks, config.mask_norm_eps, rngs)],
            score_token: Embed::new(1, outputs, rngs),
            mask_tokens: Embed::new(mask_count, outputs, rngs),
            two_way: (0..decoder.num_hidden_layers).map(|_| TwoWay::new(config, rngs)).collect(),
            last_attention: config.prompt_attention(decoder.attention_downsample_rate, rngs),
            last_norm: norm(outputs, LAST_EPSILON, rngs),
            upsample: [Upsample::new([outputs, quarter], 2, rngs), Upsample::new([quarter, eighth], 2, rngs)],
            upsample_norm: norm(quarter, EPSILON, rngs),
            mask_heads: (0..mask_count).map(|_| head(rngs)).collect(),
            score_head: FeedForward::new(
                [outputs, decoder.iou_head_hidden_dim, mask_count],
                decoder.iou_head_depth,
                rngs,
            ),
            mask_act: config.mask_act,
            image_size: config.image_size,
        })
    }

    fn extents(config: &SamConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (features, outputs, grid) =
            (config.hidden_size, config.output_channels, config.image_size / config.patch_size.max(1));
        let patch = config.patch_size.saturating_mul(config.patch_size);
        let positions = if config.use_abs_pos { grid.saturating_mul(grid) } else { 0 };
        let largest = config.windows.iter().copied().max().unwrap_or(0);
        let distances = if config.use_rel_pos { largest.max(grid) } else { 0 };
        let decoder = &config.decoder;
        let matrices = vec![
            ("position table", positions, features),
            ("table of distances", distances, features / config.num_attention_heads.max(1)),
            ("query kernel", features, features),
            ("MLP kernel", features, config.mlp_dim),
            ("patch", patch, config.num_channels.saturating_mul(features)),
            ("convolution of the neck", outputs.saturating_mul(9), outputs),
            ("layer of the neck", features, outputs),
            ("MLP of the decoder", outputs, decoder.mlp_dim),
            ("layer of scores", outputs, decoder.iou_head_hidden_dim),
            ("convolution of masks", config.mask_input_channels, outputs),
            ("waves", 2, config.num_pos_feats),
        ];
        (config.windows.len().saturating_add(decoder.num_hidden_layers), matrices)
    }
}

impl SamConfig {
    /// Creates attention of prompts or of an image in the decoder.
    fn prompt_attention(&self, rate: usize, rngs: &mut Rngs) -> MultiHeadAttention {
        let features = self.output_channels;
        attention(self.decoder.num_attention_heads, features).qkv_features(features / rate).build(rngs)
    }
}

/// Returns the features inside an MLP of the encoder.
fn mlp_size(vision: &Fields, features: usize) -> Result<usize> {
    if let Some(size) = vision.size_opt("mlp_dim")? {
        vision.skip(&["mlp_ratio"]);
        return Ok(size);
    }
    match vision.number("mlp_ratio")? * features as f64 {
        size if (1.0..1e9).contains(&size) => Ok(size as usize),
        _ => Err(vision.error("`mlp_ratio` is not supported")),
    }
}

/// Returns the rows and columns of windows of each block. Some blocks have none.
fn windows(vision: &Fields) -> Result<Vec<usize>> {
    let (layers, window) = (vision.layers("num_hidden_layers")?, vision.number("window_size")?);
    if !(0.0..1e6).contains(&window) || window.fract() != 0.0 {
        return Err(vision.error(format!("`window_size` is {window}")));
    }
    let everywhere = vision.numbers("global_attn_indexes")?;
    let window_of = |layer: usize| if everywhere.contains(&(layer as f64)) { 0 } else { window as usize };
    Ok((0..layers).map(window_of).collect())
}

/// Returns an error if sizes do not fit each other, and marks fields as read that follow from others.
fn check(config: &SamConfig, [vision, prompts, decoder]: [&Fields; 3]) -> Result<()> {
    let outputs = config.output_channels;
    vision.divides(("num_attention_heads", config.num_attention_heads), ("hidden_size", config.hidden_size))?;
    vision.divides(("patch_size", config.patch_size), ("image_size", config.image_size))?;
    if config.num_pos_feats.checked_mul(2) != Some(outputs) || !outputs.is_multiple_of(8) {
        let message = "`output_channels` must be a multiple of 8, and twice as large as `num_pos_feats`";
        return Err(vision.error(message));
    }
    for (part, name, size) in [
        (prompts, "hidden_size", outputs),
        (prompts, "image_size", config.image_size),
        (prompts, "patch_size", config.patch_size),
        (prompts, "num_point_embeddings", POINT_KINDS),
        (decoder, "hidden_size", outputs),
    ] {
        if part.size(name)? != size {
            return Err(part.error(format!("`{name}` must be {size}")));
        }
    }
    if !config.mask_input_channels.is_multiple_of(4) {
        return Err(prompts.error("`mask_input_channels` must be a multiple of 4"));
    }
    let rate = config.decoder.attention_downsample_rate;
    decoder.divides(("attention_downsample_rate", rate), ("hidden_size", outputs))?;
    let inner = outputs / rate;
    decoder
        .divides(("num_attention_heads", config.decoder.num_attention_heads), ("the features of attention", inner))?;
    let depth = config.decoder.iou_head_depth;
    if !(2..=MAX_LAYERS).contains(&depth) || config.decoder.num_multimask_outputs > MAX_LAYERS {
        let message =
            format!("`iou_head_depth` must be 2 to {MAX_LAYERS}, and `num_multimask_outputs` at most {MAX_LAYERS}");
        return Err(decoder.error(message));
    }
    // Older files have a field of CLIP here.
    vision.skip(&["scale", "projection_dim"]);
    prompts.skip(&["image_embedding_size"]);
    Ok(())
}

/// Returns the names of the arrays.
fn keys(config: &SamConfig) -> KeyMap {
    let (layer, features) = ("vision_encoder.layers.*", config.hidden_size);
    let joined = format!("{layer}.attn.qkv");
    let keys = KeyMap::new()
        .conv("patches", "vision_encoder.patch_embed.projection")
        .array("positions", "vision_encoder.pos_embed", Layout::Same)
        .norm("blocks[*].norm", &format!("{layer}.layer_norm1"))
        .norm("blocks[*].mlp_norm", &format!("{layer}.layer_norm2"))
        .weights("blocks[*].attention.query", &joined, Layout::nth_rows(0, features, 3))
        .weights("blocks[*].attention.key", &joined, Layout::nth_rows(1, features, 3))
        .weights("blocks[*].attention.value", &joined, Layout::nth_rows(2, features, 3))
        .linear("blocks[*].attention.out", &format!("{layer}.attn.proj"))
        .array("blocks[*].distances[0]", format!("{layer}.attn.rel_pos_h"), Layout::Same)
        .array("blocks[*].distances[1]", format!("{layer}.attn.rel_pos_w"), Layout::Same)
        .linear("blocks[*].mlp.up", &format!("{layer}.mlp.lin1"))
        .linear("blocks[*].mlp.down", &format!("{layer}.mlp.lin2"))
        .conv("neck[0]", "vision_encoder.neck.conv1")
        .conv("neck[1]", "vision_encoder.neck.conv2")
        .norm("neck_norms[0]", "vision_encoder.neck.layer_norm1")
        .norm("neck_norms[1]", "vision_encoder.neck.layer_norm2")
        .array("waves", "shared_image_embedding.positional_embedding", Layout::Same)
        .tied("prompt_encoder.shared_embedding.positional_embedding", "shared_image_embedding.positional_embedding")
        .array("points[*].embedding", "prompt_encoder.point_embed.*.weight", Layout::Same)
        .array("no_point.embedding", "prompt_encoder.not_a_point_embed.weight", Layout::Same)
        .array("no_mask.embedding", "prompt_encoder.no_mask_embed.weight", Layout::Same)
        .conv("mask_convs[0]", "prompt_encoder.mask_embed.conv1")
        .conv("mask_convs[1]", "prompt_encoder.mask_embed.conv2")
        .conv("mask_convs[2]", "prompt_encoder.mask_embed.conv3")
        .norm("mask_norms[0]", "prompt_encoder.mask_embed.layer_norm1")
        .norm("mask_norms[1]", "prompt_encoder.mask_embed.layer_norm2");
    decoder_keys(keys, config)
}

/// Adds the names of the decoder.
fn decoder_keys(keys: KeyMap, config: &SamConfig) -> KeyMap {
    let (block, layer) = ("two_way[*]", "mask_decoder.transformer.layers.*");
    let last = "mask_decoder.transformer.final_attn_token_to_image";
    let mut keys = keys
        .array("score_token.embedding", "mask_decoder.iou_token.weight", Layout::Same)
        .array("mask_tokens.embedding", "mask_decoder.mask_tokens.weight", Layout::Same)
        .norm("two_way[*].norm", &format!("{layer}.layer_norm1"))
        .norm("two_way[*].to_image_norm", &format!("{layer}.layer_norm2"))
        .norm("two_way[*].mlp_norm", &format!("{layer}.layer_norm3"))
        .norm("two_way[*].to_prompts_norm", &format!("{layer}.layer_norm4"))
        .linear("two_way[*].mlp.up", &format!("{layer}.mlp.lin1"))
        .linear("two_way[*].mlp.down", &format!("{layer}.mlp.lin2"))
        .norm("last_norm", "mask_decoder.transformer.layer_norm_final_attn")
        .norm("upsample_norm", "mask_decoder.upscale_layer_norm");
    for (path, name) in [
        (format!("{block}.attention"), format!("{layer}.self_attn")),
        (format!("{block}.to_image"), format!("{layer}.cross_attn_token_to_image")),
        (format!("{block}.to_prompts"), format!("{layer}.cross_attn_image_to_token")),
        ("last_attention".to_owned(), last.to_owned()),
    ] {
        for (part, array) in [("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"), ("out", "out_proj")] {
            keys = keys.linear(&format!("{path}.{part}"), &format!("{name}.{array}"));
        }
    }
    for index in 0..2 {
        let (path, name) = (format!("upsample[{index}]"), format!("mask_decoder.upscale_conv{}", index + 1));
        keys = keys.array(format!("{path}.kernel"), format!("{name}.weight"), Layout::Same).array(
            format!("{path}.bias"),
            format!("{name}.bias"),
            Layout::Same,
        );
    }
    let heads = (0..=config.decoder.num_multimask_outputs)
        .map(|index| (format!("mask_heads[{index}]"), format!("mask_decoder.output_hypernetworks_mlps.{index}")));
    let scores = ("score_head".to_owned(), "mask_decoder.iou_prediction_head".to_owned());
    heads.chain([scores]).fold(keys, |keys, (path, name)| {
        keys.linear(&format!("{path}.first"), &format!("{name}.proj_in"))
            .linear(&format!("{path}.middle[*]"), &format!("{name}.layers.*"))
            .linear(&format!("{path}.last"), &format!("{name}.proj_out"))
    })
}

impl FeedForward {
    fn new([inputs, hidden, outputs]: [usize; 3], depth: usize, rngs: &mut Rngs) -> FeedForward {
        FeedForward {
            first: Linear::new(inputs, hidden, rngs),
            middle: (2..depth).map(|_| Linear::new(hidden, hidden, rngs)).collect(),
            last: Linear::new(hidden, outputs, rngs),
        }
    }

    fn forward(&self, x: Array) -> Array {
        let x = relu(self.first.forward(x));
        self.last.forward(self.middle.iter().fold(x, |x, layer| relu(layer.forward(x))))
    }
}

impl ImageBlock {
    fn new(config: &SamConfig, window: usize, rngs: &mut Rngs) -> ImageBlock {
        let (features, heads) = (config.hidden_size, config.num_attention_heads);
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let mut attention = attention(heads, features).build(rngs);
        if !config.qkv_bias {
            remove_input_biases(&mut attention);
        }
        let side = if window == 0 { config.image_size / config.patch_size } else { window };
        let table =
            |rngs: &Rngs| zeros_dtype([(2 * side).saturating_sub(1), features / heads], rngs.policy().param_dtype);
        ImageBlock {
            norm: norm(rngs),
            attention,
            distances: config.use_rel_pos.then(|| [table(rngs), table(rngs)]),
            mlp_norm: norm(rngs),
            mlp: Mlp::new(features, config.mlp_dim, config.hidden_act, false, true, rngs),
            window,
        }
    }

    /// Applies the block to `x`, `[batch, rows, columns, features]`.
    fn forward(&self, x: Array) -> Result<Array> {
        let &[batch, rows, columns, features] = x.shape() else { return Ok(x) };
        let y = self.norm.forward(&x);
        let y = if self.window == 0 {
            let y = self.attend(y.reshape([batch, 1, rows * columns, features]), [rows, columns])?;
            y.reshape([batch, rows, columns, features])
        } else {
            // Patches at the end are padded with zeros, which other patches attend to.
            let side = self.window;
            let [down, right] = [rows, columns].map(|size| size.div_ceil(side));
            let missing = |size: usize, count: usize| (0, count * side - size);
            let pads = vec![(0, 0), missing(rows, down), missing(columns, right), (0, 0)];
            let y = pad(&y, pads, PadMode::Constant(0.0));
            let y = y.reshape([batch, down, side, right, side, features]).transpose([0, 1, 3, 2, 4, 5]);
            let y = self.attend(y.reshape([batch, down * right, side * side, features]), [side; 2])?;
            let y = y.reshape([batch, down, right, side, side, features]).transpose([0, 1, 3, 2, 4, 5]);
            y.reshape([batch, down * side, right * side, features]).get((.., ..rows, ..columns))
        };
        let x = x + y;
        let y = self.mlp.forward(self.mlp_norm.forward(&x));
        Ok(x + y)
    }

    /// Attends to the patches of each window, `[batch, windows, patches, features]`.
    fn attend(&self, x: Array, [rows, columns]: [usize; 2]) -> Result<Array> {
        let (Some(key), Some(value)) = (&self.attention.key, &self.attention.value) else { return Ok(x) };
        let query = self.attention.query.forward(&x);
        let mut options = AttentionOptions::new();
        if let (Some(tables), &[batch, windows, length, heads, depth]) = (&self.distances, query.shape()) {
            let [down, right] = tables;
            let grid = query.reshape([batch, windows, rows, columns, heads, depth]);
            let down = down.take(distances(rows)?, 0).astype(grid.dtype());
            let right = right.take(distances(columns)?, 0).astype(grid.dtype());
            let down = einsum("bwrcnd,rkd->bwnrck", &[&grid, &down]).expand_dims(-1);
            let right = einsum("bwrcnd,ckd->bwnrck", &[&grid, &right]).expand_dims(-2);
            options = options.bias((down + right).reshape([batch, windows, heads, length, length]));
        }
        Ok(self.attention.out.forward(options.dot_product_attention(query, key.forward(&x), value.forward(&x))))
    }
}

/// Returns the rows of a table of distances for places in a line, `[places, places]`.
fn distances(count: usize) -> Result<Array> {
    let rows = (0..count * count).map(|index| (index / count + count - 1 - index % count) as i32);
    Array::from_vec(rows.collect::<Vec<i32>>(), &[count, count])
}

impl TwoWay {
    fn new(config: &SamConfig, rngs: &mut Rngs) -> TwoWay {
        let (features, decoder) = (config.output_channels, &config.decoder);
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(decoder.layer_norm_eps).build(rngs);
        let rate = decoder.attention_downsample_rate;
        TwoWay {
            attention: config.prompt_attention(1, rngs),
            norm: norm(rngs),
            to_image: config.prompt_attention(rate, rngs),
            to_image_norm: norm(rngs),
            mlp: Mlp::new(features, decoder.mlp_dim, decoder.hidden_act, false, true, rngs),
            mlp_norm: norm(rngs),
            to_prompts: config.prompt_attention(rate, rngs),
            to_prompts_norm: norm(rngs),
        }
    }

    /// Applies the block to prompts, `[objects, prompts, features]`, and to images, `[objects, patches, features]`, with their
    /// positions. The first block replaces the prompts by the result of attention, because they are their own positions.
    fn forward(&self, is_first: bool, [x, places]: [Array; 2], [image, image_places]: [Array; 2]) -> [Array; 2] {
        let none = AttentionOptions::new;
        let x = if is_first {
            self.attention.attend(&x, &x, &x, none())
        } else {
            let placed = &x + &places;
            let y = self.attention.attend(&placed, &placed, &x, none());
            x + y
        };
        let x = self.norm.forward(x);
        let placed_image = &image + &image_places;
        let y = self.to_image.attend(&x + &places, &placed_image, &image, none());
        let x = self.to_image_norm.forward(x + y);
        let y = self.mlp.forward(&x);
        let x = self.mlp_norm.forward(x + y);
        let y = self.to_prompts.attend(&placed_image, &x + &places, &x, none());
        [x, self.to_prompts_norm.forward(image + y)]
    }
}

impl Sam {
    /// Computes features of images, `[batch, rows of patches, columns of patches, features]`. You need to call this only once for an
    /// image, although you segment several objects.
    #[track_caller]
    pub fn encode(&self, images: impl ArrayLike) -> Array {
        let _ranks = allow_any_ranks();
        let images = images.into_array();
        self.try_encode(&images).unwrap_or_else(|error| Array::from_error(error, &images))
    }

    fn try_encode(&self, images: &Array) -> Result<Array> {
        images.check()?;
        let (size, channels) = (self.image_size, self.patches.kernel.shape()[2]);
        if images.ndim() != 4 || images.shape()[1..] != [size, size, channels] {
            let message = format!("Sam: the shape {:?} is not [batch, {size}, {size}, {channels}]", images.shape());
            return Err(value_error(message, "resize images so that their longer side fits, and pad the other one"));
        }
        let mut x = self.patches.forward(images);
        if let Some(positions) = &self.positions {
            x = &x + positions.astype(x.dtype());
        }
        for block in &self.blocks {
            x = block.forward(x)?;
        }
        let layers = self.neck.iter().zip(&self.neck_norms);
        Ok(layers.fold(x, |x, (conv, norm)| norm.forward(conv.forward(x))))
    }

    /// Segments objects in images `[batch, rows, columns, channels]`. See [`masks`](Sam::masks) for the results.
    #[track_caller]
    pub fn forward(&self, images: impl ArrayLike, prompts: &SamPrompts) -> (Array, Array) {
        self.masks(self.encode(images), prompts)
    }

    /// Segments the objects that prompts select, for features of images. Returns logits of masks, `[batch, objects, masks, rows,
    /// columns]`, which have a quarter of the size of the image, and their scores, `[batch, objects, masks]`. Pixels of the object have
    /// positive logits.
    #[track_caller]
    pub fn masks(&self, features: impl ArrayLike, prompts: &SamPrompts) -> (Array, Array) {
        let _ranks = allow_any_ranks();
        let features = features.into_array();
        self.try_masks(&features, prompts).unwrap_or_else(|error| {
            let x = Array::from_error(error, &features);
            (x.clone(), x)
        })
    }

    fn try_masks(&self, image: &Array, prompts: &SamPrompts) -> Result<(Array, Array)> {
        image.check()?;
        let grid = self.image_size / self.patches.kernel.shape()[0];
        let width = self.mask_tokens.embedding.shape()[1];
        if image.ndim() != 4 || image.shape()[1..] != [grid, grid, width] {
            let message = format!("Sam: the shape {:?} is not [batch, {grid}, {grid}, {width}]", image.shape());
            return Err(value_error(message, "pass the features that `encode` computes"));
        }
        let batch = image.shape()[0];
        let entries = self.entries(prompts, batch)?;
        let objects = entries.as_ref().map_or(1, |entries| entries.shape()[1]);
        // Each object of an image has a separate copy of the image.
        let dense = match &prompts.masks {
            Some(masks) => self.mask_features(masks, [batch, grid, grid])?,
            None => self.no_mask.embedding.reshape([1, 1, 1, width]).astype(image.dtype()),
        };
        let copies = |x: Array, length: usize| {
            let shape = [batch, objects, length, width];
            x.expand_dims(1).broadcast_to(shape).reshape([batch * objects, length, width])
        };
        let places = self.image_places(grid).astype(image.dtype());
        let mut image = copies((image + dense).reshape([batch, grid * grid, width]), grid * grid);
        let tokens = concatenate(&[&self.score_token.embedding, &self.mask_tokens.embedding], 0).astype(image.dtype());
        let count = tokens.shape()[0];
        let tokens = reshard_like(tokens.broadcast_to([batch * objects, count, width]), &image);
        let start = match &entries {
            Some(entries) => {
                let count = entries.shape()[2];
                let entries = entries.astype(image.dtype()).reshape([batch * objects, count, width]);
                concatenate(&[tokens, entries], 1)
            }
            None => tokens,
        };
        let mut x = start.clone();
        for (index, block) in self.two_way.iter().enumerate() {
            [x, image] = block.forward(index == 0, [x, start.clone()], [image, places.clone()]);
        }
        let y = self.last_attention.attend(&x + &start, &image + &places, &image, AttentionOptions::new());
        let x = self.last_norm.forward(x + y);
        let image = image.reshape([batch * objects, grid, grid, width]);
        Ok(self.outputs(x, image, [batch, objects], prompts.is_single))
    }

    /// Computes masks and scores from the prompts and the image after the blocks.
    fn outputs(&self, x: Array, image: Array, [batch, objects]: [usize; 2], is_single: bool) -> (Array, Array) {
        let [first, second] = &self.upsample;
        let image = gelu_exact(self.upsample_norm.forward(first.forward(image)));
        let image = gelu_exact(second.forward(image));
        let count = self.mask_heads.len();
        let range = if is_single { 0..1 } else { 1..count };
        let heads = self.mask_heads[range.clone()].iter().zip(range.clone());
        let weights = heads.map(|(head, index)| head.forward(x.get((.., 1 + index)))).collect::<Vec<_>>();
        let masks = einsum("omf,orcf->omrc", &[&stack(&weights, 1), &image]);
        let &[_, number, rows, columns] = masks.shape() else { return (masks.clone(), masks) };
        let scores = self.score_head.forward(x.get((.., 0))).get((.., range));
        (masks.reshape([batch, objects, number, rows, columns]), scores.reshape([batch, objects, number]))
    }

    /// Returns the entries of points and boxes, `[batch, objects, entries, features]`, if there are any.
    fn entries(&self, prompts: &SamPrompts, batch: usize) -> Result<Option<Array>> {
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
    fn image_places(&self, grid: usize) -> Array {
        let centers = (arange(0..grid as i32).astype(DType::F32) + 0.5) / grid as f64;
        let (columns, rows) = (tile(&centers, [grid]), repeat(&centers, grid, 0));
        self.waves_of(stack(&[columns, rows], -1))
    }

    /// Returns the features of masks, `[batch, rows, columns, features]`.
    fn mask_features(&self, masks: &Array, shape: [usize; 3]) -> Result<Array> {
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
