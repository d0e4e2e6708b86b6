//! Data, metrics, logs and the loop.

mod augment;
mod batches;
mod data;
mod logs;
mod metrics;
mod pack;
mod trainer;

use std::path::PathBuf;
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

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        std::fs::write(self.join(name), bytes).expect("a file");
        self.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[track_caller]
fn fails<T>(result: Result<T>, with: &[&str]) {
    let error = result.err().expect("an error").to_string();
    for text in with {
        assert!(error.contains(text), "{text:?} is not in: {error}");
    }
}
