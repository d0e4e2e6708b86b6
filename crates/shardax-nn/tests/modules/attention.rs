//! Attention: decoding, options against plain formulas, rejected arguments.

use shardax_nn::prelude::*;
use shardax_nn::{HeadDifference, Implementation};

use super::quick::one_of;
use super::setup;

/// Decoding through the cache, one position after the other and several at once, has the result of one pass over all
/// positions.
#[test]
fn decoding_equals_the_whole_pass() -> Result<()> {
    setup();
    let x = random::normal(random::key(1), [2, 9, 32]);
    let builders = [
        MultiHeadAttention::builder(4, 32).is_causal(true).num_kv_heads(2).rope(Rope::default()),
        MultiHeadAttention::builder(4, 32).is_causal(true).num_kv_heads(2).value_features(5),
        MultiHeadAttention::builder(4, 32).is_causal(true).num_kv_heads(1).local_window_size(3, 0).normalize_qk(true),
        MultiHeadAttention::builder(4, 32).is_causal(true).rope(Rope::new(100.0)).soft_cap(2.0).scale(0.3),
    ];
    for (n, builder) in builders.into_iter().enumerate() {
        let layer = builder.build(&mut Rngs::new(0));
        let expected = jit(|layer: MultiHeadAttention, x: Array| layer.forward(x)).call((&layer, &x))?;
        let step = jit(|mut layer: MultiHeadAttention, x: Array| {
            let y = layer.decode(x);
            (layer, y)
        });
        for pieces in [vec![1; 9], vec![4, 1, 3, 1]] {
            let mut decoder = layer.clone();
            decoder.init_cache([2, 9, 32], DType::F32);
            let (mut start, mut found) = (0, Vec::new());
            for piece in pieces {
                let (next, y) = step.call((&decoder, x.get((.., start..start + piece))))?;
                (decoder, start) = (next, start + piece);
                found.push(y);
            }
            assert!(allclose(concatenate(&found, 1), &expected, 1e-4, 1e-5)?, "options {n}");
            assert_eq!(decoder.cache_index.as_ref().map(|i| i.item::<i32>()).transpose()?, Some(9));
            // The cache is full.
            let (_, beyond) = step.call((&decoder, x.get((.., ..1))))?;
            assert!(beyond.isnan().all(..).item::<bool>()?);
        }
    }
    Ok(())
}

/// Sliding windows and soft caps, by the formulas.
#[test]
fn windows_and_caps() -> Result<()> {
    setup();
    let [q, k, v] = [0, 1, 2].map(|seed| random::normal(random::key(seed), [1, 6, 2, 4]) * 3);
    let scores = einsum("bqhd,bkhd->bhqk", &[&q, &k]) / 2.0;
    let capped = (&scores / 5.0).tanh() * 5.0;
    let (row, column) = (arange(0..6).expand_dims(1), arange(0..6));
    let visible = row.greater_equal(&column) & (&column + 2).greater_equal(&row);
    let weights = softmax(where_(visible, capped, f64::NEG_INFINITY), -1);
    let want = einsum("bhqk,bkhd->bqhd", &[&weights, &v]);
    let options = AttentionOptions::new().is_causal(true).local_window_size(2, 0).soft_cap(5.0);
    assert!(allclose(options.dot_product_attention(&q, &k, &v), want, 1e-5, 1e-5)?);
    // Queries that see nothing have finite gradients.
    fn blind(q: Array, k: &Array, v: &Array) -> Array {
        AttentionOptions::new().mask(zeros([6, 6])).dot_product_attention(q, k, v).sum(..)
    }
    assert!(grad(|q: Array| blind(q, &k, &v)).call(&q)?.isfinite().all(..).item::<bool>()?);
    Ok(())
}

/// Masks can have fewer or more dimensions than the scores. Without keys the result is zero.
#[test]
fn masks_of_any_rank_and_no_keys() -> Result<()> {
    setup();
    let [q, k, v] = [0, 1, 2].map(|seed| random::normal(random::key(seed), [2, 6, 2, 4]));
    let causal = make_causal_mask(ones([1, 6]));
    let want = AttentionOptions::new().is_causal(true).dot_product_attention(&q, &k, &v);
    for shape in [&[6, 6][..], &[1, 6, 6], &[1, 1, 6, 6], &[1, 1, 1, 6, 6]] {
        let options = AttentionOptions::new().mask(causal.reshape(shape));
        assert!(allclose(options.dot_product_attention(&q, &k, &v), &want, 1e-6, 1e-6)?, "{shape:?}");
    }
    let single = AttentionOptions::new().mask(&causal).dot_product_attention(q.get(0), k.get(0), v.get(0));
    assert!(allclose(single, want.get(0), 1e-6, 1e-6)?);
    let none = zeros([2, 0, 2, 4]);
    assert_eq!(dot_product_attention(&q, &none, &none).sum(..).item::<f32>()?, 0.0);
    Ok(())
}

/// The dot products of rotated queries and keys depend only on their distance.
#[test]
fn rotations_tell_distances() -> Result<()> {
    setup();
    let [q, k] = [0, 1].map(|seed| random::normal(random::key(seed), [1, 1, 1, 8]));
    fn product(i: i32, j: i32, q: &Array, k: &Array) -> Result<f32> {
        let rope = Rope::default();
        (rope.apply(q, array([[i]])) * rope.apply(k, array([[j]]))).sum(..).item()
    }
    assert!((product(3, 1, &q, &k)? - product(12, 10, &q, &k)?).abs() < 1e-4);
    assert!((product(3, 1, &q, &k)? - product(3, 2, &q, &k)?).abs() > 1e-3);
    Ok(())
}

/// `dot_product_attention_with_rope` equals Flax 0.12.12, also as the `attention_fn` of a layer.
#[test]
fn rope_of_attention_is_the_one_of_flax() -> Result<()> {
    setup();
    fn ramp(shape: &[usize], step: f64, start: f64) -> Array {
        let count: usize = shape.iter().product();
        (arange(0..count as i32).astype(DType::F32) * step + start).sin().reshape(shape)
    }
    fn close(y: Array, want: &[f32]) -> Result<()> {
        let result = y.ravel().get(..want.len());
        assert!(allclose(&result, array(want), 2e-5, 2e-6)?, "{result:?} against {want:?}");
        Ok(())
    }
    let [q, k, v] = [ramp(&[1, 3, 2, 4], 0.7, 0.0), ramp(&[1, 3, 2, 4], 1.1, 1.0), ramp(&[1, 3, 2, 4], 0.3, 2.0)];
    let options = AttentionOptions::new().rope(Rope::default());
    let want = [0.252_546_7, 0.275_543_45, 0.273_926_6, 0.247_840_72, 0.055_077_806, 0.108_641_86];
    close(options.dot_product_attention(&q, &k, &v), &want)?;
    close(options.clone().positions(array([[0, 1, 2]])).dot_product_attention(&q, &k, &v), &want)?;
    // Only distances count.
    close(options.clone().positions(array([[7, 8, 9]])).dot_product_attention(&q, &k, &v), &want)?;
    let causal = options.clone().is_causal(true).dot_product_attention(&q, &k, &v);
    close(
        causal.get((.., 1)),
        &[-0.452_243_5, -0.531_496_76, -0.563_273_1, -0.544_733_8, -0.512_049_8, -0.369_070_92],
    )?;

    let x = ramp(&[2, 5, 8], 0.37, 0.1);
    let want = [0.630_031, -0.358_165_44, 0.029_594_805, -0.093_594_53, 0.040_405_646, 0.227_312_46, -0.219_604_48];
    let layer = MultiHeadAttention::builder(2, 8).rope(Rope::default()).build(&mut Rngs::new(0));
    close(layer.forward(&x), &want)?;
    // An option of the call replaces the layer's.
    for layer in [MultiHeadAttention::new(2, 8, &mut Rngs::new(0)), {
        MultiHeadAttention::builder(2, 8).rope(Rope::new(10.0)).build(&mut Rngs::new(0))
    }] {
        close(layer.attend(&x, &x, &x, options.clone()), &want)?;
    }
    let ring = shard_map(
        |x: Array| AttentionOptions::new().rope(Rope::default()).ring_attention(&x, &x, &x, "x"),
        make_mesh([("x", 2)])?,
    );
    let error = ring.in_specs(P![None, "x"]).out_specs(P![None, "x"]).call(ones([1, 4, 2, 4])).err();
    assert!(error.is_some_and(|error| error.to_string().contains("rope")));
    Ok(())
}

/// The error of an operation.
fn message(y: Array) -> String {
    y.check().err().map(|e| e.to_string()).unwrap_or_default()
}

fn attention_error(q: &[usize], k: &[usize], v: &[usize]) -> String {
    message(dot_product_attention(ones(q), ones(k), ones(v)))
}

#[test]
fn attention_rejects_mismatched_shapes() {
    setup();
    for (found, want) in [
        (attention_error(&[2, 3, 4, 8], &[3, 4, 8], &[3, 4, 8]), "same rank"),
        (attention_error(&[2, 3, 4, 8], &[1, 3, 4, 8], &[1, 3, 4, 8]), "batch dims must match"),
        (attention_error(&[2, 3, 4, 8], &[2, 5, 3, 8], &[2, 5, 3, 8]), "must be a multiple"),
        (attention_error(&[2, 3, 4, 8], &[2, 5, 4, 6], &[2, 5, 4, 6]), "depths must match"),
        (attention_error(&[2, 3, 4, 8], &[2, 5, 4, 8], &[2, 6, 4, 8]), "lengths and heads must match"),
    ] {
        assert!(found.contains(want), "{found}");
    }
    // Masks with a wrong size, too few dimensions and too many.
    for shape in [&[2, 4, 4, 5][..], &[3, 4], &[2, 2, 4, 3, 5]] {
        let options = AttentionOptions::new().mask(ones(shape));
        let message =
            message(options.dot_product_attention(ones([2, 3, 4, 8]), ones([2, 5, 4, 8]), ones([2, 5, 4, 8])));
        assert!(message.contains("does not broadcast to the scores, [2, 4, 3, 5]"), "{message}");
        assert!(message.contains("attention.rs"), "{message}");
    }
    let mut rngs = Rngs::new(0);
    let layer = MultiHeadAttention::new(3, 8, &mut rngs);
    assert!(message(layer.forward(ones([2, 3, 8]))).contains("heads (3) must divide qkv_features (8)"));
    let mut layer = MultiHeadAttention::new(4, 8, &mut rngs);
    assert!(message(layer.decode(ones([2, 1, 8]))).contains("call `init_cache` first"));
    layer.init_cache([3, 5, 8], DType::F32);
    assert!(message(layer.decode(ones([2, 1, 8]))).contains("into the cache, which is float32[3,5,4,2]"));
    let lengths = AttentionOptions::new().key_value_seq_lengths(array([1, 2, 3]));
    assert!(
        message(lengths.dot_product_attention(ones([2, 3, 4, 8]), ones([2, 3, 4, 8]), ones([2, 3, 4, 8])))
            .contains("key_value_seq_lengths")
    );
    assert!(message(Rope::new(-1.0).apply(ones([1, 2, 1, 4]), arange(0..2))).contains("base must be"));
}

/// Fields that would be ignored, or that are for heads of another size, are errors.
#[test]
fn attention_rejects_fields_that_do_not_fit() {
    setup();
    let gate_bias = |()| {
        let mut layer = MultiHeadAttention::new(4, 8, &mut Rngs::new(0));
        layer.gate_bias = Some(zeros([4]));
        layer.forward(zeros([1, 3, 8]))
    };
    let difference = |()| {
        let mut layer = MultiHeadAttention::new(4, 8, &mut Rngs::new(0));
        layer.difference = Some(Box::new(HeadDifference::new(3, 0.2, 1e-5, &mut Rngs::new(0))));
        layer.forward(zeros([1, 3, 8]))
    };
    for (found, want) in [
        (eval_shape(gate_bias, ()).err(), "gate_bias is set, but gate is None"),
        (eval_shape(difference, ()).err(), "a vector has 3 features, but the values of heads have 2"),
    ] {
        let found = found.map(|error| error.to_string()).unwrap_or_default();
        assert!(found.contains(want), "{found}");
    }
}

/// Names of dimensions reach the kernels and biases of every part.
#[test]
fn heads_have_names() {
    setup();
    let builder = MultiHeadAttention::builder(4, 8).num_kv_heads(2).normalize_qk(true);
    let layer = builder.kernel_axes(["embed", "heads", "depth"]).out_kernel_axes(["heads", "depth", "embed"]);
    let layer = layer.build(&mut Rngs::new(0));
    let infos = tree::structure(&layer).leaf_infos();
    let names = |path: &str| infos.iter().find(|leaf| leaf.path == path).and_then(|leaf| leaf.axis_names.clone());
    let named = |names: &[&'static str]| Some(names.iter().copied().map(Some).collect());
    assert_eq!(names(".query.kernel"), named(&["embed", "heads", "depth"]));
    assert_eq!(names(".key.bias"), named(&["heads", "depth"]));
    assert_eq!(names(".out.kernel"), named(&["heads", "depth", "embed"]));
    assert_eq!(names(".out.bias"), named(&["embed"]));
    assert_eq!(names(".query_ln.scale"), None);
    let layer = ConvTranspose::builder(2, 3, [3]).transpose_kernel(true).kernel_axes(["space", "out", "in"]);
    let infos = tree::structure(&layer.build(&mut Rngs::new(0))).leaf_infos();
    assert_eq!(infos[1].axis_names, named(&["out"]));
}

fn random_array(seed: i32, shape: &[usize]) -> Array {
    random::normal(random::key(seed as u64), shape)
}

/// Every option in blocks, and all but a bias by the kernels of TPUs, against plain operations: results, logsumexps,
/// gradients with respect to everything.
#[test]
fn blockwise_attention_takes_every_option() -> Result<()> {
    setup();
    let (queries, keys) = (530, 1040);
    let x = [
        random_array(0, &[2, 530, 2, 8]),
        random_array(1, &[2, 1040, 1, 8]),
        random_array(2, &[2, 1040, 1, 8]),
        random_array(3, &[1, 2, 530, 1040]),
    ];
    let wide = random_array(4, &[2, 1, 1, 1040]);
    fn ids(n: usize, parts: usize) -> Array {
        stack(&[floor_divide(arange(0..n as i32), (n / parts) as i32), arange(0..n as i32) % 3], 0)
    }
    let options: Vec<(&str, AttentionOptions, usize)> = vec![
        ("soft cap", AttentionOptions::new().soft_cap(2.0).is_causal(true), 3),
        ("bias", AttentionOptions::new().is_causal(true).local_window_size(90, 0), 4),
        ("another bias", AttentionOptions::new().bias(&wide).scale(0.2), 3),
        (
            "lengths",
            AttentionOptions::new().query_seq_lengths(array([100, 530])).key_value_seq_lengths(array([1040, 0])),
            3,
        ),
        ("segments", AttentionOptions::new().segment_ids(ids(queries, 5), ids(keys, 4)), 3),
    ];
    for dtype in [DType::F32, DType::Bf16] {
        let tolerance = if dtype == DType::F32 { 2e-5 } else { 2e-2 };
        // What differs by dtype differs in every option.
        let (first, every) = if dtype == DType::F32 { (one_of(2) - 1, one_of(2)) } else { (0, one_of(options.len())) };
        for (name, options, n) in options.iter().skip(first).step_by(every) {
            let run = |implementation: Implementation| {
                let options = options.clone().implementation(implementation);
                let (n, of_bias) = (*n, *n == 4);
                let attend = move |x: &[Array]| {
                    let options = if of_bias { options.clone().bias(&x[3]) } else { options.clone() };
                    let (y, residual) = options.with_residual(&x[0], &x[1], &x[2]);
                    (y.astype(DType::F32), residual.astype(DType::F32))
                };
                let x: Vec<Array> = x[..n].iter().map(|x| x.astype(dtype)).collect();
                let loss = |x: Vec<Array>| (attend(&x).0.sin() + attend(&x).0).sum(..);
                // One program, because compiling takes most of the time.
                jit(|x: Vec<Array>| Ok((attend(&x), grad(loss).call(x)?))).call(&x)
            };
            let ((y0, lse0), gradients0) = run(Implementation::Xla)?;
            let flash = (dtype == DType::F32 && !name.contains("bias")).then_some(Implementation::Flash);
            for implementation in [Implementation::Blockwise].into_iter().chain(flash) {
                let ((y, lse), gradients) = run(implementation)?;
                let pairs = [(&y, &y0), (&lse, &lse0)].into_iter().chain(gradients.iter().zip(&gradients0));
                for (i, (found, want)) in pairs.enumerate() {
                    let [found, want] = [found, want].map(|x| x.astype(DType::F32));
                    let scale = want.abs().max(..).item::<f32>()?.max(1e-3) as f64;
                    let close = allclose(&found / scale, &want / scale, 0.0, tolerance)?;
                    assert!(close, "{implementation:?}, {name}, {dtype:?}, array {i}");
                }
            }
        }
    }
    Ok(())
}

/// The calls that programs for NVIDIA GPUs make of cuDNN are JAX's: targets, operands, types, layouts, configurations.
#[test]
fn calls_of_cudnn_equal_jax() -> Result<()> {
    setup();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../shardax/tests/golden/cudnn.txt");
    let want = std::fs::read_to_string(path).expect("the reference calls");
    for name in ["plain", "causal", "window", "gqa", "bias", "seqlens", "f16", "mask"] {
        let dtype = if name == "f16" { DType::F16 } else { DType::Bf16 };
        fn zeros_of(shape: &[usize], dtype: DType) -> Array {
            zeros_dtype(shape, dtype)
        }
        let key = zeros_of(&[2, 256, if name == "gqa" { 2 } else { 4 }, 64], dtype);
        let mut x = vec![zeros_of(&[2, 256, 4, 64], dtype), key.clone(), key];
        match name {
            "bias" => x.push(zeros_of(&[1, 4, 256, 256], dtype)),
            "mask" => x.push(zeros_dtype([1, 1, 256, 256], DType::Bool)),
            "seqlens" => x.extend([zeros_dtype([2], DType::I32), zeros_dtype([2], DType::I32)]),
            _ => {}
        }
        fn attend(x: &[Array], name: &str) -> Array {
            let options = AttentionOptions::new().implementation(Implementation::Cudnn);
            let options = match name {
                "causal" | "gqa" => options.is_causal(true),
                "window" => options.is_causal(true).local_window_size(31, 0),
                "bias" => options.bias(&x[3]),
                "mask" => options.mask(&x[3]),
                "seqlens" => options.query_seq_lengths(&x[3]).key_value_seq_lengths(&x[4]),
                _ => options,
            };
            options.dot_product_attention(&x[0], &x[1], &x[2])
        }
        // The operands that are differentiated: query, key, value, and the bias.
        let n = if name == "bias" { 4 } else { 3 };
        let gradient = move |given: Vec<Array>| -> Result<Vec<Array>> {
            let (ct, x) = (given[0].clone(), given[1..].to_vec());
            let tail = x[n..].to_vec();
            let loss =
                move |y: Vec<Array>| (attend(&[y, tail.clone()].concat(), name) * &ct).astype(DType::F32).sum(..);
            grad(loss).call(x[..n].to_vec())
        };
        fn cuda() -> shardax::export::ExportOptions {
            shardax::export::ExportOptions::new().platforms(["cuda"])
        }
        let with_ct: Vec<Array> = [zeros_of(&[2, 256, 4, 64], dtype)].into_iter().chain(x.clone()).collect();
        let forward = cuda().export(move |x: Vec<Array>| attend(&x, name), x)?;
        let backward = cuda().export(gradient, with_ct)?;
        let texts = [forward.mlir_module("cuda"), backward.mlir_module("cuda")];
        let calls = texts.map(|text| text.map(cudnn_calls).unwrap_or_default());
        for (what, calls) in ["forward", "backward"].into_iter().zip(calls) {
            let start = format!("{name}_{what}\t");
            let want: Vec<&str> = want.lines().filter_map(|line| line.strip_prefix(&start)).collect();
            assert_eq!(calls, want, "{name} {what}");
        }
    }
    Ok(())
}

/// The calls of a text, as `tools/golden/cudnn.py` writes them.
fn cudnn_calls(text: &str) -> Vec<String> {
    fn between(line: &str, start: &str, end: &str) -> String {
        line.split_once(start)
            .and_then(|(_, rest)| rest.split_once(end))
            .map(|(part, _)| part.into())
            .unwrap_or_default()
    }
    let arguments = text.lines().find(|line| line.contains("@main(")).unwrap_or_default();
    let arguments = arguments.matches(": tensor<").count()
        - arguments.split(") -> (").nth(1).unwrap_or_default().matches(": tensor<").count();
    // The operation, its operands and its target, by the name of the result.
    let mut definitions: Vec<(String, String, Vec<String>, String)> = Vec::new();
    let mut calls = Vec::new();
    fn source(value: &str, arguments: usize, definitions: &[(String, String, Vec<String>, String)]) -> Option<String> {
        let (base, result) = value.split_once('#').unwrap_or((value, ""));
        let Some((_, op, operands, target)) = definitions.iter().find(|op| op.0 == base) else {
            let number: usize = base.trim_start_matches('%').parse().ok()?;
            return (number < arguments).then(|| format!("argument{number}"));
        };
        if op == "stablehlo.custom_call" {
            return Some(format!("{target}#{result}"));
        }
        // A choice depends on the earlier choices.
        let last = usize::from(op == "stablehlo.select");
        operands[last..].iter().chain(&operands[..last]).find_map(|operand| source(operand, arguments, definitions))
    }
    for line in text.lines().map(str::trim) {
        let Some((name, rest)) = line.split_once(" = \"") else { continue };
        let Some((op, rest)) = rest.split_once("\"(") else { continue };
        let operands = rest.split(')').next().unwrap_or_default();
        let operands: Vec<String> = operands.split(", ").filter(|x| x.starts_with('%')).map(Into::into).collect();
        let target = between(line, "call_target_name = \"", "\"");
        if op == "stablehlo.custom_call" {
            let sources: Vec<String> = operands
                .iter()
                .map(|x| source(x, arguments, &definitions).unwrap_or_else(|| "nothing".into()))
                .collect();
            let config = between(line, "backend_config = \"", "}}\"").replace("\\\"", "\"") + "}}";
            let (types, results) = (between(line, "]} : (", ") -> ("), between(line, ") -> (", ")"));
            let layouts = ["operand", "result"].map(|side| {
                let start = format!("{side}_layouts = [");
                let end = if side == "operand" { "], result_layouts" } else { "]} : (" };
                between(line, &start, end)
            });
            let sources = sources.join(" ");
            calls.push(
                [target.clone(), sources, types, results, layouts[0].clone(), layouts[1].clone(), config].join("\t"),
            );
        }
        let base = name.split(':').next().unwrap_or_default();
        definitions.push((base.into(), op.into(), operands, target));
    }
    calls
}

fn bf16_zeros(shape: [usize; 4]) -> Array {
    zeros_dtype(shape, DType::Bf16)
}

/// Attention that cuDNN does not support is an error with the reason, if cuDNN was requested.
#[test]
fn attention_that_cudnn_does_not_support_is_an_error() -> Result<()> {
    setup();
    fn options() -> AttentionOptions {
        AttentionOptions::new().implementation(Implementation::Cudnn)
    }
    let x = bf16_zeros([1, 64, 2, 16]);
    let cases: Vec<(AttentionOptions, Array, &str)> = vec![
        (options(), zeros([1, 64, 2, 16]), "bfloat16 and float16"),
        (options(), bf16_zeros([1, 64, 2, 12]), "multiple of 8"),
        (options().soft_cap(3.0), x.clone(), "no soft cap"),
        (options().local_window_size(3, 2), x.clone(), "own position"),
    ];
    for (options, x, words) in cases {
        // Elsewhere than on a GPU the library chooses.
        let attend = move |x: Array| options.dot_product_attention(&x, &x, &x);
        assert_eq!(jit(attend.clone()).call(&x)?.shape(), x.shape());
        let exported = shardax::export::ExportOptions::new().platforms(["cuda"]).export(attend, &x);
        let error = exported.err().expect("cuDNN does not take it").to_string();
        assert!(error.contains(words) && error.contains("cuDNN does not compute attention of"), "{error}");
    }
    // Without a wish, a text for others has operations of XLA.
    fn plain(x: Array) -> Array {
        dot_product_attention(&x, &x, &x)
    }
    let text = shardax::export::ExportOptions::new().platforms(["cuda"]).export(plain, &x)?;
    assert!(!text.mlir_module("cuda").unwrap_or_default().contains("cudnn"));
    Ok(())
}

/// Over devices: in a `shard_map` over batch and heads, split by the compiler, and by types; each with its gradient.
#[test]
fn attention_over_devices_equals_one_device() -> Result<()> {
    setup();
    let random_array =
        |seed: u64, heads: usize| random::normal(random::key(seed), [4, 24, heads, 8]).astype(DType::Bf16);
    let x = (random_array(0, 4), random_array(1, 2), random_array(2, 2));
    fn wide((q, k, v): (Array, Array, Array)) -> [Array; 3] {
        [q, k, v].map(|x| x.astype(DType::F32))
    }
    for implementation in [Implementation::Xla, Implementation::Blockwise] {
        let attend = move |q: Array, k: Array, v: Array| {
            let options = AttentionOptions::new().is_causal(true).implementation(implementation);
            options.soft_cap(4.0).dot_product_attention(q, k, v)
        };
        let argnums = (Arg::<0>, Arg::<1>, Arg::<2>);
        let loss = move |q: Array, k: Array, v: Array| attend(q, k, v).astype(DType::F32).square().sum(..);
        let want = wide(jit(grad(loss).argnums(argnums)).call(x.clone())?);
        fn near(found: (Array, Array, Array), implementation: Implementation, want: &[Array; 3]) -> Result<()> {
            for (found, want) in wide(found).iter().zip(want) {
                assert!(allclose(found, want, 3e-2, 3e-2)?, "{implementation:?}");
            }
            Ok(())
        }
        let spec = P!["data", None, "model"];
        // Split by the compiler, then by types.
        for explicit in [false, true] {
            let axes = [("data", 4), ("model", 2)];
            let types = if explicit { AxisType::Explicit } else { AxisType::Auto };
            let mesh = make_mesh(axes)?.with_axis_types([types; 2])?;
            let split = NamedSharding::new(&mesh, spec.clone());
            let placed = device_put(&x, &split)?;
            near(jit(grad(loss).argnums(argnums)).call(placed)?, implementation, &want)?;
        }
        let mesh = make_mesh([("data", 4), ("model", 2)])?;
        let mapped = shard_map(attend, &mesh).in_specs((&spec, &spec, &spec)).out_specs(&spec);
        let loss = move |q: Array, k: Array, v: Array| -> Result<Array> {
            Ok(mapped.call((q, k, v))?.astype(DType::F32).square().sum(..))
        };
        near(jit(grad(loss).argnums(argnums)).call(x.clone())?, implementation, &want)?;
    }
    Ok(())
}
