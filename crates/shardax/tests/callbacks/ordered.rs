//! Calls of the host in order. Orders and rejections equal JAX 0.10.2's for the same functions.

use std::sync::{Arc, Mutex};

use crate::common::quick::setup;
use shardax::prelude::*;
use shardax::{HostArg, HostCallback, debug};

/// The values shown, in order.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<f32>>>);

impl Log {
    fn note(&self) -> impl Fn(&[HostArg<'_>]) -> Result<()> + Send + Sync + 'static {
        let log = self.0.clone();
        move |args| {
            let x = args[0].to_vec::<f32>()?;
            // Whoever is not kept in order is overtaken.
            std::thread::sleep(std::time::Duration::from_micros(100 * (x[0] as u64 % 3)));
            log.lock().expect("no panic").extend(x);
            Ok(())
        }
    }

    /// A function that notes its argument.
    fn show(&self) -> HostCallback<()> {
        let note = self.note();
        io_callback(move |args, _| note(args), ()).ordered()
    }

    fn take(&self) -> Vec<f32> {
        std::mem::take(&mut *self.0.lock().expect("no panic"))
    }
}

fn twice(show: &HostCallback<()>) -> impl Fn(Array) -> Result<Array> + Clone + use<> {
    let show = show.clone();
    move |x: Array| {
        show.call(&x)?;
        show.call(&x + 1)?;
        Ok(x * 2)
    }
}

fn rejection<T>(result: Result<T>) -> String {
    result.err().map(|e| e.message().to_owned()).unwrap_or_default()
}

#[test]
fn calls_keep_their_order_in_programs() -> Result<()> {
    setup();
    let log = Log::default();
    let show = log.show();
    let f = twice(&show);
    fn run(y: Array, log: &Log) -> Result<Vec<f32>> {
        y.item::<f32>().map(|_| log.take())
    }
    assert_eq!(run(jit(f.clone()).call(1.0f32)?, &log)?, [1.0, 2.0]);
    // In the bodies of loops, in the condition of a loop, in branches, in nested programs and in custom rules, the
    // order is the order of the program.
    let body = f.clone();
    let scanned = jit(move |x: Array| scan_n(|c: Array| Ok::<_, shardax::Error>((body(c)?, ())), x, 3));
    assert_eq!(run(scanned.call(1.0f32)?.0, &log)?, [1.0, 2.0, 2.0, 3.0, 4.0, 5.0]);
    let body = f.clone();
    let looped = jit(move |x: Array| while_loop(|c: Array| c.less(5), &body, x));
    assert_eq!(run(looped.call(1.0f32)?, &log)?, [1.0, 2.0, 2.0, 3.0, 4.0, 5.0]);
    let callback = show.clone();
    let program = jit(move |x: Array| {
        fn more(c: Array, callback: &HostCallback<()>) -> Result<Array> {
            callback.call(&c)?;
            Ok(c.less(5))
        }
        while_loop(|c: Array| more(c, &callback), |c: Array| c * 2, x)
    });
    assert_eq!(run(program.call(1.0f32)?, &log)?, [1.0, 2.0, 4.0, 8.0]);
    let body = f.clone();
    let branch = jit(move |x: Array| cond(x.greater(0), &body, |x: Array| x, x));
    assert_eq!(run(branch.call(1.0f32)?, &log)?, [1.0, 2.0]);
    assert_eq!(run(branch.call(-1.0f32)?, &log)?, Vec::<f32>::new());
    let inner = jit(f.clone());
    let callback = show.clone();
    let nested = jit(move |x: Array| -> Result<Array> {
        let y = inner.call(&x)?;
        callback.call(0.0f32)?;
        inner.call(y)
    });
    assert_eq!(run(nested.call(1.0f32)?, &log)?, [1.0, 2.0, 0.0, 2.0, 3.0]);
    let body = f.clone();
    let rule = custom_jvp(move |x: Array| body(x)).defjvp(|(x,): (Array,), (t,): (Array,)| (x, t));
    assert_eq!(run(jit(move |x: Array| rule.call(x)).call(1.0f32)?, &log)?, [1.0, 2.0]);
    Ok(())
}

/// From program to program, also where nothing is returned, and with calls outside of programs.
#[test]
fn calls_keep_their_order_over_programs() -> Result<()> {
    setup();
    let _failures = crate::failures();
    let log = Log::default();
    let show = log.show();
    let callback = show.clone();
    let silent = jit(move |x: Array| callback.call(x));
    let callback = show.clone();
    let second_program = jit(move |x: Array| callback.call(&x).map(|()| x + 1));
    let devices = devices()?;
    let mut results = Vec::new();
    for i in 0..12 {
        let x = device_put(&Array::from(i as f32), &devices[i % devices.len()])?;
        match i % 3 {
            0 => silent.call(&x)?,
            1 => results.push(second_program.call(&x)?),
            _ => show.call(&x)?,
        }
    }
    show.call(99.0f32)?;
    let want: Vec<f32> = (0..12).map(|i| i as f32).chain([99.0]).collect();
    assert_eq!(log.take(), want);
    // A call that fails holds up none that follow.
    let fails = io_callback(|_, _| Err(shardax::Error::new(shardax::ErrorKind::Value, "no")), ()).ordered();
    let failed = jit(move |x: Array| fails.call(&x).map(|()| x + 1)).call(1.0f32).and_then(|y| y.item::<f32>());
    assert!(failed.is_err());
    assert_eq!((second_program.call(5.0f32)?.item::<f32>()?, log.take()), (6.0, vec![5.0]));
    Ok(())
}

#[test]
fn ordered_callbacks_reject_vmap_and_grad() -> Result<()> {
    setup();
    let log = Log::default();
    let show = log.show();
    let f = twice(&show);
    assert_eq!(rejection(vmap(f.clone()).call(ones([3]))), "Cannot `vmap` ordered IO callback.");
    assert!(rejection(grad(f.clone()).call(1.0f32)).starts_with("IO callbacks cannot be differentiated"));
    let callback = show.clone();
    let apart = vmap(move |y: Array| callback.call(7.0f32).map(|()| y)).call(ones([3]))?;
    assert_eq!((apart.to_vec::<f32>()?, log.take()), (vec![1.0; 3], vec![7.0]));
    let pure = pure_callback(|_, r| r[0].write([0.0f32]), shape_dtype_struct([1], DType::F32)).ordered();
    assert!(rejection(pure.call(1.0f32)).contains("no effects"));
    let mesh = make_mesh([("i", 8)])?;
    fn shown(x: Array) -> Result<Array> {
        debug::callback_ordered(|_| Ok(()), &x).map(|()| x)
    }
    let text = rejection(jit(shard_map(shown, &mesh).in_specs((P!["i"],)).out_specs(P!["i"])).call(ones([8])));
    assert!(text.starts_with("The following ordered effects are not supported for more than 1 device"), "{text}");
    Ok(())
}

/// Inside of a `shard_map` each device keeps the order of its own calls; what follows comes after all of them.
#[test]
fn each_device_keeps_its_order() -> Result<()> {
    setup();
    let log = Log::default();
    let show = log.show();
    let mesh = make_mesh([("i", 8)])?;
    let callback = show.clone();
    let blocks = move |x: Array| -> Result<Array> {
        callback.call(&x)?;
        callback.call(&x + 100)?;
        Ok(x)
    };
    let f = jit(shard_map(blocks, &mesh).in_specs((P!["i"],)).out_specs(P!["i"]));
    f.call(arange(0..8).astype(DType::F32))?.to_vec::<f32>()?;
    show.call(-1.0f32)?;
    let values = log.take();
    assert_eq!((values.len(), values[16]), (17, -1.0));
    for i in 0..8 {
        fn index_of(x: f32, values: &[f32]) -> usize {
            values.iter().position(|s| *s == x).expect("it was shown")
        }
        assert!(index_of(i as f32, &values) < index_of(i as f32 + 100.0, &values), "{values:?}");
    }
    Ok(())
}

#[test]
fn debug_callbacks_keep_their_order() -> Result<()> {
    setup();
    let log = Log::default();
    let shown = |log: &Log| {
        let log = log.clone();
        move |x: Array| -> Result<Array> {
            debug::callback_ordered(log.note(), &x)?;
            debug::callback_ordered(log.note(), &x + 10)?;
            Ok(x)
        }
    };
    jit(shown(&log)).call(1.0f32)?.item::<f32>()?;
    assert_eq!(log.take(), [1.0, 11.0]);
    assert_eq!(grad(shown(&log)).call(1.0f32)?.item::<f32>()?, 1.0);
    assert_eq!(log.take(), [1.0, 11.0]);
    vmap(shown(&log)).call(array([3.0f32, 4.0, 5.0]))?.to_vec::<f32>()?;
    assert_eq!(log.take(), [3.0, 4.0, 5.0, 13.0, 14.0, 15.0]);
    Ok(())
}

/// A program that is so long that it is compiled in stages, with calls in its first stages only.
#[test]
fn calls_keep_their_order_in_stages() -> Result<()> {
    setup();
    let _failures = crate::failures();
    let log = Log::default();
    let shown = log.clone();
    let long = move |x: Array| -> Result<Array> {
        debug::callback_ordered(shown.note(), &x)?;
        let y = (0..700).fold(x, |y, _| y.sin());
        debug::callback_ordered(shown.note(), &y * 0 + 7)?;
        Ok((0..800).fold(y, |y, _| y.cos()))
    };
    let show = log.show();
    let (slope, counts) = shardax::count(|| grad(long.clone()).call(1.0f32));
    assert!(slope?.item::<f32>()?.is_finite());
    assert!(counts.compilations > 2, "{counts:?}");
    show.call(2.0f32)?;
    assert_eq!(log.take(), [1.0, 7.0, 2.0]);
    // Stages of several calls, started at once, on two devices.
    let devices = devices()?;
    for i in 0..6 {
        let x = device_put(&Array::from(i as f32), &devices[i % 2])?;
        let _ = grad(long.clone()).call(x)?;
    }
    show.call(9.0f32)?;
    let want: Vec<f32> = (0..6).flat_map(|i| [i as f32, 7.0]).chain([9.0]).collect();
    assert_eq!(log.take(), want);
    // Values that move between devices divide a program too.
    let (shown, second) = (log.clone(), devices[1].clone());
    let moving = move |x: Array| -> Result<Array> {
        debug::callback_ordered(shown.note(), &x)?;
        let y = device_put(&(x * 2), &second)?;
        debug::callback_ordered(shown.note(), &y)?;
        Ok(y * 3)
    };
    let x = device_put(&Array::from(1.0f32), &devices[0])?;
    assert_eq!(grad(moving.clone()).call(&x)?.item::<f32>()?, 6.0);
    let _ = grad(moving).call(&x)?;
    show.call(5.0f32)?;
    assert_eq!(log.take(), [1.0, 2.0, 1.0, 2.0, 5.0]);
    Ok(())
}
