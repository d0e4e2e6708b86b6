//! Models of images, and of images and texts (`tools/huggingface/towers.py`).

use std::path::Path;

use shardax_models::huggingface::{SegformerHead, SwinVersion};
use shardax_models::{
    BertOptions, Bit, ChineseClip, Clip, ConditionalDetr, Config, ConvNext, DeformableDetr, DepthEstimator, Detr, Glpn,
    GroundingDino, Levit, LoadOptions, MobileNet, MobileVit, Owl, PoolFormer, Pretrained, Resnet, Sam, Segformer,
    Siglip, Swin, Vit, VitPose, Yolos,
};
use shardax_nn::prelude::*;

use super::common::{Folder, fails};
use super::objects::{DEFORMABLE, DETRS, GROUNDINGS, OWLS, YOLOS};
use super::quick::one_of;
use super::saved::save_again;
use super::{alike, alike_within, case, compiled, fails_in_trace, folder, setup};

/// Divides vectors along the last dimension by their lengths.
fn with_unit_length(x: Array) -> Array {
    &x / x.square().sum_keepdims(-1).sqrt()
}

#[test]
fn vit_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: Vit, images: Array| model.forward(images));
    for name in [
        "vit",
        "deit",
        "deit_teacher",
        "vit_msn",
        "ijepa",
        "beit",
        "beit_model",
        "data2vec_vision",
        "vit_mae",
        "vit_mae_pretraining",
    ] {
        let (case, model) = (case(name)?, Vit::from_pretrained(folder(name))?);
        alike(name, &forward.call((&model, case("pixel_values")?))?, &case("logits")?)?;
    }
    Ok(())
}

#[test]
fn clip_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: Clip, tokens: Array, images: Array| {
        let (texts, pictures) =
            (with_unit_length(model.text_features(&tokens)), with_unit_length(model.image_features(&images)));
        (model.forward(tokens, images), texts, pictures)
    });
    for name in ["clip", "clip_largest", "metaclip_2"].into_iter().step_by(one_of(3)) {
        let (case, model) = (case(name)?, Clip::from_pretrained(folder(name))?);
        let (logits, texts, images) = forward.call((&model, case("input_ids")?, case("pixel_values")?))?;
        alike(name, &logits, &case("logits_per_image")?)?;
        alike(name, &texts, &case("text_embeds")?)?;
        alike(name, &images, &case("image_embeds")?)?;
    }
    let model = Clip::from_pretrained(folder("clip"))?;
    fails_in_trace(|| model.text_features(zeros_dtype([1, 13], DType::I32)), &["texts of 13 tokens", "12 positions"]);
    fails_in_trace(|| model.image_features(zeros([1, 12, 12, 3])), &["[3, 3] patches", "2 by 2", "resize"]);
    Ok(())
}

#[test]
fn siglip_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let forward = jit(|model: Siglip, tokens: Array, images: Array| {
        let (texts, pictures) =
            (with_unit_length(model.text_features(&tokens)), with_unit_length(model.image_features(&images)));
        (model.forward(tokens, images), texts, pictures)
    });
    let (case, model) = (case("siglip")?, Siglip::from_pretrained(folder("siglip"))?);
    let (logits, texts, images) = forward.call((&model, case("input_ids")?, case("pixel_values")?))?;
    alike("siglip", &logits, &case("logits_per_image")?)?;
    alike("siglip", &texts, &case("text_embeds")?)?;
    alike("siglip", &images, &case("image_embeds")?)?;
    fails_in_trace(|| model.text_features(zeros_dtype([1, 13], DType::I32)), &["texts of 13 tokens", "12 positions"]);
    fails_in_trace(|| model.image_features(zeros([1, 12, 12, 3])), &["[3, 3] patches", "2 by 2", "resize"]);
    let (case, naflex) = (self::case("siglip2")?, Siglip::from_pretrained(folder("siglip2"))?);
    for suffix in ["", "_1", "_2"].into_iter().skip(one_of(2) - 1).step_by(one_of(3)) {
        let images = case(&format!("pixel_values{suffix}"))?;
        let (logits, texts, images) = forward.call((&naflex, case("input_ids")?, images))?;
        alike("siglip2", &logits, &case(&format!("logits_per_image{suffix}"))?)?;
        alike("siglip2", &texts, &case("text_embeds")?)?;
        alike("siglip2", &images, &case(&format!("image_embeds{suffix}"))?)?;
    }
    fails_in_trace(|| naflex.image_features(zeros([1, 12, 14, 3])), &["images of 12 by 14 pixels", "4 by 4"]);
    let vision = r#"{"model_type": "siglip2", "vision_config": {"num_patches": 200}}"#;
    fails(Siglip::read(&Config::from_json(vision)?), &["`num_patches` is 200"]);
    Ok(())
}

#[test]
fn dino_has_the_results_of_transformers_for_images_of_any_size() -> Result<()> {
    setup();
    let forward = jit(|model: Vit, images: Array| model.forward(images));
    let names = ["dinov2", "dinov2_model", "dinov2_registers", "dinov3", "dinov3_gated"];
    for name in names.into_iter().skip(one_of(3) - 1).step_by(one_of(2)) {
        let (case, model) = (case(name)?, Vit::from_pretrained(folder(name))?);
        for number in 0..2 {
            let logits = forward.call((&model, case(&format!("pixel_values_{number}"))?))?;
            alike(name, &logits, &case(&format!("logits_{number}"))?)?;
        }
    }
    for name in ["vit", "beit"] {
        let vit = Vit::from_pretrained(folder(name))?;
        fails_in_trace(|| vit.forward(zeros([1, 12, 12, 3])), &["[3, 3] patches", "2 by 2"]);
    }
    Ok(())
}

/// Compares the logits of images of several sizes, or of one size if the model accepts only one.
fn compare_stages<M: Pretrained>(name: &str, forward: fn(M, Array) -> Array) -> Result<()> {
    let (case, model) = (case(name)?, M::from_pretrained(folder(name))?);
    // A slice has the last size of those that a model accepts.
    for number in (0..3).rev() {
        let Ok(images) = case(&format!("pixel_values_{number}")) else { continue };
        // The results of transformers for this model differ by 1.4e-4 from its results in float64.
        let tolerance = if name == "mobilenet_v2_model" { 3e-4 } else { 1e-4 };
        let logits = jit(forward).call((&model, images))?;
        alike_within(name, &logits, &case(&format!("logits_{number}"))?, tolerance)?;
        if one_of(2) == 2 {
            break;
        }
    }
    Ok(())
}

#[test]
fn models_of_stages_have_the_results_of_transformers() -> Result<()> {
    setup();
    // A slice has the first of each kind of blocks.
    for name in ["resnet", "resnet_model", "regnet", "regnet_model"].into_iter().step_by(one_of(2)) {
        compare_stages(name, |model: Resnet, images| model.forward(images))?;
    }
    for name in ["convnextv2", "convnext", "convnext_model"].into_iter().step_by(one_of(3)) {
        compare_stages(name, |model: ConvNext, images| model.forward(images))?;
    }
    for name in ["swin", "swin_model", "swinv2", "donut_classes"].into_iter().step_by(one_of(2)) {
        compare_stages(name, |model: Swin, images| model.forward(images))?;
    }
    for name in
        ["segformer_pixels", "pvt_v2_model", "pvt", "segformer", "pvt_model", "pvt_v2"].into_iter().step_by(one_of(2))
    {
        compare_stages(name, |model: Segformer, images| model.forward(images))?;
    }
    for name in ["levit", "levit_model"].into_iter().step_by(one_of(2)) {
        compare_stages(name, |model: Levit, images| model.forward(images))?;
    }
    let levit = |fields: &str| {
        let text = format!(r#"{{"model_type": "levit"{fields}}}"#);
        Levit::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The defaults of the class are the sizes of a published model.
    assert_eq!((levit("")?.grid, levit("")?.hidden_sizes), (14, [128, 256, 384]));
    fails(levit(r#", "depths": [4, 4]"#), &["`depths` has 2 entries, but must have 3"]);
    fails(
        levit(r#", "hidden_sizes": [12, 256, 384]"#),
        &["the features of convolutions (8) does not divide hidden_sizes"],
    );
    fails(levit(r#", "image_size": 8"#), &["which give 0 patches"]);
    fails(
        levit(r#", "key_dim": [300, 16, 16]"#),
        &["`key_dim` has a number that is more than the features of a stage"],
    );
    let levit = Levit::from_pretrained(folder("levit"))?;
    fails_in_trace(|| levit.forward(zeros([1, 32, 64, 3])), &["2 by 4 patches", "4 by 4"]);
    for name in ["bit", "bit_model"].into_iter().skip(one_of(2) - 1) {
        compare_stages(name, |model: Bit, images| model.forward(images))?;
    }
    let bit = |fields: &str| {
        let text = format!(r#"{{"model_type": "bit"{fields}}}"#);
        Bit::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The defaults of the class are the smallest published model.
    assert_eq!(bit("")?.hidden_sizes, [256, 512, 1024, 2048]);
    fails(bit(r#", "global_padding": "valid""#), &["the global_padding \"valid\" is not supported"]);
    fails(bit(r#", "layer_type": "basic""#), &["the layer_type \"basic\""]);
    fails(bit(r#", "depths": [1, 1]"#), &["`hidden_sizes` has 4 stages, but `depths` has 2"]);
    fails(bit(r#", "width_factor": 3"#), &["`width_factor`", "differs from the last size"]);
    fails(bit(r#", "num_groups": 48"#), &["num_groups (48) does not divide the features of a norm"]);
    for name in ["poolformer", "poolformer_model"].into_iter().step_by(one_of(2)) {
        compare_stages(name, |model: PoolFormer, images| model.forward(images))?;
    }
    for name in ["mobilevit_model", "mobilevit"].into_iter().step_by(one_of(2)) {
        compare_stages(name, |model: MobileVit, images| model.forward(images))?;
    }
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "mobilevit"{fields}}}"#);
        MobileVit::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The defaults of the class are the largest published model.
    assert_eq!(read("")?.hidden_sizes, [144, 192, 240]);
    fails(read(r#", "output_stride": 16"#), &["field `output_stride` must be 32, got 16"]);
    fails(read(r#", "conv_kernel_size": 4"#), &["`conv_kernel_size` is 4", "must be odd"]);
    fails(read(r#", "hidden_sizes": [144, 192]"#), &["`hidden_sizes` has 2 sizes, but must have 3"]);
    fails(read(r#", "mlp_ratio": 0.001"#), &["`mlp_ratio` is 0.001"]);
    fails(read(r#", "expand_ratio": 1e30"#), &["`expand_ratio` is"]);
    fails(read(r#", "num_attention_heads": 5"#), &["num_attention_heads (5) does not divide hidden_sizes (144)"]);
    let names = ["mobilenet_v1", "mobilenet_v2", "mobilenet_v2_model", "efficientnet", "efficientnet_model"];
    for name in names.into_iter().skip(one_of(2) - 1).step_by(one_of(2)) {
        compare_stages(name, |model: MobileNet, images| model.forward(images))?;
    }
    let (swin, resnet) = (Swin::from_pretrained(folder("swin_model"))?, Resnet::from_pretrained(folder("resnet"))?);
    fails_in_trace(|| swin.forward(zeros([1, 32, 32, 3])), &["[16, 16] patches", "8 by 8"]);
    fails_in_trace(|| resnet.forward(zeros([1, 3, 32, 32])), &["[1, 3, 32, 32]", "[batch, rows, columns, 3]"]);
    let swin = Swin::from_pretrained(folder("swin"))?;
    let pool = PoolFormer::from_pretrained(folder("poolformer"))?;
    fails_in_trace(|| pool.forward(zeros([1, 1, 9, 3])), &["the images are too small"]);
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "poolformer"{fields}}}"#);
        PoolFormer::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The smallest published model has the defaults of its class.
    assert_eq!(read("")?.patches, [[7, 4, 2], [3, 2, 1], [3, 2, 1], [3, 2, 1]]);
    fails(read(r#", "pool_size": 4"#), &["`pool_size` is 4, but must be odd"]);
    fails(read(r#", "strides": [4, 2]"#), &["must have 4 entries, as `hidden_sizes`, got [4, 2]"]);
    fails(read(r#", "padding": [1.5, 0, 0, 0]"#), &["field `padding` has 1.5"]);
    fails(read(r#", "mlp_ratio": 0.001"#), &["`mlp_ratio` is 0.001, with which 64 features have no MLP"]);
    fails(read(r#", "num_encoder_blocks": 3"#), &["field `num_encoder_blocks` must be 4, got 3"]);
    fails_in_trace(|| swin.forward(zeros([1, 8, 4, 3])), &["4 by 2 patches", "a window of 3 by 3"]);
    Ok(())
}

#[test]
fn depths_of_glpn_equal_transformers() -> Result<()> {
    setup();
    for name in GLPNS {
        compare_stages(name, |model: Glpn, images| model.forward(images))?;
    }
    let model = Glpn::from_pretrained(folder("glpn"))?;
    fails_in_trace(|| model.forward(zeros([1, 3, 32, 32])), &["[1, 3, 32, 32]", "[batch, rows, columns, 3]"]);
    fails_in_trace(|| model.forward(zeros([1, 36, 32, 3])), &["[1, 9, 8, 6]", "[1, 10, 8, 6]", "multiples of 32"]);
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "glpn"{fields}}}"#);
        Glpn::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The fields of a published model.
    let kitti = read(
        r#", "architectures": ["GLPNForDepthEstimation"], "attention_probs_dropout_prob": 0.0, "decoder_hidden_size": 64,
        "depths": [3, 8, 27, 3], "downsampling_rates": [1, 4, 8, 16], "drop_path_rate": 0.1, "head_in_index": -1,
        "hidden_act": "gelu", "hidden_dropout_prob": 0.0, "hidden_sizes": [64, 128, 320, 512], "image_size": 224,
        "initializer_range": 0.02, "layer_norm_eps": 1e-06, "max_depth": 80, "mlp_ratios": [4, 4, 4, 4],
        "num_attention_heads": [1, 2, 5, 8], "num_channels": 3, "num_encoder_blocks": 4, "patch_sizes": [7, 3, 3, 3],
        "sr_ratios": [8, 4, 2, 1], "strides": [4, 2, 2, 2], "torch_dtype": "float32""#,
    )?;
    assert_eq!((kitti.head_index, kitti.max_depth), (3, 80.0));
    for (fields, words) in [
        (r#", "head_in_index": 4"#, "`head_in_index` is 4"),
        (r#", "decoder_hidden_size": 1"#, "`decoder_hidden_size` must be at least 2"),
        (r#", "architectures": ["GLPNModel"]"#, "\"GLPNModel\""),
    ] {
        fails(read(fields), &[words]);
    }
    Ok(())
}

/// Models of depths with the encoder of SegFormer.
const GLPNS: [&str; 2] = ["glpn", "glpn_inner"];

#[test]
fn depths_equal_transformers() -> Result<()> {
    setup();
    for name in DEPTHS.into_iter().step_by(one_of(2)) {
        compare_stages(name, |model: DepthEstimator, images| model.forward(images))?;
    }
    let model = DepthEstimator::from_pretrained(folder("depth_anything"))?;
    fails_in_trace(|| model.forward(zeros([1, 16, 18, 3])), &["images of 16 by 18 pixels", "4 by 4"]);
    fails_in_trace(|| model.forward(zeros([16, 16, 3])), &["[16, 16, 3]"]);
    let read = |fields: &str, about: &str| {
        let about = format!(
            r#"{{"model_type": "dinov2", "image_size": 518, "patch_size": 14, "hidden_size": 384, "num_attention_heads": 6,
            "out_features": ["stage9", "stage10", "stage11", "stage12"], "reshape_hidden_states": false{about}}}"#
        );
        let text = format!(
            r#"{{"architectures": ["DepthAnythingForDepthEstimation"], "backbone": null, "backbone_config": {about},
            "depth_estimation_type": "relative", "fusion_hidden_size": 64, "head_hidden_size": 32, "head_in_index": -1,
            "initializer_range": 0.02, "max_depth": null, "model_type": "depth_anything", "neck_hidden_sizes": [48, 96, 192, 384],
            "patch_size": 14, "reassemble_factors": [4, 2, 1, 0.5], "reassemble_hidden_size": 384,
            "use_pretrained_backbone": false{fields}}}"#
        );
        DepthEstimator::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The fields of a published model.
    let small = read("", "")?;
    assert_eq!((&small.layers[..], small.head_index, small.max_depth), (&[9, 10, 11, 12][..], 3, 1.0));
    assert_eq!(read("", r#", "out_indices": [9, 10, 11, -1]"#)?.layers, small.layers);
    for (fields, about, words) in [
        (r#", "patch_size": 16"#, "", "`patch_size` must be 14"),
        (r#", "reassemble_hidden_size": 16"#, "", "`reassemble_hidden_size` must be 384"),
        (r#", "reassemble_factors": [4, 2, 1, 0.0]"#, "", "`reassemble_factors` has 0"),
        (r#", "reassemble_factors": [4, 1.5, 1, 1]"#, "", "`reassemble_factors` has 1.5"),
        (r#", "neck_hidden_sizes": [48]"#, "", "4 layers of the encoder"),
        (r#", "head_in_index": 4"#, "", "`head_in_index` is 4"),
        (r#", "depth_estimation_type": "mean""#, "", "`depth_estimation_type` \"mean\""),
        (r#", "fusion_hidden_size": 1"#, "", "`fusion_hidden_size` must be"),
        ("", r#", "out_indices": [4, 3, 11, 12]"#, "must be increasing layers"),
        ("", r#", "out_indices": [4, 5, 11, 13]"#, "must be increasing layers"),
        ("", r#", "reshape_hidden_states": true"#, "`reshape_hidden_states` must be false"),
        ("", r#", "model_type": "beit""#, "should be \"dinov2\""),
        ("", r#", "sliding_window": 4"#, "field `sliding_window` is 4"),
    ] {
        fails(read(fields, about), &[words]);
    }
    let model = DepthEstimator::from_pretrained(folder("dpt"))?;
    fails_in_trace(|| model.forward(zeros([1, 16, 12, 3])), &["images of 4 by 3 patches are not squares"]);
    let known = || model.forward_with_depths(zeros([1, 16, 16, 3]), zeros([1, 4, 4]));
    fails_in_trace(known, &["the model does not read depths", "`prompt_depth_anything`"]);
    let dpt = |text: &str| DepthEstimator::read(&Config::from_json(text)?).map(|(read, _)| read);
    // The fields of a published model.
    let large = dpt(
        r#"{"architectures": ["DPTForDepthEstimation"], "auxiliary_loss_weight": 0.4, "backbone": null, "backbone_config": null,
        "backbone_featmap_shape": null, "backbone_out_indices": [5, 11, 17, 23], "fusion_hidden_size": 256, "head_in_index": -1,
        "hidden_size": 1024, "image_size": 384, "intermediate_size": 4096, "is_hybrid": false, "model_type": "dpt",
        "neck_hidden_sizes": [256, 512, 1024, 1024], "neck_ignore_stages": [], "num_attention_heads": 16, "num_hidden_layers": 24,
        "patch_size": 16, "readout_type": "project", "reassemble_factors": [4, 2, 1, 0.5], "use_auxiliary_head": true,
        "use_batch_norm_in_fusion_residual": false, "use_bias_in_fusion_residual": null}"#,
    )?;
    assert_eq!((&large.layers[..], large.readout.is_some(), large.fusion_bias), (&[6, 12, 18, 24][..], true, true));
    for (fields, words) in [
        (r#""is_hybrid": true"#, "`backbone_config` is missing"),
        (r#""neck_ignore_stages": [0]"#, "`neck_ignore_stages` must be empty"),
        (r#""add_projection": true"#, "`add_projection` is true"),
        (r#""readout_type": "add""#, "`readout_type` \"add\""),
        (r#""backbone_out_indices": [0, 12]"#, "`backbone_out_indices` must be layers of the 12 layers"),
        (r#""backbone_config": {"model_type": "beit"}"#, "should be \"dinov2\""),
        (r#""architectures": ["DPTForSemanticSegmentation"]"#, "\"DPTForSemanticSegmentation\""),
    ] {
        fails(
            dpt(&format!(r#"{{"model_type": "dpt", "neck_ignore_stages": [], {fields}}}"#)
                .replace(r#""neck_ignore_stages": [], "neck_ignore"#, r#""neck_ignore"#)),
            &[words],
        );
    }
    Ok(())
}

#[test]
fn depths_after_convolutions_equal_transformers() -> Result<()> {
    setup();
    compare_stages("dpt_hybrid", |model: DepthEstimator, images| model.forward(images))?;
    let model = DepthEstimator::from_pretrained(folder("dpt_hybrid"))?;
    fails_in_trace(|| model.forward(zeros([1, 3, 32, 32])), &["[1, 3, 32, 32]", "[batch, rows, columns, 3]"]);
    fails_in_trace(|| model.forward(zeros([1, 32, 16, 3])), &["images of 2 by 1 patches are not squares"]);
    let dpt = |fields: &str, about: &str| {
        let about = format!(
            r#"{{"depths": [3, 4, 9], "embedding_dynamic_padding": true, "global_padding": "same", "layer_type": "bottleneck",
            "out_features": ["stage1", "stage2", "stage3"]{about}}}"#
        );
        let text = format!(
            r#"{{"model_type": "dpt", "is_hybrid": true, "backbone_config": {about}, "backbone_featmap_shape": [1, 1024, 24, 24],
            "neck_hidden_sizes": [256, 512, 768, 768], "reassemble_factors": [1, 1, 1, 0.5]{fields}}}"#
        );
        DepthEstimator::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // A published model has the default sizes of the convolutions, of which it uses three.
    let published = dpt("", "")?;
    assert_eq!((published.layers, published.stages), (vec![9, 12], vec![1, 2, 3]));
    assert_eq!((published.encoder.image_size, published.encoder.num_channels), (24, 1024));
    for (fields, about, words) in [
        (r#", "neck_ignore_stages": []"#, "", "`neck_ignore_stages` is [], but must be [0, 1]"),
        (r#", "patch_size": 8"#, "", "`patch_size` must be 16"),
        (r#", "backbone_out_indices": [2, 5, 8, 12]"#, "", "`backbone_out_indices` must be layers of the 12 layers"),
        ("", r#", "hidden_sizes": [128, 512, 1024]"#, "`neck_hidden_sizes` has 256, but the convolutions have 128"),
        ("", r#", "hidden_sizes": [256, 512, 2048]"#, "its second number must be 2048"),
        ("", r#", "model_type": "resnet""#, "should be \"bit\""),
    ] {
        fails(dpt(fields, about), &[words]);
    }
    fails(dpt("", r#", "out_indices": [1, 3]"#), &["must be three stages"]);
    save_again::<DepthEstimator>("dpt_hybrid", &Folder::new().join("dpt_hybrid"))
}

#[test]
fn depths_with_known_depths_equal_transformers() -> Result<()> {
    setup();
    let name = "prompt_depth_anything";
    let (case, model) = (case(name)?, DepthEstimator::from_pretrained(folder(name))?);
    let images = case("pixel_values_1")?;
    let forward = jit(|model: DepthEstimator, images: Array, depths: Array| {
        (model.forward(&images), model.forward_with_depths(images, depths))
    });
    let (plain, prompted) = forward.call((&model, &images, case("depths_1")?))?;
    alike(name, &plain, &case("logits_1")?)?;
    alike(name, &prompted, &case("logits_depths_1")?)?;
    fails_in_trace(|| model.forward_with_depths(&images, zeros([1, 4, 4])), &["[1, 4, 4]", "[2, 20, 12, 3]"]);
    save_again::<DepthEstimator>(name, &Folder::new().join(name))
}

#[test]
fn altclip_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let (case, model) = (case("altclip")?, ChineseClip::from_pretrained(folder("altclip"))?);
    let options = BertOptions::new().attention_mask(case("attention_mask")?);
    let (tokens, images) = (case("input_ids")?, case("pixel_values")?);
    let logits = compiled(&model, |model| model.forward(&tokens, &images, &options))?;
    alike("altclip", &logits, &case("logits_per_image")?)?;
    save_again::<ChineseClip>("altclip", &Folder::new().join("altclip"))?;
    let read = |fields: &str| {
        let text = format!(r#"{{"model_type": "altclip"{fields}}}"#);
        ChineseClip::read(&Config::from_json(&text)?).map(|(read, _)| read)
    };
    // The defaults of the class are the sizes of a published model, except for its images.
    let base = read("")?;
    assert_eq!((base.transformed_features, base.text.num_hidden_layers), (Some(768), 24));
    fails(read(r#", "text_config_dict": {"hidden_size": 16}"#), &["`text_config_dict`", "are not supported"]);
    Ok(())
}

#[test]
fn chinese_clip_has_the_logits_of_transformers() -> Result<()> {
    setup();
    let (case, model) = (case("chinese_clip")?, ChineseClip::from_pretrained(folder("chinese_clip"))?);
    let (tokens, images) = (case("input_ids")?, case("pixel_values")?);
    let options = BertOptions::new().attention_mask(case("attention_mask")?);
    let logits = compiled(&model, |model| model.forward(&tokens, &images, &options))?;
    alike("chinese_clip", &logits, &case("logits_per_image")?)?;
    fails_in_trace(|| model.text_features(zeros_dtype([1, 13], DType::I32), &options), &["13 tokens", "12 positions"]);
    save_again::<ChineseClip>("chinese_clip", &Folder::new().join("chinese_clip"))?;
    // The fields of a published model.
    let text = r#"{"architectures": ["ChineseCLIPModel"], "initializer_factor": 1.0, "logit_scale_init_value": 2.6592,
        "model_type": "chinese_clip", "projection_dim": 512, "text_config": {"architectures": ["ChineseCLIPTextModel"],
        "attention_probs_dropout_prob": 0.1, "bos_token_id": 0, "directionality": "bidi", "eos_token_id": 2, "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1, "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "model_type": "chinese_clip_text_model", "num_attention_heads": 12, "num_hidden_layers": 12,
        "output_past": true, "pad_token_id": 0, "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "type_vocab_size": 2, "vocab_size": 21128},
        "vision_config": {"dropout": 0.0, "hidden_size": 768, "image_size": 224, "intermediate_size": 3072,
        "model_type": "chinese_clip_vision_model", "num_attention_heads": 12, "num_hidden_layers": 12, "patch_size": 16,
        "projection_dim": 512}}"#;
    let (published, _) = ChineseClip::read(&Config::from_json(text)?)?;
    assert_eq!((published.text.vocab_size, published.vision.num_hidden_layers), (21128, 12));
    Ok(())
}

#[test]
fn saved_models_of_images_are_the_files_of_transformers() -> Result<()> {
    setup();
    save_all(&Folder::new().0, one_of(6))
}

/// Models of depths.
const DEPTHS: [&str; 5] = ["depth_anything", "depth_anything_metric", "dpt", "dpt_norms", "dpt_dinov2"];

/// Saves one of so many models of images of each class. Files without a head contain layers of a head that the models do not have
/// here.
pub(super) fn save_all(to: &Path, every: usize) -> Result<()> {
    fn save<M: Pretrained>(names: &[&str], to: &Path, every: usize) -> Result<()> {
        names.iter().step_by(every).try_for_each(|name| save_again::<M>(name, &to.join(name)))
    }
    save::<Clip>(&["clip", "metaclip_2"], to, every)?;
    save::<ChineseClip>(&["chinese_clip", "altclip"], to, every)?;
    save::<Siglip>(&["siglip", "siglip2"], to, every)?;
    save::<Vit>(&["beit", "beit_model", "data2vec_vision", "dinov2", "dinov2_model", "dinov3_gated"], to, every)?;
    save::<MobileNet>(&["mobilenet_v1", "mobilenet_v2", "efficientnet"], to, every)?;
    save::<PoolFormer>(&["poolformer"], to, every)?;
    save::<Bit>(&["bit"], to, every)?;
    save::<ConvNext>(&["convnext", "convnextv2"], to, every)?;
    save::<Segformer>(&["segformer", "pvt_v2", "pvt"], to, every)?;
    save::<Levit>(&["levit"], to, every)?;
    save::<Swin>(&["swin", "swinv2", "donut_classes"], to, every)?;
    save::<Resnet>(&["resnet", "regnet"], to, every)?;
    save::<Vit>(&["vit_mae"], to, every)?;
    save::<Yolos>(&YOLOS[..2], to, every)?;
    save::<Detr>(&DETRS, to, every)?;
    save::<ConditionalDetr>(&["conditional_detr"], to, every)?;
    save::<DeformableDetr>(&DEFORMABLE, to, every)?;
    save::<GroundingDino>(&GROUNDINGS, to, every)?;
    save::<Sam>(&["sam"], to, every)?;
    save::<Owl>(&OWLS, to, every)?;
    save::<VitPose>(&["vitpose"], to, every)?;
    save::<Glpn>(&GLPNS, to, every)?;
    save::<DepthEstimator>(&DEPTHS, to, every)
}

#[test]
fn models_of_images_are_split_as_they_are_read() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 2), ("model", 2)])?;
    let rules = Rules::new(&mesh, [("batch", "data"), ("heads", "model"), ("mlp", "model")]);
    let options = LoadOptions::new().rules(&rules);
    let replicate = |x: Array| device_put(&x, &NamedSharding::new(&mesh, P![]));
    let (clip, dino) = (case("clip")?, case("dinov2")?);
    let model = Clip::from_pretrained_with(folder("clip"), &options)?;
    let split = tree::leaves(&model).iter().filter(|leaf| !leaf.sharding().expect("one").is_fully_replicated()).count();
    assert!(split > 20, "{split} arrays are split");
    let forward = jit(|model: Clip, tokens: Array, images: Array| model.forward(tokens, images));
    let logits = forward.call((&model, replicate(clip("input_ids")?)?, replicate(clip("pixel_values")?)?))?;
    alike("clip", &logits, &clip("logits_per_image")?)?;
    let model = Vit::from_pretrained_with(folder("dinov2"), &options)?;
    let logits =
        jit(|model: Vit, images: Array| model.forward(images)).call((&model, replicate(dino("pixel_values_1")?)?))?;
    alike("dinov2", &logits, &dino("logits_1")?)
}

/// The configurations of published models load, or are rejected with this message.
#[test]
fn configurations_of_images_load_or_say_why() -> Result<()> {
    setup();
    let clip = |text: &str| Clip::read(&Config::from_json(text)?).map(|(clip, _)| clip);
    let base = clip(
        r#"{"architectures": ["CLIPModel"], "initializer_factor": 1.0, "logit_scale_init_value": 2.6592, "model_type": "clip",
        "projection_dim": 512, "text_config": {"_name_or_path": "", "add_cross_attention": false, "eos_token_id": 2,
        "hidden_act": "quick_gelu", "hidden_size": 512, "is_decoder": false, "model_type": "clip_text_model",
        "num_attention_heads": 8, "num_beams": 1, "projection_dim": 512, "tie_word_embeddings": true, "top_k": 50,
        "torchscript": false, "vocab_size": 49408}, "text_config_dict": null, "vision_config": {"patch_size": 32},
        "vision_config_dict": null}"#,
    )?;
    assert_eq!((base.end_token, base.text.num_hidden_layers, base.vision.hidden_size), (None, 12, 768));
    assert_eq!(clip(r#"{"model_type": "clip"}"#)?.end_token, Some(49407));
    let meta = clip(
        r#"{"architectures": ["MetaClip2Model"], "initializer_factor": 1.0, "logit_scale_init_value": 2.6592,
        "model_type": "metaclip_2", "projection_dim": 1024, "text_config": {"eos_token_id": 2, "hidden_act": "quick_gelu",
        "hidden_size": 1024, "intermediate_size": 4096, "model_type": "metaclip_2_text_model", "num_attention_heads": 16,
        "num_hidden_layers": 24, "vocab_size": 901629}, "vision_config": {"hidden_size": 1280, "patch_size": 14,
        "num_hidden_layers": 32, "num_attention_heads": 16, "intermediate_size": 5120}}"#,
    )?;
    assert_eq!((meta.end_token, meta.vocab_size, meta.vision.num_hidden_layers), (Some(2), 901_629, 32));
    fails(clip(r#"{"model_type": "clip", "vision_config": {"patch_size": 30}}"#), &["patch_size (30) does not divide"]);
    fails(clip(r#"{"model_type": "clip", "text_config": {"windows": 4}}"#), &["field `windows` is 4"]);
    fails(clip(r#"{"model_type": "siglip"}"#), &["the model_type is \"siglip\""]);
    let vit = |text: &str| Vit::read(&Config::from_json(text)?).map(|(vit, _)| vit);
    let large =
        vit(r#"{"model_type": "dinov2", "architectures": ["Dinov2Model"], "image_size": 518, "hidden_size": 1536,
        "num_attention_heads": 24, "num_hidden_layers": 40, "use_swiglu_ffn": true, "drop_path_rate": 0.0}"#)?;
    assert_eq!((large.intermediate_size, large.patch_size), (4096, 14));
    let third = vit(r#"{"model_type": "dinov3_vit", "architectures": ["DINOv3ViTModel"], "num_register_tokens": 4,
        "pos_embed_rescale": 2.0, "drop_path_rate": 0.0}"#)?;
    assert_eq!((third.registers, third.rope_base, third.qkv_bias, third.key_bias), (4, Some(100.0), true, false));
    fails(
        vit(r#"{"model_type": "dinov3_vit", "query_bias": false}"#),
        &["`query_bias` is false and `value_bias` is true"],
    );
    fails(vit(r#"{"model_type": "dinov3_vit", "proj_bias": false}"#), &["`proj_bias` and `mlp_bias` must be true"]);
    fails(vit(r#"{"model_type": "dinov3_vit", "hidden_size": 36}"#), &["36 features of 6 heads"]);
    fails(vit(r#"{"model_type": "vit", "mlp_ratio": 3}"#), &["field `mlp_ratio` is 3"]);
    let resnet = |text: &str| Resnet::read(&Config::from_json(text)?).map(|(resnet, _)| resnet);
    assert_eq!(resnet(r#"{"model_type": "resnet"}"#)?.hidden_sizes, [256, 512, 1024, 2048]);
    // The fields of a model that AutoTrain trained.
    let trained = resnet(
        r#"{"_name_or_path": "AutoTrain", "architectures": ["ResNetForImageClassification"], "depths": [3, 4, 6, 3],
        "downsample_in_first_stage": false, "embedding_size": 64, "hidden_act": "relu", "hidden_sizes": [256, 512, 1024, 2048],
        "id2label": {"0": "airplane", "1": "automobile", "2": "ship", "3": "truck"}, "layer_type": "bottleneck", "max_length": 128,
        "model_type": "resnet", "num_channels": 3, "out_features": ["stage4"], "out_indices": [4], "padding": "max_length",
        "problem_type": "single_label_classification", "torch_dtype": "float32", "transformers_version": "4.31.0"}"#,
    )?;
    assert_eq!(trained.stages.classes, Some(4));
    fails(resnet(r#"{"model_type": "resnet", "depths": [1]}"#), &["`hidden_sizes` has 4 stages, but `depths` has 1"]);
    fails(resnet(r#"{"model_type": "resnet", "depths": []}"#), &["`depths` must be a list of positive integers"]);
    let regnet = resnet(r#"{"model_type": "regnet", "groups_width": 8, "hidden_sizes": [24, 56, 152, 368]}"#)?;
    assert_eq!(regnet.regnet.map(|blocks| (blocks.group_width, blocks.squeezes)), Some((8, true)));
    fails(resnet(r#"{"model_type": "regnet", "groups_width": 48, "hidden_sizes": [97]}"#), &["`hidden_sizes` has 1"]);
    fails(resnet(r#"{"model_type": "regnet", "layer_type": "basic"}"#), &["the layer_type \"basic\""]);
    let mobile = |text: &str| MobileNet::read(&Config::from_json(text)?).map(|(mobile, _)| mobile);
    // The fields of published models.
    let second = mobile(
        r#"{"architectures": ["MobileNetV2ForImageClassification"], "model_type": "mobilenet_v2", "depth_multiplier": 0.35,
        "expand_ratio": 6, "finegrained_output": true, "image_size": 96, "layer_norm_eps": 0.001, "output_stride": 32,
        "classifier_dropout_prob": 0.8, "semantic_loss_ignore_index": 255, "tf_padding": true}"#,
    )?;
    assert_eq!((second.blocks.len(), second.blocks[16].output, second.last_features), (17, 112, Some(1280)));
    let efficient = mobile(
        r#"{"architectures": ["EfficientNetForImageClassification"], "model_type": "efficientnet", "width_coefficient": 1.0,
        "depth_coefficient": 1.0, "hidden_dim": 1280, "image_size": 224, "depthwise_padding": [], "dropout_rate": 0.2,
        "num_hidden_layers": 64, "batch_norm_momentum": 0.99}"#,
    )?;
    assert_eq!((efficient.blocks.len(), efficient.blocks[1].expanded, efficient.first_features), (16, Some(96), 32));
    for (fields, words) in [
        (r#""model_type": "efficientnet", "hidden_dim": 1280"#, "`hidden_dim` is 1280, but"),
        (r#""model_type": "efficientnet", "pooling_type": "sum""#, "`pooling_type` \"sum\""),
        (r#""model_type": "efficientnet", "strides": [1, 2, 3, 2, 1, 2, 1]"#, "`strides` has 3"),
        (r#""model_type": "efficientnet", "strides": [1]"#, "have different lengths"),
        (r#""model_type": "efficientnet", "kernel_sizes": [3, 3, 4, 3, 5, 5, 3]"#, "`kernel_sizes` has 4"),
        (r#""model_type": "efficientnet", "depth_coefficient": 1e3"#, "more than 1000 blocks"),
        (r#""model_type": "efficientnet", "in_channels": [32, 16, 24, 40, 80, 112, 16]"#, "`in_channels` differ"),
        (r#""model_type": "mobilenet_v2", "depth_multiplier": -1"#, "`depth_multiplier` is -1"),
        (r#""model_type": "mobilenet_v1", "architectures": ["Net"]"#, "the class \"Net\""),
    ] {
        fails(mobile(&format!("{{{fields}}}")), &[words]);
    }
    let segformer = |text: &str| Segformer::read(&Config::from_json(text)?).map(|(segformer, _)| segformer);
    // The fields of a published model.
    let ade = segformer(
        r#"{"architectures": ["SegformerForSemanticSegmentation"], "model_type": "segformer", "depths": [2, 2, 2, 2],
        "decoder_hidden_size": 256, "downsampling_rates": [1, 4, 8, 16], "image_size": 224, "layer_norm_eps": 1e-06,
        "mlp_ratios": [4, 4, 4, 4], "num_encoder_blocks": 4, "reshape_last_stage": true, "id2label": {"0": "wall", "1": "sky"}}"#,
    )?;
    assert_eq!(ade.head, SegformerHead::Pixels { classes: 2, features: 256 });
    fails(segformer(r#"{"model_type": "pvt_v2", "linear_attention": true}"#), &["linear_attention"]);
    assert_eq!(segformer(r#"{"model_type": "pvt"}"#)?.learned_patches, Some(vec![3136, 784, 196, 49]));
    fails(segformer(r#"{"model_type": "pvt", "image_size": 16}"#), &["`image_size` is 16, which is less than"]);
    fails(
        segformer(r#"{"model_type": "pvt", "sequence_reduction_ratios": [8, 4, 2, 2]}"#),
        &["`sequence_reduction_ratios` must end with 1"],
    );
    let pvt = Segformer::from_pretrained(folder("pvt"))?;
    fails_in_trace(|| pvt.forward(zeros([1, 32, 36, 3])), &["8 by 9 patches", "64 positions"]);
    fails(segformer(r#"{"model_type": "segformer", "strides": [4, 2]}"#), &["`strides` must have 4 entries, got 2"]);
    let swin = |text: &str| Swin::read(&Config::from_json(text)?).map(|(swin, _)| swin);
    assert_eq!(swin(r#"{"model_type": "swin", "path_norm": true, "num_layers": 4}"#)?.stages.depths, [2, 2, 6, 2]);
    // The fields of a published model.
    let second = swin(
        r#"{"architectures": ["Swinv2ForImageClassification"], "model_type": "swinv2", "depths": [2, 2, 6, 2], "embed_dim": 96,
        "hidden_size": 768, "image_size": 256, "num_heads": [3, 6, 12, 24], "num_layers": 4, "path_norm": true,
        "pretrained_window_sizes": [0, 0, 0, 0], "window_size": 8}"#,
    )?;
    assert_eq!(second.version, SwinVersion::Second { pretrained_windows: vec![0; 4] });
    for sizes in ["[0, 0]", "[0, 0, 0, 1]", "[0, 0, 0, -4]"] {
        let config = format!(r#"{{"model_type": "swinv2", "pretrained_window_sizes": {sizes}}}"#);
        fails(swin(&config), &["`pretrained_window_sizes` must"]);
    }
    let learned = r#"{"model_type": "swinv2", "use_absolute_embeddings": true}"#;
    fails(swin(learned), &["`use_absolute_embeddings` is true"]);
    fails(swin(r#"{"model_type": "swinv2", "image_size": 16}"#), &["`image_size` is too small"]);
    fails(swin(r#"{"model_type": "swin", "num_heads": [5, 6, 12, 24]}"#), &["num_heads (5) does not divide"]);
    fails(vit(r#"{"model_type": "vit", "architectures": ["ViTForMaskedImageModeling"]}"#), &["MaskedImageModeling"]);
    Ok(())
}
