//! Attention and its gradient compared with sums over all keys.

use super::{assert_close, for_any_threads, noise, size, view};
use shardax_cpu_kernels::{Attention, Backward, Window};

/// Sizes of an example: queries, keys, heads, heads of keys, depth, features.
struct Sizes([usize; 6]);

/// Output, and gradients, of two examples as sums over all keys.
fn attention_sums(operands: &Attention<'_>, ct: &[f32], s: &Sizes) -> [Vec<f64>; 4] {
    let Sizes([queries, keys, heads, key_heads, depth, features]) = *s;
    let [q, k, v] = [operands.q, operands.k, operands.v].map(|x| x.data());
    let mut out = [vec![0.0; ct.len()], vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
    for (i, h, query) in (0..2 * heads * queries).map(|n| (n / (heads * queries), n / queries % heads, n % queries)) {
        let row = ((i * queries + query) * heads + h) * depth;
        let out_row = row / depth * features;
        let key_rows: Vec<usize> =
            (0..keys).map(|key| (i * keys + key) * key_heads + h / (heads / key_heads)).collect();
        let is_visible: Vec<bool> = (0..keys).map(|key| sees(operands, query, key, keys)).collect();
        // A query without visible keys has equal weights, which do not depend on any operand, so its gradients are 0.
        let sees_nothing = !is_visible.contains(&true);
        let weights: Vec<f64> = (0..keys)
            .map(|key| match (sees_nothing, is_visible[key]) {
                (true, _) => 1.0,
                (_, false) => 0.0,
                _ => dot(&q[row..row + depth], &k[key_rows[key] * depth..][..depth]).exp(),
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        let slopes: Vec<f64> =
            key_rows.iter().map(|row| dot(&ct[out_row..][..features], &v[row * features..][..features])).collect();
        let mean: f64 = weights.iter().zip(&slopes).map(|(w, x)| w / sum * x).sum();
        for key in 0..keys {
            let weight = weights[key] / sum;
            for f in 0..features {
                out[0][out_row + f] += weight * f64::from(v[key_rows[key] * features + f]);
                out[3][key_rows[key] * features + f] += weight * f64::from(ct[out_row + f]);
            }
            for d in (0..depth).filter(|_| !sees_nothing) {
                let slope = weight * (slopes[key] - mean);
                out[1][row + d] += slope * f64::from(k[key_rows[key] * depth + d]);
                out[2][key_rows[key] * depth + d] += slope * f64::from(q[row + d]);
            }
        }
    }
    out
}

/// True if a key is in the window of a query and not masked. The mask of these tests is `[queries, keys]`.
fn sees(operands: &Attention<'_>, query: usize, key: usize, keys: usize) -> bool {
    let Window { before, after } = operands.window;
    let is_near = key.saturating_add(before) >= query && key <= query.saturating_add(after);
    is_near && operands.mask.is_none_or(|mask| mask.data()[query * keys + key] != 0)
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

/// Output and gradients by the kernel.
fn attention(operands: &Attention<'_>, ct: &[f32], s: &Sizes, threads: usize) -> [Vec<f32>; 4] {
    let Sizes([queries, _, heads, _, _, features]) = *s;
    let mut y = vec![f32::NAN; ct.len()];
    let [mut max, mut sum] = [(); 2].map(|()| vec![f32::NAN; 2 * heads * queries]);
    operands.forward(&mut y, &mut max, &mut sum, threads).unwrap();
    let mut mean = vec![0.0; max.len()];
    for (row, (y, ct)) in y.chunks(features).zip(ct.chunks(features)).enumerate() {
        let (i, query, h) = (row / (queries * heads), row / heads % queries, row % heads);
        mean[(i * heads + h) * queries + query] = y.iter().zip(ct).map(|(y, ct)| y * ct).sum();
    }
    let [mut dq, mut dk, mut dv] = [operands.q, operands.k, operands.v].map(|x| vec![f32::NAN; x.data().len()]);
    let backward = Backward { max: &max, sum: &sum, ct, mean: &mean };
    operands.gradient(&backward, [&mut dq, &mut dk, &mut dv], threads).unwrap();
    [y, dq, dk, dv]
}

#[test]
fn attention_and_its_gradient() {
    let unlimited = Window { before: usize::MAX, after: usize::MAX };
    // Shared heads of keys, causal, a narrow window, queries that see no key, a mask; few queries.
    let cases = [
        (Sizes([1, 37, 4, 2, 33, 70]), unlimited, true),
        (Sizes([3, 20, 2, 2, 8, 4]), Window { before: 1, after: 0 }, false),
        (Sizes([4, 130, 2, 1, 64, 32]), Window { after: 0, ..unlimited }, true),
        (Sizes([70, 70, 4, 2, 8, 6]), Window { after: 0, ..unlimited }, false),
        (Sizes([90, 20, 2, 2, 4, 4]), Window { before: 3, after: 2 }, false),
        (Sizes([65, 33, 2, 1, 3, 5]), unlimited, true),
        // Several blocks of the largest number of queries, and of the largest number of scores.
        (Sizes([300, 7, 2, 1, 5, 6]), unlimited, false),
        (Sizes([200, 700, 1, 1, 4, 3]), unlimited, true),
    ];
    for (s, window, masked) in cases {
        let Sizes([queries, keys, heads, key_heads, depth, features]) = s;
        let shapes = [[2, queries, heads, depth], [2, keys, key_heads, depth], [2, keys, key_heads, features]];
        let [q, k, v] = [0, 1, 2].map(|i| noise(size(&shapes[i]), 7 + i as u64));
        let mask: Vec<u8> = noise(queries * keys, 10).iter().map(|x| u8::from(*x > 0.0)).collect();
        let mask_shape = [queries, keys];
        let operands = Attention {
            q: view(&shapes[0], &q),
            k: view(&shapes[1], &k),
            v: view(&shapes[2], &v),
            mask: masked.then(|| view(&mask_shape, &mask)),
            window,
        };
        let ct = noise(2 * queries * heads * features, 11);
        let results = for_any_threads(3, |threads| attention(&operands, &ct, &s, threads));
        for (results, want) in results.iter().zip(attention_sums(&operands, &ct, &s)) {
            assert_close(results, &want);
        }
    }
}

#[test]
fn attention_without_elements() {
    let window = Window { before: 0, after: 0 };
    let (q, empty) = ([1.0; 2], []);
    let operands = Attention {
        q: view(&[2, 1, 1], &q),
        k: view(&[0, 1, 1], &empty),
        v: view(&[0, 1, 1], &empty),
        mask: None,
        window,
    };
    let (mut y, mut max, mut sum) = ([f32::NAN; 2], [0.0; 2], [0.0; 2]);
    operands.forward(&mut y, &mut max, &mut sum, 2).unwrap();
    assert_eq!(y, [0.0; 2]);
    let backward = Backward { max: &max, sum: &sum, ct: &q, mean: &q };
    operands.gradient(&backward, [&mut y, &mut [], &mut []], 2).unwrap();
    assert_eq!(y, [0.0; 2]);
    let none = view(&[1 << 40, 0, 1, 1], &empty);
    let operands = Attention { q: none, k: none, v: none, mask: None, window };
    operands.forward(&mut [], &mut [], &mut [], 2).unwrap();
    let backward = Backward { max: &[], sum: &[], ct: &[], mean: &[] };
    operands.gradient(&backward, [&mut [], &mut [], &mut []], 2).unwrap();
}
