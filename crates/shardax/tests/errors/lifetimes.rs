//! Arrays used after their time: deleted, donated, or taken out of the function in which they were traced.

use std::sync::Mutex;

use shardax::ErrorKind::{Deleted, Leak, Type, Value};
use shardax::prelude::*;

use crate::{Table, at};

pub(crate) fn rows(t: &mut Table) {
    deleted(t);
    donated(t);
    leaked(t);
}

/// An array that has values in a trace too, where a range would be computed by the program.
fn eight() -> Array {
    array([0, 1, 2, 3, 4, 5, 6, 7])
}

fn deleted(t: &mut Table) {
    // An array whose memory was freed by `delete`; every use must say so.
    fn gone() -> Result<Array> {
        let x = eight();
        x.delete()?;
        Ok(x)
    }
    t.row("deleted: read", Deleted, &["Array has been deleted with shape=int32[8]"], move || {
        at!(gone()?.to_vec::<i32>())
    })
    .at_once_only();
    t.row("deleted: while traced", Type, &["delete() method was called on a traced array", "int32[8]"], || {
        jit(|x: Array| -> Result<Array> {
            at!(x.delete())?;
            Ok(x)
        })
        .call(eight())
        .map(drop)
    });
    t.row("deleted: operator", Deleted, &["Array has been deleted"], move || {
        let x = gone()?;
        at!(x + 1).check()
    });
    t.row("deleted: clone", Deleted, &["Array has been deleted", "by a call of `delete`"], || {
        let x = eight();
        let y = x.clone();
        x.delete()?;
        at!(y * 2).check()
    });
    t.row("deleted: shard", Deleted, &["Array has been deleted", "shared its memory"], || {
        let x = eight();
        let shard = x.addressable_data(0)?;
        x.delete()?;
        at!(shard.to_vec::<i32>())
    })
    .at_once_only();
    t.row("deleted: jit argument", Deleted, &["Array has been deleted", "argument[0]"], move || {
        let f = jit(|x: Array| x * 2);
        let _ = f.call(eight())?;
        let x = gone()?;
        at!(f.call(x))
    })
    .at_once_only();
    t.row("deleted: jit argument that is not used", Deleted, &["Array has been deleted"], move || {
        let f = jit(|_: Array, y: Array| y * 2);
        let _ = f.call((eight(), eight()))?;
        let x = gone()?;
        at!(f.call((x, eight())))
    })
    .at_once_only();
    t.row("deleted: captured", Deleted, &["Array has been deleted"], || {
        let x = eight();
        let y = x.clone();
        let f = jit(move |z: Array| at!(&y + z));
        x.delete()?;
        f.call(1)
    });
    t.row("deleted: captured by what is compiled", Deleted, &["Array has been deleted"], || {
        let x = eight();
        let y = x.clone();
        let f = jit(move |z: Array| &y + z);
        let _ = f.call(1)?;
        x.delete()?;
        at!(f.call(1))
    })
    .at_once_only();
    t.row("deleted: pmap argument", Deleted, &["Array has been deleted"], move || {
        let x = gone()?;
        at!(pmap(|x: Array| x * 2).call(x))
    });
    t.row("deleted: device_put", Deleted, &["Array has been deleted"], move || {
        let x = gone()?;
        let mesh = make_mesh([("x", 8)])?;
        at!(device_put(&x, &NamedSharding::new(&mesh, P!["x"])))
    });
    t.row("deleted: tree read", Deleted, &["Array has been deleted"], move || {
        at!(device_get(&(arange(0..3), gone()?)))
    })
    .at_once_only();
}

fn donated(t: &mut Table) {
    // An array that a call donated; the message names the call's line.
    fn step(x: Array) -> Array {
        x + 1
    }
    t.row("donated: jit", Deleted, &["Array has been deleted", "when it was donated to `step`"], || {
        let x = arange(0..8);
        let _ = jit(step).donate_argnums([0]).call(&x)?;
        at!(x * 2).check()
    })
    .at_once_only();
    t.row("donated: to the same function again", Deleted, &["Array has been deleted", "`step`"], || {
        let x = arange(0..8);
        let f = jit(step).donate_argnums([0]);
        let _ = f.call(&x)?;
        at!(f.call(&x))
    })
    .at_once_only();
    t.row("donated: clone", Deleted, &["Array has been deleted"], || {
        let x = arange(0..8);
        let y = x.clone();
        let _ = jit(step).donate_argnums([0]).call(x)?;
        at!(y.to_vec::<i32>())
    })
    .at_once_only();
    t.row("donated: twice in one call", Value, &["previously donated in the same call", "[0]", "[1]"], || {
        let x = arange(0..8);
        at!(jit(|x: Array, y: Array| (x + 1, y + 2)).donate_argnums([0, 1]).call((&x, &x)))
    })
    .at_once_only();
    t.row("donated: and used in one call", Value, &["previously donated in the same call"], || {
        let x = arange(0..8);
        at!(jit(|x: Array, y: Array| x + y).donate_argnums([0]).call((&x, &x)))
    })
    .at_once_only();
    t.row("donated: and captured in one call", Value, &["previously donated in the same call"], || {
        let x = arange(0..8);
        let y = x.clone();
        at!(jit(move |x: Array| x + &y).donate_argnums([0]).call(&x))
    })
    .at_once_only();
    t.row("donated: to pmap", Deleted, &["Array has been deleted", "donated to `pmap_step`"], || {
        let x = arange(0..8);
        let _ = pmap(step).donate_argnums([0]).call(&x)?;
        at!(x * 2).check()
    })
    .at_once_only();
    t.row("donated: sharded, to pmap", Deleted, &["Array has been deleted", "donated to `pmap_step`"], || {
        let x = pmap(step).call(arange(0..8))?;
        let f = pmap(step).donate_argnums([0]);
        let _ = f.call(&x)?;
        at!(f.call(&x))
    })
    .at_once_only();
    t.row("donated: to pmap twice in one call", Value, &["previously donated in the same call"], || {
        let x = pmap(step).call(arange(0..8))?;
        at!(pmap(|x: Array, y: Array| (x + 1, y + 2)).donate_argnums([0, 1]).call((&x, &x)))
    })
    .at_once_only();
    t.row("donated: to pmap and used in one call", Value, &["previously donated in the same call"], || {
        let x = pmap(step).call(arange(0..8))?;
        at!(pmap(|x: Array, y: Array| x + y).donate_argnums([0]).call((&x, &x)))
    })
    .at_once_only();
    t.row("donated: pmap argnums beyond", Value, &["donate_argnums names argument 3"], || {
        at!(pmap(step).donate_argnums([3]).call(arange(0..8)))
    })
    .at_once_only();
}

fn leaked(t: &mut Table) {
    /// A value of a function whose tracing is over.
    fn leak() -> Result<Array> {
        let leaked = Mutex::new(None);
        let _ = jit(|x: Array| {
            *leaked.lock().expect("no panic while it is held") = Some(&x * 2);
            x
        })
        .call(arange(0..3))?;
        Ok(leaked.into_inner().expect("no panic").expect("it was traced"))
    }
    t.row("leak: operator", Leak, &["UnexpectedTracerError", "int32[3]"], || {
        let x = leak()?;
        at!(x + 1).check()
    })
    .at_once_only();
    t.row("leak: read", Leak, &["UnexpectedTracerError"], || at!(leak()?.to_vec::<i32>())).at_once_only();
    t.row("leak: bytes", Leak, &["UnexpectedTracerError"], || at!(leak()?.to_bytes())).at_once_only();
    t.row("leak: jit argument", Leak, &["UnexpectedTracerError", "argument[0]"], || {
        let x = leak()?;
        at!(jit(|x: Array| x * 2).call(x))
    })
    .at_once_only();
    t.row("leak: jit argument of what is compiled", Leak, &["UnexpectedTracerError"], || {
        let f = jit(|x: Array| x * 2);
        let _ = f.call(arange(0..3))?;
        let x = leak()?;
        at!(f.call(x))
    })
    .at_once_only();
    t.row("leak: captured", Leak, &["UnexpectedTracerError"], || {
        let x = leak()?;
        jit(move |y: Array| at!(&x + y)).call(1)
    })
    .at_once_only();
    t.row("leak: returned", Leak, &["UnexpectedTracerError"], || {
        let x = leak()?;
        at!(jit(move |_: Array| x.clone()).call(1))
    })
    .at_once_only();
    t.row("leak: pmap argument", Leak, &["UnexpectedTracerError"], || {
        let x = leak()?;
        at!(pmap(|x: Array| x * 2).call(x))
    })
    .at_once_only();
    t.row("leak: vmap", Leak, &["UnexpectedTracerError"], || {
        let leaked = Mutex::new(None);
        let _ = vmap(|x: Array| {
            *leaked.lock().expect("no panic while it is held") = Some(&x * 2);
            x
        })
        .call(arange(0..3))?;
        let x: Array = leaked.into_inner().expect("no panic").expect("it was traced");
        at!(x + 1).check()
    });
    t.row("leak: from an inner function to the outer", Leak, &["UnexpectedTracerError"], || {
        jit(|y: Array| -> Result<Array> {
            let leaked = Mutex::new(None);
            let _ = grad(|x: Array| {
                *leaked.lock().expect("no panic while it is held") = Some(&x * 2);
                x.sum(..)
            })
            .call(&y)?;
            let x: Array = leaked.into_inner().expect("no panic").expect("it was traced");
            Ok(at!(x + y))
        })
        .call(ones(3))
    });
    t.row("leak: to another thread", Leak, &["UnexpectedTracerError"], || {
        fn inside(x: Array) -> Result<Array> {
            let line = line!() + 1;
            let sent = std::thread::scope(|s| s.spawn(|| (&x + 1).check()).join());
            crate::mark(line);
            sent.expect("no panic").map(|()| x)
        }
        jit(inside).call(ones(3))
    });
    t.row("leak: device_put", Leak, &["UnexpectedTracerError"], || {
        let x = leak()?;
        at!(device_put(&x, &devices()?[0]))
    })
    .at_once_only();
}
