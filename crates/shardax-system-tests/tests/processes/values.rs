//! Values that each process passes to a program of all processes. If they differ, the call is an error on all.

use std::time::{Duration, Instant};

use shardax::pure_callback;

use crate::*;

const DIFFERS: [&str; 2] = ["is not the same on each process: process ", "has another value"];

/// Calls `f` with a value that is the same everywhere, one that is not, and the first again.
fn same_and_different(name: &str, f: impl Fn(usize) -> Result<Array>) -> Result<()> {
    let n = process_count();
    let first = read(&f(n)?)?;
    fails(f(process_index()), &[&DIFFERS[..], &[name]].concat());
    assert_eq!(read(&f(n)?)?, first, "{name}");
    Ok(())
}

#[test]
fn values_that_differ_by_process_are_an_error_on_all() {
    everywhere(|| {
        let x = counted(device_count())?;
        let f = jit(|x: Array, k: Array| (x * k).sum(..));
        same_and_different("argument[1]", |k| f.call((&x, k as f32)))?;
        same_and_different("argument[1]", |k| f.call((&x, array([k as f32]))))?;
        let g = jit(|x: Array, k: (Array, Array)| (x * k.0 + k.1).max(..));
        same_and_different("argument[1][1]", |k| g.call((&x, (ones(1), array(k as f32)))))?;
        // Without communication each process would have parts of its own.
        let h = jit(|x: Array, k: Array| x + k);
        same_and_different("argument[1]", |k| h.call((&x, k as f32)))?;
        let keys = jit(|x: Array, key: Array| x + random::uniform(&key, [device_count()]));
        same_and_different("argument[1]", |k| keys.call((&x, random::key(k as u32))))?;
        // Captured: a value that is one of the program's inputs.
        fn captured(k: usize, x: &Array) -> Result<Array> {
            let k = array([k as f32, 1.0]);
            jit(move |x: Array| (x * k.get(0)).sum(..)).call(x)
        }
        same_and_different("captured[0]", |k: usize| captured(k, &x))?;
        same_and_different("", |k| {
            shard_map(|x: Array, k: Array| psum(x * k, "x"), &line()?)
                .in_specs((P!["x"], P![]))
                .out_specs(P![])
                .call((&x, array(k as f32)))
        })
    });
}

/// One of many arguments is found.
#[test]
fn one_value_of_many_that_differs_is_found() {
    everywhere(|| {
        let x = counted(device_count())?;
        let f = jit(|x: Array, all: Vec<Array>| all.into_iter().fold(x, |x, k| x + k).sum(..));
        fn values(odd: usize, by: usize) -> Vec<Array> {
            (0..100).map(|i| array([i as f32, if i == odd { by as f32 } else { 0.0 }]).sum(..)).collect()
        }
        let _ = f.call((&x, values(0, 0)))?;
        for odd in [0, 57, 99] {
            fails(f.call((&x, values(odd, process_index()))), &DIFFERS);
        }
        f.call((&x, values(0, 0))).map(drop)
    });
}

#[test]
fn host_data_is_the_whole_on_each_process() {
    everywhere(|| {
        let n = 2 * device_count();
        let rows = NamedSharding::new(&line()?, P!["x"]);
        let expected: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let x = Array::from_slice_on(&expected, &[n], &rows)?;
        assert_eq!((x.shape(), read(&x)?), (&[n][..], expected.clone()));
        let local = vec![process_index() as f32; n];
        fails(Array::from_slice_on(&local, &[n], &rows), &["passed to from_slice_on is not the same on each process"]);
        let bytes: Vec<u8> = local.iter().flat_map(|x| x.to_ne_bytes()).collect();
        fails(Array::from_bytes_on(&bytes, DType::F32, &[n], &rows), &["passed to from_bytes_on is not the same"]);
        assert_eq!(read(&Array::from_slice_on(&expected, &[n], &rows)?)?, expected);
        Ok(())
    });
}

#[test]
fn a_barrier_may_wait_for_ever() {
    everywhere(|| {
        shardax::distributed::wait_at_barrier("no hurry", Duration::MAX)?;
        // What is further off than a clock can say is a time limit, too.
        shardax::distributed::set_collective_timeout(Duration::MAX);
        let sum = counted(device_count())?.sum(..).item::<f32>();
        shardax::distributed::set_collective_timeout(Duration::from_secs(30));
        sum.map(drop)
    });
}

#[test]
fn processes_do_not_meet_inside_of_host_functions() {
    everywhere(|| {
        let begun = Instant::now();
        let gathers = pure_callback(
            |_, results| {
                let values = shardax::multihost::process_allgather(&array(1.0f32))?;
                results[0].write([values.to_vec::<f32>()?.iter().sum::<f32>()])
            },
            shape_dtype_struct((), DType::F32),
        );
        let f = jit(move |x: Array| gathers.call(x));
        fails(f.call(1.0f32).and_then(|y| y.item::<f32>()), &["inside a function of the host"]);
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        Ok(())
    });
}
