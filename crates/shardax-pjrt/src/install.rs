//! Installing a plugin: pip downloads a pinned wheel, the library is checked and moved into the cache in one step.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest, Sha256};

use crate::error::{Code, Error, Result};
use crate::search::{Environment, Wheel};

/// Puts the wheel's library at `library` inside `folder`. Several processes may do so at once; one of them works.
pub(crate) fn install(wheel: &Wheel, env: &Environment, folder: &Path, library: &Path) -> Result<()> {
    let arch = std::env::consts::ARCH;
    let sha256 = wheel.sha256.iter().find(|(name, _)| *name == arch).map(|(_, sha256)| *sha256).ok_or_else(|| {
        Error::new(Code::Unimplemented, format!("{} {} has no wheel for {arch}", wheel.package, wheel.version))
    })?;
    fs::create_dir_all(folder).map_err(|e| io_error(e, "cannot make the folder", folder))?;

    // The lock goes with the process that holds it, so one that was killed blocks nobody.
    let lock_path = folder.join("lock");
    let lock = File::create(&lock_path).map_err(|e| io_error(e, "cannot make the lock file", &lock_path))?;
    lock.lock().map_err(|e| io_error(e, "cannot lock", &lock_path))?;
    if library.is_file() {
        return Ok(()); // another process was faster
    }
    remove_leftovers(folder);

    eprintln!("shardax: installing the XLA CPU plugin ({} MB) into {}", wheel.megabytes, folder.display());
    let work = folder.join(format!("{WORK_PREFIX}{}", std::process::id()));
    let result = download_and_unpack(wheel, env, sha256, &work, library);
    let _ = fs::remove_dir_all(&work);
    result
}

const WORK_PREFIX: &str = "tmp-";

/// What an interrupted install left; nobody else can be at work, since the caller holds the lock.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(WORK_PREFIX) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn download_and_unpack(wheel: &Wheel, env: &Environment, sha256: &str, work: &Path, library: &Path) -> Result<()> {
    fs::create_dir_all(work).map_err(|e| io_error(e, "cannot make the folder", work))?;
    let downloaded = download(wheel, env, work)?;
    let actual = sha256_of(&downloaded).map_err(|e| io_error(e, "cannot read", &downloaded))?;
    if actual != sha256 {
        return Err(Error::new(
            Code::DataLoss,
            format!(
                "the downloaded wheel is not the one expected (sha256 {actual}, expected {sha256}); it was thrown away"
            ),
        ));
    }
    let unpacked = work.join("library");
    unpack(&downloaded, wheel.member, &unpacked)?;
    crate::elf::check(&unpacked).map_err(|e| e.during(format_args!("{} from the wheel", wheel.member)))?;
    fs::rename(&unpacked, library).map_err(|e| io_error(e, "cannot move the library to", library))
}

fn download(wheel: &Wheel, env: &Environment, work: &Path) -> Result<PathBuf> {
    let python = env.on_path("python3").next().ok_or_else(|| {
        Error::new(Code::NotFound, "there is no python3 on PATH, and its pip is what downloads the plugin")
    })?;
    let requirement = format!("{}=={}", wheel.package, wheel.version);
    let output = Command::new(&python)
        .args(["-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--dest"])
        .arg(work)
        .arg(&requirement)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| io_error(e, "cannot start", &python))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        let tail: Vec<&str> = stderr.lines().rev().filter(|line| !line.trim().is_empty()).take(4).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        return Err(Error::new(
            Code::Unavailable,
            format!(
                "`{} -m pip download {requirement}` failed ({}): {}",
                python.display(),
                output.status,
                tail.join(" / ")
            ),
        ));
    }
    let files = fs::read_dir(work).map_err(|e| io_error(e, "cannot read the folder", work))?;
    files
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .ok_or_else(|| Error::new(Code::NotFound, format!("pip downloaded no wheel for {requirement}")))
}

fn sha256_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        let n = file.read(&mut chunk)?;
        if n == 0 {
            return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        hash.update(&chunk[..n]);
    }
}

fn unpack(wheel: &Path, member: &str, to: &Path) -> Result<()> {
    let bad =
        |e: zip::result::ZipError| Error::new(Code::DataLoss, format!("cannot unpack {member} from the wheel: {e}"));
    let file = File::open(wheel).map_err(|e| io_error(e, "cannot read", wheel))?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file)).map_err(bad)?;
    let mut source = archive.by_name(member).map_err(bad)?;
    let write = |e| io_error(e, "cannot write", to);
    let mut target = File::create(to).map_err(write)?;
    io::copy(&mut source, &mut target).map_err(write)?;
    target.flush().map_err(write)?;
    // The rename must not become durable before the contents are.
    target.sync_all().map_err(write)
}

fn io_error(error: io::Error, what: &str, path: &Path) -> Error {
    let code = match error.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Code::PermissionDenied,
        io::ErrorKind::StorageFull => Code::ResourceExhausted,
        _ => Code::Unknown,
    };
    Error::new(code, format!("{what} {}: {error}", path.display()))
}
