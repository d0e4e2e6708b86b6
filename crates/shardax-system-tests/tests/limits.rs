//! Extreme inputs: names of any characters, functions and trees nested deeply, guards dropped in any order,
//! and threads that trace while others compute.

#[path = "../../shardax/tests/common/mod.rs"]
mod common;

use std::rc::Rc;
use std::sync::mpsc::{channel, sync_channel};
use std::time::{Duration, Instant};

use common::quick::one_of;
use common::setup;
use shardax::clear_caches;
use shardax::prelude::*;
use shardax::shape::AxisName;

/// Not all of these can be written in a program's text.
const NAMES: [&str; 12] = [
    "größe",
    "名",
    "back\\slash",
    "quo\"te",
    "nul\0",
    "cr\r\nlf",
    "",
    " ",
    "%0",
    "@mesh",
    "axis_0",
    "e\u{301}\u{202e}",
];

#[test]
fn axis_names_of_any_characters() -> Result<()> {
    setup();
    let x = arange(0..8);
    for name in NAMES.into_iter().step_by(one_of(4)) {
        let total = pmap(move |x: Array| psum(x, name) + axis_index(name) * 0).axis_name(name);
        assert_eq!(total.call(&x)?.to_vec::<i32>()?, [28; 8], "{name:?}");

        // Next to an axis with the name that replaces other names.
        let other_name = if name == "axis_0" { "größe" } else { "axis_0" };
        let mesh = make_mesh([(name, 4), (other_name, 2)])?;
        let f = || {
            shard_map(move |x: Array| psum(x.square(), (name, other_name)).sum(..), &mesh)
                .in_specs(P![(name, other_name)])
                .out_specs(P![])
        };
        assert_eq!(jit(f()).call(&x)?.item::<i32>()?, 140, "{name:?}");
        let slope = jit(grad(f())).call(x.astype(DType::F32))?;
        assert_eq!(slope.to_vec::<f32>()?, (0..8).map(|i| 2.0 * i as f32).collect::<Vec<_>>(), "{name:?}");
        let collectives = jit(f()).lower(&x)?.compile()?.collectives()?;
        assert!(collectives.iter().any(|c| c.axes.contains(&AxisName::new(name))), "{collectives}");

        // One axis is left to the compiler, which writes the mesh another way.
        let half = shard_map(move |x: Array| psum(x, name) + axis_index(name), &mesh)
            .axis_names(name)
            .in_specs(P![name])
            .out_specs(P![name]);
        assert_eq!(jit(half).call(&x)?.shape(), [8]);
        let sharding = NamedSharding::new(&mesh, P![name]);
        let split = jit(move |x: Array| with_sharding_constraint(x * 2, &sharding)).call(&x)?;
        assert_eq!(split.sum(..).item::<i32>()?, 56);

        // Messages have the user's name.
        let unbound = jit(move |x: Array| psum(x, name)).call(&x).err().expect("an unbound name");
        assert!(unbound.message().contains(&format!("unbound axis name: {name}")), "{unbound}");
    }
    Ok(())
}

fn größe(x: Array) -> Array {
    checkpoint_name(x * 2, "\0\\größe\"")
}

#[test]
fn names_of_functions_values_and_options() -> Result<()> {
    setup();
    let lowered = jit(größe).lower(array(1.5f32))?;
    assert_eq!(lowered.compile()?.call(array(2.0f32))?.item::<f32>()?, 4.0);
    let policy = CheckpointPolicy::save_only_these_names(["\0\\größe\""]);
    assert_eq!(grad(checkpoint(größe).policy(policy)).call(1.0f32)?.item::<f32>()?, 2.0);
    for option in ["größe", "nul\0", "", "back\\slash"] {
        assert!(lowered.compile_with_options(&[(option, true.into())]).is_err(), "{option:?}");
    }
    assert!(config::update("größe\0", "1").is_err());
    Ok(())
}

type F = Rc<dyn Fn(Array) -> Result<Array>>;

/// `wrap` around `sin`, so many times.
fn nested(times: usize, wrap: impl Fn(F) -> F) -> F {
    (0..times).fold(Rc::new(|x: Array| Ok(x.sin())), |f, _| wrap(f))
}

#[test]
fn five_hundred_vmaps() -> Result<()> {
    setup();
    let f = nested(500, |f| {
        Rc::new(move |x: Array| {
            let f = f.clone();
            vmap(move |x: Array| f(x)).in_axes(None).out_axes(None).axis_size(2).call(x)
        })
    });
    assert_eq!(f(array(0.5f32))?.item::<f32>()?, 0.5f32.sin());
    let g = f.clone();
    assert_eq!(jit(move |x: Array| g(x)).call(array(0.5f32))?.item::<f32>()?, 0.5f32.sin());
    Ok(())
}

#[test]
fn a_thousand_jits() -> Result<()> {
    setup();
    let f = nested(1000, |f| {
        Rc::new(move |x: Array| {
            let f = f.clone();
            jit(move |x: Array| f(x)).call(x)
        })
    });
    assert_eq!(f(array(0.5f32))?.item::<f32>()?, 0.5f32.sin());
    let g = move |x: Array| f(x);
    assert_eq!(grad(&g).call(0.5f32)?.item::<f32>()?, 0.5f32.cos());
    assert_eq!(vmap(&g).call(array([0.5f32]))?.to_vec::<f32>()?, [0.5f32.sin()]);
    let program = make_program(&g, array(0.5f32))?;
    assert!(program.to_string().matches("jit[").count() >= 999);
    Ok(())
}

fn endless(x: Array) -> Result<Array> {
    jit(endless).call(x)
}

#[test]
fn recursion_without_end_is_an_error() {
    setup();
    let error = endless(array(1.0f32)).err().expect("no end");
    assert!(error.message().contains("maximum recursion depth exceeded"), "{error}");
}

#[derive(Tree, Clone)]
struct Node {
    x: Array,
    next: Option<Box<Node>>,
}

/// As much stack as a program's main thread has.
const MAIN_STACK: usize = 8 << 20;

fn on_stack(bytes: usize, f: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
    std::thread::Builder::new().stack_size(bytes).spawn(f).expect("a thread").join().expect("it does not panic")
}

#[test]
fn nested_functions_on_a_thread_with_a_small_stack() -> Result<()> {
    setup();
    // Without a larger stack, the search for the shardings of a program's inputs overflows.
    on_stack(256 << 10, || {
        let f = nested(500, |f| {
            Rc::new(move |x: Array| {
                let f = f.clone();
                jit(move |x: Array| f(x)).call(x)
            })
        });
        assert_eq!(f(array(0.5f32))?.item::<f32>()?, 0.5f32.sin());
        Ok(())
    })?;
    // Dropping the program does.
    on_stack(64 << 10, || {
        let f = nested(250, |f| {
            Rc::new(move |x: Array| {
                let f = f.clone();
                cond(x.greater(0), move |x: Array| f(x), |x: Array| Ok(x), x)
            })
        });
        let program = make_program(move |x: Array| f(x), array(0.5f32))?;
        assert_eq!(program.eqns().len(), 3);
        Ok(())
    })
}

fn second_element(list: Node) -> Array {
    list.next.map_or(array(0.0f32), |next| next.x) * 3.0
}

#[test]
fn a_list_of_ten_thousand_nodes() -> Result<()> {
    setup();
    on_stack(MAIN_STACK, || {
        let scalar = array(1.0f32);
        let list = (0..10_000).fold(None, |next, _| Some(Box::new(Node { x: scalar.clone(), next })));
        let list = *list.expect("nodes");
        let twice = tree::map(|x| x, list.clone())?;
        assert_eq!(tree::leaves(&twice).len(), 10_000);
        let paths = tree::leaves_with_path(&twice);
        assert_eq!((paths[0].0.as_str(), paths[2].0.as_str()), (".x", ".next.next.x"));
        assert_eq!(jit(second_element).call(&list)?.item::<f32>()?, 3.0);
        let mut other_list = list.clone();
        if let Some(next) = &mut other_list.next {
            next.next = None;
        }
        let error = tree::map2(|a, _| a, list, other_list).err().expect("other structures");
        assert!(error.message().contains("`.next.next`"), "{}", &error.message()[..200]);
        Ok(())
    })
}

#[test]
fn mesh_guards_dropped_out_of_order() -> Result<()> {
    setup();
    let meshes = [("a", 8), ("b", 4), ("c", 2)].map(|axis| make_mesh([axis]));
    let [a, b, c] = meshes;
    let (a, b, c) = (a?, b?, c?);
    let (first, second, third) = (set_mesh(&a)?, set_mesh(&b)?, set_mesh(&c)?);
    drop(second);
    assert_eq!(get_mesh(), Some(c));
    drop(third);
    assert_eq!(get_mesh(), Some(a.clone()));
    let last = set_mesh(&b)?;
    drop(first);
    assert_eq!(get_mesh(), Some(b));
    drop(last);
    assert_eq!(get_mesh(), None);
    Ok(())
}

/// While one thread traces, others trace, compile, run and clear: no lock is held for so long.
#[test]
fn nothing_waits_for_a_function_that_is_being_traced() -> Result<()> {
    setup();
    let (entered, is_inside) = channel();
    let (go_on, wait) = sync_channel::<()>(1);
    let wait = std::sync::Mutex::new(wait);
    // The function waits in its trace for a message, but only for arguments of size 3.
    let slow = std::sync::Arc::new(jit(move |x: Array| {
        if x.shape() == [3] {
            let _ = entered.send(());
            let _ = wait.lock().map(|wait| wait.recv_timeout(Duration::from_secs(60)));
        }
        x * 2
    }));
    let tracing = {
        let slow = slow.clone();
        std::thread::spawn(move || slow.call(ones(3))?.to_vec::<f32>())
    };
    is_inside.recv_timeout(Duration::from_secs(60)).expect("it is traced");
    // The work runs on a thread of its own, so that a lock that is held would fail the test instead of blocking it.
    let (done, is_done) = channel();
    std::thread::spawn(move || {
        let work = || -> Result<f32> {
            let y = slow.call(ones(5))? + array([0.0f32, 1.0, 2.0, 3.0, 4.0]);
            let g = grad(|x: Array| x.square().sum(..)).call(&y)?;
            clear_caches();
            slow.call(&g)?.sum(..).item::<f32>()
        };
        let _ = done.send(work());
    });
    let sum = is_done.recv_timeout(Duration::from_secs(60)).expect("nothing waits");
    assert_eq!(sum?, 80.0);
    let _ = go_on.send(());
    assert_eq!(tracing.join().expect("it does not panic")?, [2.0; 3]);
    Ok(())
}

/// Fused, each of the results recomputes values that others also need, which took the compiler half a minute.
/// The work before XLA gets a program does not grow faster than the program. (XLA's own may: docs/plugin.md.)
#[test]
fn a_gradient_of_a_chain_of_20_000_operations() -> Result<()> {
    setup();
    fn chain(x: Array) -> Array {
        (0..10_000).fold(x, |x, _| (x * 1.0001).sin()).sum(..)
    }
    let begun = Instant::now();
    let lowered = jit(grad(chain)).lower(ones(8))?;
    assert!(lowered.as_text().matches("stablehlo.cosine").count() >= 10_000);
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
    // One by one they are at most compiled once each.
    let begun = Instant::now();
    let y = (0..20_000).fold(ones(8), |x, _| x * 1.0001 + 0.1);
    y.block_until_ready()?;
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
    Ok(())
}

#[test]
fn a_gradient_of_250_scalars() -> Result<()> {
    setup();
    let xs: Vec<Array> = (0..250).map(|i| array(1.0 + i as f32 / 1e4)).collect();
    fn product(xs: Vec<Array>) -> Array {
        xs.into_iter().fold(array(1.0f32), |y, x| y * x)
    }
    let slopes = grad(product).call(&xs)?;
    let expected = (0..250).map(|i| 1.0 + f64::from(i) / 1e4).product::<f64>();
    for i in [0, 1, 100, 249] {
        let (slope, want) = (f64::from(slopes[i].item::<f32>()?), expected / (1.0 + i as f64 / 1e4));
        assert!((slope / want - 1.0).abs() < 1e-4, "{i}: {slope}, not {want}");
    }
    Ok(())
}

/// Asserts that the error says that memory ran out, and what to do.
fn assert_memory_error(error: shardax::Error) {
    let text = error.to_string();
    for phrase in ["bytes", "memory ran out", "checkpoint", "donate"] {
        assert!(text.contains(phrase), "{phrase} is missing in {text}");
    }
}

/// Memory that XLA cannot allocate is an error with its size and a fix; the process continues.
#[test]
fn memory_that_is_short_is_an_error_that_helps() -> Result<()> {
    setup();
    // 64 TiB, more than any address space that XLA is given.
    fn far(x: Array) -> Array {
        (x.broadcast_to([1usize << 44]) * 2).sort(0)
    }
    assert_memory_error(jit(far).call(array(1.0f32)).map(|y| y.block_until_ready()).and_then(|r| r).unwrap_err());
    let error = zeros([1usize << 50]).check().unwrap_err().to_string();
    assert!(error.contains("no memory for an array float32[1125899906842624] of 4503599627370496 bytes"), "{error}");
    assert!(error.contains("sharding"), "{error}");
    assert_eq!(jit(|x: Array| x * 2).call(array(2.0f32))?.item::<f32>()?, 4.0);
    Ok(())
}
