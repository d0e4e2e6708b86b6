//! Functions of the host that fail, run programs, or ask for too much: errors in bounded time, and nothing done after.

use std::panic::panic_any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::common::quick::setup;
use shardax::prelude::*;
use shardax::{HostCallback, debug};

/// Returns the value of `f`, which must not take a minute.
#[track_caller]
fn in_time<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    setup();
    let _failures = crate::failures();
    let (send, done) = mpsc::channel();
    std::thread::spawn(move || send.send(f()));
    done.recv_timeout(Duration::from_secs(60)).expect("it ends")
}

/// Counts its calls, and fails in the call with this number.
fn counted(fails_at: usize) -> (Arc<AtomicUsize>, HostCallback<Array>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let recorder = calls.clone();
    let call = io_callback(
        move |args, results| match recorder.fetch_add(1, Ordering::SeqCst) {
            n if n == fails_at => Err(shardax::Error::new(shardax::ErrorKind::Value, "the disk is full")),
            _ => results[0].write(args[0].values::<f32>()?),
        },
        ones(()),
    );
    (calls, call)
}

#[track_caller]
fn fails<T>(result: Result<T>, text: &str) {
    let error = result.err().expect("an error").to_string();
    assert!(error.contains(text), "{text:?} is not in: {error}");
}

#[test]
fn a_failed_call_stops_later_calls() {
    in_time(|| -> Result<()> {
        let (_, fail) = counted(0);
        let (calls, after) = counted(usize::MAX);
        let next = after.clone();
        let f = jit(move |x: Array| next.call(fail.call(x)?));
        let y = f.call(2.0f32)?;
        // A program that is given its result makes no calls, either.
        let z = jit(move |x: Array| after.call(x + 1)).call(&y);
        fails(y.item::<f32>(), "the disk is full");
        fails(z.and_then(|z| z.item::<f32>()), "the disk is full");
        assert_eq!(calls.load(Ordering::SeqCst), 0);
        // The next call of the same program is a new one.
        assert_eq!(f.call(2.0f32)?.item::<f32>()?, 2.0);
        assert_eq!(calls.load(Ordering::SeqCst), 1);

        let (calls, fail) = counted(2);
        let looped = jit(move |x: Array| fori_loop(0, 8, |_: Array, x: Array| fail.call(x), x));
        fails(looped.call(1.0f32)?.item::<f32>(), "the disk is full");
        assert_eq!(calls.load(Ordering::SeqCst), 3);
        let (calls, fail) = counted(1);
        let fail = fail.ordered();
        let ordered = jit(move |x: Array| -> Result<()> {
            for i in 0..5 {
                let _ = fail.call(&x + i)?;
            }
            Ok(())
        });
        ordered.call(1.0f32)?;
        debug::callback_ordered(|_| Ok(()), 0)?; // waits for it
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        Ok(())
    })
    .expect("all of it")
}

/// Appends a number to a log when the program runs.
fn note(log: &Arc<Mutex<Vec<f32>>>, x: f32) -> Result<()> {
    let log = log.clone();
    let add = move |args: &[shardax::HostArg<'_>]| {
        log.lock().expect("no panic").push(args[0].item::<f32>()?);
        Ok(())
    };
    debug::callback_ordered(add, x)
}

#[test]
fn ordered_calls_inside_of_ordered_calls_come_in_their_place() {
    in_time(|| -> Result<()> {
        let log: Arc<Mutex<Vec<f32>>> = Arc::default();
        let inner = log.clone();
        let outer = io_callback(
            move |args, _| {
                let x = args[0].item::<f32>()?;
                note(&inner, x)?;
                shardax::debug_print_ordered!("inside of the call for {}", x);
                note(&inner, x + 0.5)
            },
            (),
        )
        .ordered();
        outer.call(1.0f32)?;
        let callback = outer.clone();
        let f = jit(move |x: Array| -> Result<Array> {
            callback.call(&x)?;
            callback.call(&x + 1)?;
            Ok(x)
        });
        let _ = f.call(2.0f32)?;
        outer.call(4.0f32)?;
        assert_eq!(*log.lock().expect("no panic"), [1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5]);
        // Where the outer call is made at once, programs may be run inside of it, and with ordered calls of their own.
        let inside = Arc::new(f);
        let runs = io_callback(move |args, _| inside.call(args[0].item::<f32>()?).map(drop), ()).ordered();
        runs.call(7.0f32)?;
        outer.call(9.0f32)?;
        assert_eq!(log.lock().expect("no panic")[8..], [7.0, 7.5, 8.0, 8.5, 9.0, 9.5]);
        Ok(())
    })
    .expect("all of it")
}

/// A function that computes with arrays, so that each operation runs a program.
fn computes(depth: usize) -> HostCallback<Array> {
    pure_callback(
        move |args, results| {
            let x = args[0].item::<f32>()?;
            let y = match depth {
                0 => array(x) * 2,
                _ => {
                    let deeper = computes(depth - 1);
                    jit(move |x: Array| Ok::<_, shardax::Error>(deeper.call(x)? + 1)).call(x)?
                }
            };
            results[0].write([y.item::<f32>()?])
        },
        ones(()),
    )
}

#[test]
fn a_host_function_that_runs_programs_is_an_error() {
    const WHY: &str = "a host function that a program calls cannot run programs";
    for depth in [0, 1, 40] {
        fails(in_time(move || jit(move |x: Array| computes(depth).call(x)).call(1.0f32)?.item::<f32>()), WHY);
    }
    // On four devices, each waiting for all.
    fn on_four() -> Result<Vec<f32>> {
        let mesh = Mesh::new(devices()?[..4].to_vec(), [("i", 4)])?;
        let captured_mesh = mesh.clone();
        let sum = pure_callback(
            move |_, results| {
                let sum = shard_map(|x: Array| psum(x, "i"), &captured_mesh).in_specs(P!["i"]).out_specs(P![]);
                results[0].write(jit(sum).call(ones([4]))?.to_vec::<f32>()?)
            },
            ones([1]),
        );
        let f = shard_map(move |x: Array| Ok::<_, shardax::Error>(sum.call(&x)? + x), &mesh);
        jit(f.in_specs(P!["i"]).out_specs(P!["i"])).call(ones([4]))?.to_vec()
    }
    fails(in_time(on_four), WHY);
    // Called at once, it is as any other function.
    let at_once = in_time(|| computes(0).call(3.0f32)?.item::<f32>());
    assert_eq!(at_once.expect("it is computed"), 6.0);
}

#[test]
fn a_result_that_memory_cannot_hold_is_an_error() {
    let call =
        || pure_callback(|_, _| unreachable!("there is no room"), shape_dtype_struct([1usize << 45], DType::F32));
    fails(in_time(move || call().call(1.0f32)), "no memory for the result float32[35184372088832] of a host function");
    let launched = move || jit(move |x: Array| call().call(x)).call(1.0f32).and_then(|y| y.block_until_ready());
    let error = in_time(launched).expect_err("an error").to_string();
    assert!(error.contains("35184372088832") || error.contains("memory"), "{error}");
}

struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic_any(Bomb);
    }
}

#[test]
fn a_panic_whose_payload_panics_is_an_error() {
    fn call() -> HostCallback<Array> {
        pure_callback(|_, _| panic_any(Bomb), ones(()))
    }
    fails(in_time(move || call().call(1.0f32)), "panicked: no message");
    fails(in_time(move || jit(move |x: Array| call().call(x)).call(1.0f32)?.item::<f32>()), "panicked: no message");
}

/// A call that writes a ref in the first stage of a program that writes it too, where no later stage has calls.
#[test]
fn calls_write_refs_of_programs_in_stages() {
    in_time(|| -> Result<()> {
        let total = new_ref(0.0f32)?;
        let written = total.clone();
        let f = move |x: Array| -> Result<Array> {
            let inside = written.clone();
            debug::callback_ordered(move |_| inside.set(5.0f32), &x)?;
            written.set(written.get() + 1)?;
            Ok((0..1500).fold(x, |y, _| y.sin()))
        };
        let (slope, counts) = shardax::count(|| grad(f).call(1.0f32));
        slope?.item::<f32>()?;
        assert!(counts.compilations > 2, "{counts:?}");
        assert_eq!(total.get().item::<f32>()?, 1.0);
        Ok(())
    })
    .unwrap();
}
