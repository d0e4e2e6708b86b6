//! Consecutive elements, which the host copies outside of `jit`: the results are equal to the results of programs.

use shardax::prelude::*;
use shardax::{default_device, devices, random};

use crate::common::quick::{one_of, setup};

const INDICES: [fn(&Array) -> Array; 12] = [
    |x| x.get(1),
    |x| x.get(-1),
    |x| x.get((1, 2)),
    |x| x.get((1, 1..3)),
    |x| x.get((1, 2, 1..4)),
    |x| x.get((1..2, 0..2)),
    |x| x.get((0..2, 1)),
    |x| x.get((.., 1)),
    |x| x.get((1, NewAxis, 2)),
    |x| x.get(1..1),
    |x| x.get((Ellipsis, 3)),
    |x| x.get((1, 2, 3)),
];

#[test]
fn copies_are_equal_to_results_of_programs() -> Result<()> {
    setup();
    let cube = arange(0..24).reshape([2, 3, 4]);
    let dtypes = [DType::F32, DType::Bf16, DType::F64, DType::I8, DType::I4, DType::U64, DType::Bool, DType::Complex64];
    for (number, index) in INDICES.into_iter().enumerate() {
        // A slice has two of the dtypes for each.
        for dtype in dtypes.into_iter().skip(number % one_of(4)).step_by(one_of(4)) {
            let x = cube.astype(dtype);
            let (inside, outside) = (jit(move |x: Array| index(&x)).call(&x)?, index(&x));
            assert_eq!(outside.type_name(), inside.type_name(), "{number}");
            assert_eq!(format!("{outside}"), format!("{inside}"), "{number}");
        }
    }
    let keys = random::split(random::key(3), 4);
    assert_eq!(random::key_data(keys.get(2)).to_vec::<u32>()?, random::key_data(&keys).get(2).to_vec::<u32>()?);
    // A value that is still computed, and a derivative.
    let y = (arange(0..600).astype(DType::F32).sin() * 2).get(7);
    assert_eq!(y.item::<f32>()?, 7f32.sin() * 2.0);
    let slopes = grad(|x: Array| x.get(1) * x.get(2)).call(array([2.0f32, 3.0, 5.0]))?;
    assert_eq!(slopes.to_vec::<f32>()?, [0.0, 5.0, 3.0]);
    Ok(())
}

#[test]
fn copies_are_where_the_array_is() -> Result<()> {
    setup();
    let all_devices = devices()?;
    let last = all_devices.last().expect("a device");
    let x = device_put(&arange(6), last)?;
    let sum = x.get(1) + x.get(2);
    assert_eq!((x.get(1).devices()?, sum.devices()?), (x.devices()?, x.devices()?));
    // An uncommitted array follows the default device, as in all other operations.
    let y = arange(6);
    let _guard = default_device(last)?;
    assert_eq!(y.get(1).devices()?, (&y + 1).devices()?);
    Ok(())
}
