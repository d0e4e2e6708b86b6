//! Six usual programs over axes `x` and `y` of type `Explicit`, each with the scalars that JAX 0.10.2 gives: they run
//! on one
//! process and on several, and compile for accelerators.

use shardax::lax::{self, DotOptions};
use shardax::prelude::*;

/// Returns `sin(i * a + b)` in this shape and with this spec, or only its type.
pub type Make<'a> = &'a dyn Fn(&[usize], f32, f32, PartitionSpec) -> Result<Array>;

pub struct Program {
    pub name: &'static str,
    pub arguments: fn(Make<'_>) -> Result<Vec<Array>>,
    pub run: fn(Vec<Array>) -> Result<Vec<Array>>,
    pub wanted: &'static [f64],
    /// True if `y` must have four devices.
    pub needs_four: bool,
}

pub const PROGRAMS: [Program; 6] = [
    Program {
        name: "model",
        arguments: |make| {
            Ok(vec![
                make(&[16, 8], 0.3, 0.0, P![None, "y"])?,
                make(&[8, 16], 0.2, 0.0, P![None, "y"])?,
                make(&[16, 8], 0.1, 0.0, P!["y", None])?,
                make(&[8, 16], 0.4, 0.0, P![None, "y"])?,
            ])
        },
        run: |p| with_slopes(model, p),
        wanted: &[5.873714, 10.234921, 49.006142, 8.374476, 9.062039],
        needs_four: false,
    },
    Program {
        name: "attention",
        arguments: |make| {
            let w = |b: f32| make(&[8, 4, 2], 0.2, b, P![None, "y", None]);
            let x = make(&[4, 6, 8], 0.15, 0.0, P!["x"])?;
            Ok(vec![x, w(0.0)?, w(1.0)?, w(2.0)?, make(&[4, 2, 8], 0.3, 0.0, P!["y", None, None])?])
        },
        run: |p| {
            let sum = attention(&p)?.sum(..);
            let slopes = with_slopes(|p| Ok(attention(&p)?.square().sum(..)), p)?;
            Ok(vec![sum, slopes[1].clone(), slopes[2].clone(), slopes[5].clone()])
        },
        wanted: &[13.53504, 132.3805, 8.5923, 83.3016],
        needs_four: false,
    },
    Program {
        name: "fully sharded weights in a scan",
        arguments: |make| {
            Ok(vec![make(&[3, 8, 8], 0.17, 0.0, P![None, "x", None])?, make(&[8, 8], 0.3, 0.0, P![("x", "y")])?])
        },
        run: |p| Ok(with_slopes(scanned, p)?[..2].to_vec()),
        wanted: &[9.751321, 769.0476],
        needs_four: false,
    },
    Program {
        name: "a part in auto_axes",
        arguments: |make| Ok(vec![make(&[8, 8], 0.3, 0.0, P!["x"])?, make(&[8, 4], 0.2, 0.0, P![None, "y"])?]),
        run: |p| Ok(with_slopes(routed, p)?[1..].to_vec()),
        wanted: &[0.27012, 1.23006],
        needs_four: false,
    },
    Program {
        name: "experts in shard_map",
        arguments: |make| {
            let (x, we) = (make(&[8, 4], 0.3, 0.0, P!["x"])?, make(&[4, 4, 4], 0.2, 0.0, P!["y", None, None])?);
            Ok(vec![x, we, make(&[4, 4], 0.5, 0.0, P![])?])
        },
        run: |p| {
            let sum = experts(&p)?.sum(..);
            let slopes = with_slopes(|p| Ok(experts(&p)?.square().sum(..)), p)?;
            Ok([vec![sum], slopes[1..].to_vec()].concat())
        },
        wanted: &[-4.570611, 10.85014, 9.21374, 62.24579],
        needs_four: true,
    },
    Program {
        name: "accumulation of unreduced gradients",
        arguments: |make| {
            Ok(vec![make(&[4, 4], 0.3, 0.0, P![].reduced(["x"]))?, make(&[3, 8, 4], 0.1, 0.0, P![None, "x", None])?])
        },
        run: accumulated,
        wanted: &[50.49733],
        needs_four: false,
    },
];

/// The loss, and the sum of the absolute values of each gradient, which has the type of its argument.
fn with_slopes(loss: impl Fn(Vec<Array>) -> Result<Array>, p: Vec<Array>) -> Result<Vec<Array>> {
    let (value, slopes) = value_and_grad(&loss).call(p.clone())?;
    for (slope, p) in slopes.iter().zip(&p) {
        assert_eq!(slope.type_name(), p.type_name());
    }
    Ok([value].into_iter().chain(slopes.iter().map(|g| g.abs().sum(..))).collect())
}

fn to(spec: PartitionSpec) -> DotOptions {
    DotOptions::new().out_sharding(spec)
}

fn model(p: Vec<Array>) -> Result<Array> {
    let tokens = reshard((arange(0..24) * 5 % 16).reshape([4, 6]), P!["x"]);
    let h = p[0].at(&tokens).out_sharding(P!["x", None, None]).get();
    let u = maximum(einsum("btd,df->btf", &[&h, &p[1]]), 0.0);
    assert_eq!(u.type_name(), "float32[4@x,6,16@y]");
    let h = &h + to(P!["x", None, None]).einsum("btf,fd->btd", &[&u, &p[2]]);
    let h = &h / ((&h * &h).mean_keepdims(-1) + 1e-6).sqrt();
    let logits = einsum("btd,dv->btv", &[&h, &p[3]]);
    let hot = reshard(shardax::nn::one_hot(&tokens, 16), P!["x", None, "y"]);
    Ok((shardax::scipy::special::logsumexp(&logits, -1) - (logits * hot).sum(-1)).mean(..))
}

fn attention(p: &[Array]) -> Result<Array> {
    fn head(w: &Array, p: &[Array]) -> Array {
        einsum("btd,dhk->bthk", &[&p[0], w])
    }
    let (q, k, v) = (head(&p[1], p), head(&p[2], p), head(&p[3], p));
    let s = einsum("bthk,bshk->bhts", &[&q, &k]) / 2f32.sqrt();
    let visible = tril(&ones([6, 6]), 0).greater(0.0).reshape([1, 1, 6, 6]);
    let o = einsum("bhts,bshk->bthk", &[&shardax::nn::softmax(&where_(visible, &s, -1e9), -1), &v]);
    assert_eq!(o.type_name(), "float32[4@x,6,4@y,2]");
    Ok(to(P!["x", None, None]).einsum("bthk,hkd->btd", &[&o, &p[4]]))
}

fn scanned(p: Vec<Array>) -> Result<Array> {
    fn layer(h: Array, w: Array) -> Result<(Array, ())> {
        Ok((h.matmul(reshard(w, P![])).tanh(), ()))
    }
    Ok(shardax::scan(layer, p[1].clone(), p[0].clone())?.0.square().sum(..))
}

fn routed(p: Vec<Array>) -> Result<Array> {
    let f = auto_axes(|x: Array, w: Array| shardax::nn::softmax(&sort(x.matmul(w), 0), -1));
    Ok(f.out_sharding(P!["x", None]).call((p[0].clone(), p[1].clone()))?.square().sum(..))
}

fn experts(p: &[Array]) -> Result<Array> {
    let chosen = shardax::nn::softmax(&p[0].matmul(&p[2]), -1);
    fn experts(x: Array, we: Array, chosen: Array) -> Array {
        let local_rows = lax::dynamic_slice_in_dim(&chosen, &axis_index("y"), 1, 1);
        psum(einsum("nd,edf->nf", &[&(x * local_rows), &we]), "y")
    }
    shard_map(experts, None).out_specs(P!["x", None]).call((p[0].clone(), p[1].clone(), chosen))
}

fn accumulated(p: Vec<Array>) -> Result<Vec<Array>> {
    fn step(sum: Array, x: Array, p: &[Array]) -> Result<(Array, ())> {
        let slope = grad(|w: Array| x.matmul(w).tanh().sum(..)).call(&p[0])?;
        assert_eq!(slope.type_name(), "float32[4,4]{U:x}");
        Ok((sum + slope, ()))
    }
    let (sum, ()) = shardax::scan(
        |sum: Array, x: Array| step(sum, x, &p),
        reshard(zeros([4, 4]), P![].unreduced(["x"])),
        p[1].clone(),
    )?;
    Ok(vec![reshard(sum, P![]).sum(..)])
}
