//! Programs over several processes must return the same bits as the plugin's collectives in one process.

#[path = "../../shardax-mpi/tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{CASE, job, launchers};
use shardax_exchange::{Exchange, SumOrder};
use shardax_mpi::{Launcher, Search, World};
use shardax_pjrt::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};

/// The number of devices in the job.
const DEVICES: usize = 4;
const FOLDER: &str = "SHARDAX_TEST_FOLDER";
const MANY: &str = include_str!("../../shardax-pjrt/tests/localize/collectives.mlir");

/// A program over four devices, with the type and shape of its parameter on each.
struct Case {
    name: &'static str,
    text: String,
    ty: ElementType,
    dims: Vec<i64>,
}

/// `op` over the devices of each group, with `n` elements on each device.
fn reduction(name: &'static str, ty: ElementType, op: &str, n: i64, groups: &str) -> Case {
    let (t, total) = (ty.mlir_name(), n * DEVICES as i64);
    let rank = if groups.contains("], [") { "2x2" } else { "1x4" };
    let text = format!(
        "module attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
        sdy.mesh @mesh = <[\"i\"=4]>
        func.func @main(%x: tensor<{total}x{t}> {{sdy.sharding = #sdy.sharding<@mesh, [{{\"i\"}}]>}})
            -> (tensor<{total}x{t}> {{sdy.sharding = #sdy.sharding<@mesh, [{{\"i\"}}]>}}) {{
          %r = sdy.manual_computation(%x) in_shardings=[<@mesh, [{{\"i\"}}]>] out_shardings=[<@mesh, [{{\"i\"}}]>]
              manual_axes={{\"i\"}} (%s: tensor<{n}x{t}>) {{
            %t = \"stablehlo.all_reduce\"(%s) <{{replica_groups = dense<{groups}> : tensor<{rank}xi64>,
              channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}}> ({{
              ^bb0(%a: tensor<{t}>, %b: tensor<{t}>):
                %c = stablehlo.{op} %a, %b : tensor<{t}>
                stablehlo.return %c : tensor<{t}>
              }}) : (tensor<{n}x{t}>) -> tensor<{n}x{t}>
            sdy.return %t : tensor<{n}x{t}>
          }} : (tensor<{total}x{t}>) -> tensor<{total}x{t}>
          return %r : tensor<{total}x{t}>
        }}
        }}"
    );
    Case { name, text, ty, dims: vec![n] }
}

fn cases() -> Vec<Case> {
    use ElementType::*;
    let one_group = "[[0, 1, 2, 3]]";
    vec![
        Case { name: "many", text: MANY.to_owned(), ty: F32, dims: vec![4, 8] },
        reduction("sum_f32", F32, "add", 1000, one_group),
        // Larger than the limit for sums in every process, and not divisible by the number of devices.
        reduction("sum_large", F32, "add", 50_021, one_group),
        // Several rounds.
        reduction("sum_larger", F32, "add", 400_009, one_group),
        reduction("sum_in_another_order", F32, "add", 1000, "[[2, 0, 3, 1]]"),
        reduction("product_f64", F64, "multiply", 777, one_group),
        reduction("sum_bf16", Bf16, "add", 1000, one_group),
        reduction("sum_f16", F16, "add", 1000, one_group),
        reduction("sum_s32", S32, "add", 1000, one_group),
        reduction("product_u8", U8, "multiply", 1000, one_group),
        reduction("maximum_f32", F32, "maximum", 1000, one_group),
        reduction("minimum_in_pairs", F32, "minimum", 1000, "[[0, 3], [1, 2]]"),
        reduction("or_pred", Pred, "or", 1000, "[[0, 1], [2, 3]]"),
    ]
}

/// The generator of the inputs: xorshift.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The input of a device: numbers of many magnitudes, with zeros of both signs and infinities.
fn input(case: &Case, device: usize) -> Vec<u8> {
    let count = case.dims.iter().product::<i64>() as usize;
    let mut generator = Random(0x9e37_79b9_7f4a_7c15u64 ^ (device as u64 + 1) << 32);
    let mut bytes = Vec::new();
    for i in 0..count {
        let random = generator.next();
        let magnitude = [1e-3f32, 1.0, 37.0, 1e4][(random % 4) as usize];
        let mut x = ((random >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * magnitude;
        match i % 50 {
            0 => x = 0.0,
            1 => x = -0.0,
            2 => x = [0.0, -0.0][device % 2],
            3 if device == 2 => x = f32::INFINITY,
            _ => {}
        }
        match case.ty {
            ElementType::F32 => bytes.extend(x.to_ne_bytes()),
            ElementType::F64 => bytes.extend(f64::from(x).to_ne_bytes()),
            ElementType::Bf16 => bytes.extend(((x.to_bits() >> 16) as u16).to_ne_bytes()),
            // Any bits except NaN and infinity.
            ElementType::F16 => bytes.extend((random as u16 & 0xbbff).to_ne_bytes()),
            ElementType::Pred => bytes.push((random & 1) as u8),
            ty => bytes.extend(&random.to_ne_bytes()[..ty.byte_size()]),
        }
    }
    bytes
}

fn signature(case: &Case) -> Signature {
    Signature { parameters: vec![ParameterSpec::new(case.ty, case.dims.clone())] }
}

/// Runs a program on this client's devices and returns the concatenated results of each.
fn run(client: &Client, program: &Executable, case: &Case) -> Vec<(usize, Vec<u8>)> {
    let inputs: Vec<Buffer> = program
        .devices()
        .iter()
        .map(|device| client.buffer_from_host(&input(case, device.id()), case.ty, &case.dims, device).unwrap())
        .collect();
    let results = program.execute(&inputs.iter().collect::<Vec<_>>()).unwrap();
    let bytes = results.iter().map(|buffers| buffers.iter().flat_map(host_bytes).collect());
    program.device_ids().iter().copied().zip(bytes).collect()
}

/// Copies a buffer to the host.
fn host_bytes(buffer: &Buffer) -> Vec<u8> {
    let mut bytes = vec![0; buffer.byte_size()];
    buffer.to_host(&mut bytes).unwrap();
    bytes
}

fn options() -> CompileOptions {
    CompileOptions { num_partitions: DEVICES, ..Default::default() }
}

/// Runs the case with the plugin's own collectives in this process.
fn native(case: &Case) -> Vec<(usize, Vec<u8>)> {
    let client = Client::new(&Plugin::cpu().unwrap(), &[("cpu_device_count", Value::Int(DEVICES as i64))]).unwrap();
    let program = client.compile(&case.text, &options(), signature(case)).unwrap();
    run(&client, &program, case)
}

/// The client of one process of a job.
fn member(rank: usize, size: usize) -> (Client, Vec<usize>) {
    let owners: Vec<usize> = (0..DEVICES).map(|device| device * size / DEVICES).collect();
    let count = [("cpu_device_count", Value::Int(DEVICES as i64))];
    (Client::with_owners(&Plugin::cpu().unwrap(), &count, rank, |id| owners[id]).unwrap(), owners)
}

/// Compiles the case with the exchange, on the devices of this process.
fn localized(client: &Client, case: &Case) -> Executable {
    let local: Vec<usize> = client.addressable_devices().iter().map(Device::id).collect();
    let module = client.partition(&case.text, &options()).unwrap().localize().unwrap();
    let options = CompileOptions { num_replicas: local.len(), device_ids: local, ..Default::default() };
    client.compile_hlo(&module, &options, signature(case)).unwrap()
}

fn file(folder: &Path, case: &str, device: usize) -> PathBuf {
    folder.join(format!("{case}.{device}"))
}

/// Collects the fields of the spans of collectives.
struct Waits(Arc<Mutex<Vec<String>>>);

struct Text<'a>(&'a mut String);

impl Visit for Text<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        *self.0 += &format!("{field}={value:?} ");
    }
}

impl tracing::Subscriber for Waits {
    fn enabled(&self, about: &tracing::Metadata<'_>) -> bool {
        about.name() == "collective"
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = String::new();
        span.record(&mut Text(&mut text));
        self.0.lock().unwrap().push(text);
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &tracing::Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// The body of a job's processes; does nothing in a normal test run.
#[test]
fn child() {
    let Ok(what) = std::env::var(CASE) else { return };
    let launcher = Launcher::detect();
    let world = World::join(launcher.as_ref(), &Search::from_environment(launcher.as_ref())).unwrap();
    let (client, owners) = member(world.rank(), world.size());
    let timeout = Duration::from_secs(if what == "late" { 5 } else { 60 });
    let exchange: Arc<Exchange> = Exchange::new(Some(world.clone()), owners, timeout, SumOrder::Exact);
    exchange.register(client.plugin()).unwrap();
    match what.as_str() {
        "equal" => {
            let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
            for case in cases() {
                let program = localized(&client, &case);
                // Each launch has its own rendezvous, so later ones must not find data of the first.
                let mut results = run(&client, &program, &case);
                for _ in 0..3 {
                    results = run(&client, &program, &case);
                }
                results
                    .iter()
                    .for_each(|(device, bytes)| std::fs::write(file(&folder, case.name, *device), bytes).unwrap());
            }
        }
        "late" => {
            let case = &cases()[1];
            let program = localized(&client, case);
            // One launch with all processes.
            let waits = Arc::new(Mutex::new(Vec::new()));
            tracing::subscriber::set_global_default(Waits(waits.clone())).unwrap();
            run(&client, &program, case);
            let waits = waits.lock().unwrap().clone();
            assert!(waits.contains(&"at=\"call 0\" processes=[0, 1, 2, 3] ".to_owned()), "{waits:?}");
            if world.rank() == 0 {
                let device = &client.addressable_devices()[0];
                let x = client.buffer_from_host(&input(case, device.id()), case.ty, &case.dims, device).unwrap();
                let inputs: Vec<&Buffer> = program.devices().iter().map(|_| &x).collect();
                let results = program.execute(&inputs).unwrap();
                let error = results[0][0].block_until_ready().unwrap_err();
                assert!(error.message.contains("call 0 (shardax.all_reduce) of device 0 in process 0"), "{error}");
                assert!(error.message.contains("timed out waiting for the others"), "{error}");
                assert!(error.message.ends_with("within 5s processes [1, 2, 3] have not reached call 0"), "{error}");
                // Later launches fail as well.
                let again = program.execute(&inputs).unwrap()[0][0].block_until_ready().unwrap_err();
                assert!(again.message.contains("timed out waiting"), "{again}");
            }
        }
        other => panic!("no case {other}"),
    }
    println!("[{what} is right in {}]", world.rank());
    if what == "equal" {
        world.leave(Duration::from_secs(30)).unwrap();
    } else {
        // After a timeout, the job cannot end normally.
        let _ = world.store().barrier("end", Duration::from_secs(30));
        world.abort(if world.rank() == 0 { 3 } else { 4 });
    }
}

#[track_caller]
fn assert_equal(case: &str, device: usize, got: &[u8], expected: &[u8]) {
    assert_eq!(got.len(), expected.len(), "{case} on device {device}");
    let words = got.chunks(4).zip(expected.chunks(4)).enumerate();
    let differ: Vec<_> = words.filter(|(_, (a, b))| a != b).take(8).collect();
    assert!(differ.is_empty(), "{case} on device {device}, the first words: {differ:x?}");
}

#[track_caller]
fn is_equal_over(processes: usize) {
    for launcher in launchers() {
        let folder = std::env::temp_dir().join(format!("shardax-equal-{}-{processes}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let outcome = job(&launcher, "equal", processes, &[(FOLDER, folder.to_str().unwrap())]);
        assert!(outcome.success, "{}:\n{}", launcher.display(), outcome.text);
        for case in cases() {
            for (device, expected) in native(&case) {
                let got = std::fs::read(file(&folder, case.name, device)).unwrap();
                assert_equal(case.name, device, &got, &expected);
            }
        }
        let _ = std::fs::remove_dir_all(&folder);
    }
}

/// The results have the same bits for any number of processes.
#[test]
fn two_processes_of_two_devices_are_bit_equal_to_one() {
    is_equal_over(2);
}

#[test]
fn four_processes_are_bit_equal_to_one() {
    is_equal_over(4);
}

#[test]
fn one_process_can_use_the_exchange_too() {
    let (client, owners) = member(0, 1);
    Exchange::new(None, owners, Duration::from_secs(30), SumOrder::Exact).register(client.plugin()).unwrap();
    for case in cases() {
        let program = localized(&client, &case);
        assert_eq!(program.has_collectives(), Some(true), "{}: its devices wait for each other", case.name);
        for ((device, got), (_, expected)) in run(&client, &program, &case).into_iter().zip(native(&case)) {
            assert_equal(case.name, device, &got, &expected);
        }
    }
}

#[test]
fn a_missing_process_is_an_error_within_the_timeout() {
    for launcher in launchers() {
        let outcome = job(&launcher, "late", 4, &[]);
        assert!(outcome.text.contains("[late is right in 0]"), "{}", outcome.text);
    }
}

#[test]
fn devices_of_other_processes_are_rejected() {
    let (client, _) = member(1, 2);
    assert_eq!((client.process_index(), client.devices().len(), client.addressable_devices().len()), (1, 4, 2));
    let case = &cases()[1];
    let error =
        client.compile(&case.text, &CompileOptions { device_ids: vec![0, 1, 2, 3], ..options() }, signature(case));
    assert_eq!(error.unwrap_err().message, "device 0 (cpu) belongs to process 0, but this is process 1");
    let plugin = Plugin::cpu().unwrap();
    let nobody = Client::with_owners(&plugin, &[("cpu_device_count", Value::Int(2))], 5, |_| 0);
    assert_eq!(nobody.unwrap_err().message, "no device belongs to this process, 5");
}
