//! Mistakes with collectives.

use shardax::ErrorKind::{Index, Name, NotImplemented, Type, Value};
use shardax::axis_index_groups;
use shardax::prelude::*;

use crate::{Table, at};

pub(crate) fn rows(t: &mut Table) {
    // Each collective outside of a map, over an unknown axis, and with sizes or groups that do not fit the axis.
    t.row(
        "psum: outside",
        Name,
        &["unbound axis name: i", "Found an unbound axis name: i", "To fix this, please call psum under"],
        || at!(psum(ones(3), "i")),
    );
    t.row("pmean: tree outside", Name, &["unbound axis name: i"], || at!(pmean((ones(3), ones(2)), "i")).0);
    t.row("axis_index: outside", Name, &["unbound axis name: i", "please call axis_index under"], || {
        at!(axis_index("i"))
    });
    t.row("axis_size: outside", Name, &["unbound axis name: i"], || at!(axis_size("i")));
    t.row("ppermute: outside", Name, &["unbound axis name: i"], || at!(ppermute(ones(3), "i", [(0, 1)])));
    t.row("pmap: collective after it returned", Name, &["unbound axis name: i"], || {
        let _ = pmap(|x: Array| psum(x, "i")).axis_name("i").call(ones(8))?;
        at!(psum(ones(3), "i")).check()
    });
    in_pmap(t, "psum: one axis twice", Value, &["psum got the axis 'i' twice"], |x| at!(psum(x, ("i", "i"))));
    in_pmap(t, "psum: failed operand", Value, &["incompatible shapes"], |x| psum(at!(x + ones(7)), "i"));
    in_pmap(
        t,
        "psum: groups that leave some out",
        Value,
        &["axis_index_groups must cover all indices exactly once"],
        |x| at!(psum(x, axis_index_groups("i", [[0, 1], [2, 3]]))),
    );
    in_pmap(t, "psum: groups with repeats", Value, &["axis_index_groups must cover all indices exactly once"], |x| {
        at!(psum(x, axis_index_groups("i", [[0, 1, 2, 3], [3, 4, 5, 6]])))
    });
    in_pmap(t, "psum: groups out of range", Value, &["axis_index_groups must cover all indices exactly once"], |x| {
        at!(psum(x, axis_index_groups("i", [[0, 1, 2, 3], [4, 5, 6, 9]])))
    });
    in_pmap(t, "all_gather: uneven groups", Value, &["all_gather needs axis_index_groups of one size"], |x| {
        at!(all_gather(x, axis_index_groups("i", [vec![0], vec![1, 2, 3, 4, 5, 6, 7]]), 0))
    });
    in_pmap(t, "psum_scatter: uneven groups", Value, &["psum_scatter needs axis_index_groups of one size"], |x| {
        at!(psum_scatter(x, axis_index_groups("i", [vec![0], vec![1, 2, 3, 4, 5, 6, 7]]), 0))
    });
    in_pmap(t, "ppermute: groups", Value, &["ppermute takes no axis_index_groups"], |x| {
        at!(ppermute(x, axis_index_groups("i", [[0, 1, 2, 3], [4, 5, 6, 7]]), [(0, 1)]))
    });
    in_pmap(t, "axis_index: groups", Value, &["axis_index takes no axis_index_groups"], |x| {
        x * at!(axis_index(axis_index_groups("i", [[0, 1, 2, 3], [4, 5, 6, 7]])))
    });
    in_pmap(
        t,
        "pbroadcast: source of a group",
        Value,
        &["pbroadcast source 4 is out of range", "4 participants"],
        |x| at!(pbroadcast(x, axis_index_groups("i", [[0, 1, 2, 3], [4, 5, 6, 7]]), 4)),
    );
    in_pmap(t, "pmax: complex numbers", Type, &["pmax does not accept dtype complex64"], |x| {
        at!(pmax(complex(x.clone(), x), "i"))
    });
    t.row("psum: in scan, no such axis", Name, &["unbound axis name: k", "bound here: i"], || {
        fn step(c: Array, x: Array) -> (Array, ()) {
            (c + at!(psum(x, "k")), ())
        }
        fn f(x: Array) -> Result<Array> {
            Ok(scan(step, zeros(()), x)?.0)
        }
        pmap(f).axis_name("i").call(ones([8, 4]))
    });
    for (name, body) in [
        ("all_gather: outside", (|x| at!(all_gather(x, "b", 0))) as fn(Array) -> Array),
        ("psum_scatter: outside", |x| at!(psum_scatter(x, "b", 0))),
        ("all_to_all: outside", |x| at!(all_to_all(x, "b", 0, 0))),
        ("pmax: outside", |x| at!(pmax(x, "b"))),
        ("pshuffle: outside", |x| at!(pshuffle(x, "b", [0]))),
        ("pbroadcast: outside", |x| at!(pbroadcast(x, "b", 0))),
        ("pcast: outside", |x| at!(pcast(x, "b"))),
    ] {
        t.row(name, Name, &["unbound axis name: b", "To fix this, please call"], move || pmap(body).call(ones([8, 4])));
    }
    in_pmap(t, "all_gather: axis", Index, &["axis 3 is out of bounds"], |x| at!(all_gather(x, "i", 3)));
    in_pmap(t, "all_gather: tiled scalar", Index, &["axis 0 is out of bounds for an array of rank 0"], |x| {
        at!(all_gather_tiled(x.sum(..), "i", 0))
    });
    in_pmap(
        t,
        "psum_scatter: size",
        Value,
        &["reduce_scatter operand scatter dimension size 4 must match shard count 8"],
        |x| at!(psum_scatter(x, "i", 0)),
    );
    in_pmap(t, "psum_scatter: tiled size", Value, &["dimension size 4 must be divisible by shard_count 8"], |x| {
        at!(psum_scatter_tiled(x, "i", 0))
    });
    in_pmap(t, "psum_scatter: booleans", Type, &["psum_scatter does not accept dtype bool"], |x| {
        at!(psum_scatter(x.broadcast_to([8, 4]).greater(0), "i", 0))
    });
    in_pmap(t, "psum_scatter: axis", Index, &["axis 1 is out of bounds"], |x| at!(psum_scatter(x, "i", 1)));
    in_pmap(t, "all_to_all: size", Value, &["all_to_all requires the size of the mapped axis", "8 and 4"], |x| {
        at!(all_to_all(x, "i", 0, 0))
    });
    in_pmap(t, "all_to_all: tiled size", Value, &["has to be divisible", "size 4", "size 8"], |x| {
        at!(all_to_all_tiled(x, "i", 0, 0))
    });
    in_pmap(t, "all_to_all: axis", Index, &["axis 1 is out of bounds"], |x| at!(all_to_all_tiled(x, "i", 0, 1)));
    in_pmap(
        t,
        "ppermute: one source twice",
        Value,
        &["ppermute sources and destinations must be unique, got [(0, 1), (0, 2)]"],
        |x| at!(ppermute(x, "i", [(0, 1), (0, 2)])),
    );
    in_pmap(t, "ppermute: one destination twice", Value, &["must be unique"], |x| {
        at!(ppermute(x, "i", [(0, 2), (1, 2)]))
    });
    in_pmap(t, "ppermute: out of range", Value, &["(0, 8)", "8 participants"], |x| at!(ppermute(x, "i", [(0, 8)])));
    in_pmap(
        t,
        "pshuffle: no permutation",
        Value,
        &["`perm` does not represent a permutation: [0, 0, 1, 2, 3, 4, 5, 6]"],
        |x| at!(pshuffle(x, "i", [0, 0, 1, 2, 3, 4, 5, 6])),
    );
    in_pmap(t, "pswapaxes: size", Value, &["all_to_all requires the size of the mapped axis"], |x| {
        at!(pswapaxes(x, "i", 0))
    });
    in_pmap(t, "pbroadcast: source", Value, &["pbroadcast", "8"], |x| at!(pbroadcast(x, "i", 8)));
    in_pmap(t, "ppermute: Rust number", Type, &["ppermute of the Rust number 2.0", "array(2.0)"], |x| {
        x * at!(ppermute(2.0, "i", [(0, 1)]))
    });
    in_pmap(t, "pcast: Rust number", Type, &["pcast of the Rust number 0.0", "array(0.0)"], |x| {
        x * at!(pcast(0.0, "i"))
    });
    in_pmap(t, "all_gather: Rust number", Type, &["all_gather of the Rust number 3", "array(3)"], |x| {
        x * at!(all_gather(3, "i", 0))
    });
    in_pmap(
        t,
        "psum: Rust number out of range",
        Value,
        &["psum of the Rust number 100 over 8 devices", "i8, which cannot hold 800"],
        |x| x * i32::from(at!(psum(100i8, "i"))),
    );
    t.row("device_put: Rust number", Type, &["device_put of the Rust number 1.0", "array(1.0)"], || {
        at!(device_put(1.0, &devices()?[0])).map(array)
    });
    t.row(
        "all_gather: groups of two axes, one of vmap",
        NotImplemented,
        &["all_gather does not support axis_index_groups over"],
        || {
            let f = |x: Array| at!(all_gather(x, axis_index_groups(("i", "j"), (0..24).map(|i| [i])), 0));
            pmap(vmap(f).axis_name("j")).axis_name("i").call(ones([8, 3]))
        },
    );
}

/// A row whose mistake is made on `float32[4]` inside a `pmap` over 8 devices.
fn in_pmap(
    t: &mut Table,
    name: &'static str,
    kind: shardax::ErrorKind,
    phrases: &'static [&'static str],
    f: impl Fn(Array) -> Array + Copy + 'static,
) {
    t.row(name, kind, phrases, move || pmap(f).axis_name("i").call(ones([8, 4])));
}
