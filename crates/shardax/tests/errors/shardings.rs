//! Meshes and shardings.

use shardax::ErrorKind::{Indivisible, Value};
use shardax::prelude::*;

use crate::{Table, at};

pub(crate) fn rows(t: &mut Table) {
    // Meshes of too many devices, specs of too many dimensions, unknown axes and sizes that do not divide.
    t.row("make_mesh: too many", Value, &["Number of devices 8 must be >= the product of mesh_shape [16]"], || {
        at!(make_mesh([("i", 16)]))
    });
    t.row("make_mesh: overflow", Value, &["Number of devices 8 must be >="], || {
        at!(make_mesh([("i", usize::MAX), ("j", 2)]))
    });
    t.row("make_mesh: size 0", Value, &["'i' has size 0"], || at!(make_mesh([("i", 0), ("j", 2)])));
    t.row("make_mesh: one name twice", Value, &["mesh axis names must be unique", "'i'"], || {
        at!(make_mesh([("i", 2), ("i", 2)]))
    });
    t.row("Mesh: count", Value, &["hold 4 devices, but 8 devices were given"], || {
        let all_devices = devices()?;
        at!(Mesh::new(all_devices, [("i", 4)]))
    });
    t.row("Mesh: one device twice", Value, &["occurs twice in the mesh"], || {
        let d = devices()?[0].clone();
        at!(Mesh::new(vec![d.clone(), d], [("i", 2)]))
    });
    t.row("Mesh: axis types", Value, &["2 axis types given for the 1 axes"], || {
        let mesh = make_mesh([("i", 8)])?;
        at!(mesh.with_axis_types([AxisType::Auto, AxisType::Auto]))
    });
    t.row(
        "NamedSharding: unknown axis",
        Value,
        &["Resource axis: q of P('q',) is not found in mesh: Mesh('i': 8"],
        || {
            let mesh = make_mesh([("i", 8)])?;
            at!(NamedSharding::try_new(&mesh, P!["q"]))
        },
    );
    t.row("NamedSharding: one axis twice", Value, &["A single P('i', 'i') cannot use the mesh axis 'i' twice"], || {
        let mesh = make_mesh([("i", 8)])?;
        at!(NamedSharding::try_new(&mesh, P!["i", "i"]))
    });
    t.row(
        "NamedSharding: shard_shape",
        Indivisible,
        &["array axis 1 is partitioned 8 times", "size is 4", "[3, 4]"],
        || {
            let mesh = make_mesh([("i", 8)])?;
            at!(NamedSharding::new(&mesh, P![None, "i"]).shard_shape(&[3, 4]))
        },
    );
    t.row("SingleDeviceSharding: spec", Value, &["has no PartitionSpec"], || {
        let sharding = Sharding::from(&devices()?[0]);
        at!(sharding.spec()).map(|_| ())
    });
    t.row(
        "config: devices in use",
        shardax::ErrorKind::Runtime,
        &["cannot be set to 3: 8 devices are in use already"],
        || at!(config::set_num_cpu_devices(3)),
    );
    t.row("config: no devices", Value, &["at least 1"], || at!(config::set_num_cpu_devices(0)));
    t.row("config: platform in use", shardax::ErrorKind::Runtime, &["cannot be set to \"tpu\""], || {
        at!(config::set_platform("tpu"))
    });
    t.row("config: no number", Value, &["num_cpu_devices takes a number, got \"many\""], || {
        at!(config::update("jax_num_cpu_devices", "many"))
    });
    t.row("config: unknown", Value, &["Unrecognized config option: jax_enable_everything"], || {
        at!(config::update("jax_enable_everything", "1"))
    });
}
