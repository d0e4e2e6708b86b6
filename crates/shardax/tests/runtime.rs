//! Execution of compiled programs: on all devices at once or one by one.

mod common;

use shardax::prelude::*;
use shardax::{Error, ErrorKind, clear_caches};

/// Enough elements that the program is launched on all devices together.
const MANY: usize = 4096;

#[test]
fn little_programs_run_device_by_device_and_know_their_device() -> Result<()> {
    common::setup();
    for width in [1, MANY] {
        let f = pmap(|x: Array| (x.sum(..), axis_index("i"))).axis_name("i");
        let x = arange(0..8).reshape([8, 1]).broadcast_to([8, width]);
        for _ in 0..3 {
            let (sums, index) = f.call(&x)?;
            assert_eq!(index.to_vec::<i32>()?, [0, 1, 2, 3, 4, 5, 6, 7]);
            assert_eq!(sums.to_vec::<i32>()?, (0..8).map(|i| i * width as i32).collect::<Vec<_>>());
        }
        // In another order of devices.
        let reversed: Vec<Device> = devices()?.into_iter().rev().collect();
        let f = pmap(|x: Array| (x * 2, axis_index("i"))).axis_name("i").devices(reversed.clone());
        let (doubled, index) = f.call(&x)?;
        assert_eq!(doubled.devices()?, reversed);
        assert_eq!(doubled.slice_first()?, (0..8).map(|i| 2 * i).collect::<Vec<i32>>());
        assert_eq!(index.to_vec::<i32>()?, [0, 1, 2, 3, 4, 5, 6, 7]);
    }
    Ok(())
}

/// The first column.
trait FirstColumn {
    fn slice_first(&self) -> Result<Vec<i32>>;
}

impl FirstColumn for Array {
    fn slice_first(&self) -> Result<Vec<i32>> {
        Ok(self.to_vec::<i32>()?.into_iter().step_by(self.shape()[1]).collect())
    }
}

#[test]
fn deleted_arguments_are_named_in_every_kind_of_program() -> Result<()> {
    common::setup();
    for width in [1, MANY] {
        let f = pmap(|x: Array, y: Array| x + y);
        let x = ones([8, width]);
        let _ = f.call((&x, &x))?;
        let y = ones([8, width]) * 2;
        y.delete()?;
        let error = f.call((&x, &y)).err();
        assert_eq!(error.as_ref().map(Error::kind), Some(ErrorKind::Deleted), "{error:?}");
        // One part of an array is gone, which another array shared.
        let z = f.call((&x, &x))?;
        z.addressable_data(5)?.delete()?;
        let error = f.call((&x, &z)).err();
        assert_eq!(error.as_ref().map(Error::kind), Some(ErrorKind::Deleted), "{error:?}");
        assert_eq!(f.call((&x, &x))?.to_vec::<f32>()?, vec![2.0; 8 * width]);
    }
    Ok(())
}

#[test]
fn programs_that_donate_run_together() -> Result<()> {
    common::setup();
    let f = pmap(|x: Array| x + 1).donate_argnums([0]);
    let mesh = make_mesh([("i", 8)])?;
    let x = device_put(&ones([8, 2]), &NamedSharding::new(&mesh, P!["i"]))?;
    let y = f.call(&x)?;
    assert!(x.is_deleted());
    assert_eq!(y.to_vec::<f32>()?, [2.0; 16]);
    let error = f.call(&x).err();
    assert_eq!(error.map(|e| e.kind()), Some(ErrorKind::Deleted));
    Ok(())
}

/// The plugin's matrix products and sums may come from libraries that keep something of their operands for as long as
/// these come at the same address.
#[test]
fn programs_see_operands_that_changed_in_place() -> Result<()> {
    common::setup();
    let n = 1024;
    for rows in [32, 64, 128] {
        let product = jit(|x: Array, w: Array| x.dot(&w).sum(..));
        let halve = jit(|w: Array| w * 0.5).donate_argnums([0]);
        let (x, mut w) = (ones([rows, n]), ones([n, n]) * 1);
        let mut expected = (rows * n * n) as f32;
        // The donated weights have new values in the same memory.
        for _ in 0..4 {
            assert_eq!(product.call((&x, &w))?.item::<f32>()?, expected);
            w = block_until_ready(halve.call(&w)?)?;
            expected /= 2.0;
        }
        for value in 0..4 {
            let fresh = Array::from_vec(vec![value as f32; n * n], &[n, n])?;
            assert_eq!(product.call((&x, &fresh))?.item::<f32>()?, (value * rows * n * n) as f32);
        }

        let step = pmap(|x: Array, w: Array| (psum(x.dot(&w).sum(..), "i"), pmean(w * 0.5, "i")))
            .axis_name("i")
            .in_axes((0, None))
            .out_axes(None)
            .donate_argnums([1]);
        let (x, mut w) = (ones([8, rows, n]), ones([n, n]) * 1);
        let mut expected = (8 * rows * n * n) as f32;
        for _ in 0..4 {
            let (sum, next) = step.call((&x, w))?;
            assert_eq!(sum.item::<f32>()?, expected);
            w = next;
            expected /= 2.0;
        }
    }
    Ok(())
}

#[test]
fn many_little_launches_and_threads_keep_their_order() -> Result<()> {
    common::setup();
    let f = pmap(|x: Array| x + 1);
    std::thread::scope(|scope| {
        let counts: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| -> Result<Vec<i32>> {
                    let mut x = arange(0..8);
                    for _ in 0..200 {
                        x = f.call(&x)?;
                    }
                    x.to_vec()
                })
            })
            .collect();
        for count in counts {
            let count = count.join().expect("no panic")?;
            assert_eq!(count, (200..208).collect::<Vec<_>>());
        }
        Ok(())
    })
}

#[test]
fn a_mesh_of_one_device() -> Result<()> {
    common::setup();
    let f = pmap(|x: Array| (&x * 2, psum(x.sum(..), "i"), axis_index("i"))).axis_name("i");
    let (y, total, index) = f.call(arange(0..4).reshape([1, 4]))?;
    assert_eq!(y.to_vec::<i32>()?, [0, 2, 4, 6]);
    assert_eq!((total.to_vec::<i32>()?, index.to_vec::<i32>()?), (vec![6], vec![0]));
    clear_caches();
    Ok(())
}

/// Small operations outside of `jit` are compiled with other options, with which XLA rounds numbers from 496 to 512 to -0.
#[test]
fn small_arrays_convert_to_float8_as_large_ones_do() -> Result<()> {
    common::setup();
    let numbers: Vec<f32> = (0..64).map(|i| 400.0 + 4.0 * i as f32).collect();
    let narrow = array(&numbers[..]).astype(DType::F8E4M3Fn).to_f64_vec()?;
    // 464 is halfway between 448, the largest number, and 480, which would be the next.
    assert!(narrow.iter().zip(&numbers).all(|(narrow, number)| narrow.is_nan() == (*number > 464.0)), "{narrow:?}");
    Ok(())
}
