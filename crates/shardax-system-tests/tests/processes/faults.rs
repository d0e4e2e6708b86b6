//! Faults end within their time limit, in every process, with an error that names the cause.

use std::time::{Duration, Instant};

use shardax::{ErrorKind, io_callback, pure_callback};

use crate::launch::Outcome;
use crate::*;

/// Runs one fault in a job of its own; `bound` says how many seconds it may take.
#[track_caller]
fn fault(name: &str, processes: usize, bound: u64, variables: &[(&str, &str)], look: impl Fn(&Outcome)) {
    for launcher in launchers() {
        let outcome = job(&launcher, &format!("fault-{name}"), processes, variables);
        let took = outcome.took;
        println!("{name} under {} took {took:?}:\n{}", launcher.display(), outcome.text);
        assert!(took < Duration::from_secs(bound), "{name} took {took:?}:\n{}", outcome.text);
        look(&outcome);
    }
}

#[track_caller]
fn says(outcome: &Outcome, texts: &[&str]) {
    for text in texts {
        assert!(outcome.text.contains(text), "{text:?} is not in:\n{}", outcome.text);
    }
}

/// A sum over the devices of all processes.
fn sum() -> Result<Array> {
    jit(|x: Array| x.sum(..)).call(&counted(device_count())?)
}

/// The program of a process whose job has a fault.
pub fn child(what: &str) -> Result<()> {
    if what == "late_start" {
        arange(0..2).block_until_ready()?;
        println!("[{}]", shardax::distributed::initialize().unwrap_err());
        return Ok(());
    }
    if what == "alone" {
        return arange(0..2).block_until_ready();
    }
    if what == "gpus" {
        let error = shardax::distributed::initialize().and_then(|_| devices().map(drop)).unwrap_err();
        println!("[{error}]");
        return Ok(());
    }
    if what == "uneven" {
        let rank = ["OMPI_COMM_WORLD_RANK", "PMI_RANK"].iter().find_map(|name| std::env::var(name).ok());
        config::set_num_cpu_devices(1 + 2 * rank.unwrap().parse::<usize>().unwrap())?;
    }
    let mut options = shardax::distributed::Options::default();
    if what == "orders" && std::env::var("OMPI_COMM_WORLD_RANK").or(std::env::var("PMI_RANK")).unwrap() == "1" {
        options = options.sum_order(shardax::distributed::SumOrder::Fast);
    }
    if let Err(error) = options.initialize() {
        println!("[{error}]");
        std::process::exit(7);
    }
    let (rank, total) = (process_index(), (device_count() * (device_count() - 1) / 2) as f32);
    assert_eq!(sum()?.item::<f32>()?, total);
    match what {
        "killed" => {
            if rank == 1 {
                // As by the system, when memory is short.
                let process_id = std::process::id().to_string();
                std::process::Command::new("kill").args(["-9", &process_id]).status().unwrap();
            }
            sum()?.block_until_ready()?;
        }
        "fails" if rank == 1 => return Err(shardax::Error::new(ErrorKind::Value, "the data set is not here")),
        "panics" if rank == 1 => panic!("something else"),
        "fails" | "panics" => sum()?.block_until_ready()?,
        "finishes" if rank == 0 => {
            let error = sum()?.block_until_ready().unwrap_err();
            println!("[0: {error}]");
            return Err(error);
        }
        "finishes" => {}
        "swapped" => {
            let (f, g) = (jit(|x: Array| x.sum(..) + 1.0), jit(|x: Array| x.max(..) * 2.0));
            let x = counted(device_count())?;
            f.call(&x)?.block_until_ready()?;
            g.call(&x)?.block_until_ready()?;
            let first = if rank == 0 { f.call(&x) } else { g.call(&x) };
            let error = first.and_then(|y| y.block_until_ready()).unwrap_err();
            println!("[{rank}: {error}]");
            // It stays so.
            assert!(f.call(&x).and_then(|y| y.block_until_ready()).is_err());
            assert!(jit(|x: Array| x.min(..)).call(&x).is_err());
            // Computations that need only this process still work.
            assert_eq!(arange(0..4).sum(..).item::<i32>()?, 6);
            return Err(error);
        }
        "apart" | "compiles" => {
            let x = counted(device_count())?;
            let sum = jit(|x: Array| x.sum(..));
            let groups = jit(shard_map(|x: Array| psum(x, "p"), &grid()?).in_specs(P![("p", "d")]).out_specs(P!["d"]));
            let x = device_put(&x, &NamedSharding::new(&grid()?, P![("p", "d")]))?;
            groups.call(&x)?.block_until_ready()?;
            for _ in 0..40 {
                let _ = sum.call(&x)?;
            }
            let _ = groups.call(&x)?;
            sum.call(&x)?.block_until_ready()?;
            let begun = Instant::now();
            let error = match (rank, what) {
                (0, _) => sum.call(&x),
                (_, "apart") => groups.call(&x),
                (_, _) => jit(|x: Array| x.max(..)).call(&x),
            };
            let error = error.and_then(|y| y.block_until_ready()).unwrap_err();
            println!("[{rank} after {} s: {error}]", begun.elapsed().as_secs() / 15 * 15);
            return Err(error);
        }
        "callback" | "callback_before" | "callback_of_own" => {
            let reads = pure_callback(
                move |args, results| match args[0].item::<f32>()? {
                    x if rank == 1 && x == 2.0 => Err(shardax::Error::new(ErrorKind::Value, "the disk is full")),
                    x => results[0].write([x]),
                },
                shape_dtype_struct([1], DType::F32),
            );
            let writes = io_callback(
                move |_, _| {
                    println!("[{rank} wrote]");
                    Ok(())
                },
                (),
            );
            let continued = move |x: Array| -> Result<Array> {
                let sum = psum(x, "x");
                writes.call(&sum)?;
                Ok(sum)
            };
            let mesh = line()?;
            let x = counted(device_count())?;
            let begun = Instant::now();
            let y = if what == "callback" {
                let f = move |x: Array| continued(reads.call(x)?);
                jit(shard_map(f, &mesh).in_specs(P!["x"]).out_specs(P![])).call(&x)
            } else if what == "callback_of_own" {
                let local_result = jit(move |x: Array| reads.call(x)).call(array([2.0f32]))?;
                jit(|x: Array, local_result: Array| (x * local_result).sum(..)).call((&x, &local_result))
            } else {
                let local_result =
                    jit(shard_map(move |x: Array| reads.call(x), &mesh).in_specs(P!["x"]).out_specs(P!["x"]));
                let y = local_result.call(&x)?;
                let failed = y.block_until_ready();
                assert_eq!(failed.is_err(), rank == 1, "only the process itself knows: {failed:?}");
                jit(shard_map(continued, &mesh).in_specs(P!["x"]).out_specs(P![])).call(&y)
            };
            let error = y.and_then(|y| y.block_until_ready()).unwrap_err();
            println!("[{rank} after {} s: {error}]", begun.elapsed().as_secs() / 15 * 15);
            // From now on the processes run no common program, and each continues by itself.
            fails(sum().and_then(|y| y.block_until_ready()), &["the disk is full"]);
            assert_eq!(arange(0..4).sum(..).item::<i32>()?, 6);
            // All of them have the error before the first ends the job.
            std::thread::sleep(Duration::from_secs(3));
            return Err(error);
        }
        "late" => {
            if rank == 1 {
                std::thread::sleep(Duration::from_secs(3));
            }
            assert_eq!(sum()?.item::<f32>()?, total);
            println!("[{rank} has it]");
        }
        "uneven" => {
            assert_eq!((device_count(), local_device_count()), (4, 1 + 2 * rank));
            let local = arange(0..(2 * local_device_count()) as i32);
            let sharding = NamedSharding::new(&line()?, P!["x"]);
            fails(
                make_array_from_process_local_data(&sharding, &local),
                &["is not uniform over processes in dimension 0"],
            );
            let x = make_array_from_process_local_data_of_shape(&sharding, &local, [Some(8)])?;
            let f = shard_map(|x: Array| (psum(x.clone(), "x"), all_gather(x, "x", 0).sum(0)), &line()?);
            let (sum, same) = f.in_specs(P!["x"]).out_specs((P![], P!["x"])).call(&x)?;
            assert_eq!(sum.to_vec::<i32>()?, [6, 10]);
            assert_eq!(same.addressable_data(0)?.to_vec::<i32>()?, [6, 10]);
            fails(pmap(|x: Array| x).call(&local), &["pmap requires the same number of devices on every process"]);
            println!("[{rank} is right]");
        }
        "steps" => {
            // The first call has compiled it everywhere.
            let f = jit(|x: Array| x.clone() - x.sum(..) / x.size() as f32 + 1.0);
            let mut x = f.call(&counted(device_count())?)?;
            println!("[{rank} begins]");
            let begun = Instant::now();
            for _ in 0..60 {
                std::thread::sleep(Duration::from_millis(50));
                x = f.call(&x)?;
                x.block_until_ready().inspect_err(|error| println!("[{rank}: {error}]"))?;
            }
            assert!(begun.elapsed() > Duration::from_secs(3));
            assert_eq!(read(&x)?.iter().sum::<f32>(), device_count() as f32);
            println!("[{rank} is right]");
        }
        "fast" => {
            let mesh = line()?;
            let f = jit(shard_map(|x: Array| psum(x, "x"), &mesh).in_specs(P!["x"]).out_specs(P![]));
            // In the order of devices: ((1e8 + 1) - 1e8) + 1 is 1.
            let x = make_array_from_callback([4], DType::F32, &NamedSharding::new(&mesh, P!["x"]), |index| {
                Ok(array([[1e8f32, 1.0, -1e8, 1.0][index[0].start]]))
            })?;
            println!("[{rank} has {:?}]", f.call(&x)?.to_vec::<f32>()?);
            for n in [100, 200_003] {
                let values = random::normal(&random::key(7), [4, n]);
                let split = device_put(&values, &NamedSharding::new(&mesh, P!["x"]))?;
                let (got, close) = (f.call(&split)?.squeeze(0), values.sum(0));
                assert!((got.addressable_data(0)? - close).abs().max(..).item::<f32>()? < 1e-5);
            }
        }
        "leaves" => {
            let f = jit(|x: Array| x.sum(..));
            let x = counted(device_count())?;
            f.call(&x)?.block_until_ready()?;
            shardax::distributed::shutdown()?;
            shardax::distributed::shutdown()?;
            let expected = "this process has left the others";
            fails(f.call(&x).and_then(|y| y.block_until_ready()), &[expected]);
            fails(shardax::distributed::wait_at_barrier("late", Duration::from_secs(1)), &[expected]);
            fails(sum().and_then(|y| y.block_until_ready()), &[expected]);
            assert_eq!(arange(0..4).sum(..).item::<i32>()?, 6);
            println!("[{rank} is right]");
        }
        other => panic!("no fault {other}"),
    }
    Ok(())
}

const QUICK: [(&str, &str); 3] =
    [("SHARDAX_COLLECTIVE_TIMEOUT", "4"), ("SHARDAX_COLLECTIVE_PATIENCE", "1"), ("SHARDAX_NUM_CPU_DEVICES", "1")];

#[test]
fn a_killed_process_ends_the_job() {
    fault("killed", 3, 20, &[], |outcome| {
        assert!(!outcome.success);
        // Open MPI names the process.
        if outcome.text.contains("mpirun noticed") {
            says(outcome, &["process rank 1 with PID ", "exited on signal 9"]);
        }
    });
}

#[test]
fn a_process_that_fails_ends_the_job() {
    fault("fails", 2, 20, &[], |outcome| {
        assert!(!outcome.success);
        says(outcome, &["the data set is not here"]);
    });
}

#[test]
fn a_process_that_panics_ends_the_job() {
    fault("panics", 2, 20, &[], |outcome| {
        assert!(!outcome.success);
        says(outcome, &["something else"]);
    });
}

#[test]
fn a_process_that_finishes_early_is_named() {
    fault("finishes", 2, 25, &QUICK, |outcome| {
        assert!(!outcome.success);
        says(
            outcome,
            &["process 1 has finished and waits for the others", "processes [1] have not reached call 0 of `"],
        );
        says(outcome, &["[0: ", "within 4s processes [1] have not reached"]);
    });
}

#[test]
fn programs_in_another_order_are_an_error_on_all() {
    fault("swapped", 2, 25, &QUICK, |outcome| {
        assert!(!outcome.success);
        says(outcome, &["[0: ", "process 1 is at call 0 of `", "[1: ", "process 0 is at call 0 of `"]);
        says(outcome, &["all processes must run the same computations in the same order"]);
    });
}

/// They wait in different groups of devices, or at a compilation, and would until the time limit.
#[test]
fn processes_that_wait_at_different_computations_fail_at_once() {
    let two = [("SHARDAX_NUM_CPU_DEVICES", "2")];
    fault("apart", 2, 40, &two, |outcome| {
        assert!(!outcome.success);
        says(outcome, &["[0 after 0 s: ", "process 1 is at `", "[1 after 0 s: ", "process 0 is at `"]);
        says(outcome, &["all processes must run the same computations in the same order"]);
    });
    fault("compiles", 2, 40, &two, |outcome| {
        assert!(!outcome.success);
        says(
            outcome,
            &["[0 after 0 s: ", "process 1 is at the compilation of `", "[1 after 0 s: ", "process 0 is at `"],
        );
    });
}

/// The other processes must not compute with zeros in place of its values.
#[test]
fn a_callback_that_fails_on_one_process_is_an_error_on_all() {
    fn fails(case: &str) {
        fault(case, 3, 30, &[("SHARDAX_NUM_CPU_DEVICES", "2"), ("SHARDAX_COLLECTIVE_TIMEOUT", "60")], |outcome| {
            assert!(!outcome.success);
            assert!(!outcome.text.contains("wrote]"), "{}", outcome.text);
            says(outcome, &["[0 after 0 s: ", "[1 after 0 s: ", "[2 after 0 s: "]);
            for rank in [0, 2] {
                let from = outcome.text.split(&format!("[{rank} after 0 s: ")).nth(1).unwrap();
                let error = from.split(']').next().unwrap();
                for text in ["the host function processes::faults::child::", "on process 1", "the disk is full"] {
                    assert!(error.contains(text), "{text:?} is not in:\n{error}");
                }
            }
        });
    }
    // Each of them mostly waits.
    std::thread::scope(|scope| {
        for case in ["callback", "callback_before", "callback_of_own"] {
            scope.spawn(move || fails(case));
        }
    });
}

#[test]
fn a_late_process_is_named_and_waited_for() {
    let patient = [("SHARDAX_COLLECTIVE_TIMEOUT", "60"), ("SHARDAX_COLLECTIVE_PATIENCE", "1")];
    fault("late", 2, 30, &patient, |outcome| {
        assert!(outcome.success, "{}", outcome.text);
        says(outcome, &["processes [1] have not reached call 0 of `lambda", "for 1 s", "[0 has it]", "[1 has it]"]);
    });
}

#[test]
fn processes_may_have_different_numbers_of_devices() {
    fault("uneven", 2, 30, &[], |outcome| {
        assert!(outcome.success, "{}", outcome.text);
        says(outcome, &["[0 is right]", "[1 is right]"]);
    });
}

/// With `SumOrder::Fast` the order of additions shows in the last bits; by default it does not.
#[test]
fn sums_may_be_made_process_by_process() {
    for (order, result) in [("exact", "[1.0]"), ("fast", "[0.0]")] {
        fault("fast", 2, 30, &[("SHARDAX_SUM_ORDER", order), ("SHARDAX_NUM_CPU_DEVICES", "2")], |outcome| {
            assert!(outcome.success, "{}", outcome.text);
            says(outcome, &[&format!("[0 has {result}]"), &format!("[1 has {result}]")]);
        });
    }
}

#[test]
fn sums_in_different_orders_are_an_error() {
    fault("orders", 2, 30, &[], |outcome| {
        assert!(!outcome.success);
        says(outcome, &["process 1 runs shardax ", "and sums in the order Fast", "and sums in the order Exact"]);
    });
}

#[test]
fn nothing_is_exchanged_after_leaving() {
    fault("leaves", 2, 30, &[], |outcome| {
        assert!(outcome.success, "{}", outcome.text);
        says(outcome, &["[0 is right]", "[1 is right]"]);
    });
}

#[test]
fn joining_after_devices_are_in_use_is_an_error() {
    fault("late_start", 2, 20, &[], |outcome| {
        says(outcome, &["must be called before any computations are executed: 1 devices are in use already"]);
    });
}

/// On GPUs the plugin connects the processes. They join, and continue until the plugin needs a GPU.
#[test]
fn gpus_are_asked_for_by_every_process() {
    let (variable, member) = ("SHARDAX_CUDA_PLUGIN", "accelerators/jax_plugins/xla_cuda12/xla_cuda_plugin.so");
    let fetched = || shardax_pjrt::Environment::from_process().cache_folder().map(|cache| cache.join(member));
    let plugin = std::env::var_os(variable).map(PathBuf::from).or_else(fetched).filter(|path| path.is_file());
    let (path, wanted) = match &plugin {
        Some(path) => (path.to_str().unwrap(), "No visible GPU devices"),
        None => ("/nowhere/xla_cuda_plugin.so", "/nowhere/xla_cuda_plugin.so"),
    };
    fault("gpus", 2, 60, &[("SHARDAX_PLATFORM", "cuda"), (variable, path)], |outcome| {
        assert!(outcome.text.matches(wanted).count() >= 2, "not twice {wanted:?} in:\n{}", outcome.text);
    });
}

#[test]
fn a_process_that_does_not_join_is_reported() {
    fault("alone", 2, 20, &[], |outcome| {
        assert!(outcome.success, "{}", outcome.text);
        says(
            outcome,
            &[
                "this is process 1 of 2 started by mpirun",
                "and it runs without the other processes",
                "distributed::initialize()",
            ],
        );
    });
}

#[test]
fn a_library_that_is_not_there_is_an_error() {
    fault("library", 2, 20, &[("SHARDAX_MPI_LIBRARY", "/nowhere/libmpi.so.40")], |outcome| {
        assert!(!outcome.success);
        says(outcome, &["[plugin error: this process is 1 of 2 started by mpirun", "/nowhere/libmpi.so.40"]);
    });
}

/// Needs a second MPI: `SHARDAX_TEST_OTHER_MPI` names its library.
#[test]
fn a_library_of_another_mpi_is_an_error() {
    let Some(library) = std::env::var_os("SHARDAX_TEST_OTHER_MPI") else { return };
    fault("library", 2, 20, &[("SHARDAX_MPI_LIBRARY", library.to_str().unwrap())], |outcome| {
        assert!(!outcome.success);
        says(outcome, &["belongs to another MPI than the launcher", "SHARDAX_MPI_LIBRARY"]);
    });
}
