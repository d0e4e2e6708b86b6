//! A decoder over mesh axes of type `Explicit`: the code of the model has no constraints for it, the rules choose.

#[path = "../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;
#[path = "files/sharded.rs"]
mod sharded;

use quick::QUICK;
use sharded::is_split;
use std::path::{Path, PathBuf};

use shardax_models::huggingface::Weights;
use shardax_models::{
    Batcher, Bert, BertOptions, Bit, BlipAnswerer, BlipMatcher, ChineseClip, Clap, Clip, ClipSeg, ConditionalDetr,
    Config, ConvNext, Deberta, Decoder, DecoderConfig, DeformableDetr, DepthEstimator, Detr, EncoderDecoder, Florence,
    GenerateOptions, Glpn, GroundingDino, Levit, LoadOptions, MobileBert, MobileNet, MobileVit, ModernBert, Owl,
    PoolFormer, Pretrained, QkNorm, Resnet, RtDetr, Sam, SamPrompts, Segformer, Siglip, SoundEncoder,
    SpectrogramEncoder, Swin, Vit, VitPose, Yolos,
};
use shardax_nn::prelude::*;

type State = Optimizer<Decoder>;

fn step(mut state: State, tokens: Array) -> Result<(State, Array)> {
    let (input, target) = (tokens.get((.., ..8)), tokens.get((.., 1..)));
    let loss = state.minimize(|model: &mut Decoder| {
        softmax_cross_entropy_with_integer_labels(model.forward(&input), &target).mean(..)
    })?;
    Ok((state, loss))
}

/// Trains for three steps, and returns the losses and the types of the parameters, which must not change.
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
    // Parameters that are also split over the data have all operations of the other parameters, and additional ones.
    for rules in [tensor.clone().and("embed", "data"), tensor].into_iter().step_by(quick::one_of(2)) {
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

/// A model of any class, the arrays that a test passes to it, and the expected results.
struct Case {
    split_arrays: usize,
    results: Vec<(Array, Array)>,
}

/// Loads the model of a folder with these rules, and computes its results for inputs with split rows.
fn sharded<M: Pretrained + Clone>(
    folder: &Path,
    rules: &Rules,
    compute: impl Fn(&M, &dyn Fn(&str) -> Result<Array>) -> Result<Vec<(&'static str, Array)>>,
) -> Result<Case> {
    let case = Weights::open(folder.join("case.safetensors"))?;
    let model = M::from_pretrained_with(folder, &LoadOptions::new().rules(rules))?;
    let split_arrays = tree::leaves(&model).iter().filter(|leaf| is_split(leaf)).count();
    let input = |name: &str| -> Result<Array> {
        let x = case.get(name)?;
        // A batch is replicated if the devices do not divide it. Texts are padded so that every device has some
        // positions.
        let parts = |name: &str| rules.axis(name).ok().flatten().and_then(|axis| rules.mesh()?.axis_size(axis));
        let (rows, positions) = (parts("batch").unwrap_or(1), parts("length").unwrap_or(1));
        let (x, length) = match *x.shape() {
            [_, length] => {
                let missing = length.next_multiple_of(positions) - length;
                (pad(&x, [(0, 0), (0, missing)], PadMode::Constant(0.0)), Some("length"))
            }
            [_, length, 4] if name == "bbox" => {
                let missing = length.next_multiple_of(positions) - length;
                (pad(&x, [(0, 0), (0, missing), (0, 0)], PadMode::Constant(0.0)), Some("length"))
            }
            _ => (x, None),
        };
        let batch = Some("batch").filter(|_| x.shape()[0].is_multiple_of(rows));
        match rules.sharding([batch, length]) {
            Some(sharding) => device_put(&x, &sharding),
            None => Ok(x),
        }
    };
    let results = compute(&model, &input)?;
    let compared = |(name, have): (_, Array)| -> Result<(Array, Array)> {
        let want = case.get(name)?;
        // The results for padding are not compared.
        let have = Array::from_vec(have.to_vec::<f32>()?, have.shape())?;
        Ok((have.get((.., ..want.shape()[1])), want))
    };
    let results = results.into_iter().map(compared).collect::<Result<_>>()?;
    Ok(Case { split_arrays, results })
}

fn sharded_decoder(folder: &Path, rules: &Rules) -> Result<Case> {
    sharded(folder, rules, |model: &Decoder, input| {
        let forward = jit(|model: Decoder, tokens: Array| model.forward(tokens));
        Ok(vec![("logits", forward.call((model, input("input_ids")?))?)])
    })
}

fn sharded_images<M: Pretrained>(folder: &Path, rules: &Rules, forward: fn(M, Array) -> Array) -> Result<Case> {
    sharded(folder, rules, |model: &M, input| {
        let (images, logits) = match input("pixel_values") {
            Ok(images) => (images, "logits"),
            Err(_) => (input("pixel_values_1").or_else(|_| input("pixel_values_0"))?, "logits_1"),
        };
        let logits = if input(logits).is_ok() { logits } else { "logits_0" };
        Ok(vec![(logits, jit(forward).call((model, images))?)])
    })
}

/// Loads the model of a folder with the class of its type, and computes its results.
fn sharded_model(folder: &Path, rules: &Rules) -> Result<Case> {
    let config = Config::open(folder)?;
    // Each class has different inputs. The first class that can read the configuration is the class of its type.
    let masked =
        |input: &dyn Fn(&str) -> Result<Array>| Ok::<_, Error>((input("input_ids")?, input("attention_mask")?));
    if Vit::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: Vit, images| model.forward(images));
    }
    if Swin::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: Swin, images| model.forward(images));
    }
    if Bit::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: Bit, images| model.forward(images));
    }
    if Levit::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: Levit, images| model.forward(images));
    }
    if PoolFormer::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: PoolFormer, images| model.forward(images));
    }
    if ConvNext::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: ConvNext, images| model.forward(images));
    }
    if Segformer::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: Segformer, images| model.forward(images));
    }
    if Resnet::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: Resnet, images| model.forward(images));
    }
    if DepthEstimator::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: DepthEstimator, images| model.forward(images));
    }
    if Glpn::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: Glpn, images| model.forward(images));
    }
    if Yolos::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: Yolos, images| {
            let x = model.encode(&images);
            if model.has_head() { model.forward(images).0 } else { x }
        });
    }
    if Detr::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: Detr, images| model.forward(images).0);
    }
    if ConditionalDetr::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: ConditionalDetr, images| model.forward(images).0);
    }
    if DeformableDetr::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: DeformableDetr, images| model.forward(images).0);
    }
    if GroundingDino::read(&config).is_ok() {
        return sharded(folder, rules, |model: &GroundingDino, input| {
            let forward = jit(|model: GroundingDino, tokens: Array, mask: Array, images: Array| {
                model.forward(tokens, images, &BertOptions::new().attention_mask(mask)).1
            });
            let (tokens, mask) = masked(input)?;
            Ok(vec![("boxes_1", forward.call((model, tokens, mask, input("pixel_values_1")?))?)])
        });
    }
    if Owl::read(&config).is_ok() {
        return sharded(folder, rules, |model: &Owl, input| {
            let forward = jit(|model: Owl, tokens: Array, images: Array| model.forward(tokens, images));
            let (logits, boxes) = forward.call((model, input("input_ids")?, input("pixel_values_1")?))?;
            Ok(vec![("logits_1", logits), ("boxes_1", boxes)])
        });
    }
    if Sam::read(&config).is_ok() {
        return sharded(folder, rules, |model: &Sam, input| {
            let forward = jit(|model: Sam, images: Array, points: Array, labels: Array| {
                model.forward(images, &SamPrompts::new().points(points, labels)).0
            });
            let masks = forward.call((model, input("pixel_values")?, input("points")?, input("labels")?))?;
            Ok(vec![("masks_points", masks)])
        });
    }
    if VitPose::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: VitPose, images| model.forward(images));
    }
    if MobileNet::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: MobileNet, images| model.forward(images));
    }
    if MobileVit::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: MobileVit, images| model.forward(images));
    }
    if ClipSeg::read(&config).is_ok() {
        return sharded(folder, rules, |model: &ClipSeg, input| {
            let forward = jit(|model: ClipSeg, tokens: Array, images: Array| model.forward(tokens, images));
            let logits = forward.call((model, input("input_ids")?, input("pixel_values_1")?))?;
            Ok(vec![("logits_1", logits)])
        });
    }
    if RtDetr::read(&config).is_ok() {
        return sharded_images(folder, rules, |model: RtDetr, images| model.forward(images).0);
    }
    if Florence::read(&config).is_ok() {
        return sharded(folder, rules, |model: &Florence, input| {
            let forward = jit(|model: Florence, inputs: [Array; 4]| {
                let [images, tokens, mask, targets] = inputs;
                model.forward(images, tokens, targets, &BertOptions::new().attention_mask(mask))
            });
            let names = ["pixel_values", "input_ids", "attention_mask", "decoder_input_ids"];
            let [images, tokens, mask, targets] = names.map(input);
            Ok(vec![("logits", forward.call((model, [images?, tokens?, mask?, targets?]))?)])
        });
    }
    if Clip::read(&config).is_ok() {
        return sharded(folder, rules, |model: &Clip, input| {
            let forward = jit(|model: Clip, tokens: Array, images: Array| model.forward(tokens, images));
            let logits = forward.call((model, input("input_ids")?, input("pixel_values")?))?;
            Ok(vec![("logits_per_image", logits)])
        });
    }
    if ChineseClip::read(&config).is_ok() {
        return sharded(folder, rules, |model: &ChineseClip, input| {
            let forward = jit(|model: ChineseClip, tokens: Array, images: Array, mask: Array| {
                model.forward(tokens, images, &BertOptions::new().attention_mask(mask))
            });
            let (tokens, mask) = masked(input)?;
            let logits = forward.call((model, tokens, input("pixel_values")?, mask))?;
            Ok(vec![("logits_per_image", logits)])
        });
    }
    if Clap::read(&config).is_ok() {
        return sharded(folder, rules, |model: &Clap, input| {
            let forward = jit(|model: Clap, tokens: Array, sounds: Array, is_longer: Array, mask: Array| {
                model.forward(tokens, sounds, Some(&is_longer), &BertOptions::new().attention_mask(mask))
            });
            let ((tokens, mask), sounds) = (masked(input)?, input("input_features")?);
            let logits = forward.call((model, tokens, sounds, input("is_longer")?, mask))?;
            Ok(vec![("logits_per_audio", logits)])
        });
    }
    if BlipAnswerer::read(&config).is_ok() {
        return sharded(folder, rules, |model: &BlipAnswerer, input| {
            let forward = jit(|model: BlipAnswerer, images: Array, questions: Array, answers: Array, mask: Array| {
                model.forward(images, questions, answers, &BertOptions::new().attention_mask(mask))
            });
            let ((questions, mask), answers) = (masked(input)?, input("decoder_input_ids")?);
            let logits = forward.call((model, input("pixel_values")?, questions, answers, mask))?;
            Ok(vec![("logits", logits)])
        });
    }
    if BlipMatcher::read(&config).is_ok() {
        return sharded(folder, rules, |model: &BlipMatcher, input| {
            let forward = jit(|model: BlipMatcher, images: Array, tokens: Array, mask: Array| {
                let options = BertOptions::new().attention_mask(mask);
                (model.forward(&images, &tokens, &options), model.similarities(images, tokens, &options))
            });
            let (tokens, mask) = masked(input)?;
            let (logits, similarities) = forward.call((model, input("pixel_values")?, tokens, mask))?;
            Ok(vec![("logits", logits), ("similarities", similarities)])
        });
    }
    if Siglip::read(&config).is_ok() {
        return sharded(folder, rules, |model: &Siglip, input| {
            let forward = jit(|model: Siglip, tokens: Array, images: Array| model.forward(tokens, images));
            let logits = forward.call((model, input("input_ids")?, input("pixel_values")?))?;
            Ok(vec![("logits_per_image", logits)])
        });
    }
    if EncoderDecoder::read(&config).is_ok() {
        return sharded(folder, rules, |model: &EncoderDecoder, input| {
            let forward = jit(|model: EncoderDecoder, inputs: Array, masks: [Option<Array>; 2], targets: Array| {
                let [mask, global] = masks;
                let options = mask.into_iter().fold(BertOptions::new(), BertOptions::attention_mask);
                model.forward(inputs, targets, &global.into_iter().fold(options, BertOptions::global_attention))
            });
            let inputs = match input("input_features") {
                Ok(features) => features.transpose([0, 2, 1]),
                Err(_) => input("input_ids").or_else(|_| input("input_values")).or_else(|_| input("pixel_values"))?,
            };
            let masks = ["attention_mask", "global_attention_mask"].map(|name| input(name).ok());
            let arguments = (model, inputs, masks, input("decoder_input_ids")?);
            Ok(vec![("logits", forward.call(arguments)?)])
        });
    }
    if SpectrogramEncoder::read(&config).is_ok() {
        return sharded(folder, rules, |model: &SpectrogramEncoder, input| {
            let forward = jit(|model: SpectrogramEncoder, spectrograms: Array| model.forward(spectrograms));
            Ok(vec![("logits", forward.call((model, input("input_values")?))?)])
        });
    }
    if SoundEncoder::read(&config).is_ok() {
        return sharded(folder, rules, |model: &SoundEncoder, input| {
            let forward = jit(|model: SoundEncoder, sound: Array, mask: Array| {
                model.forward(sound, &BertOptions::new().attention_mask(mask))
            });
            Ok(vec![("logits", forward.call((model, input("input_values")?, input("attention_mask")?))?)])
        });
    }
    if Bert::read(&config).is_ok() {
        return sharded(folder, rules, |model: &Bert, input| {
            let forward = jit(|model: Bert, tokens: Array, mask: Array, more: [Option<Array>; 3]| {
                let [kinds, boxes, global] = more;
                let options = BertOptions::new().attention_mask(mask);
                let options = kinds.into_iter().fold(options, BertOptions::token_type_ids);
                let options = boxes.into_iter().fold(options, BertOptions::boxes);
                model.forward(tokens, &global.into_iter().fold(options, BertOptions::global_attention))
            });
            let (tokens, mask) = masked(input)?;
            let more = ["token_type_ids", "bbox", "global_attention_mask"].map(|name| input(name).ok());
            Ok(vec![("logits", forward.call((model, tokens, mask, more))?)])
        });
    }
    if ModernBert::read(&config).is_ok() {
        return sharded(folder, rules, |model: &ModernBert, input| {
            let forward = jit(|model: ModernBert, tokens: Array, mask: Array| {
                model.forward(tokens, &BertOptions::new().attention_mask(mask))
            });
            let (tokens, mask) = masked(input)?;
            Ok(vec![("logits", forward.call((model, tokens, mask))?)])
        });
    }
    if MobileBert::read(&config).is_ok() {
        return sharded(folder, rules, |model: &MobileBert, input| {
            let forward = jit(|model: MobileBert, tokens: Array, mask: Array| {
                model.forward(tokens, &BertOptions::new().attention_mask(mask))
            });
            let (tokens, mask) = masked(input)?;
            Ok(vec![("logits", forward.call((model, tokens, mask))?)])
        });
    }
    if Deberta::read(&config).is_ok() {
        return sharded(folder, rules, |model: &Deberta, input| {
            let forward = jit(|model: Deberta, tokens: Array, mask: Array| {
                model.forward(tokens, &BertOptions::new().attention_mask(mask))
            });
            let (tokens, mask) = masked(input)?;
            Ok(vec![("logits", forward.call((model, tokens, mask))?)])
        });
    }
    sharded_decoder(folder, rules)
}

/// Returns the folders of all models, in order.
fn folders() -> Result<Vec<PathBuf>> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let entries = std::fs::read_dir(golden).expect("the folder of models");
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    // Adapters compute no logits by themselves, and other tests read some of the models.
    folders.retain(|folder| {
        let has = |name: &str| folder.join(name).is_file();
        // A decoder that scores texts has another last layer.
        let is_scorer = folder.ends_with("cross_encoder_decoder");
        has("config.json") && has("case.safetensors") && !has("modules.json") && !is_scorer
    });
    folders.sort();
    Ok(folders)
}

/// Models whose results depend on the amount of padding: rotary positions that are scaled by the length, EuroBERT,
/// whose tokens attend to all positions of a text without a mask, DeBERTa, in which padding attends to all tokens, and MobileBERT,
/// whose last token reads the embedding of the padding after it, and FNet and ConvBERT, which mix padding with other tokens.
const DEPEND_ON_LENGTH: [&str; 16] = [
    "convbert",
    "convbert_classes",
    "convbert_model",
    "fnet",
    "fnet_classes",
    "fnet_tokens",
    "dynamic",
    "eurobert",
    "mistral_not_causal",
    "deberta",
    "deberta_v2",
    "deberta_v2_tokens",
    "mobilebert",
    "mobilebert_classes",
    "mobilebert_model",
    "mobilebert_tokens",
];

/// The starts of the names of models that have only convolutions.
const ONLY_CONVOLUTIONS: [&str; 6] = ["resnet", "regnet", "mobilenet", "efficientnet", "poolformer", "bit"];

/// Loads every model with these rules, and compares its results with the results of one device. By default, one of
/// `40 * every` models is compared. If you set `SHARDAX_TEST_MODELS`, all models whose name contains one of its values, separated by commas, are compared.
///
/// A model can only be rejected if the mesh does not divide its heads or its MLPs. The message must name the array.
fn compare_all(rules: &Rules, every: usize) -> Result<()> {
    let only = std::env::var("SHARDAX_TEST_MODELS").ok();
    let every = if only.is_some() { 1 } else { every * quick::one_of(40) };
    let (mut failures, mut compared, mut rejected) = (Vec::new(), 0, Vec::new());
    for folder in folders()?.into_iter().step_by(every) {
        let name = folder.file_name().expect("a name").to_string_lossy().into_owned();
        if only.as_ref().is_some_and(|only| !only.split(',').any(|part| name.contains(part))) {
            continue;
        }
        let case = match sharded_model(&folder, rules) {
            Ok(case) => case,
            // The mesh does not divide an array, and the message names it.
            Err(error) if error.kind() == ErrorKind::Indivisible && error.message().starts_with('`') => {
                rejected.push(name);
                continue;
            }
            Err(error) => {
                failures.push(format!("{name}: {error}"));
                continue;
            }
        };
        compared += 1;
        // Otherwise the model would be replicated, and the comparison would show nothing. Some models have only convolutions, whose
        // images are split.
        let has_only_convolutions = ONLY_CONVOLUTIONS.iter().any(|start| {
            // `bit` is not the start of `bitnet`.
            name.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
        });
        if case.split_arrays < 4 && !has_only_convolutions {
            failures.push(format!("{name}: the rules split {} arrays", case.split_arrays));
        }
        if rules.axis("length")?.is_some() && DEPEND_ON_LENGTH.contains(&name.as_str()) {
            continue;
        }
        // The results of transformers for this model differ by 1.4e-4 from its results in float64.
        let tolerance = if name == "mobilenet_v2_model" { 3e-4 } else { 1e-4 };
        for (have, want) in case.results {
            if !allclose(&have, &want, tolerance, tolerance)? {
                failures.push(format!("{name}: {}", (have - &want).abs().max(..).item::<f32>()?));
            }
        }
    }
    println!("{compared} compared, {} rejected: {}", rejected.len(), rejected.join(", "));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

fn setup() -> Result<()> {
    shardax::config::set_num_cpu_devices(8)?;
    shardax::config::set_compiler_options(QUICK);
    Ok(())
}

/// Devices split rows, experts, heads and MLPs of every model.
#[test]
fn families_over_eight_devices_have_the_logits_of_one() -> Result<()> {
    setup()?;
    let mesh = make_mesh([("data", 2), ("expert", 2), ("model", 2)])?;
    let rules = [("batch", "data"), ("expert", "expert"), ("heads", "model"), ("mlp", "model")];
    compare_all(&Rules::new(&mesh, rules), 1)
}

/// The axis of experts also splits rows, as in training.
#[test]
fn experts_over_an_axis_of_rows_have_the_logits_of_one_device() -> Result<()> {
    setup()?;
    let mesh = make_mesh([("expert", 2), ("model", 4)])?;
    let rules = Rules::new(&mesh, [("batch", "expert"), ("expert", "expert")]);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for name in ["mixtral", "gpt_oss", "deepseek_v3"].into_iter().step_by(quick::one_of(3)) {
        for (have, want) in sharded_model(&golden.join(name), &rules)?.results {
            assert!(allclose(&have, &want, 1e-4, 1e-4)?, "{name}: {}", (have - &want).abs().max(..).item::<f32>()?);
        }
    }
    Ok(())
}

/// There are more devices than key heads.
#[test]
fn families_over_two_by_four_devices_have_the_logits_of_one() -> Result<()> {
    setup()?;
    let mesh = make_mesh([("data", 2), ("model", 4)])?;
    let rules = [("batch", "data"), ("heads", "model"), ("mlp", "model")];
    compare_all(&Rules::new(&mesh, rules), 4)
}

/// Devices also split the positions of texts.
#[test]
fn families_over_split_positions_have_the_logits_of_one() -> Result<()> {
    setup()?;
    let mesh = make_mesh([("sequence", 4), ("expert", 2)])?;
    let rules = [("length", "sequence"), ("expert", "expert"), ("mlp", "expert"), ("heads", "expert")];
    compare_all(&Rules::new(&mesh, rules), 2)
}

/// Devices split caches of keys, latent vectors, states and convolutions.
#[test]
fn split_models_write_the_tokens_of_one_device() -> Result<()> {
    setup()?;
    let mesh = make_mesh([("expert", 2), ("model", 4)])?;
    let rules = Rules::new(&mesh, [("expert", "expert"), ("heads", "model"), ("mlp", "expert")]);
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let names = [
        "llama",
        "deepseek_v3",
        "qwen3_next",
        "lfm2",
        "gpt_oss",
        "llama4",
        "falcon",
        "gpt_bigcode",
        "falcon_h1",
        "jamba",
        "recurrent_gemma",
        "minimax",
        "lara_mini",
        "kimi_linear",
        "olmo_hybrid",
        "mimo_v2_flash",
        "kolibri1",
        "lfm3",
    ];
    // Together, these models have all kinds of caches; a slice has those of keys and of convolutions.
    for name in names.into_iter().step_by(quick::one_of(6)) {
        let folder = golden.join(name);
        let (prompts, options) = ([vec![3, 1, 4, 1, 5], vec![9, 2]], GenerateOptions::new(5));
        let expected = Decoder::from_pretrained(&folder)?.generate(&prompts, &options)?;
        let model = Decoder::from_pretrained_with(&folder, &LoadOptions::new().rules(&rules))?;
        assert_eq!(model.generate(&prompts, &options)?, expected, "{name}");
        // The second text begins after the first.
        let mut batcher = Batcher::new(model, 2, 12)?;
        let mut texts = [Vec::new(), Vec::new()];
        for (prompt, text) in prompts.iter().zip(0..) {
            texts[text].push(batcher.add(prompt, &options)?.token);
            batcher.step()?.iter().for_each(|next| texts[next.text as usize].push(next.token));
        }
        while batcher.active() > 0 {
            batcher.step()?.iter().for_each(|next| texts[next.text as usize].push(next.token));
        }
        assert_eq!(texts.as_slice(), expected, "{name}");
    }
    Ok(())
}
