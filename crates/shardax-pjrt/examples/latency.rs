//! Measures the latency of executions in microseconds, from the call until the results are ready. Run it in release
//! mode.

use std::time::Instant;

use shardax_pjrt::*;

#[path = "../tests/common/mod.rs"]
mod common;
use common::*;

/// The median of 9 rounds, in µs per call.
fn time(name: &str, calls: usize, mut f: impl FnMut()) {
    for _ in 0..calls {
        f();
    }
    let mut rounds: Vec<f64> = (0..9)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..calls {
                f();
            }
            start.elapsed().as_secs_f64() * 1e6 / calls as f64
        })
        .collect();
    rounds.sort_by(f64::total_cmp);
    println!("{name:<58} {:8.2} µs  (best {:.2})", rounds[4], rounds[0]);
}

/// A program with n inputs and n outputs, each plus one, on `devices` devices without communication.
fn many(n: usize, devices: usize) -> String {
    let sharding = if devices == 1 { "" } else { " {sdy.sharding = #sdy.sharding<@mesh, [{\"i\"}]>}" };
    let ty = format!("tensor<{}xf32>", 4 * devices);
    let list = |f: &dyn Fn(usize) -> String| (0..n).map(f).collect::<Vec<_>>().join(", ");
    format!(
        "sdy.mesh @mesh = <[\"i\"={devices}]>\nfunc.func @main({}) -> ({}) {{\n%one = stablehlo.constant dense<1.0> : {ty}\n{}\nreturn {} : {}\n}}",
        list(&|i| format!("%x{i}: {ty}{sharding}")),
        list(&|_| format!("{ty}{sharding}")),
        (0..n).map(|i| format!("%y{i} = stablehlo.add %x{i}, %one : {ty}")).collect::<Vec<_>>().join("\n"),
        list(&|i| format!("%y{i}")),
        list(&|_| ty.clone()),
    )
}

fn main() {
    let client = new_client(8);
    let compile = |text: &str, devices, n: usize, donate: bool| {
        let spec = if donate { f32s(&[4]).donated() } else { f32s(&[4]) };
        client.compile(text, &partitions(devices), signature(vec![spec; n])).unwrap()
    };
    let wait = |results: &[Vec<Buffer>]| {
        for y in results.iter().flatten() {
            y.block_until_ready().unwrap();
        }
    };

    let one = compile(&affine(4, false), 1, 1, false);
    let x = put(&client, 0, &[1.0; 4]);
    time("1 device, x*2+1: execute", 20_000, || drop(one.execute(&[&x]).unwrap()));
    time("1 device, x*2+1: execute and wait", 20_000, || wait(&one.execute(&[&x]).unwrap()));
    time("1 device, x*2+1: execute_on", 20_000, || drop(one.execute_on(&[&x], &client.devices()[0]).unwrap()));
    let give = compile(&affine(4, true), 1, 1, true);
    let mut x = put(&client, 0, &[1.0; 4]);
    time("1 device, x*2+1, donated", 20_000, || x = give.execute(&[&x]).unwrap().pop().unwrap().pop().unwrap());

    let n = 64;
    let wide = compile(&many(n, 1), 1, n, false);
    let xs: Vec<Buffer> = (0..n).map(|_| put(&client, 0, &[1.0; 4])).collect();
    let refs: Vec<&Buffer> = xs.iter().collect();
    time("1 device, 64 arguments and 64 results", 1000, || wait(&wide.execute(&refs).unwrap()));

    let eight = compile(&many(1, 8), 8, 1, false);
    let xs: Vec<Buffer> = (0..8).map(|d| put(&client, d, &[1.0; 4])).collect();
    let refs: Vec<&Buffer> = xs.iter().collect();
    time("8 devices, x+1: execute and wait", 500, || wait(&eight.execute(&refs).unwrap()));
    time("8 devices, x+1: device by device (execute_on) and wait", 500, || {
        let ys: Vec<_> = (0..8).map(|d| eight.execute_on(&refs[d..d + 1], &client.devices()[d]).unwrap()).collect();
        wait(&ys);
    });
    let reduce = compile(&all_reduce(8, 4, false), 8, 1, false);
    time("8 devices, all_reduce of 4 floats: execute and wait", 300, || wait(&reduce.execute(&refs).unwrap()));

    let mut out = [0; 16];
    time("to_host of 4 floats", 20_000, || xs[0].to_host(&mut out).unwrap());
    time("with_bytes of 4 floats", 20_000, || xs[0].with_bytes(|_| ()).unwrap());
    let bytes = vec![0u8; 16];
    time("buffer_from_host of 4 floats", 20_000, || {
        drop(client.buffer_from_host(&bytes, ElementType::F32, &[4], &client.devices()[0]).unwrap())
    });
}
