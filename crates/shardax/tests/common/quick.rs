//! Options of XLA for tests that compile much and run it a few times.

use shardax::stages::CompilerOption;

/// Compiles in a third of the time, with XLA (xla-cpu-pjrt 0.0.1); the code is slower, and its numbers differ in last bits.
pub const QUICK: [(&str, CompilerOption); 4] = [
    ("xla_cpu_use_fusion_emitters", CompilerOption::Bool(false)),
    ("xla_backend_optimization_level", CompilerOption::Int(0)),
    ("xla_llvm_disable_expensive_passes", CompilerOption::Bool(true)),
    // One LLVM module a program: a program is small, and each module detects the processor's features again.
    ("xla_cpu_parallel_codegen_split_count", CompilerOption::Int(1)),
];

/// Returns true if all checks of the long lists are requested, by `SHARDAX_TEST_SLICES=all`.
pub fn is_complete() -> bool {
    std::env::var("SHARDAX_TEST_SLICES").is_ok_and(|value| value == "all")
}

/// Of so many checks `cargo test` makes one, to be quick; `.ci/run sweeps` makes all.
pub fn one_of(every: usize) -> usize {
    if is_complete() { 1 } else { every }
}

/// Returns true if `cargo test` leaves this test to `.ci/run sweeps`, because other tests notice most of its faults.
pub fn is_left_to_sweeps(others: &str) -> bool {
    if !is_complete() {
        eprintln!("left to `.ci/run sweeps`; {others} would notice most of its faults");
    }
    !is_complete()
}

/// The options of program `i` of a list: every eighth is compiled as users' programs are.
pub fn mostly_quick(i: usize) -> Vec<(&'static str, CompilerOption)> {
    if i % 8 == 7 { Vec::new() } else { QUICK.to_vec() }
}

/// Simulates eight CPU devices, unless `SHARDAX_PLATFORM` selects another platform.
pub fn eight_devices() {
    if is_on_cpu() {
        shardax::config::set_num_cpu_devices(8).expect("eight CPU devices");
    }
}

/// Returns true unless `SHARDAX_PLATFORM` selects another platform.
pub fn is_on_cpu() -> bool {
    std::env::var("SHARDAX_PLATFORM").map_or(true, |platform| platform == "cpu")
}

/// Simulates eight CPU devices, and compiles all programs of the process quickly.
pub fn setup() {
    eight_devices();
    shardax::config::set_compiler_options(QUICK);
}
