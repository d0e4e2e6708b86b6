//! Transfers in place and by copy; serialized programs; shardings chosen by the compiler.

mod common;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use shardax_pjrt::*;

#[test]
fn every_type_round_trips() {
    let client = client(8);
    for &ty in ElementType::ALL {
        // Types narrower than a byte take one byte on the host, of which only the low bits count.
        let limit = if ty == ElementType::Pred { 2 } else { 1u32 << ty.bits().min(8) };
        let data: Vec<u8> = (0..6 * ty.byte_size() as u32).map(|i| (i % limit) as u8).collect();
        let buffer = match client.buffer_from_host(&data, ty, &[2, 3], &client.devices()[1]) {
            Ok(buffer) => buffer,
            Err(error) => {
                println!("{ty}: {error}");
                continue;
            }
        };
        assert_eq!((buffer.element_type(), buffer.dims(), buffer.byte_size()), (ty, &[2, 3][..], data.len()));
        let mut out = vec![0xff; data.len()];
        match buffer.to_host(&mut out) {
            Ok(()) => {
                let mask = if ty.bits() < 8 { (1u8 << ty.bits()) - 1 } else { 0xff };
                let masked: Vec<u8> = out.iter().map(|b| b & mask).collect();
                assert_eq!(masked, data, "{ty}");
                assert_eq!(buffer.with_bytes(<[u8]>::to_vec).unwrap(), out, "{ty}");
            }
            Err(error) => println!("{ty}: {error}"),
        }
    }
}

#[test]
fn shapes_and_sizes_are_checked() {
    let client = client(8);
    let device = &client.devices()[0];
    for (len, dims) in [(4, &[2][..]), (8, &[]), (0, &[1]), (8, &[-2]), (8, &[i64::MAX, 4])] {
        let error = client.buffer_from_host(&vec![0; len], ElementType::F32, dims, device).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
    }
    let other_client = new_client(1);
    assert!(client.buffer_from_host(&[0; 4], ElementType::F32, &[], &other_client.devices()[0]).is_err());
    let scalar = client.buffer_from_host(&1.5f32.to_ne_bytes(), ElementType::F32, &[], device).unwrap();
    assert_eq!(get(&scalar), [1.5]);
    assert!(scalar.to_host(&mut [0; 5]).is_err());
    let empty = client.buffer_from_host(&[], ElementType::F32, &[0, 3], device).unwrap();
    assert_eq!(get(&empty), [0.0; 0]);
    assert_eq!(empty.with_bytes(<[u8]>::len).unwrap(), 0);
}

#[test]
fn copies_between_devices() {
    let client = client(8);
    let x = put(&client, 0, &[1.0, 2.0]);
    for device in [5, 0] {
        let y = x.copy_to_device(&client.devices()[device]).unwrap();
        assert_eq!(y.device().id(), device);
        assert_eq!(get(&y), [1.0, 2.0]);
        x.block_until_ready().unwrap();
    }
    assert!(x.copy_to_device(&new_client(1).devices()[0]).is_err());
}

/// Shared data from an offset on, which counts its drops.
struct Counted(Vec<u8>, usize, Arc<AtomicUsize>);

impl Counted {
    /// Data that begins `offset` bytes after a multiple of 64.
    fn new(data: &[u8], offset: usize, ended: &Arc<AtomicUsize>) -> Arc<Counted> {
        let mut memory = vec![0; data.len() + 128];
        let start = memory.as_ptr().align_offset(64) + offset;
        memory[start..start + data.len()].copy_from_slice(data);
        memory.truncate(start + data.len());
        Arc::new(Counted(memory, start, ended.clone()))
    }
}

impl HostBytes for Counted {
    fn bytes(&self) -> &[u8] {
        &self.0[self.1..]
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.2.fetch_add(1, Ordering::SeqCst);
    }
}

fn wait_for(what: impl Fn() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(10), "it did not happen");
        std::thread::yield_now();
    }
}

#[test]
fn aligned_host_memory_is_used_in_place_and_kept() {
    let client = client(8);
    let ended = Arc::new(AtomicUsize::new(0));
    let data = Counted::new(&bytes(&[1.0, 2.0, 3.0, 4.0]), 0, &ended);
    let address = data.bytes().as_ptr() as usize;
    let buffers: Vec<Buffer> = (0..3)
        .map(|d| client.buffer_from_host_shared(data.clone(), ElementType::F32, &[4], &client.devices()[d]).unwrap())
        .collect();
    drop(data);
    for buffer in &buffers {
        assert_eq!(buffer.unsafe_pointer().unwrap(), address);
        assert_eq!(get(buffer), [1.0, 2.0, 3.0, 4.0]);
    }
    // Donating copies it, and the shared data is unchanged.
    let exe = client.compile(&affine(4, true), &CompileOptions::default(), signature([f32s(&[4]).donated()])).unwrap();
    let y = exe.execute(&[&buffers[0]]).unwrap();
    assert_eq!(get(&y[0][0]), [3.0, 5.0, 7.0, 9.0]);
    assert_ne!(y[0][0].unsafe_pointer().unwrap(), address);
    assert_eq!(get(&buffers[1]), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(ended.load(Ordering::SeqCst), 0);
    drop(buffers);
    wait_for(|| ended.load(Ordering::SeqCst) == 1);

    // Unaligned data is copied and released.
    let values: Vec<f32> = (0..1025).map(|i| i as f32).collect();
    let data = Counted::new(&bytes(&values), 4, &ended);
    let x = client.buffer_from_host_shared(data, ElementType::F32, &[1025], &client.devices()[0]).unwrap();
    assert_eq!(get(&x), values);
    wait_for(|| ended.load(Ordering::SeqCst) == 2);
}

#[test]
fn events_wait_and_call_back() {
    let client = client(8);
    let exe =
        client.compile(&affine(1 << 20, false), &CompileOptions::default(), signature([f32s(&[1 << 20])])).unwrap();
    let x = put(&client, 0, &vec![1.0; 1 << 20]);
    let y = exe.execute(&[&x]).unwrap();
    let event = y[0][0].ready().unwrap();
    let called = Arc::new(AtomicUsize::new(0));
    let count = called.clone();
    y[0][0].ready().unwrap().on_ready(move |result| {
        result.unwrap();
        count.fetch_add(1, Ordering::SeqCst);
    });
    event.wait().unwrap();
    assert!(y[0][0].ready().unwrap().is_ready());
    wait_for(|| called.load(Ordering::SeqCst) == 1);
    // A panic in a callback is caught.
    y[0][0].ready().unwrap().on_ready(|_| panic!("in a callback"));
    y[0][0].block_until_ready().unwrap();
}

/// The last owner of a client may be a callback on one of the client's threads.
#[test]
fn a_client_may_be_dropped_on_any_thread() {
    within(60, || {
        for _ in 0..20 {
            let client = new_client(2);
            let n = 1 << 18;
            let exe =
                client.compile(&affine(n, false), &CompileOptions::default(), signature([f32s(&[n as i64])])).unwrap();
            let x = put(&client, 0, &vec![1.0; n]);
            let mut y = exe.execute(&[&x]).unwrap();
            let buffer = y[0].pop().unwrap();
            let event = buffer.ready().unwrap();
            drop((client, exe, x, y));
            event.on_ready(move |result| {
                result.unwrap();
                drop(buffer);
            });
        }
        // Nothing needs to be awaited before.
        for _ in 0..20 {
            let client = new_client(2);
            let exe =
                client.compile(&all_reduce(2, 1 << 16, false), &partitions(2), signature([f32s(&[1 << 16])])).unwrap();
            let xs: Vec<Buffer> = (0..2).map(|d| put(&client, d, &vec![1.0; 1 << 16])).collect();
            exe.execute(&xs.iter().collect::<Vec<_>>()).unwrap();
        }
    });
}

#[test]
fn serialized_programs_run_again() {
    let client = client(8);
    let options = CompileOptions::default();
    let bytes =
        client.compile(&affine(4, true), &options, signature([f32s(&[4]).donated()])).unwrap().serialize().unwrap();
    let exe = client.deserialize(&bytes, &options, signature([f32s(&[4]).donated()])).unwrap();
    let x = put(&client, 0, &[1.0; 4]);
    assert_eq!(get(&exe.execute(&[&x]).unwrap()[0][0]), [3.0; 4]);
    assert!(x.is_deleted());
    // A loaded program can be serialized again: the bytes that it was loaded from.
    let reloaded =
        new_client(8).deserialize(&exe.serialize().unwrap(), &options, signature([f32s(&[4]).donated()])).unwrap();
    let x = put(reloaded.client(), 0, &[1.0; 4]);
    assert_eq!(get(&reloaded.execute(&[&x]).unwrap()[0][0]), [3.0; 4]);
    // A loaded program is checked against its signature.
    assert!(client.deserialize(&bytes, &options, signature([f32s(&[5]).donated()])).is_err());
    assert!(client.deserialize(&bytes, &options, signature([f32s(&[4])])).is_err());
    for cut in [bytes.len() / 2, bytes.len() - 1] {
        assert!(client.deserialize(&bytes[..cut], &options, signature([f32s(&[4]).donated()])).is_err());
    }

    let compiled = client.compile(&all_reduce(8, 4, false), &partitions(8), signature([f32s(&[4])])).unwrap();
    let bytes = compiled.serialize().unwrap();
    let new_process_client = new_client(8);
    let exe = new_process_client.deserialize(&bytes, &partitions(8), signature([f32s(&[4])])).unwrap();
    assert_eq!((exe.device_ids().len(), exe.has_collectives()), (8, Some(true)));
    // The loaded program has the properties of the compiled program.
    fn cost(exe: &Executable) -> Vec<(String, Value)> {
        let mut cost = exe.cost_analysis().unwrap();
        cost.sort_by(|(a, _), (b, _)| a.cmp(b));
        cost
    }
    assert_eq!(cost(&exe), cost(&compiled));
    assert_eq!(exe.memory_analysis().map(|m| m.temporaries), compiled.memory_analysis().map(|m| m.temporaries));
    let xs: Vec<Buffer> = (0..8).map(|d| put(&new_process_client, d, &[d as f32; 4])).collect();
    assert_eq!(get(&exe.execute(&xs.iter().collect::<Vec<_>>()).unwrap()[5][0]), [28.0; 4]);
}

/// The plugin crashes on them.
#[test]
fn serialized_programs_with_changed_bits_are_rejected() {
    let client = client(8);
    let options = CompileOptions::default();
    let bytes = client.compile(&affine(4, false), &options, signature([f32s(&[4])])).unwrap().serialize().unwrap();
    fn rejected(bytes: &[u8], client: &Client, options: &CompileOptions) {
        let error = client.deserialize(bytes, options, signature([f32s(&[4])])).unwrap_err();
        assert_eq!(error.code, Code::DataLoss, "{error}");
    }
    // Each of 200 bits spread over the entry, and parts omitted, duplicated and swapped.
    for i in 0..200 {
        let position = i * bytes.len() / 200;
        let mut changed = bytes.clone();
        changed[position] ^= 1 << (i % 8);
        rejected(&changed, &client, &options);
    }
    let (head, tail) = bytes.split_at(bytes.len() / 3);
    for parts in [[head, &tail[1..]], [tail, head], [&bytes, tail]] {
        rejected(&parts.concat(), &client, &options);
    }
    // The entry of a program with other parameters is detected by its signature.
    let error = client.deserialize(&bytes, &options, signature([f32s(&[4]), f32s(&[4])])).unwrap_err();
    assert!(error.message.contains("the compiled program takes (f32[4]), but the signature is (f32[4], f32[4])"));
    // Written by a client with other devices.
    let error = new_client(2).deserialize(&bytes, &options, signature([f32s(&[4])])).unwrap_err();
    assert!(error.message.contains("compiled by another version of the plugin or for another processor"), "{error}");
    assert!(error.message.contains("devices"), "{error}");
}

#[test]
fn an_event_keeps_its_client() {
    within(60, || {
        for _ in 0..20 {
            let client = new_client(2);
            let exe = client.compile(&all_reduce(2, 1 << 18, false), &partitions(2), signature([f32s(&[1 << 18])]));
            let xs: Vec<Buffer> = (0..2).map(|d| put(&client, d, &vec![1.0; 1 << 18])).collect();
            let ys = exe.unwrap().execute(&xs.iter().collect::<Vec<_>>()).unwrap();
            let events: Vec<Event> = ys.iter().map(|y| y[0].ready().unwrap()).collect();
            drop((xs, ys, client));
            events.into_iter().for_each(|event| event.wait().unwrap());
        }
    });
}

/// Another thread may be reading the environment in C.
#[test]
fn nothing_changes_the_environment_after_the_start() {
    let before: Vec<_> = std::env::vars_os().collect();
    assert_eq!(std::env::var("TF_CPP_MIN_LOG_LEVEL").as_deref(), Ok("2"), "it is set before main");
    let client = new_client(3);
    client.compile(&affine(3, false), &CompileOptions::default(), signature([f32s(&[3])])).unwrap();
    assert_eq!(std::env::vars_os().collect::<Vec<_>>(), before);
}

/// `dot` of a row-sharded and a column-sharded matrix, with the result's sharding left to the compiler.
const PROPAGATED: &str = "sdy.mesh @mesh = <[\"i\"=4, \"j\"=2]>
func.func @main(%x: tensor<8x16xf32> {sdy.sharding = #sdy.sharding<@mesh, [{\"i\"}, {}]>},
                %y: tensor<16x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {\"j\"}]>})
    -> (tensor<8x4xf32>, tensor<8x16xf32>) {
  %z = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %n = stablehlo.negate %x : tensor<8x16xf32>
  return %z, %n : tensor<8x4xf32>, tensor<8x16xf32>
}";

#[test]
fn shardings_chosen_by_the_compiler() {
    let client = client(8);
    let options = CompileOptions { num_partitions: 8, propagate_to_outputs: vec![true, true], ..Default::default() };
    let exe = client.compile(PROPAGATED, &options, signature([f32s(&[2, 16]), f32s(&[16, 2])])).unwrap();
    let outputs = exe.output_shardings().unwrap().unwrap();
    println!("{} | {}", outputs[0], outputs[1]);
    assert_eq!(outputs.len(), 2);
    // The program states only the shardings of its parameters, so that the compiler chooses the sharding of the
    // results.
    assert_eq!(outputs[0].partitions(2), [4, 2]);
    assert_eq!(outputs[0].devices, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(outputs[1].partitions(2), [4, 1]);
    assert!(outputs[1].replicate_on_last_tile_dim || outputs[1].last_tile_dims == [ShardingKind::Replicated]);
    let parameters = exe.parameter_shardings().unwrap().unwrap();
    println!("{} | {}", parameters[0], parameters[1]);
    assert_eq!(parameters[1].partitions(2), [1, 2]);
    assert_eq!(parameters[1].devices, [0, 2, 4, 6, 1, 3, 5, 7], "the iota form, expanded");
    assert_eq!(exe.output_dims().collect::<Vec<_>>(), [&[2, 2][..], &[2, 16]]);
    assert_eq!(exe.output_types().collect::<Vec<_>>(), [ElementType::F32; 2]);
    assert_eq!(exe.has_collectives(), Some(false));

    let unpartitioned = client.compile(&affine(4, false), &CompileOptions::default(), signature([f32s(&[4])])).unwrap();
    println!("{:?} {:?}", unpartitioned.output_shardings().unwrap(), unpartitioned.parameter_shardings().unwrap());
    assert!(
        unpartitioned
            .output_shardings()
            .unwrap()
            .is_none_or(|s| s[0].is_replicated() || s[0].kind == ShardingKind::Maximal)
    );
}

#[test]
fn options_reach_the_compiler() {
    let client = client(8);
    for (name, value) in [
        ("xla_cpu_use_fusion_emitters", Value::Bool(false)),
        ("xla_cpu_use_fusion_emitters", Value::String("False".into())),
        ("xla_backend_optimization_level", Value::Int(1)),
        ("xla_llvm_disable_expensive_passes", Value::Bool(true)),
        ("xla_cpu_prefer_vector_width", Value::Int(128)),
    ] {
        let options = CompileOptions { overrides: vec![(name.into(), value)], ..Default::default() };
        let exe = client.compile(&affine(4, false), &options, signature([f32s(&[4])])).unwrap();
        assert_eq!(get(&exe.execute(&[&put(&client, 0, &[1.0; 4])]).unwrap()[0][0]), [3.0; 4]);
    }
}
