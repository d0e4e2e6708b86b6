//! Grounding DINO, which detects the objects that a text describes.

use shardax_nn::prelude::*;

use super::bert_files::read_part;
use super::deformable_detr::{
    BoxLayers, DeformableSizes, EncoderBlock, GROUPS, Level, OFFSET_SCALE, box_positions, centers, corrected,
};
use super::depth::layers;
use super::detr::{NORM_EPSILON, sines_with_base};
use super::encoder::small_normal;
use super::fields::Fields;
use super::rt_detr::{DeformableAttention, anchors, flattened, linear_layers, log_odds, mlp};
use super::{
    Bert, BertConfig, BertOptions, Config, KeyMap, Layout, Pretrained, StagedConfig, Swin, SwinConfig, attention,
    check_type, known_type, swin,
};
use crate::error::value_error;
use crate::ranks::allow_any_ranks;
use crate::shardings::reshard_like;
use crate::{Activation, Mlp, Side};

/// The architecture of a [`GroundingDino`].
#[derive(Clone, Debug, PartialEq)]
pub struct GroundingDinoConfig {
    /// The encoder of texts.
    pub text: BertConfig,
    /// The encoder of images.
    pub image: SwinConfig,
    /// The stages of images, counted from 1, whose features are read. 0 stands for the patches before the first stage.
    pub outputs: Vec<usize>,
    /// The number of levels of features, at least the number of stages. Convolutions compute the other levels.
    pub num_feature_levels: usize,
    /// The features in the blocks.
    pub d_model: usize,
    /// The blocks that read the features of an image and of a text.
    pub encoder: Side,
    /// The blocks that compute objects.
    pub decoder: Side,
    /// The numbers of places in each level to which a place of the image and an object attend.
    pub points: [usize; 2],
    /// The number of objects in an image.
    pub num_queries: usize,
    /// The activation of the MLPs.
    pub activation_function: Activation,
    /// The largest number of tokens.
    pub max_text_len: usize,
    /// The base of the frequencies of places.
    pub position_base: f64,
    /// Added to the variance in norms.
    pub layer_norm_eps: f64,
    /// True if the layers that compute boxes are the same for all blocks.
    pub shares_boxes: bool,
    /// The number of learned numbers that are added to logits, as in MM Grounding DINO: none, one, or one for each block.
    pub class_biases: usize,
}

/// Grounding DINO ([Liu et al. 2023](https://arxiv.org/abs/2303.05499)) with a Swin Transformer and a BERT, and MM Grounding DINO
/// ([Zhao et al. 2024](https://arxiv.org/abs/2401.02361)). The model type is `grounding-dino` or `mm-grounding-dino`.
///
/// You can pass images of any size, `[batch, rows, columns, channels]`. Dimensions are named `embed`, `heads` and `mlp`, see [`Rules`].
#[derive(Module, Clone, Debug)]
pub struct GroundingDino {
    text: Bert,
    text_projection: Linear,
    image: Swin,
    /// Normalize the features of the stages that are read.
    image_norms: Vec<LayerNorm>,
    levels: Vec<Level>,
    /// `[levels, features]`: the learned part of the positions in each level.
    level_positions: Array,
    encoder: Vec<JointBlock>,
    /// Compute the features of the places of the image among which objects are chosen.
    proposal: Linear,
    proposal_norm: LayerNorm,
    proposal_boxes: BoxLayers,
    /// `[objects, features]`: the learned first features of objects.
    objects: Array,
    /// The layers that compute positions from the sines of boxes.
    points: Vec<Linear>,
    decoder: Vec<DecoderBlock>,
    decoder_norm: LayerNorm,
    boxes: Vec<BoxLayers>,
    /// The numbers that are added to the logits of objects.
    class_biases: Vec<Array>,
    /// The number that is added to the logits of places.
    proposal_bias: Option<Array>,
    #[tree(static)]
    outputs: Vec<usize>,
    #[tree(static)]
    max_text_len: usize,
    position_base: f64,
}

/// A block that reads the features of an image and of a text: they attend to each other, then to themselves.
#[derive(Module, Clone, Debug)]
struct JointBlock {
    image_norm: LayerNorm,
    text_norm: LayerNorm,
    image: Crossing,
    text: Crossing,
    /// `[features]`: the factors of the results.
    image_scale: Array,
    text_scale: Array,
    places: EncoderBlock,
    attention: MultiHeadAttention,
    attention_norm: LayerNorm,
    mlp: Mlp,
    mlp_norm: LayerNorm,
}

/// The layers of one side of attention in both directions. The queries of a side are the keys for the other one.
#[derive(Module, Clone, Debug)]
struct Crossing {
    query: LinearGeneral,
    value: LinearGeneral,
    out: LinearGeneral,
}

#[derive(Module, Clone, Debug)]
struct DecoderBlock {
    attention: MultiHeadAttention,
    norm: LayerNorm,
    text: MultiHeadAttention,
    text_norm: LayerNorm,
    cross: DeformableAttention,
    cross_norm: LayerNorm,
    mlp: Mlp,
    mlp_norm: LayerNorm,
}

/// The features of a text, the tokens that objects see, and the tokens that each token sees.
struct Text {
    features: Array,
    /// `[batch, 1, 1, length]`
    is_visible: Array,
    /// `[batch, 1, length, length]`
    sees: Array,
    /// The sines of the positions of tokens.
    positions: Array,
}

/// The second type, whose logits are scaled and have a bias.
const SCALED: &str = "mm-grounding-dino";

/// The supported model types.
pub(super) const KNOWN: [&str; 2] = ["grounding-dino", SCALED];

/// The tokens that end a phrase in the vocabulary of BERT: the first and the last token of a text, a dot and a question mark.
const ENDS_OF_PHRASES: [i32; 4] = [101, 102, 1012, 1029];

/// The stages that are read if the configuration does not describe the encoder of images.
const DEFAULT_OUTPUTS: [usize; 3] = [2, 3, 4];

/// The part of the names that the encoder of images has.
const IMAGE: &str = "model.backbone.conv_encoder.model";

impl Pretrained for GroundingDino {
    type Architecture = GroundingDinoConfig;

    fn read(config: &Config) -> Result<(GroundingDinoConfig, KeyMap)> {
        let fields = config.fields();
        let kind = known_type(&fields, &KNOWN)?;
        if let Some(name) = fields.class()?
            && !name.ends_with("ForObjectDetection")
        {
            return Err(fields.error(format!("the class {name:?} of `architectures` does not detect objects")));
        }
        let (image, outputs) = image_encoder(&fields)?;
        let text_fields = fields.model("text_config", "bert")?;
        if text_fields.has("model_type") {
            check_type(&text_fields, "bert")?;
        }
        let (text, text_keys) = read_part(&text_fields, "bert")?;
        text_fields.finish()?;
        let [encoder, decoder] = Side::read_both(&fields)?;
        let shares_biases = kind == SCALED && fields.flag("decoder_cls_embed_share")?;
        let read = GroundingDinoConfig {
            text,
            image,
            outputs,
            num_feature_levels: fields.size("num_feature_levels")?,
            d_model: fields.size("d_model")?,
            encoder,
            decoder,
            points: [fields.size("encoder_n_points")?, fields.size("decoder_n_points")?],
            num_queries: fields.size("num_queries")?,
            activation_function: fields.activation("activation_function")?,
            max_text_len: fields.size("max_text_len")?,
            position_base: fields.number("positional_embedding_temperature")?,
            layer_norm_eps: fields.number("layer_norm_eps")?,
            shares_boxes: fields.flag("decoder_bbox_embed_share")?,
            class_biases: match (kind == SCALED, shares_biases) {
                (false, _) => 0,
                (true, true) => 1,
                (true, false) => decoder.layers,
            },
        };
        check(&fields, &read)?;
        fields.finish()?;
        let keys = keys(&read).and(text_keys.inside("text.", "model.text_backbone.")).and(image_keys(&read));
        Ok((read, keys))
    }

    fn make(config: &GroundingDinoConfig, rngs: &mut Rngs) -> Result<Self> {
        let features = config.d_model;
        let norm = |size: usize, rngs: &mut Rngs| LayerNorm::builder(size).epsilon(config.layer_norm_eps).build(rngs);
        let stages: Vec<usize> =
            config.outputs.iter().map(|stage| config.image.features(stage.saturating_sub(1))).collect();
        let box_layers =
            |rngs: &mut Rngs| BoxLayers { layers: linear_layers(&[features, features, features, 4], rngs) };
        Ok(GroundingDino {
            text: Bert::make(&config.text, rngs)?,
            text_projection: Linear::new(config.text.hidden_size, features, rngs),
            image: Swin::make(&config.image, rngs)?,
            image_norms: stages
                .iter()
                .map(|size| LayerNorm::builder(*size).epsilon(NORM_EPSILON).build(rngs))
                .collect(),
            levels: Level::all(&stages, [features, config.num_feature_levels], rngs),
            level_positions: small_normal(&[config.num_feature_levels, features], rngs),
            encoder: (0..config.encoder.layers).map(|_| JointBlock::new(config, rngs)).collect(),
            proposal: Linear::new(features, features, rngs),
            proposal_norm: norm(features, rngs),
            proposal_boxes: box_layers(rngs),
            objects: small_normal(&[config.num_queries, features], rngs),
            points: linear_layers(&[features.saturating_mul(2), features, features], rngs),
            decoder: (0..config.decoder.layers).map(|_| DecoderBlock::new(config, rngs)).collect(),
            decoder_norm: norm(features, rngs),
            boxes: (0..config.box_layers()).map(|_| box_layers(rngs)).collect(),
            class_biases: (0..config.class_biases).map(|_| class_bias(rngs)).collect(),
            proposal_bias: (config.class_biases > 0).then(|| class_bias(rngs)),
            outputs: config.outputs.clone(),
            max_text_len: config.max_text_len,
            position_base: config.position_base,
        })
    }

    fn extents(config: &GroundingDinoConfig) -> (usize, Vec<(&'static str, usize, usize)>) {
        let (text_layers, mut matrices) = Bert::extents(&config.text);
        let (image_layers, more) = Swin::extents(&config.image);
        let (features, heads) = (config.d_model, config.encoder.heads.max(config.decoder.heads));
        let points = config.points[0].max(config.points[1]).saturating_mul(config.num_feature_levels).saturating_mul(2);
        matrices.extend(more);
        matrices.push(("query kernel", features, features.saturating_mul(2)));
        matrices.push(("MLP kernel", features, config.encoder.hidden.max(config.decoder.hidden)));
        matrices.push(("kernel of places", features, heads.saturating_mul(points)));
        matrices.push(("table of objects", config.num_queries, features));
        matrices.push(("table of levels", config.num_feature_levels, features));
        let layers = [image_layers, config.encoder.layers, config.decoder.layers];
        (layers.into_iter().fold(text_layers, usize::saturating_add), matrices)
    }
}

impl GroundingDinoConfig {
    /// Returns the number of groups of layers that compute boxes.
    fn box_layers(&self) -> usize {
        if self.shares_boxes { 1 } else { self.decoder.layers }
    }
}

/// Makes the number that is added to all similarities of a class.
fn class_bias(rngs: &Rngs) -> Array {
    zeros_dtype([0usize; 0], rngs.policy().param_dtype)
}

/// Reads the encoder of images, and its stages that are read.
fn image_encoder(fields: &Fields) -> Result<(SwinConfig, Vec<usize>)> {
    if fields.flag("use_timm_backbone")? || fields.text_opt("backbone")?.is_some() {
        return Err(fields.error("`backbone` is set, but only the `swin` of `backbone_config` is supported"));
    }
    fields.skip(&["use_pretrained_backbone", "backbone_kwargs"]);
    let has_about = fields.object_opt("backbone_config")?.is_some_and(|about| about.has("model_type"));
    let about = match fields.object_opt("backbone_config")?.filter(|_| has_about) {
        Some(about) => about,
        None => fields.model("backbone_config", "swin")?,
    };
    if has_about {
        check_type(&about, "swin")?;
    }
    let read = swin::read_fields_of(&about, "swin")?;
    let read = SwinConfig { stages: StagedConfig { classes: None, ..read.stages }, final_norm: false, ..read };
    let count = read.stages.depths.len();
    let outputs = match fields.has("backbone_config") {
        true => layers(&about, count)?,
        false => DEFAULT_OUTPUTS.to_vec(),
    };
    about.finish()?;
    Ok((read, outputs))
}

/// Returns an error if fields do not fit each other, and marks fields as read that have no effect.
fn check(fields: &Fields, config: &GroundingDinoConfig) -> Result<()> {
    match fields.text("position_embedding_type")? {
        "sine" => {}
        other => return Err(fields.error(format!("`position_embedding_type` {other:?} is not supported"))),
    }
    for name in ["two_stage", "embedding_init_target", "tie_word_embeddings"] {
        if !fields.flag(name)? {
            return Err(fields.error(format!("field `{name}` is false, which is not supported")));
        }
    }
    fields.check_size("query_dim", 4)?;
    let features = config.d_model;
    if !features.is_multiple_of(GROUPS) {
        return Err(fields.error(format!("`d_model` is {features}, but norms need a multiple of {GROUPS}")));
    }
    let (heads, hidden) = (config.encoder.heads, config.encoder.hidden);
    if !heads.is_multiple_of(2) {
        return Err(fields.error(format!("`encoder_attention_heads` is {heads}, but texts have half as many heads")));
    }
    fields.divides(("half of encoder_attention_heads", heads / 2), ("half of encoder_ffn_dim", hidden / 2))?;
    if hidden < heads {
        return Err(fields.error(format!("`encoder_ffn_dim` is {hidden}, which is less than the heads")));
    }
    let (stages, levels) = (config.outputs.len(), config.num_feature_levels);
    if stages > levels || levels > 64 {
        let message = format!("`num_feature_levels` is {levels}, but must be {stages} (the number of stages) to 64");
        return Err(fields.error(message));
    }
    // Numbers for training, and fields that transformers does not use.
    fields.skip(&["class_cost", "bbox_cost", "giou_cost", "bbox_loss_coefficient", "giou_loss_coefficient"]);
    fields.skip(&["focal_alpha", "disable_custom_kernels", "text_enhancer_dropout", "fusion_droppath"]);
    fields.skip(&["fusion_dropout", "two_stage_bbox_embed_share", "init_std", "auxiliary_loss"]);
    Ok(())
}

/// Returns the names of the arrays of the encoder of images.
fn image_keys(config: &GroundingDinoConfig) -> KeyMap {
    let keys = swin::keys(&config.image).inside("image.", &format!("{IMAGE}."));
    let keys = config.outputs.iter().enumerate().fold(keys, |keys, (index, stage)| {
        let name = if *stage == 0 { "stem".to_owned() } else { format!("stage{stage}") };
        keys.norm(&format!("image_norms[{index}]"), &format!("{IMAGE}.hidden_states_norms.{name}"))
    });
    // The norm of the encoder's own class, which the results do not depend on.
    keys.ignore(&format!("{IMAGE}.swin.layernorm.**")).ignore(&format!("{IMAGE}.layernorm.**"))
}

/// Returns the names of the other arrays.
fn keys(config: &GroundingDinoConfig) -> KeyMap {
    let (encoder, decoder) = ("model.encoder.layers.*", "model.decoder.layers.*");
    let (fusion, enhancer) = (format!("{encoder}.fusion_layer"), format!("{encoder}.text_enhancer_layer"));
    let keys = KeyMap::new()
        .linear("text_projection", "model.text_projection")
        .array("level_positions", "model.level_embed", Layout::Same)
        .array("objects", "model.query_position_embeddings.weight", Layout::Same)
        .conv("levels[*].conv", "model.input_proj_vision.*.0")
        .norm("levels[*].norm", "model.input_proj_vision.*.1")
        .linear("proposal", "model.enc_output")
        .norm("proposal_norm", "model.enc_output_norm")
        .norm("decoder_norm", "model.decoder.layer_norm")
        .norm("encoder[*].image_norm", &format!("{fusion}.layer_norm_vision"))
        .norm("encoder[*].text_norm", &format!("{fusion}.layer_norm_text"))
        .array("encoder[*].image_scale", format!("{fusion}.vision_param"), Layout::Same)
        .array("encoder[*].text_scale", format!("{fusion}.text_param"), Layout::Same)
        .norm("encoder[*].attention_norm", &format!("{enhancer}.layer_norm_before"))
        .norm("encoder[*].mlp_norm", &format!("{enhancer}.layer_norm_after"))
        .linear("encoder[*].mlp.up", &format!("{enhancer}.fc1"))
        .linear("encoder[*].mlp.down", &format!("{enhancer}.fc2"))
        .norm("decoder[*].norm", &format!("{decoder}.self_attn_layer_norm"))
        .norm("decoder[*].text_norm", &format!("{decoder}.encoder_attn_text_layer_norm"))
        .norm("decoder[*].cross_norm", &format!("{decoder}.encoder_attn_layer_norm"))
        .array("proposal_bias", "model.encoder_output_class_embed.bias", Layout::Same);
    let keys = [("image", "vision"), ("text", "text")].into_iter().fold(keys, |keys, (side, name)| {
        keys.linear(&format!("encoder[*].{side}.query"), &format!("{fusion}.attn.{name}_proj"))
            .linear(&format!("encoder[*].{side}.value"), &format!("{fusion}.attn.values_{name}_proj"))
            .linear(&format!("encoder[*].{side}.out"), &format!("{fusion}.attn.out_{name}_proj"))
    });
    let attentions = [
        ("encoder[*].attention", format!("{enhancer}.self_attn")),
        ("decoder[*].attention", format!("{decoder}.self_attn")),
        ("decoder[*].text", format!("{decoder}.encoder_attn_text")),
    ];
    let keys = attentions.into_iter().fold(keys, |keys, (path, name)| {
        [("query", "query"), ("key", "key"), ("value", "value"), ("out", "out_proj")]
            .into_iter()
            .fold(keys, |keys, (part, array)| keys.linear(&format!("{path}.{part}"), &format!("{name}.{array}")))
    });
    let deformable = format!("{encoder}.deformable_layer");
    let parts = [
        ("offsets", "sampling_offsets"),
        ("scores", "attention_weights"),
        ("value", "value_proj"),
        ("out", "output_proj"),
    ];
    let keys = parts.into_iter().fold(keys, |keys, (part, name)| {
        keys.linear(&format!("encoder[*].places.attention.{part}"), &format!("{deformable}.self_attn.{name}"))
            .linear(&format!("decoder[*].cross.{part}"), &format!("{decoder}.encoder_attn.{name}"))
    });
    let keys = keys.norm("encoder[*].places.norm", &format!("{deformable}.self_attn_layer_norm"));
    let blocks = [("encoder[*].places", deformable.as_str()), ("decoder[*]", decoder)];
    let keys = blocks.into_iter().fold(keys, |keys, (path, layer)| {
        keys.linear(&format!("{path}.mlp.up"), &format!("{layer}.fc1"))
            .linear(&format!("{path}.mlp.down"), &format!("{layer}.fc2"))
            .norm(&format!("{path}.mlp_norm"), &format!("{layer}.final_layer_norm"))
    });
    let keys = (0..2).fold(keys, |keys, index| {
        keys.linear(&format!("points[{index}]"), &format!("model.decoder.reference_points_head.layers.{index}"))
    });
    // Files can have copies of the layers that all blocks share.
    let [box_path, box_name] =
        if config.shares_boxes { ["boxes[0]", "bbox_embed.0"] } else { ["boxes[*]", "bbox_embed.*"] };
    let keys = (0..3).fold(keys, |keys, index| {
        keys.linear(&format!("{box_path}.layers[{index}]"), &format!("{box_name}.layers.{index}")).linear(
            &format!("proposal_boxes.layers[{index}]"),
            &format!("model.encoder_output_bbox_embed.layers.{index}"),
        )
    });
    let keys = match config.class_biases {
        1 if config.decoder.layers > 1 => keys.array("class_biases[0]", "class_embed.0.bias", Layout::Same),
        _ => keys.array("class_biases[*]", "class_embed.*.bias", Layout::Same),
    };
    keys.ignore("bbox_embed.**")
        .ignore("class_embed.**")
        .ignore("model.decoder.bbox_embed.**")
        .ignore("model.decoder.class_embed.**")
}

impl JointBlock {
    fn new(config: &GroundingDinoConfig, rngs: &mut Rngs) -> JointBlock {
        let (features, side) = (config.d_model, &config.encoder);
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let (heads, hidden) = (side.heads / 2, side.hidden / 2);
        let sizes = DeformableSizes {
            features,
            side: *side,
            levels: [config.num_feature_levels, config.points[0]],
            activation: config.activation_function,
            epsilon: config.layer_norm_eps,
        };
        JointBlock {
            image_norm: norm(rngs),
            text_norm: norm(rngs),
            image: Crossing::new(features, [heads, hidden / heads], rngs),
            text: Crossing::new(features, [heads, hidden / heads], rngs),
            image_scale: ones_dtype([features], rngs.policy().param_dtype),
            text_scale: ones_dtype([features], rngs.policy().param_dtype),
            places: EncoderBlock::new(&sizes, rngs),
            attention: attention(heads, features).build(rngs),
            attention_norm: norm(rngs),
            mlp: Mlp::new(features, hidden, config.activation_function, false, true, rngs),
            mlp_norm: norm(rngs),
        }
    }

    /// Applies the block to the features of an image, `[batch, places, features]`, and of a text.
    fn forward(
        &self,
        x: Array,
        text: Text,
        (positions, points): (&Array, &Array),
        grids: &[[usize; 2]],
    ) -> (Array, Text) {
        // The normalized features, and not the features, are added to the results.
        let (x, y) = (self.image_norm.forward(x), self.text_norm.forward(&text.features));
        let (image_query, text_query) = (self.image.query.forward(&x), self.text.query.forward(&y));
        let to_text = AttentionOptions::new().mask(&text.is_visible);
        let for_image = to_text.dot_product_attention(&image_query, &text_query, self.text.value.forward(&y));
        let for_text =
            AttentionOptions::new().dot_product_attention(&text_query, &image_query, self.image.value.forward(&x));
        let x = &x + self.image.out.forward(for_image) * self.image_scale.astype(x.dtype());
        let y = &y + self.text.out.forward(for_text) * self.text_scale.astype(y.dtype());
        let placed = &y + &text.positions;
        let attended = self.attention.attend(&placed, &placed, &y, AttentionOptions::new().mask(&text.sees));
        let y = self.attention_norm.forward(y + attended);
        let y = self.mlp_norm.forward(&y + self.mlp.forward(&y));
        (self.places.forward(x, positions, points, grids), Text { features: y, ..text })
    }
}

impl Crossing {
    fn new(features: usize, by_heads: [usize; 2], rngs: &mut Rngs) -> Crossing {
        let layer = |rngs: &mut Rngs| {
            let layer = LinearGeneral::builder([features], by_heads);
            layer.kernel_axes([Some("embed"), Some("heads"), None]).build(rngs)
        };
        let out = LinearGeneral::builder(by_heads, [features]).kernel_axes([Some("heads"), None, Some("embed")]);
        Crossing { query: layer(rngs), value: layer(rngs), out: out.build(rngs) }
    }
}

impl DecoderBlock {
    fn new(config: &GroundingDinoConfig, rngs: &mut Rngs) -> DecoderBlock {
        let (features, side) = (config.d_model, &config.decoder);
        let norm = |rngs: &mut Rngs| LayerNorm::builder(features).epsilon(config.layer_norm_eps).build(rngs);
        let levels = [config.num_feature_levels, config.points[1]];
        DecoderBlock {
            attention: attention(side.heads, features).build(rngs),
            norm: norm(rngs),
            text: attention(side.heads, features).build(rngs),
            text_norm: norm(rngs),
            cross: DeformableAttention::new([features, side.heads], levels, OFFSET_SCALE, rngs),
            cross_norm: norm(rngs),
            mlp: Mlp::new(features, side.hidden, config.activation_function, false, true, rngs),
            mlp_norm: norm(rngs),
        }
    }

    /// Applies the block to the features of objects, `[batch, objects, features]`, with boxes and the positions of boxes.
    fn forward(&self, x: Array, [positions, boxes]: [&Array; 2], text: &Text, image: (&Array, &[[usize; 2]])) -> Array {
        let placed = &x + positions;
        let x = self.norm.forward(&x + self.attention.attend(&placed, &placed, &x, AttentionOptions::new()));
        let to_text = AttentionOptions::new().mask(&text.is_visible);
        let attended = self.text.attend(&x + positions, &text.features, &text.features, to_text);
        let x = self.text_norm.forward(x + attended);
        let y = self.cross.forward(&(&x + positions), boxes, image.0, image.1);
        let x = self.cross_norm.forward(x + y);
        self.mlp_norm.forward(&x + self.mlp.forward(&x))
    }
}

/// Returns the tokens that each token sees, `[batch, length, length]`, and their positions, `[batch, length]`: tokens see the tokens of
/// their phrase and its end, and positions count from the start of the phrase.
fn phrases(tokens: &Array) -> (Array, Array) {
    let length = tokens.shape()[1] as i32;
    let is_end = ENDS_OF_PHRASES.into_iter().map(|end| tokens.equal(end)).reduce(|a, b| a | b);
    let is_end = is_end.unwrap_or_else(|| tokens.equal(tokens)).expand_dims(1);
    let places = arange(0..length);
    let [row, column] = [places.expand_dims(1), places.expand_dims(0)];
    // The first end at or after each token, and the last end before it.
    let next = where_(&is_end & column.greater_equal(&row), &column, length).min(-1);
    let last = where_(is_end & column.less(&row), &column, -1).max(-1);
    let in_phrase = next.not_equal(0) & next.not_equal(length - 1) & next.not_equal(length);
    let same = next.expand_dims(2).equal(next.expand_dims(1)) & in_phrase.expand_dims(1);
    let sees = same | row.equal(&column);
    let positions = where_(in_phrase, places - last - 1, 0).maximum(0);
    (sees, positions)
}

impl GroundingDino {
    /// Detects the objects of images `[batch, rows, columns, channels]` that a text for each image describes, `[batch, length]`. Phrases of a
    /// text end with a dot, for example `a cat. a remote control.`, in lower case. Mask padding with [`BertOptions::attention_mask`].
    ///
    /// Returns logits of the tokens, `[batch, objects, length]`, which are minus infinity for masked tokens, and boxes, `[batch, objects,
    /// 4]`. A box is the column and row of the center, and the number of columns and rows, as fractions of the image. `transformers` pads the
    /// logits to the largest length of texts. All images of a batch must have one size, because padding of images is not masked.
    #[track_caller]
    pub fn forward(&self, tokens: impl ArrayLike, images: impl ArrayLike, options: &BertOptions) -> (Array, Array) {
        let _ranks = allow_any_ranks();
        let (tokens, images) = (tokens.into_array(), images.into_array());
        self.detect(&tokens, &images, options).unwrap_or_else(|error| {
            let failed = Array::from_error(error, &images);
            (failed.clone(), failed)
        })
    }

    fn detect(&self, tokens: &Array, images: &Array, options: &BertOptions) -> Result<(Array, Array)> {
        let text = self.encode_text(tokens, images, options)?;
        let stages = self.image.outputs(images)?;
        let stages = self.outputs.iter().zip(&self.image_norms).map(|(stage, norm)| norm.forward(&stages[*stage]));
        let levels = Level::outputs(&self.levels, &stages.collect::<Vec<_>>())?;
        let grids: Vec<[usize; 2]> = levels.iter().map(|x| [x.shape()[1], x.shape()[2]]).collect();
        let positions = grids.iter().enumerate().map(|(level, grid)| {
            let of_level = self.level_positions.get(level);
            let waves = sines_with_base(*grid, of_level.size(), 1.0, self.position_base)?;
            Ok(waves.astype(of_level.dtype()) + of_level)
        });
        let positions = concatenate(&positions.collect::<Result<Vec<_>>>()?, 0);
        let x = concatenate(&levels.iter().map(flattened).collect::<Vec<_>>(), 1);
        let (positions, points) = (positions.astype(x.dtype()), centers(&grids)?.astype(x.dtype()));
        let (memory, text) = self
            .encoder
            .iter()
            .fold((x, text), |(x, text), block| block.forward(x, text, (&positions, &points), &grids));
        self.objects_of(&memory, &text, &grids)
    }

    /// Computes the features of texts before the blocks.
    fn encode_text(&self, tokens: &Array, images: &Array, options: &BertOptions) -> Result<Text> {
        tokens.check()?;
        images.check()?;
        let &[texts, length] = tokens.shape() else {
            let message = format!("GroundingDino: tokens have the shape {:?}", tokens.shape());
            return Err(value_error(message, "pass tokens of the shape [batch, length]"));
        };
        if images.shape().first() != Some(&texts) {
            let message = format!("GroundingDino: {texts} texts for images of the shape {:?}", images.shape());
            return Err(value_error(message, "pass a text for each image"));
        }
        if length == 0 || length > self.max_text_len {
            let message =
                format!("GroundingDino: texts of {length} tokens, but the model reads 1 to {}", self.max_text_len);
            return Err(value_error(message, "describe the objects in fewer words"));
        }
        let (sees, positions) = phrases(tokens);
        let segments = BertOptions::new().segments(sees.clone(), positions.clone());
        let segments = options.kinds().into_iter().fold(segments, BertOptions::token_type_ids);
        let features = self.text_projection.forward(self.text.encode(tokens, &segments));
        features.check()?;
        let waves = box_positions(&positions.astype(DType::F32).expand_dims(-1), features.shape()[2])?;
        let is_visible = match options.mask() {
            Some(mask) => mask.not_equal(0),
            None => ones_dtype(tokens.shape(), DType::Bool),
        };
        Ok(Text {
            is_visible: is_visible.expand_dims(1).expand_dims(1),
            sees: sees.expand_dims(1),
            positions: waves.astype(features.dtype()),
            features,
        })
    }

    /// Chooses the places with the best logits as the first boxes, and computes objects.
    fn objects_of(&self, memory: &Array, text: &Text, grids: &[[usize; 2]]) -> Result<(Array, Array)> {
        let &[batch, places, features] = memory.shape() else { return Ok((memory.clone(), memory.clone())) };
        let count = self.objects.shape()[0];
        if places < count {
            let message =
                format!("GroundingDino: the images have {places} places, which are less than {count} objects");
            return Err(value_error(message, "use larger images"));
        }
        let (anchors, is_valid) = anchors(grids)?;
        let x = self.proposal_norm.forward(self.proposal.forward(memory * is_valid.astype(memory.dtype())));
        let scores = logits(&x, text, self.proposal_bias.as_ref()).max(-1);
        let all = mlp(&self.proposal_boxes.layers, x).astype(DType::F32) + anchors;
        let (_, chosen) = lax::top_k(&scores, count);
        let chosen = chosen.expand_dims(-1).broadcast_to([batch, count, 4]);
        let mut boxes = sigmoid(all.take_along_axis(chosen, 1)).astype(memory.dtype());
        let objects = self.objects.astype(memory.dtype()).expand_dims(0).broadcast_to([batch, count, features]);
        let mut x = reshard_like(objects, memory);
        for (index, block) in self.decoder.iter().enumerate() {
            if let Some(before) = index.checked_sub(1) {
                boxes = corrected(&boxes, mlp(&self.box_layers(before).layers, x.clone()));
            }
            let [column, row, extents] =
                [s![.., .., 0..1], s![.., .., 1..2], s![.., .., 2..]].map(|part| boxes.get(part));
            // The sines of rows precede the sines of columns.
            let waves = box_positions(&concatenate(&[row, column, extents], -1), features / 2)?;
            let positions = mlp(&self.points, waves.astype(x.dtype()));
            x = block.forward(x, [&positions, &boxes], text, (memory, grids));
        }
        // The last boxes are computed from normalized features.
        let x = self.decoder_norm.forward(x);
        let corrections = mlp(&self.box_layers(self.decoder.len() - 1).layers, x.clone());
        let boxes = sigmoid(corrections + log_odds(&boxes));
        Ok((logits(&x, text, self.class_biases.last()), boxes))
    }

    /// Returns the layers that compute the boxes of a block.
    fn box_layers(&self, block: usize) -> &BoxLayers {
        &self.boxes[if self.boxes.len() == 1 { 0 } else { block }]
    }
}

/// Returns the logits of tokens, `[batch, objects, length]`. With a bias, they are scaled too.
fn logits(x: &Array, text: &Text, bias: Option<&Array>) -> Array {
    let logits = einsum("bof,blf->bol", &[x, &text.features]);
    let logits = match bias {
        Some(bias) => &logits * (x.shape()[2] as f64).powf(-0.5) + bias.astype(logits.dtype()),
        None => logits,
    };
    where_(text.is_visible.squeeze(1), logits, f32::NEG_INFINITY)
}
