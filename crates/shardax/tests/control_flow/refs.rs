//! Arrays that a function reads and writes in place.

use shardax::experimental::pallas as pl;
use shardax::prelude::*;
use shardax::{Error, ErrorKind, Ref, ds};

use crate::close;
use crate::common::quick::setup;

/// Three refs, read and written in a scan, a loop in it, a branch in it, and a loop with a condition on a ref.
fn nested(x: Array) -> Result<Array> {
    let (r, n, w) = (new_ref(x.get(s![..3]))?, new_ref(0)?, new_ref(ones(2))?);
    let body = |c: Array, a: Array| -> Result<(Array, Array)> {
        r.set((r.get() * &a).sin() + w.at(1).get() * &c)?;
        n.add(1)?;
        let inner = |i: Array, ()| -> Result<()> {
            r.at(&i).add(&a * 0.5)?;
            w.at(0).set(w.at(0).get() * 1.1)
        };
        fori_loop(0, 2, inner, ())?;
        cond(a.greater(0.0), |()| w.at(1).set(w.at(0).get() * &a), |()| (), ())?;
        Ok((c * 0.5, r.at(0).get()))
    };
    let (c, ys): (Array, Array) = scan(body, Array::from(1.0f32), x)?;
    let double = |i: Array, ()| r.at(ds(&i, 1)).set(r.at(ds(&i, 1)).get() * 2.0);
    fori_loop(1, 3, double, ())?;
    let old = r.at(s![..2]).swap(w.get());
    Ok(ys.sum(..) + r.get().square().sum(..) + old.sum(..) * c + n.freeze().astype(DType::F32))
}

/// JAX computes the same numbers for the same function of values.
#[test]
fn refs_in_loops_and_branches() -> Result<()> {
    setup();
    let x = array([0.5f32, -1.0, 2.0, 1.5]);
    let slopes = [-0.4842307, -0.9335994, 2.804106, 15.87926];
    close(&jit(nested).call(&x)?, &[22.83407]);
    close(&grad(nested).jit().call(&x)?, &slopes);
    close(&jvp(nested, &x, ones(4))?.1, &[17.26554]);
    let stacked = stack([&x, &-&x], 0);
    let rows = vmap(grad(nested)).call(&stacked)?;
    close(&rows, &[&slopes[..], &[-0.08402571, 3.985704, -0.08638549, 0.4488394]].concat());
    // Without a trace around it: the refs have their values in memory, and each loop is a program.
    close(&nested(x)?, &[22.83407]);
    Ok(())
}

/// Numbers of JAX 0.10.2.
#[test]
fn parts_of_refs() -> Result<()> {
    setup();
    fn f(x: Array, i: Array) -> Result<(Array, Array)> {
        let r = new_ref(zeros(5))?;
        r.at(array([0, 0, 3])).add(&x)?;
        r.at(&i).set(7.0)?;
        let a = r.at(s![1..3]).get();
        r.at(s![1..3]).set(a + 1)?;
        let b = new_ref(zeros_dtype([2, 3], DType::Bf16))?;
        b.at(1).set(x.astype(DType::Bf16))?;
        b.at((.., 2)).set(1.0)?;
        b.at((0, 1)).add(2.0)?;
        Ok((r.freeze(), b.get().astype(DType::F32)))
    }
    // Computed indices count from the end if negative, and are clamped.
    for i in [4, -1, 12] {
        let x = array([1.0f32, 2.0, 3.0]);
        let (r, b) = jit(f).call((x.clone(), array(i)))?;
        close(&r, &[2.0, 1.0, 1.0, 3.0, 7.0]);
        close(&b, &[0.0, 2.0, 1.0, 1.0, 2.0, 1.0]);
        close(&f(x, array(i))?.0, &[2.0, 1.0, 1.0, 3.0, 7.0]);
    }
    Ok(())
}

#[test]
fn refs_beside_other_transformations() -> Result<()> {
    setup();
    // A condition that reads, and one that writes.
    fn count(x: Array) -> Result<(Array, Array)> {
        let (r, tests) = (new_ref(x)?, new_ref(0)?);
        let test = |_: Array| tests.add(1).map(|()| r.get().less(10.0));
        let n = while_loop(test, |n: Array| r.set(r.get() * 2.0).map(|()| n + 1), Array::from(0))?;
        Ok((n, tests.freeze()))
    }
    let (n, tests) = jit(count).call(array(1.0f32))?;
    assert_eq!((n.item::<i32>()?, tests.item::<i32>()?), (4, 5));
    // A recomputed part, whose reads and writes are its values.
    fn f(x: Array) -> Result<Array> {
        let r = new_ref(&x)?;
        let _ = checkpoint(|y: Array| r.set(r.get() * &y).map(|()| y)).call(x.sin())?;
        Ok(r.freeze().sum(..))
    }
    let x = array([0.5f32, 2.0]);
    close(&grad(f).call(&x)?, &(x.sin() + &x * x.cos()).to_f64_vec()?);
    // Values that are read while an eager derivative is traced.
    fn g(x: Array) -> Result<Array> {
        let r = new_ref(&x)?;
        r.at(0).add(1.0)?;
        let power = if r.get().get(0).item::<f32>()? > 1.0 { 2.0 } else { 3.0 };
        Ok(r.freeze().pow(power).sum(..))
    }
    close(&grad(g).call(&x)?, &[3.0, 4.0]);
    close(&grad(g).call(array([-0.5f32, 2.0]))?, &[0.75, 12.0]);
    // Checks, and a jitted function that many calls share.
    let checked = checkify(|x: Array| -> Result<Array> {
        let r = new_ref(0.0f32)?;
        let add = jit(|x: Array| r.add(&x).map(|()| x));
        let _ = add.apply((x.clone(),))?;
        let _ = add.apply((x,))?;
        check!(r.get().less(3.0), "the sum is {}", r.get())?;
        Ok(r.freeze())
    });
    let (error, sum) = checked.call(array(1.0f32))?;
    assert_eq!((error.get()?, sum.item::<f32>()?), (None, 2.0));
    assert!(checked.call(array(2.0f32))?.0.get()?.is_some_and(|text| text.contains("the sum is 4")));
    Ok(())
}

#[test]
fn refs_from_outside() -> Result<()> {
    setup();
    let r = new_ref(array([0.0f32, 1.0, 2.0]))?;
    let f = jit(|x: Array| -> Result<Array> {
        r.at(0).add(&x)?;
        Ok(r.get().sum(..))
    });
    fn values(r: &Ref) -> Result<Vec<f32>> {
        r.get().to_vec()
    }
    for (i, want) in [(1, 4.0f32), (2, 5.0)] {
        assert_eq!(f.call(array(1.0f32))?.item::<f32>()?, want);
        assert_eq!(values(&r)?, [i as f32, 1.0, 2.0]);
    }
    // A compiled function that another calls, a loop, and a gradient, for which it is plumbing.
    let _ = jit(|x: Array| f.apply((x,))).call(array(1.0f32))?;
    fori_loop(0, 3, |i, ()| r.at(i).set(5.0), ())?;
    assert_eq!(values(&r)?, [5.0; 3]);
    fn loss(x: Array, r: &Ref) -> Result<Array> {
        r.at(1).set(stop_gradient(x.sum(..)))?;
        Ok((&x * r.get()).sum(..))
    }
    close(&grad(|x: Array| loss(x, &r)).call(array([1.0f32, 2.0, 3.0]))?, &[5.0, 6.0, 5.0]);
    assert_eq!(values(&r)?, [5.0, 6.0, 5.0]);
    // One entry of a batch reads at its own index.
    close(&vmap(|i: Array| r.at(i).get() * 2).call(array([2, 1, 1]))?, &[10.0, 12.0, 12.0]);
    // A trace without a call does not write.
    let _ = eval_shape(|x: Array| loss(x, &r), zeros(3))?;
    assert_eq!(values(&r)?, [5.0, 6.0, 5.0]);
    assert_eq!(r.freeze().to_vec::<f32>()?, [5.0, 6.0, 5.0]);
    Ok(())
}

#[test]
fn refs_on_several_devices() -> Result<()> {
    setup();
    let mesh = make_mesh([("i", 8)])?;
    let x = arange(0..16).astype(DType::F32);
    let over = |f: fn(Array) -> Result<Array>| shard_map(f, &mesh).in_specs(P!["i"]).out_specs(P!["i"]);
    let sums = over(|x| {
        let r = new_ref(pcast(zeros(()), "i"))?;
        fori_loop(0, 2, |i, ()| r.add(x.get(i)), ())?;
        Ok(r.freeze().reshape(1))
    });
    close(&sums.call(&x)?, &x.reshape([8, 2]).sum(1).to_f64_vec()?);
    let error = over(|x| {
        let r = new_ref(zeros(2))?;
        r.set(&x)?;
        Ok(r.get())
    });
    says(error.call(&x), ErrorKind::Type, &["a value of type float32[2]{V:i} was written to a ref", "pcast(&x, axes)"]);
    // From outside it is read.
    let scaled = jit(|x: Array| -> Result<Array> {
        let r = new_ref(2.0f32)?;
        r.add(1.0)?;
        shard_map(|x: Array| x * r.get(), &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(x)
    });
    close(&scaled.call(&x)?, &(&x * 3.0).to_f64_vec()?);
    // Shardings in types.
    let typed = device_put(&x, &NamedSharding::new(&mesh.explicit(), P!["i"]))?;
    let doubled = jit(|x: Array| -> Result<Array> {
        let r = new_ref(&x)?;
        fori_loop(0, 2, |_, ()| r.set(r.get() + &x), ())?;
        assert_eq!(r.get().type_name(), "float32[16@i]");
        Ok(r.freeze())
    });
    close(&doubled.call(&typed)?, &(&x * 3.0).to_f64_vec()?);
    let written = jit(|x: Array| -> Result<Array> {
        let r = new_ref(2.0f32)?;
        shard_map(|x: Array| r.set(5.0).map(|()| x), &mesh).in_specs(P!["i"]).out_specs(P!["i"]).call(x)
    });
    says(written.call(&x), ErrorKind::Value, &["from outside of shard_map is written inside"]);
    Ok(())
}

fn says<T>(result: Result<T>, kind: ErrorKind, phrases: &[&str]) -> Error {
    let error = result.err().expect("an error");
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for phrase in phrases {
        assert!(text.contains(phrase), "{phrase:?} is not in: {text}");
    }
    let location = error.location().unwrap_or_else(|| panic!("no line: {error}"));
    assert!(location.file().ends_with("control_flow/refs.rs"), "{error}");
    error
}

#[test]
fn ref_errors_inside_and_outside_of_traces() -> Result<()> {
    setup();
    let x = array([1.0f32, 2.0, 3.0]);
    let fails = |f: &dyn Fn(Array, &Ref) -> Result<Array>, kind, phrases: &[&str]| -> Result<()> {
        // Inside of a traced function, and outside.
        says(jit(|x: Array| f(x.clone(), &new_ref(&x)?)).call(&x), kind, phrases);
        says(f(x.clone(), &new_ref(&x)?), kind, phrases);
        Ok(())
    };
    fn frozen(x: Array, r: &Ref) -> Result<Array> {
        let _ = r.freeze();
        r.set(x)?;
        Ok(r.get())
    }
    fails(&frozen, ErrorKind::Value, &["a ref of type float32[3] was used after it was frozen at", "refs.rs:"])?;
    fn integer(_: Array, r: &Ref) -> Result<Array> {
        r.at(0).set(array(1)).map(|()| r.get())
    }
    fails(&integer, ErrorKind::Type, &["takes a value of its dtype, got int32[]", "astype(DType::F32)"])?;
    fn wide(x: Array, r: &Ref) -> Result<Array> {
        r.at(s![..2]).set(x).map(|()| r.get())
    }
    fails(&wide, ErrorKind::Value, &["does not broadcast to the part of shape [2]"])?;
    fn far(_: Array, r: &Ref) -> Result<Array> {
        r.at(5).get().check().map(|()| r.get())
    }
    fails(&far, ErrorKind::Index, &["index 5 is out of bounds for a dimension of size 3"])?;
    fn mapped(x: Array, r: &Ref) -> Result<Array> {
        vmap(|x: Array| r.at(0).set(&x).map(|()| x)).call(x)
    }
    fails(&mapped, ErrorKind::Value, &["a ref of type float32[3] from outside of vmap is written inside of it"])?;
    fn differentiated(x: Array, r: &Ref) -> Result<Array> {
        grad(|x: Array| r.at(0).set(x.sum(..)).map(|()| x.sum(..))).call(x)
    }
    fails(&differentiated, ErrorKind::Value, &["a value that is differentiated was written", "stop_gradient"])?;
    // The rule would run instead, and not write.
    let rule = jit(|x: Array| -> Result<Array> {
        let r = new_ref(&x)?;
        let f = custom_jvp(|x: Array| r.set(2.0).map(|()| x)).defjvp(|(x,): (Array,), (t,): (Array,)| (x, t));
        f.call(x)
    });
    says(rule.call(&x), ErrorKind::Value, &["from outside of custom_jvp is written inside"]);
    // The backward pass would write again.
    fn recomputed(x: Array, r: &Ref) -> Result<Array> {
        grad(|x: Array| checkpoint(|x: Array| r.at(0).add(1.0).map(|()| x.sin().sum(..))).call(x)).call(x)
    }
    fails(&recomputed, ErrorKind::Value, &["from outside of checkpoint and its derivative is written inside"])?;
    fn kernel(x: Array, r: &Ref) -> Result<Array> {
        let copy = |[_, out]: [Ref; 2]| out.set(r.get());
        pl::pallas_call(copy, shape_dtype_struct([3], DType::F32)).call([x])
    }
    fails(&kernel, ErrorKind::Leak, &["from outside of a kernel was used in it"])?;
    fn inner(x: Array, r: &Ref) -> Result<Array> {
        jit(|x: Array| x + r.freeze()).call(x)
    }
    fails(&inner, ErrorKind::Value, &["was frozen inside of another function than the one that made it"])
}

#[test]
fn ref_errors_after_the_function_returned() -> Result<()> {
    setup();
    let x = array([1.0f32, 2.0, 3.0]);
    let leaked = std::cell::RefCell::new(None);
    let _ = jit(|x: Array| -> Result<Array> {
        leaked.replace(Some(new_ref(&x)?));
        Ok(x)
    })
    .call(&x)?;
    let leaked = leaked.into_inner().expect("a ref");
    says(leaked.get().check(), ErrorKind::Leak, &["was used after the function that made it had returned"]);
    says(jit(|x: Array| x + leaked.get()).call(&x), ErrorKind::Leak, &["r.freeze()"]);
    let count = new_ref(0)?;
    let lowered = jit(|x: Array| count.add(1).map(|()| x)).lower(x);
    says(lowered, ErrorKind::Value, &["uses a ref that was made outside of it, and cannot be lowered"]);
    Ok(())
}

#[test]
fn ref_prints_its_value_or_its_type() -> Result<()> {
    setup();
    let r = new_ref(zeros(3))?;
    r.at(1).add(2.0)?;
    assert_eq!(format!("{r} {r:.1} {r:?}"), "Ref([0. 2. 0.]) Ref([0.0 2.0 0.0]) Ref([0. 2. 0.], dtype=float32)");
    let traced = |x: Array| -> Result<Array> {
        let r = new_ref(&x)?;
        assert_eq!(format!("{r} {r:?}"), "Ref<float32[3]> Ref<float32[3]>");
        Ok(r.freeze())
    };
    let _ = jit(traced).call(zeros(3))?;
    Ok(())
}
