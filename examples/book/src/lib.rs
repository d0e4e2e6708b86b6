//! The programs of the book (`docs`) and of the READMEs: `cargo test --doc -p shardax-book` compiles and runs them.
//!
//! `cargo xtask book` fails if a page with programs is missing here.

#![forbid(unsafe_code)]

macro_rules! pages {
    ($($page:ident $path:literal)*) => {$(
        #[cfg(doctest)]
        #[doc = include_str!($path)]
        pub struct $page;
    )*};
}

pages! {
    TenMinutes "../../../docs/ten-minutes.md"
    FromJax "../../../docs/from-jax.md"
    FromFlaxLinen "../../../docs/from-flax-linen.md"
    FromPytorch "../../../docs/from-pytorch.md"
    FromRust "../../../docs/from-rust.md"
    ArraysAndTrees "../../../docs/arrays-and-trees.md"
    Transformations "../../../docs/transformations.md"
    FunctionsInStructs "../../../docs/functions-in-structs.md"
    ManyDevices "../../../docs/many-devices.md"
    Explicit "../../../docs/explicit.md"
    Platforms "../../../docs/platforms.md"
    Exporting "../../../docs/exporting.md"
    Serving "../../../docs/serving.md"
    ShardMap "../../../docs/shard-map.md"
    Collectives "../../../docs/collectives.md"
    SharpBits "../../../docs/sharp-bits.md"
    Parallelism "../../../docs/parallelism.md"
    MigratingFromPmap "../../../docs/migrating-from-pmap.md"
    Ports "../../../docs/ports.md"
    Training "../../../docs/training.md"
    Operations "../../../docs/operations.md"
    Models "../../../docs/models.md"
    Planning "../../../docs/planning.md"
    Errors "../../../docs/errors.md"
    Processes "../../../docs/processes.md"
    Kernels "../../../docs/kernels.md"
    Primitives "../../../docs/primitives.md"
    WhereIsX "../../../docs/where-is-x.md"
    Readme "../../../README.md"
    ReadmeOfShardax "../../../crates/shardax/README.md"
    ReadmeOfCpuKernels "../../../crates/shardax-cpu-kernels/README.md"
    ReadmeOfModels "../../../crates/shardax-models/README.md"
    ReadmeOfNn "../../../crates/shardax-nn/README.md"
    ReadmeOfTrain "../../../crates/shardax-train/README.md"
}
