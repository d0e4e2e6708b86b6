//! Programs that call host functions.

mod common;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};

use common::*;
use shardax_pjrt::ffi::{self, Attr};
use shardax_pjrt::*;

fn program(n: usize, target: &str, attributes: &str) -> String {
    format!(
        "func.func @main(%x: tensor<{n}xf32>) -> tensor<{n}xf32> {{
          %y = stablehlo.custom_call @{target}(%x) {{api_version = 4 : i32, backend_config = {{{attributes}}}}}
              : (tensor<{n}xf32>) -> tensor<{n}xf32>
          return %y : tensor<{n}xf32>
        }}"
    )
}

/// The call on each of `devices` devices, with concatenated results.
fn spread(devices: usize, n: usize, target: &str) -> String {
    let total = devices * n;
    format!(
        "sdy.mesh @mesh = <[\"i\"={devices}]>
        func.func @main(%x: tensor<{total}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{\"i\"}}]>}})
            -> (tensor<{total}xf32> {{sdy.sharding = #sdy.sharding<@mesh, [{{\"i\"}}]>}}) {{
          %r = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{\"i\"}}]>] out_shardings=[<@mesh, [{{\"i\"}}]>]
              manual_axes={{\"i\"}} (%s: tensor<{n}xf32>) {{
            %t = stablehlo.custom_call @{target}(%s) {{api_version = 4 : i32, has_side_effect = true}}
                : (tensor<{n}xf32>) -> tensor<{n}xf32>
            sdy.return %t : tensor<{n}xf32>
          }} : (tensor<{total}xf32>) -> tensor<{total}xf32>
          return %r : tensor<{total}xf32>
        }}"
    )
}

#[test]
fn a_handler_receives_arguments_results_and_attributes() {
    let client = client(8);
    let calls = Arc::new(AtomicUsize::new(0));
    let counter = calls.clone();
    // The handler checks every kind of attribute, then scales its argument.
    ffi::register(client.plugin(), "test.scale", move |frame| {
        counter.fetch_add(1, Ordering::SeqCst);
        let by = frame.attr("by").and_then(|a| a.as_f64()).ok_or("no attribute by")? as f32;
        assert_eq!(frame.attr("count").unwrap().as_i64(), Some(-7));
        assert_eq!(frame.attr("flag").unwrap().as_i64(), Some(1));
        assert_eq!(frame.attr("name").unwrap().as_str(), Some("a name"));
        assert_eq!(frame.attr("list").unwrap().as_i64s(), Some(vec![1, 2, 3]));
        let Some(Attr::Dictionary(inner)) = frame.attr("inner") else {
            return Err("no dictionary".into());
        };
        assert_eq!((inner[0].0, inner[0].1.as_i64()), ("k", Some(5)));
        assert!(frame.attr("missing").is_none());
        assert_eq!(frame.attrs().len(), 6);
        let (args, rets) = frame.split();
        assert_eq!((args.len(), args[0].ty, args[0].dims), (1, ElementType::F32, &[4][..]));
        for (to, x) in rets[0].data().chunks_exact_mut(4).zip(floats(args[0].data)) {
            to.copy_from_slice(&(x * by).to_ne_bytes());
        }
        Ok(())
    })
    .unwrap();
    let text = program(
        4,
        "test.scale",
        "by = 3.0 : f32, count = -7 : i64, flag = true, name = \"a name\", list = array<i64: 1, 2, 3>, inner = {k = 5 : i32}",
    );
    let exe = client.compile(&text, &CompileOptions::default(), signature([f32s(&[4])])).unwrap();
    // Compiling must not call the handler.
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    let x = put(&client, 0, &[1.0, 2.0, 3.0, 4.0]);
    let y = exe.execute(&[&x]).unwrap();
    assert_eq!(get(&y[0][0]), [3.0, 6.0, 9.0, 12.0]);
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert!(exe.instructions().unwrap().iter().any(|i| i.custom_call_target.as_deref() == Some("test.scale")));
}

/// A handler for device memory, with the host as the device: its addresses belong to this process.
#[test]
fn a_device_handler_receives_addresses() {
    let client = client(8);
    ffi::device::register(client.plugin(), "Host", "test.on_device", |call| {
        let by = call.attr("by").and_then(|a| a.as_f64()).ok_or("no attribute by")? as f32;
        let ([x], [y]) = (call.args(), call.results()) else { return Err(format!("{call:?}")) };
        assert_eq!((x.ty, x.dims, x.byte_len, y.byte_len), (ElementType::F32, &[4][..], 16, 16));
        assert_eq!((call.stream(), call.device_ordinal(), call.attrs().len()), (None, Some(0), 1));
        for i in 0..4 {
            // SAFETY: both are arrays of four f32 in the memory of this process, and belong to this call.
            unsafe { *y.address.cast::<f32>().add(i) = *x.address.cast::<f32>().add(i) * by };
        }
        Ok(())
    })
    .unwrap();
    let again = ffi::device::register(client.plugin(), "Host", "test.on_device", |_| Ok(()));
    assert_eq!(again.unwrap_err().code, Code::AlreadyExists);
    ffi::device::register(client.plugin(), "Host", "test.on_device_fails", |_| Err("no kernel".into())).unwrap();
    ffi::device::register(client.plugin(), "Host", "test.on_device_panics", |_| panic!("no {}", "stream")).unwrap();
    fn run(target: &str, attributes: &str, client: &Client) -> Result<Vec<f32>> {
        let text = program(4, target, attributes);
        let exe = client.compile(&text, &CompileOptions::default(), signature([f32s(&[4])])).unwrap();
        let y = exe.execute(&[&put(client, 0, &[1.0, 2.0, 3.0, 4.0])])?;
        y[0][0].block_until_ready()?;
        Ok::<_, Error>(get(&y[0][0]))
    }
    assert_eq!(run("test.on_device", "by = 3.0 : f32", &client).unwrap(), [3.0, 6.0, 9.0, 12.0]);
    for (target, says) in [("test.on_device_fails", "no kernel"), ("test.on_device_panics", "panicked: no stream")] {
        let error = run(target, "", &client).unwrap_err();
        assert!(error.message.contains(says), "{error}");
    }
}

#[test]
fn duplicate_and_unknown_names_are_errors() {
    let client = client(8);
    ffi::register(client.plugin(), "test.once", |_| Ok(())).unwrap();
    assert_eq!(ffi::register(client.plugin(), "test.once", |_| Ok(())).unwrap_err().code, Code::AlreadyExists);
    let text = program(4, "test.nobody", "");
    let x = put(&client, 0, &[0.0; 4]);
    let error = match client.compile(&text, &CompileOptions::default(), signature([f32s(&[4])])) {
        Err(error) => error,
        Ok(exe) => exe.execute(&[&x]).and_then(|y| y[0][0].block_until_ready()).unwrap_err(),
    };
    assert!(error.message.contains("test.nobody"), "{error}");
}

#[test]
fn errors_and_panics_of_a_handler_are_errors_of_the_result() {
    within(60, || {
        let client = client(8);
        ffi::register(client.plugin(), "test.fails", |_| Err("it is Tuesday".into())).unwrap();
        ffi::register(client.plugin(), "test.panics", |_| panic!("not {}", "again")).unwrap();
        let x = put(&client, 0, &[0.0; 4]);
        for (target, phrase) in [("test.fails", "it is Tuesday"), ("test.panics", "not again")] {
            let exe =
                client.compile(&program(4, target, ""), &CompileOptions::default(), signature([f32s(&[4])])).unwrap();
            for _ in 0..3 {
                let error = match exe.execute(&[&x]) {
                    Err(error) => error,
                    Ok(y) => {
                        assert!(y[0][0].to_host(&mut [0; 16]).is_err());
                        assert!(y[0][0].with_bytes(|_| ()).is_err());
                        y[0][0].block_until_ready().unwrap_err()
                    }
                };
                assert!(error.message.contains(phrase), "{error}");
            }
        }
        let exe = client.compile(&affine(4, false), &CompileOptions::default(), signature([f32s(&[4])])).unwrap();
        assert_eq!(get(&exe.execute(&[&x]).unwrap()[0][0]), [1.0; 4]);
    });
}

#[test]
fn handlers_of_all_devices_run_concurrently() {
    within(60, || {
        let client = client(8);
        let barrier = Barrier::new(8);
        ffi::register(client.plugin(), "test.rendezvous", move |frame| {
            barrier.wait();
            let device = frame.device_ordinal().ok_or("no ordinal")? as f32;
            for to in frame.rets()[0].data().chunks_exact_mut(4) {
                to.copy_from_slice(&device.to_ne_bytes());
            }
            Ok(())
        })
        .unwrap();
        let exe = client.compile(&spread(8, 2, "test.rendezvous"), &partitions(8), signature([f32s(&[2])])).unwrap();
        let xs: Vec<Buffer> = (0..8).map(|d| put(&client, d, &[0.0; 2])).collect();
        for _ in 0..10 {
            let ys = exe.execute(&xs.iter().collect::<Vec<_>>()).unwrap();
            for (d, y) in ys.iter().enumerate() {
                assert_eq!(get(&y[0]), [d as f32; 2]);
            }
        }
    });
}

/// If the plugin is told about an error on one device, collectives wait for that device until the process is aborted.
#[test]
fn a_failure_on_one_device_reaches_every_result_and_no_collective_waits() {
    within(30, || {
        let client = client(8);
        let fail = Arc::new(AtomicUsize::new(1));
        let failing = fail.clone();
        ffi::register(client.plugin(), "test.fails_on_three", move |frame| {
            if frame.device_ordinal() == Some(3) && failing.load(Ordering::SeqCst) == 1 {
                std::thread::sleep(std::time::Duration::from_millis(20));
                return Err("device three".into());
            }
            let (args, rets) = frame.split();
            rets[0].data().copy_from_slice(args[0].data);
            Ok(())
        })
        .unwrap();
        let call =
            client.compile(&spread(8, 4, "test.fails_on_three"), &partitions(8), signature([f32s(&[4])])).unwrap();
        let reduce = client.compile(&all_reduce(8, 4, false), &partitions(8), signature([f32s(&[4])])).unwrap();
        let portable = CompileOptions { portable: true, ..Default::default() };
        let affine_program = client.compile(&affine(4, false), &portable, signature([f32s(&[4])])).unwrap();
        let xs: Vec<Buffer> = (0..8).map(|d| put(&client, d, &[d as f32; 4])).collect();
        let xs: Vec<&Buffer> = xs.iter().collect();
        fn assert_failed(result: Result<()>) {
            let error = result.unwrap_err();
            assert!(error.message.contains("test.fails_on_three") && error.message.contains("device three"), "{error}");
        }

        let ys = call.execute(&xs).unwrap();
        let ys: Vec<&Buffer> = ys.iter().map(|y| &y[0]).collect();
        // The failure may occur after these have started.
        let zs = reduce.execute(&ys).unwrap();
        let zs: Vec<&Buffer> = zs.iter().map(|z| &z[0]).collect();
        let sums = reduce.execute(&zs).unwrap();
        let copy = zs[2].copy_to_device(&client.devices()[5]).unwrap();
        let single = affine_program.execute_on(&[zs[1]], &client.devices()[1]).unwrap();
        // Only the failed device's first result is checked, because others may be ready before the failure.
        for buffer in zs.iter().copied().chain(sums.iter().map(|z| &z[0])).chain([ys[3], &copy, &single[0]]) {
            assert_failed(buffer.block_until_ready());
            assert_failed(buffer.to_host(&mut [0; 16]));
            assert_failed(buffer.with_bytes(|_| ()));
            assert_failed(buffer.ready().unwrap().wait());
            let (send, receive) = std::sync::mpsc::channel();
            buffer.ready().unwrap().on_ready(move |result| send.send(result).unwrap());
            assert_failed(receive.recv().unwrap());
        }
        // The failure is known by now, so the launch is rejected.
        assert_failed(reduce.execute(&ys).map(|_| ()));
        assert_failed(reduce.execute(&zs).map(|_| ()));

        // Everything works again, even in a long chain.
        fail.store(0, Ordering::SeqCst);
        let mut ys = call.execute(&xs).unwrap();
        for _ in 0..200 {
            ys = call.execute(&ys.iter().map(|y| &y[0]).collect::<Vec<_>>()).unwrap();
        }
        assert_eq!(get(&ys[3][0]), [3.0; 4]);
        let zs = reduce.execute(&ys.iter().map(|y| &y[0]).collect::<Vec<_>>()).unwrap();
        assert_eq!(get(&zs[0][0]), [28.0; 4]);
    });
}

#[test]
fn a_handler_that_does_not_write_a_result_is_an_error() {
    within(60, || {
        let client = client(8);
        ffi::register(client.plugin(), "test.forgets", |_| Ok(())).unwrap();
        ffi::register(client.plugin(), "test.looks", |frame| {
            assert_eq!(frame.rets()[0].dims, [4]);
            Ok(())
        })
        .unwrap();
        let x = put(&client, 0, &[1.0; 4]);
        for target in ["test.forgets", "test.looks"] {
            let text = program(4, target, "");
            let exe = client.compile(&text, &CompileOptions::default(), signature([f32s(&[4])])).unwrap();
            let error = exe.execute(&[&x]).and_then(|y| y[0][0].block_until_ready()).unwrap_err();
            let says = format!("function {target:?}: returned Ok without writing result 0 (Ret(f32[4]))");
            assert!(error.message.contains(&says), "{error}");
        }
        // A result without elements need not be written; parts of others that are not written are zero.
        let exe = client
            .compile(&program(0, "test.forgets", ""), &CompileOptions::default(), signature([f32s(&[0])]))
            .unwrap();
        exe.execute(&[&put(&client, 0, &[])]).unwrap()[0][0].block_until_ready().unwrap();
        ffi::register(client.plugin(), "test.half", |frame| {
            frame.rets()[0].data()[..4].copy_from_slice(&1.0f32.to_ne_bytes());
            Ok(())
        })
        .unwrap();
        let exe =
            client.compile(&program(4, "test.half", ""), &CompileOptions::default(), signature([f32s(&[4])])).unwrap();
        assert_eq!(get(&exe.execute(&[&x]).unwrap()[0][0]), [1.0, 0.0, 0.0, 0.0]);
    });
}
