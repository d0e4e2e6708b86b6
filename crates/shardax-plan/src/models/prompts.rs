//! Prompts of a published decoder.

use shardax_models::{Config, Decoder, DecoderConfig, Pretrained};
use shardax_nn::prelude::*;

use super::decoder::{LAYERS, ROWS_AND_EXPERTS, attention};
use crate::{Holder, Plan, Setup};

/// Returns the logits after prompts, by the decoder of a `config.json` of transformers with weights in bfloat16.
///
/// `expert`, `data` and `fsdp` split the prompts, `expert` the experts, `fsdp` the other weights, and `model` the
/// heads, the gated units and the vocabulary. The micro-batch is in prompts, by default one for each group of devices
/// that shares rows. The options are `length` (of a prompt, 4,096 by default) and `attention`.
///
/// # Errors
/// Returns an error if the configuration is not a decoder's, or sizes are not divisible.
#[track_caller]
pub fn prompts(setup: &Setup, config: &Config) -> Result<Plan> {
    let config = DecoderConfig { attention_implementation: attention(setup)?, ..Decoder::read(config)?.0 };
    let rules: Vec<_> = ROWS_AND_EXPERTS.into_iter().chain(LAYERS).collect();
    let groups = rules[0].1.iter().map(|axis| setup.axis(axis)).product();
    let shape = [setup.micro_batch.unwrap_or(groups), setup.number("length", 4096)?];
    let mesh = setup.mesh()?;
    let axis_rules = setup.rules(&mesh, &rules);
    let model_rules = axis_rules.clone();
    // Only types are needed, so that a model of any size is planned without memory for its weights.
    let types = eval_shape(
        move || Decoder::new(&config, &mut Rngs::new(0).with_policy(Policy::bf16()).with_rules(&model_rules)),
        (),
    )?;
    let shardings = axis_rules.shardings(&types)?;
    let rows = NamedSharding::new(&mesh, axis_rules.spec(["batch"]));
    let step = jit(|model: Decoder, tokens: Array| {
        let x = model.hidden(model.embed(tokens));
        model.logits(x.get((.., -1..)))
    });
    let step = step.in_shardings((&shardings, &rows));
    let lowered = step.lower((types, shape_dtype_struct(shape, DType::I32)))?;
    Ok(Plan::from_lowered(lowered)?.holds(Holder::Parameters, "[0]").rules(&rules))
}

/// gpt-oss-20b: 24 layers with 32 experts each. The other sizes are the defaults of the class. The option `layers` is a number.
pub(super) fn gpt_oss_20b(setup: &Setup) -> Result<Plan> {
    let layers = setup.number("layers", 24)?;
    let text = format!(r#"{{"model_type": "gpt_oss", "num_hidden_layers": {layers}, "num_local_experts": 32}}"#);
    prompts(setup, &Config::from_json(&text)?)
}

/// DeepSeek-V3, whose sizes are the defaults of the class: latent attention, and 256 experts and a shared one in all layers but
/// the first three. The option `layers` is a number.
pub(super) fn deepseek_v3(setup: &Setup) -> Result<Plan> {
    let layers = setup.number("layers", 61)?;
    prompts(setup, &Config::from_json(&format!(r#"{{"model_type": "deepseek_v3", "num_hidden_layers": {layers}}}"#))?)
}
