//! Mistakes with `pmap`, `shard_map`, collectives, meshes and shardings.

use shardax::ErrorKind::{Index, Indivisible, Name, Type, Value};
use shardax::prelude::*;

use crate::{Table, at};

pub(crate) fn rows(t: &mut Table) {
    pmaps(t);
    placement(t);
    shard_maps(t);
    varying(t);
}

fn double(x: Array) -> Array {
    x * 2
}

fn pmaps(t: &mut Table) {
    // Sizes that differ from the number of devices, results that vary, and options that contradict each other.
    t.row("pmap: batch not divisible", Value, &["100", "8 devices", "must be divisible by num_devices"], || {
        at!(pmap(double).call(ones([100, 3])))
    });
    t.row("pmap: no device dimension", Value, &["float32[128,32,32,3]", "size 128", "8 devices", "reshape"], || {
        at!(pmap(double).call(zeros([128, 32, 32, 3])))
    });
    t.row("pmap: nothing", Value, &["size 0", "8 devices"], || at!(pmap(double).call(zeros([0, 3]))));
    t.row("pmap: sizes", Value, &["inconsistent sizes", "argument[0]", "size 8", "argument[1]", "size 4"], || {
        at!(pmap(|x: Array, y: Array| x + y).call((ones(8), ones(4))))
    });
    t.row("pmap: scalar", Value, &["pmap was requested to map its argument[1]", "rank should be at least 1"], || {
        at!(pmap(|x: Array, y: Array| x + y).call((ones(8), 1.0f32)))
    });
    t.row("pmap: in_axes", Index, &["pmap in_axes of argument[0]", "axis 1 is out of bounds"], || {
        at!(pmap(double).in_axes(1).call(ones(8)))
    });
    t.row("pmap: in_axes structure", Value, &["pmap in_axes[0] has 2 entries", "no children"], || {
        at!(pmap(double).in_axes(((0, 0),)).call(ones(8)))
    });
    t.row("pmap: in_axes too many", Value, &["pmap in_axes tree prefix error"], || {
        at!(pmap(double).in_axes((0, 0)).call(ones(8)))
    });
    t.row("pmap: out_axes structure", Value, &["pmap out_axes tree prefix error", "3 entries"], || {
        at!(pmap(|x: Array| (x.clone(), x)).out_axes((0, 0, 0)).call(ones(8)))
    });
    t.row("pmap: out_axes", Index, &["pmap out_axes", "axis 1 is out of bounds"], || {
        at!(pmap(double).out_axes(1).call(ones(8)))
    });
    t.row("pmap: out_axes None of what varies", Value, &["out_axes is None for output", "'batch'", "pmean"], || {
        at!(pmap(double).axis_name("batch").out_axes(None).call(ones(8)))
    });
    t.row("pmap: no mapped argument", Value, &["pmap requires at least one argument with a mapped axis."], || {
        at!(pmap(double).in_axes(None).call(ones(8)))
    });
    t.row("pmap: no mapped argument, with axis_size", Value, &["at least one argument with a mapped axis."], || {
        at!(pmap(double).in_axes(None).axis_size(8).call(ones(8)))
    });
    t.row("pmap: axis_size", Value, &["Specified axis_size 4 doesn't match received axis_size 8."], || {
        at!(pmap(double).axis_size(4).call(ones(8)))
    });
    t.row("pmap: no devices", Value, &["'devices' argument to pmap must be non-empty, or None."], || {
        at!(pmap(double).devices(vec![]).call(ones(8)))
    });
    t.row("pmap: fewer devices", Value, &["size 8", "4 devices"], || {
        let few = devices()?[..4].to_vec();
        at!(pmap(double).devices(few).call(ones(8)))
    });
    t.row("pmap: one device twice", Value, &["occurs twice in the mesh"], || {
        let d = devices()?[0].clone();
        at!(pmap(double).devices(vec![d.clone(), d]).call(ones(2)))
    });
    t.row("pmap: no axis name", Name, &["unbound axis name: devices", "axis_name(\"devices\")"], || {
        pmap(|x: Array| at!(psum(x, "devices"))).call(ones(8))
    });
    t.row("shard_map: an axis of the compiler", Name, &["unbound axis name: b", "add it to `axis_names`"], || {
        let mesh = make_mesh([("a", 4), ("b", 2)])?;
        shard_map(|x: Array| at!(psum(x, "b")), &mesh)
            .axis_names("a")
            .in_specs(P!["a"])
            .out_specs(P!["a"])
            .call(ones(8))
    });
    t.row("pmap: another axis name", Name, &["unbound axis name: b", "bound here: batch"], || {
        pmap(|x: Array| at!(pmean(x, "b"))).axis_name("batch").call(ones(8))
    });
    t.row(
        "pmap: in pmap",
        Value,
        &["The context mesh Mesh(", "should match the mesh passed to shard_map Mesh("],
        || {
            fn inner(x: Array) -> Result<Array> {
                at!(pmap(double).axis_name("j").call(x))
            }
            pmap(inner).axis_name("i").call(ones([8, 8]))
        },
    );
    t.row("pmap: in shard_map", Value, &["The context mesh Mesh(", "should match"], || {
        let mesh = make_mesh([("i", 8)])?;
        let inner = |x: Array| at!(pmap(double).call(x));
        shard_map(inner, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(ones([64, 3]))
    });
    t.row("shard_map: in pmap", Value, &["The context mesh Mesh(", "should match"], || {
        let mesh = make_mesh([("j", 8)])?;
        let inner = move |x: Array| at!(shard_map(double, &mesh).in_specs(P!["j"]).out_specs(P!["j"]).call(x));
        pmap(inner).call(ones([8, 8]))
    });
    t.row(
        "pmap: static argument that holds an array",
        Value,
        &["Non-hashable static arguments are not supported", "names argument 1"],
        || at!(pmap(|x: Array, y: Array| x + y).static_broadcasted_argnums([1]).call((ones(8), ones(8)))),
    );
    t.row(
        "pmap: static argument that holds an array, from the last",
        Value,
        &["Non-hashable static arguments are not supported", "names argument 1", "argument[1][0]"],
        || {
            let f = pmap(|x: Array, y: (Array, i32)| x + y.0).static_broadcasted_argnums(-1);
            at!(f.call((ones(8), (ones(8), 2))))
        },
    );
    t.row(
        "pmap: static argnums beyond",
        Value,
        &["static_broadcasted_argnums names argument 2", "only accepts 1"],
        || at!(pmap(double).static_broadcasted_argnums([2]).call(ones(8))),
    );
    t.row("pmap: static argnums before the first", Value, &["static_broadcasted_argnums names argument -2"], || {
        at!(pmap(double).static_broadcasted_argnums(-2).call(ones(8)))
    });
    t.row("pmap: static and donated", Value, &["cannot intersect", "Argument 1 appears in both"], || {
        let f = pmap(|x: Array, n: i32| x * n).static_broadcasted_argnums([1]).donate_argnums(-1);
        at!(f.call((ones(8), 2)))
    });
    t.row("pmap: in_axes of parts", Index, &["pmap in_axes of argument[0][1]", "axis -3 is out of bounds"], || {
        at!(pmap(|x: (Array, Array)| x.0 + x.1).in_axes(((0, -3),)).call((ones([8, 2]), ones([8, 2]))))
    });
    t.row("pmap: sizes of several axes", Value, &["inconsistent sizes", "size 8", "argument[1]", "size 3"], || {
        at!(pmap(|x: Array, y: Array| x + y).in_axes((0, 1)).call((ones([8, 2]), ones([8, 3]))))
    });
    t.row("pmap: out_axes of parts", Index, &["pmap out_axes", "axis 3 is out of bounds"], || {
        at!(pmap(|x: Array| (x.clone(), x)).out_axes((0, 3)).call(ones([8, 2])))
    });
    t.row("pmap: inside", Type, &["dot requires contracting dimensions", "float32[3]", "float32[4]"], || {
        pmap(|x: Array| at!(x.dot(ones(4)))).call(ones([8, 3]))
    });
}

fn placement(t: &mut Table) {
    // Arguments committed to other devices than the program's.
    t.row(
        "pmap: committed otherwise",
        Value,
        &["Sharding passed to jit does not match the sharding on the respective arg", "argument[0]"],
        || {
            let mesh = make_mesh([("x", 8)])?;
            let x = device_put(&ones([8, 8]), &NamedSharding::new(&mesh, P![None, "x"]))?;
            at!(pmap(double).call(&x))
        },
    )
    .at_once_only();
    t.row(
        "pmap: committed to one device",
        Value,
        &["Sharding passed to jit does not match", "SingleDeviceSharding"],
        || {
            let x = device_put(&ones(8), &devices()?[1])?;
            at!(pmap(double).call(&x))
        },
    )
    .at_once_only();
    t.row(
        "add: on two devices",
        Value,
        &["Received incompatible devices for jitted computation", "float32[3]", "device ids [0]", "device ids [1]"],
        || {
            let (x, y) = (device_put(&ones(3), &devices()?[0])?, device_put(&ones(3), &devices()?[1])?);
            at!(x + y).check()
        },
    )
    .at_once_only();
    t.row(
        "jit: on two devices",
        Value,
        &["Received incompatible devices for jitted computation", "argument[0] of lambda", "argument[1] of lambda"],
        || {
            let (x, y) = (device_put(&ones(3), &devices()?[0])?, device_put(&ones(3), &devices()?[1])?);
            at!(jit(|x: Array, y: Array| x * y).call((x, y)))
        },
    )
    .at_once_only();
    t.row("jit: another order of devices", Value, &["Received incompatible devices"], || {
        let all_devices = devices()?;
        let back = all_devices.iter().rev().cloned().collect();
        let (a, b) = (Mesh::new(all_devices, [("x", 8)])?, Mesh::new(back, [("x", 8)])?);
        let x = device_put(&ones(8), &NamedSharding::new(&a, P!["x"]))?;
        let y = device_put(&ones(8), &NamedSharding::new(&b, P!["x"]))?;
        at!(jit(|x: Array, y: Array| x * y).call((x, y)))
    })
    .at_once_only();
    t.row(
        "jit of pmap: on another device",
        Value,
        &["Received incompatible devices", "shard_map inside jit with device ids [0, 1"],
        || {
            let x = device_put(&ones(8), &devices()?[1])?;
            at!(jit(pmap(double)).call(&x))
        },
    )
    .at_once_only();
    t.row(
        "add: a result of pmap and what lies elsewhere",
        Value,
        &["Received incompatible devices for jitted computation", "device ids [0, 1", "device ids [3]"],
        || {
            let (x, y) = (pmap(double).call(ones([8, 2]))?, device_put(&ones([8, 2]), &devices()?[3])?);
            at!(x + y).check()
        },
    )
    .at_once_only();
    t.row("shard_map: on another device", Value, &["Received incompatible devices"], || {
        let mesh = make_mesh([("i", 8)])?;
        let x = device_put(&ones(8), &devices()?[1])?;
        at!(shard_map(double, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(&x))
    })
    .at_once_only();
    t.row(
        "device_put: not divisible",
        Indivisible,
        &["implies that array axis 0 is partitioned 8 times, but the dimension size is 9", "[9]"],
        || {
            let mesh = make_mesh([("x", 8)])?;
            at!(device_put(&ones(9), &NamedSharding::new(&mesh, P!["x"])))
        },
    )
    .at_once_only();
    t.row("device_put: rank", Value, &["only valid for values of rank at least 2"], || {
        let mesh = make_mesh([("x", 8)])?;
        at!(device_put(&ones(8), &NamedSharding::new(&mesh, P![None, "x"])))
    })
    .at_once_only();
    t.row("device_put: unknown axis", Value, &["Resource axis: q of P('q',) is not found in mesh"], || {
        let mesh = make_mesh([("x", 8)])?;
        at!(device_put(&ones(8), &NamedSharding::new(&mesh, P!["q"])))
    })
    .at_once_only();
}

fn shard_maps(t: &mut Table) {
    fn mesh() -> Result<Mesh> {
        make_mesh([("i", 4), ("j", 2)]).map(|mesh| mesh.auto())
    }
    // Specs that do not fit the arguments or results, and results that vary where the spec says they do not.
    t.row(
        "shard_map: not divisible",
        Value,
        &["not evenly divisible by the corresponding mesh axis sizes", "size 6", "'i'", "P('i',)"],
        move || {
            let mesh = mesh()?;
            at!(shard_map(double, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(ones(6)))
        },
    );
    t.row(
        "shard_map: in_specs too long",
        Value,
        &["was given an in_specs entry which is too long", "float32[8]"],
        move || {
            let mesh = mesh()?;
            at!(shard_map(double, &mesh).in_specs(P!["i", "j"]).out_specs(P!["i"]).call(ones(8)))
        },
    );
    t.row(
        "shard_map: in_specs of a scalar",
        Value,
        &["was given an in_specs entry which is too long", "P![]"],
        move || {
            let mesh = mesh()?;
            at!(shard_map(double, &mesh).in_specs(P!["i"]).out_specs(P![]).call(1.0f32))
        },
    );
    t.row(
        "shard_map: out_specs too long",
        Value,
        &["was given an out_specs entry which is too long", "float32[2]"],
        move || {
            let mesh = mesh()?;
            at!(shard_map(double, &mesh).in_specs(P!["i"]).out_specs(P!["i", "j"]).call(ones(8)))
        },
    );
    t.row(
        "shard_map: out_specs of a scalar",
        Value,
        &["out_specs entry which is too long", "expand_dims(0)"],
        move || {
            let mesh = mesh()?;
            at!(shard_map(|x: Array| x.sum(..), &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(ones(8)))
        },
    );
    t.row(
        "shard_map: a pmap body",
        Type,
        &["dot requires contracting dimensions", "float32[1,3]", "float32[1,3]"],
        || {
            let mesh = make_mesh([("i", 8)])?;
            fn body(x: Array, y: Array) -> Array {
                at!(x.dot(y))
            }
            shard_map(body, &mesh).in_specs((P!["i"], P!["i"])).out_specs(P!["i"]).call((ones([8, 3]), ones([8, 3])))
        },
    );
    t.row("shard_map: unknown axis", Value, &["Resource axis: q of P('q',) is not found in mesh"], move || {
        let mesh = mesh()?;
        at!(shard_map(double, &mesh).in_specs(P!["q"]).out_specs(P!["i"]).call(ones(8)))
    });
    t.row(
        "shard_map: one axis twice",
        Value,
        &["A single P('i', 'i') cannot use the mesh axis 'i' twice"],
        move || {
            let mesh = mesh()?;
            at!(shard_map(double, &mesh).in_specs(P!["i", "i"]).out_specs(P!["i"]).call(ones([8, 8])))
        },
    );
    t.row("shard_map: no in_specs", Type, &["shard_map needs in_specs"], move || {
        let mesh = mesh()?;
        at!(shard_map(double, &mesh).out_specs(P!["i"]).call(ones(8)))
    });
    t.row("shard_map: no out_specs", Type, &["shard_map needs out_specs"], move || {
        let mesh = mesh()?;
        at!(shard_map(double, &mesh).in_specs(P!["i"]).call(ones(8)))
    });
    t.row("shard_map: in_specs structure", Value, &["shard_map in_specs tree prefix error", "3 entries"], move || {
        let mesh = mesh()?;
        at!(shard_map(double, &mesh).in_specs((P![], P![], P![])).out_specs(P![]).call(ones(8)))
    });
    t.row("shard_map: out_specs structure", Value, &["shard_map out_specs tree prefix error"], move || {
        let mesh = mesh()?;
        at!(shard_map(double, &mesh).in_specs(P!["i"]).out_specs((P!["i"], P!["i"])).call(ones(8)))
    });
    t.row("shard_map: no mesh", Value, &["The context mesh cannot be empty"], || {
        at!(shard_map(double, None).in_specs(P!["i"]).out_specs(P!["i"]).call(ones(8)))
    });
    t.row("shard_map: axis_names", Value, &["axis_names ['q'] must be a subset"], move || {
        let mesh = mesh()?;
        at!(shard_map(double, &mesh).axis_names("q").in_specs(P![]).out_specs(P![]).call(ones(8)))
    });
    t.row("shard_map: spec of an automatic axis", Value, &["must refer to an axis marked as manual"], move || {
        let mesh = mesh()?;
        at!(shard_map(double, &mesh).axis_names("i").in_specs(P!["j"]).out_specs(P!["i"]).call(ones(8)))
    });
    t.row(
        "shard_map: another mesh inside",
        Value,
        &["The context mesh", "should match the mesh passed to shard_map"],
        move || {
            let (mesh, other) = (mesh()?, make_mesh([("k", 8)])?);
            let inner = move |x: Array| at!(shard_map(double, &other).in_specs(P!["k"]).out_specs(P!["k"]).call(x));
            shard_map(inner, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(ones(32))
        },
    );
    t.row("shard_map: nothing left inside", Value, &["manual already"], move || {
        let mesh = mesh()?;
        let inner = |x: Array| at!(shard_map(double, None).in_specs(P![]).out_specs(P![]).call(x));
        shard_map(inner, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(ones(8))
    });
    t.row("set_mesh: in jit", Value, &["set_mesh"], move || {
        let mesh = mesh()?;
        jit(move |x: Array| -> Result<Array> { at!(set_mesh(&mesh)).map(|_| x) }).call(ones(3))
    });
    t.row("smap: no in_axes", Type, &["smap needs in_axes", "Auto"], move || {
        let _mesh = set_mesh(&mesh()?)?;
        at!(smap(double, "i").out_axes(0).call(ones(8)))
    })
    .at_once_only();
    t.row("smap: no mesh", Value, &["The context mesh cannot be empty. Use `set_mesh(mesh)`"], || {
        at!(smap(double, "i").in_axes(0).out_axes(0).call(ones(8)))
    });
    t.row("smap: unknown axis", Value, &["must be a subset of the axes of the mesh", "'q'"], move || {
        let _mesh = set_mesh(&mesh()?)?;
        at!(smap(double, "q").in_axes(0).out_axes(0).call(ones(8)))
    })
    .at_once_only();
    t.row("smap: one axis twice", Value, &["manual already", "'i'"], move || {
        let _mesh = set_mesh(&mesh()?)?;
        let inner = |x: Array| at!(smap(double, "i").in_axes(0).out_axes(0).call(x));
        smap(inner, "i").in_axes(0).out_axes(0).call(ones(16))
    })
    .at_once_only();
    t.row("shard_map: empty mesh", Value, &["shard_map requires a non-empty mesh"], || {
        let mesh = Mesh::new(vec![devices()?[0].clone()], Vec::<(&str, usize)>::new())?;
        at!(shard_map(double, &mesh).in_specs(P![]).out_specs(P![]).call(ones(8)))
    });
    t.row("shard_map: out_specs of an unknown axis", Value, &["Resource axis: q of P('q',)"], move || {
        let mesh = mesh()?;
        at!(shard_map(double, &mesh).in_specs(P!["i"]).out_specs(P!["q"]).call(ones(8)))
    });
    t.row(
        "shard_map: not divisible by two axes",
        Value,
        &["argument[1]", "not evenly divisible by the corresponding mesh axis sizes", "total size 8"],
        move || {
            let mesh = mesh()?;
            let f = shard_map(|x: Array, y: Array| x + y, &mesh).in_specs((P!["i"], P![("i", "j")]));
            at!(f.out_specs(P!["i"]).call((ones(4), ones(4))))
        },
    );
    t.row("vmap: spmd_axis_name that the mesh lacks", Value, &["q is not found in mesh"], move || {
        let mesh = mesh()?;
        let inner = move |x: Array| at!(shard_map(double, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(x));
        vmap(inner).spmd_axis_name("q").call(ones([4, 8]))
    });
    t.row(
        "vmap: spmd_axis_name that a constraint has",
        Value,
        &["vmap spmd_axis_name 'i' cannot appear in with_sharding_constraint spec, but got spec P('i',)"],
        move || {
            let sharding = NamedSharding::new(&mesh()?, P!["i"]);
            vmap(move |x: Array| at!(with_sharding_constraint(x, &sharding))).spmd_axis_name("i").call(ones([4, 8]))
        },
    );
    t.row("smap: axis", Index, &["smap in_axes", "axis 1 is out of bounds"], move || {
        let _mesh = set_mesh(&mesh()?)?;
        at!(smap(double, "i").in_axes(1).out_axes(0).call(ones(8)))
    })
    .at_once_only();
    t.row(
        "vmap: spmd_axis_name that a spec has",
        Value,
        &["vmap spmd_axis_name cannot appear in shard_map in_specs"],
        move || {
            let mesh = mesh()?;
            let inner = move |x: Array| at!(shard_map(double, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(x));
            vmap(inner).spmd_axis_name("i").call(ones([4, 8]))
        },
    );
    t.row("vmap: spmd_axis_name does not divide", Value, &["spmd_axis_name", "'j'", "3"], move || {
        let mesh = mesh()?;
        let inner = move |x: Array| at!(shard_map(double, &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(x));
        vmap(inner).spmd_axis_name("j").call(ones([3, 8]))
    });
}

fn varying(t: &mut Table) {
    fn mesh() -> Result<Mesh> {
        make_mesh([("i", 8)])
    }
    // The checks of varying values; the message suggests `pcast` or a reduction.
    t.row(
        "shard_map: out_specs of what varies",
        Value,
        &["out_specs which require replication which can't be statically inferred", "output", "{i}"],
        move || {
            let mesh = mesh()?;
            at!(shard_map(double, &mesh).in_specs(P!["i"]).out_specs(P![]).call(ones(8)))
        },
    );
    t.row("pcast: varies already", Value, &["Unsupported pcast from=varying, to='varying'"], move || {
        let mesh = mesh()?;
        shard_map(|x: Array| at!(pcast(x, "i")), &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(ones(8))
    });
    t.row(
        "scan: carry that begins to vary",
        Type,
        &["scan body function carry", "manual axis types", "to='varying'"],
        move || {
            let mesh = mesh()?;
            fn f(x: Array) -> Result<Array> {
                Ok(at!(scan(|c: Array, x: Array| (c + x, ()), zeros(()), x))?.0)
            }
            shard_map(f, &mesh).in_specs(P!["i"]).out_specs(P![]).call(ones(8))
        },
    );
}
