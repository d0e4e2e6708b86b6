//! Attention: decoding, options against plain formulas, rejected arguments.

use shardax_nn::prelude::*;

use super::setup;

/// Decoding through the cache, one position after the other and several at once, gives what the whole pass gives.
#[test]
fn decoding_equals_the_whole_pass() -> Result<()> {
    setup();
    let x = random::normal(random::key(1), [2, 9, 32]);
    let builders = [
        MultiHeadAttention::builder(4, 32).is_causal(true).num_kv_heads(2).rope(Rope::default()),
        MultiHeadAttention::builder(4, 32).is_causal(true).num_kv_heads(1).local_window_size(3, 0).normalize_qk(true),
        MultiHeadAttention::builder(4, 32).is_causal(true).rope(Rope::new(100.0)).soft_cap(2.0).scale(0.3),
    ];
    for (n, builder) in builders.into_iter().enumerate() {
        let layer = builder.build(&mut Rngs::new(0));
        let whole = jit(|layer: MultiHeadAttention, x: Array| layer.forward(x)).call((&layer, &x))?;
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
            assert!(allclose(concatenate(&found, 1), &whole, 1e-4, 1e-5)?, "options {n}");
            assert_eq!(decoder.cache_index.as_ref().map(|i| i.item::<i32>()).transpose()?, Some(9));
            // The cache is full.
            let beyond = decoder.decode(x.get((.., ..1)));
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
    let seen = row.greater_equal(&column) & (&column + 2).greater_equal(&row);
    let weights = softmax(where_(seen, capped, f64::NEG_INFINITY), -1);
    let want = einsum("bhqk,bkhd->bqhd", &[&weights, &v]);
    let options = AttentionOptions::new().is_causal(true).local_window_size(2, 0).soft_cap(5.0);
    assert!(allclose(options.dot_product_attention(&q, &k, &v), want, 1e-5, 1e-5)?);
    // Queries that see nothing have finite gradients.
    let blind = |q: Array| AttentionOptions::new().mask(zeros([6, 6])).dot_product_attention(q, &k, &v).sum(..);
    assert!(grad(blind).call(&q)?.isfinite().all(..).item::<bool>()?);
    Ok(())
}

/// Masks of fewer dimensions than scores, and of more, are the same mask; no keys at all give zeros.
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
    let alone = AttentionOptions::new().mask(&causal).dot_product_attention(q.get(0), k.get(0), v.get(0));
    assert!(allclose(alone, want.get(0), 1e-6, 1e-6)?);
    let none = zeros([2, 0, 2, 4]);
    assert_eq!(dot_product_attention(&q, &none, &none).sum(..).item::<f32>()?, 0.0);
    Ok(())
}

/// The dot products of rotated queries and keys depend on their distance alone.
#[test]
fn rotations_tell_distances() -> Result<()> {
    setup();
    let [q, k] = [0, 1].map(|seed| random::normal(random::key(seed), [1, 1, 1, 8]));
    let product = |i: i32, j: i32| -> Result<f32> {
        let rope = Rope::default();
        (rope.apply(&q, array([[i]])) * rope.apply(&k, array([[j]]))).sum(..).item()
    };
    assert!((product(3, 1)? - product(12, 10)?).abs() < 1e-4);
    assert!((product(3, 1)? - product(3, 2)?).abs() > 1e-3);
    Ok(())
}

#[test]
fn attention_says_what_does_not_fit() {
    setup();
    let message = |y: Array| y.check().err().map(|e| e.to_string()).unwrap_or_default();
    let attend = |q: &[usize], k: &[usize], v: &[usize]| message(dot_product_attention(ones(q), ones(k), ones(v)));
    for (found, want) in [
        (attend(&[2, 3, 4, 8], &[3, 4, 8], &[3, 4, 8]), "same rank"),
        (attend(&[2, 3, 4, 8], &[1, 3, 4, 8], &[1, 3, 4, 8]), "batch dims must match"),
        (attend(&[2, 3, 4, 8], &[2, 5, 3, 8], &[2, 5, 3, 8]), "must be a multiple"),
        (attend(&[2, 3, 4, 8], &[2, 5, 4, 6], &[2, 5, 4, 6]), "depths must match"),
        (attend(&[2, 3, 4, 8], &[2, 5, 4, 8], &[2, 6, 4, 8]), "lengths and heads must match"),
    ] {
        assert!(found.contains(want), "{found}");
    }
    for shape in [&[2, 4, 4, 5][..], &[3, 4], &[2, 2, 4, 3, 5]] {
        let options = AttentionOptions::new().mask(ones(shape));
        let found = message(options.dot_product_attention(ones([2, 3, 4, 8]), ones([2, 5, 4, 8]), ones([2, 5, 4, 8])));
        assert!(found.contains("does not broadcast to the scores, [2, 4, 3, 5]"), "{found}");
        assert!(found.contains("attention.rs"), "{found}");
    }
    let mut rngs = Rngs::new(0);
    let layer = MultiHeadAttention::new(3, 8, &mut rngs);
    assert!(message(layer.forward(ones([2, 3, 8]))).contains("heads (3) must divide qkv_features (8)"));
    let mut layer = MultiHeadAttention::new(4, 8, &mut rngs);
    assert!(message(layer.decode(ones([2, 1, 8]))).contains("call `init_cache` first"));
    layer.init_cache([3, 5, 8], DType::F32);
    assert!(message(layer.decode(ones([2, 1, 8]))).contains("the cache is float32[3,5,4,2]"));
    let lengths = AttentionOptions::new().key_value_seq_lengths(array([1, 2, 3]));
    assert!(
        message(lengths.dot_product_attention(ones([2, 3, 4, 8]), ones([2, 3, 4, 8]), ones([2, 3, 4, 8])))
            .contains("key_value_seq_lengths")
    );
    assert!(message(Rope::new(-1.0).apply(ones([1, 2, 1, 4]), arange(0..2))).contains("base must be"));
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
