//! Mutants of exported functions, of this library and of JAX, and of compiled programs: each is read or is an error
//! (`tests/common/mutants.rs`).

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;
use sha2::{Digest, Sha256};
use shardax::export::{ExportOptions, Exported};
use shardax::prelude::*;

use crate::common::setup;
use crate::mutating::{self, Format};

fn formats() -> Result<Vec<Format<'static>>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exported");
    let files = |ext: &str| -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(&folder).expect("the files").flatten().map(|entry| entry.path());
        let mut paths: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|of| of == ext)).collect();
        paths.sort();
        paths.retain(|path| !path.ends_with("values.safetensors"));
        paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
    };
    let options = ExportOptions::new().vjp_order(1).symbolic_args_specs(["b, s"]);
    let open = options.export(|x: Array| (x.mean(0), x.reshape([-1]).sin()), shape_dtype_struct([2, 2], DType::F32))?;
    let mut local_files = files("safetensors");
    local_files.push(open.serialize()?);
    let lowered = jit(|x: Array| x * 2).lower(shape_dtype_struct([4], DType::I32))?;
    let compiled = lowered.compile()?.serialize()?;
    let load = move |path: &Path| Compiled::load(&lowered, &std::fs::read(path).expect("the mutant")).map(drop);
    Ok(vec![
        Format::new("exports", local_files, read).repaired(digested).memory(PLUGIN),
        Format::new("exports of JAX", files("jax"), read).memory(PLUGIN),
        Format::new("compiled programs", vec![compiled], load).memory(PLUGIN),
    ])
}

/// Memory of a process that also has the plugin, in MiB.
const PLUGIN: u64 = 3 << 10;

/// Reads a function, and writes it into a program as a call does; open sizes are 3.
fn read(path: &Path) -> Result<()> {
    let read = Exported::<(Vec<Array>,), Vec<Array>>::load(path)?;
    let text = format!("{read:?}");
    let open = text.lines().any(|line| line.starts_with("  argument") && line.contains(|c: char| "bs*+".contains(c)));
    let types = read.in_avals().map(|(_, aval)| {
        let sizes: Vec<usize> = aval.shape.iter().map(|&size| if open && size == 0 { 3 } else { size }).collect();
        shape_dtype_struct(sizes, aval.dtype)
    });
    let types: Vec<Array> = types.collect();
    jit(|leaves: Vec<Array>| read.call_leaves(&leaves)).lower(types).map(drop)
}

/// The file with the digest of its contents, where they can be read.
fn digested(bytes: Vec<u8>) -> Vec<u8> {
    repaired(&bytes).unwrap_or(bytes)
}

fn repaired(bytes: &[u8]) -> Option<Vec<u8>> {
    let size = usize::try_from(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?)).ok()?;
    let mut header: Value = serde_json::from_slice(bytes.get(8..size.checked_add(8)?)?).ok()?;
    let mut metadata: Value = serde_json::from_str(header["__metadata__"]["shardax.export"].as_str()?).ok()?;
    let tensors = SafeTensors::deserialize(bytes).ok()?;
    let mut entries = tensors.tensors();
    entries.sort_by(|a, b| a.0.cmp(&b.0));
    let mut digest = Sha256::new_with_prefix(metadata["function"].to_string());
    for (name, tensor) in &entries {
        digest.update(name);
        digest.update(tensor.data());
    }
    let digest: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    metadata["sha256"] = digest.into();
    header["__metadata__"]["shardax.export"] = metadata.to_string().into();
    let header = header.to_string();
    Some([&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes[8 + size..]].concat())
}

#[test]
#[ignore = "run by `mutated_exports_are_read_or_errors`"]
fn reads_mutants() -> Result<()> {
    setup();
    let Some(folder) = mutating::folder() else { return Ok(()) };
    mutating::read(&formats()?, &folder);
    Ok(())
}

#[test]
fn mutated_exports_are_read_or_errors() -> Result<()> {
    setup();
    let folder = std::env::temp_dir().join(format!("shardax-mutants-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    mutating::run("mutants::reads_mutants", &formats()?, &folder, 60);
    std::fs::remove_dir_all(&folder).expect("the folder");
    Ok(())
}
