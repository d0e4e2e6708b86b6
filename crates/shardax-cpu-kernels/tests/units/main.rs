//! The unit tests of this crate. Compiling the whole crate again for them takes the compiler a minute, so this program compiles only
//! the modules that have tests, and what these use. `cargo test -p xtask` compares the list with the sources.

// Most functions of a module are used by other modules only.
#![allow(dead_code, unused_imports)]

#[path = "../../src/attention/exp.rs"]
mod exp;
#[path = "../../src/low_precision/mod.rs"]
mod low_precision;
#[path = "../../src/per_type.rs"]
mod per_type;
#[path = "../../src/prefetch.rs"]
mod prefetch;
#[path = "../../src/rounded.rs"]
mod rounded;
#[path = "../../src/scratch.rs"]
mod scratch;
#[path = "../../src/tasks.rs"]
mod tasks;
#[path = "../../src/tridiagonal.rs"]
mod tridiagonal;
#[path = "../../src/view.rs"]
mod view;

use low_precision::{matmul_bf16, matmul_i8, matmul_i32};
use view::{ShapeError, View};

type Result<T> = std::result::Result<T, ShapeError>;
