mod common;
use shardax::prelude::*;
use shardax::nn::*;
use std::time::Instant;
fn time(name: &str, mut f: impl FnMut()) { f(); let mut v: Vec<f64> = (0..15).map(|_| { let t = Instant::now(); f(); t.elapsed().as_secs_f64()*1e3 }).collect(); v.sort_by(f64::total_cmp); println!("{name}: median {:.2} min {:.2} ms", v[7], v[0]); }
#[test]
fn t() -> Result<()> {
    shardax::config::set_num_cpu_devices(1)?;
    let x = Array::from_vec((0..128*32*32*32).map(|i| ((i * 7919) % 13) as f32 - 6.0).collect(), &[128, 32, 32, 32])?;
    let ct = ones([128, 16, 16, 32]);
    for (n, p) in [("2x2", Pool::new([2,2]).strides([2,2])), ("3x3s2 same", Pool::new([3,3]).strides([2,2]).padding(shardax::lax::Padding::Same))] {
        let fwd = jit(|x: Array| p.max(relu(x)));
        time(&format!("{n} fwd"), || { fwd.call(&x).unwrap().sum(..).error(); let y = fwd.call(&x).unwrap(); block_until_ready(y).unwrap(); });
        let both = jit(|x: Array, ct: Array| -> Result<(Array, Array)> { let (y, f) = vjp(|x: Array| p.max(relu(x)), x)?; Ok((y, f.call(ct)?.0)) });
        time(&format!("{n} fwd+vjp"), || { let y = both.call((&x, &ct)).unwrap(); block_until_ready(y).unwrap(); });
    }
    let x = ones([128, 32, 32, 32]); let k = ones([3,3,32,64]);
    let f = jit(grad(|k: Array, x: Array| conv(x, k, [1,1], shardax::lax::Padding::Same).sum(..)));
    time("conv kernel grad", || { block_until_ready(f.call((&k, &x)).unwrap()).unwrap(); });
    let f = jit(grad(|x: Array, k: Array| conv(x, k, [1,1], shardax::lax::Padding::Same).square().sum(..)));
    time("conv fwd + input grad", || { block_until_ready(f.call((&x, &k)).unwrap()).unwrap(); });
    let f = jit(|x: Array, k: Array| conv(x, k, [1,1], shardax::lax::Padding::Same));
    time("conv fwd", || { block_until_ready(f.call((&x, &k)).unwrap()).unwrap(); });
    Ok(())
}
