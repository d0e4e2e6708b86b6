//! Compiled programs kept on disk, so that the next process need not compile them again.
//!
//! Off until a directory is named. A file holds the SHA-256 of what follows, then the executable as the plugin wrote it.
//! Its name is the SHA-256 of all that the executable depends on: the program, the options, the plugin and the machine.

use std::io::{self, Write};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use sha2::{Digest, Sha256};
use shardax_pjrt as pjrt;

use crate::{config, warning};

const DIGEST: usize = 32;

/// The executable from disk, or else compiled and written to disk. Only compiling can fail: what goes wrong with the
/// files is a warning.
pub(super) fn load_or_compile(
    client: &pjrt::Client,
    text: &str,
    options: &pjrt::CompileOptions,
    signature: pjrt::Signature,
) -> pjrt::Result<pjrt::Executable> {
    let Some(directory) = config::compilation_cache_dir() else {
        return client.compile(text, options, signature);
    };
    let path = directory.join(key(client, text, options));
    let complain = |what: &str, error: &dyn std::fmt::Display| {
        let help = "programs are compiled all the same; empty the directory, or name another one";
        warning::warn(&format!("compilation cache: {what} {}: {error}", path.display()), help);
    };
    match read(&path) {
        Ok(bytes) => match client.deserialize(&bytes, options, signature.clone()) {
            Ok(executable) => return Ok(executable),
            Err(error) => complain("compiling anew, since the plugin does not take", &error),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => complain("compiling anew, since there is no reading", &error),
    }
    let executable = client.compile(text, options, signature)?;
    match executable.serialize() {
        Ok(bytes) => write(&path, &bytes).unwrap_or_else(|error| complain("cannot write", &error)),
        Err(error) => complain("the plugin cannot serialize for", &error),
    }
    Ok(executable)
}

fn key(client: &pjrt::Client, text: &str, options: &pjrt::CompileOptions) -> String {
    static ENGINE: OnceLock<String> = OnceLock::new();
    let engine = ENGINE.get_or_init(|| engine(client));
    let mut hash = Sha256::new();
    for part in [engine, &format!("{options:?}"), text] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The plugin and the machine: executables hold code for this processor, divided among so many cores.
fn engine(client: &pjrt::Client) -> String {
    let plugin = client.plugin();
    let file = std::fs::metadata(plugin.path()).map(|m| (m.len(), m.modified().ok())).ok();
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = |name: &str| cpu.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    format!(
        "{:?} {file:?} {:?} {} {} {:?} {} {} {:?}",
        plugin.path(),
        plugin.api_version(),
        client.platform_name(),
        client.platform_version(),
        client.devices().iter().map(pjrt::Device::kind).collect::<Vec<_>>(),
        line("model name"),
        line("flags"),
        (std::thread::available_parallelism().ok(), std::env::var("XLA_FLAGS").ok()),
    )
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = std::fs::read(path)?;
    if bytes.len() < DIGEST || Sha256::digest(&bytes[DIGEST..]).as_slice() != &bytes[..DIGEST] {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is damaged"));
    }
    bytes.drain(..DIGEST);
    Ok(bytes)
}

/// Under another name first: no other process ever sees half a file.
fn write(path: &Path, executable: &[u8]) -> io::Result<()> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let unique = format!("{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let temporary = path.with_extension(unique);
    let written = std::fs::File::create(&temporary).and_then(|mut file| {
        file.write_all(&Sha256::digest(executable))?;
        file.write_all(executable)
    });
    let placed = written.and_then(|()| std::fs::rename(&temporary, path));
    if placed.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    placed
}
