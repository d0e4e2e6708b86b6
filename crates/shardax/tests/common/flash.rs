//! Causal flash attention and its gradient as kernels.

use shardax::control_flow::fori_loop;
use shardax::experimental::pallas::{self as pl, BlockSpec, CostEstimate, Ref, SQUEEZED, ds};
use shardax::lax::broadcasted_iota;
use shardax::prelude::*;

const NEG: f32 = -1e30;

/// Attention of each head, in blocks of `B` positions. Queries, keys and values have the shape [heads, positions, features].
pub fn attention<const B: usize>(q: Array, k: Array, v: Array) -> Result<Array> {
    let primal = |q: Array, k: Array, v: Array| Ok(forward::<B>(&q, &k, &v)?.0);
    let residuals = |q: Array, k: Array, v: Array| -> Result<(Array, [Array; 5])> {
        let (o, lse) = forward::<B>(&q, &k, &v)?;
        Ok((o.clone(), [q, k, v, o, lse]))
    };
    custom_vjp(primal).defvjp(residuals, backward::<B>).call((q, k, v))
}

/// The scores of a block of queries and one of keys, which begin at positions `i * B` and `j * B`.
fn scores<const B: usize>(q: &Array, k: &Array, i: &Array, j: &Array) -> Array {
    let rows = i * B + broadcasted_iota(DType::I32, [B, B], 0);
    let columns = j * B + broadcasted_iota(DType::I32, [B, B], 1);
    let scale = (k.shape()[1] as f32).sqrt().recip();
    where_(rows.greater_equal(columns), pl::dot(q, &k.t()) * scale, NEG)
}

/// The rows of block `i`.
fn rows<const B: usize>(x: &Ref, i: &Array) -> Array {
    x.at((ds(i * B, B), ..)).get()
}

/// A block of rows of a head; all rows of a head.
fn block<const B: usize>(features: usize) -> BlockSpec {
    BlockSpec::new((SQUEEZED, B, features), |[h, i]| (h, i, 0))
}

fn whole(positions: usize, features: usize) -> BlockSpec {
    BlockSpec::new((SQUEEZED, positions, features), |[h, _]| (h, 0, 0))
}

/// The cost of so many matmuls of each block of queries with each of keys that is not later.
fn cost<const B: usize>(matmuls: usize, q: &Array) -> CostEstimate {
    let (h, t, d) = (q.shape()[0], q.shape()[1], q.shape()[2]);
    let pairs = h * (t / B) * (t / B + 1) / 2;
    fn count(n: usize) -> u64 {
        n as u64
    }
    CostEstimate {
        flops: count(2 * matmuls * pairs * B * B * d),
        transcendentals: count(pairs * B * B),
        bytes_accessed: count(2 * (matmuls + 2) * h * t * d),
    }
}

/// The output, and the logarithm of the sum of the exponentials of each query's scores, as a column.
fn forward<const B: usize>(q: &Array, k: &Array, v: &Array) -> Result<(Array, Array)> {
    let (h, t, d) = (q.shape()[0], q.shape()[1], q.shape()[2]);
    let kernel = |[q, k, v, o, lse]: [Ref; 5]| {
        let (i, query) = (pl::program_id(1), q.get());
        let step = |j: Array, (acc, m, l): (Array, Array, Array)| {
            let s = scores::<B>(&query, &rows::<B>(&k, &j), &i, &j);
            let most = m.maximum(s.max_keepdims(1));
            let p = (s - &most).exp();
            let a = (m - &most).exp();
            let v = rows::<B>(&v, &j);
            (acc * &a + pl::dot(&p.astype(v.dtype()), &v), most, l * a + p.sum_keepdims(1))
        };
        let start = (zeros([B, d]), full([B, 1], NEG), zeros([B, 1]));
        let (acc, m, l) = fori_loop(0, &i + 1, step, start)?;
        o.set((acc / &l).astype(o.dtype()))?;
        lse.set(m + l.log())
    };
    pl::pallas_call(kernel, (shape_dtype_struct([h, t, d], q.dtype()), shape_dtype_struct([h, t, 1], DType::F32)))
        .grid([h, t / B])
        .in_specs([block::<B>(d), whole(t, d), whole(t, d)])
        .cost_estimate(cost::<B>(2, q))
        .out_specs([block::<B>(d), block::<B>(1)])
        .call([q, k, v])
}

fn backward<const B: usize>([q, k, v, o, lse]: [Array; 5], ct: Array) -> Result<(Array, Array, Array)> {
    let (h, t, d) = (q.shape()[0], q.shape()[1], q.shape()[2]);
    // The correction term of the softmax gradient: one number for each query.
    let delta = (o.astype(DType::F32) * ct.astype(DType::F32)).sum_keepdims(2);
    let operands = [&q, &k, &v, &ct, &lse, &delta];
    let scale = (d as f32).sqrt().recip();
    // Gradients of queries: each block of queries visits the keys up to its own, because attention is causal.
    let dq = |[q, k, v, ct, lse, delta, dq]: [Ref; 7]| {
        let (i, query, ct, lse, delta) = (pl::program_id(1), q.get(), ct.get(), lse.get(), delta.get());
        let step = |j: Array, sum: Array| {
            let keys = rows::<B>(&k, &j);
            let p = (scores::<B>(&query, &keys, &i, &j) - &lse).exp();
            let slopes = p * (pl::dot(&ct, &rows::<B>(&v, &j).t()) - &delta);
            sum + pl::dot(&slopes.astype(keys.dtype()), &keys) * scale
        };
        dq.set(fori_loop(0, &i + 1, step, zeros([B, d]))?.astype(dq.dtype()))
    };
    let dq = pl::pallas_call(dq, shape_dtype_struct([h, t, d], q.dtype()))
        .grid([h, t / B])
        .in_specs([block::<B>(d), whole(t, d), whole(t, d), block::<B>(d), block::<B>(1), block::<B>(1)])
        .cost_estimate(cost::<B>(3, &q))
        .out_specs([block::<B>(d)])
        .call(operands)?;
    // Gradients of keys and values: each block of keys visits the queries from its own on. The probabilities are
    // computed again in both kernels, because storing them would need memory for all pairs.
    let dkv = |[q, k, v, ct, lse, delta, dk, dv]: [Ref; 8]| {
        let (j, keys, values) = (pl::program_id(1), k.get(), v.get());
        let step = |i: Array, (dk, dv): (Array, Array)| {
            let (q, ct) = (rows::<B>(&q, &i), rows::<B>(&ct, &i));
            let p = (scores::<B>(&q, &keys, &i, &j) - rows::<B>(&lse, &i)).exp();
            let slopes = &p * (pl::dot(&ct, &values.t()) - rows::<B>(&delta, &i));
            let [p, slopes] = [p, slopes].map(|x| x.astype(q.dtype()).t());
            (dk + pl::dot(&slopes, &q) * scale, dv + pl::dot(&p, &ct))
        };
        let (keys, values) = fori_loop(&j, t / B, step, (zeros([B, d]), zeros([B, d])))?;
        dk.set(keys.astype(dk.dtype()))?;
        dv.set(values.astype(dv.dtype()))
    };
    let type_of = |x: &Array| shape_dtype_struct([h, t, d], x.dtype());
    let (dk, dv) = pl::pallas_call(dkv, (type_of(&k), type_of(&v)))
        .grid([h, t / B])
        .in_specs([whole(t, d), block::<B>(d), block::<B>(d), whole(t, d), whole(t, 1), whole(t, 1)])
        .cost_estimate(cost::<B>(4, &q))
        .out_specs([block::<B>(d), block::<B>(d)])
        .call(operands)?;
    Ok((dq, dk, dv))
}
