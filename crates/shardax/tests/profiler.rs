//! Contents of profiles in both formats. A process can run only one profile at a time, so some tests start child
//! processes.

mod common;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

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

/// Tests that record a profile, and those whose work would be in it, run one after the other.
static ALONE: Mutex<()> = Mutex::new(());

fn number_in(e: &Value, key: &str) -> f64 {
    e[key].as_f64().expect("a time")
}

#[test]
fn profiles_show_calls_and_devices() -> Result<()> {
    setup();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
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
    let _ = jit(|x: Array| x.sum(..)).call(&row)?;
    let files = profile.stop()?;

    let trace = unpacked(&files);
    let events = trace["traceEvents"].as_array().expect("events");
    fn named<'a>(name: &str, events: &'a [Value]) -> Vec<&'a Value> {
        events.iter().filter(|e| e["name"] == name && e["ph"] == "X").collect::<Vec<_>>()
    }
    assert_eq!(named("step \"1\"", events).len(), 1);
    let steps: Vec<&Value> = named("train", events).iter().map(|e| &e["args"]["step_num"]).collect();
    assert_eq!(steps, ["0", "1", "2"]);
    let runs = named("pmap_halve", events);
    let pids: std::collections::BTreeSet<i64> = runs.iter().filter_map(|e| e["pid"].as_i64()).collect();
    // The host, and eight devices that were all at work, three times each.
    assert_eq!(pids.into_iter().collect::<Vec<_>>(), (1..10).collect::<Vec<_>>());
    assert_eq!(runs.len(), 3 * 9);
    // On a device one program runs after the other.
    let of_device = |pid: i64| runs.iter().filter(move |e| e["pid"] == pid);
    for pid in 2..10 {
        let runs: Vec<&&Value> = of_device(pid).collect();
        for pair in runs.windows(2) {
            assert!(
                number_in(pair[0], "ts") + number_in(pair[0], "dur") <= number_in(pair[1], "ts") + 1e-2,
                "{pair:?}"
            );
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

    // A profile in memory is the same in both formats, and can be written.
    let session = profiler::ProfileSession::start()?;
    assert!(profiler::trace(&folder).is_err());
    let _ = f.call(&x)?;
    let data = session.stop()?;
    assert!(data.xplane().windows(10).any(|w| w == b"pmap_halve"));
    let exported = data.export(folder.join("exported"))?;
    assert_eq!(std::fs::read(&exported[1]).expect("the trace"), data.trace_json_gz());
    drop(profiler::ProfileOptions::new().host_tracer_level(1).session()?);

    // Nothing is recorded between profiles, and another one can be made.
    let _ = f.call(&x)?;
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

/// The folder in which a child process writes its profile.
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
        let _ = f.call(ones(4))?;
    }
    let profile = profiler::trace(folder)?;
    let _ = f.call(ones(4))?;
    profile.stop().map(drop)
}

/// Returns the files of a plugin's profile and the warnings; `None` without a C compiler.
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
    let result =
        std::fs::read_dir(out.join("plugins/profile")).expect("profiles").next().expect("one").expect("a folder");
    let files = std::fs::read_dir(result.path()).expect("files").map(|f| f.expect("a file").path());
    let files: Vec<PathBuf> = files.collect();
    let space = files.iter().find(|f| f.to_string_lossy().ends_with(".xplane.pb")).expect("the planes");
    Some((unpacked(&files), std::fs::read(space).expect("the file"), ended.err))
}

#[test]
fn profiles_contain_the_records_of_plugins() {
    for (recorder, first) in [("records", false), ("records", true), ("records into ours", false)] {
        let Some((trace, space, said)) = profiled(recorder, first) else { return };
        let events = trace["traceEvents"].as_array().expect("events");
        fn named<'a>(name: &str, events: &'a [Value]) -> Vec<&'a Value> {
            events.iter().filter(|e| e["name"] == name).collect::<Vec<_>>()
        }
        let kernel = named("gemm_fusion", events);
        let [kernel] = kernel[..] else { panic!("{events:?}") };
        assert_eq!(kernel["dur"].as_f64(), Some(5.0));
        // The line starts when it was asked for, after the run; the event is 2 µs later.
        let ran = named("halve", events)[0];
        assert!(kernel["ts"].as_f64() > ran["ts"].as_f64(), "{kernel} {ran}");
        fn metadata(what: &str, kernel: &Value, events: &[Value]) -> Option<Value> {
            let of_kernel = |e: &&Value| e["name"] == what && e["pid"] == kernel["pid"];
            events.iter().find(of_kernel).map(|e| e["args"]["name"].clone())
        }
        assert_eq!(metadata("process_name", kernel, events), Some(Value::from("/device:GPU:0")));
        assert_eq!(metadata("thread_name", kernel, events), Some(Value::from("Stream #7")));
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

/// The messages of a `pprof` profile that are read here, declared apart from the library's.
mod pprof {
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "2")]
        pub samples: Vec<Sample>,
        #[prost(message, repeated, tag = "4")]
        pub locations: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub functions: Vec<Numbers>,
        #[prost(string, repeated, tag = "6")]
        pub strings: Vec<String>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub locations: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub values: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub labels: Vec<Numbers>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(message, repeated, tag = "4")]
        pub lines: Vec<Numbers>,
    }

    /// A label (key, text), a line (function, line) or a function (number, name).
    #[derive(Clone, PartialEq, Message)]
    pub struct Numbers {
        #[prost(int64, tag = "1")]
        pub first: i64,
        #[prost(int64, tag = "2")]
        pub second: i64,
    }
}

/// The samples of a memory profile as `name labels count bytes`.
fn samples(packed: &[u8]) -> Vec<(String, Vec<String>, Vec<i64>)> {
    let mut raw = Vec::new();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut raw).expect("gzip");
    let profile = <pprof::Profile as prost::Message>::decode(raw.as_slice()).expect("a profile");
    let text = |at: i64| profile.strings[usize::try_from(at).expect("a number")].clone();
    let location_of = |sample: &pprof::Sample| {
        let location = profile.locations.iter().find(|l| l.id == sample.locations[0]).expect("a location");
        let function = profile.functions.iter().find(|f| f.first == location.lines[0].first).expect("a function");
        let labels = sample.labels.iter().map(|l| format!("{}={}", text(l.first), text(l.second))).collect();
        (text(function.second), labels, sample.values.clone())
    };
    profile.samples.iter().map(location_of).collect()
}

/// The number of arrays of this test that exist. Deleted, donated and dropped arrays do not count.
fn live_count() -> usize {
    shardax::live_arrays().iter().filter(|a| a.shape() == [64, 64]).count()
}

#[test]
fn memory_is_counted_by_line_device_and_program() -> Result<()> {
    setup();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    fn labels_of_device(i: usize) -> Vec<String> {
        vec!["kind=buffer".to_owned(), format!("device=cpu:{i}")]
    }

    fn squared(x: Array) -> Array {
        x.matmul(&x)
    }
    let split = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    let (f, before) = (jit(squared), line!());
    let x = zeros([64, 64]);
    let ys = [f.call(&x)?, f.call(&x)?];
    let z = device_put(&x, &split)?;
    let same = x.with_weak_type(true);
    let result = samples(&profiler::device_memory_profile()?);
    fn line_at(
        offset: u32,
        before: u32,
        result: &[(String, Vec<String>, Vec<i64>)],
    ) -> Vec<&(String, Vec<String>, Vec<i64>)> {
        let name = format!("profiler.rs:{}", before + offset);
        let mut result: Vec<_> = result.iter().filter(|(place, ..)| place.ends_with(&name)).collect();
        result.sort_by_key(|(_, labels, _)| labels.clone());
        result
    }
    // Memory that `x` and `same` share counts once.
    let (name, labels, values) = line_at(1, before, &result)[0];
    assert_eq!((labels, &values[..]), (&labels_of_device(0), &[1, 64 * 64 * 4][..]), "{name}");
    assert_eq!(line_at(2, before, &result).iter().map(|(_, _, v)| &v[..]).collect::<Vec<_>>(), [[2, 2 * 64 * 64 * 4]]);
    let shards = line_at(3, before, &result);
    assert_eq!(shards.len(), 8);
    for (i, (_, labels, values)) in shards.into_iter().enumerate() {
        assert_eq!((labels, &values[..]), (&labels_of_device(i), &[1, 8 * 64 * 4][..]));
    }
    let program = result.iter().find(|(name, ..)| name == "jit_squared" || name == "squared").expect("the program");
    assert_eq!(program.1, ["kind=executable"]);

    let file = std::env::temp_dir().join(format!("shardax-memory-test-{}.prof", std::process::id()));
    profiler::save_device_memory_profile(&file)?;
    assert!(!samples(&std::fs::read(&file).expect("the file")).is_empty());
    std::fs::remove_file(&file).ok();
    let error = profiler::save_device_memory_profile(file.join("below")).unwrap_err().to_string();
    assert!(error.contains("cannot write the memory profile to"), "{error}");

    assert_eq!(live_count(), 5);
    ys[0].delete()?;
    drop((same, z));
    assert_eq!(live_count(), 2);
    drop((x, ys));
    assert_eq!(live_count(), 0);
    Ok(())
}

/// The status and the content of an answer of the profiler's server.
fn asked(port: u16, request: &str) -> (String, Vec<u8>) {
    let mut client = std::net::TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    client.write_all(format!("{request}\r\nHost: localhost\r\n\r\n").as_bytes()).expect("it reads");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("it answers");
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    (head.lines().next().unwrap_or_default().to_owned(), answer[end + 4..].to_vec())
}

#[test]
fn a_server_records_profiles_on_request() -> Result<()> {
    setup();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    assert!(profiler::stop_server().unwrap_err().to_string().contains("No active profiler server."));
    let port = profiler::start_server(0)?;
    let error = profiler::start_server(port).unwrap_err().to_string();
    assert!(error.contains("Only one profiler server can be active at a time"), "{error}");
    let f = jit(halve);
    let x = block_until_ready(f.call(ones(4))?)?;
    let client = std::thread::spawn(move || asked(port, "GET /trace?ms=1000 HTTP/1.1"));
    while !client.is_finished() {
        f.call(&x)?.block_until_ready()?;
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let (status, content) = client.join().expect("no panic");
    assert_eq!(status, "HTTP/1.1 200 OK");
    let mut text = String::new();
    flate2::read::GzDecoder::new(content.as_slice()).read_to_string(&mut text).expect("packed text");
    let trace: Value = serde_json::from_str(&text).expect("JSON");
    let events = trace["traceEvents"].as_array().expect("events");
    assert!(events.iter().filter(|e| e["name"] == "halve").count() > 2, "{events:?}");

    assert!(!samples(&asked(port, "GET /memory HTTP/1.1").1).is_empty());
    assert_eq!(asked(port, "GET /xplane?ms=1 HTTP/1.1").0, "HTTP/1.1 200 OK");
    for (request, status) in [
        ("GET /nowhere HTTP/1.1", "HTTP/1.1 404 Not Found"),
        ("GET /trace?ms=0 HTTP/1.1", "HTTP/1.1 400 Bad Request"),
        ("POST /trace HTTP/1.1", "HTTP/1.1 400 Bad Request"),
    ] {
        assert_eq!(asked(port, request).0, status);
    }
    // A profile of annotations only. The server has no profile to return while it runs.
    let folder = child::Folder::new();
    let profile = profiler::ProfileOptions::new().host_tracer_level(1).device_tracer_level(0).trace(&folder.0)?;
    assert_eq!(asked(port, "GET /trace?ms=1 HTTP/1.1").0, "HTTP/1.1 409 Conflict");
    let annotation = profiler::annotate("mine");
    f.call(&x)?.block_until_ready()?;
    drop(annotation);
    let trace = unpacked(&profile.stop()?);
    let names: Vec<&Value> = trace["traceEvents"].as_array().expect("events").iter().map(|e| &e["name"]).collect();
    assert_eq!(names, ["process_name", "thread_name", "mine"]);
    profiler::stop_server()?;
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err());
    Ok(())
}

/// Clients that send nothing, or a byte now and then, keep neither others nor the end of the server waiting; a page of
/// the
/// web that takes this host's address under its own name is rejected.
#[test]
fn a_server_waits_for_no_client() -> Result<()> {
    setup();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let port = profiler::start_server(0)?;
    fn connect(port: u16) -> std::net::TcpStream {
        std::net::TcpStream::connect(("127.0.0.1", port)).expect("a connection")
    }
    let idle: Vec<_> = (0..60).map(|_| connect(port)).collect();
    let mut slow = connect(port);
    slow.write_all(b"GET /memory HTTP/1.1\r\nX").expect("it is sent");
    let begun = std::time::Instant::now();
    for host in ["localhost", "127.0.0.1:9012", "[::1]:9012"] {
        assert_eq!(asked(port, &format!("GET /nowhere HTTP/1.1\r\nHost: {host}")).0, "HTTP/1.1 404 Not Found");
    }
    for host in ["evil.example", "localhost.evil.example:9012", ""] {
        assert_eq!(asked(port, &format!("GET /memory HTTP/1.1\r\nhost: {host}")).0, "HTTP/1.1 403 Forbidden");
    }
    profiler::stop_server()?;
    assert!(begun.elapsed() < std::time::Duration::from_secs(5), "{:?}", begun.elapsed());
    drop(idle);
    Ok(())
}
