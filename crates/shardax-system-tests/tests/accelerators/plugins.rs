//! Other services of the platforms' plugins: they record the work of devices, and call functions of this process.

use shardax::prelude::*;

/// Nothing runs, and nothing is recorded; but the plugin's recorder starts and ends.
pub fn records(platform: &str) {
    let plugin = shardax_pjrt::Plugin::find(platform).expect("the plugin");
    for _ in 0..2 {
        let profiler = plugin.start_profiler().expect("it records").expect("it has a recorder");
        let space = profiler.stop().expect("what it recorded");
        assert!(space.is_empty() || space.len() > 2, "{space:?}");
    }
}

fn doubled() -> shardax::HostCallback<Array> {
    ffi_call(
        |args, results| results[0].write(args[0].values::<f32>()?.map(|x| 2.0 * x)),
        shape_dtype_struct([8], DType::F32),
    )
}

/// A function with a part for GPUs: their compiler knows its name, and rejects programs that call others.
pub fn calls(topology: &Topology) -> Result<()> {
    let device = topology.devices().swap_remove(0);
    let x = shape_dtype_struct_on([8], DType::F32, &device);
    let scaled = doubled().cuda(|call| call.stream().map(drop));
    let compiled =
        jit(move |x: Array| Ok::<_, shardax::Error>(scaled.call(x.sin())? + 1.0)).lower(&x)?.compile_for(topology)?;
    assert!(compiled.as_text()?.contains("shardax.host_function"), "{}", compiled.as_text()?);
    let error = compiled.serialize().expect_err("its function is of this process");
    assert!(error.message().contains("it calls functions of this process"), "{error}");
    // Other callbacks get copies of their arguments on the host.
    let called = pure_callback(|_, _| Ok(()), shape_dtype_struct([8], DType::F32));
    let compiled = jit(move |x: Array| called.call(x)).lower(&x)?.compile_for(topology)?;
    assert!(compiled.as_text()?.contains("shardax.host_function"), "{}", compiled.as_text()?);
    let narrow = pure_callback(|_, _| Ok(()), shape_dtype_struct([8], DType::I4));
    let rejected = jit(move |x: Array| narrow.call(x)).lower(&x).err().expect("not elements of 4 bits").to_string();
    assert!(rejected.contains("pure_callback of ") && rejected.contains("4 bits and fewer"), "{rejected}");
    let host = doubled();
    let error = jit(move |x: Array| host.call(x)).lower(&x).err().expect("it has no part for GPUs").to_string();
    assert!(error.contains("is not implemented on GPU") && error.contains("`.cuda(…)`"), "{error}");
    Ok(())
}
