//! The first program: one function that runs on every device with its own slice of the data.
//!
//!     cargo run --release --example scale
//!
//! An argument sets the number of devices: `… --example scale -- 2`.

use shardax::prelude::*;
use shardax_alloc as _;

fn main() -> Result<()> {
    // A CPU host has one device by default and can simulate more.
    let simulated = std::env::args().nth(1).and_then(|n| n.parse().ok());
    config::set_num_cpu_devices(simulated.unwrap_or(4))?;

    println!("devices: {:?}", devices()?);
    let n = device_count();
    let x = arange(0..4 * n as i32).reshape([n, 4]);

    // Device i receives slice i of x; every device receives y.
    let scale_add = pmap(|x: Array, y: Array| x * 2 + y).in_axes((0, None));
    println!("scaled by 2, plus 100:\n{}", scale_add.call((&x, 100.0f32))?);

    // Inside, a device sees only its own slice. `psum` adds the values of all devices.
    let scale_sum = pmap(|x: Array| {
        let scaled = x * 2;
        let total = psum(scaled.sum(..), "devices");
        (scaled, total)
    })
    .axis_name("devices");
    let (scaled, total) = scale_sum.call(&x)?;
    println!("scaled by 2:\n{scaled}");
    println!("the total, as each device has it: {total}");
    println!("the total, without devices: {}", (&x * 2).sum(..));

    // The result is one array with a shard on each device.
    for shard in scaled.addressable_shards()? {
        println!("{} holds {}", shard.device, shard.data);
    }
    Ok(())
}
