//! Gradients of decoders, and decoders in half precision.

use shardax_models::{Bert, BertOptions, Decoder, LoadOptions, Pretrained};
use shardax_nn::prelude::*;

use super::decoders::DECODERS;
use super::encoders::ENCODERS;
use super::{case, chosen_models, folder, has_any, setup};

/// Parts of paths of arrays that only choose experts or positions, or that are bounds, so that their gradients are zero.
const WITHOUT_GRADIENT: [&str; 3] = [".experts.correction", ".latent.indexer.", ".xielu.eps"];

/// The last attention of Longformer with classes: the classes come from the first token, which attends with other arrays.
const LOCAL_ATTENTION: [&str; 3] =
    [".blocks[1].attention.query.", ".blocks[1].attention.key.", ".blocks[1].attention.value."];

/// Models in which rounding changes the chosen experts or positions. In `gemma4` it does not, but the logits of `transformers`
/// differ by 0.38 there.
const SENSITIVE: [&str; 6] = ["mixtral", "flex_olmo", "deepseek_v32", "glm_moe_dsa", "axk2", "gemma4"];

/// Logits depend on every array of a file, so that each gradient is finite and somewhere not zero.
#[test]
fn gradients_of_decoders_reach_every_array() -> Result<()> {
    setup();
    let loss = |model: Decoder, tokens: Array| model.forward(tokens).square().mean(..).square();
    let sizes = jit(move |model: Decoder, tokens: Array| -> Result<Vec<Array>> {
        let gradients = grad(loss).call((model, tokens))?;
        Ok(largest(&gradients))
    });
    let (only, every) = chosen_models();
    let mut wrong = Vec::new();
    for name in DECODERS.into_iter().filter(|name| has_any(name, &only)).skip(every / 3).step_by(every) {
        let model = Decoder::from_pretrained(folder(name))?;
        let sizes = sizes.call((&model, case(name)?("input_ids")?))?;
        wrong.extend(unreached(name, &model, sizes, &WITHOUT_GRADIENT)?);
    }
    assert!(wrong.is_empty(), "gradients:\n{}", wrong.join("\n"));
    Ok(())
}

/// Returns the arrays whose gradient has the wrong size: arrays with one of these parts in their path have the gradient zero, and
/// others have another one.
fn unreached<M: Tree>(name: &str, model: &M, sizes: Vec<Array>, without: &[&str]) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for ((path, _), size) in tree::leaves_with_path(model).iter().zip(sizes) {
        let size = size.item::<f32>()?;
        if !size.is_finite() || (size == 0.0) != without.iter().any(|part| path.contains(part)) {
            wrong.push(format!("{name} {path}: {size}"));
        }
    }
    Ok(wrong)
}

#[test]
fn gradients_of_encoders_reach_every_array() -> Result<()> {
    setup();
    let loss = |model: Bert, tokens: Array, mask: Array, boxes: Option<Array>, global: Option<Array>| {
        let options = BertOptions::new().attention_mask(mask);
        let options = boxes.into_iter().fold(options, BertOptions::boxes);
        let y = model.forward(tokens, &global.into_iter().fold(options, BertOptions::global_attention));
        // The sum of the squares of normalized features would not depend on the norm's scale alone.
        (&y * y.square()).sum(..)
    };
    let sizes = jit(move |model: Bert, tokens: Array, mask: Array, boxes: Option<Array>, global: Option<Array>| {
        let gradients = grad(loss).call((model, tokens, mask, boxes, global))?;
        Ok::<_, Error>(largest(&gradients))
    });
    let (only, every) = chosen_models();
    let mut wrong = Vec::new();
    for name in ENCODERS.into_iter().filter(|name| has_any(name, &only)).skip(every / 3).step_by(every) {
        let (case, model) = (case(name)?, Bert::from_pretrained(folder(name))?);
        let (boxes, global) = (case("bbox").ok(), case("global_attention_mask").ok());
        let sizes = sizes.call((&model, case("input_ids")?, case("attention_mask")?, boxes, global))?;
        let without: &[&str] = if name == "longformer_classes" { &LOCAL_ATTENTION } else { &[] };
        wrong.extend(unreached(name, &model, sizes, without)?);
    }
    assert!(wrong.is_empty(), "gradients:\n{}", wrong.join("\n"));
    Ok(())
}

/// Returns the largest absolute element of each array.
fn largest<M: Tree>(gradients: &M) -> Vec<Array> {
    tree::leaves(gradients).iter().map(|gradient| gradient.abs().max(..).astype(DType::F32)).collect()
}

/// All arrays of a decoder in half precision are bfloat16, and its logits differ by rounding from those of float32.
#[test]
fn decoders_in_half_precision_have_the_logits_of_float32() -> Result<()> {
    setup();
    let forward = jit(|model: Decoder, tokens: Array| model.forward(tokens));
    let (only, every) = chosen_models();
    let mut wrong = Vec::new();
    for name in DECODERS.into_iter().filter(|name| has_any(name, &only)).skip(every / 2).step_by(every) {
        let half = Decoder::from_pretrained_with(folder(name), &LoadOptions::new().policy(Policy::bf16()))?;
        let case = case(name)?;
        let (logits, want) = (forward.call((&half, case("input_ids")?))?, case("logits")?);
        let difference = (logits.astype(DType::F32) - &want).abs().max(..).item::<f32>()?;
        let largest = want.abs().max(..).item::<f32>()?;
        let limit = if SENSITIVE.contains(&name) { 0.4 } else { 0.05 };
        if logits.dtype() != DType::Bf16 || difference.is_nan() || difference > limit * largest.max(1.0) {
            wrong.push(format!("{name} {}: {difference} of {largest}", logits.dtype()));
        }
    }
    assert!(wrong.is_empty(), "half precision:\n{}", wrong.join("\n"));
    Ok(())
}
