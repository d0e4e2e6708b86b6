//! The files of a profile: XSpace, which TensorBoard's profile page reads, and the trace-event JSON of
//! chrome://tracing.
//!
//! XSpace is the protocol buffer of tsl/profiler/protobuf/xplane.proto. Only the used fields are declared here.

use std::collections::HashMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;

use super::{Event, Track};
use crate::error::{Result, err};

/// The process number of the first plane that the plugin recorded. It is larger than the numbers of devices.
const RECORDED: usize = 1_000_000;

#[derive(Clone, PartialEq, Message)]
struct XSpace {
    #[prost(message, repeated, tag = "1")]
    planes: Vec<XPlane>,
    #[prost(string, repeated, tag = "2")]
    errors: Vec<String>,
    #[prost(string, repeated, tag = "3")]
    warnings: Vec<String>,
    #[prost(string, repeated, tag = "4")]
    hostnames: Vec<String>,
}

/// A timeline: the threads of the host, or a device.
#[derive(Clone, PartialEq, Message)]
struct XPlane {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(message, repeated, tag = "3")]
    lines: Vec<XLine>,
    /// The names of events, by number.
    #[prost(map = "int64, message", tag = "4")]
    event_metadata: HashMap<i64, XEventMetadata>,
    /// The names of statistics, by number.
    #[prost(map = "int64, message", tag = "5")]
    stat_metadata: HashMap<i64, XStatMetadata>,
}

#[derive(Clone, PartialEq, Message)]
struct XLine {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(int64, tag = "3")]
    timestamp_ns: i64,
    #[prost(message, repeated, tag = "4")]
    events: Vec<XEvent>,
    /// The name to display instead of `name`, if there is one.
    #[prost(string, tag = "11")]
    display_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct XEvent {
    #[prost(int64, tag = "1")]
    metadata_id: i64,
    /// The offset from the line's time.
    #[prost(int64, tag = "2")]
    offset_ps: i64,
    #[prost(int64, tag = "3")]
    duration_ps: i64,
    #[prost(message, repeated, tag = "4")]
    stats: Vec<XStat>,
}

/// A number attached to an event.
#[derive(Clone, PartialEq, Message)]
struct XStat {
    #[prost(int64, tag = "1")]
    metadata_id: i64,
    #[prost(int64, optional, tag = "4")]
    int64_value: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct XStatMetadata {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(string, tag = "2")]
    name: String,
}

/// The statistics of a training step: its number, and the mark by which TensorBoard recognizes steps.
const STEP_STATS: [(i64, &str); 2] = [(1, "step_num"), (2, "_r")];

#[derive(Clone, PartialEq, Message)]
struct XEventMetadata {
    #[prost(int64, tag = "1")]
    id: i64,
    #[prost(string, tag = "2")]
    name: String,
}

/// A profile in both formats.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The name of the host. The names of the files begin with it.
    host: String,
    /// The time of the start, in milliseconds since 1970.
    started_ms: u128,
    /// An XSpace.
    pub xplane: Vec<u8>,
    /// The trace-event JSON, gzipped.
    pub trace: Vec<u8>,
}

/// Encodes a profile. `recorded` is the plugin's own recording: an XSpace.
pub(crate) fn encode(events: &[Event], recorded: &[u8], started_at: SystemTime) -> io::Result<Encoded> {
    let since = started_at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "host",
        host => host,
    };
    let started_ns = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
    let space = space(events, host, started_ns);
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(json(events, recorded, started_ns).as_bytes())?;
    Ok(Encoded {
        host: host.to_owned(),
        started_ms: since.as_millis(),
        // Concatenated messages decode as one message with the fields of both, so everything in the plugin's planes is
        // preserved.
        xplane: [&space.encode_to_vec(), recorded].concat(),
        trace: packed.finish()?,
    })
}

impl Encoded {
    /// Writes the files into a new folder below `folder`; returns their paths.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written to.
    pub fn write_below(&self, folder: &Path) -> Result<Vec<PathBuf>> {
        self.write(folder).map_err(|e| {
            err!(Runtime, "cannot write the profile below {}: {e}", folder.display())
                .help("pass a directory that you can write to")
        })
    }

    fn write(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let folder = folder.join("plugins").join("profile").join(self.started_ms.to_string());
        std::fs::create_dir_all(&folder)?;
        let files = ["xplane.pb", "trace.json.gz"].map(|end| folder.join(format!("{}.{end}", self.host)));
        std::fs::write(&files[0], &self.xplane)?;
        std::fs::write(&files[1], &self.trace)?;
        Ok(files.into())
    }
}

/// The errors reported by a plugin's profiler.
pub(crate) fn recorder_errors(recorded: &[u8]) -> Vec<String> {
    let space = XSpace::decode(recorded).unwrap_or_default();
    [space.errors, space.warnings].concat()
}

/// The events grouped by track. They must be sorted.
fn tracks(events: &[Event]) -> impl Iterator<Item = &[Event]> {
    events.chunk_by(|a, b| a.track == b.track)
}

fn picoseconds(nanoseconds: u64) -> i64 {
    i64::try_from(nanoseconds).unwrap_or(i64::MAX).saturating_mul(1000)
}

fn space(events: &[Event], host: &str, started_ns: i64) -> XSpace {
    // All threads are lines of one plane, and each device has a plane of its own.
    let mut planes = vec![XPlane { name: "/host:CPU".to_owned(), ..XPlane::default() }];
    for track in tracks(events) {
        let (plane_index, id, name) = match &track[0].track {
            Track::Thread(id, name) => (0, *id, name),
            Track::Device(id, name) => {
                planes.push(XPlane { name: format!("/device:{name}"), ..XPlane::default() });
                (planes.len() - 1, *id as u64, name)
            }
        };
        let plane = &mut planes[plane_index];
        let mut line = XLine {
            id: id as i64,
            name: name.clone(),
            timestamp_ns: started_ns,
            events: Vec::with_capacity(track.len()),
            display_name: String::new(),
        };
        for event in track {
            let known_id = plane.event_metadata.values().find(|m| m.name == event.name).map(|m| m.id);
            let metadata_id = known_id.unwrap_or(plane.event_metadata.len() as i64 + 1);
            if known_id.is_none() {
                let named = XEventMetadata { id: metadata_id, name: event.name.to_string() };
                plane.event_metadata.insert(metadata_id, named);
            }
            line.events.push(XEvent {
                metadata_id,
                offset_ps: picoseconds(event.begin),
                duration_ps: picoseconds(event.end - event.begin),
                stats: event.step.map_or_else(Vec::new, |step| {
                    let stats = STEP_STATS.into_iter().zip([step, 1]);
                    stats.map(|((id, _), value)| XStat { metadata_id: id, int64_value: Some(value) }).collect()
                }),
            });
            if event.step.is_some() && plane.stat_metadata.is_empty() {
                let named = STEP_STATS.map(|(id, name)| (id, XStatMetadata { id, name: name.to_owned() }));
                plane.stat_metadata.extend(named);
            }
        }
        plane.lines.push(line);
    }
    planes.iter_mut().enumerate().for_each(|(i, plane)| plane.id = i as i64);
    XSpace { planes, hostnames: vec![host.to_owned()], ..XSpace::default() }
}

/// Host threads belong to process 1; each device, and each plane that the plugin recorded, is a process. Times
/// are in microseconds.
fn json(events: &[Event], recorded: &[u8], started_ns: i64) -> String {
    let mut out = vec![r#"{"ph":"M","pid":1,"name":"process_name","args":{"name":"host"}}"#.to_owned()];
    for track in tracks(events) {
        let (pid, tid) = match &track[0].track {
            Track::Thread(id, name) => {
                let name = quoted(name);
                out.push(format!(r#"{{"ph":"M","pid":1,"tid":{id},"name":"thread_name","args":{{"name":{name}}}}}"#));
                (1, *id)
            }
            Track::Device(id, name) => {
                let (pid, name) = (*id as u64 + 2, quoted(name));
                out.push(format!(r#"{{"ph":"M","pid":{pid},"name":"process_name","args":{{"name":{name}}}}}"#));
                (pid, 1)
            }
        };
        for event in track {
            let (begin, took) = (event.begin as f64 / 1000.0, (event.end - event.begin) as f64 / 1000.0);
            let name = quoted(&event.name);
            let args = event.step.map_or_else(String::new, |n| format!(r#","args":{{"step_num":"{n}"}}"#));
            out.push(format!(
                r#"{{"ph":"X","pid":{pid},"tid":{tid},"ts":{begin:.3},"dur":{took:.3},"name":{name}{args}}}"#
            ));
        }
    }
    // A recording that does not parse is only written to the other file.
    let planes = XSpace::decode(recorded).unwrap_or_default().planes;
    for (plane, pid) in planes.iter().filter(|plane| !plane.lines.is_empty()).zip(RECORDED..) {
        let name = quoted(&plane.name);
        out.push(format!(r#"{{"ph":"M","pid":{pid},"name":"process_name","args":{{"name":{name}}}}}"#));
        for line in &plane.lines {
            let name = quoted(if line.display_name.is_empty() { &line.name } else { &line.display_name });
            let tid = line.id;
            out.push(format!(r#"{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_name","args":{{"name":{name}}}}}"#));
            let start = line.timestamp_ns.saturating_sub(started_ns) as f64 / 1000.0;
            for event in &line.events {
                let (begin, took) = (start + event.offset_ps as f64 / 1e6, event.duration_ps as f64 / 1e6);
                let name = quoted(plane.event_metadata.get(&event.metadata_id).map_or("", |m| &m.name));
                out.push(format!(
                    r#"{{"ph":"X","pid":{pid},"tid":{tid},"ts":{begin:.3},"dur":{took:.3},"name":{name}}}"#
                ));
            }
        }
    }
    format!(r#"{{"displayTimeUnit":"ns","traceEvents":[{}]}}"#, out.join(",\n"))
}

/// Quotes a JSON string.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
