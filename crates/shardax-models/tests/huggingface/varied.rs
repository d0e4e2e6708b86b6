//! Models whose configurations differ by a few fields from the default of their class (`tools/huggingface/vary.py`).

use std::path::{Path, PathBuf};

use shardax_models::huggingface::Weights;
use shardax_models::{
    Adapter, Bert, BertOptions, Bit, ChineseClip, Clap, Clip, ClipSeg, ConditionalDetr, Config, ConvNext, Deberta,
    Decoder, DeformableDetr, DepthEstimator, Detr, EncoderDecoder, Florence, Glpn, GroundingDino, Levit, MobileBert,
    MobileNet, MobileVit, ModernBert, Owl, PoolFormer, Pretrained, Resnet, RtDetr, Sam, SamPrompts, Segformer, Siglip,
    SoundEncoder, SpectrogramEncoder, Swin, Vit, VitPose, Yolos,
};
use shardax_nn::prelude::*;

use super::setup;

/// Loads a model and compares its logits with transformers, unless the model is rejected.
#[test]
#[ignore = "reads folders that another program wrote"]
fn varied_models_have_the_logits_of_transformers_or_are_refused() -> Result<()> {
    setup();
    let root = std::env::var("VARIED").expect("VARIED names a folder");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(&root).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    folders.sort();
    let (mut equal, mut refused, mut faults) = (0, Vec::new(), Vec::new());
    for folder in &folders {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        match difference(folder) {
            Ok(difference) if difference < 1e-4 => equal += 1,
            Ok(difference) => faults.push(format!("{name}: logits differ by {difference}")),
            Err(error) => refused.push(format!("{name}: {}", error.message())),
        }
    }
    println!("{equal} equal, {} refused:\n{}", refused.len(), refused.join("\n"));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    Ok(())
}

const PAIRS: [&str; 15] = [
    "fsmt",
    "longt5",
    "t5",
    "mt5",
    "umt5",
    "bart",
    "mbart",
    "marian",
    "pegasus",
    "m2m_100",
    "blenderbot",
    "blenderbot-small",
    "plbart",
    "mvp",
    "led",
];

/// Returns the largest difference of logits, relative to the largest logit.
fn difference(folder: &Path) -> Result<f32> {
    let case = Weights::open(folder.join("case.safetensors"))?;
    let config = Config::open(folder)?;
    let kind = config.get("model_type").and_then(|kind| kind.as_str()).unwrap_or_default();
    let has_images = case.names().any(|name| name == "pixel_values");
    let logits = match kind {
        "whisper" => logits_of_sound(folder, &case)?,
        "audio-spectrogram-transformer" => {
            let model = SpectrogramEncoder::from_pretrained(folder)?;
            jit(|model: SpectrogramEncoder, x: Array| model.forward(x)).call((&model, case.get("input_values")?))?
        }
        "wav2vec2" | "hubert" | "wavlm" | "unispeech" | "unispeech-sat" | "data2vec-audio" | "wav2vec2-conformer"
        | "sew" | "wav2vec2-bert" => {
            let model = SoundEncoder::from_pretrained(folder)?;
            jit(|model: SoundEncoder, sound: Array| model.forward(sound, &BertOptions::new()))
                .call((&model, case.get("input_values")?))?
        }
        "florence2" => {
            let (model, images) = (Florence::from_pretrained(folder)?, case.get("pixel_values")?);
            let (tokens, targets) = (case.get("input_ids")?, case.get("decoder_input_ids")?);
            model.forward(images, tokens, targets, &BertOptions::new())
        }
        "clap" => {
            let model = Clap::from_pretrained(folder)?;
            let (tokens, sounds) = (case.get("input_ids")?, case.get("input_features")?);
            model.forward(tokens, sounds, Some(&case.get("is_longer")?), &BertOptions::new())
        }
        "moonshine" | "speech_to_text" => {
            let model = EncoderDecoder::from_pretrained(folder)?;
            jit(forward).call((&model, case.get("input_values")?, case.get("decoder_input_ids")?))?
        }
        "vision-encoder-decoder" | "blip" => {
            let (model, images) = (EncoderDecoder::from_pretrained(folder)?, case.get("pixel_values")?);
            jit(forward).call((&model, images, case.get("decoder_input_ids")?))?
        }
        _ if has_images => logits_of_images(folder, kind, &case)?,
        _ => logits_of_texts(folder, &config, &case)?,
    };
    let expected = case.get("logits")?;
    let scale = expected.abs().max(..).item::<f32>()?.max(1.0);
    let difference = (logits - expected).abs().max(..).item::<f32>()? / scale;
    Ok(if difference.is_nan() { f32::INFINITY } else { difference })
}

fn forward(model: EncoderDecoder, inputs: Array, targets: Array) -> Array {
    model.forward(inputs, targets, &BertOptions::new())
}

fn logits_of_sound(folder: &Path, case: &Weights) -> Result<Array> {
    let model = EncoderDecoder::from_pretrained(folder)?;
    let features = case.get("input_features")?;
    jit(|model: EncoderDecoder, features: Array, tokens: Array| model.forward(features, tokens, &BertOptions::new()))
        .call((&model, features, case.get("decoder_input_ids")?))
}

fn logits_of_images(folder: &Path, kind: &str, case: &Weights) -> Result<Array> {
    let images = case.get("pixel_values")?;
    match kind {
        "clip" | "metaclip_2" => {
            let model = Clip::from_pretrained(folder)?;
            jit(|model: Clip, tokens: Array, images: Array| model.forward(tokens, images)).call((
                &model,
                case.get("input_ids")?,
                images,
            ))
        }
        "chinese_clip" | "altclip" => {
            let (model, tokens) = (ChineseClip::from_pretrained(folder)?, case.get("input_ids")?);
            Ok(model.forward(tokens, images, &BertOptions::new()))
        }
        "clipseg" => {
            let (model, tokens) = (ClipSeg::from_pretrained(folder)?, case.get("input_ids")?);
            jit(|model: ClipSeg, images: Array, tokens: Array| model.forward(tokens, images))
                .call((&model, images, tokens))
        }
        "siglip" | "siglip2" => {
            let model = Siglip::from_pretrained(folder)?;
            jit(|model: Siglip, tokens: Array, images: Array| model.forward(tokens, images)).call((
                &model,
                case.get("input_ids")?,
                images,
            ))
        }
        "swin" | "swinv2" | "donut-swin" => {
            let model = Swin::from_pretrained(folder)?;
            jit(|model: Swin, images: Array| model.forward(images)).call((&model, images))
        }
        "segformer" | "pvt_v2" | "pvt" => {
            let model = Segformer::from_pretrained(folder)?;
            jit(|model: Segformer, images: Array| model.forward(images)).call((&model, images))
        }
        "levit" => {
            let model = Levit::from_pretrained(folder)?;
            jit(|model: Levit, images: Array| model.forward(images)).call((&model, images))
        }
        "resnet" | "regnet" => {
            let model = Resnet::from_pretrained(folder)?;
            jit(|model: Resnet, images: Array| model.forward(images)).call((&model, images))
        }
        "owlvit" | "owlv2" => {
            let (model, tokens) = (Owl::from_pretrained(folder)?, case.get("input_ids")?);
            // Each text is for one image.
            let (logits, boxes) = model.forward(tokens.expand_dims(1), &images);
            Ok(concatenate(&[logits.reshape([-1]), boxes.reshape([-1])], 0))
        }
        "mobilevit" => {
            let model = MobileVit::from_pretrained(folder)?;
            jit(|model: MobileVit, images: Array| model.forward(images)).call((&model, images))
        }
        "rt_detr" | "rt_detr_v2" => {
            let model = RtDetr::from_pretrained(folder)?;
            jit(|model: RtDetr, images: Array| model.forward(images).0).call((&model, images))
        }
        "yolos" => {
            let model = Yolos::from_pretrained(folder)?;
            jit(|model: Yolos, images: Array| model.forward(images).0).call((&model, images))
        }
        "sam" => {
            let model = Sam::from_pretrained(folder)?;
            let prompts = SamPrompts::new().points(case.get("input_points")?, case.get("input_labels")?);
            let prompts = prompts.boxes(case.get("input_boxes")?).masks(case.get("input_masks")?.squeeze(1));
            let (masks, scores) = model.forward(images, &prompts);
            Ok(concatenate(&[masks.reshape([-1]), scores.reshape([-1])], 0))
        }
        "conditional_detr" => {
            let model = ConditionalDetr::from_pretrained(folder)?;
            jit(|model: ConditionalDetr, images: Array| model.forward(images).0).call((&model, images))
        }
        "grounding-dino" | "mm-grounding-dino" => {
            let (model, tokens) = (GroundingDino::from_pretrained(folder)?, case.get("input_ids")?);
            let forward =
                jit(|model: GroundingDino, tokens: Array, x: Array| model.forward(tokens, x, &BertOptions::new()));
            let (logits, boxes) = forward.call((&model, tokens, images))?;
            Ok(concatenate(&[logits.reshape([-1]), boxes.reshape([-1])], 0))
        }
        "deformable_detr" => {
            let model = DeformableDetr::from_pretrained(folder)?;
            jit(|model: DeformableDetr, images: Array| model.forward(images).0).call((&model, images))
        }
        "detr" | "table-transformer" => {
            let model = Detr::from_pretrained(folder)?;
            jit(|model: Detr, images: Array| model.forward(images).0).call((&model, images))
        }
        "vitpose" => {
            let model = VitPose::from_pretrained(folder)?;
            jit(|model: VitPose, images: Array| model.forward(images)).call((&model, images))
        }
        "glpn" => {
            let model = Glpn::from_pretrained(folder)?;
            jit(|model: Glpn, images: Array| model.forward(images)).call((&model, images))
        }
        "depth_anything" | "prompt_depth_anything" | "dpt" => {
            let model = DepthEstimator::from_pretrained(folder)?;
            jit(|model: DepthEstimator, images: Array| model.forward(images)).call((&model, images))
        }
        "mobilenet_v1" | "mobilenet_v2" | "efficientnet" => {
            let model = MobileNet::from_pretrained(folder)?;
            jit(|model: MobileNet, images: Array| model.forward(images)).call((&model, images))
        }
        "bit" => {
            let model = Bit::from_pretrained(folder)?;
            jit(|model: Bit, images: Array| model.forward(images)).call((&model, images))
        }
        "poolformer" => {
            let model = PoolFormer::from_pretrained(folder)?;
            jit(|model: PoolFormer, images: Array| model.forward(images)).call((&model, images))
        }
        "convnext" | "convnextv2" => {
            let model = ConvNext::from_pretrained(folder)?;
            jit(|model: ConvNext, images: Array| model.forward(images)).call((&model, images))
        }
        _ => {
            let model = Vit::from_pretrained(folder)?;
            jit(|model: Vit, images: Array| model.forward(images)).call((&model, images))
        }
    }
}

fn logits_of_texts(folder: &Path, config: &Config, case: &Weights) -> Result<Array> {
    let tokens = case.get("input_ids")?;
    match config.get("model_type").and_then(|kind| kind.as_str()).unwrap_or_default() {
        "modernbert" => {
            let model = ModernBert::from_pretrained(folder)?;
            jit(|model: ModernBert, tokens: Array| model.forward(tokens, &BertOptions::new())).call((&model, tokens))
        }
        "mobilebert" => {
            let model = MobileBert::from_pretrained(folder)?;
            jit(|model: MobileBert, tokens: Array| model.forward(tokens, &BertOptions::new())).call((&model, tokens))
        }
        "deberta" | "deberta-v2" => {
            let model = Deberta::from_pretrained(folder)?;
            jit(|model: Deberta, tokens: Array| model.forward(tokens, &BertOptions::new())).call((&model, tokens))
        }
        kind if PAIRS.contains(&kind) => {
            let model = EncoderDecoder::from_pretrained(folder)?;
            jit(forward).call((&model, tokens, case.get("decoder_input_ids")?))
        }
        // The types of BERT, which the class itself knows.
        _ if Bert::read(config).is_ok() => {
            let model = Bert::from_pretrained(folder)?;
            jit(|model: Bert, tokens: Array| model.forward(tokens, &BertOptions::new())).call((&model, tokens))
        }
        _ => {
            let model = Decoder::from_pretrained(folder)?;
            jit(|model: Decoder, tokens: Array| model.forward(tokens)).call((&model, tokens))
        }
    }
}

/// Applies adapters with unusual options (`tools/huggingface/vary_adapters.py`) and compares the logits with `peft`, unless an adapter
/// is rejected.
#[test]
#[ignore = "reads folders that another program wrote"]
fn varied_adapters_have_the_logits_of_peft_or_are_refused() -> Result<()> {
    setup();
    let root = std::env::var("ADAPTERS").expect("ADAPTERS names a folder");
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(&root).expect("a folder").map(|e| e.expect("an entry").path()).collect();
    folders.sort();
    let (mut equal, mut refused, mut faults) = (0, Vec::new(), Vec::new());
    for path in &folders {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let base = super::folder(std::fs::read_to_string(path.join("base.txt")).expect("a file").trim());
        let case = Weights::open(path.join("case.safetensors"))?;
        let logits = Adapter::from_pretrained(&Config::open(&base)?, path).and_then(|adapter| {
            let model = Decoder::from_pretrained(&base)?;
            let forward = |adapter: Adapter, model: Decoder, tokens: Array| -> Result<Array> {
                Ok(adapter.apply(&model)?.forward(tokens))
            };
            jit(forward).call((adapter, model, case.get("input_ids")?))
        });
        match logits {
            Ok(logits) => match (logits - case.get("logits")?).abs().max(..).item::<f32>()? {
                difference if difference < 1e-3 => equal += 1,
                difference => faults.push(format!("{name}: logits differ by {difference}")),
            },
            Err(error) => refused.push(format!("{name}: {}", error.message())),
        }
    }
    println!("{equal} equal, {} refused:\n{}", refused.len(), refused.join("\n"));
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    Ok(())
}
