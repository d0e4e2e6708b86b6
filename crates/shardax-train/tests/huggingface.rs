//! Weights that `transformers` saved, and the logits that it computes with them (`tools/huggingface`).

mod common;

use std::path::{Path, PathBuf};

use common::{Folder, fails};
use shardax_nn::prelude::*;
use shardax_train::huggingface::*;

fn setup() {
    config::set_num_cpu_devices(4).expect("four CPU devices");
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/huggingface").join(name)
}

/// What a model was given, and its logits.
fn case(name: &str) -> Result<impl Fn(&str) -> Result<Array>> {
    let case = Weights::open(folder(name).join("case.safetensors"))?;
    Ok(move |name: &str| case.get(name)?.to_array())
}

#[track_caller]
fn alike(name: &str, got: &Array, want: &Array) -> Result<()> {
    assert_eq!(got.shape(), want.shape(), "{name}");
    assert!(allclose(got, want, 1e-4, 1e-4)?, "{name}: {}", (got - want).abs().max(..).item::<f32>()?);
    // What zeros would pass is no test.
    assert!(want.abs().max(..).item::<f32>()? > 0.1, "{name}");
    Ok(())
}

#[test]
fn gpt2_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let (case, model) = (case("gpt2")?, Gpt2::from_pretrained(folder("gpt2"))?);
    let (tokens, want) = (case("input_ids")?, case("logits")?);
    let forward = jit(|model: Gpt2, tokens: Array| model.forward(tokens));
    alike("gpt2", &forward.call((&model, &tokens))?, &want)?;

    // A part of the text, and then one token after the other, with the keys and values of those before.
    let decode = jit(|mut model: Gpt2, tokens: Array| {
        let logits = model.decode(tokens);
        (model, logits)
    });
    let mut decoder = model.clone();
    decoder.init_cache(2, 7);
    let (mut decoder, logits) = decode.call((decoder, tokens.get((.., ..4))))?;
    alike("the first tokens", &logits, &want.get((.., ..4)))?;
    for at in 4..7 {
        let logits;
        (decoder, logits) = decode.call((decoder, tokens.get((.., at..at + 1))))?;
        alike("a token", &logits, &want.get((.., at..at + 1)))?;
    }

    // Split over devices as it is read; in bfloat16.
    let mesh = make_mesh([("model", 4)])?;
    let rules = Rules::new(&mesh, [("heads", "model"), ("mlp", "model")]);
    let split = Gpt2::from_pretrained_with(folder("gpt2"), &LoadOptions::new().rules(&rules))?;
    alike("split", &forward.call((&split, &tokens))?, &want)?;
    let parts = tree::leaves_with_path(&split);
    let of = |end: &str| parts.iter().find(|(path, _)| path.ends_with(end)).map(|(_, x)| x.clone()).expect("an array");
    assert_eq!(of("attention.query.kernel").addressable_data(0)?.shape(), [16, 1, 4]);
    assert_eq!(of("mlp.down.kernel").addressable_data(3)?.shape(), [16, 16]);
    let half = Gpt2::from_pretrained_with(folder("gpt2"), &LoadOptions::new().policy(Policy::bf16()))?;
    assert!(tree::leaves(&half).iter().all(|leaf| leaf.dtype() == DType::Bf16));
    let logits = forward.call((&half, &tokens))?.astype(DType::F32);
    assert!(allclose(&logits, &want, 0.1, 0.1)?, "{}", (logits - want).abs().max(..).item::<f32>()?);
    Ok(())
}

#[test]
fn llama_has_the_logits_of_transformers() -> Result<()> {
    setup();
    for name in ["llama", "llama3"] {
        let (case, model) = (case(name)?, Llama::from_pretrained(folder(name))?);
        let (tokens, want) = (case("input_ids")?, case("logits")?);
        alike(name, &jit(|model: Llama, tokens: Array| model.forward(tokens)).call((&model, &tokens))?, &want)?;
        let (batch, length) = (tokens.shape()[0], tokens.shape()[1]);
        let mut decoder = model.clone();
        decoder.init_cache(batch, length);
        let decode = |mut model: Llama, tokens: Array| {
            let first = model.decode(tokens.get((.., ..3)));
            (first, model.decode(tokens.get((.., 3..))))
        };
        let (first, rest) = jit(decode).call((&decoder, &tokens))?;
        alike(name, &concatenate(&[first, rest], 1), &want)?;
    }
    Ok(())
}

#[test]
fn vit_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let (case, model) = (case("vit")?, Vit::from_pretrained(folder("vit"))?);
    let forward = jit(|model: Vit, images: Array| model.forward(images));
    alike("vit", &forward.call((&model, case("pixel_values")?))?, &case("logits")?)
}

#[test]
fn bert_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let (case, model) = (case("bert")?, Bert::from_pretrained(folder("bert"))?);
    let forward = jit(|model: Bert, tokens: Array, mask: Array, kinds: Array| {
        model.forward(tokens, &BertOptions::new().attention_mask(mask).token_type_ids(kinds))
    });
    let given = (&model, case("input_ids")?, case("attention_mask")?, case("token_type_ids")?);
    alike("bert", &forward.call(given)?, &case("logits")?)
}

/// What is wrong with a folder is said, with the file and the place.
#[test]
fn other_and_damaged_files_are_errors() -> Result<()> {
    setup();
    let here = Folder::new();
    let write = |name: &str, bytes: &[u8]| drop(here.write(name, bytes));
    let copy = |from: &str, name: &str| std::fs::read(folder(from).join(name)).expect("a file");
    let gpt2 = || Gpt2::from_pretrained(&here.0);

    fails(gpt2(), &["cannot read", "config.json", "save_pretrained"]);
    write("config.json", &copy("bert", "config.json"));
    fails(gpt2(), &["config.json is not the configuration", "missing field `n_positions`"]);
    write("config.json", &copy("gpt2", "config.json"));
    fails(gpt2(), &["cannot read", "model.safetensors"]);
    let whole = copy("gpt2", "model.safetensors");
    write("model.safetensors", &whole[..whole.len() - 4]);
    fails(gpt2(), &["model.safetensors is damaged", "at byte 8, the header's array", "is at"]);
    write("model.safetensors", &whole[..100]);
    fails(gpt2(), &["at byte 0, a header of", "and 92 bytes do"]);
    write("model.safetensors", &whole[..5]);
    fails(gpt2(), &["at byte 0, 8 bytes should follow, and 5 do"]);
    let mut odd = whole.clone();
    odd[9] = b'!';
    write("model.safetensors", &odd);
    fails(gpt2(), &["at byte 8, the header is no JSON"]);
    write("model.safetensors", &copy("vit", "model.safetensors"));
    fails(gpt2(), &["has no array \"wte.weight\", which `tokens.embedding` would be"]);
    write("model.safetensors", &whole);
    write("config.json", String::from_utf8_lossy(&copy("gpt2", "config.json")).replace("33", "34").as_bytes());
    fails(gpt2(), &["wte.weight", "is [33, 16]", "does not make `tokens.embedding`, [34, 16]"]);
    write("config.json", String::from_utf8_lossy(&copy("gpt2", "config.json")).replace("gelu_new", "sine").as_bytes());
    fails(gpt2(), &["the activation \"sine\" is not known"]);
    write(
        "config.json",
        String::from_utf8_lossy(&copy("gpt2", "config.json")).replace("\"n_head\": 4", "\"n_head\": 5").as_bytes(),
    );
    fails(gpt2(), &["n_head (5) does not divide n_embd (16)"]);

    // An index of several files.
    write("config.json", &copy("llama", "config.json"));
    std::fs::remove_file(here.join("model.safetensors")).expect("the file");
    let index = copy("llama", "model.safetensors.index.json");
    write("model.safetensors.index.json", &index);
    fails(Llama::from_pretrained(&here.0), &["cannot read", "model-00001-of-0000"]);
    write("model.safetensors.index.json", &index[..index.len() / 2]);
    fails(Weights::open(&here.0), &["index.json is damaged", "no index of safetensors files"]);
    write("model.safetensors.index.json", br#"{"weight_map":{"a":"../a.safetensors"}}"#);
    fails(Weights::open(&here.0), &["\"../a.safetensors\" is not the name of a file beside it"]);
    write("a.safetensors", &whole);
    write("model.safetensors.index.json", br#"{"weight_map":{"a":"a.safetensors"}}"#);
    fails(Weights::open(&here.0), &["the array \"a\" should be in a.safetensors, and is not"]);

    let weights = Weights::open(folder("gpt2"))?;
    fails(weights.get("none"), &["has no array \"none\""]);
    let keys = KeyMap::new().array("kernel", "transformer.wte.weight", Layout::Part { index: 5, of: 3 });
    fails(load(&weights, &array(1.0f32), &keys, &Rules::default()), &["no rule says which array of a file ``"]);
    let layer = Linear::builder(33, 16).use_bias(false).build(&mut Rngs::new(0));
    fails(load(&weights, &layer, &keys, &Rules::default()), &["laid out as Part { index: 5, of: 3 }"]);
    Ok(())
}
