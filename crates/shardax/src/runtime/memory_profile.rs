//! The memory of this process by the source lines that created its arrays: a profile in the format of `pprof`.
//!
//! The format is the protocol buffer of github.com/google/pprof, proto/profile.proto; only the fields in use are declared.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::load;
use crate::core::array::live;
use crate::error::{AtCaller, Result, err};

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    /// The strings, which the other messages refer to by number. The first string is empty.
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    /// The number of allocations, and their bytes.
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    text: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "3")]
    system_name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
    #[prost(int64, tag = "5")]
    start_line: i64,
}

/// An array or a program that holds memory, and the place that created it. Equal sources are one sample.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    name: String,
    file: &'static str,
    line: u32,
    labels: Vec<(&'static str, String)>,
}

fn add(totals: &mut BTreeMap<Source, [i64; 2]>, source: Source, bytes: i64) {
    let sum = totals.entry(source).or_default();
    sum[0] += 1;
    sum[1] = sum[1].saturating_add(bytes);
}

/// The number of allocations and bytes of every source.
fn sources() -> BTreeMap<Source, [i64; 2]> {
    let mut totals: BTreeMap<Source, [i64; 2]> = BTreeMap::new();
    // Arrays may share buffers, so each buffer is counted once.
    let mut counted = BTreeSet::new();
    for array in live::all() {
        for buffer in array.buffers.iter().filter(|buffer| counted.insert(Arc::as_ptr(buffer))) {
            let (name, file, line) = match array.made_at {
                Some(at) => (format!("{}:{}", at.file(), at.line()), at.file(), at.line()),
                None => ("unknown".to_owned(), "", 0),
            };
            let device = buffer.device();
            let mut labels =
                vec![("kind", "buffer".to_owned()), ("device", format!("{}:{}", device.platform_name(), device.id()))];
            labels.extend(array.sharding.memory_kind().map(|kind| ("memory", kind.to_owned())));
            add(
                &mut totals,
                Source { name, file, line, labels },
                i64::try_from(buffer.byte_size()).unwrap_or(i64::MAX),
            );
        }
    }
    for program in load::all_alive() {
        let bytes = program.executable.memory_analysis().map_or(0, |memory| memory.generated_code);
        let labels = vec![("kind", "executable".to_owned())];
        add(&mut totals, Source { name: program.name.clone(), file: "", line: 0, labels }, bytes);
    }
    totals
}

/// Text by number.
struct Strings(Vec<String>, BTreeMap<String, i64>);

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        if let Some(&number) = self.1.get(text) {
            return number;
        }
        let number = self.0.len() as i64;
        self.0.push(text.to_owned());
        self.1.insert(text.to_owned(), number);
        number
    }
}

fn profile() -> Profile {
    let mut strings = Strings(Vec::new(), BTreeMap::new());
    strings.number("");
    let types = [("allocations", "count"), ("space", "bytes")];
    let sample_type = types.map(|(kind, unit)| ValueType { kind: strings.number(kind), unit: strings.number(unit) });
    let mut out = Profile { sample_type: sample_type.into(), ..Profile::default() };
    let mut places: BTreeMap<(String, &str), u64> = BTreeMap::new();
    for (source, value) in sources() {
        let next_id = places.len() as u64 + 1;
        let id = *places.entry((source.name.clone(), source.file)).or_insert_with(|| {
            let name = strings.number(&source.name);
            let filename = strings.number(source.file);
            let line = i64::from(source.line);
            out.function.push(Function { id: next_id, name, system_name: name, filename, start_line: line });
            out.location.push(Location { id: next_id, line: vec![Line { function_id: next_id, line }] });
            next_id
        });
        let labels = source.labels.iter();
        let label = labels.map(|(key, text)| Label { key: strings.number(key), text: strings.number(text) }).collect();
        out.sample.push(Sample { location_id: vec![id], value: value.into(), label });
    }
    out.string_table = strings.0;
    out
}

/// Returns the memory that this process holds on its devices now, as a gzipped profile for `pprof` (JAX's function of
/// this name): `pprof -top`, `pprof -web` and <https://pprof.me> read it, and `-diff_base` shows what was added between two.
///
/// Each sample counts the allocations and bytes of one line of the program: the line that called the compiled function
/// or the operation whose result is alive ([`live_arrays`](crate::live_arrays)). Its labels are `kind` (`buffer` or
/// `executable`), `device` (`cpu:0`) and, if the sharding names one, `memory` (`pinned_host`). Compiled programs count
/// under their names, with the size of their machine code if the platform reports it. Buffers count with the size of
/// their elements, without a device's padding. Memory that running programs use for temporaries is not included
/// ([`Device::memory_stats`](crate::Device::memory_stats) counts everything). A sample has one line, while JAX's has
/// the stack of Python's calls.
///
/// ```
/// # use shardax::prelude::*;
/// let x = zeros([512, 512]);
/// let packed = shardax::profiler::device_memory_profile()?;
/// assert_eq!(packed[..2], [0x1f, 0x8b]); // gzip
/// # drop(x);
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the profile cannot be compressed.
#[track_caller]
pub fn device_memory_profile() -> Result<Vec<u8>> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed
        .write_all(&profile().encode_to_vec())
        .and_then(|()| packed.finish())
        .map_err(|e| err!(Runtime, "cannot compress the memory profile: {e}"))
        .at_caller()
}

/// Writes [`device_memory_profile`] to a file, conventionally named `….prof`.
///
/// ```
/// # let file = std::env::temp_dir().join(format!("shardax-memory-{}.prof", std::process::id()));
/// shardax::profiler::save_device_memory_profile(&file)?;
/// # std::fs::remove_file(&file).ok();
/// # Ok::<(), shardax::Error>(())
/// ```
///
/// # Errors
/// Returns an error if the file cannot be written.
#[track_caller]
pub fn save_device_memory_profile(file: impl AsRef<Path>) -> Result<()> {
    let file = file.as_ref();
    device_memory_profile()
        .and_then(|packed| {
            std::fs::write(file, packed).map_err(|e| {
                err!(Runtime, "cannot write the memory profile to {}: {e}", file.display())
                    .help("name a file in a folder that exists and that this user may write to")
            })
        })
        .at_caller()
}
