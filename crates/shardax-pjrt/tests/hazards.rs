//! Inputs on which the plugin hangs or crashes: wrong arguments, donation, races. Each is an error, and the client
//! works afterwards.

mod common;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use shardax_pjrt::*;

fn refs(buffers: &[Buffer]) -> Vec<&Buffer> {
    buffers.iter().collect()
}

fn inputs(client: &Client, devices: usize, n: usize) -> Vec<Buffer> {
    (0..devices).map(|d| put(client, d, &vec![d as f32; n])).collect()
}

#[test]
fn wrong_arguments_are_errors_and_the_client_still_works() {
    within(60, || {
        let client = new_client(8);
        let exe = client.compile(&all_reduce(8, 4, false), &partitions(8), signature([f32s(&[4])])).unwrap();
        let good = inputs(&client, 8, 4);
        // Every error is followed by a run, because a launch that fails in the plugin would hang in the next one.
        fn works(exe: &Executable, good: &[Buffer]) {
            let results = exe.execute(&refs(good)).unwrap();
            assert_eq!(get(&results[7][0]), [28.0; 4]);
        }
        fn fails(index: usize, bad: &Buffer, phrase: &str, good: &[Buffer], exe: &Executable) {
            let mut args = refs(good);
            args[index] = bad;
            let error = exe.execute(&args).unwrap_err();
            assert!(error.message.contains(phrase), "{error}");
            works(exe, good);
        }
        works(&exe, &good);

        fails(3, &put(&client, 3, &[1.0; 5]), "f32[5], but the program takes f32[4]", &good, &exe);
        let matrix =
            client.buffer_from_host(&bytes(&[1.0; 4]), ElementType::F32, &[2, 2], &client.devices()[3]).unwrap();
        fails(3, &matrix, "f32[2,2], but the program takes f32[4]", &good, &exe);
        let ints = client.buffer_from_host(&[0; 16], ElementType::S32, &[4], &client.devices()[3]).unwrap();
        fails(3, &ints, "s32[4], but the program takes f32[4]", &good, &exe);
        fails(3, &good[2], "argument 0 for device 3 (cpu) is on device 2", &good, &exe);
        let elsewhere = put(&new_client(8), 3, &[1.0; 4]);
        fails(3, &elsewhere, "another client", &good, &exe);
        let deleted = put(&client, 3, &[1.0; 4]);
        deleted.delete().unwrap();
        fails(3, &deleted, "was deleted", &good, &exe);
        for count in [0, 1, 7] {
            let error = exe.execute(&refs(&good)[..count]).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
        }
        works(&exe, &good);
    });
}

#[test]
fn deletion_is_idempotent_and_final() {
    let client = client(8);
    let x = put(&client, 0, &[1.0, 2.0]);
    assert!(!x.is_deleted());
    x.delete().unwrap();
    x.delete().unwrap();
    assert!(x.is_deleted());
    assert_eq!(x.dims(), [2]);
    assert_eq!(x.to_host(&mut [0; 8]).unwrap_err().code, Code::FailedPrecondition);
    assert!(x.with_bytes(|_| ()).is_err());
    assert!(x.ready().is_err());
    assert!(x.block_until_ready().is_err());
    assert!(x.unsafe_pointer().is_err());
    assert!(x.copy_to_device(&client.devices()[1]).is_err());
}

#[test]
fn donation_takes_the_input() {
    within(60, || {
        let client = new_client(8);
        for devices in [1, 8] {
            let program = if devices == 1 { affine(4, true) } else { all_reduce(8, 4, true) };
            let exe = client.compile(&program, &partitions(devices), signature([f32s(&[4]).donated()])).unwrap();
            let xs = inputs(&client, devices, 4);
            let before = xs[0].unsafe_pointer().unwrap();
            let ys = exe.execute(&refs(&xs)).unwrap();
            assert_eq!(ys[0][0].unsafe_pointer().unwrap(), before, "the memory is reused");
            assert_eq!(get(&ys[0][0]), if devices == 1 { [1.0; 4] } else { [28.0; 4] });
            assert!(xs.iter().all(Buffer::is_deleted));
            let error = exe.execute(&refs(&xs)).unwrap_err();
            assert_eq!(error.code, Code::FailedPrecondition);
            assert!(error.message.contains("argument 0 (f32[4]) on device 0 (cpu) was donated"), "{error}");
            xs[0].delete().unwrap();
            // One deleted argument does not consume the others.
            let mut buffers = inputs(&client, devices, 4);
            let deleted = buffers.pop().unwrap();
            deleted.delete().unwrap();
            let mut args = refs(&buffers);
            args.push(&deleted);
            assert!(exe.execute(&args).is_err());
            buffers.push(put(&client, devices - 1, &[1.0; 4]));
            exe.execute(&refs(&buffers)).unwrap();
        }
    });
}

/// (x donated, y) -> x + y
const ADD_DONATING: &str = "func.func @main(%x: tensor<4xf32> {tf.aliasing_output = 0 : i32}, %y: tensor<4xf32>)
    -> tensor<4xf32> {
  %z = stablehlo.add %x, %y : tensor<4xf32>
  return %z : tensor<4xf32>
}";

#[test]
fn a_buffer_that_is_donated_and_passed_is_an_error() {
    within(60, || {
        let client = client(8);
        let options = CompileOptions::default();
        let one_donated =
            client.compile(ADD_DONATING, &options, signature([f32s(&[4]).donated(), f32s(&[4])])).unwrap();
        // Donating the second argument is valid for this crate, though the program does not use the donation.
        let both_donated =
            client.compile(ADD_DONATING, &options, signature([f32s(&[4]).donated(), f32s(&[4]).donated()])).unwrap();
        let x = put(&client, 0, &[1.0; 4]);
        for exe in [&one_donated, &both_donated] {
            let error = exe.execute(&[&x, &x]).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
            assert!(error.message.contains("is donated and is also passed as argument"), "{error}");
            assert!(!x.is_deleted());
        }
        let y = Arc::new(put(&client, 0, &[2.0; 4]));
        let z = both_donated.execute(&[&x, &y]).unwrap();
        assert_eq!(get(&z[0][0]), [3.0; 4]);
        assert!(x.is_deleted() && y.is_deleted());
    });
}

#[test]
fn a_signature_that_does_not_match_is_rejected() {
    let client = client(8);
    fn compile(text: &str, parameters: &[ParameterSpec], client: &Client) -> Error {
        client.compile(text, &CompileOptions::default(), signature(parameters.to_vec())).unwrap_err()
    }
    let wrong_shape = compile(&affine(4, false), &[f32s(&[5])], &client);
    assert!(wrong_shape.message.contains("the compiled program takes f32[4]"), "{wrong_shape}");
    let wrong_type = compile(&affine(4, false), &[ParameterSpec::new(ElementType::S32, [4])], &client);
    assert!(wrong_type.message.contains("the compiled program takes f32[4]"), "{wrong_type}");
    assert!(compile(&affine(4, false), &[], &client).message.contains("0 parameters"));
    let secret_donation = compile(&affine(4, true), &[f32s(&[4])], &client);
    assert!(secret_donation.message.contains("donates parameter 0"), "{secret_donation}");
    let donor = affine(4, true).replace("tf.aliasing_output = 0 : i32", "jax.buffer_donor = true");
    let secret_donation = compile(&donor, &[f32s(&[4])], &client);
    assert!(secret_donation.message.contains("donates parameter 0"), "{secret_donation}");
    // The shape of the whole array instead of a shard's.
    let global = client.compile(&all_reduce(8, 4, false), &partitions(8), signature([f32s(&[32])])).unwrap_err();
    assert!(global.message.contains("on each device the compiled program takes f32[4]"), "{global}");
}

#[test]
fn bad_programs_and_options_are_errors() {
    let client = client(8);
    fn vector() -> Signature {
        signature([f32s(&[4])])
    }
    assert!(client.compile("this is no MLIR", &CompileOptions::default(), vector()).is_err());
    assert!(client.compile("", &CompileOptions::default(), vector()).is_err());
    let options = [
        CompileOptions { num_partitions: 0, ..Default::default() },
        CompileOptions { num_partitions: 9, ..Default::default() },
        CompileOptions { num_partitions: 2, device_ids: vec![0], ..Default::default() },
        CompileOptions { num_partitions: 2, device_ids: vec![3, 3], ..Default::default() },
        CompileOptions { device_ids: vec![99], ..Default::default() },
        CompileOptions { portable: true, num_partitions: 2, ..Default::default() },
        CompileOptions { num_partitions: usize::MAX, num_replicas: 2, ..Default::default() },
    ];
    for options in options {
        let error = client.compile(&affine(4, false), &options, vector()).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
    }
    let options = CompileOptions { overrides: vec![("xla_no_such_option".into(), true.into())], ..Default::default() };
    assert!(client.compile(&affine(4, false), &options, vector()).is_err());
    assert!(client.deserialize(b"nonsense", &CompileOptions::default(), vector()).is_err());
    assert!(client.deserialize(b"", &CompileOptions::default(), vector()).is_err());
}

/// The compiler throws for a negative count, which ends the process, and never returns for a large one.
#[test]
fn options_that_would_end_or_hang_the_process_are_rejected() {
    let client = client(8);
    let name = "xla_cpu_parallel_codegen_split_count";
    for value in
        [Value::Int(-1), Value::Int(0), Value::Int(1_000_000_000), Value::Int(i64::MIN), "-1".into(), " -1".into()]
    {
        let says = format!("{name} is {value}, but must be between 1 and 4096");
        let options = CompileOptions { overrides: vec![(name.into(), value)], ..Default::default() };
        let error = client.compile(&affine(4, false), &options, signature([f32s(&[4])])).unwrap_err();
        assert!(error.message.contains(&says), "{error}");
    }
    for value in [1, 4096] {
        let options = CompileOptions { overrides: vec![(name.into(), Value::Int(value))], ..Default::default() };
        client.compile(&affine(4, false), &options, signature([f32s(&[4])])).unwrap();
    }
}

#[test]
fn donation_waits_for_readers() {
    within(60, || {
        let client = client(8);
        let sig = signature([f32s(&[4]).donated()]);
        let exe = client.compile(&affine(4, true), &CompileOptions::default(), sig).unwrap();
        let x = Arc::new(put(&client, 0, &[1.0; 4]));
        // On the same thread: an error, because waiting would never end.
        x.with_bytes(|_| {
            let started = Instant::now();
            assert!(exe.execute(&[&x]).unwrap_err().message.contains("is being read by this thread"));
            assert!(x.delete().is_err());
            assert!(started.elapsed() < Duration::from_secs(1));
        })
        .unwrap();
        // On another thread: donation waits.
        let done = Arc::new(AtomicBool::new(false));
        let (sender, started) = std::sync::mpsc::channel();
        let reader = {
            let (x, done) = (x.clone(), done.clone());
            std::thread::spawn(move || {
                x.with_bytes(|data| {
                    sender.send(()).unwrap();
                    std::thread::sleep(Duration::from_millis(100));
                    assert_eq!(floats(data), [1.0; 4]);
                    done.store(true, Ordering::SeqCst);
                })
                .unwrap();
            })
        };
        started.recv().unwrap();
        exe.execute(&[&x]).unwrap();
        assert!(done.load(Ordering::SeqCst));
        reader.join().unwrap();
    });
}

/// Takes `x` over in a program.
fn donate(client: &Client, x: &Buffer) -> shardax_pjrt::Result<()> {
    let sig = signature([f32s(&[4]).donated()]);
    let exe = client.compile(&affine(4, true), &CompileOptions::default(), sig).unwrap();
    exe.execute(&[x]).map(drop)
}

/// Donation waits for another thread's reference while data is being copied.
#[test]
fn a_referenced_buffer_is_donated_when_the_reference_is_dropped() {
    within(120, || {
        let client = client(8);
        let x = Arc::new(put(&client, 0, &[1.0; 4]));
        let (reference, begun) = (BufferReference::acquire(&x).unwrap(), Instant::now());
        let reader = {
            let x = x.clone();
            std::thread::spawn(move || {
                // Longer than the time limit for references without a copy.
                BufferReference::while_copying(|| std::thread::sleep(Duration::from_millis(10_500)));
                let copy = x.with_bytes(floats).unwrap();
                drop(reference);
                copy
            })
        };
        donate(&client, &x).unwrap();
        assert!(begun.elapsed() > Duration::from_secs(10));
        assert_eq!(reader.join().unwrap(), [1.0; 4]);
        assert!(BufferReference::acquire(&x).unwrap_err().message.contains("was donated"));
    });
}

#[test]
fn a_buffer_shared_by_dlpack_is_deleted_but_not_donated() {
    within(60, || {
        let client = client(8);
        let (x, begun) = (Arc::new(put(&client, 0, &[1.0, 2.0, 3.0, 4.0])), Instant::now());
        let tensors = [(); 2].map(|()| dlpack::Tensor::from_buffer(&x).unwrap());
        let error = donate(&client, &x).unwrap_err();
        assert!(error.message.contains("another library shares the memory of argument 0"), "{error}");
        assert!(!x.is_deleted());
        x.delete().unwrap();
        assert!(x.is_deleted() && x.with_bytes(floats).is_err());
        x.delete().unwrap();
        for tensor in tensors {
            assert_eq!(floats(tensor.bytes_in_place().unwrap()), [1.0, 2.0, 3.0, 4.0]);
        }
        assert!(dlpack::Tensor::from_buffer(&x).unwrap_err().message.contains("was deleted"));
        // A tensor that is gone does not matter.
        let y = Arc::new(put(&client, 0, &[1.0; 4]));
        drop(dlpack::Tensor::from_buffer(&y).unwrap());
        donate(&client, &y).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(9));
    });
}

/// In a process of its own: a copy by another test extends the time limit.
#[test]
fn a_reference_that_is_never_dropped_is_an_error() {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args(["never_dropped", "--exact", "--ignored", "--nocapture"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
#[ignore = "a part of another test, in a process of its own"]
fn never_dropped() {
    within(120, || {
        let client = client(8);
        let y = Arc::new(put(&client, 0, &[2.0; 4]));
        let reference = BufferReference::acquire(&y).unwrap();
        let error = donate(&client, &y).unwrap_err();
        assert!(error.message.contains("has been read by another thread for 10 s"), "{error}");
        drop(reference);
        y.delete().unwrap();
    });
}

/// Threads pass the same buffers to programs that donate them and to programs that do not, on eight devices with a
/// collective, and delete some. Every call must return, with a result or an error.
#[test]
fn racing_donation_and_use() {
    within(120, || {
        let client = new_client(8);
        let uses = client.compile(&all_reduce(8, 4, false), &partitions(8), signature([f32s(&[4])])).unwrap();
        let takes = client.compile(&all_reduce(8, 4, true), &partitions(8), signature([f32s(&[4]).donated()])).unwrap();
        let shared = std::sync::RwLock::new(Arc::new(inputs(&client, 8, 4)));
        let (well, rejected) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let end = Instant::now() + Duration::from_secs(1);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (client, uses, takes, shared, well, rejected) = (&client, &uses, &takes, &shared, &well, &rejected);
                scope.spawn(move || {
                    let mut round = 0;
                    while Instant::now() < end {
                        round += 1;
                        let xs = shared.read().unwrap().clone();
                        // A quarter of the calls donate the buffers that other threads use at the same time.
                        let exe = if (thread + round) % 4 == 0 { takes } else { uses };
                        match exe.execute(&refs(&xs)) {
                            Ok(results) => {
                                assert_eq!(get(&results[3][0]), [28.0; 4]);
                                well.fetch_add(1, Ordering::Relaxed);
                            }
                            Err(error) => {
                                assert_eq!(error.code, Code::FailedPrecondition, "{error}");
                                rejected.fetch_add(1, Ordering::Relaxed);
                                *shared.write().unwrap() = Arc::new(inputs(client, 8, 4));
                            }
                        }
                        if round % 16 == thread {
                            xs[thread].delete().unwrap();
                        }
                    }
                });
            }
        });
        let (well, rejected) = (well.into_inner(), rejected.into_inner());
        println!("{well} executions, {rejected} rejected");
        assert!(well > 10 && rejected > 0, "{well} {rejected}");
        let results = uses.execute(&refs(&inputs(&client, 8, 4))).unwrap();
        assert_eq!(get(&results[0][0]), [28.0; 4]);
    });
}

/// The plugin has one table of collectives for the whole process.
#[test]
fn clients_running_at_the_same_time_are_independent() {
    within(60, || {
        std::thread::scope(|scope| {
            for seed in 0..4 {
                scope.spawn(move || {
                    let client = new_client(4);
                    let exe =
                        client.compile(&all_reduce(4, 4, false), &partitions(4), signature([f32s(&[4])])).unwrap();
                    let xs: Vec<Buffer> = (0..4).map(|d| put(&client, d, &[(seed * 10 + d) as f32; 4])).collect();
                    for _ in 0..100 {
                        let results = exe.execute(&refs(&xs)).unwrap();
                        assert_eq!(get(&results[3][0]), [(seed * 40 + 6) as f32; 4]);
                    }
                });
            }
        });
    });
}

/// Programs with collectives on overlapping sets of devices, launched by several threads without waiting.
#[test]
fn overlapping_sets_of_devices() {
    within(60, || {
        let client = new_client(8);
        let sets: [&[usize]; 6] = [&[0, 1], &[1, 2], &[2, 0], &[7, 3, 1, 0], &[0, 1, 2, 3, 4, 5, 6, 7], &[6, 5]];
        std::thread::scope(|scope| {
            for set in sets {
                let client = &client;
                scope.spawn(move || {
                    let n = set.len();
                    let options = CompileOptions { device_ids: set.to_vec(), ..partitions(n) };
                    let exe = client.compile(&all_reduce(n, 4, false), &options, signature([f32s(&[4])])).unwrap();
                    assert_eq!(exe.device_ids(), set);
                    let xs: Vec<Buffer> = set.iter().map(|&d| put(client, d, &[1.0; 4])).collect();
                    for _ in 0..20 {
                        let in_flight: Vec<_> = (0..10).map(|_| exe.execute(&refs(&xs)).unwrap()).collect();
                        for results in in_flight {
                            assert_eq!(get(&results[n - 1][0]), [n as f32; 4]);
                        }
                    }
                });
            }
        });
    });
}

/// More launches in flight than the plugin supports: without a limit it hangs at the 33rd.
#[test]
fn hundreds_of_launches_without_waiting() {
    within(60, || {
        let client = new_client(8);
        let reduce = client.compile(&all_reduce(8, 4, false), &partitions(8), signature([f32s(&[4])])).unwrap();
        let portable = CompileOptions { portable: true, ..Default::default() };
        let halve = affine(4, false).replace("dense<2.0>", "dense<0.125>").replace("dense<1.0>", "dense<0.0>");
        let halve = client.compile(&halve, &portable, signature([f32s(&[4])])).unwrap();
        let xs = inputs(&client, 8, 4);
        let results: Vec<_> = (0..300).map(|_| reduce.execute(&refs(&xs)).unwrap()).collect();
        assert!(results.iter().all(|results| get(&results[7][0]) == [28.0; 4]));

        // Each step uses the previous one, on one device and on all, so that none has started when the next is
        // launched.
        let big =
            client.compile(&all_reduce(8, 1 << 18, false), &partitions(8), signature([f32s(&[1 << 18])])).unwrap();
        let slow = big.execute(&refs(&inputs(&client, 8, 1 << 18))).unwrap();
        let mut step = xs;
        for _ in 0..60 {
            let sums = reduce.execute(&refs(&step)).unwrap();
            step = sums
                .iter()
                .zip(client.devices())
                .map(|(sum, device)| {
                    let mut x = halve.execute_on(&[&sum[0]], device).unwrap().pop().unwrap();
                    for _ in 0..2 {
                        x = x.copy_to_device(&client.devices()[(device.id() + 1) % 8]).unwrap();
                        x = x.copy_to_device(device).unwrap();
                    }
                    x
                })
                .collect();
        }
        assert_eq!(get(&step[5]), [28.0 / 8.0; 4]);
        drop(slow);
        // On one device, from several threads.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let results: Vec<_> = (0..200)
                        .map(|i| {
                            if i % 3 == 0 {
                                reduce.execute(&refs(&step)).unwrap().swap_remove(0)
                            } else {
                                halve.execute_on(&[&step[0]], &client.devices()[0]).unwrap()
                            }
                        })
                        .collect();
                    results.iter().for_each(|y| y[0].block_until_ready().unwrap());
                });
            }
        });
    });
}

#[test]
fn a_thousand_threads() {
    within(120, || {
        let client = new_client(8);
        let portable = CompileOptions { portable: true, ..Default::default() };
        let one = client.compile(&affine(4, false), &portable, signature([f32s(&[4])])).unwrap();
        let reduce = client.compile(&all_reduce(8, 4, false), &partitions(8), signature([f32s(&[4])])).unwrap();
        let compiled = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for thread in 0..1000 {
                let (client, one, reduce, compiled) = (&client, &one, &reduce, &compiled);
                let run = move || {
                    let device = &client.devices()[thread % 8];
                    for i in 0..5 {
                        let x = put(client, thread % 8, &[thread as f32; 4]);
                        assert_eq!(get(&one.execute_on(&[&x], device).unwrap()[0]), [2.0 * thread as f32 + 1.0; 4]);
                        if (thread + i) % 20 == 0 {
                            let sums = reduce.execute(&refs(&inputs(client, 8, 4))).unwrap();
                            assert_eq!(get(&sums[thread % 8][0]), [28.0; 4]);
                        }
                    }
                    if thread % 50 == 0 {
                        client.compile(&affine(4, false), &Default::default(), signature([f32s(&[4])])).unwrap();
                        compiled.fetch_add(1, Ordering::Relaxed);
                    }
                };
                // A thousand threads with the default stack would reserve 2 GB of addresses.
                std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, run).unwrap();
            }
        });
        assert_eq!(compiled.into_inner(), 20);
    });
}
