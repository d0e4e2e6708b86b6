//! Files that are not as they were, and disks that do not take them: errors that name the file, the cause and the fix.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use shardax::prelude::*;
use shardax_train::checkpoint::{self, Checkpoint, CheckpointManager, CheckpointManagerOptions};

use super::{Folder, fails, names, setup};

fn tree() -> (Array, Array) {
    (arange(0..3_000_000), ones([5]))
}

/// The names and bytes of the files of a checkpoint. It is saved once, because a save waits until the disk has all bytes.
fn intact_files() -> &'static [(OsString, Vec<u8>)] {
    static FILES: OnceLock<Vec<(OsString, Vec<u8>)>> = OnceLock::new();
    FILES.get_or_init(|| {
        let folder = Folder::new();
        let path = folder.join("x");
        checkpoint::save(&path, &tree()).expect("a checkpoint");
        let entries = fs::read_dir(path).expect("the checkpoint").map(|entry| entry.expect("a file"));
        entries.map(|entry| (entry.file_name(), fs::read(entry.path()).expect("the file"))).collect()
    })
}

/// A checkpoint that the tests damage.
fn with(change: impl FnOnce(&Path)) -> Result<(Folder, PathBuf)> {
    setup();
    let folder = Folder::new();
    let path = folder.join("x");
    fs::create_dir(&path).expect("a folder");
    for (name, bytes) in intact_files() {
        fs::write(path.join(name), bytes).expect("the file");
    }
    change(&path);
    Ok((folder, path))
}

const FILE: &str = "device-00000.safetensors";

fn change(path: &Path, f: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).expect("the file");
    f(&mut bytes);
    fs::write(path, bytes).expect("the file");
}

#[test]
fn a_file_that_was_cut_off_is_named() -> Result<()> {
    let (_folder, path) = with(|path| change(&path.join(FILE), |bytes| bytes.truncate(1000)))?;
    fails(
        checkpoint::restore(&path, &tree()),
        &["x/device-00000.safetensors is damaged: it has 1000 bytes", "restore another step"],
    );
    let (_folder, path) = with(|path| change(&path.join("manifest.json"), |bytes| bytes.truncate(100)))?;
    fails(Checkpoint::open(&path), &["x/manifest.json is damaged: its checksum is", "`commit` contains"]);
    let (_folder, path) = with(|path| change(&path.join("commit"), |bytes| bytes.clear()))?;
    fails(Checkpoint::open(&path), &["manifest.json is damaged", "contains \"\""]);
    Ok(())
}

/// Whichever byte it is: of the values of the first array, in its first and its third chunk, of the second, of the
/// header.
#[test]
fn a_wrong_byte_is_named() -> Result<()> {
    let (_folder, path) = with(|_| ())?;
    let file = path.join(FILE);
    let intact = fs::read(&file).expect("the file");
    let header = 8 + u64::from_le_bytes(intact[..8].try_into().expect("eight bytes")) as usize;
    let like = tree();
    let mid = 1 << 22;
    let cases = [
        (header, format!("bytes {header}..{}, of `[0]`, have changed", header + mid)),
        (header + 2 * mid + 5, format!("bytes {}..{}, of `[0]`, have changed", header + 2 * mid, header + 12_000_000)),
        (intact.len() - 1, format!("bytes {}..{}, of `[1]`, have changed", header + 12_000_000, intact.len())),
        (0, format!("its header, bytes 0..{header}, has changed")),
        (20, format!("its header, bytes 0..{header}, has changed")),
    ];
    for (at, want) in cases {
        change(&file, |bytes| bytes[at] ^= 0x10);
        fails(checkpoint::restore(&path, &like), &["x/device-00000.safetensors is damaged", &want]);
        fails(Checkpoint::open(&path)?.verify(), &[&want]);
        fs::write(&file, &intact).expect("the file");
    }
    // The manifest has its own checksum, which is in `commit`.
    for (name, at) in [("manifest.json", 200), ("commit", 0)] {
        let before = fs::read(path.join(name)).expect("the file");
        change(&path.join(name), |bytes| bytes[at] ^= 1);
        fails(checkpoint::restore(&path, &like), &["x/manifest.json is damaged", "its checksum is"]);
        fs::write(path.join(name), before).expect("the file");
    }
    let _ = checkpoint::restore(&path, &like)?;
    Ok(())
}

#[test]
fn missing_files_of_checkpoints_are_named() -> Result<()> {
    for (name, want) in [
        (FILE, "device-00000.safetensors is damaged: it is missing"),
        ("manifest.json", "manifest.json is damaged: it is missing"),
        ("commit", "commit is damaged: it is missing"),
    ] {
        let (_folder, path) = with(|path| fs::remove_file(path.join(name)).expect("the file"))?;
        fails(checkpoint::restore(&path, &tree()), &[want]);
    }
    let folder = Folder::new();
    fails(Checkpoint::open(folder.join("none")), &["no checkpoint at", "none: there is no such folder"]);
    fails(Checkpoint::open(&folder.0), &["the folder contains no manifest"]);
    fails(Checkpoint::open("/"), &["names no folder"]);
    Ok(())
}

#[test]
fn another_version_is_not_guessed_at() -> Result<()> {
    fn rewrite(path: &Path, from: &str, to: &str) {
        let text = fs::read_to_string(path.join("manifest.json")).expect("the manifest").replacen(from, to, 1);
        fs::write(path.join("manifest.json"), &text).expect("the manifest");
        fs::write(path.join("commit"), format!("{:08x}\n", crc32fast::hash(text.as_bytes()))).expect("the commit");
    }
    let (_folder, path) = with(|path| rewrite(path, "\"version\":1", "\"version\":7"))?;
    fails(Checkpoint::open(&path), &["manifest.json has version 7 of the format", "reads version 1", "newer"]);
    let (_folder, path) = with(|path| rewrite(path, "shardax checkpoint", "something else"))?;
    fails(Checkpoint::open(&path), &["is not a checkpoint of shardax", "something else"]);
    // Places that are in no file, in a manifest whose checksum is right.
    for (from, to) in [
        ("\"offset\":", "\"offset\":9"),
        ("\"shape\":[3000000],\"crc32\"", "\"shape\":[3000001],\"crc32\""),
        ("\"int32\"", "\"int31\""),
        ("\"chunk\":4194304", "\"chunk\":0"),
        ("\"file\":0", "\"file\":3"),
    ] {
        let (_folder, path) = with(|path| rewrite(path, from, to))?;
        fails(checkpoint::restore(&path, &tree()), &["manifest.json is damaged"]);
    }
    Ok(())
}

/// In manifests whose checksum is right.
#[test]
fn manifests_that_lead_elsewhere_are_damaged() -> Result<()> {
    fn rewrite(path: &Path, change: &dyn Fn(&mut serde_json::Value)) {
        let text = fs::read(path.join("manifest.json")).expect("the manifest");
        let mut manifest = serde_json::from_slice(&text).expect("JSON");
        change(&mut manifest);
        let text = manifest.to_string();
        fs::write(path.join("manifest.json"), &text).expect("the manifest");
        fs::write(path.join("commit"), format!("{:08x}\n", crc32fast::hash(text.as_bytes()))).expect("the commit");
    }
    let (_folder, path) = with(|_| ())?;
    let outside = path.with_file_name("outside.safetensors");
    fs::copy(path.join(FILE), &outside).expect("the file");
    for name in ["../outside.safetensors", &outside.to_string_lossy(), "./outside.safetensors", "..", ""] {
        rewrite(&path, &|manifest| manifest["files"][0]["name"] = name.into());
        fails(Checkpoint::open(&path), &["manifest.json is damaged", "which is not in its folder"]);
    }
    // The first half twice, and the second never.
    setup();
    let folder = Folder::new();
    let path = folder.join("x");
    let halves = NamedSharding::new(&make_mesh([("x", 2), ("y", 4)])?, P!["x"]);
    checkpoint::save(&path, &device_put(&arange(0..64).reshape([8, 8]), &halves)?)?;
    Checkpoint::open(&path)?.verify()?;
    rewrite(&path, &|manifest| {
        let parts = manifest["arrays"][0]["parts"].as_array_mut().expect("parts");
        assert_eq!(parts.len(), 2);
        parts[1]["start"] = parts[0]["start"].clone();
    });
    fails(Checkpoint::open(&path), &["the parts [0, 0] + [4, 8] and [0, 0] + [4, 8] of ``", "overlap"]);
    rewrite(&path, &|manifest| {
        let entry = manifest["arrays"][0].clone();
        manifest["arrays"].as_array_mut().expect("arrays").push(entry);
    });
    fails(Checkpoint::open(&path), &["damaged"]);
    let (_folder, path) = with(|path| rewrite(path, &|manifest| manifest["chunk"] = (1u64 << 43).into()))?;
    fails(Checkpoint::open(&path), &["its checksums are of 8796093022208 bytes each"]);
    Ok(())
}

#[test]
fn metadata_comes_back_as_it_was_or_is_not_saved() -> Result<()> {
    setup();
    let folder = Folder::new();
    fn nested(depth: usize) -> serde_json::Value {
        (0..depth).fold(serde_json::json!(1), |inner, _| serde_json::json!([inner]))
    }
    fn args(metadata: serde_json::Value) -> checkpoint::SaveArgs {
        checkpoint::SaveArgs::new().metadata(metadata)
    }
    checkpoint::save_with(folder.join("flat"), &ones([2]), &args(nested(120)))?;
    assert_eq!(*Checkpoint::open(folder.join("flat"))?.metadata(), nested(120));
    let deep = args(nested(130));
    fails(checkpoint::save_with(folder.join("deep"), &ones([2]), &deep), &["nested more than 120 deep"]);
    let mut manager = CheckpointManager::new(folder.join("run"), CheckpointManagerOptions::new())?;
    fails(manager.save_with(1, &ones([2]), &deep), &["nested more than 120 deep"]);
    // Every bit of a number.
    let mut bits = 0x3ff0_0000_0000_0000u64;
    let numbers: Vec<f64> = std::iter::repeat_with(|| {
        bits = bits.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        f64::from_bits(bits & 0xbfff_ffff_ffff_ffff)
    })
    .filter(|x| x.is_finite())
    .take(2000)
    .collect();
    let metrics = numbers.iter().enumerate().map(|(i, x)| (i.to_string(), *x));
    let args = args(serde_json::json!(numbers)).metrics(metrics);
    checkpoint::save_with(folder.join("numbers"), &ones([2]), &args)?;
    let opened = Checkpoint::open(folder.join("numbers"))?;
    assert_eq!(*opened.metadata(), serde_json::json!(numbers));
    assert!(numbers.iter().enumerate().all(|(i, x)| opened.metrics()[&i.to_string()] == *x));
    Ok(())
}

#[test]
fn another_shape_is_named() -> Result<()> {
    let (_folder, path) = with(|_| ())?;
    let other_tree = (arange(0..3_000_000), ones([5, 1]));
    fails(checkpoint::restore(&path, &other_tree), &["`[1]` was saved as float32[5] in", "float32[5,1]"]);
    let deleted = tree();
    deleted.1.delete()?;
    fails(checkpoint::restore(&path, &deleted), &["has been deleted"]);
    let eight = NamedSharding::new(&make_mesh([("x", 8)])?, P!["x"]);
    let options = checkpoint::RestoreOptions::new().shardings((None, &eight));
    fails(Checkpoint::open(&path)?.restore_with(&tree(), &options), &["`[1]`", "dimension size is 5"]);
    Ok(())
}

#[test]
fn arrays_without_values_are_not_saved() -> Result<()> {
    setup();
    let folder = Folder::new();
    let path = folder.join("x");
    fails(
        checkpoint::save(&path, &vec![ones([2]), ones([3]) + ones([2])]),
        &["a checkpoint's array `[1]`", "broadcasting"],
    );
    fails(checkpoint::save(&path, &shape_dtype_struct([2], DType::F32)), &["has no values"]);
    let gone = ones([2]);
    gone.delete()?;
    fails(checkpoint::save(&path, &gone), &["has been deleted"]);
    assert!(names(&folder.0).is_empty());
    Ok(())
}

/// A small disk; `None` where none can be mounted.
struct Disk(Folder);

impl Disk {
    fn new(options: &str) -> Option<Disk> {
        let folder = Folder::new();
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(&folder.0).output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Disk(folder));
        }
        eprintln!("no disk can be mounted here: skipped");
        None
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0.0).status();
    }
}

#[test]
fn a_full_disk_is_an_error_and_keeps_earlier_checkpoints() -> Result<()> {
    setup();
    let Some(disk) = Disk::new("size=8m") else { return Ok(()) };
    let folder = disk.0.join("run");
    let mut checkpoints = CheckpointManager::new(&folder, CheckpointManagerOptions::new())?;
    fn small(x: i32) -> (Array, Array) {
        (arange(0..1_500_000) + x, ones([5]))
    }
    checkpoints.save(1, &small(1))?;
    checkpoints.save(2, &small(2))?;
    let full: &[&str] =
        &["cannot write", "2.unfinished/device-00000.safetensors", "No space left on device", "max_to_keep"];
    fails(checkpoints.save(3, &small(3)), full);
    // What there was of it made room again, and the one before is whole.
    assert_eq!(names(&folder), [".lock", "1"]);
    checkpoints.checkpoint(1)?.verify()?;
    let latest = checkpoints.restore_latest(&small(0))?.expect("a checkpoint");
    assert_eq!(latest.tree.0.get(0).item::<i32>()?, 1);
    Ok(())
}

#[test]
fn a_disk_for_reading_only_is_an_error() -> Result<()> {
    setup();
    let folder = Folder::new();
    fs::write(folder.join("file"), "a file").expect("a file");
    fails(
        checkpoint::save(folder.join("file").join("x"), &ones([2])),
        &["cannot create the folder", "file", "check the disk"],
    );
    let Some(disk) = Disk::new("ro") else { return Ok(()) };
    fails(checkpoint::save(disk.0.join("x"), &ones([2])), &["x.unfinished", "Read-only file system", "may write to"]);
    fails(CheckpointManager::new(disk.0.join("run"), CheckpointManagerOptions::new()), &["Read-only file system"]);
    Ok(())
}
