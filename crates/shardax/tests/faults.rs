//! Failures of XLA during a program, and the ends of threads that use it.

mod common;

use std::cell::RefCell;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use common::child;
use common::setup;
use shardax::prelude::*;
use shardax::{ErrorKind, config};

/// With a plugin that does not know an option: says which warnings came.
#[test]
#[ignore = "run by another test"]
fn multiplies() -> Result<()> {
    setup();
    let product = jit(|x: Array, y: Array| x.dot(&y)).call((ones([2, 3]), ones([3, 2])))?;
    assert_eq!(product.to_vec::<f32>()?, [3.0; 4]);
    assert_eq!((ones(4) + 1).to_vec::<f32>()?, [2.0; 4]);
    Ok(())
}

#[test]
fn a_precaution_that_the_plugin_does_not_know_is_warned_of() {
    let folder = child::Folder::new();
    let Some(plugin) = child::faulty_plugin(&folder.0) else { return };
    fn warnings(option: &str, plugin: &[(&str, std::path::PathBuf)]) -> Vec<String> {
        // Only a compilation warns, and a program that is found on disk is not compiled.
        let mut command = child::command("multiplies");
        command.envs(plugin.to_vec()).env("FAULTY_OPTION", option).env("SHARDAX_COMPILATION_CACHE_DIR", "");
        let ended = child::run(&mut command);
        ended
            .err
            .lines()
            .filter(|line| line.contains("does not know the option"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    }
    let messages = warnings("xla_cpu_use_xnnpack", &plugin);
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(
        messages[0].contains("matrix products may use the old contents of an array that was changed"),
        "{messages:?}"
    );
    let messages = warnings("xla_cpu_enable_fast_min_max", &plugin);
    assert!(messages.len() == 1 && messages[0].contains("may drop a NaN"), "{messages:?}");
    // What only costs time is left out without a word.
    for option in ["xla_cpu_experimental_ynn_fusion_type", "xla_cpu_use_fusion_emitters", "no_such_option"] {
        assert_eq!(warnings(option, &plugin), [""; 0], "{option}");
    }
}

/// A launch on several devices fails inside the plugin, which hangs in the next one. That one is rejected, and what is
/// made afterwards runs.
#[test]
#[ignore = "run by another test"]
fn fails_and_recovers() -> Result<()> {
    setup();
    let fault = std::env::var_os("FAULTY_LAUNCH").expect("set by the other test");
    let total = pmap(|x: Array| psum(x.sum(..), "i")).axis_name("i").out_axes(None);
    let x = arange(0..8 * 4096).reshape([8, 4096]).astype(DType::F32);
    let sum = (0..8 * 4096).map(|i| i as f64).sum::<f64>() as f32;
    let old = devices()?;
    let mesh = make_mesh([("i", 8)])?;
    let placed = device_put(&x, &NamedSharding::new(&mesh, P!["i"]))?;
    fn close(y: Array, sum: f32) -> Result<()> {
        y.item::<f32>().map(|y| assert!((y / sum - 1.0).abs() < 1e-5, "{y}"))
    }
    let placed_sum = jit(|x: Array| x.sum(..));
    close(placed_sum.call(&placed)?, sum)?;
    close(total.call(&placed)?, sum)?;

    for round in 0..2 {
        // By hand: whether the fault ends the process later, as a collective that waits for ever would.
        if let Some(seconds) = std::env::var("SHARDAX_TEST_FAULT_WAIT").ok().and_then(|text| text.parse().ok()) {
            std::thread::sleep(std::time::Duration::from_secs(seconds));
        }
        std::fs::write(&fault, "").expect("it can be written");
        let placed = device_put(&x, &NamedSharding::new(&make_mesh([("i", 8)])?, P!["i"]))?;
        let error = placed_sum.call(&placed).and_then(block_until_ready).err().expect("the launch fails");
        assert!(!std::path::Path::new(&fault).exists(), "the fault has come");
        assert_eq!(error.kind(), ErrorKind::Runtime);
        assert!(error.help_text().is_some_and(|help| help.contains("create meshes and arrays again")), "{error}");
        // Later calls that are for the old devices say so, compiled before or not.
        for result in [placed_sum.call(&placed), jit(|x: Array| x.sum(..) * 2).call(&placed)] {
            let text = result.and_then(block_until_ready).err().map(|e| e.to_string()).unwrap_or_default();
            assert!(text.contains("earlier multi-device execution failed inside the plugin"), "{text}");
            assert!(text.contains("create meshes and arrays again"), "{text}");
        }
        // What is there can be read; new arrays and programs run.
        assert_eq!(placed.to_vec::<f32>()?, x.to_vec::<f32>()?, "round {round}");
        assert_ne!(devices()?, old);
        let fresh = device_put(&placed, &NamedSharding::new(&make_mesh([("i", 8)])?, P!["i"]))?;
        close(total.call(&fresh)?, sum)?;
        close(placed_sum.call(&fresh)?, sum)?;
        close(total.call(arange(0..8 * 4096).reshape([8, 4096]).astype(DType::F32))?, sum)?;
        let doubled = jit(|x: Array| x * 2).call(ones([8, 4096]))?;
        assert_eq!(doubled.sum(..).item::<f32>()?, 2.0 * 8.0 * 4096.0);
    }
    Ok(())
}

#[test]
fn a_fault_that_the_client_does_not_survive_is_reported_and_a_new_client_runs() {
    let folder = child::Folder::new();
    let Some(plugin) = child::faulty_plugin(&folder.0) else { return };
    let mut command = child::command("fails_and_recovers");
    child::run(command.envs(plugin).env("FAULTY_LAUNCH", folder.0.join("fault")).env("SHARDAX_EXIT_SECONDS", "5"));
}

/// Computes when its thread ends, and sends the result.
struct Computes(Sender<Result<Vec<f32>>>);

impl Drop for Computes {
    fn drop(&mut self) {
        fn compute() -> Result<Vec<f32>> {
            let x = jit(|x: Array| vmap(|x: Array| x * 2).call(x)).call(ones(3) + 1)?;
            let (_, gradient) = value_and_grad(|x: Array| x.square().sum(..)).call(&x)?;
            let total = pmap(|x: Array| psum(x, "i")).axis_name("i").call(ones([8, 1]))?;
            (gradient + total.get(0)).to_vec()
        }
        self.0.send(compute()).expect("the test waits");
    }
}

thread_local! {
    static COMPUTES: RefCell<Option<Computes>> = const { RefCell::new(None) };
}

#[test]
fn thread_locals_can_compute_in_their_destructors() -> Result<()> {
    setup();
    let (send, receive) = channel();
    let thread = std::thread::spawn(move || -> Result<Vec<f32>> {
        // Before any local of the library, so that it is dropped after all of them.
        COMPUTES.with_borrow_mut(|computes| *computes = Some(Computes(send)));
        let mesh = make_mesh([("i", 8)])?;
        let _context = set_mesh(&mesh);
        jit(|x: Array| vmap(|x: Array| x + 1).call(x)).call(ones(3))?.to_vec()
    });
    assert_eq!(thread.join().expect("the thread does not panic")?, [2.0; 3]);
    assert_eq!(receive.recv().expect("it was dropped")?, [16.0; 3]);
    Ok(())
}

/// The array that a handler of `atexit` uses.
static USED_LATE: OnceLock<Array> = OnceLock::new();

extern "C" fn use_arrays_late() {
    let Some(x) = USED_LATE.get() else { return };
    println!("read: {:?}", x.to_vec::<f32>());
    println!("added: {:?}", (x + 1).to_vec::<f32>());
    println!("compiled: {:?}", jit(|x: Array| x * 3).call(x).and_then(|y| y.to_vec::<f32>()));
    println!("made: {:?}", array([7.0f32]).to_vec::<f32>());
    println!("deleted: {:?}", x.delete());
}

fn register_handler() {
    // SAFETY: the handler is a function of this program.
    assert_eq!(unsafe { libc::atexit(use_arrays_late) }, 0);
}

#[test]
#[ignore = "run by another test"]
fn handler_before_the_plugin() -> Result<()> {
    register_handler();
    setup();
    USED_LATE.set(ones(3) + 1).map_err(|x| shardax::Error::new(ErrorKind::Value, x.type_name()))?;
    Ok(())
}

#[test]
#[ignore = "run by another test"]
fn handler_after_the_plugin() -> Result<()> {
    setup();
    USED_LATE.set(ones(3) + 1).map_err(|x| shardax::Error::new(ErrorKind::Value, x.type_name()))?;
    block_until_ready(USED_LATE.get().expect("it is set"))?;
    register_handler();
    Ok(())
}

#[test]
fn arrays_in_handlers_of_atexit_are_values_or_errors() {
    // The handler that is registered first runs last, after destructors of the plugin.
    for (handler, phrase) in
        [("handler_before_the_plugin", ": Err(runtime error: "), ("handler_after_the_plugin", ": Ok(")]
    {
        let ended = child::run(child::command(handler).env("SHARDAX_EXIT_SECONDS", "5"));
        assert_eq!(ended.out.matches(phrase).count(), 5, "{handler}: {ended:?}");
    }
}

#[test]
fn more_devices_than_the_plugin_can_simulate_are_an_error() {
    let error = config::set_num_cpu_devices(100_000).err().expect("it is rejected");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.to_string().contains("100000 CPU devices are more than XLA can simulate"), "{error}");
    assert!(error.help_text().is_some_and(|help| help.contains("at most 2048")), "{error}");
}

/// A process of a slice whose plugin knows the others, without a launcher. The fake plugin has nobody there, so what
/// waits
/// for the others is seen at its launch.
#[test]
#[ignore = "run by another test"]
fn waits_on_devices() -> Result<()> {
    use shardax::{distributed, multihost};
    config::set_num_cpu_devices(4)?;
    assert_eq!((process_count(), process_index(), device_count(), local_device_count()), (2, 0, 4, 2));
    assert!(!distributed::initialize()?);
    // What is this process's own runs.
    assert_eq!((ones([3]) + 1.0).to_vec::<f32>()?, [2.0; 3]);
    let second = std::time::Duration::from_secs(1);
    for waited in [
        distributed::wait_at_barrier("a checkpoint", second),
        multihost::sync_global_devices("here"),
        multihost::assert_equal(&array(1), "differ"),
        multihost::broadcast_one_to_all(&array(1)).map(drop),
    ] {
        let error = waited.expect_err("the other process is not there").to_string();
        assert!(error.contains("a launch on 1 of 2 devices"), "{error}");
    }
    Ok(())
}

#[test]
fn hosts_of_a_slice_wait_for_each_other_on_their_devices() {
    let folder = child::Folder::new();
    let Some(plugin) = child::faulty_plugin(&folder.0) else { return };
    child::run(child::command("waits_on_devices").envs(plugin).env("FAULTY_SLICE", "1"));
}
