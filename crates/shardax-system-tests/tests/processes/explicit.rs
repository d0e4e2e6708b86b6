//! Axes of type `Explicit` over the devices of several processes.

use crate::explicit_programs::PROGRAMS;
use crate::*;

/// The mesh x:2 and as many devices along y as there are.
fn explicit() -> Result<Mesh> {
    make_mesh([("x", 2), ("y", device_count() / 2)])?.with_axis_types([AxisType::Explicit; 2])
}

fn num(shape: &[usize], a: f32, b: f32, spec: PartitionSpec) -> Result<Array> {
    let n: usize = shape.iter().product();
    let values: Vec<f32> = (0..n).map(|i| (i as f32 * a + b).sin()).collect();
    device_put(&array(values).reshape(shape), spec)
}

/// Types and numbers equal the results of one process.
#[test]
fn six_programs() {
    everywhere(|| {
        let _mesh = set_mesh(&explicit()?)?;
        for program in PROGRAMS.iter().filter(|program| !program.needs_four || device_count() == 8) {
            let result = jit(program.run).call((program.arguments)(&num)?).map_err(|e| e.context(program.name))?;
            assert_eq!(result.len(), program.wanted.len(), "{}", program.name);
            for (have, want) in result.iter().zip(program.wanted) {
                let have = f64::from(have.item::<f32>()?);
                assert!((have - want).abs() <= 1e-3 * want.abs().max(1.0), "{}: {have} is not {want}", program.name);
            }
        }
        Ok(())
    });
}

/// `reshard`, eager operations and host data between devices of different processes.
#[test]
fn values_move_by_their_types() {
    everywhere(|| {
        let mesh = explicit()?;
        let _mesh = set_mesh(&mesh)?;
        let x = num(&[8, 8], 0.1, 0.0, P!["x", "y"])?;
        let y = device_count() / 2;
        assert_eq!(x.type_name(), "float32[8@x,8@y]");
        let moved = reshard(&x * 2, P!["y", "x"]);
        assert_eq!(moved.type_name(), "float32[8@y,8@x]");
        let want: Vec<f32> = (0..64).map(|i| (i as f32 * 0.1).sin() * 2.0).collect();
        fn close(have: &[f32], want: &[f32]) -> bool {
            have.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-5)
        }
        assert!(close(&read(&moved)?, &want));
        assert_eq!(moved.addressable_shards()?[0].data.shape(), [8 / y, 4]);
        assert_eq!(x.sum(0).type_name(), "float32[8@y]");
        fails((&x + &moved).check(), &["float32[8@x,8@y]", "float32[8@y,8@x]", "reshard(x, spec)"]);
        Ok(())
    });
}

/// Only jobs of two processes with four devices run these cases.
#[test]
fn two_processes_of_four_devices() {
    if std::env::var_os(JOB).is_some() {
        return;
    }
    for launcher in launchers() {
        let outputs = start(&launcher, 2, 4, Some("explicit::"));
        for case in ["explicit::six_programs", "explicit::values_move_by_their_types"] {
            let result = outputs.get(case).cloned().unwrap_or_default();
            assert_eq!(result, ["ok", "ok"], "{case} under {}: {:?}", launcher.display(), OUTPUT.get());
        }
    }
}
