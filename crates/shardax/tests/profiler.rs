//! Profiles: what they show, in both formats. One at a time in a process, so that others are in processes of their own.

mod common;

use std::io::Read;
use std::path::PathBuf;

use common::{child, setup};
use serde_json::Value;
use shardax::prelude::*;
use shardax::profiler;

fn unpacked(files: &[PathBuf]) -> Value {
    let file = files.iter().find(|f| f.to_string_lossy().ends_with(".trace.json.gz")).expect("the trace");
    let mut text = String::new();
    let bytes = std::fs::read(file).expect("the file");
    flate2::read::GzDecoder::new(bytes.as_slice()).read_to_string(&mut text).expect("packed text");
    serde_json::from_str(&text).expect("JSON")
}

fn halve(x: Array) -> Array {
    x / 2
}

#[test]
fn profiles_show_calls_and_devices() -> Result<()> {
    setup();
    let folder = std::env::temp_dir().join(format!("shardax-profile-test-{}", std::process::id()));
    let f = pmap(halve);
    let mut x = f.call(ones([8, 256, 256]))?;

    let profile = profiler::trace(&folder)?;
    assert!(profiler::trace(&folder).unwrap_err().to_string().contains("Only one profile may be run at a time."));
    for i in 0..3 {
        let _train = profiler::step_trace_annotation("train", i);
        let _step = profiler::annotate(format!("step \"{i}\""));
        x = f.call(&x)?;
    }
    // What a program should not do in its loop can be seen: the devices communicate for one row.
    let row = x.get(0);
    jit(|x: Array| x.sum(..)).call(&row)?;
    let files = profile.stop()?;

    let trace = unpacked(&files);
    let events = trace["traceEvents"].as_array().expect("events");
    let named = |name: &str| events.iter().filter(|e| e["name"] == name && e["ph"] == "X").collect::<Vec<_>>();
    assert_eq!(named("step \"1\"").len(), 1);
    let steps: Vec<&Value> = named("train").iter().map(|e| &e["args"]["step_num"]).collect();
    assert_eq!(steps, ["0", "1", "2"]);
    let runs = named("pmap_halve");
    let pids: std::collections::BTreeSet<i64> = runs.iter().filter_map(|e| e["pid"].as_i64()).collect();
    // The host, and eight devices that were all at work, three times each.
    assert_eq!(pids.into_iter().collect::<Vec<_>>(), (1..10).collect::<Vec<_>>());
    assert_eq!(runs.len(), 3 * 9);
    // On a device one program runs after the other.
    let of_device = |pid: i64| runs.iter().filter(move |e| e["pid"] == pid);
    let time = |e: &Value, key: &str| e[key].as_f64().expect("a time");
    for pid in 2..10 {
        let runs: Vec<&&Value> = of_device(pid).collect();
        for pair in runs.windows(2) {
            assert!(time(pair[0], "ts") + time(pair[0], "dur") <= time(pair[1], "ts") + 1e-2, "{pair:?}");
        }
    }
    let devices: Vec<&Value> =
        events.iter().filter(|e| e["name"] == "process_name").map(|e| &e["args"]["name"]).collect();
    assert_eq!(devices.len(), 9);
    assert_eq!((devices[0], devices[8]), (&Value::from("host"), &Value::from("CpuDevice(id=7)")));
    let names: std::collections::BTreeSet<&str> = events.iter().filter_map(|e| e["name"].as_str()).collect();
    assert!(names.iter().any(|n| n.starts_with("compile ")), "{names:?}");
    assert!(names.contains("getitem"), "{names:?}");

    let space = std::fs::read(&files[0]).expect("the file");
    for text in ["/host:CPU", "/device:CpuDevice(id=0)", "pmap_halve", "step_num", "_r"] {
        assert!(space.windows(text.len()).any(|w| w == text.as_bytes()), "{text}");
    }

    // Nothing is recorded between profiles, and another one can be made.
    f.call(&x)?;
    let again = profiler::trace(&folder)?;
    let files = again.stop()?;
    assert_eq!(unpacked(&files)["traceEvents"].as_array().map(Vec::len), Some(1));
    profiler::start_trace(&folder)?;
    assert!(profiler::start_trace(&folder).is_err());
    assert_eq!(profiler::stop_trace()?.len(), 2);
    assert!(profiler::stop_trace().unwrap_err().to_string().contains("No profile started"));
    drop(profiler::trace(folder.join("another"))?);
    assert!(folder.join("another").exists());
    let blocked = folder.join("file");
    std::fs::write(&blocked, "").expect("a file");
    let error = profiler::trace(&blocked)?.stop().unwrap_err();
    assert!(error.to_string().contains("cannot write the profile below"), "{error}");
    std::fs::remove_dir_all(&folder).ok();
    Ok(())
}

/// Set where a child's profile starts before its plugin does.
const LATE: &str = "SHARDAX_TEST_PROFILE_FIRST";

/// Where a child writes its profile.
const FOLDER: &str = "SHARDAX_TEST_PROFILE";

#[test]
#[ignore = "run by another test"]
fn makes_a_profile() -> Result<()> {
    setup();
    let f = jit(halve);
    let folder = std::env::var_os(FOLDER).expect("set by the other test");
    // What is warned of may ask for the devices, wherever it comes from.
    shardax::config::set_warning_hook(|text| eprintln!("{text} {}", shardax::device_count()));
    if std::env::var_os(LATE).is_none() {
        f.call(ones(4))?;
    }
    let profile = profiler::trace(folder)?;
    f.call(ones(4))?;
    profile.stop().map(drop)
}

/// The files that a plugin's profile is in, and what was said meanwhile; `None` where there is no C compiler.
fn profiled(recorder: &str, first: bool) -> Option<(Value, Vec<u8>, String)> {
    let folder = child::Folder::new();
    let plugin = child::faulty_plugin(&folder.0)?;
    let out = folder.0.join("profile");
    let mut command = child::command("makes_a_profile");
    command.envs(plugin).env("FAULTY_PROFILER", recorder).env(FOLDER, &out);
    if first {
        command.env(LATE, "yes");
    }
    let ended = child::run(&mut command);
    let made =
        std::fs::read_dir(out.join("plugins/profile")).expect("profiles").next().expect("one").expect("a folder");
    let files = std::fs::read_dir(made.path()).expect("files").map(|f| f.expect("a file").path());
    let files: Vec<PathBuf> = files.collect();
    let space = files.iter().find(|f| f.to_string_lossy().ends_with(".xplane.pb")).expect("the planes");
    Some((unpacked(&files), std::fs::read(space).expect("the file"), ended.err))
}

#[test]
fn what_a_plugin_records_is_in_the_profile() {
    for (recorder, first) in [("records", false), ("records", true), ("records into ours", false)] {
        let Some((trace, space, said)) = profiled(recorder, first) else { return };
        let events = trace["traceEvents"].as_array().expect("events");
        let named = |name: &str| events.iter().filter(|e| e["name"] == name).collect::<Vec<_>>();
        let kernel = named("gemm_fusion");
        let [kernel] = kernel[..] else { panic!("{events:?}") };
        assert_eq!(kernel["dur"].as_f64(), Some(5.0));
        // The line starts when it was asked for, after the run; the event is 2 µs later.
        let ran = named("halve")[0];
        assert!(kernel["ts"].as_f64() > ran["ts"].as_f64(), "{kernel} {ran}");
        let metadata = |what: &str| {
            let of_kernel = |e: &&Value| e["name"] == what && e["pid"] == kernel["pid"];
            events.iter().find(of_kernel).map(|e| e["args"]["name"].clone())
        };
        assert_eq!(metadata("process_name"), Some(Value::from("/device:GPU:0")));
        assert_eq!(metadata("thread_name"), Some(Value::from("Stream #7")));
        // Behind what this library saw, without the zero at its end.
        assert!(space.windows(9).any(|w| w == b"/host:CPU") && space.ends_with(b"one event was dropped"));
        assert!(said.contains("the plugin's profiler reports: one event was dropped"), "{said}");
    }
}

#[test]
fn a_plugin_that_cannot_record_is_warned_of() {
    for (recorder, first, what) in
        [("fails", false, "start"), ("fails", true, "start"), ("fails at its end", false, "end")]
    {
        let Some((trace, _, said)) = profiled(recorder, first) else { return };
        assert!(said.contains(&format!("the plugin cannot {what} its own profile")), "{said}");
        assert!(said.contains("the counters are in use (in the plugin's profiler)"), "{said}");
        assert!(trace["traceEvents"].as_array().is_some_and(|events| events.iter().any(|e| e["name"] == "halve")));
    }
}
