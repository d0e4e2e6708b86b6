//! A pooling allocator for programs that use shardax on CPU. Import this crate in `main.rs` to avoid page faults on
//! large arrays.
//!
//! ```
//! use shardax_alloc as _;
//! ```
//!
//! XLA's CPU plugin allocates results and temporaries with the C library, and frees them after every call. glibc
//! returns large blocks to the system, and faults them in again, zeroed and page by page: a memory-bound program then
//! spends most of its time in page faults. This crate makes [mimalloc](https://github.com/microsoft/mimalloc) the
//! allocator of the whole process, for Rust and for C (`malloc`, `aligned_alloc`, …). The executable exports the C
//! functions, so the plugin finds them before glibc's. mimalloc reuses large blocks for the next call, at the price of
//! more resident memory; `docs/benchmarks.md` has figures. `MIMALLOC_ALLOW_THP=0` in the environment turns off huge
//! pages, which takes less memory and makes steps slower. Test: `tests/exported.rs`.
//!
//! A program can have only one global allocator; omit this crate to use another one. Any allocator works that replaces
//! the C functions and reuses large blocks: jemalloc needs the feature `unprefixed_malloc_on_supported_platforms` and
//! the setting `dirty_decay_ms:-1`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
