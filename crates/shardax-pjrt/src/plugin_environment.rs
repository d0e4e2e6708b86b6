//! Preparations for loading a plugin.
//!
//! Without a TPU, libtpu (0.0.52) asks the cloud's metadata server for its location and blocks for ten minutes if
//! nobody answers. Only environment variables prevent this; JAX also sets the first of them if there is no TPU.

use std::ffi::{CString, c_char};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::permissions;

/// The variables for libtpu without a TPU. Variables that the user has set are not changed.
const WITHOUT_TPU: &[(&str, &str)] = &[
    // Otherwise initialization waits for the metadata server.
    ("TPU_SKIP_MDS_QUERY", "1"),
    // Otherwise it writes warnings to stderr.
    ("TPU_ACCELERATOR_TYPE", "v5litepod-4"),
    ("TPU_WORKER_HOSTNAMES", "localhost"),
    ("TPU_WORKER_ID", "0"),
    // Otherwise every process writes a log to /tmp.
    ("TPU_LOG_DIR", "disabled"),
    // Otherwise a second process cannot load it.
    ("ALLOW_MULTIPLE_LIBTPU_LOAD", "1"),
];

/// Prepares for the plugin in this file, recognized by its name.
pub(crate) fn for_file(path: &Path) {
    match path.file_name().and_then(|name| name.to_str()) {
        Some("libtpu.so") => for_tpu(),
        Some("xla_cuda_plugin.so") => for_cuda(path),
        _ => {}
    }
}

/// Prepares for libtpu. If there is a TPU, libtpu configures itself.
pub(crate) fn for_tpu() {
    if !has_tpu(Path::new("/sys/bus/pci/devices")) {
        add_variables(WITHOUT_TPU);
    }
}

/// Loads libraries that cuDNN does not find by itself, from next to the plugin, as JAX does.
fn for_cuda(path: &Path) {
    const FILES: &[&str] = &["nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "nvidia/cu13/lib/libnvrtc.so.13"];
    // The `site-packages` folder, two levels above the plugin's.
    let Some(packages) = path.parent().and_then(Path::parent).and_then(Path::parent) else { return };
    for file in FILES.iter().map(|file| packages.join(file)).filter(|file| file.is_file()) {
        if file.parent().is_none_or(|folder| permissions::check_folder(folder).is_err()) {
            continue;
        }
        // SAFETY: the plugin, which the user chose, would load this library and run its initializers later.
        if let Ok(library) = unsafe { libloading::Library::new(&file) } {
            std::mem::forget(library);
        }
    }
}

/// Returns true if the PCI bus has a TPU. Google makes other devices as well.
fn has_tpu(devices: &Path) -> bool {
    const GOOGLE: &str = "0x1ae0";
    // v3, an unnamed kind, v4, v5p, v5e, v6e, 7x.
    const TPUS: &[&str] = &["0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"];
    let entries = fs::read_dir(devices).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .any(|device| has_value(&device.join("vendor"), &[GOOGLE]) && has_value(&device.join("device"), TPUS))
}

/// Returns true if the file contains one of these values.
fn has_value(file: &Path, values: &[&str]) -> bool {
    fs::read_to_string(file).is_ok_and(|text| values.contains(&text.trim()))
}

/// Adds those variables that are not set to the environment of this process.
///
/// Other threads can read the environment in C at the same time, without a lock, and `setenv` can free the memory that they read.
/// Therefore a new list of all variables replaces the old one in one step, and the old one is never freed or changed.
#[cfg(unix)]
fn add_variables(variables: &[(&str, &str)]) {
    unsafe extern "C" {
        static mut environ: *mut *mut c_char;
    }

    static LOCK: Mutex<()> = Mutex::new(());
    let _one = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let missing = variables.iter().filter(|(name, _)| std::env::var_os(name).is_none());
    let added: Vec<CString> =
        missing.filter_map(|(name, value)| CString::new(format!("{name}={value}")).ok()).collect();
    if added.is_empty() {
        return;
    }
    // SAFETY: the list ends in null, and its texts are never changed in place. The new list and its texts are never
    // freed, like the system's.
    unsafe {
        let mut list = Vec::new();
        let mut entry = (&raw const environ).read_volatile();
        while !entry.is_null() && !(*entry).is_null() {
            list.push(*entry);
            entry = entry.add(1);
        }
        list.extend(added.into_iter().map(CString::into_raw));
        list.push(std::ptr::null_mut());
        (&raw mut environ).write_volatile(Vec::leak(list).as_mut_ptr());
    }
}

#[cfg(not(unix))]
fn add_variables(_: &[(&str, &str)]) {}

#[cfg(test)]
mod tests {
    use super::*;

    fn write_device(bus: &Path, name: &str, vendor: &str, id: &str) {
        let folder = bus.join(name);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("vendor"), format!("{vendor}\n")).unwrap();
        fs::write(folder.join("device"), format!("{id}\n")).unwrap();
    }

    #[test]
    fn a_tpu_is_distinguished_from_other_google_devices() {
        let bus = std::env::temp_dir().join(format!("shardax-pci-{}", std::process::id()));
        assert!(!has_tpu(&bus));
        write_device(&bus, "0", "0x10de", "0x0063");
        write_device(&bus, "1", "0x1ae0", "0x0042"); // a network card
        assert!(!has_tpu(&bus));
        write_device(&bus, "2", "0x1ae0", "0x0063");
        assert!(has_tpu(&bus));
        fs::remove_dir_all(&bus).unwrap();
    }

    // Miri has its own environment and cannot start programs.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn variables_are_added_and_existing_ones_unchanged() {
        let path = std::env::var_os("PATH");
        let count = std::env::vars_os().count();
        add_variables(&[("SHARDAX_TEST_ADDED", "1"), ("PATH", "/nowhere")]);
        assert_eq!((std::env::var_os("PATH"), std::env::vars_os().count()), (path, count + 1));
        assert_eq!(std::env::var("SHARDAX_TEST_ADDED").as_deref(), Ok("1"));
        // `setenv` and further additions work afterwards.
        add_variables(&[("SHARDAX_TEST_ADDED", "2"), ("SHARDAX_TEST_TOO", "3")]);
        assert_eq!(std::env::var("SHARDAX_TEST_ADDED").as_deref(), Ok("1"));
        let child = std::process::Command::new("sh").args(["-c", "echo $SHARDAX_TEST_ADDED$SHARDAX_TEST_TOO"]).output();
        assert_eq!(String::from_utf8(child.unwrap().stdout).unwrap().trim(), "13");
    }
}
