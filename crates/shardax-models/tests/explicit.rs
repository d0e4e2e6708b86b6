//! A decoder over mesh axes of type `Explicit`: the code of the model has no constraints for it, the rules choose.

#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;

use quick::QUICK;
use std::path::Path;

use shardax_models::huggingface::Weights;
use shardax_models::{Decoder, DecoderConfig, LoadOptions, Pretrained, QkNorm};
use shardax_nn::prelude::*;

type State = Optimizer<Decoder>;

fn step(mut state: State, tokens: Array) -> Result<(State, Array)> {
    let (input, target) = (tokens.get((.., ..8)), tokens.get((.., 1..)));
    let loss = state.minimize(|model: &mut Decoder| {
        softmax_cross_entropy_with_integer_labels(model.forward(&input), &target).mean(..)
    })?;
    Ok((state, loss))
}

/// The losses of three steps, and the types of the parameters, which stay.
fn run(config: &DecoderConfig, rules: &Rules) -> Result<(Vec<f32>, Vec<String>)> {
    let model = rules.init({
        let (config, rules) = (config.clone(), rules.clone());
        move || Decoder::new(&config, &mut Rngs::new(0).with_rules(&rules))
    })?;
    let state = Optimizer::new(model, adamw(1e-2, 1e-2))?;
    let tokens = random::randint(random::key(7), [4, 9], 0, 32);
    let tokens = match rules.sharding(["batch"]) {
        Some(sharding) => device_put(&tokens, &sharding)?,
        None => tokens,
    };
    let compiled = jit(step).lower((&state, &tokens))?.compile_with_options(&QUICK)?;
    let types = |state: &State| tree::leaves(&state.model).iter().map(Array::type_name).collect::<Vec<_>>();
    let (mut state, mut losses, before) = (state.clone(), Vec::new(), types(&state));
    for _ in 0..3 {
        let loss;
        (state, loss) = compiled.call((state, &tokens))?;
        losses.push(loss.item::<f32>()?);
    }
    assert_eq!(types(&state), before);
    Ok((losses, before))
}

#[track_caller]
fn check(config: &DecoderConfig) -> Result<()> {
    shardax::config::set_num_cpu_devices(8)?;
    let (want, _) = run(config, &Rules::default())?;
    let mesh = make_mesh([("data", 2), ("model", 4)])?.with_axis_types([AxisType::Explicit; 2])?;
    let tensor = Rules::new(&mesh, [("batch", "data"), ("heads", "model"), ("mlp", "model"), ("vocab", "model")]);
    for rules in [tensor.clone(), tensor.and("embed", "data")] {
        let (losses, types) = run(config, &rules)?;
        assert!(types.iter().any(|name| name.contains("32@model")), "{types:?}");
        for (have, loss) in losses.iter().zip(&want) {
            assert!((have - loss).abs() <= 2e-5 * loss, "{losses:?}, want {want:?}");
        }
    }
    Ok(())
}

#[test]
fn layers_one_after_another() -> Result<()> {
    check(&DecoderConfig { tie_embeddings: true, ..DecoderConfig::new(32, 2, 16, 4) })
}

#[test]
fn layers_in_a_scan_with_checkpoints() -> Result<()> {
    let checkpoint = Some(CheckpointPolicy::NothingSaveable);
    check(&DecoderConfig { scan_layers: true, checkpoint, qk_norm: QkNorm::Head, ..DecoderConfig::new(32, 2, 16, 4) })
}

/// Families with other blocks than Llama's, over devices that split rows, experts, heads and MLPs.
#[test]
fn families_over_eight_devices_have_the_logits_of_one() -> Result<()> {
    shardax::config::set_num_cpu_devices(8)?;
    shardax::config::set_compiler_options(QUICK);
    let mesh = make_mesh([("data", 2), ("expert", 2), ("model", 2)])?;
    let rules = [("batch", "data"), ("expert", "expert"), ("heads", "model"), ("mlp", "model")];
    let options = LoadOptions::new().rules(&Rules::new(&mesh, rules));
    let forward = jit(|model: Decoder, tokens: Array| model.forward(tokens));
    for name in [
        "olmo2",
        "cohere2",
        "glm4",
        "gpt_neox",
        "falcon_new",
        "gptj",
        "granite",
        "smollm3",
        "starcoder2",
        "mixtral",
        "qwen2_moe",
        "olmoe",
        "glm4_moe",
        "granitemoe",
        "gpt_oss",
        "deepseek_v3",
        "deepseek_v2",
        "opt",
        "bloom",
        "mpt",
    ] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        let case = Weights::open(folder.join("case.safetensors"))?;
        let model = Decoder::from_pretrained_with(&folder, &options)?;
        let split = tree::leaves(&model)
            .iter()
            .filter(|leaf| leaf.sharding().is_ok_and(|sharding| !sharding.is_fully_replicated()))
            .count();
        assert!(split > 4, "{name}: {split} arrays are split");
        let tokens = device_put(&case.get("input_ids")?, &NamedSharding::new(&mesh, P!["data"]))?;
        let (have, want) = (forward.call((&model, tokens))?, case.get("logits")?);
        assert!(allclose(&have, &want, 1e-4, 1e-4)?, "{name}: {}", (have - &want).abs().max(..).item::<f32>()?);
    }
    Ok(())
}
