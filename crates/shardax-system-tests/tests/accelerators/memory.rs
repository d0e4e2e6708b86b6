//! Memory kinds: arguments and results on the host, and values that are kept there for a gradient.

use shardax::prelude::*;

const PUT_TO_HOST: &str = r#"_xla_buffer_placement = "pinned_host""#;

pub fn all(topology: &Topology) -> Result<()> {
    let device = topology.devices().swap_remove(0);
    let kinds: Vec<&str> = device.addressable_memories()?.iter().map(|memory| memory.kind()).collect();
    assert_eq!((kinds[..2].to_vec(), device.default_memory()?.kind()), (vec!["device", "pinned_host"], "device"));
    let error = device.memory_stats().expect_err("it is not there");
    assert!(error.message().contains("it is only a description"), "{error}");

    let mesh = topology.mesh([("x", 8)])?;
    let split = NamedSharding::new(&mesh, P!["x"]);
    arguments_and_results(topology, &split)?;
    one_device(topology, &device)?;
    rejected(topology, &split)?;
    offloaded(topology, &split)
}

/// Moved inside of the program, and as `in_shardings` and `out_shardings` say.
fn arguments_and_results(topology: &Topology, split: &NamedSharding) -> Result<()> {
    let (host, here) = (split.with_memory_kind("pinned_host"), split.with_memory_kind("device"));
    let bytes = 4 * (1 << 16);
    fn on(sharding: &NamedSharding) -> Array {
        shape_dtype_struct_on([8, 1 << 16], DType::F32, sharding)
    }

    let from_host = || {
        let device = here.clone();
        jit(move |x: Array| Ok(device_put(&x, &device)?.sin()))
    };
    for lowered in [from_host().lower(on(&host))?, from_host().in_shardings(&host).lower(on(&host))?] {
        let text = lowered.as_text();
        assert!(text.contains(r#"mhlo.memory_kind = "pinned_host", sdy.sharding"#), "{text}");
        assert!(text.contains(r#"_xla_buffer_placement = "device""#), "{text}");
        let memory = lowered.compile_for(topology)?.memory_analysis()?;
        assert_eq!(memory.host_arguments, bytes, "{memory:?}");
        assert!(memory.arguments < bytes && memory.outputs >= bytes, "{memory:?}");
    }

    let to_host = jit({
        let host = host.clone();
        move |x: Array| device_put(&x.sin(), &host)
    });
    let requested = jit(|x: Array| x.sin()).out_shardings(&host);
    let space = jit(|x: Array| device_put(&x.sin(), Space::Host));
    for lowered in [to_host.lower(on(split))?, requested.lower(on(split))?, space.lower(on(split))?] {
        let text = lowered.as_text();
        assert_eq!(text.matches(PUT_TO_HOST).count(), 1, "{text}");
        assert!(text.contains(r#"(%0: tensor<8x65536xf32> {mhlo.memory_kind = "device", sdy.sharding"#), "{text}");
        assert!(text.contains(r#"{mhlo.memory_kind = "pinned_host""#), "{text}");
        let compiled = lowered.compile_for(topology)?;
        let memory = compiled.memory_analysis()?;
        assert_eq!(memory.host_outputs, bytes, "{memory:?}");
        assert!(memory.outputs < bytes, "{memory:?}");
        assert_eq!(compiled.output_shardings().leaves()[0].memory_kind(), Some("pinned_host"));
    }

    // If everything is in the devices' memory, the program does not mention memory kinds.
    let text = jit(move |x: Array| device_put(&x, &here)).lower(on(split))?.as_text().to_owned();
    assert!(!text.contains("annotate_device_placement") && !text.contains("memory_kind"), "{text}");

    // Taken from the host, and given back to it (the program of docs/platforms.md).
    let update = jit(|m: Array, g: Array| -> Result<Array> {
        let m = device_put(&m, Space::Device)?;
        Ok(m * 0.9 + g * 0.1)
    });
    let memory = update.out_shardings(&host).lower((on(&host), on(split)))?.compile_for(topology)?.memory_analysis()?;
    assert_eq!((memory.host_arguments, memory.host_outputs, memory.arguments), (bytes, bytes, bytes), "{memory:?}");

    // What is donated on one side is not taken over on the other.
    let donated = jit(move |x: Array| device_put(&x, &host)).donate_argnums([0]).lower(on(split))?;
    assert!(!donated.as_text().contains("tf.aliasing_output"), "{}", donated.as_text());
    Ok(())
}

fn one_device(topology: &Topology, device: &Device) -> Result<()> {
    let host = SingleDeviceSharding::new(device).with_memory_kind("pinned_host");
    let x = shape_dtype_struct_on([1 << 16], DType::F32, device);
    let requested = jit(|x: Array| x.sin()).out_shardings(&host).lower(&x)?;
    let compiled = requested.compile_for(topology)?;
    assert_eq!(compiled.memory_analysis()?.host_outputs, 4 << 16);
    assert_eq!(compiled.output_shardings().leaves()[0].memory_kind(), Some("pinned_host"));
    Ok(())
}

fn rejected(topology: &Topology, split: &NamedSharding) -> Result<()> {
    let host = split.with_memory_kind("pinned_host");
    let x = shape_dtype_struct_on([8], DType::F32, &host);
    let error = jit(|x: Array| x * 2).in_shardings(split).lower(&x).err().expect("it lies elsewhere");
    assert!(error.message().contains("Memory kinds passed to jit does not match memory kind on the respective arg. Got jit memory kind: the default, arg memory kind: pinned_host"), "{error}");
    // XLA computes with what is in the device's memory, and says otherwise in words of its own.
    let (computed, line) = (jit(|x: Array| x.reshape([2, 4]).tanh()), line!());
    let error = computed.lower(&x)?.compile_for(topology).err().expect("it is not there").to_string();
    assert!(error.contains("tanh is not supported on a value in pinned_host memory"), "{error}");
    assert!(error.contains("`device_put(&x, Space::Device)`"), "{error}");
    assert!(error.contains(&format!("accelerators/memory.rs:{line}:")), "{error}");

    let x = shape_dtype_struct_on([8], DType::F32, split);
    let nowhere = split.with_memory_kind("drum");
    let error = jit(move |x: Array| device_put(&x, &nowhere)).lower(&x).err().expect("no such memory");
    assert!(error.message().contains("can address the following memory kinds: device, pinned_host"), "{error}");
    assert!(error.message().contains("Got memory kind: drum"), "{error}");
    Ok(())
}

/// The gradient of layers in a loop, whose inner values are kept on the host.
fn offloaded(topology: &Topology, split: &NamedSharding) -> Result<()> {
    const LAYERS: usize = 6;
    let gradient = |policy: CheckpointPolicy| {
        let loss = move |ws: Array, x: Array| -> Result<Array> {
            let policy = policy.clone();
            let layer = move |x: Array, w: Array| -> Result<(Array, ())> {
                fn layer(x: Array, w: Array) -> Array {
                    checkpoint_name(x.dot(w).sin(), "hidden").sin()
                }
                Ok((checkpoint(layer).policy(policy.clone()).prevent_cse(false).call((x, w))?, ()))
            };
            Ok(scan(layer, x, ws)?.0.sum(..))
        };
        jit(move |ws: Array, x: Array| grad(&loss).call((ws, x)))
    };
    let mesh = split.mesh();
    let ws = shape_dtype_struct_on([LAYERS, 256, 256], DType::F32, NamedSharding::new(mesh, P![]));
    let x = shape_dtype_struct_on([8 * 512, 256], DType::F32, split);
    let names = CheckpointPolicy::save_and_offload_only_these_names([], ["hidden"], "device", "pinned_host")?;
    let dots = CheckpointPolicy::offload_dot_with_no_batch_dims("device", "pinned_host");
    let saved =
        gradient(CheckpointPolicy::save_only_these_names(["hidden"])).lower((&ws, &x))?.compile_for(topology)?;
    let saved = saved.memory_analysis()?;
    assert_eq!(saved.host_temporaries, 0, "{saved:?}");
    for policy in [names, dots] {
        let lowered = gradient(policy).lower((&ws, &x))?;
        assert_eq!(lowered.as_text().matches(PUT_TO_HOST).count(), 1, "{}", lowered.as_text());
        let memory = lowered.compile_for(topology)?.memory_analysis()?;
        // One value of each layer, on each device.
        let values = (LAYERS * 512 * 256 * 4) as i64;
        assert!(memory.host_temporaries >= values, "{memory:?}, and kept on the device {saved:?}");
        assert!(memory.peak <= saved.peak - values / 2, "{memory:?}, and kept on the device {saved:?}");
    }
    Ok(())
}
