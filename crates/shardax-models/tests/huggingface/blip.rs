//! BLIP's classes that read texts about images (`tools/huggingface/towers.py`).

use std::path::Path;

use shardax_models::{
    BertOptions, BlipAnswerer, BlipMatcher, Config, EncoderDecoder, GenerateOptions, LoadOptions, Pretrained,
};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::saved::save_again;
use super::{alike, case, fails_in_trace, folder, rows, setup};

/// Saves a model of each class.
pub(super) fn save_all(to: &Path) -> Result<()> {
    save_again::<BlipAnswerer>("blip_answers", &to.join("blip_answers"))?;
    save_again::<BlipMatcher>("blip_matches", &to.join("blip_matches"))
}

#[test]
fn answers_of_blip_equal_transformers() -> Result<()> {
    setup();
    let (name, case) = ("blip_answers", case("blip_answers")?);
    let forward = jit(|model: BlipAnswerer, images: Array, questions: Array, answers: Array, mask: Array| {
        model.forward(images, questions, answers, &BertOptions::new().attention_mask(mask))
    });
    let (images, questions) = (case("pixel_values")?, case("input_ids")?);
    let (answers, mask) = (case("decoder_input_ids")?, case("attention_mask")?);
    let model = BlipAnswerer::from_pretrained(folder(name))?;
    let logits = forward.call((&model, &images, &questions, &answers, &mask))?;
    alike(name, &logits, &case("logits")?)?;
    // transformers generates without the mask of questions, and pads answers after the stop token.
    let written = model.generate(&images, &questions, &[3], &GenerateOptions::new(6).stop_tokens([1]))?;
    for (written, expected) in written.iter().zip(rows(&case("generated")?)?) {
        assert!(expected.starts_with(written), "{written:?} {expected:?}");
    }
    let mesh = make_mesh([("data", 2), ("model", 2)])?;
    let rules = Rules::new(&mesh, [("batch", "data"), ("heads", "model"), ("mlp", "model")]);
    let model = BlipAnswerer::from_pretrained_with(folder(name), &LoadOptions::new().rules(&rules))?;
    let split = |x: &Array| device_put(x, &NamedSharding::new(&mesh, P!["data"]));
    let arguments = (&model, split(&images)?, split(&questions)?, split(&answers)?, split(&mask)?);
    alike(name, &forward.call(arguments)?, &case("logits")?)?;
    fails_in_trace(|| model.forward(zeros([1, 10, 8, 3]), &questions, &answers, &BertOptions::new()), &["10"]);
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "blip"{fields}}}"#);
        BlipAnswerer::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    assert_eq!(read(r#", "architectures": ["BlipForQuestionAnswering"]"#)?.features, 768);
    fails(read(r#", "architectures": ["BlipForImageTextRetrieval"]"#), &["\"BlipForImageTextRetrieval\" of"]);
    fails(read(r#", "vision_config": {"hidden_size": 1024, "num_attention_heads": 16}"#), &["1024 features", "768"]);
    let captions = EncoderDecoder::from_pretrained(folder(name)).map(|_| ());
    fails(captions, &["\"BlipForQuestionAnswering\"", "BlipAnswerer"]);
    Ok(())
}

#[test]
fn matches_of_blip_equal_transformers() -> Result<()> {
    setup();
    let (name, case) = ("blip_matches", case("blip_matches")?);
    let model = BlipMatcher::from_pretrained(folder(name))?;
    let forward = jit(|model: BlipMatcher, images: Array, tokens: Array, mask: Array| {
        let options = BertOptions::new().attention_mask(mask);
        (model.forward(&images, &tokens, &options), model.similarities(images, tokens, &options))
    });
    let inputs = (&model, case("pixel_values")?, case("input_ids")?, case("attention_mask")?);
    let (logits, similarities) = forward.call(inputs)?;
    alike(name, &logits, &case("logits")?)?;
    alike(name, &similarities, &case("similarities")?)?;
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "blip"{fields}}}"#);
        BlipMatcher::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    assert_eq!(read("")?.image_text_hidden_size, 256);
    fails(read(r#", "architectures": ["BlipForQuestionAnswering"]"#), &["\"BlipForQuestionAnswering\" of"]);
    Ok(())
}

#[test]
fn saved_folders_of_blip_are_the_files_of_transformers() -> Result<()> {
    setup();
    save_all(&Folder::new().0)
}
