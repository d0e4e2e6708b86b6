//! Models that detect objects, joints and masks in images (`tools/huggingface/towers.py`).

use shardax_models::huggingface::Weights;
use shardax_models::{
    BertOptions, ClipSeg, ConditionalDetr, Config, DeformableDetr, Detr, GroundingDino, LoadOptions, Owl, Pretrained,
    RtDetr, Sam, SamPrompts, VitPose, Yolos,
};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::quick::one_of;
use super::saved::save_again;
use super::{alike, case, compiled, fails_in_trace, folder, setup};

#[test]
fn detected_objects_equal_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: Yolos, images: Array| model.forward(images));
    let encode = jit(|model: Yolos, images: Array| model.encode(images));
    for name in YOLOS.into_iter().step_by(one_of(2)) {
        let (case, model) = (case(name)?, Yolos::from_pretrained(folder(name))?);
        for number in 0..2 {
            let images = case(&format!("pixel_values_{number}"))?;
            let expected = case(&format!("logits_{number}"))?;
            if name.ends_with("_model") {
                alike(name, &encode.call((&model, images))?, &expected)?;
                continue;
            }
            let (logits, boxes) = forward.call((&model, images))?;
            alike(name, &logits, &expected)?;
            alike(name, &boxes, &case(&format!("boxes_{number}"))?)?;
        }
    }
    let (yolos, features) = (Yolos::from_pretrained(folder("yolos"))?, Yolos::from_pretrained(folder("yolos_model"))?);
    fails_in_trace(|| yolos.encode(zeros([1, 3, 8, 12])), &["[1, 3, 8, 12]", "[batch, rows, columns, 3]"]);
    fails_in_trace(|| yolos.forward(zeros([1, 3, 8, 3])).0, &["images of 3 by 8 pixels are less than a patch of 4"]);
    fails_in_trace(|| features.forward(zeros([1, 8, 12, 3])).1, &["the model has no head"]);
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "yolos"{fields}}}"#);
        Yolos::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The smallest published model.
    let tiny = read(
        r#", "image_size": [800, 1333], "use_mid_position_embeddings": false, "hidden_size": 192, "num_attention_heads": 3,
        "intermediate_size": 768, "id2label": {"0": "N/A", "1": "person"}, "architectures": ["YolosForObjectDetection"]"#,
    )?;
    assert_eq!((tiny.classes, tiny.num_detection_tokens), (Some(2), 100));
    fails(read(r#", "image_size": [800, 1333]"#), &["`image_size` must be multiples of `patch_size`"]);
    fails(read(r#", "image_size": [800]"#), &["`image_size` must have two sizes"]);
    fails(read(r#", "image_size": [8, 800]"#), &["which is less than `patch_size`"]);
    fails(read(r#", "architectures": ["YolosForImageClassification"]"#), &["\"YolosForImageClassification\""]);
    Ok(())
}

/// Models that detect objects. The last one has no head.
pub(super) const YOLOS: [&str; 3] = ["yolos", "yolos_rest", "yolos_model"];

/// Models that detect objects with a ResNet.
pub(super) const DETRS: [&str; 2] = ["detr", "table_transformer"];

#[test]
fn objects_of_detr_equal_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: Detr, images: Array| model.forward(images));
    for name in DETRS {
        let (case, model) = (case(name)?, Detr::from_pretrained(folder(name))?);
        for number in 0..2 {
            let (logits, boxes) = forward.call((&model, case(&format!("pixel_values_{number}"))?))?;
            alike(name, &logits, &case(&format!("logits_{number}"))?)?;
            alike(name, &boxes, &case(&format!("boxes_{number}"))?)?;
        }
    }
    let model = Detr::from_pretrained(folder("detr"))?;
    fails_in_trace(|| model.forward(zeros([1, 3, 32, 32])).1, &["[1, 3, 32, 32]", "[batch, rows, columns, 3]"]);
    fails_in_trace(|| model.forward(zeros([1, 0, 32, 3])).0, &["no pixels"]);
    let read = |text: &str| Detr::read(&Config::from_json(text)?).map(|(read, _)| read);
    // The fields of published models.
    let base = read(
        r#"{"activation_dropout": 0.0, "activation_function": "relu", "architectures": ["DetrForObjectDetection"],
        "auxiliary_loss": false, "backbone": "resnet50", "bbox_cost": 5, "classifier_dropout": 0.0, "d_model": 256,
        "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layers": 6, "dilation": false, "encoder_layers": 6,
        "eos_coefficient": 0.1, "id2label": {"0": "N/A", "1": "person"}, "init_xavier_std": 1.0, "is_encoder_decoder": true,
        "max_position_embeddings": 1024, "model_type": "detr", "num_hidden_layers": 6, "num_queries": 100,
        "position_embedding_type": "sine", "scale_embedding": false, "use_timm_backbone": true}"#,
    )?;
    assert_eq!((base.classes, &base.encoder_of_images.hidden_sizes[..]), (2, &[256, 512, 1024, 2048][..]));
    let tables = read(
        r#"{"model_type": "table-transformer", "backbone": "resnet18", "num_queries": 15, "use_timm_backbone": true,
        "backbone_config": null, "id2label": {"0": "table", "1": "table rotated"}}"#,
    )?;
    assert_eq!((tables.pre_norms, tables.encoder_of_images.is_bottleneck), (true, false));
    for (fields, words) in [
        (r#""backbone": "resnet50d""#, "the `backbone` \"resnet50d\""),
        (r#""dilation": true"#, "`dilation` is true"),
        (r#""auxiliary_loss": true"#, "`auxiliary_loss` is true"),
        (r#""position_embedding_type": "learned""#, "`position_embedding_type` \"learned\""),
        (r#""d_model": 18, "encoder_attention_heads": 2, "decoder_attention_heads": 2"#, "must be a multiple of 4"),
        (r#""d_model": 20"#, "encoder_attention_heads (8) does not divide d_model"),
        (r#""backbone_config": {"model_type": "swin"}"#, "should be \"resnet\""),
        (r#""backbone_config": {"model_type": "resnet", "out_features": ["stage3"]}"#, "the last of the 4 stages"),
        (r#""architectures": ["DetrForSegmentation"]"#, "\"DetrForSegmentation\""),
    ] {
        fails(read(&format!(r#"{{"model_type": "detr", {fields}}}"#)), &[words]);
    }
    Ok(())
}

#[test]
fn objects_of_conditional_detr_equal_transformers() -> Result<()> {
    setup();
    let name = "conditional_detr";
    let forward = jit(|model: ConditionalDetr, images: Array| model.forward(images));
    let (case, model) = (case(name)?, ConditionalDetr::from_pretrained(folder(name))?);
    for number in (0..2).step_by(one_of(2)) {
        let (logits, boxes) = forward.call((&model, case(&format!("pixel_values_{number}"))?))?;
        alike(name, &logits, &case(&format!("logits_{number}"))?)?;
        alike(name, &boxes, &case(&format!("boxes_{number}"))?)?;
    }
    let mesh = make_mesh([("data", 2), ("model", 2)])?;
    let rules = Rules::new(&mesh, [("heads", "model"), ("mlp", "model")]);
    let split = ConditionalDetr::from_pretrained_with(folder(name), &LoadOptions::new().rules(&rules))?;
    let images = device_put(case("pixel_values_0")?, NamedSharding::new(&mesh, P!["data"]))?;
    alike(name, &forward.call((&split, images))?.0, &case("logits_0")?)?;
    save_again::<ConditionalDetr>(name, &Folder::new().join(name))?;
    fails_in_trace(|| model.forward(zeros([1, 3, 32, 32])).1, &["[1, 3, 32, 32]", "[batch, rows, columns, 3]"]);
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "conditional_detr"{fields}}}"#);
        ConditionalDetr::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The defaults of the class are a published model.
    assert_eq!(read(r#", "backbone": "resnet50""#)?.num_queries, 300);
    fails(read(r#", "architectures": ["ConditionalDetrForSegmentation"]"#), &["\"ConditionalDetrForSegmentation\""]);
    Ok(())
}

/// Models that detect objects by deformable attention.
pub(super) const DEFORMABLE: [&str; 3] = ["deformable_detr_proposals", "deformable_detr_refined", "deformable_detr"];

#[test]
fn objects_of_deformable_detr_equal_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: DeformableDetr, images: Array| model.forward(images));
    for name in DEFORMABLE {
        let (case, model) = (case(name)?, DeformableDetr::from_pretrained(folder(name))?);
        for number in (0..2).step_by(one_of(2)) {
            let (logits, boxes) = forward.call((&model, case(&format!("pixel_values_{number}"))?))?;
            alike(name, &logits, &case(&format!("logits_{number}"))?)?;
            alike(name, &boxes, &case(&format!("boxes_{number}"))?)?;
        }
    }
    let mesh = make_mesh([("data", 2), ("model", 2)])?;
    let rules = Rules::new(&mesh, [("heads", "model"), ("mlp", "model")]);
    let name = "deformable_detr_refined";
    let model = DeformableDetr::from_pretrained_with(folder(name), &LoadOptions::new().rules(&rules))?;
    let images = device_put(case(name)?("pixel_values_0")?, NamedSharding::new(&mesh, P!["data"]))?;
    alike(name, &forward.call((&model, images))?.0, &case(name)?("logits_0")?)?;
    let model = DeformableDetr::from_pretrained(folder("deformable_detr_proposals"))?;
    fails_in_trace(|| model.forward(zeros([1, 3, 32, 32])).1, &["[1, 3, 32, 32]", "[batch, rows, columns, 3]"]);
    fails_in_trace(|| model.forward(zeros([1, 0, 32, 3])).0, &["no pixels"]);
    fails_in_trace(|| model.forward(zeros([1, 4, 4, 3])).0, &["2 places", "3 objects"]);
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "deformable_detr"{fields}}}"#);
        DeformableDetr::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The defaults of the class are a published model.
    let base = read(
        r#", "backbone": "resnet50", "use_timm_backbone": true, "architectures": ["DeformableDetrForObjectDetection"]"#,
    )?;
    assert_eq!((&base.outputs[..], base.num_queries, base.points), (&[2, 3, 4][..], 300, [4, 4]));
    for (fields, words) in [
        (r#""d_model": 80"#, "`d_model` is 80, but norms need a multiple of 32"),
        (
            r#""num_feature_levels": 2"#,
            "`num_feature_levels` is 2, but must be at least the number of stages, which is 3",
        ),
        (r#""two_stage": true"#, "`two_stage` is true, but `with_box_refine` is false"),
        (r#""dilation": true"#, "`dilation` is true"),
        (r#""architectures": ["DeformableDetrModel"]"#, "\"DeformableDetrModel\""),
    ] {
        fails(read(&format!(", {fields}")), &[words]);
    }
    Ok(())
}

/// Published files can have a layer for classes for each block, of which the last one computes the classes.
#[test]
fn deformable_detr_prefers_layers_of_the_last_block() -> Result<()> {
    setup();
    let (from, temp) = (folder("deformable_detr_refined"), Folder::new());
    let (file, config) = (from.join("model.safetensors"), from.join("config.json"));
    let bytes = std::fs::read(file).expect("a file");
    let (length, rest) = bytes.split_first_chunk::<8>().expect("a length");
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: serde_json::Value = serde_json::from_slice(header).expect("a header");
    let mut data = data.to_vec();
    for (part, shape) in [("weight", vec![5, 32]), ("bias", vec![5])] {
        let ones = ones(shape.clone()).to_bytes()?;
        let offsets = [data.len(), data.len() + ones.len()];
        let about = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": offsets});
        header[format!("class_embed.1.{part}")] = about;
        data.extend(ones);
    }
    let header = header.to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    temp.write("model.safetensors", [&length[..], &header, &data].concat());
    std::fs::copy(config, temp.join("config.json")).expect("a copy");
    let model = DeformableDetr::from_pretrained(&temp.0)?;
    let classes = tree::leaves_with_path(&model).into_iter().filter(|(path, _)| path.contains("classes"));
    let classes = classes.map(|(_, leaf)| leaf.to_vec::<f32>()).collect::<Result<Vec<_>>>()?.concat();
    assert_eq!(classes, [1.0; 165]);
    Ok(())
}

/// Most published files have the names of the library `timm`.
#[test]
fn names_of_detr_are_the_names_of_timm() -> Result<()> {
    setup();
    let config = Config::from_json(
        r#"{"model_type": "detr", "backbone": "resnet18", "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "num_queries": 3}"#,
    )?;
    let temp = Folder::new();
    Detr::from_config(&config, &mut Rngs::new(0))?.save_pretrained(&config, temp.join("detr"))?;
    let weights = Weights::open(temp.join("detr"))?;
    let shape = |name: &str| weights.shape(&format!("model.backbone.conv_encoder.model.{name}")).map(<[usize]>::to_vec);
    for (name, expected) in [
        ("conv1.weight", vec![64, 3, 7, 7]),
        ("bn1.running_var", vec![64]),
        ("layer1.1.conv2.weight", vec![64, 64, 3, 3]),
        ("layer2.0.downsample.0.weight", vec![128, 64, 1, 1]),
        ("layer4.0.downsample.1.running_mean", vec![512]),
        ("layer4.1.bn2.bias", vec![512]),
    ] {
        assert_eq!(shape(name), Some(expected), "{name}");
    }
    assert_eq!(shape("layer1.0.downsample.0.weight"), None);
    Ok(())
}

#[test]
fn masks_of_sam_equal_transformers() -> Result<()> {
    setup();
    let (case, model) = (case("sam")?, Sam::from_pretrained(folder("sam"))?);
    let image = jit(|model: Sam, images: Array| model.encode(images)).call((&model, case("pixel_values")?))?;
    alike("sam", &image, &case("image")?)?;
    let (points, labels, boxes) = (case("points")?, case("labels")?, case("boxes")?);
    let all = SamPrompts::new().points(&points, &labels);
    for (name, prompts) in [
        ("points", all.clone()),
        ("boxes", SamPrompts::new().boxes(&boxes).single_mask()),
        ("all", all.clone().boxes(&boxes).masks(case("masks")?)),
        ("none", SamPrompts::new()),
    ] {
        let (masks, scores) = compiled(&model, |model| model.masks(&image, &prompts))?;
        alike(name, &masks, &case(&format!("masks_{name}"))?)?;
        alike(name, &scores, &case(&format!("scores_{name}"))?)?;
    }
    fails_in_trace(|| model.encode(zeros([1, 32, 40, 3])), &["[1, 32, 40, 3]", "[batch, 40, 40, 3]"]);
    fails_in_trace(|| model.masks(zeros([1, 4, 5, 8]), &all).0, &["[1, 4, 5, 8]", "[batch, 5, 5, 8]"]);
    let one = zeros([1, 5, 5, 8]);
    fails_in_trace(|| model.masks(&one, &all).1, &["points and labels", "[1, objects, points, 2]"]);
    fails_in_trace(|| model.masks(&one, &SamPrompts::new().boxes(&boxes)).0, &["boxes have the shape"]);
    fails_in_trace(|| model.masks(&one, &SamPrompts::new().masks(zeros([1, 5, 5]))).0, &["[1, 5, 5], not [1, 20, 20]"]);
    let read = |part: &str, fields: &str| {
        let text = format!(r#"{{"model_type": "sam", "{part}": {{{fields}}}}}"#);
        Sam::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    let base = read("vision_config", r#""projection_dim": 512"#)?;
    assert_eq!((base.windows[2], base.windows[3], base.mlp_dim), (0, 14, 3072));
    for (part, fields, words) in [
        ("vision_config", r#""num_pos_feats": 64"#, "twice as large as `num_pos_feats`"),
        ("vision_config", r#""patch_size": 15"#, "patch_size (15) does not divide image_size"),
        ("vision_config", r#""window_size": -1"#, "`window_size` is -1"),
        ("prompt_encoder_config", r#""hidden_size": 128"#, "`hidden_size` must be 256"),
        ("prompt_encoder_config", r#""num_point_embeddings": 5"#, "`num_point_embeddings` must be 4"),
        ("mask_decoder_config", r#""attention_downsample_rate": 3"#, "attention_downsample_rate (3) does not divide"),
        ("mask_decoder_config", r#""iou_head_depth": 1"#, "`iou_head_depth` must be 2 to 1000"),
        ("mask_decoder_config", r#""sliding_window": 4"#, "`sliding_window` is 4"),
    ] {
        fails(read(part, fields), &[words]);
    }
    Ok(())
}

#[test]
fn joints_equal_transformers() -> Result<()> {
    setup();
    let (case, model) = (case("vitpose")?, VitPose::from_pretrained(folder("vitpose"))?);
    let maps = jit(|model: VitPose, images: Array| model.forward(images)).call((&model, case("pixel_values")?))?;
    alike("vitpose", &maps, &case("logits")?)?;
    fails_in_trace(|| model.forward(zeros([1, 15, 16, 3])), &["[1, 15, 16, 3]", "[batch, 16, 15, 3]"]);
    let read = |fields: &str, about: &str| {
        let about = format!(r#"{{"model_type": "vitpose_backbone", "out_indices": [12]{about}}}"#);
        let text = format!(r#"{{"model_type": "vitpose", "backbone_config": {about}{fields}}}"#);
        VitPose::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    let base = read(r#", "id2label": {"0": "Nose", "1": "L_Eye", "2": "R_Eye"}"#, "")?;
    assert_eq!((base.image_size, base.scale, base.joints), ([256, 192], Some(4), 3));
    for (fields, about, words) in [
        (r#", "scale_factor": 100"#, "", "`scale_factor` must be at most 64"),
        ("", r#", "num_experts": 6"#, "`num_experts` must be 1"),
        ("", r#", "out_indices": [11]"#, "must end with the last of the 12 layers"),
        ("", r#", "patch_size": [16, 4]"#, "`image_size` has 192, which does not fit patches of 4"),
        ("", r#", "patch_size": [16]"#, "`patch_size` must have two sizes"),
        ("", r#", "model_type": "vit""#, "should be \"vitpose_backbone\""),
    ] {
        fails(read(fields, about), &[words]);
    }
    // Two transposed convolutions double the size twice.
    let config = Config::from_json(
        r#"{"model_type": "vitpose", "use_simple_decoder": false, "backbone_config": {"model_type": "vitpose_backbone",
        "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "image_size": [16, 16], "patch_size": 8, "out_indices": [1]}}"#,
    )?;
    let doubled = VitPose::from_config(&config, &mut Rngs::new(0))?;
    assert_eq!(doubled.forward(zeros([1, 16, 16, 3])).shape(), [1, 8, 8, 2]);
    Ok(())
}

/// Models that detect objects that texts describe.
pub(super) const OWLS: [&str; 2] = ["owlvit", "owlv2"];

#[test]
fn objects_of_texts_equal_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: Owl, tokens: Array, images: Array| model.forward(tokens, images));
    for name in OWLS {
        let (case, model) = (case(name)?, Owl::from_pretrained(folder(name))?);
        for number in 0..2 {
            let images = case(&format!("pixel_values_{number}"))?;
            let (logits, boxes) = forward.call((&model, case("input_ids")?, &images))?;
            compare_logits(name, &logits, &case(&format!("logits_{number}"))?)?;
            alike(name, &boxes, &case(&format!("boxes_{number}"))?)?;
            // Other texts for each image.
            let (logits, _) = forward.call((&model, case("input_ids_0")?, &images))?;
            compare_logits(name, &logits, &case(&format!("logits_each_{number}"))?)?;
            match case(&format!("objectness_{number}")) {
                Ok(expected) => alike(name, &compiled(&model, |model| model.objectness(&images))?, &expected)?,
                Err(_) => fails_in_trace(|| model.objectness(&images), &["the model does not compute", "owlv2"]),
            }
        }
        fails_in_trace(|| model.forward(zeros_dtype([3, 3, 5], DType::I32), zeros([2, 8, 8, 3])).0, &["for 2 images"]);
        fails_in_trace(
            || model.forward(zeros_dtype([1, 13], DType::I32), zeros([2, 8, 8, 3])).0,
            &["texts of 13 tokens"],
        );
        fails_in_trace(
            || model.forward(zeros_dtype([1, 5], DType::I32), zeros([2, 3, 8, 3])).0,
            &["images are less than a patch of 4 by 4"],
        );
    }
    let read = |fields: &str| Owl::read(&Config::from_json(&format!("{{{fields}}}"))?).map(|(read, _)| read);
    // The configurations of published models have only a few fields.
    let base = read(r#""model_type": "owlv2", "vision_config": {"image_size": 960, "patch_size": 16}"#)?;
    assert_eq!((base.clip.text.num_attention_heads, base.clip.vision.num_attention_heads), (8, 12));
    fails(read(r#""model_type": "owlvit", "projection_dim": 10"#), &["`projection_dim` must be 512, got 10"]);
    fails(read(r#""model_type": "owlvit", "architectures": ["OwlViTModel"]"#), &["does not detect objects"]);
    fails(read(r#""model_type": "owlvit", "text_config": {"hidden_dropout": 0, "scale": 2}"#), &["field `scale` is 2"]);
    Ok(())
}

/// Compares logits. The logits of padding are the lowest numbers of the dtype.
fn compare_logits(name: &str, logits: &Array, expected: &Array) -> Result<()> {
    let is_text = expected.greater(f32::MIN);
    assert!(logits.greater(f32::MIN).equal(&is_text).all(..).item::<bool>()?, "{name}");
    alike(name, &where_(&is_text, logits, 0.0f32), &where_(&is_text, expected, 0.0f32))
}

/// Models that detect the objects that a text describes.
pub(super) const GROUNDINGS: [&str; 3] = ["mm_grounding_dino", "grounding_dino_boxes", "grounding_dino"];

#[test]
fn objects_of_grounding_dino_equal_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: GroundingDino, tokens: Array, mask: Array, images: Array| {
        model.forward(tokens, images, &BertOptions::new().attention_mask(mask))
    });
    for name in GROUNDINGS.into_iter().step_by(one_of(3)) {
        let (case, model) = (case(name)?, GroundingDino::from_pretrained(folder(name))?);
        let (tokens, mask) = (case("input_ids")?, case("attention_mask")?);
        for number in (0..2).rev().step_by(one_of(2)) {
            let images = case(&format!("pixel_values_{number}"))?;
            let (logits, boxes) = forward.call((&model, &tokens, &mask, images))?;
            compare_logits(name, &logits, &case(&format!("logits_{number}"))?)?;
            alike(name, &boxes, &case(&format!("boxes_{number}"))?)?;
        }
        save_again::<GroundingDino>(name, &Folder::new().join(name))?;
    }
    let model = GroundingDino::from_pretrained(folder("grounding_dino"))?;
    let (one, options) = (zeros_dtype([1, 4], DType::I32), BertOptions::new());
    fails_in_trace(|| model.forward(&one, zeros([2, 16, 16, 3]), &options).0, &["1 texts for images of the shape"]);
    fails(
        model.forward(&one, zeros([1, 3, 16, 16]), &options).1.check(),
        &["[1, 3, 16, 16]", "[batch, rows, columns, 3]"],
    );
    fails_in_trace(|| model.forward(&one, zeros([1, 2, 2, 3]), &options).0, &["less than a window of 3 by 3"]);
    let long = zeros_dtype([1, 17], DType::I32);
    fails_in_trace(|| model.forward(&long, zeros([1, 16, 16, 3]), &options).0, &["texts of 17 tokens", "1 to 16"]);
    let read = |kind: &str, fields: &str| {
        let text = format!(r#"{{"model_type": "{kind}"{fields}}}"#);
        GroundingDino::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The defaults of the classes are the sizes of published models.
    let base = read("grounding-dino", "")?;
    assert_eq!((base.outputs, base.num_queries, base.class_biases), (vec![2, 3, 4], 900, 0));
    assert_eq!(read("mm-grounding-dino", r#", "decoder_cls_embed_share": false"#)?.class_biases, 6);
    for (fields, words) in [
        (r#", "two_stage": false"#, "field `two_stage` is false"),
        (r#", "tie_word_embeddings": false"#, "field `tie_word_embeddings` is false"),
        (r#", "position_embedding_type": "learned""#, "`position_embedding_type` \"learned\""),
        (r#", "query_dim": 2"#, "field `query_dim` must be 4, got 2"),
        (r#", "d_model": 40"#, "`d_model` is 40, but norms need a multiple of 32"),
        (r#", "num_feature_levels": 2"#, "`num_feature_levels` is 2, but must be 3"),
        (
            r#", "encoder_ffn_dim": 4"#,
            "half of encoder_attention_heads (4) does not divide half of encoder_ffn_dim (2)",
        ),
        (r#", "backbone_config": {"model_type": "resnet"}"#, "should be \"swin\""),
        (r#", "backbone": "resnet50""#, "`backbone` is set"),
        (r#", "text_config": {"model_type": "roberta"}"#, "should be \"bert\""),
        (r#", "architectures": ["GroundingDinoModel"]"#, "\"GroundingDinoModel\""),
    ] {
        fails(read("grounding-dino", fields), &[words]);
    }
    Ok(())
}

/// Models that detect objects with deformable attention.
pub(super) const RT_DETRS: [&str; 3] = ["rt_detr", "rt_detr_basic", "rt_detr_v2"];

#[test]
fn objects_of_rt_detr_equal_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: RtDetr, images: Array| model.forward(images));
    for name in RT_DETRS.into_iter().skip(one_of(3) - 1).step_by(one_of(2)) {
        let (case, model) = (case(name)?, RtDetr::from_pretrained(folder(name))?);
        for number in 0..2 {
            let (logits, boxes) = forward.call((&model, case(&format!("pixel_values_{number}"))?))?;
            alike(name, &logits, &case(&format!("logits_{number}"))?)?;
            alike(name, &boxes, &case(&format!("boxes_{number}"))?)?;
        }
        save_again::<RtDetr>(name, &Folder::new().join(name))?;
    }
    let model = RtDetr::from_pretrained(folder("rt_detr"))?;
    fails_in_trace(|| model.forward(zeros([1, 3, 32, 32])).1, &["[1, 3, 32, 32]", "[batch, rows, columns, 3]"]);
    fails_in_trace(|| model.forward(zeros([1, 48, 32, 3])).0, &["48 by 32 pixels", "multiples of 32"]);
    fails_in_trace(|| model.forward(zeros([1, 0, 32, 3])).0, &["0 by 32 pixels"]);
    let read = |text: &str| RtDetr::read(&Config::from_json(text)?).map(|(read, _)| read);
    // The defaults of the classes are RT-DETR with ResNet-50. Published configurations have all fields of the backbone's base class.
    let base = read(
        r#"{"model_type": "rt_detr", "backbone_config": {"model_type": "rt_detr_resnet", "out_indices": [2, 3, 4], "bos_token_id": null,
        "chunk_size_feed_forward": 0, "return_dict": true, "stage_names": ["stem", "stage1", "stage2", "stage3", "stage4"]}}"#,
    )?;
    assert_eq!((base.backbone.outputs, base.num_queries, base.offset_scale), (vec![2, 3, 4], 300, 0.5));
    for (fields, words) in [
        (r#""learn_initial_query": true"#, "field `learn_initial_query` is true"),
        (r#""anchor_image_size": [640, 640]"#, "`anchor_image_size` is set"),
        (r#""decoder_method": "discrete""#, "`decoder_method` \"discrete\" is not supported"),
        (r#""decoder_n_levels": 4"#, "field `decoder_n_levels` must be 3, got 4"),
        (r#""num_feature_levels": 4"#, "field `num_feature_levels` must be 3, got 4"),
        (r#""encode_proj_layers": [3]"#, "`encode_proj_layers` is [3.0], but there are 3 stages"),
        (
            r#""encoder_in_channels": [512, 1024]"#,
            "`encoder_in_channels` is [512, 1024], but must be [512, 1024, 2048]",
        ),
        (r#""decoder_in_channels": [256, 256]"#, "`decoder_in_channels` is [256, 256], but must be [256, 256, 256]"),
        (r#""hidden_expansion": 0.0001"#, "`hidden_expansion` is 0.0001"),
        (r#""decoder_n_points": [4, 4, 4]"#, "field `decoder_n_points` must be a positive integer"),
        (r#""encoder_hidden_dim": 258"#, "encoder_attention_heads (8) does not divide encoder_hidden_dim (258)"),
        (r#""backbone_config": {"model_type": "resnet"}"#, "the model_type is \"resnet\""),
        (r#""backbone_config": {"out_indices": [0, 3]}"#, "`out_indices` are [0, 3], but must be stages from 1 on"),
        (r#""backbone_config": {"embedding_size": 3}"#, "`embedding_size` is 3, but must be even"),
        (r#""encoder_layers": 4000000000"#, "`encoder_layers`"),
    ] {
        fails(read(&format!(r#"{{"model_type": "rt_detr_v2", {fields}}}"#)), &[words]);
    }
    Ok(())
}

#[test]
fn described_pixels_equal_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: ClipSeg, tokens: Array, images: Array| model.forward(tokens, images));
    for name in ["clipseg_pixels", "clipseg"].into_iter().step_by(one_of(2)) {
        let (case, model) = (case(name)?, ClipSeg::from_pretrained(folder(name))?);
        for number in 0..2 {
            let images = case(&format!("pixel_values_{number}"))?;
            let logits = forward.call((&model, case("input_ids")?, &images))?;
            alike(name, &logits, &case(&format!("logits_{number}"))?)?;
            let described = case("pixel_values")?;
            let logits = compiled(&model, |model| model.find(model.clip.image_features(&described), &images))?;
            alike(name, &logits, &case(&format!("logits_image_{number}"))?)?;
        }
        save_again::<ClipSeg>(name, &Folder::new().join(name))?;
    }
    let model = ClipSeg::from_pretrained(folder("clipseg"))?;
    let tokens = array([[3, 31]]);
    fails_in_trace(|| model.forward(&tokens, zeros([2, 16, 16, 3])), &["1 descriptions for 2 images"]);
    fails_in_trace(|| model.forward(&tokens, zeros([1, 16, 20, 3])), &["16 by 20 pixels are no squares"]);
    fails_in_trace(|| model.forward(&tokens, zeros([16, 16, 3])), &["[16, 16, 3]", "[batch, rows, columns, channels]"]);
    let read = |text: &str| ClipSeg::read(&Config::from_json(text)?).map(|(read, _)| read);
    let refined = read(
        r#"{"model_type": "clipseg", "use_complex_transposed_convolution": true, "vision_config": {"patch_size": 16}}"#,
    )?;
    assert_eq!((refined.layers, refined.features), (vec![3, 6, 9], 64));
    for (fields, words) in [
        (
            r#""extract_layers": [3, 12]"#,
            "`extract_layers` is [3.0, 12.0], but must be increasing layers of the 12 layers",
        ),
        (r#""extract_layers": []"#, "`extract_layers` is []"),
        (r#""conditional_layer": 3"#, "`conditional_layer` is 3, but there are fewer layers"),
        (r#""decoder_num_attention_heads": 5"#, "decoder_num_attention_heads (5) does not divide reduce_dim (64)"),
        (r#""architectures": ["CLIPSegModel"]"#, "the class \"CLIPSegModel\""),
        (
            r#""use_complex_transposed_convolution": true, "vision_config": {"patch_size": 14}"#,
            "`patch_size` must be a multiple of 4",
        ),
    ] {
        fails(read(&format!(r#"{{"model_type": "clipseg", {fields}}}"#)), &[words]);
    }
    Ok(())
}
