//! The number of allocations of a call, which are a large part of the time of a small one.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::setup;
use shardax::prelude::*;

/// The system's allocator, which counts the allocations of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends may allocate after its thread locals are gone.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every method passes its arguments on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(memory, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The mean number of allocations of a call, after calls that compile.
fn allocations(f: impl Fn() -> Result<()>) -> Result<f64> {
    const CALLS: usize = 200;
    for _ in 0..3 {
        f()?;
    }
    let before = COUNT.get();
    for _ in 0..CALLS {
        f()?;
    }
    Ok((COUNT.get() - before) as f64 / CALLS as f64)
}

/// An eager operation allocates its primitive, its result and the result's buffer. The table of live arrays grows now and
/// then.
#[test]
fn eager_operations_allocate_little() -> Result<()> {
    setup();
    let (x, y) = (ones([16]), arange(0..16).astype(DType::F32));
    let operations: [(&str, &dyn Fn() -> Array); 5] = [
        ("x + y", &|| &x + &y),
        ("x * 2", &|| &x * 2),
        ("0.5 - x", &|| 0.5 - &x),
        ("tanh", &|| x.tanh()),
        ("reshape", &|| x.reshape([4, 4])),
    ];
    for (name, operation) in operations {
        let count = allocations(|| operation().check())?;
        assert!(count < 3.5, "{name}: {count} allocations");
    }
    Ok(())
}

/// On eight devices, a result of `pmap` allocates its description, the list of its buffers and eight buffers. The
/// arguments allocate nothing, and the lists of a call little.
#[test]
fn results_of_pmap_allocate_little() -> Result<()> {
    setup();
    const LEAVES: usize = 50;
    let double = pmap(|leaves: Vec<Array>| leaves.into_iter().map(|leaf| leaf * 2).collect::<Vec<Array>>());
    let leaves = double.call((0..LEAVES).map(|_| ones([8, 4])).collect::<Vec<Array>>())?;
    let count = allocations(|| double.call(leaves.clone()).map(drop))?;
    let per_leaf = count / LEAVES as f64;
    assert!(per_leaf < 11.5, "{per_leaf} allocations for each leaf");
    Ok(())
}
