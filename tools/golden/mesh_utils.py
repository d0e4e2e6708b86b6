"""Writes the orders of devices that JAX's mesh_utils gives, for TPU slices that are only described: one line a case, of
kind, chips along each dimension, cores of a chip, shape of the mesh, whether dimensions may be split, and ids.

python mesh_utils.py > ../../crates/shardax/src/sharding/mesh_utils/orders.txt
"""

from jax.experimental import mesh_utils

CASES = [
    ("TPU v5 lite", (2, 2, 1), 1, [(4,), (2, 2)]),
    ("TPU v5 lite", (2, 4, 1), 1, [(8,), (2, 4), (4, 2)]),
    ("TPU v5 lite", (4, 2, 1), 1, [(8,), (4, 2)]),
    ("TPU v5 lite", (2, 2, 2), 1, [(8,), (4, 2)]),
    ("TPU v5 lite", (4, 4, 1), 1, [(16,), (4, 4), (1, 16), (2, 8), (2, 2, 4)]),
    ("TPU v5 lite", (4, 8, 1), 1, [(4, 8), (8, 4), (2, 16), (32,)]),
    ("TPU v5 lite", (8, 8, 1), 1, [(8, 8), (2, 2, 16), (64,), (4, 16)]),
    ("TPU v5", (2, 2, 2), 1, [(8,), (2, 4), (2, 2, 2)]),
    ("TPU v5p", (2, 2, 2), 1, [(8,), (4, 2)]),
    ("TPU v5", (4, 4, 4), 1, [(16, 4), (4, 16), (64,), (4, 4, 4), (2, 32), (2, 2, 16), (8, 8)]),
    ("TPU v5", (4, 4, 8), 1, [(8, 16), (16, 8), (128,), (2, 8, 8), (4, 4, 8)]),
    ("TPU v4", (2, 2, 4), 1, [(4, 4), (16,), (2, 8)]),
    ("TPU v3", (2, 2, 1), 2, [(8,), (2, 4)]),
    ("TPU v3", (4, 4, 1), 2, [(4, 8), (32,), (8, 4)]),
    ("TPU v6 lite", (4, 4, 1), 1, [(16,), (4, 4)]),
    ("TPU7x", (2, 2, 1), 2, [(8,), (2, 4)]),
    ("TPU7x", (2, 2, 2), 2, [(16,), (2, 8)]),
    ("TPU7x", (2, 4, 4), 2, [(8, 8), (2, 32), (64,)]),
]


class Device:
    platform = "tpu"
    process_index = 0
    slice_index = 0

    def __init__(self, id, kind, coords, core):
        self.id = id
        self.device_kind = kind
        self.coords = coords
        self.core_on_chip = core


def slice_of(kind, dims, cores):
    """Devices with the first coordinate minor, the cores of a chip together."""
    at = [(x, y, z, c) for z in range(dims[2]) for y in range(dims[1]) for x in range(dims[0]) for c in range(cores)]
    return [Device(id, kind, tuple(place[:3]), place[3]) for id, place in enumerate(at)]


def text(numbers, separator):
    return separator.join(map(str, numbers))


for kind, dims, cores, shapes in CASES:
    devices = slice_of(kind, dims, cores)
    for shape in shapes:
        for split in (False, True):
            try:
                mesh = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=split)
                ids = text([device.id for device in mesh.ravel()], " ")
            except NotImplementedError:
                ids = "fails"
            how = "split" if split else "whole"
            print(f"{kind}|{text(dims, 'x')}|{cores}|{text(shape, 'x')}|{how}|{ids}")
