//! Profiles: what they show, in both formats. One at a time in a process, so that this is a file with one test.

mod common;

use std::io::Read;
use std::path::PathBuf;

use common::setup;
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

// SPEC 184, 187
#[test]
fn profiles_show_calls_and_devices() -> Result<()> {
    setup();
    let folder = std::env::temp_dir().join(format!("shardax-profile-test-{}", std::process::id()));
    let f = pmap(halve);
    let mut x = f.call(ones([8, 256, 256]))?;

    let profile = profiler::trace(&folder)?;
    assert!(profiler::trace(&folder).unwrap_err().to_string().contains("Only one profile may be run at a time."));
    for i in 0..3 {
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
    for text in ["/host:CPU", "/device:CpuDevice(id=0)", "pmap_halve"] {
        assert!(space.windows(text.len()).any(|w| w == text.as_bytes()), "{text}");
    }

    // Nothing is recorded between profiles, and another one can be made.
    f.call(&x)?;
    let again = profiler::trace(&folder)?;
    let files = again.stop()?;
    assert_eq!(unpacked(&files)["traceEvents"].as_array().map(Vec::len), Some(1));
    drop(profiler::trace(folder.join("another"))?);
    assert!(folder.join("another").exists());
    let blocked = folder.join("file");
    std::fs::write(&blocked, "").expect("a file");
    let error = profiler::trace(&blocked)?.stop().unwrap_err();
    assert!(error.to_string().contains("cannot write the profile below"), "{error}");
    std::fs::remove_dir_all(&folder).ok();
    Ok(())
}
