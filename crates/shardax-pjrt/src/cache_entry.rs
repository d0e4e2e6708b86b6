//! Compiled programs as bytes with a digest, a signature and the identity of the plugin.
//!
//! The CPU plugin (xla-cpu-pjrt 0.0.1) does not verify the bytes that it loads: one flipped bit crashes it, and code
//! for another processor ends in an illegal instruction. An entry is a first line, the SHA-256 of everything after it,
//! and four parts with their lengths: the plugin's identity, the signature, the program's outline
//! ([`crate::hlo::outline`]), the plugin's bytes. This detects damage and mistakes, but not a forged entry (see
//! [`crate::permissions`]). Test: `transfer::serialized_programs_with_changed_bits_are_rejected`.
//!
//! The outline is stored because without it the checks at loading would need the plugin's program as text, and writing
//! that takes a fifth of the time that a large step takes to load.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::client::Client;
use crate::device::Device;
use crate::element::ShapeText;
use crate::error::{Code, Error, Result};
use crate::options::ParameterSpec;
use crate::plugin::Plugin;

/// The first line of the bytes of a serialized program. Programs of another format are not loaded.
pub const ENTRY_FORMAT: &str = "shardax executable 2\n";
const DIGEST: usize = 32;

/// A program as an entry stores it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stored<'a> {
    /// Empty if the plugin does not show its programs.
    pub(crate) outline: &'a [u8],
    /// The plugin's bytes.
    pub(crate) program: &'a [u8],
}

/// Writes an entry.
pub(crate) fn encode(plugin_id: &str, parameters: &[ParameterSpec], stored: Stored<'_>) -> Vec<u8> {
    let signature = signature(parameters);
    let parts = [plugin_id.as_bytes(), signature.as_bytes(), stored.outline, stored.program];
    let len = parts.iter().map(|part| part.len() + size_of::<u64>()).sum::<usize>();
    let mut bytes = Vec::with_capacity(ENTRY_FORMAT.len() + DIGEST + len);
    bytes.extend_from_slice(ENTRY_FORMAT.as_bytes());
    bytes.extend_from_slice(&[0; DIGEST]);
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    let (head, rest) = bytes.split_at_mut(ENTRY_FORMAT.len() + DIGEST);
    head[ENTRY_FORMAT.len()..].copy_from_slice(&Sha256::digest(rest));
    bytes
}

/// Returns the program, if it is intact, and was written by one of these plugins with this signature.
pub(crate) fn decode<'a>(bytes: &'a [u8], plugin_ids: &[&str], parameters: &[ParameterSpec]) -> Result<Stored<'a>> {
    // The digest is checked first, because everything else in a damaged entry can have any value.
    let payload = bytes.strip_prefix(ENTRY_FORMAT.as_bytes()).ok_or_else(damaged)?;
    let (digest, mut parts) = payload.split_at_checked(DIGEST).ok_or_else(damaged)?;
    if Sha256::digest(parts).as_slice() != digest {
        return Err(damaged());
    }
    let stored_plugin_id = split_part(&mut parts)?;
    let stored_signature = split_part(&mut parts)?;
    let stored = Stored { outline: split_part(&mut parts)?, program: split_part(&mut parts)? };
    if !plugin_ids.iter().any(|plugin_id| stored_plugin_id == plugin_id.as_bytes()) {
        let stored_id = String::from_utf8_lossy(stored_plugin_id);
        // The first word is the kind of identity: a client or a topology.
        let kind = stored_id.split(' ').next();
        let same_kind = plugin_ids.iter().find(|current| current.split(' ').next() == kind);
        let current_id = same_kind.or(plugin_ids.first()).copied().unwrap_or_default();
        return Err(Error::failed_precondition(format!(
            "the program was compiled by another version of the plugin or for another processor: {}",
            first_difference(&stored_id, current_id)
        )));
    }
    let expected_signature = signature(parameters);
    if stored_signature != expected_signature.as_bytes() {
        return Err(Error::invalid_argument(format!(
            "the compiled program takes ({}), but the signature is ({expected_signature})",
            String::from_utf8_lossy(stored_signature)
        )));
    }
    Ok(stored)
}

fn damaged() -> Error {
    Error::new(Code::DataLoss, "these bytes are not a compiled program, or are damaged")
}

/// Splits off the first part, whose length precedes it.
fn split_part<'a>(parts: &mut &'a [u8]) -> Result<&'a [u8]> {
    let (len, rest) = parts.split_first_chunk().ok_or_else(damaged)?;
    let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| damaged())?;
    let (part, rest) = rest.split_at_checked(len).ok_or_else(damaged)?;
    *parts = rest;
    Ok(part)
}

fn signature(parameters: &[ParameterSpec]) -> String {
    let mut text = String::new();
    for (i, parameter) in parameters.iter().enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        let donated = if parameter.donated { " donated" } else { "" };
        let _ = write!(text, "{comma}{}{donated}", ShapeText(parameter.ty, &parameter.dims));
    }
    text
}

/// Describes the first line in which two plugin ids differ.
fn first_difference(stored: &str, current: &str) -> String {
    match stored.lines().zip(current.lines()).find(|(stored, current)| stored != current) {
        Some((stored, current)) => format!("{stored:?}, and not {current:?}"),
        None => "they differ in length".to_owned(),
    }
}

/// Everything that compiled programs depend on, except the program and its options: the plugin, the devices, the
/// processor, the number of cores that work is divided among, and the environment variables that the plugin reads.
pub(crate) fn plugin_id(client: &Client) -> Result<String> {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processor(&cpu).ok_or_else(|| {
        Error::new(Code::Unimplemented, "compiled programs cannot be stored: the system does not report its processor")
    })?;
    let plugin = client.plugin();
    let file = contents(plugin.path()).map_err(|error| {
        let message =
            format!("compiled programs cannot be stored: {} cannot be read: {error}", plugin.path().display());
        Error::new(Code::Unimplemented, message)
    })?;
    let cores = std::thread::available_parallelism().ok();
    let variables = ["XLA_FLAGS", "NPROC", "PJRT_NPROC"].map(std::env::var_os);
    let kinds: Vec<&str> = client.devices().iter().map(Device::kind).collect();
    Ok(format!(
        "plugin {file} {:?} {:?}\nplatform {} {}\ndevices {kinds:?}\ncores {cores:?}\nvariables {variables:?}\n\
         processor {} {processor}",
        plugin.api_version(),
        plugin.attributes(),
        client.platform_name(),
        client.platform_version(),
        std::env::consts::ARCH,
    ))
}

/// Identifies a library by its size and a digest of blocks spread over it. Copies of the library, for example in an
/// image, have the same identity. Versions differ, because nearly all of their blocks contain other code. Only blocks
/// are read, because reading a library of 260 MB would take longer than most programs take to start; manual changes
/// between the blocks are therefore not detected.
fn contents(library: &Path) -> io::Result<String> {
    const BLOCK: u64 = 4096;
    const BLOCKS: u64 = 64;
    let mut file = File::open(library)?;
    let size = file.metadata()?.len();
    let (mut hash, mut block) = (Sha256::new(), Vec::new());
    let distance = size.saturating_sub(BLOCK).div_ceil(BLOCKS).max(BLOCK);
    for i in 0..=BLOCKS {
        // The last one is the end of the file.
        file.seek(SeekFrom::Start((i * distance).min(size.saturating_sub(BLOCK))))?;
        block.clear();
        file.by_ref().take(BLOCK).read_to_end(&mut block)?;
        hash.update(&block);
    }
    let digest: String = hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{size} bytes {digest}"))
}

/// The counterpart of [`plugin_id`] for programs that were compiled for a topology: the properties that a topology and
/// a client of such devices share.
pub(crate) fn topology_plugin_id<'a>(plugin: &Plugin, platform: &str, kinds: impl Iterator<Item = &'a str>) -> String {
    let mut counts = BTreeMap::new();
    kinds.for_each(|kind| *counts.entry(kind).or_insert(0usize) += 1);
    let (version, attributes) = (plugin.api_version(), plugin.attributes());
    format!("topology of {}\ndevices {counts:?}\nplugin {version:?} {attributes:?}", platform.to_lowercase())
}

/// The model and features of the processors in Linux's `cpuinfo`, without values that vary between cores or over time:
/// x86 has names and flags, ARM numbers and features, RISC-V an `isa`. `None` if there are none.
fn processor(cpuinfo: &str) -> Option<String> {
    const MODEL: &[&str] = &[
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "CPU implementer",
        "CPU architecture",
        "CPU variant",
        "CPU part",
        "CPU revision",
        "cpu",
        "uarch",
        "mvendorid",
        "marchid",
        "mimpid",
    ];
    const FEATURES: &[&str] = &["flags", "Features", "isa", "hart isa"];
    // Machines with several kinds of cores list each; sorting makes the result independent of the cores' order.
    let mut lines = BTreeSet::new();
    let mut has_features = false;
    for (name, value) in cpuinfo.lines().filter_map(|line| line.split_once(':')) {
        let (name, value) = (name.trim(), value.trim());
        has_features |= FEATURES.contains(&name);
        if MODEL.contains(&name) || FEATURES.contains(&name) {
            lines.insert(format!("{name}: {value}"));
        }
    }
    has_features.then(|| lines.into_iter().collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ElementType;

    const X86: &str = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 1\n\
        model name\t: AMD EPYC\nstepping\t: 1\ncpu MHz\t\t: 2445.404\nflags\t\t: fpu sse avx2\nbugs\t\t: a\n";
    const ARM: &str = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\n\
        CPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: 0xd40\nCPU revision\t: 1\n";

    #[test]
    fn processors_are_distinguished_with_and_without_a_model_name() {
        unlike(X86, &X86.replace(" avx2", ""));
        unlike(X86, &X86.replace("model\t\t: 1", "model\t\t: 17"));
        unlike(ARM, &ARM.replace("0xd40", "0xd0c"));
        unlike(ARM, &ARM.replace(" sve", ""));
        // A machine with two kinds of cores.
        unlike(ARM, &format!("{ARM}\n{}", ARM.replace("0xd40", "0xd0c")));
        like(X86, &X86.replace("2445.404", "1996.1"));
        like(ARM, &format!("{ARM}\n{}", ARM.replace("processor\t: 0", "processor\t: 1")));
        assert_eq!(processor(""), None);
        assert_eq!(processor("processor\t: 0\nBogoMIPS\t: 243.75\n"), None);
    }

    fn like(a: &str, b: &str) {
        assert_eq!(processor(a).unwrap(), processor(b).unwrap());
    }

    fn unlike(a: &str, b: &str) {
        assert_ne!(processor(a).unwrap(), processor(b).unwrap());
    }

    /// The identity of a file with these bytes.
    fn contents_of_file(path: &Path, bytes: &[u8]) -> String {
        std::fs::write(path, bytes).unwrap();
        contents(path).unwrap()
    }

    /// All of a small library is read, but only the beginning, the end and blocks in between of a large one.
    #[test]
    fn a_library_is_known_by_its_contents() {
        let folder = std::env::temp_dir().join(format!("shardax-pjrt-contents-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (file, other_file) = (folder.join("a"), folder.join("b"));
        let small: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        let identity = contents_of_file(&file, &small);
        assert_eq!(contents_of_file(&other_file, &small), identity);
        assert!(identity.starts_with("100000 bytes "));
        for position in [0, 1, 4095, 4096, 50_000, 99_999] {
            let mut changed = small.clone();
            changed[position] ^= 1;
            assert_ne!(contents_of_file(&file, &changed), identity, "{position}");
        }
        assert_ne!(contents_of_file(&file, &small[..99_999]), identity);
        // Of a large library, changes in the first and last block are detected.
        let large = vec![0; 3_000_000];
        let identity = contents_of_file(&file, &large);
        for position in [0, 4095, large.len() - 4096, large.len() - 1] {
            let mut changed = large.clone();
            changed[position] ^= 1;
            assert_ne!(contents_of_file(&file, &changed), identity, "{position}");
        }
        for len in [0, 1, 4095, 4096, 4097] {
            assert!(contents_of_file(&file, &small[..len]).starts_with(&format!("{len} bytes ")));
        }
        assert!(contents(&folder.join("none")).is_err());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_change_of_an_entry_is_detected() {
        let parameters = [ParameterSpec::new(ElementType::F32, [4]).donated(), ParameterSpec::new(ElementType::S8, [])];
        let plugin_ids = ["plugin 1\nprocessor a", "topology of x"];
        let stored = Stored { outline: b"outline", program: b"program" };
        let bytes = encode("plugin 1\nprocessor a", &parameters, stored);
        assert_eq!(decode(&bytes, &plugin_ids, &parameters).unwrap(), stored);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                let error = decode(&changed, &plugin_ids, &parameters).unwrap_err();
                assert_eq!(error.code, Code::DataLoss);
            }
            assert_eq!(decode(&bytes[..at], &plugin_ids, &parameters).unwrap_err().code, Code::DataLoss);
        }
        let error = decode(&bytes, &["topology of x", "plugin 1\nprocessor b"], &parameters).unwrap_err();
        assert!(error.message.contains("\"processor a\", and not \"processor b\""), "{error}");
        let error = decode(&bytes, &plugin_ids, &parameters[..1]).unwrap_err();
        assert!(
            error.message.contains("takes (f32[4] donated, s8[]), but the signature is (f32[4] donated)"),
            "{error}"
        );
    }
}
