//! Clients, programs and a time limit for the tests.
#![allow(dead_code)]

use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use shardax_pjrt::*;

/// A client with this number of CPU devices, shared by the tests of a binary.
pub fn client(devices: usize) -> Client {
    static ONE: OnceLock<Client> = OnceLock::new();
    static EIGHT: OnceLock<Client> = OnceLock::new();

    match devices {
        1 => ONE.get_or_init(|| new_client(1)).clone(),
        8 => EIGHT.get_or_init(|| new_client(8)).clone(),
        _ => new_client(devices),
    }
}

pub fn new_client(devices: usize) -> Client {
    let plugin = Plugin::cpu().expect("the CPU plugin");
    Client::new(&plugin, &[("cpu_device_count", Value::Int(devices as i64))]).expect("a client")
}

/// Fails instead of hanging; the thread of a hung test is leaked. `SHARDAX_TEST_PATIENCE` scales the limit for slow
/// builds.
pub fn within<R: Send + 'static>(seconds: u64, f: impl FnOnce() -> R + Send + 'static) -> R {
    let patience = std::env::var("SHARDAX_TEST_PATIENCE").ok().and_then(|times| times.parse().ok()).unwrap_or(1);
    let seconds = seconds * patience;
    let (send, receive) = channel();
    let thread = std::thread::spawn(move || {
        let _ = send.send(f());
    });
    match receive.recv_timeout(Duration::from_secs(seconds)) {
        Ok(result) => result,
        Err(RecvTimeoutError::Timeout) => panic!("still running after {seconds} s"),
        Err(RecvTimeoutError::Disconnected) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!(),
        },
    }
}

pub fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
}

pub fn put(client: &Client, device: usize, values: &[f32]) -> Buffer {
    let dims = [values.len() as i64];
    client.buffer_from_host(&bytes(values), ElementType::F32, &dims, &client.devices()[device]).unwrap()
}

pub fn get(buffer: &Buffer) -> Vec<f32> {
    let mut out = vec![0; buffer.byte_size()];
    buffer.to_host(&mut out).unwrap();
    floats(&out)
}

pub fn f32s(dims: &[i64]) -> ParameterSpec {
    ParameterSpec::new(ElementType::F32, dims)
}

pub fn signature(parameters: impl IntoIterator<Item = ParameterSpec>) -> Signature {
    Signature { parameters: parameters.into_iter().collect() }
}

pub fn partitions(n: usize) -> CompileOptions {
    CompileOptions { num_partitions: n, ..Default::default() }
}

/// x * 2 + 1 on n floats, optionally donating x.
pub fn affine(n: usize, donate: bool) -> String {
    let attribute = if donate { " {tf.aliasing_output = 0 : i32}" } else { "" };
    format!(
        "func.func @main(%x: tensor<{n}xf32>{attribute}) -> tensor<{n}xf32> {{
          %two = stablehlo.constant dense<2.0> : tensor<{n}xf32>
          %one = stablehlo.constant dense<1.0> : tensor<{n}xf32>
          %a = stablehlo.multiply %x, %two : tensor<{n}xf32>
          %b = stablehlo.add %a, %one : tensor<{n}xf32>
          return %b : tensor<{n}xf32>
        }}"
    )
}

/// The sum over `devices` devices of `n` floats each, optionally donating the input.
pub fn all_reduce(devices: usize, n: usize, donate: bool) -> String {
    let group = (0..devices).map(|d| d.to_string()).collect::<Vec<_>>().join(", ");
    let attribute = if donate { ", tf.aliasing_output = 0 : i32" } else { "" };
    let total = devices * n;
    format!(
        "module attributes {{mhlo.num_partitions = {devices} : i32, mhlo.num_replicas = 1 : i32}} {{
        sdy.mesh @mesh = <[\"i\"={devices}]>
        func.func @main(%x: tensor<{total}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{\"i\"}}]>{attribute}}})
            -> (tensor<{total}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{\"i\"}}]>}}) {{
          %r = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{\"i\"}}]>] out_shardings=[<@mesh, [{{\"i\"}}]>]
              manual_axes={{\"i\"}} (%s: tensor<{n}xf32>) {{
            %t = \"stablehlo.all_reduce\"(%s) <{{
              replica_groups = dense<[[{group}]]> : tensor<1x{devices}xi64>,
              channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}}> ({{
              ^bb0(%a: tensor<f32>, %b: tensor<f32>):
                %c = stablehlo.add %a, %b : tensor<f32>
                stablehlo.return %c : tensor<f32>
              }}) : (tensor<{n}xf32>) -> tensor<{n}xf32>
            sdy.return %t : tensor<{n}xf32>
          }} : (tensor<{total}xf32>) -> tensor<{total}xf32>
          return %r : tensor<{total}xf32>
        }}
        }}"
    )
}
