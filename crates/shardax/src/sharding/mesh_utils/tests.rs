//! Tests against the device orders of JAX 0.10.2 (`tools/golden/mesh_utils.py`).

use super::*;

fn sizes(text: &str) -> Vec<usize> {
    text.split('x').map(|n| n.parse().unwrap()).collect()
}

#[test]
fn devices_are_ordered_as_by_jax() {
    // Each line is a topology, a mesh shape, and JAX's order of the devices.
    let mut ordered = 0;
    for line in include_str!("orders.txt").lines() {
        let [kind, dims, cores, shape, how, ids] = line.split('|').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let (dims, cores, shape) = (sizes(dims), cores.parse::<usize>().unwrap(), sizes(shape));
        let nodes: Vec<Node> = (0..dims.iter().product::<usize>() * cores)
            .map(|id| {
                let (core, chip) = (id % cores, id / cores);
                let coords = [chip % dims[0], chip / dims[0] % dims[1], chip / dims[0] / dims[1]];
                Node { id, is_tpu: true, is_gpu: false, kind: kind.to_owned(), coords, core }
            })
            .collect();
        let options = MeshOptions { allow_split_physical_axes: how == "split" };
        match order(&shape, &nodes, options) {
            Ok(order) => {
                let got = order.iter().map(usize::to_string).collect::<Vec<_>>().join(" ");
                assert_eq!(got, ids, "{line}");
                ordered += 1;
            }
            Err(error) => {
                assert_eq!(ids, "fails", "{line}: {error}");
                assert!(error.message().starts_with("Failed to find assignment for logical_axis_index"), "{error}");
            }
        }
    }
    assert!(ordered > 90, "{ordered}");
}

fn node(id: usize, coords: [usize; 3]) -> Node {
    Node { id, is_tpu: true, is_gpu: false, kind: "TPU v5".to_owned(), coords, core: 0 }
}

#[test]
fn impossible_device_orders_are_errors() {
    let options = MeshOptions { allow_split_physical_axes: true };
    let gap = [node(0, [0, 0, 0]), node(1, [2, 0, 0])];
    assert!(order(&[2], &gap, options).unwrap_err().message().contains("contains a \"hole\""));
    let twice = [node(0, [0, 0, 0]), node(1, [0, 0, 0]), node(2, [1, 0, 0]), node(3, [1, 0, 0])];
    assert!(order(&[4], &twice, options).unwrap_err().message().contains("contains a \"hole\""));
    for shape in [&[3][..], &[0], &[usize::MAX, 2], &[]] {
        let error = order(shape, &twice, options).unwrap_err();
        assert!(error.message().starts_with("Number of devices 4 must equal the product of mesh_shape"), "{error}");
    }
    assert!(order(&[], &[], options).is_err());
}

#[test]
fn gpus_go_by_their_ids() {
    let nodes =
        [3, 1, 0, 2].map(|id| Node { id, is_tpu: false, is_gpu: true, kind: String::new(), coords: [0; 3], core: 0 });
    assert_eq!(order(&[2, 2], &nodes, MeshOptions::default()).unwrap(), [2, 1, 3, 0]);
}
