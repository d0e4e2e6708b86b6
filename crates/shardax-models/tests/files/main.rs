//! Files of other formats than safetensors, and weights of few bits (`tools/huggingface/gguf_files.py`, `weight_files.py` and `quantized_folders.py`).

#[path = "../../../shardax-train/tests/common/mod.rs"]
mod common;
mod fuzz;
mod generation;
mod gguf;
#[path = "../../../shardax/tests/common/mutants.rs"]
#[allow(dead_code)]
mod mutating;
mod packed;
mod pytorch;
mod quantized;
#[path = "../../../shardax/tests/common/quick.rs"]
#[allow(dead_code)]
mod quick;
mod sharded;
#[cfg(feature = "text")]
mod text;

use std::path::{Path, PathBuf};

use shardax_models::huggingface::Weights;
use shardax_nn::prelude::*;

fn setup() {
    config::set_num_cpu_devices(4).expect("four CPU devices");
    config::set_compiler_options(quick::QUICK);
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// Checks that both files have the same arrays with the same bits.
fn same_arrays(expected: &Weights, found: &Weights) -> Result<()> {
    for name in expected.names() {
        let (expected, found) = (expected.get(name)?, found.get(name)?);
        assert_eq!(found.shape(), expected.shape(), "{name}");
        assert_eq!(found.astype(expected.dtype()).to_bytes()?, expected.to_bytes()?, "{name}");
    }
    Ok(())
}
