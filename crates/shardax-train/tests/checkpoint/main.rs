//! Checkpoints: what is saved is what is restored, wherever it goes; what ends a program or damages a file takes no more
//! than it must.

mod child;
mod faults;
mod killed;
#[path = "../../../shardax-mpi/tests/common/mod.rs"]
mod launch;
mod manager;
mod processes;
mod resume;
mod round_trip;
mod speed;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use shardax::prelude::*;

fn setup() {
    config::set_num_cpu_devices(8).expect("eight CPU devices");
}

/// A folder of one test, which is removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("shardax-train-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a folder for the test");
        Folder(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The bits of every array of a tree, in order.
fn bits<T: Tree>(tree: &T) -> Result<Vec<Vec<u8>>> {
    tree::leaves(tree).iter().map(Array::to_bytes).collect()
}

/// The names of what is in a folder, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[track_caller]
fn fails<T>(result: Result<T>, with: &[&str]) {
    let error = result.err().expect("an error").to_string();
    for text in with {
        assert!(error.contains(text), "{text:?} is not in: {error}");
    }
}
