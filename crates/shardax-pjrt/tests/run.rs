//! Compiling and executing: results, devices, serialization, properties of executables.

mod common;
use common::*;
use shardax_pjrt::*;

#[test]
fn client_and_devices_describe_themselves() {
    let client = client(8);
    assert_eq!(client.platform_name(), "cpu");
    assert_eq!(client.process_index(), 0);
    assert_eq!(client.devices().len(), 8);
    assert_eq!(client.addressable_devices(), client.devices());
    for (i, device) in client.devices().iter().enumerate() {
        assert_eq!((device.id(), device.process_index(), device.is_addressable()), (i, 0, true));
        assert!(!device.kind().is_empty() && !device.description().is_empty());
        assert_eq!(device.memory_stats().unwrap_err().code, Code::Unimplemented);
    }
    assert_ne!(client.devices()[0], client.devices()[1]);
    for count in [0, -1, 2049, 100_000, i64::MAX] {
        let error = Client::new(client.plugin(), &[("cpu_device_count", Value::Int(count))]).unwrap_err();
        assert!(error.message.contains(&format!("cpu_device_count is {count}, but must be between 1 and 2048")));
    }
    let (major, minor) = client.plugin().api_version();
    assert!(major == 0 && minor > 60);
    let attributes = client.plugin().attributes();
    assert!(attributes.iter().any(|(name, _)| name == "stablehlo_current_version"), "{attributes:?}");
}

#[test]
fn one_device() {
    let client = client(8);
    let exe = client.compile(&affine(4, false), &CompileOptions::default(), signature([f32s(&[4])])).unwrap();
    assert_eq!(exe.num_outputs(), 1);
    assert_eq!(exe.device_ids(), [0]);
    assert_eq!(exe.has_collectives(), Some(false));
    let x = put(&client, 0, &[0.0, 1.0, 2.0, 3.0]);
    let results = exe.execute(&[&x]).unwrap();
    assert_eq!(get(&results[0][0]), [1.0, 3.0, 5.0, 7.0]);
    assert_eq!(results[0][0].with_bytes(floats).unwrap(), [1.0, 3.0, 5.0, 7.0]);
    let y = exe.execute_on(&[&x], &client.devices()[0]).unwrap();
    assert_eq!(get(&y[0]), [1.0, 3.0, 5.0, 7.0]);
}

#[test]
fn chosen_device_and_portable() {
    let client = client(8);
    let options = CompileOptions { device_ids: vec![5], ..Default::default() };
    let exe = client.compile(&affine(2, false), &options, signature([f32s(&[2])])).unwrap();
    assert_eq!(exe.device_ids(), [5]);
    let y = exe.execute(&[&put(&client, 5, &[1.0, 2.0])]).unwrap();
    assert_eq!(y[0][0].device(), &client.devices()[5]);
    assert_eq!(get(&y[0][0]), [3.0, 5.0]);

    let options = CompileOptions { portable: true, ..Default::default() };
    let exe = client.compile(&affine(2, false), &options, signature([f32s(&[2])])).unwrap();
    for device in [0, 3, 7] {
        let x = put(&client, device, &[1.0, 2.0]);
        let y = exe.execute_on(&[&x], &client.devices()[device]).unwrap();
        assert_eq!(y[0].device().id(), device);
        assert_eq!(get(&y[0]), [3.0, 5.0]);
        assert_eq!(exe.execute(&[&x]).unwrap_err().code, Code::InvalidArgument);
        let wrong = exe.execute_on(&[&x], &client.devices()[1]).unwrap_err();
        assert!(wrong.message.contains("is on device"), "{wrong}");
    }
}

#[test]
fn eight_devices_all_reduce() {
    within(60, || {
        let client = client(8);
        let exe = client.compile(&all_reduce(8, 4, false), &partitions(8), signature([f32s(&[4])])).unwrap();
        assert_eq!(exe.device_ids(), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(exe.has_collectives(), Some(true));
        let xs: Vec<Buffer> = (0..8).map(|d| put(&client, d, &[d as f32, 1.0, 2.0, 3.0])).collect();
        for _ in 0..20 {
            let results = exe.execute(&xs.iter().collect::<Vec<_>>()).unwrap();
            assert_eq!(results.len(), 8);
            for (d, outputs) in results.iter().enumerate() {
                assert_eq!(outputs[0].device().id(), d);
                assert_eq!(get(&outputs[0]), [28.0, 8.0, 16.0, 24.0]);
            }
        }
        // On one device the collective would wait for the others forever.
        let rejected = exe.execute_on(&[&xs[0]], &client.devices()[0]).unwrap_err();
        assert!(rejected.message.contains("collectives"), "{rejected}");

        let instructions = exe.instructions().unwrap();
        for i in &instructions {
            println!("{}: {i}", i.computation);
        }
        let reduce = instructions.iter().find(|i| i.is_collective()).unwrap();
        assert_eq!(reduce.opcode, "all-reduce");
        assert_eq!(reduce.shapes, [(ElementType::F32, vec![4])]);
        assert_eq!(reduce.replica_groups, [[0, 1, 2, 3, 4, 5, 6, 7]]);
        assert!(reduce.channel_id.is_some());
        println!("{:?} {:?}", exe.parameter_shardings(), exe.output_shardings());
        println!("{:?}\n{:?}", exe.cost_analysis(), exe.memory_analysis());
        println!("{:?} {:?}", exe.name(), exe.fingerprint());
    });
}

#[test]
fn memories() {
    let client = client(8);
    let device = &client.devices()[1];
    let memories = device.addressable_memories().unwrap();
    let kinds: Vec<&str> = memories.iter().map(Memory::kind).collect();
    assert_eq!(kinds, ["device", "pinned_host", "unpinned_host"]);
    assert_eq!(device.default_memory().unwrap(), memories[0]);

    let x = put(&client, 1, &[1.0, 2.0]);
    assert_eq!(x.memory().unwrap(), memories[0]);
    let bytes = x.with_bytes(<[u8]>::to_vec).unwrap();
    for memory in &memories {
        let copied = x.copy_to_memory(memory).unwrap();
        let placed = client.buffer_from_host_in(&bytes, ElementType::F32, &[2], memory).unwrap();
        for buffer in [copied, placed] {
            assert_eq!((buffer.memory().unwrap(), buffer.device()), (memory.clone(), device));
            assert_eq!(get(&buffer), [1.0, 2.0]);
        }
    }

    // Programs for the CPU have one memory: results are stored there regardless of the annotation, and nothing moves
    // data.
    let says = r#"(%0: tensor<2xf32>) -> (tensor<2xf32> {mhlo.memory_kind = "pinned_host"})"#;
    let adds = "%1 = stablehlo.add %0, %0 : tensor<2xf32>";
    let moves = r#"%1 = "stablehlo.custom_call"(%0) {call_target_name = "annotate_device_placement", has_side_effect = true} : (tensor<2xf32>) -> tensor<2xf32>"#;
    let compile = |body: &str| {
        let text = format!("func.func public @main{says} {{ {body} return %1 : tensor<2xf32> }}");
        client.compile(&text, &CompileOptions::default(), signature([f32s(&[2])]))
    };
    let exe = compile(&format!("{adds}\n")).unwrap();
    assert_eq!(exe.output_memory_kinds().unwrap_err().code, Code::Unimplemented);
    let y = exe.execute(&[&put(&client, 0, &[1.0, 2.0])]).unwrap();
    assert_eq!((y[0][0].memory().unwrap().kind(), get(&y[0][0])), ("device", vec![2.0, 4.0]));
    let error = compile(&format!("{moves}\n")).unwrap_err();
    assert!(error.message.contains("annotate_device_placement"), "{error}");
}
