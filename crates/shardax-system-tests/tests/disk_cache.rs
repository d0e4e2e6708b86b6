//! Compiled programs kept on disk: found again, never believed when anything about them is wrong, never too many.

#[path = "../../shardax/tests/common/mod.rs"]
mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::child::{self, Ended, Folder};
use shardax::ErrorKind;
use shardax::prelude::*;

const MANY: usize = 4096;

/// The program that the tests run in processes of their own.
#[test]
#[ignore = "run by other tests"]
fn program() -> Result<()> {
    common::setup();
    let y = jit(|x: Array| (x * 3).sum(..)).call(array([1, 2, 3]))?;
    assert_eq!(y.item::<i32>()?, 18);
    // Two of one signature.
    assert_eq!(jit(|x: Array| x + 1).call(array([1, 2, 3]))?.to_vec::<i32>()?, [2, 3, 4]);
    assert_eq!(jit(|x: Array| x * 5).call(array([1, 2, 3]))?.to_vec::<i32>()?, [5, 10, 15]);
    // Sums of many floats come from a library.
    let y = jit(|x: Array| x.sum(0)).call(ones([MANY, 32]))?;
    assert_eq!(y.to_vec::<f32>()?, [MANY as f32; 32]);
    let f = pmap(|x: Array| (&x + 1, psum(x, "i"))).axis_name("i").donate_argnums([0]);
    let (next, total) = f.call(arange(0..8))?;
    assert_eq!((next.to_vec::<i32>()?, total.to_vec::<i32>()?), ((1..9).collect(), vec![28; 8]));
    // Sharded as the compiler chooses.
    let x = device_put(&arange(0..8), &NamedSharding::new(&make_mesh([("i", 8)])?.auto(), P!["i"]))?;
    let y = jit(|x: Array| x.reshape([4, 2]) * 2).call(&x)?;
    assert_eq!(y.to_vec::<i32>()?, (0..8).map(|i| i * 2).collect::<Vec<_>>());
    Ok(())
}

fn command(cache: &Path) -> Command {
    let mut command = child::command("program");
    command.env("SHARDAX_COMPILATION_CACHE_DIR", cache);
    command
}

/// The number of warnings of a program whose results were right.
fn complaints(ended: &Ended) -> usize {
    ended.err.lines().filter(|line| line.contains("compilation cache")).count()
}

fn run(cache: &Path) -> usize {
    complaints(&child::run(&mut command(cache)))
}

/// The files of a folder, by name.
/// The programs of a folder, and what processes left there.
fn files(cache: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cache).map(|all| all.flatten().map(|entry| entry.path()).collect());
    let mut files: Vec<PathBuf> = entries.unwrap_or_default();
    files.retain(|file| !file.ends_with("last-check"));
    files.sort();
    files
}

fn contents(cache: &Path) -> Vec<Vec<u8>> {
    files(cache).iter().map(|file| fs::read(file).expect("a file")).collect()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
}

#[test]
fn compiled_programs_are_found_on_disk() -> std::io::Result<()> {
    let folder = Folder::new();
    let cache = folder.0.join("cache");
    let times = || files(&cache).iter().map(|f| fs::metadata(f)?.modified()).collect::<std::io::Result<Vec<_>>>();
    assert_eq!(run(&cache), 0);
    let first = times()?;
    assert!(first.len() >= 6, "{first:?}");
    assert_eq!(fs::metadata(&cache)?.permissions().mode() & 0o777, 0o700);
    assert_eq!(run(&cache), 0);
    assert_eq!(times()?, first, "nothing is compiled the second time");

    // Other options, seen by the compiler; then another file of the plugin: each has programs of its own.
    child::run(command(&cache).env("XLA_FLAGS", "--xla_cpu_prefer_vector_width=128"));
    assert_eq!(files(&cache).len(), 2 * first.len());
    if let Some(plugin) = child::faulty_plugin(&folder.0) {
        child::run(command(&cache).envs(plugin));
        assert_eq!(files(&cache).len(), 3 * first.len());
    }
    Ok(())
}

/// Without a name for a folder it is the user's own; an empty name turns it off.
#[test]
fn the_cache_is_on_by_default_and_can_be_turned_off() {
    let home = Folder::new();
    let plugin = shardax_pjrt::Plugin::cpu().expect("the CPU plugin").path().to_owned();
    let of_home = |command: &mut Command| {
        command.env("XDG_CACHE_HOME", &home.0).env("SHARDAX_CPU_PLUGIN", &plugin);
        assert_eq!(complaints(&child::run(command)), 0);
        files(&home.0.join("shardax/programs")).len()
    };
    assert_eq!(of_home(child::command("program").env("SHARDAX_COMPILATION_CACHE_DIR", "")), 0);
    assert!(of_home(child::command("program").env_remove("SHARDAX_COMPILATION_CACHE_DIR")) >= 6);
}

#[test]
fn damaged_and_swapped_files_are_not_run() -> std::io::Result<()> {
    let folder = Folder::new();
    let cache = folder.0.join("cache");
    run(&cache);
    let (names, good) = (files(&cache), contents(&cache));
    fn write(bytes: &[Vec<u8>], names: &[PathBuf]) -> std::result::Result<(), std::io::Error> {
        names.iter().zip(bytes).try_for_each(|(name, bytes)| fs::write(name, bytes))
    }

    // Each under the name of another.
    let mut swapped = good.clone();
    swapped.rotate_left(1);
    write(&swapped, &names)?;
    assert_eq!(run(&cache), names.len());
    assert_eq!(run(&cache), 0, "they were written again");

    // In each one bit: at the start, where key and digest are, and anywhere; or cut, or longer.
    fn change(round: usize, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        match round {
            0 => bytes.truncate(bytes.len() - 7),
            1 => bytes.clear(),
            2 => bytes.push(0),
            _ => {
                let length = [0, 60, 131, bytes.len() / 2, bytes.len() - 1][round - 3];
                bytes[length] ^= 1 << (round % 8);
            }
        }
        bytes
    }
    for round in 0..8 {
        write(&good.iter().map(|bytes| change(round, bytes)).collect::<Vec<_>>(), &names)?;
        assert_eq!(run(&cache), names.len(), "round {round}");
        assert_eq!(files(&cache), names);
    }
    assert_eq!(run(&cache), 0);
    Ok(())
}

#[test]
fn cache_files_that_others_can_write_are_not_run() -> std::io::Result<()> {
    let folder = Folder::new();
    let cache = folder.0.join("cache");
    run(&cache);
    let (names, good) = (files(&cache), contents(&cache));

    // A folder that others may write to is not used at all, and said once.
    mode(&cache, 0o777);
    assert_eq!(run(&cache), 1);
    let error = config::set_compilation_cache_dir(&cache).err().expect("it is rejected");
    assert_eq!(error.kind(), ErrorKind::Value);
    assert!(error.to_string().contains("others may write to it (mode 777)"), "{error}");
    mode(&cache, 0o700);

    // Files: one that others may write to, and a FIFO, which nobody writes to.
    mode(&names[0], 0o666);
    fs::remove_file(&names[1])?;
    assert!(Command::new("mkfifo").arg(&names[1]).status()?.success());
    assert_eq!(run(&cache), 2);
    assert_eq!(run(&cache), 0, "their places were taken");
    assert_eq!((files(&cache), contents(&cache).len()), (names.clone(), good.len()));

    // Of another user.
    match std::os::unix::fs::chown(&names[2], Some(12345), None) {
        Ok(()) => assert_eq!(run(&cache), 1),
        Err(_) => eprintln!("only root can give files away: skipped"),
    }
    // Not a folder.
    fs::remove_dir_all(&cache)?;
    fs::write(&cache, "a file")?;
    assert_eq!(run(&cache), 1);
    assert!(config::set_compilation_cache_dir(cache.join("below")).is_err());
    Ok(())
}

#[test]
fn a_full_disk_costs_a_line() -> std::io::Result<()> {
    let folder = Folder::new();
    let cache = folder.0.join("cache");
    // Files of at most 4 KiB, as on a disk that is nearly full.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\""]);
    let program = command(&cache);
    limited.arg(program.get_program()).args(program.get_args()).env("SHARDAX_COMPILATION_CACHE_DIR", &cache);
    let ended = child::run(&mut limited);
    assert_eq!(complaints(&ended), 1, "{}", ended.err);
    assert!(ended.err.contains("cannot write"), "{}", ended.err);
    let remaining = contents(&cache);
    assert!(remaining.len() < 4 && remaining.iter().all(|bytes| bytes.len() < 4096), "halves are taken away");

    let disk = folder.0.join("disk");
    fs::create_dir(&disk)?;
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=32k,mode=700", "tmpfs"]).arg(&disk).output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("no disk can be mounted here: skipped");
        return Ok(());
    }
    let ended = child::wait(child::start(&mut command(&disk)));
    let remaining = files(&disk);
    let unmounted = Command::new("umount").arg(&disk).status()?;
    assert!(ended.status.success() && complaints(&ended) == 1, "{}", ended.err);
    assert!(ended.err.contains("No space left"), "{}", ended.err);
    assert!(!remaining.iter().any(|file| is_temporary(file)), "{remaining:?}");
    assert!(unmounted.success());
    Ok(())
}

/// Returns `true` for a file that is still written. Folders can have such names too.
fn is_temporary(file: &std::path::Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().contains("tmp-"))
}

#[test]
fn processes_share_a_folder_that_does_not_grow_beyond_its_size() -> std::io::Result<()> {
    let folder = Folder::new();
    let cache = folder.0.join("cache");
    fn start(size: u64, cache: &std::path::Path) -> std::process::Child {
        child::start(command(cache).env("SHARDAX_COMPILATION_CACHE_MAX_SIZE", size.to_string()))
    }
    let size = || contents(&cache).iter().map(|bytes| bytes.len() as u64).sum::<u64>();
    let children: Vec<_> = (0..4).map(|_| start(512 << 20, &cache)).collect();
    for child in children {
        let ended = child::wait(child);
        assert!(ended.status.success() && complaints(&ended) == 0, "{}", ended.err);
    }
    assert!(!files(&cache).iter().any(|file| is_temporary(file)));
    let full_size = size();

    // The folder is not read again by a process that starts within a minute of another's check.
    fs::write(cache.join("last-check"), (full_size / 2).to_string())?;
    fs::remove_file(&files(&cache)[1])?;
    let ended = child::wait(start(full_size / 2, &cache));
    assert!(ended.status.success() && size() == full_size, "{} of {full_size} bytes, {}", size(), ended.err);
    fs::remove_file(cache.join("last-check"))?;

    // Half as much room: the oldest go, what others put there stays, and all of it while others read and write.
    fs::write(cache.join("README"), vec![b'x'; 1 << 20])?;
    let oldest = files(&cache)[0].clone();
    fs::File::options().write(true).open(&oldest)?.set_modified(std::time::UNIX_EPOCH)?;
    fs::remove_file(&files(&cache)[1])?;
    let children: Vec<_> = (0..4).map(|_| start(full_size / 2, &cache)).collect();
    for child in children {
        let ended = child::wait(child);
        assert!(ended.status.success() && complaints(&ended) == 0, "{}", ended.err);
    }
    assert!(cache.join("README").exists());
    let ours = size() - (1 << 20);
    assert!(ours > 0 && ours <= full_size / 2 + full_size / 8, "{ours} of {full_size} bytes");
    Ok(())
}
