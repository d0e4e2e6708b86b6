//! Kernels.

use shardax::control_flow::{cond, fori_loop, scan, while_loop};
use shardax::experimental::pallas::{self as pl, BlockDim, BlockSpec, Ref, SQUEEZED, ds};
use shardax::lax::broadcasted_iota;
use shardax::prelude::*;

use super::{Case, Fun, many};

fn out<const N: usize>(shape: [usize; N]) -> Array {
    shape_dtype_struct(shape, DType::F32)
}

fn like<const N: usize>(shape: [usize; N], x: &Array) -> Array {
    shape_dtype_struct(shape, x.dtype())
}

/// Blocks of so many entries of a vector, one for each position of the grid.
fn tile(size: usize) -> BlockSpec {
    BlockSpec::new([size], |[i]| [i])
}

fn vector_add(xs: &[Array]) -> Result<Vec<Array>> {
    let add = pl::pallas_call(|[x, y, o]| o.set(x.get() + y.get()), vec![like([50], &xs[0])]);
    add.grid([pl::cdiv(50, 16)]).in_specs([tile(16), tile(16)]).out_specs([tile(16)]).call(xs)
}

fn matmul(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([x, y, b, o, acc]: [Ref; 5]) -> Result<()> {
        pl::when(pl::program_id(2).equal(0), || acc.set(0.0))?;
        acc.add(pl::dot(&x.get(), &y.get()))?;
        let last = pl::program_id(2).equal(pl::num_programs(2) - 1);
        pl::when(last, || o.set((acc.get() + b.get()).maximum(0).astype(o.dtype())))
    }
    let (m, k, n) = (xs[0].shape()[0], xs[0].shape()[1], xs[1].shape()[1]);
    pl::pallas_call(kernel, vec![like([m, n], &xs[0])])
        .grid([pl::cdiv(m, 16), pl::cdiv(n, 8), k / 8])
        .in_specs([
            BlockSpec::new([16, 8], |[i, _, k]| [i, k]),
            BlockSpec::new([8, 8], |[_, j, k]| [k, j]),
            BlockSpec::new([8], |[_, j, _]| [j]),
        ])
        .out_specs([BlockSpec::new([16, 8], |[i, j, _]| [i, j])])
        .scratch_shapes([out([16, 8])])
        .call(xs)
}

fn sum_rows(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([x, o]: [Ref; 2]) -> Result<()> {
        pl::when(pl::program_id(1).equal(0), || o.set(0.0))?;
        o.add(x.get().sum(1))
    }
    pl::pallas_call(kernel, vec![out([24])])
        .grid([3, 4])
        .in_specs([BlockSpec::new([8, 4], |[i, j]| [i, j])])
        .out_specs([BlockSpec::new([8], |[i, _]| [i])])
        .call(xs)
}

fn softmax(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([x, o]: [Ref; 2]) -> Result<()> {
        let e = (x.get() - x.get().max_keepdims(-1)).exp();
        o.set(&e / e.sum_keepdims(-1))
    }
    let (rows, columns) = (xs[0].shape()[0], xs[0].shape()[1]);
    fn block(columns: usize) -> BlockSpec {
        BlockSpec::new([8, columns], |[i]| (i, 0))
    }
    let call = pl::pallas_call(kernel, vec![out([rows, columns])]).grid([pl::cdiv(rows, 8)]);
    call.in_specs([block(columns)]).out_specs([block(columns)]).call(xs)
}

/// `x` as a column.
fn column(x: Array) -> Array {
    x.expand_dims(1)
}

fn layer_norm(xs: &[Array]) -> Result<Vec<Array>> {
    // A block of rows, the entire weights, and a number for each row.
    fn rows() -> BlockSpec {
        BlockSpec::new([8, 12], |[i]| (i, 0))
    }
    fn full() -> BlockSpec {
        BlockSpec::new([12], |[_i]| [0])
    }
    fn block() -> BlockSpec {
        BlockSpec::new([8], |[i]| [i])
    }
    fn forward(x: Array, w: Array, b: Array) -> Result<(Array, Array, Array)> {
        fn kernel([x, w, b, o, mean, rstd]: [Ref; 6]) -> Result<()> {
            mean.set(x.get().mean(1))?;
            let centred = x.get() - column(mean.get());
            rstd.set(((&centred * &centred).mean(1) + 1e-6).rsqrt())?;
            o.set(centred * column(rstd.get()) * w.get() + b.get())
        }
        pl::pallas_call(kernel, (out([24, 12]), out([24]), out([24])))
            .grid([3])
            .in_specs([rows(), full(), full()])
            .out_specs([rows(), block(), block()])
            .call([x, w, b])
    }
    let backward =
        move |(x, w, mean, rstd): (Array, Array, Array, Array), ct: Array| -> Result<(Array, Array, Array)> {
            let kernel = |[x, w, mean, rstd, ct, dx, dw, db]: [Ref; 8]| {
                pl::when(pl::program_id(0).equal(0), || {
                    dw.set(0.0)?;
                    db.set(0.0)
                })?;
                let rstd = column(rstd.get());
                let hat = (x.get() - column(mean.get())) * &rstd;
                let g = ct.get() * w.get();
                dx.set((&g - g.mean_keepdims(1) - &hat * (&g * &hat).mean_keepdims(1)) * rstd)?;
                dw.add((ct.get() * hat).sum(0))?;
                db.add(ct.get().sum(0))
            };
            pl::pallas_call(kernel, (out([24, 12]), out([12]), out([12])))
                .grid([3])
                .in_specs([rows(), full(), block(), block(), rows()])
                .out_specs([rows(), full(), full()])
                .call([x, w, mean, rstd, ct])
        };
    let f = custom_vjp(move |x: Array, w: Array, b: Array| Ok(forward(x, w, b)?.0)).defvjp(
        move |x: Array, w: Array, b: Array| {
            let (o, mean, rstd) = forward(x.clone(), w.clone(), b)?;
            Ok((o, (x, w, mean, rstd)))
        },
        backward,
    );
    Ok(vec![f.call((&xs[0], &xs[1], &xs[2]))?])
}

const T: usize = 48;
const B: usize = 16;
const D: usize = 8;
const NEG: f32 = -1e30;

fn scale() -> f64 {
    (D as f64).powf(-0.5)
}

fn scores(q: &Array, k: &Array, i: &Array, j: &Array) -> Array {
    let rows = i * B + broadcasted_iota(DType::I32, [B, B], 0);
    let columns = j * B + broadcasted_iota(DType::I32, [B, B], 1);
    where_(rows.greater_equal(columns), pl::dot(q, &k.t()) * scale(), NEG)
}

/// The blocks of queries, of all of them, and of the numbers of each row.
fn block() -> BlockSpec {
    BlockSpec::new([B, D], |[i]| (i, 0))
}

fn whole() -> BlockSpec {
    BlockSpec::new([T, D], |[_i]| [0, 0])
}

fn every_row() -> BlockSpec {
    BlockSpec::new([T], |[_i]| [0])
}

fn flash_forward(q: &Array, k: &Array, v: &Array) -> Result<(Array, Array)> {
    fn kernel([q, k, v, o, lse]: [Ref; 5]) -> Result<()> {
        let i = pl::program_id(0);
        let step = |j: Array, (acc, m, l): (Array, Array, Array)| {
            fn block(j: &Array) -> (pl::Ds, std::ops::RangeFull) {
                (ds(j * B, B), ..)
            }
            let s = scores(&q.get(), &k.at(block(&j)).get(), &i, &j);
            let most = m.maximum(s.max(1));
            let p = (s - column(most.clone())).exp();
            let a = (m - &most).exp();
            let acc = acc * column(a.clone()) + pl::dot(&p, &v.at(block(&j)).get());
            (acc, most, l * a + p.sum(1))
        };
        let start = (zeros([B, D]), full([B], NEG), zeros([B]));
        let (acc, m, l) = fori_loop(0, &i + 1, step, start)?;
        o.set(acc / column(l.clone()))?;
        lse.set(m + l.log())
    }
    pl::pallas_call(kernel, (out([T, D]), out([T])))
        .grid([T / B])
        .in_specs([block(), whole(), whole()])
        .out_specs([block(), tile(B)])
        .call([q, k, v])
}

fn flash_backward(residuals: [Array; 5], ct: Array) -> Result<(Array, Array, Array)> {
    let [q, k, v, o, lse] = residuals;
    // The correction term of the softmax gradient.
    let delta = (o * &ct).sum(1);
    let operands = [&q, &k, &v, &ct, &lse, &delta];
    fn dq([q, k, v, ct, lse, delta, dq]: [Ref; 7]) -> Result<()> {
        let i = pl::program_id(0);
        let step = |j: Array, acc: Array| {
            let keys = k.at((ds(&j * B, B), ..)).get();
            let p = (scores(&q.get(), &keys, &i, &j) - column(lse.get())).exp();
            let dp = pl::dot(&ct.get(), &v.at((ds(&j * B, B), ..)).get().t());
            acc + pl::dot(&(p * (dp - column(delta.get()))), &keys) * scale()
        };
        dq.set(fori_loop(0, &i + 1, step, zeros([B, D]))?)
    }
    let dq = pl::pallas_call(dq, out([T, D]))
        .grid([T / B])
        .in_specs([block(), whole(), whole(), block(), tile(B), tile(B)])
        .out_specs([block()])
        .call(operands)?;
    fn dkv([q, k, v, ct, lse, delta, dk, dv]: [Ref; 8]) -> Result<()> {
        let j = pl::program_id(0);
        let step = |i: Array, (dk, dv): (Array, Array)| {
            let (rows, at) = (|| (ds(&i * B, B), ..), || ds(&i * B, B));
            let (q, ct) = (q.at(rows()).get(), ct.at(rows()).get());
            let p = (scores(&q, &k.get(), &i, &j) - column(lse.at(at()).get())).exp();
            let dp = pl::dot(&ct, &v.get().t());
            let slopes = &p * (dp - column(delta.at(at()).get()));
            (dk + pl::dot(&slopes.t(), &q) * scale(), dv + pl::dot(&p.t(), &ct))
        };
        let (keys, values) = fori_loop(&j, T / B, step, (zeros([B, D]), zeros([B, D])))?;
        dk.set(keys)?;
        dv.set(values)
    }
    let (dk, dv) = pl::pallas_call(dkv, (out([T, D]), out([T, D])))
        .grid([T / B])
        .in_specs([whole(), block(), block(), whole(), every_row(), every_row()])
        .out_specs([block(), block()])
        .call(operands)?;
    Ok((dq, dk, dv))
}

fn flash_attention(xs: &[Array]) -> Result<Vec<Array>> {
    fn forward(q: Array, k: Array, v: Array) -> Result<(Array, [Array; 5])> {
        let (o, lse) = flash_forward(&q, &k, &v)?;
        Ok((o.clone(), [q, k, v, o, lse]))
    }
    let f = custom_vjp(|q: Array, k: Array, v: Array| Ok(flash_forward(&q, &k, &v)?.0)).defvjp(forward, flash_backward);
    Ok(vec![f.call((&xs[0], &xs[1], &xs[2]))?])
}

fn ragged_matmul(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([tiles, groups, offsets, x, w, o]: [Ref; 6]) -> Result<()> {
        let unit = pl::program_id(0);
        let (tile, group) = (tiles.at(&unit).get(), groups.at(&unit).get());
        let before = tiles.at((&unit - 1).maximum(0)).get();
        pl::when(unit.equal(0) | before.not_equal(&tile), || o.set(0.0))?;
        let rows = tile * 8 + broadcasted_iota(DType::I32, [8, 4], 0);
        let inside = rows.greater_equal(offsets.at(&group).get()) & rows.less(offsets.at(&group + 1).get());
        o.set(where_(inside, pl::dot(&x.get(), &w.get()), o.get()))
    }
    let rows = |columns: usize| BlockSpec::prefetched([8, columns], |[u], refs| (refs[0].at(&u).get(), 0));
    pl::pallas_call(kernel, vec![out([24, 4])])
        .num_scalar_prefetch(3)
        .grid([xs[0].size()])
        .in_specs([rows(6), BlockSpec::prefetched((SQUEEZED, 6, 4), |[u], refs| (refs[1].at(&u).get(), 0, 0))])
        .out_specs([rows(4)])
        .call(xs)
}

fn masked(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([x, o, moved]: [Ref; 3]) -> Result<()> {
        o.set(0.0)?;
        moved.set(0.0)?;
        fori_loop(
            0,
            3,
            |i, ()| {
                fn rows(i: &Array) -> pl::Ds {
                    ds(i * 8, 8)
                }
                let mask = (&i * 8 + arange(0..8)).less(20);
                o.at(rows(&i)).store(2 * x.at(rows(&i)).load(&mask, 7.0), &mask)?;
                moved.at(rows(&i)).add(x.at(rows(&i)).get())
            },
            (),
        )
    }
    pl::pallas_call(kernel, vec![out([20]), out([20])]).call(xs)
}

fn uninitialized(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([x, o, untouched, sums, scratch]: [Ref; 5]) -> Result<()> {
        pl::when(pl::program_id(0).equal(1), || o.set(x.get()))?;
        sums.set(x.get().sum(..))?;
        scratch.add(1)?;
        untouched.at(0).set(scratch.at(0).get())
    }
    pl::pallas_call(kernel, [10, 6, 3].map(|n| like([n], &xs[0])).to_vec())
        .grid([3])
        .in_specs([tile(4)])
        .out_specs([tile(4), tile(2), tile(1)])
        .scratch_shapes([like([2], &xs[0])])
        .call(xs)
}

fn aliased(xs: &[Array]) -> Result<Vec<Array>> {
    fn block() -> BlockSpec {
        BlockSpec::new([4], |[i]| [i * 2])
    }
    pl::pallas_call(|[x, y, o]| o.set(o.get() * 10 + x.get() + y.get()), vec![out([16])])
        .grid([2])
        .in_specs([block(), BlockSpec::new([4], |[_i]| [0])])
        .out_specs([block()])
        .input_output_aliases([(0, 0)])
        .call(xs)
}

fn running_sums(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([x, o, total]: [Ref; 3]) -> Result<()> {
        let first = pl::program_id(0).equal(0) & pl::program_id(1).equal(0);
        pl::when(first, || total.set(0.0))?;
        o.set(total.at(0).get() + x.get().cumsum(0))?;
        total.add(x.get().sum(..))
    }
    fn row() -> BlockSpec {
        BlockSpec::new((SQUEEZED, 4), |[i, j]| [i, j])
    }
    let call = pl::pallas_call(kernel, vec![out([2, 12])]).grid([2, 3]).scratch_shapes([out([1])]);
    call.in_specs([row()]).out_specs([row()]).call(xs)
}

fn stencil(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([x, o]: [Ref; 2]) -> Result<()> {
        let x = where_(x.get().equal(x.get()), x.get(), 0);
        o.set(x.get(..4) + x.get(1..5) + x.get(2..))
    }
    let block = BlockSpec::new((BlockDim::Element { size: 6, padding: (1, 1) },), |[i]| [i * 4]);
    pl::pallas_call(kernel, vec![out([16])]).grid([4]).in_specs([block]).out_specs([tile(4)]).call(xs)
}

fn parts(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([x, at, o, rows, picked]: [Ref; 5]) -> Result<()> {
        let first = at.at(0).get();
        o.set(0.0)?;
        o.at((0, 1..3)).set(x.at((1, ..2)).get())?;
        o.at(&first).set(x.at(-1).get())?;
        o.at((Slice::new(None, None, 2), at.at(1).get() + 2)).set(x.at((&first, Slice::new(None, None, 2))).get())?;
        o.at((ds(1, 2), &first)).add(x.at((ds(&first, 2), 0)).get())?;
        x.at(2).set(x.at(2).get() + 1)?;
        rows.set(x.get().get(..2) + x.at((ds(&first, 2), ..)).get())?;
        picked.set(x.at(at.get()).get())?;
        picked.at((at.at(1).get() - 1, at.get())).set(at.get().astype(DType::F32))
    }
    pl::pallas_call(kernel, vec![out([4, 4]), out([2, 4]), out([2, 4])]).call(xs)
}

fn collatz(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([n, o, seen]: [Ref; 3]) -> Result<()> {
        o.set(0)?;
        seen.set(n.get())?;
        fn step(i: Array, seen: &Ref, o: &Ref) -> Result<Array> {
            let count = seen.at(&i).get();
            let even = (&count % 2).equal(0);
            cond(
                even,
                |()| seen.at(&i).set(lax::div(&count, &Array::from(2))),
                |()| seen.at(&i).set(3 * &count + 1),
                (),
            )?;
            o.at(&i).add(1)?;
            Ok(where_(seen.at(&i).get().equal(1), &i + 1, &i))
        }
        let _ = while_loop(|i: Array| i.less(5), |i: Array| step(i, &seen, &o), Array::from(0))?;
        Ok(())
    }
    pl::pallas_call(kernel, vec![like([5], &xs[0])]).scratch_shapes([like([5], &xs[0])]).call(xs)
}

fn scanned(xs: &[Array]) -> Result<Vec<Array>> {
    fn kernel([x, o]: [Ref; 2]) -> Result<()> {
        o.set(0.0)?;
        fn step(carry: Array, row: Array, o: &Ref) -> Result<(Array, Array)> {
            o.add(row * &carry)?;
            Ok((&carry + 1, carry))
        }
        let (_, counts) =
            scan(|carry: Array, row: Array| step(carry, row, &o), pl::program_id(0).astype(DType::F32), x.get())?;
        o.add(counts.sum(..))
    }
    let call = pl::pallas_call(kernel, vec![out([8])]).grid([2]);
    call.in_specs([BlockSpec::new([3, 4], |[i]| (0, i))]).out_specs([tile(4)]).call(xs)
}

pub fn function(case: &Case) -> Option<Fun> {
    match case.op.as_str() {
        "vector_add" => many(vector_add),
        "matmul" => many(matmul),
        "sum_rows" => many(sum_rows),
        "softmax" => many(softmax),
        "layer_norm" => many(layer_norm),
        "flash_attention" => many(flash_attention),
        "ragged_matmul" => many(ragged_matmul),
        "masked" => many(masked),
        "uninitialized" => many(uninitialized),
        "aliased" => many(aliased),
        "running_sums" => many(running_sums),
        "stencil" => many(stencil),
        "parts" => many(parts),
        "collatz" => many(collatz),
        "scanned" => many(scanned),
        _ => None,
    }
}
