//! Models that this crate saves, which `transformers` can load (`tools/huggingface/check.py`).

use std::path::Path;

use shardax_models::huggingface::Weights;
use shardax_models::{Adapter, Bert, Config, Decoder, MobileBert, ModernBert, Pretrained, Vit};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::decoders::DECODERS;
use super::encoders::{ENCODERS, MOBILE, MODERN};
use super::{blip, encoder_decoder, folder, images, quick, setup, sound};

/// The ends of the names of arrays that are not saved: tables of sines, of distances, of decay and of places, which the models compute, counts of batches, which norms
/// with constant means do not have, and poolers and norms, which no result depends on.
const NOT_SAVED: [&str; 19] = [
    "model.swin.layernorm.weight",
    "model.swin.layernorm.bias",
    "roformer.encoder.embed_positions.weight",
    "num_batches_tracked",
    "layoutlm.pooler.dense.weight",
    "layoutlm.pooler.dense.bias",
    "bert.pooler.weight",
    "bert.pooler.bias",
    "encoder.pooler.dense.weight",
    "encoder.pooler.dense.bias",
    "relative_position_index",
    "embed_positions.inv_freq",
    "slope_rate",
    "query_decay",
    "key_decay",
    "diagonal_decay",
    "text_model.embeddings.position_ids",
    "text_model.embeddings.token_type_ids",
    "n_points_scale",
];

/// Models whose files contain tables of sines under the names that other models have for learned positions.
const WITH_SINES: [&str; 4] = ["marian", "pegasus", "fsmt", "fsmt_tied"];

/// A model whose convolution is one array that transformers divides into three equal parts when it saves it. Here the parts have
/// the sizes of queries, keys and values. transformers joins the parts when it loads a file, so that it can load both.
const DIVIDED_INTO_OTHER_PARTS: &str = "olmo_hybrid_split";

/// Saves the model of a folder, loads it again, and compares the arrays.
pub(super) fn save_again<M: Pretrained>(name: &str, to: &Path) -> Result<()> {
    let (model, config) = (M::from_pretrained(folder(name))?, Config::open(folder(name))?);
    model.save_pretrained(&config, to)?;
    let again = M::from_pretrained(to)?;
    for ((path, a), b) in tree::leaves_with_path(&model).iter().zip(tree::leaves(&again)) {
        assert_eq!(a.to_bytes()?, b.to_bytes()?, "{name}: {path}");
    }
    let (old, new) = (Weights::open(folder(name))?, Weights::open(to)?);
    let is_computed = |array: &str| WITH_SINES.contains(&name) && array.ends_with("embed_positions.weight");
    // The end begins with the name of a part of the model, as `bert`, which is not the end of another one, as `albert`.
    let is_end =
        |array: &str, end: &str| array.strip_suffix(end).is_some_and(|start| start.is_empty() || start.ends_with('.'));
    // The class has a convolution that it does not use.
    let is_unused = |array: &str| name.contains("conformer") && array.contains("pos_conv_embed");
    let is_saved =
        |array: &&str| !is_computed(array) && !is_unused(array) && !NOT_SAVED.iter().any(|end| is_end(array, end));
    let names: Vec<_> = old.names().filter(is_saved).collect();
    assert_eq!(names, new.names().collect::<Vec<_>>(), "{name}");
    let is_divided_otherwise = |array: &str| name == DIVIDED_INTO_OTHER_PARTS && array.contains("conv1d");
    for array in names.into_iter().filter(|array| !is_divided_otherwise(array)) {
        assert_eq!(old.shape(array), new.shape(array), "{name}: {array}");
        assert_eq!(old.get(array)?.to_bytes()?, new.get(array)?.to_bytes()?, "{name}: {array}");
    }
    Ok(())
}

/// Saves one of so many models of each class, which `tools/huggingface/check.py` reads with `transformers` and `peft`.
fn save_models(to: &Path, every: usize) -> Result<()> {
    for name in DECODERS.into_iter().step_by(every) {
        save_again::<Decoder>(name, &to.join(name))?;
    }
    save_again::<Vit>("vit", &to.join("vit"))?;
    // Files without a head, and all files of FNet, contain a pooler, which the models do not have here. Files of ESM contain a head for
    // contacts and older names of norms. Files of LUKE contain parts for entities, which the models do not have here.
    for name in ["bert"]
        .into_iter()
        .chain(ENCODERS)
        .filter(|name| {
            !name.ends_with("_model")
                && !["jina_v3", "fnet", "fnet_tokens"].contains(name)
                && !["esm", "luke"].iter().any(|start| name.starts_with(start))
        })
        .step_by(every)
    {
        save_again::<Bert>(name, &to.join(name))?;
    }
    for name in MODERN.into_iter().filter(|name| *name != "modernbert_model").step_by(every) {
        save_again::<ModernBert>(name, &to.join(name))?;
    }
    for name in MOBILE.into_iter().filter(|name| *name != "mobilebert_model").step_by(every) {
        save_again::<MobileBert>(name, &to.join(name))?;
    }
    let config = Config::open(folder("llama"))?;
    Adapter::from_pretrained(&config, folder("adapter"))?.save_pretrained(&config, to.join("adapter"))
}

#[test]
fn saved_models_are_the_files_of_transformers() -> Result<()> {
    setup();
    let temp = Folder::new();
    save_models(&temp.0, quick::one_of(16))?;
    let model = Decoder::from_pretrained(folder("llama"))?;
    let config_of_qwen3 = Config::open(folder("qwen3"))?;
    fails(model.save_pretrained(&config_of_qwen3, temp.join("x")), &["the configuration does not describe this model"]);
    let mut cached = model.clone();
    cached.init_cache(1, 4);
    fails(cached.save_pretrained(&Config::open(folder("llama"))?, temp.join("x")), &["the configuration", "caches"]);
    Ok(())
}

/// Run `tools/huggingface/check.py` after this test.
#[test]
#[ignore = "writes folders for another program"]
fn saved_folders() -> Result<()> {
    setup();
    let root = std::env::var("SAVED").expect("SAVED names a folder");
    let to = Path::new(&root);
    save_models(to, 1)?;
    images::save_all(to, 1)?;
    sound::save_all(to, 1)?;
    blip::save_all(to)?;
    encoder_decoder::save_all(to)
}
