//! A pooling allocator for programs that use shardax on CPU: name this crate once, in `main.rs`, and large arrays
//! stop costing a page fault for every 4 KiB.
//!
//! ```
//! use shardax_alloc as _;
//! ```
//!
//! XLA's CPU plugin takes the memory of results and temporaries from the C library and gives it back after every
//! call. The C library returns large blocks to the system, which hands them out zeroed and page by page the next
//! time: a program that is bound by memory then spends most of its time in page faults. This crate makes
//! [mimalloc](https://github.com/microsoft/mimalloc) the allocator of the whole process, Rust's and C's (`malloc`,
//! `aligned_alloc`, …), by exporting these functions from the executable, where the plugin finds them first. It keeps
//! large blocks for the next call, at the price of some more resident memory. `docs/benchmarks.md` has figures. Where
//! memory is short, `MIMALLOC_ALLOW_THP=0` in the environment takes a sixth off, for steps that take a tenth longer.
//!
//! A program can have one allocator; leave this crate out where another one is wanted. Any that replaces the C
//! functions and keeps large blocks serves as well: jemalloc needs the features
//! `unprefixed_malloc_on_supported_platforms` and the setting `dirty_decay_ms:-1`.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
