//! Checkpoints: what is saved is what is restored, wherever it goes; what ends a program or damages a file takes no
//! more than it must.

mod child;
#[path = "../common/mod.rs"]
mod common;
mod donated;
mod explicit;
mod faults;
mod killed;
#[path = "../../../shardax-mpi/tests/common/mod.rs"]
mod launch;
mod manager;
mod processes;
mod resume;
mod round_trip;
mod speed;

use std::path::Path;

use common::{Folder, fails};
use shardax::prelude::*;

fn setup() {
    config::set_num_cpu_devices(8).expect("eight CPU devices");
}

/// The bits of every array of a tree, in order.
fn bits<T: Tree>(tree: &T) -> Result<Vec<Vec<u8>>> {
    tree::leaves(tree).iter().map(Array::to_bytes).collect()
}

/// Returns the names of a folder's entries, in order.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
