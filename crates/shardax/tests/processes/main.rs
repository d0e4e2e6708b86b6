//! Several processes: one job of each shape runs all cases, and each test looks at what its case did in every process.

mod arrays;
mod convert;
mod equal;
mod faults;
#[path = "../../../shardax-mpi/tests/common/mod.rs"]
mod launch;
mod maps;
mod programs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use launch::{CASE, job, launchers};
use shardax::prelude::*;

/// Processes, and devices of each.
const JOBS: [(usize, usize); 3] = [(2, 2), (4, 1), (4, 2)];
/// Where the processes of a job write what came of their cases, and find what they should compute.
const FOLDER: &str = "SHARDAX_TEST_FOLDER";

type Case = (&'static str, fn() -> Result<()>);

macro_rules! cases {
    ($( $module:ident { $( $name:ident )* } )*) => {
        const CASES: &[Case] = &[$( $( (stringify!($name), $module::$name), )* )*];
        $( $(
            #[test]
            fn $name() {
                passes(stringify!($name));
            }
        )* )*
    };
}

cases! {
    arrays {
        every_process_sees_all_devices
        test_array_2d_shard
        test_multi_process_to_py
        test_multi_process_repr
        test_device_put_python_scalar_different_error
        test_device_put_committed_array_error
        process_local_data_is_stitched
        local_data_of_another_shape_is_an_error_there_alone
        shapes_follow_from_shardings
        arrays_come_from_callbacks_and_parts
        arrays_are_resharded
    }
    convert {
        test_process_allgather_stacked
        gathered_one_after_the_other
        test_broadcast_one_to_all
        test_sync_global_devices_error
        test_host_local_array_to_global_array_same_sharding_array
        test_host_local_to_global_locally_replicated
        test_global_array_to_host_local_array
        test_host_local_array_to_global_array_none_error
        unequal_trees_are_told_of
        test_one_participant_never_calls_fails
    }
    maps {
        pmap_basic
        test_pmap_with_float0
        test_replicated_output_sharding_multi_process
        test_sharded_array_indexing
        test_psum_axis_index_groups
        pmap_takes_and_returns_host_local_arrays
        pmap_refuses_what_it_cannot_do
        pmap_donates
        compiled_ahead_of_time_pmap_takes_global_arrays
    }
    programs {
        test_all_to_all_shard_map
        test_closed_over_global_array
        test_numpy_input_error_with_non_trivial_sharding
        test_local_inputs_with_jax_array
        an_entry_is_sent_to_all_processes
        meshes_may_leave_processes_out
        programs_of_this_process_alone
        donation_and_gradients
        programs_are_found_on_disk
        many_launches_keep_their_order
        processes_that_do_not_agree_are_told
    }
    equal {
        programs_are_equal_bit_by_bit
        training_is_equal_bit_by_bit
    }
}

/// What a job's processes said of each case.
type Said = BTreeMap<String, Vec<String>>;

#[track_caller]
fn passes(case: &str) {
    static RUNS: [OnceLock<Vec<(PathBuf, Said)>>; JOBS.len()] = [const { OnceLock::new() }; JOBS.len()];
    for (run, (processes, devices)) in RUNS.iter().zip(JOBS) {
        let run =
            run.get_or_init(|| launchers().into_iter().map(|l| (l.clone(), start(&l, processes, devices))).collect());
        for (launcher, said) in run {
            let said = said.get(case).cloned().unwrap_or_default();
            let wrong: Vec<String> = (0..processes)
                .filter(|&rank| said.get(rank).map(String::as_str) != Some("ok"))
                .map(|rank| format!("process {rank}: {}", said.get(rank).map_or("did not come so far", String::as_str)))
                .collect();
            assert!(
                wrong.is_empty(),
                "{case} in {processes} processes of {devices} devices under {}:\n{}\n{}",
                launcher.display(),
                wrong.join("\n"),
                OUTPUT.get().map_or("", String::as_str)
            );
        }
    }
}

static OUTPUT: OnceLock<String> = OnceLock::new();

/// Runs all cases in a job.
fn start(launcher: &PathBuf, processes: usize, devices: usize) -> Said {
    let folder = std::env::temp_dir().join(format!("shardax-processes-{}-{processes}x{devices}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    equal::expected(&folder, processes * devices).unwrap();
    let variables = [
        (FOLDER, folder.to_str().unwrap()),
        ("SHARDAX_NUM_CPU_DEVICES", &devices.to_string()),
        ("SHARDAX_COMPILATION_CACHE_DIR", folder.join("cache").to_str().unwrap()),
        ("SHARDAX_COLLECTIVE_TIMEOUT", "30"),
        ("SHARDAX_COLLECTIVE_PATIENCE", "10"),
    ]
    .map(|(name, value)| (name, value.to_owned()));
    let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let outcome = job(launcher, &format!("cases-{processes}x{devices}"), processes, &variables);
    let mut said = Said::new();
    for rank in 0..processes {
        for line in std::fs::read_to_string(folder.join(rank.to_string())).unwrap_or_default().lines() {
            let (case, what) = line.split_once('\t').unwrap_or((line, ""));
            let all = said.entry(case.to_owned()).or_default();
            all.resize(rank, "did not come so far".to_owned());
            all.push(what.replace("\\n", "\n"));
        }
    }
    if !outcome.success {
        let _ = OUTPUT.set(outcome.text);
    }
    let _ = std::fs::remove_dir_all(&folder);
    said
}

/// What a process of a job does; nothing when the tests run.
#[test]
fn child() {
    let Ok(what) = std::env::var(CASE) else { return };
    if let Some(fault) = what.strip_prefix("fault-") {
        if let Err(error) = faults::child(fault) {
            eprintln!("{error}");
            std::process::exit(3);
        }
        return;
    }
    shardax::distributed::initialize().unwrap();
    let only = std::env::var("SHARDAX_TEST_ONLY").unwrap_or_default();
    let mut report = String::new();
    for (name, case) in CASES.iter().filter(|(name, _)| name.contains(&only)) {
        let outcome = std::panic::catch_unwind(case);
        let text = match outcome {
            Ok(Ok(())) => "ok".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
            }
        };
        report.push_str(&format!("{name}\t{}\n", text.replace('\n', "\\n")));
        std::fs::write(folder().join(process_index().to_string()), &report).unwrap();
    }
}

/// The folder of this process's job.
fn folder() -> PathBuf {
    Path::new(&std::env::var_os(FOLDER).unwrap()).to_owned()
}

/// Number of devices of each process.
fn each() -> usize {
    device_count() / process_count()
}

/// A mesh of one axis over all devices.
fn line() -> Result<Mesh> {
    make_mesh([("x", device_count())])
}

/// A mesh of processes and the devices of each.
fn grid() -> Result<Mesh> {
    make_mesh([("p", process_count()), ("d", each())])
}

/// `0, 1, 2, …` split over all devices.
fn counted(n: usize) -> Result<Array> {
    make_array_from_callback([n], DType::F32, &NamedSharding::new(&line()?, P!["x"]), |index| {
        Ok(arange(index[0].start as i32..index[0].end as i32).astype(DType::F32))
    })
}

/// The whole of an array, on this process.
fn read(array: &Array) -> Result<Vec<f32>> {
    shardax::multihost::process_allgather_tiled(array)?.to_vec()
}

#[track_caller]
fn fails<T>(result: Result<T>, with: &[&str]) {
    let error = result.err().expect("an error").to_string();
    for text in with {
        assert!(error.contains(text), "{text:?} is not in: {error}");
    }
}
