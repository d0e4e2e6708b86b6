//! The class of each model type, by which adapters find the names of arrays.

use shardax_nn::prelude::*;

use super::*;
use crate::{BlipAnswerer, BlipMatcher, EncoderDecoder, Florence};

/// Returns the array names of a model of one class.
type NamesOf = fn(&Config) -> Result<KeyMap>;

/// Model types and the class that reads them. A [`Decoder`] reads all others.
const CLASSES: [(&[&str], NamesOf); 35] = [
    (&bert_files::KNOWN, names_of::<Bert>),
    (&["deberta", "deberta-v2"], names_of::<Deberta>),
    (&["modernbert"], names_of::<ModernBert>),
    (&["mobilebert"], names_of::<MobileBert>),
    (&vit::KNOWN, names_of::<Vit>),
    (&swin::KNOWN, names_of::<Swin>),
    (&segformer::KNOWN, names_of::<Segformer>),
    (&convnext::KNOWN, names_of::<ConvNext>),
    (&resnet::KNOWN, names_of::<Resnet>),
    (&mobilenet::KNOWN, names_of::<MobileNet>),
    (&["levit"], names_of::<Levit>),
    (&["bit"], names_of::<Bit>),
    (&["mobilevit"], names_of::<MobileVit>),
    (&["poolformer"], names_of::<PoolFormer>),
    (&["clip", "metaclip_2"], names_of::<Clip>),
    (&chinese_clip::KNOWN, names_of::<ChineseClip>),
    (&["clap"], names_of::<Clap>),
    (&["siglip", "siglip2"], names_of::<Siglip>),
    (&["clipseg"], names_of::<ClipSeg>),
    (&depth::KNOWN, names_of::<DepthEstimator>),
    (&["glpn"], names_of::<Glpn>),
    (&detr::KNOWN, names_of::<Detr>),
    (&["conditional_detr"], names_of::<ConditionalDetr>),
    (&["deformable_detr"], names_of::<DeformableDetr>),
    (&rt_detr::KNOWN, names_of::<RtDetr>),
    (&["yolos"], names_of::<Yolos>),
    (&owl::KNOWN, names_of::<Owl>),
    (&grounding_dino::KNOWN, names_of::<GroundingDino>),
    (&["sam"], names_of::<Sam>),
    (&["vitpose"], names_of::<VitPose>),
    (&wav2vec_files::KNOWN, names_of::<SoundEncoder>),
    (&["audio-spectrogram-transformer"], names_of::<SpectrogramEncoder>),
    (&["blip"], blip_names),
    (&crate::encoder_decoder::KNOWN, names_of::<EncoderDecoder>),
    (&["florence2"], names_of::<Florence>),
];

fn names_of<M: Pretrained>(config: &Config) -> Result<KeyMap> {
    Ok(M::read(config)?.1)
}

/// Returns the array names of the class of BLIP that `architectures` names.
fn blip_names(config: &Config) -> Result<KeyMap> {
    match config.fields().class()? {
        Some("BlipForQuestionAnswering") => names_of::<BlipAnswerer>(config),
        Some("BlipForImageTextRetrieval") => names_of::<BlipMatcher>(config),
        _ => names_of::<EncoderDecoder>(config),
    }
}

/// Returns the array names of the model that a configuration describes, and the number of its experts.
pub(super) fn keys_of(config: &Config) -> Result<(KeyMap, usize)> {
    let kind = config.get("model_type").and_then(|kind| kind.as_str()).unwrap_or_default();
    if let Some((_, names)) = CLASSES.iter().find(|(kinds, _)| kinds.contains(&kind)) {
        return Ok((names(config)?, 0));
    }
    let (decoder, keys) = Decoder::read(config)?;
    Ok((keys, decoder.experts.map_or(0, |experts| experts.count)))
}
