//! Host data without copies, and arrays that are awaited.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use crate::common::quick::setup;
use shardax::prelude::*;

/// A vector that begins at a multiple of 64 bytes, and one that does not.
fn vectors() -> [Vec<f32>; 2] {
    let arrays: Vec<Vec<f32>> = (0..64).map(|i| (0..2048 + i).map(|x| x as f32).collect()).collect();
    let (mut aligned, mut other): (Vec<_>, Vec<_>) =
        arrays.into_iter().partition(|v| v.as_ptr().addr().is_multiple_of(64));
    [aligned.pop().expect("one of many is aligned"), other.pop().expect("one of many is not")]
}

#[test]
fn aligned_vectors_are_taken_over_and_read_in_place() -> Result<()> {
    setup();
    for (elements, aligned) in vectors().into_iter().zip([true, false]) {
        let (n, at) = (elements.len(), elements.as_ptr());
        let want = elements.clone();
        let x = Array::from_vec(elements, &[n])?;
        let view = x.view::<f32>()?;
        assert!(view.is_in_place());
        assert_eq!(view[..], want);
        assert_eq!(view.as_ptr() == at, aligned);
        drop(view);
        // Computing with the array and donating it do not change the original elements.
        assert_eq!(jit(|x: Array| x + 1).call(&x)?.item_at(n - 1)?, n as f32);
        let y = jit(|x: Array| x * 2).donate_argnums([0]).call(x)?;
        assert_eq!(y.item_at(3)?, 6.0);
    }
    let wrong = Array::from_vec(vec![0.0f32; 5000], &[70, 70]).err().map(|e| e.message().to_owned());
    assert_eq!(wrong.as_deref(), Some("an array of shape [70, 70] has 4900 elements, but 5000 were given"));
    Ok(())
}

trait ItemAt {
    fn item_at(&self, i: usize) -> Result<f32>;
}

impl ItemAt for Array {
    fn item_at(&self, i: usize) -> Result<f32> {
        Ok(self.view::<f32>()?[i])
    }
}

/// The memory is freed with its last user.
#[test]
fn memory_taken_over_is_given_back() -> Result<()> {
    setup();
    for _ in 0..400 {
        let x = Array::from_vec(vec![1.0f32; 1 << 20], &[1 << 20])?;
        let y = x.sum(..);
        drop(x);
        assert_eq!(y.item::<f32>()?, (1 << 20) as f32);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    assert!(peak.is_none_or(|kib| kib < 1200 << 10), "{peak:?} KiB");
    Ok(())
}

#[test]
fn views_read_every_kind_of_array() -> Result<()> {
    setup();
    assert_eq!(array([1i32, -2]).view::<i32>()?[..], [1, -2]);
    assert_eq!(array([true, false]).view::<bool>()?[..], [true, false]);
    assert_eq!(ones([3]).astype(DType::Bf16).view::<half::bf16>()?[..], [half::bf16::ONE; 3]);
    assert_eq!(Array::from(2.5f32).view::<f32>()?[..], [2.5]);
    assert_eq!(zeros([0, 3]).view::<f32>()?.len(), 0);
    let rows = NamedSharding::new(&make_mesh([("i", 8)])?, P!["i"]);
    let split = device_put(&arange(0..16), &rows)?;
    let view = split.view::<i32>()?;
    assert!(!view.is_in_place());
    assert_eq!(view[..], (0..16).collect::<Vec<i32>>());
    let text = array([1.0f32]).view::<f64>().err().map(|e| e.message().to_owned()).unwrap_or_default();
    assert!(text.contains("cannot be read as float64"), "{text}");
    // It cannot be deleted meanwhile, which is said at once.
    let x = arange(0..8);
    let view = x.view::<i32>()?;
    assert!(x.delete().is_err());
    assert_eq!(view[7], 7);
    drop(view);
    x.delete()?;
    assert!(x.view::<i32>().is_err());
    Ok(())
}

/// An executor of one task: its thread sleeps until it is woken.
struct Unpark(Thread, AtomicUsize);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0.unpark();
    }
}

/// The result of a future, and how often it was pending.
fn block_on<F: Future>(future: F) -> (F::Output, usize) {
    let unpark = Arc::new(Unpark(thread::current(), AtomicUsize::new(0)));
    let waker = Waker::from(unpark.clone());
    let mut future = pin!(future);
    let mut pending = 0;
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(result) => return (result, pending),
            Poll::Pending => pending += 1,
        }
        while unpark.1.swap(0, Ordering::SeqCst) == 0 {
            thread::park();
        }
    }
}

#[test]
fn arrays_are_awaited_without_a_thread() -> Result<()> {
    setup();
    // Nothing computes until the gate opens, which the task that waits does after it was pending.
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let slow = pure_callback(
        move |args, results| {
            let _ = gate.lock().expect("no panic").recv();
            results[0].write(args[0].to_vec::<f32>()?)
        },
        shape_dtype_struct([2000], DType::F32),
    );
    let f = jit(move |x: Array| Ok::<_, shardax::Error>(slow.call(x.sin())? + 1));
    let x = ones([2000]);
    let y = f.call(&x)?;
    let mut opened = Some(open);
    let mut waiting = Box::pin(y.ready());
    let (result, pending) = block_on(std::future::poll_fn(|cx| {
        let polled = waiting.as_mut().poll(cx);
        if polled.is_pending() {
            drop(opened.take());
        }
        polled
    }));
    result?;
    assert!(pending >= 1 && opened.is_none());
    assert!(y.is_ready()?);
    // Several devices, one that is awaited by value, and errors.
    let doubled = pmap(|x: Array| x * 2).call(ones([8, 4]))?;
    assert_eq!(block_on(doubled.into_future()).0?.sum(..).item::<f32>()?, 64.0);
    let fails = pure_callback(
        |_, _| Err(shardax::Error::new(shardax::ErrorKind::Value, "never")),
        shape_dtype_struct([2], DType::F32),
    );
    let failed = jit(move |x: Array| fails.call(x)).call(ones([2])).map(|y| block_on(y.ready()).0);
    assert!(failed.and_then(|r| r).is_err());
    assert!(block_on((ones([2]) + ones([3])).ready()).0.is_err());
    fn is_send<T: Send + 'static>(_: &T) {}
    is_send(&ones([2]).ready());
    Ok(())
}
