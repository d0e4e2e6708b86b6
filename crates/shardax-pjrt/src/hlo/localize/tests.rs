//! Tests of localization: snapshots, and invariants of all programs.

use super::*;
use crate::error::Code;
use crate::{Client, CompileOptions, Plugin, Value};

const MANY: &str = include_str!("../../../tests/localize/collectives.mlir");
const SNAPSHOT: &str = include_str!("../../../tests/localize/collectives.txt");

fn client(devices: i64) -> Client {
    Client::new(&Plugin::cpu().unwrap(), &[("cpu_device_count", Value::Int(devices))]).unwrap()
}

fn options(device_ids: &[usize]) -> CompileOptions {
    CompileOptions { num_partitions: device_ids.len(), device_ids: device_ids.to_vec(), ..Default::default() }
}

fn partition(text: &str, device_ids: &[usize]) -> Result<Partitioned> {
    client(4).partition(text, &options(device_ids))
}

/// The communicating parts of a program's text, without names chosen by the compiler.
fn calls(module: &[u8]) -> String {
    let text = text(module).unwrap();
    let mut names: HashMap<&str, String> = HashMap::new();
    for word in text.split([' ', '(', ')', ',', '\n', ':']).filter(|word| word.contains(".local.")) {
        let number = names.len();
        names.entry(word).or_insert_with(|| format!("%{number}"));
    }
    let mut longest: Vec<_> = names.iter().collect();
    longest.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
    text.lines()
        .filter(|line| line.contains(".local.") || line.contains("while(") || line.contains("ROOT tuple"))
        .map(|line| longest.iter().fold(line.to_owned(), |line, (name, short)| line.replace(**name, short)) + "\n")
        .collect()
}

/// Also a test of the plugin: it shows the partitioned program.
#[test]
fn collectives_become_calls_in_one_order() {
    let got = calls(&partition(MANY, &[0, 1, 2, 3]).unwrap().localize().unwrap());
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/localize/collectives.txt"), &got).unwrap();
    } else {
        assert_eq!(got, SNAPSHOT);
    }
}

fn opcodes(module: &Wire<'_>) -> Vec<String> {
    let computations = module.all_bytes(module::COMPUTATIONS).map(|c| Computation::parse(c).unwrap());
    computations.flat_map(|c| c.instructions.into_iter().map(|i| i.opcode)).collect()
}

#[test]
fn no_collective_remains_and_each_computation_has_one_chain() {
    let partitioned = partition(MANY, &[0, 1, 2, 3]).unwrap();
    let before = Wire::parse(&partitioned.module).unwrap();
    for opcode in SUPPORTED_COLLECTIVES {
        assert!(opcodes(&before).iter().any(|o| o == opcode), "the program has no {opcode}");
    }
    let bytes = partitioned.localize().unwrap();
    let after = Wire::parse(&bytes).unwrap();
    assert!(!opcodes(&after).iter().any(|o| super::super::is_collective(o) || o == "partition-id"));
    let mut chains = 0;
    for computation in after.all_bytes(module::COMPUTATIONS).map(|c| Computation::parse(c).unwrap()) {
        let by_id: HashMap<i64, &Instruction<'_>> = computation.instructions.iter().map(|i| (i.id, i)).collect();
        let mut last_result = None;
        for i in &computation.instructions {
            if i.opcode == "custom-call" && is_collective_call(i.wire.text(instruction::TARGET)) || i.opcode == "while"
            {
                let order = match i.opcode.as_str() {
                    // One of its initial values comes from `shardax.after`, whose last argument is the order.
                    "while" => by_id[&i.operands[0]].operands.iter().find_map(|o| {
                        let after = by_id[o];
                        let is_after = after.wire.text(instruction::TARGET) == "shardax.after";
                        is_after.then(|| source(&by_id, after.operands[1])).flatten()
                    }),
                    _ => i.operands.last().and_then(|&id| source(&by_id, id)),
                };
                assert_eq!(order, last_result, "{}", i.wire.text(instruction::NAME));
                last_result = Some(i.id);
                chains += 1;
            }
        }
    }
    assert_eq!(chains, 8, "two sums are one call");
}

/// The call or loop that produces a value.
fn source(by_id: &HashMap<i64, &Instruction<'_>>, mut id: i64) -> Option<i64> {
    loop {
        let i = by_id[&id];
        match i.opcode.as_str() {
            "get-tuple-element" => id = i.operands[0],
            "custom-call" if is_collective_call(i.wire.text(instruction::TARGET)) => return Some(id),
            "while" => return Some(id),
            _ => return None,
        }
    }
}

#[test]
fn unchanged_parts_are_preserved_byte_by_byte() {
    let mut partitioned = partition(MANY, &[0, 1, 2, 3]).unwrap();
    // Unknown fields in the module and in the instructions of its entry.
    let mut module = Wire::parse(&partitioned.module).unwrap().clone();
    let entry = module.int(module::ENTRY);
    let computations: Vec<Vec<u8>> = module.all_bytes(module::COMPUTATIONS).map(<[u8]>::to_vec).collect();
    module.remove(&[module::COMPUTATIONS]);
    for bytes in &computations {
        let mut computation = Wire::parse(bytes).unwrap();
        if computation.int(computation::ID) == entry {
            let instructions = computation.take_bytes(computation::INSTRUCTIONS);
            for bytes in instructions {
                let mut i = Wire::parse_cow(bytes).unwrap();
                i.push_bytes(9876, *b"kept");
                computation.push_bytes(computation::INSTRUCTIONS, i.encode());
            }
        }
        module.push_bytes(module::COMPUTATIONS, computation.encode());
    }
    module.push_int(5432, 10);
    partitioned.module = module.encode();
    let bytes = partitioned.localize().unwrap();
    let after = Wire::parse(&bytes).unwrap();
    assert_eq!(after.int(5432), 10);
    let (mut preserved, mut same) = (0, 0);
    for bytes in after.all_bytes(module::COMPUTATIONS) {
        let computation = Computation::parse(bytes).unwrap();
        same += usize::from(computations.iter().any(|c| c == bytes));
        for i in computation.instructions.iter().filter(|_| computation.id == entry) {
            let made_here = i.wire.text(instruction::NAME).contains(".local.");
            assert_eq!(i.wire.text(9876), if made_here { "" } else { "kept" }, "{}", i.opcode);
            preserved += usize::from(!made_here);
        }
    }
    assert!(preserved > 5 && same > 2, "{preserved} instructions, {same} computations");
}

#[test]
fn devices_are_named_by_id_wherever_the_mesh_puts_them() {
    let got = calls(&partition(MANY, &[2, 3, 0, 1]).unwrap().localize().unwrap());
    assert!(got.contains("groups = array<i64: 2, 3, 0, 1>, sizes = array<i64: 4>"), "{got}");
    assert!(got.contains("groups = array<i64: 2, 1, 0, 3>, sizes = array<i64: 2, 2>"), "{got}");
    assert!(got.contains("pairs = array<i64: 2, 1, 0, 3>"), "{got}");
    assert!(got.contains("shardax.partition_id {devices = array<i64: 2, 3, 0, 1>}"), "{got}");
}

#[test]
fn operations_without_a_function_are_errors_that_name_them() {
    let product = MANY.replacen("stablehlo.maximum", "stablehlo.subtract", 1);
    let error = partition(&product, &[0, 1, 2, 3]).unwrap().localize().unwrap_err();
    assert_eq!(error.code, Code::Unimplemented);
    assert!(error.message.starts_with("all-reduce \"all-reduce"), "{error}");
    assert!(
        error.message.ends_with("combines values by \"subtract\", which is not supported between processes"),
        "{error}"
    );
}

#[test]
fn the_plugin_stops_after_partitioning() {
    let partitioned = partition(MANY, &[0, 1, 2, 3]).unwrap();
    assert_eq!(partitioned.output_shardings().unwrap().len(), 8);
    assert_eq!(partitioned.output_shardings().unwrap()[2].partitions(3), [4, 1, 1]);
    assert_eq!(partitioned.parameter_shardings().unwrap()[0].partitions(2), [4, 1]);
    let error = partition("func.func @main() { nonsense }", &[0, 1, 2, 3]).unwrap_err();
    assert_eq!(error.code, Code::InvalidArgument, "{error}");
    let many = CompileOptions { num_replicas: 2, ..Default::default() };
    assert!(client(4).partition(MANY, &many).unwrap_err().message.contains("one replica"));
    // No folder remains, except those that other tests use at the moment.
    let prefix = format!("shardax-partition-{}-", std::process::id());
    let entries = std::fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    assert!(entries.filter(|e| e.file_name().to_string_lossy().starts_with(&prefix)).count() < 8);
}
