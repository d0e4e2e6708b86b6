//! Ring attention compared with attention on one device.

use shardax_nn::prelude::*;

use super::quick::one_of;
use super::setup;

/// Returns a device's result, and the gradients of its inner product with random weights.
fn with_gradients(
    attend: impl Fn(Array, Array, Array) -> Result<Array>,
    [q, k, v, weights]: [Array; 4],
) -> Result<(Array, (Array, Array, Array))> {
    let y = attend(q.clone(), k.clone(), v.clone())?;
    let objective = |q: Array, k: Array, v: Array| -> Result<Array> {
        Ok((attend(q, k, v)? * &weights).astype(DType::F32).sum(..))
    };
    Ok((y, grad(objective).argnums((Arg::<0>, Arg::<1>, Arg::<2>)).call((q, k, v))?))
}

/// Every option, in float32 and bfloat16, forward and backward, over all devices and over some of them.
#[test]
fn a_ring_equals_one_device() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 2), ("sequence", 4)])?;
    let split = P!["data", "sequence"];
    fn options(n: usize) -> AttentionOptions {
        match n {
            0 => AttentionOptions::new(),
            1 => AttentionOptions::new().is_causal(true),
            2 => AttentionOptions::new().is_causal(true).soft_cap(2.0).scale(0.4),
            _ => AttentionOptions::new().local_window_size(5, 2),
        }
    }
    // Query heads, key heads; lengths of both; the dtype.
    let cases = [
        (0, [4, 2], [16, 16], DType::F32, 2e-5),
        (1, [4, 2], [16, 16], DType::Bf16, 3e-2),
        (2, [4, 1], [8, 16], DType::F32, 2e-5),
        (3, [2, 2], [16, 16], DType::F32, 2e-5),
    ];
    for (n, [heads, kv_heads], [queries, keys], dtype, tolerance) in
        cases.into_iter().skip(one_of(2) - 1).step_by(one_of(2))
    {
        fn make(seed: u32, length: usize, heads: usize, dtype: DType) -> Array {
            random::normal(random::key(seed), [2, length, heads, 8]).astype(dtype)
        }
        let inputs = [
            make(0, queries, heads, dtype),
            make(1, keys, kv_heads, dtype),
            make(2, keys, kv_heads, dtype),
            make(3, queries, heads, dtype),
        ];
        let on_one =
            |inputs: [Array; 4]| with_gradients(|q, k, v| Ok(options(n).dot_product_attention(q, k, v)), inputs);
        let (want, want_grads) = jit(on_one).call(inputs.clone())?;
        let around = |inputs: [Array; 4]| {
            let ring = |q: Array, k: Array, v: Array| options(n).ring_attention(q, k, v, "sequence");
            let ring = shard_map(ring, &mesh).in_specs((&split, &split, &split)).out_specs(&split);
            with_gradients(|q, k, v| ring.call((q, k, v)), inputs)
        };
        let (got, got_grads) = jit(around).call(inputs.clone())?;
        let names = ["y", "dq", "dk", "dv"];
        fn outputs(y: Array, (dq, dk, dv): (Array, Array, Array)) -> [Array; 4] {
            [y, dq, dk, dv]
        }
        for ((name, got), want) in names.iter().zip(outputs(got, got_grads)).zip(outputs(want, want_grads)) {
            assert_eq!((got.dtype(), got.shape()), (dtype, want.shape()), "{name}");
            let (got, want) = (got.astype(DType::F32), want.astype(DType::F32));
            assert!(
                allclose(&got, &want, tolerance, tolerance)?,
                "case {n} {dtype:?} {name}: {}",
                (got - want).abs().max(..)
            );
        }
    }
    Ok(())
}

fn random_heads(seed: u32, heads: usize) -> Array {
    random::normal(random::key(seed), [2, 16, heads, 8])
}

/// Packed sequences and padding across shard borders, and in a layer whose rules split the sequence.
#[test]
fn a_ring_keeps_segments_apart() -> Result<()> {
    setup();
    let mesh = make_mesh([("data", 2), ("sequence", 4)])?;
    let split = P!["data", "sequence"];
    let ids = array([[1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0], [3; 16]]);
    let inputs = [random_heads(0, 4), random_heads(1, 2), random_heads(2, 2), random_heads(3, 4)];
    fn options(causal: bool, ids: &Array) -> AttentionOptions {
        AttentionOptions::new().is_causal(causal).segment_ids(ids, ids)
    }
    for causal in [true, false].into_iter().step_by(one_of(2)) {
        fn on_one(inputs: [Array; 4], causal: bool, ids: &Array) -> Result<(Array, (Array, Array, Array))> {
            with_gradients(|q, k, v| Ok(options(causal, ids).dot_product_attention(q, k, v)), inputs)
        }
        let (want, want_grads) = jit(|inputs: [Array; 4]| on_one(inputs, causal, &ids)).call(inputs.clone())?;
        let around = |inputs: [Array; 4]| {
            let ring =
                |q: Array, k: Array, v: Array, ids: Array| options(causal, &ids).ring_attention(q, k, v, "sequence");
            let ring = shard_map(ring, &mesh).in_specs((&split, &split, &split, &split)).out_specs(&split);
            with_gradients(|q, k, v| ring.call((q, k, v, ids.clone())), inputs)
        };
        let (got, got_grads) = jit(around).call(inputs.clone())?;
        fn outputs(y: Array, (dq, dk, dv): (Array, Array, Array)) -> [Array; 4] {
            [y, dq, dk, dv]
        }
        for (n, (got, want)) in outputs(got, got_grads).iter().zip(outputs(want.clone(), want_grads)).enumerate() {
            assert!(allclose(got, &want, 2e-5, 2e-5)?, "causal {causal}, {n}: {}", (got - want).abs().max(..));
        }
        // The second sequence by itself has the same result.
        fn second(x: &Array) -> Array {
            x.get((..1, 5..13))
        }
        let text = AttentionOptions::new().is_causal(causal);
        let text = text.dot_product_attention(second(&inputs[0]), second(&inputs[1]), second(&inputs[2]));
        assert!(allclose(text, second(&want), 1e-5, 1e-5)?);
    }

    fn layer(rules: &Rules) -> MultiHeadAttention {
        let rngs = &mut Rngs::new(0).with_rules(rules);
        MultiHeadAttention::builder(2, 8).is_causal(true).sequence_axis("length").build(rngs)
    }
    let x = random::normal(random::key(4), [2, 16, 8]);
    let attend =
        |layer: MultiHeadAttention, x: Array| layer.attend(&x, &x, &x, AttentionOptions::new().segment_ids(&ids, &ids));
    let want = attend(layer(&Rules::default()), x.clone());
    let got = jit(attend).call((layer(&Rules::new(&mesh, [("length", "sequence")])), x))?;
    assert!(allclose(got, want, 1e-5, 1e-5)?);
    Ok(())
}

/// Forward, each device sends its keys and values once for each other device; backward also their gradients, and those
/// once more. No device stores more than a few shards.
#[test]
fn a_ring_sends_and_stores_shards() -> Result<()> {
    setup();
    let mesh = make_mesh([("sequence", 8)])?;
    let split = P![None, "sequence"];
    let causal = AttentionOptions::new().is_causal(true);
    let ring = |q: Array, k: Array, v: Array| causal.ring_attention(q, k, v, "sequence");
    let ring = shard_map(ring, &mesh).in_specs((&split, &split, &split)).out_specs(&split);
    let loss = |q: Array, k: Array, v: Array| -> Result<Array> { Ok(ring.call((q, k, v))?.square().sum(..)) };
    let (length, depth) = (256, 8);
    fn input(heads: usize, length: usize, depth: usize) -> Array {
        zeros([1, length, heads, depth])
    }
    let step = jit(grad(loss).argnums((Arg::<0>, Arg::<1>, Arg::<2>)));
    let compiled =
        step.lower((input(4, length, depth), input(2, length, depth), input(2, length, depth)))?.compile()?;
    let block = 4 * length / 8 * 2 * depth;
    let sent = compiled.collectives()?;
    fn bytes(in_loop: bool, sent: &shardax::stages::Collectives) -> usize {
        sent.iter().filter(|c| c.in_loop == in_loop).map(|c| c.bytes * c.count).sum::<usize>()
    }
    assert!(sent.iter().all(|c| c.kind == CollectiveKind::CollectivePermute && c.participants == 2), "{sent}");
    assert_eq!((bytes(true, &sent), bytes(false, &sent)), (2 * block + 4 * block, 2 * block), "{sent}");
    // The scores of all heads and positions would need at least four times as much.
    let temporaries = compiled.memory_analysis()?.temporaries;
    assert!(temporaries < (4 * 4 * length * length / 4) as i64, "{temporaries} bytes");
    Ok(())
}

#[test]
fn invalid_arguments_of_rings_are_errors() -> Result<()> {
    setup();
    let mesh = make_mesh([("sequence", 8)])?;
    let split = P![None, "sequence"];
    let x = ones([1, 8, 2, 4]);
    let error_text = |options: AttentionOptions, axis: &'static str| {
        let ring = |x: Array| options.ring_attention(&x, &x, &x, axis);
        let ring = shard_map(ring, &mesh).in_specs(&split).out_specs(&split);
        ring.call(&x).err().map(|error| error.to_string()).unwrap_or_default()
    };
    // Options that need the entire sequence, segment ids of other types and sizes, an unknown axis, and heads that do
    // not divide.
    let text = error_text(AttentionOptions::new().mask(ones([8, 8])), "sequence");
    assert!(
        text.contains("ring_attention: a mask applies to the whole sequence") && text.contains("rings.rs"),
        "{text}"
    );
    let text = error_text(AttentionOptions::new().segment_ids(ones([1, 8]), ones([1, 8])), "sequence");
    assert!(text.contains("segment_ids to have a dtype that is a subdtype of integer"), "{text}");
    let two = array([[1, 2]]);
    let text = error_text(AttentionOptions::new().segment_ids(&two, &two), "sequence");
    assert!(text.contains("segment_ids [1, 2] and the queries [1, 1]"), "{text}");
    assert!(error_text(AttentionOptions::new(), "rows").contains("unbound axis name"));
    let text =
        ring_attention(&x, ones([1, 8, 3, 4]), ones([1, 8, 3, 4]), "sequence").check().err().map(|e| e.to_string());
    assert!(text.is_some_and(|text| text.contains("ring_attention: the number of heads of q must be a multiple")));
    Ok(())
}
